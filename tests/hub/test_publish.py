"""Publishing: one commit, read back, then a tag; after any failure nothing is incomplete and
nobody's work is lost.
"""

from __future__ import annotations

import _thread
import json
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from standin import TOKEN, StandIn

from learngene_zoo.publishing.publication import _list_files, find_machine_paths
from learngene_zoo.publishing.publish import _lacks_xet

Lgzoo = Callable[..., SimpleNamespace]  # what the fixture `lgzoo` is
NAME = "me/learngene"
LICENSE = b"All rights reserved"


def copy(folder: Path, place: Path) -> Path:
    return Path(shutil.copytree(folder, place))


def commits(hub: StandIn, name: str = NAME) -> int:
    return len(hub.repos[name].commits)


def test_a_learngene_is_one_commit_with_a_tag(
    hub: StandIn, lgzoo: Lgzoo, made: SimpleNamespace
) -> None:
    result = lgzoo("publish", made.learngene, NAME, "--tag", "v1.0")
    repo = hub.repos[NAME]
    assert (result.code, result.out) == (0, f"{NAME}@{repo.head}\n")
    assert repo.tags == {"v1.0": repo.head}
    assert commits(hub) == 2  # the empty one, and this
    files = hub.files(NAME, "v1.0")
    assert sorted(files) == ["README.md", "config.json", "manifest.json", "model.safetensors"]
    for name in ("config.json", "model.safetensors"):
        assert files[name] == (made.learngene / name).read_bytes()
    assert f"lgzoo expand {NAME}@v1.0 --layers" in files["README.md"].decode()
    manifest = json.loads(files["manifest.json"])
    assert set(manifest["files"]) == set(files) - {"manifest.json"}


def test_tokens_go_to_the_hub_only(hub: StandIn, lgzoo: Lgzoo, made: SimpleNamespace) -> None:
    result = lgzoo("publish", made.learngene, NAME)
    elsewhere = [request for request in result.requests if "localhost" in request.host]
    assert [request.method for request in elsewhere] == ["PUT"]
    assert not any(request.token for request in elsewhere)
    assert not any(TOKEN in request.path for request in hub.requests)
    assert TOKEN not in result.out + result.told


def test_a_dry_run_lists_changes_and_makes_none(
    hub: StandIn, lgzoo: Lgzoo, made: SimpleNamespace
) -> None:
    result = lgzoo("publish", made.learngene, NAME, "--dry-run", "--json")
    rows = json.loads(result.out)
    assert {row["file"]: row["change"] for row in rows} == dict.fromkeys(
        ["README.md", "config.json", "manifest.json", "model.safetensors"], "add"
    )
    sizes = {row["file"]: row["bytes"] for row in rows}
    assert sizes["model.safetensors"] == (made.learngene / "model.safetensors").stat().st_size
    assert {request.method for request in result.requests} == {"GET"}
    assert hub.repos == {}
    lgzoo("publish", made.learngene, NAME, "--descendant", made.three)
    rows = json.loads(lgzoo("publish", made.other, NAME, "--dry-run", "--json").out)
    changes = {row["file"]: row["change"] for row in rows}
    assert changes["three/model.safetensors"] == "delete"
    assert changes["model.safetensors"] == "replace"
    assert commits(hub) == 2


def test_the_same_command_again_changes_nothing(
    hub: StandIn, lgzoo: Lgzoo, made: SimpleNamespace
) -> None:
    first = lgzoo("publish", made.learngene, NAME, "--tag", "v1.0")
    again = lgzoo("publish", made.learngene, NAME, "--tag", "v1.0")
    assert again.out == first.out
    assert {request.method for request in again.requests} == {"GET"}
    assert commits(hub) == 2


def test_another_version_replaces_what_is_stale(
    hub: StandIn, lgzoo: Lgzoo, made: SimpleNamespace
) -> None:
    lgzoo("publish", made.learngene, NAME, "--tag", "v1.0", "--descendant", made.three)
    hub.put(NAME, {"LICENSE": LICENSE})
    assert lgzoo("publish", made.other, NAME, "--tag", "v2.0").code == 0
    now = hub.files(NAME)
    assert sorted(now) == [
        "LICENSE",
        "README.md",
        "config.json",
        "manifest.json",
        "model.safetensors",
    ]
    assert "three/config.json" in hub.files(NAME, "v1.0")


