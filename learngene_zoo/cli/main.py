"""`lgzoo`: the table of commands. Importing this costs click and nothing else."""

from __future__ import annotations

import click

from learngene_zoo.cli.lazy import Root
from learngene_zoo.version import __version__

HERE = "learngene_zoo.cli"
TABLE = {
    "list": (f"{HERE}.listing:command", "Methods, learngenes and tasks that there are."),
    "show": (f"{HERE}.show:command", "One of them: the sizes it can build and what they cost."),
    "plan": (f"{HERE}.plan:command", "Every size a method would build, before anything is computed."),
    "train": (f"{HERE}.train:command", "Train an ancestry model, or any size from scratch."),
    "extract": (f"{HERE}.extract:command", "Condense an ancestry model into a learngene."),
    "expand": (f"{HERE}.expand:command", "Build a descendant of any size from a learngene."),
    "finetune": (f"{HERE}.finetune:command", "Train a model on a task."),
    "evaluate": (f"{HERE}.evaluate:command", "The accuracy of a model on a task."),
    "plot": (f"{HERE}.plot:command", "Draw a learngene as PNG or SVG."),
    "bench": (f"{HERE}.bench:command", "Methods against their controls and scratch, on a suite of tasks."),
    "demo": (f"{HERE}.demo:command", "The whole story on the bundled models, in minutes."),
    "doctor": (f"{HERE}.doctor:command", "What is installed here, and what does not work."),
    "completion": (f"{HERE}.completion:command", "Print a completion script for bash, zsh or fish."),
}
EPILOG = """\b
Examples:
  lgzoo demo
  lgzoo extract lsamd
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
@click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks (allowed anywhere on the line).")
def main() -> None:
    """Vision Transformers of any size from one pretrained ancestry model.

    Condense it once into a learngene, then build descendants of every size from that.
    """
