"""Two processes train together as one: torchrun with gloo on the CPU."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import training_toy

from learngene_zoo.storage import Tensors
from learngene_zoo.training.objectives import Segmentation

TOY = Path(training_toy.__file__)


PROGRAM = """
import contextlib, json, os, sys
sys.path.insert(0, sys.argv[1])
import torch, training_toy
from learngene_zoo.runs.run import Run
from learngene_zoo.training.evaluate import evaluate
from learngene_zoo.training.objectives import Segmentation

def train(*words):
    sys.argv = ["", *words]
    training_toy.main()

def split():
    torch.set_num_threads(1)
    model = Segmentation(training_toy.Pixels())
    losses, gradients = training_toy.compute_gradients(model, training_toy.draw_masks(), 2)
    print(json.dumps([losses, gradients["model.weight"].flatten().tolist()]))

def judge(batch_size):
    from test_training_evaluate import TASK, Reader
    done = evaluate(Reader(), TASK, "test", TASK.input_format, Run(), batch_size=batch_size)
    print(json.dumps(done.correct))

for name, part, *values in json.loads(sys.argv[2]):
    with open(f"{name}-{os.environ['RANK']}.txt", "w") as file, contextlib.redirect_stdout(file):
        globals()[part](*values)
    print("done", name, flush=True)
"""
RESUMED = [("whole",), ("parts", "--stop-after", "7"), ("parts", "--resume")]
WHOLE_BATCH = ("--dropout", "0", "--epochs", "3", "--batch")


def list_words(folder: str, *options: str) -> list[str]:
    """Return the words of the toy that trains in a folder."""
    return [f"{folder}/run", f"{folder}/result.safetensors", *options]


# What two processes do: a function of the program, and its values. One start of torchrun does all
# of `PARTS`, and one each of `FURTHER_PARTS`.
PARTS: dict[str, list[Any]] = {
    "judge 6": ["judge", 6],
    "split": ["split"],
    "batch 7": ["train", *list_words("batch 7", *WHOLE_BATCH, "7")],
    "resumed": [
        "train",
        *" then ".join(
            " ".join(list_words(f"resumed/{folder}", "--epochs", "3", *options))
            for folder, *options in RESUMED
        ).split(),
    ],
}
FURTHER_PARTS: dict[str, list[Any]] = {
    "judge 10": ["judge", 10],
    "batch 8": ["train", *list_words("batch 8", *WHOLE_BATCH, "8")],
    **{
        f"apart {number}": ["train", *list_words(f"apart/{folder}", "--epochs", "3", *options)]
        for number, (folder, *options) in enumerate(RESUMED)
    },
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which two processes do all parts."""
    return tmp_path_factory.mktemp("together")


@pytest.fixture(scope="module")
def together(torchrun: Callable[..., str], place: Path) -> Callable[[str], list[str]]:
    """Return a function that does a part in two processes, once, and returns the output of each."""

    def run(name: str) -> list[str]:
        files = [place / f"{name}-{rank}.txt" for rank in (0, 1)]
        if not files[0].exists():
            parts = PARTS if name in PARTS else {name: FURTHER_PARTS[name]}
            program = place / "program.py"
            program.write_text(f"import os; os.chdir({str(place)!r}){PROGRAM}")
            values = json.dumps([[part, *values] for part, values in parts.items()])
            torchrun([str(program), str(TOY.parent), values], lambda output: "done" in output)
        return [file.read_text() for file in files]

    return run


@pytest.fixture
def alone(monkeypatch):
    """Train the toy in this process."""

    def run(folder: Path, options: tuple[str, ...]) -> None:
        words = [str(TOY), str(folder / "run"), str(folder / "result.safetensors"), *options]
        monkeypatch.setattr(sys, "argv", words)
        training_toy.main()

    return run


def assert_close(one: Path, other: Path, **tolerance: float) -> None:
    ours, theirs = Tensors(one / "result.safetensors"), Tensors(other / "result.safetensors")
    assert set(ours) == set(theirs)
    for name in ours:
        torch.testing.assert_close(
            ours[name], theirs[name], msg=lambda text, n=name: f"{n}: {text}", **tolerance
        )


@pytest.mark.slow
@pytest.mark.parametrize("batch", [pytest.param("8", marks=pytest.mark.exhaustive), "7"])
def test_two_processes_equal_one_with_the_whole_batch(tmp_path, place, together, alone, batch):
    """Without dropout only the order of additions differs; 7 images are divided into 4 and 3."""
    outputs, two = together(f"batch {batch}"), place / f"batch {batch}"
    alone(tmp_path / "one", (*WHOLE_BATCH, batch))
    assert [output.count("step 15\n") for output in outputs] == [1, 1]
    assert_close(two, tmp_path / "one", rtol=1e-4, atol=1e-5)
    lines = [json.loads(line) for line in (two / "run" / "metrics.jsonl").open()]
    expected = [json.loads(line) for line in (tmp_path / "one" / "run" / "metrics.jsonl").open()]
    assert [line["step"] for line in lines] == list(range(1, 16))
    assert [line["loss"] for line in lines] == pytest.approx(
        [line["loss"] for line in expected], rel=1e-4
    )


@pytest.mark.slow
@pytest.mark.parametrize("apart", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_two_processes_resume(place, together, apart):
    """An uninterrupted training, an interrupted one, and its rest; with `apart` in separate
    processes.
    """
    names = [f"apart {number}" for number in range(len(RESUMED))] if apart else ["resumed"]
    output = "".join(text for name in names for text in together(name))
    assert output.count("step 6\n") == 2 * 2, "a finished step was done again"
    assert output.count("step 7\n") == 2 * 3
    folder = place / ("apart" if apart else "resumed")
    assert_close(folder / "whole", folder / "parts", rtol=0, atol=1e-6)


@pytest.mark.slow
def test_two_processes_count_the_pixels_of_both(together):
    """The images of the first process have 16 pixels that count, those of the second 18."""
    losses, gradients = training_toy.compute_gradients(
        Segmentation(training_toy.Pixels()), training_toy.draw_masks()
    )
    for output in together("split"):
        theirs, gradient = json.loads(output)
        assert theirs == pytest.approx(losses, rel=1e-5)
        assert gradient == pytest.approx(gradients["model.weight"].flatten().tolist(), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [6, pytest.param(10, marks=pytest.mark.exhaustive)])
def test_two_processes_judge_as_one(together, batch_size):
    """With 31 images in batches of 6, the last batch has no image for the second process."""
    right = [i % 3 != 0 for i in range(31)]
    assert [json.loads(output) for output in together(f"judge {batch_size}")] == [right] * 2