def test_a_tag_is_never_moved(hub: StandIn, lgzoo: Lgzoo, made: SimpleNamespace) -> None:
    lgzoo("publish", made.learngene, NAME, "--tag", "v1.0")
    before = hub.files(NAME)
    result = lgzoo("publish", made.other, NAME, "--tag", "v1.0")
    assert result.code == 1
    assert "the tag v1.0 of me/learngene names commit" in result.error
    assert hub.files(NAME) == before
    assert {request.method for request in result.requests} <= {"GET", "HEAD"}


def test_an_older_tag_may_be_confirmed(hub: StandIn, lgzoo: Lgzoo, made: SimpleNamespace) -> None:
    first = lgzoo("publish", made.learngene, NAME, "--tag", "v1.0")
    lgzoo("publish", made.other, NAME, "--tag", "v2.0")
    again = lgzoo("publish", made.learngene, NAME, "--tag", "v1.0")
    assert again.out == first.out
    assert commits(hub) == 3


def test_a_tag_that_somebody_makes_meanwhile_stays(
    hub: StandIn, lgzoo: Lgzoo, made: SimpleNamespace
) -> None:
    def tag() -> None:
        repo = hub.repos[NAME]
        repo.tags["v1.0"] = next(iter(repo.commits))

    hub.fail("POST .*/tag/", "meanwhile", action=tag)
    result = lgzoo("publish", made.learngene, NAME, "--tag", "v1.0")
    assert result.code == 1
    assert "tags are never moved" in result.error
    assert hub.repos[NAME].tags["v1.0"] == next(iter(hub.repos[NAME].commits))


def test_files_of_others_are_not_overwritten(
    hub: StandIn, lgzoo: Lgzoo, made: SimpleNamespace
) -> None:
    hub.put(NAME, {"config.json": b"{}", "model.safetensors": b"x"})
    result = lgzoo("publish", made.learngene, NAME)
    assert result.code == 1
    assert "holds config.json, which was not published by `lgzoo publish`" in result.error
    assert hub.files(NAME) == {"config.json": b"{}", "model.safetensors": b"x"}


def test_a_file_that_somebody_else_added_is_not_overwritten(
    hub: StandIn, lgzoo: Lgzoo, made: SimpleNamespace
) -> None:
    lgzoo("publish", made.learngene, NAME)
    path = f"{made.three.name}/config.json"
    hub.put(NAME, {path: b"{}"})
    result = lgzoo("publish", made.learngene, NAME, "--descendant", made.three)
    assert result.code == 1
    assert f"holds {path}, which was not published by `lgzoo publish`" in result.error
    assert hub.files(NAME)[path] == b"{}"


def test_a_model_does_not_replace_a_learngene(
    hub: StandIn, lgzoo: Lgzoo, made: SimpleNamespace
) -> None:
    lgzoo("publish", made.learngene, NAME, "--descendant", made.three)
    before = hub.files(NAME)
    for words in ([], ["--dry-run"]):
        result = lgzoo("publish", made.three, NAME, *words)
        assert result.code == 1
        assert f"the Hub repository {NAME} holds a learngene, and this is a model" in result.error
    assert hub.files(NAME) == before


def test_a_commit_that_touches_nothing_of_ours_is_built_upon(
    hub: StandIn, lgzoo: Lgzoo, made: SimpleNamespace
) -> None:
    hub.fail("POST .*/commit/", "meanwhile", action=lambda: hub.put(NAME, {"LICENSE": LICENSE}))
    result = lgzoo("publish", made.learngene, NAME, "--tag", "v1.0")
    assert result.code == 0, result.error
    assert hub.files(NAME, "v1.0")["LICENSE"] == LICENSE
    assert [request.status for request in result.requests if "/commit/" in request.path] == [
        412,
        200,
    ]
    assert (
        len([request for request in result.requests if request.method == "PUT"]) == 1
    )  # nothing is uploaded twice


def test_what_somebody_else_publishes_meanwhile_stays(
    hub: StandIn, lgzoo: Lgzoo, made: SimpleNamespace
) -> None:
    hub.fail(
        "POST .*/commit/",
        "meanwhile",
        action=lambda: hub.put(NAME, {"config.json": b"theirs", "manifest.json": b"x"}),
    )
    result = lgzoo("publish", made.learngene, NAME, "--tag", "v1.0")
    assert result.code == 1
    assert hub.files(NAME)["config.json"] == b"theirs"
    assert hub.repos[NAME].tags == {}


