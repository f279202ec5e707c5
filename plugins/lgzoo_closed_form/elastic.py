"""SnapViT: one ranking of all heads and hidden neurons, from which a model of any budget is cut.

Simoncini, Dorkenwald, Blankevoort, Snoek, Asano. Elastic ViTs from Pretrained Models without
Retraining. NeurIPS 2025.

    1  score     every head and hidden neuron by the curvature of DINO's objective along its
                 weights, without labels                                        (curvature.py)
    2  evolve    a factor for the neurons of each block and for each head, by xNES, so that the
                 features of pruned models agree best with the whole model's at several
                 sparsities at once                                    (agreement.py, xnes.py)
    3  rank      all by score times factor; a share of the ranking is a model       (sizes.py)
    4  cut       the last ones, and compensate as `pruning` does       (pruned.py, cutting.py)

The learngene is the ancestry model, or its name, with the ranking. Descendants have its stream and
depth, and everything that a smaller one keeps a larger one keeps, too. Models of texts have blocks
of one size (uniform.py), so no factor changes what they keep, and step 2 is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from learngene_zoo.plugin import (
    FLAT,
    OMIT_DEFAULT,
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
    compute_once,
    compute_sha256,
    from_json,
    parse_details,
    to_json,
)
from lgzoo_closed_form import uniform
from lgzoo_closed_form.calibration import Calibration, sample_pictures
from lgzoo_closed_form.pruned import (
    DAMPING,
    PRUNED_AXES,
    Compensate,
    CompensationDamping,
    CompensationTask,
    StoreWeights,
    build_pruned,
    check_compensation,
    check_prunable,
    choose_task,
    collect_learngene,
    derive_selected_spec,
    name_importances,
    select_shares,
)
from lgzoo_closed_form.ranking import FIFTIETHS, Evolution, RankingSettings, Sensitivity
from lgzoo_closed_form.sizes import list_uneven_members, map_shares

if TYPE_CHECKING:
    from learngene_zoo.plugin import Ancestry, Descendant, Json, Run, StateDict, Task


@dataclass(frozen=True, kw_only=True)
class ElasticDetails:
    """The method's own record in a learngene; cuts and agreement follow from the extraction."""

    stored: bool = True  # whether the ancestry model's weights are among the tensors
    task: str | None = None  # whose images were seen
    heads: tuple[tuple[int, ...], ...] = ()  # for each of `FIFTIETHS`, how many every block keeps
    hidden: tuple[tuple[int, ...], ...] = ()
    search: RankingSettings
    # Mean cosine of pruned models' features with the whole one's, with the start's factors.
    start: float | None = None
    reached: float | None = None  # the same with the best ones
    # The checksum of the file that the scores are from
    scores: str | None = field(default=None, metadata=OMIT_DEFAULT)


