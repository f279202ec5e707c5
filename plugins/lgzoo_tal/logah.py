"""LoGAH: a graph hypernetwork with a low-rank decoder. Cold.

A hypernetwork reads a ViT's graph and predicts its weights; a matrix is the product of two factors of rank r, so that the
decoder grows with r^2 and not with the square of the widest layer:

    W = U V^T,   U (o, r) and V (i, r) from one MLP of the node's embedding

It is trained on models that exist for one step only (meta-training): draw an architecture, predict, and let the task's loss and
3e-5 times the norms of what was predicted flow back into the hypernetwork. TAL's tables know four protocols:

    v1  --source none --no-joint    on each task by itself
    v2  --source source --no-joint  on the source task first, then on each task by itself
    v3  --source none               on all tasks together
    v4  --source source             on the source task first, then on all together

Checkpoints of the authors' training code can be taken in training's place (`--released`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from learngene_zoo.plugin import Method, Recipe
from lgzoo_tal.course import LowRank
from lgzoo_tal.meta_training import MINI, PUBLISHED, SMOKE, Importable, mini, smoke, work_of
from lgzoo_tal.predict import Predict

_HYPERNET = LowRank()
NAME = "logah"


@dataclass(frozen=True, kw_only=True)
class MetaTrain(Importable):
    """Meta-train a hypernetwork with a low-rank decoder."""

    method: ClassVar[str] = NAME

    training: Annotated[Recipe, "on the source task"] = PUBLISHED
    tuning: Annotated[Recipe, "on the tasks; an epoch is as many images as they have together"] = PUBLISHED
    hypernet: LowRank = _HYPERNET


_SMALL = LowRank(hidden=128, layers=5, heads=16, rank=90)
LOGAH = Method(
    name=NAME,
    title="a hypernetwork with a low-rank decoder predicts the weights of any size",
    paper="Zhou, Knyazev, Jolicoeur-Martineau, Fu. LoGAH: Predicting 774-Million-Parameter Transformers using Graph "
    "HyperNetworks with 1/100 Parameters. 2024",
    expander=Predict(),
    presets={
        "mini": MetaTrain(**mini(PUBLISHED), hypernet=MINI),
        "paper": MetaTrain(hypernet=_SMALL),
        "tiny": MetaTrain(hypernet=LowRank()),
        "base": MetaTrain(hypernet=LowRank(hidden=256, layers=5, heads=16, rank=128)),
        "large": MetaTrain(hypernet=LowRank(hidden=256, layers=12, heads=16, rank=256)),
        "smoke": MetaTrain(**smoke(PUBLISHED), source=None, hypernet=SMOKE),
    },
    tasks="many",
    uses_tasks=lambda extractor: not getattr(extractor, "released", None),
    work=work_of,
    plot="lgzoo_tal.plot:picture",
)
