"""LiGO: initialise a larger model by trained linear operators on a smaller model's weights.

Wang, Panda, Hennigen, Greengard, Karlinsky, Feris, Cox, Wang, Kim. Learning to Grow Pretrained
Models for Efficient Transformer Training. ICLR 2023. Every weight matrix of layer i of the larger
model is computed from those of the layers j of the smaller one:

    1  depth    V_i = sum over j of w_ij W_j     w_ij: separate for every kind of weight and for
                                                 biases
    2  width    U_i = B_out V_i A_in'            B = [I ; R], A = B diag(1 / c)

which as one large matrix is

    vec U_i = (A_in (x) B_out) (w_i' (x) I) [vec W_0 ; vec W_1 ; ...]

The operators are tied as the weights are: one B for the residual stream, in all layers, and of
each layer i of the larger model one for its queries, keys, values and hidden neurons each; a layer
that reads an axis has the A of the layer that wrote it. They start as `growth`'s copies, of which
entry j has c_j, and as its stack of layers; then R and w are trained on a task, through the larger
model, while all W are constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from learngene_zoo.plugin import (
    Expander,
    Extractor,
    Learngene,
    LearngeneConfig,
    Member,
    Method,
    Recipe,
    Target,
    WrongCall,
)
from lgzoo_baselines.blocks.block_choice import Store, build_descendant, read_blocks
from lgzoo_baselines.weights.growth import (
    Copies,
    apply_target,
    choose_copies,
    list_larger_members,
    stack_blocks,
)

if TYPE_CHECKING:
    from learngene_zoo.plugin import Ancestry, Descendant, Run, Spec, Task

# 100 steps, where a task has as many images.
LEARNING = Recipe(
    epochs=4,
    images=1600,
    batch_size=64,
    lr=1e-3,
    warmup=0.0,
    weight_decay=0.0,
    clip=1.0,
    augment="none",
)


@dataclass(frozen=True, kw_only=True)
class LigoExtractor(Extractor):
    """Keep the ancestry model without its head, or only its name."""

    store: Store = True

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """Return the config with the ancestry model's shape.

        Raises `WrongCall` for a model with attention of another width than the stream, or that
        pools by attention.
        """
        spec = ancestries[0]
        if not spec.plain or spec.pools_by_attention:
            raise WrongCall(
                "ligo takes models of equal blocks that do not pool by attention; choose another "
                "ancestry model"
            )
        return LearngeneConfig(spec=spec)

    def __call__(
        self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run
    ) -> Learngene:
        """Return the learngene; nothing is computed."""
        from learngene_zoo.plugin import remove_head

        spec, state = ancestries[0].spec, ancestries[0].state
        return Learngene(
            config=self.outline([spec]), state=remove_head(state, spec) if self.store else {}
        )


@dataclass(frozen=True, kw_only=True)
class LigoExpander(Expander):
    """Train the operators on the target's task, and compute the larger model by them.

    Without a task they are not trained.
    """

    axes = frozenset({"layers", "width", "heads", "mlp_ratio", "classes", "image_size"})

    learning: Annotated[
        Recipe, "training of the operators and the head on images of the target's task"
    ] = LEARNING
    copies: Annotated[
        Copies, "entries that the initial operators copy: all in turn, or drawn at random"
    ] = "even"

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Return every depth and width in whole heads, from the ancestry model's to twice as much.

        Larger ones can be built by name.
        """
        return list_larger_members(config.spec)

    def check_target(self, config: LearngeneConfig, target: Target) -> None:
        """Raise `WrongCall` for a size below the ancestry model's."""
        apply_target(config, target)

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Build the larger model, with resized positions and a new head.

        Raises `WrongCall` for a size below the ancestry model's.
        """
        from learngene_zoo.plugin import open_task
        from lgzoo_baselines.modules.ligo import (
            apply_operators,
            init_operators,
            train_operators,
        )

        config, small = learngene.config, learngene.config.spec
        spec, large = apply_target(config, target)
        maps = choose_copies(small, large, self.copies, run.seed)
        sources = stack_blocks(small.layers, large.layers)
        weights = read_blocks(learngene, range(small.layers), run)
        state = {name: weights[name].float() for name in weights}
        operators = init_operators(state, small, maps, sources)
        is_trained = target.task is not None and self.learning.epochs > 0
        provenance = {"blocks": sources, "learnt": is_trained}
        parts = apply_operators(state, small, operators)
        start = build_descendant(learngene, spec, parts, run, provenance)
        if target.task is None or not is_trained:
            return start
        task = open_task(target.task, offline=run.offline)
        return train_operators(self.learning, start, state, small, operators, task, run)


LIGO = Method(
    name="ligo",
    title=(
        "larger models from linear operators on the ancestry model's weights, "
        "learnt in about a hundred steps"
    ),
    paper=(
        "Wang, Panda, Hennigen, Greengard, Karlinsky, Feris, Cox, Wang, Kim. Learning to Grow "
        "Pretrained Models for Efficient Transformer Training. ICLR 2023"
    ),
    expander=LigoExpander(),
    presets={"mini": LigoExtractor(), "paper": LigoExtractor(), "smoke": LigoExtractor()},
    families=("vit", "gpt2"),
    tasks="none",
)
