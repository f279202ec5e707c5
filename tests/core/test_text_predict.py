"""`predict` and `compare` of text models: where texts come from, and messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from text_models_toy import GPT2, WORDS, write_tokenizer

from learngene_zoo import lifecycle
from learngene_zoo.cli.main import main
from learngene_zoo.errors import WrongCall
from learngene_zoo.families.tensors import build_model, initialise
from learngene_zoo.runs.run import Run

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write labelled texts, and a model for them with a head of random weights."""
    folder = tmp_path_factory.mktemp("texts")
    ancestry, table = folder / "ancestry", folder / "mine.csv"
    spec = GPT2.with_(classes=0)
    module: Any = build_model(spec, initialise(spec, 0, "fan_in"))
    module.transformer.save_pretrained(ancestry)
    write_tokenizer(ancestry)
    for path in ancestry.glob("tokenizer*.json"):  # a name that also separates pairs
        path.write_text(path.read_text().replace("<end>", "<eos>"))
    texts = [f"{a} {b} {c}" for a in WORDS[4:7] for b in WORDS[2:9] for c in WORDS[3:9]]
    rows = [f"{text},{'yes' if 'dog' in text else 'no'}" for text in texts]
    table.write_text("\n".join(["text,label", *rows]))
    run = Run(threads=1)
    lifecycle.extract("first_k", ancestries=str(ancestry), out=folder / "gene", run=run)
    lifecycle.expand(folder / "gene", layers=2, task=f"csv:{table}", out=folder / "model", run=run)
    return folder


@pytest.fixture(autouse=True)
def place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def call(*words: str, stdin: bytes | str = "") -> Result:
    return CliRunner().invoke(main, [*words, "--threads", "1"], input=stdin)


def predict(*words: str, stdin: bytes | str = "") -> list[dict[str, Any]]:
    result = call("predict", "model", *words, "--json", stdin=stdin)
    assert result.stdout, result.stderr
    return json.loads(result.stdout)


def errors_of(result: Result) -> list[str]:
    return [line for line in result.stderr.splitlines() if line.startswith("error")]


@pytest.mark.parametrize("words", [["-"], ["--text", "-"]])
def test_a_hyphen_is_the_lines_of_stdin(words: list[str]) -> None:
    rows = predict(*words, stdin="the cat sees\r\n\na dog\n\n")
    assert [row["text"] for row in rows] == ["the cat sees", "", "a dog"]
    assert ["error" in row for row in rows] == [False, True, False], "an answer for every line"


