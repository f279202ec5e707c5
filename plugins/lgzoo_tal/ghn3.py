"""GHN-3: a graph hypernetwork with a convolutional decoder. Cold.

A hypernetwork reads a ViT's graph and predicts its weights. From a node's embedding the decoder makes a block of at most
K x K channels (K is the encoder's width); larger tensors are tiled with copies of it. It is trained on models that exist for one
step only (meta-training): draw an architecture, predict, and let the task's loss and 3e-5 times the norms of what was
predicted flow back into the hypernetwork.

The paper trains on ImageNet alone: `--task source`, or another task that `--source` names, is that. With more tasks a second
stage goes on with these, all together or each by itself, as LoGAH's protocols do (logah.py); `--task-layer` tells it the task.

The released checkpoints can be taken in training's place: `--released hf-hub:SamsungSAILMontreal/ghn3/ghn3tm8.pt`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from learngene_zoo.plugin import Method, Recipe
from lgzoo_tal.course import Conv
from lgzoo_tal.meta_training import PUBLISHED, Importable, mini, smoke, work_of
from lgzoo_tal.predict import Predict

_TRAINING = replace(PUBLISHED, batch_size=128, lr=4e-4)  # of the released code
_HYPERNET = Conv()
NAME = "ghn3"


@dataclass(frozen=True, kw_only=True)
class MetaTrain(Importable):
    """Meta-train a hypernetwork with a convolutional decoder."""

    method: ClassVar[str] = NAME

    training: Annotated[Recipe, "on the source task"] = _TRAINING
    tuning: Annotated[Recipe, "on the tasks; an epoch is as many images as they have together"] = _TRAINING
    hypernet: Conv = _HYPERNET


GHN3 = Method(
    name=NAME,
    title="a hypernetwork with a convolutional decoder predicts the weights of any size",
    paper="Knyazev, Hwang, Lacoste-Julien. Can We Scale Transformers to Predict Parameters of Diverse ImageNet Models? ICML 2023",
    expander=Predict(),
    presets={
        "mini": MetaTrain(**mini(_TRAINING), hypernet=Conv(form="centred")),
        "paper": MetaTrain(hypernet=Conv(hidden=384, layers=24, heads=16), meta_batch=16),
        "t": MetaTrain(hypernet=Conv(), meta_batch=8),
        "s": MetaTrain(hypernet=Conv(hidden=128, layers=5, heads=16), meta_batch=8),
        "l": MetaTrain(hypernet=Conv(hidden=256, layers=12, heads=16), meta_batch=8),
        "smoke": MetaTrain(**smoke(_TRAINING), source=None, hypernet=Conv(hidden=16, layers=1, heads=2)),
    },
    tasks="many",
    uses_tasks=lambda extractor: not getattr(extractor, "released", None),
    work=work_of,
    plot="lgzoo_tal.plot:picture",
)
