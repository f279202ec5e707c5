"""TLEG: Transformer as Linear Expansion of learnGene. Two blocks are stored; every depth is a line through them.

Xia, Zhang, Yang, Chen, Chen and Geng, Transformer as Linear Expansion of Learngene, AAAI 2024:

    theta_i = theta_B + (i / L) theta_A        i = 0, ..., L - 1: all tensors of block i of a model of L layers

theta_B is the first layer, and the last comes short of theta_B + theta_A by one step. The learngene is theta_B (`blocks.0`) and theta_A
(`blocks.1`), stem, final norm and head, trained in an auxiliary model of 12 layers by distillation alone (`auxiliary.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from learngene_zoo.plugin import Bounds, Expander, Finetuning, Member, Method
from lgzoo_baselines.auxiliary import AUXILIARY, Condense, Details, Rows, built, presets

if TYPE_CHECKING:
    from learngene_zoo.plugin import Descendant, Learngene, LearngeneConfig, Run, Spec, Target


def line(layers: int) -> Rows:
    """The shares of theta_B and of theta_A in each layer."""
    return tuple((1.0, i / layers) for i in range(layers))


@dataclass(frozen=True, kw_only=True)
class Condensing(Condense):
    """Train theta_B and theta_A in an auxiliary model."""

    method = "tleg"
    slopes = (1,)

    auxiliary_layers: Annotated[
        int | None, "layers of the auxiliary model (default: as many as the ancestry has)", Bounds(least=1)
    ] = None

    def rows(self, ancestry: Spec) -> Rows:
        """The line through the auxiliary model."""
        return line(self.auxiliary_layers or ancestry.layers)


@dataclass(frozen=True, kw_only=True)
class Expand(Expander):
    """Put as many layers on the line as are named."""

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Every depth up to the auxiliary model's. Deeper ones can be built by name."""
        return [Member(spec=config.spec.with_(layers=layers)) for layers in range(1, config.spec.layers + 1)]

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """The layers, positions resized, a new head unless the task is the learngene's."""
        rows = line(target.apply(learngene.config.spec).layers)
        return built(learngene, target, rows, run, {"line": [slope for _, slope in rows]})


# For DeiT-Base's width the paper has 40 epochs.
DESCENDANT = replace(AUXILIARY, epochs=35, warmup=0, label_smoothing=0.1, drop_path=0.1, ema=0.99996)

TLEG = Method(
    name="tleg",
    title="two blocks, learnt by distillation; every depth is a line through them",
    paper="Xia, Zhang, Yang, Chen, Chen, Geng. Transformer as Linear Expansion of Learngene. AAAI 2024",
    expander=Expand(),
    presets=presets(Condensing),
    tasks="one",
    details=Details,
    finetuning={"paper": Finetuning(recipe=DESCENDANT)},
)
