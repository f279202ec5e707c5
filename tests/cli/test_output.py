"""stdout is data: JSON alone, or a table that is not cut."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from learngene_zoo.cli import train as train_command
from learngene_zoo.cli.job import (
    Job,
    choose_rows,
    format_interval,
    is_number,
    print_lines,
    print_made,
    print_row,
    print_rows,
    print_table,
    say,
)
from learngene_zoo.cli.plan import print_sizes
from learngene_zoo.cli.process.messages import print_note
from learngene_zoo.runs.run import Run


def job(as_json: bool = False, quiet: bool = False) -> Job:
    return Job(run=Run(), path=Path("x"), force=False, quiet=quiet, as_json=as_json)


def test_json_is_bare_and_raw(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"params": 20_000_000, "value": 0.1 + 0.2, "kept": (1, 2), "name": "é", "none": None}]
    print_rows(rows, as_json=True)
    assert json.loads(capsys.readouterr().out) == [{**rows[0], "kept": [1, 2]}]
    print_rows([], as_json=True)
    assert json.loads(capsys.readouterr().out) == []
    print_row(rows[0], as_json=True)
    assert json.loads(capsys.readouterr().out)["params"] == 20_000_000


@pytest.mark.parametrize("width", [80, 60, 200])
def test_a_table_is_as_wide_as_the_terminal_and_cuts_no_name(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    name = "weight_selection/stem_fan_in"
    row = {"name": name, "text": "word " * 30, "params": 1_234_567, "tasks": "a," * 40}
    print_rows([row, {**row, "text": None}], as_json=False, title="t " * 90, drops=("tasks",))
    printed = capsys.readouterr()
    assert all(len(line) <= width for line in printed.out.splitlines())
    assert printed.out.count(name) == 2
    assert printed.out.count("word") == 30
    assert "1.23M" in printed.out
    assert printed.err == ("" if width == 200 else f"not shown in {width} columns: tasks\n")


def test_ten_rows_and_how_many_more(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"n": f"row{i}", "value": i} for i in range(97)]
    print_rows(rows, as_json=False, most=10)
    printed = capsys.readouterr()
    assert [line.split()[0] for line in printed.out.splitlines()[2:]] == [
        f"row{i}" for i in range(10)
    ]
    assert printed.err == "87 of 97 rows left out; show them with --all\n"
    print_rows(rows, as_json=True, most=10)
    assert len(json.loads(capsys.readouterr().out)) == 97
    print_rows(
        rows[:15], as_json=False, most=10
    )  # a call with --all would take longer than reading five more rows
    printed = capsys.readouterr()
    assert (len(printed.out.splitlines()), printed.err) == (17, "")
    print_rows(rows[:16], as_json=False, most=10)
    printed = capsys.readouterr()
    assert printed.err == "6 of 16 rows left out; show them with --all\n"


def test_the_tasks_that_are_left_out_are_found_by_their_suites() -> None:
    listed = lgzoo("list tasks")
    assert "stamps" not in listed.stdout
    assert "next: lgzoo show SUITE   (suites: " in listed.stderr
    assert "pictures (5 tasks)" in listed.stderr
    assert "stamps" in lgzoo("show pictures").stdout


def test_tasks_of_texts_are_distinguished_from_tasks_of_images() -> None:
    rows = json.loads(lgzoo("list tasks --json").stdout)
    inputs = {row["name"]: row["input"] for row in rows}
    assert (inputs["objects"], inputs["sentiment"]) == ("image", "text")
    table = lgzoo("list tasks --all", {"COLUMNS": "80"}).stdout.splitlines()
    assert max(map(len, table)) <= 80
    assert "input" in table[0].split()
    assert [line.split()[1] for line in table if line.startswith("sentiment ")] == ["text"]


def test_ten_sizes_from_the_smallest_to_the_largest(capsys: pytest.CaptureFixture[str]) -> None:
    for count, shown in ((11, 11), (15, 15), (21, 10)):
        print_sizes([{"layers": layers} for layers in range(count)], False, False)
        printed = capsys.readouterr()
        assert len(printed.out.splitlines()) == shown + 2
        assert printed.err == (
            "" if count == shown else "11 of 21 rows left out; show them with --all\n"
        )


def test_rows_that_are_spread_begin_with_the_first_and_end_with_the_last() -> None:
    assert choose_rows(range(97), 10, spread=True) == [0, 11, 21, 32, 43, 53, 64, 75, 85, 96]
    assert choose_rows(range(97), 3) == [0, 1, 2]
    assert choose_rows(range(97), None, spread=True) == list(range(97))


def test_an_interval_stands_beside_its_value_and_is_aligned_as_a_number() -> None:
    assert format_interval(0.91349, 0.9, 0.925) == "0.913 [0.900, 0.925]"
    assert is_number("0.913 [0.900, 0.925]")
    assert is_number("-0.010 [-0.030, 0.010]")
    assert not is_number("digits")


def test_names_that_look_like_markup_are_printed_as_they_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_rows([{"name": "[red]x[/red]"}], as_json=False)
    assert "[red]x[/red]" in capsys.readouterr().out


def test_what_writes_says_where_and_what_next(capsys: pytest.CaptureFixture[str]) -> None:
    print_made(Path("out"), job(), "lgzoo evaluate")
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("out\n", "next: lgzoo evaluate\n")
    print_made(Path("out"), job(quiet=True), "lgzoo evaluate")
    assert capsys.readouterr().err == ""
    print_made(Path("out"), job(as_json=True), "lgzoo evaluate")
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"path": "out"}
    assert printed.err == ""


def test_under_torchrun_only_the_first_process_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    print_rows([{"a": 1}], as_json=True)
    print_row({"a": 1}, as_json=False)
    print_made(Path("out"), job(), "lgzoo evaluate")
    assert capsys.readouterr() == ("", "")


HOSTILE = "\x1b[2Jx\n\u202ey"


def test_no_text_controls_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([{HOSTILE: HOSTILE, "list": [HOSTILE]}], as_json=False, title=HOSTILE)
    print_row({HOSTILE: HOSTILE}, as_json=False)
    print_row({HOSTILE: HOSTILE}, as_json=True)
    print_lines([HOSTILE])
    print_made(Path(HOSTILE), job(), HOSTILE)
    say(HOSTILE, job())
    print_note(HOSTILE)
    printed = capsys.readouterr()
    assert not {"\x1b", "\u202e"} & set(printed.out + printed.err)
    assert (
        len(printed.out.splitlines()) == 3 + 1 + 1 + 1 + 1 + 1
    )  # a title, a heading and a rule; then one line each
    assert len(printed.err.splitlines()) == 3


def test_a_title_is_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([{"[/b]": "wide enough"}], as_json=False, title="[/red]")
    printed = capsys.readouterr().out
    assert "[/red]" in printed
    assert "[/b]" in printed


@pytest.mark.parametrize(
    ("variables", "code", "said"),
    [
        ({"RANK": "1"}, 0, ""),
        ({"RANK": "x"}, 0, ""),
        ({"WORLD_SIZE": "two"}, 2, "WORLD_SIZE is 'two'"),
        ({"WORLD_SIZE": "2", "RANK": "2"}, 2, "RANK is 2 of 2 processes"),
    ],
)
def test_half_of_torchruns_variables(variables: dict[str, str], code: int, said: str) -> None:
    result = lgzoo("list tasks", variables)
    assert result.returncode == code, result.stderr
    assert said in result.stderr
    assert bool(result.stdout) == (code == 0)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("line", ["list tasks --all", "list tasks --json", "show lsamd"])
def test_a_closed_stream_is_no_error(line: str, closed: str) -> None:
    result = lgzoo(line, closed=closed)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_a_name_that_is_no_utf8_is_printed_in_any_encoding(encoding: str) -> None:
    result = lgzoo("show caf\udce9-猫", {"PYTHONIOENCODING": encoding})
    assert result.returncode == 2
    assert "named 'caf\\udce9-" in result.stderr


def lgzoo(
    line: str, variables: dict[str, str] | None = None, closed: str = ""
) -> subprocess.CompletedProcess[str]:
    """Call lgzoo in a separate process; the shell closes some of its streams."""
    command = f'exec "$0" -m learngene_zoo {line} {closed}'
    paths = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": paths, "COLUMNS": "200", **(variables or {})}
    return subprocess.run(
        ["sh", "-c", command, sys.executable],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_result_of_any_metric_is_printed() -> None:
    shared = {"test_interval": [0.1, 0.3], "test_images": 500, "validation_accuracy": 0.9}
    for metric in ("accuracy", "mIoU", "matthews", "F1"):
        facts = train_command._list_facts({f"test_{metric}": 0.2, **shared, "kept_epoch": 1})
        assert facts == {
            "kept_epoch": 1,
            "metric": metric,
            "value": 0.2,
            "low": 0.1,
            "high": 0.3,
            "images": 500,
        }
    assert train_command._list_facts({"validation_accuracy": 0.9}) == {}


@pytest.mark.parametrize(
    ("kept", "images", "expected"),
    [
        (2, 100, "epoch 2 of 5 is kept; "),
        (
            2,
            5,
            "epoch 2 of 5 is kept, chosen by only 5 validation images, where one is 20 points; ",
        ),
        (
            0,
            100,
            "every epoch has a worse validation result than the model before training, which is "
            "kept; ",
        ),
        (
            0,
            14,
            "every epoch has a worse result on only 14 validation images, where one is 7 points, "
            "than the model before training, which is kept; ",
        ),
    ],
)
def test_the_kept_epoch_is_explained(kept: int, images: int, expected: str) -> None:
    metrics = {"epochs": 5, "validation_images": images}
    assert train_command._describe_kept(kept, metrics, "image") == expected


def test_a_later_epoch_than_the_best_is_explained() -> None:
    history = [{"epoch": epoch, "validation_accuracy": 0.5} for epoch in range(6)]
    history[2]["validation_accuracy"] = history[3]["validation_accuracy"] = 0.6
    metrics = {"epochs": 5, "validation_images": 100, "history": history}
    describe = train_command._describe_kept
    assert describe(5, metrics, "image") == (
        "epoch 5 of 5 is kept (the last one within a standard error of the best, epoch 2); "
    )
    assert describe(3, metrics, "image") == "epoch 3 of 5 is kept; "
    assert describe(5, metrics, "image", "last") == "epoch 5 of 5 is kept, the last one; "


@pytest.mark.parametrize(
    ("epochs", "expected"),
    [
        (1, "more --epochs (1 was trained)"),
        (19, "more --epochs (19 were trained, in 95 steps)"),
        (20, "a smaller --lr (0.0001 was used)"),
    ],
)
def test_a_training_without_a_better_epoch_gives_advice(epochs: int, expected: str) -> None:
    metrics, recipe = {"epochs": epochs, "training_images": 288}, {"lr": 1e-4, "batch_size": 64}
    advice = train_command.advise_training(metrics, recipe, "image")
    assert advice == f"try {expected}, or more training images"


def test_a_smaller_rate_is_advised_where_the_training_loss_rose() -> None:
    history = [{"epoch": 0}, *({"epoch": 1 + n, "loss": loss} for n, loss in enumerate((0.2, 3.5)))]
    metrics = {"epochs": 2, "training_images": 40, "history": history}
    advice = train_command.advise_training(metrics, {"lr": 1e-4, "batch_size": 64}, "image")
    assert "a smaller --lr (0.0001 was used, and the training loss rose)" in advice


def test_a_smaller_rate_is_advised_where_the_validation_result_fell() -> None:
    def advise(*values: float, images: int = 100, noun: str = "image") -> str:
        history = [
            {"epoch": epoch, "loss": 1.0, "validation_accuracy": value}
            for epoch, value in enumerate(values)
        ]
        metrics = {"epochs": 2, "training_images": 40, "validation_images": images}
        recipe = {"lr": 1e-3, "batch_size": 64}
        return train_command.advise_training({**metrics, "history": history}, recipe, noun)

    assert advise(0.9, 0.5, 0.7) == (
        "try a smaller --lr (0.001 was used, and the validation accuracy fell from 0.9000 to "
        "0.5000), or more training images"
    )
    assert advise(0.9, 0.5, 0.7, noun="text") == (
        "try more --epochs or a smaller --batch-size (after 2 steps the training loss is still "
        "1.0000), or more training texts"
    )
    more = "try more --epochs (2 were trained), or more training images"
    assert advise(0.9, 0.85, 0.85) == more
    assert advise(1.0, 0.5, 0.75, images=4) == more


def test_a_title_may_depend_on_the_columns_that_are_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for width, shown in ((80, "name size note"), (30, "name size")):
        monkeypatch.setenv("COLUMNS", str(width))
        print_table(
            ["name", "size", "note"], [["a" * 12, "b" * 12, "c" * 12]], [False] * 3, " ".join
        )
        assert capsys.readouterr().out.splitlines()[0] == shown
