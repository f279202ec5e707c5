"""Pruning: the criteria, the ranking through all blocks, and the laws of compensation."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from pruning_toy import SPEC, sample_toy_pictures
from torch import nn

from learngene_zoo.errors import WrongCall
from learngene_zoo.families.forward import observe_input
from learngene_zoo.families.tensors import build_model
from learngene_zoo.testing import make_tiny_ancestry
from lgzoo_closed_form.modules.cutting import (
    Absorption,
    Selection,
    absorb_inputs,
    compensate_model,
    cut_model,
    record_blocks,
    select_best,
)
from lgzoo_closed_form.modules.importance import measure_importances
from lgzoo_closed_form.modules.ridge import Sums, compute_weighted_mean
from lgzoo_closed_form.modules.streams import Pictures
from lgzoo_closed_form.sizes import (
    SHARES,
    Counts,
    derive_mlp_ratio,
    derive_uneven_spec,
    rank_positions,
    take_share,
)


def build_linear(inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    """Return a layer with the same weights every time."""
    layer, generator = nn.Linear(inputs, outputs, bias=bias), torch.Generator().manual_seed(1)
    for parameter in layer.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator))
    return layer


def sum_inputs(inputs_RI: torch.Tensor, weights_R: torch.Tensor, centred: bool = True) -> Sums:
    return Sums.from_rows([(inputs_RI, inputs_RI[:, :0], weights_R)], centred=centred)


@torch.no_grad()
def record_rows(model: nn.Module, layer: nn.Module, pictures: Pictures) -> torch.Tensor:
    """Return a layer's inputs at the recorded tokens, with all images at once."""
    inputs: list[torch.Tensor] = []
    handle = observe_input(layer, inputs.append)
    model(pictures.images)
    handle.remove()
    return pictures.select_rows(inputs[0])


# The criteria.


def test_magnitudes_by_number() -> None:
    ancestry = make_tiny_ancestry(spec=SPEC)
    heads, hidden = measure_importances("magnitude", ancestry, sample_toy_pictures(SPEC))
    wide, squares = (
        SPEC.head_width,
        {name: ancestry.state[name].double() ** 2 for name in ancestry.state},
    )

    def of_head(head: int) -> float:
        rows = slice(head * wide, (head + 1) * wide)
        qkv = squares["blocks.2.attn.qkv.weight"]
        written = sum(part[rows].sum() for part in qkv.split(SPEC.width))
        return float(written + squares["blocks.2.attn.proj.weight"][:, rows].sum())

    expected = torch.tensor([of_head(head) for head in range(3)]).double()
    torch.testing.assert_close(heads[2], expected / expected.mean())
    expected = squares["blocks.1.mlp.fc1.weight"].sum(dim=1) + squares[
        "blocks.1.mlp.fc2.weight"
    ].sum(dim=0)
    torch.testing.assert_close(hidden[1], expected / expected.mean())


@pytest.mark.slow
def test_slopes_are_those_of_the_loss() -> None:
    """Of two hidden neurons, by differences of the loss in every weight."""
    ancestry, neurons = make_tiny_ancestry(spec=SPEC), (3, 40)
    pictures = replace(sample_toy_pictures(SPEC), images=sample_toy_pictures(SPEC).images[:8])
    _, hidden = measure_importances("taylor", ancestry, pictures)
    model = build_model(SPEC, ancestry.state).double()
    images, mlp = pictures.images.double(), model.blocks[1].mlp
    with torch.no_grad():
        labels = model(images).argmax(dim=1)

        def slope(vector: torch.Tensor, index: int) -> float:
            losses, old = [], float(vector[index])
            for step in (1e-5, -1e-5):
                vector[index] = old + step
                losses.append(float(nn.functional.cross_entropy(model(images), labels)))
            vector[index] = old
            return abs(old * (losses[0] - losses[1]) / 2e-5)

        sums = [
            sum(
                slope(vector, index)
                for vector in (mlp.fc1.weight[j], mlp.fc2.weight[:, j])
                for index in range(48)
            )
            for j in neurons
        ]
    assert sums[0] / sums[1] == pytest.approx(float(hidden[1, 3] / hidden[1, 40]), rel=1e-3)


@pytest.mark.parametrize("layer_scale", [None, 0.1])
def test_energies_are_the_variance_of_what_is_added(layer_scale: float | None) -> None:
    spec = SPEC.with_(layer_scale=layer_scale)
    ancestry, pictures = make_tiny_ancestry(spec=spec), sample_toy_pictures(spec)
    state = dict(ancestry.state)
    for name in [name for name in state if name.endswith(".gamma")]:
        state[name] = torch.logspace(-2, 1, spec.width)
    ancestry = replace(ancestry, state=state)
    heads, hidden = measure_importances("energy", ancestry, pictures)
    model = build_model(spec, ancestry.state)
    block = model.blocks[2]
    outputs, neurons = (
        record_rows(model, layer, pictures) for layer in (block.attn.proj, block.mlp.fc2)
    )
    share = pictures.weights / pictures.weights.sum()

    def variance(inputs: torch.Tensor, layer: nn.Linear, columns: slice) -> float:
        scale = block.ls1 if layer is block.attn.proj else block.ls2  # identities without a scale
        added = scale(inputs[:, columns] @ layer.weight[:, columns].T).detach().double()
        mean = (added * share[:, None]).sum(dim=0)
        return float(((added - mean).square().sum(dim=1) * share).sum())

    wide = SPEC.head_width
    of_heads = torch.tensor(
        [variance(outputs, block.attn.proj, slice(i * wide, (i + 1) * wide)) for i in range(3)]
    )
    of_neurons = torch.tensor(
        [variance(neurons, block.mlp.fc2, slice(j, j + 1)) for j in range(SPEC.hidden)]
    )
    torch.testing.assert_close(heads[2], (of_heads / of_heads.mean()).double(), rtol=1e-4, atol=0)
    torch.testing.assert_close(
        hidden[2], (of_neurons / of_neurons.mean()).double(), rtol=1e-4, atol=1e-5
    )


