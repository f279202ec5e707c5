"""stdout is data: bare JSON, or a table that nothing cuts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from learngene_zoo.cli.job import Job, print_lines, print_made, print_row, print_rows, say
from learngene_zoo.cli.main import note
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
    monkeypatch.setenv("WORLD_SIZE", "2")
    print_rows([{"a": 1}], as_json=True)
    print_row({"a": 1}, as_json=False)
    print_made(Path("out"), job(), "lgzoo evaluate")
    assert capsys.readouterr() == ("", "")


HOSTILE = "\x1b[2Jx\n\u202ey"


def test_no_text_controls_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([{HOSTILE: HOSTILE, "list": [HOSTILE]}], as_json=False, title=HOSTILE)
    print_row({HOSTILE: HOSTILE}, as_json=False)
    print_row({HOSTILE: HOSTILE}, as_json=True)
    print_lines([HOSTILE])
    print_made(Path(HOSTILE), job(), HOSTILE)
    say(HOSTILE, job())
    note(HOSTILE)
    printed = capsys.readouterr()
    assert not {"\x1b", "\u202e"} & set(printed.out + printed.err)
    assert len(printed.out.splitlines()) == 3 + 1 + 1 + 1 + 1 + 1  # a title, a heading and a rule; then one line each
    assert len(printed.err.splitlines()) == 3


def test_a_title_is_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([{"[/b]": "wide enough"}], as_json=False, title="[/red]")
    printed = capsys.readouterr().out
    assert "[/red]" in printed
    assert "[/b]" in printed


@pytest.mark.parametrize(
    ("variables", "code", "said"),
    [
        ({"RANK": "1"}, 0, ""),
        ({"RANK": "x"}, 0, ""),
        ({"WORLD_SIZE": "two"}, 2, "WORLD_SIZE is 'two'"),
        ({"WORLD_SIZE": "2", "RANK": "2"}, 2, "RANK is 2 of 2 processes"),
    ],
)
def test_half_of_torchruns_variables(variables: dict[str, str], code: int, said: str) -> None:
    done = lgzoo("list tasks", variables)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert bool(done.stdout) == (code == 0)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("line", ["list tasks", "list tasks --json", "show lsamd"])
def test_a_closed_stream_is_no_error(line: str, closed: str) -> None:
    done = lgzoo(line, closed=closed)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_a_name_that_is_no_utf8_is_printed_in_any_encoding(encoding: str) -> None:
    done = lgzoo("show caf\udce9-猫", {"PYTHONIOENCODING": encoding})
    assert done.returncode == 2
    assert "named 'caf\\udce9-" in done.stderr


def lgzoo(line: str, variables: dict[str, str] | None = None, closed: str = "") -> subprocess.CompletedProcess[str]:
    """One call in a process of its own, some of its streams closed by the shell."""
    command = f'exec "$0" -m learngene_zoo {line} {closed}'
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **(variables or {})}
    return subprocess.run(
        ["sh", "-c", command, sys.executable], env=environment, capture_output=True, text=True, timeout=120
    )
