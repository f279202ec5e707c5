"""Images of every mode are decoded as they should be seen: each equals one rendered by PIL."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageCms

from learngene_zoo.errors import BadData
from learngene_zoo.tasks.images import (
    _convert_to_rgb,
    decode_image,
    decode_mask,
    describe_transparency,
    is_deep_grey,
    read_size,
)
from learngene_zoo.tasks.task import Sample

WHITE = (255, 255, 255)
ORIENTATION = 0x0112
# The transposition that each EXIF orientation asks for (Exif 2.3, table 6).
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def encode(image: Image.Image, kind: str = "png", **how: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **how)
    return stream.getvalue()


def decode(data: bytes) -> np.ndarray:
    return decode_image(data, "it").permute(1, 2, 0).numpy()


def photograph(size: tuple[int, int] = (13, 7)) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@pytest.mark.parametrize("kind", ["png", "tiff", "webp"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_is_turned_as_its_camera_says(orientation: int, kind: str) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    how = {"lossless": True} if kind == "webp" else {}
    upright = photograph() if orientation == 1 else photograph().transpose(TURNS[orientation])
    assert np.array_equal(decode(encode(photograph(), kind, exif=exif, **how)), np.array(upright))


def test_a_photograph_of_a_phone_stands_upright_as_does_its_mask() -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    data = encode(photograph((32, 16)), "jpeg", exif=exif)
    plain = Image.open(io.BytesIO(data)).transpose(Image.Transpose.ROTATE_270)
    assert np.array_equal(decode(data), np.array(plain))
    classes = Image.fromarray(np.arange(12, dtype=np.uint8).reshape(3, 4))
    mask = decode_mask(encode(classes, exif=exif), "it")
    assert np.array_equal(mask.numpy(), np.array(classes.transpose(Image.Transpose.ROTATE_270)))


def test_broken_exif_data_does_not_cost_the_picture() -> None:
    for exif in (b"Exif\0\0nonsense", b"Exif\0\0II*\0\x08\0\0\0\xff\xff"):
        assert decode(encode(photograph(), "jpeg", exif=exif)).shape == (7, 13, 3)


def over_white(image: Image.Image) -> np.ndarray:
    paper = Image.new("RGB", image.size, WHITE)
    paper.paste(image.convert("RGB"), mask=image.getchannel("A"))
    return np.array(paper)


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_what_is_transparent_is_seen_over_white(mode: str) -> None:
    image = photograph().convert(mode)
    image.putalpha(Image.linear_gradient("L").resize(image.size))
    got = decode(encode(image))
    assert (
        np.abs(got.astype(int) - over_white(image)).max() <= 1
    )  # PIL rounds its two ways to mix differently
    assert got[0].min() > 230 > got[-1].min()


@pytest.mark.parametrize("kind", ["png", "gif"])
def test_a_palette_may_have_a_transparent_entry(kind: str) -> None:
    image = photograph().quantize(4)
    clear = np.array(image) == 2
    expected = np.where(clear[..., None], 255, np.array(image.convert("RGB")))
    assert clear.any()
    assert np.array_equal(decode(encode(image, kind, transparency=2)), expected)
    assert np.array_equal(decode(encode(image, kind)), np.array(image.convert("RGB")))


def test_a_palette_may_have_an_alpha_for_each_entry() -> None:
    image = photograph().quantize(4)
    data = encode(image, transparency=bytes([255, 0, 128, 255]))
    assert (
        np.abs(
            decode(data).astype(int) - over_white(Image.open(io.BytesIO(data)).convert("RGBA"))
        ).max()
        <= 1
    )


@pytest.mark.parametrize(("mode", "clear"), [("1", 255), ("L", 7), ("RGB", (1, 2, 3))])
def test_one_colour_may_be_transparent(mode: str, clear: Any) -> None:
    image = photograph().convert(mode)
    image.putpixel((3, 2), clear)
    expected = np.array(image.convert("RGB"))
    expected[
        np.all(expected == np.array(Image.new(mode, (1, 1), clear).convert("RGB")), axis=2)
    ] = 255
    assert np.array_equal(decode(encode(image, transparency=clear)), expected)


@pytest.mark.parametrize("mode", ["1", "L"])
def test_grey_and_black_and_white(mode: str) -> None:
    image = photograph().convert(mode)
    assert np.array_equal(decode(encode(image)), np.array(image.convert("RGB")))


@pytest.mark.parametrize("kind", ["png", "tiff", "ppm"])
@pytest.mark.parametrize(
    ("brightest", "shift"),
    [
        (65_535, 8),
        (60_000, 8),
        (32_768, 8),
        (32_767, 7),
        (4_095, 4),
        (2_048, 4),
        (1_000, 2),
        (256, 1),
        (255, 0),
        (7, 0),
    ],
)
def test_sixteen_bits_are_scaled_by_the_bits_in_use(kind: str, brightest: int, shift: int) -> None:
    deep = np.linspace(0, brightest, 13 * 7).astype(np.uint16).reshape(7, 13)
    expected = np.repeat((deep >> shift).astype(np.uint8)[..., None], 3, axis=2)
    assert np.array_equal(decode(encode(Image.fromarray(deep), kind)), expected)


def test_both_byte_orders_are_read() -> None:
    deep = np.linspace(0, 4_095, 12).astype(np.uint16).reshape(3, 4)
    for order in "<>":
        image = Image.frombytes(
            "I;16" if order == "<" else "I;16B", (4, 3), deep.astype(f"{order}u2").tobytes()
        )
        assert np.array_equal(decode(encode(image, "tiff"))[..., 0], deep >> 4)


def tiff(values: list[list[float]], kind: type) -> np.ndarray:
    pixels = np.array(values, dtype=kind)
    stored_HW = pixels.reshape(-1, 50) if pixels.size == 1_000 else pixels  # no strip
    return decode(encode(Image.fromarray(stored_HW), "tiff"))[..., 0].reshape(pixels.shape)


def test_signed_numbers_keep_what_is_below_zero() -> None:
    hounsfield = np.linspace(-1024, 3071, 1_000)
    got = tiff([hounsfield.astype(int).tolist()], np.int32)[0].astype(int)
    low, high = np.percentile(hounsfield.astype(int), [0.5, 99.5])
    expected = np.floor((hounsfield.astype(int) - low) / (high - low) * 255).clip(0, 255)
    assert np.abs(got - expected).max() <= 1
    assert (got[0], got[-1]) == (0, 255)
    assert len(np.unique(got)) == 256


def test_an_outlier_does_not_darken_large_numbers() -> None:
    values = [*np.linspace(100_000, 200_000, 999).tolist(), 2_000_000_000]
    got = tiff([values], np.int32)[0]
    assert abs(int(got[499]) - 127) <= 3
    assert got[-1] == 255


def test_a_constant_picture_is_black_and_a_rare_value_is_seen() -> None:
    assert tiff([[-5] * 9], np.int32).tolist() == [[0] * 9]
    assert tiff([[-5] * 999 + [7]], np.int32)[0, [0, -1]].tolist() == [0, 255]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_picture_without_a_number_is_black(value: float) -> None:
    assert tiff([[value] * 4], np.float32).tolist() == [[0] * 4]


def test_numbers_that_are_not_finite_are_the_least_or_the_largest() -> None:
    inf, nan = float("inf"), float("nan")
    assert tiff([[0.0, 0.5, nan, inf, -inf]], np.float32).tolist() == [[0, 128, 0, 128, 0]]
    assert tiff([[-3e38, 3e38, nan]], np.float32).tolist() == [[0, 255, 0]]


def test_grey_of_eight_bits_is_not_scaled() -> None:
    dark = Image.fromarray(np.array([[0, 1, 9]], dtype=np.uint8))
    assert decode(encode(dark))[..., 0].tolist() == [[0, 1, 9]]
    assert not is_deep_grey(encode(dark), "it")
    assert is_deep_grey(encode(Image.fromarray(np.array([[9]], dtype=np.uint16))), "it")


def test_images_with_transparent_parts_are_named() -> None:
    opaque, clear = (Image.new("RGBA", (4, 4), (9, 9, 9, alpha)) for alpha in (255, 0))
    samples = [Sample(encode(image), name) for name, image in (("a", opaque), ("b", clear))]
    assert describe_transparency(samples[:1]) == ""
    assert describe_transparency(samples).startswith("b has transparent parts, which become white")
    assert describe_transparency([*samples, samples[1]]).startswith(
        "2 of 3 images looked at, among them b, have transparent parts, which become white"
    )
    palette = encode(Image.new("RGB", (4, 4)).quantize(4), transparency=0)
    assert describe_transparency([Sample(palette, "c")]).startswith("c has")
    deep = encode(Image.fromarray(np.array([[9]], dtype=np.uint16)), transparency=9)
    assert describe_transparency([Sample(deep, "d")]) == ""


def test_sixteen_bits_may_have_a_transparent_value() -> None:
    deep = np.array([[0, 30_000, 60_000]], dtype=np.uint16)
    assert decode(encode(Image.fromarray(deep), transparency=30_000))[0, :, 0].tolist() == [
        0,
        255,
        234,
    ]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0, 0.5, 1.0], [0, 128, 255]),
        ([0.0, 0.25], [0, 64]),  # dark, and not brightened
        ([0.0, 0.001, 0.002], [0, 128, 255]),  # too dark to be meant as fractions of 1
        ([0.0, 90.4, 200.0, float("nan")], [0, 90, 200, 0]),
        ([0.0, 0.6, 1.2], [0, 128, 255]),  # a little above 1: not levels
        ([-0.5, 0.0, 0.5], [0, 128, 255]),
    ],
)
def test_fractions_are_scaled(values: list[float], expected: list[int]) -> None:
    assert np.abs(tiff([values], np.float32)[0].astype(int) - expected).max() <= 1


def test_inks_are_seen_as_their_profile_says() -> None:
    image = photograph((16, 16)).convert("CMYK")
    data = encode(image, "jpeg", quality=100)
    assert np.array_equal(decode(data), np.array(Image.open(io.BytesIO(data)).convert("RGB")))
    assert np.array_equal(
        decode(encode(image, "tiff", icc_profile=b"no profile")), np.array(image.convert("RGB"))
    )
    other = ImageCms.ImageCmsProfile(
        ImageCms.createProfile("sRGB")
    ).tobytes()  # of other colours: it is ignored
    assert np.array_equal(
        decode(encode(image, "tiff", icc_profile=other)), np.array(image.convert("RGB"))
    )


@pytest.mark.parametrize("kind", ["gif", "png", "webp", "tiff"])
def test_the_first_frame_of_an_animation_counts(kind: str) -> None:
    frames = [
        Image.new("RGB", (9, 5), colour) for colour in ((200, 30, 20), (0, 0, 255), (0, 255, 0))
    ]
    how: dict[str, Any] = {"lossless": True} if kind == "webp" else {}
    got = decode(encode(frames[0], kind, save_all=True, append_images=frames[1:], **how))
    assert np.array_equal(got, np.array(frames[0]))


def test_absurd_sizes_are_refused_before_decoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "huge.png"
    with monkeypatch.context() as patched:
        patched.setattr(Image, "MAX_IMAGE_PIXELS", None)
        Image.new("1", (12_000, 12_000)).save(path)
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda image: pytest.fail("it was decoded"))
    with pytest.raises(
        BadData, match=r"huge\.png: the image is too large \(144 million pixels by its header"
    ):
        decode_image(str(path), str(path))


def test_colours_stay_as_they_are() -> None:
    assert torch.equal(
        decode_image(encode(photograph()), "it").permute(1, 2, 0),
        torch.from_numpy(np.array(photograph())),
    )


@pytest.mark.parametrize("size", [(60_000, 1), (1, 60_000), (101, 1), (30_000, 299)])
def test_a_strip_is_refused_by_name(size: tuple[int, int]) -> None:
    data = encode(Image.new("L", size))
    where = f"{size[0]} x {size[1]} pixels, and one side may be at most 100 times the other"
    for call in (decode_image, decode_mask, read_size):
        with pytest.raises(
            BadData, match=rf"^strip\.png: the image is {where}; crop it or remove it$"
        ):
            call(data, "strip.png")
    assert read_size(encode(Image.new("L", (100, 1))), "it") == (100, 1)


def test_an_associated_alpha_is_seen_over_white() -> None:
    grey = Image.new("LA", (3, 2), (100, 128)).convert("La")
    assert abs(int(np.array(_convert_to_rgb(grey))[0, 0, 0]) - (100 * 128 + 255 * 127) // 255) <= 1
