"""Select the kept blocks from the results of the searches, and repeat them in stages.

Selection (LSAMD eq. 3): `g_i(t)` is 1 if data set `t` prefers the frozen base block of layer `i`,
`G_i` is their sum over the `M` data sets, and the learngene is every block with `G_i > tau`. The
paper sets tau to M / 2, and then to 6, "half the total number of 10 datasets", of which it has 12;
here tau is M / 2, and the comparison is strict.

Expansion: a stage is a maximal run of adjacent kept blocks; (1, 4, 5, 7, 8) has the stages (1),
(4, 5) and (7, 8). A descendant with more layers than kept blocks repeats blocks inside the stages,
one layer at a time, the stages taking turns. The paper prints the orders for 6 and 7 layers only.
Taking turns beyond that is this package's reading; the other candidate, all additions into one
stage, contradicts the printed order of 7 layers.

Blocks are counted from 1, as we read the paper. A learngene's tensors keep their names in the
ancestry model, whose blocks are counted from 0: of a timm model and the kept blocks 1, 4 and 5 it
has `blocks.0.*`, `blocks.3.*` and `blocks.4.*`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Literal

from learngene_zoo.plugin import (
    OMIT_DEFAULT,
    BadFile,
    Expander,
    Member,
    WrongCall,
    derive_seed,
    get_table,
    name_option,
    parse_details,
    to_json,
)

if TYPE_CHECKING:
    from learngene_zoo.plugin import (
        Descendant,
        Json,
        Learngene,
        LearngeneConfig,
        Recipe,
        Run,
        Spec,
        StateDict,
        Target,
        Task,
    )

Stage = tuple[int, ...]
Expansion = Literal["neighbor", "cyclic"]
Priority = Literal[
    "last-middle-first",
    "last-first-middle",
    "middle-last-first",
    "middle-first-last",
    "first-last-middle",
    "first-middle-last",
]


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """The result of the search on one data set."""

    paths: tuple[int, ...]  # g, one number per layer: 1 if the base block is preferred, else 0
    shares: tuple[float, ...]  # per layer, of the validation images that prefer the base block
    validation_accuracy: float  # of the super net
    metric: str = "accuracy"  # or "mIoU", of a segmentation task
    validation_images: int = 0
    training_images: int = 0
    lr: float = 0.0


@dataclass(frozen=True, kw_only=True)
class LsamdDetails:
    """The `details` of a learngene. Before a search they hold `kept`, `top` or nothing."""

    kept: tuple[int, ...] = ()  # ascending
    top: int | None = None  # how many blocks a search will keep
    usage: tuple[int, ...] = ()  # G, one number per layer
    # The tau that was applied; None if `top` or `keep` decided, or no tau selects any.
    threshold: float | None = None
    threshold_asked: float | None = None  # the tau that was given, or M / 2
    degenerate: bool = False  # whether that tau selects nothing
    note: str = ""  # what was done instead, or what was drawn, in one sentence
    # Equally used blocks, some of which were drawn for `top`.
    tied: tuple[int, ...] = field(default=(), metadata=OMIT_DEFAULT)
    datasets: Mapping[str, SearchResult] = field(default_factory=dict)  # by task


def encode_details(details: LsamdDetails) -> dict[str, Json]:
    """Return the details after a search as JSON: all but `top`, which only an outline has."""
    return {name: value for name, value in to_json(details).items() if name != "top"}


def read_details(config: LearngeneConfig) -> LsamdDetails:
    """Return the details of a learngene.

    Raises `BadFile` for blocks and paths that its model does not have.
    """
    details, layers = parse_details(config, LsamdDetails), config.spec.layers
    if list(details.kept) != sorted({*details.kept} & {*range(1, layers + 1)}):
        raise BadFile(
            f"the learngene's details name the kept blocks {str(list(details.kept))[:60]}; "
            f"expected ascending numbers from 1 to {layers}; extract it again"
        )
    if details.top is not None and not 1 <= details.top <= layers:
        raise BadFile(
            f"the learngene's details say top {details.top}; "
            f"expected a number from 1 to {layers}; extract it again"
        )
    for task, result in details.datasets.items():
        if not len(result.paths) == len(result.shares) == layers:
            raise BadFile(
                f"the learngene's details hold no path over {layers} layers for {task}; "
                "extract it again"
            )
    return details


def read_kept_blocks(config: LearngeneConfig) -> tuple[int, ...]:
    """Return the kept blocks. Raises `BadFile` if there are none."""
    blocks = read_details(config).kept
    if not blocks:
        raise BadFile("the learngene's details name no kept blocks; extract it again")
    return blocks


def count_fewest_layers(config: LearngeneConfig) -> int:
    """Return the number of kept blocks, the fewest layers of a descendant.

    Before a search whose selection decides it, this is 1. Raises `BadFile`.
    """
    details = read_details(config)
    return len(details.kept) or details.top or 1


# Selection (eq. 3).


def count_usage(results: Mapping[str, SearchResult]) -> tuple[int, ...]:
    """Return G: for every layer the number of data sets that prefer the base block."""
    return tuple(
        sum(layer) for layer in zip(*(result.paths for result in results.values()), strict=True)
    )


def collect_metrics(
    results: Mapping[str, SearchResult], tasks: Sequence[Task], recipe: Recipe
) -> dict[str, Json]:
    """Return the accuracies of the super nets, and the warnings of those at chance, by task.

    Args:
        results: of the searches, by task.
        tasks: those searched on.
        recipe: of the searches; the rate of a single task may differ.
    """
    from learngene_zoo.plugin import mark_chance

    accuracies = {name: result.validation_accuracy for name, result in results.items()}
    marks = {task.name: mark_chance(accuracies[task.name], task, recipe) for task in tasks}
    at_chance = {name: mark for name, mark in marks.items() if mark}
    metrics: dict[str, Json] = {"validation_accuracy": accuracies}
    return metrics | ({"searches": at_chance} if at_chance else {})


def list_unused(details: LsamdDetails) -> tuple[int, ...]:
    """Return the kept blocks that no data set prefers."""
    return tuple(block for block in details.kept if details.usage and not details.usage[block - 1])


def select_blocks(
    counts: Sequence[int],
    data_sets: int,
    *,
    threshold: float | None = None,
    top: int | None = None,
    seed: int = 0,
) -> LsamdDetails:
    """Select the blocks that more than `threshold` data sets prefer, or the `top` most preferred.

    A threshold that keeps no block, or all, selects nothing: then the nearest threshold that does
    (in steps of one half; the lower of two) is used instead, and `note` says so. Where all counts
    are equal no threshold selects, and all blocks are kept.

    Args:
        counts: G.
        data_sets: their number, M.
        threshold: tau; by default M / 2.
        top: the number of blocks to keep. Of equally preferred blocks some are drawn, see
            `select_most_used`; `tied` records among which, and `note` says so.
        seed: of that draw.

    Raises:
        WrongCall: for a `top` beyond the number of blocks.
    """
    if top is not None:
        blocks = select_most_used(counts, top, seed)
        tied = _list_tied(counts, blocks)
        note = _describe_draw(counts, blocks, tied)
        return LsamdDetails(kept=blocks, usage=tuple(counts), tied=tied, note=note)
    tau = data_sets / 2 if threshold is None else threshold
    blocks = select_above(counts, tau)
    if 0 < len(blocks) < len(counts):
        return LsamdDetails(kept=blocks, usage=tuple(counts), threshold=tau, threshold_asked=tau)
    return _select_nearest(counts, tau, "no block is" if not blocks else "every block is")


def select_above(counts: Sequence[int], threshold: float) -> tuple[int, ...]:
    """Return the blocks that more data sets prefer than `threshold`."""
    return tuple(i for i, count in enumerate(counts, start=1) if count > threshold)


def select_most_used(counts: Sequence[int], top: int, seed: int) -> tuple[int, ...]:
    """Return the `top` most preferred blocks, ascending; equals in an order drawn from the seed.

    That order depends on nothing else, so the blocks of a smaller `top` are among those of a larger
    one. The lower of equals would not do: then a search without a result would return the first
    blocks, which are the best to build on.

    Raises `WrongCall` if there are fewer blocks.
    """
    if not 1 <= top <= len(counts):
        raise WrongCall(
            f"top is {top}, but the ancestry model has {len(counts)} blocks; "
            f"choose 1 to {len(counts)}"
        )
    ranking = sorted(
        range(1, len(counts) + 1),
        key=lambda i: (-counts[i - 1], derive_seed(seed, "equal blocks", i)),
    )
    return tuple(sorted(ranking[:top]))


def _list_tied(counts: Sequence[int], blocks: Collection[int]) -> tuple[int, ...]:
    """Return the blocks used as often as the least used kept one, if not all of them are kept."""
    least = min(counts[i - 1] for i in blocks)
    equal = tuple(i for i, count in enumerate(counts, start=1) if count == least)
    return () if set(equal) <= set(blocks) else equal


def _describe_draw(counts: Sequence[int], blocks: Sequence[int], tied: Sequence[int]) -> str:
    if not tied:
        return ""
    selection = [i for i in blocks if i in tied]
    return (
        f"the blocks {' '.join(map(str, tied))} are each used by {counts[tied[0] - 1]} data sets "
        f"(G = {' '.join(map(str, counts))}); the seed drew {' '.join(map(str, selection))}"
    )


def find_nearest_threshold(counts: Sequence[int], tau: float) -> float | None:
    """Return the threshold nearest to `tau`, in steps of one half, that keeps some blocks, not all.

    None if there is none.
    """
    steps = [step / 2 for step in range(2 * min(counts), 2 * max(counts))]
    return min(steps, key=lambda step: (abs(step - tau), step)) if steps else None


def _select_nearest(counts: Sequence[int], tau: float, subject: str) -> LsamdDetails:
    """Select by the nearest threshold that selects; `subject` begins the note."""
    nearest = find_nearest_threshold(counts, tau)
    reason = f"{subject} used by more than {tau:g} data sets (G = {' '.join(map(str, counts))})"
    if nearest is None:
        note = f"{reason}, and no threshold tells them apart: all are kept; set top to keep fewer"
        blocks = tuple(range(1, len(counts) + 1))
    else:
        note = (
            f"{reason}; the nearest threshold that selects, {nearest:g}, was used instead; "
            "set top to keep any number"
        )
        blocks = select_above(counts, nearest)
    return LsamdDetails(
        kept=blocks,
        usage=tuple(counts),
        threshold=nearest,
        threshold_asked=tau,
        degenerate=True,
        note=note,
    )


# Expansion.


def split_stages(blocks: Sequence[int]) -> list[Stage]:
    """Split ascending kept blocks into the maximal runs of consecutive numbers."""
    runs = groupby(enumerate(blocks), key=lambda pair: pair[1] - pair[0])
    return [tuple(block for _, block in run) for _, run in runs]


def order_stages(count: int, priority: Priority = "last-middle-first") -> list[int]:
    """Return the stages' positions, 0 to `count` - 1, in the order in which they take additions.

    With more than three stages "middle" is all inner ones, the last of them first; with two there
    is no middle, and a single stage takes every turn.
    """
    positions = {
        "first": [0],
        "middle": list(range(count - 2, 0, -1)),
        "last": [count - 1] if count > 1 else [],
    }
    return [position for word in priority.split("-") for position in positions[word]]


def grow_stage(stage: Stage, additions: int, expansion: Expansion = "neighbor") -> Stage:
    """Return the stage with `additions` more blocks.

    neighbor  its last block repeated: (7, 8) grows by two to (7, 8, 8, 8)
    cyclic    the whole stage again: (7, 8) grows by two to (7, 8, 7, 8)
    """
    if expansion == "neighbor":
        return stage + stage[-1:] * additions
    return tuple(stage[i % len(stage)] for i in range(len(stage) + additions))


def order_blocks(
    blocks: Sequence[int],
    layers: int,
    *,
    expansion: Expansion = "neighbor",
    priority: Priority = "last-middle-first",
) -> tuple[int, ...]:
    """Return for each layer of a descendant the ancestry block that it inherits.

    Args:
        blocks: the kept blocks.
        layers: of the descendant.
        expansion: how a stage grows, see `grow_stage`.
        priority: the order in which stages grow, see `order_stages`.

    Raises:
        WrongCall: for fewer layers than kept blocks, which the paper leaves undefined.
    """
    missing = layers - len(blocks)
    if missing < 0:
        raise WrongCall(
            f"{layers} layers are fewer than the {len(blocks)} blocks this learngene keeps; "
            f"choose {len(blocks)} or more, or extract again with "
            f"{name_option('top', layers)}"
        )
    stages = split_stages(blocks)
    turns = order_stages(len(stages), priority)
    additions = [0] * len(stages)
    for addition in range(missing):
        additions[turns[addition % len(stages)]] += 1
    return tuple(
        block
        for stage, count in zip(stages, additions)
        for block in grow_stage(stage, count, expansion)
    )


def select_base_blocks(state: StateDict, spec: Spec, blocks: Collection[int]) -> StateDict:
    """Return stem, final norm and the given blocks of an ancestry model; tensors are shared."""
    from learngene_zoo.plugin import select_tensors

    return select_tensors(state, _build_filter(spec, blocks))


@dataclass(frozen=True, kw_only=True)
class LsamdExpander(Expander):
    """Put the kept blocks in their order, and for more layers repeat blocks inside the stages."""

    expansion: Annotated[
        Expansion,
        "neighbor: a stage repeats its last block (7 8 8); cyclic: its blocks in order (7 8 7)",
    ] = "neighbor"
    priority: Annotated[Priority, "order in which stages are expanded"] = "last-middle-first"

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Return every depth from the number of kept blocks to 5/4 of the ancestry's.

        (15 for 12, as in the paper's Table 2.) Before a search the kept blocks are unknown: then
        every depth that is possible.
        """
        most, fewest = math.ceil(1.25 * config.spec.layers), count_fewest_layers(config)
        return [Member(spec=config.spec.with_(layers=layers)) for layers in range(fewest, most + 1)]

    def check_target(self, config: LearngeneConfig, target: Target) -> None:
        """Raise `WrongCall` for fewer layers than kept blocks."""
        order_blocks(
            read_kept_blocks(config),
            target.apply(config.spec).layers,
            expansion=self.expansion,
            priority=self.priority,
        )

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Build stem, blocks in their stages and final norm; positions resized, a new head."""
        spec, blocks = target.apply(learngene.config.spec), read_kept_blocks(learngene.config)
        sources = order_blocks(
            blocks, spec.layers, expansion=self.expansion, priority=self.priority
        )
        return build_descendant(learngene, spec, sources, seed=run.seed)


def build_descendant(
    learngene: Learngene, spec: Spec, sources: Sequence[int], *, seed: int
) -> Descendant:
    """Build a descendant whose block `i` is the ancestry's block `sources[i]`.

    Every tensor is read once, however often its block is repeated.

    Args:
        learngene: with the blocks.
        spec: the shape of the descendant.
        sources: ancestry blocks, counted from 1.
        seed: of the new head.

    Raises:
        BadFile: if the learngene lacks a tensor.
    """
    from learngene_zoo.plugin import (
        assemble,
        get_shapes,
        resize_positions,
        select_tensors,
        take_blocks,
    )

    config = learngene.config
    _check_tensors(learngene, set(sources))
    state = select_base_blocks(learngene.state, spec, set(sources))
    state = take_blocks(state, spec, [source - 1 for source in sources])
    state = resize_positions(state, config.spec, spec)
    state = select_tensors(
        state, get_shapes(spec).__contains__
    )  # without pooling, if the head is for pixels
    return assemble(spec, state, seed=seed, provenance={"blocks": list(sources)})


def _check_tensors(learngene: Learngene, blocks: Collection[int]) -> None:
    """Check that stem, kept blocks and final norm are complete.

    `assemble` would draw a missing tensor, and nobody would notice.
    """
    from learngene_zoo.plugin import get_shapes, read_shapes

    spec, where = learngene.config.spec, str(learngene.folder or "the learngene")
    is_inside = _build_filter(spec, blocks)
    expected, stored = (
        {name: shape for name, shape in every.items() if is_inside(name)}
        for every in (get_shapes(spec), read_shapes(learngene.state))
    )
    for name, shape in expected.items():
        if stored.get(name) != shape:
            fault = (
                f"has shape {stored[name]} in {name}"
                if name in stored
                else f"lacks the tensor {name}"
            )
            raise BadFile(f"{where} {fault}; expected shape {shape}: extract or fetch it again")
    extra = sorted(set(stored) - set(expected))
    if extra:
        raise BadFile(
            f"{where} holds the tensor {extra[0]}, which its model does not have; "
            "extract or fetch it again"
        )


def _build_filter(spec: Spec, blocks: Collection[int]) -> Callable[[str], bool]:
    """Return a function that tells whether a tensor is of stem, final norm or these blocks."""
    table, numbers = get_table(spec), {None, *(block - 1 for block in blocks)}
    return lambda name: table.block_of(name) in numbers and not table.is_head(name)
