"""A failed write ends in one line, leaves no partial files, and does not block later calls."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from learngene_zoo.artifacts.descendant import assemble
from learngene_zoo.cli.main import main
from learngene_zoo.families.vit.spec import ViTSpec

SPEC = ViTSpec(layers=1, width=64, heads=2, classes=10, image_size=16, patch_size=8)
Shell = Callable[[str], subprocess.CompletedProcess[str]]


@pytest.fixture
def shell(tmp_path: Path, checkout: Path) -> Shell:
    """Run a line of bash in which `lgzoo` is this checkout's."""
    path = os.pathsep.join([str(checkout), str(checkout / "plugins")])

    def run(line: str) -> subprocess.CompletedProcess[str]:
        function = f'lgzoo() {{ "{sys.executable}" -m learngene_zoo "$@"; }}; {line}'
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            ["bash", "-c", function],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run


@pytest.mark.parametrize(("line", "code"), [("nosuch", 2), ("show nosuch", 2), ("list methods", 0)])
@pytest.mark.parametrize("stderr", ["2>/dev/full", "2>&-"])
def test_a_stderr_that_cannot_be_written_changes_no_exit_code(
    line: str, code: int, stderr: str, shell: Shell
) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    assert shell(f"lgzoo {line} {stderr} >/dev/null").returncode == code


def test_a_current_folder_that_was_deleted_is_named(shell: Shell) -> None:
    result = shell("mkdir gone; cd gone; rmdir ../gone; lgzoo expand first_k --layers 2")
    assert result.returncode == 1
    messages = [line for line in result.stderr.splitlines() if not line.startswith("shell-init")]
    assert messages == [
        "error: the current folder does not exist any more; change to another folder with cd"
    ]


@pytest.mark.slow
@pytest.mark.parametrize("format", ["pt2", pytest.param("onnx", marks=pytest.mark.exhaustive)])
def test_an_export_that_does_not_fit_ends_in_one_line(
    format: str, shell: Shell, tmp_path: Path
) -> None:
    assemble(SPEC, {}, seed=0).save(tmp_path / "model")
    result = shell(f"ulimit -f 64; lgzoo export model -o out.{format} -q")
    assert result.returncode == 1
    assert result.stderr.splitlines() == [
        f"error: out.{format} could not be written: the file would be larger than this process may"
        " write (see `ulimit -f`); nothing was changed"
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        pytest.param("extract first_k -o out -q", marks=pytest.mark.exhaustive),
        "extract lsamd --keep 1,2 --task digits -o out -q",
    ],
)
def test_an_extraction_that_does_not_fit_blocks_no_later_one(
    line: str, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = shell(f"ulimit -f 1; lgzoo {line}")
    assert (failed.returncode, failed.stderr.count("\n")) == (1, 1), failed.stderr
    assert list(tmp_path.iterdir()) == []
    monkeypatch.chdir(tmp_path)
    again = CliRunner().invoke(main, line.split())
    assert again.exit_code == 0, again.output
