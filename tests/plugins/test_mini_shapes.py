"""The canvas, its shapes and fills, and the generators `objects`, `wings`, `figures` and `petals`."""

from __future__ import annotations

import pickle
from types import ModuleType

import numpy as np
import pytest
import torch

from learngene_zoo.seeds import draw_uniform
from lgzoo_mini import figures, objects, petals, wings
from lgzoo_mini.painting import canvas, shapes
from lgzoo_mini.painting.canvas import Dice
from lgzoo_mini.painting.shapes import Outline, draw_mould, moulds
from lgzoo_mini.painting.strokes import (
    either,
    exchange_strokes,
    join_lines,
    rotate_strokes,
    turn_strokes,
)
from lgzoo_mini.source import ATTRIBUTES
from lgzoo_mini.suite import GRAIN, SIZE, Generator, varieties

GENERATORS = (objects.OBJECTS, wings.WINGS, figures.FIGURES, petals.PETALS)
CATEGORIES = {attribute.name: attribute.classes for attribute in ATTRIBUTES}

every_generator = pytest.mark.parametrize(
    "generator", GENERATORS, ids=lambda generator: generator.name
)


def area(distance: np.ndarray, place: shapes.Frame) -> float:
    """Return the area of a shape, in units in which the image's area is 4."""
    return float(shapes.cover(distance, place.pixel).sum()) * shapes.PIXEL**2


# The canvas.


def test_a_frame_says_where_a_pixel_lies() -> None:
    frame = shapes.frame(x=0.25, y=-0.5, size=0.5)
    column, row = 20, 8  # the pixel whose middle is at (0.28125, -0.46875)
    assert frame.x[0, 0, column] == pytest.approx((0.28125 - 0.25) / 0.5)
    assert frame.y[0, row, 0] == pytest.approx((-0.46875 + 0.5) / 0.5)
    assert frame.pixel.item() == pytest.approx(2 / SIZE / 0.5)


def test_a_frame_turns_clockwise_and_mirrors() -> None:
    quarter = shapes.frame(angle=np.array([np.pi / 2], dtype=np.float32))
    assert np.allclose(
        quarter.x[0, :, 5], shapes.PICTURE.y[0, :, 0], atol=1e-6
    )  # its right is the picture's foot
    mirrored = shapes.frame(mirror=np.array([-1.0], dtype=np.float32))
    assert np.array_equal(mirrored.x, -shapes.PICTURE.x)


def test_an_edge_is_as_wide_as_it_is_soft() -> None:
    distance, pixel = np.linspace(-2, 2, 9, dtype=np.float32)[None, None], shapes.wide(0.5)
    assert shapes.cover(distance, pixel)[0, 0].tolist() == [1, 1, 1, 1, 0.5, 0, 0, 0, 0]
    assert shapes.cover(distance, pixel, 4.0)[0, 0].tolist() == [1, 1, 1, 0.75, 0.5, 0.25, 0, 0, 0]


def test_a_pose_says_where_a_thing_lies() -> None:
    numbers = {
        name: np.array([value], dtype=np.float32)
        for name, value in {"x": 0.25, "y": -0.5, "size": 0.75}.items()
    }
    result = shapes.pose(**numbers, angle=np.array([np.pi / 2]), stretch=np.ones(1))
    assert {name: round(float(value[0]), 6) for name, value in result.items()} == {
        "x": 0.25,
        "y": -0.5,
        "size": 0.5,
        "angle_x": 0.0,
        "angle_y": 1.0,
    }


def test_frames_compose() -> None:
    outer = shapes.frame(x=0.2, size=0.5, angle=0.3)
    same = shapes.frame(angle=-0.3, inside=outer)
    straight = shapes.frame(x=0.2, size=0.5)
    assert np.allclose(same.x, straight.x, atol=1e-6)
    assert np.allclose(same.y, straight.y, atol=1e-6)


