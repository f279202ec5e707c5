"""Every executor gives the same table; a process that dies fails only one cell; a missing cluster
gives one line.
"""

from __future__ import annotations

import importlib.util
import os
import re
import socket
import sys
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from bench_toy import make_world, numbers, toy_cells

from learngene_zoo.bench.grid.cell import Arm, Cell, Extraction
from learngene_zoo.bench.results.rows import Row
from learngene_zoo.bench.running import on_ray as ray_executor
from learngene_zoo.bench.running.executors import Executor, Failure, InProcess, Worker, Workers
from learngene_zoo.bench.running.extraction import (
    ExtractionCost,
    extract_once,
    is_finished,
    read_cost,
)
from learngene_zoo.bench.running.on_ray import Ray, pack, read_token, run_remotely, unpack
from learngene_zoo.bench.running.runner import run_grid
from learngene_zoo.errors import Unavailable, WrongCall
from learngene_zoo.runs.run import Run

RUN = Run(threads=1)
HAS_RAY = importlib.util.find_spec("ray") is not None
needs_ray = pytest.mark.skipif(not HAS_RAY, reason="the extra `ray` is not installed")
World = tuple[str, str]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


def as_if_alone(cells: list[Cell], out: Path) -> list[Row]:
    return numbers(run_grid(cells, out, RUN, InProcess()))


@pytest.mark.slow
@pytest.mark.parametrize(
    "epochs", [[1], pytest.param([1, 2], marks=pytest.mark.exhaustive)], ids=str
)
def test_worker_processes_give_the_same_table(
    epochs: list[int], world: World, tmp_path: Path
) -> None:
    cells = toy_cells(world, seeds=[1], epochs=epochs)
    broken = toy_cells((world[0], "folder:nowhere"), seeds=[1])[:1]
    rows = run_grid([*cells, *broken], tmp_path / "workers", Run(), Workers(2))
    assert numbers(rows) == as_if_alone([*cells, *broken], tmp_path / "alone")
    assert [row.error is None for row in rows] == [True] * 6 * len(epochs) + [False]
    assert len(list((tmp_path / "workers" / "learngenes").glob("*.cost.json"))) == 2


@pytest.mark.exhaustive
@pytest.mark.slow
def test_two_grids_with_workers_can_follow_each_other(world: World, tmp_path: Path) -> None:
    executor = Workers(2)
    for epochs in ([0], [1]):
        rows = run_grid(toy_cells(world, epochs=epochs), tmp_path, RUN, executor)
        assert [row.error for row in rows] == [None] * 6


@pytest.mark.slow
def test_a_worker_that_dies_costs_its_cell_alone(world: World, tmp_path: Path) -> None:
    cells = toy_cells(world)
    with closing(Workers(1)) as executor:
        executor.open(tmp_path, RUN)
        executor.start(cells[0].extraction)
        assert isinstance(executor.wait()[1], ExtractionCost)
        executor.start(cells[0])
        (worker,) = executor._busy
        worker.process.kill()
        job, outcome = executor.wait()
        assert job == cells[0]
        assert isinstance(outcome, Failure)
        assert (
            outcome.error
            == "the worker process was killed by signal 9; if memory ran out, use fewer --workers"
        )
        executor.start(cells[3].extraction)
        (worker,) = executor._busy
        worker.process.kill()
        assert isinstance(executor.wait()[1], Failure)
        executor.start(cells[1])
        assert isinstance(executor.wait()[1], Row), "another process took its place"


@pytest.mark.slow
def test_what_an_extraction_took_until_it_was_stopped_is_written_down(
    world: World, tmp_path: Path
) -> None:
    arm = Arm(
        name="",
        method="pretrain_finetune",
        preset="smoke",
        settings={"epochs": 100_000, "depths": [1]},
        ancestries=(world[0],),
        tasks=(world[1],),
    )
    extraction = Extraction(arm=arm, seed=0)
    with closing(Workers(1)) as executor:
        executor.open(tmp_path, RUN)
        executor.start(extraction)
        began = time.monotonic()
        while not any(
            metrics.stat().st_size > 1000
            for metrics in (tmp_path / "parts").glob("*/metrics.jsonl")
        ):
            assert time.monotonic() - began < 200
            time.sleep(0.1)
    cost = read_cost(extraction, tmp_path)
    assert not cost.finished
    assert cost.seconds > 0
    assert cost.images > 0


