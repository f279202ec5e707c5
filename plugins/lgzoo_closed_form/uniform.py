"""Sizes of pruned models whose format has one size for all blocks: those of transformers.

Their config.json has one number of hidden neurons for all blocks, and no width of heads: all heads
together are as wide as the stream, so without some of them the others would have to be wider.
Pruned models keep all heads, in every block the same number of hidden neurons, the best of that
block, and the blocks of largest influence (`measure_influences`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from learngene_zoo.plugin import Member, Spec, Target, WrongCall, name_option
from lgzoo_closed_form.pruned import derive_uncut_spec, read_importance
from lgzoo_closed_form.sizes import derive_even_spec, derive_mlp_ratio, list_even_ratios

if TYPE_CHECKING:
    from learngene_zoo.plugin import Learngene
    from lgzoo_closed_form.modules.cutting import Selection


def is_uniform(spec: Spec) -> bool:
    """Return whether the format of a model has one size for all blocks, and no removed heads."""
    return not spec.varies_by_block


def list_axes(spec: Spec) -> frozenset[str]:
    """Return the sizes of a model that pruning changes."""
    changed = {"layers"} if is_uniform(spec) else {"heads", "image_size"}
    return frozenset({"mlp_ratio", "classes", *changed})


def check_sizes(
    spec: Spec, target: Target, *, ranking: str = "local", head_dim: int | None = None
) -> None:
    """Raise `WrongCall` for blocks and settings of heads that cannot be built.

    Args:
        spec: the ancestry model's shape.
        target: the sizes that the user names.
        ranking: "global" gives each block another size.
        head_dim: channels that every head keeps; None: all.
    """
    if not is_uniform(spec):
        return
    if target.layers is not None and target.layers > spec.layers:
        raise WrongCall(
            f"layers is {target.layers}; the ancestry model has {spec.layers}, and pruning only "
            "takes away"
        )
    for name, value, free in (
        ("ranking", ranking, ("local",)),
        ("head_dim", head_dim, (None, spec.head_width)),
    ):
        if value not in free:
            raise WrongCall(
                f"{name} is {value}, but the format of {spec.family} has {spec.heads} heads of "
                f"equal width, and one MLP ratio for all blocks; leave out "
                f"{name_option(name)}, and name {name_option('mlp_ratio')} or "
                f"{name_option('layers')}"
            )


def check_scores(spec: Spec, scores: str | None) -> None:
    """Raise `WrongCall` for a file of scores, which are of heads and neurons of any block."""
    if is_uniform(spec) and scores is not None:
        raise WrongCall(
            f"scores is {scores}; such files are for image models; leave out "
            f"{name_option('scores')}"
        )


def derive_spec(uncut: Spec, target: Target, keep: float | None) -> Spec:
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


def list_members(spec: Spec, keep: float | None) -> list[Member]:
    """Return every number of blocks with a share of the hidden neurons; None: with every eighth."""
    ratios = list_even_ratios(spec) if keep is None else [None]
    return [
        Member(spec=derive_spec(spec, Target(layers=layers, mlp_ratio=ratio), keep))
        for layers in range(1, spec.layers + 1)
        for ratio in ratios
    ]


def select(learngene: Learngene, target: Target, keep: float | None) -> tuple[Spec, Selection]:
    """Return the shape of a descendant, with the best blocks and the best neurons of each block.

    Args:
        learngene: with the importances.
        target: the sizes that the user names.
        keep: the share of hidden neurons that is kept, without an MLP ratio; None: all.
    """
    from lgzoo_closed_form.modules.cutting import Selection, select_best

    full, spec = (
        learngene.config.spec,
        derive_spec(derive_uncut_spec(learngene, target), target, keep),
    )
    hidden_LM, blocks_L = read_importance(learngene, "hidden"), read_importance(learngene, "blocks")
    return spec, Selection(
        heads=[list(range(full.heads)) for _ in range(full.layers)],
        hidden=select_best(hidden_LM, [spec.hidden] * full.layers),
        blocks=select_best(blocks_L[None], [spec.layers])[0],
    )
