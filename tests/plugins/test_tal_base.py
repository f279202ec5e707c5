"""The planned recipe of benchmarks/tal_base.py: its output, its steps and its decoder.

The steps run with a few pictures.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.method.installed import METHODS
from learngene_zoo.runs.run import Run
from lgzoo_tal.modules.graph import build_graph
from lgzoo_tal.modules.hypernet import Hypernet

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
recipe: Any = pytest.importorskip("tal_base")


def test_the_plan_names_the_sizes_of_the_authors_answer() -> None:
    lines = list(recipe.describe_plan(recipe.Plan(), 800.0, Run(offline=True)))
    assert lines[-2:] == [
        "16 layers of width 768: 114.92M parameters",
        "18 layers of width 768: 129.09M parameters",
    ]
    # 75 epochs of ImageNet's training images; with a teacher's pass a third more, and the models
    # are smaller on average.
    assert (
        0.5 * 75 * 1_153_050
        < float(lines[0].split("work of ")[1].split("M")[0]) * 1e6
        < 2 * 75 * 1_153_050
    )


@pytest.mark.slow
def test_its_steps_run_with_a_few_pictures(tmp_path: Path) -> None:
    plan = replace(recipe.SMOKE, depths=(16,), build=tmp_path)
    table = recipe.run_plan(plan, Run(threads=1, offline=True)).read_text()
    *_, row = table.splitlines()
    assert row.startswith("| 16 | 1.81M | ")
    before = (tmp_path / "learngene" / "model.safetensors").stat().st_mtime_ns
    recipe.run_plan(plan, Run(threads=1, offline=True))
    assert (tmp_path / "learngene" / "model.safetensors").stat().st_mtime_ns == before, (
        "it was extracted again"
    )


@pytest.mark.slow
@pytest.mark.parametrize(("layers", "params"), [(16, 114_919_144), (18, 129_094_888)])
def test_the_decoder_of_plus_reaches_deeper_vit_base(layers: int, params: int) -> None:
    base = ViTSpec(layers=12, width=768, heads=12, image_size=224, patch_size=16, classes=1000)
    deep = base.with_(layers=layers)
    hypernet = Hypernet(METHODS.load("tal").preset("plus").build_stages(base)[1].hypernet, 0)
    with torch.no_grad():
        tensors = hypernet.predict(build_graph(deep), task=torch.zeros(base.width))
    assert (
        sum(tensor.numel() for tensor in tensors.values())
        == params
        == recipe.count_cost(deep).params
    )
