"""Encode texts and pairs of texts as `Tokens`, with the package `tokenizers`.

A pair is encoded by the template of the tokenizer if that separates the two texts, otherwise as
the first text, an end-of-text token, and the second text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from learngene_zoo.errors import BadData, BadFile, Unavailable
from learngene_zoo.families.text_format import (
    MULTIPLE,
    TEXT_EXTRA,
    TextFormat,
    Tokens,
    read_tokenizer,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from learngene_zoo.tasks.task import Split

Text = str | tuple[str, str]
READ_AT_ONCE = 1_000
# End-of-text tokens, of which the first that a tokenizer has separates the texts of a pair.
END_NAMES = ("<|endoftext|>", "</s>", "<eos>", "<|end|>", "[SEP]", "<EOS>")


def load_tokenizer(content: str) -> Tokenizer:
    """Return the tokenizer of a tokenizer.json.

    Raises:
        Unavailable: if the package `tokenizers` is not installed.
        BadFile: if the file cannot be read.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise Unavailable(f"text tasks need the package tokenizers: {TEXT_EXTRA}") from None
    try:
        tokenizer = Tokenizer.from_str(content)
    except Exception as error:  # the package raises bare exceptions
        reason = " ".join(str(error).split())[:160]
        raise BadFile(f"tokenizer.json cannot be read: {reason}") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def load_truncating_tokenizer(content: str, tokens: int) -> Tokenizer:
    """Return the tokenizer of a tokenizer.json, which truncates to a number of tokens.

    Raises as `load_tokenizer` does, and `BadFile` if the special tokens of a pair leave no space.
    """
    tokenizer = load_tokenizer(content)
    special = tokenizer.num_special_tokens_to_add(is_pair=True)
    if tokens <= special:
        raise BadFile(
            f"{tokens} tokens have no space for a text beside the {special} special tokens of the "
            "tokenizer"
        )
    tokenizer.enable_truncation(tokens)
    return tokenizer


def build_tokenizer(form: TextFormat) -> Tokenizer:
    """Return the tokenizer of a format, which truncates and pads on the right as a model needs.

    Raises as `load_truncating_tokenizer` does.
    """
    tokenizer = load_truncating_tokenizer(read_tokenizer(form.tokenizer), form.tokens)
    tokenizer.enable_padding(pad_id=form.pad, pad_token=tokenizer.id_to_token(form.pad))
    return tokenizer


