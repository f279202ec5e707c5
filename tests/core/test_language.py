"""Language models: their tokenizer, blocks of texts, the loss of the next word, and the command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from training_toy import check_split

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.descendant import Descendant
from learngene_zoo.cli.main import main
from learngene_zoo.errors import BadData, WrongCall
from learngene_zoo.families.gpt2.spec import Gpt2Spec
from learngene_zoo.families.tensors import build_model, initialise
from learngene_zoo.families.text_format import make_text_format
from learngene_zoo.pretrained.ancestry import open_ancestry
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Recipe
from learngene_zoo.tasks.texts.corpus import open_corpus, split_paragraphs
from learngene_zoo.training.language import (
    BlockBatches,
    NextWord,
    encode_blocks,
    make_batch,
    measure_loss,
    pack_blocks,
    train_tokenizer,
)
from learngene_zoo.training.objectives import CLASS_LOSS

pytest.importorskip("transformers")

RECIPE = Recipe(epochs=1, batch_size=8, lr=3e-3, augment="none")
SIZES = {"layers": 2, "width": 32, "heads": 2, "vocabulary": 300, "positions": 16}


@pytest.fixture
def plain(tmp_path: Path) -> str:
    """A file of 200 paragraphs."""
    path = tmp_path / "notes.txt"
    lines = [f"the cat number {row} sees\nthe dog {row % 7}" for row in range(200)]
    path.write_text("\n\n".join(lines), encoding="utf-8")
    return f"text:{path}"


def train(texts: str, **options: Any) -> Descendant:
    sizes = {**SIZES, **{name: options.pop(name) for name in SIZES if name in options}}
    return lifecycle.train_language(
        [texts], family="gpt2", **{"recipe": RECIPE, "run": Run(), **options}, **sizes
    )


# Texts.


def test_paragraphs_become_lines() -> None:
    assert split_paragraphs("a b\nc\n\n \n  d\te\r\n") == ["a b c", "d e"]


def test_every_twentieth_paragraph_is_held_out(plain: str) -> None:
    corpus = open_corpus([plain])
    assert (len(corpus.train), len(corpus.validation)) == (190, 10)
    assert corpus.validation[0] == "the cat number 19 sees the dog 5"
    assert not set(corpus.train) & set(corpus.validation)
    assert corpus.sources[0].record.name == "text:notes.txt"


@pytest.mark.parametrize("columns", ["", ":text=body"])
def test_folders_of_labelled_texts_are_not_recorded(tmp_path: Path, columns: str) -> None:
    file = tmp_path / "reviews.csv"
    rows = [f"text {number},{number % 2}" for number in range(20)]
    file.write_text("\n".join([f"{'body' if columns else 'text'},label", *rows]))
    [source] = open_corpus([f"csv:{file}{columns}"]).sources
    assert source.record.name == source.record.source == f"csv:reviews.csv{columns}"


@pytest.mark.slow
def test_tasks_give_their_texts_without_labels() -> None:
    corpus = open_corpus(["sentiment", "paraphrase"])
    assert [len(source.train) for source in corpus.sources] == [4000, 4000]
    assert isinstance(corpus.train[0], str)
    assert isinstance(corpus.train[-1], tuple)
    assert corpus.stamp() == {}
    assert [source.reference for source in open_corpus(["words"]).sources] == [
        *("acceptability", "paraphrase", "entailment", "sentiment")
    ]


def test_a_folder_has_the_texts_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "b.txt").write_text("b")
    (tmp_path / "in" / "a.TXT").write_text("a")
    (tmp_path / "c.md").write_text("c")
    before = open_corpus([f"text:{tmp_path}"])
    assert before.train == ["b", "a"]
    (tmp_path / "b.txt").write_text("d")
    assert open_corpus([f"text:{tmp_path}"]).stamp() != before.stamp()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\n \n", "has no text"),
        ("caf\xe9".encode("latin1"), "is not text in UTF-8"),
        (None, "there is no file or folder"),
    ],
)
def test_wrong_files_are_refused_in_one_line(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "notes.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadData, match=message) as refused:
        train(f"text:{path}")
    assert "\n" not in str(refused.value)


def test_other_wrong_calls_are_refused_in_one_line(plain: str, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("text,label\n")
    calls: list[tuple[dict[str, Any], str]] = [
        ({"texts": "digits"}, "digits is an image task.*text:PATH"),
        ({"texts": "sentimental"}, "did you mean sentiment"),
        ({"vocabulary": 100}, "vocabulary is 100; it must be at least 258"),
        ({"positions": 1}, "positions.*at least 2"),
        ({"heads": 5}, "5 heads do not divide"),
        ({"recipe": replace(RECIPE, mixup=0.2)}, "mixup is 0.2, which a language model"),
        ({"recipe": replace(RECIPE, batch_size=1000)}, "fewer than a batch of 1000; give more"),
    ]
    for options, message in calls:
        with pytest.raises(WrongCall, match=message) as refused:
            train(**{"texts": plain, **options})
        assert "\n" not in str(refused.value)
    with pytest.raises(WrongCall, match="sentiment is named twice"):
        open_corpus(["words", "sentiment"])
    with pytest.raises(WrongCall, match="no family of language models named 'bert'"):
        lifecycle.train_language(["sentiment"], family="bert")
    with pytest.raises(BadData, match=r"is not a \.txt file"):
        open_corpus([f"text:{tmp_path / 'table.csv'}"])


# Blocks.


def test_blocks_hold_complete_texts_and_divide_longer_ones() -> None:
    texts = [[5, 6], [7], [8, 9, 10], [11, 12, 13, 14, 15, 16]]
    assert pack_blocks(texts, 5, end=1, pad=0).tolist() == [
        [5, 6, 1, 7, 1],
        [8, 9, 10, 1, 0],
        [11, 12, 13, 14, 15],
        [16, 1, 0, 0, 0],
    ]
    assert pack_blocks([], 5, end=1, pad=0).shape == (0, 5)


def test_an_epoch_has_every_block_once_and_goes_on_at_any_step() -> None:
    form = make_text_format(train_tokenizer(["a cat"], 258), 4)
    blocks = np.arange(40).reshape(10, 4) + 2
    batches = BlockBatches(blocks, form, 3, seed=0)
    assert batches.steps == 3
    shown = [batch.inputs.ids for batch in batches.epoch(1)]
    rows = torch.cat(shown)[:, 0].tolist()
    assert len(set(rows)) == 9
    assert rows != sorted(rows)
    assert torch.equal(next(batches.epoch(1, start=2)).inputs.ids, shown[2])
    assert not torch.equal(next(batches.epoch(2)).inputs.ids, shown[0])


def test_the_tokenizer_gives_back_every_text() -> None:
    from learngene_zoo.tasks.texts.encoding import load_tokenizer

    content = train_tokenizer([("the cat", "the dog"), "the cat sees"] * 9, 300)
    assert content == train_tokenizer([("the cat", "the dog"), "the cat sees"] * 9, 300)
    tokenizer = load_tokenizer(content)
    text = "the cät \N{SNOWMAN}\n sees"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert len(tokenizer.encode("the cat").ids) == 2
    form = make_text_format(content, 8, pad=0)
    ends = [row.tolist().count(1) for row in encode_blocks([("a", "b"), "c"], form)]
    assert sum(ends) == 3  # after each text, and between those of a pair


# Training.


def test_the_loss_is_that_of_transformers() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    spec = Gpt2Spec(layers=2, width=16, heads=2, classes=0, vocabulary=40, positions=8, pad_token=0)
    state = initialise(spec, seed=0)
    blocks = np.array([[3, 4, 5, 1, 9, 0, 0, 0], [7, 8, 2, 2, 30, 31, 32, 1]])
    batch = make_batch(blocks, 0, np.arange(2))
    ours = NextWord(build_model(spec, state), spec)(batch)["cross_entropy"]
    config = GPT2Config(
        vocab_size=40, n_positions=8, n_embd=16, n_layer=2, n_head=2, attn_pdrop=0, resid_pdrop=0
    )
    theirs = GPT2LMHeadModel(config).eval()
    theirs.load_state_dict(state, strict=False)
    labels = batch.inputs.ids.masked_fill(batch.inputs.mask == 0, -100)
    expected = theirs(
        input_ids=batch.inputs.ids, attention_mask=batch.inputs.mask, labels=labels
    ).loss
    assert torch.allclose(ours, expected, atol=1e-5)
    measured = measure_loss(build_model(spec, state), spec, blocks, 0, Run(device="cpu"))
    assert measured == pytest.approx(float(expected.detach()), abs=1e-5)


def test_pieces_of_a_batch_have_its_gradient() -> None:
    """A block of one word predicts none."""
    spec = Gpt2Spec(layers=1, width=16, heads=2, classes=0, vocabulary=40, positions=8, pad_token=0)
    blocks = np.array([[3, 4, 5, 1, 9, 6, 8, 2], [1] + 7 * [0], [7, 8] + 6 * [0], [9] * 8])
    objective = NextWord(build_model(spec, initialise(spec, seed=0)), spec)
    check_split(objective, make_batch(blocks, 0, np.arange(4)), CLASS_LOSS)


def test_a_trained_model_is_an_ancestry_model_that_transformers_opens(
    plain: str, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    trained = train(plain, out=tmp_path / "gpt", recipe=replace(RECIPE, epochs=3))
    metrics = trained.provenance["metrics"]
    assert metrics["validation_loss"] < 0.8 * metrics["uniform_loss"]
    folder = tmp_path / "gpt"
    assert str(tmp_path) not in (folder / "config.json").read_text()
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 1)
    text = tokenizer("the cat number 19 sees the dog 5", return_tensors="pt")
    loss = float(model(**text, labels=text["input_ids"]).loss)
    assert loss < 0.8 * metrics["uniform_loss"]
    ancestry = open_ancestry(str(folder))
    for name, tensor in trained.state.items():
        assert torch.equal(ancestry.state[name], tensor)
    half = lifecycle.expand(
        lifecycle.extract("first_k", ancestries=str(folder)), layers=1, task="sentiment"
    )
    assert half.spec.layers == 1
    assert half.spec.vocabulary == trained.spec.vocabulary


class Stopped(Exception):
    """An interruption."""


@pytest.mark.slow
def test_an_interrupted_training_goes_on_bit_equally(
    plain: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from learngene_zoo.training import loop

    expected = train(plain)
    take_step, steps = loop.Engine._step, []

    def stop(engine: Any, *arguments: Any) -> Any:
        if len(steps) == 5:
            raise Stopped
        steps.append(1)
        return take_step(engine, *arguments)

    original = loop.train
    monkeypatch.setattr(
        loop,
        "train",
        lambda *args, **named: original(*args, seconds_between_checkpoints=0, **named),
    )
    with monkeypatch.context() as patch:
        patch.setattr(loop.Engine, "_step", stop)
        with pytest.raises(Stopped):
            train(plain, out=tmp_path / "gpt")
    resumed = train(plain, out=tmp_path / "gpt", run=Run(resume=True))
    for name, tensor in expected.state.items():
        assert torch.equal(resumed.state[name], tensor), name


# The command.


def test_the_command_trains_and_refuses_options_of_images(plain: str, tmp_path: Path) -> None:
    words = ["train", "--family", "gpt2", "--texts", plain, "-o", str(tmp_path / "gpt")]
    sizes = [word for name in SIZES for word in (f"--{name}", str(SIZES[name]))]
    done = CliRunner().invoke(main, [*words, *sizes, "--epochs", "1", "--batch-size", "8"])
    assert done.exit_code == 0, done.stderr
    config = json.loads((tmp_path / "gpt" / "config.json").read_text())
    assert (config["n_layer"], config["n_positions"], config["model_type"]) == (2, 16, "gpt2")
    for options, message in (
        (["--patch-size", "8"], "--patch-size is for image models"),
        (["--task", "digits"], "--task is for image models"),
        (["--init", "fan_in"], "--init is for image models"),
    ):
        refused = CliRunner().invoke(main, [*words, *options])
        assert refused.exit_code == 2
        assert message in refused.stderr
    refused = CliRunner().invoke(main, ["train", "--positions", "8", "-o", str(tmp_path / "vit")])
    assert refused.exit_code == 2
    assert "--positions is for language models; add --family gpt2" in refused.stderr
