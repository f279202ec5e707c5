"""A group of commands that are imported when they are used, so that `lgzoo --help` imports none of them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import click

from learngene_zoo.cli.failures import guarded
from learngene_zoo.errors import unknown

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class LazyGroup(click.Group):
    """`table` says of every command where it lies (`package.module:ATTRIBUTE`) and its one line of help."""

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
            raise unknown(self.kind, args[0], known)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The section of the help that lists the commands."""
        with formatter.section(f"{self.kind.capitalize()}s"):
            formatter.write_dl(self.summaries(ctx))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names and options that begin as what was typed."""
        from click.shell_completion import CompletionItem

        names = [CompletionItem(name, help=text) for name, text in self.summaries(ctx) if name.startswith(incomplete)]
        return names + click.Command.shell_complete(self, ctx, incomplete)


class Root(LazyGroup):
    """The whole command line: what leaves it is an exit code, never an exception."""

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any) -> NoReturn:  # type: ignore[override]
        """Run one command line and exit."""
        extra["standalone_mode"] = False
        arguments = sys.argv[1:] if args is None else args
        whole = super().main
        sys.exit(guarded(lambda words: whole(words, prog_name or "lgzoo", **extra), arguments))
