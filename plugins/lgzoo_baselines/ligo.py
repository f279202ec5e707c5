"""LiGO: a larger model whose weights are a linear function of a smaller one's, learnt in some hundred steps.

Wang, Panda, Hennigen, Greengard, Karlinsky, Feris, Cox, Wang, Kim. Learning to Grow Pretrained Models for Efficient Transformer Training.
ICLR 2023. Every weight matrix of layer i of the larger model is made of those of the layers j of the smaller one:

    1  depth    V_i = sum over j of w_ij W_j         w_ij: numbers of this kind of weight; biases have their own
    2  width    U_i = B_out V_i A_in'                B = [I ; R], A = B diag(1 / c)

    vec U_i = (A_in (x) B_out) (w_i' (x) I) [vec W_0 ; vec W_1 ; ...]        the same as one large matrix

The operators are tied as the weights are: one B for the residual stream, in all layers, and of each layer i of the larger model one for
its queries, keys, values and hidden neurons each; what reads them has the A of what wrote. They start as `growth`'s copies, of which
entry j has c_j, and as its stack of layers; then R and w are trained on a task, through the larger model that they make, while all W stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from learngene_zoo.plugin import Expander, LearngeneConfig, Member, Method, Recipe, Target, WrongCall
from lgzoo_baselines.block_choice import Keep, completed, inherited_blocks
from lgzoo_baselines.growth import Copies, asked, copies_of, larger, stacked_on_top

if TYPE_CHECKING:
    from learngene_zoo.plugin import Descendant, Learngene, Run, Spec

# 100 steps, where a task has as many images.
LEARNING = Recipe(epochs=4, images=1600, batch_size=64, lr=1e-3, warmup=0.0, weight_decay=0.0, clip=1.0, augment="none")


class KeepForLigo(Keep):
    """Keep the ancestry model for `ligo`."""

    method = "ligo"

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """The ancestry model's shape. Raises `WrongCall` for one with attention of another width, or that pools by attention."""
        spec = ancestries[0]
        if not spec.plain or spec.pools_by_attention:
            raise WrongCall(
                "ligo takes models of equal blocks that do not pool by attention; choose another ancestry model"
            )
        return super().outline(ancestries)


@dataclass(frozen=True, kw_only=True)
class Learn(Expander):
    """Learn the operators on the target's task, and make the larger model by them; without a task they stay as they start."""

    axes = frozenset({"layers", "width", "heads", "mlp_ratio", "classes", "image_size"})

    learning: Annotated[Recipe, "of the operators and the head, on images of the target's task"] = LEARNING
    copies: Annotated[Copies, "which entries the operators start to copy: all in turn, or drawn from them"] = "even"

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Every depth, and every width in whole heads, from the ancestry model's to twice as much. Larger ones can be built by name."""
        return larger(config.spec)

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """The grown model, positions resized, a new head. Raises `WrongCall` for a size below the ancestry model's."""
        from learngene_zoo.plugin import open_task
        from lgzoo_baselines.growth_operators import grown, learnt, started

        config, small = learngene.config, learngene.config.spec
        spec, large = asked(config, target)
        places, maps = stacked_on_top(small.layers, large.layers), copies_of(small, large, self.copies, run.seed)
        weights = inherited_blocks(learngene, range(small.layers), run)
        state = {name: weights[name].float() for name in weights}
        operators = started(state, small, maps, places)
        learns = target.task is not None and self.learning.epochs > 0
        made = completed(config, spec, grown(state, small, operators), run, {"blocks": places, "learnt": learns})
        if target.task is None or not learns:
            return made
        return learnt(self.learning, made, state, small, operators, open_task(target.task, offline=run.offline), run)


LIGO = Method(
    name="ligo",
    title="larger models by linear operators on the ancestry model's weights, learnt in some hundred steps",
    paper=(
        "Wang, Panda, Hennigen, Greengard, Karlinsky, Feris, Cox, Wang, Kim. Learning to Grow Pretrained Models for Efficient Transformer "
        "Training. ICLR 2023"
    ),
    expander=Learn(),
    presets={"mini": KeepForLigo(), "paper": KeepForLigo(), "smoke": KeepForLigo()},
    tasks="none",
)
