"""A command that is killed before any of its file operations goes on with the next call (see
harness.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from stories import STORIES

from learngene_zoo.cli.main import TABLE, main

HARNESS = Path(__file__).with_name("harness.py")
ROOT = HARNESS.parents[2]


def trials(*arguments: str, seconds: int) -> int:
    """How many kills the harness made; it must have found nothing wrong."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "plugins"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(HARNESS), *arguments]
    process = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=seconds
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert "unexpected" not in process.stdout + process.stderr
    return int(process.stdout.splitlines()[-1].split()[0])


def test_every_command_that_writes_is_killed() -> None:
    words = {name: [name, "lsamd"] if name == "extract" else [name] for name in TABLE}
    pages = {
        name: CliRunner().invoke(main, [*line, "--help"]).stdout for name, line in words.items()
    }
    writing = {name for name, page in pages.items() if "\n  -o, " in page}
    assert len(writing) >= 8
    assert {story.line.split()[0] for story in STORIES} == writing


@pytest.mark.slow
def test_a_sample_of_kills() -> None:
    assert trials("--total", "4", seconds=900) == 4


@pytest.mark.exhaustive
def test_every_kill_of_two_verbs_and_a_sample_of_the_others() -> None:
    assert trials(seconds=3600) >= 300
