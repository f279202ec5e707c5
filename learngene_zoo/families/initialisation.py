"""How tensors start: timm's initialisation, or the stronger 1/sqrt(fan in). Each tensor is a function of seed and name."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import torch

from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.families.vit.table import Kind, placed
from learngene_zoo.seeds import derive_seed
from learngene_zoo.storage import StateDict

Scheme = Literal["timm", "fan_in"]


def initial(spec: ViTSpec, seed: int, scheme: Scheme = "timm", names: Iterable[str] | None = None) -> StateDict:
    """Fresh tensors of a model: all, or those in `names`.

    `timm`    as timm's `VisionTransformer` starts: matrices and positions N(0, 0.02), the patch embedding uniform within
              1/sqrt(fan in), tokens N(0, 1e-6). timm cuts its normals at 2, that is at 100 standard deviations: never.
    `fan_in`  matrices and patch embedding N(0, 1/sqrt(fan in)); a much stronger start for small widths.

    In both biases are 0 (the patch embedding's under `timm` excepted), norms 1 and 0, layer scales their value. A tensor
    depends on the seed, its name and its shape alone, so that models of two sizes share what they have in common.
    """
    wanted = None if names is None else set(names)
    chosen = ((name, kind, sizes) for name, kind, sizes in placed(spec) if wanted is None or name in wanted)
    return {name: _start(name, kind, sizes, seed, scheme) for name, kind, sizes in chosen}


def _start(name: str, kind: Kind, spec: ViTSpec, seed: int, scheme: Scheme) -> torch.Tensor:
    tensor = torch.empty(kind.shape(spec), device="cpu")
    generator = torch.Generator().manual_seed(derive_seed(seed, "initial", name))
    if kind.start == "one":
        return tensor.fill_(1.0)
    if kind.start == "scale":
        return tensor.fill_(spec.layer_scale or 0.0)
    if kind.start == "token":
        return tensor.normal_(std=1e-6, generator=generator)
    if kind.start == "positions":
        return tensor.normal_(std=0.02, generator=generator)
    if kind.start == "patches" and scheme == "timm":
        bound = 1 / math.sqrt(spec.channels * spec.patch_size**2)
        return tensor.uniform_(-bound, bound, generator=generator)
    if kind.start == "zero" or tensor.dim() == 1:
        return tensor.zero_()
    std = 0.02 if scheme == "timm" else 1 / math.sqrt(tensor[0].numel())
    return tensor.normal_(std=std, generator=generator)
