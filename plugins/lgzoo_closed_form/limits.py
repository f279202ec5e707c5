"""Limits of the widths and heads of closed_form descendants.

A descendant has at most the ancestry model's heads, with at most as many channels each. Everything
here is in plain numbers, without torch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from learngene_zoo.plugin import Target, WrongCall, get_table

if TYPE_CHECKING:
    from learngene_zoo.plugin import Spec


def complete_target(target: Target, ancestry: Spec, head_dim: int, *, is_nested: bool) -> Target:
    """Return the target with width and heads for heads of so many channels.

    Without both it has the ancestry model's number of heads.
    """
    most, can_narrow = ancestry.head_width, can_narrow_heads(ancestry, is_nested=is_nested)
    if head_dim > most:
        choice = f"choose a head_dim of at most {most}" if can_narrow else "leave out head_dim"
        raise WrongCall(
            f"head_dim is {head_dim}; this learngene has {_count_heads(ancestry.heads)} of {most} "
            f"channels: {choice}"
        )
    if head_dim < ancestry.head_width:
        check_narrow_heads(ancestry, is_nested=is_nested)
    heads = target.heads
    if heads is None and target.width is not None:
        heads = min(max(round(target.width / head_dim), 1), ancestry.heads)
    heads = heads or ancestry.heads
    if heads <= ancestry.heads and target.width not in (None, heads * head_dim):
        assert target.width is not None
        counts = range(1, ancestry.heads + 1) if target.heads is None else [heads]
        dims = [target.width // count for count in counts if _fits(target.width, count, ancestry)]
        near = min(dims, key=lambda dim: (abs(dim - head_dim), dim), default=0) * can_narrow
        raise WrongCall(
            f"width is {target.width}, but {_count_heads(heads)} of {head_dim} channels have "
            f"a width of {heads * head_dim}; choose that width"
            f"{f', or head_dim {near}' if near else ''}"
        )
    return replace(target, width=target.width or heads * head_dim, heads=heads)


def check_width(target: Target, ancestry: Spec, *, is_nested: bool) -> None:
    """Raise `WrongCall` for a width that is too large, or is not divided into heads."""
    assert target.width is not None, "a width is named"
    width, heads = target.width, target.heads
    if width > ancestry.width or (
        heads is not None and ancestry.heads_width == ancestry.width and width % heads
    ):
        raise refuse_heads(width, heads, ancestry, is_nested=is_nested)
    if heads is None and width % ancestry.head_width:
        check_narrow_heads(ancestry, is_nested=is_nested)


def refuse_heads(width: int, heads: int | None, ancestry: Spec, *, is_nested: bool) -> WrongCall:
    """Return the error for a width with heads that cannot be built, with sizes that can.

    Args:
        width: the width that was asked for.
        heads: the number of heads that was asked for; None: not named.
        ancestry: the shape of the ancestry model.
        is_nested: whether the streams of descendants are nested, in groups as wide as a head.
    """
    most, dim = ancestry.heads, ancestry.head_width
    asked = f"width is {width}"
    if heads is not None and width % heads:
        asked += f", which {_count_heads(heads)} do not divide"
    elif heads is not None:
        asked += f" with {_count_heads(heads)} of {width // heads} channels"
    widths = ", ".join(map(str, _list_whole_widths(ancestry)))
    choice = f"choose width {widths}"
    if can_narrow_heads(ancestry, is_nested=is_nested):
        choice += f", or at most {_count_heads(most)} of at most {dim} channels"
        counts = [count for count in range(1, most + 1) if _fits(width, count, ancestry)]
        if counts:
            near = min(counts, key=lambda count: (abs(count - (heads or most)), count))
            choice += f", such as width {width} with {_count_heads(near)}"
    return WrongCall(
        f"{asked}; this learngene has {_count_heads(most)} of {dim} channels and a width of "
        f"{ancestry.width}: {choice}"
    )


def can_narrow_heads(ancestry: Spec, *, is_nested: bool) -> bool:
    """Return whether heads can have fewer channels than the ancestry model's."""
    fixed = (*_list_obstacles_to_narrow_heads(ancestry), *list_fixed_width_features(ancestry))
    return not (is_nested or fixed)


def _fits(width: int, heads: int, ancestry: Spec) -> bool:
    """Return whether so many heads divide a width into at most the ancestry model's channels."""
    return width % heads == 0 and width // heads <= ancestry.head_width


def _list_whole_widths(ancestry: Spec) -> list[int]:
    """Return the widths whose heads are as wide as the ancestry model's."""
    if list_fixed_width_features(ancestry):
        return [ancestry.width]
    return [
        heads * ancestry.head_width
        for heads in range(1, ancestry.heads + 1)
        if heads * ancestry.head_width <= ancestry.width
    ]


def check_narrow_heads(ancestry: Spec, *, is_nested: bool) -> None:
    """Raise `WrongCall` if the heads of a model cannot have fewer channels.

    Args:
        ancestry: its shape.
        is_nested: whether the streams of its descendants are nested, in groups as wide as a head.
    """
    widths = ", ".join(map(str, _list_whole_widths(ancestry)))
    for feature in _list_obstacles_to_narrow_heads(ancestry):
        raise WrongCall(
            f"the ancestry model has {feature}, so its heads keep their {ancestry.head_width} "
            f"channels; choose width {widths}"
        )
    if is_nested:
        raise WrongCall(
            f"nested models keep heads of {ancestry.head_width} channels; leave out nested, or "
            f"choose width {widths}"
        )


def list_fixed_head_features(spec: Spec) -> list[str]:
    """Return features of a model whose heads have to keep their channels."""
    other = f"attention of the family {spec.family!r}, which is not implemented for narrower heads"
    is_rotary = getattr(spec, "rotary", False)
    features = {
        "rotary positions, which turn pairs of channels": is_rotary,
        other: spec.supports_rotary and not is_rotary,
        "norms of queries and keys": getattr(spec, "qk_norm", False),
    }
    return [feature for feature in features if features[feature]]


def _list_obstacles_to_narrow_heads(spec: Spec) -> list[str]:
    """Return the features of a model that keep descendants from having heads of fewer channels."""
    is_narrower = spec.heads_width != spec.width
    return [
        *list_fixed_head_features(spec),
        *(["heads narrower than its width"] if is_narrower else []),
    ]


def list_fixed_width_features(spec: Spec) -> list[str]:
    """Return features of a model whose stream has to keep its width."""
    names = {
        "pre_norm": "a norm before the first block",
        "embed_norm": "a norm of the patches' embedding",
        "scale_norms": "norms within attention and MLP",
        "attention_norm": "a norm within attention",
        "mlp_norm": "a norm within the MLP",
        "pools_by_attention": "pooling by attention",
    }
    has_rms_norm = getattr(spec, "norm", "layer") != "layer"
    others = {
        "RMSNorm": has_rms_norm,
        "norms after attention and MLP": get_table(spec).norms_after(spec),
    }
    named = [words for name, words in names.items() if getattr(spec, name, False)]
    return [*named, *(words for words in others if others[words])]


def _count_heads(count: int) -> str:
    return f"{count} head" if count == 1 else f"{count} heads"
