"""PEG: random mixtures of heads and MLPs; each descendant is a random mixture of these.

Wang, Yang, Chen and Geng, Vision Transformers as Probabilistic Expansion from Learngene, ICML 2024,
algorithm 1. From the ancestry model's heads i of
a layer and its MLPs k are computed

    1  heads    A_h = Attention(sum over i of p_hi (Q_i K_i', V_i))   h = 1, ..., H_b, in each layer
    2  MLPs     F_l = sum over k of p_lk F_k                          l = 1, ..., L_b

with random p, softmax over the sources of draws from N(0, 1), as in the authors' code. A head
of a plain ViT cannot compute mixed scores. Here the queries and keys of a mixed head are the best
approximation at the rank of a head, by the singular values of

    M_h = sum over i of p_hi [W_Q b_Q]_i' [W_K b_K]_i        V_h = sum over i of p_hi V_i

A descendant's heads and MLPs are mixed from these in the same way. Nothing is trained;
docs/results/differences.md describes the parts of the paper that are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Literal

from learngene_zoo.plugin import (
    FLAT,
    LIMITS,
    BadFile,
    Bounds,
    Expander,
    Extractor,
    Learngene,
    LearngeneConfig,
    Member,
    Method,
    WrongCall,
    check_bounds,
    parse_details,
)
from lgzoo_baselines.blocks.block_choice import build_descendant, list_shallower_members
from lgzoo_baselines.heads.cluster_lg import check_heads, resize_heads
from lgzoo_baselines.learnt.auxiliary import load_tensors

if TYPE_CHECKING:
    from learngene_zoo.plugin import Ancestry, Descendant, Run, Spec, Target, Task

Mixing = Literal["softmax", "uniform"]


@dataclass(frozen=True, kw_only=True)
class PegMixing:
    """The number of stored heads and MLPs, and how they are mixed."""

    head_share: Annotated[
        float,
        "number of stored heads per layer, as a share of the ancestry's",
        Bounds(above=0, most=1),
    ] = 2 / 3
    mlp_share: Annotated[
        float, "number of stored MLPs, as a share of the layers", Bounds(above=0, most=1)
    ] = 0.5
    mixing: Annotated[Mixing, "mixing weights: softmax of random numbers, or uniform"] = "softmax"

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, kw_only=True)
class PegDetails:
    """The method's own record in a learngene."""

    heads: Annotated[int, "stored heads of every layer", Bounds(least=1, most=LIMITS["heads"])]
    mlps: Annotated[int, "stored MLPs of the model", Bounds(least=1, most=LIMITS["layers"])]
    mixing: Mixing = "softmax"

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, kw_only=True)
class PegExtractor(Extractor):
    """Mix the ancestry model's heads and MLPs into fewer."""

    each: PegMixing = field(default=PegMixing(), metadata=FLAT)

    def needs_tasks(self) -> bool:
        """Return False: nothing is trained."""
        return False

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """Return the config with the ancestry model's shape.

        Raises `WrongCall` for a model whose heads are more than rows of a matrix.
        """
        spec = ancestries[0]
        # Scores of mixed heads are a product of queries and keys, without norms.
        check_heads(spec, "peg", {"qk_norm": "norms of queries and keys"})
        details = PegDetails(
            heads=max(round(self.each.head_share * spec.heads), 1),
            mlps=max(round(self.each.mlp_share * spec.layers), 1),
            mixing=self.each.mixing,
        )
        return LearngeneConfig(spec=spec).with_details(details)

    def __call__(
        self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run
    ) -> Learngene:
        """Mix all heads and MLPs, algorithm 1."""
        from lgzoo_baselines.modules.peg import condense_tensors, draw_shares

        config = self.outline([ancestries[0].spec])
        details, spec = parse_details(config, PegDetails), config.spec
        head_shares = [
            draw_shares(details.heads, spec.heads, details.mixing, run.seed, "heads", layer)
            for layer in range(spec.layers)
        ]
        mlp_shares = draw_shares(details.mlps, spec.layers, details.mixing, run.seed, "mlps")
        state = condense_tensors(ancestries[0].state, spec, head_shares, mlp_shares)
        return Learngene(config=config, state=state)


@dataclass(frozen=True, kw_only=True)
class PegExpander(Expander):
    """Mix the learngene's heads and MLPs into as many as the descendant has."""

    axes = frozenset({"layers", "heads", "classes", "image_size"})

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Return every depth up to the ancestry model's, with as many heads.

        Other numbers of heads can be built by name.
        """
        return list_shallower_members(config)

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Build a descendant of the first layers' heads, with resized positions and a new head.

        Raises `WrongCall` for more layers than there are.
        """
        from lgzoo_baselines.modules.peg import draw_shares, expand_tensors, list_shapes

        config, details = learngene.config, parse_details(learngene.config, PegDetails)
        source = config.spec
        if details.heads > source.heads or details.mlps > source.layers:
            raise BadFile(
                f"the peg learngene says heads {details.heads} and mlps {details.mlps}; expected "
                f"at most {source.heads} and {source.layers}"
            )
        spec = resize_heads(replace(target, heads=None).apply(source), target.heads or source.heads)
        if spec.layers > source.layers:
            raise WrongCall(
                f"layers is {spec.layers}; the ancestry model has {source.layers}, and each has "
                "heads of its own"
            )
        mixing, seed = details.mixing, run.seed
        head_shares = [
            draw_shares(spec.heads, details.heads, mixing, seed, "expanded heads", layer)
            for layer in range(spec.layers)
        ]
        mlp_shares = draw_shares(spec.layers, details.mlps, mixing, seed, "expanded mlps")
        shallow = source.with_(layers=spec.layers)
        state = load_tensors(learngene, list_shapes(shallow, details.heads, details.mlps))
        parts = expand_tensors(state, source, head_shares, mlp_shares)
        return build_descendant(learngene, spec, parts, run, {"mixing": mixing})


PEG = Method(
    name="peg",
    title=(
        "random mixtures of the ancestry model's heads and MLPs; descendants use random mixtures "
        "of these"
    ),
    paper=(
        "Wang, Yang, Chen, Geng. Vision Transformers as Probabilistic Expansion "
        "from Learngene (PEG). ICML 2024"
    ),
    expander=PegExpander(),
    presets={"mini": PegExtractor(), "paper": PegExtractor(), "smoke": PegExtractor()},
    tasks="none",
    details=PegDetails,
)
