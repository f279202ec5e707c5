"""How a hypernetwork's parameters start: the released code's rules, each tensor a function of the seed and its name."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from learngene_zoo.run import derive_seed
from lgzoo_tal.encoder import TaskLayer

# The last layers of GHN-3's decoders start at a fifth, without biases. LoGAH's has no such rule.
DAMPED = ("decoder.conv.2", "decoder.class_layer_predictor.1", "decoder_1d.fc.2")
DAMPING = 5


@torch.no_grad()
def start(hypernet: nn.Module, seed: int) -> None:
    """Fill every parameter.

    Linear layers and their biases are uniform within 1/sqrt(fan in), embeddings normal with a standard deviation of
    1/sqrt(their width), norms 1 and 0. A task layer starts as the identity, gamma 0 and beta 0; in the paper's form, which
    cannot be the identity for every task, as any other linear layer.
    """
    identities = {
        f"{name}.{child}"
        for name, module in hypernet.named_modules()
        if isinstance(module, TaskLayer) and module.residual
        for child in ("fc_gamma", "fc_beta")
    }
    for name, module in hypernet.named_modules():
        if isinstance(module, nn.Linear):
            _linear(module, name, seed, identity=name in identities)
        elif isinstance(module, nn.Embedding):
            module.weight.normal_(std=module.embedding_dim**-0.5, generator=_generator(seed, f"{name}.weight"))
        elif isinstance(module, nn.LayerNorm):
            module.reset_parameters()


def _linear(layer: nn.Linear, name: str, seed: int, identity: bool) -> None:
    bound = 1 / math.sqrt(layer.in_features)
    damped = name in DAMPED
    for kind, tensor in layer.named_parameters():
        if identity or (damped and kind == "bias"):
            tensor.zero_()
        else:
            _uniform(tensor, bound / DAMPING if damped else bound, seed, f"{name}.{kind}")


def _uniform(tensor: Tensor, bound: float, seed: int, name: str) -> None:
    tensor.uniform_(-bound, bound, generator=_generator(seed, name))


def _generator(seed: int, name: str) -> torch.Generator:
    return torch.Generator().manual_seed(derive_seed(seed, "hypernet", name))
