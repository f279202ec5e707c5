"""Time the building of a descendant of DeiT-B's size against loading the same model directly.

Ours starts from a learngene folder on disk (5 blocks, stem and norm; 12 layers are built from them,
with a new head) and ends with a model that owns its memory. The direct way is timm.create_model +
safetensors load_file + load_state_dict of the same 12 layers. Both files are in the page cache. The
target is a ratio of at most 0.20. One thread, about a minute, 2 GB of memory.
"""

from __future__ import annotations

import tempfile
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import timm
import torch
from safetensors.torch import load_file

from learngene_zoo.artifacts.descendant import assemble
from learngene_zoo.artifacts.learngene import Learngene, load_learngene
from learngene_zoo.artifacts.records import LearngeneConfig
from learngene_zoo.families.tensors import initialise, remove_head, take_blocks
from learngene_zoo.families.vit.names import ARCHITECTURE, ARCHITECTURES
from learngene_zoo.runs.run import Run
from learngene_zoo.storage import WEIGHTS
from timings.case import Case, Row, measure_medians

SPEC = ARCHITECTURES["deit_base_patch16_224"]
KEPT = 5
SOURCES = [0, 0, 0, 1, 2, 2, 2, 3, 4, 4, 4, 4]
REPEATS = 7


def measure(args: Namespace) -> Iterator[tuple[Row, str]]:
    """Time both ways, which must give the same tensors."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        learngene, plain = prepare_files(Path(folder))

        def build_ours() -> torch.nn.Module:
            parts = take_blocks(load_learngene(learngene).state, SPEC, SOURCES)
            return assemble(SPEC, parts, seed=Run().seed).model()

        def build_plain() -> torch.nn.Module:
            model = timm.create_model(ARCHITECTURE)
            model.load_state_dict(load_file(plain))
            return model.eval()

        assert all(
            torch.equal(a, b)
            for a, b in zip(build_ours().state_dict().values(), build_plain().state_dict().values())
        )
        seconds = measure_medians({"ours_s": build_ours, "plain_s": build_plain}, REPEATS)
    row = {**seconds, "ratio": seconds["ours_s"] / seconds["plain_s"]}
    yield (
        row,
        f"descendant from a learngene folder   {1e3 * row['ours_s']:7.1f} ms\n"
        f"create_model + load_file + load      {1e3 * row['plain_s']:7.1f} ms\n"
        f"ratio                                {row['ratio']:7.3f}   (target: at most 0.20)",
    )


def prepare_files(folder: Path) -> tuple[Path, Path]:
    """Write the learngene and the file with all 12 layers of the descendant that comes from it."""
    blocks = remove_head(initialise(SPEC.with_(layers=KEPT), 0), SPEC)
    config = LearngeneConfig(method="lsamd", spec=SPEC, details={"kept": [1, 4, 5, 7, 8]})
    learngene = Learngene(config=config, state=blocks).save(folder / "learngene")
    plain = assemble(SPEC, take_blocks(blocks, SPEC, SOURCES), seed=Run().seed).save(
        folder / "whole"
    )
    return learngene, plain / WEIGHTS


CASE = Case(measure=measure, summarise=lambda rows, args: {**rows[0], "threads": 1})
