"""LSAMD: Learngene Search Across Multiple Datasets.

On every data set a super ancestry net is trained: beside each frozen base block of the ancestry model it has a specific block,
which starts as a copy, and a router that chooses between the two (DAD, eq. 1-2, `supernet.py`). Where a data set's images do as
well with the base block, that block is common knowledge:

    g_i(t) = 1 if data set t prefers the base block of layer i, else 0          (eq. 3, over its validation images)
    G_i    = sum of g_i(t) over the M data sets
    learngene = the base blocks with G_i > tau, tau = M / 2

A descendant has the kept blocks in their order. For more layers, runs of adjacent kept blocks form stages, which take turns in
repeating a block: the last stage first, then the middle, then the first (`Expand` in `blocks.py`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from learngene_zoo.plugin import (
    FLAT,
    YOUNG,
    Bounds,
    Extractor,
    Finetuning,
    Learngene,
    LearngeneConfig,
    Method,
    Part,
    Recipe,
    Work,
    WrongCall,
    check_bounds,
    derive_seed,
    from_json,
    is_first,
    once,
    to_json,
    unknown,
)
from lgzoo_lsamd.blocks import (
    Details,
    Expand,
    Found,
    base_blocks,
    kept_blocks,
    select,
    unused,
    usage,
)

if TYPE_CHECKING:
    from learngene_zoo.plugin import Ancestry, Json, Run, Spec, StateDict, Task

log = logging.getLogger(__name__)
POLY = Recipe(schedule="poly", power=0.9)  # the paper names the schedule, not its power

# Table 5 of the paper: the learning rates of each data set's search (Ans-Net) and of its descendants' training (Des-Net). The tasks are
# those of the suite lsamd12.
PAPER_RATES = {
    "cifar100": 5e-4, "cifar10": 1e-6, "tiny-imagenet": 1e-5, "inat2019": 1e-5, "food101": 1e-5, "cars": 5e-4,
    "flowers102": 5e-4, "pets": 1e-5, "dtd": 1e-4, "caltech101": 1e-5, "ade20k": 1e-5, "voc2012": 1e-5,
}  # fmt: skip
PAPER_DESCENDANT_RATES = {
    "cifar100": 5e-4, "cifar10": 5e-4, "tiny-imagenet": 5e-4, "inat2019": 5e-5, "food101": 1e-5, "cars": 1e-5,
    "flowers102": 1e-4, "pets": 1e-4, "dtd": 1e-5, "caltech101": 1e-5, "ade20k": 1e-5, "voc2012": 1e-5,
}  # fmt: skip
PAPER = replace(POLY, epochs=50, batch_size=128, lr=1e-5)  # of both trainings


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """How the search on one data set is done: all that it depends on beside the ancestry model, the task and the seed."""

    routing: Annotated[Literal["batch", "image"], "who chooses the path: the majority of a batch, or each image"] = (
        "batch"
    )
    gate: Annotated[
        Literal["update", "stream", "both"],
        "what the routers learn from: the chosen block's update, its whole output, or both blocks (twice the cost)",
    ] = "update"
    noise: Annotated[
        Literal["gaussian", "printed", "none"],
        "the routers' second term: eps * softplus(x W2), the paper's printed softplus(x W2), or none",
    ] = "gaussian"
    router_lr: Annotated[float, "peak learning rate of the routers", Bounds(above=0)] = 1e-3
    balance_weight: Annotated[
        float, "weight of a loss that balances the use of base and specific blocks; 0 in the paper", Bounds(least=0)
    ] = 0.0
    shared: Annotated[bool, "carry one set of specific blocks and routers from task to task"] = False
    router_token: Annotated[
        Literal["class", "patches", "constant"],
        "what the routers see of an image: its class token, the mean of its patch tokens, or nothing (a placebo)",
    ] = field(default="class", metadata=YOUNG)
    tie: Annotated[
        Literal["base", "random"],
        "what an undecided router counts for in eq. 3: the base block (its >=), or what the seed draws",
    ] = field(default="base", metadata=YOUNG)
    training: Recipe = POLY

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, kw_only=True)
class Search(Extractor):
    """Train the super ancestry net on every task, keep the base blocks that most tasks prefer."""

    threshold: Annotated[
        float | None, "keep the blocks that more than this many tasks prefer (default: half of them); overrides top"
    ] = None
    top: Annotated[int | None, "keep the N most preferred blocks", Bounds(least=1)] = None
    keep: Annotated[
        tuple[int, ...] | None, "skip the search and keep these blocks, counted from 1; overrides both", Bounds(least=1)
    ] = None
    task_lr: Annotated[tuple[str, ...], "peak learning rate of one task's search, as objects=1e-4"] = ()
    each: SearchSettings = field(default=SearchSettings(), metadata=FLAT)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep is not None and (not self.keep or len(set(self.keep)) < len(self.keep)):
            raise WrongCall(f"keep is {list(self.keep)}; name at least one block, and each once")
        rates_by_task(self.task_lr)

    def needs_tasks(self) -> bool:
        """Not where the blocks are named."""
        return self.keep is None

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """`details` say which blocks (`keep`) or how many (`top`) are kept, where that is known before the search."""
        spec = ancestries[0]
        outside = [block for block in self.keep or () if block > spec.layers]
        if outside:
            raise WrongCall(f"keep names block {outside[0]}, but the ancestry model has blocks 1 to {spec.layers}")
        details = Details(kept=tuple(sorted(self.keep))) if self.keep else Details(top=self.top_of(spec))
        return LearngeneConfig(method=LSAMD.name, spec=spec, details=details.json())

    def work(self, ancestries: Sequence[Spec], images: Sequence[int]) -> list[Work]:
        """Each search trains one block per layer, or both with the gate "both"."""
        recipe, layers = self.each.training, ancestries[0].layers * (2 if self.each.gate == "both" else 1)
        return [Work(images=min(recipe.images or count, count) * recipe.epochs, trained=layers) for count in images]

    def __call__(self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run) -> Learngene:
        """Search on every task, each a part of the run; keep the selected blocks with stem and final norm."""
        ancestry = ancestries[0]
        config = self.outline([ancestry.spec])
        if self.keep is None:
            found = self._searches(ancestry, tasks, run)
            G = usage(found)
            top = self.top_of(ancestry.spec)
            chosen = select(G, len(found), threshold=self.threshold, top=top, seed=run.seed)  # G_i > tau
            if chosen.note and is_first():
                log.warning("%s", chosen.note)
            idle = unused(chosen)
            if idle and is_first():
                log.warning(
                    "no task prefers the base block of layer %s, which is kept to reach %d blocks; search on more tasks, or "
                    "keep fewer with --top",
                    ", ".join(map(str, idle)),
                    len(chosen.kept),
                )
            accuracies = {name: one.validation_accuracy for name, one in found.items()}
            details = replace(chosen, datasets=found).json()
            config = replace(config, details=details, metrics={"validation_accuracy": accuracies})
        return Learngene(config=config, state=base_blocks(ancestry.state, ancestry.spec, kept_blocks(config)))

    def _searches(self, ancestry: Ancestry, tasks: Sequence[Task], run: Run) -> dict[str, Found]:
        """What the search on each task found. With `shared` each continues with the specific blocks of the one before."""
        if not tasks:
            raise WrongCall("LSAMD searches on tasks; name at least one with --task, or the blocks with --keep")
        check_rates(self.task_lr, [task.name for task in tasks])
        found: dict[str, Found] = {}
        carried: Part | None = None
        for task in tasks:
            part = once(
                run.part(f"search/{task.name}"), "lsamd.search", search, self.on(task), [ancestry, task, carried]
            )
            found[task.name] = from_json(Found, part.record, f"search on {task.name}")
            carried = part if self.each.shared else None
        return found

    def on(self, task: Task) -> SearchSettings:
        """The settings of one task's search: `each`, with the learning rate that `task_lr` names for it."""
        rate = rates_by_task(self.task_lr).get(task.name, self.each.training.lr)
        return replace(self.each, training=replace(self.each.training, lr=rate))

    def top_of(self, spec: Spec) -> int | None:
        """How many blocks `top` keeps; None if a threshold decides."""
        return None if self.top is None or self.threshold is not None else min(self.top, spec.layers)


