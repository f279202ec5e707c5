"""Resizing and cropping follow the ancestry model's configuration, which its descendants pass on to
timm.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from timm.data import create_transform, resolve_model_data_config

import learngene_zoo as lg
from learngene_zoo.artifacts.descendant import assemble, load_descendant
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families.picture_format import (
    USUAL_VIEW,
    InputFormat,
    View,
)
from learngene_zoo.families.tensors import initialise
from learngene_zoo.families.timm_config import write_timm_config
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.lifecycle import extract
from learngene_zoo.pretrained.ancestry import open_ancestry
from learngene_zoo.runs.cache import compute_key
from learngene_zoo.settings import Recipe, from_json, to_json
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.tasks.loader import Loader
from learngene_zoo.tasks.task import IGNORED, Task
from learngene_zoo.tasks.transforms import fit_images, fit_masks

SPEC = ViTSpec(layers=2, width=8, heads=2, image_size=32, patch_size=16, classes=2)
SIZES = ((51, 40), (40, 51), (29, 90), (32, 32), (20, 21), (64, 33))
DEIT = View(crop_pct=0.9)
VIEWS = (
    USUAL_VIEW,
    DEIT,
    View(crop_pct=0.875, interpolation="bilinear"),
    View(crop_pct=0.95, interpolation="lanczos"),
    View(crop_mode="squash"),
    View(crop_mode="border"),
    View(crop_pct=0.8, crop_mode="border", interpolation="bilinear"),
    View(crop_pct=0.8, crop_mode="squash", interpolation="bilinear"),
)


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Task:
    top = tmp_path_factory.mktemp("photographs")
    for split in ("train", "val", "test"):
        for name in ("a", "b"):
            (top / split / name).mkdir(parents=True)
            for number, (width, height) in enumerate(SIZES):
                pixels = np.random.default_rng(number).integers(
                    0, 256, (height, width, 3), dtype=np.uint8
                )
                Image.fromarray(pixels).save(top / split / name / f"{number}.png")
    return open_task(f"folder:{top}")


@pytest.mark.parametrize("view", VIEWS, ids=str)
def test_timm_sees_the_pixels_that_we_evaluate(
    photographs: Task, tmp_path: Path, view: View
) -> None:
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    descendant = assemble(SPEC, {}, seed=0, mean=mean, std=std, view=view)
    model = timm.create_model(f"local-dir:{descendant.save(tmp_path / 'model')}", pretrained=True)
    transform = create_transform(**resolve_model_data_config(model))
    ours = next(Loader(photographs, "test", descendant.input_format, batch_size=12).epoch(0)).inputs
    paths = list(photographs.split("test").rows.paths)  # type: ignore[attr-defined]
    theirs = torch.stack([transform(Image.open(path).convert("RGB")) for path in paths])

    def pixels(images: torch.Tensor) -> torch.Tensor:
        return (
            (images * torch.tensor(std)[:, None, None] + torch.tensor(mean)[:, None, None]) * 255
        ).round()

    assert torch.equal(pixels(ours), pixels(theirs))
    # The pixels are equal; (p - 255 mean) / (255 std) and (p / 255 - mean) / std are rounded
    # differently.
    assert torch.allclose(ours, theirs, rtol=0, atol=1e-6)


def write_ancestry(place: Path, **images: Any) -> Path:
    """Write an ancestry model's folder with these entries in `pretrained_cfg`; None removes one."""
    place.mkdir(parents=True)
    config: Any = write_timm_config(
        SPEC, mean=(0.5,) * 3, std=(0.5,) * 3, class_names=(), licence="mit"
    )
    cfg = {**config["pretrained_cfg"], **images}
    config["pretrained_cfg"] = {name: value for name, value in cfg.items() if value is not None}
    (place / "config.json").write_text(json.dumps(config))
    save_file(dict(initialise(SPEC, 0)), place / "model.safetensors")
    return place


