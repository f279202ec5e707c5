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
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

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
    WrongCall,
    check_bounds,
    details_of,
    once,
)
from lgzoo_closed_form.calibration import Calibration
from lgzoo_closed_form.pruned import IMPORTANCE, shown_to
from lgzoo_closed_form.ranked import Cutting, Ranked, Ranking
from lgzoo_closed_form.sizes import cuts_at, least_of, uneven_members

if TYPE_CHECKING:
    from learngene_zoo.plugin import Ancestry, Descendant, Json, Part, Run, StateDict, Task

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
class Details(Ranked):
    """What a learngene's `details` hold."""

    shares = FIFTIETHS

    search: Search
    start: float | None = None  # mean cosine of pruned models' features with the whole one's, with the start's factors
    reached: float | None = None  # the same with the best ones


@dataclass(frozen=True, kw_only=True)
class Order(Ranking):
    """Rank the heads and hidden neurons of the ancestry model once; keep it, or only its name."""

    method = "elastic"

    each: Search = field(default=Search(), metadata=FLAT)

    def details(self) -> Details:
        """The settings."""
        return Details(search=self.each, stored=self.store)

    def ranked(self, ancestry: Ancestry, task: Task, run: Run) -> Part:
        """Steps 1 to 3."""
        return once(run.part("ranking"), "elastic.ranking", ranking, self.each, [ancestry, task])

    def work(self, ancestries: Sequence[Spec], images: Sequence[int]) -> list[Work]:
        """Gradients of all crops, then the pruned models' features."""
        layers, search, evolution = ancestries[0].layers, self.each.sensitivity, self.each.evolution
        seen = min(search.images, images[0]) * (2 + search.crops)
        tried = min(evolution.compared, images[0]) * len(evolution.sparsities) * evolution.evaluations
        return [Work(images=seen, trained=layers), Work(images=tried, trained=0, frozen=layers)]


def ranking(settings: Search, ancestry: Ancestry, task: Task, run: Run) -> tuple[StateDict, Json]:
    """The scores times their factors, and `Details` as JSON."""
    import torch

    from learngene_zoo.plugin import derive_seed, model_of, progress, without_head
    from lgzoo_closed_form.agreement import Agreement, scaled
    from lgzoo_closed_form.curvature import curvatures
    from lgzoo_closed_form.xnes import minimised

    spec, evolution = ancestry.spec.with_(classes=0), settings.evolution
    model = model_of(spec, without_head(ancestry.state, ancestry.spec))
    most = max(settings.sensitivity.images, evolution.compared)
    images = shown_to(spec, Calibration(images=most), task, ancestry.input_format, run).images
    seen, small = images[: settings.sensitivity.images], settings.sensitivity.crops
    scores = curvatures(model, spec, seen, small=small, seed=derive_seed(run.seed, "crops"), bars=run.progress)
    shares = [settings.shares(1 - sparsity) for sparsity in evolution.sparsities]
    agreement = Agreement.on(model, spec, scores, images[: evolution.compared], shares, evolution.components)
    line_L = torch.linspace(evolution.first, evolution.last, spec.layers)
    start_N = torch.cat([line_L, line_L.repeat_interleave(spec.heads)])
    tries, seed = evolution.evaluations, derive_seed(run.seed, "evolution")
    with closing(progress(range(tries), "evolving the ranking", run.progress)) as turns:

        def loss(factors_N: torch.Tensor) -> float:
            next(turns, None)
            return agreement.loss(factors_N)

        found = minimised(loss, start_N, evaluations=tries, spread=evolution.spread, seed=seed)
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
    return {f"{IMPORTANCE}heads": final[0], f"{IMPORTANCE}hidden": final[1]}, details.written()


@dataclass(frozen=True, kw_only=True)
class Begin(Cutting):
    """Cut the ranking, and let what is left make up for the rest."""

    keep: Annotated[
        float | None, "share of the hidden neurons that is kept; of the heads more (--lead)", Bounds(above=0, most=1)
    ] = None

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Every fiftieth of the ranking from a fifth on, which is known after the extraction; before it the whole model."""
        cuts = details_of(config, Details).cuts()
        return uneven_members(config.spec, cuts.items()) or [Member(spec=config.spec, settings={"keep": 1.0})]

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Build it. Raises `WrongCall` for sizes of blocks, which follow from the ranking."""
        details, keep = details_of(learngene.config, Details), self.keep or 1.0
        shares, why = details.search.shares(keep), "each block keeps what the ranking leaves it"
        sizes = self.through_all(learngene, target, details, keep, shares, why)
        return self.built(learngene, target, details, sizes, Calibration(), run)


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
