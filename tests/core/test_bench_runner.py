"""A grid in this process: measured values, shared computations, and the state after failures and
interruptions.
"""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from bench_toy import RECIPE, SPEC, make_world, numbers, toy_arms, toy_cells

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.descendant import assemble
from learngene_zoo.bench.grid.cell import Arm, Cell, Extraction
from learngene_zoo.bench.grid.grid import list_cells
from learngene_zoo.bench.results.rows import Results, Row, pack_flags, read_rows, unpack_flags
from learngene_zoo.bench.running import computation, trial
from learngene_zoo.bench.running.computation import COMPUTATION
from learngene_zoo.bench.running.executors import Failure, InProcess, Outcome, perform
from learngene_zoo.bench.running.extraction import extract_once, is_finished, read_cost
from learngene_zoo.bench.running.runner import Schedule, TimeLeft, format_progress, run_grid
from learngene_zoo.bench.running.trial import measure_untrained, run_cell, train_cell
from learngene_zoo.errors import BadData, Refused, WrongCall
from learngene_zoo.families.family import count_cost
from learngene_zoo.families.tensors import get_shapes, initialise
from learngene_zoo.runs import progress
from learngene_zoo.runs.run import Run
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.tasks.loader import Loader
from learngene_zoo.training import fit as fitting
from learngene_zoo.training.evaluate import evaluate
from learngene_zoo.training.heads import initialise_head
from learngene_zoo.training.probes import compute_features, fit_ridge
from learngene_zoo.version import __version__

RUN = Run(threads=1)
World = tuple[str, str]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def grid_results(
    world: World, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[Cell], list[Row]]:
    """Run a grid without interruptions."""
    out = tmp_path_factory.mktemp("bench")
    cells = toy_cells(world, epochs=[0, 2])
    return out, cells, run_grid(cells, out, RUN)


