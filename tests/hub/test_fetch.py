"""Fetching: pinned, every file verified, damaged ones replaced, from the cache without a request."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from standin import StandIn

from learngene_zoo.errors import Unavailable
from learngene_zoo.hub.client import Repository, fetch_from_hub, parse_repository
from learngene_zoo.hub.manifest import FileRecord, make_manifest
from learngene_zoo.ownership import MARKER
from learngene_zoo.pretrained.ancestry import open_ancestry

Lgzoo = Callable[..., SimpleNamespace]  # what the fixture `lgzoo` is
NAME = "me/learngene"


@pytest.fixture
def published(
    hub: StandIn, lgzoo: Lgzoo, made: SimpleNamespace, tmp_path: Path
) -> dict[str, bytes]:
    """Publish a family with the tag v1.0, and empty the cache."""
    assert (
        lgzoo("publish", made.learngene, NAME, "--tag", "v1.0", "--descendant", made.three).code
        == 0
    )
    shutil.rmtree(tmp_path / "hub", ignore_errors=True)
    return hub.files(NAME)


def content(folder: Path | str) -> dict[str, bytes]:
    """Return every file except the marker of a folder that lgzoo wrote."""
    files = [path for path in Path(folder).rglob("*") if path.is_file() and path.name != MARKER]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def folder_of(done: SimpleNamespace) -> Path:
    assert done.code == 0, done.error
    return Path(done.out.strip())


def test_a_tag_is_pinned_to_its_commit(
    hub: StandIn, lgzoo: Lgzoo, published: dict[str, bytes]
) -> None:
    result = lgzoo("fetch", f"{NAME}@v1.0")
    assert folder_of(result).name == hub.repos[NAME].head
    assert content(folder_of(result)) == published
    assert f"lgzoo expand {NAME}@{hub.repos[NAME].head}" in result.told


def test_what_is_cached_by_its_commit_needs_no_request(
    hub: StandIn, lgzoo: Lgzoo, published: dict[str, bytes]
) -> None:
    first = lgzoo("fetch", f"{NAME}@v1.0")
    again = lgzoo("fetch", f"{NAME}@{hub.repos[NAME].head}")
    assert (again.out, again.requests) == (first.out, [])
    by_tag = lgzoo("fetch", f"{NAME}@v1.0")
    assert [request.name for request in by_tag.requests] == ["HEAD /ID/resolve/REV/manifest.json"]
    offline = lgzoo("fetch", f"{NAME}@v1.0", "--offline")
    assert (offline.out, offline.requests) == (first.out, [])


def test_offline_and_not_cached_is_one_line(lgzoo: Lgzoo, published: dict[str, bytes]) -> None:
    result = lgzoo("fetch", f"{NAME}@v1.0", "--offline")
    assert (result.code, result.requests) == (1, [])
    assert "it is not cached and this run is offline" in result.error


def test_half_a_cache_is_told_offline_and_completed_online(
    lgzoo: Lgzoo, published: dict[str, bytes]
) -> None:
    assert (
        lgzoo("expand", f"{NAME}@v1.0", "--layers", "2", "-o", "/dev/null/x").code != 0
    )  # fetches the top only
    result = lgzoo("fetch", f"{NAME}@v1.0", "--offline")
    assert result.code == 1
    assert "is not cached, and this run is offline" in result.error
    assert content(folder_of(lgzoo("fetch", f"{NAME}@v1.0"))) == published


@pytest.mark.parametrize("file", ["config.json", "README.md", "manifest.json", "model.safetensors"])
def test_a_flipped_bit_is_found_and_the_file_fetched_again(
    file: str, hub: StandIn, lgzoo: Lgzoo, published: dict[str, bytes]
) -> None:
    hub.fail(
        "GET .*/cdn/" if file == "model.safetensors" else f"GET .*/resolve/[^/]*/{file}", "flipped"
    )
    assert content(folder_of(lgzoo("fetch", f"{NAME}@v1.0"))) == published


def test_a_bit_that_flips_every_time_is_told_and_not_kept(
    hub: StandIn, lgzoo: Lgzoo, published: dict[str, bytes], tmp_path: Path
) -> None:
    fault = hub.fail("GET .*/resolve/[^/]*/config.json", "flipped", times=10**9)
    result = lgzoo("fetch", f"{NAME}@v1.0", "-o", tmp_path / "out")
    assert result.code == 1
    assert "config.json of me/learngene@" in result.error
    assert "arrived twice with another checksum" in result.error
    assert not (tmp_path / "out").exists()
    assert not list((tmp_path / "hub").rglob("snapshots/*/config.json"))
    hub.faults.remove(fault)
    assert content(folder_of(lgzoo("fetch", f"{NAME}@v1.0"))) == published


@pytest.mark.parametrize(
    "file", ["config.json", "manifest.json", "model.safetensors", "three/model.safetensors"]
)
def test_a_file_that_decays_in_the_cache_is_replaced(
    file: str, hub: StandIn, lgzoo: Lgzoo, published: dict[str, bytes]
) -> None:
    folder = folder_of(lgzoo("fetch", f"{NAME}@v1.0"))
    blob = (folder / file).resolve()
    data = bytearray(blob.read_bytes())
    data[len(data) // 2] ^= 1
    blob.write_bytes(data)
    pinned = f"{NAME}@{hub.repos[NAME].head}"
    result = lgzoo("fetch", pinned, "--offline")
    assert (result.code, result.requests) == (1, [])
    assert not blob.exists()  # nobody else opens it either
    result = lgzoo("fetch", pinned)
    assert content(folder_of(result)) == published
    assert (
        1 <= len([request for request in result.requests if request.method == "GET"]) <= 2
    )  # it, and the Hub's list


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_a_cached_file_without_links_is_checked_by_the_list_of_its_commit(
    file: str, hub: StandIn, published: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants, snapshot_download

    monkeypatch.setattr(constants, "HF_HUB_DISABLE_SYMLINKS", True)
    repository = parse_repository(f"{NAME}@{hub.repos[NAME].head}")
    path = fetch_from_hub(repository, file, offline=False).path
    assert not path.is_symlink()
    path.write_bytes(b"x")
    assert fetch_from_hub(repository, file, offline=True).path == path, "no checksum is known"
    snapshot_download(NAME, revision=repository.revision)
    with pytest.raises(Unavailable, match=f"{file} of .* was damaged in the cache and is removed"):
        fetch_from_hub(repository, file, offline=True)
    assert not path.exists()
    assert fetch_from_hub(repository, file, offline=False).path == path
    assert path.read_bytes() == published[file]


def test_a_blob_of_two_revisions_is_evicted_from_both(
    hub: StandIn, lgzoo: Lgzoo, published: dict[str, bytes], made: SimpleNamespace
) -> None:
    lgzoo(
        "publish", made.learngene, NAME, "--tag", "v2.0"
    )  # the same weights without the descendant
    first, second = (folder_of(lgzoo("fetch", f"{NAME}@{tag}")) for tag in ("v1.0", "v2.0"))
    blob = (first / "model.safetensors").resolve()
    assert blob == (second / "model.safetensors").resolve()
    blob.write_bytes(b"x")
    assert content(folder_of(lgzoo("fetch", f"{NAME}@v1.0"))) == published
    assert folder_of(lgzoo("fetch", f"{NAME}@v2.0")) == second
    assert (second / "model.safetensors").read_bytes() == published["model.safetensors"]


def test_a_manifest_and_the_hub_that_disagree_are_told_before_anything_is_downloaded(
    hub: StandIn, lgzoo: Lgzoo, published: dict[str, bytes]
) -> None:
    hub.put(NAME, {"model.safetensors": b"by hand"})
    result = lgzoo("fetch", f"{NAME}@main")
    assert result.code == 1
    assert "and the Hub disagree about model.safetensors" in result.error
    assert not [request for request in result.requests if "cdn" in request.path]


def test_a_download_that_breaks_goes_on_where_it_was(
    hub: StandIn, lgzoo: Lgzoo, published: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1000)
    hub.fail("GET .*/cdn/", "drop")
    result = lgzoo("fetch", f"{NAME}/three@v1.0")
    size = len(published["three/model.safetensors"])
    assert (folder_of(result) / "model.safetensors").stat().st_size == size
    answers = [
        (request.status, request.sent) for request in result.requests if "/cdn/" in request.path
    ]
    assert answers == [(200, size), (206, size - size // 2 // 1000 * 1000)]


@pytest.mark.parametrize("kind", ["lost", "reset", "truncated", 500, 503])
def test_a_download_that_fails_once_is_begun_again(
    kind: str | int, hub: StandIn, lgzoo: Lgzoo, published: dict[str, bytes]
) -> None:
    hub.fail("GET .*/cdn/", kind)  # type: ignore[arg-type]
    assert content(folder_of(lgzoo("fetch", f"{NAME}@v1.0"))) == published


def test_a_member_of_a_family_is_fetched_alone(
    hub: StandIn, lgzoo: Lgzoo, published: dict[str, bytes], tmp_path: Path
) -> None:
    result = lgzoo("fetch", f"{NAME}/three@v1.0", "-o", tmp_path / "three")
    assert result.code == 0, result.error
    expected = {
        path.removeprefix("three/"): data
        for path, data in published.items()
        if path.startswith("three/")
    }
    assert content(tmp_path / "three") == expected
    assert len([request for request in result.requests if "/cdn/" in request.path]) == 1
    assert lgzoo("show", tmp_path / "three").code == 0
    missing = lgzoo("fetch", f"{NAME}/four@v1.0")
    assert (missing.code, missing.error.split(" has ", 1)[1]) == (
        2,
        "no member 'four'; it has: three",
    )


def test_a_copy_is_whole_and_replaced_only_when_asked(
    lgzoo: Lgzoo, published: dict[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert lgzoo("fetch", f"{NAME}@v1.0", "-o", out).code == 0
    assert content(out) == published
    again = lgzoo("fetch", f"{NAME}@v1.0", "-o", out)
    assert (again.code, again.requests) == (1, [])
    assert "already exists" in again.error
    assert lgzoo("fetch", f"{NAME}@v1.0", "-o", out, "--force").code == 0
    (out / "three" / "mine.txt").write_text("mine")
    assert lgzoo("fetch", f"{NAME}@v1.0", "-o", out, "--force").code == 1
    assert (out / "three" / "mine.txt").read_text() == "mine"


def test_what_lgzoo_did_not_publish_is_not_fetched(hub: StandIn, lgzoo: Lgzoo) -> None:
    hub.put("me/other", {"config.json": b"{}", "model.safetensors": b"x"})
    result = lgzoo("fetch", "me/other")
    assert result.code == 1
    assert "has no manifest.json, so it was not published by `lgzoo publish`" in result.error


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"../evil": b"x"}, "names '../evil'"),
        ({"/etc/evil": b"x"}, "names '/etc/evil'"),
        ({"a/../../evil": b"x"}, "which is not a file of an artifact"),
        ({"a/b/c": b"x"}, "which is not a file of an artifact"),
        ({".ssh": b"x"}, "which is not a file of an artifact"),
        ({"a\\b": b"x"}, "which is not a file of an artifact"),
        ({"manifest.json": b"x"}, "which is not a file of an artifact"),
        ({f"f{number}": b"" for number in range(10_001)}, "names 10001 files"),
    ],
)
def test_a_manifest_chooses_no_place(
    files: dict[str, bytes], says: str, hub: StandIn, lgzoo: Lgzoo, tmp_path: Path
) -> None:
    records = {path: FileRecord(sha256="0" * 64, bytes=len(data)) for path, data in files.items()}
    hub.put(
        NAME,
        {"manifest.json": json.dumps(make_manifest(records).json()).encode(), "config.json": b"{}"},
    )
    result = lgzoo("fetch", NAME, "-o", tmp_path / "deep" / "out")
    assert result.code == 1
    assert says in result.error
    assert not (tmp_path / "deep").exists()


@pytest.mark.parametrize(
    ("file", "size", "says"),
    [
        ("config.json", 3, "the Hub disagree about config.json; it was changed by hand"),
        ("README.md", 2, "has no config.json, so it is neither a learngene nor a model"),
    ],
)
def test_a_manifest_that_cannot_be_right_downloads_nothing(
    file: str, size: int, says: str, hub: StandIn, lgzoo: Lgzoo
) -> None:
    """A file larger than in the manifest, and no artifact at all."""
    manifest = make_manifest(
        {file: FileRecord(sha256=hashlib.sha256(b"{}").hexdigest(), bytes=size)}
    )
    hub.put(NAME, {"manifest.json": json.dumps(manifest.json()).encode(), file: b"{}"})
    result = lgzoo("fetch", NAME)
    assert result.code == 1
    assert says in result.error
    assert not [request for request in result.requests if request.name.endswith("/FILE")]


@pytest.mark.parametrize(
    ("manifest", "says"),
    [
        (b"[]", "is not a JSON object"),
        (b"{", "is not valid JSON"),
        (b'{"format": 2}', "format is 2"),
        (b'{"format": 1, "files": {}, "digest": "x"}', "is damaged"),
        (
            b'{"format": 1, "files": {"a": {"sha256": "x", "bytes": 1}}, "digest": "x"}',
            "64 hexadecimal digits",
        ),
        (b'{"format": 1, "files": {"a": {"sha256": "x", "bytes": 1e99}}, "digest": "x"}', "bytes"),
    ],
)
def test_a_bad_manifest_is_one_line(manifest: bytes, says: str, hub: StandIn, lgzoo: Lgzoo) -> None:
    hub.put(NAME, {"manifest.json": manifest})
    result = lgzoo("fetch", NAME)
    assert result.code == 1
    assert says in result.error


@pytest.mark.parametrize("method", ["HEAD", "GET"])
@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (403, "forbidden"),
        (429, "busy (429)"),
        (503, "busy (503)"),
        (500, "answered 500"),
        ("reset", "broke"),
        ("lost", "broke"),
    ],
)
def test_a_file_of_the_hub_fails_in_words(
    method: str, kind: str | int, says: str, hub: StandIn
) -> None:
    hub.put(NAME, {"config.json": b"{}"})
    hub.fail(f"{method} .*/config.json", kind, times=10**9)  # type: ignore[arg-type]
    with pytest.raises(Unavailable) as raised:
        fetch_from_hub(Repository(NAME), "config.json", offline=False)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)
    assert hub.url not in str(raised.value)


@pytest.mark.parametrize("file", ["cdn/", "resolve/[^/]*/config.json"])
def test_an_ancestry_model_that_arrives_damaged_is_fetched_again(
    file: str, hub: StandIn, made: SimpleNamespace
) -> None:
    hub.put("me/vit", content(made.three))
    fault = hub.fail(f"GET .*/{file}", "flipped")
    ancestry = open_ancestry("hf-hub:me/vit")
    assert (
        ancestry.record.sha256
        == hashlib.sha256((made.three / "model.safetensors").read_bytes()).hexdigest()
    )
    assert fault.seen == 2
    blob = fetch_from_hub(Repository("me/vit"), "model.safetensors", offline=True).path.resolve()
    blob.write_bytes(blob.read_bytes()[:-1] + b"x")
    with pytest.raises(
        Unavailable, match=r"model.safetensors of me/vit.* was damaged in the cache and is removed"
    ):
        open_ancestry("hf-hub:me/vit", offline=True)
    assert not blob.exists()


def test_a_hub_that_is_not_there_is_told(
    hub: StandIn, lgzoo: Lgzoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
        "http://127.0.0.1:9/{repo_id}/resolve/{revision}/{filename}",
    )
    assert "the Hub cannot be reached" in lgzoo("fetch", f"{NAME}@v1.0").error
    monkeypatch.setattr(
        "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
        "hub/{repo_id}/{revision}/{filename}",
    )
    assert "correct HF_ENDPOINT" in lgzoo("fetch", f"{NAME}@v1.0").error


def test_a_private_repository_needs_a_login(
    hub: StandIn, lgzoo: Lgzoo, published: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repos[NAME].private = True
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", "/nowhere/token")
    result = lgzoo("fetch", f"{NAME}@v1.0")
    assert (result.code, result.error) == (
        2,
        f"there is no Hub repository {NAME} (or it is private: hf auth login)",
    )


@pytest.mark.parametrize("status", [None, 404])
@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("ETag", '"../../../../evil"'),
        ("ETag", "/etc/evil"),
        ("ETag", '"..%2fevil"'),
        ("ETag", '""'),
        ("ETag", "0" * 39),
        ("X-Linked-Etag", '"../../../../evil"'),
        ("X-Linked-Etag", f'W/"{"0" * 63}/"'),
        ("X-Repo-Commit", "../../../../evil"),
        ("X-Repo-Commit", "main"),
        ("X-Repo-Commit", "0" * 64),
        ("X-Xet-Hash", "../../../../evil"),
        ("Location", "file:///etc/passwd"),
        ("Location", "FTP://127.0.0.1/x"),
        ("Location", "javascript:alert(1)"),
    ],
)
def test_an_answer_chooses_no_file_of_the_cache(
    header: str,
    value: str,
    status: int | None,
    hub: StandIn,
    lgzoo: Lgzoo,
    published: dict[str, bytes],
    tmp_path: Path,
) -> None:
    if status:
        if header not in ("X-Repo-Commit", "Location"):
            pytest.skip("the client does not look at it")
        del hub.repos[NAME].commits[hub.repos[NAME].head]["manifest.json"]
    hub.headers[header] = value
    before = {path for path in tmp_path.rglob("*") if "hub" not in path.parts}
    result = lgzoo("fetch", f"{NAME}@main", "-o", tmp_path / "out")
    assert result.code == 1
    assert (
        "manifest.json of me/learngene@main is not available: the answer is not that of a Hub"
        in result.error
    )
    assert (header in result.error) or "it redirects to an address that begins with" in result.error
    assert {path for path in tmp_path.rglob("*") if "hub" not in path.parts} == before
    assert not [
        path for path in (tmp_path / "hub").rglob("*") if path.is_file() or path.is_symlink()
    ]
    hub.headers.clear()
    if not status:
        assert content(folder_of(lgzoo("fetch", f"{NAME}@main"))) == published


def test_an_answer_that_lies_later_is_not_used_either(
    hub: StandIn, lgzoo: Lgzoo, published: dict[str, bytes], tmp_path: Path
) -> None:
    """The manifest is correct, but the responses for the other files are not."""
    folder_of(lgzoo("fetch", f"{NAME}@v1.0"))
    shutil.rmtree(next((tmp_path / "hub").glob("models--*/snapshots/*")) / "three")
    shutil.rmtree(next((tmp_path / "hub").glob("models--*/blobs")))
    hub.headers["ETag"] = '"../../../../evil"'
    result = lgzoo("fetch", f"{NAME}@{hub.repos[NAME].head}")
    assert result.code == 1
    assert "ETag is" in result.error
    assert not list(tmp_path.rglob("*evil*"))


@pytest.mark.parametrize(
    "name", ["conftest.py", "CONFIG.json", "three/sitecustomize.py", "a.PNG", "nul.png"]
)
def test_a_file_that_publish_would_not_write_is_refused_before_any_download(
    name: str, hub: StandIn, lgzoo: Lgzoo, published: dict[str, bytes], tmp_path: Path
) -> None:
    files = {path: data for path, data in published.items() if path != "manifest.json"} | {
        name: b"print(1)"
    }
    records = {
        path: FileRecord(sha256=hashlib.sha256(data).hexdigest(), bytes=len(data))
        for path, data in files.items()
    }
    hub.put(
        NAME,
        {name: b"print(1)", "manifest.json": json.dumps(make_manifest(records).json()).encode()},
    )
    result = lgzoo("fetch", f"{NAME}@main", "-o", tmp_path / "out")
    assert result.code == 1
    assert f"names {name!r}, which is not a file of an artifact" in result.error
    assert not [request for request in result.requests if request.name.endswith("/FILE")]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("data", "said"),
    [(b"{", "is not valid JSON"), (b" " * (2**24 + 1), "is larger than 16 MiB")],
    ids=["cut", "large"],
)
def test_a_manifest_that_is_none_is_named_by_its_repository(
    data: bytes, said: str, hub: StandIn, lgzoo: Lgzoo, tmp_path: Path
) -> None:
    hub.put(NAME, {"manifest.json": data})
    result = lgzoo("fetch", NAME)
    assert result.code == 1
    assert f"manifest.json of {NAME} {said}" in result.error
    assert str(tmp_path) not in result.error


@pytest.mark.slow
def test_processes_that_fetch_at_once_do_no_harm(
    hub: StandIn, published: dict[str, bytes], tmp_path: Path, checkout: Path
) -> None:
    hub.fail("GET .*/cdn/", "slow", times=10**9, seconds=0.3)
    hub.fail("GET .*/resolve/[^/]*/config.json", "flipped", times=1)
    path = os.pathsep.join([str(checkout), str(checkout / "plugins")])
    environment = {**os.environ, **hub.environment(tmp_path / "home"), "PYTHONPATH": path}
    command = [sys.executable, "-m", "learngene_zoo", "fetch", f"{NAME}@v1.0", "-q"]
    running = [
        subprocess.Popen(
            command,
            env=environment,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    ended = [process.communicate(timeout=120) for process in running]
    assert {error for _, error in ended} == {""}
    assert {out for out, _ in ended} == {ended[0][0]}
    assert content(ended[0][0].strip()) == published
