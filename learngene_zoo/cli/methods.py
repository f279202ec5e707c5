"""A group with one sub-command per registered method; each method's own settings are its options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from learngene_zoo import registry
from learngene_zoo.cli.lazy import LazyGroup
from learngene_zoo.method import Method


class MethodGroup(LazyGroup):
    """`build` makes the command of a method; nothing of a method is imported before it is named."""

    kind = "method"

    def __init__(self, *args: Any, build: Callable[[Method], click.Command], **kwargs: Any) -> None:
        super().__init__(*args, table={}, subcommand_metavar="METHOD [OPTIONS]", **kwargs)
        self.build = build

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The registered names."""
        return list(registry.references())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of one method."""
        return self.build(registry.load(cmd_name)) if cmd_name in registry.references() else None

    def summaries(self, ctx: click.Context) -> list[tuple[str, str]]:
        """Names and titles; a plugin that does not load is listed as such."""
        good, broken = registry.methods()
        return sorted([(m.name, m.title) for m in good] + [(b.name, "(broken: see lgzoo doctor)") for b in broken])
