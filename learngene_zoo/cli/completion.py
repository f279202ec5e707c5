"""`lgzoo completion SHELL`: the script that makes the shell complete commands, options and methods."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

HOMES = {
    "bash": 'eval "$(lgzoo completion bash)"   in ~/.bashrc',
    "zsh": 'eval "$(lgzoo completion zsh)"   in ~/.zshrc',
    "fish": "lgzoo completion fish > ~/.config/fish/completions/lgzoo.fish",
}


def completion(shell: str) -> None:
    """Print the script."""
    from learngene_zoo.cli.main import main

    script = get_completion_class(shell)
    assert script is not None, shell
    click.echo(script(main, {}, "lgzoo", "_LGZOO_COMPLETE").source())


command = click.Command(
    "completion",
    callback=completion,
    help="Print a completion script for bash, zsh or fish.",
    epilog="\b\nTo use it:\n" + "\n".join(f"  {line}" for line in HOMES.values()),
    params=[click.Argument(["shell"], type=click.Choice(list(HOMES)), metavar="[bash|zsh|fish]")],
)
