"""LSAMD: Learngene Search Across Multiple Datasets. Cold.

Every data set trains a super ancestry net: beside each frozen base block of the ancestry model a copy of its own, and a
router (DAD, eq. 1-2, `router.py`) that decides between the two. Where a data set's images do as well with the base block,
the block is common knowledge:

    g_i(t) = 1 if data set t prefers the base block of layer i, else 0          (eq. 3, over its validation images)
    G_i    = sum over the M data sets of g_i(t)
    learngene = the base blocks with G_i > tau, tau = M / 2

A descendant puts the kept blocks in their order; for more layers, adjacent kept blocks form stages that repeat a block
each in turn, the last stage first, then the middle, then the first (`stages.py`).

What a learngene's `details` hold, blocks counted from 1 as in the paper:

    kept       the kept blocks, ascending
    usage      G, one number per layer (None if the blocks were named by `keep`)
    threshold  the tau that was applied; threshold_asked the one that was meant (None where `top` or `keep` decided)
    degenerate whether the threshold asked for selected nothing; `note` then says what was done instead
    datasets   by task: paths (1 base, 0 specific, one per layer), shares (of the images that prefer the base block),
               validation_accuracy, metric ("mIoU" where that number is one, else "accuracy"), validation_images,
               training_images, lr
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

from learngene_zoo.plugin import (
    Expander,
    Extractor,
    Learngene,
    LearngeneConfig,
    Member,
    Method,
    Recipe,
    Target,
    ViTSpec,
    WrongCall,
    is_first,
)
from lgzoo_lsamd.details import fewest, kept_blocks
from lgzoo_lsamd.rates import PAPER_RATES, rates_by_task
from lgzoo_lsamd.stages import Expansion, Priority, order

if TYPE_CHECKING:
    from learngene_zoo.plugin import Ancestry, Descendant, Run, Task


log = logging.getLogger(__name__)

POLY = Recipe(schedule="poly", power=0.9)  # the paper names the schedule, not its power


@dataclass(frozen=True, kw_only=True)
class Search(Extractor):
    """Train the super ancestry net on every task, keep the base blocks most tasks choose."""

    routing: Annotated[Literal["batch", "image"], "who chooses the path: the majority of a batch, or each image"] = (
        "batch"
    )
    gate: Annotated[
        Literal["update", "stream", "both"],
        "what teaches the routers: the chosen block's update, the whole stream, or both blocks (twice the cost)",
    ] = "update"
    noise: Annotated[Literal["gaussian", "printed", "none"], "second term of the routers, see router.py"] = "gaussian"
    router_lr: Annotated[float, "peak learning rate of the routers"] = 1e-3
    balance_weight: Annotated[float, "weight of a loss that keeps the two sides in balance; 0 is the paper's"] = 0.0
    shared: Annotated[bool, "carry one set of specific blocks and routers from task to task"] = False
    threshold: Annotated[
        float | None, "keep blocks used by more tasks than this (default: half of them); comes before top"
    ] = None
    top: Annotated[int | None, "keep so many of the most used blocks (all, if there are fewer)"] = None
    keep: Annotated[
        tuple[int, ...] | None, "skip the search and keep these blocks (counted from 1); comes before all"
    ] = None
    task_lr: Annotated[tuple[str, ...], "another peak learning rate for one task, as objects=1e-4"] = ()
    training: Recipe = POLY

    def __post_init__(self) -> None:
        if self.threshold is not None and not math.isfinite(self.threshold):
            raise WrongCall(f"threshold is {self.threshold}; give a number of tasks, as 1.5")
        if self.top is not None and self.top < 1:
            raise WrongCall(f"top is {self.top}; it must be at least 1")
        if not self.router_lr > 0:
            raise WrongCall(f"router_lr is {self.router_lr}; it must be above 0")
        if not self.balance_weight >= 0:
            raise WrongCall(f"balance_weight is {self.balance_weight}; it must not be negative")
        if self.keep is not None and (not self.keep or len(set(self.keep)) < len(self.keep)):
            raise WrongCall(f"keep is {list(self.keep)}; name at least one block, and each once")
        rates_by_task(self.task_lr)

    def outline(self, ancestries: Sequence[ViTSpec]) -> LearngeneConfig:
        """`details` say which blocks (`keep`) or how many (`top`) are kept, where that is known before the search."""
        spec = ancestries[0]
        self._check(spec)
        top = self._most_used(spec)
        details = {"kept": sorted(self.keep)} if self.keep else {"top": top} if top else {}
        return LearngeneConfig(method=LSAMD.name, spec=spec, details=details)

    def __call__(self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run) -> Learngene:
        """Search on every task (each a part of the run), select, and keep the selected blocks with stem and last norm."""
        from lgzoo_lsamd.expansion import base_blocks
        from lgzoo_lsamd.search import search_all
        from lgzoo_lsamd.selection import report

        ancestry = ancestries[0]
        self._check(ancestry.spec)
        config = self.outline([ancestry.spec])
        if self.keep is None:
            found = search_all(self, ancestry, tasks, run)
            details = report(found, threshold=self.threshold, top=self._most_used(ancestry.spec))
            if details["note"] and is_first():
                log.warning("%s", details["note"])
            accuracies = {name: record["validation_accuracy"] for name, record in found.items()}
            config = replace(config, details=details, metrics={"validation_accuracy": accuracies})
        return Learngene(config=config, state=base_blocks(ancestry.state, ancestry.spec, config.details["kept"]))

    def recipe(self, task: str) -> Recipe:
        """The recipe of one task's search: `training`, with the learning rate `task_lr` names for it."""
        return replace(self.training, lr=rates_by_task(self.task_lr).get(task, self.training.lr))

    def _most_used(self, spec: ViTSpec) -> int | None:
        """How many blocks `top` keeps; None if a threshold decides."""
        return None if self.top is None or self.threshold is not None else min(self.top, spec.layers)

    def _check(self, spec: ViTSpec) -> None:
        outside = [block for block in self.keep or () if not 1 <= block <= spec.layers]
        if outside:
            raise WrongCall(f"keep names block {outside[0]}, but the ancestry model has blocks 1 to {spec.layers}")


