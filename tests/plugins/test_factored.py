"""WAVE, FINE and SWEET: matrices from shared factors and the scalers of each layer."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

import learngene_zoo as lg
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families.picture_format import USUAL_VIEW, View
from learngene_zoo.families.tensors import build_model, initialise
from learngene_zoo.method.installed import METHODS
from learngene_zoo.method.sizes import Target
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Recipe, with_settings
from learngene_zoo.testing import make_tiny_ancestry, make_tiny_task
from lgzoo_baselines.learnt import factored as factored_module
from lgzoo_baselines.learnt.factored import interpolate_layers
from lgzoo_baselines.learnt.fine import DiagonalFactorisation
from lgzoo_baselines.learnt.forms import Factorisation, compute_fan_in_std, list_matrices
from lgzoo_baselines.learnt.sweet import TuckerFactorisation
from lgzoo_baselines.learnt.wave import KroneckerFactorisation
from lgzoo_baselines.modules.factored import (
    draw_factors,
    install_factored_blocks,
    name_blocks,
    train_scalers,
)
from lgzoo_baselines.modules.mixed_blocks import select_below

SPEC = make_tiny_ancestry().spec.with_(
    pool="avg", class_token=False, classes=3
)  # 3 layers, 2 heads of 16
FORMS = [
    KroneckerFactorisation(templates=3),
    DiagonalFactorisation(),
    TuckerFactorisation(rank=5, stream=24),
]


@cache
def extract(name: str, **settings: Any) -> lg.Learngene:
    extractor = with_settings(METHODS.load(name).presets["smoke"], settings)
    ancestry = make_tiny_ancestry()
    return extractor([ancestry], [make_tiny_task()], Run()).with_config(
        method=name, ancestries=(ancestry.record,)
    )


def random_parts(form: Factorisation) -> dict[str, torch.Tensor]:
    return dict(
        draw_factors(
            initialise(SPEC, 3, "fan_in"), SPEC, *form.list_draws(SPEC, compute_fan_in_std), 0
        )
    )


@pytest.mark.parametrize("form", FORMS)
def test_every_matrix_starts_with_the_usual_spread(form: Factorisation) -> None:
    stored = random_parts(form)
    for kind, shape in list_matrices(SPEC).items():
        matrix = form.build_matrix(kind, select_below(stored, "shared"), stored[f"1.{kind}"])
        assert matrix.shape == shape
        assert matrix.std().item() == pytest.approx(shape[1] ** -0.5, rel=0.5), kind
    assert not torch.equal(stored["0.attn.proj.weight"], stored["1.attn.proj.weight"])


@pytest.mark.parametrize("form", FORMS)
def test_the_auxiliary_model_answers_as_the_plain_one_of_its_matrices(form: Factorisation) -> None:
    state, stored = initialise(SPEC, 3, "fan_in"), random_parts(form)
    images = torch.randn(2, 3, SPEC.image_size, SPEC.image_size)
    model = install_factored_blocks(build_model(SPEC, state), SPEC, stored, form)
    blocks = [
        form.build_block(
            select_below(stored, "shared"), select_below(stored, str(i)), list_matrices(SPEC)
        )
        for i in range(3)
    ]
    plain = build_model(SPEC, {**state, **name_blocks(blocks, SPEC)})
    torch.testing.assert_close(model(images), plain(images))
    model(images).square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_scalers_between_layers() -> None:
    layers = [{"a": torch.tensor([float(value)])} for value in (0, 2, 8)]
    assert [layer["a"].item() for layer in interpolate_layers(layers, 5)] == [0, 1, 2, 5, 8]
    assert [layer["a"].item() for layer in interpolate_layers(layers, 3)] == [0, 2, 8]
    assert [layer["a"].item() for layer in interpolate_layers(layers, 2)] == [0, 8]
    assert [layer["a"].item() for layer in interpolate_layers(layers, 1)] == [0]


@pytest.mark.parametrize("name", ["wave", "fine", "sweet"])
def test_of_its_own_depth_a_descendant_is_the_auxiliary_model(name: str) -> None:
    learngene = extract(name)
    form = METHODS.load(name).presets["smoke"].form  # type: ignore[attr-defined]
    state = learngene.state
    same, deeper = lg.expand(learngene, classes=3), lg.expand(learngene, layers=5, classes=3)
    for kind in list_matrices(SPEC):
        factors = select_below(state, "blocks.shared")
        scalers = [state[f"blocks.{i}.{kind}"] for i in (0, 1)]
        assert torch.equal(
            same.state[f"blocks.1.{kind}"], form.build_matrix(kind, factors, scalers[1])
        )
        half = form.build_matrix(kind, factors, (scalers[0] + scalers[1]) / 2)
        torch.testing.assert_close(deeper.state[f"blocks.1.{kind}"], half)
    vectors = [state[f"blocks.{i}.attn.qkv.bias"] for i in (1, 2)]
    torch.testing.assert_close(
        deeper.state["blocks.3.attn.qkv.bias"], (vectors[0] + vectors[1]) / 2
    )
    assert torch.equal(same.state["patch_embed.proj.weight"], state["patch_embed.proj.weight"])
    assert same.inherited == {tensor for tensor in same.state if not tensor.startswith("head.")}


@pytest.mark.parametrize("name", ["wave", "fine", "sweet"])
def test_the_head_is_inherited_for_the_learngenes_own_task(name: str) -> None:
    model = METHODS.load(name).expander(
        extract(name), Target(layers=2, classes=3, task="tiny"), Run()
    )
    assert torch.equal(model.state["head.weight"], extract(name).state["head.weight"])
    assert "head.weight" not in lg.expand(extract(name), classes=3).inherited


@pytest.mark.parametrize("name", ["wave", "fine", "sweet"])
def test_scalers_learn_on_a_task_and_factors_stay(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "learngene_zoo.plugin.open_task",
        lambda *arguments, **options: make_tiny_task(),
        raising=False,
    )
    method, learngene = METHODS.load(name), extract(name)
    learning = {"epochs": 1, "images": 16, "batch_size": 8}
    target = Target(layers=2, classes=3, task="tiny")
    learnt = with_settings(method.expander, learning)(learngene, target, Run())
    plain = method.expander(learngene, target, Run())
    assert torch.equal(learnt.state["pos_embed"], plain.state["pos_embed"])
    assert not torch.equal(learnt.state["head.weight"], plain.state["head.weight"])
    before, after = (model.state["blocks.0.attn.qkv.weight"] for model in (plain, learnt))
    assert not torch.equal(before, after)
    with pytest.raises(WrongCall, match="name it with task"):
        with_settings(method.expander, learning)(learngene, Target(layers=2), Run())


@pytest.mark.parametrize("name", ["wave", "fine", "sweet"])
def test_scalers_learn_on_images_as_the_ancestry_model_sees_them(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "learngene_zoo.plugin.open_task", lambda *_, **__: make_tiny_task(), raising=False
    )
    expander = with_settings(METHODS.load(name).expander, {"epochs": 1, "images": 16})
    target, weights = Target(layers=2, classes=3, task="tiny"), []
    for view in (USUAL_VIEW, View(crop_pct=0.5)):
        record = replace(make_tiny_ancestry().record, view=view)
        model = expander(extract(name).with_config(ancestries=(record,)), target, Run())
        assert model.view == view
        weights.append(model.state["head.weight"])
    assert not torch.equal(*weights)


@pytest.mark.parametrize("name", ["wave", "fine", "sweet"])
def test_a_learngene_that_lost_a_factor_is_refused(name: str) -> None:
    lost = next(tensor for tensor in extract(name).state if tensor.startswith("blocks.shared."))
    fewer = {tensor: value for tensor, value in extract(name).state.items() if tensor != lost}
    with pytest.raises(BadFile, match=f"{lost} is missing"):
        lg.expand(replace(extract(name), state=fewer), layers=2)


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("wave", KroneckerFactorisation(templates=4)),
        ("sweet", TuckerFactorisation(rank=8, stream=16)),
    ],
)
def test_a_narrower_model_has_the_first_heads(name: str, form: Factorisation) -> None:
    learngene = extract(name)
    full, narrow = lg.expand(learngene, classes=3), lg.expand(learngene, width=16, classes=3)
    assert (narrow.spec.width, narrow.spec.heads) == (16, 1)
    for part in range(3):  # queries, keys, values
        rows = full.state["blocks.1.attn.qkv.weight"][32 * part : 32 * part + 16, :16]
        assert torch.equal(
            narrow.state["blocks.1.attn.qkv.weight"][16 * part : 16 * part + 16], rows
        )
    assert torch.equal(narrow.state["pos_embed"], full.state["pos_embed"][..., :16])
    scalers = {kind: learngene.state[f"blocks.1.{kind}"] for kind in list_matrices(SPEC)}
    factors, small = form.narrow(
        select_below(learngene.state, "blocks.shared"), scalers, narrow.spec
    )
    for kind, scaler in small.items():
        torch.testing.assert_close(
            form.build_matrix(kind, factors, scaler), narrow.state[f"blocks.1.{kind}"]
        )


# WAVE.


def test_a_matrix_is_a_sum_of_kronecker_products() -> None:
    """Equation 4, and its rank: that of the template times that of the scaler."""
    generator = torch.Generator().manual_seed(0)
    scalers, templates = (
        torch.randn(2, 3, 4, generator=generator),
        torch.randn(2, 5, 5, generator=generator),
    )
    matrix = KroneckerFactorisation().build_matrix("kind", {"kind": templates}, scalers)
    torch.testing.assert_close(matrix, sum(torch.kron(scalers[t], templates[t]) for t in range(2)))
    ones = torch.outer(torch.ones(3), torch.ones(4))[None]
    single = KroneckerFactorisation().build_matrix(
        "kind", {"kind": templates[:1, :, :2] @ templates[:1, :2]}, ones
    )
    assert torch.linalg.matrix_rank(single) == 2


def test_templates_that_are_all_of_a_matrix_can_hold_any() -> None:
    """With one template for every position, factoring is the identity."""
    matrix = torch.arange(32.0 * 16).reshape(32, 16)
    form, places = KroneckerFactorisation(templates=2), torch.eye(2).reshape(2, 2, 1)
    assert torch.equal(
        form.build_matrix("kind", {"kind": matrix.reshape(2, 16, 16)}, places), matrix
    )


def test_a_narrower_wave_has_the_first_hidden_neurons() -> None:
    full, narrow = (lg.expand(extract("wave"), width=width, classes=3) for width in (32, 16))
    assert torch.equal(
        narrow.state["blocks.1.mlp.fc1.weight"], full.state["blocks.1.mlp.fc1.weight"][:64, :16]
    )


def test_templates_fill_whole_matrices() -> None:
    with pytest.raises(
        WrongCall, match=r"mlp\.fc1\.weight is a matrix of 40 x 32; templates as wide as a head, 16"
    ):
        METHODS.load("wave").presets["paper"].outline(
            [make_tiny_ancestry().spec.with_(mlp_ratio=1.25)]
        )


def test_what_wave_stores() -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in extract("wave").state.items()}
    assert shapes["blocks.shared.attn.qkv.weight"] == (4, 16, 16)
    assert shapes["blocks.2.attn.qkv.weight"] == (4, 6, 2)
    assert extract("wave").config.details["form"] == {"templates": 4}
    assert METHODS.load("wave").presets["mini"].each.share == 0.5  # type: ignore[attr-defined]
    assert factored_module.LEARNING.epochs == 0


# FINE.


def test_a_matrix_is_a_product_with_a_diagonal_between() -> None:
    generator = torch.Generator().manual_seed(0)
    u, v, sigma = (torch.randn(*shape, generator=generator) for shape in ((6, 3), (4, 3), (3,)))
    matrix = DiagonalFactorisation().build_matrix("kind", {"kind.u": u, "kind.v": v}, sigma)
    torch.testing.assert_close(matrix, u @ torch.diag(sigma) @ v.T)
    assert torch.linalg.matrix_rank(matrix) == 3
    assert (
        torch.linalg.matrix_rank(
            DiagonalFactorisation().build_matrix(
                "kind", {"kind.u": u, "kind.v": v}, sigma * (sigma > sigma.min())
            )
        )
        == 2
    )


def test_singular_vectors_and_values_give_the_matrix_back() -> None:
    matrix = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    u, sigma, v = torch.linalg.svd(matrix, full_matrices=False)
    torch.testing.assert_close(
        DiagonalFactorisation().build_matrix("kind", {"kind.u": u, "kind.v": v.T}, sigma), matrix
    )


def test_what_fine_stores() -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in extract("fine").state.items()}
    assert shapes["blocks.shared.mlp.fc1.weight.u"] == (128, 8)
    assert shapes["blocks.shared.mlp.fc1.weight.v"] == (32, 8)
    assert shapes["blocks.2.mlp.fc1.weight"] == (8,)
    _, scalers = DiagonalFactorisation().list_draws(SPEC, compute_fan_in_std)
    assert {kind: shape for kind, (shape, _) in scalers.items()} == dict.fromkeys(
        list_matrices(SPEC), (32,)
    )
    with pytest.raises(WrongCall, match="width"):
        lg.expand(extract("fine"), width=16)


# SWEET.


def test_a_matrix_is_a_template_between_scalers() -> None:
    """The sum, written out for an entry of each square of a matrix of two squares."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"template": (2, 3, 4), "rows": (5, 3), "columns": (5, 4)}
    factors = {name: torch.randn(*shape, generator=generator) for name, shape in shapes.items()}
    scaler = torch.randn(1, 2, 2, generator=generator)
    matrix = TuckerFactorisation().build_matrix("kind", factors, scaler)
    assert matrix.shape == (5, 10)
    for square, a, b in ((0, 1, 4), (1, 3, 2)):
        expected = sum(
            scaler[0, square, t]
            * factors["rows"][a, u]
            * factors["columns"][b, v]
            * factors["template"][t, u, v]
            for t in range(2)
            for u in range(3)
            for v in range(4)
        )
        assert matrix[a, 5 * square + b].item() == pytest.approx(float(expected), rel=1e-4)
    below_each_other = TuckerFactorisation().build_matrix("kind", factors, scaler.transpose(0, 1))
    assert torch.equal(below_each_other, torch.cat([matrix[:, :5], matrix[:, 5:]]))


