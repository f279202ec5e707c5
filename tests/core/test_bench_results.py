"""The results file: no measurement is lost, and unreadable lines are reported."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from bench_toy import toy_row

from learngene_zoo.bench.results.rows import Results, pack_flags, read_rows, select, unpack_flags
from learngene_zoo.errors import BadFile, Refused, Unavailable


def write_results(path: Path, *keys: str) -> Path:
    with Results(path) as results:
        for key in keys:
            results.append(toy_row(key))
    return path


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    row = toy_row(value=0.25, correct="8f", evaluated=8, probe=None)
    with Results(tmp_path / "deep" / "results.jsonl") as results:
        results.append(row)
        assert results.rows() == [row]
    assert read_rows(tmp_path / "deep" / "results.jsonl") == [row]
    assert read_rows(tmp_path / "absent.jsonl") == []


@pytest.mark.parametrize(
    ("flags", "digits"),
    [("", ""), ("1", "8"), ("0001", "1"), ("11111", "f8"), ("000000001", "008"), ("0" * 6, "00")],
)
def test_the_first_image_is_the_highest_bit(flags: str, digits: str) -> None:
    correct = tuple(flag == "1" for flag in flags)
    if flags:
        assert pack_flags(correct) == digits
        assert unpack_flags(digits, len(flags)) == correct
    assert toy_row(correct=digits, evaluated=len(flags)).correct == digits


def test_a_failed_cell_is_not_finished_and_its_newest_row_counts(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with Results(path) as results:
        results.append(toy_row("a", value=None, error="it failed"))
        results.append(toy_row("b"))
        assert results.finished == {"b"}
    with Results(path) as results:
        assert results.finished == {"b"}
        results.append(toy_row("a", value=0.75))
        assert [(row.key, row.value) for row in results.rows()] == [("a", 0.75), ("b", 0.5)]
    assert len(path.read_text().splitlines()) == 3, "the file is only appended to"
    assert [row.key for row in select(read_rows(path), ["b", "c", "b"])] == ["b"]


@pytest.mark.parametrize("cut", [1, 40, -1])
def test_a_half_written_last_line_is_put_aside(tmp_path: Path, cut: int) -> None:
    path = write_results(tmp_path / "results.jsonl", "a", "b", "c")
    lines = path.read_bytes().splitlines(keepends=True)
    half = lines[2][:-1][:cut]
    path.write_bytes(lines[0] + lines[1] + half)
    assert [row.key for row in read_rows(path)] == ["a", "b"], "who only reads repairs nothing"
    assert path.read_bytes().endswith(half)
    with Results(path) as results:
        assert results.repaired is not None
        assert "results.jsonl.broken" in results.repaired
        assert results.finished == {"a", "b"}
        results.append(toy_row("c"))
    assert [row.key for row in read_rows(path)] == ["a", "b", "c"]
    assert (tmp_path / "results.jsonl.broken").read_bytes() == half + b"\n"


def test_a_last_line_that_only_lacks_its_end_is_kept(tmp_path: Path) -> None:
    path = write_results(tmp_path / "results.jsonl", "a", "b")
    path.write_bytes(path.read_bytes()[:-1])
    with Results(path) as results:
        assert results.repaired is None
        results.append(toy_row("c"))
    assert [row.key for row in read_rows(path)] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"key": "b", "arm"\n', "line 2 is not valid JSON"),
        (b'{"key": "b"}\n', "line 2: the key 'arm' is missing"),
        (b"[]\n", "line 2: expected an object, got"),
        (b"\n", "line 2 is not valid JSON"),
    ],
)
def test_a_broken_line_in_the_middle_is_named(tmp_path: Path, line: bytes, words: str) -> None:
    path = write_results(tmp_path / "results.jsonl", "a", "b", "c")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + line + lines[2])
    with pytest.raises(BadFile, match=words):
        Results(path)
    with pytest.raises(BadFile, match=words):
        read_rows(path)
    path.write_bytes(lines[0])
    Results(path).close()  # the failed opening did not keep the lock


def test_a_row_of_another_kind_at_the_end_is_not_taken_for_half_a_line(tmp_path: Path) -> None:
    path = write_results(tmp_path / "results.jsonl", "a")
    path.write_bytes(path.read_bytes() + b'{"key": "b", "new": 1}\n')
    with pytest.raises(BadFile, match="line 2: unknown key 'new'"):
        Results(path)
    assert len(path.read_bytes().splitlines()) == 2


def test_a_row_that_does_not_fit_the_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    path = write_results(tmp_path / "results.jsonl", "a")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Results(path) as results:
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, before[1]))
        try:
            with pytest.raises(
                Unavailable,
                match="could not be written: the file would be larger than this process may",
            ):
                results.append(toy_row("b"))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert [row.key for row in results.rows()] == ["a"]
        results.append(toy_row("c"))
    assert [row.key for row in read_rows(path)] == ["a", "c"]


def test_two_writers_exclude_each_other(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with Results(path), pytest.raises(Refused, match="another process is writing"):
        Results(path)
    Results(path).close()


def test_beginning_anew_forgets_even_what_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text("{}\n{}\n")
    with Results(path, anew=True) as results:
        assert results.rows() == []
    assert path.read_bytes() == b""


HOLD = """
import sys, time
from pathlib import Path
from learngene_zoo.bench.results.rows import Results
results = Results(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": ":".join(sys.path)},
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(Refused):
            Results(path)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    Results(path).close()
