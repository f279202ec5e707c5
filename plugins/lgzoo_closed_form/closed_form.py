"""Closed-form descendants: models of any depth and any width in whole heads, from unlabelled images, without a gradient.

A method of this zoo. The learngene is the ancestry model itself, without its head, or only its name, with what a few hundred images
tell of it:

    1  record the residual streams of all blocks                            (streams.py, recording.py)
    2  cut the blocks into k runs, best for every k at once; a run's first block stands for it       (depth.py)
    3  find the directions in which the streams vary most                                  (width.py)

A descendant of k layers and width d is made block by block, from its own inputs:

    4  copy the first block of each run, narrowed to d: stream projected, LayerNorm exact, heads and neurons selected
    5  solve its queries, keys and values towards the ancestry model's, by weighted ridge regression     (ridge.py)
       then the projection, so that the stream becomes the ancestry model's after that block's attention,
       then fc1 towards the ancestry model's hidden values,
       then fc2, so that the stream becomes the ancestry model's at the end of the run

Every solution starts from the copied weights and is drawn towards them. Near it: CORP (arXiv 2602.05243) solves layers inside a block,
ReplaceMe (2505.02819) replaces blocks by one linear layer, SliceGPT (2401.15024) narrows the streams of models with RMSNorm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Literal

from learngene_zoo.plugin import (
    FLAT,
    BadFile,
    Expander,
    Extractor,
    Learngene,
    LearngeneConfig,
    Member,
    Method,
    Work,
    WrongCall,
    details_of,
    from_json,
    once,
    to_json,
)
from lgzoo_closed_form.calibration import Calibration, calibration_task, form_of
from lgzoo_closed_form.depth import cuts
from lgzoo_closed_form.teaching import PART, kept_teacher, teaching

if TYPE_CHECKING:
    import torch

    from learngene_zoo.plugin import Ancestry, Descendant, Json, Run, Spec, StateDict, Target, Task

DIRECTIONS = "directions"  # the learngene's tensor (D, D): principal directions of the streams, by falling variance


@dataclass(frozen=True, kw_only=True)
class Details:
    """What a learngene's `details` hold; before the extraction nothing is known of runs and directions."""

    calibration: Calibration
    stored: bool = True  # whether the ancestry model's weights are among the tensors
    task: str | None = None  # whose images were seen
    runs: tuple[tuple[int, ...], ...] = ()  # for 1, 2, ... layers the first block of each run, counted from 0
    objective: tuple[float, ...] = ()  # of these cuts, never rising
    variance: tuple[float, ...] = ()  # share of every direction in the streams' variance


@dataclass(frozen=True, kw_only=True)
class Measure(Extractor):
    """See some hundred unlabelled images, and keep the ancestry model with the best cuts and the main directions."""

    store: Annotated[
        bool, "keep the ancestry model's weights; otherwise every expansion opens that model again, by its checksum"
    ] = True
    keep_streams: Annotated[
        bool,
        "keep the recorded streams beside the learngene, in its run's folder: every expansion there starts from them",
    ] = False
    each: Calibration = field(default=Calibration(), metadata=FLAT)

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """The ancestry model's shape."""
        spec = ancestries[0]
        for feature in _unsolved(spec):
            raise WrongCall(f"closed_form does not take models with {feature}; choose another ancestry model, or lsamd")
        return LearngeneConfig(
            method=CLOSED_FORM.name, spec=spec, details=_written(Details(calibration=self.each, stored=self.store))
        )

    def work(self, ancestries: Sequence[Spec], images: Sequence[int]) -> list[Work]:
        """One pass forward over the images."""
        return [Work(images=min(self.each.images, images[0]), trained=0, frozen=ancestries[0].layers)]

    def __call__(self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run) -> Learngene:
        """The statistics are a part of the run."""
        from learngene_zoo.plugin import without_head

        ancestry = ancestries[0]
        place = run.part(PART)
        if self.keep_streams and place.folder is None:
            raise WrongCall(
                "keep_streams keeps streams in the run's folder; say where the learngene is to be written (-o)"
            )
        part = once(place, "closed_form.statistics", statistics, self.each, [ancestry, tasks[0], self.keep_streams])
        details = replace(from_json(Details, part.record, "statistics"), stored=self.store)
        config = LearngeneConfig(method=CLOSED_FORM.name, spec=ancestry.spec, details=_written(details))
        kept = without_head(ancestry.state, ancestry.spec) if self.store else {}
        return Learngene(config=config, state={**kept, DIRECTIONS: part.state[DIRECTIONS]})


