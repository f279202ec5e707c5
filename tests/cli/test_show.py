"""`lgzoo show`, and `lgzoo extract` of methods that use no images, on small artifacts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from learngene_zoo.artifacts.learngene import Learngene
from learngene_zoo.artifacts.records import CardRecord, CardResults, LearngeneConfig, Measured
from learngene_zoo.artifacts.shelf import find_cards_folder
from learngene_zoo.cli.description.show import _flatten, _list_worth
from learngene_zoo.cli.main import main
from learngene_zoo.errors import WrongCall
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.method.installed import find_method
from learngene_zoo.method.sizes import Budget, Target, parse_sizes
from learngene_zoo.registry import Plugins


def call(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


SPEC = ViTSpec(layers=2, width=16, heads=2, classes=1286, image_size=16, patch_size=8)


@pytest.fixture
def learngene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    metrics = {"variance": [0.123456789] * 96, "chosen": [1, 4, 7]}
    Learngene(config=LearngeneConfig(method="scratch", spec=SPEC, metrics=metrics), state={}).save(
        Path("learngene")
    )
    return Path("learngene")


def test_a_long_list_is_not_printed_and_the_head_is_named(learngene: Path) -> None:
    result = CliRunner().invoke(main, ["show", "./learngene"])
    assert result.exit_code == 0, result.output
    assert "variance" not in result.stdout
    assert "chosen     1,4,7" in result.stdout
    assert "sizes      params and FLOPs with a head of 1,286 classes\n" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert json.loads(CliRunner().invoke(main, ["show", "./learngene", "--json"]).stdout)


def test_further_sizes_are_named_where_a_setting_gives_them(learngene: Path) -> None:
    config = LearngeneConfig(method="closed_form", spec=SPEC, details={"calibration": {}})
    Learngene(config=config, state={}).save(Path("solved"))
    lines = CliRunner().invoke(main, ["show", "solved", "--all"]).stdout.splitlines()
    assert "more_sizes  with --head-dim of lgzoo expand" in lines
    fixed = LearngeneConfig(method="closed_form", spec=SPEC.with_(qk_norm=True))
    Learngene(config=fixed, state={}).save(Path("fixed"))
    for name in ("./fixed", "./learngene"):
        assert "more_sizes" not in CliRunner().invoke(main, ["show", name]).stdout
    assert (
        "--head-dim of lgzoo plan pruning" in CliRunner().invoke(main, ["show", "pruning"]).stdout
    )


def test_a_model_of_texts_has_no_image_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    from learngene_zoo.artifacts.descendant import assemble
    from learngene_zoo.families.family import load_family

    monkeypatch.chdir(tmp_path)
    spec = load_family("gpt2").examples[0]
    files = {"tokenizer.json": "{}"}
    assemble(spec, {}, seed=0, mean=(), std=(), files=files).save(Path("words"))
    result = CliRunner().invoke(main, ["show", "./words"])
    assert result.exit_code == 0, result.output
    assert "image_size" not in result.stdout
    assert "mlp_ratio" in result.stdout
    shown = json.loads(CliRunner().invoke(main, ["show", "./words", "--json"]).stdout)
    assert shown["image_size"] is None
    assert (shown["vocabulary"], shown["positions"]) == (spec.vocabulary, spec.positions)
    assert shown["licence"] == "unknown"
    assert shown["validation_accuracy"] is None
    config = json.loads(Path("words", "config.json").read_text())
    config["learngene"]["metrics"] = {"task": "cola", "validation_matthews": -0.1}
    Path("words", "config.json").write_text(json.dumps(config))
    shown = json.loads(CliRunner().invoke(main, ["show", "./words", "--json"]).stdout)
    assert (shown["validation_matthews"], "validation_accuracy" in shown) == (-0.1, False)


def test_the_classes_of_a_model_are_named() -> None:
    row = json.loads(call("show", "ancestry-mini", "--json").stdout)
    record = json.loads((find_cards_folder() / "ancestry-mini" / "config.json").read_text())
    assert row["class_names"] == record["label_names"] != []
    assert f"... ({row['classes'] - 10:,} more)" in call("show", "ancestry-mini").stdout
    assert json.loads(call("show", "ancestry-words", "--json").stdout)["class_names"] == []


def test_a_language_model_shows_its_loss_and_licence() -> None:
    row = json.loads(CliRunner().invoke(main, ["show", "ancestry-words", "--json"]).stdout)
    record = json.loads((find_cards_folder() / "ancestry-words" / "config.json").read_text())
    loss = record["learngene"]["metrics"]["validation_loss"]
    assert (row["validation_loss"], row["licence"], loss < 8) == (loss, "apache-2.0", True)
    assert (row["vocabulary"], row["positions"]) == (record["vocab_size"], record["n_positions"])
    table = CliRunner().invoke(main, ["show", "ancestry-words"]).stdout
    assert [line.split() for line in table.splitlines()][-2:] == [
        ["validation_loss", f"{loss:.3f}"],
        ["licence", "apache-2.0"],
    ]
    images = json.loads(CliRunner().invoke(main, ["show", "ancestry-mini", "--json"]).stdout)
    assert images["licence"] == "apache-2.0"
    assert (row["opens_with"], images["opens_with"]) == ("transformers", "timm")
    assert images["test_accuracy"] == 0.81975
    assert not images.keys() & {"vocabulary", "positions", "validation_loss"}


def test_expand_says_when_a_budget_is_larger_than_anything_it_can_build(learngene: Path) -> None:
    result = CliRunner().invoke(main, ["expand", "--max-params", "15M"])
    assert result.exit_code == 0, result.output
    assert result.stderr.splitlines()[0].endswith(", the largest listed size (lgzoo show, --all)")
    result = CliRunner().invoke(main, ["expand", "--max-params", "29K", "-o", "small"])
    assert result.exit_code == 0, result.output
    assert "largest" not in result.stderr


def test_a_method_that_looks_at_no_images_takes_a_task_for_its_descendants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["extract", "first_k", "--task", "digits"])
    assert result.exit_code == 0, result.output
    assert result.stderr.splitlines() == [
        "note: first_k uses no data; --task only sets the task of the descendants",
        "next: lgzoo expand --layers 7 --task digits   (all sizes: lgzoo show learngene --all)",
    ]
    config = json.loads(Path("learngene/config.json").read_text())
    assert (config["purpose"]["task"], config["purpose"]["classes"], config["tasks"]) == (
        "digits",
        10,
        [],
    )


def test_no_name_is_listed_twice(learngene: Path) -> None:
    from learngene_zoo.artifacts.learngene import read_config

    expander = find_method(read_config(learngene), learngene).expander
    with pytest.raises(WrongCall) as error:
        parse_sizes(Target(), Budget(), expander, {"colour": "red"})
    names = str(error.value).partition("known: ")[2].split(", ")
    assert len(names) == len(set(names)) > 5


def test_a_method_without_a_picture_names_those_that_draw_one(learngene: Path) -> None:
    result = CliRunner().invoke(main, ["plot"])
    assert result.exit_code == 2
    assert result.stderr.startswith(
        "error: the method scratch cannot draw its learngenes; methods that can: closed_form, "
    )


def test_the_picture_of_closed_form_has_both_curves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from learngene_zoo.artifacts.learngene import load_learngene
    from learngene_zoo.artifacts.shelf import find
    from lgzoo_closed_form.closed_form import CLOSED_FORM
    from lgzoo_closed_form.plot import draw_picture

    gene = load_learngene(find("closed_form-mini"))
    depth, width = draw_picture(gene, CLOSED_FORM.expander).axes
    assert list(depth.lines[0].get_ydata()) == gene.config.details["objective"]
    assert len(width.lines[0].get_ydata()) == gene.config.spec.width
    assert width.lines[0].get_ydata()[-1] == pytest.approx(1.0, abs=1e-3)
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(main, ["plot", "closed_form-mini", "-o", "x.svg"]).exit_code == 0
    assert Path("x.svg").stat().st_size > 1000


def test_accuracies_stand_in_the_row_of_their_size_and_in_no_other() -> None:
    common: dict[str, Any] = {"width": 96, "params": 5, "flops": 7, "images": 100}
    measured = [
        Measured(task="digits", layers=4, accuracy={"descendant": 0.4}, **common),
        Measured(task="digits", layers=8, accuracy={"descendant": 0.8}, **common),
        Measured(task="signs", layers=8, size={"keep": 3}, accuracy={"descendant": 0.3}, **common),
    ]
    card = CardRecord(worth=CardResults(command="", split="test", how="", rows=tuple(measured)))
    rows: list[dict[str, Any]] = [
        {"layers": 4, "width": 96, "params": 5},
        {"layers": 8, "width": 96, "keep": 3, "params": 6},
        {"layers": 8, "width": 64},
    ]
    assert [_list_worth(row, card) for row in rows] == [
        {"digits_accuracy": 0.4},
        {"digits_accuracy": 0.8, "signs_accuracy": 0.3},
        {},
    ]
    assert _list_worth(rows[0], None) == {}


def test_settings_are_shown_as_they_are_typed(
    learngene: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"keep": 3, "flag": False, "names": ["x", "y z"], "decay": 0.4, "all": True}
    config = LearngeneConfig(
        method="scratch", spec=SPEC, settings=settings, versions={"lgzoo-toy": "0.1.0"}
    )
    Learngene(config=config, state={}).save(Path("toy"))
    monkeypatch.setattr(Plugins, "package_of", lambda self, name: {"lgzoo-toy": "0.2.0"})
    monkeypatch.setenv("COLUMNS", "200")
    shown = CliRunner().invoke(main, ["show", "toy"]).stdout
    assert "--keep 3; --no-flag; --names 'x,y z'; --decay 0.4; --all\n" in shown
    assert "made by lgzoo-toy 0.1.0; 0.2.0 is installed\n" in shown


def test_images_that_were_seen_take_the_place_of_the_setting() -> None:
    details: Any = {"calibration": {"images": 600, "ridge": 0.001}, "images": 89}
    assert _flatten(details) == {"calibration": ["ridge 0.001"], "images": 89}
    assert _flatten({**details, "images": None})["calibration"] == [
        "images 600",
        "ridge 0.001",
    ]


def test_a_pretrained_model_is_described_by_its_sizes(tmp_path: Path) -> None:
    import timm

    model = timm.create_model("deit_tiny_patch16_224", num_classes=5)
    folder = tmp_path / "mine"
    timm.models.save_for_hf(model, folder, safe_serialization=True)
    rows = [
        json.loads(call("show", name, "--json").stdout)
        for name in (str(folder), "timm:deit_tiny_patch16_224")
    ]
    assert [(row["kind"], row["family"], row["layers"], row["classes"]) for row in rows] == [
        ("pretrained", "vit", 12, 5),
        ("pretrained", "vit", 12, 1000),
    ]
    assert rows[0]["params"] == sum(weight.numel() for weight in model.parameters())
    refused = call("show", "timm:resnet50")
    assert refused.exit_code != 0
    assert "resnet50 is a model of timm.models.resnet, which is not supported" in refused.stderr


@pytest.mark.slow
def test_an_exported_file_is_described_by_its_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    from learngene_zoo.artifacts.descendant import assemble
    from learngene_zoo.families.tensors import initialise
    from learngene_zoo.lifecycle import export
    from learngene_zoo.runs.run import Run

    monkeypatch.chdir(tmp_path)
    spec = SPEC.with_(classes=12)
    names = tuple(f"kind {number}" for number in range(12))
    model = assemble(
        spec, initialise(spec, 0), seed=0, mean=(0.5,) * 3, std=(0.25,) * 3, class_names=names
    )
    export(model, "model.onnx", run=Run(device="cpu"))
    row = json.loads(call("show", "model.onnx", "--json").stdout)
    assert (row["kind"], row["classes"], row["image_size"]) == ("exported", 12, 16)
    assert (row["class_names"], row["std"]) == (list(names), [0.25] * 3)
    assert row["megabytes"] == Path("model.onnx").stat().st_size / 1e6
    assert (row["dtype"], row["output"]) == ("fp32", "logits (batch, 12)")
    table = call("show", "model.onnx").stdout
    assert "kind 9; ... (2 more)" in table
    assert "task" not in table
    assert "needs a task" in call("show", "model.onnx", "-o", "sheet.png").stderr
    Path("other.onnx").write_bytes(b"not a graph")
    assert "not a readable ONNX file" in call("show", "other.onnx").stderr


def test_weights_that_are_missing_are_named(learngene: Path) -> None:
    assert call("show", "./learngene").stderr.count("note:") == 0
    weights = learngene / "model.safetensors"
    weights.unlink()
    result = call("show", "./learngene")
    assert (result.exit_code, result.stdout.split()[0]) == (0, "learngene")
    assert "note: this is the content of config.json; learngene/model.safetensors" in result.stderr


def test_a_folder_of_neither_kind_is_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    for verb in ("show", "evaluate"):
        result = call(verb, str(tmp_path))
        assert result.exit_code == 1
        assert "is neither a learngene nor a model" in result.stderr


def test_a_flat_folder_of_texts_is_described(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"{number:02}.txt").write_text(f"line {number}")
    described = call("show", f"folder:{tmp_path}", "--json")
    assert json.loads(described.stdout)["kind"] == "text"
    assert described.stderr.startswith(f"note: {tmp_path} contains texts (00.txt) but no class ")


def test_data_without_labels_are_described(tmp_path: Path) -> None:
    table = tmp_path / "plain.csv"
    table.write_text("text\n" + "".join(f"line {number}\n" for number in range(40)))
    described = call("show", f"csv:{table}", "--json")
    row = json.loads(described.stdout)
    assert (row["kind"], row["classes"], row["class_names"]) == ("text", 0, [])
    assert (row["train"], row["validation"], row["test"]) == (36, 4, 0)
    assert described.stderr.startswith(f"note: csv:{table} has no label column, only text")
    assert "; lgzoo heal, shrink --images and extract closed_form take data" in described.stderr
    table.write_text("text,label\n" + "".join(f"line {number},a\n" for number in range(40)))
    described = call("show", f"csv:{table}")
    assert described.stderr.startswith(f"note: csv:{table} has one class (a); a task needs at ")
    # Labels that are there but wrong are an error.
    table.write_text("text,label\n" + "a,x\n" * 20 + "b,\n")
    refused = call("show", f"csv:{table}")
    assert (refused.exit_code, "line 22" in refused.stderr) == (1, True), refused.stderr
    # Without labels there must be one column of texts.
    table.write_text("first,second\n" + "a,x\n" * 40)
    refused = call("show", f"csv:{table}")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "has no label column, only first, second" in refused.stderr
