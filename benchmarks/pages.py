"""The pages and cards into which programs write their tables."""

from __future__ import annotations

from pathlib import Path

from learngene_zoo.artifacts.card import END

ROOT = Path(__file__).resolve().parent.parent
CARDS, DOCS = ROOT / "cards", ROOT / "docs"


def replace_between(page: Path, name: str, text: str) -> None:
    """Replace the text between `<!-- name -->` and `<!-- /name -->` in a Markdown file. Exits if
    there are no such marks.
    """
    start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, opened, rest = page.read_text(encoding="utf-8").partition(start)
    _, closed, after = rest.partition(end)
    if not (opened and closed):
        raise SystemExit(f"{page} has no {start} ... {end}")
    page.write_text(f"{before}{start}\n{text.strip()}\n{end}{after}", encoding="utf-8")


def show_on_card(folder: Path, name: str, text: str) -> None:
    """Write a table among the notes of a card, after the others unless it is there already."""
    card = folder / "README.md"
    old = card.read_text(encoding="utf-8")
    if f"<!-- {name} -->" not in old:
        card.write_text(
            old.replace(END, f"\n<!-- {name} -->\n<!-- /{name} -->\n\n{END}"), encoding="utf-8"
        )
    replace_between(card, name, text)
