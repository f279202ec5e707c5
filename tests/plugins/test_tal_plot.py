"""The picture of a hypernetwork: its points, the similarities, and refusals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from learngene_zoo import lifecycle, plotting
from learngene_zoo.artifacts.learngene import Learngene
from learngene_zoo.artifacts.records import LearngeneConfig, TaskRecord
from learngene_zoo.cli.main import main
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families.family import count_params
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.method.contract import Expander
from learngene_zoo.method.installed import METHODS, parse_details
from learngene_zoo.seeds import derive_seed
from lgzoo_tal import plot
from lgzoo_tal.ghn3 import GHN3
from lgzoo_tal.hypernet_spec import TASKS as STORED
from lgzoo_tal.hypernet_spec import HypernetDetails, HypernetSpec, get_prefix, to_learngene_name
from lgzoo_tal.logah import LOGAH
from lgzoo_tal.modules.graph import build_graph
from lgzoo_tal.modules.hypernet import Hypernet
from lgzoo_tal.pith import PITH
from lgzoo_tal.plot import (
    MAX_SIZES,
    NAMES,
    compute_cosines,
    compute_graph_embeddings,
    compute_principal_plane,
    order_by_similarity,
    select_sizes,
    thin_out,
)
from lgzoo_tal.plot_panels import Cloud, format_cosine, spread_heights
from lgzoo_tal.tal import TAL

WIDTH = 16
mark = plotting.mark
NET = HypernetSpec(hidden=8, layers=1, heads=2, decoder="low_rank", rank=2, widest=32, chunk=64)


def draw_tensor(name: str, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(derive_seed(7, name))
    return torch.randn(shape, generator=generator)


def build_tensors(net: HypernetSpec, seed: int) -> dict[str, torch.Tensor]:
    """Return a hypernetwork's tensors, its task layers as if they were trained."""
    state = Hypernet(net, seed).state_dict()
    return {
        name: draw_tensor(name, *tensor.shape) if ".TEN." in name else tensor
        for name, tensor in state.items()
    }


def build_learngene(
    tasks: Sequence[str] = ("a", "b"),
    *,
    conditioned: bool = True,
    apart: bool = False,
    method: str = "tal",
    **changes: Any,
) -> Learngene:
    """Build a learngene of six sizes, 3 or 4 layers and three widths."""
    net = NET.with_(task=WIDTH) if conditioned else NET
    state = {f"{STORED}{task}": draw_tensor(task, WIDTH) for task in tasks if conditioned}
    for seed, owner in enumerate(tasks if apart else (None,)):
        state |= {
            f"{get_prefix(owner)}{to_learngene_name(name)}": tensor
            for name, tensor in build_tensors(net, seed).items()
        }
    records = [
        TaskRecord(name=task, source="toy", classes=10 * at)
        for at, task in enumerate(tasks, start=1)
    ]
    details = HypernetDetails(
        hypernet=net,
        layers=(3, 4),
        tasks=tuple(tasks[0 if apart else 1 :]),
        apart=apart,
        embedded=tuple(tasks) if conditioned else (),
        source=records[0] if records and not apart else None,
    )
    spec = ViTSpec(layers=4, width=WIDTH * 3, heads=3, classes=7, image_size=16, patch_size=8)
    config = LearngeneConfig(method=method, spec=spec, tasks=tuple(records[1:]))
    config = config.with_details(details)
    config = replace(config, details={**config.details, **changes})
    return Learngene(config=config, state=state)


def draw_figure(gene: Learngene, expander: Expander | None = None) -> Any:
    """Draw the figure, with the method's own expander if none is given."""
    return plot.draw_picture(gene, expander or METHODS.load(gene.config.method).expander)


def compute_clouds(gene: Learngene, specs: Sequence[ViTSpec]) -> list[Cloud]:
    return compute_graph_embeddings(gene, parse_details(gene.config, HypernetDetails), specs)


def list_words(figure: Any) -> list[str]:
    from matplotlib.text import Text

    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def list_points(axes: Any, task: int | None = None) -> list[tuple[float, float, float]]:
    """Return position and diameter of every point of the map, of one task or of all."""
    marked = [
        line
        for line in axes.lines
        if line.get_marker() != "None" and line.get_transform() == axes.transData
    ]
    chosen = [line for line in marked if task is None or line.get_color() == mark(task)["color"]]
    return [(line.get_xdata()[0], line.get_ydata()[0], line.get_markersize()) for line in chosen]


