"""The dense head: its formula, the plain model's tensors under the plain model's names, its cost,
and its folder.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch.nn import functional

from learngene_zoo.artifacts.descendant import Descendant, assemble, load_descendant
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families import tensors
from learngene_zoo.families.family import count_cost, count_flops, count_params
from learngene_zoo.families.tensors import build_model, get_shapes, get_state_dict, initialise
from learngene_zoo.families.vit.host import read_spec
from learngene_zoo.families.vit.modules import DenseVisionTransformer
from learngene_zoo.families.vit.names import DENSE_ARCHITECTURE, list_arguments
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.pretrained.ancestry import open_ancestry, read_ancestry_spec

SPEC = ViTSpec(layers=2, width=32, heads=4, image_size=32, patch_size=8, classes=5, dense=True)
IMAGES_BCHW = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
VARIANTS = [
    {},
    {"class_token": False, "pool": "avg"},
    {"registers": 3},
    {"pool": "avg"},
    {"fc_norm": True},
    {"final_norm": False},
    {"dynamic_image_size": True},
    {"norm_eps": 1e-5, "activation": "quick_gelu", "scale_norms": True},
    {"post_norm": True},
    {"norm": "rms", "norm_eps": 1e-5, "mlp": "swiglu", "embed_norm": True},
    {"classes": 0},
]


def make_descendant(spec: ViTSpec = SPEC, **fields: object) -> Descendant:
    given = {
        "mean": (0.1, 0.2, 0.3),
        "std": (0.4, 0.5, 0.6),
        "provenance": {"method": "lsamd"},
        **fields,
    }
    body = tensors.remove_head(initialise(spec, 7, "fan_in"), spec)
    return assemble(spec, body, seed=1, **given)  # type: ignore[arg-type]


# --- the model
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_its_tensors_are_those_of_the_plain_model_and_its_spec_can_be_read_off(
    changes: dict,
) -> None:
    spec = SPEC.with_(**changes)
    assert get_shapes(spec) == get_shapes(spec.with_(dense=False))
    model = build_model(spec, initialise(spec, 0))
    assert list(get_state_dict(model)) == list(get_shapes(spec))
    assert read_spec(model) == spec
    assert count_params(spec) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("changes", VARIANTS[:-1], ids=str)
def test_the_head_is_a_convolution_of_the_patches_enlarged_to_the_image(changes: dict) -> None:
    spec = SPEC.with_(**changes)
    state = initialise(spec, 3, "fan_in")
    dense, plain = build_model(spec, state), build_model(spec.with_(dense=False), state)
    with torch.no_grad():
        tokens_BND = plain.forward_features(IMAGES_BCHW)[:, spec.prefix_tokens :]
        if spec.norms_after_pool:
            tokens_BND = plain.fc_norm(tokens_BND)
        grid_BDhw = tokens_BND.transpose(1, 2).reshape(2, 32, 4, 4)
        small = functional.conv2d(
            grid_BDhw, state["head.weight"][:, :, None, None], state["head.bias"]
        )
        expected = functional.interpolate(
            small, size=(32, 32), mode="bilinear", align_corners=False
        )
        got = dense(IMAGES_BCHW)
    assert got.shape == (2, 5, 32, 32)
    torch.testing.assert_close(got, expected)


def test_images_of_other_shapes_where_the_model_lets_them_in() -> None:
    spec = SPEC.with_(dynamic_image_size=True)
    model = build_model(spec, initialise(spec, 0, "fan_in"))
    assert model(torch.zeros(1, 3, 48, 16)).shape == (1, 5, 48, 16)
    assert build_model(SPEC, initialise(SPEC, 0))(IMAGES_BCHW[:0]).shape == (0, 5, 32, 32)


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_its_cost_is_what_fvcore_counts(changes: dict) -> None:
    fvcore = pytest.importorskip("fvcore.nn")
    spec = SPEC.with_(**changes)
    model = build_model(spec, initialise(spec, 0))
    for block in model.blocks:
        block.attn.fused_attn = False  # one operation, which fvcore has no count for
    counted = fvcore.FlopCountAnalysis(model, IMAGES_BCHW[:1]).unsupported_ops_warnings(False)
    assert count_flops(spec) == counted.uncalled_modules_warnings(False).total()


def test_it_has_no_pooling() -> None:
    spec = SPEC.with_(pool="map", class_token=False)
    state = initialise(spec, 0)
    assert get_shapes(spec) == get_shapes(spec.with_(pool="avg", fc_norm=False))
    assert "attn_pool.latent" in get_shapes(spec.with_(dense=False))
    model = build_model(spec, state)
    assert read_spec(model) == spec
    assert torch.equal(
        model(IMAGES_BCHW), build_model(spec.with_(pool="avg", fc_norm=False), state)(IMAGES_BCHW)
    )
    assert count_cost(spec) == count_cost(spec.with_(pool="avg", fc_norm=False))


def test_its_cost_by_hand() -> None:
    plain = count_cost(SPEC.with_(dense=False))
    head, every_pixel = 5 * 32, 5 * 32 * 32
    assert count_cost(SPEC).params == plain.params
    assert count_cost(SPEC).flops == plain.flops + (16 - 1) * head + 4 * every_pixel
    thop = [count_flops(spec, "thop") for spec in (SPEC, SPEC.with_(dense=False))]
    assert thop[0] == thop[1] + 15 * head


# --- descendants
# --------------------------------------------------------------------------------------------------


def test_pooling_by_attention_goes_with_the_class_head_and_comes_back_fresh() -> None:
    plain = make_descendant(
        SPEC.with_(dense=False, pool="map"), task="digits", class_names=tuple("abcde")
    )
    dense = plain.for_task("scenes", tuple("vwxyz"), seed=9, dense=True)
    assert set(dense.state) == {name for name in plain.state if not name.startswith("attn_pool")}
    assert dense.inherited == plain.inherited & set(dense.state)
    again = dense.for_task("digits", tuple("abcde"), seed=9)
    assert again.spec == plain.spec
    assert again.inherited == dense.inherited


def test_from_one_class_per_image_to_one_per_pixel_and_back() -> None:
    plain = make_descendant(SPEC.with_(dense=False), task="digits", class_names=tuple("abcde"))
    dense = plain.for_task("scenes", tuple("vwxyz"), seed=9, dense=True)
    assert dense.spec == SPEC
    assert isinstance(dense.model(), DenseVisionTransformer)
    assert torch.equal(dense.state["head.weight"], initialise(SPEC, 9)["head.weight"])
    assert torch.equal(
        dense.state["blocks.1.mlp.fc1.weight"], plain.state["blocks.1.mlp.fc1.weight"]
    )
    assert not any(name.startswith("head.") for name in dense.inherited)
    assert dense.for_task("scenes", tuple("vwxyz"), seed=1, dense=True).state is dense.state
    back = dense.for_task("digits", tuple("abcde"), seed=9)
    assert (back.spec.dense, type(back.model())) == (
        False,
        timm.models.vision_transformer.VisionTransformer,
    )
    assert back.model()(IMAGES_BCHW).shape == (2, 5)


def test_a_head_for_images_is_no_head_for_pixels() -> None:
    plain = make_descendant(
        SPEC.with_(dense=False)
    )  # of no task: a head of as many classes would be kept
    dense = plain.for_task("scenes", tuple("vwxyz"), seed=9, dense=True)
    assert dense.spec.dense
    assert not torch.equal(dense.state["head.weight"], plain.state["head.weight"])


def test_its_folder_is_read_back_and_can_be_an_ancestry(tmp_path: Path) -> None:
    folder = make_descendant(class_names=tuple("abcde"), task="scenes").save(tmp_path / "dense")
    config = json.loads((folder / "config.json").read_text())
    assert config["architecture"] == DENSE_ARCHITECTURE
    again = load_descendant(folder)
    assert again.spec == SPEC
    assert torch.equal(again.model()(IMAGES_BCHW), make_descendant().model()(IMAGES_BCHW))
    assert read_ancestry_spec(str(folder)) == open_ancestry(str(folder)).spec == SPEC
    card = (folder / "README.md").read_text()
    assert "import learngene_zoo.timm" in card
    assert "pipeline_tag: image-segmentation" in card
    assert "nothing but timm" not in card


def test_a_folder_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    folder = make_descendant().save(tmp_path / "dense")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({**config, "architecture": "vit_base_patch16_224"})
    )
    with pytest.raises(BadFile, match="dense is False for timm and True under 'learngene'"):
        load_descendant(folder)


OPENED = """
import sys
import timm, torch
import learngene_zoo.timm
from safetensors.torch import load_file

