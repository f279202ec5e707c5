"""`lgzoo convert`: its output, its exit codes, and a command that needs no other word."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import learngene_zoo as lg
from learngene_zoo.cli.main import main
from learngene_zoo.storage import read_json


def call(*words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, ["convert", *words])
    assert result.exit_code == code, result.stderr
    return result


@pytest.fixture(autouse=True)
def descendant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder with a descendant of two layers of the bundled model."""
    monkeypatch.chdir(tmp_path)
    lg.extract("first_k", ancestries="bundled", out="learngene")
    lg.expand("learngene", layers=2, out="descendant")


def test_the_folder_is_written_and_the_differences_are_printed() -> None:
    result = call("--format", "dinov2", "--no-head")
    assert [line.split()[0] for line in result.stdout.splitlines()] == [
        "format",
        "difference",
        "path",
    ]
    assert "note: a mask token of zeros is added" in result.stderr
    assert read_json(Path("converted/config.json"))["learngene"]["layout"] == "dinov2"
    assert "converted already exists" in call("--format", "dinov2", "--no-head", code=1).stderr
    assert not call("--format", "dinov2", "--no-head", "--force", "-q").stderr


def test_json_has_the_lists() -> None:
    row = json.loads(call("--format", "dinov2", "--no-head", "--json", "-q").stdout)
    assert row == {
        "format": "dinov2",
        "difference": 0.0,
        "changes": ["a mask token of zeros is added, which only a pretraining uses"],
        "left_out": [],
        "path": "converted",
    }


def test_any_source_of_an_ancestry_model_is_taken() -> None:
    call("--format", "dinov2", "--no-head", "-o", "first")
    call("first", "--format", "timm", "-o", "second")
    assert lg.load("second").provenance["method"] == "first_k"


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        ("--format onnx", 2, "no format named 'onnx'; known: dinov2, open_clip, timm"),
        ("", 2, "in timm's format already"),
        ("--format dinov2", 2, "checkpoints of DINOv2 have no head; leave the head out with --no"),
        ("--format dinov2 --images folder:x", 2, "add --keep-interface"),
        ("nowhere --format dinov2", 2, "there is no model at nowhere"),
        ("learngene --format dinov2", 2, "is a learngene, not a model"),
    ],
)
def test_wrong_calls(words: str, code: int, error: str) -> None:
    assert error in call(*words.split(), code=code).stderr
    assert not Path("converted").exists()
