"""Models in the format of transformers give the answers that transformers gives.

`tests/data/transformers` holds small random models that transformers 5.23 saved, and its answers to `IMAGES_BCHW`: the
logits, or without a head the normalised tokens.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from learngene_zoo.artifacts import foreign
from learngene_zoo.artifacts.ancestry import ancestry_spec, open_ancestry
from learngene_zoo.errors import BadFile, WrongCall

DATA = Path(__file__).parents[1] / "data" / "transformers"
IMAGES_BCHW = torch.linspace(-1, 1, 2 * 3 * 28 * 28).view(2, 3, 28, 28)


def answers(place: Path) -> torch.Tensor:
    found = open_ancestry(str(place))
    assert found.spec == ancestry_spec(str(place))
    model = found.model()
    with torch.no_grad():
        return model(IMAGES_BCHW) if found.spec.classes else model.forward_features(IMAGES_BCHW)


@pytest.mark.parametrize("kind", ["vit", "dinov2", "dinov2_with_registers"])
def test_the_answers_are_those_of_transformers(kind: str) -> None:
    torch.testing.assert_close(answers(DATA / kind), load_file(DATA / kind / "answers.safetensors")["answers"])


def test_a_distilled_deit_opens_without_its_distillation_token() -> None:
    found = open_ancestry(str(DATA / "deit"))
    assert (found.spec.classes, found.spec.registers) == (3, 0)
    assert any("distillation token" in words for words in found.record.left_out)


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
    found = open_ancestry(str(tmp_path / "vit"))
    (tmp_path / "vit" / foreign.PREPROCESSOR).write_text('{"image_mean": "none"}')
    with pytest.raises(BadFile, match="mean"):
        open_ancestry(str(tmp_path / "vit"))
    assert (found.record.mean, found.record.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    assert found.class_names == ("a", "b", "c")


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"model_type": "clip"}, WrongCall, "'clip' model in the format of transformers, of which vit, deit"),
        ({"use_swiglu_ffn": True}, WrongCall, "only MLPs with GELU"),
        ({"hidden_size": "16"}, BadFile, "whole numbers above 0"),
        (
            {"model_type": "vit", "architectures": ["ViTForImageClassification"], "id2label": {"x": "a"}},
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


def test_the_twin_in_timm_is_named() -> None:
    where = "config.json of facebook/dinov3-vits16-pretrain-lvd1689m"
    with pytest.raises(WrongCall, match=r"from timm: timm:vit_small_patch16_dinov3\.lvd1689m"):
        foreign.spec_of({"model_type": "dinov3_vit"}, where)


def test_every_twin_is_a_model_of_timms() -> None:
    import timm

    assert set(foreign.TWINS.values()) <= set(timm.list_pretrained())
