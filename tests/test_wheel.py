"""The wheel.

Built from a copy of what is tracked, installed elsewhere, and used from there alone.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parent.parent


def call(*words: str, cwd: Path, **environment: str) -> str:
    """stdout of a process that must end well."""
    variables = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment}
    process = subprocess.run(
        list(words), cwd=cwd, env=variables, capture_output=True, text=True, timeout=300
    )
    assert process.returncode == 0, f"{words}\n{process.stdout}\n{process.stderr}"
    return process.stdout


def list_tracked() -> list[str]:
    """What git knows or would add: no build output, no cache."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: which files belong to the wheel is not known")
    listed = call("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", cwd=ROOT)
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is tracked."""
    copy = tmp_path_factory.mktemp("copy")
    for name in list_tracked():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy / name)
    (copy / "cards").mkdir(exist_ok=True)  # a shelf may be empty; git does not keep empty folders
    return copy


@pytest.fixture(scope="module")
def wheel(copied: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that is built from the copy."""
    dist = tmp_path_factory.mktemp("dist")
    words = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(dist))
    call(sys.executable, "-m", "pip", "wheel", *words, str(copied), cwd=copied)
    [built] = dist.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the wheel is installed, without its dependencies."""
    folder = tmp_path_factory.mktemp("site")
    words = ("--quiet", "--no-deps", "--no-index", "--target", str(folder), str(wheel))
    call(sys.executable, "-m", "pip", "install", *words, cwd=wheel.parent)
    return folder


MAX_WHEEL = 25_000_000  # bytes


def test_the_wheel_is_small_and_has_the_files_beside_modules(wheel: Path) -> None:
    assert wheel.stat().st_size < MAX_WHEEL
    names = set(zipfile.ZipFile(wheel).namelist())
    beside = {
        str(file.relative_to(ROOT))
        for suffix in ("css", "jinja", "js", "json", "pyi", "typed")
        for file in (ROOT / "learngene_zoo").rglob(f"*.{suffix}")
    }
    assert beside <= names
    assert not [name for name in names if name.startswith(("tests/", "docs/", "tools/"))]


def test_the_source_distribution_has_what_its_tests_need(copied: Path, tmp_path: Path) -> None:
    call(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path), cwd=copied)
    [built] = tmp_path.glob("*.tar.gz")
    with tarfile.open(built) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    expected = ("pyproject.toml", "hubconf.py", "CHANGELOG.md", "SECURITY.md", "CITATION.cff")
    folders = ("learngene_zoo/cli/main.py", "plugins/lgzoo_lsamd/lsamd.py", "tests/conftest.py")
    assert {*expected, *folders, "cards/lsamd-mini/config.json", "docs/shrink.md"} <= names


def test_packages_are_imported_from_the_wheel(site: Path, tmp_path: Path) -> None:
    code = (
        "import json, learngene_zoo, lgzoo_lsamd.lsamd, lgzoo_baselines.trained.scratch\nfrom"
        " learngene_zoo.method.installed import METHODS\nfrom learngene_zoo.artifacts import"
        " shelf\nmodules = [learngene_zoo, lgzoo_lsamd.lsamd,"
        " lgzoo_baselines.trained.scratch]\nprint(json.dumps([[m.__file__ for m in modules],"
        " str(shelf.find_cards_folder()), shelf.list_names(), list(METHODS.references())]))"
    )
    files, cards, names, methods = json.loads(
        call(sys.executable, "-c", code, cwd=tmp_path, PYTHONPATH=str(site))
    )
    assert all(Path(file).is_relative_to(site) for file in files)
    assert not names or Path(cards) == site / "learngene_zoo" / "cards"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    left_out = {
        Path(name).name for name in project["tool"]["hatch"]["build"]["targets"]["wheel"]["exclude"]
    }
    bundled = {card.parent.name for card in (ROOT / "cards").glob("*/config.json")}
    assert not names or set(names) == bundled - left_out
    assert {"lsamd", "scratch", "pretrain_finetune"} <= set(methods)
    assert (site / "learngene_zoo" / "py.typed").is_file()


def test_the_command_line_lists_from_the_wheel(site: Path, tmp_path: Path) -> None:
    rows = json.loads(
        call(
            sys.executable,
            "-m",
            "learngene_zoo",
            "list",
            "methods",
            "--json",
            cwd=tmp_path,
            PYTHONPATH=str(site),
        )
    )
    assert {"lsamd", "scratch"} <= {row["name"] for row in rows}


def test_the_bundled_learngene_expands_from_the_wheel(site: Path, tmp_path: Path) -> None:
    if not (ROOT / "cards" / "lsamd-mini").is_dir():
        pytest.skip("no learngene is bundled")
    code = (
        "import timm\nfrom click.testing import CliRunner\nfrom learngene_zoo.cli.main import main\n"
        "words = 'expand lsamd --layers 7 --classes 10 -o seven'\n"
        "assert CliRunner().invoke(main, words, catch_exceptions=False).exit_code == 0\n"
        "print(len(timm.create_model('local-dir:seven', pretrained=True).blocks))"
    )
    told = call(sys.executable, "-c", code, cwd=tmp_path, PYTHONPATH=str(site))
    assert told.strip().endswith("7")