def test_a_folder_is_searched_for_text_files(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    with pytest.raises(AssertionError, match=r"is not a \.txt file or a folder of \.txt files"):
        predict(str(tmp_path))
    (tmp_path / "b.txt").write_text("a dog\n")
    (tmp_path / "deep" / "a.txt").write_text("the cat sees")
    rows, files = predict(str(tmp_path), "--text", "a bird"), ["b.txt", "deep/a.txt"]
    assert [row["text"] for row in rows] == ["a bird", "a dog", "the cat sees"]
    assert [row.get("file") for row in rows] == [None, *(str(tmp_path / name) for name in files)]
    lines = call("predict", "model", str(tmp_path)).stdout.splitlines()
    assert [line.partition(": ")[0] for line in lines] == [str(tmp_path / name) for name in files]


def test_data_of_a_task_is_refused() -> None:
    result = call("predict", "model", "csv:mine.csv")
    assert (result.exit_code, result.stdout) == (2, "")
    (error,) = errors_of(result)
    assert error.startswith(
        "error: csv:mine.csv is data of a task, for lgzoo evaluate --task csv:mine.csv; give an "
    )


def test_a_text_with_too_many_tokens_is_noted() -> None:
    result = call("predict", "model", "--text", "the cat sees a dog " * 30)
    assert "its end is left out" in result.stderr
    assert "is left out" not in call("predict", "model", "--text", "a dog").stderr


def test_a_model_that_records_no_task_names_the_form_of_texts() -> None:
    lifecycle.expand("gene", layers=1, out="bare", run=Run(threads=1))
    for verb in ("finetune", "evaluate"):
        assert errors_of(call(verb, "bare")) == [
            "error: the model does not record a task to use; give the task: "
            f"lgzoo {verb} bare --task csv:PATH"
        ]


@pytest.mark.parametrize(
    ("words", "stdin", "said"),
    [
        (["-"], b"a\0 \0c\0", "error: stdin is not text; - expects texts in UTF-8, one per line"),
        (["--text", "caf\udce9"], b"", "error: --text is not text in UTF-8 (byte 3)"),
    ],
)
def test_texts_in_another_encoding_are_refused(words: list[str], stdin: bytes, said: str) -> None:
    result = call("predict", "model", *words, stdin=stdin)
    assert (len(errors_of(result)), result.stdout) == (1, "")
    assert errors_of(result)[0].startswith(said)


def test_a_text_that_cannot_be_read_does_not_stop_the_others(tmp_path: Path) -> None:
    for name, content in (("a", b"a cat"), ("b", b" "), ("c", b"caf\xe9"), ("d", b"a dog")):
        (tmp_path / f"{name}.txt").write_bytes(content)
    rows = predict(str(tmp_path))
    assert [row["text"] for row in rows if "error" not in row] == ["a cat", "a dog"]
    (empty, latin) = (row["error"] for row in rows if "error" in row)
    assert empty == f"{tmp_path / 'b.txt'} is empty; write a text"
    assert latin.startswith(f"{tmp_path / 'c.txt'} is not text in UTF-8 (byte 3)")
    result = call("predict", "model", "-", stdin=b"a cat\ncaf\xe9 latin\n\na dog\n")
    errors = errors_of(result)
    assert len(result.stdout.splitlines()) == len(errors) == 2
    assert errors[0].startswith("error: line 2 of stdin is not text in UTF-8 (byte 3)")
    assert errors[1] == "error: line 3 of stdin is empty; write a text"
    assert "2 of 4 texts could not be read" in result.stderr
    assert result.exit_code == 1


@pytest.mark.parametrize("word", ["the cat sees", "photo.png"])
def test_the_message_for_a_text_given_as_a_picture_names_the_option(word: str) -> None:
    result = call("predict", "model", word)
    (error,) = errors_of(result)
    assert error.endswith("or for a text model a .txt file or --text TEXT")
    assert result.exit_code == 1


@pytest.mark.parametrize("texts", [[""], [" ", "a cat\t"]])
def test_empty_texts_are_refused_before_the_model_is_loaded(
    texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = []
    monkeypatch.setattr(lifecycle.opening, "open_answering", lambda *_: loaded.append("model"))
    result = call("predict", "model", *(word for text in texts for word in ("--text", text)))
    assert (result.exit_code, loaded) == (1, [])
    assert errors_of(result) == ["error: an empty text; write a text"]


def test_one_empty_text_does_not_stop_the_others() -> None:
    rows = predict("--text", "", "--text", "a cat")
    assert ["error" in row for row in rows] == [True, False]


def test_a_long_text_is_shortened_except_in_json() -> None:
    text = "the cat sees a dog " * 30
    (line,) = call("predict", "model", "--text", text).stdout.splitlines()
    assert line.startswith(f"{text[:99]}…: ")
    assert len(line) < 150
    assert [row["text"] for row in predict("--text", text)] == [text]


def test_a_comparison_of_models_of_texts_counts_texts() -> None:
    result = call("compare", "model", "model", "--task", "csv:mine.csv")
    assert result.exit_code == 0, result.stderr
    assert " test texts of csv:mine.csv" in result.stdout
    assert "these texts do not show which model is better" in result.stderr
    assert "images" not in result.stdout + result.stderr


@pytest.fixture(scope="module")
def tuned(folder: Path) -> Path:
    """Fine-tune the model on single texts (`one`) and on pairs of texts (`two`)."""
    texts = [f"the {a} {b}" for a in WORDS[2:8] for b in WORDS[3:9]]
    labels = ["yes" if "dog" in text else "no" for text in texts]
    pairs = [f"{text},a bird,{label}" for text, label in zip(texts, labels)]
    (folder / "pairs.csv").write_text("\n".join(["sentence1,sentence2,label", *pairs]))
    settings: dict[str, Any] = {"epochs": 1, "batch_size": 16, "run": Run(threads=1)}
    for name, table in {"one": "mine.csv", "two": "pairs.csv"}.items():
        lifecycle.finetune(
            folder / "model", task=f"csv:{folder / table}", out=folder / name, **settings
        )
    return folder


@pytest.mark.parametrize("words", [["--text", "the cat"], ["-"]])
def test_one_text_for_a_model_of_pairs_is_refused(words: list[str], tuned: Path) -> None:
    result = call("predict", "two", *words, stdin="the cat\na dog\n")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines() == [
        "error: the model was trained on pairs of texts, and 'the cat' is one text; give both "
        "with a tab between them: --text $'FIRST\\tSECOND' (in Python [(FIRST, SECOND)])"
    ]
    with pytest.raises(WrongCall, match="is one text"):
        lifecycle.predict("two", ["the cat"], run=Run(threads=1))


def test_a_file_without_a_pair_does_not_stop_the_others(tuned: Path) -> None:
    pairs = tuned / "pairs"
    pairs.mkdir()
    (pairs / "a.txt").write_text("the cat")
    (pairs / "b.txt").write_text("the cat\ta bird")
    result = call("predict", "two", "pairs")
    assert (result.exit_code, result.stdout.partition(":")[0]) == (1, "pairs/b.txt")
    assert errors_of(result) == [
        "error: pairs/a.txt has one text, and the model takes pairs; put a tab between both texts"
    ]


def test_a_pair_has_one_tab_and_a_long_text_is_shortened_in_errors(tuned: Path) -> None:
    result = call("predict", "two", "--text", "a cat\ta dog\ta bird", "--text", "a cat\ta dog")
    assert (result.exit_code, len(result.stdout.splitlines())) == (1, 1)
    (error,) = errors_of(result)
    assert error == (
        r"error: a pair has one tab between its texts, and 'a cat\ta dog\ta bird' has several"
    )
    with pytest.raises(WrongCall, match=r"and 'the cat the .*…' is one text; give both"):
        lifecycle.predict("two", ["the cat " * 9], run=Run(threads=1))


def test_what_is_neither_a_text_nor_a_pair_is_refused(tuned: Path) -> None:
    wrong: Any
    for wrong in (("first", float("nan")), (None, "x"), ("a", "b", "c"), ["a"], 3):
        with pytest.raises(WrongCall, match=r"images has .*; expected (a text|texts)"):
            lifecycle.predict("two", [("the cat", "a bird"), wrong], run=Run(threads=1))
    as_list: Any = [["the cat", "a bird"]]
    (expected,) = lifecycle.predict("two", [("the cat", "a bird")], run=Run(threads=1))
    assert lifecycle.predict("two", as_list, run=Run(threads=1)) == [expected]


def test_a_tab_separates_a_pair_only_for_a_model_of_pairs(tuned: Path) -> None:
    def classify(name: str, text: str) -> list[float]:
        result = call("predict", name, "--text", text, "--json")
        assert result.exit_code == 0, result.stderr
        (row,) = json.loads(result.stdout)
        assert row["text"] == text
        return row["probabilities"]

    run = Run(threads=1)
    (pair,) = lifecycle.predict("two", [("the cat", "a bird")], run=run)
    assert classify("two", "the cat\ta bird") == pytest.approx(pair.probabilities)
    assert classify("one", "the cat\ta bird") == pytest.approx(classify("one", "the cat a bird"))
    with pytest.raises(WrongCall, match="trained on single texts"):
        lifecycle.predict("one", [("the cat", "a bird")], run=run)


def test_training_on_other_texts_replaces_the_record_of_pairs(tuned: Path) -> None:
    def read(path: Path) -> Any:
        return json.loads((path / "config.json").read_text())["learngene"]["pairs"]

    assert (read(tuned / "one"), read(tuned / "two")) == (False, True)
    settings: dict[str, Any] = {"epochs": 1, "batch_size": 16, "run": Run(threads=1)}
    lifecycle.finetune("two", task="csv:mine.csv", out=tuned / "again", **settings)
    assert read(tuned / "again") is False
