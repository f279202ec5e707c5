"""`lgzoo bench` on a small world of folders, in this process."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "core"))

from bench_toy import make_world, toy_cells

from learngene_zoo.atomic import DRAFT, digest_of
from learngene_zoo.bench import demo
from learngene_zoo.bench.grid.grid import BUDGETS
from learngene_zoo.bench.running import plan, runner
from learngene_zoo.cli.bench_options import Numbers
from learngene_zoo.cli.main import main


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return make_world(tmp_path_factory.mktemp("world"))


def words(world: tuple[str, str], out: Path, *more: str) -> list[str]:
    ancestry, task = world
    return [
        "bench",
        task,
        "--method",
        "lsamd",
        "--set",
        "lsamd.keep=1,3",
        "--ancestry",
        ancestry,
        "--layers",
        "3",
        "--epochs",
        "1",
        "--seeds",
        "1",
        "--images",
        "24",
        "--batch-size",
        "8",
        "--lr",
        "1e-3",
        "--augment",
        "light",
        "--workers",
        "1",
        "-o",
        str(out),
        *more,
    ]


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.mark.slow
def test_a_bench_prints_its_means_and_continues_by_itself(
    world: tuple[str, str], tmp_path: Path
) -> None:
    first = call(*words(world, tmp_path / "out"))
    assert first.exit_code == 0, first.stderr
    assert "[6/6]" in first.stderr
    assert "No arm was tuned: learning rate 0.001, augmentation light for all." in first.stderr
    for arm in ("lsamd shuffled", "lsamd stem", "scratch timm", "scratch fan_in"):
        assert arm in first.stdout
    more = call(*words(world, tmp_path / "out", "--epochs", "0,1", "--json"))
    assert more.exit_code == 0, more.stderr
    assert "6 of 12 cells are finished already" in more.stderr
    rows = json.loads(more.stdout)
    assert [(row["arm"], row["epochs"]) for row in rows[::6]] == [("lsamd", 0), ("lsamd", 1)]
    assert {row["images"] for row in rows} == {24}
    lines = (tmp_path / "out" / "results.jsonl").read_text().splitlines()
    assert len(lines) == 12
    anew = call(*words(world, tmp_path / "out", "--epochs", "0", "--force", "--quiet"))
    assert (anew.exit_code, anew.stderr) == (0, "")
    assert len((tmp_path / "out" / "results.jsonl").read_text().splitlines()) == 6


@pytest.mark.slow
def test_tasks_of_several_suites_are_measured_in_one_call_and_continue(
    world: tuple[str, str], tmp_path: Path
) -> None:
    brief = ("--epochs", "0", "--split", "validation")
    first = call(*words(world, tmp_path, "digits", *brief))
    assert first.exit_code == 0, first.stderr
    named = words(world, tmp_path, *brief)
    del named[1]  # its folder, given with --task below
    tasks = ("--task", "stamps,digits", "--task", world[1], "--json")
    second = call(*named, *tasks)
    assert second.exit_code == 0, second.stderr
    assert "12 of 18 cells are finished already" in second.stderr, "the cells have the same keys"
    rows = json.loads(second.stdout)
    expected = {"digits", "stamps", world[1]}
    assert {row["task"] for row in rows} == expected
    assert {row["error"] for row in rows} == {None}
    lines = json.loads((tmp_path / "summary.json").read_text())
    assert {line["task"] for line in lines} - {"", None} == expected


@pytest.mark.slow
def test_notes_about_the_call_are_printed_with_quiet_too(
    world: tuple[str, str], tmp_path: Path
) -> None:
    more = ("--method", "lsamd", "--layers", "3,9", "--epochs", "0", "--quiet")
    result = call(*words(world, tmp_path / "out", *more))
    assert result.exit_code == 0, result.stderr
    twice, size = result.stderr.splitlines()
    assert twice == "note: lsamd is given 2 times; it is measured once"
    assert re.fullmatch(r"note: lsamd builds .*, not 9 layers; skipped", size)


def remove_options(given: list[str]) -> list[str]:
    """Remove the learning rate and the augmentation from a command line."""
    for option in ("--lr", "--augment"):
        del given[given.index(option) : given.index(option) + 2]
    return given


@pytest.mark.slow
def test_on_a_small_folder_nothing_is_tuned_and_one_line_says_so(
    world: tuple[str, str], tmp_path: Path
) -> None:
    result = call(*remove_options(words(world, tmp_path)))
    assert result.exit_code == 0, result.stderr
    assert result.stderr.count("tuned") == 1
    assert re.search(
        r"No arm was tuned: .* has \d+ validation images; choosing pays from 100 on",
        result.stderr,
    )
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [(row["split"], row["lr"]) for row in rows] == [("test", 1e-3)] * 6
    assert len({row["weights"] for row in rows}) == 6, "a digest of every arm's model"
    assert "choosing pays from 100 on" in (tmp_path / "summary.md").read_text()


@pytest.mark.slow
def test_a_single_rate_is_used_and_no_augmentation_is_chosen_on_few_images(
    world: tuple[str, str], tmp_path: Path
) -> None:
    result = call(*remove_options(words(world, tmp_path)), "--tune", "4e-4")
    assert result.exit_code == 0, result.stderr
    assert "No arm was tuned: learning rate 0.0004, augmentation none for all." in result.stderr
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [(row["split"], row["lr"]) for row in rows] == [("test", 4e-4)] * 6


@pytest.mark.slow
def test_a_plan_counts_what_is_missing_and_starts_nothing(
    world: tuple[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    asked = ("--epochs", "1,3", "--images", "10", "--plan", "--json")
    (planned,) = json.loads(call(*words(world, out, *asked)).stdout)
    assert planned.pop("seconds") > 0
    assert planned == {
        "stage": "measuring",
        "cells": 12,
        "extractions": 2,
        "images": 6 * (10 + 30),
    }
    assert not out.exists()
    tuned = call(*words(world, out, "--images", "10", "--tune", "1e-4,1e-3,1e-2", "--plan"))
    assert tuned.exit_code == 0, tuned.stderr
    found = re.search(
        r"tuning +18 +2 +180 +[\d.]+\n.*measuring +6 +0 +60 +[\d.]+\n", tuned.stdout, re.DOTALL
    )
    assert found, tuned.stdout
    assert "nothing was started" in tuned.stderr
    assert "one process takes about" in tuned.stderr
    assert call(*words(world, out, "--images", "10")).exit_code == 0
    (left,) = json.loads(call(*words(world, out, *asked)).stdout)
    assert (left["cells"], left["extractions"], left["images"]) == (6, 0, 180)
    refused = call(*words(world, out, "--plan", "--report"))
    assert (refused.exit_code, refused.stderr) == (
        2,
        "error: --plan and --report exclude each other; choose one\n",
    )


def test_the_time_of_a_plan_is_that_of_its_passes(
    world: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one FLOP a second, the seconds are the FLOPs of trainings, heads and evaluations."""
    monkeypatch.setattr(plan, "measure_rate", lambda *_: 1.0)

    def count(*options: str) -> float:
        (stage,) = json.loads(call(*words(world, tmp_path, "--plan", "--json", *options)).stdout)
        return stage["seconds"]

    none, once, thrice = (count("--epochs", epochs) for epochs in ("0", "1", "3"))
    assert thrice - once == pytest.approx(2 * (once - none))
    assert count("--epochs", "1", "--images", "12") < once
    assert count("--epochs", "1", "--layers", "2") < once
    assert count("--epochs", "1", "--seeds", "2") == pytest.approx(2 * once, rel=0.01)


