"""Closed-form descendants: any depth and width, from unlabelled images, without gradients.

A method of this zoo. The learngene is the ancestry model itself, without its head, or only its
name, with statistics of a few hundred images:

    1  record the residual streams of all blocks                                 (streams.py)
    2  measure the cost of every run of blocks if its first block replaces it     (solve.py)
    3  find the directions in which the streams vary most                         (width.py)

A descendant of k layers and width d is built block by block, on its own inputs:

    4  take the most blocks T of the ancestry model that can be cut into k runs at a low cost, and
       the best cut of them                                             (descendant_size.py)
    5  copy the first block of each run, narrowed to d: stream projected, LayerNorm exact, heads and
       neurons selected, heads narrowed if asked            (width.py, narrow_attention.py)
    6  solve queries, keys and values towards the ancestry model's by weighted ridge regression,
       then the projection, so that the stream equals the ancestry model's after that attention,
       then fc1 towards the ancestry model's hidden values,
       then fc2, so that the stream equals the ancestry model's at the end of the run
                                                                        (solve.py, ridge.py)

Every solution starts from the copied weights and is drawn towards them. Near it: CORP (arXiv
2602.05243) compensates removed parts of blocks by ridge regression, ReplaceMe (2505.02819) replaces
runs of blocks by linear maps, SliceGPT (2401.15024) converts norms to RMSNorm and narrows streams.
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
    Work,
    WrongCall,
    compute_once,
    from_json,
    parse_details,
    to_json,
)
from lgzoo_closed_form.calibration import (
    DIRECTIONS,
    PART,
    Calibration,
    find_recording,
    open_calibration_task,
    open_first_blocks,
    open_teacher,
    read_directions,
    read_first_blocks,
)
from lgzoo_closed_form.descendant_size import (
    Cut,
    check_solvable,
    check_teacher_depth,
    derive_spec,
    find_best_cuts,
    list_sizes,
    select_cut,
)
from lgzoo_closed_form.limits import can_narrow_heads
from lgzoo_closed_form.pruned import StoreWeights
from lgzoo_closed_form.work import estimate_solutions, estimate_statistics

if TYPE_CHECKING:
    from learngene_zoo.plugin import Ancestry, Descendant, Json, Run, Spec, StateDict, Target, Task


@dataclass(frozen=True, kw_only=True)
class ClosedFormDetails:
    """The method's own record in a learngene; runs and directions follow from the extraction."""

    calibration: Calibration
    stored: bool = True  # whether the ancestry model's weights are among the tensors
    task: str | None = None  # whose images were seen
    images: int | None = None  # that were seen: fewer than `calibration.images` of a small task
    # C[i][j - i], the cost of block i standing for the blocks i to j; () in older learngenes.
    costs: tuple[tuple[float, ...], ...] = ()
    # For 1, 2, ... layers the first block of each run of the best cut of all blocks, from 0.
    runs: tuple[tuple[int, ...], ...] = ()
    objective: tuple[float, ...] = ()  # of these cuts, never rising
    variance: tuple[float, ...] = ()  # share of every direction in the streams' variance


@dataclass(frozen=True, kw_only=True)
class ClosedFormExtractor(Extractor):
    """Keep the ancestry model, the best cuts and the main directions of some hundred images."""

    store: StoreWeights = True
    keep_streams: Annotated[
        bool,
        "keep the recorded streams in the folder of the learngene's run, for all expansions; "
        "otherwise every expansion records streams again, of other randomly drawn tokens",
    ] = False
    each: Calibration = field(default=Calibration(), metadata=FLAT)

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """Return the config with the ancestry model's shape."""
        spec = ancestries[0]
        check_solvable(spec, self.each)
        details = ClosedFormDetails(calibration=self.each, stored=self.store)
        return LearngeneConfig(spec=spec).with_details(details)

    def work(self, ancestries: Sequence[Spec], images: Sequence[int]) -> list[Work]:
        """Estimate one forward pass over the images, and the costs of all runs."""
        return [estimate_statistics(ancestries[0], self.each, images[0])]

    def __call__(
        self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run
    ) -> Learngene:
        """Measure the statistics, steps 1 to 3; they are a part of the run."""
        from learngene_zoo.plugin import remove_head

        ancestry, part = ancestries[0], run.part(PART)
        if self.keep_streams and part.folder is None:
            raise WrongCall(
                "keep_streams keeps streams in the run's folder; say where the learngene is to be "
                "written (-o)"
            )
        inputs = [ancestry, tasks[0], self.keep_streams]
        statistics = compute_once(
            part, "closed_form.statistics", measure_statistics, self.each, inputs
        )
        details = from_json(ClosedFormDetails, statistics.record, "statistics")
        details = replace(details, stored=self.store)
        config = LearngeneConfig(spec=ancestry.spec).with_details(details)
        weights = remove_head(ancestry.state, ancestry.spec) if self.store else {}
        state = {**weights, DIRECTIONS: statistics.state[DIRECTIONS]}
        return Learngene(config=config, state=state)


