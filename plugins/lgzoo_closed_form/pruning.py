"""Structured pruning: cut attention heads and hidden neurons, and let the rest absorb the loss.

Fang, Ma, Song, Bi Mi, Wang. DepGraph: Towards Any Structural Pruning. CVPR 2023 (criteria and
rankings, as its code Torch-Pruning has them); Zhang, Yang. CORP: Closed-Form One-shot
Representation-Preserving Structured Pruning for Transformers. arXiv 2602.05243, 2026.

    1  score     every head and hidden neuron, with all weights that belong to it   (importance.py)
    2  rank      them within each block, so that all blocks keep the same number, or through all
                 blocks                                                                  (sizes.py)
    3  cut       the least important ones                                   (pruned.py, cutting.py)
    4  absorb    the best estimate of the removed inputs of `attn.proj` and `mlp.fc2` from the kept
                 ones, by ridge regression                                            (cutting.py)
       with --head-dim, narrow the kept heads: queries and keys together, values and projection
       together                                                                     (head_dims.py)

The learngene is the ancestry model, or its name, with the importances. Descendants have its stream
and depth; those of texts have all heads, and can have fewer blocks (uniform.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Literal

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
    check_bounds,
    compute_once,
    from_json,
    parse_details,
    to_json,
)
from lgzoo_closed_form import uniform
from lgzoo_closed_form.calibration import Calibration, sample_pictures
from lgzoo_closed_form.limits import list_fixed_head_features
from lgzoo_closed_form.pruned import (
    DAMPING,
    PRUNED_AXES,
    Compensate,
    CompensationDamping,
    CompensationTask,
    StoreWeights,
    build_pruned,
    check_compensation,
    check_head_dim,
    check_prunable,
    choose_task,
    collect_learngene,
    derive_selected_spec,
    derive_uncut_spec,
    name_importances,
    select_shares,
    select_within_blocks,
)
from lgzoo_closed_form.sizes import (
    SHARES,
    count_by_share,
    derive_even_spec,
    derive_minimum,
    derive_mlp_ratio,
    list_even_members,
    list_uneven_members,
    map_shares,
)
from lgzoo_closed_form.work import estimate_compensation, estimate_scores

if TYPE_CHECKING:
    from learngene_zoo.plugin import Ancestry, Descendant, Json, Run, StateDict, Task


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """Criterion of the scores, and the images that they are measured on."""

    criterion: Annotated[
        Literal["energy", "magnitude", "taylor"],
        "criterion of importance: variance of the output in the stream, squared weights, or "
        "gradient of the loss times weight",
    ] = "energy"
    group: Annotated[
        Literal["block", "model"],
        "scores are divided by their mean over the block, or over all blocks, which then lose "
        "more where scores are low",
    ] = field(default="block", metadata=OMIT_DEFAULT)
    calibration: Calibration = field(default=Calibration(), metadata=FLAT)

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, kw_only=True)
class PruningDetails:
    """The method's own record in a learngene; the cuts follow from the extraction."""

    stored: bool = True  # whether the ancestry model's weights are among the tensors
    task: str | None = None  # whose images were seen
    heads: tuple[tuple[int, ...], ...] = ()  # for each of `SHARES`, how many every block keeps
    hidden: tuple[tuple[int, ...], ...] = ()
    scoring: Scoring


@dataclass(frozen=True, kw_only=True)
class PruningExtractor(Extractor):
    """Score the heads and hidden neurons of the ancestry model; keep it, or only its name."""

    store: StoreWeights = True
    each: Scoring = field(default=Scoring(), metadata=FLAT)

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """Return the config with the ancestry model's shape."""
        check_prunable(ancestries[0], "pruning", self.each.calibration)
        details = PruningDetails(scoring=self.each, stored=self.store)
        return LearngeneConfig(spec=ancestries[0]).with_details(details)

    def work(self, ancestries: Sequence[Spec], images: Sequence[int]) -> list[Work]:
        """Estimate one pass over the images, with gradients for `taylor`."""
        each, spec = self.each.calibration, ancestries[0]
        if self.each.criterion == "taylor":
            return [Work(images=min(each.images, images[0]), trained=spec.layers)]
        return [estimate_scores(spec, each, images[0])]

    def __call__(
        self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run
    ) -> Learngene:
        """Score heads and hidden neurons, step 1; the scores are a part of the run."""
        ancestry, part = ancestries[0], run.part("scores")
        scores = compute_once(part, "pruning.scores", score_units, self.each, [ancestry, tasks[0]])
        details = from_json(PruningDetails, scores.record, "ranking")
        details = replace(details, stored=self.store)
        config = LearngeneConfig(spec=ancestry.spec).with_details(details)
        return collect_learngene(ancestry, scores.state, config, store=self.store)


def score_units(
    settings: Scoring, ancestry: Ancestry, task: Task, run: Run
) -> tuple[StateDict, Json]:
    """Return the importances, and `PruningDetails` as JSON.

    Args:
        settings: criterion and calibration.
        ancestry: the ancestry model.
        task: whose training images are seen.
        run: the part of the run.
    """
    from learngene_zoo.plugin import build_model
    from lgzoo_closed_form.modules.importance import measure_importances, measure_influences

    spec, calibration = ancestry.spec, settings.calibration
    pictures = sample_pictures(spec, calibration, task, ancestry.input_format, run)
    importances = measure_importances(settings.criterion, ancestry, pictures, settings.group)
    scores = [rows.float() for rows in importances]
    if uniform.is_uniform(spec):
        details = PruningDetails(scoring=settings, task=task.name)
        blocks = measure_influences(build_model(spec, ancestry.state), pictures).float()
        return name_importances(hidden=scores[1], blocks=blocks), to_json(details)
    heads, hidden = (
        count_by_share(rows.tolist(), SHARES, minimum)
        for rows, minimum in zip(scores, derive_minimum(spec))
    )
    details = PruningDetails(scoring=settings, task=task.name, heads=heads, hidden=hidden)
    return name_importances(heads=scores[0], hidden=scores[1]), to_json(details)


