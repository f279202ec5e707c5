"""Write this folder again: small random models saved by transformers, and its outputs for fixed
images.

python tests/data/transformers/make.py    needs transformers, which the tests do not
"""

from pathlib import Path

import torch
import transformers as tf
from safetensors.torch import save_file

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
TINY = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
TINY_MLP = {**TINY, "intermediate_size": 12}
DECODER = {
    f"decoder_{name}": size
    for name, size in {**TINY_MLP, "hidden_size": 4}.items()
    if "size" in name
}
DECODER |= {"decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 1}
KINDS = {
    "vit": (
        tf.ViTForImageClassification,
        tf.ViTConfig(**SIZES, intermediate_size=32, num_labels=3),
    ),
    "deit": (
        tf.DeiTForImageClassification,
        tf.DeiTConfig(**SIZES, intermediate_size=32, num_labels=3),
    ),
    "dinov2": (tf.Dinov2Model, tf.Dinov2Config(**SIZES, mlp_ratio=2)),
    "dinov2_with_registers": (
        tf.Dinov2WithRegistersModel,
        tf.Dinov2WithRegistersConfig(**SIZES, mlp_ratio=2),
    ),
    "deit_teacher": (
        tf.DeiTForImageClassificationWithTeacher,
        tf.DeiTConfig(**TINY_MLP, num_labels=3),
    ),
    "dinov2_swiglu": (
        tf.Dinov2ForImageClassification,
        tf.Dinov2Config(**TINY, mlp_ratio=2, use_swiglu_ffn=True),
    ),
    "ijepa": (tf.IJepaForImageClassification, tf.IJepaConfig(**TINY_MLP, num_labels=3)),
    "vit_mae": (tf.ViTMAEForPreTraining, tf.ViTMAEConfig(**TINY_MLP, **DECODER, mask_ratio=0.0)),
    "vit_msn": (tf.ViTMSNForImageClassification, tf.ViTMSNConfig(**TINY_MLP, num_labels=3)),
    "vit_other_layers": (
        tf.ViTForImageClassification,
        tf.ViTConfig(
            **TINY_MLP, num_labels=3, layer_norm_eps=1e-5, hidden_act="quick_gelu", qkv_bias=False
        ),
    ),
    "timm_wrapper": (
        tf.TimmWrapperForImageClassification,
        tf.TimmWrapperConfig(
            architecture="vit_tiny_patch16_224",
            model_args={
                "embed_dim": 8,
                "depth": 1,
                "num_heads": 2,
                "img_size": 28,
                "patch_size": 14,
            },
            num_labels=3,
            pretrained_cfg={
                "input_size": [3, 28, 28],
                "fixed_input_size": True,
                "mean": [0.1, 0.2, 0.3],
            },
        ),
    ),
}


def answer(kind: str, model: torch.nn.Module, images_BCHW: torch.Tensor) -> torch.Tensor:
    """Return the logits, or without a supported head the normalised tokens."""
    if kind == "dinov2_swiglu":
        return model.dinov2(images_BCHW)[0]
    if kind == "vit_mae":  # nothing is masked; the noise keeps the order of the patches
        return model.vit(images_BCHW, noise=torch.arange(4.0).expand(len(images_BCHW), 4))[0]
    out = model(images_BCHW)
    return out.logits if "logits" in out else out[0]


def main() -> None:
    """Write all models; every tensor is changed randomly, so that none stays at its initial 0 or 1."""
    torch.manual_seed(0)
    images_BCHW = torch.linspace(-1, 1, 2 * 3 * 28 * 28).view(2, 3, 28, 28)
    for kind, (make, config) in KINDS.items():
        model, folder = make(config).eval(), Path(__file__).parent / kind
        with torch.no_grad():
            for tensor in model.parameters():
                tensor.add_(0.1 * torch.randn_like(tensor))
            answers = answer(kind, model, images_BCHW)
        model.save_pretrained(folder)
        save_file({"answers": answers.contiguous()}, folder / "answers.safetensors")


if __name__ == "__main__":
    main()
