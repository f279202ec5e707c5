"""Plugins of third parties: the packages of docs/plugins.md, built, installed and used in processes
that find them: one process for each folder of packages.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from learngene_zoo.cli.new_plugin import render_package

pytestmark = pytest.mark.slow


DOCUMENTED = {"first_blocks": "method", "shades": "suite"}


def python(*arguments: str, site: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A process that finds packages in `site` first, then where this one does."""
    paths = os.pathsep.join([str(site), *(path for path in sys.path if path)])
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
    )


CALL_EACH = """
import json, sys
from click.testing import CliRunner
from learngene_zoo.cli.main import main
for line in json.loads(sys.argv[1]):
    called = CliRunner().invoke(main, line, prog_name="lgzoo", catch_exceptions=False)
    print(json.dumps([called.exit_code, called.stdout, called.stderr]))
"""


@dataclass(frozen=True)
class Called:
    """How a command line ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


def lgzoo(*lines: str, site: Path, cwd: Path) -> list[Called]:
    """Call command lines, one after the other in one process."""
    words = json.dumps([shlex.split(line) for line in lines])
    process = python("-c", CALL_EACH, words, site=site, cwd=cwd)
    assert process.returncode == 0, process.stderr
    return [Called(*json.loads(called)) for called in process.stdout.splitlines()]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the documented plugins, as `lgzoo new-plugin` writes them."""
    folder = tmp_path_factory.mktemp("source")
    (folder / "empty").mkdir()
    lines = [f"new-plugin {name} --kind {kind} -o {name}" for name, kind in DOCUMENTED.items()]
    for written in lgzoo(*lines, site=folder / "empty", cwd=folder):
        assert written.returncode == 0, written.stderr
        assert "pip install -e '.[test]' && pytest" in written.stderr
    return folder


