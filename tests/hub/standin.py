"""A stand-in of the Hugging Face Hub for tests: real HTTP on 127.0.0.1, spoken to by the real client.

It has what publishing and fetching use: repositories, the check of a card, preupload, LFS (basic and multipart), commits with
their parent, tags, refs, trees in pages, and files with etags, ranges and a redirect to another host. All of it lives in memory.
`faults` break answers by rule, and `requests` is a log of everything that was asked.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import sleep  # which stays as it is if a test shortens the client's
from typing import Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

TOKEN = "hf_" + "StandInOnly" * 3
LFS = (".safetensors", ".onnx", ".pt2")
Kind = Literal["status", "reset", "drop", "truncated", "flipped", "flipped-upload", "lost", "slow", "meanwhile"]


@dataclass
class Fault:
    """What goes wrong with requests whose `METHOD path` matches, or is this name: the next `times` of them after `skip` others.

    status: this answer instead of the right one, with nothing done. reset: the connection is closed before anything is done.
    drop: it ends in the middle of the answer. truncated, flipped: the answer is short of its second half, or has one bit
    flipped, and says nothing of it. flipped-upload: so is what was sent. lost: all is done, and no answer comes. slow: the
    answer comes after `seconds`. meanwhile: `action` happens before the request is served.
    """

    request: str
    kind: Kind
    status: int = 0
    times: int = 1
    skip: int = 0
    seconds: float = 1.0
    action: Callable[[], object] | None = None
    seen: int = 0


@dataclass(frozen=True)
class Request:
    """One request, as it was served."""

    method: str
    path: str  # with its query
    host: str
    token: bool  # whether it carried an Authorization header
    received: int
    sent: int
    status: int

    @property
    def name(self) -> str:
        """The kind of request: its method and path without what differs between repositories, revisions and files."""
        return f"{self.method} {general(urlsplit(self.path).path)}"


def general(path: str) -> str:
    """A path without names: `/api/models/ID/tree/REV`, `/ID/resolve/REV/FILE` (but `manifest.json`)."""
    path = re.sub(r"^/api/models/[^/]+/[^/]+", "/api/models/ID", path)
    path = re.sub(r"^/(?!api/|lfs/|cdn/)[^/]+/[^/]+?(\.git)?(?=/)", r"/ID\1", path)
    path = re.sub(r"(?<=/)[0-9a-f]{64}", "SHA256", path)
    path = re.sub(r"(?<=/)(revision|tree|tag|preupload|commit|resolve|xet-\w+-token)/[^/]+", r"\1/REV", path)
    path = re.sub(r"(?<=/part/)\d+", "N", path)
    return re.sub(r"(?<=/resolve/REV/)(?!manifest\.json$).+", "FILE", path)


@dataclass(frozen=True)
class Blob:
    """A file of a commit."""

    data: bytes
    lfs: bool

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def oid(self) -> str:
        """git's name of it; of a file in LFS that of its pointer."""
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {len(self.data)}\n"
        data = pointer.encode() if self.lfs else self.data
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

    @property
    def etag(self) -> str:
        return self.sha256 if self.lfs else self.oid


Tree = dict[str, Blob]


@dataclass
class Repo:
    """A repository: its commits in order, each with its tree, and what names them."""

    private: bool = False
    commits: dict[str, Tree] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def head(self) -> str:
        return list(self.commits)[-1]

    def add(self, tree: Tree) -> str:
        sha = secrets.token_hex(20)
        self.commits[sha] = tree
        return sha

    def resolve(self, revision: str) -> str | None:
        sha = self.head if revision == "main" else self.tags.get(revision, revision)
        return sha if sha in self.commits else None


class Refused(Exception):
    """An answer other than 200."""

    def __init__(self, status: int, code: str = "", message: str = "") -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