def measure_statistics(
    settings: Calibration, ancestry: Ancestry, task: Task, keep_streams: bool, run: Run
) -> tuple[StateDict, Json]:
    """Return the main directions, and `ClosedFormDetails` as JSON.

    Args:
        settings: how many images and tokens are recorded, and how equations are weighted.
        ancestry: the ancestry model.
        task: whose training images are seen.
        keep_streams: whether the recorded streams stay in the run's folder.
        run: the part of the run.
    """
    from learngene_zoo.plugin import is_first, remove_head
    from lgzoo_closed_form.modules.solve import measure_costs
    from lgzoo_closed_form.modules.streams import STREAMS, complete_recording, prepare_folder
    from lgzoo_closed_form.modules.width import compute_directions

    spec, input_format = ancestry.spec, ancestry.input_format
    written = run.folder / STREAMS if run.folder and is_first() else None
    folder = prepare_folder(written, keep_streams) if written else None
    state = remove_head(ancestry.state, spec)
    with open_teacher(state, spec, settings, task, input_format, run, folder) as teacher:
        costs = measure_costs(teacher, settings.find_penalty(spec))
        columns_DD, shares_D = compute_directions(teacher.streams, teacher.pictures)
        if folder is not None:
            complete_recording(folder, teacher.pictures, columns_DD)
    cuts = find_best_cuts(costs)
    details = ClosedFormDetails(
        calibration=settings,
        task=task.name,
        images=len(teacher.pictures.images),
        costs=tuple(tuple(round(cost, 6) for cost in row) for row in costs),
        runs=tuple(cut.runs for cut in cuts),
        objective=tuple(round(cut.objective, 6) for cut in cuts),
        variance=tuple(round(share, 6) for share in shares_D.tolist()),
    )
    return {DIRECTIONS: columns_DD.float()}, to_json(details)


