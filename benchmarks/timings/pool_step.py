"""The cost of a distillation step of Learngene Pool.

    python benchmarks/pool_step.py          one thread, about a minute

A step is compared with its two unavoidable parts, measured in the same run: the teacher's forward
pass, and a step of the student on labels alone (forward, backward, AdamW). The rest are hooks,
matrices and three more losses. It must take at most
1.05 times the sum, for the narrow model (three levels, with matrices) and for the wide one (the
    last block), of a DeiT-Ti.
The bundled ancestry model is measured beside it: its narrow model, 32 wide, is so small that the
products with the matrices, which belong to the method, are 3 % of such a step.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from learngene_zoo.families.tensors import initial, model_of
from learngene_zoo.families.timm_config import architecture
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.settings import Recipe
from learngene_zoo.tasks.loader import Batch
from learngene_zoo.training.distillation import Distilled, Teacher
from learngene_zoo.training.loop import parameter_groups
from learngene_zoo.training.objectives import Classification
from lgzoo_pool.modules.objectives import Imitation
from lgzoo_pool.settings import ImitationSettings, PoolSettings
from machine import medians, write

MOST_TIME = 1.05
REPEATS, ROUNDS = 2, 12  # many short rounds: the arms should meet the same machine
DEIT_TINY = architecture("deit_tiny_patch16_224")
BUNDLED = ViTSpec(layers=12, width=96, heads=3, image_size=32, patch_size=8, classes=100)


class Trainer:
    """A student, its optimizer, and a step on a batch; with `master` None it learns from labels
    alone.
    """

    def __init__(
        self, spec: ViTSpec, master: Any = None, ancestry: ViTSpec | None = None, levels: int = 0
    ) -> None:
        recipe = Recipe(lr=1e-4)
        student = model_of(spec, initial(spec, 1))
        objective: torch.nn.Module = Classification(student)
        if ancestry is not None:
            settings = ImitationSettings(levels=levels, alpha=0.1, tau=1.0, reduction="sample")
            imitation = Imitation(spec, ancestry, settings, 2)
            own, theirs = zip(*imitation.levels)
            objective = Distilled(
                objective, student, Teacher(master, theirs), imitation, (0.1, 0.9), own
            )
        self.objective = objective.train()
        self.optimizer = torch.optim.AdamW(
            parameter_groups(objective, recipe), lr=recipe.lr, fused=True
        )

    def step(self, batch: Batch) -> None:
        """Forward, backward, update."""
        self.optimizer.zero_grad()
        torch.stack(list(self.objective(batch).values())).sum().backward()
        self.optimizer.step()


def random_batch(spec: ViTSpec, images: int) -> Batch:
    """Random images."""
    pixels = torch.randn(
        images, 3, spec.image_size, spec.image_size, generator=torch.Generator().manual_seed(0)
    )
    return Batch(pixels, torch.arange(images) % spec.classes, torch.arange(images))


def compare(name: str, ancestry: ViTSpec, images: int) -> dict[str, Any]:
    """Both auxiliary models of one ancestry model."""
    print(f"{name}, {images} images a step")
    models = dict(zip(("low", "high"), PoolSettings().derive_auxiliaries(ancestry)))
    levels = {"low": PoolSettings().low_levels, "high": PoolSettings().high_levels}
    found = {
        which: _compared(which, spec, ancestry, levels[which], images)
        for which, spec in models.items()
    }
    return {"model": name, "images": images, **found}


def _compared(
    which: str, spec: ViTSpec, ancestry: ViTSpec, levels: int, images: int
) -> dict[str, Any]:
    batch = random_batch(ancestry, images)
    master = model_of(ancestry, initial(ancestry, 0))
    plain, distilled = Trainer(spec), Trainer(spec, master, ancestry, levels)

    def ask() -> torch.Tensor:
        with torch.no_grad():
            logits: torch.Tensor = master(batch.images)
        return logits

    tasks = [ask, lambda: plain.step(batch), lambda: distilled.step(batch)]
    asked, learnt, both = medians(tasks, REPEATS, rounds=ROUNDS)
    ratio = both / (asked + learnt)
    print(
        f"  {which:5} teacher {1e3 * asked:7.1f} ms + student {1e3 * learnt:7.1f} ms, step"
        f" {1e3 * both:7.1f} ms: {ratio:.3f} x"
    )
    return {"teacher_s": asked, "student_s": learnt, "step_s": both, "ratio": ratio}


def main() -> None:
    """Measure, print, keep the numbers; exit 1 if a step costs too much."""
    torch.set_num_threads(1)
    assert DEIT_TINY is not None
    found = [compare("bundled ancestry", BUNDLED, 64), compare("DeiT-Ti", DEIT_TINY, 8)]
    print(write("pool_step", {"most_times_parts": MOST_TIME, "threads": 1, "rows": found}))
    if any(found[-1][which]["ratio"] > MOST_TIME for which in ("low", "high")):
        sys.exit(f"a distillation step takes more than {MOST_TIME} times its parts")


if __name__ == "__main__":
    main()
