"""The kept blocks: selected from what the searches found, and repeated in stages for a descendant (`Expand`).

Selection (LSAMD eq. 3): `g_i(t)` is 1 if data set `t` prefers the frozen base block of layer `i`, `G_i` is their sum over the `M`
data sets, and the learngene is every block with `G_i > tau`. The paper sets tau to "half the number of data sets" and contradicts
itself in the figure; here it is M / 2, and the comparison is strict.

Expansion: a stage is a maximal run of adjacent kept blocks; (1, 4, 5, 7, 8) has the stages (1), (4, 5) and (7, 8). A descendant
with more layers than kept blocks repeats blocks inside the stages, one layer at a time, the stages taking turns. The paper prints
the orders for 6 and 7 layers only. Taking turns beyond that is this package's reading; the other candidate, all additions into one
stage, contradicts the printed order of 7 layers.

Blocks are counted from 1, as in the paper. Only a learngene's tensors keep the names that they have in the ancestry model (timm's,
blocks counted from 0): of the kept blocks 1, 4 and 5 it holds `blocks.0.*`, `blocks.3.*` and `blocks.4.*`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Literal

from learngene_zoo.plugin import (
    YOUNG,
    BadFile,
    Expander,
    Member,
    WrongCall,
    derive_seed,
    details_of,
    table_of,
    to_json,
)

if TYPE_CHECKING:
    from learngene_zoo.plugin import Descendant, Json, Learngene, LearngeneConfig, Run, Spec, StateDict, Target

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
class Found:
    """What the search on one data set found."""

    paths: tuple[int, ...]  # g, one number per layer: 1 if the base block is preferred, else 0
    shares: tuple[float, ...]  # per layer the share of the validation images that prefer the base block
    validation_accuracy: float  # of the super net
    metric: str = "accuracy"  # or "mIoU", of a segmentation task
    validation_images: int = 0
    training_images: int = 0
    lr: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Details:
    """What a learngene's `details` hold. Before a search there is only `kept` or `top`, or nothing."""

    kept: tuple[int, ...] = ()  # ascending
    top: int | None = None  # how many blocks a search will keep
    usage: tuple[int, ...] = ()  # G, one number per layer
    threshold: float | None = None  # the tau that was applied; None if `top` or `keep` decided, or no tau selects any
    threshold_asked: float | None = None  # the tau that was given, or M / 2
    degenerate: bool = False  # whether that tau selects nothing
    note: str = ""  # what was done instead, or what was drawn, in one sentence
    tied: tuple[int, ...] = field(default=(), metadata=YOUNG)  # equally used blocks, some of which were drawn for `top`
    datasets: Mapping[str, Found] = field(default_factory=dict)  # by task

    def json(self) -> dict[str, Json]:
        """As JSON: before a search what is known of `kept` and `top`, after it all the rest."""
        record = to_json(self)
        names = [name for name in record if name != "top"] if self.datasets else ["kept", "top"]
        return {name: record[name] for name in names if self.datasets or record[name]}


def read_details(config: LearngeneConfig) -> Details:
    """The details of a learngene. Raises `BadFile` for blocks and paths that its model does not have."""
    details, layers = details_of(config, Details), config.spec.layers
    if list(details.kept) != sorted({*details.kept} & {*range(1, layers + 1)}):
        raise BadFile(
            f"the learngene's details name the kept blocks {str(list(details.kept))[:60]}; expected ascending numbers "
            f"from 1 to {layers}; extract it again"
        )
    if details.top is not None and not 1 <= details.top <= layers:
        raise BadFile(
            f"the learngene's details say top {details.top}; expected a number from 1 to {layers}; extract it again"
        )
    for task, found in details.datasets.items():
        if not len(found.paths) == len(found.shares) == layers:
            raise BadFile(f"the learngene's details hold no path over {layers} layers for {task}; extract it again")
    return details


def kept_blocks(config: LearngeneConfig) -> tuple[int, ...]:
    """The kept blocks. Raises `BadFile` if there are none."""
    kept = read_details(config).kept
    if not kept:
        raise BadFile("the learngene's details name no kept blocks; extract it again")
    return kept


def fewest(config: LearngeneConfig) -> int:
    """How many blocks are kept, the fewest layers of a descendant; 1 if only a search will tell. Raises `BadFile`."""
    details = read_details(config)
    return len(details.kept) or details.top or 1


def usage(found: Mapping[str, Found]) -> tuple[int, ...]:
    """G: for every layer the number of data sets that prefer the base block."""
    return tuple(sum(layer) for layer in zip(*(one.paths for one in found.values()), strict=True))


def unused(details: Details) -> tuple[int, ...]:
    """The kept blocks that no data set prefers."""
    return tuple(block for block in details.kept if details.usage and not details.usage[block - 1])


