"""`compute_once`: the arguments are the key, and none can be left out."""

from __future__ import annotations

import ast
from dataclasses import dataclass, make_dataclass, replace
from functools import partial, wraps
from pathlib import Path
from typing import Any

import pytest
import torch

from learngene_zoo.runs.cache import Part, compute_key, compute_once
from learngene_zoo.runs.run import Run
from learngene_zoo.seeds import derive_seed
from learngene_zoo.testing import make_tiny_ancestry, make_tiny_task


@dataclass(frozen=True, kw_only=True)
class Inner:
    lr: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Settings:
    steps: int = 3
    inner: Inner = Inner()
    blocks: tuple[int, ...] = (1, 2)


CALLS: list[Any] = []


def work(settings: Settings, *inputs: Any) -> tuple[dict[str, torch.Tensor], Any]:
    CALLS.append(settings)
    return {"x": torch.full((2,), float(settings.steps))}, {"steps": settings.steps}


def other(settings: Settings, *inputs: Any) -> tuple[dict[str, torch.Tensor], Any]:
    return work(settings, *inputs)


def test_any_change_of_what_is_passed_is_another_key() -> None:
    start = Settings()
    changed = [
        replace(start, steps=4),
        replace(start, inner=Inner(lr=2.0)),
        replace(start, blocks=(1,)),
    ]
    part = Part({}, None, "a")
    keys = [compute_key("toy.work", settings, [], 0) for settings in [start, *changed]]
    keys += [compute_key("toy.other", start, [], 0), compute_key("toy.work", start, [], 1)]
    keys += [
        compute_key("toy.work", start, [value], 0)
        for value in (part, Part({}, None, "b"), "a", ("a",), {"a": 1}, None)
    ]
    keys += [
        compute_key("toy.work", start, [value], 0)
        for value in (
            make_tiny_ancestry(0),
            make_tiny_ancestry(1),
            make_tiny_task("a"),
            make_tiny_task("b"),
        )
    ]
    assert len(set(keys)) == len(keys)
    assert compute_key(
        "toy.work", Settings(), [make_tiny_ancestry(0), Part({}, 5, "a")], 0
    ) == compute_key("toy.work", start, [make_tiny_ancestry(0), part], 0)


@pytest.mark.parametrize("value", [torch.zeros(2), object(), {"a": torch.zeros(2)}, [object()]])
def test_an_input_without_an_identity_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="no identity"):
        compute_key("toy.work", Settings(), [value], 0)


def wrap(function: Any, hidden: int) -> Any:
    """Return a function that looks like one defined at the top of a module."""

    @wraps(function)
    def carrying(settings: Settings, run: Run) -> Any:
        return {}, hidden

    return carrying


def test_a_function_that_carries_more_than_its_arguments_is_refused() -> None:
    hidden = 3
    with pytest.raises(TypeError, match="top of a module"):
        compute_once(Run(), "toy.work", wrap(work, hidden), Settings())

    def inner(settings: Settings, run: Run) -> Any:
        return {}, hidden

    for function in (inner, lambda settings, run: ({}, 1), partial(work, Settings())):
        with pytest.raises(TypeError, match="top of a module"):
            compute_once(Run(), "toy.work", function, Settings())


def test_the_key_has_no_name_of_a_function_or_class() -> None:
    """So code can be moved and renamed without computing parts again."""
    moved = make_dataclass(
        "Renamed", [("steps", int), ("inner", Any), ("blocks", Any)], frozen=True
    )
    assert compute_key("toy.work", moved(3, Inner(), (1, 2)), [], 0) == compute_key(
        "toy.work", Settings(), [], 0
    )


def test_a_part_without_a_name_is_refused() -> None:
    with pytest.raises(
        TypeError, match=r'name of a part is .*expected a string such as "my_method\.train"'
    ):
        compute_once(Run(), work, Settings())  # type: ignore[arg-type]


def test_runs_that_share_parts_compute_equal_ones_once(tmp_path: Path) -> None:
    CALLS.clear()
    run = [Run(folder=tmp_path / name, shared=tmp_path / "shared").part("p") for name in "abc"]
    first, again = (
        compute_once(run[0], "toy.work", work, Settings()),
        compute_once(run[1], "toy.work", work, Settings()),
    )
    third = compute_once(run[2], "toy.work", work, Settings(steps=4))
    assert [settings.steps for settings in CALLS] == [3, 4]
    compute_once(replace(run[2], precision="bf16"), "toy.work", work, Settings())
    assert [settings.steps for settings in CALLS] == [3, 4, 3]
    assert (first.key, first.record) == (again.key, again.record)
    assert torch.equal(first.state["x"], again.state["x"])
    assert third.key != first.key


