"""How fast a hypernetwork learns in its two forms, beside a ViT that is trained directly.

    python benchmarks/tal_forms.py                one thread, about ten minutes
    python benchmarks/tal_forms.py --seeds 3      as many runs of each

Each hypernetwork is trained on `signs` for twelve epochs, every step with another size of the set `tal+`, at the published learning
rate; the ViT (6 layers, 96 wide) has one size and timm's start. All see the same batches. Printed is the cross-entropy
of the training images, the mean of each sixth of the steps; what has learnt nothing stays at ln 43 = 3.76.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from machine import write
from torch import nn

from learngene_zoo.ancestry import open_ancestry
from learngene_zoo.recipe import Recipe
from learngene_zoo.run import Run
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.training.images import training_images
from learngene_zoo.training.loop import train
from learngene_zoo.training.objectives import Classification
from learngene_zoo.vit import initial, model_of
from lgzoo_tal.architectures import architectures, scaled
from lgzoo_tal.course import Conv, plain
from lgzoo_tal.hypernet import Hypernet
from lgzoo_tal.meta import Lesson, MetaObjective, Rules
from lgzoo_tal.meta_training import MINI
from lgzoo_tal.mixture import Mixture
from lgzoo_tal.variants import Form, HypernetSpec

RECIPE = Recipe(epochs=12, batch_size=64, lr=3e-4, warmup=0.6, weight_decay=0.01, clip=5.0, augment="none")
PARTS = 6
TASK, ANCESTRY = open_task("signs"), open_ancestry("bundled")
VIT = plain(ANCESTRY.spec.with_(layers=6), ANCESTRY.spec).with_(classes=TASK.classes)


def hypernetwork(spec: HypernetSpec, seed: int) -> nn.Module:
    """What trains one on the task."""
    zoo = [plain(size, ANCESTRY.spec) for size in architectures(scaled("tal+", ANCESTRY.spec))]
    return MetaObjective(Hypernet(spec, seed), zoo, [Lesson(classes=TASK.classes)], Rules(norm_weight=3e-5), seed)


def direct(seed: int) -> nn.Module:
    """What trains a ViT on it."""
    return Classification(model_of(VIT, initial(VIT, seed)))


Arm = tuple[Callable[[int], nn.Module], Recipe]
SIZES = {"low-rank (LoGAH, TAL)": MINI.spec(), "convolutional (GHN-3)": Conv().spec()}
FORMS: tuple[Form, ...] = ("published", "centred")


def arms() -> dict[str, Arm]:
    """What is compared."""
    hypernetworks: dict[str, Arm] = {
        f"{kind}, {form}": (partial(hypernetwork, spec.with_(form=form)), RECIPE)
        for kind, spec in SIZES.items()
        for form in FORMS
    }
    return {"a ViT, directly": (direct, replace(RECIPE, lr=1e-3)), **hypernetworks}


def main() -> None:
    """Train all of them, print and keep the curves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    rows = []
    for name, (make, recipe) in arms().items():
        for seed in range(parser.parse_args().seeds):
            rows.append({"name": name, "seed": seed, **trained(make(seed), recipe, seed)})
            curve = " ".join(f"{value:5.2f}" for value in rows[-1]["cross_entropy"])
            print(f"{name:34} seed {seed}  {curve}   {rows[-1]['seconds']:4.0f} s", flush=True)
    print(write("tal_forms", {"rows": rows, "images": RECIPE.epochs * TASK.sizes["train"], "threads": 1}))


def trained(objective: nn.Module, recipe: Recipe, seed: int) -> dict[str, object]:
    """The mean cross-entropy of each sixth of the steps."""
    run = Run(seed=seed, threads=1)
    loader = Mixture(
        {TASK.name: training_images(TASK, ANCESTRY.view, recipe, run)},
        batch_size=recipe.batch_size,
        temperature=1,
        seed=seed,
    )
    started, losses = time.perf_counter(), []
    for step in train(objective, loader, recipe, run, unused=True):
        if isinstance(objective, MetaObjective):
            objective.finished.fill_(step.step)
        losses.append(step.losses["cross_entropy"])
    share = len(losses) // PARTS
    means = [round(statistics.fmean(losses[part * share : (part + 1) * share]), 3) for part in range(PARTS)]
    return {"cross_entropy": means, "seconds": round(time.perf_counter() - started, 1)}


if __name__ == "__main__":
    main()
