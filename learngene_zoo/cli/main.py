"""`lgzoo`: the table of commands, and their exit codes.

Exit codes: 0 success, 1 failure, 2 wrong call, 130 interrupted, 143 terminated. Importing this
module imports click only: commands are imported when they are used. Errors are only printed here:
an exception becomes one line on stderr and an exit code.
"""

from __future__ import annotations

import atexit
import errno
import gc
import importlib
import io
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from learngene_zoo.errors import (
    CAN_RESUME,
    MIN_LETTERS,
    OUT_OF_MEMORY,
    TOO_MANY_FILES,
    Exists,
    TrainingWarning,
    Unavailable,
    ZooError,
    explain_os_error,
    find_nearest,
    refuse_unknown,
)
from learngene_zoo.text import escape_controls, quote_word
from learngene_zoo.version import __version__

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Collect no garbage in this context, in which modules are imported.

    Modules last until the end of the process, and the collector would take a tenth of the time of a
    short command. Later collections leave out what the first such context has imported.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        _freeze_objects()
        if was_enabled:
            gc.enable()


@cache
def _freeze_objects() -> None:
    """Exclude the objects that exist now from collections, at the first call only.

    Later objects of a process are collected. `gc.get_freeze_count` would walk over all excluded
    objects at every call.
    """
    gc.freeze()


class LazyGroup(click.Group):
    """A group whose `table` has `package.module:ATTRIBUTE` and a line of help for each command."""

    kind = "command"  # noun for the members in errors

    def __init__(self, *args: Any, table: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command of that name and return it."""
        if cmd_name not in self.table:
            return None
        module, _, attribute = self.table[cmd_name][0].partition(":")
        with pause_garbage_collection():
            command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def summaries(self, ctx: click.Context) -> list[tuple[str, str]]:
        """Return every name and its line of help, without importing a command."""
        return [(name, text) for name, (_, text) in self.table.items()]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first word names.

        Raises `WrongCall` with the nearest name if there is no such command.
        """
        names = self.list_commands(ctx)
        if args[0] not in names and not args[0].startswith("-") and not ctx.resilient_parsing:
            self.refuse(args[0])
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the named command; usage errors then refer to that command's help."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            name = ctx.invoked_subcommand
            command = self.get_command(ctx, name) if name and error.ctx is None else None
            if command is not None:
                error.ctx = click.Context(command, parent=ctx, info_name=name)
            raise

    def refuse(self, name: str) -> NoReturn:
        """Raise `WrongCall` for a name that is not in the table."""
        raise refuse_unknown(self.kind, name, self.table)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the section of the help that lists the commands."""
        with formatter.section(f"{self.kind.capitalize()}s"):
            formatter.write_dl(self.summaries(ctx))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return names and options that begin with the typed text."""
        from click.shell_completion import CompletionItem

        names = [
            CompletionItem(name, help=text)
            for name, text in self.summaries(ctx)
            if name.startswith(incomplete)
        ]
        return names + click.Command.shell_complete(self, ctx, incomplete)


class NoCommand(Exception):
    """The command line names no command."""


class Root(LazyGroup):
    """The root command, which turns every exception into an exit code."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section of the help for each group of commands."""
        for title, names in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, self.table[name][1]) for name in names])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does, and keep the words. Raises `NoCommand` if there are none."""
        if not args and not ctx.resilient_parsing:
            raise NoCommand
        ctx.meta[WORDS_KEY] = tuple(args)  # messages name options as they were typed
        return super().parse_args(ctx, args)

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> NoReturn:
        """Run one command line and exit."""
        extra["standalone_mode"] = False
        _open_streams()
        arguments = sys.argv[1:] if args is None else args
        run_command = super().main
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TrainingWarning)  # commands print them as lines
            code = run_guarded(
                lambda words: run_command(words, prog_name or "lgzoo", **extra), arguments
            )
        if code in (INTERRUPTED, TERMINATED) and args is None:
            _end_now(code)
        sys.exit(code)


def _end_now(code: int) -> NoReturn:
    """Run the registered exit functions, then end the process with this code.

    Python ends some interrupted processes by a signal instead, and prints tracebacks while it tears
    down.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _open_streams() -> None:
    """Make closed streams and characters that a stream cannot encode harmless.

    Output to a closed stream is dropped, and characters outside a stream's encoding are escaped. A
    closed stream is opened on the null device: else the next opened file would get its number.
    """
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  until the process ends
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
    """A file that drops data that cannot be written.

    A progress line that does not fit on a full disk must not end a training or change an exit code.
    """

    def write(self, data: Any) -> int:
        """Write the data, or drop the rest."""
        size = memoryview(data).nbytes
        with suppress(OSError):
            super().write(data)
        return size


