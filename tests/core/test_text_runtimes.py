"""Exported text models: equal to the module at every length, and opened with their tokenizer
and nothing of this package.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import torch
from click.testing import CliRunner
from text_models_toy import BERT, GPT2, WORDS, write_tokenizer
from text_toy import byte_tokenizer, without_special, word_tokenizer

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.descendant import Descendant, assemble
from learngene_zoo.cli.main import main
from learngene_zoo.errors import BadFile, Refused, WrongCall
from learngene_zoo.families.forward import compute_logits
from learngene_zoo.families.text_format import Tokens, make_text_format
from learngene_zoo.families.text_spec import TextSpec
from learngene_zoo.lifecycle.runtimes import (
    Exported,
    describe_inputs,
    export_descendant,
    open_runner,
)
from learngene_zoo.pretrained.exported import open_exported
from learngene_zoo.runs.run import Run
from learngene_zoo.storage import POOLING

pytest.importorskip("onnxruntime")
pytest.importorskip("transformers")

pytestmark = pytest.mark.slow  # exporting takes seconds
RUN = Run(threads=1, device="cpu")
SPECS: dict[str, TextSpec] = {
    "gpt2": GPT2.with_(layers=1),
    "gpt2 without classes": GPT2.with_(layers=2, classes=0),
    "bert": BERT.with_(layers=1, pool="pooler"),
    "bert of one segment": BERT.with_(layers=2, pool="pooler", segments_of_text=1),
    "bert, mean": BERT.with_(layers=1, classes=0),
    "bert, first token, scaled": BERT.with_(layers=1, classes=0, pool="token", normalize=True),
}
TEXTS = ["the cat sees a dog", "a bird", "no dog hears the bird", "the"]


def make_model(name: str, folder: Path) -> Descendant:
    """Return a random model of `SPECS` with a tokenizer, trained on single texts in its record."""
    spec = SPECS[name]
    folder.mkdir(parents=True)
    write_tokenizer(folder)
    files = {file.name: file.read_text() for file in folder.iterdir()}
    names = ("no", "maybe", "yes") if spec.classes else ()
    provenance: dict[str, Any] = {"method": "first_k", "pairs": False}
    model = assemble(
        spec,
        {},
        seed=3,
        scheme="fan_in",
        class_names=names,
        mean=(),
        std=(),
        files=files,
        provenance=provenance if names else {},
    )
    return model


@pytest.fixture(scope="module")
def export_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Exported]:
    """Return a cached function that exports a model of `SPECS` in a format."""
    folder = tmp_path_factory.mktemp("exported")

    @cache
    def export(name: str, format: str) -> Exported:
        model = make_model(name, folder / f"{name} {format}")
        return export_descendant(model, folder / f"{name}.{format}", run=RUN)

    return export


def draw_texts(spec: TextSpec, count: int, length: int, typed: bool) -> Tokens:
    """Return texts of random lengths."""
    generator = torch.Generator().manual_seed(length)
    ids = torch.randint(2, spec.vocabulary, (count, length), generator=generator)
    ends = torch.randint(1, length + 1, (count, 1), generator=generator)
    mask = (torch.arange(length) < ends).long()
    types = (2 * torch.arange(length) >= ends) * mask if typed else None
    return Tokens(torch.where(mask == 1, ids, 0), mask, types)


@pytest.mark.parametrize(
    ("name", "format"),
    [
        pytest.param(
            name,
            format,
            marks=(
                pytest.mark.exhaustive
                if format == "pt2" and name in ("gpt2 without classes", "bert, mean")
                else []
            ),
        )
        for name in SPECS
        for format in ("onnx", "pt2")
    ],
)
def test_a_file_answers_as_its_module_at_any_length(
    name: str, format: str, tmp_path: Path, export_once: Callable[[str, str], Exported]
) -> None:
    model, spec = make_model(name, tmp_path / "model"), SPECS[name]
    out = export_once(name, format)
    assert out.difference <= 1e-5
    runner, module = open_runner(out.path, threads=1), model.model()
    for count, length in ((1, 1), (3, 7), (4, spec.positions)):
        for typed in (False, True):
            texts = draw_texts(spec, count, length, typed)
            with torch.no_grad():
                expected = compute_logits(module, texts)
            if "scaled" in name:
                expected = torch.nn.functional.normalize(expected)
            torch.testing.assert_close(runner(texts), expected, rtol=0, atol=1e-5)


def test_inputs_and_outputs_have_the_names_of_transformers(
    export_once: Callable[[str, str], Exported],
) -> None:
    shown = {}
    for name in SPECS:
        session = open_exported(export_once(name, "onnx").path).session
        assert {(value.type, *value.shape) for value in session.get_inputs()} == {
            ("tensor(int64)", "batch", "tokens")
        }
        (output,) = session.get_outputs()
        shown[name] = [*(value.name for value in session.get_inputs()), output.name]
    words = ["input_ids", "attention_mask"]
    assert shown == {
        "gpt2": [*words, "logits"],
        "gpt2 without classes": [*words, "sentence_embedding"],
        "bert": [*words, "token_type_ids", "logits"],
        "bert of one segment": [*words, "logits"],
        "bert, mean": [*words, "token_type_ids", "sentence_embedding"],
        "bert, first token, scaled": [*words, "token_type_ids", "sentence_embedding"],
    }


USE = """
import json, sys
import numpy as np
import onnxruntime
from tokenizers import Tokenizer

