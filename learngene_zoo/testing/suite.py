"""The contract of a suite of tasks: `check_suite`."""

import os
import pickle
import re
import subprocess
import sys

import numpy as np
import torch

from learngene_zoo.errors import Unavailable, ZooError
from learngene_zoo.tasks import catalogue
from learngene_zoo.tasks.catalogue import Suite
from learngene_zoo.tasks.task import SPLITS, Entry, Split, Task
from learngene_zoo.tasks.transforms import check_samples
from learngene_zoo.testing.laws import report_broken_law, report_broken_promise, require

# A colon would make a name a reference to the user's own data, a slash a path.
NAME = re.compile(r"\w[\w.-]*")
MAX_IMAGES = 12  # that are read of each split
COLD = """
import sys
from learngene_zoo.tasks import catalogue
catalogue.find_suite(sys.argv[1])
print(*sorted({"torch", "timm", "numpy", "datasets"} & set(sys.modules)))
"""


def check_suite(suite: Suite, *, offline: bool = True) -> tuple[str, ...]:
    """Check the whole contract of a registered suite. Returns the names of the opened tasks.

    Every task is opened and some images of each split are read. Tasks that are not available
    offline are only checked if `offline` is False. Raises `AssertionError` that names the broken
    law.
    """
    check_registration(suite)
    opened = []
    for entry in suite.entries:
        try:
            with report_broken_promise(
                suite, "every task opens, or is Unavailable", entry.name, allowed=Unavailable
            ):
                task = suite.open(entry, offline)
        except Unavailable:
            if not offline:
                raise
            continue
        check_task(suite, entry, task)
        opened.append(entry.name)
    return tuple(opened)


def check_registration(suite: Suite) -> None:
    """Check that a suite is registered under its name, and is listed without heavy imports.

    Its names must be valid.
    """
    with report_broken_law(suite, "is not registered (is its package installed?)", ZooError):
        registered = catalogue.find_suite(suite.name)
    require(registered == suite, suite, f"is registered as another object: {registered}")
    for name in (suite.name, *(entry.name for entry in suite.entries)):
        require(
            bool(NAME.fullmatch(name)),
            suite,
            f"has the name {name!r}; expected letters, digits, '_', '-' and '.'",
        )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    result = subprocess.run(
        [sys.executable, "-c", COLD, suite.name], env=environment, capture_output=True, text=True
    )
    require(
        result.returncode == 0,
        suite,
        f"cannot be loaded in a process of its own: {result.stderr[-500:]}",
    )
    require(
        not result.stdout.strip(),
        suite,
        f"imports {result.stdout.strip()} when it is listed; import it in `open`",
    )


def check_task(suite: Suite, entry: Entry, task: Task) -> None:
    """Check that a task agrees with its entry, and that samples depend on split and index alone."""
    for field in ("name", "title", "kind", "classes", "image_size", "flip", "metric", "licence"):
        got, listed = getattr(task, field), getattr(entry, field)
        require(
            got == listed,
            suite,
            f"lists {entry.name} with {field}={listed!r}, and the opened task has {got!r}",
        )
    sized = dict(task.sizes) == dict(entry.sizes)
    require(sized, suite, f"lists {entry.name} with {entry.sizes}, and it has {task.sizes}")
    names = task.class_names
    require(
        len(set(names)) == len(names) == task.classes,
        suite,
        f"does not give {entry.name} {task.classes} class names",
    )
    first = [_check_split(suite, task, name) for name in SPLITS]
    contents = {content for contents in first for content in contents}
    require(
        len(contents) > 1, suite, f"shows the same {task.sample_noun} in all splits of {entry.name}"
    )


def _check_split(suite: Suite, task: Task, name: str) -> list[bytes]:
    """Check a split and return the contents of its first samples."""
    label = f"{name} of {task.name}"
    with report_broken_promise(suite, "every split opens, and knows its labels", label):
        split = task.split(name)
        labels, count = np.asarray(split.labels), len(split)
    require(
        count == len(labels) == task.sizes[name],
        suite,
        f"promises {task.sizes[name]} {task.sample_noun}s in {label}",
    )
    require(
        labels.dtype == np.int64, suite, f"has labels of type {labels.dtype} in {label}, not int64"
    )
    outside = labels[(labels < 0) | (labels >= task.classes)]
    require(
        not len(outside),
        suite,
        f"has the label {outside[:1]} in {label}, which has {task.classes} classes",
    )
    indices = sorted({*range(min(MAX_IMAGES, count)), count - 1})
    if task.is_text:
        return _check_texts(suite, split, indices, label)
    before = _get_random_state()
    with report_broken_promise(suite, "every image of a split can be read", label):
        samples = check_samples(split.__getitems__(indices), task, indices)
    require(
        before == _get_random_state(), suite, f"draws from the global random state to read {label}"
    )
    for image in samples.images:
        fine = (
            image.dtype == torch.uint8 and image.ndim == 3 and image.shape[0] in (1, task.channels)
        )
        require(
            fine,
            suite,
            f"has an image of {image.dtype} {tuple(image.shape)} in {label}, not of uint8 (C, H, "
            "W)",
        )
    for mask in () if samples.masks is None else samples.masks:
        require(
            mask.dtype == torch.uint8, suite, f"has a mask of {mask.dtype} in {label}, not of uint8"
        )
    with report_broken_promise(
        suite, "a split can be read in another process, in any order", label
    ):
        again = check_samples(
            pickle.loads(pickle.dumps(split)).__getitems__(indices[::-1]), task, indices[::-1]
        )
    equal = all(
        torch.equal(first, other)
        for first, other in zip(samples.images, list(again.images)[::-1], strict=True)
    )
    require(
        equal,
        suite,
        f"has an image in {label} that changes with the order of reading or in another process",
    )
    return [image.numpy().tobytes() for image in samples.images]


def _check_texts(suite: Suite, split: Split, indices: list[int], label: str) -> list[bytes]:
    """Check the texts of a split and return their contents."""
    before = _get_random_state()
    with report_broken_promise(suite, "every text of a split can be read", label):
        texts = split.__getitems__(indices)
    require(
        before == _get_random_state(), suite, f"draws from the global random state to read {label}"
    )
    parts = [text if isinstance(text, tuple) else (text,) for text in texts]
    fine = all(
        len(part) in (1, 2) and all(isinstance(text, str) and text.strip() for text in part)
        for part in parts
    )
    require(fine, suite, f"has samples in {label} that are neither a text nor a pair of texts")
    with report_broken_promise(
        suite, "a split can be read in another process, in any order", label
    ):
        again = pickle.loads(pickle.dumps(split)).__getitems__(indices[::-1])
    require(
        again[::-1] == texts,
        suite,
        f"has a text in {label} that changes with the order of reading or in another process",
    )
    return [repr(part).encode() for part in parts]


def _get_random_state() -> bytes:
    """Return the global states of torch's and numpy's generators."""
    return torch.get_rng_state().numpy().tobytes() + pickle.dumps(np.random.get_state())
