"""Time until a DeiT-B-sized descendant is ready, against building and loading the same model
directly.

    python benchmarks/build_descendant.py          one thread, about a minute, 2 GB of memory

Ours starts from a learngene folder on disk (5 blocks, stem and norm; 12 layers are built from them,
with a new head) and ends with a model that owns its memory. The direct way is timm.create_model +
safetensors load_file + load_state_dict of the same 12 layers. Both files are in the page cache.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import timm
import torch
from safetensors.torch import load_file

from learngene_zoo.artifacts.descendant import assemble
from learngene_zoo.artifacts.learngene import Learngene, load_learngene
from learngene_zoo.artifacts.records import LearngeneConfig
from learngene_zoo.families.tensors import initial, take_blocks, without_head
from learngene_zoo.families.vit.names import ARCHITECTURE, ARCHITECTURES
from learngene_zoo.runs.run import Run
from learngene_zoo.storage import WEIGHTS
from machine import medians, write

SPEC = ARCHITECTURES["deit_base_patch16_224"]
KEPT = 5
SOURCES = [0, 0, 0, 1, 2, 2, 2, 3, 4, 4, 4, 4]
REPEATS = 7


def main() -> None:
    """Measure both, print the medians and their ratio, and keep them."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        learngene, plain = _prepare(Path(place))

        def ours() -> torch.nn.Module:
            parts = take_blocks(load_learngene(learngene).state, SPEC, SOURCES)
            return assemble(SPEC, parts, seed=Run().seed).model()

        def theirs() -> torch.nn.Module:
            model = timm.create_model(ARCHITECTURE)
            model.load_state_dict(load_file(plain))
            return model.eval()

        assert all(
            torch.equal(a, b)
            for a, b in zip(ours().state_dict().values(), theirs().state_dict().values())
        )
        built, loaded = medians([ours, theirs], REPEATS)
    print(f"descendant from a learngene folder   {1e3 * built:7.1f} ms")
    print(f"create_model + load_file + load      {1e3 * loaded:7.1f} ms")
    print(f"ratio                                {built / loaded:7.3f}   (target: at most 0.20)")
    print(
        write(
            "build_descendant",
            {"ours_s": built, "plain_s": loaded, "ratio": built / loaded, "threads": 1},
        )
    )


def _prepare(place: Path) -> tuple[Path, Path]:
    """The learngene's folder, and the file with all 12 layers of the descendant that
    comes from it.
    """
    blocks = without_head(initial(SPEC.with_(layers=KEPT), 0), SPEC)
    config = LearngeneConfig(method="lsamd", spec=SPEC, details={"kept": [1, 4, 5, 7, 8]})
    learngene = Learngene(config=config, state=blocks).save(place / "learngene")
    whole = assemble(SPEC, take_blocks(blocks, SPEC, SOURCES), seed=Run().seed).save(
        place / "whole"
    )
    return learngene, whole / WEIGHTS


if __name__ == "__main__":
    main()
