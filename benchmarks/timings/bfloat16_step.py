"""Measure a training step on a processor: in bfloat16, under plain autocast, and in float32.

Each is a step of AdamW on the same batch of random images. In the first, attention is computed in
float32 (training/precision.py); `plain` is torch's autocast alone. One thread, about two minutes.
The results on processors with AMX have a file and a table of their own.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import torch

from learngene_zoo.families.tensors import build_model, initialise
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.runs.run import Run, list_cpu_capabilities
from learngene_zoo.settings import Recipe
from learngene_zoo.training.loop import make_parameter_groups
from learngene_zoo.training.objectives import Classification
from learngene_zoo.training.precision import choose_attention
from pages import DOCS, replace_between
from timings.case import Case, Row, measure_medians

REPEATS, ROUNDS = 2, 8  # many short rounds: the arms should meet the same machine
LAYERS, CLASSES = 6, 12
# Width, heads, size of the images and of a batch of them; patches have 14 pixels.
MODELS = ((384, 6, 112, 16), (256, 4, 112, 16), (192, 3, 112, 16), (384, 6, 224, 8))


class Trainer:
    """A model with an optimizer and a fixed batch."""

    def __init__(
        self,
        spec: ViTSpec,
        images: int,
        in_bfloat16: bool,
        attention: AbstractContextManager[object],
    ) -> None:
        recipe = Recipe(lr=1e-4)
        self.objective = Classification(build_model(spec, initialise(spec, 0))).train()
        self.optimizer = torch.optim.AdamW(
            make_parameter_groups(self.objective, recipe), lr=recipe.lr, fused=True
        )
        generator = torch.Generator().manual_seed(0)
        shape = images, 3, spec.image_size, spec.image_size
        self.pixels = torch.randn(shape, generator=generator)
        self.labels = torch.arange(images) % spec.classes
        self.in_bfloat16, self.attention = in_bfloat16, attention

    def step(self) -> None:
        """Run forward, backward and the optimizer."""
        self.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.in_bfloat16), self.attention:
            logits = self.objective.model(self.pixels)
        torch.nn.functional.cross_entropy(logits.float(), self.labels).backward()
        self.optimizer.step()


def measure(args: Namespace) -> Iterator[tuple[Row, str]]:
    """Measure the arms on each model."""
    torch.set_num_threads(1)
    for width, heads, pixels, images in MODELS:
        spec = ViTSpec(
            layers=LAYERS,
            width=width,
            heads=heads,
            image_size=pixels,
            patch_size=14,
            classes=CLASSES,
        )
        yield compare_arms(spec, images)


def compare_arms(spec: ViTSpec, images: int) -> tuple[Row, str]:
    """Measure the seconds of a step of every arm on one model."""
    ours = choose_attention(Run(precision="bf16"), torch.device("cpu"))
    steps: dict[str, Callable[[], object]] = {
        name: Trainer(spec, images, in_bfloat16, attention).step
        for name, in_bfloat16, attention in (
            ("ours", True, ours),
            ("plain", True, nullcontext()),
            ("fp32", False, nullcontext()),
        )
    }
    seconds = measure_medians(steps, REPEATS, ROUNDS)
    row = {
        "layers": spec.layers,
        "width": spec.width,
        "pixels": spec.image_size,
        "images": images,
        "ms_per_image": {name: round(1e3 * value / images, 2) for name, value in seconds.items()},
        "times_plain": round(seconds["plain"] / seconds["ours"], 2),
        "times_fp32": round(seconds["fp32"] / seconds["ours"], 2),
    }
    return row, (
        f"{spec.layers} x {spec.width}, {spec.image_size} px: "
        f"{', '.join(f'{name} {value}' for name, value in row['ms_per_image'].items())} ms an "
        f"image; {row['times_plain']} x plain, {row['times_fp32']} x fp32"
    )


def write_page(numbers: Row) -> None:
    """Write the table to docs/results/speed.md."""
    lines = [
        "| layers x width | image size | batch | fp32 | bf16, torch's autocast | bf16 |",
        "|---|---:|---:|---:|---:|---:|",
        *(
            f"| {row['layers']} x {row['width']} | {row['pixels']} | {row['images']} | "
            + " | ".join(f"{row['ms_per_image'][arm]:.1f}" for arm in ("fp32", "plain", "ours"))
            + " |"
            for row in numbers["rows"]
        ),
    ]
    name = "bfloat16-amx" if numbers["amx"] else "bfloat16"
    replace_between(DOCS / "results" / "speed.md", name, "\n".join(lines))


def has_amx() -> bool:
    """Return whether this processor multiplies matrices of bfloat16 with AMX."""
    return list_cpu_capabilities().get("amx_bf16") is True


CASE = Case(
    measure=measure,
    summarise=lambda rows, args: {"amx": has_amx(), "threads": 1, "rows": rows},
    name_suffix=lambda args: "_amx" if has_amx() else "",
    write_page=write_page,
)
