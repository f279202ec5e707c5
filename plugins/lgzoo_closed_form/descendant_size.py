"""Sizes of closed_form descendants: which can be built from an ancestry model.

Listing descendants needs this module, so it imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from learngene_zoo.plugin import WrongCall

if TYPE_CHECKING:
    from learngene_zoo.plugin import Spec, Target


def derive_spec(target: Target, ancestry: Spec, *, is_nested: bool) -> Spec:
    """Return the shape of a target; if only its width or heads are given, heads keep their width.

    Args:
        target: the sizes to build.
        ancestry: the shape of the ancestry model.
        is_nested: whether the stream is turned even at the ancestry model's width.

    Raises:
        WrongCall: for sizes that cannot be built.
    """
    head_dim = ancestry.head_width
    spec = target.whole_heads(ancestry).apply(ancestry)
    if spec.head_width != head_dim or spec.width > ancestry.width:
        widths = ", ".join(str(heads * head_dim) for heads in range(1, ancestry.heads + 1))
        raise WrongCall(
            f"width is {spec.width} with {spec.heads} heads; this learngene has heads of "
            f"{head_dim} and a width of {ancestry.width}: choose width {widths}"
        )
    if spec.layers > ancestry.layers:
        raise WrongCall(
            f"layers is {spec.layers}; the ancestry model has {ancestry.layers}, and closed_form "
            "builds no deeper one"
        )
    is_narrower = spec.width < ancestry.width
    if is_narrower or is_nested:
        for feature in list_fixed_width_features(ancestry):
            change = "narrowed; leave out the width" if is_narrower else "turned; leave out nested"
            raise WrongCall(f"the ancestry model has {feature}, so its stream cannot be {change}")
    return spec


def list_unsolvable_features(spec: Spec) -> list[str]:
    """Return features of a model whose layers cannot be solved one after the other."""
    names = {
        "stitched": "blocks of several widths",
        "post_norm": "norms after attention and MLP",
    }
    return _list_features(spec, names)


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
    return [*_list_features(spec, names), *(["RMSNorm"] if has_rms_norm else [])]


def _list_features(spec: Spec, names: Mapping[str, str]) -> list[str]:
    return [words for name, words in names.items() if getattr(spec, name, False)]