def test_a_commit_of_theirs_over_ours_is_named(
    hub: StandIn, lgzoo: Lgzoo, made: SimpleNamespace
) -> None:
    lgzoo("publish", made.learngene, NAME)
    hub.fail(
        "POST .*/commit/", "meanwhile", action=lambda: hub.put(NAME, {"config.json": b"theirs"})
    )
    result = lgzoo("publish", made.other, NAME)
    assert result.code == 1
    assert (
        f"somebody else changed config.json of {NAME} meanwhile (commit {hub.repos[NAME].head})"
        in result.error
    )


def test_a_commit_whose_answer_was_lost_is_found(
    hub: StandIn, lgzoo: Lgzoo, made: SimpleNamespace
) -> None:
    hub.fail("POST .*/commit/", "lost")
    result = lgzoo("publish", made.learngene, NAME, "--tag", "v1.0")
    assert result.code == 0, result.error
    assert commits(hub) == 2
    assert len([request for request in result.requests if "/commit/" in request.path]) == 1
    assert hub.repos[NAME].tags == {"v1.0": hub.repos[NAME].head}


def test_a_tag_whose_answer_was_lost_is_found(
    hub: StandIn, lgzoo: Lgzoo, made: SimpleNamespace
) -> None:
    hub.fail("POST .*/tag/", "lost")
    assert lgzoo("publish", made.learngene, NAME, "--tag", "v1.0").code == 0
    assert hub.repos[NAME].tags == {"v1.0": hub.repos[NAME].head}


def test_what_is_damaged_there_is_sent_again(
    hub: StandIn, lgzoo: Lgzoo, made: SimpleNamespace
) -> None:
    lgzoo("publish", made.learngene, NAME)
    hub.put(NAME, {"config.json": hub.files(NAME)["config.json"] + b" "})
    assert lgzoo("publish", made.learngene, NAME, "--tag", "v1.0").code == 0
    assert hub.files(NAME, "v1.0")["config.json"] == (made.learngene / "config.json").read_bytes()


@pytest.mark.parametrize("file", ["config.json", "README.md", "manifest.json"])
def test_every_file_is_read_back_before_it_is_tagged(
    file: str, hub: StandIn, lgzoo: Lgzoo, made: SimpleNamespace
) -> None:
    fault = hub.fail(f"GET .*/resolve/.*/{file}", "flipped", times=10**9)
    result = lgzoo("publish", made.learngene, NAME, "--tag", "v1.0")
    assert result.code == 1
    assert (
        f"{file} of {NAME} at {hub.repos[NAME].head} is not what was sent, so it is not tagged"
        in result.error
    )
    assert hub.repos[NAME].tags == {}
    hub.faults.remove(fault)
    assert lgzoo("publish", made.learngene, NAME, "--tag", "v1.0").code == 0
    assert commits(hub) == 2


@pytest.mark.parametrize(
    "request_",
    ["POST .*/preupload/", "POST .*/batch", "PUT ", "POST .*/validate-yaml", "POST .*/commit/"],
)
def test_refused_uploads_leave_no_commit_and_go_on(
    request_: str, hub: StandIn, lgzoo: Lgzoo, made: SimpleNamespace
) -> None:
    fault = hub.fail(request_, 403, times=10**9)
    result = lgzoo("publish", made.learngene, NAME, "--tag", "v1.0")
    assert result.code == 1
    assert "forbidden" in result.error
    assert result.error.endswith(f"the repository {NAME} was created for it")
    assert commits(hub) == 1
    assert hub.repos[NAME].tags == {}
    hub.faults.remove(fault)
    assert lgzoo("publish", made.learngene, NAME, "--tag", "v1.0").code == 0


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Restore the handler of interrupts, which a shell ignores for background processes."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_upload_leaves_no_commit_and_goes_on(
    hub: StandIn, lgzoo: Lgzoo, made: SimpleNamespace
) -> None:
    hub.fail("POST .*/batch", "meanwhile", action=_thread.interrupt_main)
    result = lgzoo("publish", made.learngene, NAME, "--tag", "v1.0")
    assert result.code == 130
    assert result.told.endswith("interrupted; the same command continues\n")
    assert f"created {NAME}" in result.told
    assert commits(hub) == 1
    assert lgzoo("publish", made.learngene, NAME, "--tag", "v1.0").code == 0


