"""`shrink`: from a pretrained model and a budget to a finished small model.

    1  choose candidates: descendants of all methods without training that fit   (candidates.py)
    2  extract a learngene by each method, once, and expand the candidates
    3  probe the original and the candidates on the same images, and rank them
    4  heal (only if asked for) and fine-tune the best ones; the best validation accuracy wins
    5  export the winner and write the report                                (report.py)

The steps are the verbs `extract`, `expand`, `heal`, `finetune` and `export` with the user's seed:
the same commands by hand give the same model, if `closed_form` keeps its streams. Finished steps
are kept in the folder of the run until the result is written, so that a call that was interrupted
goes on.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from learngene_zoo.artifacts.own_data import remember
from learngene_zoo.artifacts.records import SOURCES, parse_reference, parse_task
from learngene_zoo.artifacts.shelf import BUNDLED
from learngene_zoo.atomic import check_file
from learngene_zoo.errors import WrongCall
from learngene_zoo.lifecycle import models
from learngene_zoo.lifecycle.analyse import assemble_ancestry
from learngene_zoo.lifecycle.shrinking.building import (
    CANDIDATES,
    build_candidates,
    choose_within_budget,
    list_candidates,
    list_origins,
)
from learngene_zoo.lifecycle.shrinking.candidates import ShrinkCandidate
from learngene_zoo.lifecycle.shrinking.estimate import (
    LONG,
    describe_long_call,
    estimate_seconds,
    list_advice,
)
from learngene_zoo.lifecycle.shrinking.finishing import choose_winner, finish_candidates
from learngene_zoo.lifecycle.shrinking.report import write_report
from learngene_zoo.lifecycle.shrinking.request import (
    ShrinkConfig,
    ShrinkRequest,
    check_images,
    choose_export,
    open_request,
    print_note_on_export,
    split_settings,
)
from learngene_zoo.lifecycle.shrinking.table import (
    ShrinkTable,
    Shrunk,
    list_outputs,
    load_result,
    tabulate,
    write_table,
)
from learngene_zoo.lifecycle.training_warnings import ignore_training_warnings, warn_of_training
from learngene_zoo.method.sizes import Budget
from learngene_zoo.runs.cache import DONE
from learngene_zoo.runs.folder import check_start, is_begun, locate_run, produce
from learngene_zoo.runs.progress import report_activity, say
from learngene_zoo.runs.run import Run, check_precision, get_world_size, parse_run
from learngene_zoo.tasks.catalogue import say_notes
from learngene_zoo.tasks.task import stamp_tasks
from learngene_zoo.text import count_noun

if TYPE_CHECKING:
    from learngene_zoo.artifacts.descendant import Descendant
    from learngene_zoo.lifecycle.shrinking.ranking import Ranking

WORK = "work"  # folder of learngenes and models within that of the run


def shrink(
    model: str = BUNDLED,
    *,
    task: str | None = None,
    images: str | None = None,
    budget: Budget | None = None,
    config: ShrinkConfig | None = None,
    image_size: int | None = None,
    export: str = "auto",
    out: str | Path = "shrunk",
    run: Run | None = None,
    force: bool = False,
    **settings: Any,
) -> Shrunk:
    """Make a small model of a pretrained one: the best descendant within a budget, fine-tuned.

    The model is written to `out`, the exported file to OUT.onnx or OUT.pt2, and a report to
    OUT.html.

    Args:
        model: the pretrained model, as for `extract`; default: the bundled one.
        task: the task that the model is fine-tuned on. None: the model keeps no head, and
            candidates are compared by how well they predict the original's features.
        images: images or texts without labels that extractions see, as for `heal`. None: those of
            the training split of `task`.
        budget: bounds of the descendants.
        config: the other settings.
        image_size: in pixels. None: the pretrained model's default.
        export: "onnx", "pt2" or "none"; "auto": ONNX if its packages are installed.
        out: the folder of the model.
        run: how to compute. None: `Run()`, with progress in a notebook.
        force: replace existing content of `out` and of the files beside it.
        settings: bounds, fields of `config`, and settings of `finetune` by name (`max_params="5M"`,
            `max_drop=1`, `epochs=5`).

    Raises:
        WrongCall: if there is no bound, no task and no images, if nothing fits the budget, and for
            a task with a class per pixel.
        BadData: for a task with too few images or one class.
    """
    run, out = parse_run(run, models.make_run), Path(out)
    model = parse_reference("model", model, SOURCES)
    task, images = parse_task(task), parse_task(images, "images")
    if get_world_size() > 1:
        raise WrongCall("shrink runs in one process; start it without torchrun")
    check_precision(run)
    bounds, config, tuning = split_settings(budget or Budget(), config or ShrinkConfig(), settings)
    check_start(out, run, force)
    export_format = choose_export(export)
    is_resumed = run.resume and is_begun(locate_run(out))
    for path in list_outputs(out, export_format):
        check_file(path, force or is_resumed)
    request = open_request(
        model, task, images, bounds, config, tuning, image_size, export_format, run
    )
    print_note_on_export(export)  # not before a call that is refused
    from learngene_zoo.artifacts.descendant import load_descendant

    folder = locate_run(out)
    datasets = [request.images, *([request.task] if request.task and images else [])]
    result = produce(
        partial(_make, request, out),
        partial(load_result, folder),
        out=out,
        verb="shrink",
        settings=request.settings,
        run=run,
        force=force,
        data=partial(stamp_tasks, datasets),
    )
    shutil.rmtree(folder / WORK, ignore_errors=True)
    report, *exported = list_outputs(out, request.export_format)
    descendant = remember(load_descendant(out), list_origins(request), load_descendant, out)
    if request.task is not None:
        warn_of_training(descendant)
    return replace(
        result,
        model=descendant,
        report=report,
        exported=exported[0] if exported else None,
    )


def plan_shrink(
    model: str = BUNDLED,
    *,
    task: str | None = None,
    images: str | None = None,
    budget: Budget | None = None,
    config: ShrinkConfig | None = None,
    image_size: int | None = None,
    run: Run | None = None,
    **settings: Any,
) -> tuple[list[ShrinkCandidate], float]:
    """Return the candidates of `shrink` with these arguments, and an estimate of its seconds.

    Nothing is started but measurements of a few seconds.

    Args: as `shrink`.

    Raises:
        WrongCall: if there is no bound, no task and no images, if nothing fits the budget, and for
            a task with a class per pixel.
        BadData: for a task with too few images or one class.
    """
    run = parse_run(run, models.make_run)
    model = parse_reference("model", model, SOURCES)
    task, images = parse_task(task), parse_task(images, "images")
    check_precision(run)
    bounds, config, tuning = split_settings(budget or Budget(), config or ShrinkConfig(), settings)
    request = open_request(model, task, images, bounds, config, tuning, image_size, "none", run)
    say_notes([request.task or request.images], run)
    candidates = choose_within_budget(request.offers, request.budget, config, run)
    seconds = estimate_seconds(request, candidates, run)
    if seconds > LONG:
        for advice in list_advice(request, run):
            say(run, advice)
    return candidates, seconds


def _make(request: ShrinkRequest, out: Path, run: Run) -> Shrunk:
    """Run all steps; each is loaded if an interrupted run has finished it."""
    from learngene_zoo.lifecycle.shrinking.ranking import evaluate_original

    work = _prepare_work(run)
    check_images(request, run)
    candidates = list_candidates(request, run)
    methods = ", ".join(dict.fromkeys(candidate.method for candidate in candidates))
    say(run, f"{count_noun(len(candidates), 'candidate')} of {methods}")
    if not run.resume and (text := describe_long_call(request, candidates, run)):
        say(run, text)
    ranking = _rank(request, candidates, work, run)
    with ignore_training_warnings():  # those about the winner follow
        finished = finish_candidates(request, ranking, candidates, work, run)
    winner = choose_winner(request, ranking, finished)
    ranking = evaluate_original(request, ranking, run)
    table = tabulate(request, ranking, candidates, finished, winner, out, run)
    path = finished[winner].path
    _deliver(table, path, list_outputs(out, request.export_format), run)
    return Shrunk(model=_load_with_report(path), table=table)


def _prepare_work(run: Run) -> Path:
    """Return the folder of intermediate results; a run that is not resumed starts without any."""
    first = run.part(CANDIDATES).folder
    assert run.folder is not None, "produce has set the folder"
    assert first is not None, "as that of the run"
    if not (run.resume and (first / DONE).is_dir()):
        shutil.rmtree(run.folder / WORK, ignore_errors=True)
    return run.folder / WORK


def _rank(
    request: ShrinkRequest, candidates: Sequence[ShrinkCandidate], work: Path, run: Run
) -> Ranking:
    """Build the candidates and rank them."""
    from learngene_zoo.lifecycle.shrinking.ranking import rank_by_features, rank_by_probe

    original = assemble_ancestry(request.ancestry, run.seed)
    built_models = build_candidates(request, candidates, work, run)
    rank = rank_by_probe if request.task else rank_by_features
    with report_activity("building and probing candidates"):
        return rank(request, original, built_models, run)


def _deliver(table: ShrinkTable, model: Path, outputs: Sequence[Path], run: Run) -> None:
    """Write the exported file, the report, and the table for a later call with `resume`."""
    assert run.folder is not None, "produce has set the folder"
    report, *exported = outputs
    for path in exported:
        models.export(model, path, run=replace(run, folder=None), force=True)
    write_report(table, report)
    write_table(table, run.folder)


def _load_with_report(path: Path) -> Descendant:
    """Return the finished model with the report of its fine-tuning, if it has one.

    It does not name its learngene, whose folder is removed.
    """
    from learngene_zoo.artifacts.descendant import load_descendant

    report = path / "report.html"
    files = {"report.html": report.read_text(encoding="utf-8")} if report.is_file() else {}
    model = load_descendant(path)
    provenance = {**model.provenance, "learngene": "in memory"}
    return replace(model, files={**model.files, **files}, provenance=provenance)
