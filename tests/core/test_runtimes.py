"""Exported files: equal to the module at every batch size, self-describing, opened without this
package, and complete or absent.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any
from zipfile import ZipFile

import pytest
import torch
from click.testing import CliRunner
from PIL import Image

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.descendant import Descendant, assemble
from learngene_zoo.cli.main import main
from learngene_zoo.errors import BadFile, Refused, TrainingFailed, Unavailable, WrongCall
from learngene_zoo.families.spec import Segment
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.lifecycle.runtimes import (
    BATCHES,
    Exported,
    collect_metadata,
    export_descendant,
    open_runner,
)
from learngene_zoo.pretrained.exported import check_own_export, open_exported
from learngene_zoo.pretrained.timm_model import open_model
from learngene_zoo.runs.run import Run
from learngene_zoo.testing import make_tiny_task
from learngene_zoo.training.evaluate import evaluate as measure

RUN = Run(threads=1)
SPEC = ViTSpec(layers=1, width=32, heads=4, image_size=16, patch_size=8, classes=5)
SPECS = {
    "plain": SPEC,
    "mean pooling": SPEC.with_(class_token=False, pool="avg", registers=2),
    "no head": SPEC.with_(classes=0),
    "dense": SPEC.with_(layers=2, dense=True),
    "stitched": SPEC.with_(layers=2, front=(Segment(layers=1, width=16, heads=2),)),
}
NAMES = ("zero", "one", "two", "three", "four")


def model(spec: ViTSpec = SPEC) -> Descendant:
    """Return a random model whose head distinguishes images."""
    names = NAMES if spec.classes else ()
    return assemble(
        spec,
        {},
        seed=3,
        scheme="fan_in",
        class_names=names,
        mean=(0.1, 0.2, 0.3),
        std=(0.4, 0.5, 0.6),
    )


def images(count: int) -> torch.Tensor:
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(5))


@pytest.fixture(scope="module")
def export_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Exported]:
    """Return a cached function that exports a model of `SPECS` in a format."""
    folder = tmp_path_factory.mktemp("exported")

    @cache
    def export(name: str, format: str) -> Exported:
        return export_descendant(model(SPECS[name]), folder / f"{name}.{format}", run=RUN)

    return export


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "format"),
    [
        pytest.param(
            name,
            format,
            marks=(
                pytest.mark.exhaustive
                if format == "onnx" and name in ("mean pooling", "no head")
                else []
            ),
        )
        for name in SPECS
        for format in ("pt2", "onnx")
    ],
)
def test_a_file_answers_as_its_module_at_any_batch(name: str, format: str, export_once) -> None:
    descendant = model(SPECS[name])
    exported_file = export_once(name, format)
    assert exported_file.difference <= (0.0 if format == "pt2" else 1e-5)
    content = exported_file.path.read_bytes()
    for text in ("stack_trace", "site-packages", str(Path(__file__).parents[2])):
        assert text.encode() not in content, text
    runner, module = open_runner(exported_file.path, threads=1), descendant.model()
    for count in (1, 3, 7):  # 3 and 7 are not among those that exporting compares
        with torch.no_grad():
            torch.testing.assert_close(
                runner(images(count)), module(images(count)), rtol=0, atol=1e-5
            )
    assert not {3, 7} & set(BATCHES)


@pytest.mark.slow
@pytest.mark.parametrize("format", ["pt2", "onnx"])
def test_the_same_model_is_the_same_file(format: str, tmp_path: Path, export_once) -> None:
    again = export_descendant(model(), tmp_path / f"again.{format}", run=RUN).path
    assert again.read_bytes() == export_once("plain", format).path.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("format", ["pt2", pytest.param("onnx", marks=pytest.mark.exhaustive)])
def test_half_precision_halves_the_file_and_keeps_its_doors_in_fp32(
    format: str, tmp_path: Path
) -> None:
    descendant = model(SPEC.with_(width=128))
    full = export_descendant(descendant, tmp_path / f"whole.{format}", run=RUN)
    half = export_descendant(descendant, tmp_path / f"half.{format}", dtype="fp16", run=RUN)
    assert half.bytes < 0.6 * full.bytes
    assert 0 < half.difference < 2e-2
    assert open_runner(half.path)(images(2)).dtype == torch.float32


ALONE = """
import json, sys
sys.modules["learngene_zoo"] = sys.modules["timm"] = None
path = sys.argv[1]
if path.endswith(".onnx"):
    import numpy, onnxruntime
    session = onnxruntime.InferenceSession(path)
    facts = session.get_modelmeta().custom_metadata_map
    shape = session.run(["logits"], {"pixel_values": numpy.zeros((4, 3, 16, 16), "float32")})[0].shape
    names = [session.get_inputs()[0].name, session.get_inputs()[0].shape[0], session.get_outputs()[0].name]
