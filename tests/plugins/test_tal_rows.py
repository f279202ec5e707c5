"""The rows of a low-rank decoder's factors: presets have as many as an ancestry model needs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.descendant import assemble
from learngene_zoo.errors import WrongCall
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.method.installed import METHODS
from learngene_zoo.pretrained.ancestry import read_ancestry_spec
from learngene_zoo.runs.run import Run
from lgzoo_tal.config import ROWS

METHOD_NAMES = ("tal", "logah", "pith")
# DINOv2-S: patches of 14 pixels
SMALL = ViTSpec(
    layers=12, width=384, heads=6, classes=0, image_size=112, patch_size=14, layer_scale=1.0
)


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_the_preset_is_unchanged_for_the_bundled_ancestry_model(name: str) -> None:
    method = METHODS.load(name)
    assert method.adapt_preset("mini", [read_ancestry_spec("bundled")]) == method.extractor


@pytest.mark.parametrize("name", METHOD_NAMES)
@pytest.mark.parametrize("image_size", [112, 518])
def test_an_ancestry_model_with_larger_tensors_gets_the_rows_that_it_needs(
    name: str, image_size: int
) -> None:
    method, specs = METHODS.load(name), [SMALL.with_(image_size=image_size)]
    adapted: Any = method.adapt_preset("mini", specs)
    assert adapted.outline(specs).spec.width == 384
    # 14 rows for each channel of a patch; 37 for those of positions of an image of 518 pixels
    needed = 384 * max(14, image_size // 14)
    assert adapted.hypernet.chunk == -(-needed // ROWS) * ROWS
    with pytest.raises(WrongCall, match="hypernet_chunk"):
        method.extractor.outline(specs)
    fewer = replace(adapted, hypernet=replace(adapted.hypernet, chunk=needed - 1))
    with pytest.raises(WrongCall, match=f"would need {needed} rows"):
        fewer.outline(specs)
    assert method.adapt_preset("paper", specs) == method.presets["paper"]


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_a_plan_lists_the_sizes_of_the_adapted_preset(name: str, tmp_path: Path) -> None:
    folder = str(assemble(SMALL.with_(layers=1), {}, seed=0).save(tmp_path / "model"))
    widths = {member.spec.width for member in lifecycle.plan(name, ancestries=folder)}
    assert max(widths) == 384
    with pytest.raises(WrongCall, match="hypernet_chunk"):
        lifecycle.plan(name, ancestries=folder, hypernet_chunk=1024)


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_descendants_with_patches_of_14_pixels_are_predicted(name: str, tmp_path: Path) -> None:
    spec = ViTSpec(layers=2, width=96, heads=6, classes=0, image_size=28, patch_size=14)
    folder = str(assemble(spec, {}, seed=0).save(tmp_path / "model"))
    learngene = lifecycle.extract(
        name,
        ancestries=folder,
        tasks="digits",
        preset="smoke",
        run=Run(threads=1, device="cpu"),
        **({"guidance": False} if name == "tal" else {}),
        source=None,
    )
    assert learngene.config.details["hypernet"]["chunk"] == ROWS
    model = lifecycle.expand(learngene, layers=3, width=96, task="digits").model()
    with torch.no_grad():
        assert model(torch.randn(2, 3, 28, 28)).isfinite().all()
