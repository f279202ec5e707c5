"""LSAMD: Learngene Search Across Multiple Datasets.

Shi, Zhou, Liu, Yang, Wang and Geng, Learngene Search Across Multiple Datasets for Building
Variable-Sized Models, arXiv 2605.08209, 2026. A super Ans-Net is trained on every data set: each
layer has the frozen base block of the ancestry model, a dataset-specific block that is initialised
as a copy, and a router that selects one of the two (dataset adapter, DAD, eq. 1-2,
`modules/supernet.py`). Base blocks that most data sets use are the learngene:

    g_i(t) = 1 if data set t prefers the base block of layer i, else 0  (eq. 3, validation images)
    G_i    = sum of g_i(t) over the M data sets
    learngene = the base blocks with G_i > tau, tau = M / 2

A descendant has the kept blocks in their order. Runs of adjacent kept blocks form stages. For more
layers the stages take turns in repeating a block: the last stage, then the middle, then the first
(`LsamdExpander` in `blocks.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Self

from learngene_zoo.plugin import (
    FLAT,
    Bounds,
    Extractor,
    Finetuning,
    Learngene,
    LearngeneConfig,
    Method,
    Part,
    TextSpec,
    Work,
    WrongCall,
    adapt_rates,
    compute_once,
    derive_seed,
    from_json,
    is_first,
    name_option,
    print_note,
    to_json,
)
from lgzoo_lsamd.blocks import (
    LsamdDetails,
    LsamdExpander,
    SearchResult,
    collect_metrics,
    count_usage,
    encode_details,
    list_unused,
    read_kept_blocks,
    select_base_blocks,
    select_blocks,
)
from lgzoo_lsamd.settings import (
    PAPER,
    PAPER_DESCENDANT_RATES,
    PAPER_RATES,
    POLY,
    SearchSettings,
    check_rates,
    parse_rates,
)

if TYPE_CHECKING:
    from learngene_zoo.plugin import Ancestry, Json, Run, Spec, StateDict, Task


@dataclass(frozen=True, kw_only=True)
class LsamdExtractor(Extractor):
    """Train the super Ans-Net on every task, keep the base blocks that most tasks prefer."""

    threshold: Annotated[
        float | None,
        "tau: keep the blocks used by more than this number of tasks (default: "
        "half of them); overrides top",
    ] = None
    top: Annotated[int | None, "keep the N blocks used by the most tasks", Bounds(least=1)] = None
    keep: Annotated[
        tuple[int, ...] | None,
        "skip the search and keep these blocks, counted from 1; overrides both",
        Bounds(least=1),
    ] = None
    task_lr: Annotated[
        tuple[str, ...], "peak learning rate of the search on one task, e.g. objects=1e-4"
    ] = ()
    each: SearchSettings = field(default=SearchSettings(), metadata=FLAT)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep is not None and (not self.keep or len(set(self.keep)) < len(self.keep)):
            raise WrongCall(f"keep is {list(self.keep)}; name at least one block, and each once")
        parse_rates(self.task_lr)

    def adapt(self, ancestries: Sequence[Spec]) -> Self:
        """Return the settings with learning rates for the width of the ancestry model."""
        return adapt_rates(self, ancestries, pretrained_rates=["lr"])

    def needs_tasks(self) -> bool:
        """Return whether the blocks are searched for and not named."""
        return self.keep is None

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """Return the config before a search.

        Its `details` have the kept blocks (`keep`) or their number (`top`), if either is known.
        """
        spec = ancestries[0]
        outside = [block for block in self.keep or () if block > spec.layers]
        if outside:
            raise WrongCall(
                f"keep names block {outside[0]}, but the ancestry model has blocks "
                f"1 to {spec.layers}"
            )
        if self.keep:
            return LearngeneConfig(spec=spec, details={"kept": sorted(self.keep)})
        top = self.limit_top(spec)
        return LearngeneConfig(spec=spec, details={} if top is None else {"top": top})

    def work(self, ancestries: Sequence[Spec], images: Sequence[int]) -> list[Work]:
        """Estimate the searches: each trains one block per layer, or two with the gate "both"."""
        recipe = self.each.training
        layers = ancestries[0].layers * (2 if self.each.gate == "both" else 1)
        return [
            Work(images=min(recipe.images or count, count) * recipe.epochs, trained=layers)
            for count in images
        ]

    def __call__(
        self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run
    ) -> Learngene:
        """Search on every task, each a part of the run; keep the selected base blocks."""
        ancestry = ancestries[0]
        config = self.outline([ancestry.spec])
        if self.keep is None:
            results = self._search_tasks(ancestry, tasks, run)
            G = count_usage(results)
            top = self.limit_top(ancestry.spec)
            details = select_blocks(
                G, len(results), threshold=self.threshold, top=top, seed=run.seed
            )  # G_i > tau
            warn_of_selection(details)
            config = replace(
                config,
                details=encode_details(replace(details, datasets=results)),
                metrics=collect_metrics(results, tasks, self.each.training),
            )
        state = select_base_blocks(ancestry.state, ancestry.spec, read_kept_blocks(config))
        return Learngene(config=config, state=state)

    def _search_tasks(
        self, ancestry: Ancestry, tasks: Sequence[Task], run: Run
    ) -> dict[str, SearchResult]:
        """Search on each task.

        With `shared` each search continues with the specific blocks of the one before.
        """
        if not tasks:
            raise WrongCall(
                f"LSAMD searches on tasks; name at least one with {name_option('tasks')}, or the "
                f"blocks with {name_option('keep')}"
            )
        check_rates(self.task_lr, [task.name for task in tasks])
        if len(tasks) == 1:
            print_note(
                "lsamd keeps the blocks that several tasks use; one task alone ranks them by its "
                f"own search (name more with {name_option('tasks')})",
                "lsamd with one task",
            )
        results: dict[str, SearchResult] = {}
        carried: Part | None = None
        for task in tasks:
            part = compute_once(
                run.part(f"search/{task.name}"),
                "lsamd.search",
                search,
                self.derive_settings(task),
                [ancestry, task, carried],
            )
            results[task.name] = from_json(SearchResult, part.record, f"search on {task.name}")
            carried = part if self.each.shared else None
        return results

    def derive_settings(self, task: Task) -> SearchSettings:
        """Return the settings of one task's search: `each`, with its learning rate in `task_lr`."""
        rate = parse_rates(self.task_lr).get(task.name, self.each.training.lr)
        return replace(self.each, training=replace(self.each.training, lr=rate))

    def limit_top(self, spec: Spec) -> int | None:
        """Return how many blocks `top` keeps; None if a threshold decides."""
        if self.top is None or self.threshold is not None:
            return None
        return min(self.top, spec.layers)


