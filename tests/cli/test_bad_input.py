"""Bad input gets one line that names the thing and the remedy, the right exit code, and loses nothing.

Every case runs in a folder that holds a small ancestry model, learngenes, models and pictures; whatever existed before the
call must be there afterwards, byte for byte.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pickle
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from learngene_zoo.atomic import explained
from learngene_zoo.cli.main import main
from learngene_zoo.families.vit.spec import ViTSpec

WRONG, FAILED = 2, 1
SPEC = ViTSpec(layers=3, width=32, heads=2, classes=2, image_size=16, patch_size=8)
BRIEF = "--epochs 1 --images 8 --batch-size 4"

Change = Callable[[Path], Any]


@dataclass(frozen=True)
class Case:
    """A line, what is done to the folder before it, the exit code, and words that the error must hold."""

    line: str
    code: int
    words: tuple[str, ...]
    change: Change | None = None

    @property
    def name(self) -> str:
        """For pytest's output."""
        return f"{self.line[:60]} -> {self.words[0][:40]}"


# --- what is done to the folder ---------------------------------------------------------------------------------------


def edit(path: str, **values: Any) -> Change:
    """Change keys of a JSON file; a value of ... drops the key; a double underscore goes one object deeper."""

    def change(root: Path) -> None:
        data = json.loads((root / path).read_text())
        for name, value in values.items():
            *outer, last = name.split("__")
            place = data
            for key in outer:
                place = place[key]
            if value is ...:
                del place[last]
            else:
                place[last] = value
        (root / path).write_text(json.dumps(data))

    return change


def write(path: str, content: bytes | str) -> Change:
    data = content.encode() if isinstance(content, str) else content

    def change(root: Path) -> None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)

    return change


def remove(path: str) -> Change:
    def change(root: Path) -> None:
        target = root / path
        shutil.rmtree(target) if target.is_dir() else target.unlink()

    return change


def cut(path: str, keep: float) -> Change:
    def change(root: Path) -> None:
        data = (root / path).read_bytes()
        (root / path).write_bytes(data[: int(len(data) * keep)])

    return change


def retensor(path: str, alter: Callable[[dict[str, Any]], Any]) -> Change:
    """Change the tensors of a safetensors file."""

    def change(root: Path) -> None:
        from safetensors.torch import load_file, save_file

        state = {name: tensor.clone() for name, tensor in load_file(root / path).items()}
        alter(state)
        (root / path).unlink()
        save_file(state, root / path)

    return change


def unfinished(folder: str, **record: Any) -> Change:
    """A run's folder as a killed run leaves it."""
    return write(
        f"{folder}/run.json", json.dumps({"verb": "x", "seed": 0, "settings": {}, "finished": False, **record})
    )


def poison(state: dict[str, Any]) -> None:
    state["blocks.0.attn.qkv.weight"][0, 0] = float("nan")


def reshape(state: dict[str, Any]) -> None:
    state["blocks.0.norm1.weight"] = state["blocks.0.norm1.weight"][:5].clone()


def foreign(state: dict[str, Any]) -> None:
    tensor = next(iter(state.values())).clone()
    state.clear()
    state["encoder.layer.0.weight"] = tensor


def both(*changes: Change) -> Change:
    def change(root: Path) -> None:
        for one in changes:
            one(root)

    return change


WEIGHTS, CONFIG = "learngene/model.safetensors", "learngene/config.json"
MODEL, MODEL_CONFIG = "model/model.safetensors", "model/config.json"
PICKLE = pickle.dumps({"blocks.0.norm1.weight": [1.0]})
LYING_HEADER = struct.pack("<Q", 2**40) + b"{}"

