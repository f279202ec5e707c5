"""Run a command: every exception becomes one line on stderr and an exit code."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence

import click

from learngene_zoo.cli.process.messages import (
    DEBUG,
    describe_error,
    describe_taken_path,
    shorten_line,
)
from learngene_zoo.cli.process.signals import INTERRUPTED, TERMINATED, handle_interrupts
from learngene_zoo.errors import CAN_RESUME, SEE_TRACEBACK, Exists, Unavailable
from learngene_zoo.text import quote_word, use_option_names

# Commands that continue with --resume, and those that continue by themselves.
RESUMABLE = ("extract", "heal", "finetune", "shrink", "train")
REPEATABLE = ("bench", "demo", "publish", "fetch")
RESUME = "--resume"


class NoCommand(Exception):
    """The command line names no command; the text is what to print."""


def run_guarded(call: Callable[[list[str]], object], arguments: Sequence[str]) -> int:
    """Return the exit code of `call(arguments)`; `--debug` anywhere shows tracebacks."""
    debug = DEBUG in arguments
    words = [word for word in arguments if word != DEBUG]
    with use_option_names(), handle_interrupts() as interrupts:
        try:
            if not {"-h", "--help", "--version"} & set(words):
                _check_current_folder()
            code = call(words)
            return code if isinstance(code, int) else 0
        except (click.Abort, KeyboardInterrupt) as error:
            return _report_interrupt(words, error, interrupts)
        except NoCommand as error:
            click.echo(str(error), err=True)
            return click.UsageError.exit_code
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            return error.exit_code
        except Exception as error:  # any error becomes one line
            if interrupts:  # a library that was being imported replaced KeyboardInterrupt
                return _report_interrupt(words, error, interrupts)
            if debug:
                import traceback

                traceback.print_exc()
            else:  # tearing down may fail as well, as of loader workers that were half started
                sys.unraisablehook = lambda unraisable: None
            line, code = describe_error(error)
            if isinstance(error, Exists):
                line = describe_taken_path(error, words)
            if debug:
                line = line.removesuffix(SEE_TRACEBACK)
            click.echo(f"error: {shorten_line(line)}", err=True)
            return code


def _report_interrupt(words: Sequence[str], error: BaseException, arrived: Sequence[int]) -> int:
    """Print how to continue after Ctrl-C or SIGTERM, and return the exit code.

    `arrived` are the signals.
    """
    sys.unraisablehook = lambda unraisable: None
    notes = [*getattr(error, "__notes__", ()), *getattr(error.__cause__, "__notes__", ())]
    continues = ""
    if any(word in REPEATABLE for word in words[:1]):
        continues = "; the same command continues"
    elif any(word in RESUMABLE for word in words[:1]):
        can_resume = CAN_RESUME in notes or RESUME in words
        continues = (
            f"; continue with: {_name_continuation(words)}"
            if can_resume
            else "; there is nothing to resume"
        )
    click.echo(f"interrupted{continues}", err=True)
    return TERMINATED if signal.SIGTERM in arrived else INTERRUPTED


def _name_continuation(words: Sequence[str]) -> str:
    """Return the command line that continues an interrupted one: with --resume, without --force."""
    end = words.index("--") if "--" in words else len(words)
    options = [word for word in words[:end] if word not in (RESUME, "--force")]
    return " ".join(map(quote_word, ["lgzoo", *options, RESUME, *words[end:]]))


def _check_current_folder() -> None:
    """Raise `Unavailable` if the current folder was deleted: relative paths would fail."""
    try:
        os.getcwd()
    except OSError:
        raise Unavailable(
            "the current folder does not exist any more; change to another folder with cd"
        ) from None
