"""Splits of a data set of images or texts, in memory or decoded when needed; missing splits are
cut from the training images.

A missing test split takes a fifth of the training images, a missing validation split a tenth of the
rest: stratified, and the same images as long as the list of images is the same. Decoded images can
be cached in a model's input size (`keep_fitted`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np

from learngene_zoo.errors import BadData
from learngene_zoo.families.spec import USUAL_VIEW, InputFormat
from learngene_zoo.seeds import interleave_classes
from learngene_zoo.tasks.images import decode_samples
from learngene_zoo.tasks.task import SPLITS, Sample, Samples, Split, Task
from learngene_zoo.tasks.texts.duplicates import describe_duplicates
from learngene_zoo.text import count_noun

if TYPE_CHECKING:
    import torch

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# The words that name a split, in `datasets` and in the names of archives. Used by
# `find_roles` and `split_name`.
SPLIT_WORDS = {
    "train": ("train", "training", "trainset", "trainval"),
    "validation": ("val", "valid", "validation", "validate", "valset", "dev"),
    "test": ("test", "testing", "testset", "eval", "holdout"),
}
ROLE_OF = {word: split for split, words in SPLIT_WORDS.items() for word in words}
CAMEL_CASE = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
SHARES = (("test", 0.2), ("validation", 0.1))  # taken from the training images, in this order
SEED = 0  # of the splits that are cut
MIN_KEPT = 2  # training images that a class keeps when a split is cut, if it has enough
MAX_SHOWN = 10  # classes in a note
# Of the resized images of one split; larger splits are decoded in every epoch.
MAX_FITTED_BYTES = 2**30
Stored = TypeVar("Stored")


class PixelSplit:
    """Images in memory, uint8 (N, 1 or 3, H, W), and labels int64 (N,).

    Grey images are returned with three equal channels, all images with `border` black pixels on
    every side.
    """

    def __init__(self, images: torch.Tensor, labels: np.ndarray, border: int = 0) -> None:
        self.images, self.labels, self.border = images, labels, border
        # Resized images, by the format that they are resized to, and by their index (`keep_fitted`)
        self.fitted: dict[Any, dict[int, torch.Tensor]] = {}

    def __len__(self) -> int:
        return len(self.images)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without cached images: another process resizes its own."""
        return {**self.__dict__, "fitted": {}}

    @property
    def shape(self) -> tuple[int, int]:
        """The height and width of the images."""
        height, width = self.images.shape[-2:]
        return height + 2 * self.border, width + 2 * self.border

    def __getitems__(self, indices: Sequence[int]) -> torch.Tensor:
        """Return the images at these indices, uint8 (N, 3, H, W)."""
        import torch
        from torch.nn import functional

        chosen = self.images[torch.as_tensor(np.asarray(indices, dtype=np.int64))]
        if self.border:
            chosen = functional.pad(chosen, (self.border,) * 4)
        return chosen.expand(-1, 3, -1, -1)


class Rows(Protocol):
    """Encoded images in order."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int, /) -> Sample:
        """Return the image, with the path, or file and row, that names it in errors."""


@dataclass(frozen=True)
class Labelled:
    """A stored split: its images and their labels."""

    rows: Rows
    labels: np.ndarray


@dataclass(frozen=True)
class DecodedSplit:
    """A selection of rows; an image is decoded when it is read, in the process that reads it."""

    rows: Rows
    members: np.ndarray
    labels: np.ndarray
    # Cached images, by the format that they are resized to, and by their index (`keep_fitted`).
    fitted: dict[Any, dict[int, torch.Tensor]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def __len__(self) -> int:
        return len(self.members)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without cached images: another process decodes its own."""
        return {**self.__dict__, "fitted": {}}

    def __getitems__(self, indices: Sequence[int]) -> list[torch.Tensor] | Samples:
        """Return the images at these indices, uint8 (3, H, W) each, at the stored size."""
        return decode_samples(self.rows[int(self.members[index])] for index in indices)


