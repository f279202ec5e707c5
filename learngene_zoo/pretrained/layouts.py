"""Selection of the model's tensors in files of others: wrappers, copies, pretraining parts.

Published files name a Vision Transformer's tensors as timm does, but often behind prefixes: of
torch's wrappers (`module.`, `_orig_mod.`), of a larger model (`backbone.`, `teacher.backbone.`,
`base_encoder.`), of a copy (`ema.`). `choose_tensors` finds the model by the name of its patch
embedding. Tensors that are left out are always described.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from learngene_zoo.errors import BadFile

# torch's wrappers add these names; no parameter of a model has them.
_TORCH_WRAPPERS = re.compile(
    r"(?<![^.])(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\."
)
# Wrappers around a whole model, of which every tensor then has the prefix.
_WHOLE_MODEL = ("module.", "model.", "timm_model.", "state_dict.")
# The end of the name of the patch embedding, in the layouts of timm and of those whose weights timm
# converts.
_ANCHORS = (
    "patch_embed.proj.weight",
    "patch_embed.projection.weight",
    "preprocessor.patchifier.proj.weight",
    "visual.class_embedding",
    "visual.conv1.weight",
)
_TOWER = re.compile(r"(^|\.)visual\.(trunk\.)?$")  # of a CLIP: timm converts these names itself
# Of two copies of a model, the prefixes of the one that is not the model, as its authors and timm
# use them.
_SECOND_COPIES = {
    "student",
    "momentum_encoder",
    "encoder_k",
    "ema",
    "model_ema",
    "ema_model",
    "target_encoder",
}
# Parts of a pretraining that a model does not have when it is used.
_PRETRAINING = re.compile(
    r"mask_token$|decoder(_\w+)?[.]|decoder_pos_embed$"
    r"|head\.(\d+|mlp|last_layer)\.|(dino|ibot)_(head|loss)\."
    r"|(projector|projectors|predictor|prototypes|lm_head|pre_logits|local_cls_norm)\."
)
_CHUNKED_BLOCK = re.compile(r"^blocks\.\d+\.(\d+)\.")  # DINOv2's training groups the blocks


def strip_wrappers(names: Iterable[str], where: str) -> dict[str, str]:
    """Return the stored name of every tensor by its name without the prefixes of wrappers.

    Raises `BadFile` if two tensors then have one name.
    """
    stored = list(names)
    bare = [_TORCH_WRAPPERS.sub("", name) for name in stored]
    while prefix := next(
        (word for word in _WHOLE_MODEL if bare and all(name.startswith(word) for name in bare)), ""
    ):
        bare = [_TORCH_WRAPPERS.sub("", name.removeprefix(prefix)) for name in bare]
    return _unite(bare, stored, where)


def _unite(names: Sequence[str], stored: Sequence[str], where: str) -> dict[str, str]:
    """Return the stored names by these names. Raises `BadFile` if two are the same."""
    united = dict(zip(names, stored))
    if len(united) < len(stored):
        twice, _ = Counter(names).most_common(1)[0]
        raise BadFile(
            f"{where} holds the tensor {twice} twice, under different prefixes; "
            "keep one copy of the model"
        )
    return united


def choose_tensors(names: Iterable[str], where: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the stored name of each tensor of the model by its name without prefix.

    The second value describes the tensors that are left out. Raises `BadFile` for a file that holds
    several models, if it is unclear which one is meant.
    """
    bare = strip_wrappers(names, where)
    prefixes = _list_prefixes(bare)
    if not prefixes:
        return bare, ()
    prefix, copies = _choose_prefix(prefixes, where)
    first_copy = {
        name: stored for name, stored in bare.items() if not name.startswith(tuple(copies))
    }
    inside = {
        name.removeprefix(prefix): stored
        for name, stored in first_copy.items()
        if name.startswith(prefix)
    }
    inside |= _find_head(inside, first_copy, prefix)
    used = set(inside.values())
    outside = [name for name, stored in first_copy.items() if stored not in used]
    dropped = [name for name in inside if _PRETRAINING.match(name)]
    if any(
        name.startswith("visual.") for name in inside
    ):  # timm takes the vision tower out of a CLIP
        outside += [name for name in inside if not name.startswith("visual.")]
    words = [f"the copy of the model under {other}" for other in copies]
    words += [describe_tensors(part) for part in (outside, dropped) if part]
    # timm tells layouts apart by the mask token, and leaves it out itself.
    remaining = {
        name: stored
        for name, stored in inside.items()
        if name == "mask_token" or name not in dropped
    }
    return _ungroup_blocks(remaining, where), tuple(words)


def _list_prefixes(names: Iterable[str]) -> list[str]:
    """Return the prefixes of all patch embeddings in the file."""
    prefixes = []
    for name in names:
        for anchor in _ANCHORS:
            prefix = name.removesuffix(anchor)
            if prefix != name and (not prefix or prefix.endswith(".")):
                prefixes.append(_TOWER.sub(r"\1", prefix))
    return list(dict.fromkeys(prefixes))


def _choose_prefix(prefixes: Sequence[str], where: str) -> tuple[str, list[str]]:
    """Return the prefix of the model, and those of second copies of it."""
    first = [prefix for prefix in prefixes if not _SECOND_COPIES & set(prefix.split("."))]
    if len(first) != 1 and len(prefixes) > 1:
        prefix_list = ", ".join(repr(prefix) for prefix in prefixes[:4])
        raise BadFile(
            f"{where} holds {len(prefixes)} models, under the prefixes {prefix_list}; "
            "write one of them to its own file"
        )
    chosen = first[0] if first else prefixes[0]
    return chosen, [prefix for prefix in prefixes if prefix != chosen]


def _find_head(inside: Mapping[str, str], names: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Return the head that is stored beside a backbone; empty if the backbone has one."""
    around = prefix[: prefix.rstrip(".").rfind(".") + 1]
    head = {
        name: names[around + name]
        for name in ("head.weight", "head.bias")
        if prefix and around + name in names
    }
    return {} if any(name in inside for name in head) else head


def _ungroup_blocks(names: Mapping[str, str], where: str) -> dict[str, str]:
    """Return DINOv2's `blocks.GROUP.BLOCK.` as `blocks.BLOCK.`."""
    return _unite(
        [_CHUNKED_BLOCK.sub(r"blocks.\1.", name) for name in names], list(names.values()), where
    )


def describe_tensors(names: Sequence[str]) -> str:
    """Return one line that names tensors by the modules that they belong to, and says if all are
    parts of a pretraining, which the model does not need.
    """
    parts = list(dict.fromkeys(name.partition(".")[0] for name in names))
    part_list = ", ".join(parts[:6]) + (f" and {len(parts) - 6} more" if len(parts) > 6 else "")
    use = ", used only in pretraining" if all(map(_PRETRAINING.match, names)) else ""
    return f"{part_list} ({len(names)} tensor{'s' if len(names) > 1 else ''}{use})"
