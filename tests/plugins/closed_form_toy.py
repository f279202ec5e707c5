"""Tiny ancestry models for the tests of closed_form, and their learngenes."""

from typing import Any

import torch

import learngene_zoo as lg
from learngene_zoo.families.family import load_family
from learngene_zoo.method.sizes import Target
from learngene_zoo.pretrained.ancestry import Ancestry
from learngene_zoo.runs.run import Run
from learngene_zoo.testing import make_tiny_task
from lgzoo_closed_form.closed_form import Calibration, ClosedFormExpander, ClosedFormExtractor
from lgzoo_closed_form.descendant_size import Cut

SPEC = load_family("vit").examples[0].with_(layers=4)
EVA = (
    load_family("eva")
    .examples[0]
    .with_(layers=4, registers=0, layer_scale=None, rope_type="cat", swiglu=False, mlp_ratio=2.0)
)
EVAS: list[dict[str, object]] = [
    {},
    {"attention": "rope"},
    {"qkv_fused": False},
    {
        "qkv_bias": False,
        "registers": 2,
        "rope_type": "dinov3",
        "rope_half": True,
        "layer_scale": 0.1,
    },  # as DINOv3
    {"rope_type": "mixed", "attention": "rope", "layer_scale": 0.1},
    {"swiglu": True},
    {"swiglu": True, "swiglu_multiple": 8},
    {"rotary": False, "absolute": True},
]
FIXED_WIDTH: list[dict[str, object]] = [  # streams that keep their width
    {"swiglu": True, "mlp_norm": True, "qkv_fused": False},  # as EVA02
    {"attention_norm": True},
    {"pre_norm": True, "attention": "rope"},  # as Perception Encoder
]


def extract_toy(ancestry: Ancestry) -> lg.Learngene:
    """Extract a learngene of an ancestry model from 24 images."""
    extractor = ClosedFormExtractor(each=Calibration(images=24))
    learngene = extractor([ancestry], [make_tiny_task()], Run(seed=1))
    return learngene.with_config(method="closed_form", ancestries=(ancestry.record,))


def check_copies(learngene: lg.Learngene, layers: int, **settings: Any) -> None:
    """Check that a descendant of copied blocks is the solved one, bit by bit, without images.

    Args:
        learngene: of a task that can be opened.
        layers: of the descendant.
        settings: of the expander, with which nothing is solved.
    """
    details = {**learngene.config.details, "task": "folder:theirs"}
    copy = lg.expand(learngene.with_config(details=details), layers=layers, **settings)
    assert set(copy.provenance) >= {"runs", "teacher_depth"}
    assert not {"calibration", "streams"} & set(copy.provenance)
    cut = Cut(tuple(copy.provenance["runs"]), copy.provenance["teacher_depth"], 0.0)
    spec = learngene.config.spec.with_(layers=layers)
    expander = ClosedFormExpander(**settings)
    solved, seen = expander._solve_blocks(learngene, Target(layers=layers), spec, cut, Run())
    assert "calibration" in seen
    assert copy.inherited == set(solved)
    assert [name for name in solved if not torch.equal(copy.state[name], solved[name])] == []
