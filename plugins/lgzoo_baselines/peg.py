"""PEG: heads and MLPs are mixed at random into fewer, and mixed again into as many as a descendant has.

Probabilistic Expansion from learnGene, ICML 2024, algorithm 1. Of the ancestry model's heads i of a layer and its MLPs k come

    1  heads    A_h = Attention(sum over i of p_hi (Q_i K_i', V_i))        h = 1, ..., H_b; for every layer
    2  MLPs     F_l = sum over k of p_lk F_k                               l = 1, ..., L_b

with random p, softmax over the sources of draws from N(0, 1), as in the authors' code. Mixed scores are no head of a plain ViT. Here they
become one: its queries and keys are the best product of their rank, by the singular values of

    M_h = sum over i of p_hi [W_Q b_Q]_i' [W_K b_K]_i        V_h = sum over i of p_hi V_i

A descendant's heads and MLPs are mixed from these in the same way. Nothing is trained; see docs/methods/peg.md for what that leaves out.
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
    details_of,
    to_json,
)
from lgzoo_baselines.auxiliary import held
from lgzoo_baselines.block_choice import completed
from lgzoo_baselines.cluster_lg import check_heads, with_heads

if TYPE_CHECKING:
    from learngene_zoo.plugin import Ancestry, Descendant, Run, Spec, Target, Task

Mixing = Literal["softmax", "uniform"]


@dataclass(frozen=True, kw_only=True)
class Mixed:
    """What a learngene has fewer of, and how it is mixed."""

    head_share: Annotated[float, "heads to keep of each layer, as a share", Bounds(above=0, most=1)] = 2 / 3
    mlp_share: Annotated[float, "MLPs to keep, as a share of the layers", Bounds(above=0, most=1)] = 0.5
    mixing: Annotated[Mixing, "shares of the sources: the softmax of random numbers, or all equal"] = "softmax"

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, kw_only=True)
class Details:
    """What `details` of a learngene hold."""

    heads: Annotated[int, "of every layer", Bounds(least=1, most=LIMITS["heads"])]
    mlps: Annotated[int, "for all layers", Bounds(least=1, most=LIMITS["layers"])]
    mixing: Mixing = "softmax"

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, kw_only=True)
class Mix(Extractor):
    """Mix the ancestry model's heads and MLPs into fewer."""

    each: Mixed = field(default=Mixed(), metadata=FLAT)

    def needs_tasks(self) -> bool:
        """Nothing is trained."""
        return False

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """The ancestry model's shape. Raises `WrongCall` for one whose heads are more than rows of a matrix."""
        spec = ancestries[0]
        check_heads(
            spec, "peg", {"qk_norm": "norms of queries and keys"}
        )  # its scores are a product of queries and keys
        heads, mlps = (max(round(share * size), 1) for share, size in self._sizes(spec))
        details = Details(heads=heads, mlps=mlps, mixing=self.each.mixing)
        return LearngeneConfig(method="peg", spec=spec, details=to_json(details))

    def _sizes(self, spec: Spec) -> tuple[tuple[float, int], tuple[float, int]]:
        return (self.each.head_share, spec.heads), (self.each.mlp_share, spec.layers)

    def __call__(self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run) -> Learngene:
        """Algorithm 1, once."""
        from lgzoo_baselines.mixed_heads import condensed, shares

        config = self.outline([ancestries[0].spec])
        details, spec = details_of(config, Details), config.spec
        by_head = [
            shares(details.heads, spec.heads, details.mixing, run.seed, "heads", layer) for layer in range(spec.layers)
        ]
        by_mlp = shares(details.mlps, spec.layers, details.mixing, run.seed, "mlps")
        return Learngene(config=config, state=condensed(ancestries[0].state, spec, by_head, by_mlp))


@dataclass(frozen=True, kw_only=True)
class Expand(Expander):
    """Mix the learngene's heads and MLPs into as many as the model has."""

    axes = frozenset({"layers", "heads", "classes", "image_size"})

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Every depth up to the ancestry model's, with as many heads. Other numbers of heads can be built by name."""
        return [Member(spec=config.spec.with_(layers=layers)) for layers in range(1, config.spec.layers + 1)]

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """The first layers' heads, positions resized, a new head. Raises `WrongCall` for more layers than there are."""
        from lgzoo_baselines.mixed_heads import expanded, expected, shares

        config, details = learngene.config, details_of(learngene.config, Details)
        whole = config.spec
        if details.heads > whole.heads or details.mlps > whole.layers:
            raise BadFile(
                f"the peg learngene says heads {details.heads} and mlps {details.mlps}; expected at most {whole.heads} and {whole.layers}"
            )
        spec = with_heads(replace(target, heads=None).apply(whole), target.heads or whole.heads)
        if spec.layers > whole.layers:
            raise WrongCall(
                f"layers is {spec.layers}; the ancestry model has {whole.layers}, and each has heads of its own"
            )
        by_head = [
            shares(spec.heads, details.heads, details.mixing, run.seed, "expanded heads", layer)
            for layer in range(spec.layers)
        ]
        by_mlp = shares(spec.layers, details.mlps, details.mixing, run.seed, "expanded mlps")
        state = held(learngene, expected(whole.with_(layers=spec.layers), details.heads, details.mlps))
        return completed(config, spec, expanded(state, whole, by_head, by_mlp), run, {"mixing": details.mixing})


PEG = Method(
    name="peg",
    title="heads and MLPs mixed at random into fewer; descendants mix them into as many as they have",
    paper="Probabilistic Expansion from learnGene (PEG). ICML 2024",
    expander=Expand(),
    presets={"mini": Mix(), "paper": Mix(), "smoke": Mix()},
    tasks="none",
    details=Details,
)
