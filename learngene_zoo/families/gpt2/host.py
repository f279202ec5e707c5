"""Build transformers' GPT-2 from a spec, call it, and read the spec of a module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import GPT2Config, GPT2ForSequenceClassification

from learngene_zoo.errors import WrongCall
from learngene_zoo.families.gpt2 import FAMILY
from learngene_zoo.families.gpt2.names import config
from learngene_zoo.families.gpt2.spec import Gpt2Spec
from learngene_zoo.families.transformers_modules import (
    build_config,
    list_words,
    mask_padding,
    read_spec,
)
from learngene_zoo.families.transformers_modules import open_folder as open_folder
from learngene_zoo.storage import StateDict


def create(spec: Gpt2Spec, **extra: Any) -> GPT2ForSequenceClassification:
    """Build transformers' module for a spec; without classes its head is `nn.Identity`.

    `extra` are further settings of `GPT2Config`, such as `resid_pdrop`.
    """
    rates = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    model: Any = GPT2ForSequenceClassification(
        build_config(GPT2Config, config(spec), spec.classes, {**rates, **extra})
    )
    if not spec.classes:
        model.score = nn.Identity()
    return model  # type: ignore[no-any-return]


def spec_of(model: nn.Module) -> Gpt2Spec:
    """Return the spec of a module. Raises `WrongCall` for a module of another class."""
    if type(model) is not GPT2ForSequenceClassification:
        raise WrongCall(
            f"a {type(model).__name__} is not supported; supported is {FAMILY.supported}"
        )
    spec: Gpt2Spec = read_spec(FAMILY, model, is_headless=isinstance(model.score, nn.Identity))
    return spec


def trim_state(state: StateDict) -> tuple[StateDict, tuple[str, ...]]:
    """Return the state unchanged: `names.rename_tensors` leaves out all other tensors."""
    return state, ()


def logits(model: Any, inputs: torch.Tensor) -> torch.Tensor:
    """Return the logits of the last words (B, K); without a head their features (B, D)."""
    words_BN = list_words(inputs)
    mask_BN = mask_padding(model, words_BN)
    answer = model(input_ids=words_BN, attention_mask=mask_BN, use_cache=False)
    logits_BK: torch.Tensor = answer.logits
    return logits_BK


def tokens(model: Any, inputs: torch.Tensor) -> torch.Tensor:
    """Return the tokens after the final norm, (B, N, D)."""
    words_BN = list_words(inputs)
    mask_BN = mask_padding(model, words_BN)
    answer = model.transformer(input_ids=words_BN, attention_mask=mask_BN, use_cache=False)
    tokens_BND: torch.Tensor = answer.last_hidden_state
    return tokens_BND


def pooled(model: Any, inputs: torch.Tensor) -> torch.Tensor:
    """Return the token of the last word that is not padding, (B, D)."""
    mask_BN = mask_padding(model, list_words(inputs))
    positions_N = torch.arange(mask_BN.shape[1], device=mask_BN.device)
    last_B = (mask_BN * positions_N).argmax(dim=1)
    return tokens(model, inputs)[torch.arange(len(last_B), device=last_B.device), last_B]


def classifier(model: Any) -> nn.Module:
    """Return the linear layer of the head, which has no bias."""
    layer: nn.Module = model.score
    return layer


def blocks(model: Any) -> Sequence[nn.Module]:
    """Return the blocks."""
    modules: Sequence[nn.Module] = model.transformer.h
    return modules
