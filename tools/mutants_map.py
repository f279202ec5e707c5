"""Measure which tests run which lines: each test file once, in a fork, under coverage.py (`pip
install coverage`).

    python tools/mutants.py --map   measure the test files that changed since they were measured

The map is kept in `.mutants_map/`, a file of JSON for each test file, beside the text of the
sources that it was measured on: where a source has changed since, its lines are found again by
comparing the two texts. A line that a wide fixture runs (one of a module or session) belongs to
every test that uses the fixture, and a line that only a subprocess or the import of its module
runs belongs to the test file.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import json
import os
import re
import signal
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAP = ROOT / ".mutants_map"
# Which hold of the whole tree, or of small parts of it that they do not name.
LAWS = (
    "tests/core/test_laws_of_the_tree.py",
    "tests/core/test_values.py",
    "tests/plugins/test_plugin_values.py",
    "tests/plugins/test_mini_suite.py",
)
SOURCES = ("learngene_zoo", "plugins", "hubconf.py")
COLLECTION = "collection"
MEASURE_SECONDS = 1500.0  # for one test file


class Contexts:
    """Tell coverage which test or wide fixture runs, and how long each test takes."""

    def __init__(self, coverage: Any) -> None:
        self.coverage = coverage
        self.current = COLLECTION
        self.seconds: dict[str, float] = {}
        self.fixtures: dict[str, list[str]] = {}
        self.shared = 0.0  # seconds of wide fixtures

    def switch(self, context: str) -> str:
        """Give what runs from here on to a context, and return the one before."""
        before, self.current = self.current, context
        self.coverage.switch_context(context)
        return before

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Give a test's lines and seconds to it."""
        self.switch(item.nodeid)
        self.fixtures[item.nodeid] = list(getattr(item, "fixturenames", []))
        started, shared = time.monotonic(), self.shared
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] = round(
                time.monotonic() - started - (self.shared - shared), 3
            )
            self.switch(COLLECTION)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Iterator[None]:
        """Give the lines of a fixture that several tests share to the fixture."""
        if fixturedef.scope == "function":
            return (yield)
        before, started = self.switch(f"fixture:{fixturedef.argname}"), time.monotonic()
        try:
            return (yield)
        finally:
            if not before.startswith("fixture:"):
                self.shared += time.monotonic() - started
            self.switch(before)


def measure_file(test: str, folder: Path) -> dict[str, Any]:
    """Run a test file in this process, which must be a fork in a copy of the checkout.

    Returns its row of the map, without the texts of the sources.
    """
    from coverage import Coverage

    tree = Path.cwd()
    settings = folder / "coveragerc"
    include = [str(tree / "learngene_zoo/*"), str(tree / "plugins/*"), str(tree / "hubconf.py")]
    lines = ["[run]", "parallel = true", "context = process", f"data_file = {folder}/process"]
    settings.write_text("\n".join([*lines, "include =", *(f"    {one}" for one in include)]) + "\n")
    os.environ["COVERAGE_PROCESS_START"] = str(settings)
    coverage = Coverage(data_file=str(folder / "data"), include=include, config_file=False)
    contexts = Contexts(coverage)
    coverage.start()
    coverage.switch_context(COLLECTION)
    options = ["-q", "-p", "no:cacheprovider", "--tb=no"]
    code = int(pytest.main([*options, test], plugins=[contexts]))
    coverage.stop()
    coverage.save()
    data = [folder / "data", *folder.glob("process*")]
    return {
        "test": test,
        "code": code,
        "seconds": contexts.seconds,
        "shared": round(contexts.shared, 2),
        "fixtures": contexts.fixtures,
        "lines": read_lines(data, tree),
    }


