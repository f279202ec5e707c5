"""The verbs in turn, with as few options as possible: the output of each is the input of the next."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from learngene_zoo.artifacts.descendant import assemble
from learngene_zoo.cli.main import main
from learngene_zoo.families.vit.spec import ViTSpec

BRIEF = ["--epochs", "1", "--images", "16", "--batch-size", "8"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write images of two classes that a small model can distinguish."""
    from PIL import Image

    root = tmp_path_factory.mktemp("data") / "photos"
    for colour, pixel in {"red": (200, 40, 40), "blue": (40, 40, 200)}.items():
        (root / colour).mkdir(parents=True)
        for i in range(20):
            shade = tuple(min(255, value + 2 * i) for value in pixel)
            Image.new("RGB", (16, 16), shade).save(root / colour / f"{i}.png")
    return root


def call(*words: str) -> Result:
    result = CliRunner().invoke(main, [*words, "--threads", "1"])
    assert result.exit_code == 0, result.stderr
    return result


def test_train_extract_expand_finetune_evaluate(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    task = ["--task", f"folder:{photos}"]
    size = [
        "--layers",
        "3",
        "--width",
        "32",
        "--heads",
        "2",
        "--image-size",
        "16",
        "--patch-size",
        "8",
    ]
    result = call("train", *task, *size, *BRIEF, "--json")
    assert json.loads(result.stdout) == {"path": "ancestry"}
    result = call("extract", "lsamd", *task, "--ancestry", "ancestry", "--keep", "1,3")
    assert result.stdout == "learngene\n"
    assert (
        json.loads(Path("learngene/config.json").read_text())["tasks"] == []
    )  # --keep looks at no data
    assert result.stderr.splitlines()[-1].startswith("next: lgzoo expand --layers 2")
    call("expand", "--layers", "4", *task)
    result = call("finetune", *BRIEF, *task)
    assert result.stderr.splitlines()[-1] == f"next: lgzoo evaluate --task folder:{photos}"
    row = json.loads(call("evaluate", *task, "--json").stdout)
    assert (row["split"], row["metric"]) == ("test", "accuracy")
    assert 0 <= row["low"] <= row["value"] <= row["high"] <= 1
    call("evaluate", "descendant", *task, "--split", "validation", "-o", "numbers.json")
    assert json.loads(Path("numbers.json").read_text())["split"] == "validation"
    again = [
        "evaluate",
        "descendant",
        *task,
        "-o",
        "numbers.json",
        "--resume",
        "--threads",
        "1",
        "--split",
    ]
    assert (
        CliRunner().invoke(main, [*again, "validation"]).exit_code == 0
    )  # what this very call would write is there
    refused = CliRunner().invoke(main, [*again, "train"])
    assert (refused.exit_code, "numbers.json already exists" in refused.stderr) == (1, True)
    data = json.loads(CliRunner().invoke(main, ["show", "finetuned", "--json"]).stdout)
    assert (data["layers"], data["width"], data["method"]) == (4, 32, "lsamd")
    sizes = json.loads(CliRunner().invoke(main, ["show", "learngene", "--json"]).stdout)
    assert [entry["layers"] for entry in sizes] == [2, 3, 4]
    assert "ancestry" in CliRunner().invoke(main, ["show", "learngene"]).stdout


def test_the_advice_after_expand_has_a_task_where_the_model_records_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = ViTSpec(layers=3, width=16, heads=2, image_size=16, patch_size=8, classes=0)
    assemble(spec, {}, seed=0).save(Path("own"))
    call("extract", "first_k", "--ancestry", "./own")
    result = call("expand", "--layers", "2")
    assert result.stderr.splitlines()[-1] == (
        "next: lgzoo finetune --task folder:PATH   "
        "(without labels: lgzoo heal --images folder:PATH)"
    )
    bundled = call("expand", "first_k", "--layers", "2", "-o", "bundled")
    assert bundled.stderr == (
        "2 layers of width 96, 368.87K parameters, 4.33M FLOPs\nnext: lgzoo finetune bundled\n"
    )


@pytest.mark.slow
def test_the_advice_of_each_verb_leads_to_the_users_own_data(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my photos").symlink_to(photos)
    task = ["--task", "folder:my photos"]
    size = [
        "--layers",
        "3",
        "--width",
        "16",
        "--heads",
        "2",
        "--image-size",
        "16",
        "--patch-size",
        "8",
    ]
    result = call("train", *task, *size, *BRIEF)
    followed = []
    while advice := re.search(r"^next: lgzoo (.*?)(   |$)", result.stderr, re.MULTILINE):
        words = shlex.split(advice[1])
        assert words[-2:] == task, advice[1]
        brief = {"extract": ["--keep", "1,3"], "finetune": BRIEF}
        result = call(
            *words, *brief.get(words[0], []), *(["--json"] if words[0] == "evaluate" else [])
        )
        followed.append(words[0])
    assert followed == ["extract", "expand", "finetune", "evaluate"]
    assert json.loads(result.stdout)["task"] == "folder:my photos"
    # Built without a word about the data: the learngene knows its classes, and this machine knows
    # where the data lies.
    call("expand", "--layers", "2", "-o", "again")
    config = json.loads(Path("again/config.json").read_text())
    assert (config["num_classes"], config["label_names"]) == (2, ["blue", "red"])
    call("finetune", "again", *BRIEF, "-o", "again-finetuned")
    assert (
        json.loads(Path("again-finetuned/config.json").read_text())["learngene"]["task"]
        == "folder:my photos"
    )


@pytest.mark.parametrize("verb", ["extract", "finetune", "evaluate"])
def test_no_data_is_assumed_without_the_bundled_ancestry_model(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = ViTSpec(layers=2, width=16, heads=2, classes=3, image_size=16, patch_size=8)
    assemble(spec, {}, seed=0).save(tmp_path / "vit")
    words = {"extract": ("extract", "lsamd", "--ancestry", "vit")}.get(verb, (verb, "model"))
    if verb != "extract":
        call("extract", "lsamd", "--ancestry", "vit", "--keep", "1")
        call("expand", "-o", "model")
    refused = CliRunner().invoke(main, list(words))
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert "--task folder:PATH" in refused.stderr


def test_finetune_under_the_same_seed_writes_the_same_weights(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    task = ["--task", f"folder:{photos}"]
    size = [
        "--layers",
        "1",
        "--width",
        "16",
        "--heads",
        "2",
        "--image-size",
        "16",
        "--patch-size",
        "8",
    ]
    for out in ("a", "b"):
        call("train", *task, *size, *BRIEF, "-o", out, "--seed", "3")
    assert (tmp_path / "a/model.safetensors").read_bytes() == (
        tmp_path / "b/model.safetensors"
    ).read_bytes()


def test_doctor_opens_a_task(photos: Path) -> None:
    result = CliRunner().invoke(main, ["doctor", "--task", f"folder:{photos}", "--json"])
    row = json.loads(result.stdout)
    assert (row["classes"], row["first_image"]) == (2, "3x16x16")
    assert row["first_class"] in ("red", "blue")


@pytest.mark.slow
def test_doctor_looks_at_everything() -> None:
    result = CliRunner().invoke(main, ["doctor", "--json"])
    rows = {row["what"]: row for row in json.loads(result.stdout)}
    assert {
        "python",
        "torch",
        "timm",
        "threads",
        "devices",
        "method lsamd",
        "task digits",
        "shelf",
    } <= set(rows)
    assert rows["task digits"]["status"] == "ok"
    assert result.exit_code == (1 if any(row["status"] == "bad" for row in rows.values()) else 0)
