"""The whole files that fuzzing starts from: `templates` makes a folder of them for every target."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from contextlib import chdir, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.descendant import assemble
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.runs.run import Run

ROOT = Path(__file__).resolve().parents[2]
OLD = ROOT / "tests" / "data" / "format1"
SPEC = ViTSpec(layers=2, width=16, heads=2, classes=2, image_size=16, patch_size=8)
RUN = Run(threads=1, offline=True)
CONFIG, WEIGHTS = "config.json", "model.safetensors"
BRIEF = (
    *("--epochs", "1", "--images", "4", "--batch-size", "2", "--threads", "1"),
    *("--lr", "3e-3", "--warmup", "1"),
)
RECIPE = replace(lifecycle.FINETUNE, epochs=1, images=4, batch_size=2)
TRAINING = {"label": "toy", "steps": 4, "seed": 0, "ema": None}


def toy_training() -> Any:
    """Two layers after one step of AdamW, with a moving average."""
    from timm.utils import ModelEmaV3

    from learngene_zoo.training.checkpoint import TrainingState

    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return TrainingState(module, optimizer, ModelEmaV3(module, decay=0.9))


def templates(root: Path) -> None:
    """Every folder that a target starts from."""
    for method in sorted(OLD.iterdir()):
        shutil.copytree(method, root / f"learngene {method.name}")
    photos(root / "trained" / "photos")
    (root / "models").mkdir()
    shutil.copytree(OLD / "lsamd" / "descendant", root / "models" / "descendant")
    made = {
        "method": "train",
        "seed": 0,
        "metrics": {"task": "x", "validation_accuracy": 0.5, "training_images": 3},
    }
    record = {"name": "x", "source": "hf:a/b", "classes": 2, "images": 3}
    own = assemble(
        SPEC, {}, seed=0, task="x", provenance={**made, "trained_on": record, "licence": "mit"}
    )
    own = replace(own, class_names=("red0", "red200"))
    own.save(root / "trained" / "descendant")
    own.save(root / "ancestry" / "ancestry")
    config = json.loads((root / "ancestry" / "ancestry" / CONFIG).read_text())
    del config["learngene"]
    (root / "ancestry" / "ancestry" / CONFIG).write_text(json.dumps(config))
    interrupted_run(root / "run", own)
    checkpoints(root / "checkpoint")
    bench(root / "bench")
    names = ("pool-levels-wide", "lsamd-depth", "tal-unseen", "lsamd-storage")
    for name in names:
        (root / f"claim {name}").mkdir()
        shutil.copy(ROOT / "benchmarks" / "claims" / f"{name}.toml", root / f"claim {name}")
    releases(root)
    published(root / "manifest")


def photos(folder: Path) -> None:
    """Twelve pictures of two classes."""
    from PIL import Image

    for red in (0, 200):
        (folder / f"red{red}").mkdir(parents=True)
        for shade in range(6):
            Image.new("RGB", (16, 16), (red, 20 * shade, 0)).save(
                folder / f"red{red}" / f"{shade}.png"
            )


def interrupted_run(folder: Path, model: Any) -> None:
    """A fine-tuning as a kill after its first step leaves it.

    Settings, metrics and a checkpoint.
    """
    from learngene_zoo.training import checkpoint

    photos(folder / "photos")
    model.save(folder / "model")

    class Killed(BaseException):
        pass

    save = checkpoint.save

    def save_and_die(*arguments: Any, **named: Any) -> None:
        save(*arguments, **named)
        raise Killed

    with pytest.MonkeyPatch.context() as patch, suppress(Killed), chdir(folder):
        patch.setenv("LGZOO_CACHE", str(folder / "cache"))
        patch.setattr(checkpoint, "save", save_and_die)
        lifecycle.finetune(
            "model", task="folder:photos", recipe=RECIPE, out="out", run=Run(threads=1)
        )


def checkpoints(folder: Path) -> None:
    """One checkpoint of the toy training."""
    from learngene_zoo.training import checkpoint

    folder.mkdir()
    state = toy_training()
    checkpoint.save(folder, state.capture(2, TRAINING))


def bench(folder: Path) -> None:
    """The folder of a small bench, a cost curve."""
    from learngene_zoo.bench.report.report import GRID
    from learngene_zoo.bench.results.rows import RESULTS

    folder.mkdir()
    rows = [
        {
            "key": f"{arm}{task}{layers}{seed}{epochs}",
            "arm": arm,
            "method": arm.split()[0],
            "task": task,
            "layers": layers,
            "control": "shuffled" if "shuffled" in arm else None,
            "width": 96,
            "seed": seed,
            "epochs": epochs,
            "lr": 1e-3,
            "images": 100,
            "split": "test",
            "value": 0.5 + 0.01 * len(arm) - 0.1 * seed,
            "params": 1000 * layers,
            "flops": 10**6,
            "correct": "f0",
            "evaluated": 8,
            "untrained": 0.1,
            "probe": 0.2,
            "extraction_seconds": 2.0,
            "extraction_images": 10,
            "seconds": 1.0,
            "machine": "m",
            "finished": "2026-01-01T00:00:00+00:00",
        }
        for arm in ("lsamd", "lsamd shuffled", "scratch", "scratch fan_in")
        for task in ("digits", "signs")
        for layers in (3, 6)
        for seed in (0, 1)
        for epochs in (1, 2)
    ]
    (folder / RESULTS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    arms = [
        {"name": name, "method": name.split()[0], "settings": {"keep": [1, 2]}}
        for name in ("lsamd", "scratch")
    ]
    grid = {
        "cost": True,
        "settings": {"tasks": ["digits"], "lr": 1e-3},
        "arms": arms,
        "versions": {"torch": "2"},
        "keys": [],
    }
    (folder / GRID).write_text(json.dumps({**grid, "keys": [row["key"] for row in rows]}))


def published(folder: Path) -> None:
    """A family of two, as `publish` leaves it."""
    from learngene_zoo.hub.manifest import MANIFEST, FileRecord, make_manifest

    files = {}
    for name in ("README.md", CONFIG, f"layers-7/{CONFIG}", f"layers-7/{WEIGHTS}"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
        files[name] = FileRecord(sha256=hashlib.sha256(name.encode()).hexdigest(), bytes=len(name))
    (folder / MANIFEST).write_text(json.dumps(make_manifest(files).json()))


def releases(root: Path) -> None:
    """A tiny hypernetwork in each layout that they are released in."""
    import pickle

    from lgzoo_tal.hypernet_spec import HypernetSpec
    from lgzoo_tal.modules.hypernet import Hypernet

    spec = HypernetSpec(
        hidden=16, layers=1, heads=2, decoder="conv", widest=4, classes=10, spatial=11
    )
    state = dict(Hypernet(spec, 1).state_dict())
    writers: dict[str, Callable[[Path], object]] = {
        "pickle": lambda path: path.write_bytes(pickle.dumps(state, protocol=4)),
        "zip": lambda path: torch.save(
            {"state_dict": state, "config": {"hid": 16}, "epoch": 3}, path
        ),
        "old": lambda path: torch.save(state, path, _use_new_zipfile_serialization=False),
    }
    for name, write in writers.items():
        (root / f"release {name}").mkdir()
        write(root / f"release {name}" / "ghn.pt")
