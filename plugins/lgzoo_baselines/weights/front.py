"""FRONT: initialise models of any size from the low frequencies of a model's weights.

Shen, Feng, Xie, Lv, Geng. Breaking the Scale Barrier: One-Shot Knowledge Transfer via Frequency
Transform. ICML 2026 (arXiv 2603.07523). Its training-free form, as the authors'
`front_init_deit.py` computes it by default:

    1  standardise    each tensor W:  (W - mean W) / std W
    2  transform      by the discrete cosine transform along its rows, its columns, and the tensors
                      of its name over the blocks:
                          X_k = sum_n x_n cos(pi (2n + 1) k / 2N),   k = 0, ..., N - 1
    3  resize         along each of the three keep the first min(N, N') frequencies; where N' > N
                      the others are zero
    4  invert         x'_n = (X_0 + 2 sum_k X_k cos(pi (2n + 1) k / 2N')) / N',
                      times the std, plus the mean

A tensor of four dimensions is taken as a matrix of (first x second) rows and (third x fourth)
columns, one of one dimension as a column. Block i takes the mean and std of the ancestry model's
block i, or of its last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from learngene_zoo.plugin import (
    BadFile,
    Bounds,
    Expander,
    Extractor,
    Learngene,
    LearngeneConfig,
    Member,
    Method,
    Spec,
    Target,
    get_table,
)
from lgzoo_baselines.blocks.block_choice import build_descendant, list_smaller_members, resize_like

if TYPE_CHECKING:
    from torch import Tensor

    from learngene_zoo.plugin import Ancestry, Descendant, Run, StateDict, Task


@dataclass(frozen=True, kw_only=True)
class FrontExtractor(Extractor):
    """Keep the lowest frequencies of every tensor but the head's."""

    keep: Annotated[
        float,
        "share of the frequencies to store along rows and along columns",
        Bounds(least=0.01, most=1),
    ] = 1.0

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """Return the config with the ancestry model's shape."""
        return LearngeneConfig(spec=ancestries[0])

    def __call__(
        self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run
    ) -> Learngene:
        """Transform every tensor, steps 1 and 2, without data.

        Stored of each kind, over L blocks (1 outside of them): its frequencies (L, rows kept,
        columns kept), and as `KIND.mean` and `KIND.std` the numbers of step 1, (L,).
        """
        import torch

        ancestry, spec = ancestries[0], ancestries[0].spec
        state: dict[str, Tensor] = {}
        for kind, names in group_by_kind(spec).items():
            shape = _get_matrix_shape(names[0], spec)
            weights_LRC = torch.stack(
                [ancestry.state[name].double().reshape(shape) for name in names]
            )
            mean_L = weights_LRC.mean(dim=(1, 2))
            has_std = weights_LRC[0].numel() > 1
            std_L = weights_LRC.std(dim=(1, 2)) if has_std else torch.zeros_like(mean_L)
            x_LRC = (weights_LRC - mean_L[:, None, None]) / (std_L[:, None, None] + 1e-8)
            for dimension, size in enumerate(x_LRC.shape):
                count = size if dimension == 0 else max(1, int(size * self.keep))
                x_LRC = apply_along(build_cosines(size)[:count], x_LRC, dimension)
            tensors = {kind: x_LRC, f"{kind}.mean": mean_L, f"{kind}.std": std_L}
            state |= {name: tensor.float().contiguous() for name, tensor in tensors.items()}
        return Learngene(config=self.outline([spec]), state=state)


@dataclass(frozen=True, kw_only=True)
class FrontExpander(Expander):
    """Compute weights of another size from the same frequencies."""

    axes = frozenset({"layers", "width", "heads", "mlp_ratio", "classes", "image_size"})

    amplitudes: Annotated[
        Literal["released", "kept"],
        "scale of the weights: as in the released code, where it grows for "
        "smaller models; or times N'/N along rows and columns (its --use_ratio)",
    ] = "released"

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Return every depth and every width in whole heads up to the ancestry model's.

        Other sizes, larger too, can be built by name.
        """
        return list_smaller_members(config)

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Build a descendant with every tensor but the head's from its frequencies.

        Positions are resized. Raises `BadFile` where some frequencies are missing.
        """
        source = learngene.config.spec
        spec = (target.whole_heads(source) if target.heads is None else target).apply(source)
        resized = resize_like(source, spec)
        parts: dict[str, Tensor] = {}
        for kind, names in group_by_kind(resized).items():
            parts |= self.invert(kind, names, learngene.state, source, resized)
        return build_descendant(learngene, spec, parts, run, {"amplitudes": self.amplitudes})

    def invert(
        self, kind: str, names: Sequence[str], stored: StateDict, source: Spec, resized: Spec
    ) -> dict[str, Tensor]:
        """Return the tensors of one kind, steps 3 and 4.

        Args:
            kind: of the tensors.
            names: of the tensors of this kind in a model of shape `resized`.
            stored: the tensors of the learngene.
            source: the shape of the ancestry model.
            resized: the shape of the descendant.
        """
        from learngene_zoo.plugin import get_shapes

        x_LRC, mean_L, std_L = _read_frequencies(kind, stored, source)
        sizes = (len(names), *_get_matrix_shape(names[0], resized))
        for dimension, size in enumerate(sizes):
            matrix = build_inverse(size)[:, : x_LRC.shape[dimension]]
            x_LRC = apply_along(matrix, x_LRC, dimension)
        if self.amplitudes == "kept":
            x_LRC = x_LRC * math.prod(sizes[1:]) / math.prod(_get_matrix_shape(names[0], source))
        tensors = {}
        for block, name in enumerate(names):
            i = min(block, len(mean_L) - 1)
            tensor = x_LRC[block] * std_L[i] + mean_L[i]
            tensors[name] = tensor.reshape(get_shapes(resized)[name]).float()
        return tensors


