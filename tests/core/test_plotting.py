"""Properties of all plots."""

from __future__ import annotations

from pathlib import Path

import pytest

from learngene_zoo import plotting
from learngene_zoo.errors import WrongCall


def test_series_differ_in_colour_or_marker() -> None:
    looks = [tuple(plotting.mark(number).values()) for number in range(24)]
    assert len(set(looks)) == 24


def test_tints_lie_between_white_and_the_colour() -> None:
    assert (plotting.tint("#0072b2", 1), plotting.tint("#0072b2", 0)) == ("#0072b2", "#ffffff")
    assert plotting.tint("#000000", 0.5) == "#808080"


def test_long_names_keep_their_beginning_and_end() -> None:
    assert plotting.shorten_label("glyphs") == "glyphs"
    assert plotting.shorten_label("folder:/home/somebody/birds") == "folder…y/birds"
    assert len(plotting.shorten_label("x" * 99)) == 14
    assert plotting.shorten_label("two\nlines") == "two lines"


def test_axes_stand_where_their_inches_say() -> None:
    figure = plotting.new_figure(10, 5)
    axes = plotting.add_axes(figure, 1, 2, 4, 2.5)
    assert axes.get_position().bounds == pytest.approx((0.1, 0.4, 0.4, 0.5))


def test_a_heading_is_not_parsed_as_a_formula() -> None:
    figure = plotting.new_figure(4, 2)
    plotting.draw_heading(figure, 0.2, "$\\frac$", "$b")
    figure.draw_without_rendering()
    assert [text.get_text() for text in figure.texts] == ["$\\frac$", "$b"]


@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG"), (".SVG", b"<?xml")])
def test_the_suffix_decides_and_the_file_is_reproducible(
    tmp_path: Path, suffix: str, magic: bytes
) -> None:
    files = [tmp_path / f"{name}{suffix}" for name in ("one", "two")]
    for file in files:
        with plotting.style():
            figure, (panel,) = plotting.subplots(1, 1, (2, 2))
            panel.plot([0, 1], [0, 1], label="line", **plotting.mark(0))
            plotting.draw_legend(figure, [panel], 2)
        plotting.save(plotting.settle(figure), file)
    assert files[0].read_bytes().startswith(magic)
    assert files[0].read_bytes() == files[1].read_bytes()


def test_other_formats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongCall, match=r"ends in \.png or \.svg, got curve\.pdf"):
        plotting.save(plotting.new_figure(1, 1), tmp_path / "curve.pdf")
    assert not list(tmp_path.iterdir())


def test_the_style_ends_with_its_block() -> None:
    import matplotlib

    before = matplotlib.rcParams["axes.edgecolor"]
    with plotting.style():
        assert matplotlib.rcParams["axes.edgecolor"] == plotting.QUIET
    assert matplotlib.rcParams["axes.edgecolor"] == before