def test_a_tilted_frame_draws_a_square_narrower_at_one_end() -> None:
    frame = shapes.frame(size=0.7, tilt_y=0.5)
    alpha = shapes.cover(shapes.box(frame, 1.0, 1.0), frame.pixel)[0]
    widths = alpha.sum(axis=1)
    assert abs(widths[10] - widths[22]) > 3


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (lambda place: shapes.disc(place, 0.8), np.pi * 0.64),
        (lambda place: shapes.ellipse(place, 0.9, 0.4), np.pi * 0.36),
        (lambda place: shapes.box(place, 0.7, 0.5), 1.4),
        (lambda place: shapes.capsule(place, (-0.5, 0.1), (0.5, 0.1), 0.2), 0.4 + np.pi * 0.04),
        (lambda place: shapes.half_plane(place, 0.0, 0.25), 2.5),
        (lambda place: shapes.convex(place, [(-0.5, 0.5), (0.0, -0.5), (0.5, 0.5)]), 0.5),
        (lambda place: shapes.polygon(place, 4.0), 2.0),
        (lambda place: shapes.polygon(place, 6.0), 3 * 3**0.5 / 2),
        (
            lambda place: shapes.polygon(place, 5.0, 0.5),
            5 * 0.5 * np.cos(np.pi / 5) * np.sin(np.pi / 5),
        ),
        (lambda place: shapes.contour(place, [(3, 0.2, 0.0)], 0.7), np.pi * 0.49 * (1 + 0.02)),
        (lambda place: shapes.band(shapes.disc(place, 0.7), 0.2), 2 * np.pi * 0.7 * 0.2),
    ],
)
def test_a_shape_covers_its_area(shape: Outline, expected: float) -> None:
    frame = shapes.frame()
    assert area(np.broadcast_to(shape(frame), (1, SIZE, SIZE)), frame) == pytest.approx(
        expected, rel=0.03
    )


def test_a_star_has_its_point_at_the_top_and_a_hollow_at_the_foot() -> None:
    star = shapes.polygon(shapes.PICTURE, 5.0, 0.5)[0]
    assert star[1, 15] < 0.06
    assert star[23, 15] > 0.03  # 0.47 below the centre; a pentagon reaches to 0.81
    assert star[20, 15] < 0  # 0.28 below it


def test_over_mixes_by_alpha() -> None:
    black, red = np.zeros((1, 3), dtype=np.float32), np.array([[1, 0, 0]], dtype=np.float32)
    alpha = np.full((1, SIZE, SIZE), 0.25, dtype=np.float32)
    picture = canvas.over(canvas.plain(black), red, alpha)
    assert np.all(picture[0, 0] == 0.25)
    assert np.all(picture[0, 1:] == 0)


def test_blur_keeps_the_sum_away_from_the_edge_and_finish_rounds() -> None:
    picture = np.zeros((1, 3, SIZE, SIZE), dtype=np.float32)
    picture[:, :, 10, 10] = 1
    soft = canvas.blur(picture, 0.5)
    assert soft.sum() == pytest.approx(3, rel=1e-5)
    assert soft[0, 0, 10, 10] == pytest.approx(0.25)
    result = canvas.finish(soft, np.full((1, GRAIN), 127, dtype=np.uint8), 0.0)
    assert result[0, 0, 10, 10] == 64
    assert result.dtype == torch.uint8


def test_hsv_gives_the_known_colours() -> None:
    hues = np.array([0, 1 / 6, 1 / 3, 2 / 3], dtype=np.float32)
    expected = [[1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 0, 1]]
    assert np.allclose(canvas.hsv(hues, 1.0, 1.0), expected, atol=1e-5)
    cosine, sine = canvas.hue_of(canvas.hsv(np.array([0.25], dtype=np.float32), 1.0, 1.0))
    assert np.arctan2(sine, cosine) == pytest.approx(np.pi / 2, abs=0.02)


def test_ink_is_clearly_lighter_or_darker_than_paper() -> None:
    ink, paper = canvas.ink_and_paper(Dice(draw_uniform(1, range(500), 6)), 0.3)
    difference = np.abs(canvas.lightness(ink) - canvas.lightness(paper))
    assert difference.min() > 0.299
    assert ink.min() >= 0
    assert ink.max() <= 1


def test_value_noise_is_continuous_and_depends_on_its_key() -> None:
    keys = np.array([0.1, 0.1, 0.6], dtype=np.float32)
    field = canvas.value_noise(shapes.PICTURE, 4.0, keys)
    assert np.array_equal(field[0], field[1])
    assert np.abs(field[0] - field[2]).max() > 0.5
    assert np.abs(np.diff(field, axis=-1)).max() < 0.5
    assert np.abs(field).max() <= 1


@pytest.mark.parametrize("frequency", [4.0, 8.0])
def test_stripes_have_their_frequency(frequency: float) -> None:
    line = canvas.stripes(shapes.PICTURE, frequency)[0, 0]
    assert np.abs(np.fft.rfft(line)).argmax() == frequency


def test_a_mould_is_the_outline_it_was_made_of() -> None:
    frame = shapes.frame(x=0.1, size=0.8, angle=0.4)
    numbers = np.array([1])
    table = moulds(shapes.disc, lambda at: shapes.polygon(at, 3.0))
    exact = shapes.polygon(frame, 3.0)
    near = np.abs(exact) < 0.3
    assert near.sum() > 200
    assert np.abs(draw_mould(table, numbers, frame) - exact)[near].max() < 0.03


