"""Models in the layouts of transformers, open_clip and DINOv2: the same tensors as the source, and
the same outputs, opened without this package.

The sources are small random models that the other packages make themselves.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

import learngene_zoo as lg
from learngene_zoo.artifacts.descendant import Descendant, assemble
from learngene_zoo.errors import BadFile, Refused, TrainingFailed, TrainingWarning
from learngene_zoo.families.eva.spec import EvaSpec
from learngene_zoo.families.picture_format import View
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.lifecycle import Conversion
from learngene_zoo.pretrained.ancestry import open_ancestry
from learngene_zoo.pretrained.formats import check
from learngene_zoo.pretrained.timm_model import load_model
from learngene_zoo.storage import read_json

tf = pytest.importorskip("transformers")

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}
MLP = {**SIZES, "intermediate_size": 64}
EPS = {"layer_norm_eps": 1e-6}
THREE = {"num_labels": 3}
SOURCES: dict[str, tuple[Any, Any]] = {
    "vit": (tf.ViTForImageClassification, tf.ViTConfig(**MLP, **EPS, **THREE)),
    "vit_msn": (tf.ViTMSNForImageClassification, tf.ViTMSNConfig(**MLP, **THREE)),
    "ijepa": (tf.IJepaForImageClassification, tf.IJepaConfig(**MLP, **EPS, **THREE)),
    "dinov2": (tf.Dinov2Model, tf.Dinov2Config(**SIZES, mlp_ratio=2, use_mask_token=False)),
    "dinov2_swiglu": (
        tf.Dinov2Model,
        tf.Dinov2Config(**SIZES, mlp_ratio=3, use_mask_token=False, use_swiglu_ffn=True),
    ),
    "dinov2_with_registers": (
        tf.Dinov2WithRegistersModel,
        tf.Dinov2WithRegistersConfig(**SIZES, mlp_ratio=2),
    ),
    "dinov3": (tf.DINOv3ViTModel, tf.DINOv3ViTConfig(**MLP, num_register_tokens=2)),
    "dinov3_gated": (
        tf.DINOv3ViTModel,
        tf.DINOv3ViTConfig(
            **MLP, use_gated_mlp=True, hidden_act="silu", query_bias=False, value_bias=False
        ),
    ),
    "siglip": (tf.SiglipVisionModel, tf.SiglipVisionConfig(**MLP)),
    "siglip_without_pool": (
        tf.SiglipVisionModel,
        tf.SiglipVisionConfig(**MLP, vision_use_head=False),
    ),
    "clip": (tf.CLIPVisionModel, tf.CLIPVisionConfig(**MLP)),
    "clip_projection": (
        tf.CLIPVisionModelWithProjection,
        tf.CLIPVisionConfig(**MLP, projection_dim=5),
    ),
}
KIND = {"dinov2_swiglu": "dinov2", "dinov3": "dinov3_vit", "dinov3_gated": "dinov3_vit"}
KIND |= {"siglip_without_pool": "siglip", "clip_projection": "clip", "vit_msn": "vit"}
IMAGES_BCHW = torch.linspace(-1, 1, 2 * 3 * 32 * 32).view(2, 3, 32, 32)
MASK = {"embeddings.mask_token"}  # only for a pretraining: left out, and zeros where it must exist


def save_source(name: str, folder: Path) -> Path:
    """Save a random model of transformers, none of whose tensors is at an initial 0 or 1."""
    make, config = SOURCES[name]
    torch.manual_seed(0)
    model = make(config)
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.add_(0.1 * torch.randn_like(tensor))
    model.save_pretrained(folder)
    return folder


def expand_whole(source: Path, folder: Path) -> Path:
    """Extract and expand at the full depth, so that the descendant is the source."""
    lg.extract("first_k", ancestries=str(source), out=folder / "learngene")
    lg.expand(folder / "learngene", layers=3, out=folder / "descendant")
    return folder / "descendant"


def read_outputs(folder: Path) -> torch.Tensor:
    """Return the outputs of a model of transformers that its class in config.json opens."""
    (name,) = read_json(folder / "config.json")["architectures"]
    model, report = getattr(tf, name).from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    with torch.no_grad():
        outputs = model.eval()(IMAGES_BCHW)
    return next(
        outputs[key]
        for key in ("logits", "image_embeds", "last_hidden_state")
        if outputs.get(key) is not None
    )


@pytest.mark.parametrize("name", SOURCES)
def test_read_and_written_at_full_size_the_tensors_are_the_same(name: str, tmp_path: Path) -> None:
    """The law for every kind of transformers; the descendant has every tensor but a random head."""
    source = save_source(name, tmp_path / "source")
    stored = load_file(source / "model.safetensors")
    if name != "clip_projection":
        descendant = expand_whole(source, tmp_path)
        result = lg.convert(descendant, tmp_path / "out", head=False)  # the source's own format
        written = load_file(tmp_path / "out" / "model.safetensors")
        inner = {"vit": "vit.", "vit_msn": "vit.", "ijepa": "ijepa."}.get(name, "")
        compare(stored, written, name, inner)
        assert result.format == f"transformers:{KIND.get(name, name)}"
    if name == "vit_msn":
        return  # written as a ViT, whose names have another prefix
    result = lg.convert(source, tmp_path / "whole")
    compare(stored, load_file(tmp_path / "whole" / "model.safetensors"), name)
    assert result.difference is not None
    assert result.difference < 1e-5
    assert torch.equal(read_outputs(source), read_outputs(tmp_path / "whole")) or "reg" in name


def compare(
    stored: dict[str, torch.Tensor], written: dict[str, torch.Tensor], name: str, prefix: str = ""
) -> None:
    """Check that the tensors are the same, but for those that a layout cannot keep."""
    bare = {key.removeprefix(prefix): value for key, value in stored.items()}
    if prefix:
        bare = {key: value for key, value in bare.items() if not key.startswith("classifier.")}
        written = {key: value for key, value in written.items() if not key.startswith("pooler.")}
    assert bare.keys() - MASK == written.keys() - MASK
    if name == "dinov2_with_registers":  # timm stores the sum of the class token and its position
        for state in (bare, written):
            token = state.pop("embeddings.cls_token")
            positions = state["embeddings.position_embeddings"]
            state["sum"] = token[:, 0] + positions[:, 0]
            state["embeddings.position_embeddings"] = positions[:, 1:]
    for key in bare.keys() - MASK:
        assert torch.equal(bare[key], written[key]), key


def test_a_mask_token_is_named_as_left_out(tmp_path: Path) -> None:
    tf.Dinov2Model(tf.Dinov2Config(**SIZES, mlp_ratio=2)).save_pretrained(tmp_path / "source")
    result = lg.convert(tmp_path / "source", tmp_path / "out", format="transformers")
    assert result.left_out == ("mask_token (1 tensor, used only in pretraining)",)
    assert read_json(tmp_path / "out" / "config.json")["use_mask_token"] is False
    assert "embeddings.mask_token" not in load_file(tmp_path / "out" / "model.safetensors")


def test_of_a_deit_the_distillation_token_is_lost_and_it_becomes_a_vit(tmp_path: Path) -> None:
    tf.DeiTModel(tf.DeiTConfig(**MLP)).save_pretrained(tmp_path / "source")
    result = lg.convert(tmp_path / "source", tmp_path / "out", format="transformers")
    assert result.format == "transformers:vit"
    assert "distillation token and its head" in result.left_out
    written = load_file(tmp_path / "out" / "model.safetensors")
    stored = load_file(tmp_path / "source" / "model.safetensors")
    shared = written.keys() & stored.keys() - {"embeddings.position_embeddings"}
    assert {name for name in shared if not torch.equal(written[name], stored[name])} == {
        "pooler.dense.weight"
    }


# A spec for each change of tensors, and the largest difference of an output.
BASE = ViTSpec(layers=2, width=32, heads=4, classes=0, image_size=32, patch_size=8, mlp_ratio=2)
GATED = {"mlp": "swiglu_packed", "activation": "silu", "layer_scale": 0.1}
DINOV3 = EvaSpec(
    layers=2,
    width=32,
    heads=4,
    classes=0,
    image_size=32,
    patch_size=8,
    rotary=True,
    rope_type="dinov3",
    rope_half=True,
    rope_temperature=100.0,
    absolute=False,
    registers=2,
    layer_scale=0.1,
    norm_eps=1e-5,
    final_norm=True,
    fc_norm=False,
)
# Of DINOv2: on some processors its separate queries, keys and values are rounded otherwise.
ROUNDING = 1e-6
WRITTEN: list[tuple[str, Any, str, float]] = [
    ("transformers:vit", BASE, "pooler", 0.0),
    ("transformers:vit", BASE.with_(classes=3), "", 0.0),
    ("transformers:vit", BASE.with_(norm_eps=1e-5, activation="quick_gelu"), "pooler", 0.0),
    ("transformers:vit", BASE.with_(no_embed_class=True), "position of zeros", 0.0),
    ("transformers:vit", BASE.with_(qkv_bias=False, proj_bias=False), "biases of 0", 0.0),
    ("transformers:vit", BASE.with_(layer_scale=0.1), "multiplied into", 1e-5),
    ("transformers:dinov2", BASE.with_(layer_scale=0.1, classes=3), "", ROUNDING),
    (
        "transformers:dinov2",
        BASE.with_(layer_scale=0.1, classes=3, pool="avg", fc_norm=False),
        "",
        ROUNDING,
    ),
    ("transformers:dinov2", BASE.with_(**GATED, mlp_ratio=3.0), "", 1e-5),
    (
        "transformers:dinov2_with_registers",
        BASE.with_(registers=2, layer_scale=0.1),
        "positions of the registers",
        ROUNDING,
    ),
    (
        "transformers:dinov2_with_registers",
        BASE.with_(registers=2, no_embed_class=True, classes=3),
        "layer scales of 1",
        ROUNDING,
    ),
    ("transformers:dinov3_vit", DINOV3, "mask token", 0.0),
    ("transformers:siglip", BASE.with_(class_token=False, pool="map"), "", 1e-5),
    (
        "transformers:siglip",
        BASE.with_(class_token=False, pool="avg", fc_norm=False, classes=3),
        "",
        0.0,
    ),
    ("transformers:clip", BASE.with_(pre_norm=True, norm_eps=1e-5), "", 0.0),
    ("dinov2", BASE.with_(layer_scale=0.1), "mask token", 0.0),
    ("dinov2", BASE.with_(layer_scale=0.1, registers=2), "positions of the registers", 0.0),
    ("dinov2", BASE.with_(**GATED, mlp_ratio=3.0), "mask token", 0.0),
    ("open_clip:clip", BASE.with_(pre_norm=True, activation="quick_gelu"), "the identity", 1e-5),
    ("open_clip:clip", BASE.with_(layer_scale=0.1, pool="avg", fc_norm=False), "bias of", 1e-5),
    ("open_clip:clip", BASE.with_(activation="gelu_tanh", no_embed_class=True), "zeros", 1e-5),
]


def build(spec: Any, **settings: Any) -> Descendant:
    """Return a random descendant, none of whose tensors is at an initial 0 or 1."""
    state = assemble(spec, {}, seed=0).state
    generator = torch.Generator().manual_seed(0)
    noisy = {
        name: tensor + 0.2 * torch.randn(tensor.shape, generator=generator)
        for name, tensor in state.items()
    }
    return Descendant(spec=spec, state=noisy, provenance={"method": "first_k"}, **settings)


@pytest.mark.parametrize(("format", "spec", "change", "most"), WRITTEN)
def test_the_outputs_are_those_of_the_model(
    format: str, spec: Any, change: str, most: float, tmp_path: Path
) -> None:
    if format.startswith("open_clip"):
        pytest.importorskip("open_clip")
    result = lg.convert(build(spec), tmp_path / "out", format=format)
    assert result.format == format
    assert any(change in words for words in result.changes) or not change
    assert result.difference is not None
    assert result.difference <= most
    if not format.startswith("open_clip") and not (spec.classes and spec.pool == "avg"):
        # A descendant of the written folder is the same model, and so is the folder in timm's format.
        again = open_ancestry(str(tmp_path / "out"))
        with torch.no_grad():
            tokens = again.model().forward_features(IMAGES_BCHW)
            expected = build(spec).model().forward_features(IMAGES_BCHW)
        torch.testing.assert_close(tokens, expected, rtol=0, atol=1e-5)


def test_a_folder_whose_outputs_differ_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = check.read_outputs
    monkeypatch.setattr(
        check, "read_outputs", lambda *args: {k: v + 0.1 for k, v in read(*args).items()}
    )
    with pytest.raises(TrainingFailed, match=r"tokens of transformers:vit differ by 0\.1"):
        lg.convert(build(BASE), tmp_path / "out", format="transformers")
    assert not (tmp_path / "out").exists()


# Opened with the automatic classes, with what travels beside the tensors.

NAMES = ("cat", "dog", "a bird")


def test_a_classifier_opens_in_the_pipeline_in_both_formats(tmp_path: Path) -> None:
    from PIL import Image

    trained = build(BASE.with_(classes=3), class_names=NAMES, task="folder:pets")
    trained.save(tmp_path / "timm")
    result = lg.convert(tmp_path / "timm", tmp_path / "out", format="transformers")
    assert result.difference == 0.0
    model = tf.AutoModelForImageClassification.from_pretrained(tmp_path / "out")
    assert model.config.id2label == dict(enumerate(NAMES))
    assert model.config.learngene["method"] == "first_k"
    assert model.config.learngene["task"] == "folder:pets"
    model.save_pretrained(tmp_path / "saved")
    assert read_json(tmp_path / "saved" / "config.json")["learngene"]["task"] == "folder:pets"
    picture = Image.new("RGB", (40, 32), (200, 30, 90))
    answers = []
    for folder in ("timm", "out"):
        classify = tf.pipeline("image-classification", model=str(tmp_path / folder))
        answers.append({row["label"]: row["score"] for row in classify(picture)})
    assert answers[0].keys() == set(NAMES)
    assert answers[1] == pytest.approx(answers[0], abs=1e-4)


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        (BASE.with_(layer_scale=0.1), "Dinov2Backbone"),
        (BASE.with_(layer_scale=0.1, registers=2), "Dinov2WithRegistersBackbone"),
        (DINOV3, "DINOv3ViTBackbone"),
    ],
)
def test_a_backbone_gives_the_patches_as_a_map(
    spec: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`AutoBackbone` takes repositories on the Hub only, which the folder stands for here."""
    hub = SimpleNamespace(repo_exists=lambda repository: True)
    monkeypatch.setattr(tf.models.auto.auto_factory, "hf_api", lambda: hub)
    lg.convert(build(spec), tmp_path / "out", format="transformers")
    backbone = tf.AutoBackbone.from_pretrained(str(tmp_path / "out")).eval()
    assert type(backbone).__name__ == name
    with torch.no_grad():
        (map_BDHW,) = backbone(IMAGES_BCHW).feature_maps
        tokens_BND = build(spec).model().forward_features(IMAGES_BCHW)[:, spec.prefix_tokens :]
    torch.testing.assert_close(map_BDHW.flatten(2).transpose(1, 2), tokens_BND)


