"""`lgzoo demo`: the whole story on what is bundled."""

from __future__ import annotations

from typing import Any

import click

from learngene_zoo.cli.job import job_of, job_options
from learngene_zoo.cli.output import advise, print_lines, print_row, print_rows, say
from learngene_zoo.settings import Json

COLUMNS = ("layers", "params", "flops", "lsamd", "shuffled", "scratch_timm", "scratch_fan_in")


def demo(full: bool, **given: Any) -> None:
    """Tell the story, print its table, and say what it allows to say."""
    from learngene_zoo.bench.demo import tell, verdict

    job = job_of(given)
    rows = tell(job.out, job.run, full=full, force=job.force, say=lambda text: say(text, job))
    if job.as_json:
        print_rows([{**row, "path": str(job.out)} for row in rows], as_json=True)
        return
    print_rows([_for_people(row) for row in rows], as_json=False, title="accuracy on digits, %")
    print_lines([verdict(row) for row in rows])
    print_row({"picture": str(job.out / "curves.png"), "numbers": str(job.out / "results.json")}, as_json=False)
    advise(f"lgzoo expand {job.out / 'learngene'} --layers 7", job.quiet)


def _for_people(row: dict[str, Json]) -> dict[str, Json]:
    """Accuracies in per cent, the gains left to the sentences below the table."""
    shown = {name: row[name] for name in COLUMNS if name in row}
    return {name: f"{100 * value:.1f}" if isinstance(value, float) else value for name, value in shown.items()}


command = click.Command(
    "demo",
    callback=demo,
    help="The whole story on what is bundled: one learngene, descendants of several depths, each fine-tuned beside its "
    "scratch twins and its shuffled control; one table, one picture. Some minutes; --full takes longer and shows more.",
    epilog="\b\nExamples:\n  lgzoo demo\n  lgzoo demo --full -o story --threads 2",
    params=[
        click.Option(["--full"], is_flag=True, help="More depths and three seeds of each."),
        *job_options("demo"),
    ],
)
