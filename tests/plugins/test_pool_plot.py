"""The picture of a pool: the path that stands out, and the points of all paths."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.learngene import Learngene
from learngene_zoo.artifacts.records import LearngeneConfig, TaskRecord
from learngene_zoo.cli.main import main
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.method.contract import Expander
from learngene_zoo.method.installed import METHODS
from learngene_zoo.plotting import tint
from lgzoo_pool import plot
from lgzoo_pool.details import StitchedDetails
from lgzoo_pool.plot_grid import ANCHORS, HIGHLIGHT, pick_colour
from lgzoo_pool.pool import POOL, PoolExpander
from lgzoo_pool.snnet import SNNET

SIZES = [(16, 1), (64, 4), (128, 8)]


def learngene(depths: Sequence[int] = (3, 3), method: str = "pool", **metrics: Any) -> Learngene:
    shapes = zip(depths, SIZES)
    specs = [
        ViTSpec(layers=layers, width=width, heads=heads, classes=4)
        for layers, (width, heads) in shapes
    ]
    config = LearngeneConfig(method=method, spec=specs[-1], metrics=metrics)
    return Learngene(config=config.with_details(StitchedDetails.from_specs(specs)), state={})


def make_metrics(images: Any = 50, **changes: Any) -> dict[str, Any]:
    """Metrics of the nine paths of a pool of three blocks: the more FLOPs the better."""
    rows = [
        {**item.settings, "accuracy": 0.5, "images": images}
        for item in POOL.expander.family(learngene().config)
    ]
    for row in rows:
        row["accuracy"] += 0.02 * row["low"] + 0.1 * row["high"]
    return {"paths": [*rows[:-1], {**rows[-1], **changes}]}


def picture(gene: Learngene, expander: Expander | None = None) -> Any:
    """The figure, with the method's own expander if none is given."""
    return plot.draw_picture(gene, expander or METHODS.load(gene.config.method).expander)


def words(figure: Any) -> str:
    from matplotlib.text import Text

    return " | ".join(text.get_text() for text in figure.findobj(Text) if text.get_text())


def list_filled(figure: Any, row: int) -> list[bool]:
    """For every block of a row whether it stands out."""
    from matplotlib.colors import to_hex

    colours = {pick_colour(row): True, tint(pick_colour(row)): False}
    patches = [
        patch for patch in figure.axes[0].patches if to_hex(patch.get_facecolor()) in colours
    ]
    return [
        colours[to_hex(patch.get_facecolor())]
        for patch in sorted(patches, key=lambda patch: patch.get_x())
    ]


def bold(figure: Any) -> list[list[float]]:
    """Where the stitches of the path begin and end."""
    return [
        list(line.get_xdata())
        for line in figure.axes[0].lines
        if (line.get_color(), line.get_linewidth()) == (HIGHLIGHT, 4)
    ]


def points(figure: Any) -> list[tuple[float, float]]:
    marked = [line for line in figure.axes[1].lines if line.get_marker() in ("o", "D")]
    return [(line.get_xdata()[0], line.get_ydata()[0]) for line in marked]


def test_the_path_of_the_settings_is_highlighted() -> None:
    figure = picture(learngene(), PoolExpander(low=2, high=1))
    assert (list_filled(figure, 0), list_filled(figure, 1)) == (
        [True, True, False],
        [False, False, True],
    )
    assert bold(figure) == [[1, 2]]
    one = picture(learngene(), PoolExpander(low=3, high=0))
    assert (list_filled(one, 0), list_filled(one, 1), bold(one)) == ([True] * 3, [False] * 3, [])


def test_blocks_are_as_high_as_they_are_wide() -> None:
    figure = picture(learngene((3, 3, 3), "snnet"))
    heights = {
        round(patch.get_height(), 6)
        for patch in figure.axes[0].patches
        if patch.get_width() == 0.72
    }
    assert sorted(heights) == [0.15, 0.31, 0.62]  # the narrowest would be too low for its number


def test_without_settings_it_is_a_path_of_the_middle() -> None:
    assert "low 2, high 2" in words(picture(learngene((4, 4))))
    figure = picture(learngene((4, 4, 4), "snnet"))
    assert [list_filled(figure, row) for row in range(3)] == [
        [False] * 4,
        [True, True, False, False],
        [False, False, True, True],
    ]


def test_all_pairs_are_drawn_and_those_of_the_same_layer_told_apart() -> None:
    figure = picture(learngene((4, 4)), PoolExpander(low=2, high=2))
    slanted = [line for line in figure.axes[0].lines if line.get_ydata()[0] != line.get_ydata()[1]]
    assert len(slanted) == 3 * 4 - 2
    # The pair (1, 2) came with the window of the blocks 1 and 2, as did (2, 1) and (2, 2).
    shared = {tuple(line.get_xdata()) for line in slanted if line.get_color() == HIGHLIGHT}
    assert shared == {(1, 2), (2, 1), (2, 2)}


def test_the_task_that_paths_were_measured_on_is_named() -> None:
    record = TaskRecord(name="forms", source="drawn", kind="classification", classes=1286, images=9)
    figure = picture(
        learngene(**make_metrics()).with_config(tasks=(record,)), PoolExpander(low=2, high=1)
    )
    assert "accuracy in % on 50 validation images of forms (1,286 classes)" in words(figure)


