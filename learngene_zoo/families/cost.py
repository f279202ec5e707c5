"""What a model costs, by closed form: parameters, and FLOPs of one image.

Three conventions, because the papers differ (one FLOP is one multiply-add in all of them):

`exact`   (the default) convolutions, linear layers and attention's two matrix products; 5 per element of every
          LayerNorm, 4 per number of a bilinear upsampling; nothing for softmax, GELU and additions. Every parameter
          of the built model counts.
`fvcore`  the same, as Learngene Pool and SN-Net published it: of stitched models their code counts neither class token
          and position embedding among the parameters nor the final norm among the FLOPs; the final norm's parameters it
          counts even where the model has none.
`thop`    (LSAMD) convolutions and linear layers; 4 per element of every LayerNorm; neither attention's two products nor
          upsampling, and no bare parameters: class token, registers, position embedding, layer scales.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from learngene_zoo.families.family import Convention as Convention
from learngene_zoo.families.family import family_of, table_of
from learngene_zoo.families.spec import Spec
from learngene_zoo.families.table import ParameterSpec

NORM_FLOPS: Mapping[Convention, int] = {"exact": 5, "fvcore": 5, "thop": 4}  # per element
UPSAMPLING_FLOPS: Mapping[Convention, int] = {"exact": 4, "fvcore": 4, "thop": 0}  # per number


@dataclass(frozen=True, order=True)
class Cost:
    """Parameters of a model and FLOPs of one forward pass over one image."""

    params: int
    flops: int


@lru_cache(maxsize=4096)  # sorting, choosing and printing a grid ask for each cost several times
def cost(spec: Spec, convention: Convention = "exact") -> Cost:
    """Parameters and FLOPs of the model `spec` describes."""
    return Cost(count_params(spec, convention), flops(spec, convention))


def flops(spec: Spec, convention: Convention = "exact") -> int:
    """Multiply-adds of one image through the whole model."""
    return family_of(spec).flops(spec, convention)


def count_params(spec: Spec, convention: Convention = "exact") -> int:
    """Parameters of the whole model, as far as the convention counts them."""
    table, before, total = table_of(spec), None, 0
    for segment in spec.segments:
        sizes = {**table.sizes(segment), "before": before or 0}
        total += segment.layers * _count(table.block, spec, sizes, convention)
        total += _count(table.stitch, spec, sizes, convention) if before is not None else 0
        before = segment.width
    total += _count(table.stem, spec, table.sizes(spec.first), convention)
    norms = [kind for kind in table.final_norm if kind.present(spec)]
    total += _count((*norms, *table.head), spec, table.sizes(spec), convention)
    unseen = 2 * spec.width if convention == "fvcore" and spec.stitched and not norms else 0
    return total + unseen


def _count(kinds: Iterable[ParameterSpec], spec: Spec, sizes: Mapping[str, int], convention: Convention) -> int:
    counted = (kind for kind in kinds if kind.present(spec) and not _omitted(kind, spec, convention))
    return sum(math.prod(kind.shape(sizes)) for kind in counted)


def _omitted(kind: ParameterSpec, spec: Spec, convention: Convention) -> bool:
    """Whether a convention passes over a tensor: one that belongs to no layer."""
    token = kind.start in ("token", "positions")
    return (convention == "fvcore" and spec.stitched and token) or (
        convention == "thop" and (token or callable(kind.start))
    )
