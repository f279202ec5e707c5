"""The mutants of benchmarks/mutants.toml still apply, and the command that tries them tells killed ones from those that survive."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def mutants(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(checkout / "benchmarks"))
    return importlib.import_module("mutants")


def test_every_mutant_applies(mutants: Any, checkout: Path) -> None:
    every = mutants.load()
    assert [problem for one in every if (problem := one.problem(checkout))] == []
    assert len(every) >= 150
    assert len({one.file for one in every}) >= 25
    assert any(one.file.startswith("plugins/") for one in every)
    assert len({(one.file, one.old, one.new) for one in every}) == len(every)


SOURCE = "def larger(a, b):\n    while a < 0:\n        a += 1\n    return a if a > b else b\n"
TESTS = (
    "from source import larger\n\n\ndef test_larger():\n    assert larger(2, 1) == 2\n    assert larger(-1, 3) == 3\n"
)


@pytest.mark.parametrize(
    ("old", "new", "status", "by"),
    [
        ("a > b", "a < b", "killed", "tests/test_source.py::test_larger"),
        ("a > b", "a >= b", "survived", ""),
        ("a += 1", "a += 0", "killed", "timeout"),
    ],
)
def test_a_mutant_is_killed_or_survives(mutants: Any, tmp_path: Path, old: str, new: str, status: str, by: str) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "source.py").write_text(SOURCE)
    (tmp_path / "tests" / "test_source.py").write_text(TESTS)
    one = mutants.Mutant("source.py", old, new, ("tests/test_source.py",))
    assert one.problem(tmp_path) == ""
    row = mutants.judged(tmp_path, one, 2.0 if by == "timeout" else 120.0)
    assert (row["status"], row["by"]) == (status, by)
    assert (tmp_path / "source.py").read_text() == SOURCE


@pytest.mark.parametrize(
    ("file", "old", "new", "tests", "said"),
    [
        ("none.py", "a", "b", "tests", "there is no such file"),
        ("source.py", "x > y", "x", "tests", "the text occurs 0 times"),
        ("source.py", "a", "b", "tests", r"the text occurs \d+ times"),
        ("source.py", "a > b", "a > b", "tests", "nothing is changed"),
        ("source.py", "a > b", "a >", "tests", "not valid Python"),
        ("source.py", "a > b", "a < b", "tests/none.py", "there is no tests/none.py"),
    ],
)
def test_a_mutant_that_does_not_apply_says_why(
    mutants: Any, tmp_path: Path, file: str, old: str, new: str, tests: str, said: str
) -> None:
    import re

    (tmp_path / "tests").mkdir()
    (tmp_path / "source.py").write_text(SOURCE)
    assert re.search(said, mutants.Mutant(file, old, new, (tests,)).problem(tmp_path))
