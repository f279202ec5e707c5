"""The mutants of tools/mutants.toml still apply, and the command that tries them tells killed
ones from those that survive.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def mutants(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(checkout / "tools"))
    return importlib.import_module("mutants")


@pytest.fixture
def draw(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(checkout / "tools"))
    return importlib.import_module("mutants_draw")


@pytest.fixture
def maps(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(checkout / "tools"))
    return importlib.import_module("mutants_map")


@pytest.mark.slow
def test_every_mutant_applies(mutants: Any, checkout: Path) -> None:
    every = mutants.load_mutants()
    assert [problem for item in every if (problem := item.find_problem(checkout))] == []
    assert len(every) >= 150
    assert len({item.file for item in every}) >= 25
    assert any(item.file.startswith("plugins/") for item in every)
    assert len({(item.file, item.old, item.new) for item in every}) == len(every)


SOURCE = "def larger(a, b):\n    while a < 0:\n        a += 1\n    return a if a > b else b\n"
TESTS = (
    "from source import larger\n\n\ndef test_larger():\n    assert larger(2, 1) == 2\n    assert"
    " larger(-1, 3) == 3\n"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "status", "by"),
    [
        ("a > b", "a < b", "killed", "tests/test_source.py::test_larger"),
        ("a > b", "a >= b", "survived", ""),
        ("a += 1", "a += 0", "killed", "timeout"),
    ],
)
def test_a_mutant_is_killed_or_survives(
    mutants: Any, tmp_path: Path, old: str, new: str, status: str, by: str
) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "source.py").write_text(SOURCE)
    (tmp_path / "tests" / "test_source.py").write_text(TESTS)
    mutant = mutants.Mutant("source.py", old, new, ("tests/test_source.py",))
    assert mutant.find_problem(tmp_path) == ""
    row = mutants.judge_mutant(tmp_path, mutant, 2.0 if by == "timeout" else 120.0)
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
    assert re.search(said, mutants.Mutant(file, old, new, (tests,)).find_problem(tmp_path))


# Mutants that are drawn by chance.


def change_all(draw: Any, text: str) -> set[str]:
    """Every text that a change of a line gives."""
    return {
        draw.Text(text).apply(change)
        for change in draw.list_changes(text)
        if draw.is_fault(text, change)
    }


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("a < b", {"a <= b", "a >= b"}),
        ("a is not b", {"a is b"}),
        ("a + b", {"a - b"}),
        ("x += y", {"x -= y", "pass"}),
        ("x = 3", {"x = 4", "x = 2"}),
        ("x = 0.5", {"x = 1.0", "x = 0.25"}),
        ("x = True", {"x = False"}),
        ("x = 'word'", {"x = 'wordx'", "x = 'ord'"}),
        ("x = a and b", {"x = a or b", "x = a", "x = b"}),
        ("x = not a", {"x = (a)"}),
        ("if a: b()", {"if not (a): b()", "if a: pass"}),
        ("x = f(a, b)", {"x = f(b, a)"}),
        ("x = f(a, key=b)", {"x = f(a, )"}),
        ("x = max(a)", {"x = min(a)"}),
        ("x = a[b:]", {"x = a[(b) + 1:]", "x = a[(b) - 1:]"}),
        ("while a: break", {"while not (a): break", "while a: continue"}),
        ("if a: raise E('of 3')", {"if not (a): raise E('of 3')", "if a: pass"}),
        ("def f(): return a", {"def f(): return None"}),
        ("def f(x=1): return", {"def f(x=2): return", "def f(x=0): return", "def f(x=1): pass"}),
    ],
)
def test_what_becomes_of_a_line(draw: Any, text: str, changed: set[str]) -> None:
    assert change_all(draw, text) >= changed


@pytest.mark.parametrize(
    "text",
    [
        "import a",
        "from a import b",
        "__all__ = ['a']",
        'x = "a text for people"',
        "x = f'{a + 1}'",
        "def f(a: int | None) -> a[1]: ...",
        '"""docstring"""',
        "if TYPE_CHECKING: x = 3",
        "if __name__ == '__main__': main()",
    ],
)
def test_what_no_mutant_is_drawn_from(draw: Any, text: str) -> None:
    assert change_all(draw, text) == set()


def test_a_seed_and_a_tree_give_one_list_that_an_edit_elsewhere_does_not_move(draw: Any) -> None:
    texts = {
        f"{name}.py": "".join(f"{name}{line} = {line}\n" for line in range(20)) for name in "abcd"
    }
    draws = draw.draw_changes(texts, 30, 7)
    assert draw.draw_changes(texts, 30, 7) == draws
    assert draw.draw_changes(texts, 15, 7) == draws[:15]
    assert draw.draw_changes(texts, 30, 8) != draws
    assert len({(file, change.line) for file, change in draws}) == 30
    edited = draw.draw_changes({**texts, "a.py": "x = 3\n"}, 200, 7)
    assert [item for item in edited if item[0] != "a.py"] == [
        item for item in draw.draw_changes(texts, 200, 7) if item[0] != "a.py"
    ]


def test_every_line_is_as_likely(draw: Any) -> None:
    """A line of many possible changes is drawn no more often than one of few."""
    texts = {"few.py": "x = True\n" * 90, "many.py": "y = f(1, 2, 3) + 4\n" * 30}
    draws = [file for file, _ in draw.draw_changes(texts, 40, 1)]
    assert 22 <= draws.count("few.py") <= 38


def test_a_drawn_mutant_applies_once_and_knows_its_line(
    mutants: Any, draw: Any, tmp_path: Path
) -> None:
    text = "def a():\n    x = 1\n    return x\n\n\ndef b():\n    x = 1\n    return x\n"
    (tmp_path / "source.py").write_text(text)
    for change in draw.list_changes(text):
        mutant = mutants.Mutant("source.py", *draw.widen_change(text, change), ())
        assert mutant.find_problem(tmp_path) == ""
        assert mutant.apply(tmp_path) == draw.Text(text).apply(change)
        assert mutant.find_line(tmp_path) == change.line


def test_tests_are_chosen_by_what_they_name_and_by_what_they_run(
    mutants: Any, maps: Any, tmp_path: Path
) -> None:
    for name, text in {
        "learngene_zoo/far.py": "def other():\n    return 1\n",
        "learngene_zoo/near.py": "def larger(a, b):\n    return a if a > b else b\n",
        "tests/test_far.py": "from learngene_zoo.far import other\n",
        "tests/test_near.py": "from learngene_zoo.near import larger\n",
        "tests/test_both.py": (
            "from learngene_zoo import near, far\n\n\ndef test(): near.larger(far.other(), 2)\n"
        ),
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    chosen = maps.Selector(tmp_path, tmp_path / "map").choose("learngene_zoo/near.py", 2, 9)
    assert [item.file for item in chosen] == ["tests/test_near.py", "tests/test_both.py"]
    both = "tests/test_both.py::test"
    row = {"code": 0, "shared": 0.0, "seconds": {both: 1.0}, "fixtures": {both: []}}
    for test, lines in {
        "tests/test_near.py": {},
        "tests/test_both.py": {"learngene_zoo/near.py": {both: [2]}},
    }.items():
        maps.write_row({**row, "test": test, "lines": lines}, tmp_path, tmp_path / "map")
    (tmp_path / "learngene_zoo/near.py").write_text(
        "\n\ndef larger(a, b):\n    return a if a > b else b\n"
    )
    (chosen,) = maps.Selector(tmp_path, tmp_path / "map").choose("learngene_zoo/near.py", 4, 9)
    assert (chosen.file, chosen.tests, chosen.seconds) == ("tests/test_both.py", (both,), 1.0)
    assert maps.list_unmeasured(tmp_path, tmp_path / "map") == ["tests/test_far.py"]


@pytest.mark.exhaustive
def test_a_test_that_fails_without_the_mutant_does_not_kill_it(
    mutants: Any, maps: Any, tmp_path: Path
) -> None:
    (tmp_path / "plugins").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    (tmp_path / "plugins/source.py").write_text(SOURCE)
    broken = "\n\ndef test_broken():\n    assert False\n\n\n"
    (tmp_path / "tests/test_source.py").write_text(TESTS.replace("\n\n\n", broken))
    selector = maps.Selector(tmp_path, tmp_path / "map")
    rows = [
        mutants.judge_drawn(
            tmp_path, mutants.Mutant("plugins/source.py", "a > b", new, ()), selector
        )
        for new in ("a >= b", "a < b")
    ]
    assert [(row["status"], row["by"]) for row in rows] == [
        ("survived", ""),
        ("killed", "tests/test_source.py::test_larger"),
    ]
