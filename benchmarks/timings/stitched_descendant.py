"""Time until a descendant of a learngene pool is ready, against building and loading a plain ViT of
its size.

    python benchmarks/stitched_descendant.py          one thread, about two minutes, 1 GB of memory

Ours starts from a saved pool of DeiT-B's size (6 blocks of width 192, 6 of 768) and ends with a
path's model that owns its memory. The direct way is timm.create_model + safetensors load_file +
load_state_dict of a ViT of as many layers and, by its width, as many parameters. All files are in
the page cache. Target for every stitched path: at most 0.25 times.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import timm
import torch
from safetensors.torch import load_file

from learngene_zoo.artifacts.descendant import assemble
from learngene_zoo.artifacts.learngene import Learngene
from learngene_zoo.families.tensors import initial
from learngene_zoo.families.vit.names import ARCHITECTURES, architecture_name
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.lifecycle import expand
from learngene_zoo.method.sizes import Target
from learngene_zoo.storage import WEIGHTS
from lgzoo_pool.details import read_details
from lgzoo_pool.modules.network import draw_stitches, merge_anchors
from lgzoo_pool.pool import PoolExtractor
from machine import medians, write

MOST_TIME = 0.25
PATHS = ((5, 1), (3, 3), (1, 5))  # low, high
REPEATS = 7


def main() -> None:
    """Measure both for each path, print the medians and their ratios, and keep them; exit 1 if one
    takes too long.
    """
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as place:
        pool = _pool().save(Path(place) / "pool")
        for low, high in PATHS:
            rows.append(_compared(pool, low, high, Path(place)))
    print(write("stitched_descendant", {"most_times_plain": MOST_TIME, "threads": 1, "rows": rows}))
    if any(row["ratio"] > MOST_TIME for row in rows):
        sys.exit("a descendant takes longer than it may")


def _compared(pool: Path, low: int, high: int, place: Path) -> dict[str, float]:
    task = Target(
        task="imagenet", classes=1000, dense=False
    )  # the pool's own: the head is loaded on both sides
    spec = expand(pool, target=task, low=low, high=high).spec
    alike = _as_large(spec)
    settings = {"embed_dim": alike.width, "num_heads": alike.heads, "depth": alike.layers}
    file = assemble(alike, {}, seed=0).save(place / f"plain-{low}-{high}") / WEIGHTS

    def ours() -> torch.nn.Module:
        return expand(pool, target=task, low=low, high=high).model()

    def theirs() -> torch.nn.Module:
        model = timm.create_model(architecture_name(alike), **settings)
        model.load_state_dict(load_file(file))
        return model.eval()

    sizes = [sum(parameter.numel() for parameter in make().parameters()) for make in (ours, theirs)]
    built, loaded = medians([ours, theirs], REPEATS)
    print(
        f"{low}/{high}: {sizes[0] / 1e6:5.1f} M in {1e3 * built:6.1f} ms; a plain one of"
        f" {sizes[1] / 1e6:5.1f} M in {1e3 * loaded:6.1f} ms: {built / loaded:.3f} x (target: at"
        f" most {MOST_TIME})"
    )
    names = ("params", "plain_params", "ours_s", "plain_s", "ratio")
    return {"low": low, "high": high, **dict(zip(names, (*sizes, built, loaded, built / loaded)))}


def _pool() -> Learngene:
    """A pool of random numbers."""
    config = PoolExtractor().outline([ARCHITECTURES["deit_base_patch16_224"]])
    details = read_details(config)
    specs = details.derive_specs(config.spec)
    state = merge_anchors([initial(spec, seed) for seed, spec in enumerate(specs)])
    details = replace(details, task="imagenet", classes=config.spec.classes)
    config = replace(config.with_details(details), method="pool")
    return Learngene(config=config, state={**state, **draw_stitches(specs, details.layout, 0)})


def _as_large(spec: ViTSpec) -> ViTSpec:
    """The plain model of as many layers whose width, in steps of 4, comes nearest to as many
    parameters.
    """
    from learngene_zoo.families.family import count_params

    target = count_params(spec)
    every = [spec.with_(front=(), width=width, heads=4) for width in range(96, 1024, 4)]
    return min(every, key=lambda plain: abs(count_params(plain) - target))


if __name__ == "__main__":
    main()