def warn_of_selection(details: LsamdDetails) -> None:
    """Log a selection that did not follow eq. 3, and kept blocks that no task prefers."""
    import logging

    log = logging.getLogger(__name__)
    if details.note and is_first():
        log.warning("%s", details.note)
    unused = list_unused(details)
    if unused and is_first():
        log.warning(
            "no task prefers the base block of layer %s, which is kept to reach %d blocks; "
            "search on more tasks, or keep fewer blocks",
            ", ".join(map(str, unused)),
            len(details.kept),
        )


def search(
    settings: SearchSettings, ancestry: Ancestry, task: Task, carried: Part | None, run: Run
) -> tuple[StateDict, Json]:
    """Train the super net on one data set, then measure which blocks its images prefer.

    Args:
        settings: of this search.
        ancestry: whose base blocks stay frozen.
        task: the data set.
        carried: the search whose specific blocks and routers this one continues with (`shared`);
            by default each starts from the ancestry model, so that the order of the searches does
            not matter.
        run: how to compute.

    Returns:
        The specific blocks and routers (with `shared`, else nothing), and a `SearchResult` as JSON.
    """
    from learngene_zoo.plugin import load_training_images, make_objective, train
    from lgzoo_lsamd.modules import supernet

    recipe = settings.training
    choices = {
        "routing": settings.routing,
        "gate": settings.gate,
        "noise": settings.noise,
        "router_token": settings.router_token,
    }
    start = supernet.attach_head(ancestry, task, run)
    model = supernet.build_super_net(
        start,
        text=ancestry.spec if isinstance(ancestry.spec, TextSpec) else None,
        specific=carried.state if carried else {},
        **choices,
    )
    task_objective = make_objective(task, model, recipe, derive_seed(run.seed, "attributes"))
    objective = supernet.SearchObjective(task_objective, settings.balance_weight)
    loader = load_training_images(task, ancestry.input_format, recipe, run)
    supernet.check_pieces(loader, recipe)
    groups = partial(supernet.group_parameters, router_lr=settings.router_lr)
    for _ in train(objective, loader, recipe, run, groups=groups, unused=True, label="super net"):
        pass
    result = supernet.measure_preferences(
        model, task, ancestry.input_format, run, tie=settings.tie
    )  # eq. 3
    result = replace(result, training_images=loader.images, lr=recipe.lr)
    return (supernet.collect_specific(model) if settings.shared else {}), to_json(result)


LSAMD = Method(
    name="lsamd",
    title="the blocks that most data sets use unchanged; descendants repeat them in stages",
    paper=(
        "Shi, Zhou, Liu, Yang, Wang, Geng. Learngene Search Across Multiple "
        "Datasets for Building Variable-Sized Models (LSAMD). arXiv 2605.08209, 2026"
    ),
    expander=LsamdExpander(),
    presets={
        # Five blocks, as many as the paper finds in twelve: tau = M/2 of three small tasks keeps
        # anything from one to ten, and the bundled example expects depths from 5 on. The rate was
        # chosen on validation images: with a lower one the routers prefer specific blocks nearly
        # everywhere, and with augmentation so short a search finds nothing (docs/results/lsamd.md).
        "mini": LsamdExtractor(
            top=5,
            each=SearchSettings(
                training=replace(
                    POLY, epochs=5, images=2000, batch_size=32, lr=2e-3, augment="none"
                )
            ),
        ),
        "paper": LsamdExtractor(
            task_lr=tuple(f"{name}={rate:g}" for name, rate in PAPER_RATES.items()),
            each=SearchSettings(training=PAPER),
        ),
        "smoke": LsamdExtractor(
            each=SearchSettings(training=replace(POLY, epochs=1, images=32, batch_size=16, lr=5e-4))
        ),
    },
    families=("vit", "eva", "gpt2", "bert"),
    tasks="many",
    details=LsamdDetails,
    plot="lgzoo_lsamd.plot:draw_picture",
    finetuning={"paper": Finetuning(recipe=PAPER, task_lr=PAPER_DESCENDANT_RATES)},
)
