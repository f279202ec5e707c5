"""Time a distillation step of Learngene Pool against its two unavoidable parts.

The parts, measured in the same run, are the teacher's forward pass and a step of the student on
labels alone (forward, backward, AdamW). The rest are hooks, matrices and three more losses. For the
auxiliary models of a DeiT-Ti, the narrow one (three levels, with matrices) and the wide one (the
last block), a step must take at most 1.05 times the sum; else the exit code is 1. The bundled
ancestry model is measured beside it: its narrow model, 32 wide, is so small that the products with
the matrices, which belong to the method, are 3 % of such a step. One thread, about a minute.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import torch

from learngene_zoo.families.tensors import build_model, initialise
from learngene_zoo.families.timm_config import find_architecture
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.settings import Recipe
from learngene_zoo.tasks.loader import Batch
from learngene_zoo.training.distillation import Distilled, Teacher
from learngene_zoo.training.loop import make_parameter_groups
from learngene_zoo.training.objectives import Classification
from lgzoo_pool.modules.objectives import Imitation
from lgzoo_pool.settings import ImitationSettings, PoolSettings
from timings.case import Case, Row, measure_medians

MAX_TIME = 1.05
REPEATS, ROUNDS = 2, 12  # many short rounds: the arms should meet the same machine
DEIT_TINY = find_architecture("deit_tiny_patch16_224")
BUNDLED = ViTSpec(layers=12, width=96, heads=3, image_size=32, patch_size=8, classes=100)


class Trainer:
    """A student and its optimizer; without an `ancestry` it learns from labels alone."""

    def __init__(
        self, spec: ViTSpec, master: Any = None, ancestry: ViTSpec | None = None, levels: int = 0
    ) -> None:
        recipe = Recipe(lr=1e-4)
        student = build_model(spec, initialise(spec, 1))
        objective: torch.nn.Module = Classification(student)
        if ancestry is not None:
            settings = ImitationSettings(levels=levels, alpha=0.1, tau=1.0, reduction="sample")
            imitation = Imitation(spec, ancestry, settings, 2)
            student_levels, teacher_levels = zip(*imitation.levels)
            objective = Distilled(
                objective,
                student,
                Teacher(master, teacher_levels),
                imitation,
                (0.1, 0.9),
                student_levels,
            )
        self.objective = objective.train()
        self.optimizer = torch.optim.AdamW(
            make_parameter_groups(objective, recipe), lr=recipe.lr, fused=True
        )

    def step(self, batch: Batch) -> None:
        """Run forward, backward and the optimizer."""
        self.optimizer.zero_grad()
        torch.stack(list(self.objective(batch).values())).sum().backward()
        self.optimizer.step()


def make_random_batch(spec: ViTSpec, images: int) -> Batch:
    """Return random images."""
    pixels = torch.randn(
        images, 3, spec.image_size, spec.image_size, generator=torch.Generator().manual_seed(0)
    )
    return Batch(pixels, torch.arange(images) % spec.classes, torch.arange(images))


def measure(args: Namespace) -> Iterator[tuple[Row, str]]:
    """Time the steps of both auxiliary models of each ancestry model."""
    torch.set_num_threads(1)
    assert DEIT_TINY is not None
    for name, spec, images in (("bundled ancestry", BUNDLED, 64), ("DeiT-Ti", DEIT_TINY, 8)):
        row, lines = {"model": name, "images": images}, [f"{name}, {images} images a step"]
        levels = (PoolSettings().low_levels, PoolSettings().high_levels)
        auxiliaries = PoolSettings().derive_auxiliaries(spec)
        for size, auxiliary, count in zip(("low", "high"), auxiliaries, levels):
            row[size] = compare_step(auxiliary, spec, count, images)
            lines.append(describe_step(size, row[size]))
        yield row, "\n".join(lines)


def compare_step(spec: ViTSpec, ancestry: ViTSpec, levels: int, images: int) -> Row:
    """Time a distillation step of one auxiliary model and its parts."""
    batch = make_random_batch(ancestry, images)
    master = build_model(ancestry, initialise(ancestry, 0))
    plain, distilled = Trainer(spec), Trainer(spec, master, ancestry, levels)

    @torch.no_grad()
    def run_teacher() -> torch.Tensor:
        logits: torch.Tensor = master(batch.inputs)
        return logits

    functions = {
        "teacher_s": run_teacher,
        "student_s": lambda: plain.step(batch),
        "step_s": lambda: distilled.step(batch),
    }
    seconds = measure_medians(functions, REPEATS, ROUNDS)
    return {**seconds, "ratio": seconds["step_s"] / (seconds["teacher_s"] + seconds["student_s"])}


def describe_step(name: str, row: Row) -> str:
    """Return the line that is printed for an auxiliary model."""
    return (
        f"  {name:5} teacher {1e3 * row['teacher_s']:7.1f} ms + student"
        f" {1e3 * row['student_s']:7.1f} ms, step {1e3 * row['step_s']:7.1f} ms:"
        f" {row['ratio']:.3f} x"
    )


def find_problem(numbers: Row, args: Namespace) -> str:
    """Return a sentence if a step of DeiT-Ti's auxiliary models takes too long."""
    is_late = any(numbers["rows"][-1][name]["ratio"] > MAX_TIME for name in ("low", "high"))
    return f"a distillation step takes more than {MAX_TIME} times its parts" if is_late else ""


CASE = Case(
    measure=measure,
    summarise=lambda rows, args: {"most_times_parts": MAX_TIME, "threads": 1, "rows": rows},
    find_problem=find_problem,
)