else:
    import torch
    files = {"metadata.json": ""}
    program = torch.export.load(path, extra_files=files)
    facts = json.loads(files["metadata.json"])
    shape = program.module()(torch.zeros(4, 3, 16, 16)).shape
    names = [*program.graph_signature.user_inputs, "batch", "logits"]
print(json.dumps([names, list(shape), facts]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("format", ["pt2", "onnx"])
def test_a_file_opens_without_us_and_says_what_it_takes_and_answers(
    format: str, export_once
) -> None:
    path = export_once("plain", format).path
    printed = subprocess.run(
        [sys.executable, "-c", ALONE, path], check=True, capture_output=True, text=True
    ).stdout
    names, shape, facts = json.loads(printed)
    assert names == ["pixel_values", "batch", "logits"]
    assert shape == [4, 5]
    assert json.loads(facts["labels"]) == list(NAMES)
    preprocessing = json.loads(facts["preprocessing"])
    assert preprocessing["input_size"] == [3, 16, 16]
    assert (preprocessing["mean"], preprocessing["std"]) == ([0.1, 0.2, 0.3], [0.4, 0.5, 0.6])
    assert facts["license"] == "unknown"


@pytest.mark.slow
def test_int8_is_measured_before_it_is_written(tmp_path: Path) -> None:
    task, path = replace(make_tiny_task(classes=5), class_names=NAMES), tmp_path / "model.onnx"
    descendant = model(SPEC.with_(width=64, image_size=task.image_size))
    full = export_descendant(descendant, tmp_path / "whole.onnx", run=RUN)
    exported_file = export_descendant(
        descendant, path, dtype="int8", task=task, max_drop=1.0, run=RUN
    )
    assert exported_file.bytes < 0.6 * full.bytes
    assert (exported_file.task, exported_file.metric) == (task.name, "accuracy")
    assert exported_file.value is not None
    assert exported_file.model_value is not None
    assert abs(exported_file.value - exported_file.model_value) <= 0.1
    assert exported_file.images == len(task.open_split("validation"))
    before = path.read_bytes()
    with pytest.raises(
        Refused, match=r"in int8 the accuracy .* falls from .* by more than -1 .*dtype=.fp16"
    ):
        export_descendant(
            descendant, path, dtype="int8", task=task, max_drop=-1.0, run=RUN, force=True
        )
    assert path.read_bytes() == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model.onnx", "whole.onnx"]


@pytest.mark.slow
def test_features_in_int8_are_compared_by_their_cosine(tmp_path: Path) -> None:
    headless = model(SPEC.with_(classes=0, width=64, image_size=32))
    path = tmp_path / "model.onnx"
    with pytest.raises(WrongCall, match=r"has no classes, .* give images, .*: task=.folder:PATH"):
        lifecycle.export(headless, path, dtype="int8", run=RUN)
    exported = lifecycle.export(headless, path, dtype="int8", task="digits", run=RUN)
    assert (exported.task, exported.metric, exported.model_value) == ("digits", "cosine", 1.0)
    assert exported.value is not None
    assert 0.99 < exported.value < 1


@pytest.mark.slow
def test_a_file_that_differs_from_its_module_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "learngene_zoo.lifecycle.runtimes.open_runner",
        lambda path, threads: lambda images: torch.zeros(len(images), 5),
    )
    with pytest.raises(TrainingFailed, match="differ from those of the model by up to"):
        export_descendant(model(), tmp_path / "model.pt2", run=RUN)
    assert not any(tmp_path.iterdir())


def test_a_missing_package_is_named_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(
        Unavailable,
        match=r"onnxruntime, which is not installed: pip install 'learngene-zoo\[onnx\]'",
    ):
        export_descendant(model(), tmp_path / "model.onnx", run=RUN)


@pytest.mark.parametrize(
    ("name", "dtype", "message"),
    [
        ("model.bin", "fp32", "expected a path that ends in .onnx or .pt2"),
        ("model.pt2", "int8", "only ONNX files can be int8"),
    ],
)
def test_what_no_format_has_is_refused(name: str, dtype: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(WrongCall, match=message):
        lifecycle.export(model(), tmp_path / name, dtype=dtype)  # type: ignore[arg-type]


# A model of timm's, and files that are read back.


def timm_folder(place: Path, name: str = "vit_tiny_patch16_224", **sizes: object) -> Path:
    """Write a folder as timm does, with the format of its images."""
    import timm
    from safetensors.torch import save_file

    place.mkdir()
    images = {
        "input_size": [3, 16, 16],
        "mean": [0.1, 0.2, 0.3],
        "std": [0.4, 0.5, 0.6],
        "crop_pct": 0.9,
    }
    images |= {"interpolation": "bilinear", "crop_mode": "squash"}
    config = {"architecture": name, "num_classes": 5, "model_args": sizes, "pretrained_cfg": images}
    (place / "config.json").write_text(json.dumps({**config, "label_names": list(NAMES)}))
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=5, **sizes)
    save_file(
        {key: tensor.clone() for key, tensor in model.state_dict().items()},
        place / "model.safetensors",
    )
    return place


TINY = {"embed_dim": 16, "depth": 1, "num_heads": 2, "img_size": 16, "patch_size": 8}


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["onnx", "pt2"])
def test_what_timm_made_is_exported_and_says_all_that_is_needed(
    suffix: str, tmp_path: Path
) -> None:
    folder = timm_folder(tmp_path / "vit", **TINY)
    exported_file = lifecycle.export(folder, tmp_path / f"model.{suffix}", run=RUN)
    assert exported_file.difference <= 1e-5
    facts = collect_metadata(open_model(folder), "fp32")
    assert json.loads(facts["labels"]) == list(NAMES)
    assert json.loads(facts["preprocessing"]) == {
        **{
            "input_size": [3, 16, 16],
            "interpolation": "bilinear",
            "crop_pct": 0.9,
            "crop_mode": "squash",
        },
        **{"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]},
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "dense"])
def test_an_exported_file_is_worth_what_its_model_is(
    name: str, export_once, tmp_path: Path
) -> None:
    path, descendant = export_once(name, "onnx").path, model(SPECS[name])
    exported_model = open_exported(path)
    assert (exported_model.classes, exported_model.dense, exported_model.class_names) == (
        5,
        name == "dense",
        NAMES,
    )
    assert exported_model.input_format == descendant.input_format
    with torch.no_grad():
        torch.testing.assert_close(
            exported_model.model()(images(3)), descendant.model()(images(3)), rtol=0, atol=1e-5
        )