def test_no_side_of_the_tensor_has_more_than_the_templates_rank() -> None:
    """All squares of all layers, unfolded along each of their three sides."""
    stored, form = (
        random_parts(TuckerFactorisation(rank=5, stream=8)),
        TuckerFactorisation(rank=5, stream=8),
    )
    squares = []
    for i, (kind, (rows, columns)) in (
        (i, item) for i in range(3) for item in list_matrices(SPEC).items()
    ):
        matrix = form.build_matrix(
            kind, select_below(stored, "shared"), stored[f"{i}.{kind}"]
        ).double()
        squares += (
            matrix.reshape(rows // 32, 32, columns // 32, 32).transpose(1, 2).flatten(0, 1).unbind()
        )
    tensor = torch.stack(squares)
    assert tensor.shape == (3 * 12, 32, 32)
    ranks = [
        torch.linalg.matrix_rank(tensor.movedim(side, 0).flatten(1), rtol=1e-5).item()
        for side in range(3)
    ]
    assert ranks == [5, 8, 8]


def test_of_full_rank_the_template_can_be_any_squares() -> None:
    matrix = torch.arange(32.0 * 16).reshape(32, 16)
    factors = {
        "template": matrix.reshape(2, 16, 16),
        "rows": torch.eye(16),
        "columns": torch.eye(16),
    }
    assert torch.equal(
        TuckerFactorisation().build_matrix("kind", factors, torch.eye(2)[:, None]), matrix
    )


def test_of_hidden_neurons_a_narrower_model_has_the_first_of_each_square() -> None:
    full, narrow = (lg.expand(extract("sweet"), width=width, classes=3) for width in (32, 16))
    for square in range(4):
        rows = full.state["blocks.1.mlp.fc1.weight"][32 * square : 32 * square + 16, :16]
        assert torch.equal(
            narrow.state["blocks.1.mlp.fc1.weight"][16 * square : 16 * square + 16], rows
        )
        biases = full.state["blocks.1.mlp.fc1.bias"][32 * square : 32 * square + 16]
        assert torch.equal(
            narrow.state["blocks.1.mlp.fc1.bias"][16 * square : 16 * square + 16], biases
        )


def test_scalers_of_a_width_learn_and_the_template_stays() -> None:
    """A narrower model trained on a task still consists of squares of this template."""
    form, learngene = TuckerFactorisation(rank=8, stream=16), extract("sweet")
    start = lg.expand(learngene, width=16, classes=3)
    scalers = [
        {kind: learngene.state[f"blocks.{i}.{kind}"] for kind in list_matrices(SPEC)}
        for i in range(3)
    ]
    factors, _ = form.narrow(select_below(learngene.state, "blocks.shared"), scalers[0], start.spec)
    recipe = Recipe(epochs=1, images=16, batch_size=8, lr=1e-2)
    moved = {}
    for adapted in (form.adapted, frozenset[str]()):
        kind = type("Kind", (TuckerFactorisation,), {"adapted": adapted})(rank=8, stream=16)
        moved[bool(adapted)] = train_scalers(
            recipe, kind, start, factors, scalers, make_tiny_task(), Run()
        )
    assert not torch.equal(
        moved[True]["blocks.0.attn.proj.weight"], moved[False]["blocks.0.attn.proj.weight"]
    )
    # With A and B as they were, every square stays a sum of their products: within the span of
    # A's columns.
    inside = factors["rows"] @ torch.linalg.pinv(factors["rows"])
    assert torch.allclose(
        inside @ moved[False]["blocks.0.attn.proj.weight"],
        moved[False]["blocks.0.attn.proj.weight"],
        atol=1e-5,
    )


def test_what_sweet_stores() -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in extract("sweet").state.items()}
    assert shapes["blocks.shared.template"] == (8, 16, 16)
    assert shapes["blocks.shared.rows"] == shapes["blocks.shared.columns"] == (32, 16)
    assert shapes["blocks.2.mlp.fc2.weight"] == (1, 4, 8)
    assert extract("sweet").config.details["form"] == {"rank": 8, "stream": 16}


def test_squares_fill_whole_matrices() -> None:
    with pytest.raises(
        WrongCall,
        match=r"mlp\.fc1\.weight is a matrix of 40 x 32; squares as wide as the stream, 32",
    ):
        METHODS.load("sweet").presets["paper"].outline(
            [make_tiny_ancestry().spec.with_(mlp_ratio=1.25)]
        )


@pytest.mark.parametrize(("asked", "rank"), [(None, 32), (5, 5), (32, 32), (40, 32), (4000, 32)])
def test_no_product_has_more_columns_than_its_matrix_has_rank(asked: int | None, rank: int) -> None:
    """At width 32 every matrix has a rank of at most 32; those of the MLP are not square."""
    factors, scalers = DiagonalFactorisation(rank=asked).list_draws(
        SPEC.with_(width=32, heads=2), compute_fan_in_std
    )
    shapes = list_matrices(SPEC)
    assert {min(shape) for shape in shapes.values()} == {32}
    for kind, (rows, columns) in shapes.items():
        assert factors[f"{kind}.u"][0] == (rows, rank)
        assert factors[f"{kind}.v"][0] == (columns, rank)
        assert scalers[kind][0] == (rank,)
