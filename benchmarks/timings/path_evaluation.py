"""The cost of evaluating every path of a pool in one pass, against evaluating each of them by
itself.

    python benchmarks/path_evaluation.py          one thread, about a minute

Both use the same images of the source task and a pool of 6 + 6 blocks of the bundled ancestry's
shape, with equal results. By itself, every path reads the images again and runs the narrow model's
blocks again; in one pass only the wide model's blocks run for each path. `network` is the network's
part alone, on images in memory.
"""

from __future__ import annotations

import torch
from torch import nn

from learngene_zoo.families.tensors import initial
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.runs.run import Run
from learngene_zoo.tasks.catalogue import SOURCE_TASK, open_task
from learngene_zoo.training.evaluate import Evaluation, evaluate
from lgzoo_pool.details import StitchedDetails
from lgzoo_pool.modules.network import (
    StitchedNetwork,
    build_forward_each,
    build_network,
    draw_stitches,
    evaluate_paths,
    merge_anchors,
)
from lgzoo_pool.paths import Path
from machine import medians, write

IMAGES, REPEATS = 128, 1
SIZES = ((32, 1), (96, 3))


class Alone(nn.Module):
    """One path as a model of its own."""

    def __init__(self, network: StitchedNetwork, path: Path) -> None:
        super().__init__()
        self.network, self.path = network, path

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """Its logits."""
        logits: torch.Tensor = self.network(images_BCHW, self.path)
        return logits


def main() -> None:
    """Measure both, print the medians and their ratios, and keep them."""
    torch.set_num_threads(1)
    task, run = open_task(SOURCE_TASK), Run(threads=1)
    sizes = [{"width": width, "heads": heads} for width, heads in SIZES]
    specs = [
        ViTSpec(layers=6, classes=task.classes, image_size=32, patch_size=8, **one) for one in sizes
    ]
    layout = StitchedDetails.from_specs(specs).layout
    states = merge_anchors([initial(spec, seed) for seed, spec in enumerate(specs)])
    network = build_network(specs, layout, {**states, **draw_stitches(specs, layout, 0)})
    pixels = torch.randn(IMAGES, 3, 32, 32, generator=torch.Generator().manual_seed(0))

    def together() -> tuple[Evaluation, ...]:
        return evaluate_paths(
            network, layout.paths, task, "validation", task.input_format, run, images=IMAGES
        )

    def apart() -> tuple[Evaluation, ...]:
        models = [Alone(network, path) for path in layout.paths]
        return tuple(
            evaluate(model, task, "validation", task.input_format, run, images=IMAGES)
            for model in models
        )

    def network_together() -> list[torch.Tensor]:
        with torch.no_grad():
            return list(
                build_forward_each(network, sorted(layout.paths, key=lambda path: path.parts))(
                    pixels
                )
            )

    def network_apart() -> list[torch.Tensor]:
        with torch.no_grad():
            return [network(pixels, path) for path in layout.paths]

    assert together() == apart()
    whole, each, network_whole, network_each = medians(
        [together, apart, network_together, network_apart], REPEATS
    )
    found = {"together_s": whole, "apart_s": each, "ratio": whole / each}
    inner = {
        "together_s": network_whole,
        "apart_s": network_each,
        "ratio": network_whole / network_each,
    }
    for name, row in (("all", found), ("network", inner)):
        print(
            f"{name:8} {len(layout.paths)} paths, {IMAGES} images   one pass"
            f" {1e3 * row['together_s']:8.1f} ms   ",
            end="",
        )
        print(f"each by itself {1e3 * row['apart_s']:8.1f} ms   ratio {row['ratio']:.3f}")
    settings = {"paths": len(layout.paths), "images": IMAGES, "threads": 1}
    print(write("path_evaluation", {**found, "network": inner, **settings}))


if __name__ == "__main__":
    main()
