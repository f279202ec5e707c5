"""Progress of long steps if stderr is not a terminal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from learngene_zoo.artifacts.descendant import assemble
from learngene_zoo.cli.main import main
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.runs import progress
from learngene_zoo.testing import make_tiny_task

START = assemble(
    ViTSpec(layers=2, width=8, heads=2, classes=3, image_size=16, patch_size=8), {}, seed=0
)
MODEL = replace(START, inherited=frozenset(START.state))  # its head does not guess


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working folder with a model whose task is tiny and whose evaluation is slow."""
    from learngene_zoo.tasks.loader import Loader

    task = make_tiny_task()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(progress, "_printer", progress._Printer())
    monkeypatch.setattr("learngene_zoo.lifecycle.opening.open_task", lambda name, **_: task)
    monkeypatch.setattr("learngene_zoo.tasks.catalogue.check_name", lambda name: None)
    read = Loader.epoch

    def read_slowly(self: Any, *args: Any, **kwargs: Any) -> Any:
        from time import sleep

        for batch in read(self, *args, **kwargs):
            sleep(0.25)
            yield batch

    monkeypatch.setattr(Loader, "epoch", read_slowly)
    MODEL.save(tmp_path / "descendant")
    return tmp_path


def call(*words: str) -> list[str]:
    got = CliRunner().invoke(main, [*words, "--task", "tiny", "--threads", "1", "--device", "cpu"])
    assert got.exit_code == 0, got.stderr
    return got.stderr.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["evaluate", "descendant"], "evaluate: evaluating on tiny 0/1, "),
        (["finetune", "descendant", "--epochs", "1"], "finetune: training on tiny "),
    ],
)
def test_a_slow_command_says_what_it_does(
    folder: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], expected: str
) -> None:
    monkeypatch.setattr(progress, "PERIOD", 0.1)
    lines = call(*words)
    assert any(line.startswith(expected) for line in lines), lines
    assert all(
        line.isprintable() and len(line) <= 120
        for line in lines
        if line.startswith(f"{words[0]}: ")
    )
    monkeypatch.setattr(progress, "PERIOD", 0.05)
    assert not [
        line
        for line in call(*words, "--quiet", *(["--force"] if words[0] == "finetune" else []))
        if not line.startswith("warning")
    ]


def test_a_quick_command_prints_nothing_more(folder: Path) -> None:
    assert call("evaluate", "descendant") == []
