"""A stand-in of the Hugging Face Hub for tests: real HTTP on 127.0.0.1, spoken to by the real
client.

It has what publishing and fetching use: repositories, the check of a card, preupload, LFS (basic
and multipart), commits with their parent, tags, refs, trees in pages, and files with etags, ranges
and a redirect to another host. All of it lives in memory.
`faults` break answers by rule, and `requests` is a log of everything that was asked.
"""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import sleep  # which stays as it is if a test shortens the client's
from typing import Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit

from standin_repositories import LFS, Answer, Blob, Refused, Repo, Tree, refusal
from standin_routes import ROUTES

TOKEN = "hf_" + "StandInOnly" * 3
Kind = Literal[
    "status", "reset", "drop", "truncated", "flipped", "flipped-upload", "lost", "slow", "meanwhile"
]


@dataclass
class Fault:
    """What goes wrong with requests whose `METHOD path` matches, or is this name: the next `times`
    of them after `skip` others.

    status: this answer instead of the right one, with nothing done. reset: the connection is closed
    before anything is done. drop: it ends in the middle of the answer. truncated, flipped: the
    answer is short of its second half, or has one bit flipped, and says nothing of it.
    flipped-upload: so is what was sent. lost: all is done, and no answer comes. slow: the answer
    comes after `seconds`. meanwhile: `action` happens before the request is served.
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
        """The kind of request: its method and path without what differs between repositories,
        revisions and files.
        """
        return f"{self.method} {general(urlsplit(self.path).path)}"


def general(path: str) -> str:
    """A path without names: `/api/models/ID/tree/REV`, `/ID/resolve/REV/FILE` (but
    `manifest.json`).
    """
    path = re.sub(r"^/api/models/[^/]+/[^/]+", "/api/models/ID", path)
    path = re.sub(r"^/(?!api/|lfs/|cdn/)[^/]+/[^/]+?(\.git)?(?=/)", r"/ID\1", path)
    path = re.sub(r"(?<=/)[0-9a-f]{64}", "SHA256", path)
    path = re.sub(
        r"(?<=/)(revision|tree|tag|preupload|commit|resolve|xet-\w+-token)/[^/]+", r"\1/REV", path
    )
    path = re.sub(r"(?<=/part/)\d+", "N", path)
    return re.sub(r"(?<=/resolve/REV/)(?!manifest\.json$).+", "FILE", path)


class StandIn(ThreadingHTTPServer):
    """The server; `url` is its endpoint. A context manager that serves while it is open."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, *, page: int = 1000, multipart: int = 0, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.page, self.multipart = (
            page,
            multipart,
        )  # entries of a page of a tree; bytes of a part, 0: basic uploads
        self.xet = False  # whether it gives out tokens for Xet; it stores nothing that way
        self.repos: dict[str, Repo] = {}
        self.stored: dict[str, bytes] = {}  # LFS
        self.parts: dict[str, dict[int, bytes]] = {}
        self.faults: list[Fault] = []
        self.headers: dict[
            str, str
        ] = {}  # of every answer about a file, in the place of the right ones
        self.requests: list[Request] = []
        self.lock = threading.RLock()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.cdn = (  # another host: tokens do not belong there
            f"http://localhost:{self.server_address[1]}"
        )

    def __enter__(self) -> StandIn:
        threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Connections that a client or a fault has closed are no news."""

    def environment(self, home: Any) -> dict[str, str]:
        """The variables by which the client finds this Hub and nothing of the user's own."""
        return {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(home),
            "HF_TOKEN": TOKEN,
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_UPDATE_CHECK": "1",
            "NO_PROXY": "127.0.0.1,localhost",
        }

    def fail(self, request: str, kind: Kind | int, **more: Any) -> Fault:
        """Break requests whose `METHOD path` matches the expression, or whose
        `Request.name` it is.
        """
        fault = (
            Fault(request, "status", status=kind, **more)
            if isinstance(kind, int)
            else Fault(request, kind, **more)
        )
        self.faults.append(fault)
        return fault

    def fault_for(self, method: str, path: str) -> Fault | None:
        """The first fault that is due for a request."""
        with self.lock:
            for fault in self.faults:
                if fault.request == f"{method} {general(path)}" or re.search(
                    fault.request, f"{method} {path}"
                ):
                    fault.seen += 1
                    if fault.skip < fault.seen <= fault.skip + fault.times:
                        return fault
        return None

    def put(
        self, name: str, files: Mapping[str, bytes], tag: str | None = None, private: bool = False
    ) -> str:
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
        return {
            path: blob.data
            for path, blob in self.repos[name].commits[sha].items()
            if path != ".gitattributes"
        }


class Handler(BaseHTTPRequestHandler):
    """One request: what is done is in `ROUTES`."""

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
                match = re.fullmatch(pattern, path)
                if match and self.command in method.split():
                    return route(self, **match.groupdict())
            raise Refused(404, message="no such route")
        except Refused as refused:
            return refusal(refused)

    def _log(self, received: int, answer: Answer) -> None:
        sent = 0 if self.command == "HEAD" else len(answer.body)
        token, host = "Authorization" in self.headers, self.headers.get("Host", "")
        self.server.requests.append(
            Request(self.command, self.path, host, token, received, sent, answer.status)
        )

    def _send(self, answer: Answer, kind: str) -> None:
        body = answer.body
        if kind == "truncated":
            body = body[: len(body) // 2]
        elif kind == "flipped":
            body = flipped(body)
        self.send_response(answer.status)
        replaced = self.server.headers if "/resolve/" in self.path else {}
        names = {name.lower() for name in replaced}
        headers = {
            name: value for name, value in answer.headers.items() if name.lower() not in names
        }
        for name, value in {**headers, **replaced}.items():
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