def read_lines(files: Sequence[Path], tree: Path) -> dict[str, dict[str, list[int]]]:
    """Return the lines that ran, by source file and context, from data files of coverage."""
    from coverage import CoverageData

    lines: dict[str, dict[str, set[int]]] = {}
    for file in files:
        data = CoverageData(str(file))
        data.read()
        for name in data.measured_files():
            source = os.path.relpath(name, tree)
            for line, contexts in data.contexts_by_lineno(name).items():
                for context in contexts:
                    lines.setdefault(source, {}).setdefault(context, set()).add(line)
    return {source: {key: sorted(own) for key, own in of.items()} for source, of in lines.items()}


def digest(text: str) -> str:
    """Return a short checksum of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def list_tests(root: Path = ROOT) -> list[str]:
    """Return the test files, by name."""
    return sorted(str(one.relative_to(root)) for one in (root / "tests").rglob("test_*.py"))


def list_sources(root: Path = ROOT) -> list[str]:
    """Return the modules that mutants are drawn from, by name."""
    folders = [root / name for name in SOURCES if (root / name).is_dir()]
    files = [file for folder in folders for file in folder.rglob("*.py")]
    files += [root / name for name in SOURCES if (root / name).is_file()]
    return sorted(str(file.relative_to(root)) for file in files)


def list_unmeasured(root: Path = ROOT, folder: Path = MAP) -> list[str]:
    """Return the test files that changed since they were measured, or never were."""
    rows = {row["test"]: row["text"] for row in read_rows(folder)}
    return [
        test for test in list_tests(root) if rows.get(test) != digest((root / test).read_text())
    ]


def read_rows(folder: Path = MAP) -> list[dict[str, Any]]:
    """Return the rows of the map, one for each test file."""
    return [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]


def keep_row(row: dict[str, Any], tree: Path, folder: Path = MAP) -> None:
    """Write a test file's row, and the texts of the sources that it ran."""
    (folder / "sources").mkdir(parents=True, exist_ok=True)
    row["text"] = digest((tree / row["test"]).read_text())
    row["sources"] = {}
    for source in row["lines"]:
        text = (tree / source).read_text()
        row["sources"][source] = digest(text)
        place = folder / "sources" / digest(text)
        if not place.exists():
            place.write_text(text)
    (folder / f"{row['test'].replace('/', '--')}.json").write_text(json.dumps(row))


@dataclass(frozen=True)
class Site:
    """Where a mutant stands: the lines of its statement, and the names by which tests could reach
    it.
    """

    lines: range
    names: tuple[str, ...]  # of the function, its class, or what the statement defines
    runs_at_import: bool
    body: range  # of the function or class around it
    said: tuple[str, ...] = ()  # phrases of its texts, which a test of a message has too


@dataclass(frozen=True)
class Choice:
    """A test file, with the tests of it that run the mutant; all of them if that is not known."""

    file: str
    tests: tuple[str, ...] = ()
    seconds: float = 10.0


def find_site(text: str, line: int) -> Site:
    """Return where the line of a source stands."""
    tree = ast.parse(text)
    names: list[str] = []
    node: ast.AST = tree
    body, at_import = range(1, text.count("\n") + 2), True
    statement: ast.stmt | None = None
    while inner := [one for one in _statements(node) if line in _span(one)]:
        node = statement = inner[0]
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.append(node.name)
            body = _span(node)
            is_header = line < node.body[0].lineno
            at_import = isinstance(node, ast.ClassDef) or is_header
    targets = _targets(statement) if at_import else []
    lines = _head(statement) if statement is not None else range(line, line + 1)
    own = [name for name in [*names, *targets] if not name.startswith("__")]
    return Site(lines, tuple(reversed(own)), at_import, body, _phrases(statement))


def _statements(node: ast.AST) -> list[ast.stmt]:
    """The statements directly within a node, those of its branches and handlers too."""
    found: list[ast.stmt] = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            found.append(child)
        elif isinstance(child, ast.ExceptHandler | ast.match_case):
            found += _statements(child)
    return found


def _span(node: ast.stmt) -> range:
    """A statement's lines, with its decorators."""
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(one.lineno for one in decorators)])
    return range(first, (node.end_lineno or node.lineno) + 1)


