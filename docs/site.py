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
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    "README.md",
    "CHANGELOG.md",
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
    "cards/*/config.json",
)

CONFIG = """
[project]
site_name = "learngene_zoo"
site_description = "Vision Transformers of any size from one pretrained ancestry model"
docs_dir = "pages"
site_dir = "site"
use_directory_urls = true
nav = [
  {{ "Overview" = "README.md" }},
  {{ "Using it" = ["docs/concepts.md", "docs/cli.md", "docs/ancestries.md", "docs/tasks.md", "docs/shrink.md", "docs/training.md", "docs/heal.md", "docs/export.md", "docs/formats.md", "docs/hub.md", "docs/artifact.md", "docs/json.md", "docs/streaming.md", "docs/security.md"] }},
  {{ "Methods" = [{methods}] }},
  {{ "Evidence" = ["docs/bench.md", "docs/claims.md", "docs/catalogues.md", "docs/real.md", "tests/exhaustive.md"] }},
  {{ "Extending it" = ["docs/plugins.md", "docs/contributing.md", "docs/api/index.md", "docs/api/plugin.md"] }},
  {{ "Shelf" = [{cards}] }},
  {{ "Changes" = "CHANGELOG.md" }},
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
    def quoted(start: str) -> str:
        return ", ".join(
            f'"{name}"' for name in copied if name.startswith(start) and name.endswith(".md")
        )

    text = CONFIG.format(root=ROOT, methods=quoted("docs/methods/"), cards=quoted("cards/"))
    (folder / "zensical.toml").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