@dataclass(frozen=True)
class TextSplit:
    """A selection of rows that are texts or pairs of texts."""

    rows: Rows
    members: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.members)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return the texts or pairs at these indices."""
        return [self.rows[int(self.members[index])].image for index in indices]


def name_sample(split: Split, index: int, noun: str = "image") -> str:
    """Return the path of a sample, or its data and row; "image N" where there is neither."""
    stored: Any = split
    position = index
    while isinstance(stored, PartOfSplit):
        stored, position = stored.split, int(stored.members[position])
    if isinstance(stored, DecodedSplit | TextSplit):
        return stored.rows[int(stored.members[position])].where
    return f"{noun} {index}"


def ensure_validation(task: Task) -> Task:
    """Return the task with validation images: if it has none, a tenth of the training images.

    Raises `BadData` if there are too few, or if the images are streamed.
    """
    if task.sizes["validation"]:
        return task
    train = task.split("train")
    count = max(1, round(dict(SHARES)["validation"] * len(train)))
    parts_of_train = None if task.open_stream is not None else cut_split(train.labels, count, SEED)
    if parts_of_train is None:
        raise BadData(
            f"{task.name} has no validation {task.sample_noun}s, and none can be taken from its "
            f"training {task.sample_noun}s; add some"
        )
    cut, left = parts_of_train
    parts = {"train": left, "validation": cut}
    return replace(
        task,
        sizes={**task.sizes, **{split: len(chosen) for split, chosen in parts.items()}},
        open_split=partial(_open_part, task.open_split, parts),
    )


@dataclass(frozen=True)
class PartOfSplit:
    """A selection of the images of a split."""

    split: Split
    members: np.ndarray

    @property
    def labels(self) -> np.ndarray:
        """The class of every image, int64 (N,)."""
        return self.split.labels[self.members]

    def __len__(self) -> int:
        return len(self.members)

    def __getitems__(self, indices: Sequence[int]) -> Any:
        """Return the images at these indices, in the same form as the split does."""
        return self.split.__getitems__([int(self.members[index]) for index in indices])


def _open_part(opener: Callable[[str], Split], parts: Mapping[str, np.ndarray], name: str) -> Split:
    return PartOfSplit(opener("train"), parts[name]) if name in parts else opener(name)


# The splits of a task.


def split_name(name: str) -> str:
    """Return the zoo's name of a split (`val` is validation); other names in lower case."""
    return ROLE_OF.get(name.lower(), name.lower())


def find_roles(name: str) -> list[str]:
    """Return the splits whose words are in the name of a file or folder.

    Words end at characters that are not letters, and between a lower-case and an upper-case letter:
    `imagenet-train`, `Train_data`, `valSet2017` and `split=test` contain one each, `restrain` and
    `latest` none.
    """
    roles = {ROLE_OF[word] for word in _list_words(name)}
    return [split for split in SPLITS if split in roles]


def _list_words(name: str) -> list[str]:
    """Return the words of splits in the name of a file or folder, in lower case."""
    parts = re.split(r"[\W\d_]+", CAMEL_CASE.sub(" ", name).lower())
    return [word for word in parts if word in ROLE_OF]


class SplitFiles(NamedTuple):
    """The files of each split, and notes for the user about those that are left out."""

    files: dict[str, list[str]]
    notes: tuple[str, ...] = ()


def group_files_by_split(name: str, files: Sequence[str]) -> SplitFiles:
    """Return the files of each split, by a word in their names or else in their folders'.

    If no file has one, all are `train`. Files with a split's exact name take precedence over those
    with another word for it, which are left out: `trainval` often repeats `train`. Raises `BadData`
    if only some files have a word, if a name has words of several splits, or if none is `train`.
    """
    folder = _count_shared_folders(files)
    roles = {file: _find_role(file, folder) for file in files}
    lost = [file for file, (role, _) in roles.items() if not role]
    if 0 < len(lost) < len(files):
        raise BadData(
            f"{lost[0]} belongs to no split; put train, val or test into its name, as in the others"
        )
    exact = {role for role, is_exact in roles.values() if is_exact}
    groups: dict[str, list[str]] = {}
    left_out = []
    for file, (role, is_exact) in roles.items():
        if role in exact and not is_exact:
            left_out.append(file)
        else:
            groups.setdefault(role or "train", []).append(file)
    if "train" not in groups:
        raise BadData(
            f"{name} has no training files, only {', '.join(sorted(groups))}; name those too"
        )
    return SplitFiles(groups, _describe_left_out(left_out))


