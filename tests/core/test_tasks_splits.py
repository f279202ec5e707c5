"""Made splits always take the same images, because published numbers depend on them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from learngene_zoo.errors import BadData
from learngene_zoo.seeds import (
    derive_seed,
    draw_balanced,
    draw_uniform,
    interleave_classes,
    split_stratified,
)
from learngene_zoo.tasks.splits.assembly import assemble_task, assign_roles
from learngene_zoo.tasks.splits.cutting import complete_splits
from learngene_zoo.tasks.splits.samples import Labelled
from learngene_zoo.tasks.task import Sample

LABELS = np.array([0, 1, 2, 0, 1, 0, 0, 1, 2, 0, 1, 0] * 4)  # 24, 16 and 8 images


class Rows:
    """Images that are never read."""

    def __len__(self) -> int:
        return len(LABELS)

    def __getitem__(self, row: int) -> Sample:
        return Sample(None, f"row {row}")


def make_splits(
    labels: np.ndarray = LABELS, counts: dict[str, int] | None = None, **others: np.ndarray
) -> dict[str, Any]:
    results = {name: Labelled(Rows(), part) for name, part in {"train": labels, **others}.items()}
    return complete_splits("x", results, counts or {})


def test_the_images_of_every_split_never_change() -> None:
    parts = make_splits()
    assert parts["test"].members.tolist() == [0, 1, 2, 7, 15, 29, 33, 37, 39, 44]
    assert parts["validation"].members.tolist() == [4, 5, 20, 42]
    assert len(parts["train"].members) == 34


def test_the_order_of_classes_never_changes() -> None:
    assert interleave_classes(LABELS, 0).tolist()[:12] == [
        15,
        1,
        39,
        7,
        33,
        44,
        37,
        2,
        29,
        0,
        13,
        35,
    ]
    assert interleave_classes(LABELS, 1).tolist() != interleave_classes(LABELS, 0).tolist()
    assert [part.tolist() for part in split_stratified(LABELS, [5, 4], 0)] == [
        [1, 7, 15, 33, 39],
        [2, 29, 37, 44],
    ]
    assert draw_balanced(LABELS, 9, 0).tolist() == [1, 2, 7, 15, 26, 33, 37, 39, 44]


def test_every_beginning_has_the_classes_in_their_shares() -> None:
    order = interleave_classes(LABELS, 3)
    assert sorted(order.tolist()) == list(range(len(LABELS)))
    for count in range(1, len(LABELS) + 1):
        got = np.bincount(LABELS[order[:count]], minlength=3)
        assert np.abs(got - count * np.array([24, 16, 8]) / 48).max() <= 1.5


def test_equally_many_of_each_class_and_nested() -> None:
    chosen = [draw_balanced(LABELS, count, 3) for count in (6, 12, 24)]
    assert [np.bincount(LABELS[item]).tolist() for item in chosen] == [
        [2, 2, 2],
        [4, 4, 4],
        [8, 8, 8],
    ]
    assert set(chosen[0]) < set(chosen[1]) < set(chosen[2])


def test_splits_that_are_there_stay_and_named_counts_hold() -> None:
    parts = make_splits(test=LABELS[:5])
    assert [len(parts[name].members) for name in ("train", "validation", "test")] == [43, 5, 5]
    parts = make_splits(counts={"test": 7, "validation": 3})
    assert [len(parts[name].members) for name in ("train", "validation", "test")] == [38, 3, 7]
    every = np.concatenate([part.members for part in parts.values()])
    assert sorted(every.tolist()) == list(range(48))
    assert all((part.labels == LABELS[part.members]).all() for part in parts.values())
    assert len(make_splits(test=LABELS[:0])["test"].members) == 10, "an empty split is made anew"


FEW = {
    "30 classes of 2": [2] * 30,
    "sizes that fall": [50, 40, 30, 20, 10, 5, 3, 2, 1],
    "two classes of 2": [2, 2],
    "one large": [100, 1, 1, 1],
    "3 each": [3] * 10,
    "4 each": [4] * 7,
}


@pytest.mark.parametrize("name", FEW)
def test_every_class_keeps_training_images(name: str) -> None:
    sizes = np.array(FEW[name])
    labels = np.random.default_rng(1).permutation(np.repeat(np.arange(len(sizes)), sizes))
    parts = make_splits(labels)
    left = np.bincount(parts["train"].labels, minlength=len(sizes))
    assert (left >= 1).all()
    if name not in (
        "30 classes of 2",
        "two classes of 2",
    ):  # where there is a test image only if some class keeps one
        assert (left >= np.minimum(sizes, 2)).all()
    every = np.concatenate([part.members for part in parts.values()])
    assert sorted(every.tolist()) == list(range(len(labels)))
    test = max(1, round(0.2 * len(labels)))
    assert len(parts["test"].members) == test
    assert len(parts["validation"].members) == max(1, round(0.1 * (len(labels) - test)))
    again = make_splits(labels)
    assert all((again[split].members == parts[split].members).all() for split in parts)


def test_splits_of_data_with_enough_images_are_those_of_before() -> None:
    """Bitwise, as published results were measured on them."""
    for seed in range(200):
        generator = np.random.default_rng(seed)
        sizes = generator.integers(5, 60, size=generator.integers(2, 12))
        labels = generator.permutation(np.repeat(np.arange(len(sizes)), sizes))
        test = round(0.2 * len(labels))
        validation = round(0.1 * (len(labels) - test))
        first, left = split_stratified(labels, [test, len(labels) - test], 0)
        second, rest = split_stratified(labels[left], [validation, len(left) - validation], 0)
        parts = make_splits(labels)
        assert parts["test"].members.tolist() == first.tolist()
        assert parts["validation"].members.tolist() == left[second].tolist()
        assert parts["train"].members.tolist() == left[rest].tolist()


def test_classes_without_test_images_are_named_in_one_line() -> None:
    labels = np.repeat([0, 1, 2], [20, 1, 1])
    task = assemble_task("x", {"train": Labelled(Rows(), labels)}, ("a", "b", "c"))
    says = "; the result on test images says nothing about such classes"
    assert task.notes == (f"2 of 3 classes have no test images: b, c{says}",)
    splits = {"train": Labelled(Rows(), LABELS), "test": Labelled(Rows(), LABELS[LABELS != 1])}
    assert assemble_task("x", splits, ("a", "b", "c")).notes == (
        f"one class has no test images: b{says}",
    )
    assert assemble_task("x", {"train": Labelled(Rows(), LABELS)}, ("a", "b", "c")).notes == ()
    with pytest.raises(
        BadData, match="x: 2 of 3 classes have no training images: b, c; add some, or remove"
    ):
        assemble_task("x", {"train": Labelled(Rows(), labels * 0)}, ("a", "b", "c"))


def test_too_few_images_for_a_split() -> None:
    with pytest.raises(ValueError, match="at most 48 images in all parts, got 49"):
        split_stratified(LABELS, [40, 9], 0)
    with pytest.raises(BadData, match=r"too few training images \(1\) to make a test split"):
        make_splits(LABELS[:1])


@pytest.mark.parametrize(
    ("label", "said"), [(3, "row 47 in train: expected a label 0 to 2, got 3"), (-1, "got -1")]
)
def test_a_label_outside_the_classes_is_named(label: int, said: str) -> None:
    labels = np.array([*LABELS[:-1], label])
    with pytest.raises(BadData, match=said):
        assemble_task("x", {"train": Labelled(Rows(), labels)}, ("a", "b", "c"))


def test_roles_of_stored_splits() -> None:
    stored = {"train": 1, "validation": 2, "test": 3, "extra": 4}
    assert assign_roles(stored, {"test": "validation"}) == {"train": 1, "extra": 4, "test": 2}
    assert assign_roles(stored, {"test": "missing"}) == stored


def test_a_balanced_draw_is_that_of_all_images_sorted() -> None:
    generator = np.random.default_rng(0)
    for seed in range(300):
        classes, images = generator.integers(1, 12), generator.integers(1, 300)
        shares = generator.dirichlet(np.full(classes, generator.choice([0.1, 1.0, 10.0])))
        labels_N = generator.choice(classes, images, p=shares) + 3
        count = int(generator.integers(1, images + 1))
        draws_N2 = draw_uniform(derive_seed(seed, "order"), np.arange(images), 2)
        ranks_N = [
            np.sum(draws_N2[labels_N == label, 0] < first)
            for label, first in zip(labels_N, draws_N2[:, 0], strict=True)
        ]
        expected = np.argsort(np.array(ranks_N) + draws_N2[:, 1])[:count]
        assert draw_balanced(labels_N, count, seed).tolist() == sorted(expected)
