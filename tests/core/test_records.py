"""Statements of an artifact about itself are accepted only if they can be true."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file

from learngene_zoo.artifacts.descendant import assemble, load_descendant
from learngene_zoo.artifacts.learngene import Learngene, load_learngene, read_config
from learngene_zoo.artifacts.records import (
    AncestryRecord,
    LearngeneConfig,
    Provenance,
    TargetTask,
    TaskRecord,
    join_licences,
)
from learngene_zoo.bench.results.rows import Row
from learngene_zoo.cli.main import main
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.method.installed import METHODS
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import from_json, to_json, with_settings
from learngene_zoo.testing.laws import make_tiny_ancestry

SPEC = ViTSpec(layers=2, width=16, heads=2, classes=2, image_size=16, patch_size=8)
RECORD = AncestryRecord(source="timm:x", spec=SPEC, revision="a" * 40, sha256="0" * 64)
ROW = {
    "key": "k",
    "arm": "a",
    "method": "lsamd",
    "control": None,
    "task": "t",
    "layers": 2,
    "width": 16,
    "seed": 0,
    "epochs": 1,
    "lr": 0.1,
    "images": 9,
    "split": "test",
}
TASK = TaskRecord(name="digits", source="built in", classes=10, images=1000)
METRICS = {
    "validation_accuracy": {"digits": 0.5},
    "training_images": 10,
    "paths": [{"layers": 2, "accuracy": 1.0, "images": 3}, {"layers": 1, "mIoU": 0}],
    "stitches": {"norm_ratio": {"mean": 1.5}, "missed": None},
}


@pytest.fixture
def learngene(tmp_path: Path) -> Path:
    config = LearngeneConfig(
        method="scratch", spec=SPEC, ancestries=(RECORD,), tasks=(TASK,), metrics=METRICS
    )
    return Learngene(config=config, state={"a": torch.zeros(2)}).save(tmp_path / "learngene")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    made = {
        "method": "train",
        "seed": 0,
        "recipe": {},
        "ancestries": [to_json(RECORD)],
        "trained_on": to_json(TASK),
    }
    return assemble(SPEC, {}, seed=0, provenance={**made, "metrics": METRICS, "own": [1]}).save(
        tmp_path / "model"
    )


def edit(folder: Path, path: str, value: Any) -> None:
    data = json.loads((folder / "config.json").read_text())
    *outer, last = path.split("/")
    node = data
    for name in outer:
        node = node[int(name) if name.isdigit() else name]
    node[last] = value
    (folder / "config.json").write_text(json.dumps(data))


def test_what_can_be_true_is_read(learngene: Path, model: Path) -> None:
    assert load_learngene(learngene).config.metrics == METRICS
    assert load_descendant(model).provenance["own"] == [1]


WRONG = [
    ("ancestries/0/sha256", "xyz", "sha256 is 'xyz'; expected 64 hexadecimal digits"),
    ("ancestries/0/sha256", 5, "expected"),
    ("ancestries/0/revision", "main", "revision is 'main'; expected 40 hexadecimal digits"),
    ("ancestries/0/revision", "../" * 10 + "a" * 10, "expected 40 hexadecimal digits"),
    ("ancestries/0/std", [0.5, 0.0, 0.5], "std is 0.0; it must be at least 1e-06"),
    ("ancestries/0/std", [0.5, 1e-300, 0.5], "std is 1e-300; it must be at least 1e-06"),
    ("ancestries/0/mean", [0.5, 1e9, 0.5], "mean is 1000000000.0; it must be at least"),
    ("ancestries/0/mean", [0.5], "1 and 3 values for 3 channels"),
    (
        "metrics/validation_accuracy",
        {"digits": 50.0},
        "validation_accuracy is 50.0; expected a number from 0 to 1",
    ),
    ("metrics/validation_accuracy", -0.1, "expected a number from 0 to 1"),
    ("metrics/validation_accuracy", "0.5", "expected a number from 0 to 1"),
    ("metrics/test_mIoU", [0.5, [1.01]], "test_mIoU is 1.01"),
    ("metrics/paths", [{"accuracy": 2}], "paths: accuracy is 2"),
    ("metrics/training_images", -1, "training_images is -1; expected a whole number"),
    ("metrics/training_images", 1e30, "expected a whole number"),
    ("metrics", [], "metrics"),
]


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        *WRONG,
        ("tasks/0/images", -5, "images is -5"),
        ("tasks/0/classes", 10**9, "classes is 1000000000"),
    ],
)
def test_a_learngene_that_says_the_impossible_is_refused(
    path: str, value: Any, said: str, learngene: Path
) -> None:
    edit(learngene, path, value)
    for opened in (read_config, load_learngene):
        with pytest.raises(BadFile, match=said):
            opened(learngene)
    assert CliRunner().invoke(main, ["show", str(learngene)]).exit_code == 1


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        *WRONG,
        ("trained_on/images", -5, "images is -5"),
        ("trained_on", "digits", "trained_on"),
        ("ancestries", 3, "ancestries"),
        ("versions", {"torch": 2}, "versions: torch"),
        ("method_package", {"lgzoo-mine": 2}, "method_package: lgzoo-mine"),
        ("method_package", "lgzoo-mine", "method_package"),
        ("method", ["lsamd"], "method"),
        ("control", "half", "control"),
        ("recipe", None, "recipe"),
        ("seed", "0", "seed"),
        ("task", 5, "task"),
    ],
)
def test_a_model_that_says_the_impossible_is_refused(
    path: str, value: Any, said: str, model: Path
) -> None:
    edit(model, f"learngene/{path}", value)
    with pytest.raises(BadFile, match=said):
        load_descendant(model)
    shown = CliRunner().invoke(main, ["show", str(model)])
    assert shown.exit_code == 1
    assert shown.stderr.startswith("error: ")


@pytest.mark.parametrize(
    "kind", [torch.int32, torch.int64, torch.uint8, torch.bool, torch.float8_e4m3fn]
)
@pytest.mark.parametrize("opened", [load_learngene, lambda folder: load_descendant(folder)])
def test_tensors_that_are_no_numbers_to_compute_with_are_refused_when_opened(
    opened: Callable[[Path], Any], kind: torch.dtype, learngene: Path, model: Path
) -> None:
    folder = learngene if opened is load_learngene else model
    state = (
        load_learngene(learngene).state
        if opened is load_learngene
        else load_descendant(model).state
    )
    changed = {name: tensor.clone() for name, tensor in state.items()}
    first = min(changed)
    save_file({**changed, first: changed[first].to(kind)}, folder / "model.safetensors")
    with pytest.raises(BadFile, match=f"the tensor {first} does not hold floating-point numbers"):
        opened(folder)


def test_a_learngene_whose_file_lacks_a_tensor_is_refused_and_not_filled_up(tmp_path: Path) -> None:
    name = "blocks.1.mlp.fc2.weight"
    extractor = with_settings(METHODS.load("lsamd").extractor, {"keep": (1, 2)})
    learngene = extractor([make_tiny_ancestry()], [], Run()).with_config(method="lsamd")
    folder = learngene.save(tmp_path / "learngene")
    full = dict(load_learngene(folder).state)
    save_file(
        {key: tensor for key, tensor in full.items() if key != name}, folder / "model.safetensors"
    )
    with pytest.raises(
        BadFile, match=f"lacks the tensor {name}, which its config.json names; extract or fetch it"
    ):
        load_learngene(folder)
    result = CliRunner().invoke(
        main, ["expand", str(folder), "--layers", "2", "-o", str(tmp_path / "made")]
    )
    assert result.exit_code == 1
    assert not (tmp_path / "made").exists()


def test_a_learngene_of_an_earlier_version_names_no_tensors(learngene: Path) -> None:
    data = json.loads((learngene / "config.json").read_text())
    assert data.pop("tensors") == ["a"]
    (learngene / "config.json").write_text(json.dumps(data))
    assert list(load_learngene(learngene).state) == ["a"]


def test_the_number_of_the_format_is_1(learngene: Path, model: Path) -> None:
    assert json.loads((learngene / "config.json").read_text())["format"] == 1
    assert json.loads((model / "config.json").read_text())["learngene"]["format"] == 1


@pytest.mark.parametrize(
    ("licences", "joint"),
    [
        ([], "unknown"),
        (["mit"], "mit"),
        (["mit", "apache-2.0", "mit"], "apache-2.0 AND mit"),
        (["mit", "unknown"], "unknown"),
    ],
)
def test_the_licence_of_several_works(licences: list[str], joint: str) -> None:
    assert join_licences(licences) == joint


@pytest.mark.parametrize("value", ["a" * 39, "a" * 41, "a" * 40 + "\n", "A" * 40, "g" * 40])
def test_a_revision_is_40_hexadecimal_digits(value: str) -> None:
    with pytest.raises(WrongCall, match="expected 40 hexadecimal digits"):
        replace(RECORD, revision=value)


LONG = "x" * 501
PATH = "folder:/" + "x" * 4100


@pytest.mark.parametrize(
    ("cls", "data"),
    [
        (LearngeneConfig, {"method": LONG, "spec": to_json(SPEC)}),
        (TargetTask, {"task": PATH, "classes": 1}),
        (TargetTask, {"task": "t", "classes": 1, "class_names": [LONG]}),
        (TaskRecord, {"name": PATH, "source": "s"}),
        (TaskRecord, {"name": "t", "source": PATH}),
        (AncestryRecord, {"source": PATH, "spec": to_json(SPEC)}),
        (Provenance, {"method": LONG}),
        (Provenance, {"task": PATH}),
        (Row, {**ROW, "arm": "x" * 100_000}),
        *(
            (Row, {**ROW, name: LONG})
            for name in ("key", "method", "control", "split", "size", "metric", "machine")
        ),
        (Row, {**ROW, "task": PATH}),
    ],
)
def test_names_are_bounded_wherever_data_chooses_them(cls: type, data: dict[str, Any]) -> None:
    with pytest.raises(
        BadFile, match=r"x'\.\.\. has [\d,]+ characters; expected at most \d+"
    ) as refused:
        from_json(cls, data, "here")
    assert len(str(refused.value)) < 200


def test_class_names_of_a_model_and_a_task_are_bounded(tmp_path: Path) -> None:
    model = assemble(SPEC, {}, seed=0).save(tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "label_names": [LONG] * SPEC.classes}))
    with pytest.raises(BadFile, match=r"the class 'x+'\.\.\. has 501 characters"):
        load_descendant(model)


def test_a_long_error_of_a_cell_is_shortened() -> None:
    assert len(from_json(Row, {**ROW, "error": "x" * 10**6}, "here").error or "") == 2000
