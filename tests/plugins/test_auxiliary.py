"""TLEG and SWS: models whose blocks are computed from a few stored ones."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

import learngene_zoo as lg
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families.family import count_params, load_family
from learngene_zoo.families.tensors import build_model, get_shapes, initialise, read_shapes
from learngene_zoo.method.installed import METHODS
from learngene_zoo.method.sizes import Target
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import with_settings
from learngene_zoo.testing import make_tiny_ancestry, make_tiny_task
from lgzoo_baselines.learnt.auxiliary import StoredBlocksDetails, derive_stored_spec
from lgzoo_baselines.learnt.sws import SwsExtractor, assign_stages, copy_rows, repeat_stages
from lgzoo_baselines.learnt.tleg import expand_line
from lgzoo_baselines.modules.mixed_blocks import (
    initialise_stored_blocks,
    install_mixed_blocks,
    mix_blocks,
)

SPEC = make_tiny_ancestry().spec.with_(layers=2, pool="avg", class_token=False)
DEIT = {
    width: load_family("vit").architectures[f"deit_{width}_patch16_224"]
    for width in ("small", "base")
}


@cache
def extract(name: str, **settings: Any) -> lg.Learngene:
    extractor = with_settings(METHODS.load(name).presets["smoke"], settings)
    ancestry = make_tiny_ancestry()
    return extractor([ancestry], [make_tiny_task()], Run()).with_config(
        method=name, ancestries=(ancestry.record,)
    )


def test_every_tensor_of_a_layer_is_on_the_line() -> None:
    learngene = extract("tleg", auxiliary_layers=2)
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
    spec, rows = SPEC.with_(layer_scale=0.1), expand_line(5)
    state = initialise(spec, 3, "fan_in")
    images = torch.randn(2, 3, spec.image_size, spec.image_size)
    model = install_mixed_blocks(build_model(spec, state), rows)
    plain = build_model(spec.with_(layers=5), mix_blocks(state, spec, rows))
    torch.testing.assert_close(model(images), plain(images))
    assert list(model.state_dict()) == list(state)


def test_the_gradients_of_all_layers_reach_what_they_are_made_of() -> None:
    rows, state = expand_line(3), initialise(SPEC, 3, "fan_in")
    images, name = torch.randn(2, 3, SPEC.image_size, SPEC.image_size), "attn.qkv.weight"
    model = install_mixed_blocks(build_model(SPEC, state), rows)
    plain = build_model(SPEC.with_(layers=3), mix_blocks(state, SPEC, rows))
    for network in (model, plain):
        network(images).square().sum().backward()
    each = [plain.get_parameter(f"blocks.{i}.{name}").grad for i in range(3)]
    expected = {0: sum(each), 1: sum(i / 3 * gradient for i, gradient in enumerate(each))}
    for k, gradient in expected.items():
        torch.testing.assert_close(model.get_parameter(f"blocks.{k}.{name}").grad, gradient)


def test_every_layer_starts_with_usual_norms() -> None:
    spec = SPEC.with_(layer_scale=0.1)
    start = mix_blocks(initialise_stored_blocks(spec, (1,), 0, "timm"), spec, expand_line(4))
    for i in range(4):
        assert torch.equal(start[f"blocks.{i}.norm2.weight"], torch.ones(spec.width))
        assert not start[f"blocks.{i}.mlp.fc1.bias"].any()
        assert torch.equal(start[f"blocks.{i}.ls1.gamma"], torch.full((spec.width,), 0.1))
    assert not torch.equal(start["blocks.0.attn.proj.weight"], start["blocks.3.attn.proj.weight"])
    untrained = extract("tleg", epochs=0).state
    assert not untrained["blocks.1.norm1.weight"].any()
    assert untrained["blocks.0.norm1.weight"].all()


def test_labels_teach_it_nothing() -> None:
    """Only the teacher's outputs count: other labels give the same learngene."""
    task = make_tiny_task()
    turned = replace(task, open_split=lambda split: _turn(task.open_split(split)))
    settings, ancestry = METHODS.load("tleg").presets["smoke"], make_tiny_ancestry(classes=3)
    ancestry = replace(ancestry, class_names=task.class_names)  # its own task: its head answers
    first, second = (settings([ancestry], [data], Run()).state for data in (task, turned))
    assert all(torch.equal(first[name], second[name]) for name in first)
    labels = with_settings(settings, {"share": 0.5})
    assert not torch.equal(
        labels([ancestry], [task], Run()).state["head.weight"], first["head.weight"]
    )


