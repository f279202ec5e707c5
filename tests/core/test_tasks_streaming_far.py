"""Streams over a network: tars at addresses, broken connections, and repositories of the Hub."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from streaming_toy import by_index, encode, equal, loader, pixels, shards

from learngene_zoo.errors import BadData, Unavailable, WrongCall
from learngene_zoo.tasks import hub_data
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.tasks.streams import places
from learngene_zoo.tasks.task import Task


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shards(tmp_path_factory.mktemp("tars"))


@pytest.fixture
def task(folder: Path) -> Task:
    return open_task(f"wds:{folder}")


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder. Every response breaks off after `most` bytes, if set; ranges are supported
    if `ranges`.
    """

    most: int | None = None
    ranges = True
    missing = 404  # the status of files that do not exist
    asked: list[str | None]

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            return self.send_error(self.missing)
        data, begun = path.read_bytes(), self.headers.get("Range")
        self.asked.append(begun)
        first = int(begun.removeprefix("bytes=").rstrip("-")) if begun and self.ranges else 0
        self.send_response(206 if first else 200)
        self.send_header("Content-Length", str(len(data) - first))
        self.end_headers()
        self.wfile.write(data[first:] if self.most is None else data[first : first + self.most])
        return None

    def log_message(self, *given: Any) -> None:
        pass


