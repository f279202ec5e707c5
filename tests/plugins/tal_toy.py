"""A tiny extraction of TAL's kind for its tests: a source task with attributes, two others, an ancestry of width 32."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from learngene_zoo.artifacts.ancestry import Ancestry
from learngene_zoo.artifacts.shelf import Learngene
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Recipe, with_settings
from learngene_zoo.tasks.task import Attribute, Samples, Task
from learngene_zoo.testing import tiny_ancestry, tiny_task
from learngene_zoo.testing.laws import TinySplit
from lgzoo_tal.config import Curriculum, MetaStep
from lgzoo_tal.ghn3 import GHN3
from lgzoo_tal.hypernet_spec import HypernetSpec, LowRank
from lgzoo_tal.logah import LOGAH
from lgzoo_tal.tal import MetaTrain

SIZE = LowRank(hidden=16, layers=2, heads=2, rank=4, widest=64, chunk=512)
# The published hypernetworks.
VARIANTS: dict[str, HypernetSpec] = {
    f"{method.name}-{size}": method.presets[preset].hypernet.spec()  # type: ignore[attr-defined]
    for method, presets in (
        (GHN3, {"t": "t", "s": "s", "l": "l", "xl": "paper"}),
        (LOGAH, {"tiny": "tiny", "small": "paper", "base": "base", "large": "large"}),
    )
    for size, preset in presets.items()
}
RECIPE = Recipe(epochs=1, images=32, batch_size=16, lr=1e-3, augment="none", clip=5.0, label_smoothing=0.1)
ATTRIBUTES = (Attribute("hue", 3), Attribute("turn"))


class DescribedSplit(TinySplit):
    """A tiny split whose images have two attributes, one of them unknown for every second image."""

    def __getitems__(self, indices: Any) -> Any:
        truths = [[label % 3, float("nan") if index % 2 else 0.5] for index, label in enumerate(self.labels)]
        return Samples(super().__getitems__(indices), attributes=torch.tensor(truths)[list(indices)])


def source_task() -> Task:
    """A tiny task with attributes."""
    plain = tiny_task("tiny-source", classes=6)

    def opened(split: str) -> DescribedSplit:
        found = plain.split(split)
        return DescribedSplit(found.images, np.asarray(found.labels))  # type: ignore[attr-defined]

    return replace(plain, attributes=ATTRIBUTES, open_split=opened)


def tasks() -> list[Task]:
    """The source task and two others."""
    return [source_task(), tiny_task("tiny-a"), tiny_task("tiny-b", classes=4)]


def ancestry(**sizes: Any) -> Ancestry:
    """A tiny ancestry model that can be told from others by its checksum."""
    made = tiny_ancestry(**sizes)
    return replace(made, record=replace(made.record, sha256="0" * 64))


def meta_train(**changes: Any) -> MetaTrain:
    """An extractor of a few small steps; changes by field or by the name of an option."""
    small = MetaTrain(
        curriculum=Curriculum(source="tiny-source", task_layer=True, embedding_images=16),
        step=MetaStep(architectures="tal", judged=0),
        hypernet=SIZE,
        training=RECIPE,
        tuning=RECIPE,
    )
    return changed(small, changes)


def changed(extractor: Any, changes: dict[str, Any]) -> Any:
    """The extractor with other settings, by field (`hypernet`, `training`, `tuning`) or by the name of an option."""
    records = {name: value for name, value in changes.items() if name in ("hypernet", "training", "tuning")}
    options = {name: value for name, value in changes.items() if name not in records}
    return with_settings(replace(extractor, **records), options)


def extracted(run: Run | None = None, **changes: Any) -> Learngene:
    """What it leaves, with its ancestry recorded."""
    model = ancestry()
    made = meta_train(**changes)([model], tasks(), run or Run(seed=3))
    return made.with_config(ancestries=(model.record,))
