"""The source task and its contours: its classes, their frequency, and reproducible images."""

from __future__ import annotations

import pickle
import unicodedata

import numpy as np
import torch

from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.tasks.loader import Loader
from learngene_zoo.tasks.transforms import check_samples
from lgzoo_mini import contours, source
from lgzoo_mini.contours import CONTOURS
from lgzoo_mini.source import ATTRIBUTES, SOURCE, draw, labels_of
from lgzoo_mini.suite import MINI, Drawn, generator

TRAIN = Drawn("train", 1_000_000, draw, labels_of)
SAMPLE = np.random.default_rng(3).permutation(1_000_000)[:96]


def same(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    """Return whether arrays are bitwise equal; NaN equals NaN."""
    assert one is not None
    assert other is not None
    return np.array_equal(one.numpy(), other.numpy(), equal_nan=one.is_floating_point())


def test_the_source_shows_contours_and_all_nine_families() -> None:
    nine = [
        "objects",
        "wings",
        "figures",
        "textures",
        "signs",
        "glyphs",
        "numbers",
        "motion",
        "petals",
    ]  # later tasks do not join
    assert set(source.TURNS) == {"contours", *nine} <= {"contours", *MINI.tasks}
    assert [family.name for family in SOURCE.families] == list(source.TURNS)
    assert all(turns >= 1 for turns in source.TURNS.values())


def test_no_target_class_and_no_digit_is_among_the_sources_classes() -> None:
    targets = {f"{name}/{item}" for name in MINI.tasks for item in generator(name).classes}
    shown = SOURCE.class_names
    assert len(set(shown)) == len(shown) == sum(len(family.held_out) for family in SOURCE.families)
    assert not targets & set(shown)
    assert all(len(family.held_out) >= 2 for family in SOURCE.families)
    for name in shown:
        if name.startswith(("glyphs/", "numbers/", "signs/")):
            assert not any(
                unicodedata.category(sign) in ("Nd", "No")
                for sign in name.partition("/")[2].split()[0]
            )


def test_a_label_names_the_held_out_class_that_is_painted() -> None:
    got, labels = TRAIN.__getitems__(SAMPLE.tolist()), labels_of(SAMPLE)
    first = np.cumsum([0] + [len(family.held_out) for family in SOURCE.families])
    seen = set()
    for position, (index, label) in enumerate(zip(SAMPLE, labels)):
        number = int(np.searchsorted(first, label, side="right")) - 1
        family = SOURCE.families[number]
        local = np.array([len(family.classes) + label - first[number]])
        assert (
            SOURCE.class_names[label] == f"{family.name}/{family.held_out[label - first[number]]}"
        )
        key = source.derive_seed(0, "source", "train", family.name)
        assert torch.equal(family.pictures(local, key, [index]).images[0], got.images[position])
        seen.add(family.name)
    assert seen == set(source.TURNS)


def test_a_picture_and_its_attributes_do_not_depend_on_which_others_are_asked_for() -> None:
    together = TRAIN.__getitems__(SAMPLE.tolist())
    assert together.images.dtype == torch.uint8
    assert together.images.shape == (96, 3, 32, 32)
    order = np.random.default_rng(5).permutation(96)
    for places in (order[:50], order[50:53], order[53:54], np.arange(40)):
        some = TRAIN.__getitems__(SAMPLE[places].tolist())
        assert same(some.images, together.images[places])
        assert same(some.attributes, together.attributes[places])  # type: ignore[index]
    again = pickle.loads(pickle.dumps(TRAIN))
    assert same(again.__getitems__(SAMPLE[:9].tolist()).images, together.images[:9])
    assert len(pickle.dumps(TRAIN)) < 300


def test_every_family_has_its_share_and_its_classes_are_equally_frequent() -> None:
    labels, first = TRAIN.labels, 0
    assert labels.dtype == np.int64
    assert len(labels) == len(TRAIN) == 1_000_000
    counts, turns = (
        np.bincount(labels, minlength=len(SOURCE.class_names)),
        sum(source.TURNS.values()),
    )
    for family, share in zip(SOURCE.families, source.TURNS.values()):
        own = counts[first : first + len(family.held_out)]
        assert own.sum() == 1_000_000 * share // turns
        assert own.max() - own.min() <= 1
        first += len(family.held_out)
    assert (labels[SAMPLE] == labels_of(SAMPLE)).all()


def test_every_attribute_is_asked_of_something_and_lies_where_it_should() -> None:
    task = open_task("source")
    indices = list(range(400))
    samples = check_samples(task.split("validation").__getitems__(indices), task, indices)
    assert samples.attributes is not None
    assert samples.attributes.dtype == torch.float32
    for attribute, values in zip(ATTRIBUTES, samples.attributes.unbind(dim=1)):
        known = values[~values.isnan()]
        assert len(known) >= 20, attribute.name
        assert known.std() > 0.1, attribute.name
        assert attribute.classes is not None or known.abs().max() <= 1.25, attribute.name


def test_the_splits_show_different_pictures() -> None:
    seen = [
        open_task("source").split(part).__getitems__(range(60)).images
        for part in ("train", "validation", "test")
    ]
    assert len({picture.numpy().tobytes() for picture in torch.cat(seen)}) == 180


def test_the_source_is_loaded_with_its_attributes() -> None:
    task = open_task("source")
    loader = Loader(task, "train", task.input_format, batch_size=32, seed=1, shuffle=True)
    batch = next(loader.epoch(0))
    assert batch.attributes is not None
    assert batch.attributes.shape == (32, len(ATTRIBUTES))
    assert (batch.labels.numpy() == labels_of(batch.indices.numpy())).all()
    assert loader.steps == 1_000_000 // 32


def test_contours_differ_by_their_class_and_say_so() -> None:
    draws = np.repeat(
        np.random.default_rng(0).random((1, CONTOURS.streams), dtype=np.float32), 54, axis=0
    )
    grain = np.zeros((54, 3 * 32 * 32), dtype=np.uint8)
    made = CONTOURS.paint(np.arange(54), draws, grain)
    assert len({picture.numpy().tobytes() for picture in made.images}) == 54
    assert made.attributes["lobes"].tolist() == [lobes for lobes, _, _ in contours.CELLS]
    strength, cycles = (
        made.attributes["amplitude"].reshape(-1, 3),
        made.attributes["frequency"].reshape(-1, 3, 3),
    )
    assert (np.diff(strength, axis=1) > 0.3).all()
    assert (np.diff(cycles, axis=1) > 0.1).all()
    assert CONTOURS.classes == ()
    assert len(set(CONTOURS.held_out)) == 54


def test_what_lies_outside_of_a_contour_is_paper() -> None:
    """The corner of an image with a small contour in the middle has the gradient's colours, without
    lines.
    """
    draws = np.full((1, CONTOURS.streams), 0.5, dtype=np.float32)
    draws[0, 3] = 0.0  # the smallest
    picture = (
        CONTOURS.paint(np.array([0]), draws, np.full((1, 3 * 32 * 32), 127, dtype=np.uint8))
        .images[0]
        .float()
    )
    corner, middle = picture[:, :5, :5], picture[:, 8:24, 8:24]
    assert corner.std(dim=(1, 2)).max() < 8
    assert middle.std(dim=(1, 2)).max() > 20
