"""Which fit of pictures that are not square is best for a pretrained model: crop, pad or stretch?

Varied: the fit.

Measured: the accuracy of a ridge regression from the features of DINOv2-S onto the classes, fitted
to at most 500 training images of each task whose pictures are not square, each image left out in
turn. No validation or test image is read.

Command: DINOV2 is a folder that `python benchmarks/real_ancestries.py dinov2-small DINOV2` writes.

    python benchmarks/fit_pictures.py --ancestry DINOV2 [--pixels 112]

Results: only the table.
Page: docs/results/finetuning.md.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import get_args

import torch

from learngene_zoo.families.picture_format import Fit, fit_view
from learngene_zoo.intervals import compute_interval
from learngene_zoo.pretrained.ancestry import open_ancestry
from learngene_zoo.runs.run import Run
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.training.probes import compute_features, is_right_left_out
from pages import DOCS, replace_between

TASKS = ("stamps", "clipart")
IMAGES = 500


def main() -> None:
    """Measure every fit on every task, print the table and write it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ancestry", required=True, help="the folder of DINOv2-S")
    parser.add_argument("--pixels", type=int, default=112)
    args = parser.parse_args()
    torch.set_num_threads(1)
    ancestry = open_ancestry(args.ancestry, image_size=args.pixels)
    model, run = ancestry.model(), Run(threads=1, device="cpu")
    lines = [
        f"| task, {args.pixels} px | images | {' | '.join(get_args(Fit))} |",
        "|---|---:|" + "---:|" * len(get_args(Fit)),
    ]
    for name in TASKS:
        task, cells = open_task(name), []
        for fit in get_args(Fit):
            input_format = replace(
                ancestry.input_format, view=fit_view(ancestry.input_format.view, fit)
            )
            is_right_N = is_right_left_out(
                compute_features(
                    model, task, "train", input_format, run, images=min(IMAGES, task.sizes["train"])
                )
            )
            low, high = compute_interval(int(is_right_N.sum()), len(is_right_N))
            cells.append(f"{100 * is_right_N.mean():.1f} [{100 * low:.1f}, {100 * high:.1f}]")
        lines.append(f"| {name} | {len(is_right_N)} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    replace_between(DOCS / "results" / "finetuning.md", "fit-pictures", "\n".join(lines))


if __name__ == "__main__":
    main()
