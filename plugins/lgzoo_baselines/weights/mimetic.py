"""Mimetic initialisation: random weights whose attention resembles that of a trained model.

Trockman, Kolter. Mimetic Initialization of Self-Attention Layers. ICML 2023. In trained ViTs the
product of the weights of queries and keys has a positive diagonal, that of values and projection a
negative one. With Z of independent entries from N(0, 1/d), a width of d and heads of k channels:

    1  for every head    W_Q W_K'    ~  alpha_1 Z + beta_1 I  =  U S V'
                         W_Q = U_k S_k^(1/2),  W_K = V_k S_k^(1/2):  the first k
    2  for all at once   W_V W_proj  =  alpha_2 Z - beta_2 I  =  U S V'
                         W_V = U S^(1/2),      W_proj = S^(1/2) V'
    3  positions         sines and cosines of the patch's row and column

Step 1 is the best approximation of rank k; step 2 is exact. Weights are written as they multiply
rows of tokens from the right; a linear layer stores the transpose. Biases are zero. All other
tensors are drawn as in `scratch`. Only the shape is inherited, and no images are used.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

from learngene_zoo.plugin import (
    Bounds,
    Expander,
    LearngeneConfig,
    Member,
    Method,
    Spec,
    Target,
    ViTSpec,
    WrongCall,
    name_option,
)
from lgzoo_baselines.trained.scratch import ScratchExtractor, list_depths

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from learngene_zoo.plugin import Descendant, Learngene, Run, StateDict

TEMPERATURE = 10_000.0  # of the slowest sine, as in Vaswani et al., 2017


@dataclass(frozen=True, kw_only=True)
class MimeticExpander(Expander):
    """Draw every tensor, those of attention so that their products have a diagonal."""

    axes = frozenset({"layers", "width", "heads", "mlp_ratio", "classes", "image_size"})

    qk_noise: Annotated[
        float, "alpha_1: scale of the noise in queries and keys", Bounds(least=0, most=4)
    ] = 0.7
    qk_diagonal: Annotated[
        float, "beta_1: diagonal of the product of queries and keys", Bounds(least=0, most=4)
    ] = 0.7
    vp_noise: Annotated[
        float, "alpha_2: scale of the noise in values and projection", Bounds(least=0, most=4)
    ] = 0.4
    vp_diagonal: Annotated[
        float,
        "beta_2: negative diagonal of the product of values and projection",
        Bounds(least=0, most=4),
    ] = 0.4
    positions: Annotated[
        Literal["sinusoidal", "drawn"],
        "position embedding: sines and cosines, or drawn as the other tensors",
    ] = "sinusoidal"
    init: Annotated[
        Literal["timm", "fan_in"],
        "initialisation of the other tensors: timm's, or standard deviation 1/sqrt(fan_in)",
    ] = "timm"

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Return every depth up to 5/4 of the ancestry model's, at its width."""
        return list_depths(config)

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Build a descendant whose tensors are functions of the run's seed and their block.

        Raises `WrongCall` for a shape without sinusoidal positions.
        """
        from learngene_zoo.plugin import assemble

        config = learngene.config
        target = target.whole_heads(config.spec) if target.heads is None else target
        spec = target.apply(config.spec)
        assert isinstance(spec, ViTSpec)
        descendant = assemble(
            spec,
            {},
            seed=run.seed,
            scheme=self.init,
            provenance={"init": self.init},
        )
        state = dict(descendant.state)
        for block in range(spec.layers):
            weights = self.draw_attention(spec, run.seed, block)
            state |= {f"blocks.{block}.{name}": weights[name] for name in weights}
        if self.positions == "sinusoidal":
            state["pos_embed"] = build_sinusoids(spec)
        return replace(descendant, state=state)

    def draw_attention(self, spec: Spec, seed: int, block: int) -> StateDict:
        """Return the weights of the attention of one block, steps 1 and 2.

        Args:
            spec: the shape of the descendant.
            seed: of the run.
            block: the index of the block.
        """
        import torch

        from learngene_zoo.plugin import derive_seed

        generator = torch.Generator().manual_seed(derive_seed(seed, "mimetic", block))
        pairs = []
        for _ in range(spec.heads):
            product = draw_product(spec.width, self.qk_noise, self.qk_diagonal, generator)
            pairs.append(factorise(product, spec.head_width))
        queries, keys = (torch.cat(side, dim=1) for side in zip(*pairs))
        product = draw_product(spec.width, self.vp_noise, -self.vp_diagonal, generator)
        values, projection = factorise(product, spec.width)
        weights = {
            "attn.qkv.weight": torch.cat([queries.T, keys.T, values.T]),
            "attn.proj.weight": projection,
        }
        return {name: weight.float().contiguous() for name, weight in weights.items()}


def draw_product(width: int, noise: float, diagonal: float, generator: Generator) -> Tensor:
    """Return alpha Z + beta I, (width, width), float64.

    Args:
        width: d.
        noise: alpha.
        diagonal: beta.
        generator: of the random numbers Z.
    """
    import torch

    drawn = torch.randn(width, width, generator=generator, dtype=torch.float64) / width**0.5
    return noise * drawn + diagonal * torch.eye(width, dtype=torch.float64)


def factorise(product: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return A and B of `rank` columns with A B' the nearest matrix of that rank.

    Both have the square roots of the singular values.
    """
    import torch

    left, values, right = torch.linalg.svd(product)
    root = values[:rank].sqrt()
    return left[:, :rank] * root, right[:rank].T * root


def build_sinusoids(spec: ViTSpec) -> Tensor:
    """Return the positions (1, positions, width), step 3.

    The channels are a quarter each of sines and cosines of row and column. Tokens before the
    patches have zeros. Raises `WrongCall` for a width that four does not divide.
    """
    import torch

    if spec.width % 4:
        raise WrongCall(
            f"width is {spec.width}; sinusoidal positions need a multiple of 4 "
            f"(or {name_option('positions', 'drawn')})"
        )
    quarter, side = spec.width // 4, torch.arange(spec.grid, dtype=torch.float64)
    rates = TEMPERATURE ** (-torch.arange(quarter, dtype=torch.float64) / quarter)
    angles = torch.outer(side, rates)
    waves = torch.cat([angles.sin(), angles.cos()], dim=1)  # (side, half)
    rows = waves[:, None].expand(-1, spec.grid, -1)
    columns = waves[None].expand(spec.grid, -1, -1)
    patches = torch.cat([rows, columns], dim=2).flatten(0, 1)
    before = torch.zeros(spec.positions - len(patches), spec.width, dtype=torch.float64)
    return torch.cat([before, patches])[None].float()


MIMETIC = Method(
    name="mimetic",
    title="random weights with the diagonals of trained attention matrices",
    paper="Trockman, Kolter. Mimetic Initialization of Self-Attention Layers. ICML 2023",
    expander=MimeticExpander(),
    presets={
        "mini": ScratchExtractor(),
        "paper": ScratchExtractor(),
        "smoke": ScratchExtractor(),
    },
    tasks="none",
    inherits=False,
)
