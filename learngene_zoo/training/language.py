"""Train a language model: its tokenizer, its batches, and the objective of the next token.

Texts are encoded as text tasks are, each followed by an end-of-text token, and fill blocks of
as many tokens as the model has positions: a text that does not fit into the rest of a block begins
the next one, and a longer text is divided. The loss is the cross-entropy of each token given those
before it in its block, by the embedding of words as head:

    L = mean over i of  -log softmax(E h_i)[w_(i+1)]

for the tokens h_i after the final norm, as in transformers' causal language models.

Shapes: B blocks, N tokens, D width, V words of the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from learngene_zoo.errors import BadData, Unavailable, WrongCall
from learngene_zoo.families.family import get_table
from learngene_zoo.families.forward import compute_tokens
from learngene_zoo.families.text_format import TEXT_EXTRA, TextFormat, Tokens
from learngene_zoo.families.text_spec import TextSpec
from learngene_zoo.runs.run import Run, get_world_size, open_device, rank
from learngene_zoo.seeds import derive_seed
from learngene_zoo.tasks.loader import Batch
from learngene_zoo.tasks.texts.encoding import Encoder, Text
from learngene_zoo.text import name_option
from learngene_zoo.training.objectives import CLASS_LOSS

if TYPE_CHECKING:
    from learngene_zoo.families.tensors import Model

PAD, END = "<|pad|>", "<|endoftext|>"  # the words 0 and 1
SPECIAL = (PAD, END)
MIN_VOCABULARY = 256 + len(SPECIAL)  # every byte is a word
EVALUATED = 64  # blocks in a batch of an evaluation


def train_tokenizer(texts: Iterable[Text], vocabulary: int) -> str:
    """Train a byte-level BPE and return its tokenizer.json.

    Args:
        texts: the texts to train on.
        vocabulary: the number of words, the two special ones included; of few texts there are
            fewer.

    Raises:
        WrongCall: for a vocabulary smaller than the bytes and the special words.
        Unavailable: without the package `tokenizers`.
    """
    if vocabulary < MIN_VOCABULARY:
        raise WrongCall(
            f"vocabulary is {vocabulary}; it must be at least {MIN_VOCABULARY}: every byte and"
            f" {len(SPECIAL)} special words"
        )
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError:
        raise Unavailable(f"a tokenizer needs the package tokenizers: {TEXT_EXTRA}") from None
    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    parts = (part for text in texts for part in (text if isinstance(text, tuple) else (text,)))
    tokenizer.train_from_iterator(parts, trainer)
    return str(tokenizer.to_str())


def pack_blocks(texts: Iterable[Sequence[int]], length: int, end: int, pad: int) -> np.ndarray:
    """Return texts as blocks of `length` words, int64 (blocks, length), padded on the right.

    Args:
        texts: the words of each text.
        length: the words of a block.
        end: the word after each text.
        pad: the word that fills up blocks.
    """
    blocks: list[list[int]] = [[]]
    for text in texts:
        words = [*text, end]
        if len(words) > length - len(blocks[-1]) and blocks[-1]:
            blocks.append([])
        while len(words) > length:
            blocks[-1] = words[:length]
            words = words[length:]
            blocks.append([])
        blocks[-1] += words
    filled = [block for block in blocks if block]
    packed = np.full((len(filled), length), pad, dtype=np.int64)
    for row, block in enumerate(filled):
        packed[row, : len(block)] = block
    return packed


def encode_blocks(texts: Sequence[Text], form: TextFormat, seed: int | None = None) -> np.ndarray:
    """Return texts as blocks of `form.tokens` words, as `pack_blocks` does.

    Args:
        texts: the texts or pairs.
        form: the format of the texts; its tokens are those of a block.
        seed: of the order of the texts; None: as they are.

    Raises:
        BadData: for texts without any word.
    """
    encoder = Encoder.of(TextFormat(tokens=2**20, tokenizer=form.tokenizer, pad=form.pad))
    end: Any = encoder.tokenizer.token_to_id(END)
    order = np.arange(len(texts))
    if seed is not None:
        order = np.random.Generator(np.random.PCG64(seed)).permutation(order)
    words = (encoder.encode(texts[index])[0] for index in order.tolist())
    blocks = pack_blocks((text for text in words if text), form.tokens, end, form.pad)
    if not len(blocks):
        raise BadData("the texts have no words for the tokenizer; give others")
    return blocks


class BlockBatches:
    """Batches of blocks; the order of an epoch is a function of (seed, epoch).

    Raises `WrongCall` if there are fewer blocks than in one batch.
    """

    task: Any = None

    def __init__(self, blocks_MN: np.ndarray, form: TextFormat, batch_size: int, seed: int) -> None:
        self.blocks_MN, self.batch_size, self.seed = blocks_MN, batch_size, seed
        self.input_format: Any = form
        self.images, self.steps = len(blocks_MN), len(blocks_MN) // batch_size
        if not self.steps:
            raise WrongCall(
                f"the texts fill {self.images} blocks of {form.tokens} tokens, fewer than a batch"
                f" of {batch_size}; give more texts, or set a smaller {name_option('batch_size')}"
            )
        if batch_size % get_world_size():
            raise WrongCall(
                f"a batch of {batch_size} cannot be shared equally among "
                f"{get_world_size()} processes; use a multiple of {get_world_size()}"
            )

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield this process's share of the batches of one epoch from step `start` on."""
        order = np.random.Generator(
            np.random.PCG64(derive_seed(self.seed, "order", epoch))
        ).permutation(self.images)
        for step in range(start, self.steps):
            rows = order[step * self.batch_size : (step + 1) * self.batch_size][
                rank() :: get_world_size()
            ]
            yield make_batch(self.blocks_MN[rows], self.input_format.pad, rows)


