"""What a stand-in of the Hub does for each request: `ROUTES`, from a method and a path to a
function.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import yaml
from standin_repositories import LFS, Answer, Blob, Refused, Tree, as_json, refusal

if TYPE_CHECKING:
    from standin import Handler


def whoami(ask: Handler) -> Answer:
    ask.writer()
    return as_json({"type": "user", "name": "tester", "auth": {"type": "access_token"}})


def create(ask: Handler) -> Answer:
    ask.writer()
    asked = ask.json()
    name = f"{asked['organization']}/{asked['name']}"
    url = f"{ask.server.url}/{name}"
    if name in ask.server.repos:
        return as_json({"url": url, "error": "You already created this model repo"}, 409)
    ask.server.put(
        name,
        {".gitattributes": b"*.safetensors filter=lfs\n"},
        private=asked.get("visibility") == "private",
    )
    return as_json({"url": url})


def validate(ask: Handler) -> Answer:
    match = re.match(r"---\n(.*?)\n---\n", ask.json()["content"], re.DOTALL)
    try:
        data = yaml.safe_load(match[1]) if match else {}
    except yaml.YAMLError as error:
        return as_json({"errors": [{"message": str(error)}], "warnings": []}, 400)
    unlicensed = (
        [] if isinstance(data.get("license"), str) else [{"message": '"license" must be a string'}]
    )
    return as_json({"errors": unlicensed, "warnings": []}, 400 if unlicensed else 200)


def info(ask: Handler, name: str, revision: str | None = None) -> Answer:
    sha, tree = ask.commit_of(name, unquote(revision or "main"))
    files = [{"rfilename": path} for path in tree]
    return as_json(
        {"id": name, "sha": sha, "private": ask.repo(name).private, "tags": [], "siblings": files}
    )


def entry(path: str, blob: Blob) -> dict[str, Any]:
    large = {"oid": blob.sha256, "size": len(blob.data), "pointerSize": 130}
    return {
        "type": "file",
        "path": path,
        "size": len(blob.data),
        "oid": blob.oid,
        **({"lfs": large} if blob.lfs else {}),
    }


def tree_of(ask: Handler, name: str, revision: str) -> Answer:
    _, tree = ask.commit_of(name, unquote(revision))
    start = int(ask.query.get("cursor", ["0"])[0])
    paths = sorted(tree)[start : start + ask.server.page]
    folders = {path.rpartition("/")[0] for path in paths if "/" in path}
    entries = [entry(path, tree[path]) for path in paths]
    entries += [
        {"type": "directory", "path": path, "size": 0, "oid": "0" * 40} for path in sorted(folders)
    ]
    more = start + ask.server.page
    link = f'<{ask.server.url}{urlsplit(ask.path).path}?recursive=true&cursor={more}>; rel="next"'
    return as_json(entries, **({"Link": link} if more < len(tree) else {}))


def refs(ask: Handler, name: str) -> Answer:
    repo = ask.repo(name)
    tags = [
        {"name": tag, "ref": f"refs/tags/{tag}", "targetCommit": sha}
        for tag, sha in repo.tags.items()
    ]
    main = {"name": "main", "ref": "refs/heads/main", "targetCommit": repo.head}
    return as_json({"branches": [main], "tags": tags, "converts": []})


def tag(ask: Handler, name: str, revision: str) -> Answer:
    ask.writer()
    sha, _ = ask.commit_of(name, unquote(revision))
    expected = ask.json()["tag"]
    if expected in ask.repo(name).tags:
        raise Refused(409, message=f"Tag {expected} already exists")
    ask.repo(name).tags[expected] = sha
    return as_json({}, 201)


def preupload(ask: Handler, name: str, revision: str) -> Answer:
    ask.writer()
    _, tree = ask.commit_of(name, unquote(revision))
    return as_json(
        {
            "files": [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith(LFS) else "regular",
                    "shouldIgnore": False,
                    "oid": tree[file["path"]].etag if file["path"] in tree else None,
                }
                for file in ask.json()["files"]
            ]
        }
    )


def batch(ask: Handler, name: str) -> Answer:
    ask.writer()
    ask.repo(name)
    return as_json(
        {"transfer": "basic", "objects": [upload_of(ask, item) for item in ask.json()["objects"]]}
    )


def upload_of(ask: Handler, item: dict[str, Any]) -> dict[str, Any]:
    oid, size, part = item["oid"], item["size"], ask.server.multipart
    if oid in ask.server.stored:
        return {"oid": oid, "size": size}
    place, signature = f"{ask.server.cdn}/lfs/{oid}", "?X-Amz-Signature=secret"
    upload: dict[str, Any] = {"href": place + signature}
    if part and size > part:
        count = -(-size // part)
        header = {
            f"{number:05}": f"{place}/part/{number}{signature}" for number in range(1, count + 1)
        }
        upload = {
            "href": f"{ask.server.url}/lfs/{oid}/complete",
            "header": {"chunk_size": str(part), **header},
        }
    return {
        "oid": oid,
        "size": size,
        "actions": {"upload": upload, "verify": {"href": f"{ask.server.url}/lfs/{oid}/verify"}},
    }


def store(ask: Handler, oid: str) -> Answer:
    if hashlib.sha256(ask.body).hexdigest() != oid:
        raise Refused(400, message="XAmzContentSHA256Mismatch")
    ask.server.stored[oid] = ask.body
    return Answer()


def store_part(ask: Handler, oid: str, number: str) -> Answer:
    ask.server.parts.setdefault(oid, {})[int(number)] = ask.body
    return Answer(headers={"ETag": f'"{hashlib.md5(ask.body).hexdigest()}"'})


def complete(ask: Handler, oid: str) -> Answer:
    parts = ask.server.parts.get(oid, {})
    ask.body = b"".join(parts.get(part["partNumber"], b"") for part in ask.json()["parts"])
    return store(ask, oid)


def verify(ask: Handler, oid: str) -> Answer:
    if len(ask.server.stored.get(oid, b"")) != ask.json()["size"]:
        raise Refused(404, message="the object is not there")
    return as_json({})


def commit(ask: Handler, name: str, revision: str) -> Answer:
    ask.writer()
    parent, tree = ask.commit_of(name, unquote(revision))
    try:
        lines = [json.loads(line) for line in ask.body.splitlines() if line]
        header, *changes = [(line["key"], line["value"]) for line in lines]
    except (ValueError, KeyError, TypeError):
        raise Refused(400, message="the body is not what a commit sends") from None
    if header[1].get("parentCommit") not in (None, parent):
        raise Refused(412, message="A commit has happened since. Please refresh and try again.")
    made = changed(ask, tree, changes)
    sha = ask.repo(name).add(made) if made != tree else parent
    return as_json({"commitUrl": f"{ask.server.url}/{name}/commit/{sha}", "commitOid": sha})


def changed(ask: Handler, tree: Tree, changes: list[tuple[str, Any]]) -> Tree:
    made = dict(tree)
    for key, value in changes:
        path = value["path"]
        if key == "file":
            try:
                made[path] = Blob(base64.b64decode(value["content"], validate=True), lfs=False)
            except ValueError:
                raise Refused(400, message=f"{path} is not in base64") from None
        elif key == "lfsFile":
            if value["oid"] not in ask.server.stored:
                raise Refused(400, message=f"{path} was not uploaded")
            made[path] = Blob(ask.server.stored[value["oid"]], lfs=True)
        elif key == "deletedFile" and path in made:
            del made[path]
        else:
            raise Refused(404, "EntryNotFound", f"A file with this name doesn't exist: {path}")
    return made


def resolve(ask: Handler, name: str, revision: str, path: str) -> Answer:
    sha, tree = ask.commit_of(name, unquote(revision))
    if path not in tree:
        answer = refusal(Refused(404, "EntryNotFound", "Entry not found"))
        return Answer(answer.body, 404, {**answer.headers, "X-Repo-Commit": sha})
    blob = tree[path]
    about = {"X-Repo-Commit": sha, "ETag": f'"{blob.etag}"', "Accept-Ranges": "bytes"}
    if not blob.lfs:
        return ranged(ask, blob.data, about)
    linked = {"X-Linked-ETag": f'"{blob.sha256}"', "X-Linked-Size": str(len(blob.data))}
    ask.server.stored[blob.sha256] = blob.data
    place = f"{ask.server.cdn}/cdn/{blob.sha256}?Signature=secret"
    return Answer(b"Found", 302, {**about, **linked, "Location": place})


def xet_token(ask: Handler, name: str) -> Answer:
    ask.writer()
    if not ask.server.xet:
        raise Refused(404)
    return as_json(
        {"casUrl": ask.server.cdn, "accessToken": "x", "exp": 0},
        **{"X-Xet-Cas-Url": ask.server.cdn},
    )


def cdn(ask: Handler, oid: str) -> Answer:
    if oid not in ask.server.stored:
        raise Refused(404)
    return ranged(ask, ask.server.stored[oid], {"ETag": f'"{oid}"', "Accept-Ranges": "bytes"})


def ranged(ask: Handler, data: bytes, headers: dict[str, str]) -> Answer:
    """The bytes that were asked for."""
    expected = re.fullmatch(r"bytes=(\d+)-(\d*)", ask.headers.get("Range", ""))
    if not expected:
        return Answer(data, 200, headers)
    first, last = int(expected[1]), min(int(expected[2] or len(data)), len(data) - 1)
    if first >= len(data):
        return Answer(b"", 416, {"Content-Range": f"bytes */{len(data)}"})
    return Answer(
        data[first : last + 1],
        206,
        {**headers, "Content-Range": f"bytes {first}-{last}/{len(data)}"},
    )


MODEL = r"/api/models/(?P<name>[^/]+/[^/]+)"
ROUTES = [
    ("GET", r"/api/whoami-v2", whoami),
    ("POST", r"/api/repos/create", create),
    ("POST", r"/api/validate-yaml", validate),
    ("GET", MODEL, info),
    ("GET", MODEL + r"/revision/(?P<revision>[^/]+)", info),
    ("GET", MODEL + r"/tree/(?P<revision>[^/]+)", tree_of),
    ("GET", MODEL + r"/refs", refs),
    ("GET", MODEL + r"/xet-write-token/[^/]+", xet_token),
    ("POST", MODEL + r"/tag/(?P<revision>[^/]+)", tag),
    ("POST", MODEL + r"/preupload/(?P<revision>[^/]+)", preupload),
    ("POST", MODEL + r"/commit/(?P<revision>[^/]+)", commit),
    ("POST", r"/(?P<name>[^/]+/[^/]+)\.git/info/lfs/objects/batch", batch),
    ("PUT", r"/lfs/(?P<oid>\w+)", store),
    ("PUT", r"/lfs/(?P<oid>\w+)/part/(?P<number>\d+)", store_part),
    ("POST", r"/lfs/(?P<oid>\w+)/complete", complete),
    ("POST", r"/lfs/(?P<oid>\w+)/verify", verify),
    ("HEAD GET", r"/cdn/(?P<oid>\w+)", cdn),
    ("HEAD GET", r"/(?P<name>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)", resolve),
]
