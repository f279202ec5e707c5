"""Initialisation of a hypernetwork, each tensor a function of the seed and its name: the released code's, and that of `centred`."""

import math

import torch
from torch import nn

from learngene_zoo.plugin import derive_seed
from lgzoo_tal.encoder import TaskLayer
from lgzoo_tal.hypernet_spec import HypernetSpec

# The last layers of GHN-3's decoders start five times smaller and with zero biases. LoGAH's decoder has no such rule.
DAMPED = ("decoder.conv.2", "decoder.class_layer_predictor.1", "decoder_1d.fc.2")
DAMPING = 5

# In the form `centred`: factors of some of the encoder's embeddings, and the initial standard deviation of a decoder's outputs.
FACTORS = {"input_dist_embed.weight": 4.0, "embed_channel.weight": 0.1, "embed_spatial.weight": 0.1}
SPREAD = 0.25
GAIN = math.sqrt(1.5)
TANH = 0.65  # the root mean square of a tanh of numbers with variance 1.5 x 0.65^2


@torch.no_grad()
def initialise(hypernet: nn.Module, spec: HypernetSpec, seed: int) -> None:
    """Fill every parameter.

    Linear layers and their biases are uniform within 1/sqrt(fan in), embeddings normal with a standard deviation of
    1/sqrt(their width), norms 1 and 0. A task layer starts as the identity, gamma 0 and beta 0. In the paper's form, which cannot
    be the identity, and in the form `centred` it starts as any other linear layer: in the latter, tasks must differ from the
    first step on, since otherwise their classifiers are one tensor and keep each other from learning.
    """
    identities = {
        f"{name}.{child}"
        for name, module in hypernet.named_modules()
        if isinstance(module, TaskLayer) and module.residual and spec.form == "published"
        for child in ("fc_gamma", "fc_beta")
    }
    for name, module in hypernet.named_modules():
        if isinstance(module, nn.Linear):
            _linear(module, name, seed, identity=name in identities)
        elif isinstance(module, nn.Embedding):
            module.weight.normal_(std=module.embedding_dim**-0.5, generator=_generator(seed, f"{name}.weight"))
        elif isinstance(module, nn.LayerNorm):
            module.reset_parameters()
    if spec.form == "centred":
        _centre(hypernet, spec, seed)


def _centre(hypernet: nn.Module, spec: HypernetSpec, seed: int) -> None:
    """What differs in the form `centred`: decoders without biases that preserve the nodes' differences, see centred.py."""
    for name, parameter in hypernet.named_parameters():
        if "decoder" in name or name.startswith("bias_class"):
            layer, kind = name.rsplit(".", 1)
            if kind == "bias":
                parameter.zero_()
            else:
                parameter.normal_(std=_deviation(layer, spec, parameter.shape[1]), generator=_generator(seed, name))
        else:
            parameter.mul_(next((factor for end, factor in FACTORS.items() if name.endswith(end)), 1.0))


def _deviation(layer: str, spec: HypernetSpec, inputs: int) -> float:
    """The standard deviation of the weights of a decoder's layer."""
    if layer == "decoder.l2":
        assert spec.rank is not None  # the factors are multiplied: a sum of r products
        return math.sqrt(SPREAD / math.sqrt(spec.rank) / inputs) / TANH / GAIN
    if layer in ("decoder.class_layer_predictor.1", "bias_class.1"):
        return 1 / math.sqrt(inputs)  # its inputs have that spread already
    return (SPREAD / TANH if layer in DAMPED else GAIN) / math.sqrt(inputs)


def _linear(layer: nn.Linear, name: str, seed: int, identity: bool) -> None:
    bound = 1 / math.sqrt(layer.in_features)
    damped = name in DAMPED
    for kind, tensor in layer.named_parameters():
        if identity or (damped and kind == "bias"):
            tensor.zero_()
        else:
            reach = bound / DAMPING if damped else bound
            tensor.uniform_(-reach, reach, generator=_generator(seed, f"{name}.{kind}"))


def _generator(seed: int, name: str) -> torch.Generator:
    return torch.Generator().manual_seed(derive_seed(seed, "hypernet", name))