def read_matrix(figure: Any) -> list[list[str]]:
    """Return the numbers of the similarities, row by row."""
    texts = [text for text in figure.axes[1].texts if text.get_text().lstrip("-")[:1] in ("0", "1")]
    side = round(len(texts) ** 0.5)
    return [
        [text.get_text() for text in texts[row * side : (row + 1) * side]] for row in range(side)
    ]


def test_a_point_is_the_mean_of_what_the_encoder_makes_of_a_models_nodes() -> None:
    gene = build_learngene()
    spec = ViTSpec(layers=3, width=32, heads=2, classes=7, image_size=16, patch_size=8)
    graph_clouds = compute_clouds(gene, [spec])
    net = Hypernet(NET.with_(task=WIDTH), 0)
    net.load_state_dict(build_tensors(NET.with_(task=WIDTH), 0))
    for cloud, (task, classes) in zip(graph_clouds, {"a": 10, "b": 20}.items(), strict=True):
        with torch.no_grad():
            nodes = net.encode(build_graph(spec.with_(classes=classes)), draw_tensor(task, WIDTH))
        assert (cloud.task, cloud.specs[0].classes) == (task, classes)
        np.testing.assert_allclose(
            cloud.points, nodes.double().mean(dim=0, keepdim=True), rtol=1e-12
        )


def test_the_map_has_a_point_for_every_size_and_task_as_large_as_the_model() -> None:
    gene = build_learngene()
    figure, specs = draw_figure(gene), select_sizes(gene, TAL.expander)
    assert len(specs) == 6
    rows = np.concatenate([cloud.points for cloud in compute_clouds(gene, specs)])
    plane, shares = compute_principal_plane(rows)
    for task, classes in enumerate((10, 20)):
        drawn_points = sorted(list_points(figure.axes[0], task))
        areas = [count_params(spec.with_(classes=classes)) for spec in specs]
        np.testing.assert_allclose(
            [point[:2] for point in drawn_points],
            sorted(map(tuple, plane[6 * task : 6 * task + 6].tolist())),
        )
        largest = max(count_params(spec.with_(classes=20)) for spec in specs)
        expected = sorted(max(15 * (area / largest) ** 0.5, 3) for area in areas)
        assert sorted(point[2] for point in drawn_points) == pytest.approx(expected)
    assert f"first component, {100 * shares[0]:.0f} % of the variance" in list_words(figure)
    assert "TAL: 6 sizes for each of 2 tasks" in list_words(figure)


def test_the_similarities_stand_in_the_matrix() -> None:
    gene = build_learngene(("a", "b", "c"))
    rows = torch.stack([draw_tensor(task, WIDTH) for task in "abc"]).numpy()
    similar = np.corrcoef(rows) * 0 + [
        [u @ v / np.linalg.norm(u) / np.linalg.norm(v) for v in rows] for u in rows
    ]
    order = order_by_similarity(similar)
    expected = [
        ["1" if row == column else f"{similar[row, column]:.2f}" for column in order]
        for row in order
    ]
    assert read_matrix(draw_figure(gene)) == expected


def test_without_a_task_layer_the_map_stands_alone_and_is_coloured_by_layers() -> None:
    from matplotlib.colors import to_hex

    figure = draw_figure(build_learngene(conditioned=False, method="logah"))
    assert len(figure.axes) == 1
    figure_words = list_words(figure)
    assert {"LoGAH: 6 sizes", "layers", "3", "4", "width 16", "width 48"} <= set(figure_words)
    colours = {
        to_hex(line.get_color()) for line in figure.axes[0].lines if line.get_marker() != "None"
    }
    assert len(colours) == 2
    assert not {"a", "b"} & set(figure_words)


def test_one_task_alone_is_named_and_needs_no_similarities() -> None:
    figure = draw_figure(build_learngene(("signs",)))
    assert len(figure.axes) == 1
    assert "TAL: 6 sizes for signs" in list_words(figure)


