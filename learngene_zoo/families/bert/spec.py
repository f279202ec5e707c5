"""`BertSpec`: all numbers that fix the tensors and the function of a BERT.

Source: Devlin, Chang, Lee, Toutanova. BERT: Pre-training of Deep Bidirectional Transformers for
Language Understanding. NAACL 2019; transformers' `BertModel`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from learngene_zoo.families.spec import check_between
from learngene_zoo.families.text_spec import TEXT_LIMITS, TextActivation, TextSpec

# The features of a text: the mean of its tokens, the first token, or the latter after the pooler's
# linear layer and tanh.
TextPool = Literal["pooler", "mean", "token"]
MAX_SEGMENTS = 64  # far more than in any existing model


@dataclass(frozen=True, kw_only=True)
class BertSpec(TextSpec):
    """A BERT: attention between all words, norms after attention and MLP, learned positions.

    Raises `WrongCall` for numbers that describe no model.

    Attributes:
        segments_of_text: the rows of the embedding of segments: which of two texts a word is in.
        pool: the features of a model without a head. A head always reads the pooler's output, as
            in transformers.
        normalize: sentence-transformers scales the features to unit length. It is kept for the
            files of sentence-transformers only: our features are not scaled.
        max_tokens: sentence-transformers truncates texts to this many tokens, which holds for the
            features of a model without a head. None: `positions`.
    """

    family: Literal["bert"] = "bert"
    activation: TextActivation = "gelu"
    norm_eps: float = 1e-12
    segments_of_text: int = 2
    pool: TextPool = "pooler"
    normalize: bool = False
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between("norm_eps", self.norm_eps, 1e-12, 0.1)
        check_between("segments_of_text", self.segments_of_text, 1, MAX_SEGMENTS)
        if self.max_tokens is not None:
            check_between("max_tokens", self.max_tokens, 1, TEXT_LIMITS["positions"])

    @property
    def tokens(self) -> int:
        """The number of tokens in every block, for a text of the largest length."""
        if self.max_tokens is None or self.classes:
            return self.positions
        return min(self.max_tokens, self.positions)
