"""The task `forms` and its four families: its classes, which differ and are visible, and
reproducible images.
"""

from __future__ import annotations

import hashlib
from types import ModuleType

import numpy as np
import pytest
import torch

from learngene_zoo.tasks.catalogue import open_task
from lgzoo_mini import source
from lgzoo_mini.form_kinds import composites, fractals, gestures, silhouettes
from lgzoo_mini.forms import FORMS, TURNS, draw, labels_of
from lgzoo_mini.painting.canvas import Dice
from lgzoo_mini.suite import GRAIN, generator

KINDS: dict[str, ModuleType] = {
    "gestures": gestures,
    "silhouettes": silhouettes,
    "fractals": fractals,
    "composites": composites,
}
SLOW = [
    pytest.param(kind, marks=pytest.mark.slow) if kind == "fractals" else kind for kind in KINDS
]
# Of the classes' features, rounded: what a class is never changes, or a model trained on it would
# have learnt another.
TABLES = {
    "gestures": "8ced4d142bf7b211",
    "silhouettes": "c9f889f9e9533a9a",
    "fractals": "0f8f7d0fe7de95e6",
    "composites": "2fb3392b194e1b51",
}


def features(kind: str) -> np.ndarray:
    """Return the table of a family, float64 (C, F), one row for each class."""
    parts = [np.asarray(part, dtype=np.float64) for part in KINDS[kind].table()]
    return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)


def test_wings_and_petals_are_left_out_and_all_other_families_of_the_source_are_there() -> None:
    assert set(TURNS) == {*KINDS, *source.TURNS} - {"wings", "petals"}
    assert [family.name for family in FORMS.families] == list(TURNS)
    assert sum(TURNS[kind] for kind in KINDS) / sum(TURNS.values()) == 0.625
    shown = set(FORMS.class_names)
    assert not any(name.startswith(("wings/", "petals/")) for name in shown)
    assert {
        name for name in source.SOURCE.class_names if not name.startswith(("wings/", "petals/"))
    } < shown
    assert len(shown) == len(FORMS.class_names) == open_task("forms").classes == 1_286


def test_no_target_class_is_shown() -> None:
    targets = {f"{family.name}/{name}" for family in FORMS.families for name in family.classes}
    assert not targets & set(FORMS.class_names)


@pytest.mark.parametrize("kind", SLOW)
def test_the_classes_are_those_of_the_trained_model(kind: str) -> None:
    rounded = np.round(features(kind), 3) + 0.0
    assert hashlib.sha256(rounded.tobytes()).hexdigest()[:16] == TABLES[kind]


@pytest.mark.parametrize("kind", SLOW)
def test_the_classes_of_a_kind_differ_and_can_be_seen(kind: str) -> None:
    """Painted with the same draws, any two classes give different images, and each differs from the
    image without a thing.
    """
    family = generator(kind)
    classes = np.arange(len(family.held_out))
    assert len(np.unique(features(kind), axis=0)) == len(classes) == KINDS[kind].CLASSES
    draws = np.full((len(classes), family.streams), 0.5, dtype=np.float32)
    images = family.paint(
        classes, draws, np.full((len(classes), GRAIN), 127, dtype=np.uint8)
    ).images.float()
    common = images.median(dim=0).values
    changed = ((images - common).abs().amax(dim=1) > 40).flatten(1).float().mean(dim=1)
    assert changed.min() > 0.01
    assert len({image.numpy().tobytes() for image in images}) == len(classes)


@pytest.mark.parametrize("kind", SLOW)
def test_a_kind_has_as_many_draws_as_it_takes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family, taken = generator(kind), []

    class Counted(Dice):
        def __init__(self, draws_NK: np.ndarray) -> None:
            super().__init__(draws_NK)
            taken.append(self)

    monkeypatch.setattr(KINDS[kind], "Dice", Counted)
    family.pictures(np.arange(4), 1, range(4))
    assert 0 < taken[0].taken <= family.streams


@pytest.mark.slow
def test_a_picture_does_not_depend_on_which_others_are_asked_for() -> None:
    chosen = np.random.default_rng(3).permutation(3_500_000)[:96]
    together = draw("train", chosen)
    assert together.dtype == torch.uint8
    assert together.shape == (96, 3, 32, 32)
    for places in (
        np.arange(50, 53),
        np.arange(53, 54),
        np.random.default_rng(5).permutation(96)[:50],
    ):
        assert torch.equal(draw("train", chosen[places]), together[places])
    assert not torch.equal(draw("validation", chosen[:9]), together[:9])


def test_every_family_has_its_share_and_its_classes_are_equally_frequent() -> None:
    turns = sum(TURNS.values())
    labels, first = labels_of(np.arange(turns * 1_200)), 0
    counts = np.bincount(labels, minlength=len(FORMS.class_names))
    for family, share in zip(FORMS.families, TURNS.values()):
        own = counts[first : first + len(family.held_out)]
        assert own.sum() == 1_200 * share
        assert own.max() - own.min() <= 1
        first += len(family.held_out)
