"""Bad input gives one line that names the cause and the remedy, the right exit code, and no loss of
data.

Every case runs in a folder with a small ancestry model, learngenes, models and images; everything
that existed before the call must be unchanged afterwards, and nothing else may exist.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from bad_folders import tar
from bad_inputs import FAILED, WRONG, Case, outside
from bad_inputs_of_verbs import EVERY_CASE
from click.testing import CliRunner

from learngene_zoo import lifecycle
from learngene_zoo.cli.main import main
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.lifecycle import latency
from learngene_zoo.method.installed import METHODS
from learngene_zoo.training.healing.settings import HEALING

PATIENCE = 60  # seconds for one call
SPEC = ViTSpec(layers=3, width=32, heads=2, classes=2, image_size=16, patch_size=8)


# --- the folder
# --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a small ancestry model, a learngene with tensors and one without, a model, and images
    of two classes.
    """
    import torch
    from PIL import Image

    from learngene_zoo.artifacts.descendant import assemble
    from learngene_zoo.artifacts.learngene import Learngene
    from learngene_zoo.artifacts.records import LearngeneConfig
    from lgzoo_lsamd.blocks import select_base_blocks

    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("template")
    for colour, pixel in {"red": (200, 40, 40), "blue": (40, 40, 200)}.items():
        (root / "photos" / colour).mkdir(parents=True)
        for i in range(8):
            shade = tuple(min(255, value + 5 * i) for value in pixel)
            Image.new("RGB", (16, 16), shade).save(root / "photos" / colour / f"{i}.png")
    start = assemble(SPEC, {}, seed=0)
    ancestry = replace(start, inherited=frozenset(start.state))  # its head is not said to guess
    ancestry.save(root / "ancestry")
    replace(ancestry, class_names=("blue", "red"), task="photos").save(root / "model")
    config = LearngeneConfig(method="lsamd", spec=SPEC, details={"kept": [1, 3]})
    Learngene(config=config, state=select_base_blocks(ancestry.state, ancestry.spec, [1, 3])).save(
        root / "learngene"
    )
    Learngene(config=LearngeneConfig(method="scratch", spec=SPEC), state={}).save(
        root / "scratched"
    )
    return root


@pytest.fixture
def folder(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the template as the working folder."""
    root = tmp_path / "work"
    shutil.copytree(template, root)
    monkeypatch.chdir(root)
    return root


def contents(root: Path) -> dict[str, str]:
    """Return every file's hash; for other entries only their kind."""
    results = {}
    for path in sorted(root.rglob("*")):
        regular = path.is_file() and not path.is_symlink()
        kind = (
            hashlib.sha256(path.read_bytes()).hexdigest() if regular else oct(path.lstat().st_mode)
        )
        results[str(path.relative_to(root))] = kind
    return results


@contextmanager
def shown_warnings() -> Iterator[None]:
    """Print warnings as outside of pytest."""

    def show(message: Warning | str, category: type[Warning], *_: Any) -> None:
        print(f"{category.__name__}: {message}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = show  # type: ignore[assignment]
        yield


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Interrupt code that takes longer, for example because it waits for input."""
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def check(line: str, code: int, words: tuple[str, ...], root: Path, leaves: str = "") -> None:
    before = contents(root)
    with shown_warnings(), at_most(PATIENCE):
        got = CliRunner().invoke(main, shlex.split(line))
    assert got.exception is None or isinstance(got.exception, SystemExit), got.exception
    assert got.stdout == "", "an error leaves no data on stdout"
    lines = got.stderr.splitlines()
    assert len(lines) == 1, got.stderr
    assert lines[0].startswith("error: ")
    assert "unexpected" not in lines[0]
    assert "--debug" not in lines[0]
    assert len(lines[0]) < 700
    for word in words:
        assert word in lines[0], lines[0]
    assert got.exit_code == code, lines[0]
    after = contents(root)
    assert {
        name: kind for name, kind in after.items() if name in before or name.split("/")[0] != leaves
    } == before


@pytest.mark.parametrize("case", EVERY_CASE, ids=lambda case: case.name)
def test_bad_input(case: Case, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Other programs on this machine would add a note.
    monkeypatch.setattr(latency, "_is_disturbed", lambda *measured: False)
    if case.change is not None:
        case.change(folder)
    for name, value in case.environment.items():
        monkeypatch.setenv(name, value) if value is not None else monkeypatch.delenv(name)
    check(case.line, case.code, case.words, folder, case.leaves)


@pytest.mark.parametrize(
    "environment",
    [
        {"RANK": "1"},
        {"LOCAL_RANK": "x"},
        {"HOME": None},
        {"LGZOO_CACHE": "model/config.json"},
        {"LGZOO_CACHE": "~nosuchuser"},
        {"HOME": "/nowhere"},
        {"OMP_NUM_THREADS": "abc"},
    ],
    ids=str,
)
def test_an_environment_that_does_no_harm(
    environment: dict[str, str | None], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures = [
        file for i in range(20) for file in ((f"{i}.png", None), (f"{i}.cls", b"%d" % (i % 2)))
    ]
    tar("t.tar", *pictures)(folder)
    for name, value in environment.items():
        monkeypatch.setenv(name, value) if value is not None else monkeypatch.delenv(name)
    got = CliRunner().invoke(main, ["evaluate", "ancestry", "--task", "wds:t.tar"])
    assert (got.exit_code, got.stderr) == (0, "")
    assert "accuracy" in got.stdout


def settings_of_every_verb() -> dict[str, Any]:
    """Return the settings behind the options of each verb, by the beginning of its command line."""
    methods = METHODS.load_all()[0]
    return {
        **{
            f"extract {method.name} --ancestry ancestry -o new": method.extractor
            for method in methods
        },
        **{f"plan {method.name}": method.extractor for method in methods},
        "finetune model --task folder:photos -o new": lifecycle.FINETUNE,
        "heal model --images folder:photos -o new": HEALING,
        "shrink ancestry --task folder:photos --max-params 9K -o new": lifecycle.ShrinkConfig(),
        "train --task folder:photos -o new": lifecycle.TRAIN,
    }


def take_one_each(cases: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Return one value of each option: the first of the first option, the second of the second."""
    options = [list(values) for _, values in groupby(cases, key=lambda case: case[0])]
    return [values[number % len(values)] for number, values in enumerate(options)]


GENERATED = {line: list(outside(settings)) for line, settings in settings_of_every_verb().items()}
GENERATED = {  # `plan` has the options of `extract`
    line: take_one_each(cases) if line.startswith("plan ") else cases
    for line, cases in GENERATED.items()
}


@pytest.mark.parametrize("line", GENERATED)
def test_values_that_a_setting_cannot_have(
    line: str, template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(template)
    before = contents(template)
    for option, value, word in GENERATED[line]:
        got = CliRunner().invoke(main, [*line.split(), f"{option}={value}"])
        assert got.exit_code == WRONG, (option, value, got.output)
        assert got.output.count("\n") == 1
        assert option in got.stderr
        assert word in got.stderr
    assert contents(template) == before


def test_there_are_enough_cases() -> None:
    assert len({(case.line, case.words, case.change) for case in EVERY_CASE}) >= 400
    assert sum(map(len, GENERATED.values())) >= 1000


def test_an_extraction_into_a_place_without_permission_stops_before_it_computes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    check("extract scratch --ancestry ancestry -o new", FAILED, ("no permission", "-o"), folder)
    assert not (folder / "new.run").exists()
