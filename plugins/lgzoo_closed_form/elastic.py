"""SnapViT: one ranking of all heads and hidden neurons, from which a model of any budget is cut.

Simoncini, Dorkenwald, Blankevoort, Snoek, Asano. Elastic ViTs from Pretrained Models without Retraining. NeurIPS 2025.

    1  score     every head and hidden neuron by the curvature of DINO's objective along its weights, without labels   (curvature.py)
    2  evolve    a factor for the neurons of each block and for each head, by xNES, so that the features of pruned models agree
                 with the whole model's at several sparsities at once                                        (agreement.py, xnes.py)
    3  rank      everything once, by score times factor; a share of the ranking is a model                             (sizes.py)
    4  cut, and let the rest make up for it by ridge regression, as `pruning` does                                   (cutting.py)

The learngene is the ancestry model, or its name, with the ranking. Stream and depth of descendants are its own, and what a smaller
one keeps a larger one keeps, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated

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
from lgzoo_closed_form.pruned import IMPORTANCE, beginnings, build, calibration_task, check_prunable, shown_to
from lgzoo_closed_form.sizes import Counts, by_share, counted, cuts_at, least_of, uneven_members, uneven_spec

if TYPE_CHECKING:
    from learngene_zoo.plugin import Ancestry, Descendant, Json, Run, StateDict, Task

FIFTIETHS = tuple(step / 50 for step in range(10, 51))  # the grid of shares: 0.2, 0.22, ..., 1


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """Where curvature is measured."""

    images: Annotated[int, "training images, without their labels", Bounds(least=1)] = 300
    crops: Annotated[int, "small crops of each image, beside two large ones", Bounds(least=0)] = 10

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, kw_only=True)
class Evolution:
    """How factors are searched."""

    evaluations: Annotated[int, "vectors of factors that are tried, the start among them", Bounds(least=1)] = 120
    spread: Annotated[float, "their standard deviation around the start", Bounds(above=0)] = 0.3
    first: Annotated[float, "the start's factor for the first block", Bounds(above=0)] = 1.2
    last: Annotated[float, "the start's factor for the last block; those between lie on a line", Bounds(above=0)] = 0.8
    sparsities: Annotated[
        tuple[float, ...], "shares of the hidden neurons that are cut to compare features", Bounds(above=0, most=1)
    ] = (0.15, 0.35, 0.55, 0.65)
    components: Annotated[int, "principal components of the features that are compared", Bounds(least=1)] = 192
    compared: Annotated[int, "images on which they are compared", Bounds(least=2)] = 128

    def __post_init__(self) -> None:
        check_bounds(self)
        if not self.sparsities:
            raise WrongCall("sparsities has no value; name one or more, such as --sparsities 0.35")


@dataclass(frozen=True, kw_only=True)
class Search:
    """Everything that the ranking follows from."""

    sensitivity: Sensitivity = field(default=Sensitivity(), metadata=FLAT)
    evolution: Evolution = field(default=Evolution(), metadata=FLAT)
    lead: Annotated[
        float,
        "how much greater the share of heads that are kept is than that of hidden neurons",
        Bounds(least=0, most=1),
    ] = 0.15

    def __post_init__(self) -> None:
        check_bounds(self)

    def shares(self, keep: float) -> tuple[float, float]:
        """Of heads and of hidden neurons. Rounded: 0.85 and 0.15 make 1."""
        return min(round(keep + self.lead, 6), 1.0), keep


@dataclass(frozen=True, kw_only=True)
class Details:
    """What a learngene's `details` hold; before the extraction nothing is known of the ranking."""

    search: Search
    stored: bool = True  # whether the ancestry model's weights are among the tensors
    task: str | None = None  # whose images were seen
    start: float | None = None  # mean cosine of pruned models' features with the whole one's, with the start's factors
    reached: float | None = None  # the same with the best ones
    heads: tuple[tuple[int, ...], ...] = ()  # for each of `FIFTIETHS`, how many every block keeps
    hidden: tuple[tuple[int, ...], ...] = ()

    def cuts(self) -> dict[float, Counts]:
        """What a share of the ranking leaves. Raises `BadFile` if it does not fit the shares."""
        return by_share(FIFTIETHS, self.heads, self.hidden)


@dataclass(frozen=True, kw_only=True)
class Order(Extractor):
    """Rank the heads and hidden neurons of the ancestry model once; keep it, or only its name."""

    store: Annotated[
        bool, "keep the ancestry model's weights; otherwise every expansion opens that model again, by its checksum"
    ] = True
    each: Search = field(default=Search(), metadata=FLAT)

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """The ancestry model's shape."""
        check_prunable(ancestries[0], "elastic")
        details = Details(search=self.each, stored=self.store)
        return LearngeneConfig(method="elastic", spec=ancestries[0], details=_written(details))

    def work(self, ancestries: Sequence[Spec], images: Sequence[int]) -> list[Work]:
        """Gradients of all crops, then the pruned models' features."""
        layers, search, evolution = ancestries[0].layers, self.each.sensitivity, self.each.evolution
        seen = min(search.images, images[0]) * (2 + search.crops)
        tried = min(evolution.compared, images[0]) * len(evolution.sparsities) * evolution.evaluations
        return [Work(images=seen, trained=layers), Work(images=tried, trained=0, frozen=layers)]

    def __call__(self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run) -> Learngene:
        """The ranking is a part of the run."""
        from learngene_zoo.plugin import without_head

        ancestry = ancestries[0]
        found = once(run.part("ranking"), ranking, self.each, [ancestry, tasks[0]])
        details = replace(from_json(Details, found.record, "ranking"), stored=self.store)
        config = LearngeneConfig(method="elastic", spec=ancestry.spec, details=_written(details))
        kept = without_head(ancestry.state, ancestry.spec) if self.store else {}
        return Learngene(config=config, state={**kept, **{name: found.state[name] for name in found.state}})


