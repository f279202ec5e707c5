"""Measure a training step of LSAMD's super net against a plain fine-tuning step of the same model.

Both train with AdamW on the same batch; plain fine-tuning trains every weight. The super net is
measured as it starts (the votes of its undecided routers fall evenly) and in its worst case, every
vote for the specific block: a base block is frozen and costs no gradients of weights. The exit code
is 1 if it takes more than 1.15 times the seconds, or more than the bytes of the plain step and one
copy of the base weights. One thread, about two minutes.

Bytes are counted, not sampled: those of weights and AdamW's moments, which live between steps, and
on top of them the most that the allocator had handed out at any moment of one step, gradients and
activations included, from torch's profiler.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from learngene_zoo.families.tensors import build_model, initialise
from learngene_zoo.families.timm_config import find_architecture
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.settings import Recipe
from learngene_zoo.training.loop import make_parameter_groups
from learngene_zoo.training.objectives import Classification
from lgzoo_lsamd.modules.supernet import (
    BASE,
    SPECIFIC,
    SearchObjective,
    build_super_net,
    group_parameters,
    iterate_routed_blocks,
)
from timings.case import Case, Row, measure_medians

MAX_TIME = 1.15
REPEATS, ROUNDS = 2, 8  # many short rounds: the arms should meet the same machine
DEIT_TINY = find_architecture("deit_tiny_patch16_224")
BUNDLED = ViTSpec(layers=12, width=96, heads=3, image_size=32, patch_size=8, classes=26)
ARMS = ("plain", "voted", "all specific")


class Pictures(NamedTuple):
    """A batch of random images."""

    images: torch.Tensor
    labels: torch.Tensor


class Trainer:
    """A model of an arm, its optimizer, and a fixed batch."""

    def __init__(self, arm: str, spec: ViTSpec, images: int) -> None:
        recipe = Recipe(lr=1e-4)
        model = build_model(spec, initialise(spec, 0))
        objective: nn.Module = Classification(model)
        groups = make_parameter_groups(objective, recipe)
        if arm != "plain":
            objective = SearchObjective(Classification(build_super_net(model)))
            groups = group_parameters(objective, recipe, router_lr=1e-3)
        if arm == "all specific":
            for block in iterate_routed_blocks(model):
                block.router.register_forward_hook(_favour_specific)
        generator = torch.Generator().manual_seed(0)
        pixels = torch.randn(images, 3, spec.image_size, spec.image_size, generator=generator)
        self.batch = Pictures(pixels, torch.arange(images) % spec.classes)
        self.objective = objective.train()
        self.optimizer = torch.optim.AdamW(groups, lr=recipe.lr, fused=True)

    def step(self) -> None:
        """Run forward, backward and the optimizer."""
        self.optimizer.zero_grad()
        torch.stack(list(self.objective(self.batch).values())).sum().backward()
        self.optimizer.step()

    def count_standing_bytes(self) -> int:
        """Return the bytes of weights and moments, also of weights that no step has changed yet."""
        weights = sum(parameter.nbytes for parameter in self.objective.parameters())
        moments = sum(
            2 * parameter.nbytes
            for parameter in self.objective.parameters()
            if parameter.requires_grad
        )
        return weights + moments

    def measure_peak_bytes(self) -> int:
        """Return the most bytes that are allocated at any moment of a step."""
        self.step()
        self.optimizer.zero_grad()
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
            self.step()
        events = [
            event for event in record.profiler.kineto_results.events() if event.name() == "[memory]"
        ]
        changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
        return self.count_standing_bytes() + max(accumulate(changes))


def _favour_specific(router: nn.Module, inputs: Any, p_B2: torch.Tensor) -> torch.Tensor:
    """Return the router's probabilities in the order in which the specific block wins; gradients
    flow through it.
    """
    ordered = p_B2.sort(dim=1, descending=True).values
    return ordered if SPECIFIC < BASE else ordered.flip(1)


def measure(args: Namespace) -> Iterator[tuple[Row, str]]:
    """Measure every arm on two models."""
    torch.set_num_threads(1)
    assert DEIT_TINY is not None
    yield compare_arms("bundled ancestry", BUNDLED, 64)
    yield compare_arms("DeiT-Ti", DEIT_TINY, 8)


def compare_arms(name: str, spec: ViTSpec, images: int) -> tuple[Row, str]:
    """Measure seconds and bytes of every arm on one model."""
    trainers = {arm: Trainer(arm, spec, images) for arm in ARMS}
    steps = {arm: trainer.step for arm, trainer in trainers.items()}
    seconds = measure_medians(steps, REPEATS, ROUNDS)
    peaks = {arm: trainer.measure_peak_bytes() for arm, trainer in trainers.items()}
    base = 4 * sum(tensor.numel() for tensor in initialise(spec, 0).values())
    rows = {}
    lines = [f"{name}, {images} images a step, base weights {base / 1e6:.1f} MB"]
    for arm in ARMS:
        times, more = seconds[arm] / seconds["plain"], (peaks[arm] - peaks["plain"]) / base
        rows[arm] = {
            "seconds": seconds[arm],
            "times_plain": times,
            "peak_bytes": peaks[arm],
            "base_copies_more": more,
        }
        lines.append(
            f"  {arm:13} {1e3 * seconds[arm]:8.1f} ms {times:6.3f} x   {peaks[arm] / 1e6:8.1f} MB"
            f" {more:+.3f} copies"
        )
    row = {
        "model": name,
        "images": images,
        "base_bytes": base,
        "arms": rows,
        "within_limits": all(
            row["times_plain"] <= MAX_TIME and row["base_copies_more"] <= 1 for row in rows.values()
        ),
    }
    return row, "\n".join(lines)


def find_problem(numbers: Row, args: Namespace) -> str:
    """Return a sentence if a limit is exceeded."""
    is_within = all(row["within_limits"] for row in numbers["rows"])
    return "" if is_within else "a super-net step costs more than its limit"


CASE = Case(
    measure=measure,
    summarise=lambda rows, args: {
        "most_times_plain": MAX_TIME,
        "most_base_copies_more": 1,
        "rows": rows,
    },
    find_problem=find_problem,
)
