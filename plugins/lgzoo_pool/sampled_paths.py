"""The objective of joint training: every step samples one path and trains what lies on it (SN-Net, Learngene Pool).

    loss = (1 - share) L_task + share L_teacher
    soft   L_teacher = t^2 KL(softmax(teacher / t) || softmax(student / t))
    hard   L_teacher = cross-entropy with the class that the teacher gives

L_task is whatever training on the task minimises, attributes included. The path is a function of the seed and the step,
so it is equal in all processes (the released code draws one per process) and after resuming.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from learngene_zoo.plugin import Distilled, Features, Task, derive_seed, logits_loss, objective_for
from lgzoo_pool.network import Along, StitchedNetwork
from lgzoo_pool.paths import Path
from lgzoo_pool.settings import PathSettings

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
    ) -> None:
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
                imitation = logits_loss(settings.guidance, settings.temperature)
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
