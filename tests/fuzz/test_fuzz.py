"""Files changed by chance: every case ends in success or in a `ZooError`, within seconds, and
touches nothing but its folder.

`pytest tests/fuzz --fuzz-cases 20000` runs more than CI does. A case is a function of its target
    and number alone, so that what a
failure prints repeats it: `pytest tests/fuzz -k "bench" --fuzz-only 1234`.
"""

from __future__ import annotations

import gc
import os
import resource
import shutil
import signal
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from targets import Target, lgzoo, targets
from watching import watched
from whole_files import templates

from learngene_zoo.errors import ZooError

pytestmark = pytest.mark.slow
TARGETS = targets()
MAX_SECONDS = 5.0  # of this process, so that it does not matter what else runs
MAX_PATIENCE = 120.0  # seconds by the clock
MAX_FAILURES = 5
MAX_MEMORY = 3 * 2**30
WHOLE = 6  # calls of each target with nothing changed


class TooLong(BaseException):
    """A case that does not end."""


@pytest.fixture(scope="module")
def wholes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folders that cases start from. Meanwhile this process has little memory: a case that asks
    for much is refused it.
    """
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("fuzz")
    templates(root)
    shutil.copytree(root / "bench", root / "first")
    lgzoo("bench", "--report", "-o", str(root / "first"))  # whatever draws is loaded now
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MAX_MEMORY, before[1]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("learngene_zoo.families.tensors.measure_memory", lambda: MAX_MEMORY // 4)
        yield root
    resource.setrlimit(resource.RLIMIT_AS, before)


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raises `TooLong` within, after so many seconds of this process, or `MAX_PATIENCE`."""

    def stop(*_: Any) -> None:
        raise TooLong

    clocks = {
        signal.ITIMER_PROF: (signal.SIGPROF, seconds),
        signal.ITIMER_REAL: (signal.SIGALRM, MAX_PATIENCE),
    }
    before = [signal.signal(number, stop) for number, _ in clocks.values()]
    for clock, (_, most) in clocks.items():
        signal.setitimer(clock, most)
    try:
        yield
    finally:
        for (clock, (number, _)), handler in zip(clocks.items(), before):
            signal.setitimer(clock, 0)
            signal.signal(number, handler)


def run(target: Target, number: int, wholes: Path, place: Path, usual: set[str]) -> str | None:
    """One case; what is wrong with how it ended. `usual` is what happens beside its folder where
    nothing is changed.
    """
    random = Random(f"{target.name} {number}")
    folder = place / "case"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(wholes / (target.template or target.name), folder)
    name = target.spoil(folder, random)
    about = (
        f'{target.name} {number} ({name}): pytest tests/fuzz -k "{target.name}" --fuzz-only'
        f" {number}\n"
    )
    try:
        with limited(MAX_SECONDS), watched() as activity, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            target.call(folder, random)
    except ZooError as error:
        if not str(error).strip():
            return f"{about}an error without a word"
    except TooLong:
        return (
            f"{about}it takes more than {MAX_SECONDS:g} seconds\n{traceback.format_exc()[-1500:]}"
        )
    except Exception:  # what is not one of our errors is the fault that is looked for
        return f"{about}{traceback.format_exc()[-2500:]}"
    faults = sorted(set(activity.faults(folder, Path(os.environ["LGZOO_CACHE"]))) - usual)
    return f"{about}it {'; '.join(faults)}" if faults else None


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_changed_by_chance(
    target: Target, wholes: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    only, asked = request.config.getoption("--fuzz-only"), request.config.getoption("--fuzz-cases")
    numbers = (
        [only]
        if only is not None
        else range(max(1, round(asked * target.share / sum(t.share for t in TARGETS))))
    )
    usual: set[str] = set()
    for number in range(WHOLE):
        shutil.rmtree(tmp_path / "case", ignore_errors=True)
        shutil.copytree(wholes / (target.template or target.name), tmp_path / "case")
        with watched() as activity:
            target.call(tmp_path / "case", Random(number))
        usual.update(activity.faults(tmp_path / "case", Path(os.environ["LGZOO_CACHE"])))
    assert all(fault.startswith(("imported", "read")) for fault in usual), usual
    failures: list[str] = []
    for number in numbers:
        failure = run(target, number, wholes, tmp_path, usual)
        if failure:
            failures.append(failure)
        if len(failures) >= MAX_FAILURES:
            break
        gc.collect(0)
    assert not failures, "\n\n".join(failures)