def _head(node: ast.stmt) -> range:
    """A statement's lines without those of the statements within it."""
    inner = [one.lineno for one in _statements(node)]
    whole = _span(node)
    return range(whole.start, max(min([*inner, whole.stop]), whole.start + 1))


def _phrases(statement: ast.stmt | None) -> tuple[str, ...]:
    """Every three words in a row of a statement's strings, unless it is a class or function."""
    if statement is None or isinstance(
        statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    ):
        return ()
    strings = [
        one.value
        for one in ast.walk(statement)
        if isinstance(one, ast.Constant) and isinstance(one.value, str)
    ]
    rows = [string.split() for string in strings]
    return tuple(" ".join(row[start : start + 3]) for row in rows for start in range(len(row) - 2))


def _targets(node: ast.stmt | None) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [one.id for one in targets if isinstance(one, ast.Name)]


class Selector:
    """Choose the tests for a mutant.

    The nearest by name first, without those known not to run it.
    """

    def __init__(self, root: Path = ROOT, folder: Path = MAP) -> None:
        self.root, self.folder = root, folder
        self.tests = {test: (root / test).read_text() for test in list_tests(root)}
        self.sources = {source: (root / source).read_text() for source in list_sources(root)}
        self.rows = {row["test"]: row for row in read_rows(folder)}
        self.words = {test: set(re.findall(r"\w+", text)) for test, text in self.tests.items()}
        self.mentions: dict[str, set[str]] = {}
        self.sound, self.unsound = set[str](), set[str]()
        self.scopes_of: dict[str, list[tuple[tuple[str, ...], set[str]]]] = {}

    def choose(self, source: str, line: int, most: int) -> list[Choice]:
        """Return at most so many test files for a line of a source, the most promising first, and
        those of `LAWS`.
        """
        site = find_site(self.sources[source], line)
        callers = self.list_callers(source, site)
        scores = {test: self.score(test, source, site, callers) for test in self.tests}
        near = sorted(scores, key=lambda one: (-scores[one], one))
        choices = [(test, self.restrict(test, source, site)) for test in near]
        kept = [one for test, one in choices if one and (scores[test] > 0 or one.tests)]
        laws = [one for test, one in choices if one and test in LAWS and one not in kept[:most]]
        return [*kept[:most], *laws]

    def is_sound(self, failed: str, run: Callable[[list[Choice]], tuple[str, float]]) -> bool:
        """Return whether a test that failed passes alone without the mutant, where `run`
        runs it.
        """
        test = failed.removeprefix("ERROR ")
        if "::" not in test:  # a file that cannot be imported, or the time is up
            return True
        if test not in self.sound and test not in self.unsound:
            passes = not run([Choice(test.split("::")[0], (test,))])[0]
            (self.sound if passes else self.unsound).add(test)
        return test in self.sound

    def score(self, test: str, source: str, site: Site, callers: Sequence[str]) -> float:
        """Return how near a test file is to a line of a source, by what it names."""
        module = source.removeprefix("plugins/").removesuffix(".py").replace("/", ".")
        package, _, name = module.rpartition(".")
        text = self.tests[test]
        imports = rf"\b{re.escape(module)}\b|from {re.escape(package)} import [^\n]*\b{name}\b"
        score = 2.0 if re.search(imports, text) else 0.0
        for weight, word in zip((3.0, 1.5, 1.5), site.names):
            score += weight * self.weigh(word, test)
        score += sum(0.5 * self.weigh(caller, test) for caller in callers)
        score += 3.0 * any(phrase in text for phrase in site.said)
        words = set(re.split(r"[/_.]", source)) - {"py", "plugins", "learngene", "zoo", "lgzoo"}
        own = re.split(r"[/_.]", test)
        return score + sum(
            0.7 for word in words if any(part.startswith(word.rstrip("s")) for part in own)
        )

    def weigh(self, word: str, test: str) -> float:
        """Return 0 if a test file does not have the word, else more the fewer of them have it."""
        if word not in self.mentions:
            self.mentions[word] = {one for one, words in self.words.items() if word in words}
        having = self.mentions[word]
        return 1 / len(having) ** 0.5 if test in having else 0.0

    def list_callers(self, source: str, site: Site) -> list[str]:
        """Return the names of the functions and classes that name what is at a site."""
        callers: dict[str, None] = {}
        for file in [source, *(one for one in self.sources if one != source)]:
            for names, words in self.scopes(file) if site.names else []:
                if site.names[0] in words:
                    callers.update(dict.fromkeys(names))
            if len(callers) > 12:
                break
        return [name for name in callers if name not in site.names][:12]

    def scopes(self, source: str) -> list[tuple[tuple[str, ...], set[str]]]:
        """Return the functions and classes of a source, each with the words in it."""
        if source not in self.scopes_of:
            text = self.sources[source]
            lines = text.split("\n")
            self.scopes_of[source] = [
                (
                    (node.name,),
                    set(re.findall(r"\w+", "\n".join(lines[node.lineno - 1 : node.end_lineno]))),
                )
                for node in ast.walk(ast.parse(text))
                if isinstance(node, ast.FunctionDef | ast.ClassDef)
            ]
        return self.scopes_of[source]

    def restrict(self, test: str, source: str, site: Site) -> Choice | None:
        """Return the tests of a file that run a site; None if the map says that none does."""
        row = self.rows.get(test)
        if row is None or row["text"] != digest(self.tests[test]) or row["code"] not in (0, 5):
            return Choice(test)
        lines = self.align(row["sources"].get(source), source, site)
        contexts = row["lines"].get(source, {})
        running = {context for context, own in contexts.items() if lines.intersection(own)}
        own = [
            name
            for name in row["seconds"]
            if name in running
            or any(f"fixture:{fixture}" in running for fixture in row["fixtures"][name])
        ]
        seconds = row["shared"] + sum(row["seconds"][name] for name in own)
        if own or not running:
            return Choice(test, tuple(own), seconds) if own else None
        return Choice(test, (), row["shared"] + sum(row["seconds"].values()))

    def align(self, sha: str | None, source: str, site: Site) -> set[int]:
        """Return the lines that a site had in the text of its source that was measured."""
        if sha is None:
            return set()
        wanted = site.body if site.runs_at_import else site.lines
        old = (self.folder / "sources" / sha).read_text()
        if digest(self.sources[source]) == sha:
            return set(wanted)
        blocks = difflib.SequenceMatcher(
            None, old.split("\n"), self.sources[source].split("\n"), autojunk=False
        ).get_matching_blocks()
        return {
            block.a + line - 1 - block.b + 1
            for line in wanted
            for block in blocks
            if block.b <= line - 1 < block.b + block.size
        }


class Selection:
    """Run only some tests of each file, and stop one that takes more processor time than `limit`.

    Where a test of a file is not there any more, its others run too.
    """

    def __init__(self, choices: Sequence[Choice], limit: float, without: Collection[str]) -> None:
        self.choices, self.limit, self.without = choices, limit, without

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave the other tests out."""
        there = {item.nodeid for item in items}
        whole = {
            one.file for one in self.choices if not one.tests or not there.issuperset(one.tests)
        }
        wanted = {test for one in self.choices for test in one.tests}
        wanted |= {name for name in there if name.split("::")[0] in whole}
        items[:] = [item for item in items if item.nodeid in wanted.difference(self.without)]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Stop a test that takes too long, as one that fails."""
        signal.signal(signal.SIGPROF, lambda *_: _stop(item.nodeid))
        signal.setitimer(signal.ITIMER_PROF, self.limit)
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)


def _stop(test: str) -> None:
    print(f"\nFAILED {test} - timeout", flush=True)
    os._exit(1)