def _turn(split: Any) -> Any:
    return replace(split, labels=(split.labels + 1) % 3)


def test_the_head_is_inherited_for_the_learngenes_own_task() -> None:
    learngene = extract("tleg")
    expander = METHODS.load("tleg").expander
    inherited = expander(learngene, Target(layers=2, classes=3, task="tiny"), Run())
    assert torch.equal(inherited.state["head.weight"], learngene.state["head.weight"])
    assert "head.weight" in inherited.inherited
    for target in (
        Target(classes=3),
        Target(classes=3, task="other"),
        Target(classes=4, task="tiny"),
    ):
        assert "head.weight" not in expander(learngene, target, Run()).inherited


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
    record = METHODS.load(method)
    config = record.preset("paper").outline([DEIT[width]])
    assert (
        count_params(
            derive_stored_spec(config, StoredBlocksDetails(**config.details, classes=1000))
        )
        == stored
    )
    sizes = {member.spec.layers: member.cost().params for member in record.expander.family(config)}
    assert sizes[12] == twelve
    assert config.spec == record.preset("paper").outline([DEIT[width].with_(registers=4)]).spec


def test_what_is_stored_is_a_model_of_the_stored_blocks() -> None:
    learngene = extract("tleg")
    stored = derive_stored_spec(learngene.config, StoredBlocksDetails(blocks=2, classes=3))
    assert read_shapes(learngene.state) == get_shapes(stored)
    assert learngene.config.details == {"blocks": 2, "task": "tiny", "classes": 3, "dense": False}
    assert learngene.config.spec.layers == 3  # the ancestry's


def test_stochastic_depth_is_refused() -> None:
    with pytest.raises(WrongCall, match="drop_path needs blocks"):
        extract("tleg", drop_path=0.1)


@pytest.mark.parametrize(
    "details", [{}, {"blocks": 3}, {"blocks": 0}, {"blocks": 2, "classes": -1}]
)
def test_details_of_an_artifact_are_not_trusted(details: dict[str, Any]) -> None:
    with pytest.raises(BadFile, match=r"tleg learngene.*(blocks|classes)"):
        lg.expand(extract("tleg").with_config(details=details), layers=2)


def test_a_learngene_that_lost_a_tensor_is_refused() -> None:
    learngene = extract("tleg")
    fewer = {
        name: tensor for name, tensor in learngene.state.items() if name != "blocks.1.norm1.weight"
    }
    with pytest.raises(
        BadFile, match=r"blocks\.1\.norm1\.weight is missing; expected shape \(32,\)"
    ):
        lg.expand(replace(learngene, state=fewer), layers=2)


# SWS.


def test_the_stages_of_the_layers() -> None:
    assert assign_stages(12, 5) == [0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 4, 4]  # the authors' map
    assert assign_stages(7, 5) == [0, 0, 1, 1, 2, 3, 4]
    assert assign_stages(5, 5) == [0, 1, 2, 3, 4]
    assert assign_stages(3, 5) == [0, 2, 4]
    assert assign_stages(1, 5) == [0]
    assert repeat_stages(SwsExtractor().stages) == [0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 4, 4, 4]
    assert copy_rows([0, 0, 1], 2) == ((1, 0), (1, 0), (0, 1))


def test_every_layer_of_a_stage_is_its_block() -> None:
    learngene = extract("sws")
    assert learngene.config.spec.layers == 3  # stages of 1 and 2
    model = lg.expand(learngene, layers=3, classes=5)
    for layer, stage in enumerate([0, 0, 1]):
        for inner in ("norm1.bias", "attn.qkv.weight", "mlp.fc2.weight"):
            assert torch.equal(
                model.state[f"blocks.{layer}.{inner}"], learngene.state[f"blocks.{stage}.{inner}"]
            )
    assert model.provenance["blocks"] == [0, 0, 1]
    named = lg.expand(learngene, places=(0, 1, 1, 1))
    assert named.provenance["blocks"] == [0, 1, 1, 1]
    assert named.spec.layers == 4


@pytest.mark.parametrize("places", [(1, 0), (0, 2), (0, 1, 1)])
def test_places_that_are_no_stages_of_the_layers_are_refused(places: tuple[int, ...]) -> None:
    with pytest.raises(
        WrongCall, match="expected the stages of 2 layers in their order, from 0 to 1"
    ):
        lg.expand(extract("sws"), layers=2, places=places)


def test_stages_that_are_none_are_refused() -> None:
    with pytest.raises(WrongCall, match="stages is empty"):
        SwsExtractor(stages=())
