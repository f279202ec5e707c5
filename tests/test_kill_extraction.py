"""An extraction that is killed again and again, also between its parts, ends with the learngene of
one that was not.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from learngene_zoo.artifacts.descendant import assemble
from learngene_zoo.testing import make_tiny_ancestry

pytestmark = pytest.mark.slow

TASKS = ["--task", "digits", "--task", "objects"]
BRIEF = ["--epochs", "2", "--images", "96", "--batch-size", "8", "--threads", "1", "--quiet"]


@pytest.fixture(scope="module")
def ancestry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tiny = make_tiny_ancestry(image_size=32)
    return assemble(tiny.spec, tiny.state, seed=0).save(
        tmp_path_factory.mktemp("ancestry") / "tiny"
    )


def command(ancestry: Path, out: Path, *more: str) -> list[str]:
    words = ["extract", "lsamd", "--ancestry", str(ancestry), *TASKS, *BRIEF, "-o", str(out), *more]
    return [sys.executable, "-m", "learngene_zoo", *words]


def environment(checkout: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(checkout), str(checkout / "plugins")])}


def steps_in(run: Path) -> int:
    """Steps of all parts that are written down."""
    result = 0
    for folder, _, _ in os.walk(run):
        with suppress(
            FileNotFoundError
        ):  # none there, or a draft that has taken its place meanwhile
            result += Path(folder, "metrics.jsonl").read_bytes().count(b"\n")
    return result


@pytest.mark.exhaustive
def test_killed_anywhere_and_resumed_it_is_equal_to_the_last_bit(
    ancestry: Path, tmp_path: Path, checkout: Path
) -> None:
    env, out, run = environment(checkout), tmp_path / "killed", tmp_path / "killed.run"
    subprocess.run(command(ancestry, tmp_path / "whole"), env=env, check=True, timeout=240)
    steps, kills, moment = steps_in(tmp_path / "whole.run"), 0, random.Random(0)
    for share in (0.1, 0.3, 0.5, 0.7):
        target = int(steps * (share + moment.uniform(0, 0.2)))
        resume = ["--resume"] if run.exists() else []
        process = subprocess.Popen(command(ancestry, out, *resume), env=env)
        while process.poll() is None and steps_in(run) < target:
            time.sleep(0.002)
        kills += process.poll() is None
        process.kill()
        process.wait()
    assert kills > 1, "the extraction ended before it could be killed"
    if not out.exists():
        subprocess.run(command(ancestry, out, "--resume"), env=env, check=True, timeout=240)
    for name in ("model.safetensors", "config.json"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
