"""What pruning methods share: settings, importances in a learngene, and the way to a descendant."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

from learngene_zoo.plugin import (
    BadFile,
    Learngene,
    LearngeneConfig,
    Spec,
    Target,
    WrongCall,
    name_option,
)
from lgzoo_closed_form.calibration import (
    Calibration,
    derive_input_format,
    open_calibration_task,
    sample_pictures,
)
from lgzoo_closed_form.limits import list_fixed_head_features
from lgzoo_closed_form.sizes import (
    Counts,
    count_by_block,
    derive_minimum,
    derive_uneven_spec,
    rank_positions,
    take_share,
)

if TYPE_CHECKING:
    import torch

    from learngene_zoo.plugin import Ancestry, Descendant, Run, StateDict, Task
    from lgzoo_closed_form.modules.cutting import Selection
    from lgzoo_closed_form.modules.ridge import Damping

# Tensors: `importance.heads` (L, H), `importance.hidden` (L, M); of models of one size for all
# blocks (uniform.py) `importance.blocks` (L,) instead of that of heads.
IMPORTANCE = "importance."
PRUNED_AXES = frozenset({"layers", "heads", "mlp_ratio", "classes", "image_size"})

# Settings of extractors and expanders.
StoreWeights = Annotated[
    bool,
    "store the ancestry model's weights in the learngene; otherwise every expansion opens that "
    "model again and checks its checksum",
]
Compensate = Annotated[
    bool, "compensate for removed heads and neurons by ridge regression on some images"
]
CompensationTask = Annotated[
    str | None,
    "task with the images for compensation, as folder:PATH (default: the extraction's)",
]

CompensationDamping = Annotated[
    Literal["mean", "largest", "each"],
    "the penalty of the compensation is relative to the mean square of all inputs of a layer, to "
    "their largest principal variance, or for each input to its own mean square",
]
DAMPING: Damping = "mean"

_UNPRUNED = {
    "stitched": "blocks of several widths",
    "post_norm": "norms after attention and MLP",
    "scale_norms": "norms within attention and MLP",
    "attention_norm": "a norm within attention",
    "mlp_norm": "a norm within the MLP",
}


def check_prunable(spec: Spec, method: str, calibration: Calibration | None = None) -> None:
    """Raise `WrongCall` for a model whose heads or hidden neurons more than its layers read.

    Args:
        spec: the ancestry model's shape.
        method: its name, for the message.
        calibration: settings of the extraction, if it has any.
    """
    if calibration is not None:
        calibration.check_class_weight(spec)
    for name, words in _UNPRUNED.items():
        if getattr(spec, name, False):
            raise WrongCall(
                f"{method} does not take models with {words}; choose another ancestry model, or "
                "first_k"
            )
    if method == "elastic" and getattr(spec, "frequencies", False):
        raise WrongCall(
            "elastic leaves each block a number of heads of its own, and this model has learned "
            "rotary frequencies for each head; choose pruning, or another ancestry model"
        )


def name_importances(**importances: torch.Tensor) -> StateDict:
    """Return the importances of `heads`, `hidden` or `blocks` under their names in a learngene."""
    return {f"{IMPORTANCE}{axis}": importances[axis] for axis in importances}


def collect_learngene(
    ancestry: Ancestry, importances: StateDict, config: LearngeneConfig, *, store: bool
) -> Learngene:
    """Return the learngene of the importances.

    Args:
        ancestry: the ancestry model.
        importances: under their names in a learngene.
        config: the learngene's.
        store: whether the ancestry model's weights are in it, without the head.
    """
    from learngene_zoo.plugin import remove_head

    weights = remove_head(ancestry.state, ancestry.spec) if store else {}
    scores = {name: importances[name] for name in importances}
    return Learngene(config=config, state={**weights, **scores})


def read_importance(
    learngene: Learngene, axis: Literal["heads", "hidden", "blocks"]
) -> torch.Tensor:
    """Return the importance of heads (L, H), hidden neurons (L, M) or blocks (L,).

    Raises `BadFile` if it is missing.
    """
    name, spec = f"{IMPORTANCE}{axis}", learngene.config.spec
    sizes = {"heads": (spec.heads,), "hidden": (spec.hidden,), "blocks": ()}
    shape = (spec.layers, *sizes[axis])
    if name not in learngene.state or tuple(learngene.state[name].shape) != shape:
        raise BadFile(
            f"the {learngene.config.method} learngene lacks {name} of shape {shape}; extract it "
            "again"
        )
    return learngene.state[name]


def read_importances(learngene: Learngene) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the importances of heads (L, H) and hidden neurons (L, M).

    Raises `BadFile` if they are missing.
    """
    return read_importance(learngene, "heads"), read_importance(learngene, "hidden")


