"""Reports of broken laws, and tiny models and tasks for checking them."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any
from unittest import mock

import numpy as np
import torch

from learngene_zoo.artifacts.records import AncestryRecord, LearngeneConfig
from learngene_zoo.errors import MethodFailed
from learngene_zoo.families.family import load_family
from learngene_zoo.families.spec import DEFAULT_FAMILY, Spec
from learngene_zoo.families.tensors import initialise
from learngene_zoo.families.text_spec import TextSpec
from learngene_zoo.families.transformers_config import fingerprint_tokenizer
from learngene_zoo.method.contract import Method
from learngene_zoo.method.sizes import Member
from learngene_zoo.pretrained.ancestry import Ancestry
from learngene_zoo.storage import TOKENIZER, StateDict
from learngene_zoo.tasks.catalogue import Suite
from learngene_zoo.tasks.task import SPLITS, Task

# Packages that listing and planning must not need, as importing them takes seconds.
SLOW = ("tokenizers", "transformers", "torch", "timm", "numpy", "datasets")
# Modules that `plan` must not need. They are blocked even if they are imported already, so that a
# test run cannot hide an import.
HOT = (
    *SLOW,
    "learngene_zoo.families.tensors",
    "learngene_zoo.artifacts.descendant",
)


class BrokenLaw(AssertionError):
    """A law that a method or a suite breaks; the message names both."""


def require(holds: bool, plugin: Method | Suite, otherwise: str) -> None:
    """Raise `BrokenLaw` unless the law holds; `otherwise` describes the actual behaviour."""
    if not holds:
        raise BrokenLaw(f"the {type(plugin).__name__.lower()} {plugin.name} {otherwise}")


@contextmanager
def report_broken_law(
    plugin: Method | Suite, broken: str, *errors: type[BaseException]
) -> Iterator[None]:
    """Report these errors within as the broken law `broken`."""
    try:
        yield
    except errors as error:
        raise BrokenLaw(
            f"the {type(plugin).__name__.lower()} {plugin.name} {broken}: {error}"
        ) from error


@contextmanager
def report_broken_promise(
    plugin: Method | Suite, promise: str, case: str = "", *, allowed: type[Exception] = BrokenLaw
) -> Iterator[None]:
    """Report any error within with the promise that it breaks, and the case.

    Laws broken within are reported as they are, and so are errors of type `allowed`.
    """
    try:
        yield
    except (BrokenLaw, allowed):
        raise
    except (Exception, SystemExit) as raised:
        error = raised.__cause__ if isinstance(raised, MethodFailed) else raised
        where = f"{case} " if case else ""
        problem = f"{where}raised {type(error).__name__}: {error}"
        name = f"the {type(plugin).__name__.lower()} {plugin.name}"
        raise BrokenLaw(f"{name} breaks the law '{promise}': {problem}") from error


def describe(spec: Spec) -> str:
    """Return a model's shape for a message: its sizes, and settings that are not defaults."""
    sizes = f"layers={spec.layers}, width={spec.width}, heads={spec.heads}"
    sizes += f", image_size={spec.image_size}" if spec.image_size else ""
    named = ("layers", "width", "heads", "image_size", "classes", "patch_size", "channels")
    values = [(field.name, getattr(spec, field.name), field.default) for field in fields(spec)]
    extra = [
        f"{name}={value!r}" for name, value, usual in values if name not in named and value != usual
    ]
    return ", ".join([sizes, *extra])


def iterate_members(method: Method, config: LearngeneConfig) -> Iterator[Member]:
    """Yield the members of the method's family."""
    family = method.expander.family(config)
    require(isinstance(family, Iterable), method, f"has the family {family!r}; expected members")
    for member in family:
        require(
            isinstance(member, Member), method, f"has {member!r} in its family; expected a Member"
        )
        yield member


def find_difference(got: StateDict, expected: StateDict) -> str:
    """Return a description of the first tensor that is not bit-equal, or "" if all are."""
    if set(got) != set(expected):
        return f"tensors {sorted(set(got) ^ set(expected))[:3]} are in one of them only"
    for name in expected:
        if got[name].dtype != expected[name].dtype or not torch.equal(got[name], expected[name]):
            return f"tensor {name}"
    return ""


def copy_state(state: StateDict) -> StateDict:
    """Return a copy of the tensors."""
    return {name: tensor.clone() for name, tensor in state.items()}


