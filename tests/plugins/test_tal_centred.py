"""The form `centred`: the published tensors, arranged to learn faster."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from tal_plain import compute_conv_block
from torch import Tensor
from torch.testing import assert_close

from learngene_zoo.families.tensors import get_shapes
from learngene_zoo.families.vit.spec import ViTSpec
from lgzoo_tal.hypernet_spec import HypernetSpec
from lgzoo_tal.modules.conv_decoder import MatrixDecoder
from lgzoo_tal.modules.forms import sort_rows
from lgzoo_tal.modules.graph import build_graph
from lgzoo_tal.modules.hypernet import Hypernet
from lgzoo_tal.modules.low_rank_decoder import LowRankDecoder
from lgzoo_tal.modules.tensors import group_tensors

LOW = HypernetSpec(
    hidden=32,
    layers=2,
    heads=4,
    decoder="low_rank",
    rank=16,
    widest=128,
    chunk=512,
    classes=7,
    form="centred",
)
CONV = HypernetSpec(
    hidden=32, layers=2, heads=4, decoder="conv", widest=32, classes=7, form="centred"
)
BOTH = pytest.mark.parametrize("spec", [LOW, CONV])
TARGET = ViTSpec(layers=4, width=32, heads=2, classes=7, image_size=16, patch_size=4)


def to_published(spec: HypernetSpec) -> HypernetSpec:
    return spec.with_(form="published")


@BOTH
def test_its_tensors_have_the_published_names_and_shapes(spec: HypernetSpec) -> None:
    ours, theirs = Hypernet(spec).state_dict(), Hypernet(to_published(spec)).state_dict()
    assert {name: tensor.shape for name, tensor in ours.items()} == {
        name: t.shape for name, t in theirs.items()
    }


@BOTH
def test_prediction_with_and_without_gradients_is_the_same(spec: HypernetSpec) -> None:
    hypernet, graph = Hypernet(spec, seed=5), build_graph(TARGET)
    differentiable, predicted = hypernet(graph), hypernet.predict(graph)
    assert {name: tuple(tensor.shape) for name, tensor in predicted.items()} == get_shapes(TARGET)
    for name, tensor in differentiable.items():
        assert_close(tensor.detach(), predicted[name])


def test_rows_that_take_turns_are_sorted() -> None:
    rows = torch.arange(6)[:, None].expand(6, 2)
    assert sort_rows(rows)[:, 0].tolist() == [0, 3, 1, 4, 2, 5]
    assert sort_rows(torch.arange(6)).tolist() == [0, 3, 1, 4, 2, 5]


@BOTH
def test_a_narrow_model_starts_as_a_corner_of_a_wide_one(spec: HypernetSpec) -> None:
    hypernet = Hypernet(spec, seed=1)
    narrow = hypernet.predict(build_graph(TARGET.with_(width=16, heads=1)))
    wide = hypernet.predict(build_graph(TARGET))
    for name in ("blocks.1.attn.qkv.weight", "blocks.2.mlp.fc1.weight", "blocks.2.mlp.fc2.weight"):
        parts = 3 if "qkv" in name else 1
        rows = narrow[name].shape[0] // parts
        corner = (
            wide[name].unflatten(0, (parts, -1))[:, :rows, : narrow[name].shape[1]].flatten(0, 1)
        )
        assert _compute_cosine(corner, narrow[name]) > 0.9


@BOTH
def test_models_of_all_depths_start_with_one_classifier_and_with_the_same_blocks(
    spec: HypernetSpec,
) -> None:
    hypernet = Hypernet(spec, seed=1)
    models = [
        hypernet.predict(build_graph(TARGET.with_(layers=layers), sink=(7, 32)))
        for layers in (3, 7, 12)
    ]
    for name in ("head.weight", "sink.weight", "blocks.1.attn.proj.weight"):
        assert min(_compute_cosine(a[name], b[name]) for a, b in combinations(models, 2)) > 0.9
    assert (
        max(abs(_compute_cosine(each["head.weight"], each["sink.weight"])) for each in models) < 0.5
    )


@BOTH
def test_blocks_start_apart_and_those_of_the_published_form_together(spec: HypernetSpec) -> None:
    def measure_similarity(form: HypernetSpec) -> float:
        tensors = Hypernet(form, seed=1).predict(build_graph(TARGET))
        blocks = [tensors[f"blocks.{number}.mlp.fc1.weight"] for number in range(TARGET.layers)]
        return sum(_compute_cosine(*pair) for pair in combinations(blocks, 2)) / 6

    assert abs(measure_similarity(spec)) < 0.35
    assert measure_similarity(to_published(spec)) > 0.8


@BOTH
def test_models_start_as_small_as_timm_draws_them(spec: HypernetSpec) -> None:
    tensors = Hypernet(spec, seed=1).predict(build_graph(TARGET))
    for name, tensor in tensors.items():
        if name.startswith("norm.") or ".norm" in name:
            assert (tensor - (1 if name.endswith("weight") else 0)).abs().max() < 0.2
        elif tensor.dim() > 1 and name != "cls_token":
            assert 0.005 < tensor.std() < 0.1, name


def test_a_step_for_one_block_hardly_moves_the_others() -> None:
    """What the form is for: of a step that one block's loss asks for, the others get little."""

    def measure_movement(spec: HypernetSpec) -> float:
        hypernet, graph = Hypernet(spec, seed=2), build_graph(TARGET.with_(layers=6))
        names = [f"blocks.{number}.mlp.fc1.weight" for number in range(6)]
        before = hypernet.predict(graph)
        direction = torch.randn(before[names[0]].shape, generator=torch.Generator().manual_seed(0))
        (hypernet(graph)[names[2]] * direction).sum().backward()
        last = (
            hypernet.decoder.l2
            if isinstance(hypernet.decoder, LowRankDecoder)
            else hypernet.decoder.conv[2]
        )
        with torch.no_grad():
            last.weight -= 1e-3 * last.weight.grad / last.weight.grad.norm()
        after = hypernet.predict(graph)
        moves = [(after[name] - before[name]).norm().item() for name in names]
        return sum(moves[:2] + moves[3:]) / 5 / moves[2]

    for spec in (LOW, CONV):
        assert measure_movement(spec) < 0.6 < 0.85 < measure_movement(to_published(spec))