@dataclass(frozen=True, kw_only=True)
class ClosedFormExpander(Expander):
    """Copy the first block of every run, and solve all its linear layers."""

    axes = frozenset({"layers", "width", "heads", "classes", "image_size"})

    calibration: Annotated[
        str | None,
        "task whose training images are the calibration images, as folder:PATH (default: the "
        "extraction's)",
    ] = None
    teacher_depth: Annotated[
        int | None,
        "number of first blocks of the ancestry model that the descendant replaces (none: as many "
        "as it can at a low error; all with --nested)",
        Bounds(least=1),
    ] = None
    solve: Annotated[bool, "solve the linear layers; otherwise they are copies"] = True
    nested: Annotated[
        bool,
        "make the stream of a narrower model the first channels of a wider one's, at the cost of "
        "one direction for each head",
    ] = False
    head_dim: Annotated[
        int | None,
        "channels of every head (none: as in the ancestry model, unless width and heads are named)",
        Bounds(least=1),
    ] = None

    def list_size_settings(self, spec: Spec) -> tuple[str, ...]:
        """Return `head_dim`, if heads can have fewer channels."""
        return ("head_dim",) if can_narrow_heads(spec, is_nested=self.nested) else ()

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Return every depth up to the ancestry model's, or up to `teacher_depth`.

        Where the stream can be narrowed, each with every number of heads of `head_dim` channels.
        """
        sizes = list_sizes(config.spec, is_nested=self.nested, head_dim=self.head_dim)
        most = self.teacher_depth or config.spec.layers
        return [Member(spec=size) for size in sizes if size.layers <= most]

    def check_target(self, config: LearngeneConfig, target: Target) -> None:
        """Raise `WrongCall` for a size that cannot be built."""
        spec = derive_spec(target, config.spec, is_nested=self.nested, head_dim=self.head_dim)
        layers = spec.layers
        if target.layers is None and self.teacher_depth is not None:
            layers = min(layers, self.teacher_depth)  # a budget chooses among these
        check_teacher_depth(self.teacher_depth, layers, config.spec.layers, self.nested)

    def work(self, config: LearngeneConfig, spec: Spec, images: Sequence[int]) -> list[Work]:
        """Estimate the solutions, from streams that the extraction keeps."""
        calibration = parse_details(config, ClosedFormDetails).calibration
        return [estimate_solutions(config.spec, spec, calibration, images[0])] * self.solve

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Build a descendant, steps 4 to 6; no images are read where blocks are only copied.

        Raises `WrongCall` for a size beyond the ancestry model's.
        """
        from learngene_zoo.plugin import assemble, get_shapes, resize_positions, select_tensors
        from lgzoo_closed_form.modules.solve import copy_whole_blocks

        config = learngene.config
        details = parse_details(config, ClosedFormDetails)
        spec = derive_spec(target, config.spec, is_nested=self.nested, head_dim=self.head_dim)
        depth = config.spec.layers if self.nested else self.teacher_depth
        cut = select_cut(details.costs, details.runs, config.spec.layers, spec.layers, depth)
        provenance: dict[str, Json] = {"runs": list(cut.runs), "teacher_depth": cut.depth}
        is_unchanged = spec.width == config.spec.width and not self.nested
        if is_unchanged and (not self.solve or cut.depth == spec.layers):
            first, state = read_first_blocks(learngene, cut.depth, run)
            parts = copy_whole_blocks(state, first, cut.runs)
        else:
            parts, seen = self._solve_blocks(learngene, target, spec, cut, run)
            provenance |= seen
        body = config.spec.with_(layers=spec.layers, width=spec.width, heads=spec.heads, classes=0)
        parts = resize_positions(parts, body, spec)
        # No pooling, if the head is for pixels
        parts = select_tensors(parts, get_shapes(spec).__contains__)
        return assemble(spec, parts, seed=run.seed, provenance=provenance)

    def _solve_blocks(
        self, learngene: Learngene, target: Target, spec: Spec, cut: Cut, run: Run
    ) -> tuple[StateDict, dict[str, Json]]:
        """Return the tensors of steps 5 and 6, and a record of the images that they are solved on.

        `cut` has the runs that the blocks stand for.
        """
        from lgzoo_closed_form.modules.solve import solve_descendant
        from lgzoo_closed_form.modules.width import project_stream

        details = parse_details(learngene.config, ClosedFormDetails)
        task = open_calibration_task(self.calibration, details.task, target, run)
        columns_DD = read_directions(learngene)
        kept = find_recording(learngene, columns_DD) if task.name == details.task else None
        with open_first_blocks(
            learngene, cut.depth, details.calibration, task, kept, run
        ) as teacher:
            body = teacher.spec.with_(layers=spec.layers, width=spec.width, heads=spec.heads)
            P_dD = project_stream(teacher, columns_DD, spec, is_nested=self.nested)
            rho = details.calibration.find_penalty(spec)
            parts = solve_descendant(teacher, body, cut.runs, P_dD, rho=rho, solve=self.solve)
        return parts, {"calibration": task.name, **({"streams": "kept"} if kept else {})}


CLOSED_FORM = Method(
    name="closed_form",
    title="any depth and width solved by least squares from unlabelled images, without training",
    paper="",
    expander=ClosedFormExpander(),
    presets={
        "mini": ClosedFormExtractor(),
        "smoke": ClosedFormExtractor(each=Calibration(images=24)),
    },
    families=("vit", "eva", "gpt2", "bert"),
    tasks="one",
    uses_labels=False,
    details=ClosedFormDetails,
    plot="lgzoo_closed_form.plot:draw_picture",
)