def test_a_model_without_classes_has_no_loss() -> None:
    spec = SPEC.with_(classes=0)
    with pytest.raises(WrongCall, match="criterion taylor needs an ancestry model with classes"):
        measure_importances("taylor", make_tiny_ancestry(spec=spec), sample_toy_pictures(spec))


# The ranking through all blocks.


def test_a_ranking_goes_through_all_blocks_but_no_block_loses_its_best() -> None:
    scores = [[5.0, 4.0, 9.0], [0.2, 0.1, 0.3], [4.0, 1.0, 4.0]]
    ranking = rank_positions(scores, 1)
    assert ranking == [(0, 2), (2, 0), (1, 2), (0, 0), (0, 1), (2, 2), (2, 1), (1, 0), (1, 1)]
    assert take_share(ranking, 5 / 9, 3, 1) == [[0, 1, 2], [2], [0]]
    assert take_share(ranking, 0.01, 3, 1) == [[2], [2], [0]]
    assert take_share(ranking, 1.0, 3, 1) == [[0, 1, 2]] * 3


def test_what_a_smaller_share_keeps_a_larger_one_keeps() -> None:
    scores = torch.rand(6, 40, generator=torch.Generator().manual_seed(0))
    ranking = rank_positions(scores.tolist(), 5)
    cuts = [take_share(ranking, share, 6, 5) for share in SHARES]
    for fewer, more in pairwise(cuts):
        assert all(set(few) <= set(many) for few, many in zip(fewer, more))
    assert [sum(map(len, rows)) for rows in cuts] == [round(share * 240) for share in SHARES]
    assert all(rows == select_best(scores, [len(block) for block in rows]) for rows in cuts)


