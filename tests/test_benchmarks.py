"""The programs in benchmarks/ and tools/: studies say the same things in the same order, every timing
is a case, every answered question is in the log, and every path that a text names exists.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "benchmarks"
PARTS = ("Varied:", "Measured:", "Command:", "Results:", "Page")
# They have no question: speed.py runs the timings, real_ancestries.py fetches a model.
OTHERS = ("speed", "real_ancestries")
PATH = re.compile(r"(?:benchmarks|tools)/[\w./-]*\w\.(?:py|toml|json|jsonl|md)\b")


def programs(folder: Path) -> list[Path]:
    return [
        path
        for path in sorted(folder.glob("*.py"))
        if 'if __name__ == "__main__":' in path.read_text(encoding="utf-8")
    ]


def docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


@pytest.mark.parametrize(
    "path",
    [
        *(path for path in programs(BENCHMARKS) if path.stem not in OTHERS),
        *programs(BENCHMARKS / "archive"),
    ],
    ids=lambda path: path.stem,
)
def test_a_study_says_its_question_and_what_is_varied_and_measured(path: Path) -> None:
    text = docstring(path)
    assert "?" in text.partition("\n\n")[0]
    places = [text.find(f"\n{part}") for part in PARTS]
    assert -1 not in places
    assert places == sorted(places)
    command, pages = text[places[2] : places[3]], re.findall(r"docs/[\w/]+\.md", text[places[4] :])
    assert f"python {path.relative_to(ROOT)}" in command
    assert pages
    assert all((ROOT / page).is_file() for page in pages)


def test_every_timing_is_a_case() -> None:
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "speed.py", "--help"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    named = re.findall(r"^  (\w+)  +.*\?$", done.stdout, re.MULTILINE)
    modules = {path.stem for path in (BENCHMARKS / "timings").glob("*.py")}
    assert sorted(named) == sorted(modules - {"__init__", "case"})
    kept = {path.stem for path in (BENCHMARKS / "results").glob("*.json")}
    assert set(named) <= kept


def test_every_answered_question_is_in_the_log() -> None:
    folder = BENCHMARKS / "archive"
    log = (folder / "LOG.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^`python benchmarks/archive/(\w+)\.py", log, re.MULTILINE)) == [
        path.stem for path in sorted(folder.glob("*.py"))
    ]
    dates = re.findall(r"^## (\d{4}-\d\d-\d\d): ", log, re.MULTILINE)
    assert dates == sorted(dates, reverse=True)


def named_paths() -> Iterator[tuple[str, str]]:
    """The files that texts and programs name, but for placeholders such as NAME.json."""
    folders = ("docs", "cards", "benchmarks", "tools", "learngene_zoo", "plugins", "tests")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    for path in [*ROOT.glob("*.md"), *files]:
        if path.suffix in (".md", ".py", ".toml") and path.parent.name != "results":
            for name in PATH.findall(path.read_text(encoding="utf-8")):
                if not Path(name).stem.isupper():
                    yield str(path.relative_to(ROOT)), name


def test_every_program_and_result_that_a_text_names_exists() -> None:
    assert [pair for pair in named_paths() if not (ROOT / pair[1]).is_file()] == []