session = onnxruntime.InferenceSession(sys.argv[1])
facts = session.get_modelmeta().custom_metadata_map
texts = json.loads(facts["preprocessing"])
tokenizer = Tokenizer.from_str(facts["tokenizer"])
assert tokenizer.truncation["max_length"] == texts["tokens"]
assert tokenizer.padding["pad_id"] == texts["pad_token_id"]
batch = tokenizer.encode_batch(sys.argv[2:])
values = {
    "input_ids": [text.ids for text in batch],
    "attention_mask": [text.attention_mask for text in batch],
    "token_type_ids": [text.type_ids for text in batch],
}
names = [value.name for value in session.get_inputs()]
(logits,) = session.run(None, {name: np.array(values[name]) for name in names})
labels = json.loads(facts["labels"])
print(json.dumps([labels[number] for number in logits.argmax(axis=1)]))
assert not any(name.startswith(("torch", "learngene", "transformers")) for name in sys.modules)
"""


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_a_file_holds_its_tokenizer(
    name: str, tmp_path: Path, export_once: Callable[[str, str], Exported]
) -> None:
    model, path = make_model(name, tmp_path / "model"), export_once(name, "onnx").path
    expected = [row.classes[0] for row in lifecycle.predict(model, TEXTS, run=RUN)]
    assert len(set(expected)) > 1
    shown = subprocess.run(
        [sys.executable, "-c", USE, str(path), *TEXTS], capture_output=True, text=True, check=True
    )
    assert json.loads(shown.stdout) == expected
    predictions = lifecycle.predict(str(path), TEXTS, run=RUN)
    assert [row.classes[0] for row in predictions] == expected
    with pytest.raises(WrongCall, match=r"trained on single texts, and \('a', 'b'\) is a pair"):
        lifecycle.predict(str(path), [("a", "b")], run=RUN)


def test_the_commands_read_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = ("maybe", "no", "yes")
    model = replace(make_model("bert", tmp_path / "raw"), class_names=names)
    model.save(tmp_path / "model")
    rows = [f"{text} {word},{names[i % 3]}" for text in TEXTS for i, word in enumerate(WORDS)]
    Path("mine.csv").write_text("\n".join(["text,label", *rows]))

    def call(line: str) -> dict[str, Any]:
        result = CliRunner().invoke(main, [*line.split(), "--threads", "1", "--json"])
        assert result.exit_code == 0, result.stderr
        row: dict[str, Any] = json.loads(result.stdout)
        return row

    row = call("export model --dtype int8 --task csv:mine.csv --max-drop 1 --bench -o small.onnx")
    assert (row["metric"], row["latency"] > 0) == ("accuracy", True)
    assert row["bytes"] < call("export model -o model.onnx")["bytes"]
    result = CliRunner().invoke(main, ["show", "model.onnx", "--json"])
    shown = json.loads(result.stdout)
    assert (shown["tokens"], shown["class_names"]) == (12, list(names))
    assert "image_size" not in shown
    values = [call(f"evaluate {name} --task csv:mine.csv") for name in ("model", "model.onnx")]
    assert values[0] == values[1]
    result = CliRunner().invoke(main, ["evaluate", "model.onnx", "--task", "digits"])
    assert "digits is an image task" in result.stderr


def test_features_in_int8_are_compared_by_their_cosine(tmp_path: Path) -> None:
    model = make_model("bert, mean", tmp_path / "raw")
    texts = tmp_path / "plain.csv"
    texts.write_text("\n".join(["text", *(f"{a} {b}" for a in WORDS[2:] for b in WORDS[2:])]))
    path, task = tmp_path / "model.onnx", f"csv:{texts}"
    with pytest.raises(WrongCall, match=r"has no classes, .* give texts, .*: task=.folder:PATH"):
        lifecycle.export(model, path, dtype="int8", run=RUN)
    with pytest.raises(Refused, match=r"58 texts of csv:.* a mean cosine of 0\.9\d+ .*-0\.5"):
        lifecycle.export(model, path, dtype="int8", task=task, max_drop=-0.5, run=RUN)
    assert not path.exists()
    exported = lifecycle.export(model, path, dtype="int8", task=task, max_drop=0.05, run=RUN)
    assert (exported.metric, exported.model_value) == ("cosine", 1.0)
    assert exported.value is not None
    assert 0.95 < exported.value < 1
    assert exported.is_text
    with pytest.raises(WrongCall, match="the model has no classes"):
        lifecycle.predict(str(path), TEXTS, run=RUN)


def test_half_precision_keeps_the_answers(
    tmp_path: Path, export_once: Callable[[str, str], Exported]
) -> None:
    model, whole = make_model("bert, mean", tmp_path / "model"), export_once("bert, mean", "onnx")
    half = export_descendant(model, tmp_path / "half.onnx", dtype="fp16", run=RUN)
    assert whole.difference < half.difference < 0.02
    ids = open_exported(half.path).session.get_inputs()[0]
    assert ids.type == "tensor(int64)"


def test_a_program_of_torch_has_the_same_metadata(
    tmp_path: Path, export_once: Callable[[str, str], Exported]
) -> None:
    model = make_model("gpt2", tmp_path / "model")
    with ZipFile(export_once("gpt2", "pt2").path) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("extra/metadata.json")]
        facts = json.loads(archive.read(name))
    written, stored = (
        json.loads(text) for text in (facts["tokenizer"], model.files["tokenizer.json"])
    )
    assert written["truncation"]["max_length"] == 12
    assert written["padding"]["pad_id"] == 0
    settings = {"truncation": None, "padding": None}
    assert {**written, **settings} == {**stored, **settings}
    assert json.loads(facts["preprocessing"]) == {
        "tokens": 12,
        "pad_token_id": 0,
        "pairs": False,
        "pair_separator_id": None,
    }


@pytest.mark.parametrize(
    ("tokenizer", "pairs", "expected"),
    [
        (word_tokenizer, True, {"pairs": True, "pair_separator_id": None}),
        (byte_tokenizer, True, {"pairs": True, "pair_separator_id": 0}),
        (
            lambda: without_special(byte_tokenizer(), "<|endoftext|>"),
            None,
            {"pairs": False, "pair_separator_id": None},
        ),
    ],
)
def test_the_metadata_say_how_pairs_are_separated(
    tokenizer: Any, pairs: bool | None, expected: dict[str, Any]
) -> None:
    form = make_text_format(tokenizer(), tokens=16)
    facts = describe_inputs(form, pairs)["preprocessing"]
    assert facts == {"tokens": 16, "pad_token_id": form.pad, **expected}


def test_files_that_are_not_exports_are_refused_in_one_line(
    tmp_path: Path, export_once: Callable[[str, str], Exported]
) -> None:
    import onnx

    path = export_once("bert", "onnx").path

    def change(**texts: str | None) -> str:
        graph = onnx.load(path)
        kept = {entry.key: entry.value for entry in graph.metadata_props} | texts
        del graph.metadata_props[:]
        for key, value in kept.items():
            if value is not None:
                entry = graph.metadata_props.add()
                entry.key, entry.value = key, value
        onnx.save(graph, tmp_path / "other.onnx")
        with pytest.raises(BadFile) as caught:
            open_exported(tmp_path / "other.onnx")
        assert "\n" not in str(caught.value)
        return str(caught.value)

    facts = {"tokens": 12, "pad_token_id": 0}
    assert "not those that `lgzoo export` writes" in change(tokenizer=None)
    assert 'tokens is "many"; expected a value of type int' in change(
        preprocessing=json.dumps({**facts, "tokens": "many"})
    )
    assert "pad" in change(preprocessing=json.dumps({**facts, "pad_token_id": -1}))
    assert "expected pixel_values of tensor(float)" in change(
        preprocessing=json.dumps(
            {"input_size": [3, 8, 8], "mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 1.0}
        )
    )
    assert "contradicts itself: 2 labels for 3 classes" in change(labels='["a", "b"]')


def test_a_pretrained_model_of_texts_is_exported_as_it_is(tmp_path: Path) -> None:
    folder, out = tmp_path / "theirs", tmp_path / "model.onnx"
    model = make_model("bert, mean", tmp_path / "model").model()
    model.base_model.save_pretrained(folder)
    write_tokenizer(folder)
    (folder / POOLING).parent.mkdir()
    (folder / POOLING).write_text('{"pooling_mode_mean_tokens": true}')
    result = CliRunner().invoke(main, ["export", str(folder), "-o", str(out)])
    assert result.exit_code == 0, result.stderr
    texts = draw_texts(SPECS["bert, mean"], 3, 9, typed=True)
    with torch.no_grad():
        expected = compute_logits(model, texts)
    torch.testing.assert_close(open_runner(out)(texts), expected, rtol=0, atol=1e-5)
    (folder / "model.safetensors").write_bytes(b"0")
    result = CliRunner().invoke(main, ["export", str(folder), "-o", str(tmp_path / "b.onnx")])
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