@pytest.mark.parametrize("mlp", ["mlp", "swiglu", "swiglu_packed"])
def test_a_ratio_makes_its_hidden_width(mlp: str) -> None:
    for width in (48, 96, 240):
        spec = SPEC.with_(width=width, heads=3, mlp=mlp)
        for hidden in range(width // 40, spec.hidden + 1):
            assert spec.with_(mlp_ratio=derive_mlp_ratio(spec, hidden)).hidden == hidden


def test_neighbours_of_one_size_are_one_segment() -> None:
    spec = derive_uneven_spec(SPEC, Counts((3, 3, 1, 1), (192, 192, 100, 100)))
    assert [(part.layers, part.heads, part.heads_width, part.hidden) for part in spec.segments] == [
        (2, 3, 48, 192),
        (2, 1, 16, 100),
    ]
    assert derive_uneven_spec(SPEC, Counts((3,) * 4, (192,) * 4)) == SPEC
    with pytest.raises(WrongCall, match="counts for 2 and 4 of 4 blocks"):
        derive_uneven_spec(SPEC, Counts((3, 3), (192,) * 4))


# Compensation.


def test_every_block_is_recorded_a_few_images_at_a_time() -> None:
    pictures, model = (
        sample_toy_pictures(SPEC),
        build_model(SPEC, make_tiny_ancestry(spec=SPEC).state),
    )
    parts = list(record_blocks(model, pictures))
    assert [part.block for part in parts] == [
        0,
        0,
        1,
        1,
        2,
        2,
        3,
        3,
    ]  # 24 images, of which 16 go through together
    for number, block in enumerate(model.blocks):
        recordings = [part for part in parts if part.block == number]
        torch.testing.assert_close(
            torch.cat([part.outputs for part in recordings]),
            record_rows(model, block.attn.proj, pictures),
        )
        torch.testing.assert_close(
            torch.cat([part.hidden for part in recordings]),
            record_rows(model, block.mlp.fc2, pictures),
        )
        assert torch.equal(torch.cat([part.weights for part in recordings]), pictures.weights)


@pytest.mark.parametrize("bias", [True, False])
def test_what_is_an_affine_function_of_the_rest_is_not_missed(bias: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(200, 6, generator=generator)
    inputs[:, 4:] = inputs[:, :4] @ torch.randn(4, 2, generator=generator) + 3.0 * bias
    layer, weights = build_linear(6, 5, bias), torch.rand(200, generator=generator).double()
    target = layer(inputs)
    weight, offset = absorb_inputs(layer, sum_inputs(inputs, weights, bias), range(4), 1e-12)
    output = inputs[:, :4] @ weight.T + (offset if offset is not None else 0)
    torch.testing.assert_close(output, target, atol=1e-4, rtol=0)
    cut_off = target - inputs[:, 4:] @ layer.weight[:, 4:].T
    assert (cut_off - target).abs().mean() > 0.3
    assert (offset is None) == (not bias)


def test_a_layer_without_a_bias_is_made_up_for_by_least_squares() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs, layer = torch.randn(60, 5, generator=generator) + 2, build_linear(5, 3, False)
    weights = torch.rand(60, generator=generator).double()
    rows = inputs.double() * weights.sqrt()[:, None]
    expected = torch.linalg.lstsq(rows[:, :3], rows @ layer.weight.double().T).solution.T
    weight, _ = absorb_inputs(layer, sum_inputs(inputs, weights, False), [0, 1, 2], 0.0)
    torch.testing.assert_close(weight.double(), expected, atol=1e-5, rtol=0)


def test_a_model_without_biases_is_made_up_for_by_least_squares() -> None:
    spec = SPEC.with_(proj_bias=False)
    ancestry, pictures = make_tiny_ancestry(spec=spec), sample_toy_pictures(spec)
    model, selection = (
        build_model(spec, ancestry.state),
        Selection([[0, 1]] * 4, [list(range(100))] * 4),
    )
    parts = compensate_model(model, ancestry.state, spec, selection, pictures, Absorption(0.0))
    layer = model.blocks[1].attn.proj
    rows = record_rows(model, layer, pictures).double() * pictures.weights.sqrt()[:, None]
    expected = torch.linalg.lstsq(rows[:, :32], rows @ layer.weight.detach().double().T).solution.T
    torch.testing.assert_close(
        parts["blocks.1.attn.proj.weight"].double(), expected, atol=1e-4, rtol=0
    )


@pytest.mark.parametrize("rho", [0.0, 1e-3, 1.0, 1e6])
def test_the_error_never_rises(rho: float) -> None:
    ancestry, pictures = make_tiny_ancestry(spec=SPEC), sample_toy_pictures(SPEC)
    model = build_model(SPEC, ancestry.state)
    for block in model.blocks:
        for layer in (block.attn.proj, block.mlp.fc2):
            inputs = record_rows(model, layer, pictures)
            indices = list(range(0, layer.in_features, 3))
            target, alone = (
                layer(inputs).double(),
                inputs[:, indices] @ layer.weight[:, indices].T + layer.bias,
            )
            weight, bias = absorb_inputs(layer, sum_inputs(inputs, pictures.weights), indices, rho)
            output = inputs[:, indices] @ weight.T + bias
            with_it, without = (
                float((pictures.weights * (values - target).square().sum(1)).sum().detach())
                for values in (output, alone)
            )
            assert with_it < (0.9 if rho < 1 else 1.0) * without


def test_the_constant_part_is_not_missed_whatever_the_ridge() -> None:
    layer, weights = build_linear(3, 4), torch.ones(50).double()
    inputs = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)) + 5
    weight, bias = absorb_inputs(layer, sum_inputs(inputs, weights), [0], 1e9)
    error = inputs[:, :1] @ weight.T + bias - layer(inputs)
    assert compute_weighted_mean(error.double(), weights).abs().max() < 1e-5


def test_copies_of_heads_and_neurons_are_not_missed() -> None:
    """Head 2 is a copy of head 0, and neurons 10 to 19 are copies of neurons 0 to 9."""
    ancestry, pictures = make_tiny_ancestry(spec=SPEC), sample_toy_pictures(SPEC)
    state = {name: ancestry.state[name].clone() for name in ancestry.state}
    for block in range(SPEC.layers):
        for part in ("weight", "bias"):
            for rows in state[f"blocks.{block}.attn.qkv.{part}"].split(SPEC.width):
                rows[32:48] = rows[:16]
            state[f"blocks.{block}.mlp.fc1.{part}"][10:20] = state[
                f"blocks.{block}.mlp.fc1.{part}"
            ][:10]
    selection = Selection([[0, 1]] * 4, [[*range(10), *range(20, 192)]] * 4)
    full, spec = build_model(SPEC, state), derive_uneven_spec(SPEC, Counts((2,) * 4, (182,) * 4))
    with torch.no_grad():
        target = full(pictures.images)
        with_it = build_model(
            spec, compensate_model(full, state, SPEC, selection, pictures, Absorption(1e-10))
        )(pictures.images)
        without = build_model(spec, cut_model(state, SPEC, selection))(pictures.images)
    torch.testing.assert_close(with_it, target, atol=1e-4, rtol=0)
    assert (without - target).abs().max() > 0.1


def test_what_is_kept_of_a_layer_with_all_inputs_is_its_own() -> None:
    layer = build_linear(6, 5)
    weight, bias = absorb_inputs(
        layer, sum_inputs(torch.randn(20, 6), torch.ones(20).double()), range(6), 1e-3
    )
    assert torch.equal(weight, layer.weight)
    assert bias is not None
    assert torch.equal(bias, layer.bias)
