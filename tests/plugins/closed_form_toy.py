"""Tiny ancestry models for the tests of closed_form, and their learngenes."""

import learngene_zoo as lg
from learngene_zoo.families.family import load_family
from learngene_zoo.pretrained.ancestry import Ancestry
from learngene_zoo.runs.run import Run
from learngene_zoo.testing import make_tiny_task
from lgzoo_closed_form.closed_form import Calibration, ClosedFormExtractor

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
