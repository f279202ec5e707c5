"""What joint training and an auxiliary model minimise.

Joint training: every step samples one path and trains what lies on it (SN-Net, Learngene Pool).

    loss = (1 - share) L_task + share L_teacher
    soft   L_teacher = t^2 KL(softmax(teacher / t) || softmax(student / t))
    hard   L_teacher = cross-entropy with the class that the teacher gives
    tokens w > 0 adds w times the distance of the path's last tokens from the teacher's (`TokenLoss`); in neither paper

L_task is whatever training on the task minimises, attributes included. The path is a function of the seed and the step,
so it is equal in all processes (the released code draws one per process) and after resuming.

Imitation: what an auxiliary model of Learngene Pool learns from (algorithm 1), and the stitches that start from it.

    L      = alpha L_cls + (1 - alpha) (L_att + L_blk + L_pred)
    L_blk  = sum over the levels of MSE(B_anc W, B_aux)    B: output of a block after both residuals (equation 3)
    L_att  = sum over the levels of MSE(A_anc M, A_aux)    A: output of its attention after proj, before the residual (4)
    L_pred = cross-entropy of softmax(student's logits / tau) against softmax(teacher's logits / tau)          (3)

L_cls is as L_task. The paper gives no alpha; the authors' code has
0.1, divides L_pred by the number of classes as well (`entries`), gives W and M a bias, and has matrices where the
widths match, too.

Shapes: B images, N tokens, K classes; D the ancestry's width, d the student's, L and H the widths of the low and the
high auxiliary model. A layer's weight, torch's (d, D), is the transpose of the paper's W.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import nn
from torch.nn import functional

from learngene_zoo.plugin import (
    Distilled,
    FeatureLoss,
    Features,
    LossSum,
    Spec,
    StateDict,
    Task,
    derive_seed,
    logits_loss,
    objective_for,
)
from lgzoo_pool.network import Along, StitchedNetwork, stitch_shapes
from lgzoo_pool.paths import Layout, Path
from lgzoo_pool.settings import ImitationSettings, PathSettings, PredReduction, paired_levels

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer


def path_of_step(paths: Sequence[Path], seed: int, step: int) -> Path:
    """The path that step number `step` (from 1) trains: uniform over `paths`."""
    return paths[derive_seed(seed, "path", step) % len(paths)]


class SampledPaths(nn.Module):
    """The task's objective along the path of the step, with the teacher's share where there is a teacher.

    There is one objective for each anchor in which paths end: the layer that predicts attributes has its width. After
    each step the loop must write its number into `finished`.
    """

    finished: torch.Tensor  # steps; a buffer, so that a resumed training continues with the right path

    def __init__(
        self,
        network: StitchedNetwork,
        task: Task,
        settings: PathSettings,
        seed: int,
        *,
        paths: Sequence[Path] | None = None,
        teacher: Callable[[Any], Features] | None = None,
        tokens: Callable[[int], FeatureLoss] | None = None,
    ) -> None:
        """`tokens` gives what compares the tokens of paths that end in an anchor with the teacher's."""
        super().__init__()
        self.network, self.seed = network, seed
        self.paths = tuple(paths or network.layout.paths)
        self.register_buffer("finished", torch.zeros((), dtype=torch.int64))
        self.models = {path.last: Along(network, path) for path in self.paths}
        self.objectives = nn.ModuleDict()
        for anchor, along in self.models.items():
            model = cast("VisionTransformer", along)
            objective = objective_for(task, model, settings.recipe, derive_seed(seed, "attributes", anchor))
            if teacher is not None and settings.guidance != "none":
                answers = logits_loss(settings.guidance, settings.temperature)
                imitation = LossSum([(1.0, answers), (settings.tokens, tokens(anchor))]) if tokens else answers
                objective = Distilled(objective, model, teacher, imitation, (1 - settings.share, settings.share))
            self.objectives[str(anchor)] = objective

    @property
    def path(self) -> Path:
        """The path of the next step."""
        return path_of_step(self.paths, self.seed, int(self.finished) + 1)

    def forward(self, batch: Any) -> dict[str, torch.Tensor]:
        """The losses by name."""
        path = self.path
        self.models[path.last].path = path
        losses: dict[str, torch.Tensor] = self.objectives[str(path.last)](batch)
        return losses


def freeze_anchors(network: StitchedNetwork, *, heads: bool) -> tuple[Path, ...]:
    """Freeze all but stitches, class tokens and, with `heads`, heads; returns the paths with anything left to train.

    Class tokens are trained as in the released code: without a trainable tensor on its path an anchor has no gradient.
    """
    network.requires_grad_(False)
    network.stitches.requires_grad_(True)
    tokens = False
    for model in map(network.anchor, range(len(network.anchors))):
        model.get_classifier().requires_grad_(heads)
        if model.cls_token is not None:
            model.cls_token.requires_grad_(True)
            tokens = True
    return tuple(path for path in network.layout.paths if path.stitches or tokens or heads)


# Imitation.


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
    """Cross-entropy of softmax(student / tau) against softmax(teacher / tau); logits (B, K), of dense models (B, patches, K).

    sample   the mean over images (and patches)
    entries  the mean over all numbers, a K-th of it, as in the authors' code
    """
    target = torch.softmax(teacher.float() / tau, dim=-1)
    entropies = -(target * torch.log_softmax(student.float() / tau, dim=-1))
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