@pytest.mark.parametrize("kind", [401, 403, 500, "reset", "drop", "truncated"])
@pytest.mark.parametrize("request_", ["POST .*/commit/", "PUT ", "GET .*/refs"])
def test_no_failure_tells_the_token_or_a_signature(
    kind: str | int,
    request_: str,
    hub: StandIn,
    lgzoo: Lgzoo,
    made: SimpleNamespace,
    caplog: pytest.LogCaptureFixture,
) -> None:
    hub.fail(request_, kind, times=10**9)  # type: ignore[arg-type]
    result = lgzoo("publish", made.learngene, NAME)
    assert not [
        secret
        for secret in (TOKEN, "X-Amz-Signature")
        if secret in result.out + result.told + caplog.text
    ]
    shown = lgzoo("publish", made.learngene, NAME, "--debug")
    assert TOKEN not in shown.out + shown.told + caplog.text


def test_there_is_no_way_to_type_a_token(lgzoo: Lgzoo, made: SimpleNamespace) -> None:
    assert lgzoo("publish", made.learngene, NAME, "--token", "x").error.startswith(
        "no option named --token"
    )


def test_who_is_not_logged_in_is_told(
    hub: StandIn, lgzoo: Lgzoo, made: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", "/nowhere/token")
    result = lgzoo("publish", made.learngene, NAME)
    assert result.code != 0
    assert result.error.endswith("you are not logged in to the Hub; log in: hf auth login")
    assert hub.repos == {}
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert "the Hub does not accept this login" in lgzoo("publish", made.learngene, NAME).error


def test_a_family_is_linked_both_ways(hub: StandIn, lgzoo: Lgzoo, made: SimpleNamespace) -> None:
    assert (
        lgzoo("publish", made.learngene, NAME, "--tag", "v1.0", "--descendant", made.three).code
        == 0
    )
    files = hub.files(NAME)
    assert "[three](three)" in files["README.md"].decode()
    card = files["three/README.md"].decode()
    assert yaml.safe_load(card.split("---\n")[1])["base_model"] == [NAME]
    assert f"lgzoo fetch {NAME}/three@v1.0 -o three" in card


def test_a_model_of_another_learngene_is_no_member(
    lgzoo: Lgzoo, made: SimpleNamespace, tmp_path: Path
) -> None:
    for folder, top in (
        (made.three, made.other),
        (made.other, made.learngene),
        (made.three, made.three),
    ):
        result = lgzoo("publish", top, NAME, "--descendant", folder)
        assert (result.code, result.requests) == (2, [])
        assert "by itself" in result.error
    twice = [tmp_path / "one" / "three", tmp_path / "other" / "three"]
    for twin in twice:
        copy(made.three, twin)
    result = lgzoo(
        "publish", made.learngene, NAME, "--descendant", twice[0], "--descendant", twice[1]
    )
    assert "two descendants are called three" in result.error


def test_a_descendant_of_a_published_learngene_names_it(
    hub: StandIn, lgzoo: Lgzoo, made: SimpleNamespace, tmp_path: Path
) -> None:
    lgzoo("publish", made.learngene, NAME, "--tag", "v1.0")
    assert lgzoo("expand", f"{NAME}@v1.0", "--layers", "2", "-o", tmp_path / "two").code == 0
    ours = json.loads((tmp_path / "two" / "config.json").read_text())["learngene"]
    assert ours["learngene"] == f"{NAME}@{hub.repos[NAME].head}"
    assert lgzoo("publish", tmp_path / "two", "me/two").code == 0
    card = hub.files("me/two")["README.md"].decode()
    assert yaml.safe_load(card.split("---\n")[1])["base_model"] == [NAME]
    assert 'timm.create_model("hf-hub:me/two", pretrained=True)' in card


def test_what_people_wrote_into_a_card_stays(
    hub: StandIn, lgzoo: Lgzoo, made: SimpleNamespace, tmp_path: Path
) -> None:
    folder = copy(made.learngene, tmp_path / "mine")
    notes = "<!-- notes -->\nOf use for badgers.\n<!-- /notes -->"
    (folder / "README.md").write_text(f"old words\n{notes}\nmore old words\n")
    lgzoo("publish", folder, NAME)
    card = hub.files(NAME)["README.md"].decode()
    assert card.endswith(f"\n{notes}\n")
    assert "old words" not in card


def test_a_licence_may_be_told_but_not_changed(
    hub: StandIn, lgzoo: Lgzoo, made: SimpleNamespace, tmp_path: Path
) -> None:
    lgzoo("publish", made.learngene, NAME, "--license", "mit")
    assert "license: mit\n" in hub.files(NAME)["README.md"].decode()
    folder = copy(made.learngene, tmp_path / "mine")
    data = json.loads((folder / "config.json").read_text())
    data["ancestries"][0]["licence"] = "cc-by-nc-4.0"
    (folder / "config.json").write_text(json.dumps(data))
    result = lgzoo("publish", folder, "me/other", "--license", "mit")
    assert result.code == 2
    assert "is under the licence cc-by-nc-4.0" in result.error


def test_paths_of_this_machine_are_told_before_they_become_public(
    lgzoo: Lgzoo, made: SimpleNamespace, tmp_path: Path
) -> None:
    told = lgzoo("publish", made.learngene, NAME, "--dry-run").told
    assert told.startswith(
        f"note: config.json makes 1 path of this machine public: {made.learngene.parent}/"
    )


def test_a_public_repository_is_not_called_private(
    hub: StandIn, lgzoo: Lgzoo, made: SimpleNamespace
) -> None:
    lgzoo("publish", made.learngene, NAME, "--private")
    assert hub.repos[NAME].private
    hub.repos[NAME].private = False
    assert "exists and is public" in lgzoo("publish", made.other, NAME, "--private").error


PATHS: dict[str, list[str]] = {
    "folder:photos/cats": ["folder:photos/cats"],
    "wds:data/{000..009}.tar": ["wds:data/{000..009}.tar"],
    "csv:/home/x/a.csv:label=y": ["csv:/home/x/a.csv:label=y"],
    "folder:/home/x/my photos": ["folder:/home/x/my photos"],
    "/home/x/model": ["/home/x/model"],
    "lgzoo extract tleg --task 'folder:my photos' -o ~/out --teacher=/home/x/vit": [
        "folder:my photos",
        "~/out",
        "/home/x/vit",
    ],
    'trained on "/home/x/my photos" (see /tmp/log.txt), C:\\photos and jsonl:a.jsonl.': [
        "/home/x/my photos",
        "/tmp/log.txt",
        "C:\\photos",
        "jsonl:a.jsonl",
    ],
    "hf:org/name:csv@main and hf-hub:org/name/three, timm:vit_tiny": [],
    "from https://example.org/a/b?c=/d and wds:https://example.org/{0..9}.tar": [],
    "image/png, 3 / 4 and 1/sqrt(n) of the images, train/test": [],
    "n01440764/7 and HIT-1/A": [],
}


@pytest.mark.parametrize("text", PATHS)
def test_paths_of_this_machine_are_found_in_texts(text: str) -> None:
    assert find_machine_paths({"card": [{"command": text}]}) == PATHS[text]
    assert find_machine_paths({"metrics": {text: 0.5}}) == PATHS[text]


def test_the_files_of_a_tokenizer_are_published_with_a_model_of_texts_only(
    lgzoo: Lgzoo, made: SimpleNamespace, tmp_path: Path
) -> None:
    for name in ("vocab.txt", "tokenizer.json"):
        folder = copy(made.three, tmp_path / name)
        (folder / name).write_text("{}")
        result = lgzoo("publish", folder, NAME)
        assert (result.code, result.requests) == (1, [])
        assert f"{name} is not part of an artifact" in result.error
        assert name in _list_files(folder, "", "", is_of_texts=True)


@pytest.mark.parametrize("name", ["weights.bin", "notes.txt", ".secret", "link.png", "folder.onnx"])
def test_what_is_no_part_of_an_artifact_is_not_published(
    name: str, hub: StandIn, lgzoo: Lgzoo, made: SimpleNamespace, tmp_path: Path
) -> None:
    folder = copy(made.learngene, tmp_path / "mine")
    if name == "link.png":
        (folder / name).symlink_to("/etc/passwd")
    elif name == "folder.onnx":
        (folder / name).mkdir()
    else:
        (folder / name).write_text("x")
    result = lgzoo("publish", folder, NAME)
    assert result.code == 1
    assert f"{name} is not part of an artifact" in result.error
    assert result.requests == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["me/learngene@v1.0"], "write the repository as organisation/name"),
        (["learngene"], "'learngene' is not the name of a Hub repository; write organisation/name"),
        (["me/../you"], "is not the name of a Hub repository"),
        ([NAME, "--tag", "main"], "a tag such as v1.0"),
        ([NAME, "--tag", "a" * 40], "a tag such as v1.0"),
        ([NAME, "--tag", "v 1"], "the tag 'v 1' is not the name of a version"),
    ],
)
def test_wrong_names_are_refused_without_a_request(
    words: list[str], says: str, lgzoo: Lgzoo, made: SimpleNamespace
) -> None:
    result = lgzoo("publish", made.learngene, *words)
    assert result.code == 2
    assert says in result.error
    assert result.requests == []


