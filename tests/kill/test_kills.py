"""A verb that is killed before any of its file operations goes on with the next call (see harness.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HARNESS = Path(__file__).with_name("harness.py")
ROOT = HARNESS.parents[2]


def trials(*arguments: str, seconds: int) -> str:
    """The last line that the harness prints; it must have found nothing wrong."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "plugins"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(HARNESS), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.slow
def test_a_sample_of_kills() -> None:
    last = trials("--kills", "5", seconds=900)
    assert int(last.split()[0]) >= 40, last


@pytest.mark.exhaustive
def test_every_kill_of_two_verbs_and_a_sample_of_the_others() -> None:
    last = trials(seconds=3600)
    assert int(last.split()[0]) >= 300, last