@pytest.mark.slow
def test_arms_of_texts_are_compared_without_augmentations(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    table = tmp_path / "moods.csv"
    table.write_text("text,label\n" + "a good day,up\na bad day,down\n" * 12, encoding="utf-8")
    asked = ("bench", "--method", "first_k", "--ancestry", "ancestry-words", "--layers", "1")
    asked += ("--epochs", "1", "--seeds", "1", "-o", str(tmp_path / "out"))
    named = call(*asked, "--task", "sentiment", "--plan", "--json")
    tuning, measuring = json.loads(named.stdout)
    assert (tuning["cells"], measuring["cells"]) == (6 * 3, 6), "three rates and no augmentation"
    light = call(*asked, "--task", "sentiment", "--augment", "light")
    assert (light.exit_code, light.stderr) == (
        2,
        "error: texts are not augmented; leave out --augment light\n",
    )
    done = call(*asked, "--task", f"csv:{table}", "--workers", "1", "--json")
    assert done.exit_code == 0, done.stderr
    assert {row["arm"] for row in json.loads(done.stdout)} >= {"first_k", "scratch timm"}


def test_texts_are_counted_as_texts(tmp_path: Path) -> None:
    """Also where a probe is fitted; the keys of JSON are the same for images and texts."""
    pytest.importorskip("transformers")
    table = tmp_path / "moods.csv"
    table.write_text("text,label\n" + "a good day,up\na bad day,down\n" * 30, encoding="utf-8")
    words = ("evaluate", "ancestry-words", "--task", f"csv:{table}", "--probe", "knn")
    shown = call(*words).stdout
    assert "training_texts" in shown
    assert "images" not in shown
    assert json.loads(call(*words, "--json").stdout)["training_images"] == 43


@pytest.fixture(scope="module")
def tuned(world: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """Return the folder and the output of a bench that tunes every arm.

    The folder of images is small, so the rates are given.
    """
    out = tmp_path_factory.mktemp("tuned")
    result = call(*remove_options(words(world, out, "--json")), "--tune", "1e-6,1e-4,1e-2")
    assert result.exit_code == 0, result.stderr
    return out, result


def read_rows(out: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the rows of the tuning, and those of the six tuned arms."""
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    return rows[:-6], rows[-6:]


@pytest.mark.slow
def test_every_arm_is_tuned_equally_often(tuned: tuple[Path, Result]) -> None:
    """Only validation images are used, and the report states the choices."""
    out, result = tuned
    tried, judged = read_rows(out)
    assert {(row["split"], row["seed"]) for row in tried} == {("validation", 1000)}
    assert {(row["split"], row["seed"]) for row in judged} == {("test", 0)}
    assert json.loads(result.stdout) == judged
    arms = {row["arm"] for row in judged}
    assert {sum(row["arm"] == arm for row in tried) for arm in arms} == {len(tried) // 6}
    assert len({row["lr"] for row in tried}) >= 3
    assert len(tried) >= 6 * (3 + 1), "three rates, and a second augmentation at the best of them"
    for name in ("report.html", "summary.md"):
        text = (out / name).read_text()
        assert "ow the arms were tuned" in text
        assert re.search("lsamd shuffled(: learning rate|.*: no better than)", text)


@pytest.mark.slow
def test_learning_rates_are_chosen_on_validation_images(tuned: tuple[Path, Result]) -> None:
    tried, judged = read_rows(tuned[0])
    assert {row["split"] for row in tried} == {"validation"}
    rates = tried[: 6 * 3]  # then a second augmentation at the best of them
    for row in judged:
        of = {other["lr"]: other["value"] for other in rates if other["arm"] == row["arm"]}
        assert set(of) == {1e-6, 1e-4, 1e-2}
        assert of[row["lr"]] == max(of.values()) or row["lr"] == 1e-4, (
            "the middle rate, where none is above chance"
        )


@pytest.mark.parametrize(
    ("more", "code", "text"),
    [
        (["--layers", "9"], 2, "lsamd builds 2 to 4 layers of width 32, not 9"),
        (["--layers", "a"], 2, "expected integers separated by commas, as 5,9, got 'a'"),
        (["--layers", ","], 2, "got ','"),
        (["--set", "lsamd"], 2, "METHOD.NAME=VALUE"),
        (["--set", "lsamd.keep=1,x"], 2, "--set lsamd.keep: 'x' is not an integer"),
        (["--set", "lsamd.keep=[1,3]"], 2, "--set lsamd.keep: '[1' is not an integer"),
        (["--set", "lsamd.top=0"], 2, "--set lsamd.top: 0 is out of range; it must be at least 1"),
        (["--set", "lsamd.routing=x"], 2, "--set lsamd.routing: 'x' is not one of"),
        (["--set", "lsamd.tpo=3"], 2, "--set lsamd.tpo: no setting named 'tpo'; did you mean top?"),
        (["--set", "lsmd.top=3"], 2, "no method named 'lsmd'; did you mean lsamd?"),
        (["--set", "tal.epochs=1"], 2, "settings for tal, but the methods of this grid are lsamd"),
        (["--method", "lsmd"], 2, "did you mean lsamd"),
        (["--task", "signs"], 2, "no task of folder:"),
        (["--seeds", "0"], 2, "--seeds"),
        (["--ray", "nonsense"], 2, "exclude each other"),
        (
            ["--claim", "lsamd-scratch"],
            2,
            "SUITE cannot be combined with --claim, whose file sets it; leave SUITE out",
        ),
        (["--lr", "-1"], 2, "-1 is out of range; it must be above 0"),
    ],
)
def test_what_cannot_be_meant_is_said_in_one_line(
    world: tuple[str, str], tmp_path: Path, more: list[str], code: int, text: str
) -> None:
    result = call(*words(world, tmp_path / "out", *more))
    assert (result.exit_code, len(result.stderr.splitlines())) == (code, 1), result.stderr
    assert text in result.stderr
    assert not (tmp_path / "out" / "results.jsonl").exists()


def test_a_grid_whose_cells_all_fail_fails(tmp_path: Path, world: tuple[str, str]) -> None:
    (tmp_path / "empty" / "a").mkdir(parents=True)
    (tmp_path / "empty" / "a" / "notes.txt").write_text("no image")
    result = call(*words((world[0], f"folder:{tmp_path / 'empty'}"), tmp_path / "out"))
    assert result.exit_code == 1
    assert "error: all 6 cells failed; the first: " in result.stderr


@pytest.mark.slow
def test_an_arm_without_any_result_fails_after_the_others_are_shown(
    world: tuple[str, str], tmp_path: Path
) -> None:
    extraction = (
        "--set",
        "lsamd.keep=none",
        "--set",
        "lsamd.top=2",
        "--extract-task",
        "folder:nowhere",
    )
    result = call(*words(world, tmp_path, *extraction))
    assert result.exit_code == 1, result.stderr
    assert "scratch timm" in result.stdout
    last = result.stderr.splitlines()[-1]
    assert last.startswith(
        "error: no results of lsamd, lsamd shuffled, lsamd stem, lsamd stem_fan_in; its"
        " first cell failed: "
    )
    again = call("bench", "--report", "-o", str(tmp_path))
    assert (again.exit_code, again.stderr.splitlines()) == (1, [last])


@pytest.mark.slow
def test_a_method_that_builds_none_of_the_sizes_fails(
    world: tuple[str, str], tmp_path: Path
) -> None:
    other = ("--method", "pretrain_finetune", "--set", "pretrain_finetune.depths=2")
    result = call(*words(world, tmp_path, *other, "--set", "pretrain_finetune.epochs=0"))
    assert result.exit_code == 1, result.stderr
    last = result.stderr.splitlines()[-1]
    assert last == "error: no results of pretrain_finetune; it builds none of these sizes"
    assert "lsamd stem" in result.stdout
    again = call("bench", "--report", "-o", str(tmp_path))
    assert (again.exit_code, again.stderr.splitlines()[-1:]) == (1, [last])


def test_an_interruption_says_how_to_go_on(
    world: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*args: object, **rest: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "check_same_ancestries", stop)
    result = call(*words(world, tmp_path / "out"))
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (
        130,
        "interrupted; the same command continues",
    )


def test_claims_take_no_grid() -> None:
    assert "leave --layers out" in call("bench", "--claim", "lsamd-scratch", "--layers", "5").stderr
    assert "leave --lr out" in call("bench", "--claim", "lsamd-scratch", "--lr", "1").stderr
    assert "leave SUITE out" in call("bench", "mini", "--claim", "lsamd-scratch").stderr
    assert "remove bench" in call("bench", "--claim", "lsamd-scratch", "--force").stderr
    assert (
        "no claim named 'lsamd-scrach'; similar: lsamd-scratch"
        in call("bench", "--claim", "lsamd-scrach").stderr
    )


def test_the_help_shows_every_budget() -> None:
    text = call("bench", "--help").stdout
    assert all(name in text for name in BUDGETS)
    assert "resume" not in text


def test_numbers_are_read_with_commas() -> None:
    assert Numbers(int).convert("5,9, 12,", None, None) == (5, 9, 12)
    assert Numbers(float).convert("1e-3", None, None) == (1e-3,)


@pytest.mark.slow
def test_the_learngene_of_a_demo_is_replaced_whole(
    world: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = toy_cells(world)
    monkeypatch.setattr(demo, "demo_grid", lambda seed, **given: cells)
    out = tmp_path / "out"
    folder = out / "learngene"
    line = ["demo", "-o", str(out), "--workers", "1", "--quiet"]
    folder.mkdir(parents=True)
    for name in ("config.json", "record.json", DRAFT):  # a stranger's
        (folder / name).write_text("{}")
    run = CliRunner().invoke(main, line)
    assert run.exit_code == 1
    assert "learngene holds .lgzoo-draft, and no valid .lgzoo file" in run.stderr
    assert {path.name for path in folder.iterdir()} == {"config.json", "record.json", DRAFT}
    shutil.rmtree(out)
    for _ in range(2):  # and then over its own
        run = CliRunner().invoke(main, line)
        assert run.exit_code == 0, run.stderr
        assert {path.name for path in folder.iterdir()} == {
            ".lgzoo",
            "config.json",
            "model.safetensors",
            "README.md",
        }
        assert digest_of(folder) == digest_of(cells[0].extraction.folder(out))
    (folder / "config.json").write_text("{}")
    run = CliRunner().invoke(main, line)
    assert "learngene holds config.json, which was changed since lgzoo wrote it" in run.stderr
