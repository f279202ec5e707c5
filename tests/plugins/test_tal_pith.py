"""PITH: the released code's predictions and gradients, the mixture by number, and its method."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor
from torch.testing import assert_close

from learngene_zoo.families.tensors import shapes
from learngene_zoo.families.vit.spec import ViTSpec
from lgzoo_tal.hypernet_spec import HypernetSpec
from lgzoo_tal.modules.graph import build_graph
from lgzoo_tal.modules.hypernet import Hypernet, build_frozen_hypernet
from lgzoo_tal.modules.inheritance import Inheritance

# Numbers that the released code computes from random tensors: `state/NAME` of the hypernetwork,
# `teacher/NAME` in half precision, the embedding `task`, and STAGE/TARGET/NAME, every third or
# every 31st number of the predicted tensors; by stage and target the norms of the gradients of
# sum(cos(index) * number) over each tensor, without the class token's position.
VECTORS = Path(__file__).parents[1] / "data" / "tal" / "pith.safetensors"
TEACHER = ViTSpec(layers=2, width=32, heads=2, patch_size=4, image_size=32, classes=10)
PUBLISHED = HypernetSpec(
    hidden=8, layers=2, heads=2, decoder="projected", rank=5, chunk=400, widest=4096, classes=10
)
TARGETS = {
    "narrow": TEACHER.with_(width=24, heads=2),
    "wide": TEACHER.with_(width=48, heads=3),
}


@lru_cache(maxsize=1)
def load_vectors() -> tuple[dict[str, Tensor], dict[str, dict[str, float]]]:
    with safe_open(VECTORS, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return tensors, json.loads(file.metadata()["gradients"])


def select_vectors(prefix: str) -> dict[str, Tensor]:
    tensors, _ = load_vectors()
    return {name.removeprefix(prefix): tensors[name] for name in tensors if name.startswith(prefix)}


def build_official(stage: str) -> tuple[Hypernet, Tensor | None]:
    state = select_vectors("state/")
    if stage == "stage_1":
        spec, task = PUBLISHED, None
        state = {name: tensor for name, tensor in state.items() if ".TEN." not in name}
    else:
        spec, task = PUBLISHED.with_(task=6), load_vectors()[0]["task"]
    hypernet = build_frozen_hypernet(spec, state)
    teacher = select_vectors("teacher/")
    del teacher["head.weight"], teacher["head.bias"]
    hypernet.inheritance = Inheritance(spec, TEACHER, teacher)
    return hypernet, task


def select_numbers(name: str, tensor: Tensor, step: int) -> Tensor:
    return (tensor[:, 1:] if name == "pos_embed" else tensor).flatten()[::step]


@pytest.mark.parametrize("stage", ["stage_1", "stage_2"])
@pytest.mark.parametrize("target", TARGETS)
def test_predictions_are_the_released_codes(stage: str, target: str) -> None:
    hypernet, task = build_official(stage)
    graph = build_graph(TARGETS[target], msa=False)
    expected = select_vectors(f"{stage}/{target}/")
    step = 3 if (stage, target) == ("stage_1", "narrow") else 31
    for predicted in (hypernet(graph, task=task), hypernet.predict(graph, task=task)):
        assert {name: tuple(tensor.shape) for name, tensor in predicted.items()} == shapes(
            TARGETS[target]
        )
        assert expected.keys() == predicted.keys() - {"cls_token"}
        for name, numbers in expected.items():
            actual = select_numbers(name, predicted[name], step)
            assert_close(actual, numbers, rtol=1e-5, atol=1e-6, msg=lambda text: f"{name}: {text}")  # noqa: B023


@pytest.mark.parametrize("stage", ["stage_1", "stage_2"])
@pytest.mark.parametrize("target", TARGETS)
def test_gradients_are_the_released_codes(stage: str, target: str) -> None:
    hypernet, task = build_official(stage)
    hypernet.requires_grad_()
    predicted = hypernet(build_graph(TARGETS[target], msa=False), task=task)
    loss: Any = 0
    for name, tensor in predicted.items():
        if name != "cls_token":
            numbers = select_numbers(name, tensor, 1)
            loss = loss + (numbers * torch.arange(len(numbers)).float().cos()).sum()
    loss.backward()
    recorded = load_vectors()[1][f"{stage}/{target}"]
    norms = {name: parameter.grad.norm().item() for name, parameter in hypernet.named_parameters()}
    assert norms == {name: pytest.approx(recorded[name], rel=1e-4, abs=1e-5) for name in norms}
