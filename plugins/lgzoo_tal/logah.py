"""LoGAH: a graph hypernetwork with a low-rank decoder.

A hypernetwork reads a ViT's graph and predicts its weights. A matrix is the product of two factors of rank r, so the decoder
grows with r^2 instead of with the square of the widest layer:

    W = U V^T,   U (o, r) and V (i, r) from one MLP of the node's embedding

It is meta-trained: each step draws an architecture, predicts its weights, and backpropagates the task's loss and 3e-5 times
the norms of the predicted tensors into the hypernetwork. TAL's tables compare four protocols:

    v1  --source none --no-joint    on each task by itself
    v2  --source forms  --no-joint  on the source task first, then on each task by itself
    v3  --source none               on all tasks together
    v4  --source forms              on the source task first, then on all together

A checkpoint of the authors' training code can be used instead of training (`--released`).
"""

from __future__ import annotations

from dataclasses import dataclass

from learngene_zoo.plugin import Method
from lgzoo_tal.config import PUBLISHED, Curriculum, MetaStep, short, two_steps
from lgzoo_tal.hypernet_spec import LowRank
from lgzoo_tal.learngene import Details
from lgzoo_tal.predict import Predict
from lgzoo_tal.two_stages import TwoStages

NAME = "logah"
SMALL = LowRank(hidden=128, layers=5, heads=16, rank=90)
MINI = LowRank(rank=64, widest=512, chunk=1024, form="centred", places="relative", writers="by_depth")
SMOKE = LowRank(hidden=16, layers=1, heads=2, rank=4, widest=64, chunk=512, form="centred")
_TINY = LowRank()


@dataclass(frozen=True, kw_only=True)
class MetaTrain(TwoStages):
    """Meta-train a hypernetwork with a low-rank decoder: on a source task first, then on all other tasks."""

    method, decoder = NAME, "low_rank"

    hypernet: LowRank = _TINY


LOGAH = Method(
    name=NAME,
    title="a hypernetwork with a low-rank decoder predicts the weights of any size",
    paper="Zhou, Knyazev, Jolicoeur-Martineau, Fu. LoGAH: Predicting 774-Million-Parameter Transformers using Graph "
    "HyperNetworks with 1/100 Parameters. 2024",
    expander=Predict(),
    presets={
        "mini": MetaTrain(
            curriculum=Curriculum(embedding_images=500, attributes=False),
            step=MetaStep(architectures="tal+", judged=500),
            training=short(PUBLISHED, images=100_000),
            tuning=short(PUBLISHED, images=4000, epochs=10),
            hypernet=MINI,
        ),
        "paper": MetaTrain(hypernet=SMALL),
        "tiny": MetaTrain(hypernet=LowRank()),
        "base": MetaTrain(hypernet=LowRank(hidden=256, layers=5, heads=16, rank=128)),
        "large": MetaTrain(hypernet=LowRank(hidden=256, layers=12, heads=16, rank=256)),
        "smoke": MetaTrain(
            curriculum=Curriculum(source=None, embedding_images=16),
            step=MetaStep(judged=0),
            training=two_steps(PUBLISHED),
            tuning=two_steps(PUBLISHED),
            hypernet=SMOKE,
        ),
    },
    tasks="many",
    details=Details,
    plot="lgzoo_tal.plot:picture",
)
