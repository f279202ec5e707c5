"""Two processes train together as one: torchrun with gloo on the CPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
import training_toy

from learngene_zoo.storage import Tensors
from learngene_zoo.training.objectives import Segmentation

TOY = Path(training_toy.__file__)


def began(output: str) -> bool:
    return "step" in output


@pytest.fixture
def together(torchrun):
    """Train the toy in two processes, once or several times, each in its folder with its options."""

    def run(*trainings: tuple[Path, tuple[str, ...]]) -> str:
        words: list[str] = []
        for folder, options in trainings:
            words += ["then", str(folder / "run"), str(folder / "result.safetensors"), *options]
        return torchrun([str(TOY), *words[1:]], began)

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
def test_two_processes_equal_one_with_the_whole_batch(tmp_path, together, alone, batch):
    """Without dropout only the order of additions differs; 7 images are divided into 4 and 3."""
    options = ("--dropout", "0", "--epochs", "3", "--batch", batch)
    output = together((tmp_path / "two", options))
    alone(tmp_path / "one", options)
    assert output.count("step 15\n") == 2
    assert_close(tmp_path / "two", tmp_path / "one", rtol=1e-4, atol=1e-5)
    lines = [json.loads(line) for line in (tmp_path / "two" / "run" / "metrics.jsonl").open()]
    expected = [json.loads(line) for line in (tmp_path / "one" / "run" / "metrics.jsonl").open()]
    assert [line["step"] for line in lines] == list(range(1, 16))
    assert [line["loss"] for line in lines] == pytest.approx(
        [line["loss"] for line in expected], rel=1e-4
    )


@pytest.mark.slow
@pytest.mark.parametrize("apart", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_two_processes_resume(tmp_path, together, apart):
    """An uninterrupted training, an interrupted one, and its rest; with `apart` in separate
    processes.
    """
    options = ("--epochs", "3")
    trainings = [
        (tmp_path / "whole", options),
        (tmp_path / "parts", (*options, "--stop-after", "7")),
        (tmp_path / "parts", (*options, "--resume")),
    ]
    output = "".join(map(together, trainings)) if apart else together(*trainings)
    assert output.count("step 6\n") == 2 * 2, "a finished step was done again"
    assert output.count("step 7\n") == 2 * 3
    assert_close(tmp_path / "whole", tmp_path / "parts", rtol=0, atol=1e-6)


SPLIT = """
import json, torch
from training_toy import Pixels, compute_gradients, draw_masks
from learngene_zoo.training.objectives import Segmentation
torch.set_num_threads(1)
losses, gradients = compute_gradients(Segmentation(Pixels()), draw_masks(), 2)
print("step", json.dumps([losses, gradients["model.weight"].flatten().tolist()]))
"""


@pytest.mark.slow
def test_two_processes_count_the_pixels_of_both(tmp_path, torchrun):
    """The images of the first process have 16 pixels that count, those of the second 18."""
    program = tmp_path / "split.py"
    program.write_text(f"import sys; sys.path.insert(0, {str(TOY.parent)!r}){SPLIT}")
    output = torchrun([str(program)], began)
    losses, gradients = training_toy.compute_gradients(
        Segmentation(training_toy.Pixels()), training_toy.draw_masks()
    )
    lines = [line for line in output.splitlines() if line.startswith("step")]
    assert len(lines) == 2
    for line in lines:
        theirs, gradient = json.loads(line.removeprefix("step"))
        assert theirs == pytest.approx(losses, rel=1e-5)
        assert gradient == pytest.approx(gradients["model.weight"].flatten().tolist(), rel=1e-4)


JUDGE = """
import json, sys
from learngene_zoo.runs.run import Run
from learngene_zoo.training.evaluate import evaluate
from test_training_evaluate import TASK, Reader
done = evaluate(Reader(), TASK, "test", TASK.input_format, Run(), batch_size=int(sys.argv[1]))
print("step", json.dumps(done.correct))
"""


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [6, pytest.param(10, marks=pytest.mark.exhaustive)])
def test_two_processes_judge_as_one(tmp_path, torchrun, batch_size):
    """With 31 images in batches of 6, the last batch has no image for the second process."""
    program = tmp_path / "judge.py"
    program.write_text(f"import sys; sys.path.insert(0, {str(TOY.parent)!r}){JUDGE}")
    lines = torchrun([str(program), str(batch_size)], began).splitlines()
    right = json.dumps([i % 3 != 0 for i in range(31)])
    assert [line for line in lines if line.startswith("step")] == [f"step {right}"] * 2