def test_dice_read_each_stream_once() -> None:
    dice = Dice(draw_uniform(3, range(1000), 4))
    first, choice, side = dice.share(), dice.choice(3), dice.side()
    assert set(choice) == {0, 1, 2}
    assert set(side) == {-1.0, 1.0}
    assert side.dtype == np.float32
    assert dice.taken == 3
    assert np.array_equal(first, draw_uniform(3, range(1000), 4)[:, 0])


# Classes.


def test_varieties_differ_and_are_the_same_again() -> None:
    table = varieties("toy", (3, 4, 5), 12, differing=2)
    assert ((table[:, None] != table[None]).sum(axis=-1) + 9 * np.eye(12) >= 2).all()
    assert np.array_equal(table, varieties("toy", (3, 4, 5), 12, differing=2))
    assert (table < [3, 4, 5]).all()


def test_varieties_say_when_there_is_no_room() -> None:
    with pytest.raises(AssertionError, match="only 2 of 3"):
        varieties("toy", (2, 2), 3, differing=2)


def least_difference(table: np.ndarray) -> int:
    """Return the smallest number of columns in which two rows differ."""
    return int((table[:, None] != table[None]).sum(axis=-1)[np.triu_indices(len(table), 1)].min())


@pytest.mark.parametrize("module", [wings, petals], ids=["wings", "petals"])
def test_any_two_classes_differ_in_three_features_held_out_ones_included(
    module: ModuleType,
) -> None:
    table = module.table()
    assert len(table) == module.TARGETS + module.HELD_OUT
    assert least_difference(table) >= 3


def test_any_two_objects_differ_and_held_out_ones_have_bodies_of_their_own() -> None:
    targets, others = objects.table()[: objects.TARGETS], objects.table()[objects.TARGETS :]
    assert least_difference(targets) >= 2
    assert least_difference(others) >= 2
    assert targets[:, 0].max() < len(objects.BODIES) <= others[:, 0].min()


def test_no_held_out_figure_has_the_strokes_of_a_walker() -> None:
    dice = Dice(draw_uniform(5, range(64), 8))
    walkers = np.stack(figures.walker(dice)[:4])  # (4, S, N)
    x0, y0, x1, y1, *_ = figures.THING_TABLE
    things = np.stack([(x0 + x1) / 2, (y0 + y1) / 2, (x1 - x0) / 2, (y1 - y0) / 2])
    distance = np.abs(things[:, :, :, None] - walkers[:, :, None, :]).mean(axis=(0, 1))
    among_walkers = np.abs(walkers[:, :, :, None] - walkers[:, :, None, :]).mean(axis=(0, 1))
    assert distance.min() > among_walkers.max()


# Strokes.


def test_strokes_are_moved_as_they_say() -> None:
    ones, zero = np.ones(2, dtype=np.float32), np.zeros(2, dtype=np.float32)
    strokes = join_lines(
        [((zero, zero), (2 * ones, zero), 0.1, 0.2), ((ones, ones), (ones, 3 * ones), 0.1, 0.2)]
    )
    assert strokes.x.tolist() == [[1, 1], [1, 1]]
    upright = turn_strokes(strokes, np.full((2, 2), np.pi / 2, dtype=np.float32))
    assert np.allclose(upright.half_y[0], 1, atol=1e-6)
    assert np.allclose(
        rotate_strokes(strokes, np.full(2, np.pi, dtype=np.float32)).y[1], -2, atol=1e-5
    )
    swapped = exchange_strokes(strokes, np.array([0, 1]))
    assert swapped.y.tolist() == [[0, 2], [2, 0]]
    assert either(np.array([True, False]), strokes, swapped).y.tolist() == [[0, 2], [2, 0]]


# Generators.


@every_generator
def test_a_picture_does_not_depend_on_its_company(generator: Generator) -> None:
    classes = np.arange(7) * 5 % (len(generator.classes) + len(generator.held_out))
    indices = np.array([3, 900_000, 17, 0, 5, 4_000_000_000, 12])
    together = generator.pictures(classes, 11, indices)
    for index in range(7):
        alone = generator.pictures(classes[index : index + 1], 11, indices[index : index + 1])
        assert torch.equal(alone.images[0], together.images[index])
        for name, values in together.attributes.items():
            assert alone.attributes[name][0] == values[index]


@every_generator
def test_pictures_are_bytes_of_the_right_shape_and_use_their_range(generator: Generator) -> None:
    images = generator.split("train", 300).__getitems__(range(200))
    assert images.shape == (200, 3, SIZE, SIZE)
    assert images.dtype == torch.uint8
    assert images.float().std(dim=(1, 2, 3)).min() > 3  # none is empty
    assert images.float().mean(dim=(1, 2, 3)).std() > 15  # and their light differs


