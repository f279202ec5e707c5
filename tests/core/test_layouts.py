"""Foreign weight files: the model is recognised behind prefixes, among copies and in shards, and
left-out tensors are listed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

from learngene_zoo.errors import BadFile
from learngene_zoo.families.tensors import initialise
from learngene_zoo.families.timm_config import find_architecture
from learngene_zoo.pretrained.ancestry import Ancestry, open_ancestry, read_ancestry_spec
from learngene_zoo.pretrained.layouts import choose_tensors
from learngene_zoo.pretrained.timm_model import open_model

State = Mapping[str, torch.Tensor]
NAME = "vit_tiny_patch16_224"
SIZES = {"embed_dim": 16, "depth": 2, "num_heads": 2, "img_size": 32, "patch_size": 8}
DINOV2 = {**SIZES, "init_values": 1.0}
IMAGES_BCHW = torch.linspace(-1, 1, 2 * 3 * 32 * 32).view(2, 3, 32, 32)


def make_state(seed: int = 0, classes: int = 5, **sizes: object) -> dict[str, torch.Tensor]:
    """Return random tensors of timm's model."""
    generator = torch.Generator().manual_seed(seed)
    model = timm.create_model(NAME, num_classes=classes, **{**SIZES, **sizes})
    return {
        name: 0.2 * torch.randn(tensor.shape, generator=generator)
        for name, tensor in model.state_dict().items()
    }


def write_folder(place: Path, state: State, *, classes: int = 5, **sizes: object) -> Path:
    place.mkdir()
    config = {"architecture": NAME, "num_classes": classes, "model_args": {**SIZES, **sizes}}
    (place / "config.json").write_text(json.dumps(config))
    save_file(
        {name: tensor.contiguous() for name, tensor in state.items()}, place / "model.safetensors"
    )
    return place


def answers(found: Ancestry) -> torch.Tensor:
    with torch.no_grad():
        return found.model()(IMAGES_BCHW)


def with_prefix(state: State, prefix: str) -> dict[str, torch.Tensor]:
    return {prefix + name: tensor for name, tensor in state.items()}


PREFIXES = [
    "module.",
    "_orig_mod.",
    "module._orig_mod.",
    "_orig_mod.module.",
    "model.",
    "state_dict.model.",
    "backbone.",
]
PREFIXES += ["encoder.", "teacher.backbone.", "module.base_encoder.", "timm_model.", "ema."]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_prefixes_are_of_no_account_in_a_folder_and_a_file(prefix: str, tmp_path: Path) -> None:
    state = make_state()
    plain = open_ancestry(str(write_folder(tmp_path / "plain", state)))
    folder = write_folder(tmp_path / "prefixed", with_prefix(state, prefix))
    for source in (folder, folder / "model.safetensors"):
        ancestry = open_ancestry(str(source))
        assert torch.equal(answers(ancestry), answers(plain))
        assert ancestry.record.left_out == ()


def test_a_compiled_part_of_a_model_is_found(tmp_path: Path) -> None:
    state = make_state()
    compiled = {
        name.replace("blocks.1.", "blocks.1._orig_mod."): tensor for name, tensor in state.items()
    }
    assert answers(open_ancestry(str(write_folder(tmp_path / "a", compiled)))).equal(
        answers(open_ancestry(str(write_folder(tmp_path / "b", state))))
    )


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("", "ema."),
        ("", "model_ema.module."),
        ("model.", "ema."),
        ("teacher.backbone.", "student.module.backbone."),
        ("module.base_encoder.", "module.momentum_encoder."),
    ],
)
def test_of_two_copies_the_first_is_read_and_the_other_named(
    first: str, second: str, tmp_path: Path
) -> None:
    state = make_state()
    both = {**with_prefix(make_state(seed=1), second), **with_prefix(state, first)}
    ancestry = open_ancestry(str(write_folder(tmp_path / "both", both)))
    assert torch.equal(ancestry.state["cls_token"], state["cls_token"])
    (words,) = ancestry.record.left_out
    assert words.startswith("the copy of the model under ")


def test_of_two_models_none_is_guessed(tmp_path: Path) -> None:
    both = {**with_prefix(make_state(), "left."), **with_prefix(make_state(seed=1), "right.")}
    with pytest.raises(
        BadFile, match=r"holds 2 models, under the prefixes 'left\.', 'right\.'; write one"
    ):
        open_ancestry(str(write_folder(tmp_path / "both", both)))
    twice = {**make_state(), **with_prefix(make_state(seed=1), "_orig_mod.")}
    with pytest.raises(BadFile, match="twice, under different prefixes"):
        open_ancestry(str(write_folder(tmp_path / "twice", twice)))


