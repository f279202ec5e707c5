"""Curvature of a label-free loss along each head and hidden neuron, from gradients.

The loss is the consistency of views: of every image two large and some small crops are seen, and of
every text spans with the same shares of its words (a reading of ours for text models). With
the features f of a crop, divided by their length, and p = softmax(f),

    L_i = sum over large t, all s != t of  - sum_d p_d(t) log p_d(s)      (DINO's objective)
    H   = 1/N sum_i (dL_i/dw)^2      for every weight w, as the Hessian's diagonal

with the teacher t without gradient. The curvature of a hidden neuron is the mean of H over the
weights that write it, that of a head over those that write its values.

Shapes: B images, V crops of each, L blocks, H heads, M hidden neurons, D features.
"""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from learngene_zoo.plugin import (
    Model,
    Spec,
    StateDict,
    TextSpec,
    compute_pooled,
    draw_uniform,
    get_table,
    show_progress,
)

Scores = tuple[torch.Tensor, torch.Tensor]  # of heads (L, H) and of hidden neurons (L, M)
LARGE, SMALL = (0.25, 1.0), (0.05, 0.25)  # shares of an image's area that crops have
GLOBAL = 2  # large crops of each image


def draw_crops(image_CHW: torch.Tensor, seed: int, number: int, num_small: int) -> torch.Tensor:
    """Return the large crops of an image and then the small ones, (V, C, H, W), at its own size.

    As of torchvision's RandomResizedCrop, sides have a ratio of 3/4 to 4/3, but they are limited
    by the image's own.

    Args:
        image_CHW: the image.
        seed: of all draws.
        number: of the image; crops are a function of seed and number.
        num_small: how many small crops follow the large ones.
    """
    _, height, width = image_CHW.shape
    draws_V4 = draw_uniform(seed, [number], 4 * (GLOBAL + num_small)).reshape(-1, 4).tolist()
    crops = []
    for view, (area, shape, down, right) in enumerate(draws_V4):
        smallest, largest = LARGE if view < GLOBAL else SMALL
        pixels = height * width * (smallest + area * (largest - smallest))
        stretch = math.exp((2 * shape - 1) * math.log(4 / 3))
        rows = min(max(round(math.sqrt(pixels / stretch)), 1), height)
        columns = min(max(round(math.sqrt(pixels * stretch)), 1), width)
        top, left = int(down * (height - rows + 1)), int(right * (width - columns + 1))
        crop = image_CHW[None, :, top : top + rows, left : left + columns]
        crop = functional.interpolate(crop, size=(height, width), mode="bilinear", antialias=True)
        crops.append(crop)
    return torch.cat(crops)


def draw_spans(
    words_N: torch.Tensor, seed: int, number: int, num_small: int, pad: int
) -> torch.Tensor:
    """Return the large spans of a text and then the small ones, (V, N), padded on the right.

    A span is consecutive words of the text; its share of them is drawn as that of an image's area.
    The first and the last word of the text, which may be markers, stay in each span.

    Args:
        words_N: the ids of the text, with or without padding.
        seed: of all draws.
        number: of the text; spans are a function of seed and number.
        num_small: how many small spans follow the large ones.
        pad: the id of padding.
    """
    (places,) = (words_N != pad).nonzero(as_tuple=True)
    words = words_N[: int(places[-1]) + 1] if len(places) else words_N[:1]
    inner = len(words) - 2
    if inner < 1:
        return words.repeat(GLOBAL + num_small, 1)
    draws_V2 = draw_uniform(seed, [number], 2 * (GLOBAL + num_small)).reshape(-1, 2).tolist()
    spans = []
    for view, (share, place) in enumerate(draws_V2):
        smallest, largest = LARGE if view < GLOBAL else SMALL
        length = max(round(inner * (smallest + share * (largest - smallest))), 1)
        start = 1 + int(place * (inner - length + 1))
        spans.append(torch.cat([words[:1], words[start : start + length], words[-1:]]))
    return torch.nn.utils.rnn.pad_sequence(spans, batch_first=True, padding_value=pad)


