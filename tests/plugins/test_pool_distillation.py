"""The objective of algorithm 1, number by number."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn import functional

from learngene_zoo.recipe import Recipe
from learngene_zoo.tasks.batches import open_loader
from learngene_zoo.tasks.loader import Batch
from learngene_zoo.tasks.task import Attribute
from learngene_zoo.testing import tiny_ancestry, tiny_task
from learngene_zoo.training.objectives import ClassAndAttributes, Classification, objective_for
from lgzoo_pool.distillation import Distilled, Shares, prediction_loss
from lgzoo_pool.features import Ancestor
from lgzoo_pool.levels import pairs
from lgzoo_pool.transforms import Transformations

LAYERS, WIDTH = 6, 32  # of the teacher


def batch(images: int = 8) -> Batch:
    return next(iter(open_loader(tiny_task(), "train", tiny_ancestry().input_format, batch_size=images).epoch(0)))


def teacher() -> Any:
    return tiny_ancestry(layers=LAYERS, classes=3).model()


def student(width: int = 16, layers: int = 3) -> Any:
    return tiny_ancestry(1, layers=layers, width=width, heads=width // 16, classes=3).model()


def objective(model: Any, master: Any, count: int = 3, told: Any = None, **shares: Any) -> Distilled:
    levels = pairs(len(model.blocks), LAYERS, count)
    asked = Ancestor(master, [other for _, other in levels])
    matrices = Transformations(WIDTH, model.embed_dim, count, seed=2)
    return Distilled(told or Classification(model), model, asked, matrices, levels, Shares(**shares))


def test_the_prediction_loss_is_a_cross_entropy() -> None:
    """Two classes: the teacher says 3/4 and 1/4, the student 1/2 and 1/2; a second image adds the same."""
    given, wanted = torch.zeros(2, 2), torch.tensor([[math.log(3.0), 0.0]] * 2)
    assert prediction_loss(given, wanted).item() == pytest.approx(math.log(2))
    assert prediction_loss(given, wanted, reduction="entries").item() == pytest.approx(math.log(2) / 2)
    sure = torch.tensor([[math.log(9.0), 0.0]])
    one = -(0.75 * math.log(0.9) + 0.25 * math.log(0.1))
    assert prediction_loss(sure, wanted[:1]).item() == pytest.approx(one)
    assert prediction_loss(sure, 2 * wanted[:1], tau=2.0).item() == pytest.approx(one)


def test_answers_for_every_patch_are_averaged_over_images_and_patches() -> None:
    given, wanted = torch.randn(2, 4, 3), torch.randn(2, 4, 3)
    flat = prediction_loss(given.flatten(0, 1), wanted.flatten(0, 1))
    assert prediction_loss(given, wanted).item() == pytest.approx(flat.item())


def by_hand(model: Any, x: torch.Tensor) -> tuple[dict[int, torch.Tensor], dict[int, torch.Tensor], torch.Tensor]:
    """Block outputs, attention outputs and logits, by timm's own equations of a block."""
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
    made = objective(model, master, alpha=0.25, tau=2.0)
    losses = {name: loss.item() for name, loss in made(data).items()}
    blocks, attentions, logits = by_hand(model, data.images)
    their_blocks, their_attentions, their_logits = by_hand(master, data.images)
    w, m = ([layer.weight for layer in kind] for kind in (made.matrices.blocks, made.matrices.attentions))
    levels = [(0, 1), (1, 3), (2, 5)]
    mse = functional.mse_loss
    block = sum(mse(their_blocks[t] @ w[i].T, blocks[s]) for i, (s, t) in enumerate(levels))
    attention = sum(mse(their_attentions[t] @ m[i].T, attentions[s]) for i, (s, t) in enumerate(levels))
    prediction = functional.cross_entropy(logits, torch.softmax(their_logits / 2, dim=1))
    assert losses == {
        "cross_entropy": pytest.approx(0.25 * functional.cross_entropy(logits, data.labels).item(), rel=1e-5),
        "prediction": pytest.approx(0.75 * prediction.item(), rel=1e-5),
        "block": pytest.approx(0.75 * block.item(), rel=1e-4),
        "attention": pytest.approx(0.75 * attention.item(), rel=1e-4),
    }


def test_a_model_that_is_the_teacher_has_nothing_to_learn_from_its_blocks() -> None:
    losses = objective(teacher(), teacher())(batch())
    assert losses["block"].item() == 0
    assert losses["attention"].item() == 0
    assert not objective(teacher(), teacher()).matrices.state_dict()


def test_without_levels_labels_and_predictions_are_left() -> None:
    assert set(objective(student(), teacher(), count=0)(batch())) == {"cross_entropy", "prediction"}


def test_student_and_matrices_learn_and_the_teacher_does_not() -> None:
    model, master = student(), teacher()
    made = objective(model, master)
    sum(made(batch()).values()).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert all(parameter.grad.abs().sum() > 0 for parameter in made.matrices.parameters())
    assert all(parameter.grad is None for parameter in master.parameters())
    ours = sum(p.numel() for p in model.parameters()) + sum(p.numel() for p in made.matrices.parameters())
    assert sum(p.numel() for p in made.parameters()) == ours
    hooks = [module for net in (model, master) for module in net.modules() if module._forward_hooks]
    assert not hooks


def test_with_alpha_one_the_teacher_is_not_asked() -> None:
    def nobody(images: Any) -> Any:
        raise AssertionError("asked")

    model, data = student(), batch()
    made = Distilled(Classification(model), model, nobody, Transformations(WIDTH, 16, 0, 0), (), Shares(alpha=1.0))
    assert made(data)["cross_entropy"].item() == Classification(model)(data)["cross_entropy"].item()
    assert len(made(data)) == 1


def test_what_labels_tell_are_class_and_attributes() -> None:
    """L_cls is whatever training on the task minimises."""
    model = student()
    asked = (Attribute("size"), Attribute("colour", 4))
    told = ClassAndAttributes(model, asked, seed=1)
    data = batch()._replace(attributes=torch.tensor([[0.5, 2.0]] * 8))
    losses = objective(model, teacher(), told=told, alpha=0.5)(data)
    assert {name for name in losses if name.startswith("attributes/")} == {"attributes/size", "attributes/colour"}
    assert losses["attributes/size"].item() == pytest.approx(0.5 * told(data)["attributes/size"].item(), rel=1e-5)
    assert type(objective_for(tiny_task(), model, Recipe(), 0)) is Classification


def test_a_dense_model_imitates_patches() -> None:
    made = [tiny_ancestry(seed, layers=3, classes=4, dense=True).model() for seed in (0, 1)]
    own, master = made
    told = _Sum(own)
    levels = pairs(3, 3, 1)
    dense = Distilled(told, own, Ancestor(master, [2]), Transformations(WIDTH, WIDTH, 1, 0), levels, Shares())
    losses = dense(batch(2))
    assert losses["prediction"].isfinite()
    assert losses["prediction"].item() > 0


class _Sum(torch.nn.Module):
    """An objective that runs the model once."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, data: Batch) -> dict[str, torch.Tensor]:
        return {"sum": self.model(data.images).sum()}
