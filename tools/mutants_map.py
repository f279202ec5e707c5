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
# Tests of the whole tree, or of small parts of it that they do not name.
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
    """Record which lines each test and each wide fixture runs, and the seconds of each test."""

    def __init__(self, coverage: Any) -> None:
        self.coverage = coverage
        self.current = COLLECTION
        self.seconds: dict[str, float] = {}
        self.fixtures: dict[str, list[str]] = {}
        self.shared = 0.0  # seconds of wide fixtures

    def switch(self, context: str) -> str:
        """Switch coverage to a context, and return the context before."""
        before, self.current = self.current, context
        self.coverage.switch_context(context)
        return before

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Record a test's lines and seconds."""
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
        """Record the lines of a fixture that several tests share."""
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
    settings.write_text(
        "\n".join([*lines, "include =", *(f"    {pattern}" for pattern in include)]) + "\n"
    )
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
    return {
        source: {key: sorted(numbers) for key, numbers in by_context.items()}
        for source, by_context in lines.items()
    }


def compute_digest(text: str) -> str:
    """Return a short checksum of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def list_tests(root: Path = ROOT) -> list[str]:
    """Return the test files, by name."""
    return sorted(str(path.relative_to(root)) for path in (root / "tests").rglob("test_*.py"))


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
        test
        for test in list_tests(root)
        if rows.get(test) != compute_digest((root / test).read_text())
    ]


def read_rows(folder: Path = MAP) -> list[dict[str, Any]]:
    """Return the rows of the map, one for each test file."""
    return [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]


def write_row(row: dict[str, Any], tree: Path, folder: Path = MAP) -> None:
    """Write a test file's row, and the texts of the sources that it ran."""
    (folder / "sources").mkdir(parents=True, exist_ok=True)
    row["text"] = compute_digest((tree / row["test"]).read_text())
    row["sources"] = {}
    for source in row["lines"]:
        text = (tree / source).read_text()
        row["sources"][source] = compute_digest(text)
        path = folder / "sources" / compute_digest(text)
        if not path.exists():
            path.write_text(text)
    (folder / f"{row['test'].replace('/', '--')}.json").write_text(json.dumps(row))


@dataclass(frozen=True)
class Site:
    """The place of a mutant: the lines of its statement, and the names by which tests could reach
    it.
    """

    lines: range
    names: tuple[str, ...]  # of the function, its class, or the definitions of the statement
    runs_at_import: bool
    body: range  # of the function or class around it
    phrases: tuple[str, ...] = ()  # of its texts, which tests of messages have, too


@dataclass(frozen=True)
class Choice:
    """A test file, with the tests of it that run the mutant; all of them if that is not known."""

    file: str
    tests: tuple[str, ...] = ()
    seconds: float = 10.0


def find_site(text: str, line: int) -> Site:
    """Return the site of a line of a source."""
    tree = ast.parse(text)
    names: list[str] = []
    node: ast.AST = tree
    body, at_import = range(1, text.count("\n") + 2), True
    statement: ast.stmt | None = None
    while inner := [
        inner_statement
        for inner_statement in _list_statements(node)
        if line in _find_span(inner_statement)
    ]:
        node = statement = inner[0]
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.append(node.name)
            body = _find_span(node)
            is_header = line < node.body[0].lineno
            at_import = isinstance(node, ast.ClassDef) or is_header
    targets = _list_targets(statement) if at_import else []
    lines = _find_head(statement) if statement is not None else range(line, line + 1)
    site_names = [name for name in [*names, *targets] if not name.startswith("__")]
    return Site(lines, tuple(reversed(site_names)), at_import, body, _list_phrases(statement))


def _list_statements(node: ast.AST) -> list[ast.stmt]:
    """Return the statements directly within a node, also those of its branches and handlers."""
    statements: list[ast.stmt] = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            statements.append(child)
        elif isinstance(child, ast.ExceptHandler | ast.match_case):
            statements += _list_statements(child)
    return statements


def _find_span(node: ast.stmt) -> range:
    """Return a statement's lines, with its decorators."""
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
    return range(first, (node.end_lineno or node.lineno) + 1)


def _find_head(node: ast.stmt) -> range:
    """Return a statement's lines without those of the statements within it."""
    inner = [statement.lineno for statement in _list_statements(node)]
    span = _find_span(node)
    return range(span.start, max(min([*inner, span.stop]), span.start + 1))


def _list_phrases(statement: ast.stmt | None) -> tuple[str, ...]:
    """Return every three words in a row of a statement's strings; none of a class or function."""
    if statement is None or isinstance(
        statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    ):
        return ()
    strings = [
        child.value
        for child in ast.walk(statement)
        if isinstance(child, ast.Constant) and isinstance(child.value, str)
    ]
    rows = [string.split() for string in strings]
    return tuple(" ".join(row[start : start + 3]) for row in rows for start in range(len(row) - 2))


def _list_targets(node: ast.stmt | None) -> list[str]:
    """Return the names to which a statement assigns."""
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


