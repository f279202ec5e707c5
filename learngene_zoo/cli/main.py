"""`lgzoo`: the table of commands, and how each of them ends: 0 done, 1 failed, 2 wrong call, 130 interrupted.

Importing this costs click and nothing else: commands are imported when they are used. Nothing else of the command line prints
errors: an exception becomes one line on stderr and an exit code here.
"""

from __future__ import annotations

import atexit
import importlib
import io
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from learngene_zoo.errors import Exists, Unavailable, ZooError, explained, nearest, unknown
from learngene_zoo.text import printable, shell_word
from learngene_zoo.version import __version__

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class LazyGroup(click.Group):
    """`table` has, for every command, where it is defined (`package.module:ATTRIBUTE`) and its one line of help."""

    kind = "command"  # what its members are called in errors

    def __init__(self, *args: Any, table: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names in the order of the table."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, imported now."""
        if cmd_name not in self.table:
            return None
        module, _, attribute = self.table[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def summaries(self, ctx: click.Context) -> list[tuple[str, str]]:
        """Every name and its one line of help, without importing a command."""
        return [(name, text) for name, (_, text) in self.table.items()]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the first word names. Raises `WrongCall` with the nearest name if there is none."""
        known = self.list_commands(ctx)
        if args[0] not in known and not args[0].startswith("-") and not ctx.resilient_parsing:
            self.refuse(args[0])
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """What the named command returns. What its parser refuses belongs to that command, whose help the error names."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            name = ctx.invoked_subcommand
            command = self.get_command(ctx, name) if name and error.ctx is None else None
            if command is not None:
                error.ctx = click.Context(command, parent=ctx, info_name=name)
            raise

    def refuse(self, name: str) -> NoReturn:
        """Raises `WrongCall` for a name that is not in the table."""
        raise unknown(self.kind, name, self.table)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The section of the help that lists the commands."""
        with formatter.section(f"{self.kind.capitalize()}s"):
            formatter.write_dl(self.summaries(ctx))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names and options that begin with what was typed."""
        from click.shell_completion import CompletionItem

        names = [CompletionItem(name, help=text) for name, text in self.summaries(ctx) if name.startswith(incomplete)]
        return names + click.Command.shell_complete(self, ctx, incomplete)


class Root(LazyGroup):
    """The whole command line: what leaves it is an exit code, never an exception."""

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any) -> NoReturn:  # type: ignore[override]
        """Run one command line and exit."""
        extra["standalone_mode"] = False
        _open_streams()
        arguments = sys.argv[1:] if args is None else args
        whole = super().main
        code = guarded(lambda words: whole(words, prog_name or "lgzoo", **extra), arguments)
        if code == INTERRUPTED and args is None:
            _end_now(code)
        sys.exit(code)


def _end_now(code: int) -> NoReturn:
    """End the process with this code, after what is registered to run at its end.

    Python ends some interrupted processes by a signal instead, and prints tracebacks of what it
    tears down.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _open_streams() -> None:
    """What is printed to a closed stream is dropped, and what a stream's encoding lacks is shown by its number.

    A closed stream is opened again, as nothing: else the next file would take its place.
    """
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115  until the process ends
        elif name != "stdin" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    buffer = getattr(sys.stderr, "buffer", None)
    raw = buffer.raw if isinstance(buffer, io.BufferedWriter) else buffer
    if isinstance(raw, io.FileIO) and not isinstance(raw, _LossyFile):
        sys.stderr = io.TextIOWrapper(
            _LossyFile(raw.fileno(), "w", closefd=False),  # type: ignore[arg-type]
            encoding=sys.stderr.encoding,
            errors="backslashreplace",
            write_through=True,
        )


class _LossyFile(io.FileIO):
    """A file that drops what cannot be written: a progress line that a full disk refuses ends no training, and changes no exit code."""

    def write(self, data: Any) -> int:
        """Write all of it, or drop the rest."""
        size = memoryview(data).nbytes
        with suppress(OSError):
            super().write(data)
        return size


HERE = "learngene_zoo.cli"
TABLE = {
    "list": (f"{HERE}.listing:command", "List methods, learngenes, tasks and ancestries."),
    "show": (f"{HERE}.show:command", "Show a method, learngene, model, task or suite."),
    "recommend": (f"{HERE}.plan:recommend_command", "Rank what could be built for given pictures."),
    "plan": (f"{HERE}.plan:command", "List every size that a method would build, with its cost."),
    "train": (f"{HERE}.train:command", "Train an ancestry model, or a model of any size, from scratch."),
    "extract": (f"{HERE}.extract:command", "Condense an ancestry model into a learngene."),
    "expand": (f"{HERE}.expand:command", "Build a descendant of any size from a learngene."),
    "finetune": (f"{HERE}.train:finetune_command", "Fine-tune a model on a task."),
    "evaluate": (f"{HERE}.evaluate:command", "Measure a model on a task."),
    "predict": (f"{HERE}.evaluate:predict_command", "Name what is on pictures."),
    "compare": (f"{HERE}.evaluate:compare_command", "Compare two models on the same images."),
    "export": (f"{HERE}.export:command", "Write a model for other runtimes: ONNX or torch.export."),
    "plot": (f"{HERE}.expand:plot_command", "Draw a learngene as PNG or SVG."),
    "bench": (f"{HERE}.bench:command", "Compare methods with controls and scratch on a suite of tasks."),
    "demo": (f"{HERE}.demo:command", "Run a small comparison with what is bundled, in minutes."),
    "publish": (f"{HERE}.hub:publish_command", "Publish a learngene or a model on the Hugging Face Hub."),
    "fetch": (f"{HERE}.hub:fetch_command", "Fetch a published learngene or model, and check every file."),
    "doctor": (f"{HERE}.doctor:command", "Report what is installed and what does not work."),
    "new-plugin": (f"{HERE}.new_plugin:command", "Write a package to start a method or a suite of tasks from."),
    "completion": (f"{HERE}.main:completion", "Print a completion script for bash, zsh or fish."),
}

EPILOG = """\b
Examples:
  lgzoo demo
  lgzoo extract closed_form
  lgzoo expand --layers 7
  lgzoo finetune --task digits
  lgzoo evaluate
"""


@click.command(
    "lgzoo",
    cls=Root,
    table=TABLE,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="lgzoo", message="%(prog)s %(version)s")
@click.option(
    "--debug", is_flag=True, expose_value=False, help="Show tracebacks (allowed anywhere on the command line)."
)
def main() -> None:
    """Vision Transformers of any size from one pretrained ancestry model.

    Condense it once into a learngene, then build descendants of every size from that.
    """


SHELLS = {
    "bash": 'eval "$(lgzoo completion bash)"   in ~/.bashrc',
    "zsh": 'eval "$(lgzoo completion zsh)"   in ~/.zshrc',
    "fish": "lgzoo completion fish > ~/.config/fish/completions/lgzoo.fish",
}


@click.command(
    "completion",
    help="Print a completion script for bash, zsh or fish.",
    epilog="\b\nTo use it:\n" + "\n".join(f"  {line}" for line in SHELLS.values()),
)
@click.argument("shell", type=click.Choice(list(SHELLS)), metavar="[bash|zsh|fish]")
def completion(shell: str) -> None:
    """Print the script that makes the shell complete commands, options and methods."""
    from click.shell_completion import get_completion_class

    script = get_completion_class(shell)
    assert script is not None, shell
    click.echo(script(main, {}, "lgzoo", "_LGZOO_COMPLETE").source())


DEBUG = "--debug"
LONGEST = 200  # characters of one word in an error
INTERRUPTED = 130  # exit code, as a shell has it of a process that SIGINT ended
RESUMABLE = ("extract", "finetune", "train")
REPEATABLE = ("bench", "demo", "publish", "fetch")


def guarded(call: Callable[[list[str]], object], arguments: Sequence[str]) -> int:
    """The exit code of `call(arguments)`. `--debug` is understood anywhere on the line and shows tracebacks."""
    debug = DEBUG in arguments
    words = [word for word in arguments if word != DEBUG]
    with _interrupts() as interrupts:
        try:
            if not {"-h", "--help", "--version"} & set(words):
                _check_current_folder()
            code = call(words)
            return code if isinstance(code, int) else 0
        except (click.Abort, KeyboardInterrupt):
            return _interrupted(words)
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            return error.exit_code
        except Exception as error:  # whatever happens, one line that says what to do
            if interrupts:  # a library that was being imported made another error of it
                return _interrupted(words)
            if debug:
                import traceback

                traceback.print_exc()
            else:  # what is torn down from here on may fail as well: loader workers of which half were started
                sys.unraisablehook = lambda unraisable: None
            line, code = described(error)
            if isinstance(error, Exists):
                line += f"; for example: {command_beside(words, error.path)}"
            click.echo(f"error: {_one_line(line)}", err=True)
            return code


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Within this, the first Ctrl-C raises KeyboardInterrupt and the second ends the process at once.

    Yields the list of the signals that arrived. What was being written stays a draft, which the next call removes.
    """
    arrived: list[int] = []

    def interrupt(number: int, frame: object) -> None:
        arrived.append(number)
        if len(arrived) > 1:
            os._exit(INTERRUPTED)
        raise KeyboardInterrupt

    # Not where somebody else decides: in a thread, in a program that ignores or handles the signal.
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield arrived
        return
    try:
        signal.signal(signal.SIGINT, interrupt)
    except ValueError:  # not in the main thread
        yield arrived
        return
    try:
        yield arrived
    finally:
        if not arrived:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupted(words: Sequence[str]) -> int:
    """Print how to go on after Ctrl-C, and return the exit code."""
    sys.unraisablehook = lambda unraisable: None
    continues = "; --resume continues" if any(word in RESUMABLE for word in words[:1]) else ""
    continues = "; the same command continues" if any(word in REPEATABLE for word in words[:1]) else continues
    click.echo(f"interrupted{continues}", err=True)
    return INTERRUPTED


def command_beside(words: Sequence[str], path: str) -> str:
    """Return the same command line with `-o` and the first free name after `path`: finetuned-2."""
    kept, skip = [], False
    for word in words:
        if skip or word.startswith(("-o", "--out=", "--sheet=")):
            skip = not skip and word == "-o"
        elif word in ("--out", "--sheet"):
            skip = True
        else:
            kept.append(word)
    place = Path(path)
    number = 2
    while os.path.lexists(free := place.with_name(f"{place.stem}-{number}{place.suffix}")):
        number += 1
    return " ".join(map(shell_word, ["lgzoo", *kept, "-o", str(free)]))


def _check_current_folder() -> None:
    """Raises `Unavailable` if the folder that the process is in was deleted; everything with a relative path would fail."""
    try:
        os.getcwd()
    except OSError:
        raise Unavailable("the current folder does not exist any more; change to another one with cd") from None


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
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{explained(error)}", 1
    return f"unexpected {type(error).__name__}: {error}; run again with {DEBUG} to see where", 1


def _usage(error: click.UsageError) -> str:
    """click's own words in our one line: no capital, no full stop, and where the help is."""
    command = error.ctx.command_path if error.ctx else "lgzoo"
    if isinstance(error, click.NoSuchOption):
        known = error.ctx.command.get_params(error.ctx) if error.ctx else []
        words = {word.lstrip("-"): word for option in known for word in (*option.opts, *option.secondary_opts)}
        close = nearest(error.option_name.lstrip("-"), words)
        hint = f"see {command} --help" if close is None else f"did you mean {words[close]}?"
        return f"no option named {error.option_name}; {hint}"
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


def note(text: str) -> None:
    """One line on stderr that is not an error."""
    click.echo(f"note: {_one_line(text)}", err=True)


def _one_line(text: str) -> str:
    """Printable, with the middle of very long words left out."""
    words = (word if len(word) <= LONGEST else f"{word[: LONGEST // 2]}...{word[-20:]}" for word in text.split())
    return printable(" ".join(words))