def _describe_left_out(files: Sequence[str]) -> tuple[str, ...]:
    """Return a note about files that are left out, if there are any."""
    if not files:
        return ()
    return (
        f"{count_noun(len(files), 'file')} left out, because other files have the exact name of "
        f"the same split; first: {files[0]}",
    )


def _split_path(file: str) -> list[str]:
    """Return the folders and the name in a path or URL."""
    return file.partition("?")[0].replace("\\", "/").split("/")


def _count_shared_folders(files: Sequence[str]) -> int:
    """Return the number of leading folders that all files share."""
    folders = [_split_path(file)[:-1] for file in files]
    shared = takewhile(lambda parts: len(set(parts)) == 1, zip(*folders))
    return sum(1 for _ in shared)


def _find_role(file: str, shared: int) -> tuple[str, bool]:
    """Return the split in the name of a file, and whether the name contains its exact name.

    If the name contains none, that of the nearest folder is used; without any the split is "".
    The folders that all files share are ignored, except for the last of them, if its name is that
    of a split.
    """
    parts = _split_path(file)
    for part in reversed(parts[shared:]):
        roles = find_roles(part)
        if len(roles) > 1:
            raise BadData(
                f"{file}: the name {part!r} contains {' and '.join(roles)}; rename it, so that "
                "it contains one split"
            )
        if roles:
            return roles[0], roles[0] in _list_words(part)
    last = split_name(parts[shared - 1]) if 0 < shared == len(parts) - 1 else ""
    return (last, True) if last in SPLITS else ("", False)


def assign_roles(stored: Mapping[str, Stored], roles: Mapping[str, str]) -> dict[str, Stored]:
    """Return the stored splits by role; `roles` maps a split to the stored one used for it.

    A stored split whose role is taken by another one is left out: `{"test": "validation"}` leaves
    the test split out, if there is a validation split.
    """
    played = {role: split for role, split in roles.items() if split in stored}
    unassigned = {
        name: part for name, part in stored.items() if name not in {*played, *played.values()}
    }
    return {**unassigned, **{role: stored[split] for role, split in played.items()}}


def check_train_classes(name: str, labels: Mapping[str, Iterable[Stored]]) -> set[Stored]:
    """Return the labels of the training images.

    Raises `BadData` if another split has further labels.
    """
    train = set(labels["train"])
    for split, values in labels.items():
        strange = set(values) - train
        if strange:
            first = min(strange, key=str)
            raise BadData(
                f"{name}: class {first!r} of {split} is not in train; give both the same classes"
            )
    return train


def assemble_task(
    name: str,
    stored: Mapping[str, Labelled],
    class_names: Sequence[str],
    /,
    counts: Mapping[str, int] | None = None,
    *,
    may_lack_classes: bool = False,
    **fields: Any,
) -> Task:
    """Build the task of these splits; missing ones are cut from the training images.

    Args:
        name: the name of the task.
        stored: the stored splits.
        class_names: the classes in the order of their numbers.
        counts: the number of images of each split that is cut; by default a share of the training
            images.
        may_lack_classes: whether there may be classes without training images, as in a fixed
            sample of few images; a note of the task names them.
        fields: fields of `Task`.

    Raises:
        BadData: for a single class, a class without images, or no images at all.
    """
    if "train" not in stored:
        raise BadData(
            f"{name} has no train split, only {', '.join(sorted(stored)) or 'none'}; name one of "
            "them train"
        )
    is_text = fields.get("kind") == "text"
    noun = "text" if is_text else "image"
    _check(name, stored, class_names, noun)
    missing = describe_missing(stored["train"].labels, class_names, f"training {noun}")
    if missing and not may_lack_classes:
        raise BadData(f"{name}: {missing[0]}; add some, or remove such classes")
    splits = complete_splits(name, stored, counts or {}, is_text)
    missing += describe_untested(splits["test"].labels, class_names, noun)
    copies = describe_duplicates(splits) if is_text else []
    cut = tuple(name for name, _ in SHARES if name not in stored or not len(stored[name].labels))
    notes = (*fields.get("notes", ()), *missing, *copies)
    fields = {**fields, "cut_splits": cut, "notes": notes}
    return (assemble_text_task if is_text else assemble_photo_task)(
        name, class_names, splits, fields
    )


