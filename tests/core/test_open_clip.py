"""Vision towers saved by open_clip are opened as timm models.

The folders are in open_clip's layout: the tower's tensors as `visual.trunk.`, a text tower beside
it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file

from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families.picture_format import View
from learngene_zoo.pretrained import from_open_clip as open_clip
from learngene_zoo.pretrained.ancestry import open_ancestry, read_ancestry_spec

IMAGES_BCHW = torch.linspace(-1, 1, 2 * 3 * 32 * 32).view(2, 3, 32, 32)
TINY = {"depth": 2, "embed_dim": 32, "num_heads": 2, "patch_size": 8, "img_size": 32}
SIGLIP = {"timm_model_name": "vit_base_patch16_siglip_224", "timm_pool": "map", "timm_proj": "none"}
EVA = {"timm_model_name": "eva02_base_patch16_clip_224", "timm_pool": "token", "timm_proj": None}
PERCEPTION = {
    "timm_model_name": "vit_pe_core_tiny_patch16_384",
    "timm_pool": "map",
    "timm_proj": None,
}
MOBILE = {"timm_model_name": "vit_large_patch14_clip_224", "timm_pool": "token", "timm_proj": ""}
AVERAGED = {"timm_model_name": "vit_tiny_patch16_224", "timm_pool": "avg", "timm_proj": "linear"}
OWN = {"timm_model_name": "vit_medium_patch16_gap_256", "timm_pool": "", "timm_proj": "mlp"}
PREPROCESS = {
    "mean": [0.5, 0.5, 0.5],
    "std": [0.4, 0.5, 0.6],
    "interpolation": "bilinear",
    "resize_mode": "squash",
}


def tower(vision: dict[str, Any]) -> torch.nn.Module:
    """Return the tower that open_clip builds: with a projection after it, timm's norms are
    unchanged.
    """
    pool, projection = vision["timm_pool"], vision["timm_proj"]
    torch.manual_seed(0)
    if projection in ("linear", "mlp"):
        model = timm.create_model(vision["timm_model_name"], **TINY)
        model.reset_classifier(0, **({"global_pool": pool} if pool else {}))
    else:
        classes = 0 if projection == "none" else 24
        model = timm.create_model(
            vision["timm_model_name"], num_classes=classes, global_pool=pool, **TINY
        )
    for tensor in model.parameters():
        torch.nn.init.normal_(tensor, std=0.1)
    return model.eval()


def write(
    place: Path, vision: dict[str, Any], model: torch.nn.Module | None = None, **config: object
) -> Path:
    """Write a folder as open_clip does."""
    place.mkdir(parents=True, exist_ok=True)
    vision = {"image_size": 32, "timm_model_pretrained": False, "timm_model_kwargs": TINY, **vision}
    said = {"embed_dim": 24, "vision_cfg": vision, "text_cfg": {"width": 16}, "custom_text": True}
    (place / open_clip.CONFIG).write_text(
        json.dumps({"model_cfg": said, "preprocess_cfg": PREPROCESS, **config})
    )
    state = {"logit_scale": torch.ones(()), "text.ln_final.weight": torch.full((16,), torch.nan)}
    if model is not None:
        state |= {f"visual.trunk.{name}": tensor for name, tensor in model.state_dict().items()}
        state["visual.head.proj.weight"] = torch.ones(24, 32)
    save_file(state, place / open_clip.WEIGHTS[0])
    return place


@pytest.mark.parametrize(
    "vision",
    [SIGLIP, EVA, PERCEPTION, MOBILE, AVERAGED, OWN],
    ids=lambda vision: vision["timm_model_name"],
)
def test_the_answers_are_those_of_the_tower(tmp_path: Path, vision: dict[str, Any]) -> None:
    model = tower(vision)
    ancestry = open_ancestry(str(write(tmp_path, vision, model)))
    assert ancestry.spec == read_ancestry_spec(str(tmp_path))
    assert ancestry.spec.classes == (24 if vision in (EVA, PERCEPTION, MOBILE) else 0)
    with torch.no_grad():
        assert torch.equal(ancestry.model()(IMAGES_BCHW), model(IMAGES_BCHW))


def test_images_are_presented_as_open_clip_does(tmp_path: Path) -> None:
    record = open_ancestry(str(write(tmp_path, SIGLIP, tower(SIGLIP)))).record
    assert (record.mean, record.std) == ((0.5, 0.5, 0.5), (0.4, 0.5, 0.6))
    assert record.view == View(crop_pct=1.0, interpolation="bilinear", crop_mode="squash")
    write(tmp_path, SIGLIP, tower(SIGLIP), preprocess_cfg={"interpolation": "random"})
    record = open_ancestry(str(tmp_path)).record
    assert (list(record.mean), list(record.std)) == (
        open_clip.USUAL["mean"],
        open_clip.USUAL["std"],
    )
    assert record.view == View(crop_pct=1.0, interpolation="bicubic", crop_mode="center")


def test_other_names_of_the_file(tmp_path: Path) -> None:
    write(tmp_path, SIGLIP, tower(SIGLIP))
    (tmp_path / open_clip.WEIGHTS[0]).rename(tmp_path / open_clip.WEIGHTS[1])
    full = open_ancestry(str(tmp_path))
    (tmp_path / open_clip.WEIGHTS[1]).rename(tmp_path / "mine.safetensors")
    assert open_ancestry(f"{tmp_path}/mine.safetensors").identity == full.identity
    (tmp_path / "open_clip_pytorch_model.bin").touch()
    with pytest.raises(BadFile, match="may run code when opened"):
        open_ancestry(str(tmp_path))


def test_a_config_of_timms_beside_it_comes_first(tmp_path: Path) -> None:
    write(tmp_path, {"timm_model_name": None, "timm_pool": None, "layers": "many"}, tower(SIGLIP))
    (tmp_path / "model.safetensors").touch()
    for config, opens in (
        ('{"architecture": "vit_tiny_patch16_224"}', True),
        ('{"model_type": "clip"}', False),
    ):
        (tmp_path / "config.json").write_text(config)
        if opens:
            assert read_ancestry_spec(str(tmp_path)).width == 192
        else:  # of the two formats that could be meant, open_clip's is the one that can say more
            with pytest.raises(BadFile, match="layers is 'many'"):
                read_ancestry_spec(str(tmp_path))


@pytest.mark.parametrize(
    ("vision", "error", "words"),
    [
        (
            {"layers": [3, 4, 6, 3], "width": 64},
            WrongCall,
            "own class with a list as layers, which is not read; look for the same weights in timm",
        ),
        (
            {**SIGLIP, "timm_model_name": "convnext_base"},
            WrongCall,
            "timm.models.convnext, which is not supported",
        ),
        ({**SIGLIP, "timm_model_name": "vit_bose"}, WrongCall, "no timm model named 'vit_bose'"),
        ({**SIGLIP, "timm_model_name": ["vit"]}, BadFile, "names no timm architecture"),
        ({**SIGLIP, "timm_pool": "abs_attn"}, BadFile, 'pool is "abs_attn"'),
        ({**AVERAGED, "timm_pool": "rot_attn"}, WrongCall, "no pooling named 'rot_attn'"),
        ({**AVERAGED, "timm_pool": ["avg"]}, BadFile, "timm_pool is list"),
        ({**SIGLIP, "timm_model_kwargs": [1]}, BadFile, "timm_model_kwargs is list"),
        ({**SIGLIP, "timm_model_kwargs": {"block_fn": 1}}, BadFile, "model_args has 'block_fn'"),
        ({**SIGLIP, "image_size": [32, 16]}, BadFile, "only square"),
        ({**SIGLIP, "image_size": 48}, BadFile, "pos_embed has shape"),
        (
            {**SIGLIP, "timm_model_kwargs": {**TINY, "depth": 3}},
            BadFile,
            "lacks the tensor blocks.2",
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_is_not_read_is_refused(
    tmp_path: Path, vision: dict[str, Any], error: type[Exception], words: str
) -> None:
    write(tmp_path, vision, tower(SIGLIP))
    with pytest.raises(error, match=words) as raised:
        open_ancestry(str(tmp_path))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_cfg": None}, "model_cfg is NoneType; expected an object"),
        ({"preprocess_cfg": [1]}, "preprocess_cfg is list"),
        ({"preprocess_cfg": {"mean": "x"}}, "mean is x"),
        ({"preprocess_cfg": {"resize_mode": "longest"}}, 'crop_mode is "longest"'),
        ({"preprocess_cfg": {"resize_mode": {"a": 1}}}, "crop_mode is"),
    ],
)
def test_configs_that_are_refused(tmp_path: Path, config: dict[str, Any], words: str) -> None:
    write(tmp_path, SIGLIP, tower(SIGLIP), **config)
    with pytest.raises(BadFile, match=words):
        open_ancestry(str(tmp_path))


def test_weights_without_a_vision_tower_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"no tensors of a vision tower of timm's \(visual\.trunk"):
        open_ancestry(str(write(tmp_path, SIGLIP)))


def test_the_twin_in_timm_is_named() -> None:
    assert set(open_clip.TWINS.values()) <= set(timm.list_pretrained())
    config = {"model_cfg": {"vision_cfg": {"layers": 24, "attentional_pool": True}}}
    for name, twin in (
        ("L-14-39B", "vit_large_patch14_clip_224.dfn2b_s39b"),
        ("L-14", "quickgelu_224.dfn2b "),
    ):
        with pytest.raises(WrongCall, match=f"from timm: timm:.*{twin}"):
            open_clip.read_spec(config, f"{open_clip.CONFIG} of apple/DFN2B-CLIP-ViT-{name}")