def select_shares(
    learngene: Learngene, shares: tuple[float, float], counts: Counts | None
) -> Selection:
    """Select shares of the rankings through all blocks.

    Args:
        learngene: with the importances.
        shares: of the heads' and of the hidden neurons' ranking.
        counts: how many each block keeps of these shares, if the learngene records that. They
            decide among scores that its precision made equal.
    """
    from lgzoo_closed_form.modules.cutting import Selection, select_best

    spec, scores = learngene.config.spec, read_importances(learngene)
    if counts is not None:
        return Selection(
            select_best(scores[0], counts.heads), select_best(scores[1], counts.hidden)
        )
    heads, hidden = (
        take_share(rank_positions(rows.tolist(), minimum), share, spec.layers, minimum)
        for rows, share, minimum in zip(scores, shares, derive_minimum(spec))
    )
    return Selection(heads, hidden)


def select_within_blocks(learngene: Learngene, spec: Spec) -> Selection:
    """Select the best heads and hidden neurons of each block, as many as a shape has."""
    from lgzoo_closed_form.modules.cutting import Selection, select_best

    heads_LH, hidden_LM = read_importances(learngene)
    return Selection(
        heads=select_best(heads_LH, [spec.heads] * spec.layers),
        hidden=select_best(hidden_LM, [spec.hidden] * spec.layers),
    )


def derive_uncut_spec(learngene: Learngene, target: Target) -> Spec:
    """Return the ancestry model's shape with the target's image size and classes."""
    return replace(target, layers=None, heads=None, mlp_ratio=None).apply(learngene.config.spec)


def check_compensation(compensate: bool, calibration: str | None, damping: Damping) -> None:
    """Raise `WrongCall` for settings of a compensation that is left out."""
    settings = {"calibration": calibration, "damping": damping if damping != DAMPING else None}
    for name, value in settings.items():
        if value is not None and not compensate:
            raise WrongCall(f"{name} is {value}, but nothing is compensated; leave one of them out")


def check_head_dim(spec: Spec, head_dim: int | None, *, is_compensated: bool = True) -> None:
    """Raise `WrongCall` for a width of heads that a model cannot have.

    Args:
        spec: the ancestry model's shape.
        head_dim: the channels to keep of each head; None: all.
        is_compensated: whether the removed channels are compensated for on images.
    """
    if head_dim is None:
        return
    if head_dim > spec.head_width:
        raise WrongCall(
            f"head_dim is {head_dim}; the heads of the ancestry model have {spec.head_width} "
            f"channels, and pruning only takes away; choose at most {spec.head_width}"
        )
    if head_dim == spec.head_width:
        return
    for words in list_fixed_head_features(spec):
        raise WrongCall(
            f"the ancestry model has {words}, so its heads keep all their channels; leave out "
            f"{name_option('head_dim')}, and name {name_option('heads')} or {name_option('keep')}"
        )
    if not is_compensated:
        raise WrongCall(
            f"head_dim needs images; leave out {name_option('compensate', False)}, or leave out "
            f"{name_option('head_dim')}"
        )