@pytest.mark.parametrize(
    ("view", "size"),
    [
        (View(), {"shortest_edge": 32}),
        (View(crop_pct=0.875, interpolation="bilinear"), {"shortest_edge": 36}),
        (View(crop_mode="squash"), {"height": 32, "width": 32}),
        (View(crop_mode="squash", crop_pct=0.8), {"height": 40, "width": 40}),
    ],
)
def test_pictures_are_presented_as_timm_does(view: View, size: Any, tmp_path: Path) -> None:
    from PIL import Image

    values = torch.rand(9, 7, 3, generator=torch.Generator().manual_seed(0)).mul(255).byte()
    picture = Image.fromarray(values.numpy()).resize((80, 60), Image.Resampling.BICUBIC)
    model = build(BASE, view=view, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
    model.save(tmp_path / "timm")
    lg.convert(model, tmp_path / "out", format="transformers")
    processor = tf.AutoImageProcessor.from_pretrained(tmp_path / "out", backend="pil")
    assert {key: value for key, value in dict(processor.size).items() if value} == size
    timm_model = timm.create_model(f"local-dir:{tmp_path / 'timm'}", pretrained=True)
    config = timm.data.resolve_data_config(model=timm_model)
    expected = timm.data.create_transform(**config, is_training=False)(picture)
    given = processor(picture, return_tensors="pt").pixel_values[0]
    torch.testing.assert_close(given, expected, rtol=0, atol=1e-5)
    again = open_ancestry(str(tmp_path / "out")).record.view
    assert int(32 / again.crop_pct) == int(32 / view.crop_pct)
    assert (again.crop_mode, again.interpolation) == (view.crop_mode, view.interpolation)


def test_it_can_be_converted_back(tmp_path: Path) -> None:
    spec = BASE.with_(layer_scale=0.1, classes=3)
    build(spec, class_names=NAMES).save(tmp_path / "timm")
    for format in ("transformers", "dinov2"):
        lg.convert(tmp_path / "timm", tmp_path / format, format=format, head=False)
        if format == "dinov2":
            with pytest.raises(BadFile, match="written for another package"):
                load_model(tmp_path / format)
        else:
            assert load_model(tmp_path / format).classes == 0
        lg.convert(tmp_path / format, tmp_path / f"{format}-timm", format="timm")
        back: Any = lg.load(tmp_path / f"{format}-timm")
        assert back.provenance["method"] == "first_k"
        expected = build(spec).state
        assert all(torch.equal(back.state[name], expected[name]) for name in back.state)
        assert len(back.state) == len(expected) - 2


# open_clip.


def make_clip(**vision: Any) -> Any:
    """Return the vision tower of a CLIP of open_clip."""
    open_clip = pytest.importorskip("open_clip")
    torch.manual_seed(0)
    return open_clip.model._build_vision_tower(24, open_clip.CLIPVisionCfg(**vision))


@pytest.mark.slow
def test_a_tower_of_open_clip_comes_back_with_the_same_tensors(tmp_path: Path) -> None:
    tower = make_clip(layers=10, width=256, head_width=64, image_size=224, patch_size=16)
    source = {f"visual.{name}": tensor for name, tensor in tower.state_dict().items()}
    save_file(source, tmp_path / "clip.safetensors")
    reference = f"{tmp_path / 'clip.safetensors'}#vit_xsmall_patch16_clip_224"
    lg.extract("first_k", ancestries=reference, out=tmp_path / "learngene")
    whole: Any = lg.expand(tmp_path / "learngene", layers=10, out=tmp_path / "whole")
    projection = {"head.weight": source["visual.proj"].T, "head.bias": torch.zeros(24)}
    spec = whole.spec.with_(classes=24)
    whole = Descendant(spec=spec, state={**whole.state, **projection}, provenance=whole.provenance)
    result = lg.convert(whole, tmp_path / "out", format="open_clip")
    written = load_file(tmp_path / "out" / "open_clip_model.safetensors")
    assert result.format == "open_clip:clip"
    assert written.keys() == source.keys()
    assert all(torch.equal(written[name], source[name]) for name in source)


@pytest.mark.slow
def test_a_tower_of_timms_comes_back_if_timm_has_a_name_for_it(tmp_path: Path) -> None:
    vision = {"timm_model_name": "vit_tiny_patch16_224", "timm_pool": "token", "timm_proj": "none"}
    tower = make_clip(**vision, image_size=224)
    source = {f"visual.{name}": tensor for name, tensor in tower.state_dict().items()}
    config = {"model_cfg": {"embed_dim": 192, "vision_cfg": {**vision, "image_size": 224}}}
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "open_clip_config.json").write_text(json.dumps(config))
    save_file(source, tmp_path / "source" / "open_clip_model.safetensors")
    result = lg.convert(tmp_path / "source", tmp_path / "out", format="open_clip:timm")
    written = load_file(tmp_path / "out" / "open_clip_model.safetensors")
    assert written.keys() == source.keys()
    assert all(torch.equal(written[name], source[name]) for name in source)
    assert result.difference == 0.0
    assert read_json(tmp_path / "out" / "open_clip_config.json")["learngene"]["method"] == "timm"
    with pytest.raises(lg.ZooError, match=r"by its name alone, and none has 2 layers, width 32"):
        lg.convert(build(BASE), tmp_path / "other", format="open_clip:timm")


