"""Whatever is raised becomes one line and an exit code."""

from __future__ import annotations

import errno

import click
import pytest

from learngene_zoo.cli.main import guarded
from learngene_zoo.errors import BadFile, WrongCall


def outcome(
    error: BaseException, capsys: pytest.CaptureFixture[str], words: list[str] | None = None
) -> tuple[int, str]:
    def fail(_: list[str]) -> None:
        raise error

    code = guarded(fail, words or [])
    printed = capsys.readouterr()
    assert printed.out == ""
    return code, printed.err


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (WrongCall("no such thing"), 2, "error: no such thing\n"),
        (BadFile("it is\n  broken"), 1, "error: it is broken\n"),
        (click.UsageError("Missing argument 'NAME'."), 2, "error: missing argument 'NAME'; see lgzoo --help\n"),
        (KeyError("x"), 1, "error: unexpected KeyError: 'x'; run again with --debug to see where\n"),
        (
            OSError(errno.ENOSPC, "No space left on device", "f"),
            1,
            "error: f: the disk is full; free some space",
        ),
        (
            PermissionError(errno.EACCES, "Permission denied", "f"),
            1,
            "error: f: permission denied; choose another place",
        ),
        (MemoryError(), 1, "error: out of memory; use a smaller --batch-size"),
    ],
)
def test_one_line_and_a_code(error: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    got, text = outcome(error, capsys)
    assert got == code
    assert text.startswith(said)
    assert text.count("\n") == 1


def test_debug_shows_where_and_is_taken_off_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = outcome(BadFile("broken"), capsys, ["show", "--debug", "x"])
    assert code == 1
    assert "Traceback" in text
    assert text.endswith("error: broken\n")
    seen: list[str] = []
    assert guarded(seen.extend, ["show", "--debug", "x"]) == 0
    assert seen == ["show", "x"]


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), click.Abort()])
def test_an_interrupt_says_how_to_go_on(interrupt: BaseException, capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome(interrupt, capsys, ["finetune"]) == (1, "interrupted; --resume continues\n")
    assert outcome(interrupt, capsys, ["list"]) == (1, "interrupted\n")
