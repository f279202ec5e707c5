"""The limits of names and structure in tools/structure.py hold."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def structure() -> Any:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        return importlib.import_module("structure")
    finally:
        sys.path.remove(str(ROOT / "tools"))


@pytest.mark.slow
def test_no_number_is_above_its_limit(structure: Any) -> None:
    items = structure.list_items()
    numbers = {**structure.measure_names(items), **structure.measure_structure(items)}
    exceeded = {
        name: (value, items[name])
        for name, value in numbers.items()
        if value > structure.LIMITS[name]
    }
    assert exceeded == {}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("trained", True),
        ("_held", True),
        ("found", True),
        ("asking", True),
        ("train_model", False),
        ("seed", False),
        ("embed", False),
        ("trained_model", False),
        ("is_trained", False),
    ],
)
def test_a_participle_alone_counts_as_the_name_of_a_function(
    structure: Any, name: str, expected: bool
) -> None:
    assert structure.is_participle(name) is expected


def test_a_method_may_have_two_levels_and_no_more(structure: Any, tmp_path: Path) -> None:
    path = tmp_path / "methods.py"
    path.write_text("class A(Extractor): ...\nclass B(A): ...\nclass C: ...\nclass D(C): ...\n")
    structure.parse_file.cache_clear()
    assert structure.list_depths((path,)) == ["2 A", "3 B"]


def test_a_class_name_in_two_files_is_listed(
    structure: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(structure, "ROOT", tmp_path)
    for name in "ab":
        (tmp_path / f"{name}.py").write_text(f"class Twice: ...\nclass Once{name}: ...\n")
    paths = tuple(sorted(tmp_path.glob("*.py")))
    assert structure.list_repeated_classes(paths) == ["Twice: a.py, b.py"]