def test_the_decoders_compute_the_printed_formulas_with_tanh() -> None:
    graph = build_graph(TARGET)
    for spec in (LOW, CONV):
        hypernet = Hypernet(spec, seed=3)
        nodes = hypernet.encode(graph)
        requests = [request for request in group_tensors(graph) if request.role == "matrix"]
        for request, blocks in hypernet.decoder(nodes, requests):
            block = (blocks if isinstance(blocks, Tensor) else blocks.multiply())[0]
            assert_close(
                block,
                _compute_block(hypernet, nodes[request.nodes[0]], request)[
                    tuple(map(slice, block.shape))
                ],
            )


def _compute_block(hypernet: Hypernet, node: Tensor, request: object) -> Tensor:
    decoder = hypernet.decoder
    if isinstance(decoder, MatrixDecoder):
        return compute_conv_block(decoder, node, request)  # type: ignore[arg-type]
    rows, columns = request.shape[:2]  # type: ignore[attr-defined]
    p, q = request.shape[2:] or (1, 1)  # type: ignore[attr-defined]
    lines = decoder.l2(decoder.mlp.fc(node).view(2 * decoder.rank, decoder.rank))
    u, v = (half.reshape(decoder.chunk, decoder.rank) for half in lines.chunk(2))
    block = (u[: rows * p] @ v[: columns * q].T).view(rows, p, columns, q).transpose(1, 2)
    return block if (p, q) != (1, 1) else block[:, :, 0, 0]


def _compute_cosine(first: Tensor, second: Tensor) -> float:
    return torch.cosine_similarity(first.flatten(), second.flatten(), dim=0).item()


def test_tasks_differ_from_the_first_step_on_and_in_the_published_form_they_do_not() -> None:
    embeddings = torch.randn(2, 12, generator=torch.Generator().manual_seed(0))
    for spec, distinct in ((LOW, True), (to_published(LOW), False)):
        hypernet, graph = Hypernet(spec.with_(task=12), seed=1), build_graph(TARGET)
        heads = [hypernet.predict(graph, task=embedding)["head.weight"] for embedding in embeddings]
        assert (not torch.equal(*heads)) is distinct
