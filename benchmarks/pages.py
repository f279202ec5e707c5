"""The pages into which benchmarks write their tables."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"


def replace_between(page: Path, name: str, text: str) -> None:
    """Replace what stands between `<!-- name -->` and `<!-- /name -->` in a Markdown file. Exits if
    there are no such marks.
    """
    start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, opened, rest = page.read_text(encoding="utf-8").partition(start)
    _, closed, after = rest.partition(end)
    if not (opened and closed):
        raise SystemExit(f"{page} has no {start} ... {end}")
    page.write_text(f"{before}{start}\n{text.strip()}\n{end}{after}", encoding="utf-8")