def test_parts_of_a_pretraining_are_left_out_by_name(tmp_path: Path) -> None:
    more = {"mask_token": torch.ones(1, 1, 16), "decoder_pos_embed": torch.ones(1, 17, 8)}
    more |= {"decoder_blocks.0.norm1.weight": torch.ones(8), "decoder_pred.bias": torch.ones(8)}
    ancestry = open_ancestry(
        str(write_folder(tmp_path / "mae", {**make_state(classes=0), **more}, classes=0))
    )
    assert ancestry.record.left_out == (
        "decoder_blocks, decoder_pos_embed, decoder_pred, mask_token (4 tensors, "
        "used only in pretraining)",
    )
    state = with_prefix(make_state(classes=0), "module.base_encoder.")
    state |= {f"module.base_encoder.head.{i}.weight": torch.ones(4, 16) for i in (0, 3)}
    state |= {"module.predictor.0.weight": torch.ones(4, 4)}
    ancestry = open_ancestry(str(write_folder(tmp_path / "moco", state, classes=0)))
    assert ancestry.record.left_out == (
        "predictor (1 tensor, used only in pretraining)",
        "head (2 tensors, used only in pretraining)",
    )


def test_an_unknown_tensor_is_refused_as_before(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"blocks\.0\.attn\.extra"):
        open_ancestry(
            str(
                write_folder(tmp_path / "a", {**make_state(), "blocks.0.attn.extra": torch.ones(1)})
            )
        )


def test_dinov2s_own_names_open_with_and_without_registers_and_in_groups(tmp_path: Path) -> None:
    own = {**make_state(classes=0, init_values=1.0), "mask_token": torch.zeros(1, 16)}
    plain = {name: tensor for name, tensor in own.items() if name != "mask_token"}
    want = open_ancestry(str(write_folder(tmp_path / "want", plain, classes=0, init_values=1.0)))
    grouped = {
        name.replace("blocks.0.", "blocks.0.0.").replace("blocks.1.", "blocks.0.1."): own[name]
        for name in own
    }
    for name, state in (("own", own), ("grouped", grouped)):
        ancestry = open_ancestry(
            str(write_folder(tmp_path / name, state, classes=0, init_values=1.0))
        )
        assert torch.equal(answers(ancestry), answers(want))
        assert ancestry.record.left_out == ("mask_token (1 tensor, used only in pretraining)",)

    sizes = {"reg_tokens": 3, "no_embed_class": True, "init_values": 1.0}
    theirs = {**own, "register_tokens": torch.randn(1, 3, 16)}
    positions = own["pos_embed"]
    timms = {**plain, "reg_token": theirs["register_tokens"], "pos_embed": positions[:, 1:]}
    timms["cls_token"] = own["cls_token"] + positions[:, :1]
    want = open_ancestry(str(write_folder(tmp_path / "timms", timms, classes=0, **sizes)))
    for name, dropped in (("theirs", set()), ("without_mask", {"mask_token"})):
        state = {key: tensor for key, tensor in theirs.items() if key not in dropped}
        ancestry = open_ancestry(str(write_folder(tmp_path / name, state, classes=0, **sizes)))
        assert torch.equal(answers(ancestry), answers(want))


def test_deit_iii_names_its_layer_scales_otherwise(tmp_path: Path) -> None:
    state = make_state(init_values=1e-6)
    theirs = {
        name.replace("ls1.gamma", "gamma_1").replace("ls2.gamma", "gamma_2"): state[name]
        for name in state
    }
    ancestry, want = (
        open_ancestry(str(write_folder(tmp_path / name, tensors, init_values=1e-6)))
        for name, tensors in (("theirs", theirs), ("ours", state))
    )
    assert torch.equal(answers(ancestry), answers(want))


def test_positions_of_another_grid_are_resampled_and_that_is_said_but_patches_never(
    tmp_path: Path,
) -> None:
    ancestry = open_ancestry(str(write_folder(tmp_path / "a", make_state(img_size=64))))
    assert ancestry.record.left_out == ("positions of 8 x 8 patches (resampled to 4 x 4)",)
    with pytest.raises(BadFile, match=r"patch_embed\.proj\.weight has shape"):
        open_ancestry(str(write_folder(tmp_path / "b", make_state(patch_size=4, img_size=16))))


