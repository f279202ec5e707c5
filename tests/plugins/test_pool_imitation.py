"""The objective of algorithm 1, number by number; the matrices W and M, and the stitches
initialised from them.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn import functional

from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.settings import Recipe
from learngene_zoo.tasks.loader import Batch, Loader
from learngene_zoo.tasks.task import Attribute
from learngene_zoo.testing import make_tiny_ancestry, make_tiny_task
from learngene_zoo.training.distillation import Distilled, Teacher
from learngene_zoo.training.objectives import ClassAndAttributes, Classification, make_objective
from lgzoo_pool.modules.objectives import (
    Imitation,
    average_matrices,
    compute_prediction_loss,
    compute_stitch_weight,
)
from lgzoo_pool.settings import ImitationSettings

LAYERS, WIDTH = 6, 32  # of the teacher
D, L, H = 12, 4, 8  # widths of the ancestry, the low and the high model


def batch(images: int = 8) -> Batch:
    return next(
        iter(
            Loader(
                make_tiny_task(), "train", make_tiny_ancestry().input_format, batch_size=images
            ).epoch(0)
        )
    )


def teacher() -> Any:
    return make_tiny_ancestry(layers=LAYERS, classes=3).model()


def student(width: int = 16, layers: int = 3) -> Any:
    return make_tiny_ancestry(1, layers=layers, width=width, heads=width // 16, classes=3).model()


def imitation(
    student: ViTSpec, ancestry: ViTSpec, levels: int = 3, seed: int = 2, tau: float = 1.0
) -> Imitation:
    return Imitation(
        student,
        ancestry,
        ImitationSettings(levels=levels, alpha=0.1, tau=tau, reduction="sample"),
        seed,
    )


def spec(width: int, layers: int = 3) -> ViTSpec:
    return ViTSpec(layers=layers, width=width, heads=1)


def objective(
    model: Any,
    master: Any,
    count: int = 3,
    labels: Any = None,
    alpha: float = 0.1,
    tau: float = 1.0,
) -> Distilled:
    specs = (spec(first.embed_dim, len(first.blocks)) for first in (model, master))
    parts = imitation(*specs, count, tau=tau)
    frozen = Teacher(master, [second for _, second in parts.levels])
    blocks = [own for own, _ in parts.levels]
    return Distilled(
        labels or Classification(model), model, frozen, parts, (alpha, 1 - alpha), blocks
    )


def test_the_prediction_loss_is_a_cross_entropy() -> None:
    """Two classes: the teacher's probabilities are 3/4 and 1/4, the student's 1/2; a second image
    adds the same.
    """
    given, expected = torch.zeros(2, 2), torch.tensor([[math.log(3.0), 0.0]] * 2)
    assert compute_prediction_loss(given, expected).item() == pytest.approx(math.log(2))
    assert compute_prediction_loss(given, expected, reduction="entries").item() == pytest.approx(
        math.log(2) / 2
    )
    sure = torch.tensor([[math.log(9.0), 0.0]])
    loss_of_first = -(0.75 * math.log(0.9) + 0.25 * math.log(0.1))
    assert compute_prediction_loss(sure, expected[:1]).item() == pytest.approx(loss_of_first)
    assert compute_prediction_loss(2 * sure, 2 * expected[:1], tau=2.0).item() == pytest.approx(
        loss_of_first
    )


def test_the_temperature_divides_both_logits() -> None:
    """Equation 3. At temperature 2, dividing only the teacher's logits would give 4.08 here."""
    student, teacher = torch.tensor([[4.0, 0.0, -2.0]]), torch.tensor([[-2.0, 4.0, 0.0]])
    shares = [math.exp(z / 2) for z in (-2.0, 4.0, 0.0)]
    logs = [
        z / 2 - math.log(sum(math.exp(other / 2) for other in (4.0, 0.0, -2.0)))
        for z in (4.0, 0.0, -2.0)
    ]
    expected = -sum(share / sum(shares) * log for share, log in zip(shares, logs))
    assert expected == pytest.approx(2.2000, abs=1e-4)
    assert compute_prediction_loss(student, teacher, tau=2.0).item() == pytest.approx(expected)


