"""What the searches found, and which blocks are selected from it: the details of a learngene.

LSAMD eq. 3: `g_i(t)` is 1 if data set `t` prefers the frozen base block of layer `i`, `G_i` is their sum over the `M` data sets,
and the learngene is every block with `G_i > tau`. The paper sets tau to "half the number of data sets" and contradicts itself in
the figure; here it is M / 2, and the comparison is strict. Blocks are counted from 1, as in the paper.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from learngene_zoo.plugin import BadFile, Json, LearngeneConfig, WrongCall, details_of, to_json


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
    note: str = ""  # what was done instead, in one sentence
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


def select(counts: Sequence[int], data_sets: int, *, threshold: float | None = None, top: int | None = None) -> Details:
    """The blocks preferred by more than `threshold` data sets (None: half of them), or the `top` most preferred ones.

    counts: G. Of equally preferred blocks `top` keeps the lower. A threshold that keeps no block, or all, selects nothing: then
    the nearest one that does (in steps of one half; the lower of two) is used instead, and `note` says so. Where all counts are
    equal there is none, and all blocks are kept. Raises `WrongCall` for a `top` beyond the number of blocks.
    """
    if top is not None:
        return Details(kept=most_used(counts, top), usage=tuple(counts))
    given = data_sets / 2 if threshold is None else threshold
    kept = above(counts, given)
    if 0 < len(kept) < len(counts):
        return Details(kept=kept, usage=tuple(counts), threshold=given, threshold_asked=given)
    return _degenerate(counts, given, "no block is" if not kept else "every block is")


def above(counts: Sequence[int], threshold: float) -> tuple[int, ...]:
    """The blocks preferred by more data sets than `threshold`."""
    return tuple(i for i, count in enumerate(counts, start=1) if count > threshold)


def most_used(counts: Sequence[int], top: int) -> tuple[int, ...]:
    """The `top` most preferred blocks, ascending; of equals the lower. Raises `WrongCall` if there are fewer blocks."""
    if not 1 <= top <= len(counts):
        raise WrongCall(f"top is {top}, but the ancestry model has {len(counts)} blocks; choose 1 to {len(counts)}")
    ranked = sorted(range(1, len(counts) + 1), key=lambda i: (-counts[i - 1], i))
    return tuple(sorted(ranked[:top]))


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
