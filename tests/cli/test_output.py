"""stdout is data: bare JSON, or a table that nothing cuts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from learngene_zoo.cli.job import Job
from learngene_zoo.cli.output import print_made, print_row, print_rows
from learngene_zoo.runs.run import Run


def job(as_json: bool = False, quiet: bool = False) -> Job:
    return Job(run=Run(), place=Path("x"), force=False, quiet=quiet, as_json=as_json)


def test_json_is_bare_and_raw(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"params": 20_000_000, "value": 0.1 + 0.2, "kept": (1, 2), "name": "é", "none": None}]
    print_rows(rows, as_json=True)
    assert json.loads(capsys.readouterr().out) == [{**rows[0], "kept": [1, 2]}]
    print_rows([], as_json=True)
    assert json.loads(capsys.readouterr().out) == []
    print_row(rows[0], as_json=True)
    assert json.loads(capsys.readouterr().out)["params"] == 20_000_000


def test_a_piped_table_cuts_and_wraps_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    long = "word " * 100
    print_rows(
        [{"name": "a", "text": long, "params": 1_234_567}, {"name": "b", "text": None, "params": 5}], as_json=False
    )
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4  # heading, rule, two rows
    assert long.strip() in lines[2]
    assert "1.23M" in lines[2]


def test_names_that_look_like_markup_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([{"name": "[red]x[/red]"}], as_json=False)
    assert "[red]x[/red]" in capsys.readouterr().out


def test_what_writes_says_where_and_what_next(capsys: pytest.CaptureFixture[str]) -> None:
    print_made(Path("out"), job(), "lgzoo evaluate")
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("out\n", "next: lgzoo evaluate\n")
    print_made(Path("out"), job(quiet=True), "lgzoo evaluate")
    assert capsys.readouterr().err == ""
    print_made(Path("out"), job(as_json=True), "lgzoo evaluate")
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"path": "out"}
    assert printed.err == ""


def test_under_torchrun_only_the_first_process_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    print_rows([{"a": 1}], as_json=True)
    print_row({"a": 1}, as_json=False)
    print_made(Path("out"), job(), "lgzoo evaluate")
    assert capsys.readouterr() == ("", "")