@pytest.mark.slow
def test_accuracy_and_predictions_of_a_file_are_those_of_the_model(
    export_once: Callable[[str, str], Exported], tmp_path: Path
) -> None:
    task, descendant = replace(make_tiny_task(classes=5), class_names=NAMES), model()
    path = export_once("plain", "onnx").path
    check_own_export(path, "fp32", str(descendant.identity))
    exported_model = open_exported(path, threads=1)
    theirs, ours = (
        measure(one.model(), task, "validation", one.input_format, RUN)
        for one in (exported_model, descendant)
    )
    assert theirs.correct == ours.correct
    Image.linear_gradient("L").resize((40, 30)).convert("RGB").save(tmp_path / "a.png")
    (one,), (other,) = (
        lifecycle.predict(each, tmp_path / "a.png", run=RUN) for each in (path, descendant)
    )
    assert one.classes == other.classes
    assert one.probabilities == pytest.approx(other.probabilities, abs=1e-5)
    with pytest.raises(WrongCall, match="leave out device and precision"):
        lifecycle.predict(path, tmp_path / "a.png", run=Run(threads=1, precision="bf16"))


def test_files_that_are_not_exports_are_refused_in_one_line(export_once, tmp_path: Path) -> None:
    import onnx

    def change(
        facts: Mapping[str, str | None] = MappingProxyType({}),
        edit: Callable[[Any], None] = lambda graph: None,
        **save: Any,
    ) -> Path:
        graph = onnx.load(export_once("plain", "onnx").path)
        for entry in [entry for entry in graph.metadata_props if entry.key in facts]:
            if (text := facts[entry.key]) is None:
                graph.metadata_props.remove(entry)
            else:
                entry.value = text
        edit(graph)
        onnx.save(graph, tmp_path / "changed.onnx", **save)
        return tmp_path / "changed.onnx"

    def fix_batch(graph: Any) -> None:
        graph.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2

    (tmp_path / "junk.onnx").write_bytes(b"no graph")
    outside = {"save_as_external_data": True, "location": "outside.bin", "size_threshold": 0}
    for path, words in (
        (lambda: change({"preprocessing": None}), "does not say how it takes images"),
        (
            lambda: change({"preprocessing": "{}"}),
            "metadata are not those that `lgzoo export` writes",
        ),
        (
            lambda: change({"preprocessing": "["}),
            "metadata are not those that `lgzoo export` writes",
        ),
        (lambda: change({"labels": '["a"]'}), "1 labels for 5 classes"),
        (lambda: change({"labels": "[1]"}), "metadata are not those"),
        (lambda: change(edit=fix_batch), "takes batches of 2 only"),
        (lambda: change(**outside), "from another file, which is not opened"),
        (lambda: tmp_path / "junk.onnx", "is not a readable ONNX file"),
    ):
        with pytest.raises(BadFile, match=words) as raised:
            open_exported(path())
        assert "\n" not in str(raised.value)
    with pytest.raises(WrongCall, match=r"absent\.onnx; write one with `lgzoo export MODEL -o"):
        open_exported(tmp_path / "absent.onnx")
    with pytest.raises(WrongCall, match=r"torch\.export\.load unpickles"):
        open_exported(export_once("plain", "pt2").path)