HERE = "learngene_zoo.cli"
TABLE = {
    "shrink": (
        f"{HERE}.shrink:command",
        "Make a small model from a pretrained one, within a budget.",
    ),
    "list": (f"{HERE}.listing:command", "List methods, learngenes, tasks and ancestries."),
    "show": (f"{HERE}.description.show:command", "Show a method, learngene, model, task or suite."),
    "recommend": (
        f"{HERE}.plan:recommend_command",
        "Rank the descendants that could be built for a task.",
    ),
    "plan": (f"{HERE}.plan:command", "List every size that a method would build, with its cost."),
    "train": (
        f"{HERE}.train:command",
        "Train an ancestry model, or a model of any size, from scratch.",
    ),
    "extract": (f"{HERE}.extract:command", "Condense an ancestry model into a learngene."),
    "expand": (f"{HERE}.expand:command", "Build a descendant of any size from a learngene."),
    "heal": (f"{HERE}.heal:command", "Recover a descendant on images without labels."),
    "finetune": (f"{HERE}.train:finetune_command", "Fine-tune a model on a task."),
    "evaluate": (f"{HERE}.evaluation.evaluate:command", "Evaluate a model on a task."),
    "predict": (f"{HERE}.evaluation.predict:command", "Classify images or texts."),
    "compare": (f"{HERE}.evaluation.compare:command", "Compare two models on the same images."),
    "export": (f"{HERE}.export:command", "Write a model for other runtimes: ONNX or torch.export."),
    "convert": (
        f"{HERE}.export:convert_command",
        "Write a model in the format of transformers, open_clip or DINOv2.",
    ),
    "plot": (f"{HERE}.expand:plot_command", "Draw a learngene as PNG or SVG."),
    "bench": (
        f"{HERE}.bench:command",
        "Compare methods with controls and scratch on a suite of tasks.",
    ),
    "demo": (f"{HERE}.demo:command", "Run a small comparison with the bundled models, in minutes."),
    "publish": (
        f"{HERE}.hub:publish_command",
        "Publish a learngene or a model on the Hugging Face Hub.",
    ),
    "fetch": (
        f"{HERE}.hub:fetch_command",
        "Fetch a published learngene or model, and check every file.",
    ),
    "doctor": (f"{HERE}.doctor:command", "Check the installation, the plugins and the tasks."),
    "new-plugin": (
        f"{HERE}.new_plugin:command",
        "Create a package for a new method or suite of tasks.",
    ),
    "completion": (f"{HERE}.main:completion", "Print a completion script for bash, zsh or fish."),
}
GROUPS = {
    "Start here": ("shrink",),
    "Step by step": ("extract", "expand", "heal", "finetune", "evaluate", "predict", "export"),
    "Look up": ("list", "show", "plan", "recommend"),
    "Compare": ("compare", "bench", "demo", "train", "plot"),
    "Share": ("convert", "publish", "fetch"),
    "This installation": ("doctor", "new-plugin", "completion"),
}

EPILOG = """\b
Examples:
  lgzoo shrink --task digits --max-params 500K
  lgzoo extract closed_form
  lgzoo expand --layers 7
  lgzoo finetune --task digits
  lgzoo evaluate
"""
FIRST_PAGE = """\
Usage: lgzoo COMMAND [OPTIONS] [ARGS]...

  Make small models of images or texts from a pretrained transformer.

  In one command: the bundled model, or your own model and images.

    lgzoo shrink --task digits --max-params 500K
    lgzoo shrink timm:deit_small_patch16_224 --task folder:mine --max-params 5M

  In steps: condense the model once, build a size from it, fine-tune that.

    lgzoo extract closed_form
    lgzoo expand --layers 7
    lgzoo finetune --task digits

  lgzoo --help lists all commands, lgzoo shrink --help the options of one."""


@click.command(
    "lgzoo",
    cls=Root,
    table=TABLE,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="lgzoo", message="%(prog)s %(version)s")
