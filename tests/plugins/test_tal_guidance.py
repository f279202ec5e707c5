"""The ancestry's guidance in stage 1: numbers by hand, the released code's, and each reading."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional

from learngene_zoo.testing import make_tiny_ancestry
from learngene_zoo.training.distillation import compute_divergence as distance
from lgzoo_tal.config import Direction, Guidance
from lgzoo_tal.modules.objective import Guide, draw_random_matrix

DATA = Path(__file__).resolve().parents[1] / "data" / "tal"
FACTS = json.loads((DATA / "stage1_loss.json").read_text())


def compute_divergence(
    student: torch.Tensor,
    teacher: torch.Tensor,
    direction: Direction = "student-teacher",
    temperature: float = 1.0,
) -> torch.Tensor:
    """Return the KL divergence of equation 4 as it is printed, or with other settings."""
    return distance(student, teacher, temperature, direction)


def build_guide(**settings: object) -> Guide:
    return Guide(make_tiny_ancestry().model(), Guidance(**settings))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def numbers() -> dict[str, torch.Tensor]:
    return load_file(DATA / "stage1_loss.safetensors")


def test_the_losses_are_the_released_codes(numbers: dict[str, torch.Tensor]) -> None:
    student, teacher, classes = numbers["student"], numbers["teacher"], numbers["logits"].shape[1]
    kl = compute_divergence(student, teacher, "teacher-student", FACTS["temperature"]) / classes
    assert kl.item() == pytest.approx(FACTS["kl_code"], rel=1e-5)
    cross_entropy = functional.cross_entropy(
        numbers["logits"], numbers["targets"], label_smoothing=0.1
    ).item()
    assert FACTS["alpha"] * kl.item() + (1 - FACTS["alpha"]) * cross_entropy == pytest.approx(
        FACTS["loss_code"], rel=1e-5
    )
    literal = compute_divergence(student, teacher, "student-teacher", 1.0)
    assert literal.item() == pytest.approx(FACTS["kl_paper_eq4_literal_batchmean"], rel=1e-5)


def test_a_guide_with_the_codes_settings_gives_the_codes_number(
    numbers: dict[str, torch.Tensor],
) -> None:
    ancestry_guide = build_guide(direction="teacher-student", temperature=3.0, reduction="classes")
    identity = torch.eye(768), torch.zeros(768)
    loss = ancestry_guide.compute_loss(
        numbers["student"][:, None], numbers["teacher"][:, None], identity, classes=10
    )
    assert loss.item() == pytest.approx(FACTS["kl_code"], rel=1e-5)


def test_the_divergence_by_hand() -> None:
    """The student says 1/2 and 1/2, the teacher 3/4 and 1/4."""
    student, teacher = torch.zeros(2, 2), torch.tensor([[math.log(3.0), 0.0]] * 2)
    forward = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    backward = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    assert compute_divergence(student, teacher).item() == pytest.approx(forward, rel=1e-5)
    assert compute_divergence(student, teacher, "teacher-student").item() == pytest.approx(
        backward, rel=1e-5
    )
    assert compute_divergence(2 * student, 2 * teacher, temperature=2.0).item() == pytest.approx(
        4 * forward, rel=1e-5
    )
    assert compute_divergence(teacher, teacher).item() == pytest.approx(0, abs=1e-7)


def test_the_axis_is_the_class_tokens_features_or_each_feature_over_all_tokens() -> None:
    draw = torch.Generator().manual_seed(0)
    student_BND, teacher_BNE = (
        torch.randn(3, 5, 8, generator=draw),
        torch.randn(3, 5, 32, generator=draw),
    )
    weight, bias = torch.randn(32, 8, generator=draw), torch.randn(32, generator=draw)
    brought = student_BND @ weight.T + bias
    features = build_guide().compute_loss(student_BND, teacher_BNE, (weight, bias), classes=7)
    assert features.item() == pytest.approx(
        compute_divergence(brought[:, 0], teacher_BNE[:, 0]).item(), rel=1e-5
    )
    positions = build_guide(axis="positions").compute_loss(
        student_BND, teacher_BNE, (weight, bias), classes=7
    )
    each = [compute_divergence(brought[..., e], teacher_BNE[..., e]).item() for e in range(32)]
    assert positions.item() == pytest.approx(sum(each) / 32, rel=1e-4)


def test_a_student_that_repeats_the_ancestry_is_told_nothing() -> None:
    ancestry_guide = build_guide()
    images = torch.randn(2, 3, 16, 16)
    tokens = ancestry_guide.compute_tokens(images)
    assert not tokens.requires_grad
    assert torch.equal(tokens, ancestry_guide.model.forward_features(images))
    loss = ancestry_guide.compute_loss(tokens, tokens, (torch.eye(32), torch.zeros(32)), classes=3)
    assert loss.item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    "shape",
    [{"registers": 2}, {"pool": "avg", "class_token": False}],
    ids=["registers", "no token"],
)
def test_an_ancestry_with_other_tokens_gives_its_feature_and_its_patches(
    shape: dict[str, object],
) -> None:
    ancestry_guide = Guide(make_tiny_ancestry(**shape).model(), Guidance(axis="positions"))
    images = torch.randn(2, 3, 16, 16)
    tokens = ancestry_guide.compute_tokens(images)
    assert tokens.shape == (2, 5, 32)
    with torch.no_grad():
        assert torch.allclose(
            ancestry_guide.model.head(tokens[:, 0]), ancestry_guide.model(images), atol=1e-6
        )
    assert ancestry_guide.compute_loss(
        torch.randn(2, 5, 8), tokens, draw_random_matrix(32, 8, 0), classes=3
    ).isfinite()


def test_the_guidance_teaches_the_student_and_the_matrix_and_not_the_ancestry() -> None:
    ancestry_guide = build_guide()
    student = torch.randn(2, 5, 8, requires_grad=True)
    weight, bias = (tensor.requires_grad_() for tensor in draw_random_matrix(32, 8, 0))
    ancestry_guide.compute_loss(
        student, torch.randn(2, 5, 32), (weight, bias), classes=3
    ).backward()
    assert all(
        tensor.grad is not None and tensor.grad.abs().sum() > 0 for tensor in (student, weight)
    )
    assert not any(parameter.requires_grad for parameter in ancestry_guide.model.parameters())


def test_a_random_matrix_is_a_function_of_its_names() -> None:
    first, again, other = (
        draw_random_matrix(32, 8, 5, 0),
        draw_random_matrix(32, 8, 5, 0),
        draw_random_matrix(32, 8, 5, 1),
    )
    assert all(torch.equal(a, b) for a, b in zip(first, again))
    assert not torch.equal(first[0], other[0])
    assert first[0].abs().max() <= 8**-0.5 < 1.1 * first[0].abs().max()


def test_a_copy_of_an_objective_asks_the_same_guide() -> None:
    ancestry_guide = build_guide()
    assert copy.deepcopy({"guide": ancestry_guide})["guide"] is ancestry_guide
