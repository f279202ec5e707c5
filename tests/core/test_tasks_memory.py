"""The memory for an image is bounded for any aspect ratio, and ordinary images keep every pixel."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from learngene_zoo.families.picture_format import View
from learngene_zoo.tasks import transforms
from learngene_zoo.tasks.transforms import compute_resized_shape, fit_images, fit_masks

MEASURE = """
import resource, sys, torch
from learngene_zoo.families.picture_format import InputFormat
from learngene_zoo.errors import BadData
from learngene_zoo.tasks.images import decode_image, decode_mask
from learngene_zoo.tasks.transforms import augment_images, fit_images, fit_masks
width, height, size = map(int, sys.argv[1:])
images = InputFormat(image_size=size, mean=(0.5,) * 3, std=(0.5,) * 3)
def work(image):
    for augment in ("none", "light", "rand", "deit"):
        augment_images([image], None, augment, images, (0, 0, [0], True))
    augment_images([image], [image[0]], "rand", images, (0, 0, [0], True))
    fit_masks([image[0]], size, images.view)
work(torch.zeros(3, 40, 40, dtype=torch.uint8))  # all libraries are loaded
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
work(torch.zeros(3, height, width, dtype=torch.uint8))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "height", "size"),
    [
        (60_000, 1, 224),
        pytest.param(1, 60_000, 224, marks=pytest.mark.exhaustive),
        pytest.param(30_000, 30, 224, marks=pytest.mark.exhaustive),
        pytest.param(22_000, 300, 512, marks=pytest.mark.exhaustive),
    ],
)
def test_a_strip_takes_no_more_memory_than_a_photograph(width: int, height: int, size: int) -> None:
    call = [sys.executable, "-c", MEASURE, *map(str, (width, height, size))]
    told = subprocess.run(call, capture_output=True, text=True, check=True)
    assert int(told.stdout) < 300_000, "kilobytes; the whole of it resized would take 8,700,000"


def noise(height: int, width: int) -> torch.Tensor:
    return torch.from_numpy(
        np.random.default_rng(0).integers(0, 256, (3, height, width), dtype=np.uint8)
    )


@pytest.mark.parametrize(
    "shape", [(300, 400), (640, 480), (33, 50), (500, 33), (224, 224), (20, 1_900)]
)
@pytest.mark.parametrize("crop", [0.875, 1.0])
def test_ordinary_pictures_keep_every_pixel_of_resizing_and_cropping(
    shape: tuple[int, int], crop: float
) -> None:
    view, image = View(crop_pct=crop, interpolation="bicubic"), noise(*shape)
    height, width = compute_resized_shape(shape, 224, view)
    full = Image.fromarray(image.permute(1, 2, 0).numpy()).resize(
        (width, height), Image.Resampling.BICUBIC
    )
    top, left = round((height - 224) / 2), round((width - 224) / 2)
    expected = np.asarray(full)[top : top + 224, left : left + 224]
    assert np.array_equal(fit_images([image], 224, view)[0].permute(1, 2, 0).numpy(), expected)


@pytest.mark.parametrize("shape", [(30, 400), (400, 30), (48, 64)])
def test_the_centre_alone_shows_what_the_centre_of_all_would(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    smooth = torch.linspace(0, 255, shape[1]).round().to(torch.uint8).expand(3, *shape).contiguous()
    masks = noise(*shape)[:1]
    view = View(crop_pct=0.875)
    full, whole_masks = fit_images([smooth], 96, view), fit_masks(masks, 96, view)
    monkeypatch.setattr(transforms, "MAX_RESIZED", 0)
    centre, centre_masks = fit_images([smooth], 96, view), fit_masks(masks, 96, view)
    assert centre.shape == full.shape
    assert (centre.int() - full.int()).abs().max() <= 1
    assert torch.equal(centre_masks, whole_masks)


def test_doctor_names_a_strip_and_reads_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from learngene_zoo.tasks.catalogue import open_task
    from learngene_zoo.tasks.findings import check_task

    monkeypatch.setenv("LGZOO_CACHE", str(tmp_path / "cache"))
    for name in ("cat", "dog"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for number in range(12):
            Image.new("RGB", (9, 9), (number, 0, 0)).save(
                tmp_path / "data" / name / f"{number}.png"
            )
    Image.new("L", (60_000, 1)).save(tmp_path / "data" / "cat" / "strip.png")
    rows, _ = check_task(open_task(f"folder:{tmp_path / 'data'}"), workers=0)
    (bad,) = [row for row in rows if "strip.png" in row["what"]]
    assert bad["status"] == "bad"
    assert bad["found"].startswith(
        "the image is 60000 x 1 pixels, and one side may be at most 100 times the other"
    )
    assert sum(int(row["found"].split()[0]) for row in rows[:3]) == 24


def test_a_header_of_a_strip_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    from learngene_zoo.errors import BadData
    from learngene_zoo.tasks.images import decode_image

    stream = io.BytesIO()
    Image.new("L", (60_000, 1)).save(stream, "png")
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda image: pytest.fail("it was decoded"))
    with pytest.raises(BadData, match="60000 x 1"):
        decode_image(stream.getvalue(), "it")
