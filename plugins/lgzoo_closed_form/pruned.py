"""From the ancestry model and what its blocks keep to a descendant, whatever the importances are: what pruning methods share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from learngene_zoo.plugin import BadFile, InputFormat, WrongCall
from lgzoo_closed_form.calibration import Calibration, form_of
from lgzoo_closed_form.sizes import Counts, begun, counted, least_of, ranked

if TYPE_CHECKING:
    import torch

    from learngene_zoo.plugin import Descendant, Learngene, Run, Spec, Task
    from lgzoo_closed_form.cutting import Kept
    from lgzoo_closed_form.streams import Pictures

IMPORTANCE = "importance."  # tensors: `importance.heads` (L, H), `importance.hidden` (L, M)
_UNPRUNED = {
    "stitched": "blocks of several widths",
    "post_norm": "norms after attention and MLP",
    "scale_norms": "norms within attention and MLP",
    "pools_by_attention": "pooling by attention (--pool avg leaves it out)",
}


def check_prunable(spec: Spec, method: str) -> None:
    """Raises `WrongCall` for a model whose heads and hidden neurons something besides its layers reads."""
    for name, words in _UNPRUNED.items():
        if getattr(spec, name, False):
            raise WrongCall(f"{method} does not take models with {words}; choose another ancestry model, or first_k")


def scores_of(learngene: Learngene) -> tuple[torch.Tensor, torch.Tensor]:
    """The importances of heads (L, H) and hidden neurons (L, M). Raises `BadFile` if they are not there."""
    spec, found = learngene.config.spec, []
    for axis, size in (("heads", spec.heads), ("hidden", spec.hidden)):
        name, shape = f"{IMPORTANCE}{axis}", (spec.layers, size)
        if name not in learngene.state or tuple(learngene.state[name].shape) != shape:
            raise BadFile(f"the {learngene.config.method} learngene lacks {name} of shape {shape}; extract it again")
        found.append(learngene.state[name])
    return found[0], found[1]


def beginnings(learngene: Learngene, shares: tuple[float, float], known: Counts | None) -> Kept:
    """What these shares of the heads' and the hidden neurons' rankings through all blocks leave each block.

    Where the learngene says how many of each block that are, they are `known`, whatever its precision did to equal scores.
    """
    from lgzoo_closed_form.cutting import Kept, best

    spec, found = learngene.config.spec, scores_of(learngene)
    if known is not None:
        return Kept(best(found[0], known.heads), best(found[1], known.hidden))
    leasts = least_of(spec)
    return Kept(
        *(
            begun(ranked(one.tolist(), least), share, spec.layers, least)
            for one, share, least in zip(found, shares, leasts)
        )
    )


def shown_to(spec: Spec, settings: Calibration, task: Task, form: InputFormat, run: Run) -> Pictures:
    """The images that a model of this shape is measured on."""
    from lgzoo_closed_form.streams import pictures

    images, tokens, weight = settings.images, settings.tokens, settings.class_weight
    return pictures(task, spec.prefix_tokens, spec.patches, form, run, images=images, tokens=tokens, weight=weight)


def build(
    learngene: Learngene, spec: Spec, kept: Kept, run: Run, settings: Calibration, task: Task | None
) -> Descendant:
    """A descendant of this shape. It is compensated on images of the task; without one its numbers are the ancestry model's."""
    from learngene_zoo.plugin import assemble, inherited_weights, model_of, only, resize_positions, shapes
    from lgzoo_closed_form.cutting import compensated, cut

    config, whole = learngene.config, learngene.config.spec.with_(classes=0)
    weights = inherited_weights(config, learngene.state, run, lambda name: not name.startswith(IMPORTANCE))
    state = {name: weights[name].float() for name in weights}  # those on the shelf are in half precision
    if task is None:
        parts = cut(state, whole, kept)
    else:
        shown = shown_to(whole, settings, task, form_of(config), run)
        parts = compensated(model_of(whole, state), state, whole, kept, shown, settings.ridge)
    parts = resize_positions(parts, whole, spec)
    parts = only(parts, shapes(spec).__contains__)  # without pooling, if the head is for pixels
    mean, std = config.normalisation
    found = {"kept": {"heads": counted(kept.heads), "hidden": counted(kept.hidden)}}
    provenance = {**found, **({"calibration": task.name} if task is not None else {})}
    return assemble(spec, parts, seed=run.seed, mean=mean, std=std, provenance=provenance)