@dataclass(frozen=True, kw_only=True)
class Expand(Expander):
    """Put the kept blocks in their order, and for more layers repeat blocks inside the stages."""

    expansion: Annotated[
        Expansion, "a stage repeats its last block (neighbor) or itself from its first block on (cyclic)"
    ] = "neighbor"
    priority: Annotated[Priority, "which stages grow first"] = "last-middle-first"

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Every depth from the number of kept blocks to 5/4 of the ancestry's (15 for 12, as in the paper's Table 2).

        Before a search the kept blocks are unknown: then every depth that could come.
        """
        most = math.ceil(1.25 * config.spec.layers)
        return [Member(spec=config.spec.with_(layers=layers)) for layers in range(fewest(config), most + 1)]

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Build it: stem, kept blocks and last norm as the ancestry has them, positions resized, a fresh head."""
        from lgzoo_lsamd.expansion import build

        kept, spec = kept_blocks(learngene.config), reachable(learngene.config.spec, target)
        sources = order(kept, spec.layers, expansion=self.expansion, priority=self.priority)
        return build(learngene, spec, sources, seed=run.seed)


def reachable(spec: ViTSpec, target: Target) -> ViTSpec:
    """The shape asked for. Raises `WrongCall` for another width or head count: LSAMD inherits whole blocks."""
    for name in ("width", "heads"):
        asked, fixed = getattr(target, name), getattr(spec, name)
        if asked not in (None, fixed):
            raise WrongCall(
                f"an LSAMD learngene inherits whole blocks, so {name} stays {fixed}, not {asked}; choose layers, classes "
                "or image size"
            )
    return target.apply(spec)


LSAMD = Method(
    name="lsamd",
    title="keep the blocks that most data sets share, repeat them by stages",
    paper="Learngene Search Across Multiple Datasets for Building Variable-Sized Models",
    expander=Expand(),
    presets={
        # Five blocks, as many as the paper finds in twelve: tau = M/2 of three small tasks keeps anything from one to ten,
        # and what follows counts on depths from 5 on. The rate was chosen on validation images: with less,
        # the routers prefer specific blocks nearly everywhere (docs/methods/lsamd.md).
        "mini": Search(top=5, training=replace(POLY, epochs=5, images=2000, batch_size=32, lr=2e-3)),
        "paper": Search(
            training=replace(POLY, epochs=50, batch_size=128, lr=1e-5),
            task_lr=tuple(f"{name}={rate:g}" for name, rate in PAPER_RATES.items()),
        ),
        "smoke": Search(training=replace(POLY, epochs=1, images=32, batch_size=16, lr=5e-4)),
    },
    tasks="many",
    uses_tasks=lambda search: not getattr(search, "keep", None),
    plot="lgzoo_lsamd.plot:picture",
)
