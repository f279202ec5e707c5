"""Structured pruning: attention heads and hidden neurons are cut out of the ancestry model, and the rest makes up for them.

Fang, Ma, Song, Bi Mi, Wang. DepGraph: Towards Any Structural Pruning. CVPR 2023 (criteria and rankings, as its code Torch-Pruning has
them); Zhang, Yang. CORP: Closed-Form One-shot Representation-Preserving Structured Pruning for Transformers. arXiv 2602.05243, 2026.

    1  score     every head and every hidden neuron, with all weights that belong to it                        (importance.py)
    2  rank      them within each block, so that all blocks keep the same number, or through all blocks          (sizes.py)
    3  cut       the least important ones
    4  absorb    what the kept inputs of `attn.proj` and `mlp.fc2` can say of the removed ones, by ridge regression  (cutting.py)

The learngene is the ancestry model, or its name, with the importances; stream and depth of descendants are its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from learngene_zoo.plugin import (
    FLAT,
    Bounds,
    Learngene,
    LearngeneConfig,
    Member,
    Method,
    Spec,
    Target,
    Work,
    check_bounds,
    details_of,
    once,
    to_json,
)
from lgzoo_closed_form.calibration import Calibration
from lgzoo_closed_form.pruned import (
    IMPORTANCE,
    scores_of,
    shown_to,
)
from lgzoo_closed_form.ranked import Cutting, Ranked, Ranking, whole_of
from lgzoo_closed_form.sizes import (
    SHARES,
    cuts_at,
    even_members,
    even_spec,
    least_of,
    ratio,
    uneven_members,
)

if TYPE_CHECKING:
    from learngene_zoo.plugin import Ancestry, Descendant, Json, Part, Run, StateDict, Task


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """How heads and hidden neurons are scored, and on which images."""

    criterion: Annotated[
        Literal["energy", "magnitude", "taylor"],
        "by the variance of what they add to the stream, by the squares of their weights, or by the loss's slopes",
    ] = "energy"
    calibration: Calibration = field(default=Calibration(), metadata=FLAT)

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, kw_only=True)
class Details(Ranked):
    """What a learngene's `details` hold."""

    shares = SHARES

    scoring: Scoring


@dataclass(frozen=True, kw_only=True)
class Rank(Ranking):
    """Score the heads and hidden neurons of the ancestry model; keep it, or only its name."""

    method = "pruning"

    each: Scoring = field(default=Scoring(), metadata=FLAT)

    def details(self) -> Details:
        """The settings."""
        return Details(scoring=self.each, stored=self.store)

    def ranked(self, ancestry: Ancestry, task: Task, run: Run) -> Part:
        """Steps 1 and 2."""
        return once(run.part("scores"), "pruning.scores", scores, self.each, [ancestry, task])

    def work(self, ancestries: Sequence[Spec], images: Sequence[int]) -> list[Work]:
        """One pass over the images, with gradients for `taylor`."""
        seen, layers = min(self.each.calibration.images, images[0]), ancestries[0].layers
        taught = self.each.criterion == "taylor"
        return [Work(images=seen, trained=layers * taught, frozen=layers * (not taught))]


def scores(settings: Scoring, ancestry: Ancestry, task: Task, run: Run) -> tuple[StateDict, Json]:
    """The importances, and `Details` as JSON."""
    from lgzoo_closed_form.importance import importances

    spec = ancestry.spec
    shown = shown_to(spec, settings.calibration, task, ancestry.input_format, run)
    found = [one.float() for one in importances(settings.criterion, ancestry, shown)]
    counts = [cuts_at(one.tolist(), SHARES, least) for one, least in zip(found, least_of(spec))]
    details = Details(scoring=settings, task=task.name, heads=counts[0], hidden=counts[1])
    return {f"{IMPORTANCE}heads": found[0], f"{IMPORTANCE}hidden": found[1]}, to_json(details)


@dataclass(frozen=True, kw_only=True)
class Prune(Cutting):
    """Cut the least important heads and hidden neurons, and let the rest make up for them."""

    ranking: Annotated[
        Literal["local", "global"], "whether all blocks keep as much, or what one ranking through all leaves each"
    ] = "local"
    keep: Annotated[
        float | None, "share of the heads, and of the hidden neurons, that is kept", Bounds(above=0, most=1)
    ] = None

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Every number of heads with every eighth of the hidden neurons; of the ranking through all blocks every twentieth.

        The latter is known after the extraction.
        """
        whole = config.spec
        if self.ranking == "global":
            cuts = details_of(config, Details).cuts()
            return uneven_members(whole, cuts.items()) or [Member(spec=whole, settings={"keep": 1.0})]
        return even_members(whole) if self.keep is None else [Member(spec=self._even(whole, Target()))]

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Build it. Raises `WrongCall` for more than the ancestry model has, and for sizes beside a global ranking."""
        from lgzoo_closed_form.cutting import Kept, best

        details = details_of(learngene.config, Details)
        if self.ranking == "global":
            share, why = self.keep or 1.0, "--ranking global gives each block its own"
            sizes = self.through_all(learngene, target, details, share, (share, share), why)
        else:
            spec = self._even(whole_of(learngene, target), target)
            counts = [[size] * spec.layers for size in (spec.heads, spec.hidden)]
            sizes = spec, Kept(*map(best, scores_of(learngene), counts))
        return self.built(learngene, target, details, sizes, details.scoring.calibration, run)

    def _even(self, whole: Spec, target: Target) -> Spec:
        """The named sizes; otherwise the share that is kept, and never nothing."""
        heads, hidden = (max(round((self.keep or 1) * size), 1) for size in (whole.heads, whole.hidden))
        named = ratio(whole, hidden) if target.mlp_ratio is None else target.mlp_ratio
        return even_spec(whole, target.heads or heads, named)


PRUNING = Method(
    name="pruning",
    title="fewer heads and hidden neurons, the rest making up for them in closed form, without training",
    paper=(
        "Fang, Ma, Song, Bi Mi, Wang. DepGraph: Towards Any Structural Pruning. CVPR 2023; Zhang, Yang. CORP: Closed-Form One-shot "
        "Representation-Preserving Structured Pruning for Transformers. arXiv 2602.05243, 2026"
    ),
    expander=Prune(),
    presets={
        "mini": Rank(),
        "paper": Rank(each=Scoring(criterion="magnitude")),
        "smoke": Rank(each=Scoring(calibration=Calibration(images=24))),
    },
    tasks="one",
    details=Details,
)