@pytest.fixture
def served(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, type[Quiet]]]:
    monkeypatch.setattr(places.time, "sleep", lambda seconds: None)
    handler = type("Served", (Quiet,), {"asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", handler
    server.shutdown()
    server.server_close()


NAMES = "{train-{000..003},val-000,test-000}.tar"


@pytest.mark.parametrize(("most", "ranges"), [(None, True), (9_000, True)])
def test_tars_far_away_are_the_same(
    task: Task, served: tuple[str, type[Quiet]], most: int | None, ranges: bool
) -> None:
    address, handler = served
    handler.most, handler.ranges = most, ranges
    far = open_task(f"wds:{address}/{NAMES}")
    assert far.sizes == task.sizes
    batches = zip(loader(task).epoch(0), loader(far).epoch(0), strict=True)
    assert all(equal(first, second) for first, second in batches)
    assert (most is None) == (set(handler.asked) == {None})


def test_a_server_without_ranges_is_read_over_again(
    folder: Path, served: tuple[str, type[Quiet]]
) -> None:
    address, handler = served
    data = (folder / "train-000.tar").read_bytes()
    handler.most = len(data) - 5
    file = places.open_file(f"{address}/train-000.tar")
    got = file.read(len(data) - 9)
    handler.most, handler.ranges = None, False
    assert got + file.read(100) == data
    assert file.read(1) == b""
    file.close()


def test_a_store_that_refuses_the_names_of_missing_files(
    task: Task, served: tuple[str, type[Quiet]]
) -> None:
    address, handler = served
    handler.missing = 403
    assert open_task(f"wds:{address}/{NAMES}").sizes == task.sizes
    with pytest.raises(Unavailable, match=r"train-004\.tar is denied \(403\)"):
        open_task(f"wds:{address}/train-{{000..004}}.tar")


def test_what_cannot_be_had_far_away(served: tuple[str, type[Quiet]]) -> None:
    address, handler = served
    with pytest.raises(BadData, match=r"there is nothing at .*train-004\.tar"):
        open_task(f"wds:{address}/train-{{000..004}}.tar")
    with pytest.raises(Unavailable, match="offline"):
        open_task(f"wds:{address}/{NAMES}", offline=True)
    with pytest.raises(Unavailable, match="cannot be read"):
        open_task("wds:http://127.0.0.1:9/train-000.tar")
    handler.most = 0
    with pytest.raises(Unavailable, match=r"0 of \d+ bytes came"):
        open_task(f"wds:{address}/train-000.tar")


# The Hub.


def table(first: int, count: int, names: bool = True, label: str = "label") -> Any:
    from datasets import ClassLabel, Dataset, Features, Value
    from datasets import Image as ImageFeature

    numbers = range(first, first + count)
    labels = [n % 3 if names else "xyz"[n % 3] for n in numbers]
    features = {
        "image": ImageFeature(),
        label: ClassLabel(names=["p", "q", "r"]) if names else Value("string"),
    }
    rows = {"image": [{"bytes": encode(n), "path": None} for n in numbers], label: labels}
    return Dataset.from_dict(rows, features=Features(features))


@pytest.fixture
def on_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace a repository of the Hub by files: `datasets` opens a folder of that name in the same
    way.
    """
    import datasets

    datasets.disable_progress_bars()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(hub_data, "_check_reviewed", lambda source: (None, "mit"))
    (tmp_path / "org" / "name" / "data").mkdir(parents=True)
    return tmp_path / "org" / "name" / "data"


@pytest.mark.parametrize("names", [True, False])
def test_a_repository_is_streamed(on_hub: Path, names: bool) -> None:
    for number in range(3):
        table(20 * number, 20, names).to_parquet(on_hub / f"train-0000{number}-of-00003.parquet")
    table(1000, 9, names).to_parquet(on_hub / "validation-00000-of-00001.parquet")
    task = open_task("hf-stream:org/name")
    assert task.class_names == (("p", "q", "r") if names else ("x", "y", "z"))
    assert dict(task.sizes) == {"train": 48, "validation": 9, "test": 12}
    assert (task.licence, task.notes) == (
        "mit",
        ("there is no test split: one training image in 5 is used",),
    )
    result = list(loader(task, "validation", shuffle=False, augment="none").epoch(0))
    assert result[0].labels.tolist() == [n % 3 for n in range(1000, 1009)]
    assert (result[0].inputs[4].numpy().round() == pixels(1004).transpose(2, 0, 1)).all()
    full = list(loader(task).epoch(0))
    assert len(by_index(iter(full))) == 48
    assert equal(full[2], next(loader(task).epoch(0, start=2)))


def test_faults_of_a_repository(on_hub: Path, cache: Path) -> None:
    table(0, 60).to_parquet(on_hub / "validation-00000-of-00001.parquet")
    with pytest.raises(BadData, match="no train split, only validation"):
        open_task("hf-stream:org/name")
    table(0, 60).to_parquet(on_hub / "train-00000-of-00001.parquet")
    task = open_task("hf-stream:org/name")
    table(0, 50).to_parquet(on_hub / "train-00000-of-00001.parquet")
    with pytest.raises(BadData, match="train file 0 ends after row 49, and 60 rows were counted"):
        list(loader(task, drop_last=False).epoch(0))
    for wrong in ("name", "a/b/c", "/name"):
        with pytest.raises(WrongCall, match="is not a data set of the Hub"):
            open_task(f"hf-stream:{wrong}")
    with pytest.raises(Unavailable, match=r"remove Run\(offline=True\)"):
        open_task("hf-stream:org/name", offline=True)


def test_splits_of_a_repository_that_differ(on_hub: Path) -> None:
    table(0, 30, names=False).to_parquet(on_hub / "train-00000-of-00001.parquet")
    other = table(0, 9, names=False).map(lambda row: {"label": "w"})
    other.to_parquet(on_hub / "validation-00000-of-00001.parquet")
    with pytest.raises(BadData, match="class 'w' of validation is not in train"):
        open_task("hf-stream:org/name")


def test_a_torn_image_of_a_repository_is_named(on_hub: Path) -> None:
    rows = table(0, 30).to_dict()
    rows["image"][7] = {"bytes": rows["image"][7]["bytes"][:80], "path": None}
    torn = table(0, 1).from_dict(rows, features=table(0, 1).features)
    for split in ("train", "validation", "test"):
        torn.to_parquet(on_hub / f"{split}-00000-of-00001.parquet")
    with pytest.raises(BadData, match="train file 0 row 7: the image cannot be read"):
        list(loader(open_task("hf-stream:org/name")).epoch(0))
    (on_hub / "train-00000-of-00001.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(BadData, match="org/name"):
        open_task("hf-stream:org/name")
