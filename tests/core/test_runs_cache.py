"""Parts shared by several runs: computed once, keyed by everything they depend on, and charged to
every user.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.learngene import Learngene
from learngene_zoo.artifacts.records import LearngeneConfig
from learngene_zoo.bench.grid.cell import Arm, Extraction
from learngene_zoo.bench.running import extraction
from learngene_zoo.bench.running.extraction import extract_once
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.runs import cache
from learngene_zoo.runs.cache import compute_once, measure_cost_alone
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Json
from learngene_zoo.storage import StateDict

IMAGES = 8
SPEC = ViTSpec(layers=1, width=32, heads=1, image_size=16, patch_size=8)


class Clock:
    """Simulated time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        for module in (cache, extraction):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


class Computation:
    """A computation that counts its calls, writes a metric of eight images, and may be interrupted
    afterwards.
    """

    def __init__(self, clock: Clock | None = None, seconds: float = 0.0) -> None:
        self.calls: list[Run] = []
        self.clock, self.seconds = clock, seconds
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.may_end.set()
        self.interrupted = False

    def __call__(self, run: Run) -> tuple[StateDict, Json]:
        self.calls.append(run)
        if run.folder is not None:
            (run.folder / "checkpoint-1").mkdir(parents=True)
            with (run.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps({"images": IMAGES}) + "\n")
        self.begun.set()
        assert self.may_end.wait(10)
        if self.clock is not None:
            self.clock.now += self.seconds
        if self.interrupted:
            raise KeyboardInterrupt
        return {"x": torch.full((2,), float(len(self.calls)))}, {"seed": run.seed}


@dataclass(frozen=True)
class Settings:
    lr: float = 1.0


# What `teacher` does, in this test.
COMPUTATIONS: list[Computation] = []


def teacher(settings: Settings, run: Run) -> tuple[StateDict, Json]:
    return COMPUTATIONS[-1](run)


def student(settings: Settings, run: Run) -> tuple[StateDict, Json]:
    return COMPUTATIONS[-1](run)


def outer(settings: Settings, run: Run) -> tuple[StateDict, Json]:
    compute_once(run.part("inner"), "toy.student", student, Settings())
    return COMPUTATIONS[0](run)


def set_computation(computation: Computation) -> Computation:
    """Set the computation of `teacher`."""
    COMPUTATIONS[:] = [computation]
    return computation


def run_in(folder: Path, name: str, seed: int = 0) -> Run:
    """Return the part of a run that shares its parts in `folder`."""
    return Run(folder=folder / name, seed=seed, shared=folder / "parts").part("teacher")


def test_what_two_runs_need_is_computed_once(tmp_path: Path) -> None:
    computation = set_computation(Computation())
    first, again = (
        compute_once(run_in(tmp_path, name), "toy.teacher", teacher, Settings()) for name in "ab"
    )
    assert len(computation.calls) == 1
    assert torch.equal(first.state["x"], again.state["x"])
    assert first.record == again.record == {"seed": Run().part("teacher").seed}
    assert not list((tmp_path / "parts").rglob("checkpoint*"))


@pytest.mark.parametrize(
    "other",
    [
        lambda folder: compute_once(run_in(folder, "b"), "toy.teacher", teacher, Settings(lr=2.0)),
        lambda folder: compute_once(run_in(folder, "b"), "toy.student", student, Settings()),
        lambda folder: compute_once(
            run_in(folder, "b", seed=1), "toy.teacher", teacher, Settings()
        ),
        lambda folder: compute_once(
            replace(run_in(folder, "b"), precision="bf16"), "toy.teacher", teacher, Settings()
        ),
        lambda folder: compute_once(
            run_in(folder, "b").part("another"), "toy.teacher", teacher, Settings()
        ),
        lambda folder: compute_once(
            replace(run_in(folder, "b"), shared=None), "toy.teacher", teacher, Settings()
        ),
    ],
    ids=["settings", "function", "seed", "precision", "name", "not shared"],
)
def test_nothing_else_is_shared(tmp_path: Path, other: Callable[[Path], object]) -> None:
    computation = set_computation(Computation())
    compute_once(run_in(tmp_path, "a"), "toy.teacher", teacher, Settings())
    other(tmp_path)
    assert len(computation.calls) == 2


def test_without_a_place_of_its_own_a_run_still_shares(tmp_path: Path) -> None:
    computation = set_computation(Computation())
    for _ in range(2):
        compute_once(Run(shared=tmp_path).part("teacher"), "toy.teacher", teacher, Settings())
    assert len(computation.calls) == 1


def test_two_at_once_wait_for_each_other(tmp_path: Path) -> None:
    part = set_computation(Computation())
    part.may_end.clear()
    results: list[Json] = []

    def use(name: str) -> None:
        results.append(
            compute_once(run_in(tmp_path, name), "toy.teacher", teacher, Settings()).record
        )

    users = [threading.Thread(target=use, args=(name,)) for name in "ab"]
    users[0].start()
    assert part.begun.wait(10)
    users[1].start()
    users[1].join(0.1)
    assert users[1].is_alive()
    part.may_end.set()
    for user in users:
        user.join()
    assert len(part.calls) == 1
    assert results[0] == results[1]


