"""The HTML report of a fine-tuning: paths of the mistakes, both colour schemes, no fixed widths
beyond a phone's.
"""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from learngene_zoo.artifacts.descendant import assemble
from learngene_zoo.colours import PAGE_COLOURS
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Recipe
from learngene_zoo.tasks.folders import open_folder
from learngene_zoo.testing import make_tiny_task
from learngene_zoo.training.report import _encode_picture
from learngene_zoo.training.tuning import tune

RUN = Run(threads=1, device="cpu")
SPEC = ViTSpec(layers=1, width=8, heads=2, classes=2, image_size=16, patch_size=8)


def write_pictures(top: Path) -> None:
    for name in ("ant & bee", "cat"):
        (top / name).mkdir(parents=True)
        for number in range(40):
            pixels = np.random.default_rng(number).integers(0, 256, (9, 9, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(top / name / f"{number}.png")


def make_page(task: Any, classes: int = 2) -> tuple[str, Any]:
    start = assemble(SPEC.with_(classes=classes), {}, seed=0, class_names=task.class_names)
    model = tune(start, task, Recipe(epochs=1, batch_size=16, lr=1e-5), RUN)
    return model.files["report.html"], model.provenance["metrics"]


def test_mistakes_are_named_by_their_paths(tmp_path: Path) -> None:
    write_pictures(tmp_path / "photos")
    task = open_folder(str(tmp_path / "photos"))
    page, metrics = make_page(task)
    named = re.findall(r"<figcaption><b>([^<]*)</b>", page)
    test = task.split("test")
    files = {test.rows[int(member)].where.replace("&", "&amp;") for member in test.members}  # type: ignore[attr-defined]
    wrong = round((1 - metrics["test_accuracy"]) * len(files))
    assert len(set(named)) == len(named) == wrong > 0
    assert set(named) <= files
    assert all(name.startswith(str(tmp_path / "photos")) for name in named)


def test_an_image_without_a_file_has_its_number() -> None:
    page, _ = make_page(make_tiny_task(), classes=3)
    assert re.search(r"<figcaption><b>image \d+</b>", page)


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 1, 5), (3, 1, 5), (3, 5, 1), (1, 4, 5)])
def test_an_image_with_a_side_of_one_pixel_is_shown_as_it_is(shape: tuple[int, int, int]) -> None:
    image_CHW = torch.randint(256, shape, dtype=torch.uint8)
    split = SimpleNamespace(__getitems__=lambda indices: [image_CHW])
    picture = Image.open(io.BytesIO(base64.b64decode(_encode_picture(split, 0)["data"])))
    pixels = np.asarray(picture).reshape(*shape[1:], shape[0])
    assert picture.size == (shape[2], shape[1])
    assert np.array_equal(pixels, image_CHW.permute(1, 2, 0).numpy())


def test_the_page_has_both_colour_schemes_and_no_fixed_width_beyond_a_telephone() -> None:
    page, _ = make_page(make_tiny_task(), classes=3)
    assert PAGE_COLOURS in page
    assert "@media (prefers-color-scheme: dark)" in page
    assert '<meta name="viewport" content="width=device-width">' in page
    assert all(
        int(width) <= 368 for width in re.findall(r"[; {]width: ?(\d+)px", page)
    )  # 400 less the margins
    assert not re.search(r'<svg[^>]* width="', page)
    assert page.count("<table") == page.count('<div class="scroll"><table')
    style = re.search(r"<style>(.*)</style>", page, re.DOTALL)
    assert style
    rules = style[1].replace(PAGE_COLOURS, "")
    assert not re.findall(r"#[0-9a-f]{3,6}\b", rules), "every colour has one for the night"
