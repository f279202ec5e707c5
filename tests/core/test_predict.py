"""Predictions for image files: the same as an evaluation's, in the same order, whatever other files
are given.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image

import learngene_zoo as lg
from learngene_zoo import lifecycle, torch_hub
from learngene_zoo.artifacts.descendant import Descendant, assemble
from learngene_zoo.cli.main import main
from learngene_zoo.errors import FIELDS_OF_RUN, WrongCall
from learngene_zoo.families.picture_format import View
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.runs import progress
from learngene_zoo.runs.run import Run
from learngene_zoo.tasks.folders import open_folder
from learngene_zoo.tasks.loader import Loader

RUN = Run(threads=1, device="cpu")
SPEC = ViTSpec(layers=1, width=16, heads=2, classes=3, image_size=16, patch_size=8)
UNTRAINED = assemble(
    SPEC, {}, seed=0, scheme="fan_in", class_names=("ant", "bee", "cat"), mean=(0.1, 0.2, 0.3)
)
MODEL = replace(UNTRAINED, inherited=frozenset(UNTRAINED.state))


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Write ten images of two classes and several shapes."""
    for number in range(10):
        folder = tmp_path / "photos" / ("ant", "bee")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        shape = (20 + 3 * number, 31 - number)
        Image.effect_noise(shape, 90).convert("RGB").save(folder / f"{number}.png")
    return tmp_path / "photos"


@pytest.mark.parametrize("batch_size", [1, 3, 32])
def test_it_answers_what_an_evaluation_sees(pictures: Path, batch_size: int) -> None:
    model: Descendant = replace(MODEL, view=View(crop_pct=0.8, interpolation="bilinear"))
    task = open_folder(str(pictures))
    for split in ("train", "test"):
        (batch,) = Loader(task, split, model.input_format, batch_size=99, drop_last=False).epoch(0)
        with torch.no_grad():
            expected = model.model()(batch.inputs).softmax(dim=1)
        rows = task.split(split)
        files = [rows.rows[int(member)].where for member in rows.members]  # type: ignore[attr-defined]
        predictions = lifecycle.predict(model, files, top=3, batch_size=batch_size, run=RUN)
        for item, share_K, file in zip(predictions, expected, files, strict=True):
            assert item.image == str(file)
            assert item.classes == tuple(
                model.class_names[k] for k in share_K.argsort(descending=True)
            )
            assert item.probabilities == pytest.approx(
                share_K.sort(descending=True).values.tolist(), abs=1e-5
            )


def test_a_model_without_names_gives_numbers_and_no_more_than_it_has(pictures: Path) -> None:
    (predictions,) = lifecycle.predict(
        replace(MODEL, class_names=()), pictures / "ant" / "0.png", top=9, run=RUN
    )
    assert sorted(predictions.classes) == ["0", "1", "2"]
    assert sum(predictions.probabilities) == pytest.approx(1)


@pytest.mark.parametrize(
    ("sizes", "word"),
    [({"dense": True}, "gives every pixel a class"), ({"classes": 0}, "has no classes")],
)
def test_a_model_without_a_class_per_image_is_refused(
    sizes: dict[str, int], word: str, pictures: Path
) -> None:
    with pytest.raises(WrongCall, match=word):
        lifecycle.predict(
            assemble(SPEC.with_(**sizes), {}, seed=0), pictures / "ant" / "0.png", run=RUN
        )


@pytest.mark.parametrize("counts", [{"top": 0}, {"top": -1}, {"batch_size": 0}], ids=str)
def test_counts_below_one_are_refused(counts: dict[str, Any], pictures: Path) -> None:
    with pytest.raises(WrongCall, match=r"(top|batch_size) is .*; expected at least 1"):
        lifecycle.predict(MODEL, pictures / "ant" / "0.png", run=RUN, **counts)


def call(*words: str, stdin: str = "") -> tuple[int, str, list[str]]:
    got = CliRunner().invoke(main, ["predict", "model", *words, "--threads", "1"], input=stdin)
    assert got.exception is None or isinstance(got.exception, SystemExit), got.exception
    return got.exit_code, got.stdout, got.stderr.splitlines()


