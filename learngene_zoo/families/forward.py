"""Call a model of any class: its logits, its tokens, its pooled features, and its parts.

Generic code calls these functions instead of a module. Classes of transformers are called by the
host of their family; every other module is called as timm's are.

Inputs are images, float (B, C, H, W), or texts: `Tokens`, or the ids of single texts, int64 (B, N),
padded on the right with the pad token of the model.

Shapes: B inputs, N tokens, D width, K classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from learngene_zoo.families.family import (
    Family,
    ForwardFunctions,
    Table,
    iterate_families,
    load_host,
)
from learngene_zoo.storage import StateDict


def compute_logits(model: Any, inputs: Any) -> torch.Tensor:
    """Return the logits (B, K); of a model without a head the pooled features (B, D).

    A dense model returns logits for every pixel, (B, K, H, W).
    """
    functions = _find_functions(type(model))
    if functions is not None:
        return functions.compute_logits(model, inputs)
    logits: torch.Tensor = model(inputs)
    return logits


def compute_tokens(model: Any, inputs: Any) -> torch.Tensor:
    """Return the tokens after the last block and the norm over all of them, (B, N, D)."""
    functions = _find_functions(type(model))
    if functions is not None:
        return functions.compute_tokens(model, inputs)
    tokens_BND: torch.Tensor = model.forward_features(inputs)
    return tokens_BND


def compute_pooled(model: Any, inputs: Any) -> torch.Tensor:
    """Return the input of the head, (B, D); of a dense model one for every patch, (B, N, D)."""
    functions = _find_functions(type(model))
    if functions is not None:
        return functions.compute_pooled(model, inputs)
    pooled_BD: torch.Tensor = model.forward_head(model.forward_features(inputs), pre_logits=True)
    return pooled_BD


def spread_pooled(model: Any, pooled_ND: torch.Tensor) -> StateDict:
    """Return tensors of a model that give its pooled features a usable spread, by their names.

    {} for features that need none.
    """
    functions = _find_functions(type(model))
    return {} if functions is None else functions.spread_pooled(model, pooled_ND)


def get_classifier(model: Any) -> nn.Module:
    """Return the layer of the head: linear, or `nn.Identity` for a model without a head."""
    functions = _find_functions(type(model))
    if functions is not None:
        return functions.get_classifier(model)
    layer: nn.Module = model.get_classifier()
    return layer


def find_classifier(model: Any) -> nn.Module | None:
    """Return the layer of the head as `get_classifier` does; None for a class that has none."""
    is_known = _find_functions(type(model)) is not None or hasattr(model, "get_classifier")
    return get_classifier(model) if is_known else None


def get_blocks(model: Any) -> Sequence[nn.Module]:
    """Return the blocks, first to last."""
    functions = _find_functions(type(model))
    if functions is not None:
        return functions.get_blocks(model)
    blocks: Sequence[nn.Module] = model.blocks
    return blocks


def find_table(model: Any) -> Table | None:
    """Return the table of the family of a module of transformers; None for timm's."""
    family = _find_family(type(model))
    return None if family is None else family.table


def embed_tokens(model: Any, inputs: Any) -> torch.Tensor:
    """Return the tokens that the first block of a module of transformers reads, (B, N, D)."""
    return _require_functions(model).embed_tokens(model, inputs)


def compute_hidden(
    model: Any, block: int, mixes: bool, tokens_BND: torch.Tensor, mask_BN: torch.Tensor
) -> torch.Tensor:
    """Return the inputs of the writer of a branch in a module of transformers, (B, N, I).

    Args:
        model: the module.
        block: the number of the block.
        mixes: the attention, else the MLP.
        tokens_BND: what its readers read.
        mask_BN: 0 for padding.
    """
    return _require_functions(model).compute_hidden(model, block, mixes, tokens_BND, mask_BN)


def observe_logits(model: Any, keep: Callable[[torch.Tensor], None]) -> Any:
    """Call `keep` with the logits of every later forward pass; return the handle of the hook."""
    functions = _find_functions(type(model))
    if functions is not None:
        return functions.observe_logits(model, keep)
    return observe_output(get_classifier(model), keep)


def observe_stream(model: Any, keep: Callable[[torch.Tensor], None]) -> Any:
    """Call `keep` with the tokens after the last block, before the final norm, (B, N, D).

    Return the handle of the hook.
    """
    functions = _find_functions(type(model))
    if functions is not None:
        return functions.observe_stream(model, keep)
    return observe_input(model.norm, keep)


def observe_output(module: nn.Module, keep: Callable[[torch.Tensor], None]) -> Any:
    """Call `keep` with every later output of a module; return the handle of the hook."""
    # A hook must return None: any other value would replace the output.
    return module.register_forward_hook(lambda module, inputs, output: keep(output))


def observe_input(module: nn.Module, keep: Callable[[torch.Tensor], None]) -> Any:
    """Call `keep` with every later first input of a module; return the handle of the hook."""
    return module.register_forward_pre_hook(lambda module, inputs: keep(inputs[0]))


def _require_functions(model: Any) -> ForwardFunctions:
    functions = _find_functions(type(model))
    assert functions is not None, f"{type(model).__name__} is not a class of transformers"
    return functions


def _find_functions(kind: Any) -> ForwardFunctions | None:
    """Return the functions of the family whose models have this class; None for timm's."""
    # Only classes of transformers have this attribute.
    return _search_families(kind) if hasattr(kind, "base_model_prefix") else None


# A dict, because torch.compile ignores a cache of functools and would trace the search. A decorator
# of torch.compiler would import torch._dynamo, which takes more than a second.
_functions: dict[Any, ForwardFunctions | None] = {}


def _search_families(kind: Any) -> ForwardFunctions | None:
    if kind not in _functions:
        family = _find_family(kind)
        functions: Any = None if family is None else load_host(family)
        _functions[kind] = functions
    return _functions[kind]


def _find_family(kind: Any) -> Family | None:
    modules = {base.__module__ for base in kind.__mro__}
    for family in iterate_families():
        if family.transformers is not None and family.transformers.module in modules:
            return family
    return None


def pool_words(tokens_BND: torch.Tensor, mask_BN: torch.Tensor, pool: str) -> torch.Tensor:
    """Return the feature (B, D) of each text: the mean of its tokens, the first or the last one.

    Args:
        tokens_BND: the tokens.
        mask_BN: 0 for padding.
        pool: "mean"; "last"; else the first token.
    """
    if pool == "mean":
        mask_BN1 = mask_BN[..., None].to(tokens_BND.dtype)
        return (tokens_BND * mask_BN1).sum(dim=1) / mask_BN1.sum(dim=1).clamp(min=1)
    last_B = mask_BN.sum(dim=1) - 1 if pool == "last" else torch.zeros_like(mask_BN[:, 0])
    rows_B = torch.arange(tokens_BND.shape[0], device=tokens_BND.device)  # `len` is not traced
    return tokens_BND[rows_B, last_B]