def describe_missing(labels_N: np.ndarray, class_names: Sequence[str], noun: str) -> list[str]:
    """Return a list with a line that names the classes without samples, or an empty list.

    `noun` names the samples, such as "test image".
    """
    known = set(labels_N.tolist())
    missing = [name for label, name in enumerate(class_names) if label not in known]
    if not missing:
        return []
    more = f" and {len(missing) - MAX_SHOWN} more" if len(missing) > MAX_SHOWN else ""
    number = (
        f"{len(missing)} of {len(class_names)} classes have"
        if len(missing) > 1
        else "one class has"
    )
    return [f"{number} no {noun}s: {', '.join(missing[:MAX_SHOWN])}{more}"]


def describe_untested(labels_N: np.ndarray, class_names: Sequence[str], noun: str) -> list[str]:
    """Return a list with a line on the classes without test samples, or an empty list.

    `noun` names a sample: "image" or "text".
    """
    return [
        f"{text}; the result on test {noun}s says nothing about such classes"
        for text in describe_missing(labels_N, class_names, f"test {noun}")
    ]


def assemble_photo_task(
    name: str, class_names: Sequence[str], splits: Mapping[str, Split], fields: Mapping[str, Any]
) -> Task:
    """Build a task of photographs, by default at 224 pixels with ImageNet's normalisation.

    `fields` are fields of `Task`.
    """
    photos = {"image_size": 224, "mean": IMAGENET_MEAN, "std": IMAGENET_STD, "flip": True}
    return Task(**{**_list_fields(name, class_names, splits), **photos, **fields})


def assemble_text_task(
    name: str, class_names: Sequence[str], splits: Mapping[str, Split], fields: Mapping[str, Any]
) -> Task:
    """Build a task of texts. `fields` are fields of `Task`."""
    return Task(**{**_list_fields(name, class_names, splits), "kind": "text", **fields})


def _list_fields(
    name: str, class_names: Sequence[str], splits: Mapping[str, Split]
) -> dict[str, Any]:
    return {
        "name": name,
        "title": name,
        "classes": len(class_names),
        "class_names": tuple(class_names),
        "source": name,
        "sizes": {split: len(splits[split]) for split in SPLITS if split in splits},
        "open_split": dict(splits).__getitem__,
    }


def _check(
    name: str, stored: Mapping[str, Labelled], class_names: Sequence[str], noun: str
) -> None:
    if not len(stored["train"].labels):
        raise BadData(f"{name} has no training {noun}s; add some")
    if len(class_names) < 2:
        raise BadData(
            f"{name} has one class ({', '.join(class_names) or 'none'}); a task needs at least two"
        )
    for split, part in stored.items():
        outside = np.flatnonzero((part.labels < 0) | (part.labels >= len(class_names)))
        if len(outside):
            row = int(outside[0])
            got = part.labels[row]
            raise BadData(
                f"{part.rows[row].where} in {split}: expected a label 0 to "
                f"{len(class_names) - 1}, got {got}"
            )


