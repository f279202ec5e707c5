"""`lgzoo doctor` on this machine, and its self-test."""

from __future__ import annotations

import json
import re
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from learngene_zoo.cli.diagnosis.findings import _compute
from learngene_zoo.cli.main import main
from learngene_zoo.cli.process.messages import describe_error
from learngene_zoo.errors import BadFile
from learngene_zoo.method.installed import METHODS
from learngene_zoo.tasks.catalogue import open_task

TOKEN = "hf_" + "x" * 34


def rows(*words: str, code: int = 0) -> dict[str, dict[str, str]]:
    result = CliRunner().invoke(main, ["doctor", "--json", *words])
    assert result.exit_code == code, result.output
    assert TOKEN not in result.output
    return {row["what"]: row for row in json.loads(result.stdout)}


@pytest.fixture
def few_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    use_few_tasks(monkeypatch)


def use_few_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use all methods, and of the suites only `mini`."""
    monkeypatch.setenv("LGZOO_PLUGINS", ",".join(["mini", *METHODS.references()]))


@pytest.mark.slow
def test_it_says_where_things_are_kept_and_how_the_hub_is_reached(
    monkeypatch: pytest.MonkeyPatch, few_tasks: None
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    result = rows()
    assert result["login"]["found"] == "logged in"
    assert result["endpoint"]["found"].startswith("http")
    assert result["working folder"]["found"].startswith(str(Path.cwd()))
    assert result["cache of the Hub"]["status"] == "ok"
    assert result["torch"]["status"] == "ok"


@pytest.mark.slow
def test_it_prints_the_rows_that_matter_and_with_all_every_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = CliRunner().invoke(main, ["doctor"])
    assert len(result.stdout.splitlines()) <= 20
    assert "torch " in result.stdout
    assert result.stderr.endswith(" rows left out, none of them bad; show them with --all\n")
    assert re.search(r"^methods +info +(\d+) of \1 work$", result.stdout, flags=re.M)
    assert re.search(r"^tasks +info +\d+ of \d+ work offline$", result.stdout, flags=re.M)
    use_few_tasks(monkeypatch)
    everything = CliRunner().invoke(main, ["doctor", "--all"]).stdout.splitlines()
    assert any(line.startswith("task digits ") for line in everything)
    assert re.search(r"^what +status +found$", everything[0])
    assert len(everything) > 80


@pytest.mark.slow
def test_a_learngene_of_the_shelf_that_cannot_be_opened_is_bad(
    monkeypatch: pytest.MonkeyPatch, few_tasks: None
) -> None:
    def load(name: str) -> None:
        if name == "lsamd-mini":
            raise BadFile("the tensors are cut short")

    monkeypatch.setattr("learngene_zoo.cli.diagnosis.findings.shelf.load", load)
    result = rows(code=1)
    assert result["learngene lsamd-mini"]["status"] == "bad"
    assert "cut short" in result["learngene lsamd-mini"]["found"]
    assert result["learngene tal-mini"]["status"] == "ok"


def test_a_torchvision_of_another_torch_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    class Finder:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> None:
            if name == "timm":
                raise RuntimeError("operator torchvision::nms does not exist")

    for name in [name for name in sys.modules if name.split(".")[0] == "timm"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    row = next(row for row in _compute() if row["what"] == "import")
    assert (row["status"], row["found"]) == (
        "bad",
        "timm cannot be imported: operator torchvision::nms does not exist",
    )
    line, code = describe_error(RuntimeError("operator torchvision::nms does not exist"))
    assert line.startswith("torchvision does not fit torch (torch ")
    assert line.count("install both from one source") == code == 1


@pytest.mark.slow
def test_a_full_disk_is_bad(monkeypatch: pytest.MonkeyPatch, few_tasks: None) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda place: namedtuple("Usage", "free")(12_000_000))
    row = rows(code=1)["working folder"]
    assert (row["status"], row["found"].endswith("12.00MB free")) == ("bad", True)


def test_a_step_that_fails_ends_the_self_test_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*words: object, **more: object) -> None:
        raise RuntimeError("no such instruction")

    monkeypatch.setattr("learngene_zoo.lifecycle.extract", fail)
    assert rows("--self-test", code=1) == {
        "extract": {
            "what": "extract",
            "status": "bad",
            "found": "RuntimeError: no such instruction",
        }
    }


@pytest.mark.slow
def test_the_self_test_goes_the_whole_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = rows("--self-test")
    assert list(result) == ["extract", "expand", "finetune", "evaluate", "open with timm", "export"]
    assert {row["status"] for row in result.values()} == {"ok"}
    assert not any(tmp_path.iterdir())


def write_classes(top: Path, counts: dict[str, int]) -> None:
    for name, count in counts.items():
        (top / name).mkdir(parents=True)
        for number in range(count):
            pixels = np.random.default_rng([number, count]).integers(
                0, 256, (8, 8, 3), dtype=np.uint8
            )
            Image.fromarray(pixels).save(top / name / f"{number}.png")


@pytest.mark.parametrize("words", [(), ("--check-images", "--workers", "0")])
def test_all_problems_of_a_folder_are_listed_at_once(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    write_classes(tmp_path / "data", {"cat": 12, "dog": 11, "emu": 0, "fox": 0})
    (tmp_path / "data" / "cat" / "0.png").write_bytes(b"no picture")
    (tmp_path / "data" / "gnu").symlink_to("nowhere")
    result = CliRunner().invoke(
        main, ["doctor", "--task", f"folder:{tmp_path / 'data'}", *words, "--json"]
    )
    rows = {Path(row["what"].split()[-1]).name: row for row in json.loads(result.stdout)}
    assert (rows["emu"]["status"], rows["emu"]["found"]) == (
        "bad",
        "has 0 images; add some or remove it",
    )
    assert rows["fox"]["status"] == "bad"
    assert rows["gnu"]["found"] == "is broken (it leads to nowhere); correct or remove it"
    assert ("0.png" in rows) == bool(words)
    assert result.exit_code == 1
    result = CliRunner().invoke(main, ["doctor", "--task", f"folder:{tmp_path / 'data'}", *words])
    assert re.search(
        r"next: correct the bad rows, then lgzoo doctor --task folder:\S*data --check-images$",
        result.stderr.strip(),
    )


def test_an_extraction_that_meets_a_broken_image_names_the_command_that_lists_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_classes(tmp_path / "data", {"cat": 12, "dog": 11})
    for picture in sorted(Path("data").rglob("*.png")):
        picture.write_bytes(b"no picture")
    words = "extract closed_form --preset smoke --task folder:data --threads 1 -q"
    result = CliRunner().invoke(main, words.split())
    assert result.exit_code == 1
    listing = "lgzoo doctor --task folder:data --check-images"
    assert re.fullmatch(
        rf"error: data/\w+/\d+\.png: the image cannot be read .*; .* \({listing} lists all\)\n",
        result.stderr,
    )
    listed = CliRunner().invoke(main, [*listing.split()[1:], "--workers", "0", "--json"]).stdout
    assert sum(row["what"].endswith(".png") for row in json.loads(listed)) == 23


def test_a_broken_test_image_ends_a_fine_tuning_before_anything_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_classes(tmp_path / "data", {"cat": 12, "dog": 11})
    split: Any = open_task("folder:data").split("test")
    broken = Path(split.rows[int(split.members[0])].where)
    broken.write_bytes(b"no picture")
    expand = "expand first_k --layers 1 --task folder:data -q"
    assert CliRunner().invoke(main, expand.split()).exit_code == 0
    words = "finetune --task folder:data --epochs 1 --threads 1"
    result = CliRunner().invoke(main, words.split())
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: {broken}: the image cannot be read")
    assert not list(tmp_path.glob("finetuned*"))


def test_it_says_what_to_do_next_and_what_is_left_out(tmp_path: Path) -> None:
    write_classes(tmp_path / "data", {"cat": 12, "dog": 11})
    (tmp_path / "data" / "cat" / "a.svg").write_text("<svg/>")
    task = f"folder:{tmp_path / 'data'}"
    result = CliRunner().invoke(main, ["doctor", "--task", task])
    assert result.stderr == f"next: lgzoo doctor --task {task} --check-images\n"
    assert "1 file left out: 1 .svg; first: " in result.stdout
    result = CliRunner().invoke(
        main, ["doctor", "--task", task, "--check-images", "--workers", "0"]
    )
    assert result.stderr.endswith(f"next: lgzoo extract closed_form --task {task}\n")
    assert "1 file left out: 1 .svg; first: " in result.stdout


def test_images_without_labels_are_checked(tmp_path: Path) -> None:
    write_classes(tmp_path, {"flat": 12})
    (tmp_path / "flat" / "7.png").write_bytes(b"no picture")
    task, check = f"folder:{tmp_path / 'flat'}", ("--check-images", "--workers", "0")
    first = json.loads(CliRunner().invoke(main, ["doctor", "--task", task, "--json"]).stdout)
    assert (first["classes"], first["missing"]) == (0, [])
    assert "no class folders" in first["notes"][-1]
    assert "first_class" not in first
    result = CliRunner().invoke(main, ["doctor", "--task", task, *check, "--json"])
    rows = json.loads(result.stdout)
    assert result.exit_code == 1
    assert (rows[0]["what"], rows[0]["status"]) == ("labels", "info")
    assert rows[0]["found"].startswith("none: ")
    bad = [Path(row["what"]).name for row in rows if row["status"] == "bad"]
    assert "7.png" in bad
    assert not [row for row in rows if row["what"] == "test" or row["what"].startswith("class ")]
    (tmp_path / "flat" / "7.png").unlink()
    result = CliRunner().invoke(main, ["doctor", "--task", task, *check])
    assert result.exit_code == 0
    assert result.stderr.endswith(f"next: lgzoo extract closed_form --task {task}\n")


def test_what_is_wrong_with_a_picture_is_shown_in_eighty_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = tmp_path / ("a-long-name-of-a-folder" * 3)
    for name in ("ant", "bee"):
        (top / name).mkdir(parents=True)
        for number in range(6):
            Image.new("RGB", (8, 8), (number, 30, 60)).save(top / name / f"{number}.png")
    (top / "bee" / "3.png").write_bytes(b"no picture")
    monkeypatch.setenv("COLUMNS", "80")
    result = CliRunner().invoke(
        main, ["doctor", "--task", f"folder:{top}", "--check-images", "--workers", "0"]
    )
    assert result.exit_code == 1
    line = next(line for line in result.stdout.splitlines() if "bee/3.png" in line)
    assert str(top) not in line
    assert "bad" in line
    assert "not shown" not in result.stderr
    assert "found" in result.stdout