def group_by_kind(spec: Spec) -> dict[str, list[str]]:
    """Return the names of a model's tensors but the head's by kind.

    The kind of a tensor of a block is `blocks.` and its name within the block.
    """
    from learngene_zoo.plugin import get_shapes

    table, kinds = get_table(spec), dict[str, list[str]]()
    for name in get_shapes(spec):
        if not table.is_head(name):
            is_outside = table.block_of(name) is None
            kind = name if is_outside else f"blocks.{table.inner_name(name)}"
            kinds.setdefault(kind, []).append(name)
    return kinds


def _get_matrix_shape(name: str, spec: Spec) -> tuple[int, int]:
    """Return rows and columns of a tensor that is taken as a matrix."""
    from learngene_zoo.plugin import get_shapes

    shape = get_shapes(spec)[name]
    split = len(shape) - 1 if len(shape) == 3 else (len(shape) + 1) // 2
    return math.prod(shape[:split]), math.prod(shape[split:])


def _read_frequencies(kind: str, stored: StateDict, spec: Spec) -> tuple[Tensor, Tensor, Tensor]:
    """Return frequencies, mean and std of a kind of tensor, float64.

    Args:
        kind: of the tensors.
        stored: the tensors of the learngene.
        spec: the shape of the ancestry model.

    Raises:
        BadFile: for a learngene that lacks a tensor or has one of another shape.
    """
    names = group_by_kind(spec)[kind]
    rows, columns = _get_matrix_shape(names[0], spec)
    parts = []
    for name in (kind, f"{kind}.mean", f"{kind}.std"):
        part = stored.get(name)
        if part is None or len(part) != len(names):
            raise BadFile(
                f"{name} is missing, or is not of {len(names)} tensors; extract or fetch the "
                "learngene again"
            )
        parts.append(part)
    frequencies, mean, std = parts
    shape = tuple(frequencies.shape)
    if len(shape) != 3 or shape[1] > rows or shape[2] > columns:
        expected = (len(names), rows, columns)
        raise BadFile(f"{kind} has shape {shape}; expected at most {expected}")
    return frequencies.double(), mean.double(), std.double()


def build_cosines(size: int) -> Tensor:
    """Return the matrix of the transform, step 2, (frequencies, positions)."""
    import torch

    steps = torch.arange(size, dtype=torch.float64)
    return torch.cos(math.pi / (2 * size) * torch.outer(steps, 2 * steps + 1))


def build_inverse(size: int) -> Tensor:
    """Return the matrix of step 4, (positions, frequencies)."""
    import torch

    factors = torch.full((size,), 2 / size, dtype=torch.float64)
    factors[0] = 1 / size
    return build_cosines(size).T * factors


def apply_along(matrix: Tensor, tensor: Tensor, dimension: int) -> Tensor:
    """Return `tensor` with a matrix (new, old) applied along one dimension.

    A matrix with fewer columns than the dimension has entries is applied to the first of them.
    """
    moved = tensor.movedim(dimension, 0)
    product = matrix @ moved[: matrix.shape[1]].flatten(1)
    return product.unflatten(1, moved.shape[1:]).movedim(0, dimension)


FRONT = Method(
    name="front",
    title="models of any size from the low frequencies of the ancestry model's weights",
    paper=(
        "Shen, Feng, Xie, Lv, Geng. Breaking the Scale Barrier: One-Shot Knowledge Transfer via "
        "Frequency Transform. ICML 2026"
    ),
    expander=FrontExpander(),
    presets={
        "mini": FrontExtractor(),
        "paper": FrontExtractor(),
        "smoke": FrontExtractor(keep=0.5),
    },
    tasks="none",
)
