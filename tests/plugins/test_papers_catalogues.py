"""The papers' catalogues: every name opens from a folder of the user's or from a stand-in for the
Hub.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from papers_data import class_folders, parquet, picture

from learngene_zoo.artifacts.records import TaskRecord
from learngene_zoo.errors import BadData, Unavailable
from learngene_zoo.tasks import hub_data
from learngene_zoo.tasks.catalogue import find_entry, find_suite, open_task
from learngene_zoo.tasks.first_row import read_first_row
from learngene_zoo.tasks.task import Entry
from lgzoo_papers.suite import ROWS, Row
from lgzoo_papers.suite import open_task as open_entry

COMMIT = "e18a7c9" + "0" * 33
SUITES = {name: find_suite(name).tasks for name in ("decathlon", "lsamd12", "tal_unseen")}
Hub = Callable[[Path], None]


@pytest.fixture(autouse=True)
def _nothing_local(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import datasets

    for row in ROWS.values():
        if row.place.variable:
            monkeypatch.delenv(row.place.variable, raising=False)
    monkeypatch.delenv("LGZOO_DECATHLON", raising=False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


@pytest.fixture
def asked() -> list[tuple[str, str | None, str | None]]:
    return []


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, asked: list[tuple[str, str | None, str | None]]) -> Hub:
    """Return a function that replaces the Hub by a folder; requests to the Hub are added to
    `asked`.
    """
    import datasets

    load = datasets.load_dataset

    def stands_in(folder: Path) -> None:
        def from_folder(
            repository: str, config: str | None = None, *, revision: str, **how: Any
        ) -> Any:
            asked.append((repository, config, revision))
            return load(str(folder), **how)

        monkeypatch.setattr(datasets, "load_dataset", from_folder)

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(
        hub_data, "_find_revision", lambda repository, revision: (COMMIT, "unknown")
    )
    return stands_in


def small(name: str, classes: int) -> Entry:
    return replace(ROWS[name].entry, classes=classes)


def test_the_catalogues_hold_what_the_papers_name() -> None:
    assert [len(tasks) for tasks in SUITES.values()] == [10, 12, 3]
    assert all(find_entry(name) is row.entry for name, row in ROWS.items())
    assert {*ROWS} == {"imagenet-1k"}.union(*SUITES.values())
    assert ROWS["decathlon-omniglot"].entry.classes == 1623
    # All pictures that the archive gives labels of: the ten's 1,659,142 less the withheld test
    # splits.
    withheld = 3_333 + 10_000 + 19_600 + 1_880 + 12_630 + 48_238 + 6_492 + 26_032 + 3_783 + 6_149
    assert (
        sum(sum(ROWS[name].entry.sizes.values()) for name in SUITES["decathlon"])
        == 1_659_142 - withheld
    )


@pytest.mark.parametrize(
    "name", [name for name in ROWS if name not in ("cifar10", "cifar100", "fashion_mnist")]
)
def test_the_page_says_what_the_catalogue_says(name: str, checkout: Path) -> None:
    entry, source = ROWS[name]
    page = (checkout / "docs" / "catalogues.md").read_text().splitlines()
    row = next(line for line in page if line.startswith(f"| `{name}`"))
    sizes = " / ".join(f"{entry.sizes[split]:,}" for split in ("train", "validation", "test"))
    assert row.split(" | ")[1:3] == [f"{entry.classes:,}", sizes]
    assert source.hub is None or f"`{source.hub}`" in row
    assert bool(source.hub) or name.startswith("decathlon-") or source.variable in row


COLUMNS: dict[str, tuple[dict[str, str], Sequence[str] | None, str]] = {
    "decathlon-aircraft": (
        {"image": "image", "family": "text", "variant": "class"},
        ["707-320", "727-200"],
        "707-320",
    ),
    "decathlon-cifar100": (
        {"img": "image", "coarse_label": "class", "fine_label": "class"},
        ["apple", "bee"],
        "apple",
    ),
    "decathlon-gtsrb": ({"image": "image", "label": "class"}, ["stop", "yield"], "stop"),
    "pets": (
        {"image": "image", "label_cat_dog": "class", "label": "class"},
        ["boxer", "pug"],
        "boxer",
    ),
    "fer2013": ({"jpg": "image", "cls": "number", "__key__": "text"}, ["angry", "happy"], "0"),
    "ham10000": (
        {"image": "image", "image_id": "text", "dx": "text", "sex": "text"},
        ["mel", "bkl"],
        "bkl",
    ),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_the_hub_s_columns_are_found(name: str, hub: Hub, asked: list[Any], tmp_path: Path) -> None:
    columns, classes, first = COLUMNS[name]
    hub(parquet(tmp_path / "repository", {"train": 40, "test": 10}, columns, classes))
    task = open_entry(small(name, 2), offline=False)
    assert dict(task.sizes) == {"train": 36, "validation": 4, "test": 10}
    assert task.class_names[0] == first
    assert task.split("test").__getitems__([1])[0].shape == (3, 12, 20)
    assert (task.name, task.revision, task.source) == (name, COMMIT, f"hf:{ROWS[name].place.hub}")
    assert asked == [(*hub_data.parse_reference(str(ROWS[name].place.hub))[:2], COMMIT)]
    assert task.record == TaskRecord(
        name=name,
        source=task.source,
        kind="classification",
        classes=2,
        images=36,
        revision=COMMIT,
        licence=ROWS[name].entry.licence,
    )
    pickle.dumps(task.split("train"))


@pytest.mark.parametrize(
    ("name", "stored"), [("food101", "validation"), ("tiny-imagenet", "valid")]
)
def test_a_validation_split_is_the_test_where_there_is_no_other(
    name: str, stored: str, hub: Hub, tmp_path: Path
) -> None:
    columns = {"image": "image", "label": "class"}
    hub(parquet(tmp_path / "repository", {"train": 30, stored: 12}, columns, ["a", "b", "c"]))
    task = open_entry(small(name, 3), offline=False)
    assert dict(task.sizes) == {"train": 27, "validation": 3, "test": 12}
    assert any("validation" in note and "test" in note for note in task.notes)


def test_imagenet_s_unlabelled_test_split_is_left_out(hub: Hub, tmp_path: Path) -> None:
    from datasets import ClassLabel, Dataset, Features
    from datasets import Image as ImageFeature

    columns = {"image": "image", "label": "class"}
    folder = parquet(
        tmp_path / "repository", {"train": 30, "validation": 8}, columns, ["tench", "goldfish"]
    )
    rows = {"image": [{"bytes": b"-", "path": None}] * 4, "label": [-1] * 4}
    features = Features({"image": ImageFeature(), "label": ClassLabel(names=["tench", "goldfish"])})
    Dataset.from_dict(rows, features=features).to_parquet(
        folder / "data" / "test-00000-of-00001.parquet"
    )
    hub(folder)
    task = open_entry(small("imagenet-1k", 2), offline=False)
    assert dict(task.sizes) == {"train": 27, "validation": 3, "test": 8}
    assert set(task.split("test").labels.tolist()) == {0, 1}


@pytest.mark.parametrize("name", ["cifar10", "fashion_mnist"])
def test_small_pictures_of_the_hub_keep_the_catalogue_s_size(
    name: str, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry, source = ROWS[name]
    entry = replace(entry, sizes={**entry.sizes, "validation": 10})
    monkeypatch.setitem(ROWS, name, Row(entry, replace(source, usual=str(tmp_path / "nowhere"))))
    hub(
        parquet(
            tmp_path / "repository",
            {"train": 40, "test": 10},
            {"image": "image", "label": "class"},
            ["a", "b"],
        )
    )
    task = open_entry(entry, offline=False)
    assert (task.name, task.image_size, task.mean[0]) == (name, 32, 0.5)
    assert dict(task.sizes) == {"train": 30, "validation": 10, "test": 10}
    side = 4 if name == "fashion_mnist" else 0
    assert task.split("test").__getitems__([0, 1])[0].shape == (3, 12 + side, 20 + side)


HUB_FAULTS: dict[str, tuple[str, Mapping[str, str], str]] = {
    "no label": ("food101", {"image": "image"}, "has no label column, only image"),
    "another label": (
        "decathlon-aircraft",
        {"image": "image", "family": "class"},
        "has no column 'variant', only",
    ),
    "no image": ("food101", {"label": "class"}, "has no image column, only label"),
    "no mask": ("voc2012", {"image": "image"}, "has no column 'mask', only image"),
    "more classes": (
        "cars",
        {"image": "image", "label": "class"},
        "has 2 classes, but cars has 196",
    ),
}


@pytest.mark.parametrize("fault", HUB_FAULTS)
def test_what_the_hub_s_copy_lacks_is_named(fault: str, hub: Hub, tmp_path: Path) -> None:
    name, columns, words = HUB_FAULTS[fault]
    hub(parquet(tmp_path / "repository", {"train": 20, "test": 4}, columns, ["a", "b"]))
    with pytest.raises(BadData, match=words):
        open_entry(ROWS[name].entry, offline=False)


def test_a_revision_that_moved_is_not_used(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(hub_data, "_find_revision", lambda repository, revision: ("f" * 40, "mit"))
    with pytest.raises(
        Unavailable, match=r"FGVC-Aircraft@refs/pr/1 is now at fffffff, not at e18a7c9"
    ):
        open_task("decathlon-aircraft")


def test_a_gated_data_set_says_how_to_get_in(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets
    from datasets.exceptions import DatasetNotFoundError
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError

    def load(*_: Any, **__: Any) -> None:
        raise DatasetNotFoundError(
            "Dataset 'ILSVRC/imagenet-1k' is a gated dataset on the Hub. You must log in."
        )

    def info(*_: Any, **__: Any) -> None:
        raise GatedRepoError.__new__(GatedRepoError)

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    words = r"ILSVRC/imagenet-1k is gated: accept its terms at https://.*log in.*set LGZOO_IMAGENET"
    with monkeypatch.context() as patch:
        patch.setattr(hub_data, "_find_revision", lambda repository, revision: (COMMIT, "other"))
        patch.setattr(datasets, "load_dataset", load)
        with pytest.raises(Unavailable, match=words):
            open_task("imagenet-1k")
    monkeypatch.setattr(HfApi, "dataset_info", info)
    with pytest.raises(Unavailable, match=words):
        open_task("imagenet-1k")


@pytest.mark.parametrize("opening", [open_task, lambda name: read_first_row(name, offline=False)])
def test_a_hub_that_does_not_answer_is_said(
    opening: Callable[[str], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import HfApi

    # The HTTP library's errors are no OSErrors, and it is another library from one version of the
    # Hub's to the next.
    error = type("ConnectError", (Exception,), {"__module__": "httpx2"})

    def info(*_: Any, **__: Any) -> None:
        raise error("[Errno -2] Name or service not known")

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(HfApi, "dataset_info", info)
    with pytest.raises(
        Unavailable, match=r"cannot be reached for ethz/food101 \(.*not known\).*set LGZOO_FOOD101"
    ):
        opening("food101")


def test_offline_says_which_folder_would_do() -> None:
    with pytest.raises(Unavailable, match=r"not in the cache.*set LGZOO_CARS to a folder of it"):
        open_task("cars", offline=True)


def test_imagenet_from_its_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wnids = ["n01440764", "n01443537"]
    class_folders(tmp_path / "train", wnids, 15, ".JPEG")
    class_folders(tmp_path / "val", wnids, 4, ".JPEG")
    (tmp_path / "test").mkdir()
    picture(0).save(tmp_path / "test" / "ILSVRC2012_test_00000001.JPEG")
    monkeypatch.setenv("LGZOO_IMAGENET", str(tmp_path))
    task = open_entry(small("imagenet-1k", 2), offline=True)
    assert dict(task.sizes) == {"train": 27, "validation": 3, "test": 8}
    assert (task.class_names, task.image_size) == (tuple(wnids), 224)
    assert task.source == f"folder:{tmp_path}"
    for file in (tmp_path / "val").rglob("*.JPEG"):
        file.rename(tmp_path / "val" / f"{file.parent.name}_{file.name}")
    for wnid in wnids:
        (tmp_path / "val" / wnid).rmdir()
    with pytest.raises(
        BadData, match=r"val contains images \(n.*\) but no class folders; sort them"
    ):
        open_entry(small("imagenet-1k", 2), offline=True)


def test_a_folder_of_another_split_is_used_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class_folders(tmp_path / "train", ["cake", "soup"], 10)
    class_folders(tmp_path / "test", ["cake", "soup"], 3)
    monkeypatch.setenv("LGZOO_FOOD101", str(tmp_path))
    task = open_entry(small("food101", 2), offline=True)
    assert dict(task.sizes) == {"train": 18, "validation": 2, "test": 6}


def test_inaturalist_from_its_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class_folders(tmp_path / "2019" / "Plants", ["2", "10"], 10)
    class_folders(tmp_path / "2019" / "Birds", ["1"], 10)
    monkeypatch.setenv("LGZOO_INAT2019", str(tmp_path))
    task = open_entry(small("inat2019", 3), offline=True)
    assert task.class_names == ("Birds/1", "Plants/2", "Plants/10")
    assert dict(task.sizes) == {"train": 22, "validation": 2, "test": 6}
    assert any("a fifth" in note for note in task.notes)
    (tmp_path / "2019" / "Birds" / "robins").mkdir()
    with pytest.raises(BadData, match="robins is not 2019/<group>/<class number>"):
        open_entry(small("inat2019", 3), offline=True)


def test_inaturalist_without_a_folder_says_where_it_is() -> None:
    with pytest.raises(Unavailable, match=r"train_val2019\.tar\.gz.*LGZOO_INAT2019"):
        open_task("inat2019")
