"""A training that is killed at any moment and resumed ends bitwise the same."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from learngene_zoo.storage import Tensors

TOY = Path(__file__).with_name("training_toy.py")
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join([str(TOY.parents[2]), os.environ.get("PYTHONPATH", "")]),
}
EPOCHS = ("--epochs", "3")  # of 5 steps


def start(folder: Path, *options: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        str(TOY),
        str(folder / "run"),
        str(folder / "result.safetensors"),
        *EPOCHS,
        *options,
    ]
    return subprocess.Popen(
        command,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=partial(
            signal.signal, signal.SIGINT, signal.SIG_DFL
        ),  # ignored by what a shell starts behind its back
    )


def wait_until_training(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline().startswith("step")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The result and the metrics of an uninterrupted training."""
    folder = tmp_path_factory.mktemp("whole")
    assert start(folder).wait(timeout=120) == 0
    return (
        dict(Tensors(folder / "result.safetensors")),
        (folder / "run" / "metrics.jsonl").read_text(),
    )


def assert_same(folder: Path, whole: tuple[dict[str, torch.Tensor], str]) -> None:
    result = Tensors(folder / "result.safetensors")
    assert set(result) == set(whole[0])
    for name, tensor in whole[0].items():
        assert torch.equal(result[name], tensor), name
    assert (folder / "run" / "metrics.jsonl").read_text() == whole[1]
    assert [path.name for path in (folder / "run").glob("*checkpoint*")] == ["checkpoint-15"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "times"),
    [
        (signal.SIGKILL, 1),
        pytest.param(signal.SIGKILL, 2, marks=pytest.mark.exhaustive),
        pytest.param(signal.SIGINT, 2, marks=pytest.mark.exhaustive),
    ],
)
def test_killed_at_random_moments(tmp_path, whole, kind, times):
    # A checkpoint after every step, and a pause, so that even on a busy machine the training is not
    # over before its signal.
    draw = random.Random(f"kill {kind}")
    kills = 0
    for _ in range(times):
        process = start(tmp_path, "--resume", "--delay", "0.15")
        wait_until_training(process)
        time.sleep(draw.uniform(0.0, 0.12))
        process.send_signal(kind)
        process.communicate(timeout=120)
        kills += process.returncode != 0
    assert kills
    process = start(tmp_path, "--resume")
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert_same(tmp_path, whole)
    steps = [json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").open()]
    assert steps == list(range(1, 16))


DIE_AT = """
import os, runpy, signal, sys
expected, call = int(sys.argv.pop(1)), 0
def watch(event, arguments):
    # Every file that is opened, renamed or removed inside the run's folder is one moment to die at.
    global call
    if event in ("open", "os.rename", "os.rmdir", "os.remove", "os.mkdir") and "checkpoint-" in str(arguments[0]):
        call += 1
        if call == expected:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(watch)
sys.path.insert(0, os.path.dirname(sys.argv[1]))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "moments",
    [
        (13, 31),
        pytest.param((7, 13, 20, 31), marks=pytest.mark.exhaustive),
    ],  # 14 operations write one checkpoint
    ids=str,
)
def test_killed_between_any_two_operations_of_writing_a_checkpoint(tmp_path, whole, moments):
    """Each process is killed at a later file operation of its checkpoints, and the next one
    resumes.
    """
    before = -1
    for moment in moments:
        command = [sys.executable, "-c", DIE_AT, str(moment), str(TOY), str(tmp_path / "run")]
        command += [str(tmp_path / "result.safetensors"), *EPOCHS, "--resume"]
        done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        places = [int(p.name.partition("-")[2]) for p in (tmp_path / "run").glob("checkpoint-*")]
        assert max(places, default=0) >= before, "a checkpoint was lost"
        before = max(places, default=0)
    assert before > 0
    process = start(tmp_path, "--resume")
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert_same(tmp_path, whole)