def search(
    settings: SearchSettings, ancestry: Ancestry, task: Task, carried: Part | None, run: Run
) -> tuple[StateDict, Json]:
    """Train the super net on one data set, then measure which blocks its validation images prefer.

    carried: the search whose specific blocks and routers this one continues with (`shared`); by default each starts from the
    ancestry model, whose base blocks stay frozen, so that the order of the searches does not matter. Returns the specific
    blocks and routers (with `shared`, else nothing), and a `Found` as JSON.
    """
    from learngene_zoo.plugin import objective_for, train, training_images
    from lgzoo_lsamd import supernet

    recipe = settings.training
    choices = {
        "routing": settings.routing,
        "gate": settings.gate,
        "noise": settings.noise,
        "router_token": settings.router_token,
    }
    start = supernet.with_head(ancestry, task, run)
    model = supernet.super_net(start, **choices, specific=carried.state if carried else {})
    task_objective = objective_for(task, model, recipe, derive_seed(run.seed, "attributes"))
    objective = supernet.SearchObjective(task_objective, settings.balance_weight)
    loader = training_images(task, ancestry.input_format, recipe, run)
    supernet.check_pieces(loader, recipe)
    groups = partial(supernet.groups_with_routers, router_lr=settings.router_lr)
    for _ in train(objective, loader, recipe, run, groups=groups, unused=True, label="super net"):
        pass
    found = supernet.preferences(model, task, ancestry.input_format, run, tie=settings.tie)  # eq. 3
    found = replace(found, training_images=loader.images, lr=recipe.lr)
    return (supernet.specific_set(model) if settings.shared else {}), to_json(found)