@dataclass
class Answer:
    """What is sent back."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


def as_json(value: Any, status: int = 200, **headers: str) -> Answer:
    return Answer(json.dumps(value).encode(), status, {"Content-Type": "application/json", **headers})


class StandIn(ThreadingHTTPServer):
    """The server; `url` is its endpoint. A context manager that serves while it is open."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, *, page: int = 1000, multipart: int = 0, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.page, self.multipart = page, multipart  # entries of a page of a tree; bytes of a part, 0: basic uploads
        self.xet = False  # whether it gives out tokens for Xet; it stores nothing that way
        self.repos: dict[str, Repo] = {}
        self.stored: dict[str, bytes] = {}  # LFS
        self.parts: dict[str, dict[int, bytes]] = {}
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        self.lock = threading.RLock()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.cdn = f"http://localhost:{self.server_address[1]}"  # another host: tokens do not belong there

    def __enter__(self) -> StandIn:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Connections that a client or a fault has closed are no news."""

    def environment(self, home: Any) -> dict[str, str]:
        """The variables by which the client finds this Hub and nothing of the user's own."""
        return {
            "HF_ENDPOINT": self.url, "HF_HOME": str(home), "HF_TOKEN": TOKEN, "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_UPDATE_CHECK": "1", "NO_PROXY": "127.0.0.1,localhost",
        }  # fmt: skip

    def fail(self, request: str, kind: Kind | int, **more: Any) -> Fault:
        """Break requests whose `METHOD path` matches the expression, or whose `Request.name` it is."""
        fault = Fault(request, "status", status=kind, **more) if isinstance(kind, int) else Fault(request, kind, **more)
        self.faults.append(fault)
        return fault

    def fault_for(self, method: str, path: str) -> Fault | None:
        """The first fault that is due for a request."""
        with self.lock:
            for fault in self.faults:
                if fault.request == f"{method} {general(path)}" or re.search(fault.request, f"{method} {path}"):
                    fault.seen += 1
                    if fault.skip < fault.seen <= fault.skip + fault.times:
                        return fault
        return None

    def put(self, name: str, files: Mapping[str, bytes], tag: str | None = None, private: bool = False) -> str:
        """A commit made behind everybody's back; the repository is created if need be."""
        with self.lock:
            repo = self.repos.setdefault(name, Repo(private=private))
            tree = dict(repo.commits[repo.head]) if repo.commits else {}
            tree.update({path: Blob(data, path.endswith(LFS)) for path, data in files.items()})
            sha = repo.add(tree)
            if tag:
                repo.tags[tag] = sha
            return sha

    def files(self, name: str, revision: str = "main") -> dict[str, bytes]:
        """What a repository holds, without git's own files."""
        sha = self.repos[name].resolve(revision)
        assert sha is not None, f"{name} has no {revision}"
        return {path: blob.data for path, blob in self.repos[name].commits[sha].items() if path != ".gitattributes"}