def statistics(
    settings: Calibration, ancestry: Ancestry, task: Task, keep_streams: bool, run: Run
) -> tuple[StateDict, Json]:
    """The main directions, and `Details` as JSON; the recorded streams stay in the run's folder, if they are to be kept."""
    from learngene_zoo.plugin import without_head
    from lgzoo_closed_form.recording import STREAMS, fresh, keep
    from lgzoo_closed_form.solve import costs_of_runs
    from lgzoo_closed_form.width import directions

    spec = ancestry.spec
    folder = fresh(run.folder / STREAMS, keep_streams) if run.folder else None
    state, form = without_head(ancestry.state, spec), ancestry.input_format
    with teaching(state, spec, settings, task, form, run, folder) as teacher:
        found = cuts(costs_of_runs(teacher, settings.ridge))
        columns_DD, shares_D = directions(teacher.streams, teacher.shown)
        if folder is not None:
            keep(folder, teacher.shown, columns_DD)
    details = Details(
        calibration=settings,
        task=task.name,
        runs=tuple(runs for runs, _ in found),
        objective=tuple(round(objective, 6) for _, objective in found),
        variance=tuple(round(share, 6) for share in shares_D.tolist()),
    )
    return {DIRECTIONS: columns_DD.float()}, to_json(details)


