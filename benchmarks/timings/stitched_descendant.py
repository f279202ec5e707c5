"""Time the building of a descendant of a learngene pool against loading a plain ViT of its size.

Ours starts from a saved pool of DeiT-B's size (6 blocks of width 192, 6 of 768) and ends with a
path's model that owns its memory. The direct way is timm.create_model + safetensors load_file +
load_state_dict of a ViT of as many layers and, by its width, as many parameters. All files are in
the page cache. One thread, about two minutes, 1 GB of memory. Exits with 1 if a stitched path takes
more than 0.25 times as long.
"""

from __future__ import annotations

import tempfile
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import timm
import torch
from safetensors.torch import load_file

from learngene_zoo.artifacts.descendant import assemble
from learngene_zoo.artifacts.learngene import Learngene
from learngene_zoo.families.tensors import initialise
from learngene_zoo.families.vit.names import ARCHITECTURES, choose_architecture
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.lifecycle import expand
from learngene_zoo.method.sizes import Target
from learngene_zoo.storage import WEIGHTS
from lgzoo_pool.details import read_details
from lgzoo_pool.modules.network import draw_stitches, merge_anchors
from lgzoo_pool.pool import PoolExtractor
from timings.case import Case, Row, measure_medians

MAX_TIME = 0.25
PATHS = ((5, 1), (3, 3), (1, 5))  # low, high
REPEATS = 7


def measure(args: Namespace) -> Iterator[tuple[Row, str]]:
    """Time both ways for each path."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        pool = make_pool().save(Path(folder) / "pool")
        for low, high in PATHS:
            yield compare_path(pool, low, high, Path(folder))


def compare_path(pool: Path, low: int, high: int, folder: Path) -> tuple[Row, str]:
    """Time a path's model against a plain one of its size."""
    # The pool's task, so that the head is loaded on both sides.
    task = Target(task="imagenet", classes=1000, dense=False)
    spec = expand(pool, target=task, low=low, high=high).spec
    plain_spec = find_plain_spec(spec)
    settings = {
        "embed_dim": plain_spec.width,
        "num_heads": plain_spec.heads,
        "depth": plain_spec.layers,
    }
    file = assemble(plain_spec, {}, seed=0).save(folder / f"plain-{low}-{high}") / WEIGHTS

    def build_ours() -> torch.nn.Module:
        return expand(pool, target=task, low=low, high=high).model()

    def build_plain() -> torch.nn.Module:
        model = timm.create_model(choose_architecture(plain_spec), **settings)
        model.load_state_dict(load_file(file))
        return model.eval()

    sizes = [
        sum(parameter.numel() for parameter in build().parameters())
        for build in (build_ours, build_plain)
    ]
    seconds = measure_medians({"ours_s": build_ours, "plain_s": build_plain}, REPEATS)
    ours, plain = seconds.values()
    counts = dict(zip(("params", "plain_params"), sizes))
    row = {"low": low, "high": high, **counts, **seconds, "ratio": ours / plain}
    return (
        row,
        f"{low}/{high}: {sizes[0] / 1e6:5.1f} M in {1e3 * ours:6.1f} ms; a plain one of"
        f" {sizes[1] / 1e6:5.1f} M in {1e3 * plain:6.1f} ms: {ours / plain:.3f} x (target: at"
        f" most {MAX_TIME})",
    )


def make_pool() -> Learngene:
    """Return a pool of random numbers."""
    config = PoolExtractor().outline([ARCHITECTURES["deit_base_patch16_224"]])
    details = read_details(config)
    specs = details.derive_specs(config.spec)
    state = merge_anchors([initialise(spec, seed) for seed, spec in enumerate(specs)])
    details = replace(details, task="imagenet", classes=config.spec.classes)
    config = replace(config.with_details(details), method="pool")
    return Learngene(config=config, state={**state, **draw_stitches(specs, details.layout, 0)})


def find_plain_spec(spec: ViTSpec) -> ViTSpec:
    """Return the plain model of as many layers whose width, in steps of 4, comes nearest to as many
    parameters.
    """
    from learngene_zoo.families.family import count_params

    target = count_params(spec)
    candidates = [spec.with_(front=(), width=width, heads=4) for width in range(96, 1024, 4)]
    return min(candidates, key=lambda plain: abs(count_params(plain) - target))


def find_problem(numbers: Row, args: Namespace) -> str:
    """Return a sentence if a path's model takes too long."""
    is_late = any(row["ratio"] > MAX_TIME for row in numbers["rows"])
    return "a descendant takes longer than its limit" if is_late else ""


CASE = Case(
    measure=measure,
    summarise=lambda rows, args: {"most_times_plain": MAX_TIME, "threads": 1, "rows": rows},
    find_problem=find_problem,
)