@every_generator
def test_splits_and_indices_differ(generator: Generator) -> None:
    train, test = generator.split("train", 500), generator.split("test", 500)
    same_class = [0, len(generator.classes)]
    pair = train.__getitems__(same_class)
    assert (pair[0].int() - pair[1].int()).abs().float().mean() > 5
    assert not torch.equal(train.__getitems__([0]), test.__getitems__([0]))
    copy = (
        pickle.loads(pickle.dumps(train)).__getitems__(same_class)
        if generator is objects.OBJECTS
        else pair
    )
    assert torch.equal(copy, pair)


@every_generator
def test_the_draws_that_are_declared_are_the_draws_that_are_taken(
    generator: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Dice] = []

    class Watched(Dice):
        def __init__(self, draws_NK: np.ndarray) -> None:
            super().__init__(draws_NK)
            made.append(self)

    monkeypatch.setitem(generator.paint.__globals__, "Dice", Watched)
    generator.pictures(np.zeros(2, dtype=np.int64), 1, [0, 1])
    assert [dice.taken for dice in made] == [generator.streams]


@every_generator
def test_attributes_keep_their_ranges(generator: Generator) -> None:
    classes = np.arange(300) % (len(generator.classes) + len(generator.held_out))
    result = generator.pictures(classes, 2, np.arange(300)).attributes
    assert {"x", "y", "size", "angle_x", "angle_y"} <= set(result) <= set(CATEGORIES)
    for name, values in result.items():
        assert values.shape == (300,)
        assert values.dtype == np.float32
        limit = CATEGORIES[name]
        assert values.min() >= (-1.001 if limit is None else 0)
        assert values.max() <= (1.001 if limit is None else limit - 1)


@every_generator
def test_names_are_distinct_and_many(generator: Generator) -> None:
    names = generator.classes + generator.held_out
    assert len(set(names)) == len(names)
    assert 12 <= len(generator.held_out) <= 24


def test_classes_are_as_many_as_announced() -> None:
    assert [len(generator.classes) for generator in GENERATORS] == [60, 40, 2, 102]


def test_figures_are_grey() -> None:
    images = figures.FIGURES.split("train", 100).__getitems__(range(40))
    assert torch.equal(images[:, 0], images[:, 1])
    assert torch.equal(images[:, 0], images[:, 2])


def centre_of(alpha: np.ndarray) -> tuple[float, float]:
    """Return the centre of a coverage (SIZE, SIZE), in the image's units."""
    axis = shapes.PICTURE.x[0, 0]
    return float((alpha * axis).sum() / alpha.sum()), float(
        (alpha * axis[:, None]).sum() / alpha.sum()
    )


def test_a_flower_is_where_its_attributes_say() -> None:
    images, found = petals.PETALS.pictures(np.zeros(400, dtype=np.int64), 4, np.arange(400))
    red = (
        (images[:, 0].float() - images[:, 1].float()).clamp(min=60).sub(60).numpy()
    )  # class 0 is red
    seen = red.sum(axis=(1, 2)) > 2000
    centres = np.array([centre_of(mask) for mask in red[seen]])
    assert seen.sum() > 100
    assert np.corrcoef(centres[:, 0], found["x"][seen])[0, 1] > 0.8
    assert np.corrcoef(centres[:, 1], found["y"][seen])[0, 1] > 0.8


@pytest.mark.parametrize(
    "generator", [objects.OBJECTS, wings.WINGS, petals.PETALS], ids=lambda generator: generator.name
)
def test_the_mean_picture_of_a_class_says_little(generator: Generator) -> None:
    """If the mean images were far apart, a linear probe such as nearest mean could solve the task."""
    task, count = generator.split("train", 600), len(generator.classes)
    images = task.__getitems__(range(600)).float().flatten(1) / 255
    labels = torch.from_numpy(task.labels)
    means = torch.stack([images[:400][labels[:400] == label].mean(0) for label in range(count)])
    right = (torch.cdist(images[400:], means).argmin(1) == labels[400:]).float().mean().item()
    assert right < 1 / count + 0.15


def test_figures_cannot_be_told_by_the_mean_picture() -> None:
    task = figures.FIGURES.split("train", 1_000)
    images = task.__getitems__(range(1_000)).float().flatten(1) / 255
    labels = torch.from_numpy(task.labels)
    means = torch.stack([images[:600][labels[:600] == label].mean(0) for label in (0, 1)])
    right = (torch.cdist(images[600:], means).argmin(1) == labels[600:]).float().mean().item()
    assert 0.4 < right < 0.75
