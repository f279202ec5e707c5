"""TLEG and SWS: models whose blocks are made of a few stored ones."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

import learngene_zoo as lg
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families.family import count_params, load_family
from learngene_zoo.families.tensors import initial, model_of, shapes, shapes_in
from learngene_zoo.method import METHODS, Target
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import with_settings
from learngene_zoo.testing import tiny_ancestry, tiny_task
from lgzoo_baselines.auxiliary import Details, stored_spec
from lgzoo_baselines.mixed_blocks import auxiliary, mixed, started
from lgzoo_baselines.sws import Share, copies, repeated, spread
from lgzoo_baselines.tleg import line

SPEC = tiny_ancestry().spec.with_(layers=2, pool="avg", class_token=False)
DEIT = {width: load_family("vit").architectures[f"deit_{width}_patch16_224"] for width in ("small", "base")}


@cache
def made(name: str, **settings: Any) -> lg.Learngene:
    extractor = with_settings(METHODS.load(name).presets["smoke"], settings)
    ancestry = tiny_ancestry()
    return extractor([ancestry], [tiny_task()], Run()).with_config(ancestries=(ancestry.record,))


def test_every_tensor_of_a_layer_is_on_the_line() -> None:
    learngene = made("tleg", auxiliary_layers=2)
    model = lg.expand(learngene, layers=4, classes=5)
    for i in range(4):
        for inner in ("norm1.weight", "attn.qkv.weight", "attn.qkv.bias", "mlp.fc2.weight"):
            base, slope = (learngene.state[f"blocks.{k}.{inner}"] for k in (0, 1))
            assert torch.equal(model.state[f"blocks.{i}.{inner}"], base + i / 4 * slope)
    assert torch.equal(model.state["fc_norm.weight"], learngene.state["fc_norm.weight"])
    assert model.inherited == {name for name in model.state if not name.startswith("head.")}
    assert (model.spec.class_token, model.spec.pool) == (False, "avg")
    assert model.provenance["line"] == [0, 0.25, 0.5, 0.75]


def test_the_auxiliary_model_answers_as_the_plain_model_of_its_layers() -> None:
    spec, rows = SPEC.with_(layer_scale=0.1), line(5)
    state = initial(spec, 3, "fan_in")
    images = torch.randn(2, 3, spec.image_size, spec.image_size)
    model = auxiliary(model_of(spec, state), rows)
    plain = model_of(spec.with_(layers=5), mixed(state, spec, rows))
    torch.testing.assert_close(model(images), plain(images))
    assert list(model.state_dict()) == list(state)


def test_the_gradients_of_all_layers_reach_what_they_are_made_of() -> None:
    rows, state = line(3), initial(SPEC, 3, "fan_in")
    images, name = torch.randn(2, 3, SPEC.image_size, SPEC.image_size), "attn.qkv.weight"
    model = auxiliary(model_of(SPEC, state), rows)
    plain = model_of(SPEC.with_(layers=3), mixed(state, SPEC, rows))
    for one in (model, plain):
        one(images).square().sum().backward()
    each = [plain.get_parameter(f"blocks.{i}.{name}").grad for i in range(3)]
    expected = {0: sum(each), 1: sum(i / 3 * gradient for i, gradient in enumerate(each))}
    for k, gradient in expected.items():
        torch.testing.assert_close(model.get_parameter(f"blocks.{k}.{name}").grad, gradient)


def test_every_layer_starts_with_usual_norms() -> None:
    spec = SPEC.with_(layer_scale=0.1)
    start = mixed(started(spec, (1,), 0, "timm"), spec, line(4))
    for i in range(4):
        assert torch.equal(start[f"blocks.{i}.norm2.weight"], torch.ones(spec.width))
        assert not start[f"blocks.{i}.mlp.fc1.bias"].any()
        assert torch.equal(start[f"blocks.{i}.ls1.gamma"], torch.full((spec.width,), 0.1))
    assert not torch.equal(start["blocks.0.attn.proj.weight"], start["blocks.3.attn.proj.weight"])
    untrained = made("tleg", epochs=0).state
    assert not untrained["blocks.1.norm1.weight"].any()
    assert untrained["blocks.0.norm1.weight"].all()


def test_labels_teach_it_nothing() -> None:
    """The answers of the teacher are all that counts: with other labels the same learngene."""
    task = tiny_task()
    turned = replace(task, open_split=lambda split: _turned(task.open_split(split)))
    settings, ancestry = METHODS.load("tleg").presets["smoke"], tiny_ancestry(classes=3)
    ancestry = replace(ancestry, class_names=task.class_names)  # its own task: its head answers
    one, other = (settings([ancestry], [data], Run()).state for data in (task, turned))
    assert all(torch.equal(one[name], other[name]) for name in one)
    labels = with_settings(settings, {"share": 0.5})
    assert not torch.equal(labels([ancestry], [task], Run()).state["head.weight"], one["head.weight"])


def _turned(split: Any) -> Any:
    return replace(split, labels=(split.labels + 1) % 3)


def test_the_head_is_inherited_for_the_learngenes_own_task() -> None:
    learngene = made("tleg")
    expander = METHODS.load("tleg").expander
    own = expander(learngene, Target(layers=2, classes=3, task="tiny"), Run())
    assert torch.equal(own.state["head.weight"], learngene.state["head.weight"])
    assert "head.weight" in own.inherited
    for other in (Target(classes=3), Target(classes=3, task="other"), Target(classes=4, task="tiny")):
        assert "head.weight" not in expander(learngene, other, Run()).inherited


@pytest.mark.parametrize(
    ("method", "width", "stored", "twelve"),
    [
        ("tleg", "small", 4_305_256, 22_049_896),
        ("tleg", "base", 15_687_400, 86_566_120),
        ("sws", "small", 9_628_648, 22_049_896),
        ("sws", "base", 36_951_016, 86_566_120),
    ],
)
def test_the_papers_sizes(method: str, width: str, stored: int, twelve: int) -> None:
    found = METHODS.load(method)
    config = found.preset("paper").outline([DEIT[width]])
    assert count_params(stored_spec(config, Details(**config.details, classes=1000))) == stored
    sizes = {member.spec.layers: member.cost().params for member in found.expander.family(config)}
    assert sizes[12] == twelve
    assert config.spec == found.preset("paper").outline([DEIT[width].with_(registers=4)]).spec


def test_what_is_stored_is_a_model_of_the_stored_blocks() -> None:
    learngene = made("tleg")
    stored = stored_spec(learngene.config, Details(blocks=2, classes=3))
    assert shapes_in(learngene.state) == shapes(stored)
    assert learngene.config.details == {"blocks": 2, "task": "tiny", "classes": 3, "dense": False}
    assert learngene.config.spec.layers == 3  # the ancestry's


def test_stochastic_depth_is_refused() -> None:
    with pytest.raises(WrongCall, match="drop_path needs blocks"):
        made("tleg", drop_path=0.1)


@pytest.mark.parametrize("details", [{}, {"blocks": 3}, {"blocks": 0}, {"blocks": 2, "classes": -1}])
def test_details_of_an_artifact_are_not_trusted(details: dict[str, Any]) -> None:
    with pytest.raises(BadFile, match=r"tleg learngene.*(blocks|classes)"):
        lg.expand(made("tleg").with_config(details=details), layers=2)


def test_a_learngene_that_lost_a_tensor_is_refused() -> None:
    learngene = made("tleg")
    fewer = {name: tensor for name, tensor in learngene.state.items() if name != "blocks.1.norm1.weight"}
    with pytest.raises(BadFile, match=r"blocks\.1\.norm1\.weight is missing; expected shape \(32,\)"):
        lg.expand(replace(learngene, state=fewer), layers=2)


# SWS.


def test_the_stages_of_the_layers() -> None:
    assert spread(12, 5) == [0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 4, 4]  # the authors' map
    assert spread(7, 5) == [0, 0, 1, 1, 2, 3, 4]
    assert spread(5, 5) == [0, 1, 2, 3, 4]
    assert spread(3, 5) == [0, 2, 4]
    assert spread(1, 5) == [0]
    assert repeated(Share().stages) == [0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 4, 4, 4]
    assert copies([0, 0, 1], 2) == ((1, 0), (1, 0), (0, 1))


def test_every_layer_of_a_stage_is_its_block() -> None:
    learngene = made("sws")
    assert learngene.config.spec.layers == 3  # stages of 1 and 2
    model = lg.expand(learngene, layers=3, classes=5)
    for layer, stage in enumerate([0, 0, 1]):
        for inner in ("norm1.bias", "attn.qkv.weight", "mlp.fc2.weight"):
            assert torch.equal(model.state[f"blocks.{layer}.{inner}"], learngene.state[f"blocks.{stage}.{inner}"])
    assert model.provenance["blocks"] == [0, 0, 1]
    named = lg.expand(learngene, places=(0, 1, 1, 1))
    assert named.provenance["blocks"] == [0, 1, 1, 1]
    assert named.spec.layers == 4


@pytest.mark.parametrize("places", [(1, 0), (0, 2), (0, 1, 1)])
def test_places_that_are_no_stages_of_the_layers_are_refused(places: tuple[int, ...]) -> None:
    with pytest.raises(WrongCall, match="expected the stages of 2 layers in their order, from 0 to 1"):
        lg.expand(made("sws"), layers=2, places=places)


def test_stages_that_are_none_are_refused() -> None:
    with pytest.raises(WrongCall, match="stages is empty"):
        Share(stages=())
