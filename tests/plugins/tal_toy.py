"""A tiny extraction of TAL for its tests: a source task with attributes, two other tasks, an
ancestry model of width 32.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from learngene_zoo.artifacts.learngene import Learngene
from learngene_zoo.pretrained.ancestry import Ancestry
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Recipe, with_settings
from learngene_zoo.tasks.task import Attribute, Samples, Task
from learngene_zoo.testing import make_tiny_ancestry, make_tiny_task
from learngene_zoo.testing.laws import TinySplit
from lgzoo_tal.config import Curriculum, MetaStep
from lgzoo_tal.ghn3 import GHN3
from lgzoo_tal.hypernet_spec import HypernetSpec, LowRank
from lgzoo_tal.logah import LOGAH
from lgzoo_tal.tal import TalExtractor

SIZE = LowRank(hidden=16, layers=2, heads=2, rank=4, widest=64, chunk=512)
_PRESETS: Any = {method.name: method.presets for method in (GHN3, LOGAH)}
# The published hypernetworks.
VARIANTS: dict[str, HypernetSpec] = {
    f"{method.name}-{size}": _PRESETS[method.name][preset].hypernet.build_spec()
    for method, presets in (
        (GHN3, {"t": "t", "s": "s", "l": "l", "xl": "paper"}),
        (LOGAH, {"tiny": "tiny", "small": "paper", "base": "base", "large": "large"}),
    )
    for size, preset in presets.items()
}
RECIPE = Recipe(
    epochs=1, images=32, batch_size=16, lr=1e-3, augment="none", clip=5.0, label_smoothing=0.1
)
ATTRIBUTES = (Attribute("hue", 3), Attribute("turn"))


class DescribedSplit(TinySplit):
    """A tiny split whose images have two attributes, one of them unknown for every second image."""

    def __getitems__(self, indices: Any) -> Any:
        truths = [
            [label % 3, float("nan") if index % 2 else 0.5]
            for index, label in enumerate(self.labels)
        ]
        return Samples(
            super().__getitems__(indices), attributes=torch.tensor(truths)[list(indices)]
        )


def build_source_task() -> Task:
    """Build a tiny task with attributes."""
    plain = make_tiny_task("tiny-source", classes=6)

    def open_described(split: str) -> DescribedSplit:
        tiny_split = plain.split(split)
        assert isinstance(tiny_split, TinySplit)
        return DescribedSplit(tiny_split.images, np.asarray(tiny_split.labels))

    return replace(plain, attributes=ATTRIBUTES, open_split=open_described)


def build_tasks() -> list[Task]:
    """Build the source task and two others."""
    return [build_source_task(), make_tiny_task("tiny-a"), make_tiny_task("tiny-b", classes=4)]


def build_ancestry(**sizes: Any) -> Ancestry:
    """Build a tiny ancestry model that its checksum tells from others."""
    model = make_tiny_ancestry(**sizes)
    return replace(model, record=replace(model.record, sha256="0" * 64))


def build_extractor(**changes: Any) -> TalExtractor:
    """Build an extractor of a few small steps; changes by field or by the name of an option."""
    small = TalExtractor(
        curriculum=Curriculum(source="tiny-source", task_layer=True, embedding_images=16),
        step=MetaStep(architectures="tal", judged=0),
        hypernet=SIZE,
        training=RECIPE,
        tuning=RECIPE,
    )
    return change_settings(small, changes)


def change_settings(extractor: Any, changes: dict[str, Any]) -> Any:
    """Return the extractor with other settings, by field or by the name of an option.

    The fields are `hypernet`, `training` and `tuning`.
    """
    records = {
        name: value for name, value in changes.items() if name in ("hypernet", "training", "tuning")
    }
    options = {name: value for name, value in changes.items() if name not in records}
    return with_settings(replace(extractor, **records), options)


def extract_learngene(run: Run | None = None, **changes: Any) -> Learngene:
    """Extract a learngene, with its ancestry recorded."""
    model = build_ancestry()
    learngene = build_extractor(**changes)([model], build_tasks(), run or Run(seed=3))
    return learngene.with_config(method="tal", ancestries=(model.record,))
