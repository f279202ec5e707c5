"""Sizes of pruned models whose format has one size for all blocks: those of transformers.

Their config.json has one number of hidden neurons for all blocks, and no width of heads: all heads
together are as wide as the stream, so without some of them the others would have to be wider.
Pruned models keep all heads, in every block the same number of hidden neurons, the best of that
block, and the blocks of largest influence (`measure_influences`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from learngene_zoo.plugin import Member, Spec, Target, WrongCall
from lgzoo_closed_form.pruned import read_importance
from lgzoo_closed_form.sizes import derive_even_spec, derive_mlp_ratio, list_even_ratios

if TYPE_CHECKING:
    from learngene_zoo.plugin import Learngene
    from lgzoo_closed_form.modules.cutting import Selection


def is_uniform(spec: Spec) -> bool:
    """Return whether the format of a model has one size for all blocks, and no removed heads."""
    return not hasattr(spec, "front")


def check_pruned_sizes(spec: Spec, target: Target) -> None:
    """Raise `WrongCall` for removed blocks or heads that cannot be built.

    Args:
        spec: the ancestry model's shape.
        target: the sizes that the user names.
    """
    if not is_uniform(spec):
        if target.layers not in (None, spec.layers):
            raise WrongCall(
                f"layers is {target.layers}, but all descendants of this learngene have layers "
                f"{spec.layers}; sizes that can be chosen: heads, mlp_ratio, classes, image_size"
            )
        return
    if target.layers is not None and target.layers > spec.layers:
        raise WrongCall(
            f"layers is {target.layers}; the ancestry model has {spec.layers}, and pruning only "
            "takes away"
        )
    if target.heads not in (None, spec.heads):
        raise refuse_uneven(spec, f"heads is {target.heads}", "heads")


def refuse_uneven(spec: Spec, given: str, option: str) -> WrongCall:
    """Return the error for a size that the format of a model cannot express.

    Args:
        spec: the ancestry model's shape.
        given: the given size, for the message.
        option: the name of the option to leave out.
    """
    return WrongCall(
        f"{given}, but the format of {spec.family} has {spec.heads} heads of equal width, and one "
        f"MLP ratio for all blocks; leave out --{option}, and name --mlp-ratio or --layers"
    )


def derive_uniform_spec(uncut: Spec, target: Target, keep: float | None) -> Spec:
    """Return the shape with the named sizes; without an MLP ratio keep a share of the neurons.

    Args:
        uncut: the ancestry model's shape, with the target's classes.
        target: the sizes that the user names.
        keep: the share of hidden neurons that is kept; None: all.
    """
    mlp_ratio = target.mlp_ratio
    if mlp_ratio is None:
        mlp_ratio = derive_mlp_ratio(uncut, max(round((keep or 1) * uncut.hidden), 1))
    return derive_even_spec(uncut, uncut.heads, mlp_ratio).with_(layers=target.layers)


def list_uniform_members(spec: Spec) -> list[Member]:
    """Return every number of blocks with every eighth of the hidden neurons."""
    return [
        Member(spec=derive_even_spec(spec, spec.heads, ratio).with_(layers=layers))
        for layers in range(1, spec.layers + 1)
        for ratio in list_even_ratios(spec)
    ]


def select_uniform(learngene: Learngene, spec: Spec) -> Selection:
    """Select the best blocks, and the best hidden neurons of each block, as many as a shape has."""
    from lgzoo_closed_form.modules.cutting import Selection, select_best

    full = learngene.config.spec
    hidden_LM, blocks_L = (read_importance(learngene, axis) for axis in ("hidden", "blocks"))
    return Selection(
        heads=[list(range(full.heads)) for _ in range(full.layers)],
        hidden=select_best(hidden_LM, [spec.hidden] * full.layers),
        blocks=select_best(blocks_L[None], [spec.layers])[0],
    )
