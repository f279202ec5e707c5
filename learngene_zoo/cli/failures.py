"""From exceptions to one line on stderr and an exit code; nothing else of the command line prints errors.

0 done, 1 failed, 2 wrong call.
"""

import re
import sys
from collections.abc import Callable, Sequence

import click

from learngene_zoo.atomic import explained
from learngene_zoo.errors import ZooError
from learngene_zoo.text import printable

DEBUG = "--debug"
LONGEST = 200  # characters of one word in an error
RESUMABLE = ("extract", "finetune", "train")


def guarded(call: Callable[[list[str]], object], arguments: Sequence[str]) -> int:
    """The exit code of `call(arguments)`. `--debug` is understood anywhere on the line and shows tracebacks."""
    debug = DEBUG in arguments
    words = [word for word in arguments if word != DEBUG]
    try:
        code = call(words)
        return code if isinstance(code, int) else 0
    except (click.Abort, KeyboardInterrupt):
        continues = "; --resume continues" if any(word in RESUMABLE for word in words[:1]) else ""
        continues = "; the same command continues" if words[:1] in (["bench"], ["demo"]) else continues
        click.echo(f"interrupted{continues}", err=True)
        return 1
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except Exception as error:  # whatever happens, one line that says what to do
        if debug:
            import traceback

            traceback.print_exc()
        else:  # what is torn down from here on may fail as well: loader workers of which half were started
            sys.unraisablehook = lambda unraisable: None
        line, code = described(error)
        click.echo(f"error: {_one_line(line)}", err=True)
        return code


def described(error: Exception) -> tuple[str, int]:
    """The message for an exception, and its exit code."""
    if isinstance(error, ZooError):
        return str(error), error.exit_code
    if isinstance(error, click.UsageError):
        return _usage(error), error.exit_code
    if isinstance(error, click.ClickException):
        return error.format_message(), error.exit_code
    if isinstance(error, MemoryError) or any(sign in f"{type(error).__name__}: {error}" for sign in _OUT_OF_MEMORY):
        return "out of memory; use a smaller --batch-size or --image-size, fewer --workers, or a smaller model", 1
    if isinstance(error, OSError) and error.strerror:
        return _system(error), 1
    return f"unexpected {type(error).__name__}: {error}; run again with {DEBUG} to see where", 1


def _usage(error: click.UsageError) -> str:
    """click's own words in our one line: no capital, no full stop, and where the help is."""
    command = error.ctx.command_path if error.ctx else "lgzoo"
    if isinstance(error, click.NoSuchOption):
        close = f"did you mean {error.possibilities[0]}?" if error.possibilities else f"see {command} --help"
        return f"no option named {error.option_name}; {close}"
    text = error.format_message().strip().rstrip(".")
    text = re.sub(r"^Got unexpected extra arguments? \((.*)\)$", r"too many arguments: \1", text, flags=re.DOTALL)
    text = text[:1].lower() + text[1:]
    return f"{text}; see {command} --help"


# torch raises RuntimeErrors: of the CPU's allocator, of a memory map, of a GPU.
_OUT_OF_MEMORY = (
    "OutOfMemoryError",
    "can't allocate memory",
    "Cannot allocate memory",
    "unable to mmap",
    "failed to map segment",  # the system's loader, of a library
)


def _system(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{explained(error)}"


def note(text: str) -> None:
    """One line on stderr that is not an error."""
    click.echo(f"note: {_one_line(text)}", err=True)


def _one_line(text: str) -> str:
    """Printable, with the middle of very long words left out."""
    words = (word if len(word) <= LONGEST else f"{word[: LONGEST // 2]}...{word[-20:]}" for word in text.split())
    return printable(" ".join(words))