CALLS = [
    Case("exract lsamd", WRONG, ("no command named 'exract'", "did you mean extract?")),
    Case("extract lsmd", WRONG, ("no method named 'lsmd'", "did you mean lsamd?")),
    Case("plan lsmd", WRONG, ("no method named 'lsmd'", "did you mean lsamd?")),
    Case("show digit", WRONG, ("'digit'", "did you mean digits?")),
    Case("show ./nowhere", WRONG, ("nowhere", "lgzoo extract")),
    Case("list modules", WRONG, ("'modules'", "did you mean methods?")),
    Case("completion tcsh", WRONG, ("'tcsh'", "'bash', 'zsh', 'fish'")),
    Case("extract lsamd --rooting batch", WRONG, ("no option named --rooting", "did you mean --routing?")),
    Case("expand learngene --laers 2", WRONG, ("no option named --laers", "did you mean --layers?")),
    Case("expand learngene --priorty x", WRONG, ("no option named --priorty", "did you mean --priority?")),
    Case("expand learngene --priority up", WRONG, ("--priority", "'up'", "'last-middle-first'")),
    Case("extract lsamd --preset papper", WRONG, ("no preset of lsamd named 'papper'", "did you mean paper?")),
    Case("extract lsamd --ancestry ancestry --task obects -o new", WRONG, ("'obects'", "did you mean objects?")),
    Case(
        "extract lsamd --ancestry ancestry --task folder:photos --task folder:photos -o new",
        WRONG,
        ("photos is named twice", "once"),
    ),
    Case("extract scratch --ancestry timm:deit_bse_patch16_224", WRONG, ("deit_bse_patch16_224", "did you mean")),
    Case("extract scratch --ancestry ./nowhere", WRONG, ("nowhere",)),
    Case("plan lsamd --ancestry timm:resnet18", WRONG, ("resnet18", "not supported; supported are")),
    Case("extract lsamd --ancestry ancestry --ancestry ancestry", WRONG, ("lsamd takes 1", "not 2")),
    Case("evaluate model --task nonsense", WRONG, ("'nonsense'",)),
    Case("evaluate model --split holdout", WRONG, ("--split", "'holdout'", "'test'")),
    Case("evaluate model --task folder:photos --device tpu", WRONG, ("tpu", "cpu")),
    Case("evaluate model --precision fp8", WRONG, ("--precision", "'fp8'", "'bf16'")),
    Case("plan lsamd --convention mine", WRONG, ("--convention", "'mine'", "'thop'")),
    Case("plan lsamd --ancestry ancestry --layers 99", WRONG, ("lsamd builds no such size", "--layers")),
    Case("expand learngene --seed -1", WRONG, ("--seed", "-1")),
    Case("expand learngene --threads 0", WRONG, ("--threads", "0")),
    Case("expand learngene extra", WRONG, ("extra", "--help")),
    Case("expand learngene --layers seven", WRONG, ("--layers", "'seven'")),
    Case("expand learngene --layers 0", WRONG, ("--layers", "0")),
    Case("extract lsamd --top 0", WRONG, ("'--top': 0 is out of range", "at least 1")),
    Case("extract lsamd --keep 9 --ancestry ancestry --task folder:photos -o new", WRONG, ("block 9", "1 to 3")),
    Case("finetune model --lr -1", WRONG, ("'--lr': -1 is out of range", "above 0")),
    Case("finetune model --batch-size 10 --accumulate 3", WRONG, ("accumulate is 3", "10")),
    Case("finetune model --drop-path 1.5", WRONG, ("'--drop-path': 1.5 is out of range", "at least 0 and below 1")),
    Case("finetune model --epochs many", WRONG, ("--epochs", "'many'")),
    Case(f"finetune model --task folder:photos --tracker nosuch {BRIEF}", WRONG, ("nosuch", "tensorboard")),
]

SIZES = [
    Case("train --task folder:photos --width 30 --heads 4", WRONG, ("4 heads do not divide a width of 30", "try 3")),
    Case("train --task folder:photos --image-size 33", WRONG, ("patches of 8", "33")),
    Case("train --task folder:photos --layers 9999", WRONG, ("layers is 9999", "512")),
    Case("expand scratched --heads 3", WRONG, ("3 heads do not divide a width of 32", "try 2")),
    Case("expand scratched --layers 513", WRONG, ("layers is 513", "512")),
    Case("expand learngene --layers 1", WRONG, ("1", "2")),
    Case(
        "expand learngene --width 64",
        WRONG,
        ("width is 64", "all descendants of this learngene have width 32", "layers, classes, image_size"),
    ),
    Case("expand learngene --max-params 1K", WRONG, ("1.00K parameters", "smallest", "2 layers")),
    Case("expand learngene --max-flops 10 --max-params 20M", WRONG, ("10 FLOPs", "smallest")),
    Case("expand learngene --max-latency 1us", WRONG, ("at most 1us", "smallest", "on this machine")),
    Case("expand learngene --max-params 20Q", WRONG, ("'20Q'", "20M")),
    Case("expand learngene --max-params=-3M", WRONG, ("'-3M'", "20M")),
    Case("expand learngene --max-flops nan", WRONG, ("'nan'", "3G")),
    Case("expand learngene --max-latency 15", WRONG, ("'15'", "15ms")),
]

