"""Models in the format of transformers give the same outputs as transformers.

`tests/data/transformers` has small random models saved by transformers (see make.py there), and its
outputs for `IMAGES_BCHW`: the logits, or without a head the normalised tokens.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import learngene_zoo as lg
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families.picture_format import View
from learngene_zoo.pretrained import from_transformers as foreign
from learngene_zoo.pretrained.ancestry import open_ancestry, read_ancestry_spec
from learngene_zoo.pretrained.image_processors import read_processor_settings
from learngene_zoo.pretrained.timm_model import TimmModel, open_model
from learngene_zoo.runs.progress import print_activities
from learngene_zoo.tasks.transforms import compute_resized_shape, fit_images, normalise_images

DATA = Path(__file__).parents[1] / "data" / "transformers"
IMAGES_BCHW = torch.linspace(-1, 1, 2 * 3 * 28 * 28).view(2, 3, 28, 28)


def answers(place: Path) -> torch.Tensor:
    ancestry = open_ancestry(str(place))
    assert ancestry.spec == read_ancestry_spec(str(place))
    model = ancestry.model()
    with torch.no_grad():
        return model(IMAGES_BCHW) if ancestry.spec.classes else model.forward_features(IMAGES_BCHW)


EQUAL = [
    "vit",
    "dinov2",
    "dinov2_with_registers",
    "dinov2_swiglu",
    "ijepa",
    "vit_mae",
    "vit_msn",
    "vit_other_layers",
]


@pytest.mark.parametrize("kind", [*EQUAL, "timm_wrapper"])
def test_the_answers_are_those_of_transformers(kind: str) -> None:
    expected = load_file(DATA / kind / "answers.safetensors")["answers"]
    # MAE's epsilon is 1e-12, and timm's 1e-6.
    torch.testing.assert_close(
        answers(DATA / kind), expected, rtol=0, atol=1e-4 if kind == "vit_mae" else 1e-5
    )


def test_the_epsilon_of_the_norms_is_read_or_refused(tmp_path: Path) -> None:
    assert open_ancestry(str(DATA / "vit_other_layers")).spec.norm_eps == 1e-5
    assert (
        "layer_norm_eps 1e-12 (1e-06 in timm)" in open_ancestry(str(DATA / "vit")).record.left_out
    )
    shutil.copytree(DATA / "vit", tmp_path / "vit")
    config = json.loads((tmp_path / "vit" / "config.json").read_text())
    for eps, words in (
        (1e-3, "is 0.001; timm's models of this kind have 1e-06, 1e-05"),
        ("small", "expected a small"),
    ):
        (tmp_path / "vit" / "config.json").write_text(json.dumps({**config, "layer_norm_eps": eps}))
        with pytest.raises((WrongCall, BadFile), match=words):
            read_ancestry_spec(str(tmp_path / "vit"))


def test_of_a_deit_with_a_teacher_the_class_head_is_read_and_the_other_named() -> None:
    ancestry = open_ancestry(str(DATA / "deit_teacher"))
    stored = load_file(DATA / "deit_teacher" / "model.safetensors")
    assert torch.equal(ancestry.state["head.weight"], stored["cls_classifier.weight"])
    words = " · ".join(ancestry.record.left_out)
    for part in (
        "distillation_classifier (2 tensors)",
        "average of two heads",
        "distillation token",
    ):
        assert part in words


def test_what_is_left_out_is_named() -> None:
    assert open_ancestry(str(DATA / "dinov2")).record.left_out == (
        "mask_token (1 tensor, used only in pretraining)",
    )
    assert open_ancestry(str(DATA / "dinov2_swiglu")).record.left_out == (
        "mask_token, classifier (3 tensors)",
    )
    assert "decoder" in open_ancestry(str(DATA / "vit_mae")).record.left_out[0]


def test_a_model_of_timms_that_transformers_saved_opens_everywhere() -> None:
    folder = DATA / "timm_wrapper"
    model = open_model(str(folder))
    assert isinstance(model, TimmModel)
    assert (model.architecture, model.classes) == ("vit_tiny_patch16_224", 3)
    with torch.no_grad():
        outputs = model.model()(IMAGES_BCHW)
    torch.testing.assert_close(outputs, load_file(folder / "answers.safetensors")["answers"])


def test_how_pictures_are_taken_is_read_or_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(DATA / "vit", tmp_path / "vit")

    def view(**text: object) -> tuple[object, ...]:
        (tmp_path / "vit" / foreign.PREPROCESSOR).write_text(json.dumps(text))
        ancestry = open_ancestry(str(tmp_path / "vit")).record
        return ancestry.view.crop_mode, ancestry.view.crop_pct, ancestry.view.interpolation

    square, edge = {"height": 28, "width": 28}, {"shortest_edge": 32}
    assert view(size=square, resample=2) == ("squash", 1.0, "bilinear")
    assert view(size=edge, crop_size=square, do_center_crop=True, resample=3) == (
        "center",
        0.875,
        "bicubic",
    )
    with print_activities(is_command=True):
        view(size=edge, crop_size=square, do_center_crop=True)
        assert "crop_size" not in capsys.readouterr().err
        small = {"shortest_edge": 24}
        assert view(size=small, crop_size=square, do_center_crop=True)[:2] == ("center", 1.0)
    assert "crop_size is larger than size, so transformers pads" in capsys.readouterr().err
    # A number is the shortest edge for some processors, and the side of a square for others.
    for kind, mode in (("CLIPImageProcessor", "center"), ("ViTImageProcessor", "squash")):
        assert view(size=28, image_processor_type=kind)[0] == mode
    assert view(size=28, feature_extractor_type="CLIPFeatureExtractor")[0] == "center"
    for text, words in (
        ({"resample": 9}, "resample is 9"),
        ({"rescale_factor": 0.5}, "rescale_factor"),
        ({"crop_pct": 0.9}, "crop_pct is 0.9, which is not supported"),
        ({"do_flip_channel_order": True}, "do_flip_channel_order is True, which is not supported"),
        ({"size": {"height": 28, "width": 14}}, "one side of a square"),
    ):
        with pytest.raises(BadFile, match=words):
            view(**text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ({"image_processor_type": "ViTImageProcessor"}, ("squash", 1.0, "bilinear", 0.5)),
        ({"feature_extractor_type": "DeiTFeatureExtractor"}, ("squash", 0.875, "bicubic", 0.5)),
        (
            {"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 256}},
            ("center", 0.875, "bicubic", 0.48145466),
        ),
        (
            {"image_processor_type": "CLIPImageProcessorFast", "do_center_crop": False},
            ("center", 1.0, "bicubic", 0.48145466),
        ),
        (
            {"image_processor_type": "SiglipImageProcessor", "resample": 2},
            ("squash", 1.0, "bilinear", 0.5),
        ),
    ],
)
def test_absent_keys_have_the_defaults_of_the_processor(
    text: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    settings: Any = read_processor_settings(text, "FILE")
    names = ("crop_mode", "crop_pct", "interpolation")
    assert (*(settings[name] for name in names), settings["mean"][0]) == expected


def test_the_defaults_are_those_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    for kind in ("ViT", "DeiT", "CLIP", "Bit", "Siglip"):
        processor = getattr(transformers, f"{kind}ImageProcessor")()
        stated = {"image_processor_type": f"{kind}ImageProcessor"}
        complete = {**json.loads(processor.to_json_string()), **stated}
        ours: Any = read_processor_settings(stated, "FILE")
        theirs: Any = read_processor_settings(complete, "FILE")
        assert {**ours, "mean": 0, "std": 0} == {**theirs, "mean": 0, "std": 0}, kind
        assert ours["mean"] == pytest.approx(theirs["mean"]), kind
        assert ours["std"] == pytest.approx(theirs["std"]), kind


@pytest.mark.parametrize("crop", [9, 112, 224])
def test_images_have_the_stated_size_before_the_crop(crop: int) -> None:
    for size in range(crop, 10 * crop):
        cropped = {"size": {"shortest_edge": size}, "crop_size": crop, "do_center_crop": True}
        settings = read_processor_settings(cropped, "FILE")
        view = View(crop_pct=settings["crop_pct"])
        assert compute_resized_shape((500, 500), crop, view) == (size, size)


def test_images_of_the_size_of_the_model_are_taken_as_they_are_without_resizing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(DATA / "vit", tmp_path / "vit")
    settings = {"do_resize": False, "size": {"height": 224, "width": 224}, "do_rescale": True}
    (tmp_path / "vit" / foreign.PREPROCESSOR).write_text(json.dumps(settings))
    with print_activities(is_command=True):
        form = open_ancestry(str(tmp_path / "vit")).input_format
    words = "preprocessor_config.json: do_resize is false, so transformers takes only images of the"
    assert words in capsys.readouterr().err
    image = torch.arange(3 * 28 * 28).view(3, 28, 28).remainder(256).byte()
    expected = (image / 255 - 0.5) / 0.5
    inputs = normalise_images(fit_images([image], form.image_size, form.view, form.fill), form)
    assert torch.allclose(inputs[0], expected, atol=1e-6)


def test_a_distilled_deit_opens_without_its_distillation_token() -> None:
    ancestry = open_ancestry(str(DATA / "deit"))
    assert (ancestry.spec.classes, ancestry.spec.registers) == (3, 0)
    assert any("distillation token" in words for words in ancestry.record.left_out)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"problem_type": "multi_label_classification"}, "multi_label_classification"),
        ({"problem_type": "regression"}, "regression"),
        ({"id2label": {"0": "LABEL_0"}}, "regression"),
    ],
)
@pytest.mark.parametrize("kind", ["vit", "deit", "ijepa"])
def test_a_head_that_does_not_choose_one_class_is_left_out(
    kind: str, changes: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(DATA / kind, model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, **changes}))
    if "id2label" in changes:
        state = load_file(model / "model.safetensors")
        heads = {name: state[name][:1] for name in state if name.startswith("classifier.")}
        save_file({**state, **heads}, model / "model.safetensors")
    ancestry = open_ancestry(str(model))
    assert (ancestry.spec.classes, ancestry.class_names) == (0, ())
    words = f"its head, which does not choose one of several classes (problem_type '{problem}')"
    assert words in ancestry.record.left_out
    with pytest.raises(WrongCall, match=r"does not choose one .* leave it out with head=False$"):
        lg.convert(model, tmp_path / "out", format="timm")
    converted = lg.convert(model, tmp_path / "out", format="timm", head=False)
    assert words in converted.left_out


def test_a_number_of_labels_overrides_their_names(tmp_path: Path) -> None:
    shutil.copytree(DATA / "vit", tmp_path / "vit")
    config = json.loads((tmp_path / "vit" / "config.json").read_text())
    changes = {"num_labels": 3, "id2label": {"0": "a", "1": "b"}}
    (tmp_path / "vit" / "config.json").write_text(json.dumps({**config, **changes}))
    ancestry = open_ancestry(str(tmp_path / "vit"))
    assert (ancestry.spec.classes, ancestry.class_names) == (3, ())


def test_a_gated_dinov3_without_an_activation_has_the_default_of_transformers() -> None:
    config = {"model_type": "dinov3_vit", "use_gated_mlp": True}
    with pytest.raises(WrongCall, match="hidden_act is 'gelu', which timm's DINOv3 does not have"):
        foreign.read_spec(config, "config.json")
    assert foreign.read_spec({**config, "hidden_act": "silu"}, "config.json").family == "eva"


def test_a_head_of_timms_that_does_not_choose_one_class_is_refused(tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(DATA / "timm_wrapper", model)
    config = json.loads((model / "config.json").read_text())
    config["problem_type"] = "multi_label_classification"
    (model / "config.json").write_text(json.dumps(config))
    for open_it in (open_ancestry, read_ancestry_spec, open_model):
        with pytest.raises(WrongCall, match="problem_type is 'multi_label_classification', and on"):
            open_it(str(model))


def test_names_that_transformers_5_uses_inside_are_the_same_model(tmp_path: Path) -> None:
    shutil.copytree(DATA / "vit", tmp_path / "vit")
    names = {
        "encoder.layer.": "layers.",
        "attention.attention.query": "attention.q_proj",
        "attention.attention.key": "attention.k_proj",
        "attention.attention.value": "attention.v_proj",
        "attention.output.dense": "attention.o_proj",
        "intermediate.dense": "mlp.fc1",
        "output.dense": "mlp.fc2",
    }
    state = load_file(DATA / "vit" / "model.safetensors")
    for old, new in names.items():
        state = {name.replace(old, new): tensor for name, tensor in state.items()}
    save_file(state, tmp_path / "vit" / "model.safetensors")
    assert torch.equal(answers(tmp_path / "vit"), answers(DATA / "vit"))


def test_normalisation_and_labels_come_from_its_own_files(tmp_path: Path) -> None:
    shutil.copytree(DATA / "vit", tmp_path / "vit")
    assert open_ancestry(str(tmp_path / "vit")).record.mean == (0.5, 0.5, 0.5)
    assert open_ancestry(str(DATA / "dinov2")).record.mean == (0.485, 0.456, 0.406)
    said = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}
    (tmp_path / "vit" / foreign.PREPROCESSOR).write_text(json.dumps(said))
    config = json.loads((tmp_path / "vit" / "config.json").read_text())
    config["id2label"] = {"2": "c", "0": "a", "1": "b"}
    (tmp_path / "vit" / "config.json").write_text(json.dumps(config))
    ancestry = open_ancestry(str(tmp_path / "vit"))
    (tmp_path / "vit" / foreign.PREPROCESSOR).write_text('{"image_mean": "none"}')
    with pytest.raises(BadFile, match="mean"):
        open_ancestry(str(tmp_path / "vit"))
    assert (ancestry.record.mean, ancestry.record.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    assert ancestry.class_names == ("a", "b", "c")
    (tmp_path / "vit" / foreign.PREPROCESSOR).unlink()
    (tmp_path / "vit" / foreign.PROCESSOR).write_text(json.dumps({"image_processor": said}))
    assert open_ancestry(str(tmp_path / "vit")).record.std == (0.4, 0.5, 0.6)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        (
            {"model_type": "swin"},
            WrongCall,
            "'swin' model in the format of transformers, of which vit, deit",
        ),
        ({"use_swiglu_ffn": True}, BadFile, r"mlp\.fc1\.weight has shape"),
        ({"hidden_act": "relu"}, WrongCall, "hidden_act is 'relu', which is not read"),
        ({"quantization_config": {"bits": 8}}, WrongCall, "has quantization_config"),
        ({"hidden_size": "16"}, BadFile, "whole numbers above 0"),
        (
            {
                "model_type": "vit",
                "architectures": ["ViTForImageClassification"],
                "id2label": {"x": "a"},
            },
            BadFile,
            "id2label",
        ),
        ({"num_hidden_layers": 3}, BadFile, "blocks.2"),
        ({"image_size": 42}, BadFile, "pos_embed"),
    ],
)
def test_what_is_not_read_is_refused(
    changes: dict[str, Any], error: type[Exception], words: str, tmp_path: Path
) -> None:
    shutil.copytree(DATA / "dinov2", tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(error, match=words):
        open_ancestry(str(tmp_path / "model"))


@pytest.mark.slow
def test_a_folder_of_transformers_is_a_model_of_every_command(tmp_path: Path) -> None:
    shutil.copytree(DATA / "vit", tmp_path / "vit")
    path = tmp_path / "vit" / "config.json"
    config = json.loads(path.read_text())
    names = [f"class {number}" for number in range(len(config["id2label"]))]
    path.write_text(json.dumps({**config, "id2label": dict(enumerate(names))}))
    model = open_model(tmp_path / "vit")
    assert (model.class_names, model.folder) == (tuple(names), tmp_path / "vit")
    expected = load_file(DATA / "vit" / "answers.safetensors")["answers"]
    with torch.no_grad():
        torch.testing.assert_close(model.model()(IMAGES_BCHW), expected, rtol=0, atol=1e-5)
    picture = Image.new("RGB", (28, 28), "red")
    (prediction,) = lg.predict(tmp_path / "vit", picture)
    assert set(prediction.classes) <= set(names)
    tuned = lg.finetune(tmp_path / "vit", "digits", epochs=0, out=tmp_path / "tuned")
    assert tuned.classes == 10
    assert lg.evaluate(tmp_path / "tuned").images == 500
    back = lg.convert(tmp_path / "tuned", tmp_path / "back", format="transformers")
    assert back.format == "transformers:vit"
    assert open_model(tmp_path / "back").classes == 10