def test_files_folders_and_stdin(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(pictures)
    MODEL.save(pictures / "model")
    code, out, errors = call(
        "bee", "ant/0.png", "-", "--top", "1", stdin="ant/2.png\n\nant/4.png\n"
    )
    assert (code, errors) == (0, [])
    named = [line.partition(": ")[0] for line in out.splitlines()]
    assert named == [
        *(f"bee/{number}.png" for number in (1, 3, 5, 7, 9)),
        "ant/0.png",
        "ant/2.png",
        "ant/4.png",
    ]


def test_a_picture_without_a_model_is_for_the_one_at_hand(
    pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(pictures)
    MODEL.save(pictures / "finetuned")
    got = CliRunner().invoke(
        main, ["predict", "ant/0.png", "bee/1.png", "--top", "1", "--threads", "1"]
    )
    assert [line.partition(": ")[0] for line in got.stdout.splitlines()] == [
        "ant/0.png",
        "bee/1.png",
    ]


@pytest.mark.parametrize(
    "changes", [{}, {"inherited": frozenset({"head.bias"})}, {"provenance": {"trained_on": None}}]
)
def test_a_random_head_is_noted(
    changes: dict[str, Any], pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(pictures)
    monkeypatch.setattr(
        progress, "_printer", progress._Printer()
    )  # other tests may have printed the note already
    replace(UNTRAINED, **changes).save(pictures / "model")
    code, _, errors = call("bee", "--top", "1")
    note = "note: the head of model is random: its predictions are at chance until the model is fine-tuned"
    assert (code, errors) == (0, [] if changes else [note])


def test_pictures_that_do_not_exist_are_named_before_anything_is_loaded(
    pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(pictures)
    MODEL.save(pictures / "model")
    monkeypatch.setattr(
        lifecycle.opening, "open_answering", lambda *_: pytest.fail("the model is loaded")
    )
    expected = (
        "error: ant/7.png does not exist; give an image or a folder of images, or for a text model"
        " a .txt file or --text TEXT"
    )
    assert call("ant/7.png", "bee/8.png") == (1, "", [expected])


def test_a_picture_on_stdin_is_refused(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(pictures)
    MODEL.save(pictures / "model")
    code, out, errors = call("-", stdin="a.png\0\nb.png\n")
    assert (code, out) == (2, "")
    assert [line[:30] for line in errors] == ["error: stdin is not text; - ex"]


def test_a_broken_picture_is_one_line_and_the_rest_goes_on(
    pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(pictures)
    MODEL.save(pictures / "model")
    Path("ant/2.png").write_bytes(b"no picture")
    code, out, errors = call("ant", "nobody.png", "ant/0.png")
    assert code == 1
    assert [line.partition(": ")[0] for line in out.splitlines()] == [
        "ant/0.png",
        "ant/4.png",
        "ant/6.png",
        "ant/8.png",
        "ant/0.png",
    ]
    assert [line.split(": ")[1] for line in errors[:-1]] == ["ant/2.png", "nobody.png"]
    assert errors[-1] == "2 of 7 pictures could not be read"
    code, out, _ = call("ant", "--json", "--top", "2")
    rows = json.loads(out)
    assert code == 1
    assert [row["image"] for row in rows if "error" in row] == ["ant/2.png"]
    assert all(
        len(row["classes"]) == 2 and row["class"] == row["classes"][0]
        for row in rows
        if "error" not in row
    )


def test_a_folder_without_pictures(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(pictures)
    MODEL.save(pictures / "model")
    code, out, errors = call("model")
    assert (code, out) == (1, "")
    assert "no images in" in errors[0]


@pytest.fixture
def at_hand(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the images as the working folder, with models in it."""
    monkeypatch.chdir(pictures)
    MODEL.save(pictures / "model")
    MODEL.save(pictures / "finetuned")
    return pictures


def predict(*words: str) -> tuple[int, str, list[str]]:
    got = CliRunner().invoke(main, ["predict", *words, "--threads", "1"])
    return got.exit_code, got.stdout, got.stderr.splitlines()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (
            ["nope.jpg"],
            1,
            "error: nope.jpg does not exist; give an existing image, or a model before the image",
        ),
        (
            ["ant/nope.PNG", "ant/0.png"],
            1,
            "error: ant/nope.PNG does not exist; give an existing image",
        ),
        (["nosuch"], 2, "error: nosuch does not exist; lgzoo predict finetuned photo.jpg"),
        ([], 2, "error: missing argument 'IMAGES...'; lgzoo predict finetuned photo.jpg"),
        (["model"], 2, "error: missing argument 'IMAGES...'; lgzoo predict finetuned photo.jpg"),
        (["timm:deit_tiny_patch16_224"], 2, "error: missing argument 'IMAGES...'"),
        (
            ["model", "finetuned"],
            1,
            "error: no images in finetuned or its subfolders (3 files left out: ",
        ),
    ],
)
def test_a_call_without_pictures_says_what_is_missing(
    at_hand: Path, words: list[str], code: int, said: str
) -> None:
    got, out, errors = predict(*words)
    assert (got, out, len(errors)) == (code, "", 1)
    assert errors[0].startswith(said)


def test_paths_of_stdin_need_no_model(at_hand: Path) -> None:
    arguments = ["predict", "-", "--threads", "1"]
    got = CliRunner().invoke(main, arguments, input="ant/0.png\nbee/1.png\n")
    assert got.exit_code == 0, got.stderr
    assert got.stdout == predict("finetuned", "ant/0.png", "bee/1.png")[1]


def test_a_folder_of_pictures_needs_no_model_and_is_read_to_its_leaves(at_hand: Path) -> None:
    (at_hand / "bee" / "deep" / "er").mkdir(parents=True)
    (at_hand / "bee" / "1.png").rename(at_hand / "bee" / "deep" / "er" / "1.jfif")
    (at_hand / "bee" / "notes.txt").write_text("bees")
    (at_hand / "bee" / "gone.png").symlink_to("nowhere")
    code, out, errors = predict("bee")
    assert code == 0
    named = [line.partition(": ")[0] for line in out.splitlines()]
    assert named == [
        f"bee/{name}" for name in ("3.png", "5.png", "7.png", "9.png", "deep/er/1.jfif")
    ]
    assert errors == [
        "note: 1 file left out: 1 .txt; first: bee/notes.txt",
        "note: 1 link that leads nowhere left out; first: bee/gone.png",
    ]
    assert predict("bee", "--quiet")[2] == []


def test_every_kind_of_bad_picture_is_named_and_the_others_are_answered(at_hand: Path) -> None:
    Image.new("L", (60_000, 1)).save("ant/strip.png")
    Path("ant/cut.png").write_bytes(Path("ant/0.png").read_bytes()[:200])
    Path("ant/empty.png").write_bytes(b"")
    code, out, errors = predict("ant", "--top", "1")
    assert code == 1
    assert len(out.splitlines()) == 5
    assert [line.split(": ")[1] for line in errors[:-1]] == [
        "ant/cut.png",
        "ant/empty.png",
        "ant/strip.png",
    ]
    assert errors[-1] == "3 of 8 pictures could not be read"


def test_deep_grey_is_answered_as_training_saw_it_and_noted_once(at_hand: Path) -> None:
    for name in ("12bit", "13bit"):
        deep = np.arange(400, dtype=np.uint16).reshape(20, 20) * 10
        Image.fromarray(deep).save(f"ant/{name}.png")
    Image.fromarray((deep >> 4).astype(np.uint8)).save("ant/8bit.png")
    code, out, errors = predict("ant/12bit.png", "ant/13bit.png", "ant/8bit.png")
    assert code == 0
    assert errors == [
        "note: ant/12bit.png is grey of more than 8 bits; such images are scaled by the bits in"
        " use, else by percentiles (docs/tasks.md)"
    ]
    assert len({line.partition(": ")[2] for line in out.splitlines()}) == 1


def test_the_default_number_of_classes_is_that_of_the_command_line() -> None:
    from inspect import signature

    from learngene_zoo.cli.evaluation.predict import command
    from learngene_zoo.training.predict import predict

    options = {option.name: option.default for option in command.params}
    for name in ("top", "batch_size"):
        assert signature(predict).parameters[name].default == options[name]
    assert options["top"] == 5


def test_python_takes_a_folder_of_pictures(at_hand: Path) -> None:
    files = sorted(map(str, Path("ant").iterdir()))
    forms: list[Any] = ["ant", Path("ant"), "folder:ant", ["ant"]]
    for images in forms:
        assert sorted(p.image for p in lg.predict("finetuned", images)) == files
    Path("empty").mkdir()
    for images, words in (
        ("empty", "no images in empty"),
        ("folder:none", "no folder none"),
        ("none", "none does not exist; give an image or a folder"),
    ):
        with pytest.raises(WrongCall, match=words):
            lg.predict("finetuned", images)


def test_python_warns_once_of_a_random_head(at_hand: Path) -> None:
    UNTRAINED.save(Path("untrained"))
    words = "the head of untrained is random: its predictions are at chance"
    with pytest.warns(lg.TrainingWarning, match=words) as caught:
        lg.predict("untrained", "ant")
    assert [Path(warning.filename).name for warning in caught] == ["test_predict.py"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lg.predict("finetuned", "ant")
        lg.predict("untrained", "none.png")


def test_a_missing_model_is_named_as_on_the_command_line(at_hand: Path) -> None:
    words = "there is no model at {0}; build one with `lgzoo expand --layers 7 -o {0}`"
    for name in ("nope", "./nope/deep", "../nope", Path("nope")):
        with pytest.raises(WrongCall) as raised:
            lg.predict(name, "ant")
        assert str(raised.value) == words.format(Path(name))
    with pytest.raises(WrongCall, match="no model at finetund; did you mean finetuned"):
        lg.evaluate("finetund")
    for is_finished, hint in ((False, "gone.run has not finished"), (True, "build one with")):
        Path("gone.run").mkdir(exist_ok=True)
        Path("gone.run/run.json").write_text(json.dumps({"finished": is_finished}))
        with pytest.raises(WrongCall, match=hint):
            lg.evaluate("gone")


@pytest.mark.parametrize(
    ("function", "name", "known"),
    [
        (lg.predict, "topk", "top"),
        (lg.evaluate, "tasks", "task"),
        (lg.compare, "splits", "split"),
        (lg.export, "dtpe", "dtype"),
        (lg.train, "recpe", "recipe"),
        (lg.plan, "targt", "target"),
        (lg.plot, "forced", "force"),
        (lg.convert, "formats", "format"),
        (lg.load, "oflline", "offline"),
        (lg.expand, "layer", "layers"),
        (lg.finetune, "epoch", "epochs"),
        (lg.shrink, "candidate", "candidates"),
        (lg.recommend, "max_param", "max_params"),
    ],
)
def test_an_unknown_argument_is_refused_with_the_nearest(
    function: Any, name: str, known: str, at_hand: Path
) -> None:
    from inspect import signature

    needed = [
        parameter.name
        for parameter in signature(function).parameters.values()
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
    ]
    given = dict.fromkeys(needed, "digits") | {name: 1}
    if function is lg.expand:
        given["learngene"] = "closed_form-mini"
    if function is lg.finetune:
        given["model"] = "finetuned"
    with pytest.raises(WrongCall, match=f"named '{name}'; did you mean {known}"):
        function(**given)


def test_the_fields_of_a_run_and_other_functions_are_named(at_hand: Path) -> None:
    wrong: Any = {"device": "cpu"}
    functions: tuple[Any, ...] = (
        partial(lg.shrink, task="digits"),
        partial(lg.evaluate, "finetuned"),
        partial(lg.expand, "closed_form-mini"),
        partial(lg.extract, "first_k"),
        partial(lg.finetune, "finetuned"),
        partial(lg.heal, "finetuned", "digits"),
    )
    for function in functions:
        with pytest.raises(WrongCall, match=r"it is a field of Run: run=Run\(device=\.\.\.\)"):
            function(**wrong)
    without_run: tuple[Any, ...] = (
        partial(lg.load, "lsamd-mini"),
        partial(lg.plan, "lsamd"),
        partial(torch_hub.build, "closed_form-mini"),
    )
    for function in without_run:
        with pytest.raises(WrongCall, match="resume") as raised:
            function(resume=True)
        assert "Run(" not in str(raised.value)
    assert {field.name for field in fields(Run)} >= FIELDS_OF_RUN
    for name in ("run", "out", "force", "target", "budget", "expander"):
        with pytest.raises(WrongCall, match=f"no size or setting named '{name}'"):
            torch_hub.build("closed_form-mini", **{name: None})
    wrong = {"probe": "ridge"}
    with pytest.raises(WrongCall, match=r"no argument 'probe'; call learngene_zoo.probe"):
        lg.evaluate("finetuned", **wrong)


def test_arguments_of_another_type_are_refused(at_hand: Path) -> None:
    wrong: Any
    for wrong in (3, [3], torch.zeros(1, 3, 8, 8)):
        with pytest.raises(
            WrongCall, match=r"images has a value of type .*; expected paths of images"
        ):
            lg.predict("finetuned", wrong)
    wrong = None
    with pytest.raises(WrongCall, match="the method is given as an object; give its name, 'leap'"):
        lg.extract(SimpleNamespace(name="leap"))  # type: ignore[arg-type]
    with pytest.raises(WrongCall, match="the method is None; expected the name of one"):
        lg.extract(wrong)
    wrong = [5]
    with pytest.raises(WrongCall, match="expected a whole number, or a text such as '5M'"):
        lg.shrink(task="digits", max_params=wrong)


def test_images_of_pillow_have_the_answers_of_their_files(pictures: Path) -> None:
    path = pictures / "ant" / "0.png"
    with Image.open(path) as opened:
        opened.load()
        copied = opened.copy()
        [stored] = lifecycle.predict(MODEL, path, run=RUN)
        for images, name in ((opened, str(path)), ([copied], "an image")):
            assert lifecycle.predict(MODEL, images, run=RUN) == [replace(stored, image=name)]
