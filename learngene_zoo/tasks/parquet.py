"""`parquet:PATH`: a Parquet file, or a folder of `train*.parquet`, `validation*.parquet`, `test*.parquet`."""

from __future__ import annotations

import re
from pathlib import Path

from learngene_zoo.errors import BadData
from learngene_zoo.tasks.own_data import split_name
from learngene_zoo.tasks.quiet import no_progress
from learngene_zoo.tasks.tables import task_of_tables
from learngene_zoo.tasks.task import SPLITS, Task


def open_parquet(path: str) -> Task:
    """The task in this file or folder. Raises `BadData` that names the file or column which is wrong."""
    from datasets import DatasetDict, load_dataset

    files = _files(Path(path).expanduser())
    with no_progress():
        tables = DatasetDict()
        for split, names in files.items():
            _readable(names)
            tables[split] = load_dataset("parquet", data_files=names, split="train")
    return task_of_tables(f"parquet:{path}", tables)


def _readable(names: list[str]) -> None:
    """Raise `BadData` for the first file that is no Parquet file: `datasets` would not name it."""
    from pyarrow import ArrowException
    from pyarrow.parquet import read_metadata

    for name in names:
        try:
            read_metadata(name)
        except (ArrowException, OSError) as error:
            reason = " ".join(str(error).split())[:120]
            raise BadData(f"{name} cannot be read as Parquet ({reason}); write it anew") from None


def _files(path: Path) -> dict[str, list[str]]:
    if path.is_file():
        return {"train": [str(path)]}
    if not path.is_dir():
        raise BadData(f"there is no file or folder {path}; give a .parquet file or a folder of them")
    found: dict[str, list[str]] = {}
    for file in sorted(path.rglob("*.parquet")):
        word = split_name(re.split(r"[-_.0-9]", file.name, maxsplit=1)[0])
        parent = split_name(file.parent.name)
        split = word if word in SPLITS else parent if parent in SPLITS and file.parent != path else None
        if split is None:
            raise BadData(f"{file} is of no split; begin its name with train, validation or test")
        found.setdefault(split, []).append(str(file))
    if "train" not in found:
        raise BadData(f"{path} holds no train*.parquet; begin the names with train, validation or test")
    return found