def test_a_damaged_folder_is_not_published(
    lgzoo: Lgzoo, made: SimpleNamespace, tmp_path: Path
) -> None:
    folder = copy(made.learngene, tmp_path / "mine")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    result = lgzoo("publish", folder, NAME)
    assert (result.code, result.requests) == (1, [])
    assert lgzoo("publish", tmp_path / "nothing", NAME).code == 2


def test_large_files_go_by_xet_only_where_there_is_one(
    hub: StandIn, lgzoo: Lgzoo, made: SimpleNamespace
) -> None:
    pytest.importorskip("hf_xet")
    result = lgzoo("publish", made.learngene, NAME)
    names = [request.name for request in result.requests]
    assert "GET /api/models/ID/xet-write-token/REV" in names
    assert "PUT /lfs/SHA256" in names
    assert _lacks_xet(NAME)
    hub.xet = True
    assert not _lacks_xet(NAME)


def test_large_files_go_up_in_parts(hub: StandIn, lgzoo: Lgzoo, made: SimpleNamespace) -> None:
    hub.multipart = 10_000
    result = lgzoo("publish", made.learngene, NAME)
    assert result.code == 0, result.error
    size = (made.learngene / "model.safetensors").stat().st_size
    assert [request.received for request in result.requests if "/part/" in request.path][:-1] == [
        10_000
    ] * (size // 10_000)


def test_a_tree_in_many_pages_is_read_whole(
    hub: StandIn, lgzoo: Lgzoo, made: SimpleNamespace
) -> None:
    hub.page = 1
    assert lgzoo("publish", made.learngene, NAME, "--descendant", made.three).code == 0
    assert lgzoo("publish", made.learngene, NAME, "--descendant", made.three).code == 0
    assert commits(hub) == 2


@pytest.mark.parametrize("why", ["unreachable", "offline", "--offline", 503])
def test_a_dry_run_without_a_network_lists_the_files(
    why: str | int,
    hub: StandIn,
    lgzoo: Lgzoo,
    made: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if why == "offline":
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    elif why in ("unreachable", "--offline"):
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    else:
        hub.fail("GET .*", why, times=10**9)  # type: ignore[arg-type]
    words = ["--offline"] if why == "--offline" else []
    result = lgzoo("publish", made.learngene, NAME, "--dry-run", "--json", *words)
    assert result.code == 0, result.error
    assert not words or not result.requests
    assert f"nothing was compared with {NAME}" in result.told
    rows = json.loads(result.out)
    assert {row["change"] for row in rows} == {"unknown"}
    sizes = {row["file"]: row["bytes"] for row in rows}
    assert set(sizes) == {"README.md", "config.json", "manifest.json", "model.safetensors"}
    assert sizes["model.safetensors"] == (made.learngene / "model.safetensors").stat().st_size


@pytest.mark.parametrize("name", ["my picture.png", "con.png", "-x.png", "bild\u00e4.png"])
def test_a_name_that_fetch_would_refuse_is_not_published(
    name: str, lgzoo: Lgzoo, made: SimpleNamespace, tmp_path: Path
) -> None:
    folder = shutil.copytree(made.learngene, tmp_path / "learngene")
    (folder / name).write_bytes(b"x")
    result = lgzoo("publish", folder, NAME)
    assert (result.code, result.requests) == (1, [])
    assert "cannot be published" in result.error
    assert "rename it" in result.error


def test_the_marker_is_not_published(hub: StandIn, lgzoo: Lgzoo, made: SimpleNamespace) -> None:
    assert (made.learngene / ".lgzoo").is_file()
    assert lgzoo("publish", made.learngene, NAME).code == 0
    assert ".lgzoo" not in hub.files(NAME)