def ranking(settings: Search, ancestry: Ancestry, task: Task, run: Run) -> tuple[StateDict, Json]:
    """The scores times their factors, and `Details` as JSON."""
    import torch

    from learngene_zoo.plugin import derive_seed, model_of, without_head
    from lgzoo_closed_form.agreement import Agreement, scaled
    from lgzoo_closed_form.curvature import curvatures
    from lgzoo_closed_form.xnes import minimised

    spec, evolution = ancestry.spec.with_(classes=0), settings.evolution
    model = model_of(spec, without_head(ancestry.state, ancestry.spec))
    most = max(settings.sensitivity.images, evolution.compared)
    images = shown_to(spec, Calibration(images=most), task, ancestry.input_format, run).images
    seen, small = images[: settings.sensitivity.images], settings.sensitivity.crops
    scores = curvatures(model, spec, seen, small=small, seed=derive_seed(run.seed, "crops"))
    shares = [settings.shares(1 - sparsity) for sparsity in evolution.sparsities]
    agreement = Agreement.on(model, spec, scores, images[: evolution.compared], shares, evolution.components)
    line_L = torch.linspace(evolution.first, evolution.last, spec.layers)
    start_N = torch.cat([line_L, line_L.repeat_interleave(spec.heads)])
    tries, seed = evolution.evaluations, derive_seed(run.seed, "evolution")
    found = minimised(agreement.loss, start_N, evaluations=tries, spread=evolution.spread, seed=seed)
    final = [(one / one.mean()).float() for one in scaled(scores, found.best)]
    leasts, wanted = least_of(spec), zip(*(settings.shares(keep) for keep in FIFTIETHS))
    heads, hidden = (cuts_at(one.tolist(), each, least) for one, each, least in zip(final, wanted, leasts))
    details = Details(
        search=settings,
        task=task.name,
        start=round(1 - found.losses[0], 6),
        reached=round(1 - found.loss, 6),
        heads=heads,
        hidden=hidden,
    )
    return {f"{IMPORTANCE}heads": final[0], f"{IMPORTANCE}hidden": final[1]}, _written(details)


@dataclass(frozen=True, kw_only=True)
class Begin(Expander):
    """Cut the ranking, and let what is left make up for the rest."""

    axes = frozenset({"heads", "mlp_ratio", "classes", "image_size"})

    keep: Annotated[
        float | None, "share of the hidden neurons that is kept; of the heads more (--lead)", Bounds(above=0, most=1)
    ] = None
    compensate: Annotated[bool, "let the layers behind them make up for what is cut, on some images"] = True
    calibration: Annotated[
        str | None, "the task whose training images that is done on, as folder:PATH (default: the extraction's)"
    ] = None

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Every fiftieth of the ranking from a fifth on, which is known after the extraction; before it the whole model."""
        cuts = details_of(config, Details).cuts()
        return uneven_members(config.spec, cuts.items()) or [Member(spec=config.spec, settings={"keep": 1.0})]

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Build it. Raises `WrongCall` for sizes of blocks, which follow from the ranking."""
        config, details = learngene.config, details_of(learngene.config, Details)
        whole, keep = replace(target, heads=None, mlp_ratio=None).apply(config.spec), self.keep or 1.0
        kept = beginnings(learngene, details.search.shares(keep), details.cuts().get(keep))
        spec = uneven_spec(whole, Counts(tuple(counted(kept.heads)), tuple(counted(kept.hidden))))
        for name, value in target.axes().items():
            if value != getattr(spec, name):
                raise WrongCall(
                    f"{name} is {value}, but each block keeps what the ranking leaves it; leave out "
                    f"--{name.replace('_', '-')}, and name --keep or a budget"
                )
        task = calibration_task(self.calibration, details.task, target, run) if self.compensate and keep < 1 else None
        return build(learngene, spec, kept, run, Calibration(), task)


def _written(details: Details) -> dict[str, Json]:
    """As they are stored: what is not known yet is left out."""
    return {name: value for name, value in to_json(details).items() if value not in (None, [])}


ELASTIC = Method(
    name="elastic",
    title="one ranking of all heads and hidden neurons; models of every budget are cut from it, without training",
    paper=(
        "Simoncini, Dorkenwald, Blankevoort, Snoek, Asano. Elastic ViTs from Pretrained Models without Retraining. NeurIPS 2025"
    ),
    expander=Begin(),
    presets={
        "mini": Order(),
        "paper": Order(
            each=Search(
                sensitivity=Sensitivity(images=1000), evolution=Evolution(evaluations=50, spread=1.0, compared=1000)
            )
        ),
        "smoke": Order(
            each=Search(
                sensitivity=Sensitivity(images=4, crops=2),
                evolution=Evolution(evaluations=12, sparsities=(0.35, 0.65), compared=12),
            )
        ),
    },
    tasks="one",
    details=Details,
)
