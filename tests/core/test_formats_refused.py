"""Models that a format cannot express are refused in one line, with the reason and what to do; and
`--keep-interface`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import learngene_zoo as lg
from learngene_zoo.artifacts.descendant import Descendant, assemble
from learngene_zoo.errors import Exists, WrongCall
from learngene_zoo.families.eva.spec import EvaSpec
from learngene_zoo.families.picture_format import View
from learngene_zoo.families.spec import Segment
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.lifecycle.interface import check_interface
from learngene_zoo.pretrained.ancestry import open_ancestry
from learngene_zoo.pretrained.formats.layout import split_format
from learngene_zoo.pretrained.formats.preprocessing import describe_crop
from learngene_zoo.pretrained.sources import find_format
from learngene_zoo.pretrained.timm_model import open_model

SPEC = ViTSpec(layers=2, width=32, heads=4, classes=0, image_size=32, patch_size=8, mlp_ratio=2)
EVA = EvaSpec(layers=2, width=32, heads=4, classes=0, image_size=32, patch_size=8)
SCALED = SPEC.with_(layer_scale=0.1)
SMALL = Segment(layers=1, width=32, heads=4, attention_width=16, stitch=False)
WIDE = Segment(layers=1, width=16, heads=2)
FAULTS: list[tuple[str, Any, str]] = [
    ("transformers", SPEC.with_(attention_width=16), r"heads were removed.* 16 channels.* 32"),
    ("transformers", SPEC.with_(front=(SMALL,)), "blocks have several sizes; use the format timm"),
    (
        "transformers",
        SPEC.with_(front=(WIDE,)),
        "stitched from several widths; use the format timm",
    ),
    ("open_clip", SPEC.with_(dense=True, classes=2), "a class for every pixel"),
    ("transformers", SPEC.with_(norm="rms"), "transformers:vit: it has RMSNorm, unlike ViTModel"),
    ("transformers", SPEC.with_(qk_norm=True), "norms of queries and keys"),
    ("transformers", SPEC.with_(pool="avg"), "its final norm after the pooling"),
    (
        "transformers",
        SPEC.with_(classes=2, pool="max", fc_norm=False),
        r"pool 'max'.*leave the head out",
    ),
    ("transformers:vit", SPEC.with_(registers=2), "it has registers"),
    ("transformers:dinov2_with_registers", SPEC, "it has no registers"),
    ("transformers:clip", SPEC, "no norm before the first block"),
    (
        "transformers",
        SPEC.with_(pre_norm=True, classes=2),
        r"its head has a bias.*leave the head out",
    ),
    (
        "transformers:dinov2",
        SCALED.with_(mlp_ratio=2.5),
        "80 wide.*32.*the format transformers:vit",
    ),
    ("transformers", SPEC.with_(class_token=False, pool="map", classes=2), "reads pool 'map'"),
    ("transformers", EVA, "other rotary positions than DINOv3|learned positions"),
    ("transformers:vit", EVA, "of the family eva"),
    ("open_clip", SPEC.with_(class_token=False, pool="map"), "no class token.*transformers"),
    ("open_clip", SPEC.with_(classes=2), r"its head has a bias.*leave the head out"),
    ("open_clip", SPEC.with_(channels=1), "1 channels"),
    ("open_clip", SPEC.with_(activation="silu"), "its activation is silu"),
    ("dinov2", SPEC.with_(classes=2), r"no head.*leave the head out"),
    ("dinov2", SPEC.with_(norm_eps=1e-5), "an epsilon of 1e-05"),
    ("dinov2", EVA, "of the family eva"),
]


def build(spec: Any, **settings: Any) -> Descendant:
    state = {name: tensor + 0.1 for name, tensor in assemble(spec, {}, seed=0).state.items()}
    mean = (0.5,) * spec.channels
    return Descendant(spec=spec, state=state, mean=mean, std=mean, **settings)


@pytest.mark.parametrize(("format", "spec", "words"), FAULTS)
def test_the_reason_and_the_advice_are_one_line(
    format: str, spec: Any, words: str, tmp_path: Path
) -> None:
    with pytest.raises(WrongCall, match=f"the model cannot be written as .*{words}") as raised:
        lg.convert(build(spec), tmp_path / "out", format=format)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "out").exists()


def test_a_siglip_whose_head_has_several_labels_at_once_is_read_without_it(tmp_path: Path) -> None:
    spec = SPEC.with_(class_token=False, pool="avg", fc_norm=False, classes=2)
    lg.convert(build(spec), tmp_path / "siglip", format="transformers:siglip")
    assert open_ancestry(str(tmp_path / "siglip")).spec.classes == 2
    path = tmp_path / "siglip" / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "problem_type": "multi_label_classification"}))
    ancestry = open_ancestry(str(tmp_path / "siglip"))
    assert ancestry.spec.classes == 0
    assert any("'multi_label_classification'" in part for part in ancestry.record.left_out)
    with pytest.raises(WrongCall, match=r"does not choose one of several.*head=False$"):
        lg.convert(tmp_path / "siglip", tmp_path / "out", format="transformers")
    # A descendant has a head that it chooses classes with.
    gene = lg.extract("first_k", ancestry=str(tmp_path / "siglip"))
    small = lg.expand(gene, layers=1, classes=3)
    lg.convert(small, tmp_path / "small", format="transformers:siglip")
    lg.convert(tmp_path / "small", tmp_path / "back", format="timm")
    assert open_model(tmp_path / "back").classes == 3


@pytest.mark.slow
def test_padded_pictures_are_refused_and_other_crops_named(tmp_path: Path) -> None:
    padded = build(SPEC, view=View(crop_mode="border"))
    for format in ("transformers", "open_clip"):
        with pytest.raises(WrongCall, match=r"its images are padded.*the fit crop"):
            lg.convert(padded, tmp_path / "out", format=format)
    words = describe_crop(build(SPEC, view=View(crop_pct=0.875)).input_format)
    assert words == ("open_clip resizes images to 32 pixels, and not to 36 before it crops 32",)
    assert describe_crop(build(SPEC).input_format) == ()


@pytest.mark.parametrize(
    ("format", "words"),
    [
        ("onnx", "no format named 'onnx'"),
        ("transformers:dino", "no kind of transformers named 'dino'"),
        ("dinov2:vit", "dinov2 has one kind of model"),
    ],
)
def test_a_name_that_does_not_exist_is_refused(format: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(WrongCall, match=words):
        split_format(format)
    with pytest.raises(WrongCall, match=words):
        lg.convert(tmp_path / "nowhere", tmp_path / "out", format=format)


def test_an_existing_folder_is_refused_first(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(Exists):
        lg.convert(tmp_path / "nowhere", tmp_path / "out", format="dinov2")


def test_the_format_of_the_source_is_the_default_or_asked_for(tmp_path: Path) -> None:
    build(SPEC).save(tmp_path / "timm")
    with pytest.raises(WrongCall, match="is not known here; choose one: format timm, transfor"):
        lg.convert(tmp_path / "timm", tmp_path / "out")
    lg.extract("first_k", ancestries="bundled", out=tmp_path / "learngene")
    lg.expand(tmp_path / "learngene", layers=2, out=tmp_path / "descendant")
    with pytest.raises(WrongCall, match=r"in timm's format already.*: format transformers, open"):
        lg.convert(tmp_path / "descendant", tmp_path / "out")
    assert find_format("timm:deit_tiny_patch16_224") == "timm"
    assert find_format("bundled") == "timm"
    assert find_format(str(tmp_path / "timm")) == "timm"
    assert find_format("hf-hub:org/never-cached") is None
    assert find_format(str(tmp_path / "nowhere")) is None
    lg.convert(tmp_path / "descendant", tmp_path / "vit", format="transformers", head=False)
    assert find_format(str(tmp_path / "vit")) == "transformers:vit"
    lg.convert(tmp_path / "descendant", tmp_path / "dino", format="dinov2", head=False)
    assert find_format(str(tmp_path / "dino")) == "dinov2"
    weights = tmp_path / "dino" / "model.safetensors"
    assert find_format(f"{weights}#vit_small_patch14_dinov2") == "dinov2"


# The interface.


@pytest.fixture
def pictures(tmp_path: Path) -> str:
    """Return a folder of 24 random pictures, as images without labels."""
    (tmp_path / "pictures").mkdir()
    generator = torch.Generator().manual_seed(0)
    for number in range(24):
        values = torch.rand(6, 6, 3, generator=generator).mul(255).byte().numpy()
        Image.fromarray(values).resize((40, 40)).save(tmp_path / "pictures" / f"{number}.png")
    return f"folder:{tmp_path / 'pictures'}"


def expand(layers: int, folder: Path, **sizes: Any) -> Path:
    lg.extract("first_k", ancestries="bundled", out=folder / "learngene")
    lg.expand(folder / "learngene", layers=layers, out=folder / f"layers-{layers}", **sizes)
    return folder / f"layers-{layers}"


@pytest.mark.slow
def test_the_whole_model_agrees_with_its_ancestry_model(tmp_path: Path, pictures: str) -> None:
    depth = lg.extract("first_k", ancestries="bundled").config.spec.layers
    call: dict[str, Any] = {"format": "dinov2", "head": False, "keep_interface": True}
    same = lg.convert(expand(depth, tmp_path), tmp_path / "a", images=pictures, **call).agreement
    assert same is not None
    assert same.patch_r2 == pytest.approx(1, abs=1e-6)
    assert same.token_cosine == pytest.approx(1, abs=1e-6)
    fewer = lg.convert(
        expand(depth - 1, tmp_path / "less"), tmp_path / "b", images=pictures, **call
    ).agreement
    assert fewer is not None
    assert fewer.patch_r2 < 0.999
    assert -1 <= fewer.patch_cosine < 0.9999
    assert 0 < fewer.images <= 24


def test_another_width_or_grid_is_refused(tmp_path: Path) -> None:
    for other, words in (
        (SPEC.with_(width=64), "is 64 wide, and its ancestry model 32"),
        (SPEC.with_(image_size=64), "has images of 64 pixels, and its ancestry model 32"),
        (SPEC.with_(patch_size=16), "has patches of 16 pixels"),
        (SPEC.with_(registers=2), "has 3 tokens before the patches, and its ancestry model 1"),
    ):
        with pytest.raises(WrongCall, match=words):
            check_interface(other, SPEC, "it")
    check_interface(SPEC.with_(layers=1, mlp_ratio=1.0), SPEC, "it")
    larger = expand(2, tmp_path, image_size=64)
    with pytest.raises(WrongCall, match=r"has images of 64 pixels.*leave out keep_interface"):
        lg.convert(larger, tmp_path / "out", format="transformers", keep_interface=True)


def test_without_an_ancestry_model_there_is_one_line(tmp_path: Path, pictures: str) -> None:
    build(SPEC).save(tmp_path / "scratch")
    with pytest.raises(WrongCall, match="records no ancestry model; name one: add ancestry="):
        lg.convert(tmp_path / "scratch", tmp_path / "out", format="dinov2", keep_interface=True)
    with pytest.raises(WrongCall, match="used only to compare tokens; add keep_interface=True"):
        lg.convert(tmp_path / "scratch", tmp_path / "out", format="dinov2", images=pictures)
    build(SPEC).save(tmp_path / "source")
    lg.extract("first_k", ancestries=str(tmp_path / "source"), out=tmp_path / "learngene")
    stranger: Any = lg.expand(tmp_path / "learngene", layers=1)
    settings: dict[str, Any] = {"format": "dinov2", "keep_interface": True, "images": pictures}
    changed = Descendant(
        spec=stranger.spec,
        state={name: tensor + 1 for name, tensor in stranger.state.items()},
        provenance=stranger.provenance,
    )
    with pytest.raises(WrongCall, match="which is opened only if you name it: add ancestry="):
        lg.convert(changed, tmp_path / "out", **settings)
    named = lg.convert(changed, tmp_path / "out", ancestry=str(tmp_path / "source"), **settings)
    assert named.agreement is not None
