"""The matrices W and M between the widths of the ancestry model and an auxiliary model, and the stitches made of them.

Learngene Pool, equations 3 and 4: W leads from the ancestry's block outputs to the student's, M from its attention outputs. Where
the widths match both are the identity and have no parameter. (The authors' code has a linear layer with bias in every
case; the paper's equations have neither the bias nor, at equal widths, the layer.)

Shapes: D the ancestry's width, d the student's, L and H the widths of the low and the high auxiliary model. A layer's weight,
torch's (d, D), is the transpose of the paper's W.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from learngene_zoo.plugin import StateDict, derive_seed

FromMatrices = Literal["tm", "pinv"]


class Transformations(nn.Module):
    """One W and one M for each of so many levels; identities where the widths match."""

    def __init__(self, ancestry: int, student: int, levels: int, seed: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_matrix(ancestry, student, seed, "blocks", i) for i in range(levels))
        self.attentions = nn.ModuleList(_matrix(ancestry, student, seed, "attentions", i) for i in range(levels))


def _matrix(ancestry: int, student: int, seed: int, *names: object) -> nn.Module:
    """The start of a linear layer without bias, N(0, 1/sqrt(fan in)): outputs then have the size of inputs."""
    if ancestry == student:
        return nn.Identity()
    layer = nn.utils.skip_init(nn.Linear, ancestry, student, bias=False)
    generator = torch.Generator().manual_seed(derive_seed(seed, "transformations", *names))
    with torch.no_grad():
        layer.weight.normal_(std=ancestry**-0.5, generator=generator)
    return layer


def mean_matrix(matrices: StateDict, ancestry: int, student: int) -> torch.Tensor:
    """The mean of an auxiliary model's trained W, (d, D) in float64, out of the tensors of its `Transformations`.

    The identity where the widths match. Raises `ValueError` if there is no W, because no level was distilled.
    """
    if ancestry == student:
        return torch.eye(ancestry, dtype=torch.float64)
    found = [matrices[name].double() for name in sorted(matrices) if name.startswith("blocks.")]
    if not found:
        raise ValueError("no level was distilled, so there is no matrix W")
    return torch.stack(found).mean(dim=0)


def stitch_weight(low_LD: torch.Tensor, high_HD: torch.Tensor, kind: FromMatrices) -> torch.Tensor:
    """What every stitch starts from, (H, L): from the low model's stream back to the ancestry's, and on to the high model's.

    tm    the way back is the transpose of the low model's W, as the paper has it: the adjoint of the matrix, no inverse
    pinv  it is W's pseudo-inverse

    The way on is the high model's W: the identity where that has the ancestry's width, as in the paper. Biases start at 0.
    """
    back_DL = low_LD.T if kind == "tm" else torch.linalg.pinv(low_LD)
    return (high_HD @ back_DL).float()
