"""Heuristic-LG: keep the blocks with the most stable gradients in further training.

Wang, Geng, Lin, Xia, Qi and Xu, Learngene: From Open-World to Your Learning Task, AAAI 2022. The
collective model, here the ancestry model, is trained on a sequence of tasks. In every epoch e

    s_b(e) = mean over its steps of the share of entries of block b's gradient with |g| > eps
    v_b    = standard deviation of s_b over all epochs / mean of s_b over all epochs

and the learngene is the n blocks with the smallest v, with their weights after the last task. The
authors' code computes s; its coefficient of variation as the criterion is our reading.
Descendants are those of `vanilla_lg`: random blocks, then the kept ones in their order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Self

from learngene_zoo.plugin import (
    FLAT,
    Bounds,
    Extractor,
    Learngene,
    LearngeneConfig,
    Method,
    Recipe,
    Work,
    WrongCall,
    adapt_rates,
    check_bounds,
    compute_once,
    derive_seed,
)
from lgzoo_baselines.blocks.vanilla_lg import (
    VanillaLgDetails,
    VanillaLgExpander,
    check_count,
    select_blocks,
)
from lgzoo_baselines.trained.pretrain_finetune import PAPER, SMOKE, TRAINING

if TYPE_CHECKING:
    import torch

    from learngene_zoo.plugin import Ancestry, Descendant, Json, Model, Run, Spec, StateDict, Task


@dataclass(frozen=True, kw_only=True)
class HeurLgTraining:
    """How the ancestry model learns a task, and which gradients count."""

    eps: Annotated[float, "threshold on the magnitude of a gradient entry", Bounds(least=0)] = 5e-10
    training: Recipe = TRAINING

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.training.ema is not None:
            raise WrongCall(
                f"ema is {self.training.ema}; a moving average of the weights has no gradients: "
                "leave it out"
            )


@dataclass(frozen=True, kw_only=True)
class HeurLgExtractor(Extractor):
    """Train the ancestry model task after task; keep the blocks with the steadiest gradients."""

    count: Annotated[int, "number of blocks to keep", Bounds(least=1)] = 3
    each: HeurLgTraining = field(default=HeurLgTraining(), metadata=FLAT)

    def adapt(self, ancestries: Sequence[Spec]) -> Self:
        """Return the settings with learning rates for the width of the ancestry model."""
        return adapt_rates(self, ancestries, pretrained_rates=["lr"])

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """Return the config with the ancestry model's shape.

        Raises `WrongCall` for more blocks than there are.
        """
        check_count(self.count, ancestries[0])
        return LearngeneConfig(spec=ancestries[0])

    def work(self, ancestries: Sequence[Spec], images: Sequence[int]) -> list[Work]:
        """Return the cost of one training for each task."""
        recipe = self.each.training
        counts = [min(recipe.images or count, count) * recipe.epochs for count in images]
        return [Work(images=count, trained=ancestries[0].layers) for count in counts]

    def __call__(
        self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run
    ) -> Learngene:
        """Learn the tasks in their order, each a part of the run, and return the steadiest blocks.

        Raises `WrongCall` for a single epoch, as at least two are compared, and if no gradient is
        above the threshold.
        """
        from learngene_zoo.plugin import assemble, get_shapes, remove_head, select_tensors

        epochs = self.each.training.epochs
        if epochs * len(tasks) < 2:
            raise WrongCall(f"epochs is {epochs}; gradients of two or more epochs are compared")
        spec, record = ancestries[0].spec, ancestries[0].record
        state, shares = remove_head(ancestries[0].state, spec), list[list[float]]()
        metrics: dict[str, Json] = {}
        for task in tasks:
            part, size = run.part(task.name), spec.with_(classes=task.classes, dense=task.dense)
            body = select_tensors(
                state, get_shapes(size).__contains__
            )  # no pooling if the head is for pixels
            start = assemble(
                size,
                body,
                seed=part.seed,
                mean=record.mean,
                std=record.std,
                view=record.view,
                files=ancestries[0].files,
            )
            trained = compute_once(
                part, "heur_lg.gradients", train_and_count_gradients, self.each, [start, task]
            )
            state, metrics[task.name] = {**state, **trained.state}, trained.record
            shares += trained.record["shares"]
        variations = measure_variations(shares)
        if not any(map(math.isfinite, variations)):
            raise WrongCall(
                f"no gradient is above the threshold, eps {self.each.eps:g}; choose a smaller one"
            )
        blocks = choose_steadiest(variations, self.count)
        config = self.outline([spec]).with_details(VanillaLgDetails(kept=blocks))
        recorded: list[Json] = [value if math.isfinite(value) else None for value in variations]
        config = replace(config, metrics={**metrics, "variations": recorded})
        return Learngene(config=config, state=select_blocks(state, spec, blocks))


def train_and_count_gradients(
    settings: HeurLgTraining, start: Descendant, task: Task, run: Run
) -> tuple[StateDict, Json]:
    """Return the trained model's tensors without its head, and its metrics with s as `shares`.

    Args:
        settings: how the model learns, and which gradients count.
        start: the model before its training.
        task: the task that it learns.
        run: gives the device, the seed and the folder of checkpoints.
    """
    import torch

    from learngene_zoo.plugin import (
        get_state_dict,
        load_training_images,
        make_objective,
        measure_validation,
        remove_head,
        train,
    )

    recipe, model = settings.training, start.model()
    objective = make_objective(task, model, recipe, derive_seed(run.seed, "attributes"))
    # A buffer, so that a resumed training continues with the sums.
    objective.register_buffer("shares", torch.zeros(recipe.epochs, start.spec.layers))
    loader = load_training_images(task, start.input_format, recipe, run)
    for step in train(objective, loader, recipe, run, label=f"watching {task.name}"):
        shares_B = count_gradients(model, settings.eps) / loader.steps
        objective.get_buffer("shares")[step.epoch] += shares_B
    return remove_head(get_state_dict(model), start.spec), {
        **measure_validation(model, task, start.input_format, recipe, run),
        "training_images": loader.images,
        "shares": objective.get_buffer("shares").tolist(),
    }


def count_gradients(model: Model, eps: float) -> torch.Tensor:
    """Return the share of entries above `eps` in the gradient of every block, (B,)."""
    import torch

    from learngene_zoo.plugin import get_blocks

    shares = []
    for block in get_blocks(model):
        gradients = [
            parameter.grad.flatten()
            for parameter in block.parameters()
            if parameter.grad is not None
        ]
        shares.append((torch.cat(gradients).abs() > eps).float().mean())
    return torch.stack(shares)


def measure_variations(shares_EB: Sequence[Sequence[float]]) -> list[float]:
    """Return v of every block from s of every epoch; infinite for a block without gradients."""
    from statistics import fmean, pstdev

    blocks = [list(block) for block in zip(*shares_EB, strict=True)]
    return [pstdev(block) / fmean(block) if any(block) else math.inf for block in blocks]


def choose_steadiest(variations: Sequence[float], count: int) -> tuple[int, ...]:
    """Return the blocks with the smallest variations, counted from 1, ascending.

    Of equal ones the later block is chosen, as in `vanilla_lg`.
    """
    order = sorted(range(len(variations)), key=lambda block: (variations[block], -block))
    return tuple(sorted(block + 1 for block in order[:count]))


_MINI = replace(TRAINING, epochs=3, images=2000, batch_size=32, lr=1e-3)
HEUR_LG = Method(
    name="heur_lg",
    title=(
        "random blocks followed by the blocks with the most stable gradients in "
        "further training of the ancestry model"
    ),
    paper=(
        "Wang, Geng, Lin, Xia, Qi, Xu. Learngene: From Open-World to Your Learning Task. AAAI 2022"
    ),
    expander=VanillaLgExpander(),
    presets={
        # Nearly all gradients of so small a model are above the authors' threshold of 5e-10.
        "mini": HeurLgExtractor(each=HeurLgTraining(eps=1e-4, training=_MINI)),
        # At the rate of pretrained weights, which the recipe's would destroy.
        "paper": HeurLgExtractor(each=HeurLgTraining(training=replace(PAPER, epochs=50, lr=5e-5))),
        "smoke": HeurLgExtractor(
            count=1, each=HeurLgTraining(eps=1e-4, training=replace(SMOKE, epochs=2))
        ),
    },
    families=("vit", "eva", "gpt2", "bert"),
    tasks="many",
    details=VanillaLgDetails,
)
