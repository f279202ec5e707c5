"""The plot of an LSAMD search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.learngene import Learngene
from learngene_zoo.artifacts.records import LearngeneConfig
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.method.contract import Expander
from learngene_zoo.method.installed import METHODS
from lgzoo_lsamd import plot
from lgzoo_lsamd.plot import BASE, SPECIFIC

LAYERS = 4
PATHS = {"objects": [1, 0, 1, 1], "signs": [1, 0, 0, 1], "glyphs": [0, 0, 1, 1]}


def learngene(**changes: object) -> Learngene:
    datasets = {
        name: {
            "paths": path,
            "shares": [0.75 if base else 0.25 for base in path],
            "validation_accuracy": 0.5,
        }
        for name, path in PATHS.items()
    }
    details = {
        "kept": [1, 3, 4],
        "usage": [2, 0, 2, 3],
        "threshold": 1.5,
        "datasets": datasets,
        **changes,
    }
    return Learngene(
        config=LearngeneConfig(
            method="lsamd", spec=ViTSpec(layers=LAYERS, width=32, heads=2), details=details
        ),
        state={},
    )


def picture(gene: Learngene, expander: Expander | None = None) -> Any:
    """Draw the figure, with the method's expander if none is given."""
    return plot.draw_picture(gene, expander or METHODS.load(gene.config.method).expander)


def words(figure: object) -> list[str]:
    from matplotlib.text import Text

    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def test_every_data_set_and_layer_has_its_cell() -> None:
    from matplotlib.colors import to_hex

    figure = picture(learngene())
    cells = {
        (round(patch.get_y() + 0.41), round(patch.get_x() + 0.43)): to_hex(patch.get_facecolor())
        for patch in figure.axes[0].patches
    }
    expected = {
        (row, layer): BASE if base else SPECIFIC
        for row, path in enumerate(PATHS.values())
        for layer, base in enumerate(path, start=1)
    }
    assert cells == expected


def test_usage_threshold_and_names_are_shown() -> None:
    figure = picture(learngene())
    assert [bar.get_height() for bar in figure.axes[1].patches] == [2, 0, 2, 3]
    said = words(figure)
    assert {*PATHS, "τ = 1.5", "50.0 %"} <= set(said)
    assert "LSAMD keeps 3 of 4 blocks (1, 3, 4), found on 3 data sets" in said


def test_a_learngene_without_a_search_shows_what_is_kept() -> None:
    assert "LSAMD keeps 2 of 4 blocks (1, 3), named with --keep" in words(
        picture(learngene(kept=[1, 3], datasets={}))
    )


@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_the_suffix_decides_and_the_file_is_reproducible(
    tmp_path: Path, suffix: str, magic: bytes
) -> None:
    first, second = tmp_path / f"one{suffix}", tmp_path / f"two{suffix}"
    lifecycle.plot(learngene(), first)
    lifecycle.plot(learngene(), second)
    assert first.read_bytes().startswith(magic)
    assert first.read_bytes() == second.read_bytes()


def test_what_cannot_be_drawn(tmp_path: Path) -> None:
    with pytest.raises(WrongCall, match=r"png or \.svg"):
        lifecycle.plot(learngene(), tmp_path / "paths.pdf")
    short = {"paths": [1, 0], "shares": [1.0, 0.0], "validation_accuracy": 0.5}
    for record, says in (
        (None, "objects"),
        ({}, "objects.*'paths' is missing"),
        (short, "no path over 4 layers for objects"),
    ):
        with pytest.raises(BadFile, match=says):
            lifecycle.plot(learngene(datasets={"objects": record}), tmp_path / "paths.png")
    assert not list(tmp_path.iterdir())