@pytest.mark.parametrize(
    ("images", "view"),
    [
        ({"crop_pct": 0.9}, DEIT),
        (
            {"crop_pct": None, "interpolation": "bilinear"},
            View(crop_pct=0.875, interpolation="bilinear"),
        ),
        ({"crop_mode": "squash"}, View(crop_mode="squash")),
        ({"crop_mode": "border"}, View(crop_mode="border")),
        ({}, USUAL_VIEW),
    ],
)
def test_the_view_is_the_ancestry_s_own(tmp_path: Path, images: dict[str, Any], view: View) -> None:
    ancestry = open_ancestry(str(write_ancestry(tmp_path / "it", **images)))
    assert ancestry.record.view == ancestry.input_format.view == view
    theirs = resolve_model_data_config(
        timm.create_model(f"local-dir:{tmp_path / 'it'}", pretrained=True)
    )
    ours = resolve_model_data_config(ancestry.model())
    assert json.loads(json.dumps(ours)) == json.loads(json.dumps(theirs))


@pytest.mark.parametrize(
    ("images", "words"),
    [
        ({"crop_pct": 1.5}, "crop_pct is 1.5"),
        ({"interpolation": "random"}, "random"),
        ({"crop_mode": "tile"}, "tile"),
    ],
)
def test_views_that_are_not_supported(tmp_path: Path, images: dict[str, Any], words: str) -> None:
    with pytest.raises(BadFile, match=words):
        open_ancestry(str(write_ancestry(tmp_path / "it", **images)))
    with pytest.raises(WrongCall, match="crop_pct"):
        View(crop_pct=0.0)


def test_it_goes_through_learngene_and_descendant(tmp_path: Path) -> None:
    ancestry = write_ancestry(tmp_path / "ancestry", crop_pct=0.9, interpolation="bilinear")
    gene = extract("scratch", ancestries=(str(ancestry),), out=tmp_path / "gene")
    descendant = lg.expand(gene, layers=2, out=tmp_path / "model")
    view = View(crop_pct=0.9, interpolation="bilinear")
    assert descendant.view == load_descendant(tmp_path / "model").view == view
    assert descendant.for_task("other", ("x", "y", "z"), seed=0).view == view
    cfg = json.loads((tmp_path / "model" / "config.json").read_text())["pretrained_cfg"]
    assert (cfg["crop_pct"], cfg["interpolation"]) == (0.9, "bilinear")


def test_what_came_later_is_in_no_file_and_no_key_while_it_is_as_before(tmp_path: Path) -> None:
    assert not {"repeats", "crop_pct"} & {
        *to_json(Recipe()),
        *to_json(open_ancestry("bundled").record),
    }
    record = open_ancestry(str(write_ancestry(tmp_path / "it", crop_pct=0.9))).record
    for value in (Recipe(repeats=3), Recipe(), record):
        assert from_json(type(value), to_json(value), "it") == value
    assert compute_key("toy.initial", Recipe(), [], 0) != compute_key(
        "toy.initial", Recipe(repeats=3), [], 0
    )


def test_the_usual_view_changes_no_key() -> None:
    plain = InputFormat(image_size=32, mean=(0.5,) * 3, std=(0.5,) * 3)
    stated = {"image_size": 32, "channels": 3, "mean": [0.5] * 3, "std": [0.5] * 3}
    assert plain.identity == ["InputFormat", stated]
    other = InputFormat(image_size=32, mean=(0.5,) * 3, std=(0.5,) * 3, view=DEIT)
    assert compute_key("toy.initial", None, [plain], 0) != compute_key(
        "toy.initial", None, [other], 0
    )


@pytest.mark.parametrize("view", VIEWS, ids=str)
@pytest.mark.parametrize("size", [(40, 51), (29, 90), (31, 32)])
def test_a_mask_goes_along_with_its_image(view: View, size: tuple[int, int]) -> None:
    mask = torch.zeros(1, *size, dtype=torch.uint8)
    mask[:, size[0] // 3 :, size[1] // 4 : -size[1] // 4] = 200
    image, mask = fit_images(mask[:, None], 32, view, (IGNORED,))[:, 0], fit_masks(mask, 32, view)
    assert ((image.float() - mask.float()).abs() > 110).float().mean() < 0.01
