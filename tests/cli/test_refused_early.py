"""A call that cannot succeed is refused before torch and timm are imported, which takes seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.ownership import mark_workspace

# Runs the calls that it reads, each in a process of its own with the command line already imported.
# Instead of importing torch (as timm does), such a process ends with 77.
WITHOUT_TORCH = """
import json, os, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "transformers", "datasets"):
            print("imports", name, file=sys.stderr, flush=True)
            os._exit(77)

sys.meta_path.insert(0, Watch())
import learngene_zoo.lifecycle
from learngene_zoo.cli.main import main
from learngene_zoo.method.installed import METHODS

METHODS.references()
for line in sys.stdin:
    *paths, words = json.loads(line)
    child = os.fork()
    if not child:
        for number, path in enumerate(paths):
            os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
        main(words, prog_name="lgzoo")
        sys.exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
EXISTS = (
    "error: {} already exists; choose another path with -o, or replace it with --force; for"
    " example: lgzoo "
)
IN_THE_WAY = (
    "error: {0}/notes is a file, so {0}/notes/new cannot be created; choose another path with -o\n"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model and a learngene at the default output paths, and a file."""
    from learngene_zoo.artifacts.descendant import assemble
    from learngene_zoo.artifacts.learngene import Learngene
    from learngene_zoo.artifacts.records import LearngeneConfig

    root = tmp_path_factory.mktemp("early")
    spec = ViTSpec(layers=2, width=16, heads=2, classes=2, image_size=16, patch_size=8)
    for name in ("ancestry", "descendant", "finetuned"):
        assemble(spec, {}, seed=0).save(root / name)
    Learngene(config=LearngeneConfig(method="scratch", spec=spec), state={}).save(
        root / "learngene"
    )
    for name in ("notes", "model.onnx", "learngene.png", "numbers.json"):
        (root / name).write_text("mine")
    (root / "hollow" / "roses").mkdir(parents=True)
    (root / "photos" / "red").mkdir(parents=True)
    (root / "photos" / "red" / "1.png").write_text("its size is not read")
    (root / "begun.run" / "checkpoint-1").mkdir(parents=True)
    (root / "begun.run" / "run.json").write_text('{"verb": "x"}')
    mark_workspace(root / "begun.run", "run")
    return root


NO_FOLDER = "error: there is no folder nowhere; give a folder of images "
NO_TIMM_MODEL = "error: no timm model named 'deit_tiny'; did you mean deit_tiny_patch16_224?\n"
NO_LEARNGENE = "error: no folder or learngene named 'nope'; `lgzoo list learngenes --all` lists all"
CALLS = {
    "extract first_k": (1, EXISTS.format("learngene") + "extract first_k -o learngene-2\n"),
    "extract first_k -o ancestry": (
        1,
        EXISTS.format("ancestry") + "extract first_k -o ancestry-2\n",
    ),
    "expand": (1, EXISTS.format("descendant") + "expand -o descendant-2\n"),
    "expand --layers 1 -o ./descendant/": (
        1,
        EXISTS.format("descendant") + "expand --layers 1 -o descendant-2\n",
    ),
    "finetune": (1, EXISTS.format("finetuned") + "finetune -o finetuned-2\n"),
    "heal --images digits -o finetuned": (
        1,
        EXISTS.format("finetuned") + "heal --images digits -o finetuned-2\n",
    ),
    "shrink --task digits --max-params 1K -o finetuned": (
        1,
        EXISTS.format("finetuned") + "shrink --task digits --max-params 1K -o finetuned-2\n",
    ),
    "train": (1, EXISTS.format("ancestry") + "train -o ancestry-2\n"),
    "export": (1, EXISTS.format("model.onnx") + "export -o model-2.onnx\n"),
    "plot": (1, EXISTS.format("learngene.png") + "plot -o learngene-2.png\n"),
    "evaluate --task digits -o numbers.json": (
        1,
        EXISTS.format("numbers.json") + "evaluate --task digits -o numbers-2.json\n",
    ),
    "new-plugin mine -o notes": (
        1,
        "error: notes already exists; choose another path with -o; for example: lgzoo new-plugin "
        "mine -o notes-2\n",
    ),
    "new-plugin lsamd": (
        2,
        "error: the name lsamd is already used by an installed plugin; choose another name\n",
    ),
    "new-plugin digits": (2, "error: digits is the name of a task; choose another name\n"),
    "new-plugin import": (
        2,
        "error: import cannot name a plugin, whose package is lgzoo_NAME; choose another\n",
    ),
    "new-plugin lgzoo_tal": (
        2,
        "error: lgzoo_tal cannot name a plugin, whose package is lgzoo_NAME; choose another\n",
    ),
    "extract first_k -o notes/new": (1, IN_THE_WAY),
    "expand -o notes/new": (1, IN_THE_WAY),
    "finetune -o notes/new": (1, IN_THE_WAY),
    "heal --images digits -o notes/new": (1, IN_THE_WAY),
    "shrink --task digits --max-params 1K -o notes/new": (1, IN_THE_WAY),
    "train -o notes/new": (1, IN_THE_WAY),
    "export -o notes/new.onnx": (1, IN_THE_WAY.replace("/new ", "/new.onnx ")),
    "bench -o notes": (1, "error: notes is a file, not a folder; choose another path with -o\n"),
    "demo -o notes": (1, "error: notes is a file, not a folder; choose another path with -o\n"),
    "finetune -o begun": (
        1,
        (
            "error: an unfinished run is in begun.run (x); continue it with --resume or start over "
            "with --force\n"
        ),
    ),
    "extract frist_k -o new": (2, "error: no method named 'frist_k'; did you mean first_k?\n"),
    "extract lsamd --task sings -o new": (2, "error: no task named 'sings'; did you mean signs? "),
    "finetune --task sings -o new": (2, "error: no task named 'sings'; did you mean signs? "),
    "heal --images sings -o new": (2, "error: no task named 'sings'; did you mean signs? "),
    "heal --images digits --task sings -o new": (
        2,
        "error: no task named 'sings'; did you mean signs? ",
    ),
    "shrink --task sings --max-params 1K -o new": (
        2,
        "error: no task named 'sings'; did you mean signs? ",
    ),
    "shrink --task sentiment --max-params 1K -o new": (
        2,
        "error: sentiment is a text task, and the model takes images; give an image task, or a "
        "text model\n",
    ),
    "expand --task sings -o new": (2, "error: no task named 'sings'; did you mean signs? "),
    "train --task sings -o new": (2, "error: no task named 'sings'; did you mean signs? "),
    "evaluate --task sings": (2, "error: no task named 'sings'; did you mean signs? "),
    "compare descendant finetuned --task sings": (
        2,
        "error: no task named 'sings'; did you mean signs? ",
    ),
    "recommend --task sings": (2, "error: no task named 'sings'; did you mean signs? "),
    "bench sings -o new": (2, "error: no suite or task named 'sings'; did you mean signs?"),
    "bench --method nope -o new": (2, "error: no method named 'nope'; similar: "),
    **dict.fromkeys(
        (
            "extract first_k --image-size 33 -o new",
            "evaluate bundled --probe ridge --task digits --image-size 33",
            "train --task digits --image-size 33 -o new",
            "plan first_k --image-size 33",
        ),
        (
            2,
            "error: patches of 8 pixels do not tile an image of 33; choose an image size of 32 or"
            " 40\n",
        ),
    ),
    "extract first_k --ancestry nowhere -o new": (
        2,
        "error: no file or folder nowhere to open as an ancestry model\n",
    ),
    **dict.fromkeys(
        (
            "extract first_k --ancestry timm:deit_tiny -o new",
            "plan first_k --ancestry timm:deit_tiny",
            "shrink timm:deit_tiny --task digits --max-params 1K -o new",
            "heal --images digits --teacher timm:deit_tiny -o new",
            "finetune timm:deit_tiny --task digits -o new",
            "evaluate timm:deit_tiny --task digits",
            "compare timm:deit_tiny descendant",
            "export timm:deit_tiny -o new.onnx",
            "bench --ancestry timm:deit_tiny -o new",
        ),
        (2, NO_TIMM_MODEL),
    ),
    **dict.fromkeys(
        (
            "extract closed_form --task folder:nowhere -o new",
            "expand --task folder:nowhere -o new",
            "heal --images folder:nowhere -o new",
            "finetune --task folder:nowhere -o new",
            "shrink --task folder:nowhere --max-params 1K -o new",
            "shrink --images folder:nowhere --max-params 1K -o new",
            "evaluate finetuned --task folder:nowhere",
            "recommend --task folder:nowhere",
            "train --task folder:nowhere -o new",
            "bench folder:nowhere -o new",
            "show folder:nowhere",
            "doctor --task folder:nowhere",
        ),
        (1, NO_FOLDER),
    ),
    "finetune --task parquet:nowhere -o new": (
        1,
        "error: there is no file or folder nowhere; give a .parquet file or a folder of them\n",
    ),
    **dict.fromkeys(
        ("finetune --task csv:nowhere -o new", "heal --images csv:nowhere:text=a+b -o new"),
        (1, "error: there is no file or folder nowhere; give a .csv file or a folder of them\n"),
    ),
    "show jsonl:nowhere": (
        1,
        "error: there is no file or folder nowhere; give a .jsonl file or a folder of them\n",
    ),
    "doctor --task sings": (2, "error: no task named 'sings'; did you mean signs? "),
    "recommend nope --task digits": (2, NO_LEARNGENE),
    "expand nope -o new": (2, NO_LEARNGENE),
    "expand lsamd --layers 70000 -o new": (
        2,
        "error: invalid value for '--layers' / '--depth': 70000 is out of range; ",
    ),
    "expand lsamd --layers 2 -o new": (
        2,
        "error: 2 layers are fewer than the 5 blocks this learngene keeps; choose 5 or more, ",
    ),
    "expand lsamd --width 64 -o new": (2, "error: width is 64, but all descendants of this "),
    "expand closed_form --width 65 -o new": (
        2,
        "error: width is 65, which is not a multiple of the head width of 32; choose 64, ",
    ),
    **{
        f"expand {name} --layers {layers} -o new": (
            2,
            f"error: layers is {layers}; the ancestry model has 12",
        )
        for layers, names in {
            13: ("closed_form", "weight_selection", "weight_subcloning", "first_k", "last_k"),
            7: ("growth", "ligo"),
        }.items()
        for name in names
    },
    **dict.fromkeys(
        (
            "expand closed_form --max-params 10 -o new",
            "expand closed_form --max-params 10 --task digits -o new",
        ),
        (2, "error: no descendant fits within 10 parameters; the smallest has 1 layer of width "),
    ),
    "plot first_k -o new.png": (
        2,
        "error: the method first_k cannot draw its learngenes; methods that can: closed_form, ",
    ),
    "plot lsamd -o new.gif": (2, "error: expected a file name that ends in .png or .svg, got "),
    "export finetuned -o photos": (
        2,
        "error: expected a path that ends in .onnx or .pt2, got photos\n",
    ),
    "bench digits --method first_k --extract-task digits -o new": (
        2,
        "error: no task is read by the extraction of first_k; leave out --extract-task\n",
    ),
    "export finetuned -o new.tflite": (
        2,
        "error: expected a path that ends in .onnx or .pt2, got new.tflite\n",
    ),
    "extract lsamd --keep 99 -o new": (
        2,
        "error: keep names block 99, but the ancestry model has blocks 1 to 12\n",
    ),
    "extract cluster_lg --ancestry timm:vit_small_patch16_dinov3 --task digits -o new": (
        2,
        "error: cluster_lg does not support models of the family 'eva', only timm's ",
    ),
    "extract closed_form --task folder:hollow -o new": (
        1,
        "error: hollow contains no files; give a folder of images\n",
    ),
    "shrink nowhere --task digits --max-params 1K -o new": (
        2,
        "error: no file or folder nowhere to open as an ancestry model\n",
    ),
    "shrink --task digits -o new": (2, "error: no bound is given; give at least one of "),
    **dict.fromkeys(
        (
            "shrink --task digits --max-params 5K -o new",
            "shrink --task digits --max-params 5K --plan",
        ),
        (
            2,
            "error: no descendant fits within 5K parameters; the smallest has 1 layer of width "
            "32, 19.85K parameters (19850) and 334.18K FLOPs (334176)\n",
        ),
    ),
    "shrink --task folder:photos --max-params 5K --plan": (
        2,
        "error: no descendant fits within 5K parameters; even without a head the smallest has "
        "1 layer of width ",
    ),
    "shrink --task digits --max-params 5M --plan": (
        2,
        "error: the model itself is within the budget (1.36M parameters, ",
    ),
    "evaluate nowhere.onnx": (
        2,
        "error: there is no file nowhere.onnx; write one with `lgzoo export MODEL -o nowhere.onnx`\n",
    ),
    "publish nowhere me/new": (2, "error: there is no folder nowhere; publish what "),
    "finetune desendant -o new": (
        2,
        "error: there is no model at desendant; did you mean descendant?\n",
    ),
    "evaluate nowhere": (
        2,
        (
            "error: there is no model at nowhere; build one with `lgzoo expand --layers 7 -o"
            " nowhere`\n"
        ),
    ),
    "predict nowhere pic.png": (
        2,
        (
            "error: there is no model at nowhere; build one with `lgzoo expand --layers 7 -o"
            " nowhere`\n"
        ),
    ),
    "export learngene": (
        2,
        (
            "error: learngene is a learngene, not a model; build one with `lgzoo expand learngene`"
            " (its sizes: lgzoo show learngene --all)\n"
        ),
    ),
}


Call = Callable[[list[str]], tuple[int, str, str]]


@pytest.fixture(scope="module")
def call(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Call]:
    """Return a function that runs words and returns their exit code, stdout and stderr."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    outputs = [tmp_path_factory.mktemp("outputs") / name for name in ("stdout", "stderr")]
    with subprocess.Popen(
        [sys.executable, "-c", WITHOUT_TORCH],
        env=environment,
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:

        def run(words: list[str]) -> tuple[int, str, str]:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps([os.devnull, *map(str, outputs), words]) + "\n")
            process.stdin.flush()
            code = int(process.stdout.readline())
            stdout, stderr = (path.read_text(encoding="utf-8") for path in outputs)
            return code, stdout, stderr

        yield run


@pytest.mark.parametrize("line", CALLS)
def test_a_wrong_call_is_refused_without_torch(line: str, folder: Path, call: Call) -> None:
    expected_code, message = CALLS[line]
    code, stdout, stderr = call(line.split())
    assert stderr.startswith(message.format(folder)), stderr
    assert (code, stdout, stderr.count("\n")) == (expected_code, "", 1)


def test_what_may_succeed_does_import_it(call: Call) -> None:
    assert call(["extract", "first_k", "-o", "new"])[0] == 77