def test_answers_for_every_patch_are_averaged_over_images_and_patches() -> None:
    given, expected = torch.randn(2, 4, 3), torch.randn(2, 4, 3)
    flat = compute_prediction_loss(given.flatten(0, 1), expected.flatten(0, 1))
    assert compute_prediction_loss(given, expected).item() == pytest.approx(flat.item())


def by_hand(
    model: Any, x: torch.Tensor
) -> tuple[dict[int, torch.Tensor], dict[int, torch.Tensor], torch.Tensor]:
    """Return block outputs, attention outputs and logits, by timm's equations of a block."""
    tokens = model.norm_pre(model._pos_embed(model.patch_embed(x)))
    blocks, attentions = {}, {}
    for i, block in enumerate(model.blocks):
        attentions[i] = block.attn(block.norm1(tokens))
        tokens = tokens + attentions[i]
        tokens = tokens + block.mlp(block.norm2(tokens))
        blocks[i] = tokens
    return blocks, attentions, model.forward_head(model.norm(tokens))


def test_the_losses_are_those_of_the_paper() -> None:
    model, master, data = student(), teacher(), batch()
    imitation = objective(model, master, alpha=0.25, tau=2.0)
    losses = {name: loss.item() for name, loss in imitation(data).items()}
    blocks, attentions, logits = by_hand(model, data.inputs)
    their_blocks, their_attentions, their_logits = by_hand(master, data.inputs)
    w, m = (
        [layer.weight for layer in kind]
        for kind in (imitation.imitation.blocks, imitation.imitation.attentions)
    )
    levels = [(0, 1), (1, 3), (2, 5)]
    mse = functional.mse_loss
    block = sum(mse(their_blocks[t] @ w[i].T, blocks[s]) for i, (s, t) in enumerate(levels))
    attention = sum(
        mse(their_attentions[t] @ m[i].T, attentions[s]) for i, (s, t) in enumerate(levels)
    )
    prediction = functional.cross_entropy(logits / 2, torch.softmax(their_logits / 2, dim=1))
    assert losses == {
        "cross_entropy": pytest.approx(
            0.25 * functional.cross_entropy(logits, data.labels).item(), rel=1e-5
        ),
        "prediction": pytest.approx(0.75 * prediction.item(), rel=1e-5),
        "block": pytest.approx(0.75 * block.item(), rel=1e-4),
        "attention": pytest.approx(0.75 * attention.item(), rel=1e-4),
    }


def test_a_model_that_is_the_teacher_has_nothing_to_learn_from_its_blocks() -> None:
    losses = objective(teacher(), teacher())(batch())
    assert losses["block"].item() == 0
    assert losses["attention"].item() == 0
    assert not objective(teacher(), teacher()).imitation.state_dict()


def test_without_levels_labels_and_predictions_are_left() -> None:
    assert set(objective(student(), teacher(), count=0)(batch())) == {"cross_entropy", "prediction"}


def test_student_and_matrices_learn_and_the_teacher_does_not() -> None:
    model, master = student(), teacher()
    imitation = objective(model, master)
    sum(imitation(batch()).values()).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert all(parameter.grad.abs().sum() > 0 for parameter in imitation.imitation.parameters())
    assert all(parameter.grad is None for parameter in master.parameters())
    ours = sum(p.numel() for p in model.parameters()) + sum(
        p.numel() for p in imitation.imitation.parameters()
    )
    assert sum(p.numel() for p in imitation.parameters()) == ours
    hooks = [module for net in (model, master) for module in net.modules() if module._forward_hooks]
    assert not hooks


def test_labels_are_the_class_and_attributes() -> None:
    """L_cls is the loss of a training on the task."""
    model = student()
    attributes = (Attribute("size"), Attribute("colour", 4))
    labels = ClassAndAttributes(model, attributes, seed=1)
    data = batch()._replace(attributes=torch.tensor([[0.5, 2.0]] * 8))
    losses = objective(model, teacher(), labels=labels, alpha=0.5)(data)
    assert {name for name in losses if name.startswith("attributes/")} == {
        "attributes/size",
        "attributes/colour",
    }
    assert losses["attributes/size"].item() == pytest.approx(
        0.5 * labels(data)["attributes/size"].item(), rel=1e-5
    )
    assert type(make_objective(make_tiny_task(), model, Recipe(), 0)) is Classification