def select(
    counts: Sequence[int], data_sets: int, *, threshold: float | None = None, top: int | None = None, seed: int = 0
) -> Details:
    """The blocks preferred by more than `threshold` data sets (None: half of them), or the `top` most preferred ones.

    counts: G. Of equally preferred blocks `top` draws some, see `most_used`; `tied` records among which, and `note` says so. A
    threshold that keeps no block, or all, selects nothing: then the nearest one that does (in steps of one half; the lower of
    two) is used instead, and `note` says so. Where all counts are equal there is none, and all blocks are kept. Raises
    `WrongCall` for a `top` beyond the number of blocks.
    """
    if top is not None:
        kept = most_used(counts, top, seed)
        tied = _tied(counts, kept)
        return Details(kept=kept, usage=tuple(counts), tied=tied, note=_drawn(counts, kept, tied))
    given = data_sets / 2 if threshold is None else threshold
    kept = above(counts, given)
    if 0 < len(kept) < len(counts):
        return Details(kept=kept, usage=tuple(counts), threshold=given, threshold_asked=given)
    return _degenerate(counts, given, "no block is" if not kept else "every block is")


def above(counts: Sequence[int], threshold: float) -> tuple[int, ...]:
    """The blocks preferred by more data sets than `threshold`."""
    return tuple(i for i, count in enumerate(counts, start=1) if count > threshold)


def most_used(counts: Sequence[int], top: int, seed: int) -> tuple[int, ...]:
    """The `top` most preferred blocks, ascending; equals in an order drawn from the seed.

    That order depends on nothing else, so the blocks of a smaller `top` are among those of a larger one. Not the lower of
    equals: then a search that finds nothing would return the first blocks, which are the best to build on. Raises `WrongCall`
    if there are fewer blocks.
    """
    if not 1 <= top <= len(counts):
        raise WrongCall(f"top is {top}, but the ancestry model has {len(counts)} blocks; choose 1 to {len(counts)}")
    ranked = sorted(range(1, len(counts) + 1), key=lambda i: (-counts[i - 1], derive_seed(seed, "equal blocks", i)))
    return tuple(sorted(ranked[:top]))


def _tied(counts: Sequence[int], kept: Collection[int]) -> tuple[int, ...]:
    """The blocks that are used as often as the least used kept one, if not all of them are kept."""
    least = min(counts[i - 1] for i in kept)
    equal = tuple(i for i, count in enumerate(counts, start=1) if count == least)
    return () if set(equal) <= set(kept) else equal


def _drawn(counts: Sequence[int], kept: Sequence[int], tied: Sequence[int]) -> str:
    if not tied:
        return ""
    drawn = [i for i in kept if i in tied]
    return (
        f"the blocks {' '.join(map(str, tied))} are each used by {counts[tied[0] - 1]} data sets (G = {' '.join(map(str, counts))}); "
        f"the seed drew {' '.join(map(str, drawn))}"
    )


def nearest_threshold(counts: Sequence[int], given: float) -> float | None:
    """The threshold nearest to `given`, in steps of one half, that keeps some blocks but not all; None if there is none."""
    steps = [step / 2 for step in range(2 * min(counts), 2 * max(counts))]
    return min(steps, key=lambda step: (abs(step - given), step)) if steps else None


def _degenerate(counts: Sequence[int], given: float, what: str) -> Details:
    nearest = nearest_threshold(counts, given)
    shown = f"{what} used by more than {given:g} data sets (G = {' '.join(map(str, counts))})"
    if nearest is None:
        note = f"{shown}, and no threshold tells them apart: all are kept; --top keeps fewer"
        kept = tuple(range(1, len(counts) + 1))
    else:
        note = f"{shown}; the nearest threshold that selects, {nearest:g}, was used instead; --top keeps any number"
        kept = above(counts, nearest)
    return Details(kept=kept, usage=tuple(counts), threshold=nearest, threshold_asked=given, degenerate=True, note=note)


def stages(kept: Sequence[int]) -> list[Stage]:
    """The maximal runs of consecutive numbers in `kept`, which is ascending."""
    runs = groupby(enumerate(kept), key=lambda pair: pair[1] - pair[0])
    return [tuple(block for _, block in run) for _, run in runs]


def turns(count: int, priority: Priority = "last-middle-first") -> list[int]:
    """The stages' positions, 0 to `count` - 1, in the order in which they take additions.

    With more than three stages "middle" is all inner ones, the last of them first; with two there is no middle, and a
    single stage takes every turn.
    """
    positions = {"first": [0], "middle": list(range(count - 2, 0, -1)), "last": [count - 1] if count > 1 else []}
    return [position for word in priority.split("-") for position in positions[word]]


