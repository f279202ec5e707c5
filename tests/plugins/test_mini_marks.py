"""textures, signs, glyphs, numbers, motion: functions of their index, with held-out classes unlike
the targets.
"""

from __future__ import annotations

import sys
import unicodedata
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from torch.nn import functional

from lgzoo_mini import glyphs, motion, numbers, signs, textures
from lgzoo_mini.glyphs import BOX, FACES, mask
from lgzoo_mini.painting import surfaces
from lgzoo_mini.painting.canvas import Dice
from lgzoo_mini.painting.shapes import frame, stamp_masks
from lgzoo_mini.source import ATTRIBUTES
from lgzoo_mini.suite import GRAIN, Generator

FAMILIES = (textures.TEXTURES, signs.SIGNS, glyphs.GLYPHS, numbers.NUMBERS, motion.MOTION)
LEAST = {"textures": 24, "signs": 43, "glyphs": 300, "numbers": 10, "motion": 30}

every_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


def of_all_classes(family: Generator, count: int) -> np.ndarray:
    return np.arange(count) * 7 % (len(family.classes) + len(family.held_out))


@every_family
def test_a_picture_is_the_same_whoever_it_is_made_with(family: Generator) -> None:
    classes, indices = of_all_classes(family, 64), np.arange(64)
    together = family.pictures(classes, 5, indices)
    assert together.images.dtype == torch.uint8
    assert together.images.shape == (64, 3, 32, 32)
    for places in ([3], [63, 0, 17], list(range(63, 40, -1)), list(range(7))):
        alone = family.pictures(classes[places], 5, indices[places])
        assert torch.equal(alone.images, together.images[places])
        for name, values in alone.attributes.items():
            assert np.array_equal(values, together.attributes[name][places], equal_nan=True), name


@every_family
def test_every_draw_is_declared_and_used(
    family: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Dice] = []
    begin = Dice.__init__

    def noted(self: Dice, draws_NK: np.ndarray) -> None:
        made.append(self)
        begin(self, draws_NK)

    monkeypatch.setattr(Dice, "__init__", noted)
    family.pictures(of_all_classes(family, 2), 0, np.arange(2))
    assert [dice.taken for dice in made] == [family.streams]


@every_family
def test_pictures_differ_between_indices_keys_and_classes(family: Generator) -> None:
    classes = of_all_classes(family, 20)
    images = [family.pictures(classes, key, range(20)).images for key in (0, 1)]
    assert len({bytes(picture.numpy()) for picture in torch.cat(images)}) == 40
    other = family.pictures((classes + 1) % len(family.classes), 0, range(20)).images
    assert (other != images[0]).flatten(1).any(dim=1).all()


@every_family
def test_classes_have_names_of_their_own(family: Generator) -> None:
    assert len(family.classes) == LEAST[family.name]
    assert len({*family.classes, *family.held_out}) == len(family.classes) + len(family.held_out)
    assert len(family.held_out) >= 12


@every_family
def test_attributes_are_known_ones_within_their_range(family: Generator) -> None:
    known = {attribute.name: attribute.classes for attribute in ATTRIBUTES}
    classes = len(family.classes) + np.arange(128) % len(family.held_out)
    for name, values in family.pictures(classes, 1, range(128)).attributes.items():
        assert values.dtype == np.float32
        assert values.shape == (128,)
        assert not np.isnan(values).any()
        if (count := known[name]) is None:
            assert np.abs(values).max() <= 1 + 1e-6, name
            assert values.std() > 0.003, name
        else:
            assert np.array_equal(values, np.rint(values)), name
            assert values.min() >= 0, name
            assert values.max() < count, name