PLACES = [
    Case("expand", WRONG, ("no learngene at ./learngene", "lgzoo extract"), remove("learngene")),
    Case("finetune", WRONG, ("no model at ./descendant", "lgzoo expand")),
    Case("evaluate", WRONG, ("no model at ./finetuned or ./descendant", "lgzoo expand")),
    Case("expand model --layers 2", FAILED, ("model is a model, not a learngene", "lgzoo finetune")),
    Case("finetune learngene", WRONG, ("learngene is a learngene, not a model", "lgzoo expand learngene")),
    Case("evaluate learngene", WRONG, ("learngene is a learngene, not a model", "lgzoo expand learngene")),
    Case("extract scratch --ancestry learngene", FAILED, ("learngene",)),
    Case("expand learngene --layers 2 -o model", FAILED, ("model already exists", "--force")),
    Case("extract scratch --ancestry ancestry -o learngene", FAILED, ("learngene already exists", "--force")),
    Case(f"finetune model --task folder:photos {BRIEF} -o learngene", FAILED, ("learngene already exists", "--force")),
    Case("train --task folder:photos -o learngene", FAILED, ("learngene already exists", "--force")),
    Case("evaluate model --task folder:photos -o model/config.json", FAILED, ("config.json already exists", "--force")),
    Case("plot learngene -o notes.png", FAILED, ("notes.png already exists", "--force"), write("notes.png", "mine")),
    Case("plot learngene -o notes.jpg", WRONG, ("notes.jpg", ".png or .svg")),
    Case("plot scratched -o new.png", WRONG, ("scratch draws no picture",)),
    Case("expand learngene --layers 2 -o notes --force", FAILED, ("notes is a file", "-o"), write("notes", "mine")),
    Case("expand learngene --layers 2 -o notes/new", FAILED, ("notes is a file", "-o"), write("notes", "mine")),
    Case("expand learngene --layers 2 -o . --force", FAILED, ("the current folder", "-o")),
    Case(
        f"finetune model --task folder:photos {BRIEF} -o new",
        FAILED,
        ("unfinished run is in new.run", "--resume", "--force"),
        unfinished("new.run"),
    ),
    Case(
        f"finetune model --task folder:photos {BRIEF} -o new --resume",
        FAILED,
        ("started with other settings", "verb: x then, finetune now"),
        unfinished("new.run"),
    ),
    Case(
        f"finetune model --task folder:photos {BRIEF} -o new --force",
        FAILED,
        ("not the folder of a run", "-o"),
        write("new.run/notes.txt", "mine"),
    ),
]

FILES = [
    Case("expand learngene --layers 2", FAILED, ("model.safetensors",), cut(WEIGHTS, 0.5)),
    Case("expand learngene --layers 2", FAILED, ("model.safetensors",), cut(WEIGHTS, 0.0001)),
    Case("expand learngene --layers 2", FAILED, ("model.safetensors", "safetensors file"), write(WEIGHTS, b"x" * 4096)),
    Case(
        "expand learngene --layers 2", FAILED, ("model.safetensors", "safetensors file"), write(WEIGHTS, LYING_HEADER)
    ),
    Case("expand learngene --layers 2", FAILED, ("model.safetensors", "safetensors file"), write(WEIGHTS, PICKLE)),
    Case("expand learngene --layers 2", FAILED, ("model.safetensors does not exist",), remove(WEIGHTS)),
    Case("expand learngene --layers 2", FAILED, ("qkv.weight", "not finite"), retensor(WEIGHTS, poison)),
    Case("expand learngene --layers 2", FAILED, ("norm1.weight",), retensor(WEIGHTS, reshape)),
    Case("expand learngene --layers 2", FAILED, ("lacks the tensor",), retensor(WEIGHTS, foreign)),
    Case("evaluate model --task folder:photos", FAILED, ("model.safetensors",), cut(MODEL, 0.7)),
    Case("evaluate model --task folder:photos", FAILED, ("not finite",), retensor(MODEL, poison)),
    Case("evaluate model --task folder:photos", FAILED, ("norm1.weight",), retensor(MODEL, reshape)),
    Case("evaluate model --task folder:photos", FAILED, ("model.safetensors",), retensor(MODEL, foreign)),
    Case("evaluate model --task folder:photos", FAILED, ("model.safetensors",), write(MODEL, PICKLE)),
    Case(
        "extract scratch --ancestry weights.pth", FAILED, ("weights.pth", "safetensors"), write("weights.pth", PICKLE)
    ),
    Case("extract scratch --ancestry ancestry", FAILED, ("ancestry",), cut("ancestry/model.safetensors", 0.5)),
    Case(
        "extract scratch --ancestry ancestry",
        FAILED,
        ("ancestry", "safetensors"),
        both(remove("ancestry/model.safetensors"), write("ancestry/pytorch_model.bin", PICKLE)),
    ),
]