@dataclass(frozen=True, kw_only=True)
class PruningExpander(Expander):
    """Cut the least important heads and hidden neurons; compensate the layers behind the cuts."""

    axes = PRUNED_AXES

    compensate: Compensate = True
    calibration: CompensationTask = None
    ranking: Annotated[
        Literal["local", "global"],
        "whether all blocks keep as much, or what one ranking through all leaves each",
    ] = "local"
    keep: Annotated[
        float | None,
        "share of the heads, and of the hidden neurons, that is kept",
        Bounds(above=0, most=1),
    ] = None
    head_dim: Annotated[
        int | None,
        "channels that every kept head keeps (none: all); queries and keys, and values and "
        "projection, are factored jointly",
        Bounds(least=1),
    ] = None
    damping: CompensationDamping = DAMPING

    def list_axes(self, spec: Spec) -> frozenset[str]:
        """Return the sizes that can be changed; see `uniform.list_axes`."""
        return uniform.list_axes(spec)

    def list_size_settings(self, spec: Spec) -> tuple[str, ...]:
        """Return `head_dim`, if heads can have fewer channels."""
        is_fixed = uniform.is_uniform(spec) or list_fixed_head_features(spec)
        return () if is_fixed else ("head_dim",)

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Return every number of heads with every eighth of the hidden neurons.

        Of the ranking through all blocks, which is known after the extraction, return every
        twentieth; of texts every number of blocks with every eighth of the hidden neurons.
        """
        spec = config.spec
        self.check_target(config, Target())
        if uniform.is_uniform(spec):
            return uniform.list_members(spec, self.keep)
        if self.ranking == "global":
            details = parse_details(config, PruningDetails)
            cuts = map_shares(SHARES, details.heads, details.hidden)
            return list_uneven_members(spec, cuts, self.head_dim)
        if self.keep is None:
            return list_even_members(spec, self.head_dim)
        return [Member(spec=self._derive_spec(spec, Target()))]

    def check_target(self, config: LearngeneConfig, target: Target) -> None:
        """Raise `WrongCall` for blocks and heads that cannot be built."""
        check_compensation(self.compensate, self.calibration, self.damping)
        uniform.check_sizes(config.spec, target, ranking=self.ranking, head_dim=self.head_dim)
        check_head_dim(config.spec, self.head_dim, is_compensated=self.compensate)

    def work(self, config: LearngeneConfig, spec: Spec, images: Sequence[int]) -> list[Work]:
        """Estimate the compensation."""
        each = parse_details(config, PruningDetails).scoring.calibration
        return [estimate_compensation(config.spec, spec, each, images[0])] * self.compensate

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Build a descendant, steps 2 to 4.

        Raises `WrongCall` for more than the ancestry model has, and for sizes beside a global
        ranking.
        """
        self.check_target(learngene.config, target)
        details = parse_details(learngene.config, PruningDetails)
        if uniform.is_uniform(learngene.config.spec):
            spec, selection = uniform.select(learngene, target, self.keep)
        elif self.ranking == "global":
            share = self.keep or 1.0
            cuts = map_shares(SHARES, details.heads, details.hidden)
            selection = select_shares(learngene, (share, share), cuts.get(share))
            reason = "the ranking global gives each block its own"
            spec = derive_selected_spec(learngene, target, selection, reason, self.head_dim)
        else:
            spec = self._derive_spec(derive_uncut_spec(learngene, target), target)
            selection = select_within_blocks(learngene, spec)
        calibration, task = details.scoring.calibration, None
        if self.compensate:
            task = choose_task(
                learngene, target, selection, self.calibration, details.task, run, self.head_dim
            )
        return build_pruned(learngene, spec, selection, run, calibration, task, self.damping)

    def _derive_spec(self, uncut: Spec, target: Target) -> Spec:
        """Return the shape of the named sizes; else of the share that is kept, never of nothing."""
        heads, hidden = (max(round((self.keep or 1) * n), 1) for n in (uncut.heads, uncut.hidden))
        mlp_ratio = target.mlp_ratio
        if mlp_ratio is None:
            mlp_ratio = derive_mlp_ratio(uncut, hidden)
        return derive_even_spec(uncut, target.heads or heads, mlp_ratio, self.head_dim)


PRUNING = Method(
    name="pruning",
    title=(
        "fewer heads and hidden neurons, the rest making up for them in closed form, without "
        "training"
    ),
    paper=(
        "Fang, Ma, Song, Bi Mi, Wang. DepGraph: Towards Any Structural Pruning. CVPR 2023; Zhang, "
        "Yang. CORP: Closed-Form One-shot Representation-Preserving Structured Pruning for "
        "Transformers. arXiv 2602.05243, 2026"
    ),
    expander=PruningExpander(),
    presets={
        "mini": PruningExtractor(),
        "paper": PruningExtractor(each=Scoring(criterion="magnitude")),
        "smoke": PruningExtractor(each=Scoring(calibration=Calibration(images=24))),
    },
    families=("vit", "eva", "gpt2", "bert"),
    tasks="one",
    uses_labels=False,
    details=PruningDetails,
)