def test_everyone_is_charged_as_if_alone(tmp_path: Path, clock: Clock) -> None:
    set_computation(Computation(clock, seconds=20))
    for name in "ab":
        compute_once(run_in(tmp_path, name), "toy.teacher", teacher, Settings())
    maker, taker = (measure_cost_alone(tmp_path / name, tmp_path / "parts") for name in "ab")
    assert maker.images == taker.images == IMAGES
    assert maker.seconds == 0  # it was seen to spend what the part took
    assert taker.seconds == 20  # it took no time here, and would have


def test_a_shared_part_may_use_another(tmp_path: Path, clock: Clock) -> None:
    first, inner = Computation(clock, seconds=5), Computation(clock, seconds=10)
    COMPUTATIONS[:] = [first, inner]
    for name, lr, seen in (("a", 1, 15), ("b", 2, 5), ("c", 2, 0)):
        began = clock.now
        compute_once(run_in(tmp_path, name), "toy.outer", outer, Settings(lr=lr))
        assert clock.now - began == seen
        charged = measure_cost_alone(tmp_path / name, tmp_path / "parts")
        # A part within a part has the outer part's name, hence seed; equal ones of two runs are
        # one.
        assert (seen + charged.seconds, charged.images) == (15, 2 * IMAGES)
    assert (len(inner.calls), len(first.calls)) == (1, 2)


def test_whoever_comes_next_goes_on_after_an_interruption(tmp_path: Path, clock: Clock) -> None:
    part = set_computation(Computation(clock, seconds=10))
    part.interrupted = True
    with pytest.raises(KeyboardInterrupt):
        compute_once(run_in(tmp_path, "a"), "toy.teacher", teacher, Settings())
    (checkpoint,) = (tmp_path / "parts").rglob("checkpoint-1")
    checkpoint.rmdir()
    part.interrupted = False
    compute_once(run_in(tmp_path, "b"), "toy.teacher", teacher, Settings())
    assert part.calls[0].folder == part.calls[1].folder
    assert part.calls[1].resume
    for name in "ab":  # each spent 10 seconds here, and would have spent 20
        assert measure_cost_alone(tmp_path / name, tmp_path / "parts").images == 2 * IMAGES
        assert measure_cost_alone(tmp_path / name, tmp_path / "parts").seconds == 10


def test_a_part_that_is_done_has_its_cost_and_no_checkpoint_wherever_a_kill_came(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_computation(Computation(clock, seconds=10))
    with (
        monkeypatch.context() as killed
    ):  # between its computation and its result, and right after its result
        killed.setattr(cache, "save_result", interrupt)
        with pytest.raises(KeyboardInterrupt):
            compute_once(run_in(tmp_path, "a"), "toy.teacher", teacher, Settings())
    (folder,) = tmp_path.rglob("cost.json")
    assert json.loads(folder.read_text()) == {"seconds": 10}
    shutil.rmtree(folder.parent / "checkpoint-1")
    compute_once(run_in(tmp_path, "a"), "toy.teacher", teacher, Settings())
    (folder.parent / "checkpoint-1").mkdir()
    compute_once(run_in(tmp_path, "b"), "toy.teacher", teacher, Settings())
    assert {path.name for path in folder.parent.iterdir()} == {"done", "cost.json", "metrics.jsonl"}
    assert json.loads(folder.read_text()) == {"seconds": 20}


def interrupt(*arguments: object) -> None:
    raise KeyboardInterrupt


def test_the_seconds_of_a_run_that_was_interrupted_add_up(tmp_path: Path, clock: Clock) -> None:
    part = set_computation(Computation(clock, seconds=10))
    part.interrupted = True
    with pytest.raises(KeyboardInterrupt):
        compute_once(run_in(tmp_path, "a"), "toy.teacher", teacher, Settings())
    part.interrupted = False
    for checkpoint in (tmp_path / "parts").rglob("checkpoint-1"):
        checkpoint.rmdir()
    compute_once(replace(run_in(tmp_path, "a"), resume=True), "toy.teacher", teacher, Settings())
    assert (
        measure_cost_alone(tmp_path / "a", tmp_path / "parts").seconds == 0
    )  # 20 seconds were seen, and 20 the part took


def test_in_a_bench_a_learngene_says_what_it_would_have_taken_alone(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = set_computation(Computation(clock, seconds=20))

    def extract(name: str, *, out: Path, run: Run, **settings: object) -> Learngene:
        own = Run(folder=out.with_name(f"{out.name}.run"), seed=run.seed, shared=run.shared)
        state = compute_once(own.part("teacher"), "toy.teacher", teacher, Settings()).state
        clock.now += 3
        learngene = Learngene(config=LearngeneConfig(method=name, spec=SPEC), state=state)
        learngene.save(out)
        return learngene

    monkeypatch.setattr(lifecycle, "extract", extract)
    arms = [Arm(name="a", method="lsamd", settings={"keep": (block,)}) for block in (1, 2)]
    spent = [extract_once(Extraction(arm=arm, seed=0), tmp_path, Run())[1] for arm in arms]
    assert len(part.calls) == 1
    assert [(item.images, item.seconds, item.busy) for item in spent] == [
        (IMAGES, 23, 23),
        (IMAGES, 23, 3),
    ]
