"""Growth: larger models that compute the same function as the smaller one, and exceptions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import learngene_zoo as lg
from learngene_zoo.errors import WrongCall
from learngene_zoo.families.family import load_family
from learngene_zoo.families.spec import Spec
from learngene_zoo.families.tensors import build_model
from learngene_zoo.pretrained.ancestry import Ancestry
from learngene_zoo.runs.run import Run
from learngene_zoo.testing import make_tiny_ancestry
from lgzoo_baselines.blocks.block_choice import BlockChoiceExtractor
from lgzoo_baselines.weights.growth import choose_entries, stack_blocks

VIT = (
    load_family("vit")
    .examples[0]
    .with_(layers=3, width=32, heads=2, registers=2, layer_scale=0.1, qk_norm=True)
)
EVA = load_family("eva").examples[0].with_(layers=2, width=32, heads=2)


def perturb(spec: Spec) -> Ancestry:
    """Return random tensors, so that no gain is 1 and no shift 0."""
    generator, plain = torch.Generator().manual_seed(0), make_tiny_ancestry(spec=spec)
    noisy = {
        name: value + 0.1 * torch.randn(value.shape, generator=generator)
        for name, value in plain.state.items()
    }
    return replace(plain, state=noisy)


def grow(ancestry: Ancestry, **sizes: Any) -> lg.Descendant:
    learngene = BlockChoiceExtractor()([ancestry], [], Run())
    return lg.expand(learngene.with_config(method="growth", ancestries=(ancestry.record,)), **sizes)


@torch.no_grad()
def compute_stream(spec: Spec, state: Any) -> torch.Tensor:
    """Return the tokens after the final norm, (2, N, D)."""
    images = torch.randn(
        2, 3, spec.image_size, spec.image_size, generator=torch.Generator().manual_seed(1)
    )
    return build_model(spec, state).double().eval().forward_features(images.double())


@pytest.mark.parametrize("spec", [pytest.param(VIT, id="vit"), pytest.param(EVA, id="eva")])
def test_with_as_many_copies_of_every_channel_the_function_is_the_same(spec: Spec) -> None:
    ancestry = perturb(spec)
    expected = compute_stream(spec, ancestry.state)
    for times in (2, 3):
        model = grow(ancestry, width=32 * times)
        assert model.spec.heads == 2 * times
        actual = compute_stream(model.spec, model.state)
        assert (actual - expected.repeat(1, 1, times)).abs().max() < 1e-5
    wider = grow(
        ancestry, mlp_ratio=spec.mlp_ratio * 1.5
    )  # hidden neurons do not pass a norm of the stream
    assert (compute_stream(wider.spec, wider.state) - expected).abs().max() < 1e-5


def test_with_unequal_copies_layer_norm_does_not_preserve_it() -> None:
    ancestry = perturb(VIT)
    model = grow(ancestry, width=48)
    actual, expected = compute_stream(model.spec, model.state), compute_stream(VIT, ancestry.state)
    assert torch.equal(actual[..., :16] - actual[..., 32:], torch.zeros(2, VIT.tokens, 16)), (
        "copies stay copies"
    )
    assert (actual[..., :32] - expected).abs().max() > 1e-2


def test_outputs_are_copied_and_inputs_share_their_weight() -> None:
    ancestry = perturb(VIT)
    model, name = grow(ancestry, width=48), "blocks.1.attn.proj.weight"
    old, new = ancestry.state[name], model.state[name]
    torch.testing.assert_close(new[:32, :16], old[:, :16] / 2)  # the first head has a copy
    torch.testing.assert_close(new[:32, 16:32], old[:, 16:])
    torch.testing.assert_close(new[:32, 32:], old[:, :16] / 2)
    torch.testing.assert_close(new[32:], new[:16])


def test_advanced_knowledge_is_that_of_the_block_above() -> None:
    ancestry = perturb(VIT)
    plain, advanced = grow(ancestry, width=64), grow(ancestry, width=64, knowledge="advanced")
    for block, above in ((0, 1), (1, 2), (2, 2)):
        for inner, old in (
            ("mlp.fc1.weight", VIT.hidden),
            ("attn.proj.weight", 32),
            ("norm1.bias", 32),
        ):
            actual, lower, upper = (
                advanced.state[f"blocks.{block}.{inner}"],
                *(plain.state[f"blocks.{number}.{inner}"] for number in (block, above)),
            )
            assert torch.equal(actual[:old], lower[:old])
            assert torch.equal(actual[old:], upper[old:])
    assert torch.equal(
        advanced.state["blocks.0.attn.q_norm.weight"], plain.state["blocks.0.attn.q_norm.weight"]
    )
    assert torch.equal(advanced.state["pos_embed"], plain.state["pos_embed"])


def test_deeper_ones_have_the_whole_stack_again_and_the_last_blocks_on_top() -> None:
    assert stack_blocks(3, 8) == [0, 1, 2, 0, 1, 2, 1, 2]
    assert stack_blocks(3, 3) == [0, 1, 2]
    ancestry = perturb(VIT)
    model = grow(ancestry, layers=4)
    assert model.provenance["blocks"] == [0, 1, 2, 2]
    assert torch.equal(
        model.state["blocks.3.mlp.fc1.weight"], ancestry.state["blocks.2.mlp.fc1.weight"]
    )


def test_which_entries_are_copied() -> None:
    assert choose_entries(3, 7, "even", 0) == [0, 1, 2, 0, 1, 2, 0]
    draws = choose_entries(3, 40, "drawn", 0)
    assert draws[:3] == [0, 1, 2]
    assert set(draws[3:]) == {0, 1, 2}
    assert draws != choose_entries(3, 40, "drawn", 1)


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        (
            {"layers": 2},
            "layers is 2; the ancestry model has 3, and growth builds larger ones only",
        ),
        ({"width": 16}, "width is 16; the ancestry model has 32"),
        (
            {"width": 64, "heads": 2},
            "width is 64 with 2 heads; growth copies whole heads of 16 channels: "
            "name the width alone",
        ),
    ],
)
def test_smaller_sizes_are_refused(sizes: dict[str, int], says: str) -> None:
    with pytest.raises(WrongCall, match=says):
        grow(perturb(VIT), **sizes)