class Selector:
    """Choose the tests for a mutant.

    Those that are nearest by name come first. Tests that the map excludes are left out.
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
        """Return at most `most` test files for a line of a source, the most promising first, and
        those of `LAWS`.
        """
        site = find_site(self.sources[source], line)
        callers = self.list_callers(source, site)
        scores = {test: self.compute_score(test, source, site, callers) for test in self.tests}
        near = sorted(scores, key=lambda test: (-scores[test], test))
        choices = [(test, self.restrict_tests(test, source, site)) for test in near]
        usable = [item for test, item in choices if item and (scores[test] > 0 or item.tests)]
        laws = [
            item for test, item in choices if item and test in LAWS and item not in usable[:most]
        ]
        return [*usable[:most], *laws]

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

    def compute_score(self, test: str, source: str, site: Site, callers: Sequence[str]) -> float:
        """Return how near a test file is to a line of a source, by the names in it."""
        module = source.removeprefix("plugins/").removesuffix(".py").replace("/", ".")
        package, _, name = module.rpartition(".")
        text = self.tests[test]
        imports = rf"\b{re.escape(module)}\b|from {re.escape(package)} import [^\n]*\b{name}\b"
        score = 2.0 if re.search(imports, text) else 0.0
        for weight, word in zip((3.0, 1.5, 1.5), site.names):
            score += weight * self.compute_weight(word, test)
        score += sum(0.5 * self.compute_weight(caller, test) for caller in callers)
        score += 3.0 * any(phrase in text for phrase in site.phrases)
        words = set(re.split(r"[/_.]", source)) - {"py", "plugins", "learngene", "zoo", "lgzoo"}
        test_words = re.split(r"[/_.]", test)
        return score + sum(
            0.7 for word in words if any(part.startswith(word.rstrip("s")) for part in test_words)
        )

    def compute_weight(self, word: str, test: str) -> float:
        """Return 0 if a test file does not have the word, else more if fewer of them have it."""
        if word not in self.mentions:
            self.mentions[word] = {name for name, words in self.words.items() if word in words}
        having = self.mentions[word]
        return 1 / len(having) ** 0.5 if test in having else 0.0

    def list_callers(self, source: str, site: Site) -> list[str]:
        """Return the names of the functions and classes that use the name of a site."""
        callers: dict[str, None] = {}
        for file in [source, *(other for other in self.sources if other != source)]:
            for names, words in self.list_scopes(file) if site.names else []:
                if site.names[0] in words:
                    callers.update(dict.fromkeys(names))
            if len(callers) > 12:
                break
        return [name for name in callers if name not in site.names][:12]

    def list_scopes(self, source: str) -> list[tuple[tuple[str, ...], set[str]]]:
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

    def restrict_tests(self, test: str, source: str, site: Site) -> Choice | None:
        """Return the tests of a file that run a site; None if the map says that none does."""
        row = self.rows.get(test)
        if (
            row is None
            or row["text"] != compute_digest(self.tests[test])
            or row["code"] not in (0, 5)
        ):
            return Choice(test)
        lines = self.find_measured_lines(row["sources"].get(source), source, site)
        contexts = row["lines"].get(source, {})
        running = {context for context, numbers in contexts.items() if lines.intersection(numbers)}
        running_tests = [
            name
            for name in row["seconds"]
            if name in running
            or any(f"fixture:{fixture}" in running for fixture in row["fixtures"][name])
        ]
        seconds = row["shared"] + sum(row["seconds"][name] for name in running_tests)
        if running_tests or not running:
            return Choice(test, tuple(running_tests), seconds) if running_tests else None
        return Choice(test, (), row["shared"] + sum(row["seconds"].values()))

    def find_measured_lines(self, sha: str | None, source: str, site: Site) -> set[int]:
        """Return the lines that a site had in the text of its source that was measured."""
        if sha is None:
            return set()
        site_lines = site.body if site.runs_at_import else site.lines
        old = (self.folder / "sources" / sha).read_text()
        if compute_digest(self.sources[source]) == sha:
            return set(site_lines)
        blocks = difflib.SequenceMatcher(
            None, old.split("\n"), self.sources[source].split("\n"), autojunk=False
        ).get_matching_blocks()
        return {
            block.a + line - 1 - block.b + 1
            for line in site_lines
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
        """Deselect the other tests."""
        collected = {item.nodeid for item in items}
        complete_files = {
            choice.file
            for choice in self.choices
            if not choice.tests or not collected.issuperset(choice.tests)
        }
        selected = {test for choice in self.choices for test in choice.tests}
        selected |= {name for name in collected if name.split("::")[0] in complete_files}
        items[:] = [item for item in items if item.nodeid in selected.difference(self.without)]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Stop a test that takes too long, as a failed one."""
        signal.signal(signal.SIGPROF, lambda *_: _stop_test(item.nodeid))
        signal.setitimer(signal.ITIMER_PROF, self.limit)
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)


def _stop_test(test: str) -> None:
    """Print that a test failed, and end the process."""
    print(f"\nFAILED {test} - timeout", flush=True)
    os._exit(1)