@dataclass(frozen=True, kw_only=True)
class ElasticExtractor(Extractor):
    """Rank the heads and hidden neurons of the ancestry model once; keep it, or only its name."""

    store: StoreWeights = True
    scores: Annotated[
        str | None,
        "file of scores that the authors' code wrote for this model (.pt), or the same two tensors "
        "in .safetensors; then nothing is measured",
    ] = field(default=None, metadata=OMIT_DEFAULT)
    each: RankingSettings = field(default=RankingSettings(), metadata=FLAT)

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """Return the config with the ancestry model's shape."""
        check_prunable(ancestries[0], "elastic")
        uniform.check_scores(ancestries[0], self.scores)
        details = ElasticDetails(search=self.each, stored=self.store)
        return LearngeneConfig(spec=ancestries[0]).with_details(details)

    def work(self, ancestries: Sequence[Spec], images: Sequence[int]) -> list[Work]:
        """Estimate the gradients of all crops, then the pruned models' features."""
        if self.scores is not None:
            return []
        layers, search, evolution = ancestries[0].layers, self.each.sensitivity, self.each.evolution
        crops = min(search.images, images[0]) * (2 + search.crops)
        comparisons = len(evolution.sparsities) * evolution.evaluations
        compared = min(evolution.compared, images[0]) * comparisons
        if uniform.is_uniform(ancestries[0]):  # no factor changes the order within a block
            compared = min(search.images, images[0])
        pruned = Work(images=compared, trained=0, frozen=layers)
        return [Work(images=crops, trained=layers), pruned]

    def __call__(
        self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run
    ) -> Learngene:
        """Rank heads and hidden neurons, steps 1 to 3; the ranking is a part of the run."""
        ancestry, part = ancestries[0], run.part("ranking")
        if self.scores is None:
            inputs = [ancestry, tasks[0]]
            ranking = compute_once(part, "elastic.ranking", rank_units, self.each, inputs)
            ranks, record = ranking.state, ranking.record
        else:
            ranks, record = read_ranking(self.scores, self.each, ancestry.spec, tasks[0])
        details = from_json(ElasticDetails, record, "ranking")
        details = replace(details, stored=self.store)
        config = LearngeneConfig(spec=ancestry.spec).with_details(details)
        return collect_learngene(ancestry, ranks, config, store=self.store)


def read_ranking(
    path: str, settings: RankingSettings, spec: Spec, task: Task
) -> tuple[StateDict, Json]:
    """Return the scores in a file, and `ElasticDetails` as JSON.

    Args:
        path: the file.
        settings: of the shares; the others have no effect.
        spec: the shape of the ancestry model.
        task: whose images compensate descendants.

    Raises `BadFile` for a file without the scores of such a model.
    """
    from lgzoo_closed_form.modules.score_files import read_scores

    ranks = [(rows / rows.mean()).float() for rows in read_scores(path, spec)]
    heads, hidden = settings.count_kept(ranks, spec)
    ranked = ElasticDetails(search=settings, task=task.name, heads=heads, hidden=hidden)
    details = replace(ranked, scores=compute_sha256(Path(path)))
    return name_importances(heads=ranks[0], hidden=ranks[1]), to_json(details)


def rank_units(
    settings: RankingSettings, ancestry: Ancestry, task: Task, run: Run
) -> tuple[StateDict, Json]:
    """Return the scores times their factors, and `ElasticDetails` as JSON.

    Args:
        settings: of scores, evolution and shares.
        ancestry: the ancestry model.
        task: whose training images are seen.
        run: the part of the run.
    """
    import torch

    from learngene_zoo.plugin import build_model, derive_seed, remove_head
    from lgzoo_closed_form.modules.agreement import Agreement, evolve_factors, scale_scores
    from lgzoo_closed_form.modules.curvature import measure_curvatures
    from lgzoo_closed_form.modules.importance import measure_influences

    spec, sensitivity = ancestry.spec.with_(classes=0), settings.sensitivity
    evolution = settings.evolution
    model = build_model(spec, remove_head(ancestry.state, ancestry.spec))
    calibration = Calibration(images=max(sensitivity.images, evolution.compared))
    pictures = sample_pictures(spec, calibration, task, ancestry.input_format, run)
    images = pictures.images
    scores = measure_curvatures(
        model,
        spec,
        images[: sensitivity.images],
        num_small=sensitivity.crops,
        seed=derive_seed(run.seed, "crops"),
        has_progress=run.progress,
    )
    if uniform.is_uniform(spec):
        blocks = measure_influences(model, pictures).float()
        details = ElasticDetails(search=settings, task=task.name)
        return name_importances(hidden=scores[1].float(), blocks=blocks), to_json(details)
    shares = [settings.compute_shares(1 - sparsity) for sparsity in evolution.sparsities]
    compared = images[: evolution.compared]
    agreement = Agreement.from_images(model, spec, scores, compared, shares, evolution.components)
    line_L = torch.linspace(evolution.first, evolution.last, spec.layers)
    start_N = torch.cat([line_L, line_L.repeat_interleave(spec.heads)])
    result = evolve_factors(
        agreement, start_N, evaluations=evolution.evaluations, spread=evolution.spread, run=run
    )
    ranks = [(rows / rows.mean()).float() for rows in scale_scores(scores, result.best)]
    heads, hidden = settings.count_kept(ranks, spec)
    details = ElasticDetails(
        search=settings,
        task=task.name,
        start=round(1 - result.losses[0], 6),
        reached=round(1 - result.loss, 6),
        heads=heads,
        hidden=hidden,
    )
    return name_importances(heads=ranks[0], hidden=ranks[1]), to_json(details)