def count_calls(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[Any]:
    """Record the calls of a function from now on."""
    calls: list[Any] = []
    original: Callable[..., Any] = getattr(owner, name)
    monkeypatch.setattr(
        owner, name, lambda *args, **kwargs: (calls.append(args), original(*args, **kwargs))[1]
    )
    return calls


@pytest.mark.slow
def test_a_row_says_everything_about_its_cell(
    grid_results: tuple[Path, list[Cell], list[Row]],
) -> None:
    _, cells, rows = grid_results
    assert [row.key for row in rows] == [cell.key for cell in cells]
    assert [row.error for row in rows] == [None] * 12
    row = rows[6]
    assert (row.arm, row.method, row.control, row.layers, row.width, row.seed) == (
        "lsamd",
        "lsamd",
        None,
        3,
        32,
        0,
    )
    assert (row.epochs, row.lr, row.images, row.split, row.metric) == (
        2,
        1e-3,
        24,
        "test",
        "accuracy",
    )
    assert row.evaluated == 12
    assert row.correct is not None
    assert sum(unpack_flags(row.correct, 12)) / 12 == row.value
    assert (row.params, row.flops) == (
        count_cost(SPEC.with_(classes=3)).params,
        count_cost(SPEC.with_(classes=3)).flops,
    )
    kept = get_shapes(SPEC)
    assert row.stored_params == sum(
        torch.Size(shape).numel()
        for name, shape in kept.items()
        if not name.startswith(("blocks.1.", "head."))
    )
    assert row.machine
    assert row.finished.endswith("+00:00")
    assert rows[10].stored_params == 0


@pytest.mark.slow
def test_zero_epochs_are_the_untrained_model_and_shared_by_all_budgets(
    grid_results: tuple[Path, list[Cell], list[Row]],
) -> None:
    out, _, rows = grid_results
    before, after = rows[:6], rows[6:]
    assert [row.value for row in before] == [row.untrained for row in before]
    assert [(row.untrained, row.probe) for row in after] == [
        (row.untrained, row.probe) for row in before
    ]
    assert len(list((out / "untrained").iterdir())) == 6
    assert [row.seconds for row in before] == [0.0] * 6
    assert all(row.seconds > 0 for row in after)


def test_what_is_finished_is_not_computed_again(
    grid_results: tuple[Path, list[Cell], list[Row]], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, cells, rows = grid_results
    trained = count_calls(monkeypatch, fitting, "fit")
    heard: list[str] = []
    assert run_grid([*cells, cells[0]], out, RUN, say=heard.append) == rows
    assert not trained
    assert heard == ["12 of 12 cells are finished already"]


@pytest.mark.slow
def test_a_larger_grid_adds_cells_and_shares_the_extraction(
    world: World, grid_results: tuple[Path, list[Cell], list[Row]], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, _, rows = grid_results
    extracted = count_calls(monkeypatch, lifecycle, "extract")
    more = run_grid(toy_cells(world, epochs=[2, 1], layers=[2]), out, RUN)
    assert len(more) == 12
    assert not extracted
    assert not {row.key for row in more} & {row.key for row in rows}
    assert len(read_rows(out / "results.jsonl")) == 24


@pytest.mark.slow
def test_all_arms_have_the_same_chance(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: dict[str, Any] = {}
    seeds: set[int] = set()
    original = fitting.fit

    def watched(start: Any, task: Any, recipe: Any, run: Run, **rest: Any) -> Any:
        starts[str(len(starts))] = start
        seeds.add(run.seed)
        return original(start, task, recipe, run, **rest)

    monkeypatch.setattr(fitting, "fit", watched)
    run_grid(toy_cells(world), tmp_path, RUN)
    inherited, shuffled, stem, wide_stem, timm, fan_in = starts.values()
    assert len(seeds) == 1, "equal images in equal order"
    assert all(start.spec == inherited.spec for start in starts.values())
    for start in starts.values():
        assert torch.equal(start.state["head.weight"], inherited.state["head.weight"])
        assert (start.mean, start.std) == (inherited.mean, inherited.std)
    name = "blocks.0.attn.qkv.weight"
    assert torch.equal(
        shuffled.state[name].flatten().sort().values, inherited.state[name].flatten().sort().values
    )
    assert not torch.equal(shuffled.state[name], inherited.state[name])
    assert torch.equal(
        stem.state["patch_embed.proj.weight"], inherited.state["patch_embed.proj.weight"]
    )
    assert torch.equal(stem.state[name], timm.state[name])
    assert torch.equal(wide_stem.state[name], fan_in.state[name])
    assert timm.state[name].std() < 0.03 < fan_in.state[name].std()


def test_the_head_of_every_arm_may_start_from_a_regression_of_its_own_features(
    world: World, tmp_path: Path
) -> None:
    task = open_task(world[1])
    for cell in (replace(cell, head="ridge") for cell in toy_cells(world)):
        learngene, _ = extract_once(cell.extraction, tmp_path, RUN)
        run = replace(RUN, seed=cell.draws)
        plain, headed = (
            trial.build_start(replace(cell, head=head), learngene, task, run)
            for head in ("random", "ridge")
        )
        expected, record = initialise_head(plain, task, cell.recipe, run)
        assert record["init"] == "ridge"
        changed = {
            name for name in plain.state if not torch.equal(plain.state[name], headed.state[name])
        }
        assert changed == {"head.weight", "head.bias"}
        assert all(torch.equal(headed.state[name], expected.state[name]) for name in changed)


def test_what_a_method_and_its_controls_start_from_is_built_once(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "_latest", {})
    built = count_calls(monkeypatch, lifecycle, "expand")
    same = [cell for cell in toy_cells(world) if cell.arm.method == toy_cells(world)[0].arm.method]
    cells = [
        replace(cell, recipe=replace(cell.recipe, lr=lr)) for cell in same for lr in (1e-3, 2e-3)
    ]
    learngene, _ = extract_once(cells[0].extraction, tmp_path, RUN)
    first, *others = [
        trial.build_start(cell, learngene, open_task(world[1]), RUN)
        for cell in cells
        if cell.at == cells[0].at
    ]
    assert len(others) > 3
    assert len(built) == 1
    assert any(not torch.equal(first.state[name], others[-1].state[name]) for name in first.state)
    trial.build_start(
        replace(cells[0], layers=cells[0].layers + 1), learngene, open_task(world[1]), RUN
    )
    trial.build_start(cells[0], learngene, open_task(world[1]), replace(RUN, seed=RUN.seed + 1))
    assert len(built) == 3


def test_what_starts_from_the_same_numbers_is_trained_once(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainings = count_calls(monkeypatch, fitting, "fit")
    cell = toy_cells(world)[0]
    twin = replace(cell, arm=replace(cell.arm, name="twin"))
    faster = replace(cell, recipe=replace(cell.recipe, lr=2 * cell.recipe.lr))
    first, second, third = (trial.run_cell(each, tmp_path, RUN) for each in (cell, twin, faster))
    assert len(trainings) == 2
    assert (second.arm, second.key) == ("twin", twin.key)
    unlike = {"key", "arm", "finished"}
    assert {**vars(first), **dict.fromkeys(unlike)} == {**vars(second), **dict.fromkeys(unlike)}
    assert third.lr == 2 * first.lr
    again = replace(cell, seed=cell.seed + 1, extraction_seed=cell.extraction.seed)
    trial.run_cell(again, tmp_path, RUN)
    assert len(trainings) == 3


def test_a_head_that_is_inherited_stays(world: World, tmp_path: Path) -> None:
    cell = toy_cells(world)[0]
    learngene, _ = extract_once(cell.extraction, tmp_path, RUN)
    task = open_task(world[1])
    spec = SPEC.with_(classes=3)
    zero_shot = replace(assemble(spec, initialise(spec, 5, "fan_in"), seed=0), task=cell.task)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial, "_latest", {})
        patch.setattr(lifecycle, "expand", lambda *args, **kwargs: zero_shot)
        start = trial.build_start(cell, learngene, task, RUN)
    assert torch.equal(start.state["head.weight"], zero_shot.state["head.weight"])


@pytest.mark.slow
def test_a_cell_that_fails_is_written_down_and_the_rest_goes_on(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = toy_cells(world)
    original = trial.build_start

    def broken(cell: Cell, *rest: Any) -> Any:
        if cell.arm.control == "shuffled":
            raise BadData("the images\nare gone")
        if cell.arm.control == "stem":
            raise ZeroDivisionError("by zero")
        return original(cell, *rest)

    heard: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(trial, "build_start", broken)
        rows = run_grid(cells, tmp_path, RUN, say=heard.append)
    assert [row.error for row in rows] == [
        None,
        "the images are gone",
        "ZeroDivisionError: by zero",
        None,
        None,
        None,
    ]
    assert rows[1].value is None
    assert any("lsamd shuffled: failed: the images are gone" in text for text in heard)
    trained = count_calls(monkeypatch, fitting, "fit")
    again = run_grid(cells, tmp_path, RUN)
    assert len(trained) == 2, "only those that failed are tried again"
    assert [row.error for row in again] == [None] * 6
    assert [again[0], *again[3:]] == [rows[0], *rows[3:]]


def test_a_failed_extraction_is_the_error_of_its_cells_and_not_repeated(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = toy_cells(world, epochs=[1, 2])
    calls = []

    def fails(name: str, **rest: Any) -> Any:
        calls.append(name)
        if name == "lsamd":
            raise BadData("no such blocks")
        return original(name, **rest)

    original = lifecycle.extract
    monkeypatch.setattr(lifecycle, "extract", fails)
    rows = run_grid(cells, tmp_path, RUN)
    assert calls == ["lsamd", "scratch"]
    assert {row.error for row in rows if row.method == "lsamd"} == {"extraction: no such blocks"}
    assert {row.error for row in rows if row.method == "scratch"} == {None}


@pytest.mark.slow
def test_an_interrupted_grid_goes_on_where_it_was(
    world: World,
    grid_results: tuple[Path, list[Cell], list[Row]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, cells, rows = grid_results
    trained: list[Any] = []
    original = fitting.fit

    def stops(*args: Any, **kwargs: Any) -> Any:
        trained.append(args)
        if len(trained) == 4:
            raise KeyboardInterrupt
        return original(*args, **kwargs)

    monkeypatch.setattr(fitting, "fit", stops)
    with pytest.raises(KeyboardInterrupt):
        run_grid(cells, tmp_path, RUN)
    path = tmp_path / "results.jsonl"
    assert len(read_rows(path)) == 3
    path.write_bytes(path.read_bytes() + b'{"key": "half')
    heard: list[str] = []
    again = run_grid(cells, tmp_path, RUN, say=heard.append)
    assert len(trained) == 4 + 9
    assert "incomplete" in heard[0]
    assert numbers(again) == numbers(rows)


def test_a_training_that_was_interrupted_goes_on_if_that_is_asked(
    world: World,
    grid_results: tuple[Path, list[Cell], list[Row]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, cells, rows = grid_results
    again = replace(RUN, resume=True)
    with monkeypatch.context() as patch:
        patch.setattr("learngene_zoo.training.evaluate.judge", stop)
        with pytest.raises(KeyboardInterrupt):
            run_grid([replace(cells[6], look=False)], tmp_path, again)
    (kept,) = (tmp_path / "checkpoints").iterdir()
    assert [path.name for path in kept.iterdir() if path.is_dir()] == ["checkpoint-6"]
    batches = count_calls(monkeypatch, Loader, "epoch")
    (row,) = run_grid([replace(cells[6], look=False)], tmp_path, again)
    assert len(batches) == 1, "only the test images are read"
    assert (row.value, row.correct) == (rows[6].value, rows[6].correct)
    assert not any((tmp_path / "checkpoints").iterdir())


def stop(*args: Any, **kwargs: Any) -> Any:
    """Interrupt, as the user does."""
    raise KeyboardInterrupt


def test_an_arm_may_have_an_image_size_of_its_own(world: World, tmp_path: Path) -> None:
    arms = [replace(arm, image_size=24) for arm in toy_arms(world[0])[:1]]
    (cell,) = toy_cells(world, arms=arms)
    assert cell.key != toy_cells(world)[0].key
    (row,) = run_grid([cell], tmp_path, RUN)
    assert row.flops == count_cost(SPEC.with_(classes=3, image_size=24)).flops


def test_seconds_and_images_of_an_interrupted_extraction_add_up(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = {"epochs": 2, "images": 24, "batch_size": 8}
    arm = Arm(
        name="",
        method="pretrain_finetune",
        preset="smoke",
        settings={**training, "depths": [1, 2]},
        ancestries=(world[0],),
        tasks=(world[1],),
    )
    extraction = Extraction(arm=arm, seed=0)
    trained: list[Any] = []
    original = fitting.fit

    def stops(*args: Any, **kwargs: Any) -> Any:
        trained.append(args)
        if len(trained) == 2:
            raise KeyboardInterrupt
        return original(*args, **kwargs)

    monkeypatch.setattr(fitting, "fit", stops)
    with pytest.raises(KeyboardInterrupt):
        extract_once(extraction, tmp_path, RUN)
    half = read_cost(extraction, tmp_path)
    assert (half.finished, half.images) == (False, 48)
    learngene, uninterrupted = extract_once(extraction, tmp_path, RUN)
    assert len(trained) == 3, "the finished depth is not trained again"
    assert (uninterrupted.finished, uninterrupted.images) == (True, 96)
    assert uninterrupted.seconds > half.seconds > 0
    assert (
        uninterrupted.stored_params
        == sum(tensor.numel() for tensor in learngene.state.values())
        > 0
    )
    assert extract_once(extraction, tmp_path, RUN)[1] == uninterrupted


def test_an_extraction_without_the_record_of_its_cost_is_made_again(
    world: World, tmp_path: Path
) -> None:
    extraction = toy_cells(world)[0].extraction
    extract_once(extraction, tmp_path, RUN)
    extraction.record(tmp_path).unlink()
    assert not is_finished(extraction, tmp_path)
    assert extract_once(extraction, tmp_path, RUN)[1].finished


def test_a_job_never_raises(world: World, tmp_path: Path) -> None:
    cell = toy_cells(world)[0]
    lost = replace(cell, arm=replace(cell.arm, ancestries=("nowhere",)))
    outcome = perform(lost.extraction, tmp_path, RUN)
    assert isinstance(outcome, Failure)
    assert "no file or folder nowhere" in outcome.error
    outcome = perform(lost, tmp_path, RUN)
    assert isinstance(outcome, Failure)
    assert "no file or folder nowhere" in outcome.error
    deep = perform(replace(cell, layers=60, task="folder:nowhere"), tmp_path, RUN)
    assert isinstance(deep, Failure)
    assert "nowhere" in deep.error


def test_results_of_another_ancestry_are_not_mixed(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    cells = toy_cells(world, arms=toy_arms(world[0])[-2:])
    run_grid(cells, tmp_path / "out", RUN)
    assemble(SPEC, {}, seed=1).save(tmp_path / "ancestry", force=True)
    with pytest.raises(Refused, match="come from another ancestry model"):
        run_grid(cells, tmp_path / "out", RUN)
    rows = run_grid(cells, tmp_path / "out", RUN, anew=True)
    assert len((tmp_path / "out" / "results.jsonl").read_text().splitlines()) == len(rows) == 2


@pytest.mark.slow
def test_results_of_another_precision_are_not_mixed(tmp_path: Path) -> None:
    """The keys of cells do not name it, so they would count as finished."""
    world, out = make_world(tmp_path), tmp_path / "out"
    cells = toy_cells(world, arms=toy_arms(world[0])[-2:])
    run_grid(cells, out, RUN)
    other = replace(RUN, precision="bf16")
    for folder in ("with a record", "of an earlier version"):
        with pytest.raises(Refused, match="--precision fp32, not bf16; choose another") as info:
            run_grid(cells, out, other)
        assert "\n" not in str(info.value), folder
        (out / COMPUTATION).unlink(missing_ok=True)
    assert len(run_grid(cells, out, other, anew=True)) == 2
    with pytest.raises(Refused, match="--precision bf16, not fp32"):
        run_grid(cells, out, RUN)


def test_a_bench_continued_with_another_version_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, out = make_world(tmp_path), tmp_path / "out"
    cells = toy_cells(world, arms=toy_arms(world[0])[-2:])
    lines: list[str] = []
    run_grid(cells, out, RUN, say=lines.append)
    assert not any("come from learngene_zoo" in line for line in lines)
    monkeypatch.setattr(computation, "__version__", "99.1")
    run_grid(cells, out, RUN, say=lines.append)
    run_grid(cells, out, RUN, say=lines.append)
    (note,) = [line for line in lines if "come from learngene_zoo" in line]
    assert f"learngene_zoo {__version__}, this is 99.1" in note


def test_lines_of_progress_name_the_running_cell(world: World, tmp_path: Path) -> None:
    lines: list[str] = []

    class Watching(InProcess):
        def wait(self) -> tuple[Cell | Extraction, Outcome]:
            lines.extend(activity.describe() for activity in progress._printer.activities)
            return super().wait()

    cells = toy_cells(world)[:1]
    run_grid(cells, tmp_path, Run(device="cpu", threads=1), Watching())
    assert lines[0] == "cells 0/1, extracting lsamd, seed 0"
    assert lines[1].startswith("cells 0/1, lsamd on folder:")
    assert len(lines) == 2


def test_one_grid_at_a_time_writes(world: World, tmp_path: Path) -> None:
    with Results(tmp_path / "results.jsonl"), pytest.raises(Refused, match="another process"):
        run_grid(toy_cells(world), tmp_path, RUN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORLD_SIZE", "2")
        with pytest.raises(WrongCall, match="torchrun"):
            run_grid(toy_cells(world), tmp_path, RUN)


def test_the_probe_is_the_ridge_regression_of_the_features(world: World) -> None:
    task = open_task(world[1])
    start = assemble(SPEC.with_(classes=3), {}, seed=0, scheme="fan_in")
    seen, held_out = (
        compute_features(start.model(), task, split, start.input_format, RUN, images=images)
        for split, images in (("train", 24), ("test", None))
    )
    predicted_N = fit_ridge(seen, 3).predict(held_out.values).argmax(axis=1)
    measured = trial.probe_start(start, task, "test", 24, RUN)
    assert measured.probe == (predicted_N == held_out.labels).mean()
    assert measured.value == evaluate(start.model(), task, "test", start.input_format, RUN).value


def test_values_before_training_are_of_the_metric_of_the_task(world: World) -> None:
    task = replace(open_task(world[1]), metric="matthews")
    start = assemble(SPEC.with_(classes=3), {}, seed=0, scheme="fan_in")
    measured = trial.probe_start(start, task, "test", 24, RUN)
    expected = evaluate(start.model(), task, "test", start.input_format, RUN)
    assert (measured.metric, measured.value) == ("matthews", expected.value)
    accurate = trial.probe_start(start, replace(task, metric="accuracy"), "test", 24, RUN)
    assert accurate.probe is not None
    assert measured.probe == pytest.approx((3 * accurate.probe - 1) / 2, abs=0.2), (
        "equal classes: a correlation is about the accuracy above chance"
    )


@pytest.mark.parametrize(
    "flags", [(True,), (False, False, True, False, True), (True,) * 9, (False,) * 8]
)
def test_flags_survive_being_packed(flags: tuple[bool, ...]) -> None:
    assert unpack_flags(pack_flags(flags), len(flags)) == flags
    assert len(pack_flags(flags)) == -(-len(flags) // 4)


def test_packed_flags_are_read_from_the_left() -> None:
    assert pack_flags((True, False, False, False, True)) == "88"


def list_jobs(schedule: Schedule, finished: Callable[[Extraction], None]) -> Iterator[str]:
    """Yield the kinds of the jobs of one slot after the other; every extraction ends at once."""
    while job := schedule.next():
        yield job.arm.method if isinstance(job, Cell) else f"extract {job.arm.method}"
        if isinstance(job, Extraction):
            finished(job)


def test_cells_of_a_finished_extraction_come_before_the_next(world: World) -> None:
    cells = toy_cells(world, seeds=[0, 1])
    needed = {cell.extraction.key: cell.extraction for cell in cells}
    schedule = Schedule(cells, lambda extraction: False, slots=1)
    jobs = list(list_jobs(schedule, lambda job: schedule.finish_extraction(job, None)))
    begins = [index for index, job in enumerate(jobs) if job.startswith("extract")]
    assert len(begins) == len(needed)
    assert [jobs[index + 1] for index in begins] == [
        jobs[index].removeprefix("extract ") for index in begins
    ]
    assert len(jobs) == len(cells) + len(needed)


def test_the_last_extractions_leave_no_slot_idle(world: World) -> None:
    cells = toy_cells(world, seeds=[0, 1])
    schedule = Schedule(cells, lambda extraction: extraction.arm.method == "scratch", slots=2)
    scratch = [cell for cell in cells if cell.arm.method == "scratch"]
    assert [schedule.next() for _ in scratch] == scratch, "they need not wait for lsamd"
    first, second = schedule.next(), schedule.next()
    assert isinstance(first, Extraction)
    assert isinstance(second, Extraction)
    assert schedule.next() is None
    lost = [cell for cell in cells if cell.extraction == first]
    assert schedule.finish_extraction(first, Failure("it failed")) == lost
    assert schedule.unstarted_extractions == []
    one_left = Schedule(cells, lambda extraction: extraction != first, slots=2)
    assert one_left.next() == first, "it is the longest job"


def test_the_time_left_follows_layers_and_epochs() -> None:
    arm = Arm(name="lsamd", method="lsamd")
    results = [
        Cell(arm=arm, task="digits", layers=n, seed=0, recipe=replace(RECIPE, epochs=3))
        for n in (1, 2, 3)
    ]
    estimate = TimeLeft(results, extractions=2, slots=2)
    estimate.record_cell(replace(results[0], layers=0), 0.0)
    assert estimate.seconds is None, "no extraction has ended"
    estimate = TimeLeft(results, extractions=2, slots=2)
    estimate.extractions.record(1, 10.0)
    assert estimate.seconds is None
    estimate.record_cell(results[0], 2.0)
    assert estimate.seconds == pytest.approx((10.0 + 2.0 * (2 + 3)) / 2)
    estimate.record_cell(results[1], None)
    assert estimate.seconds == pytest.approx((10.0 + 2.0 * 3) / 2)
    row = run_row(results[0])
    assert (
        format_progress(row, estimate)
        == "[2/3] digits, 1 layers of width 32, 3 epochs, seed 0, lsamd: accuracy 50.0 %  (about"
        " 8.0s left)"
    )
    recipe = replace(RECIPE, lr=5e-4, augment="light")
    assert "seed 0, lsamd, lr 0.0005, augmentation light: accuracy" in (
        format_progress(row, estimate, recipe)
    )


def run_row(cell: Cell) -> Row:
    return replace(trial.make_failed_row(cell, "", RUN), error=None, value=0.5, width=32)


@pytest.mark.slow
def test_segmentation_is_judged_by_its_own_metric(world: World, tmp_path: Path) -> None:
    arms = toy_arms(world[0])[:1]
    (cell,) = list_cells(
        ["scenes"], arms, layers=[2], epochs=[1], seeds=[0], recipe=replace(RECIPE, images=8)
    )
    row = run_cell(cell, tmp_path, RUN)
    assert row.error is None
    assert (row.metric, row.correct, row.probe) == ("mIoU", None, None)
    assert json.loads(json.dumps(row.value)) is not None


def test_rows_of_other_data_or_heads_are_not_taken(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    cell, task = toy_cells(world)[0], open_task(world[1])
    start = assemble(SPEC.with_(classes=3), {}, seed=0).for_task(
        task.name, task.class_names, seed=0
    )
    for folder in ("trained", "untrained"):
        (tmp_path / folder).mkdir()
    for stamp in ("a", "b", "a"):
        changed = replace(cell, data={cell.task: stamp})
        train_cell(changed, start, task, tmp_path / "trained", Run(threads=1))
    assert len(list((tmp_path / "trained").glob("*.json"))) == 2
    for augment in ("none", "light", "none"):
        changed = replace(cell, recipe=replace(cell.recipe, augment=augment))
        measure_untrained(changed, start, task, tmp_path / "untrained", Run(threads=1))
    assert len(list((tmp_path / "untrained").glob("*.json"))) == 2


def test_a_program_that_a_worker_imports_is_told_to_guard_its_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(WrongCall, match=r'put the call under if __name__ == "__main__":'):
        run_grid([], tmp_path / "out", Run())
    assert not list(tmp_path.iterdir())
