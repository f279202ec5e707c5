"""`lgzoo`: the table of commands, and their exit codes.

Exit codes: 0 success, 1 failure, 2 wrong call, 130 interrupted, 143 terminated. Importing this
module imports click only: commands are imported when they are used.
"""

from __future__ import annotations

import gc
import importlib
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

import click

from learngene_zoo.cli.process.guard import NoCommand, run_guarded
from learngene_zoo.cli.process.signals import INTERRUPTED, TERMINATED, end_now
from learngene_zoo.cli.process.streams import open_streams
from learngene_zoo.errors import TrainingWarning, WrongCall, refuse_unknown
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


WORDS_KEY = "learngene_zoo.words"  # of a context's `meta`


# Words that may be taken for commands, and the methods that do this.
METHODS_FOR = {"distil": "distillation", "distill": "distillation", "prune": "pruning"}


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
        if self.kind == "command" and name in METHODS_FOR:
            method = METHODS_FOR[name]
            raise WrongCall(
                f"no command named {name!r}; the method {method} does this: "
                f"lgzoo extract {method}, then lgzoo expand"
            )
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
            raise NoCommand(FIRST_PAGE)
        ctx.meta[WORDS_KEY] = tuple(args)  # messages name options as they were typed
        return super().parse_args(ctx, args)

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> NoReturn:
        """Run one command line and exit."""
        extra["standalone_mode"] = False
        open_streams()
        arguments = sys.argv[1:] if args is None else args
        run_command = super().main
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TrainingWarning)  # commands print them as lines
            code = run_guarded(
                lambda words: run_command(words, prog_name or "lgzoo", **extra), arguments
            )
        if code in (INTERRUPTED, TERMINATED) and args is None:
            end_now(code)
        sys.exit(code)


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
    "heal": (f"{HERE}.heal:command", "Recover a descendant on unlabelled images or texts."),
    "finetune": (f"{HERE}.train:finetune_command", "Fine-tune a model on a task."),
    "evaluate": (f"{HERE}.evaluation.evaluate:command", "Evaluate a model on a task."),
    "predict": (f"{HERE}.evaluation.predict:command", "Classify images or texts."),
    "compare": (
        f"{HERE}.evaluation.compare:command",
        "Compare two models on the same images or texts.",
    ),
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
    "doctor": (
        f"{HERE}.diagnosis.doctor:command",
        "Check the installation, the plugins and the tasks.",
    ),
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

  Make small image or text models from a pretrained transformer.

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