CONFIGS = [
    Case("expand learngene", FAILED, ("config.json does not exist",), remove(CONFIG)),
    Case("show learngene", FAILED, ("format is 99", "format 1"), edit(CONFIG, format=99)),
    Case("show learngene", FAILED, ("format is None", "format 1"), edit(CONFIG, format=...)),
    Case("expand learngene", FAILED, ("layers is 1000000000", "512"), edit(CONFIG, spec__layers=10**9)),
    Case("expand learngene", FAILED, ("classes is 10000000000",), edit(CONFIG, spec__classes=10**10)),
    Case("show learngene", FAILED, ("spec: width", "int"), edit(CONFIG, spec__width="32")),
    Case("show learngene", FAILED, ("spec: width", "int"), edit(CONFIG, spec__width=32.5)),
    Case("show learngene", FAILED, ("heads do not divide",), edit(CONFIG, spec__heads=3)),
    Case("show learngene", FAILED, ("pool", "token"), edit(CONFIG, spec__pool="map")),
    Case("show learngene", FAILED, ("unknown key 'hook'",), edit(CONFIG, hook="os.system")),
    Case("show learngene", FAILED, ("'spec' is missing",), edit(CONFIG, spec=...)),
    Case("show learngene", FAILED, ("ancestries", "list"), edit(CONFIG, ancestries={})),
    Case("expand learngene", FAILED, ("'../../evil'", "not installed"), edit(CONFIG, method="../../evil")),
    Case("expand learngene", FAILED, ("'tleg9'", "install its plugin"), edit(CONFIG, method="tleg9")),
    Case("expand learngene", FAILED, ("kept",), edit(CONFIG, details={"kept": ["../../etc/passwd"]})),
    Case("expand learngene", FAILED, ("kept",), edit(CONFIG, details={"kept": [1, 99]})),
    Case("show learngene", FAILED, ("not valid JSON",), write(CONFIG, "{format: 1}")),
    Case("show learngene", FAILED, ("not valid JSON",), cut(CONFIG, 0.5)),
    Case("show learngene", FAILED, ("is not a JSON object",), write(CONFIG, "[1, 2]")),
    Case("show learngene", FAILED, ("not valid JSON",), write(CONFIG, "[" * 200_000)),
    Case("show learngene", FAILED, ("not valid JSON",), write(CONFIG, b"\xff\xfe\x00\x01")),
    Case("show learngene", FAILED, ("larger than 16 MiB",), write(CONFIG, b" " * (17 * 2**20))),
    Case("evaluate model", FAILED, ("format is 7", "format 1"), edit(MODEL_CONFIG, learngene__format=7)),
    Case("evaluate model", FAILED, ("'learngene'", "--ancestry"), edit(MODEL_CONFIG, learngene=...)),
    Case("evaluate model", FAILED, ("contradicts itself", "layers is 4"), edit(MODEL_CONFIG, model_args__depth=4)),
    Case("evaluate model", FAILED, ("evil",), edit(MODEL_CONFIG, model_args__evil="builtins.eval")),
    Case("evaluate model", FAILED, ("inherited", "'nothing'"), edit(MODEL_CONFIG, learngene__inherited=["nothing"])),
    Case(
        "evaluate model",
        WRONG,
        ("resnet18", "not supported; supported are"),
        edit(MODEL_CONFIG, architecture="resnet18"),
    ),
    Case("evaluate model", FAILED, ("std", "positive"), edit(MODEL_CONFIG, pretrained_cfg__std=[0, 0, 0])),
]

DATA = [
    Case("finetune model --task folder:nowhere", FAILED, ("no folder nowhere", "subfolder")),
    Case("finetune model --task folder:empty", FAILED, ("empty",), lambda root: (root / "empty").mkdir()),
    Case("finetune model --task folder:photos", FAILED, ("one class",), remove("photos/red")),
    Case("finetune model --task folder:photos", FAILED, ("green",), lambda root: (root / "photos/green").mkdir()),
    Case(
        f"finetune model --task folder:photos {BRIEF} -o new",
        FAILED,
        ("photos/red/", "cannot be read", "replace or remove it"),
        lambda root: (
            [write(f"photos/red/{i}.png", b"no picture")(root) for i in range(8)]
            and write("photos/red/broken.png", b"no picture")(root)
        ),
    ),
    Case("finetune model --task parquet:nowhere.parquet", FAILED, ("nowhere.parquet", ".parquet file")),
    Case("finetune model --task parquet:t.parquet", FAILED, ("t.parquet",), write("t.parquet", b"PAR1 but not really")),
    Case("finetune model --task hf:nobody/nothing --offline", FAILED, ("nobody/nothing",)),
    Case("finetune model --task hf:../../etc", WRONG, ("hf:../../etc",)),
    Case("finetune model --task folder:", WRONG, ("folder:",)),
    Case("evaluate model --task objects", WRONG, ("2 classes", "lgzoo finetune --task objects")),
    Case("doctor --task folder:nowhere", FAILED, ("no folder nowhere", "subfolder")),
]

