"""The complete chain for the family `eva`: from timm's folder to models that timm opens without
this package.
"""

from __future__ import annotations

from dataclasses import replace
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
from learngene_zoo.artifacts.learngene import Learngene
from learngene_zoo.artifacts.records import AncestryRecord, LearngeneConfig
from learngene_zoo.families.eva.names import ARCHITECTURES
from learngene_zoo.families.eva.spec import EvaSpec
from learngene_zoo.families.tensors import initialise
from learngene_zoo.lifecycle.runtimes import export_descendant
from learngene_zoo.pretrained.ancestry import Ancestry, open_ancestry
from learngene_zoo.settings import Recipe
from learngene_zoo.testing import make_tiny_task
from lgzoo_lsamd.blocks import select_base_blocks
from lgzoo_lsamd.modules.supernet import attach_head, build_super_net

pytestmark = pytest.mark.slow

KINDS = [
    "vit_small_patch16_dinov3",
    "vit_small_patch16_dinov3_qkvb",
    "vit_small_plus_patch16_dinov3",
    "eva02_tiny_patch14_336",
    "eva02_base_patch16_clip_224",
    "eva_giant_patch14_224",
    "vit_pe_core_tiny_patch16_384",
    "vit_small_patch16_rope_224",
    "vit_small_patch16_rope_mixed_ape_224",
]
BRIEF = Recipe(epochs=1, images=32, batch_size=16, warmup=0.0)


def small(name: str) -> EvaSpec:
    """Return a small model of this architecture."""
    architecture = ARCHITECTURES[name]
    return architecture.with_(
        layers=3,
        width=64 if architecture.pool == "map" else 24,
        heads=2,
        image_size=4 * architecture.patch_size,
        classes=10,
    )


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
    spec = small(request.param)
    args = {"depth": 3, "embed_dim": spec.width, "num_heads": 2, "img_size": spec.image_size}
    result = make_start(request.param, tmp_path_factory.mktemp("ancestry"), args)
    assert result.spec == spec
    return result


def test_all_blocks_together_are_the_ancestry_model(start: Start, folder: Path) -> None:
    ancestry = open_ancestry(str(start.folder))
    full = lifecycle.expand(start.learngene, layers=3, classes=10, run=RUN)
    full = full.with_state(
        {**full.state, **{name: ancestry.state[name] for name in ("head.weight", "head.bias")}}
    )
    save_case(full, folder / f"{start.name}-whole")
    with torch.no_grad():
        assert torch.equal(full.model()(images(start.spec)), start.model(images(start.spec)))


def test_other_depths_and_images_fine_tune_and_come_out_as_timms(
    start: Start, folder: Path, task: str
) -> None:
    members = lifecycle.plan(start.folder / "learngene")
    assert [member.spec.layers for member in members] == [3, 4]
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
    changed = [
        name for name in deeper.state if not torch.equal(deeper.state[name], tuned.state[name])
    ]
    assert {"head.weight", "blocks.4.attn.proj.weight"} <= set(changed)
    measured = lifecycle.evaluate(folder / f"{start.name}-tuned", task=task, run=RUN)
    assert 0 <= measured.value <= 1
    again = lifecycle.extract(
        "scratch", ancestries=[str(folder / f"{start.name}-tuned")], run=RUN
    )  # a descendant is an ancestry model
    assert again.config.spec == tuned.spec


def test_a_search_is_at_home(start: Start) -> None:
    search_and_expand(start)


@pytest.mark.parametrize(
    "name", [KINDS[0], pytest.param("vit_pe_core_tiny_patch16_384", marks=pytest.mark.exhaustive)]
)
def test_a_model_for_pixels_is_built_and_exported(name: str, tmp_path: Path) -> None:
    spec = small(name)
    learngene = Learngene(
        config=LearngeneConfig(method="lsamd", spec=spec, details={"kept": [1, 3]}),
        state=select_base_blocks(initialise(spec, 0), spec, [1, 3]),
    )
    model = lifecycle.expand(
        learngene, layers=3, classes=4, dense=True, out=tmp_path / "model", run=RUN
    )
    assert model.model()(images(model.spec)).shape == (2, 4, spec.image_size, spec.image_size)
    assert lifecycle.export(tmp_path / "model", tmp_path / "model.pt2", run=RUN).difference == 0.0
    ancestry = Ancestry(record=AncestryRecord(source="a", spec=spec), state=initialise(spec, 0))
    routed = build_super_net(
        attach_head(ancestry, replace(make_tiny_task(classes=4), kind="segmentation"), RUN)
    )
    assert routed(images(spec)).shape == (2, 4, spec.image_size, spec.image_size)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name", [KINDS[2], "eva02_base_patch16_clip_224", "vit_pe_core_tiny_patch16_384", KINDS[-1]]
)
def test_other_runtimes_open_it(name: str, tmp_path: Path) -> None:
    model = assemble(small(name), {}, seed=3, scheme="fan_in")
    assert lifecycle.export(model, tmp_path / "model.pt2", run=RUN).difference == 0.0
    assert lifecycle.export(model, tmp_path / "model.onnx", run=RUN).difference < 1e-4


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [KINDS[2], "eva02_base_patch16_clip_224"])
def test_int8_files_answer_as_the_model_does(name: str, tmp_path: Path) -> None:
    task = make_tiny_task(classes=5)
    spec = small(name).with_(layers=2, width=64, image_size=2 * small(name).patch_size, classes=5)
    model = assemble(spec, {}, seed=3, scheme="fan_in", class_names=task.class_names)
    full = export_descendant(model, tmp_path / "whole.onnx", run=RUN)
    exported_file = export_descendant(
        model, tmp_path / "model.onnx", dtype="int8", task=task, max_drop=1.0, run=RUN
    )
    assert exported_file.bytes < 0.7 * full.bytes
    assert 0 < exported_file.difference < 0.2
    assert (exported_file.metric, exported_file.task) == ("accuracy", task.name)
    assert exported_file.value == pytest.approx(exported_file.model_value, abs=0.1)


OPENED = """
images = timm.data.resolve_model_data_config(model)
assert images["input_size"][1:] == tuple(case["images"].shape[2:]) or model.dynamic_img_size, images
"""


def test_timm_opens_all_of_them_without_this_package(folder: Path) -> None:
    """Uses the models that the tests above wrote."""
    if not any(folder.iterdir()):
        pytest.skip("the tests above write the models")
    expected = [f"{name}-{kind}" for name in sorted(KINDS) for kind in ("deeper", "tuned", "whole")]
    assert differences(folder, OPENED) == dict.fromkeys(expected, 0.0)
