"""FRONT: equal to its authors' code on random weights, and its laws."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import learngene_zoo as lg
from learngene_zoo.errors import BadFile
from learngene_zoo.families.tensors import get_shapes, initialise
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.pretrained.ancestry import Ancestry
from learngene_zoo.runs.run import Run
from learngene_zoo.testing import make_tiny_ancestry
from lgzoo_baselines.weights.front import FrontExtractor, apply_along, build_cosines, build_inverse

WHOLE = ViTSpec(layers=4, width=24, heads=3, image_size=16, patch_size=8, classes=3)
RELEASED = json.loads((Path(__file__).parents[1] / "data" / "front_release.json").read_text())[
    "cases"
]
CASES: dict[str, tuple[float, dict[str, Any]]] = {
    "smaller": (1.0, {"layers": 2, "width": 16, "heads": 2}),
    "kept": (1.0, {"width": 16, "heads": 2, "amplitudes": "kept"}),
    "half": (0.5, {"layers": 3, "width": 16, "heads": 2}),
    "wider": (1.0, {"width": 32, "heads": 4}),
}


@pytest.fixture(scope="module")
def ancestry() -> Ancestry:
    """Return random tensors with different means, drawn as for the committed outputs."""
    generator = torch.Generator().manual_seed(0)
    state = {
        name: torch.randn(tensor.shape, generator=generator) * 0.1
        + 0.05 * torch.randn((), generator=generator)
        for name, tensor in initialise(WHOLE, 0).items()
    }
    return replace(make_tiny_ancestry(spec=WHOLE), state=state)


def extract(ancestry: Ancestry, keep: float = 1.0) -> lg.Learngene:
    extracted = FrontExtractor(keep=keep)([ancestry], [], Run())
    return extracted.with_config(method="front", ancestries=(ancestry.record,))


@pytest.mark.parametrize("case", RELEASED)
def test_it_equals_the_released_code(case: str, ancestry: Ancestry) -> None:
    keep, size = CASES[case]
    ours = lg.expand(extract(ancestry, keep), **size).state
    assert RELEASED[case].keys() == {name for name in ours if not name.startswith("head")}
    for name, (magnitude, *first) in RELEASED[case].items():
        assert ours[name].double().abs().sum().item() == pytest.approx(magnitude, rel=1e-5), name
        assert ours[name].flatten()[:4].tolist() == pytest.approx(first, abs=2e-6), name


def test_the_transform_is_a_cosine_transform_and_can_be_undone() -> None:
    for size in (1, 2, 5, 12):
        assert torch.allclose(
            build_inverse(size) @ build_cosines(size),
            torch.eye(size, dtype=torch.float64),
            atol=1e-12,
        )
        assert build_cosines(size)[0].tolist() == [1.0] * size
    numbers = torch.arange(24, dtype=torch.float64).reshape(2, 3, 4)
    assert torch.equal(
        apply_along(torch.tensor([[0.0, 1.0]], dtype=torch.float64), numbers, 2), numbers[:, :, 1:2]
    )


def test_of_its_own_size_it_is_the_ancestry_model(ancestry: Ancestry) -> None:
    same = lg.expand(extract(ancestry))
    assert all(
        (same.state[name] - ancestry.state[name]).abs().max() < 1e-6 for name in same.inherited
    )
    assert len(same.inherited) == len(ancestry.state) - 2


def test_a_smooth_tensor_keeps_its_form_and_with_rescaling_its_size(ancestry: Ancestry) -> None:
    """A slow cosine with a third as many samples; released amplitudes are 3 x 3 times as large."""
    wave = torch.cos(torch.pi * (torch.arange(24) + 0.5) / 24).expand(24, 24).clone()
    state = {**ancestry.state, **{f"blocks.{block}.attn.proj.weight": wave for block in range(4)}}
    smooth = extract(replace(ancestry, state=state))
    rescaled, released = (
        lg.expand(smooth, width=8, heads=1, amplitudes=how).state["blocks.2.attn.proj.weight"]
        for how in ("kept", "released")
    )
    expected = torch.cos(torch.pi * (torch.arange(8) + 0.5) / 8).expand(8, 8)
    assert torch.allclose(rescaled, expected, atol=0.02)
    assert torch.allclose(released, 9 * expected, atol=0.2)


def test_what_is_stored_falls_with_the_share_that_is_kept(ancestry: Ancestry) -> None:
    half, full = (extract(ancestry, keep).state for keep in (0.5, 1.0))
    assert tuple(full["blocks.mlp.fc1.weight"].shape) == (4, 96, 24)
    assert tuple(half["blocks.mlp.fc1.weight"].shape) == (4, 48, 12)
    sizes = {
        name: tensor.numel()
        for name, tensor in full.items()
        if not name.endswith((".mean", ".std"))
    }
    assert sum(sizes.values()) == sum(
        torch.Size(shape).numel() for name, shape in get_shapes(WHOLE).items() if "head" not in name
    )


def test_more_layers_take_the_last_blocks_mean(ancestry: Ancestry) -> None:
    deeper = lg.expand(extract(ancestry), layers=6).state
    means = [
        ancestry.state[f"blocks.{min(block, 3)}.mlp.fc1.weight"].mean().item() for block in range(6)
    ]
    actual = [deeper[f"blocks.{block}.mlp.fc1.weight"].mean().item() for block in range(6)]
    assert actual == pytest.approx(means, abs=1e-6), (
        "a standardised tensor has mean zero in every frequency of depth"
    )


def test_a_learngene_that_lost_a_part_is_refused(ancestry: Ancestry) -> None:
    full = extract(ancestry)
    for name, words in {
        "blocks.mlp.fc1.weight.mean": r"fc1\.weight\.mean is missing, or is not of 4 tensors",
        "pos_embed": "pos_embed is missing",
    }.items():
        with pytest.raises(BadFile, match=words):
            lg.expand(
                replace(
                    full, state={key: value for key, value in full.state.items() if key != name}
                )
            )
    with pytest.raises(
        BadFile, match=r"pos_embed has shape \(1, 6, 24\); expected at most \(1, 5, 24\)"
    ):
        lg.expand(replace(full, state={**full.state, "pos_embed": torch.zeros(1, 6, 24)}))
