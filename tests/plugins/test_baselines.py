"""Laws of the baselines; laws of every method are in test_contract.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.learngene import Learngene, load_learngene
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families.vit.spec import TABLE
from learngene_zoo.method.installed import METHODS
from learngene_zoo.method.sizes import Target
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import with_settings
from learngene_zoo.testing import make_tiny_ancestry, make_tiny_task

SIZE = Target(layers=2, classes=3)


def expand(learngene: Learngene, target: Target = SIZE, seed: int = 0, **settings: Any) -> Any:
    expander = with_settings(METHODS.load(learngene.config.method).expander, settings)
    return lifecycle.expand(learngene, target=target, expander=expander, run=Run(seed=seed))


def extract(name: str, **settings: Any) -> Learngene:
    method = METHODS.load(name)
    extractor = with_settings(method.presets["smoke"], settings)
    ancestry = make_tiny_ancestry()
    learngene = extractor([ancestry], [make_tiny_task()] if method.tasks == "one" else [], Run())
    return learngene.with_config(method=name, ancestries=(ancestry.record,))


# scratch


def test_scratch_holds_nothing_and_survives_being_written(tmp_path: Path) -> None:
    loaded = load_learngene(extract("scratch").save(tmp_path / "scratch"))
    assert dict(loaded.state) == {}
    model = expand(loaded)
    assert model.inherited == frozenset()
    assert model.spec.layers == 2


def test_scratch_builds_up_to_five_quarters_of_the_ancestry() -> None:
    learngene = extract("scratch")
    layers = [
        member.spec.layers for member in METHODS.load("scratch").expander.family(learngene.config)
    ]
    assert layers == [1, 2, 3, 4]  # of 3: ceil(3.75)


def test_scratch_leaves_the_grid_where_the_shape_is_possible() -> None:
    model = expand(
        extract("scratch"), Target(layers=9, width=48, heads=3, classes=3, image_size=32)
    )
    assert (model.spec.layers, model.spec.width, model.spec.heads, model.spec.image_size) == (
        9,
        48,
        3,
        32,
    )
    with pytest.raises(WrongCall, match="heads do not divide"):
        expand(extract("scratch"), Target(width=33))


def test_scratchs_two_arms_have_their_own_scale() -> None:
    """std 0.02 against 1/sqrt(fan in), at 32 inputs; 3072 numbers, so 10 % is far beyond chance."""
    stds = {
        i: expand(extract("scratch"), init=i).state["blocks.0.attn.qkv.weight"].std().item()
        for i in ("timm", "fan_in")
    }
    assert stds["timm"] == pytest.approx(0.02, rel=0.1)
    assert stds["fan_in"] == pytest.approx(32**-0.5, rel=0.1)


def test_scratch_is_a_function_of_the_seed() -> None:
    first, second, other = (
        expand(extract("scratch"), seed=seed).state["head.weight"] for seed in (1, 1, 2)
    )
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


# pretrain_finetune


def test_every_size_is_trained_and_taken_whole() -> None:
    learngene = extract("pretrain_finetune", depths=(2, 1))
    assert learngene.config.details == {"depths": [1, 2]}
    assert learngene.config.spec.layers == 2
    assert set(learngene.config.metrics) == {"layers-1", "layers-2"}
    prefixes = {name.split("/")[0] for name in learngene.state}
    assert prefixes == {"layers-1", "layers-2"}
    for layers in (1, 2):
        model = expand(learngene, Target(layers=layers, classes=3))
        assert model.inherited == {name for name in model.state if not TABLE.is_head(name)}
        for name in model.inherited:
            assert torch.equal(model.state[name], learngene.state[f"layers-{layers}/{name}"])


@pytest.mark.parametrize("method", ["pretrain_finetune", "distillation"])
def test_every_depth_comes_with_every_width(method: str) -> None:
    learngene = extract(method, depths=(1, 2), widths=(32, 16))
    assert learngene.config.details == {"depths": [1, 2], "widths": [16, 32]}
    assert set(learngene.config.metrics) >= {
        "layers-1",
        "layers-2",
        "layers-1-width-16",
        "layers-2-width-16",
    }
    sizes = [
        (member.spec.layers, member.spec.width)
        for member in METHODS.load(method).expander.family(learngene.config)
    ]
    assert sizes == [(1, 16), (1, 32), (2, 16), (2, 32)]
    model = expand(learngene, Target(layers=2, width=16, classes=3))
    assert (model.spec.width, model.spec.heads) == (16, 1)
    for name in model.inherited:
        assert torch.equal(model.state[name], learngene.state[f"layers-2-width-16/{name}"])
    works = with_settings(
        METHODS.load(method).extractor, {"depths": (1,), "widths": (16, 32)}
    ).work([make_tiny_ancestry().spec], [48])
    assert [work.trained for work in works] == [0.5, 1]
    with pytest.raises(WrongCall, match="multiple of the head width of 16"):
        extract(method, depths=(1,), widths=(24,))


def test_the_sizes_are_trained_apart_from_each_other() -> None:
    """Each is a part with a separate seed: another depth beside it changes nothing."""
    two, single = (
        extract("pretrain_finetune", depths=(1, 2)),
        extract("pretrain_finetune", depths=(1,)),
    )
    for name, tensor in single.state.items():
        assert torch.equal(tensor, two.state[name]), name


def test_a_size_that_is_finished_is_loaded_and_not_trained_again(tmp_path: Path) -> None:
    """The finished part's tensors are replaced by ones, which a resumed run must load."""
    from safetensors.torch import load_file, save_file

    extractor = with_settings(
        METHODS.load("pretrain_finetune").presets["smoke"], {"depths": (1, 2)}
    )
    first = extractor([make_tiny_ancestry()], [make_tiny_task()], Run(folder=tmp_path))
    file = tmp_path / "parts" / "layers-1" / "done" / "model.safetensors"
    save_file({name: torch.ones_like(tensor) for name, tensor in load_file(file).items()}, file)
    again = extractor([make_tiny_ancestry()], [make_tiny_task()], Run(folder=tmp_path, resume=True))
    assert again.config == first.config
    for name, tensor in again.state.items():
        expected = torch.ones_like(tensor) if name.startswith("layers-1/") else first.state[name]
        assert torch.equal(tensor, expected), name


