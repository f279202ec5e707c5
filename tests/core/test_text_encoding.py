"""Texts as tokens: formats, pairs, truncation, padding, and the laws of the loader."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from text_toy import WORDS, byte_tokenizer, without_special, word_tokenizer

from learngene_zoo.errors import BadData, BadFile, Unavailable, WrongCall
from learngene_zoo.families.text_format import (
    TextFormat,
    Tokens,
    find_pad,
    make_text_format,
    read_tokenizer,
    register_tokenizer,
)
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.tasks.loader import Batch, Loader
from learngene_zoo.tasks.task import Task
from learngene_zoo.tasks.texts.encoding import Encoder, describe_truncation, shorten_pair


def encoder(content: str, tokens: int = 32) -> Encoder:
    return Encoder.of(make_text_format(content, tokens))


def encode(maker: Encoder, *texts: Any) -> Tokens:
    return maker(texts, [f"text {number}" for number in range(len(texts))])


@pytest.fixture
def task(tmp_path: Path) -> Task:
    lines = ["text,label"]
    lines += [
        f"{' '.join(WORDS[(n * k) % 12] for k in range(1, 2 + n % 15))},{'ab'[n % 2]}"
        for n in range(80)
    ]
    path = tmp_path / "texts.csv"
    path.write_text("\n".join(lines))
    return open_task(f"csv:{path}")


# Formats.


def test_a_format_is_its_numbers() -> None:
    form = make_text_format(byte_tokenizer(), 24)
    assert (form.tokens, form.pad) == (24, 1)
    assert form.tokenizer == register_tokenizer(byte_tokenizer())
    assert read_tokenizer(form.tokenizer) == byte_tokenizer()
    assert form.identity == [
        "TextFormat",
        {"tokens": 24, "tokenizer": form.tokenizer, "pad": 1},
    ]
    for wrong in ({"tokens": 0}, {"tokenizer": "x"}, {"pad": -1}):
        with pytest.raises(WrongCall):
            TextFormat(**{"tokens": 4, "tokenizer": form.tokenizer, "pad": 0, **wrong})


def test_the_pad_token_is_named_or_refused() -> None:
    bare = without_special(byte_tokenizer(), "<pad>")
    with pytest.raises(BadFile, match="no pad token"):
        find_pad(bare, {})
    assert find_pad(bare, {"pad_token": "<|endoftext|>"}) == 0
    assert find_pad(bare, {"pad_token": {"content": "<|endoftext|>"}}) == 0
    assert make_text_format(bare, 8, pad=7).pad == 7
    assert find_pad(word_tokenizer(), {}) == 0
    for damaged in ("{", "[]", '{"added_tokens": 3}'):
        with pytest.raises(BadFile, match=r"tokenizer\.json"):
            find_pad(damaged, {})


def test_an_unknown_or_damaged_tokenizer_is_refused() -> None:
    with pytest.raises(Unavailable, match="open the model"):
        Encoder.of(TextFormat(tokens=8, tokenizer="0" * 64, pad=0))
    damaged = register_tokenizer('{"model": 3}')
    with pytest.raises(BadFile, match="cannot be read"):
        Encoder.of(TextFormat(tokens=8, tokenizer=damaged, pad=0))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(Unavailable, match=r"learngene-zoo\[text\]"):
        Encoder.of(TextFormat(tokens=8, tokenizer=register_tokenizer(byte_tokenizer()), pad=0))


# Encoding.


def test_texts_are_padded_on_the_right_to_a_multiple_of_eight() -> None:
    batch = encode(encoder(word_tokenizer()), "the cat", "the dog runs and sleeps very fast")
    assert batch.ids.shape == (2, 16)
    assert batch.ids.dtype == batch.mask.dtype == torch.int64
    assert batch.ids[0].tolist() == [2, 4, 5, 3] + [0] * 12
    assert batch.mask.sum(dim=1).tolist() == [4, 9]
    assert batch.types is None
    assert len(batch) == 2
    assert batch[:1].ids.shape == (1, 16)
    assert torch.equal(batch.to("cpu").mask, batch.mask)
    assert torch.equal(pickle.loads(pickle.dumps(batch)).ids, batch.ids)


def test_no_text_is_longer_than_the_format() -> None:
    batch = encode(encoder(word_tokenizer(), 6), "the cat runs and sleeps and runs")
    assert batch.ids.tolist() == [[2, 4, 5, 7, 12, 3]]
    batch = encode(encoder(byte_tokenizer(), 5), "a house " * 9, "a")
    assert batch.ids.shape == (2, 5)
    with pytest.raises(BadFile, match="no space"):
        encode(encoder(word_tokenizer(), 3), "the cat")


def test_a_pair_follows_the_template_of_the_tokenizer() -> None:
    batch = encode(encoder(word_tokenizer()), ("the cat", "a dog runs"))
    assert batch.ids[0, :8].tolist() == [2, 4, 5, 3, 13, 6, 7, 3]
    assert batch.types is not None
    assert batch.types[0].tolist() == [0, 0, 0, 0, 1, 1, 1, 1] + [0] * (batch.ids.shape[1] - 8)


def test_a_pair_without_a_template_is_separated_by_the_end_of_text() -> None:
    maker = encoder(byte_tokenizer())
    first, second = (maker.tokenizer.encode(text).ids for text in ("the cat", "a dog"))
    batch = encode(maker, ("the cat", "a dog"))
    ids = [*first, 0, *second]
    assert batch.ids[0, : len(ids)].tolist() == ids
    assert batch.mask.sum() == len(ids)
    assert batch.types is None
    short = encode(encoder(byte_tokenizer(), 7), ("the cat runs very fast", "a"))
    assert short.ids[0, -2:].tolist() == [0, *maker.tokenizer.encode("a").ids]
    assert short.mask.sum() == 7
    bare = without_special(byte_tokenizer(), "<|endoftext|>")
    with pytest.raises(BadFile, match="neither a template"):
        encode(encoder(bare), ("the cat", "a dog"))


@pytest.mark.parametrize("tokenizer", [byte_tokenizer, word_tokenizer])
def test_the_separator_of_a_pair_counts_where_texts_are_too_long(
    tokenizer: Callable[[], str],
) -> None:
    pair = ("the cat", "a dog")
    (length,) = encode(encoder(tokenizer()), pair).mask.sum(dim=1).tolist()
    for tokens, is_cut in ((length, False), (length - 1, True)):
        form = encoder(tokenizer(), tokens).form
        assert bool(describe_truncation([pair], form)) == is_cut


@pytest.mark.parametrize(
    ("lengths", "most", "expected"),
    [
        ((3, 4), 7, (3, 4)),
        ((9, 2), 7, (5, 2)),
        ((2, 9), 7, (2, 5)),
        ((9, 9), 7, (4, 3)),
        ((9, 0), 4, (4, 0)),
        ((6, 5), 9, (5, 4)),
    ],
)
def test_the_longer_text_of_a_pair_is_cut_first(
    lengths: tuple[int, int], most: int, expected: tuple[int, int]
) -> None:
    assert shorten_pair(*lengths, most) == expected


def test_a_text_without_tokens_is_named() -> None:
    with pytest.raises(BadData, match="text 1 has no tokens"):
        encode(encoder(byte_tokenizer()), "a", "")


# Batches.


def collect(task: Task, **settings: Any) -> list[Batch]:
    loader = Loader(task, "train", make_text_format(word_tokenizer(), 16), **settings)
    return list(loader.epoch(settings.get("seed", 0)))


def equal(first: list[Batch], second: list[Batch]) -> bool:
    return len(first) == len(second) and all(
        torch.equal(a.inputs.ids, b.inputs.ids)
        and torch.equal(a.inputs.mask, b.inputs.mask)
        and torch.equal(a.labels, b.labels)
        and torch.equal(a.indices, b.indices)
        for a, b in zip(first, second)
    )


def test_batches_are_a_function_of_the_seed_and_the_epoch(task: Task) -> None:
    alone = collect(task, batch_size=6, shuffle=True, seed=2)
    assert equal(alone, collect(task, batch_size=6, shuffle=True, seed=2))
    assert equal(alone, collect(task, batch_size=6, shuffle=True, seed=2, workers=2))
    assert not equal(alone, collect(task, batch_size=6, shuffle=True, seed=3))
    split = task.split("train")
    for batch in alone:
        assert batch.labels.tolist() == split.labels[batch.indices.numpy()].tolist()
        assert batch.inputs.ids.shape[1] % 8 == 0


def test_texts_by_length_are_the_same_texts_with_less_padding(task: Task) -> None:
    plain, ordered = collect(task, batch_size=6), collect(task, batch_size=6, by_length=True)
    lengths = torch.cat([batch.inputs.mask.sum(dim=1) for batch in ordered]).tolist()
    assert lengths == sorted(lengths, reverse=True)
    assert len(set(lengths)) > 5

    def read(batches: list[Batch]) -> dict[int, tuple[list[int], int]]:
        return {
            index: (ids[mask.bool()].tolist(), label)
            for batch in batches
            for ids, mask, label, index in zip(
                batch.inputs.ids,
                batch.inputs.mask,
                batch.labels.tolist(),
                batch.indices.tolist(),
            )
        }

    assert read(ordered) == read(plain)
    padded = [sum(batch.inputs.ids.numel() for batch in batches) for batches in (ordered, plain)]
    assert padded[0] < padded[1]
    assert equal(ordered, collect(task, batch_size=6, by_length=True, workers=2))
    shuffled = {"batch_size": 6, "shuffle": True, "seed": 2}
    assert equal(collect(task, **shuffled), collect(task, **shuffled, by_length=True))


def test_pairs_are_ordered_by_both_texts(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    rows = [
        f"{'the cat ' * (n % 3)}runs,{'a dog ' * (n % 4)}sleeps,{'ab'[n % 2]}" for n in range(40)
    ]
    path.write_text("\n".join(["sentence1,sentence2,label", *rows]))
    task = open_task(f"csv:{path}")
    for content in (word_tokenizer(), byte_tokenizer()):
        split, indices = task.split("train"), np.arange(len(task.split("train")))
        maker = encoder(content, 16)
        order = maker.order_by_length(split, indices)
        assert sorted(order) == list(indices)
        lengths = [len(maker.encode(text)[0]) for text in split.__getitems__(order.tolist())]
        assert lengths == sorted(lengths, reverse=True)
        # Equally long texts keep their order
        assert all(a < b for a, b, m, n in zip(order, order[1:], lengths, lengths[1:]) if m == n)


def test_an_epoch_resumes_at_any_step(task: Task) -> None:
    loader = Loader(
        task, "train", make_text_format(byte_tokenizer(), 16), batch_size=6, shuffle=True
    )
    every = list(loader.epoch(4))
    assert equal(every[3:], list(loader.epoch(4, start=3)))


def test_processes_share_a_batch(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = collect(task, batch_size=6, shuffle=True)
    for rank in (0, 1):
        monkeypatch.setattr("learngene_zoo.tasks.loader.get_world_size", lambda: 2)
        monkeypatch.setattr("learngene_zoo.tasks.epochs.get_world_size", lambda: 2)
        monkeypatch.setattr("learngene_zoo.tasks.epochs.rank", lambda rank=rank: rank)
        for batch, mine in zip(alone, collect(task, batch_size=6, shuffle=True), strict=True):
            assert mine.indices.tolist() == batch.indices.tolist()[rank::2]
            length = min(mine.inputs.ids.shape[1], batch.inputs.ids.shape[1])
            assert torch.equal(mine.inputs.ids[:, :length], batch.inputs.ids[rank::2, :length])
    monkeypatch.setattr("learngene_zoo.tasks.epochs.rank", lambda: 1)
    last = list(Loader(task, "test", make_text_format(word_tokenizer(), 16), batch_size=5).epoch(0))
    assert len(last[-1].inputs) == 0  # 16 texts: the last batch has one


def test_formats_and_augmentations_of_images_are_refused(task: Task) -> None:
    form, digits = make_text_format(word_tokenizer(), 16), open_task("digits")
    with pytest.raises(WrongCall, match="a text task, and the model takes images"):
        Loader(task, "train", digits.input_format, batch_size=4)
    with pytest.raises(WrongCall, match="an image task, and the model takes texts"):
        Loader(digits, "train", form, batch_size=4)
    with pytest.raises(WrongCall, match="not augmented"):
        Loader(task, "train", form, batch_size=4, augment="light")
    with pytest.raises(WrongCall, match="no format"):
        _ = task.input_format


def test_an_encoder_can_be_copied() -> None:
    maker = encoder(word_tokenizer())
    encode(maker, "the cat")
    again = pickle.loads(pickle.dumps(copy.copy(maker)))
    assert torch.equal(encode(again, "the cat").ids, encode(maker, "the cat").ids)
