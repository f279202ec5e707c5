"""Progress of long steps on stderr: lines if nothing was printed for a while, and no bar without
rich.
"""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from learngene_zoo.runs import cache
from learngene_zoo.runs import progress as progress_module
from learngene_zoo.runs.cache import wait_for_lock
from learngene_zoo.runs.progress import (
    Activity,
    mark_printed,
    print_activities,
    print_note,
    report_activity,
    show_progress,
)


@pytest.fixture(autouse=True)
def fresh_printer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reset the printer, so that activities of other tests have no effect."""
    monkeypatch.setattr(progress_module, "_printer", progress_module._Printer())


@pytest.fixture
def period(monkeypatch: pytest.MonkeyPatch) -> float:
    """Print lines every 50 ms instead of every 20 s."""
    monkeypatch.setattr(progress_module, "PERIOD", 0.05)
    return 0.05


def test_a_long_step_prints_lines_about_itself_and_how_far_it_is(
    period: float, capsys: Any
) -> None:
    with print_activities(), report_activity("extract"):
        for number in show_progress(range(3), "solving blocks", False):
            time.sleep(0.3 if number == 1 else 0)
    lines = capsys.readouterr().err.splitlines()
    assert 2 <= len(lines) <= 6
    # On a busy machine a line may still come between the second step and the third.
    assert set(lines) - {"extract: solving blocks 2/3, 0s"} == {"extract: solving blocks 1/3, 0s"}


def test_the_remaining_time_follows_from_the_speed_since_the_first_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    activity = Activity("training", 100)
    times = iter((0.0, 100.0, 110.0, 110.0, 130.0, 400.0))
    monkeypatch.setattr(time, "monotonic", lambda: next(times))
    assert activity.describe() == "training 0/100"
    activity.num_done = 40  # resumed: these took no time
    assert activity.describe() == "training 40/100"
    activity.num_done = 45
    assert activity.describe() == "training 45/100 (1m 50s left)"  # 5 in 10 seconds
    activity.num_done = 40
    assert activity.describe() == "training 40/100"
    activity.num_done, activity.note = 70, "loss 0.5"
    assert activity.describe() == "training 70/100 (30s left), loss 0.5"
    activity.num_done = 100
    assert activity.describe() == "training 100/100, loss 0.5"


def test_items_counted_outside_are_named_with_the_innermost_step(
    period: float, capsys: Any
) -> None:
    with print_activities(), report_activity("recommend"), report_activity("models", 97) as models:
        models.num_done = 34
        with report_activity("expanding"), report_activity("solving"):
            time.sleep(0.12)
    assert set(capsys.readouterr().err.splitlines()) == {"recommend: models 34/97: solving, 0s"}


def test_waiting_for_another_process_names_its_work(
    period: float, capsys: Any, tmp_path: Path
) -> None:
    other = FileLock(tmp_path / "lock")
    other.acquire()
    with ThreadPoolExecutor(1) as pool, print_activities():

        def wait() -> str:
            with wait_for_lock(tmp_path / "lock", "extracting lsamd"):
                return "mine"

        waiting = pool.submit(wait)
        while not (lines := capsys.readouterr().err):
            time.sleep(0.01)
        other.release()
        assert waiting.result(timeout=20) == "mine"
    assert lines.startswith("waiting for another process (extracting lsamd), ")
    with wait_for_lock(tmp_path / "lock", "extracting lsamd"):  # it was released
        pass


@pytest.mark.parametrize("is_quiet", [False, True])
def test_a_script_names_what_it_waits_for_in_one_line(
    is_quiet: bool, monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path
) -> None:
    monkeypatch.setattr(cache, "SILENT_SECONDS", 0.1)
    other = FileLock(tmp_path / "lock")
    other.acquire()
    silent = progress_module.SILENT
    monkeypatch.setattr(silent, "is_set", lambda: is_quiet)
    with ThreadPoolExecutor(1) as pool:

        def wait() -> str:
            with wait_for_lock(tmp_path / "lock", "computing the teacher"):
                return "mine"

        waiting = pool.submit(wait)
        time.sleep(0.5)
        other.release()
        assert waiting.result(timeout=20) == "mine"
    line = "waiting for another process (computing the teacher)\n"
    assert capsys.readouterr().err == ("" if is_quiet else line)


def test_a_quick_step_prints_nothing(capsys: Any) -> None:
    with print_activities(), report_activity("evaluate"):
        assert list(show_progress("abc", "letters", False)) == ["a", "b", "c"]
        time.sleep(0.05)
    assert capsys.readouterr().err == ""


def test_nothing_is_printed_where_nobody_asked_or_a_bar_is_drawn(
    period: float, capsys: Any
) -> None:
    with report_activity("library"):
        time.sleep(0.12)
    with print_activities(), report_activity("training", 10, has_bar=True):
        time.sleep(0.12)
    assert capsys.readouterr().err == ""


def test_a_line_that_somebody_else_printed_delays_the_next(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(progress_module, "PERIOD", 0.4)
    with print_activities(), report_activity("finetune"):
        for _ in range(8):
            time.sleep(0.1)
            mark_printed()
    assert capsys.readouterr().err == ""


def test_lines_are_short_and_have_no_control_characters(period: float, capsys: Any) -> None:
    with print_activities(), report_activity("reading \x1b[31m" + "x" * 500):
        time.sleep(0.12)
    line = capsys.readouterr().err.splitlines()[0]
    assert line.isprintable()
    assert len(line) < 80


def test_without_rich_there_are_lines_in_place_of_the_bar(
    period: float, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [*(name for name in sys.modules if name.split(".")[0] == "rich"), "rich"]:
        monkeypatch.setitem(sys.modules, name, None)
    for number in show_progress(range(2), "solving", True):
        time.sleep(0.12 * number)
    assert "solving 1/2, 0s" in capsys.readouterr().err


def test_a_pass_that_is_left_early_is_forgotten(period: float, capsys: Any) -> None:
    with print_activities():
        for _ in show_progress(range(5), "left", False):
            break
        time.sleep(0.12)
    assert capsys.readouterr().err == ""


def test_a_closed_stderr_does_not_end_the_command(
    period: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        def write(self, text: str) -> None:
            raise OSError("no space left")

        def flush(self) -> None:
            raise OSError("no space left")

    monkeypatch.setattr(sys, "stderr", Full())
    with print_activities(), report_activity("export"):
        time.sleep(0.12)


def test_what_an_activity_says() -> None:
    assert Activity("training", 40, 12, note="loss 0.5").describe() == "training 12/40, loss 0.5"
    assert Activity("exporting").describe() == "exporting"


def test_a_note_is_printed_once_per_command_and_only_there(capsys: Any) -> None:
    print_note("nobody asked", "a")
    for _ in range(2):
        with print_activities():
            print_note("grey of 12 bits", "a")
            print_note("again", "a")
    assert capsys.readouterr().err == "note: grey of 12 bits\n" * 2


def test_an_interrupted_pass_takes_no_note_from_the_next_command(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(progress_module, "_draw_bar", lambda items, title: None)
    left = show_progress(range(2), "left", True)  # its traceback may keep it alive
    next(left)
    for _ in range(2):
        with print_activities(is_command=True):
            print_note("grey of 12 bits", "a")
    assert capsys.readouterr().err == "note: grey of 12 bits\n" * 2
    left.close()


@pytest.mark.parametrize(
    ("seconds", "says"), [(7, "7s"), (59, "59s"), (75, "1m 15s"), (3700, "1h 01m")]
)
def test_a_line_says_how_long_it_has_taken(seconds: float, says: str, capsys: Any) -> None:
    with print_activities(), report_activity("extract") as activity:
        activity.began -= seconds
        progress_module._printer.print_line()
    assert capsys.readouterr().err.splitlines() == [f"extract, {says}"]


@pytest.mark.slow
def test_on_a_terminal_a_step_is_named_soon(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(progress_module, "FIRST", 0.05)
    for is_terminal, names in ((True, {"opening", "solving"}), (False, set())):
        monkeypatch.setattr(sys.stderr, "isatty", lambda is_terminal=is_terminal: is_terminal)
        with print_activities(), report_activity("extract"):
            for name in ("opening", "solving", "solving"):
                with report_activity(name):
                    time.sleep(0.2)
        lines = capsys.readouterr().err.splitlines()
        assert {line.split(": ")[-1].split(",")[0] for line in lines} == names


def test_on_a_terminal_the_lines_about_a_step_become_rarer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    printer = progress_module._Printer()
    printer.activities = [Activity("extract"), Activity("solving")]
    seconds = []
    for _ in range(7):
        seconds.append(printer._choose_patience())
        printer.print_line()
    assert seconds == [1, 2, 4, 8, 16, 20, 20]
    printer.activities[-1] = Activity("writing")
    assert printer._choose_patience() == 1
