"""A small tokenizer and texts for tests."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

WORDS = ("the", "cat", "dog", "runs", "sleeps", "not", "very", "fast", "and", "a", "red", "house")


@cache
def byte_tokenizer() -> str:
    """Return the tokenizer.json of a byte-level BPE without template, as GPT-2's."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([" ".join(WORDS)] * 4, trainer)
    return str(tokenizer.to_str())


@cache
def word_tokenizer() -> str:
    """Return the tokenizer.json of a word tokenizer with a template for pairs, as BERT's."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
    vocabulary = {word: number for number, word in enumerate((*special, *WORDS))}
    tokenizer: Any = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.add_special_tokens(list(special))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return str(tokenizer.to_str())


def without_special(content: str, *names: str) -> str:
    """Return a tokenizer.json without some of its special tokens."""
    stored = json.loads(content)
    stored["added_tokens"] = [
        entry for entry in stored["added_tokens"] if entry["content"] not in names
    ]
    for name in names:
        stored["model"]["vocab"].pop(name, None)
    return json.dumps(stored)
