"""Plugins of third parties: the packages of docs/plugins.md, built, installed and used in processes
of their own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
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


def lgzoo(*words: str, site: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return python("-m", "learngene_zoo", *words, site=site, cwd=cwd)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the documented plugins are installed, as `lgzoo new-plugin` writes them."""
    folder = tmp_path_factory.mktemp("site")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
    ]
    for name, kind in DOCUMENTED.items():
        source = tmp_path_factory.mktemp("source") / name
        written = lgzoo(
            "new-plugin", name, "--kind", kind, "-o", str(source), site=folder, cwd=folder
        )
        assert written.returncode == 0, written.stderr
        assert "pip install -e '.[test]' && pytest" in written.stderr
        process = subprocess.run(
            [*pip, "--target", str(folder), str(source)],
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert process.returncode == 0, process.stderr
    return folder


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


@pytest.mark.parametrize(("name", "kind"), DOCUMENTED.items())
def test_what_new_plugin_writes_passes_its_own_test(
    name: str, kind: str, site: Path, tmp_path: Path
) -> None:
    written = lgzoo("new-plugin", name, "--kind", kind, "-o", "mine", site=tmp_path, cwd=tmp_path)
    assert written.returncode == 0, written.stderr
    result = python(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", "mine/tests", site=site, cwd=tmp_path
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_it_is_listed_and_has_a_command_of_its_own(site: Path, tmp_path: Path) -> None:
    listed = lgzoo("list", "methods", "--all", site=site, cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    assert "first_blocks" in listed.stdout
    assert "lsamd" in listed.stdout
    helped = lgzoo("extract", "first_blocks", "--help", site=site, cwd=tmp_path)
    assert helped.returncode == 0, helped.stderr
    assert "--keep INTEGER" in helped.stdout
    assert "number of blocks" in helped.stdout


def test_doctor_names_plugins_of_other_packages(site: Path, tmp_path: Path) -> None:
    shown = lgzoo("doctor", site=site, cwd=tmp_path)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert re.search(r"^method first_blocks +ok +lgzoo_first_blocks:", shown.stdout, flags=re.M)
    assert re.search(r"^suite shades +ok +lgzoo_shades:", shown.stdout, flags=re.M)
    assert "method lsamd" not in shown.stdout


def test_it_plans_without_a_word_of_it_in_the_zoo(site: Path, tmp_path: Path) -> None:
    words = (
        "plan",
        "first_blocks",
        "--ancestry",
        "timm:deit_tiny_patch16_224",
        "--keep",
        "3",
        "--json",
    )
    planned = lgzoo(*words, site=site, cwd=tmp_path)
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


def test_a_suite_is_listed_and_its_task_evaluates_a_model(site: Path, tmp_path: Path) -> None:
    listed = lgzoo("list", "tasks", "--all", site=site, cwd=tmp_path)
    assert "shades-side" in listed.stdout, listed.stderr
    shown = lgzoo("show", "shades", "--json", site=site, cwd=tmp_path)
    assert [row["suites"] for row in json.loads(shown.stdout)] == [["shades"]], shown.stderr
    size = (
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
    )
    how = (
        "--epochs",
        "16",
        "--lr",
        "0.005",
        "--batch-size",
        "50",
        "--augment",
        "none",
        "--init",
        "fan_in",
    )
    trained = lgzoo(
        "train", "--task", "shades-side", *size, *how, "-o", "model", site=site, cwd=tmp_path
    )
    assert trained.returncode == 0, trained.stderr
    result = lgzoo("evaluate", "model", "--task", "shades-side", "--json", site=site, cwd=tmp_path)
    assert json.loads(result.stdout)["value"] > 0.7, result.stdout + result.stderr


def test_a_learngene_says_which_package_brings_its_method(site: Path, tmp_path: Path) -> None:
    result = lgzoo("extract", "first_blocks", "--keep", "2", "-o", "mine", site=site, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert (
        json.loads((tmp_path / "mine/config.json").read_text())["versions"]["lgzoo-first-blocks"]
        == "0.1.0"
    )
    built = lgzoo("expand", "mine", "--layers", "2", "-o", "built", site=site, cwd=tmp_path)
    assert built.returncode == 0, built.stderr
    record = json.loads((tmp_path / "built/config.json").read_text())["learngene"]
    assert record["method_package"] == {"lgzoo-first-blocks": "0.1.0"}
    (tmp_path / "empty").mkdir()
    how = ("--task", "digits", "--images", "16", "--epochs", "1", "-o", "tuned")
    tuned = lgzoo("finetune", "built", *how, site=tmp_path / "empty", cwd=tmp_path)
    assert tuned.returncode == 0, tuned.stderr
    assert record["method_title"]
    for name in ("mine", "built", "tuned"):
        card = (tmp_path / name / "README.md").read_text()
        assert "pip install lgzoo-first-blocks" in card
        assert f"The method: {record['method_title']}." in card
    for line in (["expand", "mine", "--layers", "2"], ["show", "mine"], ["plot", "mine"]):
        done = lgzoo(*line, site=tmp_path / "empty", cwd=tmp_path)
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


def broken_copy(site: Path, place: Path, name: str, source: str) -> None:
    """Another installed plugin beside nothing else."""
    info = place / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[learngene_zoo.methods]\n{source}\n")


def test_one_that_fails_to_import_is_reported_and_disturbs_nothing(
    site: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "site"
    broken_copy(site, folder, "zoo_sick", "sick = zoo_sick:METHOD")
    (folder / "zoo_sick.py").write_text("raise RuntimeError('not today')")
    listed = lgzoo("list", "methods", "--all", site=folder, cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    assert "lsamd" in listed.stdout
    assert "sick" in listed.stderr
    doctor = lgzoo("doctor", site=folder, cwd=tmp_path)
    assert doctor.returncode == 1, doctor.stdout
    assert "fails to import: RuntimeError: not today; correct the package" in " ".join(
        doctor.stdout.split()
    )
    extract = lgzoo("extract", "sick", site=folder, cwd=tmp_path)
    assert extract.returncode == 1
    assert "not today" in extract.stderr
    assert "Traceback" not in extract.stderr


def test_one_that_claims_the_name_of_a_method_in_tree_is_refused_and_disturbs_nothing(
    site: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "site"
    broken_copy(site, folder, "zoo_twin", "lsamd = zoo_twin:METHOD")
    listed = lgzoo("list", "methods", "--all", site=folder, cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    assert "lsamd" in listed.stdout
    assert "zoo_twin" in listed.stderr
    doctor = lgzoo("doctor", site=folder, cwd=tmp_path)
    assert doctor.returncode == 1, doctor.stdout
    assert "zoo_twin:METHOD" in doctor.stdout
    assert "of its own" in doctor.stdout
