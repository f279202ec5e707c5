"""The table of a `Gpt2Spec`'s tensors, how transformers initialises them, and FLOPs in closed form.

Tensors have the names and the order of the state_dict of `GPT2ForSequenceClassification`. Linear
layers of blocks are `Conv1D`, whose matrices are (in, out).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from learngene_zoo.families.family import (
    NORM_FLOPS,
    BranchNames,
    Convention,
    ParameterSpec,
    Start,
    Table,
    make_norm_rows,
    make_row,
)
from learngene_zoo.families.gpt2.spec import Gpt2Spec

if TYPE_CHECKING:
    import torch


def list_axis_sizes(spec: Gpt2Spec) -> dict[str, int]:
    """Return the size of each axis in the model of `spec`."""
    return {
        "qkv": 3,
        "width": spec.width,
        "heads": spec.heads,
        "head_width": spec.head_width,
        "hidden": spec.hidden,
        "vocabulary": spec.vocabulary,
        "positions": spec.positions,
        "classes": spec.classes,
    }


def _make_conv1d_rows(
    name: str, inputs: str, outputs: str, start: Start
) -> tuple[ParameterSpec, ParameterSpec]:
    """Return the two rows of a `Conv1D`."""
    return (
        make_row(f"{name}.weight", f"{inputs}, {outputs}", start, reads=0),
        make_row(f"{name}.bias", outputs, "zero"),
    )


def _draw_deep(
    spec: Gpt2Spec, tensor: torch.Tensor, generator: torch.Generator, block: int | None
) -> torch.Tensor:
    """Draw N(0, 0.02 / sqrt(2 L)): two branches of each of L blocks add to the stream."""
    return tensor.normal_(std=0.02 / math.sqrt(2 * spec.layers), generator=generator)


def _list_branches(spec: Gpt2Spec) -> tuple[BranchNames, ...]:
    """Return attention and MLP of a block."""
    return (
        BranchNames(norm="ln_1", readers=("attn.c_attn",), writer="attn.c_proj", mixes=True),
        BranchNames(norm="ln_2", readers=("mlp.c_fc",), writer="mlp.c_proj", mixes=False),
    )


TABLE = Table(
    prefix="transformer.h.",
    sizes=list_axis_sizes,
    stem=(
        make_row("transformer.wte.weight", "vocabulary, width", "embedding"),
        make_row("transformer.wpe.weight", "positions, width", "positions"),
    ),
    block=(
        *make_norm_rows("ln_1", "width"),
        *_make_conv1d_rows("attn.c_attn", "width", "qkv heads head_width", "matrix"),
        *_make_conv1d_rows("attn.c_proj", "heads head_width", "width", "deep"),
        *make_norm_rows("ln_2", "width"),
        *_make_conv1d_rows("mlp.c_fc", "width", "hidden", "matrix"),
        *_make_conv1d_rows("mlp.c_proj", "hidden", "width", "deep"),
    ),
    final_norm=make_norm_rows("transformer.ln_f", "width"),
    head=(make_row("score.weight", "classes, width", "matrix", lambda spec: spec.classes > 0),),
    branches=_list_branches,
    draws={"deep": _draw_deep},
)


def count_flops(spec: Gpt2Spec, convention: Convention = "exact") -> int:
    """Return the multiply-adds of the model for one text of the largest length.

    Attention computes the products of all pairs of words and masks those of later ones. The head
    reads every word; the logits of one of them are kept.
    """
    n, d = spec.tokens, spec.width
    linear = n * (4 * d * d + 2 * d * spec.hidden)
    attention = 0 if convention == "thop" else 2 * n * n * d
    norms = NORM_FLOPS[convention] * n * d
    blocks = spec.layers * (linear + attention + 2 * norms)
    return blocks + norms + n * d * spec.classes