def make_batch(blocks_BN: np.ndarray, pad: int, rows: np.ndarray) -> Batch:
    """Return blocks as a batch without labels."""
    ids_BN = torch.from_numpy(blocks_BN)
    texts = Tokens(ids_BN, (ids_BN != pad).long())
    return Batch(texts, torch.zeros(len(rows), dtype=torch.int64), torch.from_numpy(rows))


class NextWord(nn.Module):
    """The cross-entropy of each word given those before it, the mean over all words of a batch.

    It is 0 if there are none.
    """

    def __init__(self, model: Model, spec: TextSpec, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.model, self.label_smoothing = model, label_smoothing
        self.embedding = str(get_table(spec).find_parameter("embedding"))

    def forward(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return `{"cross_entropy": scalar}`, computed in single precision."""
        tokens_BND = compute_tokens(self.model, batch.inputs)
        is_word_BN = batch.inputs.mask[:, 1:].bool()
        features_MD = tokens_BND[:, :-1][is_word_BN]
        logits_MV = features_MD @ self.model.get_parameter(self.embedding).T
        words_M = batch.inputs.ids[:, 1:][is_word_BN]
        summed = functional.cross_entropy(
            logits_MV.float(), words_M, reduction="sum", label_smoothing=self.label_smoothing
        )
        return {CLASS_LOSS: summed / max(len(words_M), 1)}

    def count_terms(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the number of words that are predicted."""
        return {CLASS_LOSS: batch.inputs.mask[:, 1:].sum()}


@torch.no_grad()
def measure_loss(model: Model, spec: TextSpec, blocks_MN: np.ndarray, pad: int, run: Run) -> float:
    """Return the mean cross-entropy of the words of blocks, in nats.

    Args:
        model: the language model, moved to the run's device.
        spec: its shape.
        blocks_MN: the blocks.
        pad: the pad word.
        run: how to compute.
    """
    device = open_device(run)
    objective = NextWord(model, spec).to(device).eval()
    total, words = 0.0, 0
    for start in range(0, len(blocks_MN), EVALUATED):
        part_BN = blocks_MN[start : start + EVALUATED]
        batch = make_batch(part_BN, pad, np.arange(len(part_BN)))
        count = int((part_BN[:, 1:] != pad).sum())
        loss = objective(batch._replace(inputs=batch.inputs.to(device)))[CLASS_LOSS]
        total, words = total + count * float(loss), words + count
    return total / words if words else math.nan