# DINOv2's authors.


@pytest.mark.parametrize("registers", [0, 2])
def test_dinov2s_names_come_back(registers: int, tmp_path: Path) -> None:
    """Read in timm's layout, which converts the authors' names, and written with these names."""
    spec = BASE.with_(layer_scale=0.1, registers=registers, patch_size=8)
    lg.convert(build(spec), tmp_path / "source", format="dinov2")
    weights = tmp_path / "source" / "model.safetensors"
    stored = load_file(weights)
    assert {"mask_token", "cls_token", "pos_embed", "blocks.1.ls2.gamma"} < stored.keys()
    assert ("register_tokens" in stored) == bool(registers)
    generator = torch.Generator().manual_seed(1)
    for name in stored:
        stored[name] = torch.randn(stored[name].shape, generator=generator)
    save_file(stored, weights)
    lg.extract("first_k", ancestries=str(tmp_path / "source"), out=tmp_path / "learngene")
    lg.expand(tmp_path / "learngene", layers=2, out=tmp_path / "whole")
    result = lg.convert(tmp_path / "whole", tmp_path / "out")
    assert result.format == "dinov2"
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert written.keys() == stored.keys()
    if registers:  # timm stores the sum of the class token and its position
        for state in (stored, written):
            state["cls_token"] = state["cls_token"] + state["pos_embed"][:, :1]
            state["pos_embed"] = state["pos_embed"][:, 1:]
    for name in stored.keys() - {"mask_token"}:
        assert torch.equal(stored[name], written[name]), name
    assert not written["mask_token"].any()
    arguments = read_json(tmp_path / "out" / "config.json")["dinov2"]
    assert arguments["num_register_tokens"] == registers
    assert (arguments["depth"], arguments["embed_dim"], arguments["mlp_ratio"]) == (2, 32, 2.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True)


