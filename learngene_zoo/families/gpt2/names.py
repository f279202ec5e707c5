"""The names of GPT-2 in transformers: the keys of its config.json, and its tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping

from learngene_zoo.errors import BadFile
from learngene_zoo.families.gpt2.spec import Gpt2Spec
from learngene_zoo.families.spec import find_mlp_ratio
from learngene_zoo.families.transformers_config import (
    ACTIVATIONS,
    count_classes,
    read_fields,
    refuse_settings,
)
from learngene_zoo.settings import Json
from learngene_zoo.storage import StateDict

# Keys of config.json by the fields of `Gpt2Spec`, with the values of absent keys.
_KEYS: dict[str, tuple[str, Json]] = {
    "vocabulary": ("vocab_size", 50257),
    "positions": ("n_positions", 1024),
    "width": ("n_embd", 768),
    "layers": ("n_layer", 12),
    "heads": ("n_head", 12),
    "activation": ("activation_function", "gelu_new"),
    "norm_eps": ("layer_norm_epsilon", 1e-5),
    "bos_token": ("bos_token_id", 50256),
    "eos_token": ("eos_token_id", 50256),
    "pad_token": ("pad_token_id", None),
    "tied_head": ("tie_word_embeddings", True),
}
# Keys that `GPT2Config` reads as those of `_KEYS`, which they override.
_ALIASES = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}
# Settings of another function, with the only values that are supported.
_FIXED: dict[str, Json] = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "reorder_and_upcast_attn": False,
    "add_cross_attention": False,
}
_BUFFERS = re.compile(r"\.attn\.(masked_)?bias$")  # masks, in files of older versions
_HEADS = ("lm_head.", "multiple_choice_head.", "classifier.", "qa_outputs.")


def write_config(spec: Gpt2Spec) -> dict[str, Json]:
    """Return the keys of config.json that fix the model."""
    values: dict[str, Json] = {key: getattr(spec, name) for name, (key, _) in _KEYS.items()}
    body = "GPT2LMHeadModel" if spec.tied_head else "GPT2Model"
    architecture = "GPT2ForSequenceClassification" if spec.classes else body
    return {"architectures": [architecture], **values, "n_inner": spec.hidden, **_FIXED}


def convert_config(config: Mapping[str, Json], where: str) -> dict[str, Json]:
    """Return a config.json as the JSON of a `Gpt2Spec`; `where` names the file.

    The padding word of a config without one is the word that ends texts. Raises `WrongCall` for a
    function that no spec expresses, `BadFile` for values of a wrong type.
    """
    aliases = {key: config[alias] for alias, key in _ALIASES.items() if alias in config}
    config = {**config, **aliases}
    refuse_settings(config, _FIXED, where)
    values = read_fields(config, _KEYS, where)
    values["activation"] = ACTIVATIONS.get(values["activation"], values["activation"])
    hidden = config.get("n_inner") or 4 * values["width"]
    for name in ("bos_token", "eos_token"):
        # The default of an absent key is a word of the published models.
        if _KEYS[name][0] not in config and values[name] >= values["vocabulary"]:
            values[name] = None
    if values["pad_token"] is None:
        values["pad_token"] = values["eos_token"]
    return {
        "family": "gpt2",
        **values,
        "mlp_ratio": find_mlp_ratio(values["width"], hidden, where),
        "classes": count_classes(config, "GPT2ForSequenceClassification", where),
    }


def rename_tensors(state: StateDict, spec: Gpt2Spec) -> tuple[StateDict, tuple[str, ...]]:
    """Return the tensors of the table, and the names of the parts that are left out.

    Files of `GPT2Model` have names without the prefix. Raises `BadFile` for a head of the language
    model that differs from the embedding of words, if the config says that both are one.
    """
    _check_head(state, spec)
    kept = [name for name in state if not (_BUFFERS.search(name) or name.startswith(_HEADS))]
    heads = [name for name in state if name.startswith(_HEADS)]
    if not spec.classes:
        heads += [name for name in kept if name.startswith("score.")]
    renamed = {
        name if name.startswith(("transformer.", "score.")) else f"transformer.{name}": state[name]
        for name in kept
        if name not in heads
    }
    left_out = [name.removesuffix(".weight") for name in heads if not name.endswith(".bias")]
    return renamed, tuple(sorted(left_out))


def _check_head(state: StateDict, spec: Gpt2Spec) -> None:
    head = state.get("lm_head.weight")
    words = state.get("transformer.wte.weight", state.get("wte.weight"))
    if spec.tied_head and head is not None and words is not None and not head.equal(words):
        raise BadFile(
            "lm_head.weight differs from the embedding of words, and config.json says that they are"
            ' one; write "tie_word_embeddings": false into it'
        )
