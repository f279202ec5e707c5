"""Whatever ends a bench or torchrun, no process that it started goes on for long, and a bench goes
on where it was.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from learngene_zoo.bench.results.rows import RESULTS, Row, read_rows

CORE = Path(__file__).parent / "core"
sys.path.insert(0, str(CORE))
from bench_toy import make_world, numbers  # noqa: E402

ROOT = CORE.parents[1]
SECONDS = 60  # 10 as promised, and the pauses of a machine on which other tests run
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join(
        [str(ROOT), str(ROOT / "plugins"), str(CORE), os.environ.get("PYTHONPATH", "")]
    ),
}
# Two extractions that take for ever, each in a worker with a data loading process of its own.
BENCH = """
import sys
from contextlib import closing
from pathlib import Path
from bench_toy import make_world
from learngene_zoo.bench.grid.cell import Arm, Extraction
from learngene_zoo.bench.running.executors import Workers
from learngene_zoo.runs.run import Run
if __name__ == "__main__":
    place = Path(sys.argv[1])
    ancestry, task = make_world(place / "world")
    arm = Arm(name="", method="pretrain_finetune", preset="smoke", settings={"epochs": 100_000, "depths": [1]},
              ancestries=(ancestry,), tasks=(task,))
    with closing(Workers(2)) as executor:
        executor.open(place / "out", Run(threads=1, workers=1))
        for seed in (0, 1):
            executor.start(Extraction(arm=arm, seed=seed))
        executor.wait()
"""
GRID = """bench {task} --method lsamd --preset smoke --extract-task {task} --ancestry {ancestry} --layers 2,3 --epochs 2
--seeds 2 --images 16 --batch-size 8 --augment none --workers 2 --quiet -o"""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc"),
]


def list_running() -> dict[int, int]:
    """The parent of every process that runs; those that only wait to be noticed do not count."""
    results = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        if state not in "ZX":
            results[int(path.parent.name)] = int(parent)
    return results


def started_by(process: int) -> set[int]:
    """The processes that it started, and those that these started."""
    parents = list_running()
    results, new = set(), {process}
    while new:
        new = {number for number, parent in parents.items() if parent in new}
        results |= new
    return results


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            return False
        time.sleep(0.1)
    return True


@pytest.fixture
def start_program(tmp_path: Path) -> Iterator[Callable[[list[str]], subprocess.Popen[bytes]]]:
    """A function that starts a program, which is over when the test is."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(words: list[str]) -> subprocess.Popen[bytes]:
        with (tmp_path / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, *words], env=ENVIRONMENT, stdout=log, stderr=log
            )
        processes.append(process)
        return process

    yield start
    for process in processes:
        for number in started_by(process.pid) if process.poll() is None else ():
            os.kill(number, signal.SIGKILL)
        process.kill()
        process.wait()


def assert_ends(process: subprocess.Popen[bytes], kind: signal.Signals) -> None:
    children = started_by(process.pid)
    assert len(children) >= 2
    process.send_signal(kind)
    process.wait(SECONDS)
    assert wait_for(lambda: not children & list_running().keys(), SECONDS), "a child goes on"


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGTERM])
def test_the_workers_of_a_bench_end_with_it(
    tmp_path: Path, start_program, kind: signal.Signals
) -> None:
    program = tmp_path / "bench.py"
    program.write_text(BENCH)
    process = start_program([str(program), str(tmp_path)])
    training = lambda: len(list((tmp_path / "out").rglob("metrics.jsonl"))) == 2  # noqa: E731
    assert wait_for(training, 240), (tmp_path / "log").read_text()
    assert_ends(process, kind)


@pytest.mark.parametrize(
    "kind", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.exhaustive)]
)
def test_the_ranks_of_torchrun_end_with_it(
    tmp_path: Path, start_program, kind: signal.Signals
) -> None:
    toy = [
        str(CORE / "training_toy.py"),
        str(tmp_path / "run"),
        str(tmp_path / "result.safetensors"),
    ]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    process = start_program([*launcher, *toy, "--epochs", "2000", "--delay", "0.1"])
    log = tmp_path / "log"
    assert wait_for(lambda: log.read_text().count("step 3\n") == 2, 240), log.read_text()
    assert_ends(process, kind)


@pytest.mark.exhaustive
def test_a_bench_that_is_killed_three_times_ends_with_the_rows_of_one_that_is_not(
    tmp_path: Path, start_program
) -> None:
    ancestry, task = make_world(tmp_path / "world")
    line = ["-m", "learngene_zoo", *GRID.format(ancestry=ancestry, task=task).split()]
    assert start_program([*line, str(tmp_path / "whole")]).wait(240) == 0, (
        tmp_path / "log"
    ).read_text()
    out = tmp_path / "out"
    places: list[
        Callable[[], bool]
    ] = [  # in an extraction, and among the cells of the first and of the second one
        lambda: any(out.rglob("metrics.jsonl")),
        lambda: len(rows(out)) >= 3,
        lambda: len(rows(out)) >= 12,
    ]
    for reached in places:
        before, process = rows(out), start_program([*line, str(out)])
        working = lambda: reached() and len(started_by(process.pid)) >= 2  # noqa: B023, E731  # the rows may be an earlier call's
        assert wait_for(working, 240), (tmp_path / "log").read_text()
        assert_ends(process, signal.SIGKILL)
        assert before.items() <= rows(out).items(), "a finished cell was lost"
    assert len(rows(out)) < len(rows(tmp_path / "whole"))
    assert start_program([*line, str(out)]).wait(240) == 0, (tmp_path / "log").read_text()
    assert rows(out) == rows(tmp_path / "whole")
    assert "unexpected" not in (tmp_path / "log").read_text()


def rows(out: Path) -> dict[str, Row]:
    """The rows of a bench by their cells, without what the clock says."""
    return {row.key: row for row in numbers(read_rows(out / RESULTS))}
