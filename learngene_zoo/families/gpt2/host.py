"""Build transformers' GPT-2 from a spec, call it, and read the spec of a module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from transformers import GPT2Config, GPT2ForSequenceClassification

from learngene_zoo.errors import WrongCall
from learngene_zoo.families.forward import observe_input
from learngene_zoo.families.gpt2 import FAMILY
from learngene_zoo.families.gpt2.names import write_config
from learngene_zoo.families.gpt2.spec import Gpt2Spec
from learngene_zoo.families.text_format import Tokens
from learngene_zoo.families.transformers_modules import (
    build_config,
    convert_to_tokens,
    read_text_spec,
)
from learngene_zoo.families.transformers_modules import open_folder as open_folder
from learngene_zoo.storage import StateDict


def create(spec: Gpt2Spec, **extra: Any) -> GPT2ForSequenceClassification:
    """Build transformers' module for a spec; without classes its head is `nn.Identity`.

    `extra` are further settings of `GPT2Config`, such as `resid_pdrop`.
    """
    rates = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    model: Any = GPT2ForSequenceClassification(
        build_config(GPT2Config, write_config(spec), spec.classes, {**rates, **extra})
    )
    if not spec.classes:
        model.score = nn.Identity()
    return model  # type: ignore[no-any-return]


def read_spec(model: nn.Module) -> Gpt2Spec:
    """Return the spec of a module. Raises `WrongCall` for a module of another class."""
    if type(model) is not GPT2ForSequenceClassification:
        raise WrongCall(
            f"a {type(model).__name__} is not supported; supported is {FAMILY.supported}"
        )
    spec: Gpt2Spec = read_text_spec(FAMILY, model, is_headless=isinstance(model.score, nn.Identity))
    return spec


def trim_state(state: StateDict) -> tuple[StateDict, tuple[str, ...]]:
    """Return the state unchanged: `names.rename_tensors` leaves out all other tensors."""
    return state, ()


def compute_logits(model: Any, inputs: Tokens | torch.Tensor) -> torch.Tensor:
    """Return the logits at the last tokens (B, K); without a head their features (B, D)."""
    texts = convert_to_tokens(model, inputs)
    answer = model(input_ids=texts.ids, attention_mask=texts.mask, use_cache=False)
    logits_BK: torch.Tensor = answer.logits
    return logits_BK


def compute_tokens(model: Any, inputs: Tokens | torch.Tensor) -> torch.Tensor:
    """Return the tokens after the final norm, (B, N, D)."""
    texts = convert_to_tokens(model, inputs)
    answer = model.transformer(input_ids=texts.ids, attention_mask=texts.mask, use_cache=False)
    tokens_BND: torch.Tensor = answer.last_hidden_state
    return tokens_BND


def compute_pooled(model: Any, inputs: Tokens | torch.Tensor) -> torch.Tensor:
    """Return the last token of each text that is not the pad token, (B, D).

    As in transformers, the id decides and not the mask.
    """
    texts = convert_to_tokens(model, inputs)
    is_text_BN = (texts.ids != model.config.pad_token_id).long()
    last_B = (is_text_BN * torch.arange(is_text_BN.shape[1], device=texts.ids.device)).argmax(1)
    return compute_tokens(model, texts)[torch.arange(len(last_B), device=last_B.device), last_B]


def spread_pooled(model: Any, pooled_ND: torch.Tensor) -> StateDict:
    """Return no tensors: the pooled features are outputs of a norm."""
    return {}


def get_classifier(model: Any) -> nn.Module:
    """Return the linear layer of the head, which has no bias."""
    layer: nn.Module = model.score
    return layer


def get_blocks(model: Any) -> Sequence[nn.Module]:
    """Return the blocks."""
    modules: Sequence[nn.Module] = model.transformer.h
    return modules


def embed_tokens(model: Any, inputs: Tokens | torch.Tensor) -> torch.Tensor:
    """Return the tokens that the first block reads, (B, N, D)."""
    ids_BN, body = convert_to_tokens(model, inputs).ids, model.transformer
    places_N = torch.arange(ids_BN.shape[1], device=ids_BN.device)
    tokens_BND: torch.Tensor = body.wte(ids_BN) + body.wpe(places_N)
    return tokens_BND


def compute_hidden(
    model: Any, block: int, mixes: bool, tokens_BND: torch.Tensor, mask_BN: torch.Tensor
) -> torch.Tensor:
    """Return the inputs of a branch's writer, (B, N, I).

    No word reads later ones, and padding is last, so `mask_BN` is not needed.
    """
    layers = get_blocks(model)[block]
    if not mixes:
        mlp: Any = layers.mlp
        hidden_BNI: torch.Tensor = mlp.act(mlp.c_fc(tokens_BND))
        return hidden_BNI
    attention: Any = layers.attn
    writer, attention.c_proj = attention.c_proj, nn.Identity()
    try:
        size = tokens_BND.shape[1]
        causal_NN = torch.full((size, size), -torch.inf, device=tokens_BND.device).triu(1)
        hidden_BNI = attention(tokens_BND, attention_mask=causal_NN.to(tokens_BND)[None, None])[0]
        return hidden_BNI
    finally:
        attention.c_proj = writer


def observe_logits(model: Any, keep: Callable[[torch.Tensor], None]) -> Any:
    """Call `keep` with the logits of every later forward pass; return the handle of the hook."""
    # The head gives logits for every token, of which the model returns one.
    return model.register_forward_hook(lambda module, inputs, output: keep(output.logits))


def observe_stream(model: Any, keep: Callable[[torch.Tensor], None]) -> Any:
    """Call `keep` with the tokens after the last block; return the handle of the hook."""
    return observe_input(model.transformer.ln_f, keep)
