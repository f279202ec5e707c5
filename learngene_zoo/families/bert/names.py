"""The names of BERT in transformers: the keys of its config.json, and its tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping

from learngene_zoo.families.bert.spec import BertSpec
from learngene_zoo.families.spec import find_mlp_ratio
from learngene_zoo.families.transformers_config import (
    ACTIVATIONS,
    count_classes,
    read_fields,
    refuse_settings,
)
from learngene_zoo.settings import Json
from learngene_zoo.storage import StateDict

# Keys of config.json by the fields of `BertSpec`, with the values of absent keys.
_KEYS: dict[str, tuple[str, Json]] = {
    "vocabulary": ("vocab_size", 30522),
    "positions": ("max_position_embeddings", 512),
    "segments_of_text": ("type_vocab_size", 2),
    "width": ("hidden_size", 768),
    "layers": ("num_hidden_layers", 12),
    "heads": ("num_attention_heads", 12),
    "activation": ("hidden_act", "gelu"),
    "norm_eps": ("layer_norm_eps", 1e-12),
    "pad_token": ("pad_token_id", 0),
    "bos_token": ("bos_token_id", None),
    "eos_token": ("eos_token_id", None),
}
# Settings of another function, with the only values that are supported.
_FIXED: dict[str, Json] = {"is_decoder": False, "add_cross_attention": False}
# Settings of older versions, which newer ones no longer write.
_OLDER: dict[str, Json] = {"position_embedding_type": "absolute"}
# Heads of pretraining and of other tasks, and a buffer of older versions.
_LEFT_OUT = re.compile(r"^cls\.|^qa_outputs\.|^(bert\.)?embeddings\.position_ids$")


def write_config(spec: BertSpec) -> dict[str, Json]:
    """Return the keys of config.json that fix the model."""
    values: dict[str, Json] = {key: getattr(spec, name) for name, (key, _) in _KEYS.items()}
    architecture = "BertForSequenceClassification" if spec.classes else "BertModel"
    return {"architectures": [architecture], **values, "intermediate_size": spec.hidden, **_FIXED}


def convert_config(config: Mapping[str, Json], where: str) -> dict[str, Json]:
    """Return a config.json as the JSON of a `BertSpec`; `where` names the file.

    Raises `WrongCall` for a function that no spec expresses, `BadFile` for values of a wrong type.
    """
    refuse_settings(config, {**_FIXED, **_OLDER}, where)
    values = read_fields(config, _KEYS, where)
    values["activation"] = ACTIVATIONS.get(values["activation"], values["activation"])
    hidden = config.get("intermediate_size", 3072)
    return {
        "family": "bert",
        **values,
        "mlp_ratio": find_mlp_ratio(values["width"], hidden, where),
        "classes": count_classes(config, "BertForSequenceClassification", where),
    }


def rename_tensors(state: StateDict, spec: BertSpec) -> tuple[StateDict, tuple[str, ...]]:
    """Return the tensors of the table, and the names of the parts that are left out.

    Files of `BertModel` have names without the prefix, and the oldest ones gains and shifts of
    norms under other names. Those of a pretraining on masked words alone have no pooler: it becomes
    the identity before tanh, so that it depends on no seed.
    """
    left_out = [
        name
        for name in state
        if _LEFT_OUT.search(name) or (not spec.classes and name.startswith("classifier."))
    ]
    heads = {name.partition(".")[0] for name in left_out if not name.endswith("position_ids")}
    renamed = {_rename(name): state[name] for name in state if name not in left_out}
    if not spec.classes and not any(name.startswith("bert.pooler.") for name in renamed):
        import torch

        renamed["bert.pooler.dense.weight"] = torch.eye(spec.width)
        renamed["bert.pooler.dense.bias"] = torch.zeros(spec.width)
        heads.add("pooler (the file has none: the identity)")
    return renamed, tuple(sorted(heads))


def _rename(name: str) -> str:
    name = name.replace("LayerNorm.gamma", "LayerNorm.weight")
    name = name.replace("LayerNorm.beta", "LayerNorm.bias")
    return name if name.startswith(("bert.", "classifier.")) else f"bert.{name}"
