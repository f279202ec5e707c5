"""`Gpt2Spec`: all numbers that fix the tensors and the function of a GPT-2.

Source: Radford, Wu, Child, Luan, Amodei, Sutskever. Language Models are Unsupervised Multitask
Learners. 2019; transformers' `GPT2Model`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from learngene_zoo.families.spec import check_between
from learngene_zoo.families.text_spec import TextActivation, TextSpec
from learngene_zoo.settings import NO_OPTION, OMIT_DEFAULT


@dataclass(frozen=True, kw_only=True)
class Gpt2Spec(TextSpec):
    """A GPT-2: causal attention, norms before attention and MLP, and one after the last block.

    The head reads the last word that is not padding. Raises `WrongCall` for numbers that describe
    no model.

    Attributes:
        tied_head: whether the embedding of words is also the head of the language model. Another
            head is not part of the model: others then open it as a model without such a head.
    """

    family: Literal["gpt2"] = "gpt2"
    activation: TextActivation = "gelu_new"
    norm_eps: float = 1e-5
    tied_head: bool = field(default=True, metadata={**NO_OPTION, **OMIT_DEFAULT})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between("norm_eps", self.norm_eps, 1e-12, 0.1)

    @property
    def pool(self) -> str:
        """The pooling, which selects the input of the head."""
        return "last"
