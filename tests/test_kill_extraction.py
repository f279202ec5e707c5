"""An extraction that is killed again and again, also between its parts, ends with the learngene of one that was not."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from learngene_zoo.descendant import assemble
from learngene_zoo.testing import tiny_ancestry

pytestmark = pytest.mark.slow

TASKS = ["--task", "digits", "--task", "objects"]
BRIEF = ["--epochs", "2", "--images", "96", "--batch-size", "8", "--threads", "1", "--quiet"]


@pytest.fixture(scope="module")
def ancestry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tiny = tiny_ancestry(image_size=32)
    return assemble(tiny.spec, tiny.state, seed=0).save(tmp_path_factory.mktemp("ancestry") / "tiny")


def command(ancestry: Path, out: Path, *more: str) -> list[str]:
    words = ["extract", "lsamd", "--ancestry", str(ancestry), *TASKS, *BRIEF, "-o", str(out), *more]
    return [sys.executable, "-m", "learngene_zoo", *words]


def environment(checkout: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(checkout), str(checkout / "plugins")])}


def test_killed_anywhere_and_resumed_it_is_equal_to_the_last_bit(
    ancestry: Path, tmp_path: Path, checkout: Path
) -> None:
    env = environment(checkout)
    started = time.monotonic()
    subprocess.run(command(ancestry, tmp_path / "whole"), env=env, check=True, timeout=240)
    whole = time.monotonic() - started
    out, kills, moment = tmp_path / "killed", 0, random.Random(0)
    while not out.exists():
        resume = ["--resume"] if (tmp_path / "killed.run").exists() else []
        process = subprocess.Popen(command(ancestry, out, *resume), env=env, stderr=subprocess.PIPE, text=True)
        try:
            # Towards the end of the time that a whole run takes, where the training is; longer from try to try.
            said = process.communicate(timeout=whole * moment.uniform(0.6, 0.95) + kills * 0.5)[1]
            assert process.returncode == 0, said
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            kills += 1
            assert kills < 25, "the extraction never ends"
    assert kills, "the extraction ended before it could be killed"
    for name in ("model.safetensors", "config.json"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
