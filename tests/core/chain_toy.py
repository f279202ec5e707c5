"""Shared parts of the chain tests of both families: a pretrained model as saved by timm, its
learngene, and a check that timm opens the models without this package.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.learngene import Learngene
from learngene_zoo.families.spec import Spec
from learngene_zoo.method.installed import METHODS
from learngene_zoo.pretrained.ancestry import open_ancestry
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import with_settings

RUN = Run(threads=1)


@dataclass(frozen=True)
class Start:
    """A pretrained model as timm saves one, and its learngene that keeps every block."""

    name: str
    folder: Path
    model: nn.Module
    spec: Spec
    learngene: Learngene


def make_start(name: str, folder: Path, args: dict[str, int]) -> Start:
    """Save timm's model with random weights, three blocks and ten classes to `folder`."""
    torch.manual_seed(0)
    model = timm.create_model(name, **args, num_classes=10).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # timm's own start hides most of a block
            parameter.add_(torch.randn_like(parameter) * 0.1)
    timm.models.save_for_hf(model, folder, model_args=args, safe_serialization=True)
    keep = with_settings(METHODS.load("lsamd").extractor, {"keep": (1, 2, 3)})
    learngene = lifecycle.extract(
        "lsamd", ancestries=[str(folder)], extractor=keep, out=folder / "learngene", run=RUN
    )
    return Start(
        name=name,
        folder=folder,
        model=model,
        spec=open_ancestry(str(folder)).spec,
        learngene=learngene,
    )


def write_pictures(folder: Path) -> str:
    """Write a few random pictures of ten classes; return the name of their task."""
    draws = np.random.default_rng(0)
    for label in range(10):
        (folder / f"{label}").mkdir(parents=True)
        for number in range(6):
            pixels = draws.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{label}" / f"{number}.png")
    return f"folder:{folder}"


def images(spec: Spec, count: int = 2) -> torch.Tensor:
    return torch.randn(
        count, 3, spec.image_size, spec.image_size, generator=torch.Generator().manual_seed(0)
    )


def save_case(model: Any, place: Path) -> Path:
    """Save a model with test images and its outputs for them; return the folder."""
    model.save(place)
    with torch.no_grad():
        expected = model.model()(images(model.spec))
    save_file({"images": images(model.spec), "wanted": expected}, place / "case.safetensors")
    return place


def search_and_expand(start: Start) -> Any:
    """Run a brief search on `start`, and expand the result as it is and with both controls.

    Returns the last of these models.
    """
    search = METHODS.load("lsamd").presets["smoke"]
    learngene = lifecycle.extract(
        "lsamd", ancestries=[str(start.folder)], tasks=["digits"], extractor=search, run=RUN
    )
    assert learngene.config.details["kept"]
    for control in (None, "shuffled", "stem"):
        layers = len(learngene.config.details["kept"])
        descendant = lifecycle.expand(learngene, layers=layers, classes=3, control=control, run=RUN)
        with torch.no_grad():
            assert descendant.model()(images(descendant.spec)).isfinite().all()
    return descendant


ALONE = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "learngene_zoo":
            raise ImportError("blocked")

sys.meta_path.insert(0, Blocked())
import json, pathlib, timm, torch
from safetensors.torch import load_file

torch.set_num_threads(1)
found = {}
for place in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    case = load_file(place / "case.safetensors")
    model = timm.create_model(f"local-dir:{place}", pretrained=True).eval()
    with torch.no_grad():
        found[place.name] = (model(case["images"]) - case["wanted"]).abs().max().item()
    CHECK
print(json.dumps(found))
"""


def differences(made: Path, check: str) -> dict[str, float]:
    """Return for each model in `made` the difference of its logits when timm opens it alone.

    `check` is code that is run on each.
    """
    code = ALONE.replace("CHECK", check.strip().replace("\n", "\n    "))
    process = subprocess.run(
        [sys.executable, "-c", code, str(made)], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    data: dict[str, float] = json.loads(process.stdout)
    return data
