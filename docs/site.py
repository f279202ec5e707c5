"""Build the site of the documentation, with every link checked: `python docs/site.py [FOLDER]`
(default: site).

The pages keep their places relative to each other, so a link that works in the repository works on
the site: README.md is the front page, and cards, benchmarks and their results are there because
pages link to them. The reference is made of docstrings (mkdocstrings). A link to a page, a file or
a heading that does not exist ends with exit code 1. Needs `learngene-zoo[docs]`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    "README.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "docs/**/*.md",
    "docs/images/*",
    "cards/*/README.md",
    "tests/exhaustive.md",
    "benchmarks/archive/LOG.md",
)
LINKED = (
    "LICENSE",
    "CITATION.cff",
    "docs/*.ipynb",
    "benchmarks/**/*.py",
    "benchmarks/claims/*.toml",
    "benchmarks/results/**/*",
    "tools/*.py",
    "learngene_zoo/**/*.py",
    "cards/*/config.json",
)

# The sections of the navigation: names below docs/ without the ending, and patterns of paths.
NAVIGATION = {
    "Tutorials": ("first_model", "demo", "own_plugin", "hub", "text"),
    "How-to": (
        *("shrink", "prune", "heal", "training", "export", "bench", "streaming", "formats"),
        *("torch_hub", "resume", "gpus", "offline", "faq"),
    ),
    "Reference": (
        *("concepts", "cli", "json", "api/index", "api/plugin", "artifact", "tasks"),
        *("catalogues", "ancestries", "security", "methods/index", "methods/*"),
    ),
    "Results": (
        *("real", "inheritance", "claims", "results/speed", "results/*"),
        "../tests/exhaustive",
    ),
    "Develop": ("plugins", "plugin_list", "contributing"),
    "Shelf": ("../cards/*/README",),
}

CONFIG = """
[project]
site_name = "learngene_zoo"
site_description = "Vision Transformers of any size from one pretrained ancestry model"
docs_dir = "pages"
site_dir = "site"
use_directory_urls = true
nav = [
{nav}
]

[project.theme]
features = ["navigation.sections", "content.code.copy"]

[project.plugins.mkdocstrings.handlers.python]
paths = ["{root}", "{root}/plugins"]

[project.plugins.mkdocstrings.handlers.python.options]
docstring_style = "sphinx"
show_source = false
show_if_no_docstring = false
heading_level = 3
separate_signature = true
show_signature_annotations = true
line_length = 80
"""


def main() -> None:
    """Copy the pages, write the configuration, build."""
    place = Path(sys.argv[1] if len(sys.argv) > 1 else "site").resolve()
    with tempfile.TemporaryDirectory() as folder:
        copied = _copied(Path(folder) / "pages")
        _configured(Path(folder), copied)
        done = subprocess.run([sys.executable, "-m", "zensical", "build", "--strict"], cwd=folder)
        if done.returncode:
            sys.exit("a page has a link that leads nowhere")
        shutil.copytree(Path(folder) / "site", place, dirs_exist_ok=True)
    print(place)


def _copied(pages: Path) -> list[str]:
    """The paths of the pages, relative to the repository."""
    found = []
    for pattern in (*PAGES, *LINKED):
        for file in sorted(filter(Path.is_file, ROOT.glob(pattern))):
            name = file.relative_to(ROOT)
            (pages / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, pages / name)
            found.append(str(name))
    return found


def _configured(folder: Path, copied: list[str]) -> None:
    nav = ['  {"Overview" = "README.md"},']
    for section, names in NAVIGATION.items():
        pages = ", ".join(f'"{page}"' for page in _pages(names, copied))
        nav.append(f'  {{"{section}" = [{pages}]}},')
    nav.append('  {"Changes" = "CHANGELOG.md"},')
    text = CONFIG.format(root=ROOT, nav="\n".join(nav))
    (folder / "zensical.toml").write_text(text, encoding="utf-8")


def _pages(names: tuple[str, ...], copied: list[str]) -> list[str]:
    """The copied pages that match the names, each once, in the order of the names."""
    pages: dict[str, None] = {}
    for name in names:
        pattern = f"{name.removeprefix('../')}.md" if name.startswith("../") else f"docs/{name}.md"
        pages |= dict.fromkeys(page for page in copied if fnmatch(page, pattern))
    return list(pages)


if __name__ == "__main__":
    main()