@pytest.fixture(scope="module")
def site(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the documented plugins are installed."""
    folder = tmp_path_factory.mktemp("site")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    process = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", *options, "--target", str(folder)),
            *(str(sources / name) for name in DOCUMENTED),
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr
    return folder


SIZE = "--layers 1 --width 16 --heads 2 --image-size 16 --patch-size 8"
TRAINING = "--epochs 16 --lr 0.005 --batch-size 50 --augment none --init fan_in"
LINES = {
    "list methods": "list methods --all",
    "help": "extract first_blocks --help",
    "plan": "plan first_blocks --ancestry timm:deit_tiny_patch16_224 --keep 3 --json",
    "doctor": "doctor",
    "list tasks": "list tasks --all",
    "show": "show shades --json",
    "train": f"train --task shades-side {SIZE} {TRAINING} -o model",
    "evaluate": "evaluate model --task shades-side --json",
    "extract": "extract first_blocks --keep 2 -o mine",
    "expand": "expand mine --layers 2 -o built",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working folder of `called`."""
    return tmp_path_factory.mktemp("folder")


@pytest.fixture(scope="module")
def called(site: Path, folder: Path) -> dict[str, Called]:
    """How `LINES` ended where the documented plugins are installed."""
    return dict(zip(LINES, lgzoo(*LINES.values(), site=site, cwd=folder), strict=True))


def test_the_page_shows_what_new_plugin_writes() -> None:
    page = (Path(__file__).resolve().parent.parent / "docs" / "plugins.md").read_text(
        encoding="utf-8"
    )
    shown: list[tuple[str, str]] = re.findall(
        r"^`([\w.]+)`\n\n(?:<!-- [^\n]* -->\n)?```\w+\n(.*?)^```$", page, flags=re.M | re.S
    )
    for name, kind in DOCUMENTED.items():
        files = render_package(name, kind)
        assert [shown.pop(0), shown.pop(0)] == [
            (file, files[file]) for file in ("pyproject.toml", f"lgzoo_{name}.py")
        ]
    assert not shown


def test_what_new_plugin_writes_passes_its_own_test(
    sources: Path, site: Path, tmp_path: Path
) -> None:
    tests = [str(sources / name / "tests") for name in DOCUMENTED]
    result = python("-m", "pytest", "-v", "-p", "no:cacheprovider", *tests, site=site, cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    for name in DOCUMENTED:
        assert re.search(rf"test_{name}\.py.* PASSED", result.stdout), result.stdout


def test_it_is_listed_and_has_a_command_of_its_own(called: dict[str, Called]) -> None:
    listed = called["list methods"]
    assert listed.returncode == 0, listed.stderr
    assert "first_blocks" in listed.stdout
    assert "lsamd" in listed.stdout
    helped = called["help"]
    assert helped.returncode == 0, helped.stderr
    assert "--keep INTEGER" in helped.stdout
    assert "number of blocks" in helped.stdout


def test_doctor_names_plugins_of_other_packages(called: dict[str, Called]) -> None:
    shown = called["doctor"]
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert re.search(r"^method first_blocks +ok +lgzoo_first_blocks:", shown.stdout, flags=re.M)
    assert re.search(r"^suite shades +ok +lgzoo_shades:", shown.stdout, flags=re.M)
    assert "method lsamd" not in shown.stdout


def test_it_plans_without_a_word_of_it_in_the_zoo(called: dict[str, Called]) -> None:
    planned = called["plan"]
    assert planned.returncode == 0, planned.stderr
    assert planned.stdout.count('"layers"') == 3


@pytest.mark.exhaustive  # so does its own test, above
def test_it_keeps_the_contract(site: Path, tmp_path: Path) -> None:
    code = (
        "from learngene_zoo.testing import check_method\n"
        "from lgzoo_first_blocks import FIRST_BLOCKS\n"
        "check_method(FIRST_BLOCKS)\nprint('kept')"
    )
    result = python("-c", code, site=site, cwd=tmp_path)
    assert result.stdout == "kept\n", result.stderr


def test_a_suite_is_listed_and_its_task_evaluates_a_model(called: dict[str, Called]) -> None:
    assert "shades-side" in called["list tasks"].stdout, called["list tasks"].stderr
    shown = called["show"]
    assert [row["suites"] for row in json.loads(shown.stdout)] == [["shades"]], shown.stderr
    assert called["train"].returncode == 0, called["train"].stderr
    result = called["evaluate"]
    assert json.loads(result.stdout)["value"] > 0.7, result.stdout + result.stderr


def test_a_learngene_says_which_package_brings_its_method(
    called: dict[str, Called], folder: Path
) -> None:
    assert called["extract"].returncode == 0, called["extract"].stderr
    assert (
        json.loads((folder / "mine/config.json").read_text())["versions"]["lgzoo-first-blocks"]
        == "0.1.0"
    )
    assert called["expand"].returncode == 0, called["expand"].stderr
    record = json.loads((folder / "built/config.json").read_text())["learngene"]
    assert record["method_package"] == {"lgzoo-first-blocks": "0.1.0"}
    (folder / "empty").mkdir()
    tuned, *refused = lgzoo(
        "finetune built --task digits --images 16 --epochs 1 -o tuned",
        "expand mine --layers 2",
        "show mine",
        "plot mine",
        site=folder / "empty",
        cwd=folder,
    )
    assert tuned.returncode == 0, tuned.stderr
    assert record["method_title"]
    for name in ("mine", "built", "tuned"):
        card = (folder / name / "README.md").read_text()
        assert "pip install lgzoo-first-blocks" in card
        assert f"The method: {record['method_title']}." in card
    for done in refused:
        assert done.returncode == 1
        assert "by the method 'first_blocks', which is not installed" in done.stderr
        assert (
            "install the package that it names (lgzoo-first-blocks), if you trust it" in done.stderr
        )


@pytest.mark.exhaustive  # so does its own test, above
def test_a_suite_keeps_the_contract(site: Path, tmp_path: Path) -> None:
    code = (
        "from learngene_zoo.testing import check_suite\nfrom lgzoo_shades import"
        " SHADES\nprint(*check_suite(SHADES))"
    )
    result = python("-c", code, site=site, cwd=tmp_path)
    assert result.stdout == "shades-side\n", result.stderr


def test_a_size_that_it_does_not_declare_is_refused(site: Path, tmp_path: Path) -> None:
    code = (
        "from learngene_zoo import Run, Target, ZooError, expand\n"
        "from learngene_zoo.testing import make_tiny_ancestry\n"
        "from lgzoo_first_blocks import FIRST_BLOCKS, FirstBlocksExtractor\n"
        "learngene = FirstBlocksExtractor(keep=2)([make_tiny_ancestry()], [], Run())\n"
        "learngene = learngene.with_config(method=FIRST_BLOCKS.name)\n"
        "assert learngene.config.spec.heads == 2\n"
        "assert expand(learngene, layers=2, heads=2).spec.heads == 2\n"
        "try:\n    expand(learngene, target=Target(layers=2, heads=4))\n"
        "except ZooError as error:\n    print(error)"
    )
    result = python("-c", code, site=site, cwd=tmp_path)
    expected = (
        "heads is 4, but all descendants of this learngene have heads 2; sizes that can be chosen:"
        " layers, classes"
    )
    assert result.stdout.startswith(expected), result.stderr


def broken_copy(place: Path, name: str, source: str) -> None:
    """Another installed plugin beside nothing else."""
    info = place / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[learngene_zoo.methods]\n{source}\n")


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory: pytest.TempPathFactory) -> list[Called]:
    """What `list methods`, `doctor` and `extract sick` do beside two broken plugins: `sick`, which
    fails to import, and another `lsamd`.
    """
    folder = tmp_path_factory.mktemp("disturbed")
    broken_copy(folder / "site", "zoo_sick", "sick = zoo_sick:METHOD")
    (folder / "site" / "zoo_sick.py").write_text("raise RuntimeError('not today')")
    broken_copy(folder / "site", "zoo_twin", "lsamd = zoo_twin:METHOD")
    lines = ("list methods --all", "doctor", "extract sick")
    return lgzoo(*lines, site=folder / "site", cwd=folder)


def test_one_that_fails_to_import_is_reported_and_disturbs_nothing(
    disturbed: list[Called],
) -> None:
    listed, doctor, extract = disturbed
    assert listed.returncode == 0, listed.stderr
    assert "lsamd" in listed.stdout
    assert "sick" in listed.stderr
    assert doctor.returncode == 1, doctor.stdout
    assert "fails to import: RuntimeError: not today; correct the package" in " ".join(
        doctor.stdout.split()
    )
    assert extract.returncode == 1
    assert "not today" in extract.stderr
    assert "Traceback" not in extract.stderr


def test_one_that_claims_the_name_of_a_method_in_tree_is_refused_and_disturbs_nothing(
    disturbed: list[Called],
) -> None:
    listed, doctor, _ = disturbed
    assert listed.returncode == 0, listed.stderr
    assert "lsamd" in listed.stdout
    assert "zoo_twin" in listed.stderr
    assert doctor.returncode == 1, doctor.stdout
    assert "zoo_twin:METHOD" in doctor.stdout
    assert "of its own" in doctor.stdout
