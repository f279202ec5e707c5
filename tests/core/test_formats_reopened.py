"""Converted folders are ancestry models again: towers of open_clip's class, classifiers of SigLIP,
and models of these packages that nobody here has written.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import learngene_zoo as lg
from learngene_zoo.artifacts.descendant import Descendant, assemble
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families.tensors import build_model
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.pretrained.ancestry import open_ancestry, read_ancestry_spec
from learngene_zoo.pretrained.from_open_clip import CONFIG, read_spec
from learngene_zoo.pretrained.sources import find_format
from learngene_zoo.pretrained.timm_model import open_model

VIT = ViTSpec(layers=2, width=128, heads=2, classes=0, image_size=32, patch_size=8, mlp_ratio=2)
CLIP = VIT.with_(pre_norm=True, norm_eps=1e-5)
SIGLIP = VIT.with_(class_token=False, pool="avg", fc_norm=False, classes=3)
IMAGES_BCHW = torch.linspace(-1, 1, 2 * 3 * 32 * 32).view(2, 3, 32, 32)
CONVERTED: dict[str, tuple[str, ViTSpec]] = {
    "clip": ("open_clip", CLIP),
    "clip with a projection": ("open_clip", CLIP.with_(classes=5)),
    "quick": ("open_clip", CLIP.with_(activation="quick_gelu")),
    "tanh": ("open_clip", CLIP.with_(activation="gelu_tanh", norm_eps=1e-6)),
    "dinov2": ("open_clip", VIT.with_(layer_scale=0.1)),
    "averaged": ("open_clip", VIT.with_(pool="avg", fc_norm=False)),
    "siglip": ("transformers", SIGLIP),
}


def build(spec: ViTSpec) -> Descendant:
    state = dict(assemble(spec, {}, seed=0).state)
    generator = torch.Generator().manual_seed(1)
    state = {
        name: tensor + 0.1 * torch.randn(tensor.shape, generator=generator)
        for name, tensor in state.items()
    }
    if "head.bias" in state and spec.class_token:
        state["head.bias"] = torch.zeros_like(state["head.bias"])  # as a projection has
    names = tuple(f"class {number}" for number in range(spec.classes))
    return Descendant(spec=spec, state=state, provenance={"method": "first_k"}, class_names=names)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONVERTED)
def test_a_converted_folder_is_an_ancestry_model(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    format, spec = CONVERTED[name]
    model = build(spec)
    lg.convert(model, tmp_path / "converted", format=format)
    ancestry = open_ancestry(str(tmp_path / "converted"))
    assert read_ancestry_spec(str(tmp_path / "converted")) == ancestry.spec
    # Without a head, the projection is the identity.
    assert ancestry.spec.classes == (spec.classes or spec.width)
    assert ancestry.class_names == (model.class_names if format == "transformers" else ())
    with torch.no_grad():
        outputs, wanted = (
            build_model(shape, state).eval()(IMAGES_BCHW)
            for shape, state in ((ancestry.spec, ancestry.state), (spec, model.state))
        )
    torch.testing.assert_close(outputs, wanted, atol=1e-5, rtol=1e-4)
    learngene = lg.extract("first_k", ancestries=str(tmp_path / "converted"))
    assert lg.expand(learngene, layers=1, classes=0).spec.layers == 1
    lg.convert(tmp_path / "converted", tmp_path / "again", format=format)
    files = [next(path.glob("*.safetensors")) for path in tmp_path.iterdir()]
    first, second = (load_file(file) for file in files)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)
    lg.convert(tmp_path / "converted", tmp_path / "back", format="timm")
    assert lg.load(tmp_path / "back").provenance["method"] == "first_k"


def test_a_classifier_of_siglip_that_transformers_saved(tmp_path: Path) -> None:
    """Its tower may have a pooling, which the classifier does not read."""
    tf = pytest.importorskip("transformers")
    vision: dict[str, Any] = {
        **{"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
        **{"image_size": 32, "patch_size": 8, "intermediate_size": 64},
    }
    torch.manual_seed(0)
    config = tf.SiglipConfig(vision_config=vision, num_labels=3)
    model = tf.SiglipForImageClassification(config).eval()
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.add_(0.1 * torch.randn_like(tensor))
    model.save_pretrained(tmp_path)
    ancestry = open_ancestry(str(tmp_path))
    assert (ancestry.spec.pool, ancestry.spec.classes) == ("avg", 3)
    assert find_format(str(tmp_path)) == "transformers:siglip"
    with torch.no_grad():
        outputs = build_model(ancestry.spec, ancestry.state).eval()(IMAGES_BCHW)
        torch.testing.assert_close(outputs, model(IMAGES_BCHW).logits, atol=1e-5, rtol=1e-4)
    if any(name.startswith("vision_model.head.") for name in model.state_dict()):
        assert any("head" in part for part in ancestry.record.left_out)


@pytest.mark.parametrize("kind", ["CLIP", "Siglip"])
def test_of_two_towers_of_transformers_that_of_images_is_read(kind: str, tmp_path: Path) -> None:
    tf = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    vision = {**sizes, "image_size": 32, "patch_size": 8, "intermediate_size": 64}
    text = {**sizes, "intermediate_size": 64, "vocab_size": 16, "max_position_embeddings": 8}
    text |= {"projection_size": 32} if kind == "Siglip" else {}
    more = {"projection_dim": 24} if kind == "CLIP" else {}
    torch.manual_seed(0)
    config = getattr(tf, f"{kind}Config")(vision_config=vision, text_config=text, **more)
    model = getattr(tf, f"{kind}Model")(config).eval()
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.add_(0.1 * torch.randn_like(tensor))
    model.save_pretrained(tmp_path / "whole")
    ancestry = open_ancestry(str(tmp_path / "whole"))
    assert ancestry.spec.classes == more.get("projection_dim", 0)
    assert find_format(str(tmp_path / "whole")) == f"transformers:{kind.lower()}"
    (part,) = ancestry.record.left_out
    assert part.startswith("the text tower (")
    with torch.no_grad():
        expected = model.get_image_features(IMAGES_BCHW)
        expected = getattr(expected, "pooler_output", expected)
        outputs = build_model(ancestry.spec, ancestry.state).eval()(IMAGES_BCHW)
        torch.testing.assert_close(outputs, expected, atol=1e-5, rtol=1e-4)
    assert open_model(tmp_path / "whole").classes == 0  # a projection gives no classes
    result = lg.convert(tmp_path / "whole", tmp_path / "tower")
    assert result.format == f"transformers:{kind.lower()}"
    assert result.difference is not None
    assert result.difference < 1e-5
    if kind == "CLIP":  # beside open_clip's layout, as in published repositories
        lg.convert(tmp_path / "whole", tmp_path / "open", format="open_clip")
        shutil.copy(tmp_path / "whole" / "config.json", tmp_path / "open")
        assert find_format(str(tmp_path / "open")) == "open_clip"
        assert open_ancestry(str(tmp_path / "open")).spec.classes == 24
        assert open_model(tmp_path / "open").classes == 0


def test_a_classifier_of_clip_is_read_without_its_head(tmp_path: Path) -> None:
    tf = pytest.importorskip("transformers")
    vision = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    vision |= {"image_size": 32, "patch_size": 8, "intermediate_size": 64}
    config = tf.CLIPConfig(vision_config=vision, num_labels=3)
    tf.CLIPForImageClassification(config).save_pretrained(tmp_path)
    ancestry = open_ancestry(str(tmp_path))
    assert ancestry.spec.classes == 0
    assert any("classifier" in part for part in ancestry.record.left_out)


def test_a_tower_of_open_clip_that_open_clip_made(tmp_path: Path) -> None:
    """With a text tower beside it, as in published repositories."""
    open_clip = pytest.importorskip("open_clip")
    vision = {"image_size": 32, "layers": 2, "width": 64, "head_width": 16, "patch_size": 8}
    text = {"context_length": 8, "vocab_size": 16, "width": 16, "heads": 2, "layers": 1}
    usual = {"pos_embed_type": "learnable", "attn_pooler_heads": 8, "patch_dropout": 0.5}
    config = {"embed_dim": 24, "vision_cfg": {**vision, **usual}, "text_cfg": text}
    torch.manual_seed(0)
    clip = open_clip.model.CLIP(**config).eval()
    (tmp_path / CONFIG).write_text(json.dumps({"model_cfg": config}))
    save_file(
        {name: tensor.contiguous() for name, tensor in clip.state_dict().items()},
        tmp_path / "open_clip_model.safetensors",
    )
    ancestry = open_ancestry(str(tmp_path))
    assert (ancestry.spec.classes, ancestry.spec.heads, ancestry.spec.pre_norm) == (24, 4, True)
    assert any("transformer" in part for part in ancestry.record.left_out)
    with torch.no_grad():
        outputs = build_model(ancestry.spec, ancestry.state).eval()(IMAGES_BCHW)
        torch.testing.assert_close(outputs, clip.visual(IMAGES_BCHW), atol=1e-5, rtol=1e-4)


OWN: dict[str, Any] = {"layers": 2, "width": 64, "head_width": 16, "image_size": 32}


@pytest.mark.parametrize(
    ("vision", "error", "words"),
    [
        ({"attentional_pool": True}, WrongCall, "own class with attentional_pool, which is not"),
        ({"pos_embed_type": "sin_cos_2d"}, WrongCall, "with pos_embed_type, which is not read"),
        ({"pool_type": "none"}, WrongCall, "with pool_type 'none'"),
        ({"norm_kwargs": {"eps": 1e-3}}, WrongCall, "with norms of eps 0.001"),
        ({"norm_kwargs": {"bias": False}}, WrongCall, "with norm_kwargs bias"),
        ({"act_kwargs": {"approximate": "sin"}}, WrongCall, "with GELU 'sin'"),
        ({"act_kwargs": {"inplace": True}}, WrongCall, "with act_kwargs inplace"),
        ({"norm_kwargs": [1]}, BadFile, "norm_kwargs and act_kwargs must be objects"),
        ({"width": "64"}, BadFile, "width is '64'; expected a whole number above 0"),
        ({"layers": 0}, BadFile, "layers is 0"),
        ({"head_width": 24}, BadFile, "head_width 24 does not divide the width"),
        ({"mlp_ratio": "4"}, BadFile, "mlp_ratio"),
        ({"ls_init_value": -1}, BadFile, "layer_scale is -1"),
    ],
)
def test_a_tower_of_open_clip_that_is_not_read(
    vision: dict[str, Any], error: type[Exception], words: str
) -> None:
    config = {"model_cfg": {"embed_dim": 8, "vision_cfg": {**OWN, **vision}}}
    with pytest.raises(error, match=words):
        read_spec(config, "open_clip_config.json")


def test_the_same_weights_in_timm_are_named() -> None:
    config = {"model_cfg": {"embed_dim": 8, "vision_cfg": {**OWN, "attentional_pool": True}}}
    with pytest.raises(WrongCall, match=r"use the same weights from timm: timm:vit_base_patch16"):
        read_spec(config, "hf-hub:laion/CLIP-ViT-B-16-laion2B-s34B-b88K/open_clip_config.json")


def test_a_tower_without_its_tensors_is_refused(tmp_path: Path) -> None:
    lg.convert(build(CLIP), tmp_path / "clip", format="open_clip")
    weights = tmp_path / "clip" / "open_clip_model.safetensors"
    tensors = load_file(weights)
    for name, words in (
        ("visual.ln_pre.weight", "lacks the tensor norm_pre.weight"),
        ("visual.class_embedding", r"has no tensors of a vision tower of timm's"),
    ):
        save_file({key: tensors[key] for key in tensors if key != name}, weights)
        with pytest.raises(BadFile, match=words):
            open_ancestry(str(tmp_path / "clip"))