def test_hypernetworks_of_their_own_tell_tasks_apart_without_a_task_layer() -> None:
    figure = draw_figure(build_learngene(conditioned=False, apart=True, method="ghn3"))
    assert len(figure.axes) == 1
    assert (len(list_points(figure.axes[0], 0)), len(list_points(figure.axes[0], 1))) == (6, 6)
    # Two encoders that have nothing in common lie further apart than widths: no word stands for all
    # models of a width.
    assert not any(word.startswith("width") for word in list_words(figure))
    assert {"a", "b", "output of each task's own encoder, averaged over a model's graph"} <= set(
        list_words(figure)
    )


def test_a_task_has_one_colour_in_both_panels() -> None:
    gene = build_learngene(("a", "b", "c"), apart=True)
    details = {
        **gene.config.details,
        "tasks": ["c", "b"],
    }  # a was the source task: it has no hypernetwork
    figure = draw_figure(gene.with_config(details=details))
    assert [len(list_points(figure.axes[0], task)) for task in range(3)] == [0, 6, 6]
    marks = [line.get_color() for line in figure.axes[1].lines]
    assert sorted(marks) == sorted(2 * [mark(task)["color"] for task in range(3)])


def test_a_large_family_is_thinned_to_its_ends_and_evenly_between() -> None:
    gene = build_learngene(layers=[3, 12])
    wide = gene.with_config(
        spec=ViTSpec(layers=12, width=768, heads=48, classes=7, image_size=16, patch_size=8)
    )
    specs = select_sizes(wide, TAL.expander)
    assert len(specs) <= MAX_SIZES
    assert sorted({spec.layers for spec in specs}) == list(range(3, 13))
    assert {16, 768} < {spec.width for spec in specs}
    assert thin_out(range(10), 4) == [0, 3, 6, 9]
    assert thin_out([5, 6], 2) == [5, 6]


def test_principal_components_are_those_of_the_covariance() -> None:
    rows = draw_tensor("rows", 20, 5).double().numpy() * [5, 3, 1, 1, 1]
    plane, shares = compute_principal_plane(rows)
    values, vectors = np.linalg.eigh(np.cov(rows.T))
    for at in (0, 1):
        axis = vectors[:, -1 - at]
        axis = axis * np.sign(axis[np.abs(axis).argmax()])
        np.testing.assert_allclose(plane[:, at], (rows - rows.mean(axis=0)) @ axis, atol=1e-9)
        assert shares[at] == pytest.approx(values[-1 - at] / values.sum())
    # The rows' order, which turns what the decomposition returns, turns no sign.
    np.testing.assert_allclose(compute_principal_plane(rows[::-1])[0][::-1], plane, atol=1e-9)


def test_points_that_do_not_differ_lie_at_nought() -> None:
    for rows in (np.full((3, 4), 0.1), np.ones((1, 4))):
        plane, shares = compute_principal_plane(rows)
        assert not plane.any()
        assert shares == (0.0, 0.0)
    plane, shares = compute_principal_plane(np.array([[0.0, 1.0], [0.0, 3.0]]))
    np.testing.assert_allclose(plane, [[-1, 0], [1, 0]], atol=1e-12)
    assert shares == pytest.approx((1, 0))


def test_cosines_of_what_points_nowhere_are_nought() -> None:
    cosines = compute_cosines(
        np.array([[3.0, 0.0], [0.0, 0.5], [2.0, 2.0], [0.0, 0.0]], dtype=np.float32)
    )
    half = 0.5**0.5
    np.testing.assert_allclose(
        cosines, [[1, 0, half, 0], [0, 1, half, 0], [half, half, 1, 0], [0, 0, 0, 0]]
    )


def test_similar_tasks_are_neighbours() -> None:
    # Three pairs, given far from each other, and one pair that is closer to the second than to the
    # third.
    directions = {0: 0, 3: 5, 1: 60, 4: 65, 2: 150, 5: 155}
    angles = np.radians([directions[task] for task in range(6)])
    similar = np.cos(angles[:, None] - angles[None, :])
    assert order_by_similarity(similar) == [0, 3, 1, 4, 2, 5]
    assert (order_by_similarity(similar[:1, :1]), order_by_similarity(similar[:0, :0])) == ([0], [])


