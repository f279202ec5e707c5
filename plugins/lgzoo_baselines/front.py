"""FRONT: a learngene is the low frequencies of a model's weights; models of any size start from as many of them as they have room for.

Shen, Feng, Xie, Lv, Geng. Breaking the Scale Barrier: One-Shot Knowledge Transfer via Frequency Transform. ICML 2026
(arXiv 2603.07523). Its training-free form, as the authors' `front_init_deit.py` computes it by default:

    1  standardise    each tensor W:  (W - mean W) / std W
    2  transform      by the discrete cosine transform along its rows, its columns, and the tensors of its name over the blocks:
                          X_k = sum_n x_n cos(pi (2n + 1) k / 2N),   k = 0, ..., N - 1
    3  resize         along each of the three keep the first min(N, N') frequencies; where N' > N the others are zero
    4  invert         x'_n = (X_0 + 2 sum_k X_k cos(pi (2n + 1) k / 2N')) / N',  times the std, plus the mean

A tensor of four dimensions is taken as a matrix of (first x second) rows and (third x fourth) columns, one of one dimension as a column.
Block i takes the mean and std of the ancestry model's block i, or of its last.
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
    table_of,
)
from lgzoo_baselines.block_choice import completed, narrower

if TYPE_CHECKING:
    from torch import Tensor

    from learngene_zoo.plugin import Ancestry, Descendant, Run, StateDict, Task


@dataclass(frozen=True, kw_only=True)
class Transform(Extractor):
    """Keep the lowest frequencies of every tensor but the head's."""

    keep: Annotated[
        float, "share of the frequencies that are kept along rows and along columns", Bounds(least=0.01, most=1)
    ] = 1.0

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """The ancestry model's shape."""
        return LearngeneConfig(method=FRONT.name, spec=ancestries[0])

    def __call__(self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run) -> Learngene:
        """Transform every tensor; no image is seen.

        Stored of each kind, over L blocks (1 outside of them): its frequencies (L, rows kept, columns kept), and as `KIND.mean` and
        `KIND.std` what step 1 took off, (L,).
        """
        import torch

        spec = ancestries[0].spec
        state: dict[str, Tensor] = {}
        for kind, names in kinds(spec).items():
            weights_LRC = torch.stack(
                [ancestries[0].state[name].double().reshape(_matrix(name, spec)) for name in names]
            )
            mean_L = weights_LRC.mean(dim=(1, 2))
            std_L = weights_LRC.std(dim=(1, 2)) if weights_LRC[0].numel() > 1 else torch.zeros_like(mean_L)
            found_LRC = (weights_LRC - mean_L[:, None, None]) / (std_L[:, None, None] + 1e-8)
            for dimension, size in enumerate(found_LRC.shape):
                kept = size if dimension == 0 else max(1, int(size * self.keep))
                found_LRC = along(cosines(size)[:kept], found_LRC, dimension)
            found = {kind: found_LRC, f"{kind}.mean": mean_L, f"{kind}.std": std_L}
            state |= {name: value.float().contiguous() for name, value in found.items()}
        return Learngene(config=self.outline([spec]), state=state)


@dataclass(frozen=True, kw_only=True)
class Invert(Expander):
    """Weights of another size from the same frequencies."""

    axes = frozenset({"layers", "width", "heads", "mlp_ratio", "classes", "image_size"})

    amplitudes: Annotated[
        Literal["released", "kept"],
        "as the released code: weights grow as a model shrinks; or times N'/N along rows and columns, its --use_ratio",
    ] = "released"

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Every depth and every width in whole heads up to the ancestry model's. Other sizes, larger too, can be built by name."""
        return narrower(config)

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Every tensor but the head's from its frequencies, then positions resized. Raises `BadFile` where some are missing."""
        config, whole = learngene.config, learngene.config.spec
        spec = (target.whole_heads(whole) if target.heads is None else target).apply(whole)
        small = whole.with_(layers=spec.layers, width=spec.width, heads=spec.heads, mlp_ratio=spec.mlp_ratio)
        made: dict[str, Tensor] = {}
        for kind, names in kinds(small).items():
            made |= self._tensors(kind, names, learngene.state, whole, small)
        return completed(config, spec, made, run, {"amplitudes": self.amplitudes})

    def _tensors(
        self, kind: str, names: Sequence[str], stored: StateDict, whole: Spec, small: Spec
    ) -> dict[str, Tensor]:
        """The tensors of one kind, in every block or the only one."""
        from learngene_zoo.plugin import shapes

        found_LRC, mean_L, std_L = _read(kind, stored, whole)
        sizes = (len(names), *_matrix(names[0], small))
        for dimension, size in enumerate(sizes):
            found_LRC = along(inverse(size)[:, : found_LRC.shape[dimension]], found_LRC, dimension)
        if self.amplitudes == "kept":
            found_LRC = found_LRC * math.prod(sizes[1:]) / math.prod(_matrix(names[0], whole))
        made = {}
        for block, name in enumerate(names):
            source = min(block, len(mean_L) - 1)
            made[name] = (found_LRC[block] * std_L[source] + mean_L[source]).reshape(shapes(small)[name]).float()
        return made


