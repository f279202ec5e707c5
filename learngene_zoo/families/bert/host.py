"""Build transformers' BERT from a spec, call it, and read the spec of a module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

from learngene_zoo.errors import WrongCall
from learngene_zoo.families.bert import FAMILY
from learngene_zoo.families.bert.names import write_config
from learngene_zoo.families.bert.spec import BertSpec
from learngene_zoo.families.forward import observe_output, pool_words
from learngene_zoo.families.text_format import Tokens
from learngene_zoo.families.transformers_modules import (
    build_config,
    convert_to_tokens,
    read_text_spec,
)
from learngene_zoo.families.transformers_modules import open_folder as open_folder
from learngene_zoo.storage import StateDict

# Standard deviation of the pooler's outputs below which a head cannot be trained on them, and the
# one that its inputs get.
MIN_SPREAD, SPREAD = 0.01, 0.5
MAX_POOLED = 1 - 1e-7  # tanh of a saturated channel is 1 in float32, and its inverse infinite


def create(spec: BertSpec, **extra: Any) -> BertForSequenceClassification:
    """Build transformers' module for a spec; without classes its head is `nn.Identity`.

    `extra` are further settings of `BertConfig`, such as `hidden_dropout_prob`.
    """
    rates = {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0}
    model: Any = BertForSequenceClassification(
        build_config(BertConfig, write_config(spec), spec.classes, {**rates, **extra})
    )
    if not spec.classes:
        model.classifier = nn.Identity()
    model.pool, model.normalize = spec.pool, spec.normalize
    # Never saved; not on the meta device, where the other tensors are built.
    numbers = torch.arange(spec.positions, device="cpu")[None]
    model.bert.embeddings.position_ids = numbers
    model.bert.embeddings.token_type_ids = torch.zeros_like(numbers)
    return model  # type: ignore[no-any-return]


def read_spec(model: nn.Module) -> BertSpec:
    """Return the spec of a module. Raises `WrongCall` for a module of another class."""
    if type(model) is not BertForSequenceClassification:
        raise WrongCall(
            f"a {type(model).__name__} is not supported; supported is {FAMILY.supported}"
        )
    is_headless = isinstance(model.classifier, nn.Identity)
    spec: BertSpec = read_text_spec(FAMILY, model, is_headless)
    return spec.with_(
        pool=getattr(model, "pool", None), normalize=getattr(model, "normalize", False)
    )


def trim_state(state: StateDict) -> tuple[StateDict, tuple[str, ...]]:
    """Return the state unchanged: `names.rename_tensors` leaves out all other tensors."""
    return state, ()


def compute_logits(model: Any, inputs: Tokens | torch.Tensor) -> torch.Tensor:
    """Return the logits (B, K); without a head the pooled features (B, D)."""
    if isinstance(model.classifier, nn.Identity):
        # Through the identity, which `observe_logits` hooks.
        return model.classifier(compute_pooled(model, inputs))  # type: ignore[no-any-return]
    logits_BK: torch.Tensor = model(**_name_inputs(model, inputs)).logits
    return logits_BK


def compute_tokens(model: Any, inputs: Tokens | torch.Tensor) -> torch.Tensor:
    """Return the tokens after the last block, which ends with a norm, (B, N, D)."""
    tokens_BND: torch.Tensor = model.bert(**_name_inputs(model, inputs)).last_hidden_state
    return tokens_BND


def compute_pooled(model: Any, inputs: Tokens | torch.Tensor) -> torch.Tensor:
    """Return the pooler's output, or without a head the features that the spec names, (B, D)."""
    pool = getattr(model, "pool", "pooler") if isinstance(model.classifier, nn.Identity) else None
    if pool not in ("mean", "token"):
        pooled_BD: torch.Tensor = model.bert(**_name_inputs(model, inputs)).pooler_output
        return pooled_BD
    return pool_words(compute_tokens(model, inputs), convert_to_tokens(model, inputs).mask, pool)


def spread_pooled(model: Any, pooled_ND: torch.Tensor) -> StateDict:
    """Return the pooler's tensors that give its outputs a usable spread; {} if they have one.

    A pooler that the ancestry model does not use (sentence-transformers' models take the mean of
    the tokens) has been shrunk by weight decay: its outputs differ by 1e-5 or so between texts, a
    head that separates them has weights of 1e5, and one training step moves its logits by
    hundreds. Each channel before tanh gets the mean 0 and the standard deviation `SPREAD`, at which
    tanh is nearly linear, so that the outputs keep their information.

    Args:
        model: the module.
        pooled_ND: outputs of its pooler for texts; one text has no spread.
    """
    if len(pooled_ND) < 2:
        return {}
    if float(pooled_ND.std(dim=0).mean()) >= MIN_SPREAD:
        return {}
    inputs_ND = pooled_ND.double().clamp(-MAX_POOLED, MAX_POOLED).atanh()
    std_D = inputs_ND.std(dim=0)
    factor_D = SPREAD / std_D.clamp(min=float(std_D.mean()) / 100)
    layer = model.bert.pooler.dense
    weight = layer.weight.detach().cpu().double() * factor_D[:, None]
    bias = (layer.bias.detach().cpu().double() - inputs_ND.mean(dim=0)) * factor_D
    return {"bert.pooler.dense.weight": weight.float(), "bert.pooler.dense.bias": bias.float()}


def get_classifier(model: Any) -> nn.Module:
    """Return the linear layer of the head."""
    layer: nn.Module = model.classifier
    return layer


def get_blocks(model: Any) -> Sequence[nn.Module]:
    """Return the blocks."""
    modules: Sequence[nn.Module] = model.bert.encoder.layer
    return modules


def embed_tokens(model: Any, inputs: Tokens | torch.Tensor) -> torch.Tensor:
    """Return the tokens that the first block reads, (B, N, D)."""
    named = _name_inputs(model, inputs)
    tokens_BND: torch.Tensor = model.bert.embeddings(
        input_ids=named["input_ids"], token_type_ids=named["token_type_ids"]
    )
    return tokens_BND


def compute_hidden(
    model: Any, block: int, mixes: bool, tokens_BND: torch.Tensor, mask_BN: torch.Tensor
) -> torch.Tensor:
    """Return the inputs of a branch's writer, (B, N, I); padding is not attended to."""
    layers: Any = get_blocks(model)[block]
    if not mixes:
        hidden_BNI: torch.Tensor = layers.intermediate(tokens_BND)
        return hidden_BNI
    hidden_BNI, _ = layers.attention.self(tokens_BND, mask_BN[:, None, None].bool())
    return hidden_BNI


def observe_logits(model: Any, keep: Callable[[torch.Tensor], None]) -> Any:
    """Call `keep` with the logits of every later forward pass; return the handle of the hook."""
    return observe_output(model.classifier, keep)


def observe_stream(model: Any, keep: Callable[[torch.Tensor], None]) -> Any:
    """Call `keep` with the tokens after the last block; return the handle of the hook."""

    def keep_tokens(output: Any) -> None:
        keep(output.last_hidden_state)

    return observe_output(model.bert.encoder, keep_tokens)


def _name_inputs(model: Any, inputs: Tokens | torch.Tensor) -> dict[str, torch.Tensor | None]:
    texts = convert_to_tokens(model, inputs)
    # A model with one segment does not tell the texts of a pair apart.
    has_segments = model.config.type_vocab_size > 1
    return {
        "input_ids": texts.ids,
        "attention_mask": texts.mask,
        "token_type_ids": texts.types if has_segments else None,
    }
