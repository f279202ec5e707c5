"""The complete chain for every kind of Vision Transformer: from timm's folder to models that timm
opens without this package.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from chain_toy import (
    RUN,
    Start,
    differences,
    images,
    make_start,
    save_case,
    search_and_expand,
    write_pictures,
)

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.descendant import assemble
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.method.installed import METHODS
from learngene_zoo.pretrained.ancestry import open_ancestry
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Recipe

pytestmark = pytest.mark.slow

DISTILLED = "deit_tiny_distilled_patch16_224"
FLOORED = "vit_so400m_patch14_siglip_gap_384"
# What each kind adds: nothing, registers without class token, no norms at the end; quick GELU; a
# norm's epsilon; patches that leave pixels over; tanh GELU; pooling by attention, of patches or of
# all tokens; RMSNorm; SwiGLU in one tensor or two; further norms.
KINDS = [
    *(
        "deit_tiny_patch16_224",
        "vit_medium_patch16_reg4_gap_256",
        "vit_base_patch16_radio_v3",
        DISTILLED,
    ),
    *(
        "vit_base_patch16_clip_quickgelu_224",
        "vit_base_patch32_clip_224",
        FLOORED,
        "vit_base_patch32_siglip_gap_256",
    ),
    *("vit_base_patch16_siglip_224", "vit_large_patch16_siglip_512", "test_vit3", "test_vit4"),
    *(
        "vit_giant_patch14_reg4_dinov2",
        "aimv2_large_patch14_224",
        "beit3_base_patch16_224",
        "vit_base_patch16_rpn_224",
    ),
]
BRIEF = Recipe(epochs=1, images=16, batch_size=16, warmup=0.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder into which all kinds write their models."""
    return tmp_path_factory.mktemp("made")


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the name of a task of few pictures."""
    return write_pictures(tmp_path_factory.mktemp("pictures") / "ten")


@pytest.fixture(scope="module", params=KINDS)
def start(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Start:
    patch = 14 if "patch14" in request.param else 8
    args = {"depth": 3, "embed_dim": 24, "num_heads": 2, "patch_size": patch, "img_size": 4 * patch}
    args["img_size"] += 3 if request.param == FLOORED else 0
    result = make_start(request.param, tmp_path_factory.mktemp("ancestry"), args)
    assert isinstance(result.spec, ViTSpec)
    return result


def test_all_blocks_together_are_the_ancestry_model(start: Start, folder: Path) -> None:
    ancestry = open_ancestry(str(start.folder))
    full = lifecycle.expand(start.learngene, layers=3, classes=10, run=RUN)
    assert full.spec == ancestry.spec
    full = full.with_state(
        {**full.state, **{name: ancestry.state[name] for name in ("head.weight", "head.bias")}}
    )
    save_case(full, folder / f"{start.name}-whole")
    with torch.no_grad():
        same = torch.equal(full.model()(images(start.spec)), start.model(images(start.spec)))
    assert same == (start.name != DISTILLED)
    assert ancestry.record.left_out == (
        ("distillation token and its head",) if start.name == DISTILLED else ()
    )


def test_other_depths_and_images_fine_tune_and_come_out_as_timms(
    start: Start, folder: Path, task: str
) -> None:
    assert [member.spec.layers for member in lifecycle.plan(start.folder / "learngene")] == [3, 4]
    size = 3 * start.spec.patch_size
    deeper = lifecycle.expand(
        start.folder / "learngene", layers=5, image_size=size, task=task, run=RUN
    )
    assert (deeper.spec.layers, deeper.spec.image_size, deeper.spec.classes) == (5, size, 10)
    save_case(deeper, folder / f"{start.name}-deeper")
    tuned = lifecycle.finetune(
        folder / f"{start.name}-deeper", task=task, recipe=BRIEF, keep="last", run=RUN
    )
    save_case(tuned, folder / f"{start.name}-tuned")
    changed = {
        name for name in deeper.state if not torch.equal(deeper.state[name], tuned.state[name])
    }
    assert changed == set(deeper.state)
    again = lifecycle.extract("scratch", ancestries=[str(folder / f"{start.name}-tuned")], run=RUN)
    assert again.config.spec == tuned.spec  # a descendant is an ancestry model


def test_a_search_is_at_home(start: Start, folder: Path) -> None:
    save_case(search_and_expand(start), folder / f"{start.name}-shallow")


KIND_CHANGES = {
    "SigLIP": {"pool": "map", "class_token": False, "activation": "gelu_tanh"},
    "DINOv2": {"mlp": "swiglu_packed", "activation": "silu", "registers": 4, "layer_scale": 1e-5},
    "CLIP": {"norm_eps": 1e-5, "activation": "quick_gelu", "pre_norm": True},
}


@pytest.mark.parametrize(
    ("changes", "method"),
    [
        pytest.param(
            changes,
            method,
            id=f"{kind}-{method}",
            marks=pytest.mark.exhaustive if method == "tal" and kind != "DINOv2" else [],
        )
        for kind, changes in KIND_CHANGES.items()
        for method in ("pool", "tal")
    ],
)
def test_methods_that_serve_only_this_family_serve_every_kind(
    changes: dict, method: str, tmp_path: Path
) -> None:
    spec = ViTSpec(layers=3, width=32, heads=2, classes=10, image_size=32, patch_size=8, **changes)
    assemble(spec, {}, seed=0, scheme="fan_in").save(tmp_path / "ancestry")
    named, settings = [str(tmp_path / "ancestry")], METHODS.load(method).presets["smoke"]
    planned = lifecycle.plan(method, ancestries=named, extractor=settings)
    learngene = lifecycle.extract(
        method, ancestries=named, tasks="digits", extractor=settings, out=tmp_path / "m", run=RUN
    )
    assert lifecycle.plan(tmp_path / "m") == planned
    for member in (planned[0], planned[-1]):
        run = Run(threads=1, ancestry=named[0])
        descendant = lifecycle.expand(
            learngene, target=member.target, task="digits", run=run, **member.settings
        )
        assert descendant.spec == member.spec.with_(classes=10)
        assert isinstance(descendant.spec, ViTSpec)
        assert {
            name: getattr(descendant.spec, name) == getattr(spec, name) for name in changes
        } == dict.fromkeys(changes, method == "pool")  # a hypernetwork predicts plain models only
        with torch.no_grad():
            assert descendant.model()(images(descendant.spec)).isfinite().all()


OPENED = """
other = timm.create_model(f"local-dir:{place}", pretrained=True, num_classes=7)
assert other.num_classes == other.head.out_features == 7
"""


def test_timm_opens_all_of_them_without_this_package(folder: Path) -> None:
    """Uses the models that the tests above wrote."""
    stages = ("deeper", "shallow", "tuned", "whole")
    assert differences(folder, OPENED) == dict.fromkeys(
        [f"{name}-{stage}" for name in KINDS for stage in stages], 0.0
    )
