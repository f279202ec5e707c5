"""What a distillation step of Learngene Pool costs, and what keeping the teacher's answers saves.

    python benchmarks/pool_step.py          one thread, about three minutes

A step is compared with its two unavoidable parts, measured in the same run: the teacher's forward pass, and a step of the
student on labels alone (forward, backward, AdamW). What comes on top are hooks, matrices and three more losses. Wanted: at
most 1.05 times the sum, for the narrow model (three levels, with matrices) and for the wide one (the last block), of a
DeiT-Ti. The bundled ancestry model is measured beside it: its narrow model, 32 wide, is so small that the matrices' own
products, a part of the method, are 3 % of such a step.

Then the narrow and the wide model go through the same images twice with `--keep-teacher`: in the first epoch the teacher is
asked and its answers are written to disk, in the second one they are read. The ratio is the second epoch's seconds to the
first one's.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from machine import medians, write

from learngene_zoo.families.initialisation import initial
from learngene_zoo.families.model import model_of
from learngene_zoo.families.timm_config import architecture
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.recipe import Recipe
from learngene_zoo.tasks.loader import Batch
from learngene_zoo.training.objectives import Classification
from learngene_zoo.training.step import parameter_groups
from lgzoo_pool.distillation import Distilled, Shares
from lgzoo_pool.features import Ancestor, Teacher
from lgzoo_pool.kept import KeptTeacher, Store, bytes_of, shapes
from lgzoo_pool.levels import pairs
from lgzoo_pool.pool import Distil
from lgzoo_pool.transforms import Transformations

MOST_TIME = 1.05
REPEATS, ROUNDS = 2, 12  # many short rounds: the arms should meet the same machine
BATCHES, EPOCHS = 6, 4  # of the comparison with kept answers; the second epoch and all later ones read
DEIT_TINY = architecture("deit_tiny_patch16_224")
BUNDLED = ViTSpec(layers=12, width=96, heads=3, image_size=32, patch_size=8, classes=100)


class Trainer:
    """A student, its optimizer, and a step on a batch; with `teacher` None it learns from labels alone."""

    def __init__(self, spec: ViTSpec, ancestry: ViTSpec, levels: int, teacher: Teacher | None) -> None:
        recipe = Recipe(lr=1e-4)
        student = model_of(spec, initial(spec, 1))
        told: torch.nn.Module = Classification(student)
        if teacher is not None:
            matrices = Transformations(ancestry.width, spec.width, levels, seed=2)
            told = Distilled(told, student, teacher, matrices, pairs(spec.layers, ancestry.layers, levels), Shares())
        self.objective = told.train()
        self.optimizer = torch.optim.AdamW(parameter_groups(told, recipe), lr=recipe.lr, fused=True)

    def step(self, batch: Batch) -> None:
        """Forward, backward, update."""
        self.optimizer.zero_grad()
        torch.stack(list(self.objective(batch).values())).sum().backward()
        self.optimizer.step()


def batches(spec: ViTSpec, images: int, count: int) -> Iterator[Batch]:
    """Random images."""
    generator = torch.Generator().manual_seed(0)
    for number in range(count):
        pixels = torch.randn(images, 3, spec.image_size, spec.image_size, generator=generator)
        yield Batch(pixels, torch.arange(images) % spec.classes, torch.arange(images) + number * images)


def compare(name: str, ancestry: ViTSpec, images: int) -> dict[str, Any]:
    """Both auxiliary models of one ancestry model."""
    print(f"{name}, {images} images a step")
    models = dict(zip(("low", "high"), Distil().auxiliaries(ancestry)))
    levels = {"low": Distil().low_levels, "high": Distil().high_levels}
    found = {which: _compared(which, spec, ancestry, levels[which], images) for which, spec in models.items()}
    return {"model": name, "images": images, **found}


def _compared(which: str, spec: ViTSpec, ancestry: ViTSpec, levels: int, images: int) -> dict[str, Any]:
    (batch,) = batches(ancestry, images, 1)
    master = model_of(ancestry, initial(ancestry, 0))
    teacher = Ancestor(master, [other for _, other in pairs(spec.layers, ancestry.layers, levels)])
    plain, distilled = (Trainer(spec, ancestry, levels, whom) for whom in (None, teacher))

    def ask() -> torch.Tensor:
        with torch.no_grad():
            logits: torch.Tensor = master(batch.images)
        return logits

    tasks = [ask, lambda: plain.step(batch), lambda: distilled.step(batch)]
    asked, learnt, both = medians(tasks, REPEATS, rounds=ROUNDS)
    ratio = both / (asked + learnt)
    print(
        f"  {which:5} teacher {1e3 * asked:7.1f} ms + student {1e3 * learnt:7.1f} ms, step {1e3 * both:7.1f} ms: "
        f"{ratio:.3f} x"
    )
    kept = _epochs(spec, ancestry, levels, images)
    return {"teacher_s": asked, "student_s": learnt, "step_s": both, "ratio": ratio, **kept}


def _epochs(spec: ViTSpec, ancestry: ViTSpec, levels: int, images: int) -> dict[str, float]:
    data = list(batches(ancestry, images, BATCHES))
    teacher = Ancestor(
        model_of(ancestry, initial(ancestry, 0)), [o for _, o in pairs(spec.layers, ancestry.layers, levels)]
    )
    first, later = [], []
    with tempfile.TemporaryDirectory() as place:
        for turn in range(EPOCHS):
            store = Store(Path(place) / str(turn), images * BATCHES, "fp32", {})
            trainer = Trainer(spec, ancestry, levels, KeptTeacher(teacher, store))
            seconds = [_seconds(trainer, data) for _ in range(2)]
            first.append(seconds[0])
            later.append(seconds[1])
    one, two = statistics.median(first), statistics.median(later)
    size = bytes_of(shapes(teacher), "fp32")
    print(
        f"        kept: epoch 2 {1e3 * two:7.1f} ms, epoch 1 {1e3 * one:7.1f} ms: {two / one:.3f} x, {size:,} bytes an image"
    )
    return {"first_epoch_s": one, "second_epoch_s": two, "second_to_first": two / one, "kept_bytes_per_image": size}


def _seconds(trainer: Trainer, data: list[Batch]) -> float:
    began = time.perf_counter()
    for batch in data:
        trainer.step(batch)
    return time.perf_counter() - began


def main() -> None:
    """Measure, print, keep the numbers; exit 1 if a step costs too much."""
    torch.set_num_threads(1)
    assert DEIT_TINY is not None
    found = [compare("bundled ancestry", BUNDLED, 64), compare("DeiT-Ti", DEIT_TINY, 8)]
    print(write("pool_step", {"most_times_parts": MOST_TIME, "threads": 1, "rows": found}))
    if any(found[-1][which]["ratio"] > MOST_TIME for which in ("low", "high")):
        sys.exit("a distillation step costs more than it may")


if __name__ == "__main__":
    main()