def cut_split(labels_N: np.ndarray, count: int, seed: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Select about `count` images for another split, in proportion to the classes.

    Every class keeps `MIN_KEPT` images, or all if it has fewer; if that leaves fewer than `count`
    images to select, it keeps one. If no class reaches this limit, the split is that of
    `split_stratified`.

    Returns:
        The indices of the selected and of the remaining images; None if none can be selected.
    """
    _, classes_N, counts_C = np.unique(labels_N, return_inverse=True, return_counts=True)
    spare_C = np.maximum(counts_C - MIN_KEPT, 0)
    if spare_C.sum() < count:
        spare_C = counts_C - 1
    taken_C = np.zeros_like(counts_C)
    cut: list[int] = []
    for index in interleave_classes(labels_N, seed).tolist():
        if len(cut) < count and taken_C[classes_N[index]] < spare_C[classes_N[index]]:
            taken_C[classes_N[index]] += 1
            cut.append(index)
    if not cut:
        return None
    return np.sort(cut), np.setdiff1d(np.arange(len(labels_N)), cut)


def complete_splits(
    name: str, stored: Mapping[str, Labelled], counts: Mapping[str, int], is_text: bool = False
) -> dict[str, DecodedSplit | TextSplit]:
    """Return every split; missing or empty ones are cut from the training samples.

    Raises `BadData` if there are too few of them.
    """
    select: type[DecodedSplit | TextSplit] = TextSplit if is_text else DecodedSplit
    chosen = {
        split: select(part.rows, np.arange(len(part.labels)), part.labels)
        for split, part in stored.items()
    }
    for split, share in SHARES:
        if split in chosen and len(chosen[split]):
            continue
        train = chosen["train"]
        count = counts.get(split, max(1, round(share * len(train))))
        parts = cut_split(train.labels, count, SEED)
        if parts is None:
            raise BadData(
                f"{name} has too few training {'text' if is_text else 'image'}s ({len(train)}) to "
                f"make a {split} split: "
                "each class keeps at least one; add some"
            )
        cut, left = parts
        chosen[split] = select(train.rows, train.members[cut], train.labels[cut])
        chosen["train"] = select(train.rows, train.members[left], train.labels[left])
    return chosen


# Decoding photographs takes longer than a forward pass of a small model. So the result of the steps
# that are the same in every epoch is cached: the image resized and cropped (or padded), before any
# augmentation.


@dataclass(frozen=True)
class FittedSplit:
    """A split whose images, uint8 (C, size, size), are decoded and resized at the first read."""

    split: DecodedSplit | PixelSplit
    input_format: InputFormat
    images: dict[int, torch.Tensor]

    def __len__(self) -> int:
        return len(self.split)

    @property
    def labels(self) -> np.ndarray:
        """The class of every image, int64 (N,)."""
        return self.split.labels

    def __getitems__(self, indices: Sequence[int]) -> list[torch.Tensor]:
        """Return the images in this order."""
        from learngene_zoo.tasks.transforms import fit_images

        missing = [index for index in dict.fromkeys(indices) if index not in self.images]
        if missing:
            read = self.split.__getitems__(missing)
            decoded = read.images if isinstance(read, Samples) else read
            form = self.input_format
            for index, image in zip(missing, decoded):
                self.images[index] = fit_images(image[None], form.image_size, form.view, form.fill)[
                    0
                ]
        return [self.images[index] for index in indices]


def keep_fitted(
    split: Split, input_format: InputFormat, num_images: int
) -> tuple[Split, InputFormat] | None:
    """Return a split that caches its resized images, and the format for reading them.

    The images are shared by all readers of the split with the same format, and dropped when it is
    read in another format.

    Args:
        split: the split.
        input_format: the format that the images are resized to.
        num_images: number of the split's images that will be read.

    Returns:
        The split and a format that does not resize again; None if the split neither decodes nor
        resizes its images, or if those read would take more than `MAX_FITTED_BYTES`.
    """
    from learngene_zoo.tasks.transforms import compute_resized_shape

    if isinstance(split, PartOfSplit):
        fitted = keep_fitted(split.split, input_format, num_images)
        return fitted and (PartOfSplit(fitted[0], split.members), fitted[1])
    size, view = input_format.image_size, input_format.view
    if not isinstance(split, DecodedSplit | PixelSplit):
        return None
    if isinstance(split, PixelSplit) and split.shape == compute_resized_shape(
        split.shape, size, view
    ):
        return None
    if num_images * input_format.channels * size**2 > MAX_FITTED_BYTES:
        return None
    key = (size, view, input_format.fill)
    if key not in split.fitted:
        split.fitted.clear()
    images = split.fitted.setdefault(key, {})
    return FittedSplit(split, input_format, images), replace(input_format, view=USUAL_VIEW)