def test_the_result_says_what_was_done(tmp_path: Path) -> None:
    result = lg.convert(build(BASE), tmp_path / "out", format="dinov2")
    assert isinstance(result, Conversion)
    assert result.path == tmp_path / "out"
    assert (tmp_path / "out" / "README.md").read_text().count("DinoVisionTransformer") == 1
    assert {file.name for file in (tmp_path / "out").iterdir()} == {
        ".lgzoo",
        "README.md",
        "config.json",
        "model.safetensors",
    }


def test_a_random_head_is_named_when_it_is_written(tmp_path: Path) -> None:
    random = replace(build(BASE.with_(classes=3)), inherited=frozenset(), provenance={})
    with pytest.warns(TrainingWarning, match="the head is random"):
        lg.convert(random, tmp_path / "out", format="transformers")
    again: Any = load_model(tmp_path / "out")
    assert again.inherited == frozenset()
    config = read_json(tmp_path / "out" / "config.json")
    config["learngene"]["inherited"] = "head.weight"
    (tmp_path / "out" / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadFile, match="inherited"):
        load_model(tmp_path / "out")
    with warnings.catch_warnings():
        warnings.simplefilter("error", TrainingWarning)
        lg.convert(random, tmp_path / "bare", format="transformers", head=False)


def test_a_model_does_not_replace_itself(tmp_path: Path) -> None:
    build(BASE).save(tmp_path / "model")
    with pytest.raises(Refused, match="is also an input of this command"):
        lg.convert(tmp_path / "model", tmp_path / "model", format="dinov2", force=True)
    assert lg.load(tmp_path / "model")
