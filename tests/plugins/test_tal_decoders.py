"""The decoders equal the printed formulas in numbers and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tal_plain import compute_conv_block, compute_low_rank_block, repeat_block
from tal_vectors import MODES, TARGET, load_vectors
from torch import Tensor
from torch.testing import assert_close

from learngene_zoo.errors import WrongCall
from lgzoo_tal.hypernet_spec import HypernetSpec
from lgzoo_tal.modules.conv_decoder import MatrixDecoder, cut_weight, partition_regions
from lgzoo_tal.modules.graph import build_graph
from lgzoo_tal.modules.hypernet import build_frozen_hypernet
from lgzoo_tal.modules.low_rank_decoder import FactorRows, LowRankDecoder, Rectangle
from lgzoo_tal.modules.tensors import (
    Product,
    Role,
    TensorGroup,
    compute_scale,
    fill,
    group_tensors,
    squash_vectors,
    tile_blocks,
)

CONV = HypernetSpec(hidden=8, layers=1, heads=2, decoder="conv", widest=40, classes=7, spatial=6)
# A chunk that no run of rows divides: runs begin and end within rows of Y, and cover several.
LOW = HypernetSpec(hidden=8, layers=1, heads=2, decoder="low_rank", rank=6, widest=40, chunk=133)


def build_groups(*sizes: tuple[Role, tuple[int, ...], int]) -> list[TensorGroup]:
    """Build groups of so many tensors each, every tensor from a node for itself."""
    result, node = [], 0
    for role, shape, count in sizes:
        names = tuple(f"t{node + k}" for k in range(count))
        result.append(TensorGroup(role, shape, names, tuple(range(node, node + count))))
        node += count
    return result


MATRICES = build_groups(
    ("matrix", (120, 40), 2),
    ("matrix", (12, 12), 3),
    ("matrix", (48, 12), 2),
    ("matrix", (12, 48), 2),
    ("class weight", (5, 12), 1),
    ("matrix", (12, 3, 2, 2), 1),
    ("matrix", (50, 3, 5, 5), 1),
    ("positions", (1, 12, 6, 6), 1),
    ("matrix", (12, 3, 9, 9), 2),
)
LOW_RANK = build_groups(
    ("matrix", (120, 40), 2),
    ("matrix", (12, 12), 3),
    ("matrix", (12, 48), 2),
    ("class weight", (5, 12), 1),
    ("matrix", (12, 3, 3, 3), 1),
    ("positions", (1, 12, 6, 6), 1),
    ("norm weight", (12,), 3),
    ("bias", (12,), 3),
    ("bias", (48,), 2),
    ("class bias", (5,), 1),
)


def compute_gradients(module: torch.nn.Module, blocks: list[Tensor]) -> dict[str, Tensor]:
    """Return the gradients of an uneven sum of all numbers."""
    module.zero_grad()
    torch.stack(
        [(block * torch.linspace(-1, 2, block.numel()).view(block.shape)).sum() for block in blocks]
    ).sum().backward()
    return {
        name: parameter.grad.clone()
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }


def check_equal(decoder: Any, groups: list[TensorGroup], plain: Any) -> None:
    nodes = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
    ours: dict[str, Tensor] = {}
    for group, blocks in decoder(nodes, groups):
        ours |= zip(group.names, blocks.multiply() if isinstance(blocks, Product) else blocks)
    theirs = {
        name: plain(decoder, nodes[node], group)
        for group in groups
        for name, node in zip(group.names, group.nodes)
    }
    assert ours.keys() == theirs.keys()
    for name, block in theirs.items():
        assert_close(ours[name], block, rtol=1e-5, atol=1e-6)
    got = compute_gradients(decoder, [ours[name] for name in theirs])
    for name, gradient in compute_gradients(decoder, list(theirs.values())).items():
        assert_close(got[name], gradient, rtol=1e-4, atol=1e-4)


def test_the_convolutional_decoder_equals_its_formula() -> None:
    torch.manual_seed(0)
    check_equal(MatrixDecoder(CONV), MATRICES, compute_conv_block)


def test_the_low_rank_decoder_equals_its_formula() -> None:
    torch.manual_seed(0)
    check_equal(LowRankDecoder(LOW), LOW_RANK, compute_low_rank_block)


@pytest.mark.parametrize("mode", MODES)
@torch.no_grad()
def test_ghn3s_decoders_return_the_released_codes_numbers(mode: str) -> None:
    vectors = load_vectors("ghn3")
    hypernet, expected = (
        build_frozen_hypernet(vectors.spec, vectors.state()),
        vectors.within(f"{mode}/"),
    )
    graph = build_graph(TARGET, msa=mode == "msa")
    chosen = [
        node for node, shape in enumerate(graph.shapes) if shape is not None and len(shape) == 1
    ]
    outputs = hypernet.decoder_1d.fc(
        expected["nodes"][chosen[:-1]]
    )  # the head's bias is a call of its own there
    assert_close(outputs, expected["vectors"], rtol=1e-5, atol=1e-5)
    head = next(group for group in group_tensors(graph) if group.role == "class weight")
    ((_, blocks),) = hypernet.decoder(expected["nodes"], [head])
    assert_close(blocks, expected["head"], rtol=1e-5, atol=1e-5)


def test_a_run_of_rows_reads_as_little_as_it_can() -> None:
    # ViT-Tiny's first factor of a query, key and value matrix: 576 rows of 90 numbers, in rows of
    # 32768.
    rows = FactorRows("U", 0, 576)
    assert rows.get_lines(90, 32768) == (0, 2)
    assert rows.get_outputs(90, 32768) == (0, 180)
    assert rows.split_rectangles(90, 32768) == [
        Rectangle(slice(0, 1), slice(0, 32768)),
        Rectangle(slice(1, 2), slice(0, 576 * 90 - 32768)),
    ]
    assert FactorRows("U", 256, 100).split_rectangles(90, 32768) == [
        Rectangle(slice(0, 1), slice(256 * 90, 356 * 90))
    ]
    late = FactorRows("V", 10, 30)
    assert late.get_lines(6, 40) == (1, 6)
    assert late.get_outputs(6, 40) == ((6 + 1) * 6, (6 + 6) * 6)
    parts = late.split_rectangles(6, 40)
    assert (
        sum((s.lines.stop - s.lines.start) * (s.columns.stop - s.columns.start) for s in parts)
        == 30 * 6
    )


def test_a_tensor_beyond_the_factors_is_refused_by_name() -> None:
    decoder = LowRankDecoder(LOW)
    with pytest.raises(WrongCall, match=r"t0 of shape \(40, 3, 4, 4\) needs 160 rows .* makes 133"):
        list(decoder(torch.zeros(1, 8), build_groups(("matrix", (40, 3, 4, 4), 1))))


def test_regions_cover_every_group_exactly_once() -> None:
    extents = [(40, 12), (12, 12), (12, 40), (40, 40), (3, 5)]
    covered = [torch.zeros(40, 40) for _ in extents]
    everything = torch.zeros(40, 40)
    for region in partition_regions(extents):
        everything[region.cut] += 1
        for member in region.members:
            covered[member][region.cut] += 1
    assert everything.max() == 1
    for (rows, columns), seen in zip(extents, covered):
        assert bool((seen[:rows, :columns] == 1).all())
        assert int(seen.sum()) == rows * columns


def test_cuts_have_the_gradient_of_indexing() -> None:
    weight = torch.randn(6, 5, requires_grad=True)
    slices = [slice(0, 3), (slice(2, 6), slice(1, 2)), slice(5, 6)]
    parts = cut_weight(weight, slices)
    assert all(part.data_ptr() == weight[cut].data_ptr() for part, cut in zip(parts, slices))
    (parts[0].square().sum() + parts[1].sum()).backward()
    ours, weight.grad = weight.grad, None
    (weight[0:3].square().sum() + weight[2:6, 1:2].sum()).backward()
    assert_close(ours, weight.grad)
    assert cut_weight(weight.detach(), [slice(1, 2)])[0].shape == (1, 5)


@pytest.mark.parametrize("shape", [(7, 5), (14, 10), (15, 12), (3, 12), (20, 2), (4, 3)])
@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_fitting_repeats_and_crops(shape: tuple[int, int], scale: float) -> None:
    blocks = torch.randn(3, 7, 5, 2, requires_grad=True)
    plain = [repeat_block(block, shape) * scale for block in blocks]
    ours = tile_blocks(blocks, *shape, scale)
    for got, expected in zip(ours, plain):
        assert_close(got, expected)
    filled = torch.empty_like(plain[0])
    fill(filled, blocks.detach()[0], scale)
    assert_close(filled, plain[0].detach())
    weights = [torch.linspace(0, k + 1, plain[0].numel()).view_as(plain[0]) for k in range(3)]
    (ours[0] * weights[0] + ours[2] * weights[2]).sum().backward()
    got, blocks.grad = blocks.grad, None
    (plain[0] * weights[0] + plain[2] * weights[2]).sum().backward()
    assert_close(got, blocks.grad)


def test_products_are_fitted_like_what_they_multiply_to() -> None:
    product = Product(torch.randn(2, 6, 3), torch.randn(2, 4, 3))
    blocks = product.left @ product.right.mT
    assert product.shape == blocks.shape
    for shape in ((6, 4), (13, 9), (4, 3)):
        for block, ours in zip(blocks, tile_blocks(product, *shape, 0.5)):
            assert_close(ours, 0.5 * repeat_block(block, shape))
        filled = torch.empty(shape)
        fill(filled, next(iter(product)), 0.5)
        assert_close(filled, 0.5 * repeat_block(blocks[0], shape))


def test_normalisation_is_by_shape_and_role() -> None:
    assert compute_scale((10, 48)) == pytest.approx((2 / 48) ** 0.5)
    assert compute_scale((48, 3, 4, 4)) == pytest.approx((2 / 48) ** 0.5)
    assert compute_scale((48, 1, 4, 4)) == pytest.approx((1 / 16) ** 0.5)
    numbers = torch.tensor([-9.0, 0.0, 9.0])
    assert_close(squash_vectors(numbers, "norm weight"), 2 * torch.sigmoid(numbers / 2))
    assert_close(squash_vectors(numbers, "bias"), torch.tanh(0.2 * numbers))