torch.set_num_threads(1)
for name in sys.argv[1:]:
    case = load_file(f"{name}/case.safetensors")
    model = timm.create_model(f"local-dir:{name}", pretrained=True).eval()
    with torch.no_grad():
        print((model(case["images"]) - case["wanted"]).abs().max().item())
print(sorted(module for module in sys.modules if module.startswith("learngene_zoo.")))
"""


@pytest.mark.slow
def test_timm_opens_its_folder_once_the_head_is_known(tmp_path: Path, checkout: Path) -> None:
    names = []
    for number, changes in enumerate(({}, {"class_token": False, "pool": "avg", "registers": 2})):
        case = make_descendant(SPEC.with_(**changes))
        folder = case.save(tmp_path / str(number))
        expected = case.model()(IMAGES_BCHW).detach().contiguous()
        save_file({"images": IMAGES_BCHW, "wanted": expected}, folder / "case.safetensors")
        names.append(str(folder))
    command = [sys.executable, "-c", OPENED, *names]
    process = subprocess.run(command, capture_output=True, text=True, cwd=checkout, timeout=240)
    assert process.returncode == 0, process.stderr
    first, second, modules = process.stdout.splitlines()
    assert (first, second) == ("0.0", "0.0")
    assert (
        "learngene_zoo.families.tensors" not in modules
    )  # that import makes the architecture known, and opens nothing else


def test_an_odd_dense_model_is_refused_by_name() -> None:
    model = timm.create_model(DENSE_ARCHITECTURE, **list_arguments(SPEC))
    model.blocks[1].mlp.act = torch.nn.ReLU()
    with pytest.raises(WrongCall, match=r"ReLU.* for blocks.1.mlp.act"):
        read_spec(model)