def extract_features(model: Model, spec: Spec, images_BCHW: torch.Tensor) -> torch.Tensor:
    """Return the class token after the last block and its norm, (B, D).

    Where the head reads patches, return the mean of the patches; where an attention layer pools
    them, return its output. Of texts return the feature that the head reads.
    """
    if isinstance(spec, TextSpec):
        return compute_pooled(model, images_BCHW)
    tokens_BND = model.forward_features(images_BCHW)
    if spec.pools_by_attention:
        pooled_BD: torch.Tensor = model.forward_head(tokens_BND, pre_logits=True)
        return pooled_BD
    if spec.class_token and spec.pool == "token":
        return tokens_BND[:, 0]
    return tokens_BND[:, spec.prefix_tokens :].mean(dim=1)


def compute_consistency_loss(features_VD: torch.Tensor) -> torch.Tensor:
    """Return L_i of the crops of one image, of which the first two are large."""
    unit_VD = functional.normalize(features_VD, dim=-1)
    teacher_TD = unit_VD[:GLOBAL].detach().softmax(dim=-1)
    student_VD = unit_VD.log_softmax(dim=-1)
    cross_TV = -(teacher_TD @ student_VD.T)
    return cross_TV.sum() - cross_TV.diagonal().sum()


def measure_curvatures(
    model: Model,
    spec: Spec,
    images_BCHW: torch.Tensor,
    *,
    num_small: int,
    seed: int,
    has_progress: bool = False,
) -> Scores:
    """Return the curvatures of heads and of hidden neurons, each with mean 1 over all blocks.

    Args:
        model: the ancestry model.
        spec: its shape.
        images_BCHW: unlabelled images, or ids of texts (B, N).
        num_small: small crops of each image.
        seed: of the crops.
        has_progress: whether a progress bar is shown.
    """
    weights = {name: weight for name, weight in model.named_parameters() if _is_writer(spec, name)}
    sums = {name: torch.zeros_like(weight, dtype=torch.float64) for name, weight in weights.items()}
    label = "curvature of the features' agreement"
    for number, image_CHW in show_progress(enumerate(images_BCHW), label, has_progress):
        if isinstance(spec, TextSpec):
            crops_VCHW = draw_spans(image_CHW, seed, number, num_small, spec.pad_token or 0)
        else:
            crops_VCHW = draw_crops(image_CHW, seed, number, num_small)
        loss = compute_consistency_loss(extract_features(model, spec, crops_VCHW))
        for name, slope in zip(sums, torch.autograd.grad(loss, list(weights.values()))):
            sums[name] += slope.double().square()
    return average_curvatures(sums, spec)


def _is_writer(spec: Spec, name: str) -> bool:
    """Return whether a tensor is the weight that writes a block's values or hidden neurons."""
    table = get_table(spec)
    # The values are last: in a layer with queries and keys, or in one after theirs.
    layers = [
        reader
        for branch in table.branches(spec)
        for reader in (branch.readers[-1:] if branch.mixes else branch.readers)
    ]
    return table.block_of(name) is not None and table.inner_name(name) in {
        f"{layer}.weight" for layer in layers
    }


def average_curvatures(curvature: StateDict, spec: Spec) -> Scores:
    """Return the means over the rows of each head's values, and of each hidden neuron.

    Both are scaled to mean 1 over all blocks.
    """
    table = get_table(spec)
    heads = torch.zeros(spec.layers, spec.heads, dtype=torch.float64)
    hidden = torch.zeros(spec.layers, spec.hidden, dtype=torch.float64)
    for name in curvature:
        block, kind = table.block_of(name), table.find(name)
        assert kind is not None, name
        rows = curvature[name].movedim(kind.writes, 0)
        if "heads" in kind.axes[kind.writes]:
            parts = len(rows) // spec.heads_width  # 3 with queries and keys
            values_HCD = rows.unflatten(0, (parts, spec.heads, -1))[-1]
            heads[block] = values_HCD.flatten(1).mean(dim=1)
        else:
            rows_GMD = rows.unflatten(0, (-1, spec.hidden))  # G: gate and values
            hidden[block] += rows_GMD.sum(dim=0).mean(dim=1)
    tiny = torch.finfo(heads.dtype).tiny
    return heads / heads.mean().clamp_min(tiny), hidden / hidden.mean().clamp_min(tiny)
