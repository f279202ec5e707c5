"""How tensors start: timm's initialisation, or the stronger 1/sqrt(fan in). Each tensor is a function of seed and name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal

import torch

from learngene_zoo.families.family import iter_parameters
from learngene_zoo.families.spec import Spec
from learngene_zoo.families.table import ParameterSpec
from learngene_zoo.seeds import derive_seed
from learngene_zoo.storage import StateDict

Scheme = Literal["timm", "fan_in"]


def initial(spec: Spec, seed: int, scheme: Scheme = "timm", names: Iterable[str] | None = None) -> StateDict:
    """Fresh tensors of a model: all, or those in `names`.

    `timm`    as timm's `VisionTransformer` starts: matrices and positions N(0, 0.02), the patch embedding uniform within
              1/sqrt(fan in), tokens N(0, 1e-6). timm truncates its normals at 2, which is 100 standard deviations: never.
    `fan_in`  matrices and patch embedding N(0, 1/sqrt(fan in)); a much stronger start for small widths.

    In both, biases are 0 (except the patch embedding's under `timm`), norms 1 and 0, layer scales their value. A tensor
    depends on the seed, its name and its shape alone, so that models of two sizes share what they have in common.
    """
    chosen = None if names is None else set(names)
    return {
        name: _start(kind, spec, sizes, derive_seed(seed, "initial", name), scheme)
        for name, kind, sizes in iter_parameters(spec)
        if chosen is None or name in chosen
    }


def _start(kind: ParameterSpec, spec: Spec, sizes: Mapping[str, int], seed: int, scheme: Scheme) -> torch.Tensor:
    tensor = torch.empty(kind.shape(sizes), device="cpu")
    generator = torch.Generator().manual_seed(seed)
    if callable(kind.start):
        return tensor.fill_(kind.start(spec))
    if kind.start == "one":
        return tensor.fill_(1.0)
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
