"""Joint training: every step samples one path and trains what lies on it, as SN-Net and Learngene Pool do.

    loss = (1 - share) L_task + share L_teacher
    soft   L_teacher = t^2 KL(softmax(teacher / t) || softmax(student / t))
    hard   L_teacher = cross-entropy with the class that the teacher gives

L_task is what training on the task minimises anyway, attributes included. The path is a function of the seed and the step, so it
is equal on all processes (the released code draws one per process) and after resuming.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import nn

from learngene_zoo.plugin import (
    Batches,
    Distilled,
    Json,
    Recipe,
    Run,
    Task,
    derive_seed,
    logits_loss,
    objective_for,
    train,
)
from lgzoo_pool.network import Along, StitchedNetwork
from lgzoo_pool.paths import Path

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer

Answers = Callable[[Any], Any]  # from a batch to a teacher's features
Kind = Literal["hard", "soft", "none"]


def tune(
    network: StitchedNetwork,
    loader: Batches,
    recipe: Recipe,
    run: Run,
    *,
    teacher: Answers | None = None,
    kind: Kind = "soft",
    share: float = 0.5,
    temperature: float = 1.0,
    paths: Sequence[Path] | None = None,
    label: str = "stitches",
) -> dict[str, Json]:
    """Train the network in place on the batches of `loader`; what of it requires no gradient stays as it is.

    Returns what to record. Without a teacher (or with the kind "none") the labels are all that is learnt from. `paths` are
    those that may be sampled, by default all. The loop saves and resumes; see `training.loop.train` for what else is raised.
    """
    paths = tuple(paths or network.layout.paths)
    objective = SampledPaths(network, loader.task, recipe, paths, run.seed)
    if teacher is not None and kind != "none":
        objective.teach(teacher, kind, share, temperature)
    for step in train(objective, loader, recipe, run, unused=True, label=label):
        objective.finished.fill_(step.step)
    return {"training_images": loader.images, "epochs": recipe.epochs, "paths": len(paths)}


def path_of_step(paths: Sequence[Path], seed: int, step: int) -> Path:
    """The path that step number `step` (from 1) trains: uniform over `paths`."""
    return paths[derive_seed(seed, "path", step) % len(paths)]


class SampledPaths(nn.Module):
    """The task's objective along the path of the step.

    There is one objective for each anchor in which paths end: what reads attributes off a model has its width.
    """

    finished: torch.Tensor  # steps; a buffer, so that a resumed training goes on with the right path

    def __init__(self, network: StitchedNetwork, task: Task, recipe: Recipe, paths: Sequence[Path], seed: int) -> None:
        super().__init__()
        self.network, self.paths, self.seed = network, tuple(paths), seed
        self.register_buffer("finished", torch.zeros((), dtype=torch.int64))
        self.models = {path.last: Along(network, path) for path in paths}
        self.objectives = nn.ModuleDict(
            {
                str(anchor): objective_for(
                    task, cast("VisionTransformer", model), recipe, derive_seed(seed, "attributes", anchor)
                )
                for anchor, model in self.models.items()
            }
        )

    def teach(self, teacher: Answers, kind: Kind, share: float, temperature: float) -> None:
        """From now on learn from a teacher too."""
        for anchor, model in self.models.items():
            told, student = self.objectives[str(anchor)], cast("VisionTransformer", model)
            imitation = logits_loss("hard" if kind == "hard" else "soft", temperature)
            self.objectives[str(anchor)] = Distilled(told, student, teacher, imitation, (1 - share, share))

    @property
    def path(self) -> Path:
        """The path of the step that comes next."""
        return path_of_step(self.paths, self.seed, int(self.finished) + 1)

    def forward(self, batch: Any) -> dict[str, torch.Tensor]:
        """The losses by name."""
        path = self.path
        self.models[path.last].path = path
        losses: dict[str, torch.Tensor] = self.objectives[str(path.last)](batch)
        return losses


def train_stitches_alone(network: StitchedNetwork, *, heads: bool) -> tuple[Path, ...]:
    """Freeze all but the stitches, the class tokens and, where asked, the heads; the paths that still have what to train.

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