@contextmanager
def forbid_hot_imports(method: Method, part: str) -> Iterator[None]:
    """Make imports of modules that `plan` must not need fail within."""
    blocked = mock.patch.dict(sys.modules, dict.fromkeys(HOT))
    with (
        report_broken_law(method, f"needs more than plain numbers for its {part}", ImportError),
        blocked,
    ):
        yield


# Models and tasks so small that a contract can be checked in a second.


def make_tiny_ancestry(seed: int = 0, spec: Spec | None = None, **sizes: Any) -> Ancestry:
    """Return an ancestry model with random weights.

    By default it is a ViT of 3 layers, width 32 and 2 heads for images of 16 pixels. A text
    model has a tokenizer of the words w0, w1, ....
    """
    spec = (spec or load_family(DEFAULT_FAMILY).examples[0]).with_(**sizes)
    halves = (0.5,) * spec.channels
    files = {TOKENIZER: _write_tokenizer(spec.vocabulary)} if isinstance(spec, TextSpec) else {}
    record = AncestryRecord(
        source=f"tiny-{seed}",
        spec=spec,
        licence="apache-2.0",
        mean=halves,
        std=halves,
        tokenizer=fingerprint_tokenizer(files),
    )
    return Ancestry(record=record, state=initialise(spec, seed, "fan_in"), files=files)


def _write_tokenizer(words: int) -> str:
    """Return the tokenizer.json of the words w0, w1, ..., separated by spaces."""
    absent = ("truncation", "padding", "normalizer", "post_processor", "decoder")
    vocabulary = {f"w{number}": number for number in range(words)}
    return json.dumps(
        {
            "version": "1.0",
            **dict.fromkeys(absent),
            "added_tokens": [],
            "pre_tokenizer": {"type": "WhitespaceSplit"},
            "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "w0"},
        }
    )


@dataclass(frozen=True)
class TinySplit:
    """Random images in memory, with one brighter row of pixels per class."""

    images: torch.Tensor  # uint8 (N, C, H, W)
    labels: np.ndarray  # int64 (N,)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, indices: Sequence[int]) -> torch.Tensor:
        """Return the images at these indices, uint8 (len(indices), C, H, W)."""
        return self.images[list(indices)]


@dataclass(frozen=True)
class TinyTexts:
    """Random texts in memory: a word of the class among 3 to 6 other words of a tiny tokenizer."""

    texts: tuple[str, ...]
    labels: np.ndarray  # int64 (N,)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, indices: Sequence[int]) -> list[str]:
        """Return the texts at these indices."""
        return [self.texts[index] for index in indices]


@dataclass(frozen=True)
class _Opener:
    """Opener of the splits of a tiny task; a class, so that it can be sent to worker processes."""

    name: str
    classes: int
    image_size: int  # 0 for texts
    sizes: Mapping[str, int]

    def __call__(self, split: str) -> TinySplit | TinyTexts:
        generator = np.random.default_rng([*self.name.encode(), SPLITS.index(split)])
        labels = np.arange(self.sizes[split], dtype=np.int64) % self.classes
        if not self.image_size:
            others = [generator.integers(10, 20, size=3 + row % 4) for row in range(len(labels))]
            return TinyTexts(
                tuple(
                    " ".join(f"w{word}" for word in (5 + label, *words))
                    for label, words in zip(labels, others)
                ),
                labels,
            )
        images = generator.integers(
            0, 96, (len(labels), 3, self.image_size, self.image_size), dtype=np.uint8
        )
        for row, label in enumerate(labels):
            images[row, :, label % self.image_size] += 128
        return TinySplit(torch.from_numpy(images), labels)


def make_tiny_task(name: str = "tiny", classes: int = 3, image_size: int = 16) -> Task:
    """Return a classification task in memory: 48 training, 12 validation and 12 test images.

    With an image size of 0 it is a text task.
    """
    sizes = {"train": 48, "validation": 12, "test": 12}
    return Task(
        name=name,
        title=f"random {'images' if image_size else 'texts'} in memory",
        kind="classification" if image_size else "text",
        classes=classes,
        class_names=tuple(f"class {label}" for label in range(classes)),
        image_size=image_size,
        licence="CC0-1.0",
        sizes=sizes,
        open_split=_Opener(name, classes, image_size, sizes),
    )
