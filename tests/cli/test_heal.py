"""`lgzoo heal` from the shelf to a fine-tuned model, with its output, on a flat folder of images."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image

import learngene_zoo as lg
from learngene_zoo.artifacts.descendant import load_descendant
from learngene_zoo.cli.main import main
from learngene_zoo.errors import TrainingFailed, TrainingWarning
from learngene_zoo.training.healing import recovery

BRIEF = ("--epochs", "1", "--batch-size", "8", "--threads", "1", "--device", "cpu")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a descendant and 30 images in a flat folder."""
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    (tmp_path / "flat").mkdir()
    for number in range(30):
        pixels = generator.integers(0, 256, (4, 4, 3), dtype=np.uint8).repeat(8, 0).repeat(8, 1)
        Image.fromarray(pixels).save(tmp_path / "flat" / f"{number}.png")
    call("expand", "first_k", "--layers", "2", "-q")
    return tmp_path


def call(*words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, list(words))
    assert result.exit_code == code, result.output
    return result


def test_the_advice_for_a_model_without_classes_needs_no_labels(place: Path) -> None:
    call("expand", "first_k", "--layers", "2", "--classes", "0", "-o", "features", "-q")
    result = call("heal", "features", "--images", "folder:flat", *BRIEF)
    assert result.stderr.splitlines()[-1] == (
        "next: lgzoo finetune healed   (for its features: lgzoo export healed)"
    )


@pytest.mark.slow
def test_a_flat_folder_heals_a_model_which_is_then_fine_tuned(place: Path) -> None:
    result = call("heal", "--images", "folder:flat", *BRIEF)
    assert result.stdout == "healed\n"
    lines = result.stderr.splitlines()
    assert lines[0].startswith("epoch 0 of 1, before training: held-out loss ")
    assert lines[1].startswith("epoch 1 of 1: loss ")
    assert lines[2].startswith(("epoch 1 of 1 is kept; held-out loss ", "no epoch has a better"))
    assert lines[3] == "next: lgzoo finetune healed"
    record = load_descendant("healed").provenance["healed"]
    assert record["images"]["name"] == "folder:flat"
    assert record["metrics"]["training_images"] == 27
    assert record["teacher"]["source"] == "bundled"
    assert "healed" in Path("healed", "README.md").read_text()
    shown = json.loads(call("show", "healed", "--json").stdout)
    assert shown["healed_on"] == "folder:flat"
    assert shown["healed_epoch"] == record["metrics"]["kept_epoch"]
    again = call("heal", "--images", "folder:flat", *BRIEF, "--resume", "-q")
    assert (again.stdout, again.stderr) == ("healed\n", ""), "it is finished"
    assert "healed-2" in call("heal", "--images", "folder:flat", *BRIEF, code=1).stderr
    call("finetune", "healed", "--task", "digits", "--images", "40", *BRIEF, "-q")
    call("evaluate", "healed", "--task", "digits", "--probe", "knn", "--images", "100", "-q")
    tuned = load_descendant("finetuned").provenance
    assert tuned["healed"] == record
    code = "import timm; timm.create_model('local-dir:healed', pretrained=True)"
    subprocess.run([sys.executable, "-c", code], check=True, env={"HF_HUB_OFFLINE": "1"})


@pytest.mark.slow
def test_few_validation_images_of_a_task_are_named(place: Path) -> None:
    for number, path in enumerate(sorted(Path("flat").iterdir())):
        folder = Path("labelled", "ab"[number % 2])
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder)
    words = ("heal", "--images", "folder:flat", "--task", "folder:labelled", *BRIEF)
    line = call(*words).stderr.splitlines()[2]
    metrics = load_descendant("healed").provenance["healed"]["metrics"]
    count = metrics["validation_images"]
    assert 1 < count < 30
    assert f"by only {count} validation images, where one is {100 / count:.0f} points" in line
    with pytest.warns(TrainingWarning, match=f"chosen by only {count} validation images"):
        lg.heal(
            "descendant", "folder:flat", task="folder:labelled", epochs=1, batch_size=16, out="b"
        )


@pytest.mark.slow
def test_show_has_no_accuracy_of_a_head_whose_features_were_healed(place: Path) -> None:
    call("finetune", "--task", "digits", "--images", "40", *BRIEF, "--head", "random", "-q")
    call("heal", "finetuned", "--images", "folder:flat", *BRIEF, "--keep", "last", "-q")
    rows = [json.loads(call("show", name, "--json").stdout) for name in ("finetuned", "healed")]
    assert rows[0]["validation_accuracy"] is not None
    assert rows[0]["test_accuracy"] is not None
    assert rows[1]["validation_accuracy"] is None
    assert "test_accuracy" not in rows[1]


@pytest.mark.slow
def test_json_has_the_results_before_and_after(place: Path) -> None:
    words = ("heal", "--images", "folder:flat", "--task", "digits", "--max-images", "16")
    result = call(*words, *BRIEF, "--json", "-q", "-o", "out")
    facts = json.loads(result.stdout)
    assert list(facts) == [
        *("kept_epoch", "held_out_loss", "knn_accuracy", "ridge_accuracy", "held_out_images"),
        "validation_images",
        *("start_held_out_loss", "start_knn_accuracy", "start_ridge_accuracy", "path"),
    ]
    assert facts["path"] == "out"
    assert result.stderr == ""


def test_a_training_that_diverges_at_once_fails_and_leaves_the_start(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **kwargs: object) -> Iterator[None]:
        raise TrainingFailed("the loss patches is nan at step 1 of 4; try a lower --lr")
        yield

    monkeypatch.setattr(recovery, "train", fail)
    result = call("heal", "--images", "folder:flat", *BRIEF, code=1)
    assert result.stdout == "healed\n"
    assert "warning: the training diverged: the loss patches is nan at step 1 of 4;" in (
        result.stderr
    )


def test_without_an_epoch_no_learning_rate_is_advised(place: Path) -> None:
    result = call("heal", "--images", "folder:flat", *BRIEF, "--epochs", "0")
    assert "no epoch was trained: the model is as before" in result.stderr
    assert "try a smaller --lr" not in result.stderr