@dataclass(frozen=True)
class Encoder:
    """Encodes texts in a format. It can be pickled for worker processes."""

    form: TextFormat
    content: str  # of tokenizer.json

    @classmethod
    def of(cls, form: TextFormat) -> Encoder:
        """Return the encoder of a format, whose tokenizer an opened model has registered.

        Raises `Unavailable` for an unknown tokenizer or without the package, and `BadFile`.
        """
        encoder = cls(form, read_tokenizer(form.tokenizer))
        assert encoder.tokenizer is not None  # refuses a damaged file before the first step
        return encoder

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, without truncation and padding."""
        return load_tokenizer(self.content)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the tokenizer, which another process builds itself."""
        return {"form": self.form, "content": self.content}

    @cached_property
    def separator(self) -> int | None:
        """The end-of-text token between the texts of a pair; None if a template separates them.

        Raises `BadFile` if the tokenizer has neither.
        """
        if self.tokenizer.num_special_tokens_to_add(is_pair=True):
            return None
        ids = map(self.tokenizer.token_to_id, END_NAMES)
        end = next((token for token in ids if token is not None), None)
        if end is None:
            raise BadFile(
                "the tokenizer has neither a template for pairs of texts nor one of the tokens "
                f"{', '.join(END_NAMES)} to separate them; use a task of single texts"
            )
        return end

    def encode(self, text: Text) -> tuple[list[int], list[int]]:
        """Return the ids and the type ids of a text or a pair, at most `form.tokens` of each.

        Tokens at the end are left out, in a pair those of the longer text first.
        """
        most = self.form.tokens
        if isinstance(text, tuple) and self.separator is not None:
            first, second = (self.tokenizer.encode(part).ids for part in text)
            lengths = shorten_pair(len(first), len(second), most - 1)
            ids = [*first[: lengths[0]], self.separator, *second[: lengths[1]]]
            return ids, [0] * len(ids)
        parts = text if isinstance(text, tuple) else (text,)
        encoding = self._truncating_tokenizer.encode(*parts)
        return encoding.ids, encoding.type_ids

    def order_by_length(self, split: Split, indices: np.ndarray) -> np.ndarray:
        """Return the indices of texts by their number of tokens, the longest first.

        Batches of texts of similar length have little padding. The first batch needs the most
        memory.

        Args:
            split: the texts.
            indices: int64 (N,).
        """
        lengths: list[int] = []
        for start in range(0, len(indices), READ_AT_ONCE):
            texts = split.__getitems__(indices[start : start + READ_AT_ONCE].tolist())
            lengths += [len(self.encode(text)[0]) for text in texts]
        return indices[np.argsort(-np.array(lengths, dtype=np.int64), kind="stable")]

    @cached_property
    def _truncating_tokenizer(self) -> Tokenizer:
        return load_truncating_tokenizer(self.content, self.form.tokens)

    def __call__(self, texts: Sequence[Text], where: Sequence[str]) -> Tokens:
        """Return a batch of texts, padded on the right.

        The length is that of the longest text, rounded up to a multiple of `MULTIPLE` if the format
        allows as many tokens.

        Args:
            texts: the texts or pairs.
            where: the names of the texts in errors.

        Raises:
            BadData: for a text without any token.
        """
        import torch

        encoded = [self.encode(text) for text in texts]
        for (ids, _), name in zip(encoded, where, strict=True):
            if not ids:
                raise BadData(f"{name} has no tokens for this tokenizer; remove it")
        longest = max((len(ids) for ids, _ in encoded), default=1)
        length = min(-(-longest // MULTIPLE) * MULTIPLE, self.form.tokens)
        ids_BT = np.full((len(encoded), length), self.form.pad, dtype=np.int64)
        mask_BT, types_BT = np.zeros_like(ids_BT), np.zeros_like(ids_BT)
        for row, (ids, types) in enumerate(encoded):
            ids_BT[row, : len(ids)], mask_BT[row, : len(ids)] = ids, 1
            types_BT[row, : len(ids)] = types
        return Tokens(
            torch.from_numpy(ids_BT),
            torch.from_numpy(mask_BT),
            torch.from_numpy(types_BT) if types_BT.any() else None,
        )


def describe_truncation(texts: Sequence[Text], form: TextFormat) -> str:
    """Return a note on how many texts are longer than a model takes; "" if none is.

    Raises `BadFile` for pairs that the tokenizer cannot separate.
    """
    encoder, parts = Encoder.of(form), list[Any](texts)
    lengths = [
        len(encoding.ids) + (isinstance(text, tuple) and encoder.separator is not None)
        for text, encoding in zip(texts, encoder.tokenizer.encode_batch(parts), strict=True)
    ]
    count = sum(length > form.tokens for length in lengths)
    if not count:
        return ""
    if len(lengths) == 1:
        return (
            f"the text has {lengths[0]} tokens, and the model takes at most {form.tokens}; its end "
            "is left out"
        )
    has, end = ("has", "its end is") if count == 1 else ("have", "their ends are")
    return (
        f"{count} of the first {len(lengths)} texts {has} more than {form.tokens} tokens, which is "
        f"the most that the model takes; {end} left out"
    )


def measure_length(texts: Sequence[Text], form: TextFormat, batch_size: int) -> int:
    """Return the mean number of tokens to which batches of these texts are padded, at least 1."""
    encoder = Encoder.of(form)
    starts = range(0, len(texts), batch_size)
    batches = [texts[start : start + batch_size] for start in starts]
    lengths = [encoder(batch, [""] * len(batch)).ids.shape[1] for batch in batches]
    return max(1, round(sum(lengths) / max(1, len(lengths))))


def shorten_pair(first: int, second: int, most: int) -> tuple[int, int]:
    """Return lengths of two texts with a sum of at most `most`; the longer one is cut first."""
    over = first + second - most
    if over <= 0:
        return first, second
    if abs(first - second) >= over:
        return (first - over, second) if first > second else (first, second - over)
    return most - most // 2, most // 2
