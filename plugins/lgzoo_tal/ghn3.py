"""GHN-3: a graph hypernetwork with a convolutional decoder.

A hypernetwork reads a ViT's graph and predicts its weights. From a node's embedding the decoder makes a block of at most K x K
channels, where K is the width of the encoder; larger tensors are tiled with copies of it. It is meta-trained: each step draws
an architecture, predicts its weights, and backpropagates the task's loss and 3e-5 times the norms of the predicted tensors
into the hypernetwork.

The paper trains on ImageNet alone: `--task forms`, or another task that `--source` names, does that. With more tasks a second
stage continues with these, as in LoGAH's protocols (logah.py); `--task-layer` conditions it on the task.

The released checkpoints can be used instead of training: `--released hf-hub:SamsungSAILMontreal/ghn3/ghn3tm8.pt`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from learngene_zoo.plugin import Method, Recipe
from lgzoo_tal.config import PUBLISHED, Curriculum, MetaStep, short, two_steps
from lgzoo_tal.hypernet_spec import Conv
from lgzoo_tal.learngene import Details
from lgzoo_tal.predict import Predict
from lgzoo_tal.two_stages import TwoStages

NAME = "ghn3"
_RECIPE = replace(PUBLISHED, batch_size=128, lr=4e-4)  # of the released code
_TINY = Conv()


@dataclass(frozen=True, kw_only=True)
class MetaTrain(TwoStages):
    """Meta-train a hypernetwork with a convolutional decoder: on a source task first, then on all other tasks."""

    method, decoder = NAME, "conv"

    training: Annotated[Recipe, "of stage 1"] = _RECIPE
    tuning: Annotated[Recipe, "of stage 2; an epoch has as many images as all its tasks together"] = _RECIPE
    hypernet: Conv = _TINY


GHN3 = Method(
    name=NAME,
    title="a hypernetwork with a convolutional decoder predicts the weights of any size",
    paper="Knyazev, Hwang, Lacoste-Julien. Can We Scale Transformers to Predict Parameters of Diverse ImageNet Models? ICML 2023",
    expander=Predict(),
    presets={
        "mini": MetaTrain(
            curriculum=Curriculum(embedding_images=500, attributes=False),
            step=MetaStep(architectures="tal+", judged=500),
            training=short(_RECIPE, images=100_000),
            tuning=short(_RECIPE, images=4000, epochs=10),
            hypernet=Conv(form="centred", places="relative", writers="by_depth"),
        ),
        "paper": MetaTrain(hypernet=Conv(hidden=384, layers=24, heads=16), step=MetaStep(meta_batch=16)),
        "t": MetaTrain(step=MetaStep(meta_batch=8)),
        "s": MetaTrain(hypernet=Conv(hidden=128, layers=5, heads=16), step=MetaStep(meta_batch=8)),
        "l": MetaTrain(hypernet=Conv(hidden=256, layers=12, heads=16), step=MetaStep(meta_batch=8)),
        "smoke": MetaTrain(
            curriculum=Curriculum(source=None, embedding_images=16),
            step=MetaStep(judged=0),
            training=two_steps(_RECIPE),
            tuning=two_steps(_RECIPE),
            hypernet=Conv(hidden=16, layers=1, heads=2),
        ),
    },
    tasks="many",
    details=Details,
    plot="lgzoo_tal.plot:picture",
)
