"""Tiny ancestry models for the tests of closed_form."""

from learngene_zoo.families.family import load_family

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
    {"qkv_bias": False, "registers": 2, "rope_type": "dinov3", "rope_half": True, "layer_scale": 0.1},  # as DINOv3
    {"rope_type": "mixed", "attention": "rope", "layer_scale": 0.1},
    {"swiglu": True},
    {"swiglu": True, "swiglu_multiple": 8},
    {"rotary": False, "absolute": True},
]
WHOLE: list[dict[str, object]] = [  # streams that keep their width
    {"swiglu": True, "mlp_norm": True, "qkv_fused": False},  # as EVA02
    {"attention_norm": True},
    {"pre_norm": True, "attention": "rope"},  # as Perception Encoder
]
