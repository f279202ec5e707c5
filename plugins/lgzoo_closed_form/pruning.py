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
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Literal

from learngene_zoo.plugin import (
    FLAT,
    Bounds,
    Expander,
    Extractor,
    Learngene,
    LearngeneConfig,
    Member,
    Method,
    Spec,
    Target,
    Work,
    WrongCall,
    check_bounds,
    details_of,
    from_json,
    once,
    to_json,
)
from lgzoo_closed_form.closed_form import Calibration
from lgzoo_closed_form.pruned import (
    IMPORTANCE,
    beginnings,
    build,
    calibration_task,
    check_prunable,
    scores_of,
    shown_to,
)
from lgzoo_closed_form.sizes import (
    SHARES,
    Counts,
    by_share,
    counted,
    cuts_at,
    even_members,
    even_spec,
    least_of,
    ratio,
    uneven_members,
    uneven_spec,
)

if TYPE_CHECKING:
    from learngene_zoo.plugin import Ancestry, Descendant, Json, Run, StateDict, Task


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
class Details:
    """What a learngene's `details` hold; before the extraction nothing is known of the ranking through all blocks."""

    scoring: Scoring
    stored: bool = True  # whether the ancestry model's weights are among the tensors
    task: str | None = None  # whose images were seen
    heads: tuple[tuple[int, ...], ...] = ()  # for each of `SHARES`, how many every block keeps
    hidden: tuple[tuple[int, ...], ...] = ()

    def cuts(self) -> dict[float, Counts]:
        """What a share of the ranking through all blocks leaves. Raises `BadFile` if it does not fit the shares."""
        return by_share(SHARES, self.heads, self.hidden)


@dataclass(frozen=True, kw_only=True)
class Rank(Extractor):
    """Score the heads and hidden neurons of the ancestry model; keep it, or only its name."""

    store: Annotated[
        bool, "keep the ancestry model's weights; otherwise every expansion opens that model again, by its checksum"
    ] = True
    each: Scoring = field(default=Scoring(), metadata=FLAT)

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """The ancestry model's shape."""
        check_prunable(ancestries[0], "pruning")
        details = Details(scoring=self.each, stored=self.store)
        return LearngeneConfig(method="pruning", spec=ancestries[0], details=to_json(details))

    def work(self, ancestries: Sequence[Spec], images: Sequence[int]) -> list[Work]:
        """One pass over the images, with gradients for `taylor`."""
        seen, layers = min(self.each.calibration.images, images[0]), ancestries[0].layers
        taught = self.each.criterion == "taylor"
        return [Work(images=seen, trained=layers * taught, frozen=layers * (not taught))]

    def __call__(self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run) -> Learngene:
        """The scores are a part of the run."""
        from learngene_zoo.plugin import without_head

        ancestry = ancestries[0]
        found = once(run.part("scores"), scores, self.each, [ancestry, tasks[0]])
        details = replace(from_json(Details, found.record, "scores"), stored=self.store)
        config = LearngeneConfig(method="pruning", spec=ancestry.spec, details=to_json(details))
        kept = without_head(ancestry.state, ancestry.spec) if self.store else {}
        return Learngene(config=config, state={**kept, **{name: found.state[name] for name in found.state}})


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
class Prune(Expander):
    """Cut the least important heads and hidden neurons, and let the rest make up for them."""

    axes = frozenset({"heads", "mlp_ratio", "classes", "image_size"})

    ranking: Annotated[
        Literal["local", "global"], "whether all blocks keep as much, or what one ranking through all leaves each"
    ] = "local"
    keep: Annotated[
        float | None, "share of the heads, and of the hidden neurons, that is kept", Bounds(above=0, most=1)
    ] = None
    compensate: Annotated[bool, "let the layers behind them make up for what is cut, on some images"] = True
    calibration: Annotated[
        str | None, "the task whose training images that is done on, as folder:PATH (default: the extraction's)"
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

        config, details = learngene.config, details_of(learngene.config, Details)
        whole = replace(target, heads=None, mlp_ratio=None).apply(config.spec)
        if self.ranking == "global":
            share = self.keep or 1.0
            kept = beginnings(learngene, (share, share), details.cuts().get(share))
            spec = uneven_spec(whole, Counts(tuple(counted(kept.heads)), tuple(counted(kept.hidden))))
            self._check_named(target, spec)
        else:
            spec = self._even(whole, target)
            counts = [[size] * spec.layers for size in (spec.heads, spec.hidden)]
            kept = Kept(*map(best, scores_of(learngene), counts))
        everything = whole.heads * whole.layers, whole.hidden * whole.layers
        lost = (sum(counted(kept.heads)), sum(counted(kept.hidden))) != everything
        task = calibration_task(self.calibration, details.task, target, run) if self.compensate and lost else None
        return build(learngene, spec, kept, run, details.scoring.calibration, task)

    def _even(self, whole: Spec, target: Target) -> Spec:
        """The named sizes; otherwise the share that is kept, and never nothing."""
        heads, hidden = (max(round((self.keep or 1) * size), 1) for size in (whole.heads, whole.hidden))
        named = ratio(whole, hidden) if target.mlp_ratio is None else target.mlp_ratio
        return even_spec(whole, target.heads or heads, named)

    def _check_named(self, target: Target, spec: Spec) -> None:
        for name, value in target.axes().items():
            if name in ("heads", "mlp_ratio") and value != getattr(spec, name):
                raise WrongCall(
                    f"{name} is {value}, but --ranking global gives each block its own; leave out "
                    f"--{name.replace('_', '-')}, and name --keep or a budget"
                )


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