@dataclass(frozen=True, kw_only=True)
class Solve(Expander):
    """Copy the first block of every run, and solve all its linear layers."""

    axes = frozenset({"layers", "width", "heads", "classes", "image_size"})

    calibration: Annotated[
        str | None, "the task whose training images the equations are of, as folder:PATH (default: the extraction's)"
    ] = None
    cut: Annotated[Literal["programme", "first"], "which blocks begin the runs: the best cut's, or the first ones"] = (
        "programme"
    )
    solve: Annotated[bool, "solve the layers; otherwise they stay as they are copied"] = True
    nested: Annotated[
        bool,
        "let the stream of a narrower model be the first channels of a wider one's, the ancestry model's width included, at "
        "one direction less a head",
    ] = False

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Every depth up to the ancestry model's, with every width of whole heads where the stream can be narrowed."""
        spec = config.spec
        heads = range(1, spec.heads + 1) if not _unnarrowed(spec) else [spec.heads]
        sizes = [(layers, count) for layers in range(1, spec.layers + 1) for count in heads]
        return [
            Member(spec=spec.with_(layers=layers, width=count * spec.head_width, heads=count))
            for layers, count in sizes
        ]

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Build it. Raises `WrongCall` for a size beyond the ancestry model's, and for other than whole heads."""
        from learngene_zoo.plugin import assemble, inherited_weights, only, resize_positions, shapes
        from lgzoo_closed_form.solve import solved

        config, details = learngene.config, details_of(learngene.config, Details)
        spec = self._spec(target, config.spec)
        runs, task = self._runs(details, spec), calibration_task(self.calibration, details.task, target, run)
        P_dD = self._projection(learngene, spec)
        weights = inherited_weights(config, learngene.state, run)
        whole = {name: weights[name].float() for name in weights}  # those on the shelf are in half precision
        kept = kept_teacher(learngene, self._directions(learngene), whole, run) if task.name == details.task else None
        new = teaching(whole, config.spec, details.calibration, task, form_of(config), run)
        with nullcontext(kept) if kept else new as teacher:
            small = teacher.spec.with_(layers=spec.layers, width=spec.width, heads=spec.heads)
            parts = solved(teacher, small, runs, P_dD, rho=details.calibration.ridge, solve=self.solve)
        parts = only(
            resize_positions(parts, small, spec), shapes(spec).__contains__
        )  # no pooling, if the head is for pixels
        mean, std = config.normalisation
        provenance: dict[str, Json] = {"runs": list(runs), "calibration": task.name}
        if kept:
            provenance["streams"] = "kept"
        return assemble(spec, parts, seed=run.seed, mean=mean, std=std, provenance=provenance)

    def _spec(self, target: Target, whole: Spec) -> Spec:
        """The shape of a target; if only its width or its heads are given, the heads keep their width."""
        unit = whole.head_width
        spec = target.whole_heads(whole).apply(whole)
        if spec.head_width != unit or spec.width > whole.width:
            widths = ", ".join(str(heads * unit) for heads in range(1, whole.heads + 1))
            raise WrongCall(
                f"width is {spec.width} with {spec.heads} heads; this learngene has heads of {unit} and a width of {whole.width}: choose width {widths}"
            )
        if spec.layers > whole.layers:
            raise WrongCall(
                f"layers is {spec.layers}; the ancestry model has {whole.layers}, and closed_form builds no deeper one"
            )
        if spec.width < whole.width or self.nested:
            for feature in _unnarrowed(whole):
                turned = "narrowed; leave out the width" if spec.width < whole.width else "turned; leave out nested"
                raise WrongCall(f"the ancestry model has {feature}, so its stream cannot be {turned}")
        return spec

    def _runs(self, details: Details, spec: Spec) -> tuple[int, ...]:
        """The first block of each run. Raises `BadFile` for runs that cannot be."""
        if self.cut == "first":
            return tuple(range(spec.layers))
        found = details.runs[spec.layers - 1] if len(details.runs) >= spec.layers else ()
        if len(found) != spec.layers or found[:1] != (0,) or list(found) != sorted(set(found)):
            raise BadFile(
                f"details of the closed_form learngene: runs has {list(found)} for {spec.layers} layers; extract it again"
            )
        return found

    def _projection(self, learngene: Learngene, spec: Spec) -> torch.Tensor | None:
        """P (d, D) of the stream; None if it stays as it is."""
        from lgzoo_closed_form.width import projection

        columns_DD = self._directions(learngene)
        if spec.width == learngene.config.spec.width and not self.nested:
            return None
        return projection(columns_DD, spec.width, spec.head_width if self.nested else None)

    def _directions(self, learngene: Learngene) -> torch.Tensor:
        """(D, D). Raises `BadFile` for another shape."""
        width = learngene.config.spec.width
        columns = learngene.state.get(DIRECTIONS) if isinstance(learngene.state, dict) else learngene.state[DIRECTIONS]
        if columns is None or tuple(columns.shape) != (width, width):
            raise BadFile(
                f"{learngene.folder or 'the learngene'} lacks the tensor {DIRECTIONS} of shape ({width}, {width}); extract it again"
            )
        return columns.double()


def _written(details: Details) -> dict[str, Json]:
    """As they are stored: what is not known yet is left out."""
    return {name: value for name, value in to_json(details).items() if value not in (None, [])}


def _unsolved(spec: Spec) -> list[str]:
    """Features of a model whose layers cannot be solved one after the other."""
    return _named(spec, {"stitched": "blocks of several widths", "post_norm": "norms after attention and MLP"})


def _unnarrowed(spec: Spec) -> list[str]:
    """Features of a model whose stream has to keep its width."""
    found = _named(
        spec,
        {
            "pre_norm": "a norm before the first block",
            "embed_norm": "a norm of the patches' embedding",
            "scale_norms": "norms within attention and MLP",
            "attention_norm": "a norm within attention",
            "mlp_norm": "a norm within the MLP",
            "pools_by_attention": "pooling by attention",
        },
    )
    return [*found, *(["RMSNorm"] if getattr(spec, "norm", "layer") != "layer" else [])]


def _named(spec: Spec, features: Mapping[str, str]) -> list[str]:
    return [words for name, words in features.items() if getattr(spec, name, False)]


CLOSED_FORM = Method(
    name="closed_form",
    title="any depth and width solved by least squares from unlabelled images, without training",
    paper="",
    expander=Solve(),
    presets={
        "mini": Measure(),
        "smoke": Measure(each=Calibration(images=24)),
    },
    families=("vit", "eva"),
    tasks="one",
    details=Details,
    plot="lgzoo_closed_form.plot:picture",
)
