"""The project around the code: the site builds without a broken link, and what is tested is what is
promised.
"""

from __future__ import annotations

import ast
import re
import shutil
import statistics
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from learngene_zoo.method.installed import METHODS

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.skipif(not (ROOT / ".github").is_dir(), reason="not a checkout")


def workflow(name: str) -> dict[str, object]:
    return yaml.safe_load((ROOT / f".github/workflows/{name}.yml").read_text(encoding="utf-8"))


def test_the_pythons_that_are_promised_are_those_that_are_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = [
        words.rpartition(" :: ")[2] for words in project["classifiers"] if "Python :: 3." in words
    ]
    tested = workflow("ci")["jobs"]["fast"]["strategy"]["matrix"]["python"]  # type: ignore[index]
    assert named == tested
    assert project["requires-python"] == f">={named[0]}"


PACKAGE_OF = {
    "PIL": "pillow",
    "open_clip": "open_clip_torch",
    "yaml": "pyyaml",
}  # where a module is called otherwise than its package


def imported_packages() -> dict[str, str]:
    """Return the packages of others that any module imports, each with a module that does."""
    results: dict[str, str] = {}
    files = [
        *(ROOT / "learngene_zoo").rglob("*.py"),
        *(ROOT / "plugins").rglob("*.py"),
        ROOT / "hubconf.py",
    ]
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in {module.partition(".")[0] for module in modules}:
                if name not in sys.stdlib_module_names and not name.startswith(
                    ("learngene_zoo", "lgzoo_")
                ):
                    results[PACKAGE_OF.get(name, name)] = str(file.relative_to(ROOT))
    return results


def test_every_package_that_is_imported_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [project["optional-dependencies"][name] for name in ("formats", "onnx", "ray", "text")]
    lines = [*project["dependencies"], *(line for extra in extras for line in extra)]
    declared = {re.split(r"[^\w.-]", line)[0].replace("-", "_") for line in lines}
    undeclared = {name: file for name, file in imported_packages().items() if name not in declared}
    assert not undeclared
    assert {"numpy", "pillow", "torchvision", "pyarrow", "fsspec"} <= declared


def test_every_dependency_has_a_lower_bound() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert [
        line for line in project["dependencies"] if not re.fullmatch(r"[\w-]+>=[\d.]+", line)
    ] == []


def test_the_release_has_no_token() -> None:
    text = (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")
    assert "secrets." not in text
    assert workflow("release")["jobs"]["publish"]["permissions"] == {"id-token": "write"}  # type: ignore[index]


NAMES = (
    *("tests/exhaustive.md", "README.md", "CHANGELOG.md", "SECURITY.md"),
    *("LICENSE", "CITATION.cff"),
)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What the site is made of, copied."""
    for name in ("docs", "cards", "benchmarks", "tools", "learngene_zoo", "plugins"):
        shutil.copytree(
            ROOT / name,
            tmp_path / name,
            ignore=shutil.ignore_patterns("__pycache__", "*.safetensors"),
        )
    (tmp_path / "tests").mkdir()
    for name in NAMES:
        shutil.copyfile(ROOT / name, tmp_path / name)
    return tmp_path


def build_site(checkout: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, checkout / "docs/site.py", checkout / "site"],
        capture_output=True,
        text=True,
        cwd=checkout,
    )


@pytest.mark.slow
def test_the_site_builds(checkout: Path) -> None:
    result = build_site(checkout)
    assert result.returncode == 0, result.stdout + result.stderr
    reference = (checkout / "site/docs/api/index.html").read_text(encoding="utf-8")
    assert "Condense ancestry models into a learngene" in reference
    assert (checkout / "site/index.html").is_file()


@pytest.mark.exhaustive
def test_a_link_that_leads_nowhere_stops_the_site(checkout: Path) -> None:
    with (checkout / "docs/cli.md").open("a", encoding="utf-8") as file:
        file.write("\nSee [what is not there](nowhere.md).\n")
    result = build_site(checkout)
    assert result.returncode == 1
    assert "nowhere" in result.stdout + result.stderr


@pytest.mark.parametrize(
    "page",
    [page for page in sorted((ROOT / "docs/methods").glob("*.md")) if page.stem != "index"],
    ids=lambda page: page.stem,
)
def test_a_page_of_a_method_is_short_and_has_the_common_headings(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 60
    headings = re.findall(r"^(#+ .*)$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), re.M)
    assert re.fullmatch(r"# \S.*", headings[0])
    names = ("Usage", "Algorithm", "Options", "Limits", "Results")
    assert headings[1:] == [f"## {name}" for name in names]


def test_the_list_of_plugins_is_that_of_the_entry_points(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import plugin_list

    assert plugin_list.PAGE.read_text(encoding="utf-8") == plugin_list.build_page()


def test_the_changelog_has_the_form_of_keep_a_changelog() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    releases = re.findall(r"^## (.*)$", text, re.M)
    assert releases[0] == "[Unreleased]"
    dated = re.compile(r"\[\d+\.\d+\.\d+\] - \d{4}-\d{2}-\d{2}")
    assert all(dated.fullmatch(title) for title in releases[1:])
    order = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
    for release in re.split(r"^## ", text, flags=re.M)[1:]:
        sections = re.findall(r"^### (.*)$", release, re.M)
        assert sections == sorted(set(sections), key=order.index)


def test_the_citation_is_complete() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "abstract", "type", "version", "license"} <= set(
        citation
    )
    source = (ROOT / "learngene_zoo" / "version.py").read_text(encoding="utf-8")
    assert f'"{citation["version"]}"' in source
    assert all(author.get("name") for author in citation["authors"])


def test_the_issue_templates_are_forms() -> None:
    files = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    assert [file.stem for file in files] == ["bug", "config", "feature", "method"]
    for file in files:
        form = yaml.safe_load(file.read_text(encoding="utf-8"))
        if file.stem == "config":
            continue
        assert {"name", "description", "body"} <= set(form)
        fields = [part for part in form["body"] if part["type"] != "markdown"]
        assert len({part["id"] for part in fields}) == len(fields)
        assert all(part["attributes"]["label"] for part in fields)


def test_the_families_of_the_readme_are_those_of_the_methods() -> None:
    rows = re.findall(
        r"^\| \[`(\w+)`\]\(docs/methods.*\| ([\w, ]+) \|$",
        (ROOT / "README.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert len(rows) >= 8
    for name, families in rows:
        assert families == ", ".join(METHODS.load(name).families), name


def list_sentence_lengths(markdown: str) -> list[int]:
    """Return the number of words of each sentence.

    Code, tables, headings and pictures are left out; a command or a link counts as its text.
    """
    text = re.sub(r"```.*?```|<!--.*?-->", "", markdown, flags=re.DOTALL)
    text = re.sub(r"^\s*(\||#|!\[|\[!\[|<).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"^\s*([-*]|\d+\.)\s", "\n\n", text, flags=re.MULTILINE)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`", "code", text))
    sentences = re.split(r"\n\s*\n|(?<=[.!?:])\s+", text)
    lengths = [len(re.findall(r"[\w'-]+", sentence)) for sentence in sentences]
    return [length for length in lengths if length]


def test_words_are_counted_by_sentence() -> None:
    text = "# A title\n\nOne two. Three [four five](x.md) `a b`\nsix?\n\n- seven\n- eight nine\n\n| t |\n"
    assert list_sentence_lengths(text) == [2, 5, 1, 2]


def test_the_readme_is_short_and_has_short_sentences() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 180
    lengths = list_sentence_lengths(text)
    assert len(lengths) >= 30
    assert statistics.median(lengths) <= 14
    assert max(lengths) <= 40
