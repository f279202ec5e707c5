"""The stamp of a task's data: equal for copies, different if a file or label changes; resuming and
reuse in a bench.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.descendant import assemble
from learngene_zoo.bench.grid.grid import Arm, list_cells
from learngene_zoo.errors import Refused
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.lifecycle.extraction import PreparedExtraction
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Recipe
from learngene_zoo.tasks import stamps
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.tasks.task import stamp_task, stamp_tasks


def build(top: Path) -> Path:
    """Write two classes whose files have equal names and sizes."""
    for label, name in enumerate(("cat", "dog")):
        (top / name).mkdir(parents=True)
        for number in range(8):
            pixels = np.full((4, 4, 3), 30 * number + label, dtype=np.uint8)
            Image.fromarray(pixels).save(top / name / f"{number}.bmp")
    return top


def stamp_of(top: Path) -> str:
    return stamp_task(open_task(f"folder:{top}"))


def swap(top: Path) -> None:
    for old, new in (("cat", "x"), ("dog", "cat"), ("x", "dog")):
        (top / old).rename(top / new)


def test_a_copy_has_the_same_stamp_and_times_do_not_count(tmp_path: Path) -> None:
    before = stamp_of(build(tmp_path / "data"))
    assert len(before) == 32
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    os.utime(tmp_path / "data" / "cat" / "1.bmp", (1, 1))
    (tmp_path / "data" / "cat" / "notes.txt").write_text("no picture")
    assert stamp_of(tmp_path / "copy") == stamp_of(tmp_path / "data") == before


CHANGES: dict[str, Callable[[Path], object]] = {
    "swapped classes": swap,
    "another name": lambda top: (top / "cat" / "1.bmp").rename(top / "cat" / "1b.bmp"),
    "one byte": (
        lambda top: (top / "dog" / "7.bmp").write_bytes(
            (top / "dog" / "7.bmp").read_bytes()[:-1] + b"!"
        )
    ),
    "one less": lambda top: (top / "dog" / "7.bmp").unlink(),
    "moved to the other class": lambda top: (top / "dog" / "7.bmp").rename(top / "cat" / "7b.bmp"),
    "a class renamed": lambda top: (top / "dog").rename(top / "wolf"),
}


@pytest.mark.parametrize("most", [stamps.MAX_READ_WHOLE, 0])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_changes_the_stamp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, most: int
) -> None:
    monkeypatch.setattr(stamps, "MAX_READ_WHOLE", most)
    before = stamp_of(build(tmp_path))
    CHANGES[change](tmp_path)
    assert stamp_of(tmp_path) != before


def test_large_files_are_read_in_three_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stamps, "MAX_READ_WHOLE", 0)
    file = tmp_path / "a"
    content = bytearray(os.urandom(100_000))

    def digest() -> str:
        file.write_bytes(content)
        return stamps.FileStamp([("a", str(file))], list)()

    seen = {digest()}
    for offset in (0, 50_000, 99_999):
        content[offset] ^= 1
        seen.add(digest())
    assert len(seen) == 4


def test_what_is_built_in_has_no_stamp() -> None:
    assert stamp_tasks([open_task("digits")]) == {}
    assert len(open_task("digits").identity) == 6


def start_training(top: Path, out: Path, run: Run) -> Any:
    spec = ViTSpec(image_size=8, patch_size=4, layers=1, width=8, heads=2, mlp_ratio=1.0, classes=2)
    start = assemble(
        spec, {}, seed=0, scheme="timm", mean=(0.5,) * 3, std=(0.5,) * 3, provenance={}
    )
    return lifecycle.finetune(
        start, task=f"folder:{top}", recipe=Recipe(epochs=1), out=out, run=run
    )


def test_a_run_is_not_resumed_on_other_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from learngene_zoo.training import tuning

    top, begun = build(tmp_path / "data"), []

    def interrupt(*_: Any, **__: Any) -> None:
        run = _[3]
        (run.folder / "checkpoint-1").mkdir(exist_ok=True)
        begun.append(run.plan)
        raise KeyboardInterrupt

    monkeypatch.setattr(tuning, "tune", interrupt)
    with pytest.raises(KeyboardInterrupt):
        start_training(top, tmp_path / "out", Run())
    with pytest.raises(KeyboardInterrupt):
        start_training(top, tmp_path / "out", Run(resume=True))
    assert begun[0] == begun[1]
    swap(top)
    with pytest.raises(
        Refused, match=r"the data folder:.*/data changed since the run in .*out\.run began"
    ) as caught:
        start_training(top, tmp_path / "out", Run(resume=True))
    assert "start over with force=True" in str(caught.value)
    assert len(begun) == 2
    swap(top)
    with pytest.raises(KeyboardInterrupt):
        start_training(top, tmp_path / "out", Run(resume=True))


@pytest.mark.parametrize("name", ["tal", "logah", "ghn3", "pith"])
def test_an_extraction_is_not_resumed_after_its_source_task_changed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top, begun = build(tmp_path / "data"), []

    def interrupt(_: Any, run: Run) -> None:
        assert run.folder is not None
        (run.folder / "checkpoint-1").mkdir(exist_ok=True)
        begun.append(run)
        raise KeyboardInterrupt

    def start(run: Run) -> None:
        lifecycle.extract(
            name,
            tasks="digits",
            source=f"folder:{top}",
            preset="smoke",
            out=tmp_path / "out",
            run=run,
        )

    monkeypatch.setattr(PreparedExtraction, "condense", interrupt)
    for run in (Run(), Run(resume=True)):
        with pytest.raises(KeyboardInterrupt):
            start(run)
    swap(top)
    with pytest.raises(Refused, match=r"the data folder:.*/data changed since the run"):
        start(Run(resume=True))
    assert len(begun) == 2


def test_cells_of_a_bench_know_their_data(tmp_path: Path) -> None:
    top = build(tmp_path)

    def grid(task: str, **more: Any) -> Any:
        arm = Arm(name="a", method="first_k", **more)
        return list_cells(
            tasks=[task], layers=[2], seeds=[0], epochs=[1], arms=[arm], recipe=Recipe()
        )[0]

    built_in = grid("digits")
    assert (built_in.data, built_in.extraction.data) == ({}, {})
    before, seen = grid(f"folder:{top}"), grid("digits", tasks=(f"folder:{top}",))
    assert before.extraction.data == {}
    assert len(seen.extraction.data) == 1
    assert grid(f"folder:{top}").key == before.key
    swap(top)
    assert grid(f"folder:{top}").key != before.key
    changed = grid("digits", tasks=(f"folder:{top}",))
    assert changed.key != seen.key
    assert changed.extraction.key != seen.extraction.key
    assert grid("digits").key == built_in.key