def grown(stage: Stage, additions: int, expansion: Expansion = "neighbor") -> Stage:
    """The stage with `additions` more blocks: its last one repeated (neighbor), or the whole stage again (cyclic).

    (7, 8) grows by two to (7, 8, 8, 8) or to (7, 8, 7, 8).
    """
    if expansion == "neighbor":
        return stage + stage[-1:] * additions
    return tuple(stage[i % len(stage)] for i in range(len(stage) + additions))


def order(
    kept: Sequence[int], layers: int, *, expansion: Expansion = "neighbor", priority: Priority = "last-middle-first"
) -> tuple[int, ...]:
    """For each of `layers` blocks of a descendant the ancestry block that it inherits.

    Raises `WrongCall` for fewer layers than kept blocks, which the paper leaves undefined.
    """
    missing = layers - len(kept)
    if missing < 0:
        raise WrongCall(
            f"{layers} layers are fewer than the {len(kept)} blocks this learngene keeps; choose {len(kept)} or more, "
            f"or extract again with --top {layers}"
        )
    parts = stages(kept)
    rounds = turns(len(parts), priority)
    additions = [0] * len(parts)
    for addition in range(missing):
        additions[rounds[addition % len(parts)]] += 1
    return tuple(block for part, more in zip(parts, additions) for block in grown(part, more, expansion))


def base_blocks(state: StateDict, spec: Spec, kept: Collection[int]) -> StateDict:
    """Of an ancestry model's tensors (shared, not copied): stem, final norm, and the blocks `kept`."""
    from learngene_zoo.plugin import only

    return only(state, _inside(spec, kept))


@dataclass(frozen=True, kw_only=True)
class Expand(Expander):
    """Put the kept blocks in their order, and for more layers repeat blocks inside the stages."""

    expansion: Annotated[
        Expansion, "a stage repeats its last block (neighbor) or itself from its first block on (cyclic)"
    ] = "neighbor"
    priority: Annotated[Priority, "which stages grow first"] = "last-middle-first"

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Every depth from the number of kept blocks to 5/4 of the ancestry's (15 for 12, as in the paper's Table 2).

        Before a search the kept blocks are unknown: then every depth that is possible.
        """
        most = math.ceil(1.25 * config.spec.layers)
        return [Member(spec=config.spec.with_(layers=layers)) for layers in range(fewest(config), most + 1)]

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Stem, blocks in their stages and final norm as in the ancestry model; positions resized, a new head."""
        spec = target.apply(learngene.config.spec)
        sources = order(kept_blocks(learngene.config), spec.layers, expansion=self.expansion, priority=self.priority)
        return build(learngene, spec, sources, seed=run.seed)


def build(learngene: Learngene, spec: Spec, sources: Sequence[int], *, seed: int) -> Descendant:
    """A descendant whose block `i` is the ancestry's block `sources[i]`, with a new head.

    Every tensor is read once, however often its block is repeated. Raises `BadFile` if the learngene lacks one.
    """
    from learngene_zoo.plugin import assemble, only, resize_positions, shapes, take_blocks

    config = learngene.config
    _check(learngene, set(sources))
    held = base_blocks(learngene.state, spec, set(sources))
    parts = resize_positions(take_blocks(held, spec, [source - 1 for source in sources]), config.spec, spec)
    parts = only(parts, shapes(spec).__contains__)  # without pooling, if the head is for pixels
    mean, std = config.normalisation
    return assemble(spec, parts, seed=seed, mean=mean, std=std, provenance={"blocks": list(sources)})


def _check(learngene: Learngene, kept: Collection[int]) -> None:
    """Stem, kept blocks and final norm must be whole: `assemble` would draw what is missing, and nobody would notice."""
    from learngene_zoo.plugin import shapes, shapes_in

    spec, where = learngene.config.spec, str(learngene.folder or "the learngene")
    inside = _inside(spec, kept)
    expected, found = (
        {name: shape for name, shape in every.items() if inside(name)}
        for every in (shapes(spec), shapes_in(learngene.state))
    )
    for name, shape in expected.items():
        if found.get(name) != shape:
            what = f"has shape {found[name]} in {name}" if name in found else f"lacks the tensor {name}"
            raise BadFile(f"{where} {what}; expected shape {shape}: extract or fetch it again")
    extra = sorted(set(found) - set(expected))
    if extra:
        raise BadFile(f"{where} holds the tensor {extra[0]}, which its model does not have; extract or fetch it again")


def _inside(spec: Spec, kept: Collection[int]) -> Callable[[str], bool]:
    """Whether a tensor belongs to stem, final norm or the blocks `kept`."""
    table, blocks = table_of(spec), {None, *(block - 1 for block in kept)}
    return lambda name: table.block_of(name) in blocks and not table.is_head(name)