class Handler(BaseHTTPRequestHandler):
    """One request: what is done is in `ROUTES`, below."""

    server: StandIn
    protocol_version = "HTTP/1.1"
    timeout = 60
    disable_nagle_algorithm = True  # or every answer waits 40 ms between its headers and its body

    def log_message(self, format: str, *args: Any) -> None:
        """The log is `server.requests`."""

    def do_GET(self) -> None:
        """Every method takes this way."""
        received = self._body()
        url = urlsplit(self.path)
        self.query, path = parse_qs(url.query, keep_blank_values=True), unquote(url.path)
        fault = self.server.fault_for(self.command, url.path)
        kind = fault.kind if fault else ""
        self.body = flipped(received) if kind == "flipped-upload" else received
        if fault is not None and fault.action is not None:
            fault.action()
        if kind == "reset":
            answer = Answer(status=0)
        elif kind == "status" and fault is not None:
            answer = refusal(Refused(fault.status, message="by rule"))
        else:
            with self.server.lock:
                answer = self._answer(path)
        if kind == "slow" and fault is not None:
            sleep(fault.seconds)
        self._log(len(received), answer)
        if kind in ("reset", "lost"):
            self._close()
        else:
            self._send(answer, kind)

    do_HEAD = do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815  the names that BaseHTTPRequestHandler calls

    def _body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            body = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, path: str) -> Answer:
        try:
            for method, pattern, route in ROUTES:
                found = re.fullmatch(pattern, path)
                if found and self.command in method.split():
                    return route(self, **found.groupdict())
            raise Refused(404, message="no such route")
        except Refused as refused:
            return refusal(refused)

    def _log(self, received: int, answer: Answer) -> None:
        sent = 0 if self.command == "HEAD" else len(answer.body)
        token, host = "Authorization" in self.headers, self.headers.get("Host", "")
        self.server.requests.append(Request(self.command, self.path, host, token, received, sent, answer.status))

    def _send(self, answer: Answer, kind: str) -> None:
        body = answer.body
        if kind == "truncated":
            body = body[: len(body) // 2]
        elif kind == "flipped":
            body = flipped(body)
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if kind == "drop":
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
        elif self.command != "HEAD":
            self.wfile.write(body)

    def _close(self) -> None:
        """Reset the connection, as a cable that is pulled does after a while."""
        self.close_connection = True
        self.wfile.flush()
        sleep(0.01)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    # What the routes share

    def known(self) -> bool:
        """Whether the right token came with the request. Raises for a wrong one."""
        given = self.headers.get("Authorization")
        if given not in (None, f"Bearer {TOKEN}"):
            raise Refused(401, message="Invalid credentials in Authorization header")
        return given is not None

    def writer(self) -> None:
        if not self.known():
            raise Refused(401, message="Invalid username or password.")

    def repo(self, name: str) -> Repo:
        repo = self.server.repos.get(name)
        if repo is None or (repo.private and not self.known()):
            raise Refused(404 if self.known() else 401, "RepoNotFound", "Repository not found")
        return repo

    def commit_of(self, name: str, revision: str) -> tuple[str, Tree]:
        repo = self.repo(name)
        sha = repo.resolve(revision)
        if sha is None:
            raise Refused(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return sha, repo.commits[sha]

    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError:
            raise Refused(400, message="the body is not JSON") from None


def flipped(data: bytes) -> bytes:
    """One bit of it flipped, in the middle."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :] if data else data


def refusal(refused: Refused) -> Answer:
    named = {"X-Error-Code": refused.code, "X-Error-Message": refused.message}
    return as_json({"error": refused.message}, refused.status, **{name: text for name, text in named.items() if text})


# The routes


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
        name, {".gitattributes": b"*.safetensors filter=lfs\n"}, private=asked.get("visibility") == "private"
    )
    return as_json({"url": url})


def validate(ask: Handler) -> Answer:
    found = re.match(r"---\n(.*?)\n---\n", ask.json()["content"], re.DOTALL)
    try:
        data = yaml.safe_load(found[1]) if found else {}
    except yaml.YAMLError as error:
        return as_json({"errors": [{"message": str(error)}], "warnings": []}, 400)
    unlicensed = [] if isinstance(data.get("license"), str) else [{"message": '"license" must be a string'}]
    return as_json({"errors": unlicensed, "warnings": []}, 400 if unlicensed else 200)


def info(ask: Handler, name: str, revision: str | None = None) -> Answer:
    sha, tree = ask.commit_of(name, unquote(revision or "main"))
    files = [{"rfilename": path} for path in tree]
    return as_json({"id": name, "sha": sha, "private": ask.repo(name).private, "tags": [], "siblings": files})


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
    entries += [{"type": "directory", "path": path, "size": 0, "oid": "0" * 40} for path in sorted(folders)]
    more = start + ask.server.page
    link = f'<{ask.server.url}{urlsplit(ask.path).path}?recursive=true&cursor={more}>; rel="next"'
    return as_json(entries, **({"Link": link} if more < len(tree) else {}))


def refs(ask: Handler, name: str) -> Answer:
    repo = ask.repo(name)
    tags = [{"name": tag, "ref": f"refs/tags/{tag}", "targetCommit": sha} for tag, sha in repo.tags.items()]
    main = {"name": "main", "ref": "refs/heads/main", "targetCommit": repo.head}
    return as_json({"branches": [main], "tags": tags, "converts": []})


def tag(ask: Handler, name: str, revision: str) -> Answer:
    ask.writer()
    sha, _ = ask.commit_of(name, unquote(revision))
    wanted = ask.json()["tag"]
    if wanted in ask.repo(name).tags:
        raise Refused(409, message=f"Tag {wanted} already exists")
    ask.repo(name).tags[wanted] = sha
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
    return as_json({"transfer": "basic", "objects": [upload_of(ask, item) for item in ask.json()["objects"]]})


def upload_of(ask: Handler, item: dict[str, Any]) -> dict[str, Any]:
    oid, size, part = item["oid"], item["size"], ask.server.multipart
    if oid in ask.server.stored:
        return {"oid": oid, "size": size}
    place, signature = f"{ask.server.cdn}/lfs/{oid}", "?X-Amz-Signature=secret"
    upload: dict[str, Any] = {"href": place + signature}
    if part and size > part:
        count = -(-size // part)
        header = {f"{number:05}": f"{place}/part/{number}{signature}" for number in range(1, count + 1)}
        upload = {"href": f"{ask.server.url}/lfs/{oid}/complete", "header": {"chunk_size": str(part), **header}}
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
    return as_json({"casUrl": ask.server.cdn, "accessToken": "x", "exp": 0}, **{"X-Xet-Cas-Url": ask.server.cdn})


def cdn(ask: Handler, oid: str) -> Answer:
    if oid not in ask.server.stored:
        raise Refused(404)
    return ranged(ask, ask.server.stored[oid], {"ETag": f'"{oid}"', "Accept-Ranges": "bytes"})


def ranged(ask: Handler, data: bytes, headers: dict[str, str]) -> Answer:
    """The bytes that were asked for."""
    wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", ask.headers.get("Range", ""))
    if not wanted:
        return Answer(data, 200, headers)
    first, last = int(wanted[1]), min(int(wanted[2] or len(data)), len(data) - 1)
    if first >= len(data):
        return Answer(b"", 416, {"Content-Range": f"bytes */{len(data)}"})
    return Answer(data[first : last + 1], 206, {**headers, "Content-Range": f"bytes {first}-{last}/{len(data)}"})


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
