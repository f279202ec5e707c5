"""What a stand-in of the Hub keeps and answers: repositories with their commits, and answers to
requests.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from dataclasses import dataclass, field
from typing import Any

LFS = (".safetensors", ".onnx", ".pt2")


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
        pointer = (
            f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize"
            f" {len(self.data)}\n"
        )
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
    return Answer(
        json.dumps(value).encode(), status, {"Content-Type": "application/json", **headers}
    )


def refusal(refused: Refused) -> Answer:
    named = {"X-Error-Code": refused.code, "X-Error-Message": refused.message}
    return as_json(
        {"error": refused.message},
        refused.status,
        **{name: text for name, text in named.items() if text},
    )
