"""The fault matrix: every request of `publish`, `fetch` and `torch.hub`, broken in every way, once
and for good.

    python tests/hub/matrix.py [--every N] [--only WORD]

Each case is right if the call succeeds or ends with one clear line, nothing is half published, half
fetched or silently wrong, and the same call then succeeds when nothing is broken any more. One
process: the client's waits are shortened, else nothing is changed in it. Prints a table and what
was wrong, and exits with 1 if anything was.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from standin import TOKEN, Kind, StandIn

ROOT = Path(__file__).resolve().parents[2]
KINDS: list[Kind | int] = [
    401,
    403,
    404,
    409,
    412,
    429,
    500,
    503,
    "reset",
    "drop",
    "truncated",
    "flipped",
    "flipped-upload",
    "lost",
    "slow",
]
TIMES = {"once": 1, "for good": 10**9}
WAITING = "no answer from the Hub yet about org"
SLOW = 1.3  # seconds; the client waits for one
PART = 50_000  # bytes of a part: the learngene's weights go up in one, the descendant's in several


@dataclass(frozen=True)
class Case:
    """One call with one thing that goes wrong."""

    verb: str
    request: str
    kind: Kind | int
    times: str

    def __str__(self) -> str:
        return f"{self.verb}: {self.request}: {self.kind} {self.times}"


class Matrix:
    """The calls and what must hold after them. `hub` serves, and the client that this process
    imported asks it.
    """

    def __init__(self, hub: StandIn, place: Path) -> None:
        self.hub, self.place, self.count = hub, place, 0
        self.first, self.second = artifacts(place)
        self.verbs: dict[str, Callable[[str], str]] = {
            "publish": self.publish,
            "publish again": self.publish_again,
            "fetch": self.fetch,
            "torch.hub": self.torch_hub,
        }

    # The calls: "" or the one line that they end with

    def publish(self, name: str) -> str:
        return self.lgzoo(
            "publish", self.first[0], name, "--tag", "v1", "--descendant", self.first[1], "-q"
        )

    def publish_again(self, name: str) -> str:
        return self.lgzoo("publish", self.second, name, "--tag", "v2", "-q")

    def fetch(self, name: str) -> str:
        return self.lgzoo(
            "fetch", f"{name}@v1", "-q", "-o", self.place / "out" / name.replace("/", "-")
        )

    def torch_hub(self, name: str) -> str:
        import torch

        from learngene_zoo.errors import ZooError

        try:
            model = torch.hub.load(str(ROOT), "descendant", f"{name}@v1", layers=2, source="local")
        except ZooError as error:
            told = str(error)
        else:
            told = ""
        if told:
            assert "\n" not in told
            return told
        expected = torch.hub.load(
            str(ROOT), "descendant", str(self.first[0]), layers=2, source="local"
        )
        assert all(
            torch.equal(a, b)
            for a, b in zip(model.state_dict().values(), expected.state_dict().values())
        )
        return ""

    def lgzoo(self, *words: object) -> str:
        from click.testing import CliRunner

        from learngene_zoo.cli.main import main

        result = CliRunner().invoke(main, [str(word) for word in words])
        # That the Hub takes long is said while it does, and is not how the call ends.
        message = "\n".join(
            line for line in result.stderr.splitlines() if not line.startswith(WAITING)
        ).strip()
        assert (result.exit_code == 0) == (message == ""), (result.exit_code, result.stderr)
        if message:
            assert result.exit_code in (1, 2), result.exit_code
            assert message.startswith("error: "), message
            assert "\n" not in message, message
            assert not result.stdout, result.stdout
        return message.removeprefix("error: ")

    # A case

    def fresh(self) -> str:
        self.count += 1
        return f"org{self.count}/repository"

    def prepared(self, verb: str) -> str:
        """The name of a repository as the call expects to find it. Nothing was uploaded before."""
        name = self.fresh()
        self.hub.stored.clear()
        self.hub.parts.clear()
        if verb != "publish":
            self.hub.put(name, {".gitattributes": b""})
            self.hub.put(name, self.published(name, "v1"), tag="v1")
        return name

    def published(self, name: str, tag: str) -> dict[str, bytes]:
        """What a repository holds at a tag if all is well."""
        from learngene_zoo.hub.client import Repository
        from learngene_zoo.publishing.publication import build_publication

        (first, member), second = self.first, self.second
        made = build_publication(
            first if tag == "v1" else second,
            Repository(name, tag),
            members=[member] if tag == "v1" else [],
        )
        sources = {path: content.source for path, content in made.files.items()}
        return {
            path: source if isinstance(source, bytes) else source.read_bytes()
            for path, source in sources.items()
        }

    def requests(self, verb: str) -> list[str]:
        """The kinds of requests that a call sends when nothing is broken."""
        name = self.prepared(verb)
        before = len(self.hub.requests)
        assert self.verbs[verb](name) == ""
        return sorted({request.name for request in self.hub.requests[before:]})

    def cases(self) -> Iterator[Case]:
        for verb in self.verbs:
            for request in self.requests(verb):
                for kind in KINDS:
                    for times in TIMES:
                        yield Case(verb, request, kind, times)

    def run(self, case: Case) -> str:
        """The line that the broken call ended with.

        Raises `AssertionError` if anything was wrong.
        """
        name = self.prepared(case.verb)
        self.hub.faults[:] = []
        self.hub.fail(case.request, case.kind, times=TIMES[case.times], seconds=SLOW)
        try:
            told = self.verbs[case.verb](name)
        finally:
            self.hub.faults[:] = []
        for secret in (TOKEN, "Signature", "Traceback", "unexpected"):
            assert secret not in told, told
        self.check(case, name, told)
        again = self.verbs[case.verb](name) if told else ""
        assert again == "", f"after {told!r} the same call says {again!r}"
        self.check(case, name, again)
        return told

    def check(self, case: Case, name: str, told: str) -> None:
        if case.verb.startswith("publish"):
            self.check_published(case, name, told)
        elif case.verb == "fetch":
            self.check_fetched(name, told)

    def check_published(self, case: Case, name: str, told: str) -> None:
        """The head is as before or as it should be, and a tag names nothing else."""
        tag = "v2" if case.verb == "publish again" else "v1"
        repo = self.hub.repos.get(name)
        if repo is None:
            assert told
            return
        before, expected = (
            {} if tag == "v1" else self.published(name, "v1"),
            self.published(name, tag),
        )
        trees = {sha: self.hub.files(name, sha) for sha in repo.commits}
        for sha, tree in trees.items():
            known = tree in ({}, before, expected)
            assert known or case.kind == "flipped-upload", f"a half-published commit {sorted(tree)}"
            assert known or sha not in repo.tags.values(), "a damaged commit is tagged"
        if tag in repo.tags:
            assert trees[repo.tags[tag]] == expected, "the tag names something else"
        if not told:
            assert repo.tags.get(tag) == repo.head, "it says published, and is not"
            assert trees[repo.head] == expected
        assert case.verb == "publish" or repo.tags["v1"] in trees
        assert sum(tree == expected for tree in trees.values()) <= 1, "the same commit twice"

    def check_fetched(self, name: str, told: str) -> None:
        from learngene_zoo.ownership import MARKER, find_foreign

        folder = self.place / "out" / name.replace("/", "-")
        if told:
            assert not folder.exists(), "half fetched"
            return
        assert not find_foreign(folder), "the marker of the copy is not right"
        files = [path for path in folder.rglob("*") if path.is_file() and path.name != MARKER]
        results = {str(path.relative_to(folder)): path.read_bytes() for path in files}
        assert results == self.published(name, "v1"), "silently wrong"


def artifacts(place: Path) -> tuple[tuple[Path, Path], Path]:
    """A learngene with a descendant, and another learngene to publish in their place."""
    import learngene_zoo as lg
    from learngene_zoo.artifacts.descendant import assemble
    from learngene_zoo.families.vit.spec import ViTSpec
    from learngene_zoo.method.installed import METHODS
    from learngene_zoo.settings import with_settings

    spec = ViTSpec(layers=4, width=16, heads=2, classes=5, image_size=16, patch_size=8)
    extractor = with_settings(METHODS.load("lsamd").extractor, {"keep": (1, 3)})
    for seed in (5, 6):
        ancestry = assemble(spec, {}, seed=seed).save(place / f"ancestry-{seed}")
        lg.extract(
            "lsamd",
            ancestries=[str(ancestry)],
            extractor=extractor,
            out=place / f"learngene-{seed}",
        )
    lg.expand(place / "learngene-5", layers=3, out=place / "three")
    return (place / "learngene-5", place / "three"), place / "learngene-6"


def shorten_waits() -> None:
    """The client waits up to 23 seconds before it gives up; here a fiftieth of that."""
    sleep = time.sleep
    time.sleep = lambda seconds: sleep(seconds / 50)  # type: ignore[assignment]


def table(results: dict[Case, str | None]) -> str:
    """One line for every verb and request: how many calls succeeded, ended with one line, or were
    wrong.
    """
    rows: dict[tuple[str, str], Counter[str]] = {}
    for case, told in results.items():
        outcome = "wrong" if told is None else "said" if told else "done"
        rows.setdefault((case.verb, case.request), Counter())[outcome] += 1
    lines = [
        f"{verb:14} {request:48} {n['done']:5} {n['said']:5} {n['wrong']:5}"
        for (verb, request), n in rows.items()
    ]
    return "\n".join([f"{'verb':14} {'request':48} {'done':>5} {'said':>5} {'wrong':>5}", *lines])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--every", type=int, default=1, help="only every so manieth case")
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    parser.add_argument("--verbose", action="store_true", help="print what every call said")
    asked = parser.parse_args(argv)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch, StandIn(multipart=PART, page=3) as hub:
        scratch_folder = Path(scratch)
        quick: dict[str, Any] = {
            "HF_HUB_DOWNLOAD_TIMEOUT": "1",
            "HF_HUB_ETAG_TIMEOUT": "1",
            "LGZOO_CACHE": f"{scratch_folder}/c",
        }
        os.environ.update(hub.environment(scratch_folder / "home") | quick)
        shorten_waits()
        matrix = Matrix(hub, scratch_folder)
        results: dict[Case, str | None] = {}
        for number, case in enumerate(matrix.cases()):
            if number % asked.every or asked.only not in str(case):
                continue
            try:
                results[case] = matrix.run(case)
            except Exception as error:  # a case that is wrong is told, and the others are run
                results[case] = None
                print(f"WRONG {case}: {type(error).__name__}: {error}", flush=True)
            if asked.verbose:
                print(f"{case}: {results[case]}", flush=True)
    outcomes = Counter(
        "wrong" if told is None else "said" if told else "done" for told in results.values()
    )
    print(table(results))
    print(
        f"{len(results)} cases in {time.monotonic() - started:.0f} s: {outcomes['done']} succeeded,"
        f" {outcomes['said']} ended with one line, {outcomes['wrong']} were wrong"
    )
    return 1 if outcomes["wrong"] else 0


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "plugins")]
    sys.exit(main())