def test_no_workers_are_a_wrong_call() -> None:
    with pytest.raises(WrongCall, match="at least 1 worker, got 0"):
        Workers(0)


def test_a_learngene_travels_to_a_machine_that_does_not_share_the_disk(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_executor.tempfile, "gettempdir", lambda: str(tmp_path / "far"))
    cells, here = toy_cells(world), tmp_path / "here"
    outcome, packed = run_remotely(cells[0].extraction, str(here), RUN, None, "a")
    assert isinstance(outcome, ExtractionCost)
    assert packed is not None
    assert not here.exists()
    unpack(packed, cells[0].extraction, here)
    assert is_finished(cells[0].extraction, here)
    assert pack(cells[0].extraction, here)
    row, _ = run_remotely(cells[0], str(tmp_path / "elsewhere"), RUN, packed, "a")
    assert isinstance(row, Row)
    alone = as_if_alone(cells[:1], tmp_path / "alone")
    assert numbers([row]) == alone
    assert extract_once(cells[0].extraction, here, RUN)[1].finished
    before = len([*(tmp_path / "far").glob("lgzoo-bench-*")])
    run_remotely(cells[0].extraction, str(tmp_path / "elsewhere"), RUN, None, "b")
    after = len([*(tmp_path / "far").glob("lgzoo-bench-*")])
    assert after == before + 1, "a bench that starts over has a folder of its own there"


def test_a_bench_that_starts_over_has_another_token(world: World, tmp_path: Path) -> None:
    run_grid(toy_cells(world)[-1:], tmp_path, RUN)
    token = read_token(tmp_path)
    assert read_token(tmp_path) == token
    run_grid(toy_cells(world)[-1:], tmp_path, RUN)
    assert read_token(tmp_path) == token
    run_grid(toy_cells(world)[-1:], tmp_path, RUN, anew=True)
    assert read_token(tmp_path) != token


@pytest.mark.skipif(HAS_RAY, reason="the extra `ray` is installed")
def test_without_ray_its_absence_is_said() -> None:
    with pytest.raises(Unavailable, match=r"learngene-zoo\[ray\]"):
        Ray()


@pytest.mark.parametrize("address", ["nowhere", "host:", "host:port", ":6379", "ray://host"])
def test_an_address_that_cannot_be_one_is_a_wrong_call(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setattr(ray_executor, "_import_ray", lambda: None)
    with pytest.raises(WrongCall, match="HOST:PORT"):
        Ray(address)


def test_an_address_where_nothing_listens_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_executor, "_import_ray", lambda: None)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(Unavailable, match=f"no Ray cluster answers at 127.0.0.1:{port}"):
        Ray(f"127.0.0.1:{port}")


@pytest.mark.slow
@needs_ray
def test_an_address_where_something_else_listens_is_said_within_twenty_seconds() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        began = time.monotonic()
        with pytest.raises(Unavailable, match="no Ray cluster answers"):
            Ray(f"127.0.0.1:{server.getsockname()[1]}")
    assert time.monotonic() - began < 25


@pytest.mark.slow
@needs_ray
def test_ray_gives_the_same_table(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    cells = toy_cells(world)
    broken = toy_cells((world[0], "folder:nowhere"))[:1]
    executor: Executor = Ray()
    rows = run_grid([*cells, *broken], tmp_path / "ray", RUN, executor)
    assert numbers(rows) == as_if_alone([*cells, *broken], tmp_path / "alone")
    again = run_grid(toy_cells(world, layers=[2])[:2], tmp_path / "ray", RUN, executor)
    assert [row.error for row in again] == [None, None]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (-9, "signal 9; if memory ran out"),
        (1, r"\(code 1\); give the same"),
        (None, "not answer any more"),
    ],
)
def test_why_a_process_is_gone(code: int | None, said: str) -> None:
    worker = object.__new__(Worker)
    worker.process = SimpleNamespace(join=lambda seconds: None, exitcode=code)  # type: ignore[assignment]
    assert re.search(said, worker.explain_death().error)
