"""A ranking of heads and hidden neurons as a learngene, and what is cut by it: the two interfaces that `pruning` and `elastic` share.

The learngene is the ancestry model, or its name, with the importances. How things are ranked is a method's own; a descendant is a
share of the ranking, with what is left making up for the rest by ridge regression (cutting.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar

from learngene_zoo.plugin import (
    Expander,
    Extractor,
    Learngene,
    LearngeneConfig,
    Spec,
    Target,
    WrongCall,
    from_json,
    to_json,
)
from lgzoo_closed_form.calibration import Calibration, calibration_task
from lgzoo_closed_form.pruned import beginnings, build, check_prunable
from lgzoo_closed_form.sizes import Counts, by_share, counted, uneven_spec

if TYPE_CHECKING:
    from learngene_zoo.plugin import Ancestry, Descendant, Json, Part, Run, Task
    from lgzoo_closed_form.cutting import Kept


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """What a learngene's `details` hold; before the extraction nothing is known of the ranking through all blocks."""

    shares: ClassVar[tuple[float, ...]]  # the grid of shares whose cuts are known

    stored: bool = True  # whether the ancestry model's weights are among the tensors
    task: str | None = None  # whose images were seen
    heads: tuple[tuple[int, ...], ...] = ()  # for each of the shares, how many every block keeps
    hidden: tuple[tuple[int, ...], ...] = ()

    def cuts(self) -> dict[float, Counts]:
        """What a share of the ranking leaves. Raises `BadFile` if it does not fit the shares."""
        return by_share(self.shares, self.heads, self.hidden)

    def written(self) -> dict[str, Json]:
        """As they are stored: what is not known yet is left out."""
        return {name: value for name, value in to_json(self).items() if value not in (None, [])}


@dataclass(frozen=True, kw_only=True)
class Ranking(Extractor):
    """Rank the heads and hidden neurons of the ancestry model; keep it, or only its name."""

    method: ClassVar[str]

    store: Annotated[
        bool, "keep the ancestry model's weights; otherwise every expansion opens that model again, by its checksum"
    ] = True

    def details(self) -> Ranked:
        """What is known before the extraction."""
        raise NotImplementedError

    def ranked(self, ancestry: Ancestry, task: Task, run: Run) -> Part:
        """The importances, and the details as JSON; a part of the run."""
        raise NotImplementedError

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """The ancestry model's shape."""
        check_prunable(ancestries[0], self.method)
        return LearngeneConfig(method=self.method, spec=ancestries[0], details=self.details().written())

    def __call__(self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run) -> Learngene:
        """The ranking is a part of the run."""
        from learngene_zoo.plugin import without_head

        ancestry = ancestries[0]
        found = self.ranked(ancestry, tasks[0], run)
        details = replace(from_json(type(self.details()), found.record, "ranking"), stored=self.store)
        config = LearngeneConfig(method=self.method, spec=ancestry.spec, details=details.written())
        kept = without_head(ancestry.state, ancestry.spec) if self.store else {}
        return Learngene(config=config, state={**kept, **{name: found.state[name] for name in found.state}})


@dataclass(frozen=True, kw_only=True)
class Cutting(Expander):
    """Cut the least important heads and hidden neurons, and let the rest make up for them."""

    axes = frozenset({"heads", "mlp_ratio", "classes", "image_size"})

    compensate: Annotated[bool, "let the layers behind them make up for what is cut, on some images"] = True
    calibration: Annotated[
        str | None, "the task whose training images that is done on, as folder:PATH (default: the extraction's)"
    ] = None

    def through_all(
        self, learngene: Learngene, target: Target, details: Ranked, keep: float, shares: tuple[float, float], why: str
    ) -> tuple[Spec, Kept]:
        """What these shares of heads and of hidden neurons leave, in one ranking through all blocks.

        Raises `WrongCall` for sizes that are named beside it, saying `why` they follow from the ranking.
        """
        kept = beginnings(learngene, shares, details.cuts().get(keep))
        counts = Counts(tuple(counted(kept.heads)), tuple(counted(kept.hidden)))
        spec = uneven_spec(whole_of(learngene, target), counts)
        for name, value in target.axes().items():
            if name in ("heads", "mlp_ratio") and value != getattr(spec, name):
                raise WrongCall(
                    f"{name} is {value}, but {why}; leave out --{name.replace('_', '-')}, and name --keep or a budget"
                )
        return spec, kept

    def built(
        self,
        learngene: Learngene,
        target: Target,
        details: Ranked,
        sizes: tuple[Spec, Kept],
        settings: Calibration,
        run: Run,
    ) -> Descendant:
        """The descendant; it is compensated where something is lost, unless that is switched off."""
        spec, kept = sizes
        everything = whole_of(learngene, target)
        counts = (everything.heads * everything.layers, everything.hidden * everything.layers)
        lost = (sum(counted(kept.heads)), sum(counted(kept.hidden))) != counts
        if not (self.compensate and lost):
            return build(learngene, spec, kept, run, settings, None)
        otherwise = ", or leave them out with --no-compensate"
        task = calibration_task(self.calibration, details.task, target, run, otherwise)
        return build(learngene, spec, kept, run, settings, task)


def whole_of(learngene: Learngene, target: Target) -> Spec:
    """The ancestry model's shape with what the target says of images and classes."""
    return replace(target, heads=None, mlp_ratio=None).apply(learngene.config.spec)