def test_points_are_what_was_measured_of_each_path() -> None:
    figure = picture(learngene(**make_metrics()), PoolExpander(low=2, high=1))
    members = list(POOL.expander.family(learngene().config))
    expected = [
        (member.cost().flops / 1e6, 50 + 2 * member.settings["low"] + 10 * member.settings["high"])
        for member in members
    ]
    result = points(figure)
    assert result[:-1] == [pytest.approx(point) for point in expected]
    assert (
        result[-1] == expected[[member.settings for member in members].index({"low": 2, "high": 1})]
    )
    assert {"accuracy in % on 50 validation images", "FLOPs of one image, M"} <= set(
        words(figure).split(" | ")
    )
    for text in (
        "6 blocks, 2 stitches, 9 paths",
        "low 2, high 1",
        "64.0 % accuracy",
        "best so far",
    ):
        assert text in words(figure)


def test_without_accuracies_parameters_are_drawn() -> None:
    figure = picture(learngene())
    expected = [
        (item.cost().flops / 1e6, item.cost().params / 1e6)
        for item in POOL.expander.family(learngene().config)
    ]
    assert points(figure)[:-1] == [pytest.approx(point) for point in expected]
    assert "no accuracies are recorded" in words(figure)
    assert "best so far" not in words(figure)


@pytest.mark.parametrize("depths", [(3, 3), (12, 12, 12), (24, 24)])
def test_every_word_lies_on_the_figure(depths: tuple[int, ...]) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = picture(
        learngene(depths, "snnet") if depths != (3, 3) else learngene(**make_metrics())
    )
    FigureCanvasAgg(figure).draw()
    texts = [
        *figure.texts,
        *figure.axes[0].get_yticklabels(),
        *(text for legend in figure.legends for text in legend.get_texts()),
    ]
    boxes = [text.get_window_extent() for text in texts]
    assert min(min(box.x0, box.y0) for box in boxes) >= 0
    assert max(box.x1 for box in boxes) <= figure.bbox.x1
    assert max(box.y1 for box in boxes) <= figure.bbox.y1


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_file_is_reproducible(tmp_path: Path, suffix: str) -> None:
    first, second = tmp_path / f"one.{suffix}", tmp_path / f"two.{suffix}"
    lifecycle.plot(learngene(**make_metrics()), first)
    lifecycle.plot(learngene(**make_metrics()), second)
    assert first.read_bytes().startswith({"png": b"\x89PNG", "svg": b"<?xml"}[suffix])
    assert first.read_bytes() == second.read_bytes()


def test_a_path_outside_the_pool_is_not_drawn(tmp_path: Path) -> None:
    with pytest.raises(WrongCall, match="no path with low 1 and high 1"):
        lifecycle.plot(learngene(), tmp_path / "pool.png", expander=PoolExpander(low=1, high=1))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ({"paths": {}}, "a row for each of the 9 paths"),
        ({"paths": make_metrics()["paths"][1:]}, "a row for each of the 9 paths"),
        ({"paths": [1] * 9}, "a row for each of the 9 paths"),
        (make_metrics(accuracy=None), "expected a number from 0 to 1 as accuracy, got None"),
        (make_metrics(accuracy=True), "as accuracy, got True"),
        (make_metrics(accuracy=float("nan")), "as accuracy, got nan"),
        (make_metrics(images=0), "the same number of images"),
        (make_metrics(images="5"), "the same number of images"),
        (make_metrics(images=[5]), "the same number of images"),
    ],
)
def test_metrics_that_are_wrong(metrics: dict[str, Any], said: str) -> None:
    with pytest.raises(BadFile, match=said):
        picture(learngene(**metrics))


def test_the_command_takes_the_expanders_options(tmp_path: Path) -> None:
    folder, out = tmp_path / "pool", tmp_path / "pool.svg"
    learngene(**make_metrics()).save(folder)
    result = CliRunner().invoke(
        main, ["plot", "--low", "1", str(folder), "--high", "2", "-o", str(out)]
    )
    assert (result.exit_code, result.stdout) == (0, f"{out}\n"), result.stderr
    assert out.read_bytes().startswith(b"<?xml")
    wrong = CliRunner().invoke(
        main, ["plot", str(folder), "--low", "9", "-o", str(tmp_path / "no.png")]
    )
    assert wrong.exit_code == 2
    assert "no path with low 9" in wrong.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pool", "pool.svg"]
    assert "--high INTEGER" in CliRunner().invoke(main, ["plot", str(folder), "--help"]).stdout


def test_show_tells_how_good_each_path_is(tmp_path: Path) -> None:
    learngene(**make_metrics()).save(tmp_path / "pool")
    result = CliRunner().invoke(main, ["show", str(tmp_path / "pool"), "--json"])
    rows = json.loads(result.stdout)
    rows_shown = {(row["low"], row["high"]): (row["accuracy"], row["images"]) for row in rows}
    assert rows_shown == {
        (row["low"], row["high"]): (row["accuracy"], 50) for row in make_metrics()["paths"]
    }


def test_both_methods_draw_with_it_and_colours_differ() -> None:
    assert POOL.plot == SNNET.plot == "lgzoo_pool.plot:draw_picture"
    assert len({*ANCHORS, HIGHLIGHT}) == len(ANCHORS) + 1