def test_a_dense_model_imitates_patches() -> None:
    made = [make_tiny_ancestry(seed, layers=3, classes=4, dense=True).model() for seed in (0, 1)]
    own, master = made
    dense = objective(own, master, 1, _Sum(own))
    losses = dense(batch(2))
    assert losses["prediction"].isfinite()
    assert losses["prediction"].item() > 0


class _Sum(torch.nn.Module):
    """An objective that runs the model once."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, data: Batch) -> dict[str, torch.Tensor]:
        return {"sum": self.model(data.inputs).sum()}


def matrices(width: int, levels: int = 3, seed: int = 0) -> dict[str, torch.Tensor]:
    result = imitation(spec(width), spec(D), levels, seed).state_dict()
    return {name: value.detach() for name, value in result.items()}


def test_where_the_widths_match_there_is_no_parameter() -> None:
    same = imitation(spec(D), spec(D))
    assert not list(same.parameters())
    tokens = torch.randn(2, 5, D)
    assert all(torch.equal(matrix(tokens), tokens) for matrix in [*same.blocks, *same.attentions])
    assert torch.equal(average_matrices({}, D, D), torch.eye(D, dtype=torch.float64))


def test_one_matrix_for_each_level_and_kind_of_output() -> None:
    result = matrices(L)
    assert {name: tuple(tensor.shape) for name, tensor in result.items()} == {
        f"{kind}.{level}.weight": (L, D) for kind in ("blocks", "attentions") for level in range(3)
    }
    assert len({tensor.sum().item() for tensor in result.values()}) == 6
    again, other = matrices(L), matrices(L, seed=1)
    assert all(torch.equal(again[name], result[name]) for name in result)
    assert not any(torch.equal(other[name], result[name]) for name in result)


def test_what_a_matrix_makes_has_the_size_of_what_it_is_given() -> None:
    wide = imitation(spec(64), spec(4096), levels=1, seed=0)
    output = wide.blocks[0](torch.randn(16, 4096, generator=torch.Generator().manual_seed(0)))
    assert output.std().item() == pytest.approx(1, abs=0.1)


def test_the_mean_is_over_the_block_matrices_alone() -> None:
    result = matrices(L)
    mean = sum(result[f"blocks.{level}.weight"].double() for level in range(3)) / 3
    torch.testing.assert_close(average_matrices(result, D, L), mean)
    with pytest.raises(ValueError, match="no level was distilled"):
        average_matrices({"attentions.0.weight": torch.ones(L, D)}, D, L)


def test_the_papers_start_is_the_transpose_of_the_mean() -> None:
    """The wide model has the ancestry's width: its matrix is the identity."""
    low = average_matrices(matrices(L), D, L)
    weight = compute_stitch_weight(low, torch.eye(D, dtype=torch.float64), "tm")
    assert weight.shape == (D, L)
    assert weight.dtype == torch.float32
    torch.testing.assert_close(weight, low.T.float())


def test_the_pseudo_inverse_undoes_the_matrix_on_the_narrow_side() -> None:
    low = average_matrices(matrices(L), D, L)
    weight = compute_stitch_weight(low, torch.eye(D, dtype=torch.float64), "pinv").double()
    torch.testing.assert_close(
        low @ weight, torch.eye(L, dtype=torch.float64), atol=1e-5, rtol=1e-5
    )


def test_with_orthonormal_rows_transpose_and_pseudo_inverse_are_one() -> None:
    low = torch.linalg.qr(torch.randn(D, L, dtype=torch.float64)).Q.T
    eye = torch.eye(D, dtype=torch.float64)
    torch.testing.assert_close(
        compute_stitch_weight(low, eye, "tm"), compute_stitch_weight(low, eye, "pinv")
    )


def test_a_wide_model_of_another_width_is_reached_by_its_own_matrix() -> None:
    """For an ancestry stream x the narrow model has W x and the wide one V x: the stitch maps W x
    back, then applies V.
    """
    low, high = torch.randn(D, D, dtype=torch.float64), torch.randn(H, D, dtype=torch.float64)
    stream = torch.randn(D, dtype=torch.float64)
    weight = compute_stitch_weight(low, high, "pinv").double()
    torch.testing.assert_close(weight @ (low @ stream), high @ stream, atol=1e-4, rtol=1e-4)
    assert compute_stitch_weight(
        average_matrices(matrices(L), D, L), average_matrices(matrices(H), D, H), "tm"
    ).shape == (H, L)