def test_names_are_kept_apart_and_in_their_order() -> None:
    assert spread_heights([0.5, 0.2, 0.51], 0.1) == pytest.approx([0.5, 0.2, 0.6])
    assert spread_heights([0.97, 0.99, 1.4], 0.1) == pytest.approx([0.8, 0.9, 1.0])
    assert spread_heights([0.0] * 5, 0.4) == pytest.approx([0, 0.25, 0.5, 0.75, 1])
    assert spread_heights([-1.0], 0.4) == [0.0]


def test_numbers_have_two_decimals_and_no_minus_zero() -> None:
    assert (format_cosine(-0.001), format_cosine(0.126), format_cosine(-1)) == (
        "0.00",
        "0.13",
        "-1.00",
    )


@pytest.mark.parametrize(
    ("tasks", "conditioned"),
    [
        (("a", "b", "c"), True),
        *(
            (tuple(f"folder:/data/number-{at}" for at in range(count)), True)
            for count in (2, 6, 13)
        ),
        (("a",), False),
    ],
)
def test_every_word_lies_on_the_paper_and_on_no_other(
    tasks: tuple[str, ...], conditioned: bool
) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = draw_figure(build_learngene(tasks, conditioned=conditioned))
    FigureCanvasAgg(figure).draw()
    panels = [[text for text in axes.texts if text.get_text()] for axes in figure.axes]
    texts = [
        *figure.texts,
        *chain(*panels),
        *(text for one in figure.legends for text in one.get_texts()),
    ]
    boxes = [text.get_window_extent() for text in texts]
    assert min(min(box.x0, box.y0) for box in boxes) >= 0
    assert max(box.x1 for box in boxes) <= figure.bbox.x1
    assert max(box.y1 for box in boxes) <= figure.bbox.y1
    names = [
        text.get_window_extent() for text in panels[0] if not text.get_text().startswith("width")
    ]
    beside = [text.get_window_extent() for text in (panels[1] if conditioned else [])]
    assert not any(one.overlaps(other) for one in names for other in beside)
    assert not any(one.overlaps(other) for at, one in enumerate(names) for other in names[:at])


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_file_is_reproducible(tmp_path: Path, suffix: str) -> None:
    first, second = tmp_path / f"one.{suffix}", tmp_path / f"two.{suffix}"
    lifecycle.plot(build_learngene(), first)
    lifecycle.plot(build_learngene(), second)
    assert first.read_bytes().startswith({"png": b"\x89PNG", "svg": b"<?xml"}[suffix])
    assert first.read_bytes() == second.read_bytes()


def test_a_name_is_no_formula(tmp_path: Path) -> None:
    lifecycle.plot(build_learngene(("$\\frac$", "$b")), tmp_path / "names.png")
    assert "$\\frac$" in list_words(draw_figure(build_learngene(("$\\frac$", "b"))))


def test_what_cannot_be_drawn(tmp_path: Path) -> None:
    path = tmp_path / "map.png"
    with pytest.raises(WrongCall, match=r"png or \.svg"):
        lifecycle.plot(build_learngene(), tmp_path / "map.pdf")
    with pytest.raises(BadFile, match="stores no task embedding"):
        lifecycle.plot(build_learngene(embedded=[]), path)
    with pytest.raises(BadFile, match=r"lacks the embedding tasks\.far"):
        lifecycle.plot(build_learngene(embedded=["a", "far"]), path)
    gene = build_learngene()
    broken = {**gene.state, f"{STORED}a": torch.full((WIDTH,), float("nan"))}
    with pytest.raises(BadFile, match="not finite"):
        lifecycle.plot(Learngene(config=gene.config, state=broken), path)
    with pytest.raises(BadFile, match="no hypernetwork"):
        lifecycle.plot(build_learngene(hypernet=None), path)
    assert not list(tmp_path.iterdir())


def test_all_four_methods_draw_with_it_and_the_command_writes_it(tmp_path: Path) -> None:
    methods = (TAL, LOGAH, GHN3, PITH)
    assert {method.plot for method in methods} == {"lgzoo_tal.plot:draw_picture"}
    assert {method.name for method in methods} == set(NAMES)
    path, out = tmp_path / "gene", tmp_path / "tal.svg"
    build_learngene().save(path)
    result = CliRunner().invoke(main, ["plot", str(path), "-o", str(out)])
    assert (result.exit_code, result.stdout) == (0, f"{out}\n"), result.stderr
    assert out.read_bytes().startswith(b"<?xml")
