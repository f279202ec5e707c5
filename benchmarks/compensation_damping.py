"""Which penalty of pruning's compensation holds with outlier channels, and on a real model?

Varied: what the penalty is relative to (the mean square of all inputs of a layer, their largest
principal variance, or the mean square of each input), and its strength.

Measured: the squared error of the features of new images, of random models with and without planted
outliers: inputs 3 and 17 of each `attn.proj` and `fc2` are 100 times as large, and their columns
100 times smaller. A third of the heads and half of the neurons are removed, 200 images calibrate.
With --ancestry, the explained variance of the class token of test images of a task too, after a
fifth of the heads and 35 % of the neurons were cut by the ranking through all blocks.

Command: a minute; with a real model some minutes more.

    python benchmarks/compensation_damping.py
    python benchmarks/compensation_damping.py --ancestry DINOV2 --task stamps

Results: benchmarks/results/compensation_damping.json.
Page: docs/results/pruning.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

import machine
from learngene_zoo.families.family import load_family
from learngene_zoo.families.tensors import build_model, initialise, remove_head, resize_positions
from learngene_zoo.pretrained.ancestry import open_ancestry
from learngene_zoo.runs.run import Run
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.tasks.loader import sample_images
from lgzoo_closed_form.calibration import Calibration, sample_pictures
from lgzoo_closed_form.modules.curvature import extract_features
from lgzoo_closed_form.modules.cutting import (
    Absorption,
    Selection,
    compensate_model,
    cut_model,
)
from lgzoo_closed_form.modules.importance import measure_energies, normalise_scores
from lgzoo_closed_form.modules.streams import Pictures
from lgzoo_closed_form.sizes import (
    Counts,
    count_by_block,
    derive_even_spec,
    derive_minimum,
    derive_mlp_ratio,
    derive_uneven_spec,
    rank_positions,
    take_share,
)

CHANNELS, FACTOR = (3, 17), 100
PENALTIES: dict[str, Absorption | None] = {
    "none": None,
    "no penalty": Absorption(0.0),
    **{
        f"{damping} {rho:g}": Absorption(rho, damping)
        for damping in ("mean", "largest", "each")
        for rho in (1e-3, 1e-2, 1e-1)
    },
}
# Of the real model.
REAL_PENALTIES = ("none", "mean 0.001", "mean 0.01", "largest 0.001", "each 0.01")
PIXELS, IMAGES, SHARES = 112, 150, (0.8, 0.65)


def main() -> None:
    """Measure, print the results and write them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ancestry", help="the folder of a real model")
    parser.add_argument("--task", default="stamps")
    args = parser.parse_args()
    numbers = machine.read("compensation_damping")
    numbers.pop("machine", None)
    numbers["random"] = {
        f"{family}, {'planted' if planted else 'plain'}": measure_random(family, planted)
        for family in ("vit", "eva")
        for planted in (False, True)
    }
    if args.ancestry:
        numbers["real"] = {args.task: measure_real(args.ancestry, args.task)}
    machine.write("compensation_damping", numbers)
    for group in ("random", "real"):
        for name, row in numbers.get(group, {}).items():
            print(name, row)


def plant_outliers(state: dict[str, torch.Tensor], spec: Any) -> None:
    """Scale some inputs of each writing layer up and its columns down, which keeps its outputs."""
    values = [2 * spec.heads_width + channel for channel in CHANNELS]
    for block in range(spec.layers):
        for layer, rows, writer in (
            ("attn.qkv", values, "attn.proj"),
            ("mlp.fc1", list(CHANNELS), "mlp.fc2"),
        ):
            weight, columns = (
                state[f"blocks.{block}.{name}.weight"].clone() for name in (layer, writer)
            )
            weight[rows] *= FACTOR
            columns[:, list(CHANNELS)] /= FACTOR
            state[f"blocks.{block}.{layer}.weight"] = weight
            state[f"blocks.{block}.{writer}.weight"] = columns


def measure_random(family: str, planted: bool) -> dict[str, float]:
    """Return the squared error of the features by penalty."""
    example: Any = load_family(family).examples[0]
    spec = example.with_(layers=4, width=48, heads=3, classes=0)
    state = dict(initialise(spec, 0, "fan_in"))
    if planted:
        plant_outliers(state, spec)
    model = build_model(spec, state).eval()
    generator = torch.Generator().manual_seed(0)
    images, test = (torch.randn(count, 3, 16, 16, generator=generator) for count in (200, 64))
    tokens = torch.arange(spec.tokens).expand(len(images), -1)
    pictures = Pictures(images, tokens, torch.ones(tokens.numel(), dtype=torch.float64))
    neurons = [index for index in range(spec.hidden) if index % 2 or index in CHANNELS]
    selection = Selection([[0, 1]] * spec.layers, [neurons] * spec.layers)
    small = derive_even_spec(spec, 2, derive_mlp_ratio(spec, len(neurons)))
    with torch.no_grad():
        full = model.forward_features(test)
        errors: dict[str, float] = {}
        for name, parts in prune(model, state, spec, selection, pictures, tuple(PENALTIES)):
            features = build_model(small, parts).eval().forward_features(test)
            errors[name] = round(float((features - full).square().mean()), 4)
        return errors


def prune(
    model: Any,
    state: Any,
    spec: Any,
    selection: Selection,
    pictures: Pictures,
    penalties: Sequence[str],
) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of a cut model by penalty."""
    for name in penalties:
        absorption = PENALTIES[name]
        if absorption is None:
            yield name, cut_model(state, spec, selection)
        else:
            yield name, compensate_model(model, state, spec, selection, pictures, absorption)


@torch.no_grad()
def measure_real(source: str, name: str) -> dict[str, float]:
    """Return the explained variance of the class token of test images by penalty."""
    ancestry, task, run = open_ancestry(source), open_task(name), Run(seed=0)
    full_spec: Any = ancestry.spec
    spec = full_spec.with_(image_size=PIXELS, classes=0)
    state = resize_positions(
        remove_head(ancestry.state, full_spec), full_spec.with_(classes=0), spec
    )
    input_format = replace(ancestry.input_format, image_size=PIXELS)
    model = build_model(spec, state).eval()
    pictures = sample_pictures(spec, Calibration(images=IMAGES), task, input_format, run)
    loader = sample_images(task, "test", input_format, run, images=None, batch_size=50)
    test = torch.cat([batch.inputs for batch in loader.epoch(0)])
    selection = rank_parts(model, spec, pictures)
    small = derive_uneven_spec(
        spec, Counts(*(tuple(count_by_block(part)) for part in (selection.heads, selection.hidden)))
    )
    full = extract_features(model, spec, test)
    spread = (full - full.mean(dim=0)).square().sum()
    explained: dict[str, float] = {}
    for key, parts in prune(model, state, spec, selection, pictures, REAL_PENALTIES):
        features = extract_features(build_model(small, parts).eval(), small, test)
        explained[key] = round(1 - float((features - full).square().sum() / spread), 4)
    return explained


def rank_parts(model: Any, spec: Any, pictures: Pictures) -> Selection:
    """Return the heads and neurons that the ranking by energy through all blocks keeps."""
    scores = [normalise_scores(rows) for rows in measure_energies(model, spec, pictures)]
    parts: list[Sequence[Sequence[int]]] = [
        take_share(rank_positions(rows.tolist(), minimum), share, spec.layers, minimum)
        for rows, minimum, share in zip(scores, derive_minimum(spec), SHARES)
    ]
    return Selection(*parts)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
