"""Every shell command and every Python block of README.md and docs/ is run, or its page says why
not; notebooks are run whole.

A page is run from top to bottom in a folder of its own, with some pictures in `photos` (and
`flowers`, `mine`) and a Hub (the stand-in) that has random weights under timm's names. Comments on
the lines before a block, which no reader sees, say what differs from that:

    <!-- not run: REASON -->           the block is not run
    <!-- not run (WORDS): REASON -->   its commands that contain these words are not
    <!-- exhaustive -->                it takes longer than CI may, and is run by `pytest -m
                                       exhaustive`
    <!-- exhaustive (WORDS) -->        so do its commands that contain these words
    <!-- in CI: OLD => NEW -->         what CI runs instead, as a replacement in the text of the
                                       block
    <!-- first: TEXT -->               commands (Python before Python) that come before it; may have
                                       several lines

What stands below `$ COMMAND` must be printed by it, but for the last digits of fractions. Fenced
text in another language (`text`, `json`) is not run. What CI runs instead of parts of a notebook
is in `NOTEBOOKS_IN_CI`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from safetensors.torch import save
from standin import StandIn

from learngene_zoo.cli.main import main

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = [
    Path("README.md"),
    *sorted(page.relative_to(ROOT) for page in (ROOT / "docs").rglob("*.md")),
]
NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))
NOTEBOOKS_IN_CI = {  # replacements in the text of the cells
    "story.ipynb": {
        '"train": 300, "validation": 100, "test": 200': '"train": 60, "validation": 20, "test": 60',
        "candidates=3, tries=1, epochs=3": "candidates=2, tries=1, epochs=1",
    },
    "tour.ipynb": {
        "epochs=4, images=300": "epochs=2, images=100",
        "images=1000, epochs=3": "images=100, epochs=1",
    },
}
BLOCK = re.compile(
    r"(?P<comments>(?:^<!--(?:(?!-->).)*-->\n)*)^```(?P<language>[\w-]*)\n(?P<text>.*?)^```$",
    re.M | re.S,
)
COMMENT = re.compile(
    r"<!-- (not run|exhaustive|in CI|first)(?: \((.*?)\))?(?::\s(.*?))?\s*-->", re.S
)
SHELL, PYTHON = "", "python"
PLAIN = re.compile(r"lgzoo [^|<>$;&`]*")  # a command that needs no shell
FRACTION = re.compile(r"[+-]?\d*\.\d+")


@dataclass(frozen=True)
class Block:
    """A fenced block, and the comments before it as (kind, words, text)."""

    line: int
    language: str
    text: str
    comments: list[tuple[str, str, str]]

    def left_out(self, exhaustive: bool, command: str | None = None) -> bool:
        """Whether the block, or a command of it, is not run."""
        kinds = ("not run",) if exhaustive else ("not run", "exhaustive")
        words = [words for kind, words, _ in self.comments if kind in kinds]
        return "" in words if command is None else any(word in command for word in words)

    def first(self) -> str:
        return "\n".join(text for kind, _, text in self.comments if kind == "first")

    def in_ci(self) -> str:
        text = self.text
        for old, new in (text.split(" => ") for kind, _, text in self.comments if kind == "in CI"):
            assert old in text, f"the block at line {self.line} does not contain {old!r}"
            text = text.replace(old, new)
        return text


def blocks_of(text: str) -> list[Block]:
    """The shell and Python blocks of a page, in order."""
    results = []
    for match in BLOCK.finditer(text):
        comments = COMMENT.findall(match["comments"])
        assert len(comments) == match["comments"].count("<!--"), (
            f"not understood: {match['comments']}"
        )
        if match["language"] in (SHELL, PYTHON):
            line = text.count("\n", 0, match.start("language")) + 1
            results.append(Block(line, match["language"], match["text"], comments))
    return results


def commands_of(text: str) -> Iterator[tuple[str, list[str]]]:
    """The commands of a shell block, each with the lines that it is shown to print."""
    text = text.replace("\\\n", " ")
    if not text.startswith("$ "):
        yield from ((line, []) for line in text.splitlines() if line.strip())
        return
    for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
        command, *output = part.splitlines()
        yield command, [line for line in output if line.strip()]


def is_shown(line: str, printed: str) -> bool:
    """Whether a line is as it is shown, but for spaces and the last digits of fractions."""
    pairs = list(zip(line.split(), printed.split()))
    if len(pairs) != len(line.split()) or len(pairs) != len(printed.split()):
        return False
    return all(
        shown == got
        or (
            FRACTION.fullmatch(shown)
            and FRACTION.fullmatch(got)
            and float(got) == pytest.approx(float(shown), abs=0.05)
        )
        for shown, got in pairs
    )


def check_output(shown: list[str], printed: str) -> None:
    """Every line that is shown is printed, in this order."""
    rest = iter(printed.splitlines())
    for line in shown:
        assert any(is_shown(line, got) for got in rest), f"{line!r} is not printed here:\n{printed}"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty pictures of three classes."""
    root, draw = tmp_path_factory.mktemp("data") / "photos", np.random.default_rng(0)
    for name, colour in {
        "rose": (180, 40, 60),
        "daisy": (220, 220, 200),
        "iris": (80, 60, 190),
    }.items():
        (root / name).mkdir(parents=True)
        for number in range(20):
            pixels = np.clip(np.array(colour) + draw.normal(0, 30, (64, 72, 3)), 0, 255).astype(
                "uint8"
            )
            Image.fromarray(pixels).save(root / name / f"{number}.jpg")
    return root


