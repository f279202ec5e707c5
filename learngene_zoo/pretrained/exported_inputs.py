"""Inputs of exported files: their names, and the metadata that state how they are made.

A file of an image model takes `PIXELS`. A file of a text model takes `WORDS`, as
transformers names them, without the last one if the model does not tell the texts of a pair apart.
Its metadata hold the whole tokenizer, so that it opens without any other file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from learngene_zoo.errors import BadFile
from learngene_zoo.families.picture_format import InputFormat
from learngene_zoo.families.text_format import (
    TextFormat,
    Tokens,
    register_tokenizer,
)
from learngene_zoo.families.timm_config import read_image_settings, read_normalisation, read_view
from learngene_zoo.settings import from_json
from learngene_zoo.storage import parse_json

if TYPE_CHECKING:
    import torch

PIXELS = "pixel_values"
WORDS = ("input_ids", "attention_mask", "token_type_ids")
TOKENIZER = "tokenizer"


def list_input_names(model: Any, form: InputFormat | TextFormat) -> tuple[str, ...]:
    """Return the names of the inputs of the exported file of a module."""
    if not isinstance(form, TextFormat):
        return (PIXELS,)
    has_types = getattr(model.config, "type_vocab_size", 1) > 1
    return WORDS if has_types else WORDS[:2]


def split_inputs(inputs: torch.Tensor | Tokens, names: Sequence[str]) -> dict[str, torch.Tensor]:
    """Return images or texts as the tensors that a file takes, by its names of inputs."""
    if not isinstance(inputs, Tokens):
        return dict.fromkeys(names, inputs)
    types = inputs.types if inputs.types is not None else inputs.ids.new_zeros(inputs.ids.shape)
    return dict(zip(names, (inputs.ids, inputs.mask, types)))


def read_input_format(facts: Mapping[str, str], where: str) -> InputFormat | TextFormat:
    """Return the input format that the metadata of a file state.

    Raises `BadFile` for metadata that `lgzoo export` does not write.
    """
    stated = read_preprocessing(facts)
    if stated is None:
        raise refuse_metadata(where)
    if "tokens" in stated:
        return _read_texts(stated, facts[TOKENIZER], where)
    images = read_image_settings({"pretrained_cfg": stated}, where)
    channels, size, _ = images["input_size"]
    mean, std = read_normalisation(images, channels)
    view = read_view(images, where)
    return InputFormat(image_size=size, channels=channels, mean=mean, std=std, view=view)


def refuse_metadata(where: str) -> BadFile:
    """Return the error for metadata of a file that this package did not write."""
    return BadFile(
        f"{where}: its metadata are not those that `lgzoo export` writes; export it again"
    )


def read_preprocessing(facts: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the value of "preprocessing" in the metadata of a file; None if it lacks a key."""
    try:
        stated = parse_json(facts["preprocessing"].encode())
    except (KeyError, ValueError):
        return None
    if not isinstance(stated, dict):
        return None
    is_text = {"tokens", "pad_token_id"} <= stated.keys() and TOKENIZER in facts
    return stated if is_text or {"input_size", "mean", "std"} <= stated.keys() else None


def _read_texts(stated: Mapping[str, Any], tokenizer: str, where: str) -> TextFormat:
    values = {
        "tokens": stated["tokens"],
        "pad": stated["pad_token_id"],
        "tokenizer": register_tokenizer(tokenizer),
    }
    return from_json(TextFormat, values, f"{where}: preprocessing")
