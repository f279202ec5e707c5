"""Writes this folder anew: small random models as transformers saves them, and its answers to fixed images.

python tests/data/transformers/make.py    needs transformers, which the tests do not
"""

from pathlib import Path

import torch
import transformers as tf
from safetensors.torch import save_file

SIZES = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 28, "patch_size": 14
}  # fmt: skip
KINDS = {
    "vit": (tf.ViTForImageClassification, tf.ViTConfig(**SIZES, intermediate_size=32, num_labels=3)),
    "deit": (tf.DeiTForImageClassification, tf.DeiTConfig(**SIZES, intermediate_size=32, num_labels=3)),
    "dinov2": (tf.Dinov2Model, tf.Dinov2Config(**SIZES, mlp_ratio=2)),
    "dinov2_with_registers": (tf.Dinov2WithRegistersModel, tf.Dinov2WithRegistersConfig(**SIZES, mlp_ratio=2)),
}


def main() -> None:
    """Every tensor is moved at random, so that none is 0 or 1 as it starts."""
    torch.manual_seed(0)
    images_BCHW = torch.linspace(-1, 1, 2 * 3 * 28 * 28).view(2, 3, 28, 28)
    for kind, (make, config) in KINDS.items():
        model, place = make(config).eval(), Path(__file__).parent / kind
        with torch.no_grad():
            for tensor in model.parameters():
                tensor.add_(0.1 * torch.randn_like(tensor))
            out = model(images_BCHW)
        model.save_pretrained(place)
        save_file(
            {"answers": getattr(out, "logits", None) if "logits" in out else out[0]}, place / "answers.safetensors"
        )


if __name__ == "__main__":
    main()
