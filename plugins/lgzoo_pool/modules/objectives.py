"""Losses of joint training and of auxiliary models, and the stitches from their matrices.

Joint training: every step draws one path and trains it (SN-Net, Learngene Pool).

    loss = (1 - share) L_task + share L_teacher
    soft   L_teacher = t^2 KL(softmax(teacher / t) || softmax(student / t))
    hard   L_teacher = cross-entropy with the teacher's class
    tokens w > 0 adds w times the distance of the path's last tokens from the teacher's
           (`TokenLoss`); in neither paper

L_task is the task's training loss, attributes included. The path is a function of the seed and the
step, so it is equal in all processes (the released code draws one per process) and after resuming.

Distillation: the losses of an auxiliary model of Learngene Pool (algorithm 1, line 5), and the
stitches initialised from its matrices.

    L      = alpha L_cls + (1 - alpha) (L_att + L_blk + L_pred)                       (eq. 6, 8)
    L_blk  = sum over the levels of MSE(B_anc W, B_aux)                  (eq. 4, for one level)
             B: output of a block after both residuals
    L_att  = sum over the levels of MSE(A_anc M, A_aux)                  (eq. 5, for one level)
             A: output of its attention after proj, before the residual
    L_pred = cross-entropy of softmax(student / tau) against softmax(teacher / tau)      (eq. 3)

L_cls (eq. 7) is as L_task. The paper gives no alpha; the authors' code has 0.1, also divides L_pred
by the number of classes (`entries`), gives W and M a bias, and has matrices for equal widths too.

Shapes: B images, N tokens, K classes; D the ancestry's width, d the student's, L and H the widths
of the low and the high auxiliary model. A layer's weight, torch's (d, D), is the transpose of the
paper's W.
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
    count_terms,
    derive_seed,
    make_logits_loss,
    make_objective,
)
from lgzoo_pool.modules.network import PathModel, StitchedNetwork, list_stitch_shapes
from lgzoo_pool.paths import Path, StitchLayout
from lgzoo_pool.settings import ImitationSettings, PathSettings, PredReduction, pair_levels

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer


def draw_path(paths: Sequence[Path], seed: int, step: int) -> Path:
    """Return the path that step number `step` (from 1) trains: uniform over `paths`."""
    return paths[derive_seed(seed, "path", step) % len(paths)]


class SampledPaths(nn.Module):
    """The task's objective along the path of the step, with the share of a teacher, if any.

    Each anchor in which paths end has its own objective: the layer that predicts attributes has the
    anchor's width. After each step the loop must write its number into `finished`.
    """

    # Steps; a buffer, so that a resumed training continues with the right path.
    finished: torch.Tensor

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
        """Build the objectives.

        Args:
            network: to train.
            task: the data set.
            settings: of the training.
            seed: of the paths.
            paths: those that are drawn; by default all.
            teacher: guides the training, if any.
            tokens: gives the loss that compares the tokens of paths into an anchor with the
                teacher's.
        """
        super().__init__()
        self.network, self.seed = network, seed
        self.paths = tuple(paths or network.layout.paths)
        self.register_buffer("finished", torch.zeros((), dtype=torch.int64))
        self.models = {path.last: PathModel(network, path) for path in self.paths}
        self.objectives = nn.ModuleDict()
        for anchor, path_model in self.models.items():
            model = cast("VisionTransformer", path_model)
            attributes_seed = derive_seed(seed, "attributes", anchor)
            objective = make_objective(task, model, settings.recipe, attributes_seed)
            if teacher is not None and settings.guidance != "none":
                imitation = make_logits_loss(settings.guidance, settings.temperature)
                if tokens:
                    imitation = LossSum([(1.0, imitation), (settings.tokens, tokens(anchor))])
                shares = (1 - settings.share, settings.share)
                objective = Distilled(objective, model, teacher, imitation, shares)
            self.objectives[str(anchor)] = objective

    @property
    def path(self) -> Path:
        """The path of the next step."""
        return draw_path(self.paths, self.seed, int(self.finished) + 1)

    def forward(self, batch: Any) -> dict[str, torch.Tensor]:
        """Return the losses by name."""
        path = self.path
        self.models[path.last].path = path
        losses: dict[str, torch.Tensor] = self.objectives[str(path.last)](batch)
        return losses

    def count_terms(self, batch: Any) -> dict[str, torch.Tensor]:
        """Return the numbers of terms of the losses by name, which are those of every anchor."""
        return count_terms(next(iter(self.objectives.values())), batch)


def freeze_anchors(network: StitchedNetwork, *, heads: bool) -> tuple[Path, ...]:
    """Freeze all but stitches, class tokens and, with `heads`, heads.

    Class tokens are trained as in the released code: without a trainable tensor on its path an
    anchor has no gradient. Returns the paths with anything left to train.
    """
    network.requires_grad_(False)
    network.stitches.requires_grad_(True)
    has_tokens = False
    for model in map(network.get_anchor, range(len(network.anchors))):
        model.get_classifier().requires_grad_(heads)
        if model.cls_token is not None:
            model.cls_token.requires_grad_(True)
            has_tokens = True
    return tuple(path for path in network.layout.paths if path.stitches or has_tokens or heads)


# Imitation.


class Imitation(nn.Module):
    """L_pred, L_blk and L_att of a student, and the matrices W and M of each level.

    The matrices are trained with the student. Where the widths match, they are identities without
    parameters.
    """

    def __init__(
        self, student: Spec, ancestry: Spec, settings: ImitationSettings, seed: int
    ) -> None:
        super().__init__()
        self.settings = settings
        self.levels = pair_levels(student.layers, ancestry.layers, settings.levels)
        widths = ancestry.width, student.width
        numbers = range(len(self.levels))
        self.blocks = nn.ModuleList(_init_matrix(*widths, seed, "blocks", i) for i in numbers)
        self.attentions = nn.ModuleList(
            _init_matrix(*widths, seed, "attentions", i) for i in numbers
        )

    def forward(self, outputs: Features, target: Features) -> dict[str, torch.Tensor]:
        """Return `prediction`, and with levels `block` and `attention`.

        `outputs` are the student's features, `target` the ancestry model's.
        """
        tau, reduction = self.settings.tau, self.settings.reduction
        losses = {
            "prediction": compute_prediction_loss(outputs.logits, target.logits, tau, reduction)
        }
        if self.levels:
            losses["block"] = self._sum(self.blocks, outputs.blocks, target.blocks)
            losses["attention"] = self._sum(self.attentions, outputs.attentions, target.attentions)
        return losses

    def _sum(
        self,
        matrices: nn.ModuleList,
        outputs: Mapping[int, torch.Tensor],
        target: Mapping[int, torch.Tensor],
    ) -> torch.Tensor:
        """Add the distances at all levels."""
        distances = [
            compute_distance(outputs[block], matrix(target[teacher_block]))
            for (block, teacher_block), matrix in zip(self.levels, matrices, strict=True)
        ]
        return torch.stack(distances).sum()


def compute_distance(tokens_BND: torch.Tensor, target_BND: torch.Tensor) -> torch.Tensor:
    """Return the mean squared difference over all numbers, in single precision."""
    return functional.mse_loss(tokens_BND.float(), target_BND.float())


def compute_prediction_loss(
    student: torch.Tensor,
    teacher: torch.Tensor,
    tau: float = 1.0,
    reduction: PredReduction = "sample",
) -> torch.Tensor:
    """Return the cross-entropy of softmax(student / tau) against softmax(teacher / tau).

    Args:
        student: logits (B, K), of dense models (B, patches, K).
        teacher: logits of the same shape.
        tau: the temperature.
        reduction: sample, the mean over images (and patches); or entries, the mean over all
            numbers, a K-th of it, as in the authors' code.
    """
    target = torch.softmax(teacher.float() / tau, dim=-1)
    entropies = -(target * torch.log_softmax(student.float() / tau, dim=-1))
    return entropies.mean() if reduction == "entries" else entropies.sum(dim=-1).mean()


def _init_matrix(ancestry: int, student: int, seed: int, *names: object) -> nn.Module:
    """Draw a linear layer without bias, N(0, 1/sqrt(fan in)): it keeps the scale of its input."""
    if ancestry == student:
        return nn.Identity()
    layer = nn.utils.skip_init(nn.Linear, ancestry, student, bias=False)
    generator = torch.Generator().manual_seed(derive_seed(seed, "transformations", *names))
    with torch.no_grad():
        layer.weight.normal_(std=ancestry**-0.5, generator=generator)
    return layer


def average_matrices(matrices: StateDict, ancestry: int, student: int) -> torch.Tensor:
    """Return the mean of an auxiliary model's trained W, (d, D) in float64.

    It is the identity where the widths match.

    Args:
        matrices: the tensors of the model's `Imitation`.
        ancestry: its width, D.
        student: its width, d.

    Raises:
        ValueError: if there is no W because no level was distilled.
    """
    if ancestry == student:
        return torch.eye(ancestry, dtype=torch.float64)
    weights = [matrices[name].double() for name in sorted(matrices) if name.startswith("blocks.")]
    if not weights:
        raise ValueError("no level was distilled, so there is no matrix W")
    return torch.stack(weights).mean(dim=0)


def compute_stitch_weight(
    low_LD: torch.Tensor, high_HD: torch.Tensor, kind: Literal["tm", "pinv"]
) -> torch.Tensor:
    """Return the first weight of every stitch, (H, L).

    It leads from the low model's stream back to the ancestry's, and on to the high model's. The way
    on is the high model's W: the identity where that has the ancestry's width, as in the paper.
    Biases start at 0.

    Args:
        low_LD: the low model's W.
        high_HD: the high model's W.
        kind: the way back. tm: the transpose of the low model's W, as in the authors' code: the
            adjoint of the matrix, not an inverse; pinv: its pseudo-inverse.
    """
    back_DL = low_LD.T if kind == "tm" else torch.linalg.pinv(low_LD)
    return (high_HD @ back_DL).float()


def derive_stitches(
    specs: Sequence[Spec],
    layout: StitchLayout,
    matrices: Sequence[StateDict],
    ancestry: int,
    kind: Literal["tm", "pinv"],
) -> StateDict:
    """Return the stitches of a pool, all equal, from the matrices of both models.

    Args:
        specs: the shapes of the narrow and of the wide model.
        layout: of the stitches.
        matrices: of both models.
        ancestry: the width of the ancestry model.
        kind: see `compute_stitch_weight`.
    """
    low, high = (
        average_matrices(state, ancestry, spec.width) for state, spec in zip(matrices, specs)
    )
    weight = compute_stitch_weight(low, high, kind)
    shapes = list_stitch_shapes(specs, layout)
    return {
        name: weight if len(shape) == 2 else torch.zeros(shape) for name, shape in shapes.items()
    }
