"""Small text models, and a tokenizer of a few words, without a download."""

from __future__ import annotations

from pathlib import Path

import torch

from learngene_zoo.families.bert.spec import BertSpec
from learngene_zoo.families.gpt2.spec import Gpt2Spec
from learngene_zoo.families.text_spec import TextSpec

GPT2 = Gpt2Spec(
    layers=3,
    width=32,
    heads=2,
    classes=3,
    vocabulary=40,
    positions=12,
    pad_token=0,
    bos_token=1,
    eos_token=1,
)
BERT = BertSpec(
    layers=3, width=32, heads=2, classes=3, vocabulary=40, positions=12, pad_token=0, pool="mean"
)
SPECS = {"gpt2": GPT2, "bert": BERT}
WORDS = ["<pad>", "<end>", "a", "cat", "dog", "sees", "the", "hears", "no", "bird"]


def draw_words(spec: TextSpec, count: int = 4, seed: int = 0) -> torch.Tensor:
    """Return words of texts of several lengths, filled up on the right, int64 (count, N)."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(2, spec.vocabulary, (count, spec.positions), generator=generator)
    for text in range(1, count):
        words[text, spec.positions - 2 * text :] = spec.pad_token
    return words


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer of `WORDS` in transformers' format."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(
        WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<end>")
    )
    tokenizer.pre_tokenizer = Whitespace()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>", padding_side="right"
    )
    fast.save_pretrained(folder)