def rates_by_task(texts: Sequence[str]) -> dict[str, float]:
    """`("objects=1e-4",)` as `{"objects": 1e-4}`. Raises `WrongCall`."""
    rates = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        try:
            rates[name] = float(number)
        except ValueError:
            rates[name] = math.nan
        if not name or not 0 < rates[name] < math.inf:
            raise WrongCall(f"task_lr is {text!r}; expected a task's name and a rate above 0, as objects=1e-4")
    return rates


def check_rates(texts: Sequence[str], tasks: Iterable[str]) -> None:
    """Raises `WrongCall` for a task that is neither searched nor in the paper's table: most likely a misspelling."""
    known = {*tasks, *PAPER_RATES}
    for name in rates_by_task(texts):
        if name not in known:
            raise unknown("task to set a learning rate for", name, known)


LSAMD = Method(
    name="lsamd",
    title="keep the blocks that most data sets share, repeat them by stages",
    paper="Learngene Search Across Multiple Datasets for Building Variable-Sized Models",
    expander=Expand(),
    presets={
        # Five blocks, as many as the paper finds in twelve: tau = M/2 of three small tasks keeps anything from one to ten,
        # and what follows counts on depths from 5 on. The rate was chosen on validation images: with a lower one
        # the routers prefer specific blocks nearly everywhere, and with augmentation so short a search finds nothing
        # (docs/methods/lsamd.md).
        "mini": Search(
            top=5,
            each=SearchSettings(training=replace(POLY, epochs=5, images=2000, batch_size=32, lr=2e-3, augment="none")),
        ),
        "paper": Search(
            task_lr=tuple(f"{name}={rate:g}" for name, rate in PAPER_RATES.items()),
            each=SearchSettings(training=PAPER),
        ),
        "smoke": Search(each=SearchSettings(training=replace(POLY, epochs=1, images=32, batch_size=16, lr=5e-4))),
    },
    families=("vit", "eva"),
    tasks="many",
    details=Details,
    plot="lgzoo_lsamd.plot:picture",
    finetuning={"paper": Finetuning(recipe=PAPER, task_lr=PAPER_DESCENDANT_RATES)},
)
