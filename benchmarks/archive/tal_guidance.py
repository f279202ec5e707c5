"""How large should the ancestry model's share alpha of the loss of TAL's stage 1 be?

Varied: alpha; the paper gives none, its authors' code 0.2.

Measured: the cross-entropy on the training images of the source task, the mean of each sixth of the
steps, while the hypernetwork of the preset `mini` is trained on 38,400 images, every step with
another size of the set `tal+`. All shares see the same images. Without any learning it stays at ln
326 = 5.79. One seed.

Command: one thread, about eight minutes.

    python benchmarks/archive/tal_guidance.py
    python benchmarks/archive/tal_guidance.py 0 0.2 0.9    these shares

Results: benchmarks/results/tal_guidance.json.
Page: docs/results/tal.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from learngene_zoo.settings import Recipe
from learngene_zoo.tasks.catalogue import SOURCE_TASK, open_task
from lgzoo_tal.architectures import draw_training_set
from lgzoo_tal.config import Guidance
from lgzoo_tal.logah import MINI
from lgzoo_tal.modules.hypernet import Hypernet
from lgzoo_tal.modules.objective import Guide, MetaObjective, TaskSpec

sys.path.append(str(Path(__file__).resolve().parents[1]))
from machine import write
from pages import DOCS, replace_between
from tal_forms import ANCESTRY, train_objective

TASK = open_task(SOURCE_TASK)
RECIPE = Recipe(
    epochs=1,
    images=38_400,
    batch_size=64,
    lr=3e-4,
    warmup=0.05,
    weight_decay=0.01,
    clip=5.0,
    label_smoothing=0.1,
    augment="none",
)
SHARES, SEED = (0.0, 0.2, 0.5, 0.9), 0


def main() -> None:
    """Train with each share, print and keep the curves."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "alpha", nargs="*", type=float, default=list(SHARES), help="shares, each below 1"
    )
    rows: list[dict[str, Any]] = []
    for alpha in parser.parse_args().alpha:
        rows.append(
            {
                "alpha": alpha,
                **train_objective(objective(alpha), [TASK], RECIPE, SEED, share=1 - alpha),
            }
        )
        print(f"{alpha:4g}  {_curve(rows[-1], ' ')}   {rows[-1]['seconds']:4.0f} s", flush=True)
    print(write("tal_guidance", {"rows": rows, "images": RECIPE.images, "threads": 1}))
    lines = ["| α | | | | | | | seconds |", f"|---|{'---:|' * 7}"]
    lines += [f"| {row['alpha']:g} | {_curve(row, ' | ')} | {row['seconds']:.0f} |" for row in rows]
    replace_between(DOCS / "results" / "tal.md", "guidance", "\n".join(lines))


def objective(alpha: float) -> MetaObjective:
    """What trains a hypernetwork with this share; with alpha = 0 the ancestry is not used."""
    zoo, smoothing = draw_training_set("tal+", (), ANCESTRY.spec), RECIPE.label_smoothing
    guide = Guide(ANCESTRY.model(), Guidance(alpha=alpha)) if alpha else None
    task_specs = [TaskSpec(classes=TASK.classes)]
    return MetaObjective(
        Hypernet(MINI.build_spec(), SEED),
        zoo,
        task_specs,
        SEED,
        label_smoothing=smoothing,
        guide=guide,
    )


def _curve(row: dict[str, Any], mark: str) -> str:
    return mark.join(f"{value:.2f}" for value in row["cross_entropy"])


if __name__ == "__main__":
    main()
