"""The packages, folders, plugins, learngenes and tasks of this installation, checked."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from learngene_zoo.artifacts import shelf
from learngene_zoo.cli.job import Row
from learngene_zoo.errors import ZooError
from learngene_zoo.method.contract import Method
from learngene_zoo.method.installed import METHODS
from learngene_zoo.registry import CHOICE, read_choice
from learngene_zoo.runs.progress import report_activity
from learngene_zoo.tasks import catalogue
from learngene_zoo.text import format_count
from learngene_zoo.version import __version__

PACKAGES = (
    "torch", "torchvision", "timm", "accelerate", "datasets", "huggingface-hub", "safetensors",
    "matplotlib", "click", "rich",
)  # fmt: skip
OPTIONAL = {
    "onnx": "'learngene-zoo[onnx]'",
    "onnxruntime": "'learngene-zoo[onnx]'",
    "onnxscript": "'learngene-zoo[onnx]'",
    "ray": "'learngene-zoo[ray]'",
    "tokenizers": "'learngene-zoo[text]'",
    "transformers": "'learngene-zoo[text]'",
}
IMPORT = "import"
MIN_FREE = 10**9  # bytes: a few models with their checkpoints
HUB_SECONDS = 5.0
Status = Literal["ok", "bad", "info"]


def make_row(name: str, status: Status, value: Any) -> Row:
    """Return a finding as a row of the table."""
    return {"what": name, "status": status, "found": str(value)}


def check_installation(hub: bool) -> Iterator[Row]:
    """Yield the findings. Only with `hub` is the network accessed."""
    yield make_row("learngene_zoo", "ok", __version__)
    yield make_row(
        "python", "ok" if sys.version_info >= (3, 11) else "bad", platform.python_version()
    )
    yield from map(_check_package, [*PACKAGES, *OPTIONAL])
    for title, check in (
        ("importing torch", _compute),
        ("folders", _check_places),
        ("plugins", _check_plugins),
        ("learngenes", _check_shelf),
        ("tasks", _check_tasks),
    ):
        with report_activity(title):
            yield from check()
    if hub:
        yield _check_hub()


def _check_package(name: str) -> Row:
    try:
        return make_row(name, "ok", version(name))
    except PackageNotFoundError:
        return make_row(
            name,
            "info" if name in OPTIONAL else "bad",
            f"not installed; pip install {OPTIONAL.get(name, name)}",
        )


def _compute() -> Iterator[Row]:
    """Yield the numbers of cores and threads and the devices; imports torch."""
    yield make_row("cpu cores", "info", os.cpu_count())
    try:
        import torch
    except ImportError as error:
        yield make_row("devices", "bad", f"torch cannot be imported: {error}")
        return
    yield make_row("threads", "info", torch.get_num_threads())
    devices = [
        "cpu",
        *(f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())),
    ]
    if torch.backends.mps.is_available():
        devices.append("mps")
    yield make_row("devices", "info", ", ".join(devices))
    try:
        import timm  # noqa: F401  # imports torchvision
    except Exception as error:  # such as a RuntimeError, for a torchvision of another torch
        yield make_row(IMPORT, "bad", f"timm cannot be imported: {error}")


def _check_places() -> Iterator[Row]:
    """Yield the folders for data with their free space, and the Hub's endpoint and login."""
    from huggingface_hub import constants, get_token

    for name, folder in {
        "working folder": Path.cwd(),
        "cache of the Hub": Path(constants.HF_HUB_CACHE),
    }.items():
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        free = shutil.disk_usage(existing).free
        status: Status = "ok" if free >= MIN_FREE and os.access(existing, os.W_OK) else "bad"
        writable = "" if os.access(existing, os.W_OK) else "; not writable"
        yield make_row(name, status, f"{folder}, {format_count(free)}B free{writable}")
    yield make_row(
        "endpoint",
        "info",
        constants.ENDPOINT + (" (HF_HUB_OFFLINE is set)" if constants.HF_HUB_OFFLINE else ""),
    )
    yield make_row(
        "login", "info", "logged in" if get_token() else "not logged in; to publish: hf auth login"
    )


def _check_plugins() -> Iterator[Row]:
    if read_choice():
        yield make_row(
            CHOICE, "info", f"only {', '.join(read_choice())}; other plugins are not used"
        )
    groups = (METHODS, *METHODS.load_all()), (catalogue.SUITES, *catalogue.load_suites())
    for plugins, good, broken in groups:
        for plugin in good:
            name = f"{plugins.word} {plugin.name}"
            try:
                if isinstance(plugin, Method):
                    _check_options(plugin)
            except ZooError as error:
                yield make_row(name, "bad", error)
            else:
                yield make_row(name, "ok", plugins.references()[plugin.name])
        for refused in broken:
            yield make_row(f"{plugins.word} {refused.name}", "bad", refused.reason)


def _check_options(method: Method) -> None:
    """Raise `BadPlugin` if settings of a method have options that its commands already have."""
    from learngene_zoo.cli import expand, extract, plan

    extract.build(method)
    plan.build(method)
    for command in (expand.command, expand.plot_command):
        expand.add_expander(method, command.params)


def _check_shelf() -> Iterator[Row]:
    yield make_row("shelf", "info", shelf.find_cards_folder())
    learngenes = shelf.list_learngenes()
    for name in shelf.list_names():
        word = "learngene" if name in learngenes else "ancestry model"
        try:
            shelf.load(name)
            yield make_row(f"{word} {name}", "ok", shelf.find(name))
        except ZooError as error:
            yield make_row(f"{word} {name}", "bad", error)


def _check_tasks() -> Iterator[Row]:
    """Yield the tasks of the catalogue that open offline; others are no fault."""
    for entry in catalogue.list_entries():
        try:
            catalogue.open_task(entry.name, offline=True)
        except ZooError as error:
            yield make_row(f"task {entry.name}", "info", f"not offline: {error}")
        else:
            yield make_row(f"task {entry.name}", "ok", "opens offline")


def _check_hub() -> Row:
    """Check whether the Hub can be reached. No other check accesses the network."""
    from urllib.error import URLError
    from urllib.request import urlopen

    address = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        with urlopen(address, timeout=HUB_SECONDS):
            return make_row("hub", "ok", address)
    except (URLError, OSError, ValueError) as error:
        return make_row("hub", "bad", f"{address} cannot be reached: {error}")