def test_without_onnxruntime_the_extra_is_named(
    export_once, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = export_once("plain", "onnx").path
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(
        Unavailable,
        match=r"onnxruntime, which is not installed: pip install 'learngene-zoo\[onnx\]'",
    ):
        open_exported(path)


def test_options_that_nothing_looks_at_are_refused(tmp_path: Path) -> None:
    folder = model().save(tmp_path / "model")
    for words, message in (
        (("--task", "nosuch", "--format", "pt2"), "--task applies only to --dtype int8"),
        (("--max-drop", "0.1"), "--max-drop applies only to --dtype int8"),
        (("--max-drop", "2"), "2 is out of range; it must be at least 0 and at most 1"),
        (("--max-drop", "nan"), "nan is out of range; it must be at least 0 and at most 1"),
        (("--max-drop", "little"), "'little' is not a number"),
    ):
        result = CliRunner().invoke(
            main, ["export", str(folder), *words, "-o", str(tmp_path / "model.pt2")]
        )
        assert (result.exit_code, message in result.stderr) == (2, True)
    with pytest.raises(WrongCall, match="the task 'nosuch' is used only for dtype int8"):
        lifecycle.export(folder, tmp_path / "model.pt2", task="nosuch")
    assert not (tmp_path / "model.pt2").exists()


@pytest.mark.slow
def test_the_command_writes_measures_and_refuses(tmp_path: Path) -> None:
    def call(*words: str) -> tuple[int, str, str]:
        result = CliRunner().invoke(main, ["export", str(folder), *words])
        return result.exit_code, result.stdout, result.stderr

    folder, out = model().save(tmp_path / "model"), tmp_path / "model.onnx"
    code, printed, _ = call("-o", str(out), "--bench", "--threads", "1", "--json")
    row = json.loads(printed)
    assert code == 0
    assert (row["format"], row["dtype"], row["path"]) == ("onnx", "fp32", str(out))
    assert row["bytes"] == out.stat().st_size
    assert row["latency"] > 0 < row["model_latency"]
    code, _, stderr = call("-o", str(out))
    assert (code, "already exists" in stderr) == (1, True)
    code, _, stderr = call("--format", "pt2", "-o", str(out))
    assert (code, "does not end in .pt2" in stderr) == (2, True)
    code, _, stderr = call(
        "--dtype", "int8", "-o", str(tmp_path / "small.onnx"), "--task", "digits"
    )
    assert (code, "5 classes and digits has 10" in stderr) == (2, True)


@pytest.mark.parametrize("name", ["mine.onnx", "mine.pt2", "cut.pt2", "none.onnx", "none.pt2"])
def test_other_files_are_not_taken_for_own_ones(tmp_path: Path, name: str) -> None:
    (tmp_path / "mine.onnx").write_bytes(b"mine")
    with ZipFile(tmp_path / "mine.pt2", "w") as archive:
        archive.writestr("letters/metadata.json", "mine")
    (tmp_path / "cut.pt2").write_bytes((tmp_path / "mine.pt2").read_bytes()[:-9])
    with pytest.raises(Refused):
        check_own_export(tmp_path / name, "fp32")


@pytest.mark.slow
def test_a_file_of_torch_export_is_recognised(export_once: Callable[[str, str], Exported]) -> None:
    path = export_once("plain", "pt2").path
    check_own_export(path, "fp32", str(model().identity))
    with pytest.raises(Refused, match="is a file in fp32, and this call writes fp16"):
        check_own_export(path, "fp16")
    with pytest.raises(Refused, match="is a file of another model"):
        check_own_export(path, "fp32", "another")


@pytest.mark.slow
def test_a_resumed_export_keeps_a_file_of_another_dtype(tmp_path: Path) -> None:
    folder, path = model().save(tmp_path / "model"), tmp_path / "model.onnx"

    def export(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(main, ["export", str(folder), "-o", str(path), *words])
        return result.exit_code, result.stderr

    assert export("--dtype", "fp16")[0] == 0
    written = path.read_bytes()
    code, stderr = export("--resume")
    assert (code, "is a file in fp16, and this call writes fp32" in stderr) == (1, True)
    assert path.read_bytes() == written
    assert export("--dtype", "fp16", "--resume")[0] == 0
    other = model(SPEC.with_(layers=2)).save(tmp_path / "other")
    result = CliRunner().invoke(
        main, ["export", str(other), "-o", str(path), "--dtype", "fp16", "--resume"]
    )
    assert (result.exit_code, "is a file of another model" in result.stderr) == (1, True)
    assert path.read_bytes() == written
    assert export("--resume", "--force")[0] == 0
    assert open_exported(path).dtype == "fp32"


@pytest.mark.slow
def test_a_file_without_classes_returns_features(
    export_once: Callable[[str, str], Exported],
) -> None:
    exported_model = open_exported(export_once("no head", "onnx").path)
    assert [value.name for value in exported_model.session.get_outputs()] == ["features"]
    assert (exported_model.classes, exported_model.dense) == (0, False)
    features = exported_model.model()(images(2))
    torch.testing.assert_close(
        features, model(SPECS["no head"]).model()(images(2)), rtol=0, atol=1e-5
    )
    with pytest.raises(WrongCall, match="no classes"):
        lifecycle.evaluate(exported_model.folder, task="digits", run=RUN)