def derive_selected_spec(
    learngene: Learngene,
    target: Target,
    selection: Selection,
    reason: str,
    head_dim: int | None = None,
) -> Spec:
    """Return the shape that a selection leaves.

    Args:
        learngene: of the ancestry model.
        target: the sizes that the user names.
        selection: the heads and hidden neurons that each block keeps.
        reason: why sizes of blocks follow from the ranking, for the message.
        head_dim: the channels of each head; None: all.

    Raises:
        WrongCall: for named sizes of blocks that differ from those of the selection.
    """
    heads, hidden = count_by_block(selection.heads), count_by_block(selection.hidden)
    uncut = derive_uncut_spec(learngene, target)
    spec = derive_uneven_spec(uncut, Counts(tuple(heads), tuple(hidden)), head_dim)
    for name, value in target.axes().items():
        if name in ("heads", "mlp_ratio") and value != getattr(spec, name):
            raise WrongCall(
                f"{name} is {value}, but {reason}; leave out {name_option(name)}, and name "
                f"{name_option('keep')} or a budget"
            )
    return spec


def choose_task(
    learngene: Learngene,
    target: Target,
    selection: Selection,
    named: str | None,
    seen: str | None,
    run: Run,
    head_dim: int | None = None,
) -> Task | None:
    """Open the task on whose images a descendant is compensated; None if nothing is cut.

    Args:
        learngene: of the ancestry model.
        target: the sizes and the task that the user names.
        selection: the heads and hidden neurons that each block keeps.
        named: the task that the user names for this.
        seen: the task of the extraction.
        run: whether the Hub may be asked.
        head_dim: the channels of each head; None: all.
    """
    uncut = derive_uncut_spec(learngene, target)
    counts = (uncut.heads * uncut.layers, uncut.hidden * uncut.layers)
    is_cut = head_dim not in (None, uncut.head_width)
    kept = (sum(count_by_block(selection.heads)), sum(count_by_block(selection.hidden)))
    if kept == counts and not is_cut:
        return None
    alternative = f", or leave them out with {name_option('compensate', False)}"
    return open_calibration_task(named, seen, target, run, alternative)


def build_pruned(
    learngene: Learngene,
    spec: Spec,
    selection: Selection,
    run: Run,
    settings: Calibration,
    task: Task | None,
    damping: Damping = DAMPING,
) -> Descendant:
    """Build a descendant, and compensate it on images of a task.

    Args:
        learngene: with the ancestry model, or its name.
        spec: the shape of the descendant.
        selection: the heads and hidden neurons that each block keeps.
        run: seed, threads and progress.
        settings: of the compensation.
        task: whose images are seen; None keeps the ancestry model's numbers.
        damping: that the penalty of the compensation is relative to.
    """
    from learngene_zoo.plugin import (
        assemble,
        build_model,
        copy_weights,
        get_shapes,
        resize_positions,
        select_tensors,
        take_blocks,
    )
    from lgzoo_closed_form.modules.cutting import Absorption, compensate_model, cut_model

    config, body = learngene.config, learngene.config.spec.with_(classes=0)
    weights = copy_weights(
        config, learngene.state, run, lambda name: not name.startswith(IMPORTANCE)
    )
    # Weights of learngenes on the shelf are in half precision.
    state = {name: weights[name].float() for name in weights}
    if task is None:
        parts = cut_model(state, body, selection)
    else:
        input_format = derive_input_format(config, learngene.files)
        pictures = sample_pictures(body, settings, task, input_format, run)
        model = build_model(body, state)
        head_dim = None if spec.head_width == body.head_width else spec.head_width
        absorption = Absorption(settings.ridge, damping, head_dim)
        parts = compensate_model(model, state, body, selection, pictures, absorption)
    if selection.blocks is not None:
        parts = take_blocks(parts, body, selection.blocks)
    parts = resize_positions(parts, body, spec)
    parts = select_tensors(
        parts, get_shapes(spec).__contains__
    )  # without pooling, if the head is for pixels
    counts = {
        "heads": count_by_block(selection.heads),
        "hidden": count_by_block(selection.hidden),
    }
    if selection.blocks is not None:
        counts = {
            axis: [rows[block] for block in selection.blocks] for axis, rows in counts.items()
        }
        counts["blocks"] = selection.blocks
    provenance = {"kept": counts, **({"calibration": task.name} if task is not None else {})}
    return assemble(spec, parts, seed=run.seed, provenance=provenance)
