"""What an auxiliary model of Learngene Pool imitates (algorithm 1), and the stitches that start from what it learned.

    L      = alpha L_cls + (1 - alpha) (L_att + L_blk + L_pred)
    L_blk  = sum over the levels of MSE(B_anc W, B_aux)    B: output of a block after both residuals (equation 3)
    L_att  = sum over the levels of MSE(A_anc M, A_aux)    A: output of its attention after proj, before the residual (4)
    L_pred = cross-entropy of the student's logits against softmax(teacher's logits / tau)

L_cls is whatever training on the task minimises, attributes included. The paper gives no alpha; the authors' code has
0.1, divides L_pred by the number of classes as well (`entries`), gives W and M a bias, and has matrices where the
widths match, too.

Shapes: B images, N tokens, K classes; D the ancestry's width, d the student's, L and H the widths of the low and the
high auxiliary model. A layer's weight, torch's (d, D), is the transpose of the paper's W.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import nn
from torch.nn import functional

from learngene_zoo.plugin import Features, Spec, StateDict, derive_seed
from lgzoo_pool.network import stitch_shapes
from lgzoo_pool.paths import Layout
from lgzoo_pool.settings import ImitationSettings, PredReduction, paired_levels


class Imitation(nn.Module):
    """L_pred, L_blk and L_att of a student, and the matrices W and M of each level, which are trained with it.

    Where the widths match, the matrices are identities without parameters.
    """

    def __init__(self, student: Spec, ancestry: Spec, settings: ImitationSettings, seed: int) -> None:
        super().__init__()
        self.settings = settings
        self.levels = paired_levels(student.layers, ancestry.layers, settings.levels)
        widths = ancestry.width, student.width
        self.blocks = nn.ModuleList(_matrix(*widths, seed, "blocks", i) for i in range(len(self.levels)))
        self.attentions = nn.ModuleList(_matrix(*widths, seed, "attentions", i) for i in range(len(self.levels)))

    def forward(self, given: Features, target: Features) -> dict[str, torch.Tensor]:
        """`prediction`, and with levels `block` and `attention`, from the student's and the ancestry's features."""
        losses = {
            "prediction": prediction_loss(given.logits, target.logits, self.settings.tau, self.settings.reduction)
        }
        if self.levels:
            losses["block"] = self._sum(self.blocks, given.blocks, target.blocks)
            losses["attention"] = self._sum(self.attentions, given.attentions, target.attentions)
        return losses

    def _sum(
        self, matrices: nn.ModuleList, given: Mapping[int, torch.Tensor], target: Mapping[int, torch.Tensor]
    ) -> torch.Tensor:
        """The distances at all levels, added."""
        each = zip(self.levels, matrices, strict=True)
        return torch.stack([distance(given[own], matrix(target[other])) for (own, other), matrix in each]).sum()


def distance(given_BND: torch.Tensor, target_BND: torch.Tensor) -> torch.Tensor:
    """The mean squared difference over all numbers, in single precision."""
    return functional.mse_loss(given_BND.float(), target_BND.float())


def prediction_loss(
    student: torch.Tensor, teacher: torch.Tensor, tau: float = 1.0, reduction: PredReduction = "sample"
) -> torch.Tensor:
    """Cross-entropy against softmax(teacher / tau); logits (B, K), of dense models (B, patches, K).

    sample   the mean over images (and patches)
    entries  the mean over all numbers, a K-th of it, as in the authors' code
    """
    target = torch.softmax(teacher.float() / tau, dim=-1)
    entropies = -(target * torch.log_softmax(student.float(), dim=-1))
    return entropies.mean() if reduction == "entries" else entropies.sum(dim=-1).mean()


def _matrix(ancestry: int, student: int, seed: int, *names: object) -> nn.Module:
    """The start of a linear layer without bias, N(0, 1/sqrt(fan in)): it keeps the scale of its input."""
    if ancestry == student:
        return nn.Identity()
    layer = nn.utils.skip_init(nn.Linear, ancestry, student, bias=False)
    generator = torch.Generator().manual_seed(derive_seed(seed, "transformations", *names))
    with torch.no_grad():
        layer.weight.normal_(std=ancestry**-0.5, generator=generator)
    return layer


def mean_matrix(matrices: StateDict, ancestry: int, student: int) -> torch.Tensor:
    """The mean of an auxiliary model's trained W, (d, D) in float64, from the tensors of its `Imitation`.

    The identity where the widths match. Raises `ValueError` if there is no W because no level was distilled.
    """
    if ancestry == student:
        return torch.eye(ancestry, dtype=torch.float64)
    found = [matrices[name].double() for name in sorted(matrices) if name.startswith("blocks.")]
    if not found:
        raise ValueError("no level was distilled, so there is no matrix W")
    return torch.stack(found).mean(dim=0)


def stitch_weight(low_LD: torch.Tensor, high_HD: torch.Tensor, kind: Literal["tm", "pinv"]) -> torch.Tensor:
    """The first weight of every stitch, (H, L): from the low model's stream back to the ancestry's, and on to the high one's.

    tm    the way back is the transpose of the low model's W, as in the paper: the adjoint of the matrix, not an inverse
    pinv  it is W's pseudo-inverse

    The way on is the high model's W: the identity where that has the ancestry's width, as in the paper. Biases start at
    0.
    """
    back_DL = low_LD.T if kind == "tm" else torch.linalg.pinv(low_LD)
    return (high_HD @ back_DL).float()


def matrix_stitches(
    specs: Sequence[Spec], layout: Layout, matrices: Sequence[StateDict], ancestry: int, kind: Literal["tm", "pinv"]
) -> StateDict:
    """The stitches of a pool, all equal, from the matrices of the narrow and the wide model; `ancestry` is a width."""
    low, high = (mean_matrix(found, ancestry, spec.width) for found, spec in zip(matrices, specs))
    weight = stitch_weight(low, high, kind)
    shapes = stitch_shapes(specs, layout)
    return {name: weight if len(shape) == 2 else torch.zeros(shape) for name, shape in shapes.items()}
