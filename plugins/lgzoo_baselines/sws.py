"""SWS: Stage-wise Weight Sharing. One block is stored for each stage of an auxiliary model, and all layers of the stage are it.

Xia, Zhu, Yang and Geng, Exploring Learngene via Stage-wise Weight Sharing for Initializing Variable-sized Models, IJCAI 2024:

    theta_i = theta_s(i)        s(0) <= s(1) <= ...: the stage of layer i, of S

The auxiliary model has 16 layers, in S = 5 stages of 3, 3, 4, 3 and 3. It learns by distillation alone (`auxiliary.py`). A descendant of L = q S + r
layers has the same stages, the first r of them with q + 1 layers and the others with q:

    L = 12        0 0 0 1 1 1 2 2 3 3 4 4        the one map that the authors give, of which this rule is our reading
    L < S         evenly spaced stages, the first and the last among them
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated

from learngene_zoo.plugin import LIMITS, Bounds, Expander, Finetuning, Member, Method, WrongCall, details_of
from lgzoo_baselines.auxiliary import AUXILIARY, Condense, Details, Rows, built, presets
from lgzoo_baselines.block_choice import even

if TYPE_CHECKING:
    from learngene_zoo.plugin import Descendant, Learngene, LearngeneConfig, Run, Spec, Target


def spread(layers: int, stages: int) -> list[int]:
    """The stage of each layer, counted from 0."""
    if layers < stages:
        return even(stages, layers)
    least, more = divmod(layers, stages)
    return repeated([least + (stage < more) for stage in range(stages)])


def repeated(stages: Sequence[int]) -> list[int]:
    """The stage of each layer where the stages have so many."""
    return [stage for stage, layers in enumerate(stages) for _ in range(layers)]


def copies(places: Sequence[int], stages: int) -> Rows:
    """The share of each stage's block in each layer: all of one."""
    return tuple(tuple(float(stage == place) for stage in range(stages)) for place in places)


@dataclass(frozen=True, kw_only=True)
class Share(Condense):
    """Train a block for each stage in an auxiliary model."""

    method = "sws"

    stages: Annotated[
        tuple[int, ...], "layers of each stage of the auxiliary model", Bounds(least=1, most=LIMITS["layers"])
    ] = (3, 3, 4, 3, 3)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.stages:
            raise WrongCall("stages is empty; name the layers of each stage, as 3,3,4,3,3")

    def rows(self, ancestry: Spec) -> Rows:
        """The auxiliary model's layers, whatever the ancestry's."""
        return copies(repeated(self.stages), len(self.stages))


@dataclass(frozen=True, kw_only=True)
class Expand(Expander):
    """Repeat the stages' blocks in their order."""

    places: Annotated[
        tuple[int, ...] | None,
        "the stage of each layer, counted from 0 (default: as evenly as can be)",
        Bounds(least=0),
    ] = None

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Every depth up to the auxiliary model's. Deeper ones can be built by name."""
        depths = [len(self.places)] if self.places else range(1, config.spec.layers + 1)
        return [Member(spec=config.spec.with_(layers=layers)) for layers in depths]

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """The blocks, positions resized, a new head unless the task is the learngene's. Raises `WrongCall` for wrong places."""
        config, target = learngene.config, replace(target, layers=target.layers or len(self.places or ()) or None)
        layers, stages = target.apply(config.spec).layers, details_of(config, Details).blocks
        places = self.places or spread(layers, stages)
        if len(places) != layers or max(places) >= stages or any(one > other for one, other in pairwise(places)):
            raise WrongCall(
                f"places is {','.join(map(str, places))}; expected the stages of {layers} layers in their order, from 0 to {stages - 1}"
            )
        return built(learngene, target, copies(places, stages), run, {"blocks": list(places)})


SWS = Method(
    name="sws",
    title="a block for each stage, learnt by distillation; deeper models repeat them within their stages",
    paper=(
        "Xia, Zhu, Yang, Geng. Exploring Learngene via Stage-wise Weight Sharing for Initializing Variable-sized Models. "
        "IJCAI 2024"
    ),
    expander=Expand(),
    presets=presets(Share, stages=(1, 2)),
    tasks="one",
    details=Details,
    # For descendants of DeiT-Base's width the paper has 1e-5.
    finetuning={"paper": Finetuning(recipe=replace(AUXILIARY, epochs=10, lr=5e-5, min_lr=1e-6, warmup=0))},
)
