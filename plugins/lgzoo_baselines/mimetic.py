"""Mimetic initialisation: random weights whose attention looks like a trained model's; nothing is inherited, no image is seen.

Trockman, Kolter. Mimetic Initialization of Self-Attention Layers. ICML 2023. In trained ViTs the product of the weights of queries
and keys has a positive diagonal, that of values and projection a negative one. With Z of independent entries from N(0, 1/d), for
a width of d and heads of k channels:

    1  for every head    W_Q W_K'    ~  alpha_1 Z + beta_1 I  =  U S V'    W_Q = U_k S_k^(1/2),  W_K = V_k S_k^(1/2):  the first k
    2  for all at once   W_V W_proj  =  alpha_2 Z - beta_2 I  =  U S V'    W_V = U S^(1/2),      W_proj = S^(1/2) V'
    3  positions         sines and cosines of the patch's row and column

Step 1 is the best product of rank k; step 2 is exact. Weights stand here as they multiply rows of tokens from the right; a
linear layer stores the transpose. Biases are zero. All other tensors are drawn as in `scratch`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

from learngene_zoo.plugin import (
    Bounds,
    Expander,
    Extractor,
    Learngene,
    LearngeneConfig,
    Member,
    Method,
    Spec,
    Target,
    ViTSpec,
    WrongCall,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Generator, Tensor

    from learngene_zoo.plugin import Ancestry, Descendant, Run, StateDict, Task

TEMPERATURE = 10_000.0  # of the slowest sine, as in Vaswani et al., 2017


@dataclass(frozen=True, kw_only=True)
class Shape(Extractor):
    """Keep the ancestry model's shape and none of its weights."""

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """The ancestry model's shape."""
        return LearngeneConfig(method=MIMETIC.name, spec=ancestries[0])

    def __call__(self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run) -> Learngene:
        """Nothing is computed."""
        return Learngene(config=self.outline([ancestries[0].spec]), state={})


@dataclass(frozen=True, kw_only=True)
class Mimic(Expander):
    """Draw every tensor, those of attention so that their products have a diagonal."""

    axes = frozenset({"layers", "width", "heads", "mlp_ratio", "classes", "image_size"})

    qk_noise: Annotated[float, "alpha_1, of queries and keys", Bounds(least=0, most=4)] = 0.7
    qk_diagonal: Annotated[float, "beta_1, their diagonal", Bounds(least=0, most=4)] = 0.7
    vp_noise: Annotated[float, "alpha_2, of values and projection", Bounds(least=0, most=4)] = 0.4
    vp_diagonal: Annotated[float, "beta_2, their diagonal is its negative", Bounds(least=0, most=4)] = 0.4
    positions: Annotated[Literal["sinusoidal", "drawn"], "sines and cosines, or as the other tensors"] = "sinusoidal"
    init: Annotated[Literal["timm", "fan_in"], "the other tensors: timm's, or standard deviation 1/sqrt(fan_in)"] = (
        "timm"
    )

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Every depth up to 5/4 of the ancestry model's, at its width. Any other size can be built by name."""
        most = math.ceil(1.25 * config.spec.layers)
        return [Member(spec=config.spec.with_(layers=layers)) for layers in range(1, most + 1)]

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Each tensor is a function of the run's seed and its block. Raises `WrongCall` for a shape that it has no form for."""
        from learngene_zoo.plugin import assemble

        config = learngene.config
        spec = (target.whole_heads(config.spec) if target.heads is None else target).apply(config.spec)
        assert isinstance(spec, ViTSpec)
        mean, std = config.normalisation
        drawn = assemble(spec, {}, seed=run.seed, scheme=self.init, mean=mean, std=std, provenance={"init": self.init})
        state = dict(drawn.state)
        for block in range(spec.layers):
            state |= {
                f"blocks.{block}.{name}": tensor for name, tensor in self.attention(spec, run.seed, block).items()
            }
        if self.positions == "sinusoidal":
            state["pos_embed"] = sinusoids(spec)
        return replace(drawn, state=state)

    def attention(self, spec: Spec, seed: int, block: int) -> StateDict:
        """The weights of one block's attention, steps 1 and 2."""
        import torch

        from learngene_zoo.plugin import derive_seed

        draw = torch.Generator().manual_seed(derive_seed(seed, "mimetic", block))
        pairs = [
            factors(wanted(spec.width, self.qk_noise, self.qk_diagonal, draw), spec.head_width)
            for _ in range(spec.heads)
        ]
        values, projection = factors(wanted(spec.width, self.vp_noise, -self.vp_diagonal, draw), spec.width)
        queries, keys = (torch.cat(side, dim=1) for side in zip(*pairs))
        weights = {"attn.qkv.weight": torch.cat([queries.T, keys.T, values.T]), "attn.proj.weight": projection}
        return {name: weight.float().contiguous() for name, weight in weights.items()}


def wanted(width: int, noise: float, diagonal: float, draw: Generator) -> Tensor:
    """(width, width) alpha Z + beta I, float64."""
    import torch

    drawn = torch.randn(width, width, generator=draw, dtype=torch.float64) / width**0.5
    return noise * drawn + diagonal * torch.eye(width, dtype=torch.float64)


def factors(product: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """A and B of `rank` columns with A B' the nearest matrix of that rank, by singular values shared out equally."""
    import torch

    left, values, right = torch.linalg.svd(product)
    root = values[:rank].sqrt()
    return left[:, :rank] * root, right[:rank].T * root


def sinusoids(spec: ViTSpec) -> Tensor:
    """(1, positions, width) a quarter each of sines and cosines of row and column; zeros for tokens before the patches.

    Raises `WrongCall` for a width that is no multiple of four.
    """
    import torch

    if spec.width % 4:
        raise WrongCall(f"width is {spec.width}; sinusoidal positions need a multiple of 4 (or --positions drawn)")
    quarter, side = spec.width // 4, torch.arange(spec.grid, dtype=torch.float64)
    rates = TEMPERATURE ** (-torch.arange(quarter, dtype=torch.float64) / quarter)
    angles = torch.outer(side, rates)
    waves = torch.cat([angles.sin(), angles.cos()], dim=1)  # (side, half)
    rows, columns = waves[:, None].expand(-1, spec.grid, -1), waves[None].expand(spec.grid, -1, -1)
    patches = torch.cat([rows, columns], dim=2).flatten(0, 1)
    before = torch.zeros(spec.positions - len(patches), spec.width, dtype=torch.float64)
    return torch.cat([before, patches])[None].float()


MIMETIC = Method(
    name="mimetic",
    title="random weights whose attention has the diagonals of a trained model's",
    paper="Trockman, Kolter. Mimetic Initialization of Self-Attention Layers. ICML 2023",
    expander=Mimic(),
    presets={"mini": Shape(), "paper": Shape(), "smoke": Shape()},
    tasks="none",
    inherits=False,
)