@pytest.mark.parametrize("classes", [0, 7])
def test_a_file_says_itself_how_many_classes_it_has(classes: int, tmp_path: Path) -> None:
    spec = find_architecture("vit_tiny_patch16_224")
    assert spec is not None
    state = dict(initialise(spec.with_(classes=classes), seed=0))
    save_file(with_prefix(state, "module."), tmp_path / "vit.safetensors")
    source = f"{tmp_path / 'vit.safetensors'}#{NAME}"
    assert open_ancestry(source).spec.classes == read_ancestry_spec(source).classes == classes


def test_clip_is_named_by_what_is_left_out() -> None:
    names = [
        "visual.class_embedding",
        "visual.conv1.weight",
        "visual.ln_pre.weight",
        "text_projection",
        "logit_scale",
    ]
    kept, words = choose_tensors(names, "here")
    assert set(kept) == set(names)  # timm takes the tower out by itself
    assert words == ("text_projection, logit_scale (2 tensors)",)


# Shards.


def write_shards(place: Path, state: State, **index: str) -> Path:
    """Write a folder whose weights are two files and an index.

    `index` overrides the file of some tensors.
    """
    write_folder(place, state)
    (place / "model.safetensors").unlink()
    names = sorted(state)
    halves = {
        "model-00001-of-00002.safetensors": names[::2],
        "model-00002-of-00002.safetensors": names[1::2],
    }
    for file, part in halves.items():
        save_file({name: state[name] for name in part}, place / file)
    places = {name: file for file, part in halves.items() for name in part}
    written = {"metadata": {"total_size": 1}, "weight_map": {**places, **index}}
    (place / "model.safetensors.index.json").write_text(json.dumps(written))
    return place


def test_shards_open_as_one_file_does(tmp_path: Path) -> None:
    state = make_state()
    full, folder = (
        write_folder(tmp_path / "whole", state),
        write_shards(tmp_path / "parts", with_prefix(state, "module.")),
    )
    want = answers(open_ancestry(str(full)))
    ancestry = open_ancestry(str(folder))
    assert torch.equal(answers(ancestry), want)
    assert torch.equal(answers(open_ancestry(str(folder / "model.safetensors.index.json"))), want)
    with torch.no_grad():
        assert torch.equal(open_model(str(folder)).model()(IMAGES_BCHW), want)
    second = folder / "model-00002-of-00002.safetensors"
    second.write_bytes(
        (
            write_shards(tmp_path / "other", with_prefix(make_state(1), "module.")) / second.name
        ).read_bytes()
    )
    assert open_ancestry(str(folder)).record.sha256 != ancestry.record.sha256


def test_an_index_is_taken_at_its_word_only(tmp_path: Path) -> None:
    state, first = make_state(), "model-00001-of-00002.safetensors"
    moved = sorted(state)[1]
    cases: dict[str, tuple[dict[str, str], str]] = {
        "path": (
            {"cls_token": "../model.safetensors"},
            r"the shard of cls_token is '\.\./model\.safetensors'; expected",
        ),
        "absolute": ({"cls_token": "/etc/passwd"}, "expected a .safetensors file beside the index"),
        "pickle": ({"cls_token": "model.bin"}, "expected a .safetensors file beside the index"),
        "absent": (
            {"more": "model-00003.safetensors"},
            "model-00003.safetensors does not exist, but model.safetensors.index",
        ),
        "lacking": ({"more": first}, f"{first} lacks the tensor more"),
        "moved": ({moved: first}, f"lacks the tensor {moved}"),
    }
    for name, (index, words) in cases.items():
        with pytest.raises(BadFile, match=words):
            open_ancestry(str(write_shards(tmp_path / name, state, **index)))
    folder = write_shards(tmp_path / "twice", state)
    both = dict(state)
    save_file({name: both[name] for name in [*sorted(state)[::2], moved]}, folder / first)
    with pytest.raises(BadFile, match=f"holds the tensor {moved}, which .* places in model-00002"):
        open_ancestry(str(folder))
    for text in ("{}", '{"weight_map": []}'):
        (folder / "model.safetensors.index.json").write_text(text)
        with pytest.raises(BadFile, match="weight_map is missing or empty"):
            open_ancestry(str(folder))
