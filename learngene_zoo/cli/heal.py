"""`lgzoo heal`: recover a descendant on unlabelled images or texts."""

from collections.abc import Mapping
from typing import Any

import click

from learngene_zoo import lifecycle
from learngene_zoo.cli.job import (
    choose_task,
    format_task_option,
    make_job_options,
    print_made,
    say,
    take_job,
)
from learngene_zoo.cli.options import (
    check_tasks,
    complete_tasks,
    find_model,
    list_typed,
    make_model_argument,
    make_options,
)
from learngene_zoo.cli.sections import SettingsCommand
from learngene_zoo.lifecycle.training_warnings import describe_few
from learngene_zoo.pretrained.sources import check_source
from learngene_zoo.runs.run import is_first
from learngene_zoo.text import escape_controls, quote_path
from learngene_zoo.training.healing.settings import HEALING, WITHOUT_MEANING


def heal(
    model: str | None, images: str, teacher: str | None, task: str | None, **options: Any
) -> int:
    """Heal the model and write it.

    Returns 1 if training diverged and the start is kept, else 0.
    """
    job = take_job(options)
    check_tasks(images, task)
    if teacher is not None:
        check_source(teacher)
    healed = lifecycle.heal(
        find_model(model, "descendant", offline=job.run.offline),
        images,
        teacher=teacher,
        task=task,
        out=job.out,
        run=job.run,
        force=job.force,
        **list_typed(lifecycle.HEAL),
        **list_typed(HEALING),
    )
    record: Any = healed.provenance["healed"]
    metrics = record["metrics"]
    noun = "text" if record["images"]["kind"] == "text" else "image"
    few = describe_few(metrics, noun) if record["settings"]["keep"] == "best" else ""
    say(_describe_kept(metrics, record["recipe"]["lr"], noun, few), job)
    where = "" if str(job.out) == "descendant" else f" {quote_path(job.out)}"
    advice = f"lgzoo finetune{where}{format_task_option(task or choose_task(healed))}"
    if not (healed.classes or task or healed.task):
        advice += f"   (for its features: lgzoo export{where})"
    if metrics.get("warning") and is_first():
        click.echo(f"warning: {escape_controls(str(metrics['warning']))}", err=True)
    print_made(job.out, job, advice, **_list_facts(metrics))
    return 1 if metrics.get("diverged") and not metrics["kept_epoch"] else 0


RATE = "0.001; 5e-05 if a pretrained model wider than 96 is inherited from"
RESULTS = {"held_out_loss": "held-out loss", "knn_accuracy": "k-NN", "ridge_accuracy": "ridge"}


def _list_facts(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of a recovery for JSON."""
    start = metrics["history"][0]
    names = [name for name in RESULTS if name in metrics]
    kinds = [kind for kind in ("held_out", "validation") if f"{kind}_images" in metrics]
    return {
        "kept_epoch": metrics["kept_epoch"],
        **{name: metrics[name] for name in names},
        **{f"{kind}_images": metrics[f"{kind}_images"] for kind in kinds},
        **{f"start_{name}": start[name] for name in names},
    }


def _describe_kept(metrics: Mapping[str, Any], lr: float, noun: str, few: str) -> str:
    """Return which epoch is kept, with its results; if it is the start, with advice.

    Args:
        metrics: of the recovery.
        lr: its learning rate.
        noun: the word for one sample, "image" or "text".
        few: the number of validation samples that chose the epoch, if it is small.
    """
    if metrics["epochs"] == 0:
        return "no epoch was trained: the model is as before"
    if metrics["kept_epoch"] == 0:
        judged = f", by {few}" if few else ""
        return (
            f"no epoch has a better result than the model before training, which is kept{judged} "
            f"(try a smaller --lr, {lr:g} was used, or more {noun}s)"
        )
    start = metrics["history"][0]
    changes = [
        f"{text} {start[name]:.4f} -> {metrics[name]:.4f}"
        for name, text in RESULTS.items()
        if name in metrics
    ]
    chosen = f", chosen by {few}" if few else ""
    kept = f"epoch {metrics['kept_epoch']} of {metrics['epochs']} is kept{chosen}"
    return f"{kept}; {', '.join(changes)}"


command = SettingsCommand(
    "heal",
    callback=heal,
    help="Recover a descendant on unlabelled images or texts: its frozen ancestry model teaches "
    "it.\n\n"
    "MODEL is a folder that `lgzoo expand` wrote, or organisation/name@revision on the Hub "
    "(default: ./descendant). Its head is not trained. The best epoch is kept; the model before "
    "training is epoch 0.",
    epilog="\b\nExamples:\n"
    "  lgzoo heal --images folder:photos\n"
    "  lgzoo heal descendant --images folder:photos --task folder:labelled\n"
    "  lgzoo heal --images forms --epochs 2 --maps fixed\n"
    "  lgzoo heal --images folder:photos --rounds 2",
    params=[
        make_model_argument(),
        click.Option(
            ["--images"],
            required=True,
            shell_complete=complete_tasks,
            help="Images or texts without labels: folder:PATH (of any depth), parquet:PATH, "
            "wds:PATTERN, csv:PATH, or a task, whose training split is used.",
        ),
        click.Option(
            ["--task"],
            shell_complete=complete_tasks,
            help="Task whose validation images choose the epoch, by k-NN and a ridge regression "
            "of the frozen features (default: the loss on held-out images chooses).",
        ),
        click.Option(
            ["--teacher"],
            help="Another ancestry model, as for `lgzoo extract --ancestry`, with the same patches "
            "(default: the one that MODEL records).",
        ),
        *make_options(HEALING),
        *make_options(lifecycle.HEAL, without=WITHOUT_MEANING, defaults={"lr": RATE}),
        *make_job_options("healed"),
    ],
)
