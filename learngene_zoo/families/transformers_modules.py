"""Functions that the hosts of transformers' families share; importing it imports transformers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModel, AutoModelForSequenceClassification

from learngene_zoo.families.family import Family
from learngene_zoo.families.spec import Spec
from learngene_zoo.families.text_format import Tokens
from learngene_zoo.settings import Json, from_json, to_json


def build_config(
    kind: Any, keys: Mapping[str, Json], classes: int, extra: Mapping[str, Any]
) -> Any:
    """Return the configuration of a module.

    Args:
        kind: its class in transformers.
        keys: those of config.json.
        classes: the number of classes; a head of 1 is built for 0, and replaced by the caller.
        extra: further settings; `class_names` are the labels.
    """
    settings = dict(extra)
    names = list(settings.pop("class_names", ()))
    labels = {
        "id2label": dict(enumerate(names)),
        "label2id": {name: index for index, name in enumerate(names)},
    }
    return kind(**keys, **(labels if names else {"num_labels": max(classes, 1)}), **settings)


def read_text_spec(family: Family, model: Any, is_headless: bool) -> Any:
    """Return the spec of a module by its configuration."""
    assert family.transformers is not None
    where = f"this {type(model).__name__}"
    values = {**family.transformers.values(to_json(model.config.to_dict()), where)}
    values["classes"] = 0 if is_headless else model.config.num_labels
    return from_json(family.spec, values, where)


def convert_to_tokens(model: Any, inputs: Tokens | torch.Tensor) -> Tokens:
    """Return inputs of a model as `Tokens`; ids of single texts (B, N) get a mask."""
    if isinstance(inputs, Tokens):
        return inputs
    pad = model.config.pad_token_id
    return Tokens(inputs, torch.ones_like(inputs) if pad is None else (inputs != pad).long())


def open_folder(folder: Path, spec: Spec) -> nn.Module:
    """Open the folder of a model by transformers alone, in eval mode."""
    kind = AutoModelForSequenceClassification if spec.classes else AutoModel
    model: nn.Module = kind.from_pretrained(folder).eval()
    return model
