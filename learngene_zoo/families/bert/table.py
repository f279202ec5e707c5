"""The table of a `BertSpec`'s tensors, and FLOPs in closed form.

Tensors have the names and the order of the state_dict of `BertForSequenceClassification`. All are
initialised as `initialise` does.
"""

from __future__ import annotations

from learngene_zoo.families.bert.spec import BertSpec
from learngene_zoo.families.family import (
    NORM_FLOPS,
    BranchNames,
    Condition,
    Convention,
    ParameterSpec,
    Start,
    Table,
    make_norm_rows,
    make_row,
)


def list_axis_sizes(spec: BertSpec) -> dict[str, int]:
    """Return the size of each axis in the model of `spec`."""
    return {
        "width": spec.width,
        "heads": spec.heads,
        "head_width": spec.head_width,
        "hidden": spec.hidden,
        "vocabulary": spec.vocabulary,
        "positions": spec.positions,
        "segments": spec.segments_of_text,
        "classes": spec.classes,
    }


def _make_linear_rows(
    name: str,
    outputs: str,
    inputs: str,
    start: Start = "matrix",
    present: Condition = lambda spec: True,
) -> tuple[ParameterSpec, ParameterSpec]:
    """Return the two rows of a linear layer."""
    return (
        make_row(f"{name}.weight", f"{outputs}, {inputs}", start, present),
        make_row(f"{name}.bias", outputs, "zero", present),
    )


def _list_branches(spec: BertSpec) -> tuple[BranchNames, ...]:
    """Return attention and MLP of a block."""
    attention = tuple(f"attention.self.{name}" for name in ("query", "key", "value"))
    return (
        BranchNames(
            norm="attention.output.LayerNorm",
            readers=attention,
            writer="attention.output.dense",
            mixes=True,
        ),
        BranchNames(
            norm="output.LayerNorm",
            readers=("intermediate.dense",),
            writer="output.dense",
            mixes=False,
        ),
    )


TABLE = Table(
    prefix="bert.encoder.layer.",
    sizes=list_axis_sizes,
    stem=(
        make_row("bert.embeddings.word_embeddings.weight", "vocabulary, width", "embedding"),
        make_row("bert.embeddings.position_embeddings.weight", "positions, width", "positions"),
        make_row("bert.embeddings.token_type_embeddings.weight", "segments, width", "embedding"),
        *make_norm_rows("bert.embeddings.LayerNorm", "width"),
    ),
    block=(
        *_make_linear_rows("attention.self.query", "heads head_width", "width"),
        *_make_linear_rows("attention.self.key", "heads head_width", "width"),
        *_make_linear_rows("attention.self.value", "heads head_width", "width"),
        *_make_linear_rows("attention.output.dense", "width", "heads head_width", "deep"),
        *make_norm_rows("attention.output.LayerNorm", "width"),
        *_make_linear_rows("intermediate.dense", "hidden", "width"),
        *_make_linear_rows("output.dense", "width", "hidden", "deep"),
        *make_norm_rows("output.LayerNorm", "width"),
    ),
    final_norm=_make_linear_rows("bert.pooler.dense", "width", "width"),
    head=_make_linear_rows("classifier", "classes", "width", "head", lambda spec: spec.classes > 0),
    branches=_list_branches,
    norms_after=lambda spec: True,
)


def count_flops(spec: BertSpec, convention: Convention = "exact") -> int:
    """Return the multiply-adds of the model for one text of the largest length.

    The pooler and the head read the first token.
    """
    n, d = spec.tokens, spec.width
    linear = n * (4 * d * d + 2 * d * spec.hidden)
    attention = 0 if convention == "thop" else 2 * n * n * d
    norms = NORM_FLOPS[convention] * n * d
    blocks = spec.layers * (linear + attention + 2 * norms)
    return norms + blocks + d * d + d * spec.classes