@dataclass(frozen=True, kw_only=True)
class ElasticExpander(Expander):
    """Cut the ranking, and compensate the layers behind the cuts."""

    axes = PRUNED_AXES

    compensate: Compensate = True
    calibration: CompensationTask = None
    keep: Annotated[
        float | None,
        "share of the hidden neurons that is kept; of the heads more (--lead)",
        Bounds(above=0, most=1),
    ] = None
    damping: CompensationDamping = DAMPING

    def list_axes(self, spec: Spec) -> frozenset[str]:
        """Return the sizes that can be changed; see `uniform.list_axes`."""
        return uniform.list_axes(spec)

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Return every fiftieth of the ranking from a fifth on; before it is known, the whole.

        Of texts return every number of blocks with every eighth of the hidden neurons.
        """
        if uniform.is_uniform(config.spec):
            return uniform.list_members(config.spec, self.keep)
        details = parse_details(config, ElasticDetails)
        cuts = map_shares(FIFTIETHS, details.heads, details.hidden)
        return list_uneven_members(config.spec, cuts)

    def check_target(self, config: LearngeneConfig, target: Target) -> None:
        """Raise `WrongCall` for blocks and heads that cannot be built."""
        check_compensation(self.compensate, self.calibration, self.damping)
        uniform.check_sizes(config.spec, target)

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Build a descendant, step 4.

        Raises `WrongCall` for sizes of blocks, which follow from the ranking.
        """
        details, keep = parse_details(learngene.config, ElasticDetails), self.keep or 1.0
        if uniform.is_uniform(learngene.config.spec):
            spec, selection = uniform.select(learngene, target, keep)
        else:
            cuts = map_shares(FIFTIETHS, details.heads, details.hidden)
            shares = details.search.compute_shares(keep)
            selection = select_shares(learngene, shares, cuts.get(keep))
            reason = "each block keeps what the ranking leaves it"
            spec = derive_selected_spec(learngene, target, selection, reason)
        task = None
        if self.compensate:
            task = choose_task(learngene, target, selection, self.calibration, details.task, run)
        return build_pruned(learngene, spec, selection, run, Calibration(), task, self.damping)


ELASTIC = Method(
    name="elastic",
    title=(
        "one ranking of all heads and hidden neurons; models of every budget are cut from it, "
        "without training"
    ),
    paper=(
        "Simoncini, Dorkenwald, Blankevoort, Snoek, Asano. Elastic ViTs from Pretrained Models "
        "without Retraining. NeurIPS 2025"
    ),
    expander=ElasticExpander(),
    presets={
        "mini": ElasticExtractor(),
        "paper": ElasticExtractor(
            each=RankingSettings(
                sensitivity=Sensitivity(images=1000),
                evolution=Evolution(evaluations=50, spread=1.0, compared=1000),
            )
        ),
        "smoke": ElasticExtractor(
            each=RankingSettings(
                sensitivity=Sensitivity(images=4, crops=2),
                evolution=Evolution(evaluations=12, sparsities=(0.35, 0.65), compared=12),
            )
        ),
    },
    families=("vit", "eva", "gpt2", "bert"),
    tasks="one",
    uses_labels=False,
    details=ElasticDetails,
)
