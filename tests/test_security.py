"""The promises of docs/security.md, each shown by a test that its page names."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from watching import watched

import learngene_zoo
from learngene_zoo.artifacts.descendant import assemble, load_descendant
from learngene_zoo.cli.main import main
from learngene_zoo.errors import WrongCall
from learngene_zoo.families.vit.spec import ViTSpec

SPEC = ViTSpec(layers=2, width=16, heads=2, classes=2, image_size=16, patch_size=8)
FOREIGN = [
    "folder:/etc",
    "parquet:/etc/passwd",
    "hf:a/b",
    "wds:http://127.0.0.1:9/x.tar",
    "hf-stream:a/b",
    "x; rm:-rf ~",
]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return assemble(SPEC, {}, seed=0, task="digits").save(tmp_path / "model")


def edit(folder: Path, **ours: Any) -> None:
    """Change what a model's config.json says under `learngene`."""
    data = json.loads((folder / "config.json").read_text())
    data["learngene"].update(ours)
    (folder / "config.json").write_text(json.dumps(data))


def lgzoo(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(main, list(words))
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.parametrize("offline", [(), ("--offline",)])
@pytest.mark.parametrize("task", FOREIGN)
@pytest.mark.parametrize("verb", ["finetune", "evaluate"])
def test_a_model_chooses_no_data(verb: str, task: str, offline: tuple[str, ...], model: Path, tmp_path: Path) -> None:
    edit(model, task=task)
    lgzoo("show", "digits")  # whatever is loaded lazily is loaded now
    with watched() as seen:
        code, _, told = lgzoo(
            verb, str(model), *offline, *(("-o", str(tmp_path / "out")) if verb == "finetune" else ())
        )
    assert code == 2
    quoted = task if " " not in task else f"'{task}'"
    assert told.endswith(f"lgzoo {verb} {model} --task {quoted}\n")
    assert seen.faults(model) == []
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("verb", [learngene_zoo.finetune, learngene_zoo.evaluate])
def test_a_model_chooses_no_data_in_python(verb: Any, model: Path) -> None:
    edit(model, task="folder:/etc")
    for given in (model, load_descendant(model), assemble(SPEC, {}, seed=0, task="folder:/etc")):
        with pytest.raises(WrongCall, match=r"only if you name it: lgzoo .* --task folder:/etc"):
            verb(given)


def test_what_these_tests_would_see(tmp_path: Path) -> None:
    with watched() as seen:
        Path("/etc/passwd").read_bytes()
        os.listdir("/etc")
        (tmp_path / "own").write_text("x")
        (tmp_path / "own").rename(tmp_path / "other")
        with suppress(OSError), socket.socket() as plug:
            plug.settimeout(0.1)
            plug.connect(("127.0.0.1", 9))
        subprocess.run(["true"], check=True)
        with suppress(ImportError):
            importlib.import_module("no_such_package")
        pickle.loads(pickle.dumps(Path))
    own = {"read /etc", "read /etc/passwd", f"changed {tmp_path}/own", f"changed {tmp_path}/other"}
    rest = {"asked socket.connect", "started 'true'", "imported no_such_package", "unpickled pathlib.Path"}
    found = seen.faults()
    assert own <= set(found)
    assert all(any(fault.startswith(word) for fault in found) for word in rest), found
    assert not [fault for fault in seen.faults(tmp_path) if str(tmp_path) in fault]