def coarse(masks: list[torch.Tensor]) -> torch.Tensor:
    """Return masks on 16 x 16 pixels, of length 1, float32 (M, 256)."""
    small = functional.avg_pool2d(torch.stack(masks).float(), BOX // 16).flatten(1)
    return small / small.norm(dim=1, keepdim=True)


def letters(text: tuple[str, ...]) -> torch.Tensor:
    return coarse([mask("Sans", letter) for letter in text])


def test_letters_are_no_digits_and_target_and_held_out_ones_share_no_alphabet() -> None:
    scripts = [
        {unicodedata.name(letter).split()[0] for letter in row}
        for row in (glyphs.TARGET, glyphs.HELD_OUT)
    ]
    assert not scripts[0] & scripts[1]
    assert {unicodedata.category(letter) for letter in glyphs.TARGET + glyphs.HELD_OUT} <= {
        "Lu",
        "Ll",
        "Lo",
    }
    assert not any(unicodedata.numeric(letter, 0) for letter in glyphs.TARGET + glyphs.HELD_OUT)


def test_no_two_letters_look_alike() -> None:
    target, held_out = letters(glyphs.TARGET), letters(glyphs.HELD_OUT)
    assert (target @ target.T).fill_diagonal_(0).max() < 0.8
    assert (held_out @ held_out.T).fill_diagonal_(0).max() < 0.86
    assert (held_out @ target.T).max() < 0.86


def test_no_held_out_letter_looks_like_a_digit() -> None:
    held_out = letters(glyphs.HELD_OUT)
    for face, angle, stretch in product(FACES, (-0.25, 0.0, 0.25), (0.8, 1.0, 1.25)):
        digits = torch.stack([mask(face, digit) for digit in numbers.DIGITS]).float()
        turn = torch.tensor(
            [
                [np.cos(angle) / stretch, -np.sin(angle), 0],
                [np.sin(angle) / stretch, np.cos(angle), 0],
            ]
        )
        grid = functional.affine_grid(
            turn.float().expand(10, 2, 3), [10, 1, BOX, BOX], align_corners=False
        )
        turned = functional.grid_sample(digits[:, None], grid, align_corners=False)[:, 0]
        assert (held_out @ coarse(list(turned)).T).max() < 0.83


def test_digits_are_only_painted_by_numbers() -> None:
    painted = {
        "glyphs": glyphs.TARGET + glyphs.HELD_OUT,
        "numbers": numbers.LETTERS,
        "signs": tuple(sign.symbol for sign in signs.CLASSES),
        "motion": tuple(motion.THINGS.values()),
    }
    for family, texts in painted.items():
        assert not any(
            unicodedata.category(sign).startswith("N") for text in texts for sign in text
        ), family
    assert set(numbers.LETTERS) <= set(glyphs.HELD_OUT)


def test_neighbours_of_digits_are_digits_and_of_letters_letters() -> None:
    classes = np.repeat([0, 9, 10, 10 + len(numbers.LETTERS) - 1], 500)
    draws = np.random.Generator(np.random.PCG64(0)).random((2000, 2), dtype=np.float32)
    both = numbers.neighbours(classes, Dice(draws))
    assert set(both[:, :1000].flat) == set(range(10))
    assert set(both[:, 1000:].flat) == set(range(10, 10 + len(numbers.LETTERS)))


def test_target_and_held_out_signs_share_no_symbol() -> None:
    target, held_out = (
        {sign.symbol for sign in row} for row in (signs.TARGET_SIGNS, signs.HELD_OUT_SIGNS)
    )
    assert not target & held_out
    alike = letters(tuple(sorted(target))) @ letters(tuple(sorted(held_out))).T
    assert alike.max() < 0.9


def test_neither_board_nor_colours_nor_symbol_alone_tells_a_sign() -> None:
    for part in range(2):
        shared = [sign[part] for sign in signs.TARGET_SIGNS]
        assert all(shared.count(value) > 1 for value in shared)
    symbols = [sign.symbol for sign in signs.TARGET_SIGNS]
    assert sum(symbols.count(symbol) > 1 for symbol in symbols) > 25


def test_held_out_textures_are_made_in_manners_of_their_own() -> None:
    for first, second in product(textures.TARGET.values(), textures.HELD_OUT.values()):
        if first.kind == second.kind:
            octaves = abs(np.log2(first.repeats / second.repeats))
            apart = [
                octaves > textures.OCTAVES,
                max(first.width, second.width) > 1.4 * min(first.width, second.width),
                max(first.stretch, second.stretch) > 1.2 * min(first.stretch, second.stretch),
                abs(first.bend - second.bend) > 0.25,
                abs(first.rough - second.rough) > 0.25,
            ]
            assert any(apart), (first, second)


@pytest.mark.parametrize("kind", surfaces.KINDS, ids=lambda kind: kind.__name__)
def test_every_surface_reaches_from_paper_to_ink(kind: surfaces.Surface) -> None:
    frame_of_square = frame(
        size=np.full(4, 0.4, dtype=np.float32), angle=np.full(4, 0.3, dtype=np.float32)
    )
    manner = surfaces.Manner(
        *(np.full((4, 1, 1), value, dtype=np.float32) for value in (0.45, 0.3, 0.4))
    )
    field = kind(frame_of_square, manner, np.linspace(0, 0.9, 4, dtype=np.float32)[:, None, None])
    assert field.dtype == np.float32
    assert field.shape == (4, 32, 32)
    assert field.min() >= -1
    assert field.max() <= 1
    assert field.max() - field.min() > 1


def test_kinds_of_texture_fit_their_attribute() -> None:
    (attribute,) = (attribute for attribute in ATTRIBUTES if attribute.name == "texture")
    assert len(textures.KINDS) == len(set(textures.KINDS)) == attribute.classes


def test_a_trace_is_the_rank_pooled_sum_of_its_frames() -> None:
    masks = motion.things()[:1]
    path = motion.PATHS["zigzag"][None]
    where = {
        name: np.array([value], dtype=np.float32)
        for name, value in {
            "x": 0.1,
            "y": -0.1,
            "angle": 0.0,
            "reach": 0.6,
            "size": 0.3,
            "mirror": 1.0,
        }.items()
    }
    frames = [
        stamp_masks(masks, frame(x=0.1 + 0.6 * x, y=-0.1 + 0.6 * y, size=0.3 * size, angle=turned))[
            0, 0
        ]
        for x, y, size, turned in path[0].tolist()
    ]
    expected = sum(
        alpha * picture for alpha, picture in zip((-7, -5, -3, -1, 1, 3, 5, 7), frames, strict=True)
    )
    np.testing.assert_allclose(motion.trace(masks, path, where)[0], expected, atol=1e-4)


def test_what_stands_still_leaves_no_trace() -> None:
    assert sum(motion.ALPHA) == 0
    still = np.broadcast_to(motion.PATHS["line"][:1], (1, motion.FRAMES, 4))
    where = {
        name: np.ones(1, dtype=np.float32) * 0.5
        for name in ("x", "y", "angle", "reach", "size", "mirror")
    }
    assert np.abs(motion.trace(motion.things()[:1], still, where)).max() < 1e-4


def test_no_path_is_another_one_turned_and_no_thing_serves_both_lists() -> None:
    assert not {path for path, _ in motion.TARGET} & {path for path, _ in motion.HELD_OUT}
    assert not set(motion.TARGET_THINGS) & set(motion.HELD_OUT_THINGS)
    steps = {
        name: tuple(
            round(float(np.hypot(*(after - before)[:2])), 2) for before, after in pairwise(path)
        )
        for name, path in motion.PATHS.items()
    }
    assert len(set(steps.values())) == len(steps)


@every_family
def test_grain_is_part_of_the_picture(family: Generator) -> None:
    draws = np.full((1, family.streams), 0.5, dtype=np.float32)
    quiet, loud = (
        family.paint(np.zeros(1, dtype=np.int64), draws, np.full((1, GRAIN), value, dtype=np.uint8))
        for value in (0, 255)
    )
    assert (loud.images.int() - quiet.images.int()).sum() > 0


def test_the_stored_masks_are_what_matplotlib_draws() -> None:
    ft2font = pytest.importorskip("matplotlib.ft2font")
    from lgzoo_mini import faces

    with np.load(glyphs.MASKS, allow_pickle=False) as stored:
        drawings = list(zip(stored["faces"].tolist(), stored["texts"].tolist()))
        freetype = stored["freetype"].item()
    assert drawings == faces.list_drawings()
    if freetype != ft2font.__freetype_version__:
        pytest.skip(f"the masks are drawn by FreeType {freetype}")
    for drawing in drawings[::20]:
        assert torch.equal(faces.draw_mask(*drawing), mask(*drawing)), drawing


def test_pictures_need_no_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for cached in (glyphs._masks, glyphs.letters, numbers.marks, signs.layers, motion.things):
        cached.cache_clear()
    for family in FAMILIES:
        family.pictures(of_all_classes(family, 4), 0, np.arange(4))