def test_training_really_changes_the_weights() -> None:
    still = extract("pretrain_finetune", depths=(1,), epochs=0)
    moved = extract("pretrain_finetune", depths=(1,))
    assert not torch.equal(
        still.state["layers-1/blocks.0.attn.qkv.weight"],
        moved.state["layers-1/blocks.0.attn.qkv.weight"],
    )


def test_the_work_of_an_extraction_is_every_size_over_all_epochs() -> None:
    spec = make_tiny_ancestry().spec
    settings = {"depths": (1, 3), "epochs": 2, "images": 30}
    for method, frozen in (("pretrain_finetune", 0), ("distillation", spec.layers)):
        works = with_settings(METHODS.load(method).extractor, settings).work([spec], [48])
        assert [(work.images, work.trained, work.frozen) for work in works] == [
            (60, 1, frozen),
            (60, 3, frozen),
        ]
        assert (
            with_settings(METHODS.load(method).extractor, settings).work([spec], [10])[0].images
            == 20
        )


def test_a_size_that_was_not_pretrained_is_refused() -> None:
    learngene = extract("pretrain_finetune", depths=(1, 3), epochs=0)
    with pytest.raises(WrongCall, match="no model with 2 layers is stored; choose 1, 3 layers"):
        expand(learngene)
    with pytest.raises(
        WrongCall,
        match="no model with 1 layers of width 64 is stored; choose 1, 3 layers of width 32, ",
    ):
        expand(learngene, Target(layers=1, width=64))


@pytest.mark.parametrize("depths", [(), (1, 1), (0, 1), (1000,)])
def test_invalid_depths_are_refused(depths: tuple[int, ...]) -> None:
    with pytest.raises(WrongCall, match="depths is"):
        with_settings(METHODS.load("pretrain_finetune").extractor, {"depths": depths})


@pytest.mark.parametrize(
    "details",
    [
        {},
        {"depths": "12"},
        {"depths": [True]},
        {"depths": [1.5]},
        {"depths": [0]},
        {"depths": [1, 1]},
        {"depths": []},
    ],
)
def test_depths_of_an_artifact_are_not_trusted(details: dict[str, Any]) -> None:
    learngene = extract("pretrain_finetune", depths=(1,), epochs=0).with_config(details=details)
    with pytest.raises(BadFile, match="depths"):
        expand(learngene, Target(layers=1))


def test_an_artifact_without_the_tensors_of_a_size_is_refused() -> None:
    learngene = extract("pretrain_finetune", depths=(1, 2), epochs=0)
    fewer = replace(
        learngene, state={n: t for n, t in learngene.state.items() if n.startswith("layers-1/")}
    )
    with pytest.raises(BadFile, match="lacks the tensors of its model layers-2"):
        expand(fewer)