def test_a_part_has_a_name_and_a_seed_of_its_own(tmp_path: Path) -> None:
    run = Run(folder=tmp_path, seed=3)
    parts = [
        run,
        run.part("a"),
        run.part("b"),
        run.part("a").part("b"),
        run.part("a/b"),
        Run(seed=4).part("a"),
    ]
    assert len({part.seed for part in parts}) == len(parts)
    assert run.part("a").seed == replace(run, device="cuda", workers=2).part("a").seed
    assert [part.name for part in parts] == ["", "a", "b", "a/b", "a/b", "a"]
    assert run.part("a").part("b").folder == tmp_path / "parts" / "a" / "parts" / "b"


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("search/digits", "search/digits"),
        ("folder:/data/a..b/photos", "folder:/data/a..b/photos"),
        ("folder:../../../../data", "folder:../%2E%2E/%2E%2E/%2E%2E/data"),
        ("..", "%2E%2E"),
        ("search/../../data", "search/%2E%2E/%2E%2E/data"),
        ("/data/photos", "%2Fdata/photos"),
        ("//data", "%2F/data"),
    ],
)
def test_the_folder_of_a_part_is_within_that_of_its_run(
    name: str, folder: str, tmp_path: Path
) -> None:
    part = Run(folder=tmp_path, seed=3).part(name)
    assert part.folder == tmp_path / "parts" / folder
    assert part.folder.resolve().is_relative_to((tmp_path / "parts").resolve())
    assert (part.name, part.seed) == (name, derive_seed(3, "part", name))


def test_without_resume_a_part_is_computed_anew(tmp_path: Path) -> None:
    CALLS.clear()
    for steps in (3, 4):
        assert compute_once(
            Run(folder=tmp_path).part("p"), "toy.work", work, Settings(steps=steps)
        ).record == {"steps": steps}
    assert len(CALLS) == 2


@pytest.mark.parametrize(("rank", "kept"), [(0, True), (1, False)])
def test_only_the_first_process_writes(
    rank: int, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", str(rank))
    part = compute_once(Run(folder=tmp_path).part("p"), "toy.work", work, Settings())
    assert part.record == {"steps": 3}
    assert bool(list(tmp_path.rglob("done"))) is kept


def test_a_finished_part_is_loaded_when_its_run_resumes(tmp_path: Path) -> None:
    CALLS.clear()
    compute_once(Run(folder=tmp_path).part("p"), "toy.work", work, Settings())
    part = compute_once(Run(folder=tmp_path, resume=True).part("p"), "toy.work", work, Settings())
    assert len(CALLS) == 1
    assert (part.record, part.state["x"].tolist()) == ({"steps": 3}, [3.0, 3.0])


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_part_of_other_code_is_not_taken_over(tmp_path: Path, is_shared: bool) -> None:
    CALLS.clear()
    for code, calls in (("a", 1), ("a", 1), ("b", 2), ("", 3), ("", 3)):
        run = Run(folder=tmp_path / "run", code=code, shared=tmp_path if is_shared else None)
        compute_once(run.part("p").part("inner"), "toy.note", note, Settings())
        assert len(CALLS) == calls


def note(settings: Settings, run: Run) -> tuple[dict[str, torch.Tensor], Any]:
    CALLS.append(settings)
    return {}, {0: (1.5, None), "one": [2]}


@pytest.mark.parametrize("stored", ["nowhere", "in the run", "shared"])
def test_the_record_of_a_part_is_the_one_that_a_resumed_run_reads(
    stored: str, tmp_path: Path
) -> None:
    run = Run(
        folder=None if stored == "nowhere" else tmp_path / "run",
        shared=tmp_path / "shared" if stored == "shared" else None,
        resume=True,
    )
    for _ in range(2):
        part = compute_once(run.part("p"), "toy.note", note, Settings())
        assert part.record == {"0": [1.5, None], "one": [2]}


@pytest.mark.slow
def test_no_two_functions_of_the_tree_share_the_name_of_a_part() -> None:
    functions: dict[str, set[str]] = {}
    root = Path(__file__).resolve().parents[2]
    for path in (*root.glob("learngene_zoo/**/*.py"), *root.glob("plugins/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "compute_once"
            ):
                functions.setdefault(ast.unparse(node.args[1]), set()).add(
                    ast.unparse(node.args[2])
                )
    assert len(functions) > 20
    assert {
        name: functions_of_name
        for name, functions_of_name in functions.items()
        if len(functions_of_name) > 1
    } == {}
