"""`TextSpec`: text models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from learngene_zoo.families.spec import Spec, check_between

# transformers' names of activations.
TextActivation = Literal[
    "gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "quick_gelu", "relu", "silu"
]

TEXT_LIMITS = {"vocabulary": 1_000_000, "positions": 1_048_576}


@dataclass(frozen=True, kw_only=True)
class TextSpec(Spec):
    """A text model. Texts are sequences of at most `positions` words of a vocabulary.

    Raises `WrongCall` for numbers that describe no model.

    Attributes:
        vocabulary: the number of words, the rows of their embedding.
        positions: the number of rows of the position embedding.
        pad_token: the word that fills up the shorter texts of a batch, on the right. None: a batch
            holds texts of equal length only.
        bos_token: the word that begins texts, if there is one.
        eos_token: the word that ends texts, if there is one.
    """

    vocabulary: int
    positions: int
    mlp_ratio: float = 4.0
    pad_token: int | None = None
    bos_token: int | None = None
    eos_token: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, most in TEXT_LIMITS.items():
            check_between(name, getattr(self, name), 1, most)
        for name in ("pad_token", "bos_token", "eos_token"):
            word = getattr(self, name)
            if word is not None:
                check_between(name, word, 0, self.vocabulary - 1)

    @property
    def tokens(self) -> int:
        """The number of tokens in every block, for a text of the largest length."""
        return self.positions