@pytest.fixture
def folder(tmp_path: Path, photos: Path, hub: StandIn, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a page is run."""
    page_folder, programs = tmp_path / "page", tmp_path / "bin"
    page_folder.mkdir()
    programs.mkdir()
    for name in ("photos", "flowers", "mine"):
        (page_folder / name).symlink_to(photos)
    for name, words in {"lgzoo": "-m learngene_zoo", "python": "", "pytest": "-m pytest"}.items():
        (programs / name).write_text(
            f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words} "$@"\n'
        )
        (programs / name).chmod(0o755)
    environment = {
        **hub.environment(tmp_path),
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(
            [str(ROOT), str(ROOT / "plugins"), os.environ.get("PYTHONPATH", "")]
        ),
        "CHECKOUT": str(ROOT),
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(page_folder)
    monkeypatch.setattr(
        torch.hub, "_get_cache_or_reload", lambda *_, **__: str(ROOT)
    )  # no repository of GitHub's
    return page_folder


def offer(hub: StandIn, names: set[str]) -> None:
    """Put random weights of timm's models onto the Hub."""
    import timm

    for name in names:
        torch.manual_seed(0)
        model = timm.create_model(name)
        card = b"---\nlicense: apache-2.0\n---\n"
        hub.put(
            model.pretrained_cfg["hf_hub_id"],
            {"model.safetensors": save(model.state_dict()), "README.md": card},
        )


def run_shell(text: str, block: Block, exhaustive: bool) -> None:
    for command, output in commands_of(text):
        if block.left_out(exhaustive, command):
            continue
        if PLAIN.fullmatch(command.partition(" #")[0]):
            result = CliRunner().invoke(main, shlex.split(command, comments=True)[1:])
            code, printed = result.exit_code, result.output
        else:
            ran = subprocess.run(
                ["bash", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            code, printed = ran.returncode, ran.stdout
        assert code == 0, f"line {block.line}: {command}\n{printed}"
        check_output(output, printed)


def run_page(name: Path, hub: StandIn, exhaustive: bool) -> None:
    text, names = (ROOT / name).read_text(encoding="utf-8"), dict[str, Any](__name__="__main__")
    blocks = [block for block in blocks_of(text) if not block.left_out(exhaustive)]
    contents = [block.text if exhaustive else block.in_ci() for block in blocks]
    lines = [
        line
        for content in contents
        for line, _ in commands_of(content)
        if not line.startswith("lgzoo plan")
    ]
    offer(hub, set(re.findall(r"timm:(\w+)", "\n".join(lines))))
    for block, content in zip(blocks, contents):
        if block.language == SHELL:
            run_shell(block.first(), block, exhaustive=True)
            run_shell(content, block, exhaustive)
        else:
            exec(compile(block.first(), f"before line {block.line} of {name}", "exec"), names)
            exec(
                compile("\n" * block.line + content, str(name), "exec"), names
            )  # an error names the line of the page


def pages(kinds: set[str]) -> list[Path]:
    """The pages that have blocks with a comment of these kinds, or any block."""
    results = {page: blocks_of((ROOT / page).read_text(encoding="utf-8")) for page in PAGES}
    if kinds:
        return [
            page
            for page, bs in results.items()
            if any(kind in kinds for b in bs for kind, _, _ in b.comments)
        ]
    return [page for page, bs in results.items() if any(not block.left_out(False) for block in bs)]


METHODS_IN_CI = (
    "lsamd",
    "pool",
    "snnet",
    "tal",
)  # the pages of the others, and of their results, take half a minute to minutes
LONG_PAGES = ("export", "streaming")


def as_parameter(page: Path) -> Any:
    """A page as a parameter; the long ones, most methods' among them, are run by hand."""
    is_long = page.stem in LONG_PAGES or (
        page.parent.name in ("methods", "results") and page.stem not in METHODS_IN_CI
    )
    return pytest.param(page, marks=pytest.mark.exhaustive if is_long else [])


@pytest.mark.slow
@pytest.mark.parametrize("page", [as_parameter(page) for page in pages(set())], ids=str)
def test_what_a_page_says_can_be_done(page: Path, hub: StandIn, folder: Path) -> None:
    run_page(page, hub, exhaustive=False)


def run_notebook(page: Path, replacements: dict[str, str]) -> None:
    notebook, used = json.loads(page.read_text(encoding="utf-8")), set[str]()
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert set(notebook) == {"cells", "metadata", "nbformat", "nbformat_minor"}
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    names = dict[str, Any](__name__="__main__")
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            assert set(cell) == {"cell_type", "id", "metadata", "source"}
            continue
        assert set(cell) == {"cell_type", "id", "metadata", "source", "execution_count", "outputs"}
        assert (cell["cell_type"], cell["outputs"], cell["execution_count"]) == (
            "code",
            [],
            None,
        )  # no run is committed
        for old, new in replacements.items():
            used |= {old} if old in text else set()
            text = text.replace(old, new)
        exec(compile(text, f"{page.name}, {cell['id']}", "exec"), names)
    assert used == set(replacements), f"{page.name} does not contain all that CI replaces"


@pytest.mark.slow
@pytest.mark.parametrize("page", NOTEBOOKS, ids=lambda page: page.name)
def test_a_notebook_runs_from_start_to_end(page: Path, folder: Path) -> None:
    run_notebook(page, NOTEBOOKS_IN_CI[page.name])


@pytest.mark.exhaustive
@pytest.mark.parametrize("page", NOTEBOOKS, ids=lambda page: page.name)
def test_a_notebook_runs_as_it_is(page: Path, folder: Path) -> None:
    run_notebook(page, {})


@pytest.mark.exhaustive
@pytest.mark.parametrize("page", pages({"exhaustive", "in CI"}), ids=str)
def test_what_a_page_says_can_be_done_as_it_says_it(page: Path, hub: StandIn, folder: Path) -> None:
    run_page(page, hub, exhaustive=True)
