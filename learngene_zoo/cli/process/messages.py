"""Errors and notes as lines on stderr."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from pathlib import Path

import click

from learngene_zoo.errors import (
    MIN_LETTERS,
    OUT_OF_MEMORY,
    SEE_TRACEBACK,
    TOO_MANY_FILES,
    Exists,
    NoLabels,
    ZooError,
    explain_os_error,
    find_nearest,
)
from learngene_zoo.text import escape_controls, quote_path, quote_word

DEBUG = "--debug"
LONGEST = 200  # characters of one word in an error
SIZES = ("layers", "depth", "width", "embed-dim", "heads")  # options of expand, not of extract
MAX_SUGGESTED = 5  # options that begin with a typed one
MISFIT = "torchvision::"  # in the error of an import with a torchvision for another torch
# Options that name the result, and the suffixes of what a command writes beside it.
OUTPUTS = ("--out", "--sheet", "--html")
BESIDE = {"shrink": (".html", ".onnx", ".pt2")}
# Options of the command line by the arguments of Python that messages name.
OPTIONS = {"Run(resume=True)": "--resume", "force=True": "--force", "out=PATH": "-o"}


def describe_error(error: Exception) -> tuple[str, int]:
    """Return the message for an exception, and its exit code.

    Arguments of Python that a message names are replaced by the command line's options.
    """
    if isinstance(error, ZooError):
        line = str(error)
        for argument, option in OPTIONS.items():
            line = line.replace(argument, option)
        if isinstance(error, NoLabels):
            line += "; data without labels is for lgzoo heal --images and lgzoo shrink --images"
        return line, error.exit_code
    if isinstance(error, click.UsageError):
        return _format_usage(error), error.exit_code
    if isinstance(error, click.ClickException):
        return error.format_message(), error.exit_code
    if isinstance(error, MemoryError) or any(
        sign in f"{type(error).__name__}: {error}" for sign in OUT_OF_MEMORY
    ):
        return (
            "out of memory; use a smaller --batch-size or --image-size, fewer --workers, or a "
            "smaller model",
            1,
        )
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{explain_os_error(error)}", 1
    if isinstance(error, RuntimeError) and any(sign in str(error) for sign in TOO_MANY_FILES):
        return explain_os_error(OSError(errno.EMFILE, str(error))), 1
    if isinstance(error, RuntimeError) and MISFIT in str(error):
        return f"{explain_misfit()} ({error})", 1
    return f"unexpected {type(error).__name__}: {error}{SEE_TRACEBACK}", 1


def explain_misfit() -> str:
    """Return the message for a torchvision that was built for another torch."""
    from importlib.metadata import version

    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "torchvision"))
    return f"torchvision does not fit torch ({versions}): install both from one source"


def _format_usage(error: click.UsageError) -> str:
    """Return click's message in lower case, without full stop, with the command of the help."""
    command = error.ctx.command_path if error.ctx else "lgzoo"
    if isinstance(error, click.NoSuchOption):
        options = error.ctx.command.get_params(error.ctx) if error.ctx else []
        words = {
            word.lstrip("-"): word
            for option in options
            for word in (*option.opts, *option.secondary_opts)
        }
        typed = error.option_name.lstrip("-")
        close = find_nearest(typed, words)
        hint = f"see {command} --help" if close is None else f"did you mean {words[close]}?"
        if close is None and typed in SIZES and command.startswith("lgzoo extract"):
            hint = f"sizes are chosen afterwards: lgzoo expand {error.option_name} ..."
        if typed == "set" and command.startswith("lgzoo extract"):
            hint = f"settings of a method are options: {command} --help lists them"
        arguments = [option.name for option in options if isinstance(option, click.Argument)]
        if close is None and typed in ("ancestry", "model") and "model" in arguments:
            hint = f"the model is an argument: {command} MODEL"
        longer = [word for name, word in words.items() if name.startswith(typed)]
        longer.sort(key=len)
        if len(typed) >= MIN_LETTERS and 1 < len(longer) <= MAX_SUGGESTED:
            hint = f"did you mean {', '.join(longer[:-1])} or {longer[-1]}?"
        return f"no option named {error.option_name}; {hint}"
    if isinstance(error, click.BadOptionUsage) and error.ctx and "requires an" in error.message:
        for option in error.ctx.command.get_params(error.ctx):
            choices = getattr(getattr(option.type, "setting", option.type), "choices", None)
            if error.option_name in option.opts and choices:
                return (
                    f"option {error.option_name!r} requires an argument: {', '.join(choices)}; "
                    f"see {command} --help"
                )
    text = error.format_message().strip().rstrip(".")
    extra = re.fullmatch(r"Got unexpected extra arguments? \((.*)\)", text, flags=re.DOTALL)
    if extra is not None:
        is_extract = command.startswith("lgzoo extract ") and " " not in extra[1]
        hint = f"name the ancestry model with --ancestry {extra[1]}; " if is_extract else ""
        return f"too many arguments: {extra[1]}; {hint}see {command} --help"
    return f"{text[:1].lower()}{text[1:]}; see {command} --help"


def print_note(text: str) -> None:
    """Print one line on stderr that is not an error."""
    click.echo(f"note: {shorten_line(text)}", err=True)


def shorten_line(text: str) -> str:
    """Return printable text, with the middle of very long words left out."""
    words = (
        word if len(word) <= LONGEST else f"{word[: LONGEST // 2]}...{word[-20:]}"
        for word in text.split()
    )
    return escape_controls(" ".join(words))


def describe_taken_path(error: Exists, words: Sequence[str]) -> str:
    """Return the message for a result whose path exists, with a command line that avoids it."""
    remedy = ", or replace it with --force" if error.can_replace else ""
    return (
        f"{error.path} already exists; choose another path with {_name_output(words)}{remedy}; for "
        f"example: {_suggest_path(words, error.path)}"
    )


def _name_output(words: Sequence[str]) -> str:
    """Return the option that names the result of a command line."""
    is_page = any(word.partition("=")[0] == "--html" for word in words)
    return "--html" if is_page else "-o"


def _suggest_path(words: Sequence[str], path: str) -> str:
    """Return the same command line with the first free name after `path`: -o finetuned-2."""
    end = words.index("--") if "--" in words else len(words)
    kept_words, skip = [], False
    for word in words[:end]:
        if skip or word.startswith(("-o", *(f"{name}=" for name in OUTPUTS))):
            skip = not skip and word == "-o"
        elif word in OUTPUTS:
            skip = True
        else:
            kept_words.append(word)
    free = _find_free(path, BESIDE.get(words[0], ()) if words else ())
    named = [*map(quote_word, [*kept_words, _name_output(words)]), quote_path(free)]
    return " ".join(["lgzoo", *named, *map(quote_word, words[end:])])


def _find_free(path: str, beside: Sequence[str]) -> Path:
    """Return the first free path after `path`, or after the one that has it beside it.

    `beside` are the suffixes of the other files that the command writes, which are free too.
    """
    suffix = next((suffix for suffix in beside if path.endswith(suffix)), "")
    target = Path(path.removesuffix(suffix))
    if target.name in ("", ".."):  # a folder above, such as the current one: a name within it
        target = target / "new"
    number = 2
    while True:
        free = target.with_name(f"{target.stem}-{number}{target.suffix}")
        if not any(os.path.lexists(f"{free}{suffix}") for suffix in ("", *beside)):
            return free
        number += 1