@click.option(
    "--debug",
    is_flag=True,
    expose_value=False,
    help="Show tracebacks (allowed anywhere on the command line).",
)
def main() -> None:
    """Build models of any size, of images or texts, from one pretrained transformer.

    `extract` condenses the ancestry model once into a learngene; `expand` builds a descendant of
    any size from the learngene.
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
WORDS_KEY = "learngene_zoo.words"  # of a context's `meta`
SIZES = ("layers", "depth", "width", "embed-dim", "heads")  # options of expand, not of extract
MAX_SUGGESTED = 5  # options that begin with a typed one
# Exit codes that a shell gives to a process that SIGINT or SIGTERM ended.
INTERRUPTED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM
MISFIT = "torchvision::"  # in the error of an import with a torchvision for another torch
# Options of the command line by the arguments of Python that messages name.
OPTIONS = {"Run(resume=True)": "--resume", "force=True": "--force", "out=PATH": "-o"}
RESUMABLE = ("extract", "heal", "finetune", "shrink", "train")
REPEATABLE = ("bench", "demo", "publish", "fetch")


def run_guarded(call: Callable[[list[str]], object], arguments: Sequence[str]) -> int:
    """Return the exit code of `call(arguments)`; `--debug` anywhere shows tracebacks."""
    debug = DEBUG in arguments
    words = [word for word in arguments if word != DEBUG]
    with _handle_interrupts() as interrupts:
        try:
            if not {"-h", "--help", "--version"} & set(words):
                _check_current_folder()
            code = call(words)
            return code if isinstance(code, int) else 0
        except (click.Abort, KeyboardInterrupt) as error:
            return _report_interrupt(words, error, interrupts)
        except NoCommand:
            click.echo(FIRST_PAGE, err=True)
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
                line = (
                    f"{error.path} already exists; choose another path with -o, or replace it with "
                    f"--force; for example: {suggest_path(words, error.path)}"
                )
            click.echo(f"error: {_shorten_line(line)}", err=True)
            return code


@contextmanager
def _handle_interrupts() -> Iterator[list[int]]:
    """Raise KeyboardInterrupt at the first Ctrl-C within, and end the process at the second.

    SIGTERM, which schedulers send before they kill a process, acts as one Ctrl-C, but not in
    processes of torchrun, which ends them itself. Yields the list of the signals that arrived.
    Unfinished output stays a draft, which the next call removes.
    """
    arrived: list[int] = []
    process = os.getpid()

    def interrupt(number: int, frame: object) -> None:
        arrived.append(number)
        if arrived.count(number) > 1:
            os._exit(INTERRUPTED)
        raise KeyboardInterrupt

    def terminate(number: int, frame: object) -> None:
        if os.getpid() != process:  # one that was forked, such as a loader's
            os._exit(TERMINATED)
        if number not in arrived:  # `timeout` sends two
            arrived.append(number)
            signal.raise_signal(signal.SIGINT)

    # Leave the signal alone in a program that ignores or handles it, and in a thread.
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield arrived
        return
    try:
        signal.signal(signal.SIGINT, interrupt)
    except ValueError:  # not in the main thread
        yield arrived
        return
    is_default = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    handles_sigterm = is_default and "WORLD_SIZE" not in os.environ
    if handles_sigterm:
        signal.signal(signal.SIGTERM, terminate)
    try:
        yield arrived
    finally:
        if handles_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if not arrived:
            signal.signal(signal.SIGINT, signal.default_int_handler)


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
        can_resume = CAN_RESUME in notes or "--resume" in words
        continues = "; --resume continues" if can_resume else "; there is nothing to resume"
    click.echo(f"interrupted{continues}", err=True)
    return TERMINATED if signal.SIGTERM in arrived else INTERRUPTED


def suggest_path(words: Sequence[str], path: str) -> str:
    """Return the same command line with `-o` and the first free name after `path`: finetuned-2."""
    kept_words, skip = [], False
    for word in words:
        if skip or word.startswith(("-o", "--out=", "--sheet=")):
            skip = not skip and word == "-o"
        elif word in ("--out", "--sheet"):
            skip = True
        else:
            kept_words.append(word)
    target = Path(path)
    if target.name in ("", ".."):  # a folder above, such as the current one: a name within it
        target = target / "new"
    number = 2
    while os.path.lexists(free := target.with_name(f"{target.stem}-{number}{target.suffix}")):
        number += 1
    return " ".join(map(quote_word, ["lgzoo", *kept_words, "-o", str(free)]))


def _check_current_folder() -> None:
    """Raise `Unavailable` if the current folder was deleted: relative paths would fail."""
    try:
        os.getcwd()
    except OSError:
        raise Unavailable(
            "the current folder does not exist any more; change to another folder with cd"
        ) from None


def describe_error(error: Exception) -> tuple[str, int]:
    """Return the message for an exception, and its exit code.

    Arguments of Python that a message names are replaced by the command line's options.
    """
    if isinstance(error, ZooError):
        line = str(error)
        for argument, option in OPTIONS.items():
            line = line.replace(argument, option)
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
    return (
        f"unexpected {type(error).__name__}: {error}; run again with {DEBUG} to see the traceback",
        1,
    )


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
    text = re.sub(
        r"^Got unexpected extra arguments? \((.*)\)$",
        r"too many arguments: \1",
        text,
        flags=re.DOTALL,
    )
    text = text[:1].lower() + text[1:]
    return f"{text}; see {command} --help"


def print_note(text: str) -> None:
    """Print one line on stderr that is not an error."""
    click.echo(f"note: {_shorten_line(text)}", err=True)


def _shorten_line(text: str) -> str:
    """Return printable text, with the middle of very long words left out."""
    words = (
        word if len(word) <= LONGEST else f"{word[: LONGEST // 2]}...{word[-20:]}"
        for word in text.split()
    )
    return escape_controls(" ".join(words))