CASES = [*CALLS, *SIZES, *PLACES, *FILES, *CONFIGS, *DATA]


# --- the folder ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small ancestry, a learngene with tensors and one without, a model, and pictures of two classes."""
    import torch
    from PIL import Image

    from learngene_zoo.artifacts.descendant import assemble
    from learngene_zoo.artifacts.learngene import Learngene
    from learngene_zoo.artifacts.records import LearngeneConfig
    from lgzoo_lsamd.expansion import base_blocks

    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("template")
    for colour, pixel in {"red": (200, 40, 40), "blue": (40, 40, 200)}.items():
        (root / "photos" / colour).mkdir(parents=True)
        for i in range(8):
            shade = tuple(min(255, value + 5 * i) for value in pixel)
            Image.new("RGB", (16, 16), shade).save(root / "photos" / colour / f"{i}.png")
    ancestry = assemble(SPEC, {}, seed=0)
    ancestry.save(root / "ancestry")
    replace(ancestry, class_names=("blue", "red"), task="photos").save(root / "model")
    kept = LearngeneConfig(method="lsamd", spec=SPEC, details={"kept": [1, 3]})
    Learngene(config=kept, state=base_blocks(ancestry.state, ancestry.spec, [1, 3])).save(root / "learngene")
    Learngene(config=LearngeneConfig(method="scratch", spec=SPEC), state={}).save(root / "scratched")
    return root


@pytest.fixture
def folder(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy to spoil, and the place we are in."""
    root = tmp_path / "work"
    shutil.copytree(template, root)
    monkeypatch.chdir(root)
    return root


def contents(root: Path) -> dict[str, str]:
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def errors_of(line: str) -> tuple[int, list[str], str]:
    """Exit code, the error lines, and everything on stderr."""
    found = CliRunner().invoke(main, line.split())
    assert found.exception is None or isinstance(found.exception, SystemExit), found.exception
    assert found.stdout == "", "an error leaves no data on stdout"
    return found.exit_code, [text for text in found.stderr.splitlines() if text.startswith("error: ")], found.stderr


def check(line: str, code: int, words: tuple[str, ...], root: Path) -> None:
    before = contents(root)
    got, errors, printed = errors_of(line)
    assert len(errors) == 1, printed
    assert "Traceback" not in printed
    assert "run again with --debug" not in errors[0], printed
    assert printed.splitlines()[-1] == errors[0]
    for word in words:
        assert word in errors[0]
    assert got == code, printed
    after = contents(root)
    assert {name: after.get(name) for name in before} == before
    half_written = [name for name in after if name.endswith(".tmp") or "/." in f"/{name}"]
    assert not half_written


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bad_input(case: Case, folder: Path) -> None:
    if case.change is not None:
        case.change(folder)
    check(case.line, case.code, case.words, folder)


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 60
    assert len({(case.line, case.words, case.change is None) for case in CASES}) > 60


# --- what a full disk and a missing permission do in the middle of a save -------------------------------------------------

SAVES = [
    "expand learngene --layers 2 -o new",
    "expand learngene --layers 2 -o model --force",
    "extract scratch --ancestry ancestry -o new",
    f"finetune model --task folder:photos {BRIEF} -o model --force",
]


@pytest.fixture(params=[errno.ENOSPC, errno.EACCES, errno.EROFS], ids=["full", "no permission", "read-only"])
def failing_disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Every write of tensors begins, and then fails."""
    import safetensors.torch

    def fail(state: Any, path: Path, metadata: Any = None) -> None:
        Path(path).write_bytes(b"half a file")
        raise OSError(request.param, os.strerror(request.param), str(path))

    monkeypatch.setattr(safetensors.torch, "save_file", fail)
    return request.param


@pytest.mark.parametrize("line", SAVES)
def test_a_save_that_fails_leaves_everything_as_it_was(line: str, failing_disk: int, folder: Path) -> None:
    place = line.partition("-o ")[2].split()[0]
    check(line, FAILED, (place, explained(OSError(failing_disk, ""))), folder)
    assert (folder / place).exists() == (place == "model")


def test_an_extraction_into_a_place_without_permission_stops_before_it_computes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    check("extract scratch --ancestry ancestry -o new", FAILED, ("no permission", "-o"), folder)
    assert not (folder / "new.run").exists()
