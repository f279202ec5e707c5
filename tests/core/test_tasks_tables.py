"""Tables: splits in names and in a column `split`, and label columns of every unambiguous type."""

from __future__ import annotations

import io
import os
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from learngene_zoo.errors import BadData, WrongCall
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.tasks.tables import name_splits
from learngene_zoo.tasks.task import KIND_OF, stamp_task
from learngene_zoo.tasks.unlabelled.plain import open_plain_parquet


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


def picture(number: int) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.random.default_rng(number).integers(0, 256, (3, 4, 3), dtype=np.uint8)).save(
        stream, "png"
    )
    return stream.getvalue()


def write(path: Path, labels: Any, **columns: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    count = len(labels)
    images = pa.array([{"bytes": picture(n), "path": None} for n in range(count)])
    pq.write_table(pa.table({"image": images, "label": labels, **columns}), path)
    return path


TWENTY = [n % 2 for n in range(20)]
LABELS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "whole numbers": (pa.array(TWENTY), ("0", "1")),
    "numbers with gaps": (pa.array([7 * n for n in TWENTY]), ("0", "7")),
    "fractions that are whole": (pa.array([float(n) for n in TWENTY]), ("0", "1")),
    "half precision": (pa.array([float(n) for n in TWENTY], pa.float32()), ("0", "1")),
    "truth values": (pa.array([bool(n) for n in TWENTY]), ("False", "True")),
    "lists of one": (pa.array([[n] for n in TWENTY]), ("0", "1")),
    "lists of one name": (pa.array([["ab"[n]] for n in TWENTY]), ("a", "b")),
    "digits": (pa.array(["2" if n else "10" for n in TWENTY]), ("2", "10")),
    "names": (pa.array(["ab"[n] for n in TWENTY]), ("a", "b")),
    "large strings": (pa.array(["ab"[n] for n in TWENTY], pa.large_string()), ("a", "b")),
    "a dictionary": (pa.array(["ab"[n] for n in TWENTY]).dictionary_encode(), ("a", "b")),
    "Unicode forms": (
        pa.array(
            [
                ("thé", unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é"))[n % 3]
                for n in range(20)
            ]
        ),
        ("thé", "é"),
    ),
}


def test_a_replaced_file_of_the_same_time_is_read_again(tmp_path: Path) -> None:
    file = write(tmp_path / "train.parquet", pa.array(TWENTY))
    os.utime(file, (10**9, 10**9))
    assert sum(open_task(f"parquet:{tmp_path}").sizes.values()) == 20
    write(file, pa.array(TWENTY * 2))
    os.utime(file, (10**9, 10**9))
    assert sum(open_task(f"parquet:{tmp_path}").sizes.values()) == 40


def test_a_path_is_no_pattern(tmp_path: Path) -> None:
    for folder, rows in (("pq[1]", 20), ("pq1", 40)):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "train.parquet", pa.array([0, 1] * (rows // 2)))
    assert sum(open_task(f"parquet:{tmp_path / 'pq[1]'}").sizes.values()) == 20


@pytest.mark.parametrize("order", [1, -1])
def test_the_exact_name_of_a_split_comes_first(order: int) -> None:
    tables = {"train": 1, "trainval": 2, "test": 3, "eval": 4}
    named = name_splits(dict(list(tables.items())[::order]))
    assert (named["train"], named["test"]) == (1, 3)


def test_files_with_the_exact_name_of_a_split_come_first(tmp_path: Path) -> None:
    for word, rows in (("train", 20), ("trainval", 30), ("testing", 6), ("val", 4)):
        write(tmp_path / f"{word}-00000.parquet", pa.array([0, 1] * (rows // 2)))
    note = (
        "1 file left out, because other files have the exact name of the same split; first: "
        f"{tmp_path / 'trainval-00000.parquet'}"
    )
    task = open_task(f"parquet:{tmp_path}")
    assert dict(task.sizes) == {"train": 20, "validation": 4, "test": 6}
    assert task.notes == (note,)
    plain = open_plain_parquet(str(tmp_path), True)
    assert (sum(plain.sizes.values()), plain.notes) == (20, (note,))


def hide(visible: Path) -> None:
    """Add hidden files, as macOS writes them, beside a file and in folders."""
    for path in (f"._{visible.name}", f".cache/{visible.name}", f"__MACOSX/{visible.name}"):
        file = visible.parent / path
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"\0\5\x16\7 not data")


def test_hidden_tables_are_skipped(tmp_path: Path) -> None:
    hide(write(tmp_path / ".data" / "train.parquet", pa.array(TWENTY)))
    assert sum(open_task(f"parquet:{tmp_path / '.data'}").sizes.values()) == 20
    texts = tmp_path / "texts" / "train.csv"
    texts.parent.mkdir()
    texts.write_text("text,label\n" + "".join(f"text {n},{n % 2}\n" for n in range(20)))
    hide(texts)
    assert sum(open_task(f"csv:{texts.parent}").sizes.values()) == 20


@pytest.mark.parametrize("suffix", [".PARQUET", ".CSV", ".TSV", ".JSONL", ".NdJson"])
def test_suffixes_in_upper_case_are_read(tmp_path: Path, suffix: str) -> None:
    kind = KIND_OF[suffix.lower()]
    file = tmp_path / f"train{suffix}"
    if kind == "parquet":
        write(file, pa.array(TWENTY))
    elif kind == "csv":
        rows = ["text,label", *(f"text {n},{n % 2}" for n in range(20))]
        file.write_text("\n".join(rows).replace(",", "\t" if suffix == ".TSV" else ","))
    else:
        file.write_text("".join(f'{{"text": "text {n}", "label": {n % 2}}}\n' for n in range(20)))
    for path in (file, tmp_path):
        assert sum(open_task(f"{kind}:{path}").sizes.values()) == 20
    with pytest.raises(WrongCall, match=f"did you mean {kind}:"):
        open_task(str(file))


@pytest.mark.parametrize("kind", LABELS)
def test_labels_with_a_clear_meaning_are_read(tmp_path: Path, kind: str) -> None:
    labels, names = LABELS[kind]
    task = open_task(f"parquet:{write(tmp_path / 'train.parquet', labels)}")
    assert task.class_names == names
    assert sum(task.sizes.values()) == 20
    if kind != "Unicode forms":
        for split in task.sizes:
            source = task.split(split)
            assert (source.labels % 2 == source.members % 2).all() or kind == "digits"  # type: ignore[attr-defined]


ODD: dict[str, tuple[Any, str]] = {
    "fractions": (
        pa.array([n + 0.5 for n in TWENTY]),
        "row 0: column 'label' holds 0.5, which is not a class",
    ),
    "no number": (
        pa.array([float(n) for n in TWENTY[:19]] + [float("nan")]),
        "row 19: column 'label' is empty",
    ),
    "nothing": (
        pa.array([*TWENTY[:19], None]),
        "row 19: column 'label' is empty; fill it or remove the row",
    ),
    "empty text": (pa.array(["a", "b"] * 9 + ["", "a"]), "row 18: column 'label' is empty"),
    "several": (pa.array([[0], [0, 1]] * 10), "row 1: column 'label' holds 2 labels; keep one"),
    "none of several": (
        pa.array([[0], []] * 10, pa.list_(pa.int64())),
        "row 1: column 'label' holds 0 labels",
    ),
    "times": (
        pa.array(TWENTY, pa.timestamp("s")),
        r"column 'label' is of type timestamp\[.*\]; store integers, text",
    ),
    "bytes": (
        pa.array([b"a", b"b"] * 10),
        "column 'label' is of type binary; store integers, text",
    ),
}


@pytest.mark.parametrize("kind", ODD)
def test_other_labels_are_refused_by_column_and_row(tmp_path: Path, kind: str) -> None:
    labels, words = ODD[kind]
    with pytest.raises(BadData, match=words) as caught:
        open_task(f"parquet:{write(tmp_path / 'train.parquet', labels)}")
    assert "\n" not in str(caught.value)


def test_several_columns_that_could_be_the_labels_are_named(tmp_path: Path) -> None:
    more = {"category": pa.array(["xy"[n] for n in TWENTY]), "number": pa.array(range(20))}
    task = open_task(f"parquet:{write(tmp_path / 'train.parquet', pa.array(TWENTY), **more)}")
    assert task.notes == ("the labels are column 'label'; to use category, leave that column out",)
    write(tmp_path / "train.parquet", pa.array(TWENTY))
    assert open_task(f"parquet:{tmp_path / 'train.parquet'}").notes == ()


NAMES: dict[str, tuple[dict[str, int], tuple[int, int, int]]] = {
    "words": ({"train-00000-of-00001.parquet": 20, "test-00000-of-00001.parquet": 10}, (18, 2, 10)),
    "Hive": (
        {"split=train/0.parquet": 20, "split=val/0.parquet": 10, "split=test/0.parquet": 10},
        (20, 10, 10),
    ),
    "folders": ({"my-train/a.parquet": 20, "my-test/a.parquet": 10}, (18, 2, 10)),
    "outer folders": (
        {"train/eu/a.parquet": 10, "train/us/a.parquet": 10, "test/eu/a.parquet": 10},
        (18, 2, 10),
    ),
    "the nearest name": ({"test/train.parquet": 20, "test/holdout.parquet": 10}, (18, 2, 10)),
    "capitals": ({"MyTrain.parquet": 20, "MyVal.parquet": 10}, (16, 10, 4)),
    "no words": ({"latest/restrain.parquet": 10, "contest/devices.parquet": 10}, (14, 2, 4)),
}


@pytest.mark.parametrize("kind", NAMES)
def test_splits_are_whole_words_of_names(tmp_path: Path, kind: str) -> None:
    counts, sizes = NAMES[kind]
    for name, count in counts.items():
        write(tmp_path / "data" / name, pa.array([n % 2 for n in range(count)]))
    task = open_task(f"parquet:{tmp_path / 'data'}")
    assert tuple(task.sizes[split] for split in ("train", "validation", "test")) == sizes


def test_a_name_of_two_splits_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "train_test.parquet", pa.array(TWENTY))
    write(tmp_path / "val.parquet", pa.array(TWENTY))
    with pytest.raises(BadData, match=r"'train_test\.parquet' contains train and test; rename it"):
        open_task(f"parquet:{tmp_path}")


def test_a_column_divides_the_rows(tmp_path: Path) -> None:
    words = ["Train"] * 12 + ["val"] * 4 + ["holdout"] * 4
    file = write(tmp_path / "all.parquet", pa.array(TWENTY), split=pa.array(words))
    task = open_task(f"parquet:{file}")
    assert dict(task.sizes) == {"train": 12, "validation": 4, "test": 4}
    assert task.split("test").labels.tolist() == TWENTY[16:]
    write(file, pa.array(TWENTY), split=pa.array(words).dictionary_encode())
    assert dict(open_task(f"parquet:{file}").sizes) == {"train": 12, "validation": 4, "test": 4}
    write(file, pa.array(TWENTY), split=pa.array([*words[:-1], "extra"]))
    with pytest.raises(
        BadData, match="row 19: column 'split' says 'extra'; expected train, validation or test"
    ):
        open_task(f"parquet:{file}")
    write(file, pa.array(TWENTY), split=pa.array(["val", "test"] * 10))
    with pytest.raises(
        BadData, match="column 'split' names no training rows, only test, validation"
    ):
        open_task(f"parquet:{file}")
    write(file, pa.array(TWENTY), split=pa.array(["left", "right"] * 10))
    assert open_task(f"parquet:{file}").notes == (
        "column 'split' names no split, so it is not used",
    )


def test_a_column_that_contradicts_the_files_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", pa.array(TWENTY), split=pa.array(["train"] * 20))
    write(tmp_path / "test.parquet", pa.array(TWENTY), split=pa.array(["test"] * 20))
    assert open_task(f"parquet:{tmp_path}").sizes["test"] == 20
    write(tmp_path / "test.parquet", pa.array(TWENTY), split=pa.array(["test"] * 19 + ["train"]))
    with pytest.raises(
        BadData, match="test row 19: column 'split' says train; correct it or the file's name"
    ):
        open_task(f"parquet:{tmp_path}")


def test_the_stamp_of_a_table_changes_with_its_labels(tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet", pa.array(TWENTY))
    before = stamp_task(open_task(f"parquet:{file}"))
    assert len(before) == 32
    write(tmp_path / "copy" / "a.parquet", pa.array(TWENTY))
    assert stamp_task(open_task(f"parquet:{tmp_path / 'copy' / 'a.parquet'}")) == before
    write(file, pa.array([1 - n for n in TWENTY]))
    assert stamp_task(open_task(f"parquet:{file}")) != before