def kinds(spec: Spec) -> dict[str, list[str]]:
    """The names of a model's tensors but the head's, by kind: those of the blocks by their names within a block."""
    from learngene_zoo.plugin import shapes

    table, found = table_of(spec), dict[str, list[str]]()
    for name in shapes(spec):
        if not table.is_head(name):
            kind = name if table.block_of(name) is None else f"blocks.{table.inner_name(name)}"
            found.setdefault(kind, []).append(name)
    return found


def _matrix(name: str, spec: Spec) -> tuple[int, int]:
    """Rows and columns of a tensor that is taken as a matrix."""
    from learngene_zoo.plugin import shapes

    shape = shapes(spec)[name]
    cut = len(shape) - 1 if len(shape) == 3 else (len(shape) + 1) // 2
    return math.prod(shape[:cut]), math.prod(shape[cut:])


def _read(kind: str, stored: StateDict, whole: Spec) -> tuple[Tensor, Tensor, Tensor]:
    """Frequencies, mean and std of a kind of tensor. Raises `BadFile` for a learngene that lacks one or has others."""
    names = kinds(whole)[kind]
    rows, columns = _matrix(names[0], whole)
    parts = [stored.get(name) for name in (kind, f"{kind}.mean", f"{kind}.std")]
    for name, part in zip((kind, f"{kind}.mean", f"{kind}.std"), parts):
        if part is None or len(part) != len(names):
            raise BadFile(f"{name} is missing, or is not of {len(names)} tensors; extract or fetch the learngene again")
    frequencies = parts[0]
    assert frequencies is not None
    if frequencies.dim() != 3 or frequencies.shape[1] > rows or frequencies.shape[2] > columns:
        raise BadFile(f"{kind} has shape {tuple(frequencies.shape)}; expected at most {(len(names), rows, columns)}")
    return tuple(part.double() for part in parts if part is not None)  # type: ignore[return-value]


def cosines(size: int) -> Tensor:
    """(frequencies, positions) the matrix of the transform, step 2."""
    import torch

    steps = torch.arange(size, dtype=torch.float64)
    return torch.cos(math.pi / (2 * size) * torch.outer(steps, 2 * steps + 1))


def inverse(size: int) -> Tensor:
    """(positions, frequencies) the matrix of step 4."""
    import torch

    factors = torch.full((size,), 2 / size, dtype=torch.float64)
    factors[0] = 1 / size
    return cosines(size).T * factors


def along(matrix: Tensor, tensor: Tensor, dimension: int) -> Tensor:
    """A matrix (new, old) applied along one dimension; where it has fewer columns than that has entries, to the first."""
    moved = tensor.movedim(dimension, 0)
    return (matrix @ moved[: matrix.shape[1]].flatten(1)).unflatten(1, moved.shape[1:]).movedim(0, dimension)


FRONT = Method(
    name="front",
    title="models of any size from the low frequencies of the ancestry model's weights",
    paper="Shen, Feng, Xie, Lv, Geng. Breaking the Scale Barrier: One-Shot Knowledge Transfer via Frequency Transform. ICML 2026",
    expander=Invert(),
    presets={"mini": Transform(), "paper": Transform(), "smoke": Transform(keep=0.5)},
    tasks="none",
)
