"""How sharply a label-free loss curves along each head and hidden neuron, from the gradients of cross-view consistency.

Of every image two large and some small crops are seen. With the features f of a crop, divided by their length, and p = softmax(f),

    L_i = sum over large t, all s != t of  - sum_d p_d(t) log p_d(s)          the teacher t without gradient       (DINO's objective)
    H   = 1/N sum_i (dL_i/dw)^2                                             for every weight w, as the Hessian's diagonal

A hidden neuron is as sharp as the mean of H over the weights that write it, a head over those that write its values.

Shapes: B images, V crops of each, L blocks, H heads, M hidden neurons, D features.
"""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from learngene_zoo.plugin import Model, Spec, StateDict, progress, table_of, uniform

Scores = tuple[torch.Tensor, torch.Tensor]  # of heads (L, H) and of hidden neurons (L, M)
LARGE, SMALL = (0.25, 1.0), (0.05, 0.25)  # shares of an image's area that crops have
GLOBAL = 2  # large crops of each image


def crops(image_CHW: torch.Tensor, seed: int, number: int, small: int) -> torch.Tensor:
    """(V, C, H, W): the large crops of an image and then the small ones, at its own size; a function of seed and number.

    As torchvision's RandomResizedCrop has them: sides in a ratio of 3/4 to 4/3, but cut at the image's own.
    """
    _, height, width = image_CHW.shape
    draws_V4 = uniform(seed, [number], 4 * (GLOBAL + small)).reshape(-1, 4).tolist()
    made = []
    for view, (area, shape, down, right) in enumerate(draws_V4):
        least, most = LARGE if view < GLOBAL else SMALL
        pixels = height * width * (least + area * (most - least))
        stretch = math.exp((2 * shape - 1) * math.log(4 / 3))
        high = min(max(round(math.sqrt(pixels / stretch)), 1), height)
        wide = min(max(round(math.sqrt(pixels * stretch)), 1), width)
        top, left = int(down * (height - high + 1)), int(right * (width - wide + 1))
        one = image_CHW[None, :, top : top + high, left : left + wide]
        made.append(functional.interpolate(one, size=(height, width), mode="bilinear", antialias=True))
    return torch.cat(made)


def features(model: Model, spec: Spec, images_BCHW: torch.Tensor) -> torch.Tensor:
    """(B, D): the class token after the last block and its norm, or where the head reads patches their mean."""
    tokens_BND = model.forward_features(images_BCHW)
    if spec.class_token and spec.pool == "token":
        return tokens_BND[:, 0]
    return tokens_BND[:, spec.prefix_tokens :].mean(dim=1)


def consistency(features_VD: torch.Tensor) -> torch.Tensor:
    """L_i of the crops of one image, of which the first two are large."""
    unit_VD = functional.normalize(features_VD, dim=-1)
    teacher_TD, student_VD = unit_VD[:GLOBAL].detach().softmax(dim=-1), unit_VD.log_softmax(dim=-1)
    cross_TV = -(teacher_TD @ student_VD.T)
    return cross_TV.sum() - cross_TV.diagonal().sum()


def curvatures(
    model: Model, spec: Spec, images_BCHW: torch.Tensor, *, small: int, seed: int, bars: bool = False
) -> Scores:
    """Of heads and of hidden neurons, each in the mean over all blocks 1."""
    watched = {name: weight for name, weight in model.named_parameters() if _writes(spec, name)}
    sums = {name: torch.zeros_like(weight, dtype=torch.float64) for name, weight in watched.items()}
    for number, image_CHW in progress(enumerate(images_BCHW), "curvature of the features' agreement", bars):
        loss = consistency(features(model, spec, crops(image_CHW, seed, number, small)))
        for name, slope in zip(sums, torch.autograd.grad(loss, list(watched.values()))):
            sums[name] += slope.double().square()
    return per_structure(sums, spec)


def _writes(spec: Spec, name: str) -> bool:
    """Whether a tensor is the weight of what writes the heads' values or the hidden neurons of a block."""
    if table_of(spec).block_of(name) is None or not name.endswith(".weight"):
        return False
    return table_of(spec).inner_name(name).startswith(("attn.qkv.", "mlp.fc1"))


def per_structure(curvature: StateDict, spec: Spec) -> Scores:
    """The means over the rows of values of each head, and over the rows of each hidden neuron; in the mean over all of them 1."""
    table = table_of(spec)
    heads = torch.zeros(spec.layers, spec.heads, dtype=torch.float64)
    hidden = torch.zeros(spec.layers, spec.hidden, dtype=torch.float64)
    for name in curvature:
        block = table.block_of(name)
        if table.inner_name(name).startswith("attn."):
            values_HCD = curvature[name].unflatten(0, (3, spec.heads, -1))[2]
            heads[block] = values_HCD.flatten(1).mean(dim=1)
        else:
            hidden[block] += curvature[name].unflatten(0, (-1, spec.hidden)).sum(dim=0).mean(dim=1)
    heads, hidden = (one / one.mean().clamp_min(torch.finfo(one.dtype).tiny) for one in (heads, hidden))
    return heads, hidden
