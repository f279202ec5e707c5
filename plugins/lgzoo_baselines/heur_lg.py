"""Heuristic-LG: the blocks whose gradients stay the same while the ancestry model learns one task after another.

Wang, Geng, Lin, Xia, Qi and Xu, Learngene: From Open-World to Your Learning Task, AAAI 2022. The collective model, here the ancestry model, learns
a sequence of tasks. In every epoch e

    s_b(e) = mean over its steps of the share of entries of block b's gradient with |g| > eps
    v_b    = standard deviation of s_b over all epochs / mean of s_b over all epochs

and the learngene is the n blocks with the smallest v, as they are after the last task. The paper reads the curves of s by eye; that their
coefficient of variation decides is our reading. Descendants are those of `vanilla_lg`: random blocks, then the kept ones in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Annotated

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
    check_bounds,
    derive_seed,
    once,
)
from lgzoo_baselines.pretrain_finetune import PAPER, SMOKE, TRAINING
from lgzoo_baselines.vanilla_lg import Complete, Details, check_count, of_blocks

if TYPE_CHECKING:
    import torch

    from learngene_zoo.plugin import Ancestry, Descendant, Json, Model, Run, Spec, StateDict, Task


def variations(shares_EB: Sequence[Sequence[float]]) -> list[float]:
    """v of every block, from s of every epoch; infinite for a block without gradients."""
    blocks = [list(block) for block in zip(*shares_EB, strict=True)]
    return [pstdev(block) / fmean(block) if any(block) else float("inf") for block in blocks]


def steadiest(variations: Sequence[float], count: int) -> tuple[int, ...]:
    """The blocks of the smallest variations, counted from 1, ascending; of equal ones the later, as in `vanilla_lg`."""
    order = sorted(range(len(variations)), key=lambda block: (variations[block], -block))
    return tuple(sorted(block + 1 for block in order[:count]))


@dataclass(frozen=True, kw_only=True)
class Watching:
    """How the ancestry model learns a task, and what counts as a gradient."""

    eps: Annotated[float, "a gradient counts where its magnitude is above this", Bounds(least=0)] = 5e-10
    training: Recipe = TRAINING

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.training.ema is not None:
            raise WrongCall(
                f"ema is {self.training.ema}; a moving average of the weights has no gradients: leave it out"
            )


@dataclass(frozen=True, kw_only=True)
class KeepSteadiest(Extractor):
    """Train the ancestry model on one task after another, and keep the blocks with the steadiest gradients."""

    count: Annotated[int, "blocks to keep", Bounds(least=1)] = 3
    each: Watching = field(default=Watching(), metadata=FLAT)

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """The ancestry model's shape. Raises `WrongCall` for more blocks than there are."""
        check_count(self.count, ancestries[0])
        return LearngeneConfig(method="heur_lg", spec=ancestries[0])

    def work(self, ancestries: Sequence[Spec], images: Sequence[int]) -> list[Work]:
        """One training for each task."""
        recipe = self.each.training
        shown = [min(recipe.images or count, count) * recipe.epochs for count in images]
        return [Work(images=count, trained=ancestries[0].layers) for count in shown]

    def __call__(self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run) -> Learngene:
        """The tasks in their order, each a part of the run. Raises `WrongCall` for a single epoch, which nothing varies in."""
        from learngene_zoo.plugin import assemble, only, shapes, without_head

        epochs = self.each.training.epochs
        if epochs * len(tasks) < 2:
            raise WrongCall(f"epochs is {epochs}; gradients of two or more epochs are compared")
        spec, record = ancestries[0].spec, ancestries[0].record
        state, shares = without_head(ancestries[0].state, spec), list[list[float]]()
        metrics: dict[str, Json] = {}
        for task in tasks:
            part, size = run.part(task.name), spec.with_(classes=task.classes, dense=task.dense)
            body = only(state, shapes(size).__contains__)  # without pooling, if the head is for pixels
            start = assemble(size, body, seed=part.seed, mean=record.mean, std=record.std, view=record.view)
            learnt = once(part, "heur_lg.gradients", watched, self.each, [start, task])
            state, metrics[task.name] = {**state, **learnt.state}, learnt.record
            shares += learnt.record["shares"]
        found = variations(shares)
        kept = steadiest(found, self.count)
        config = replace(
            self.outline([spec]), details=Details(kept=kept).json(), metrics={**metrics, "variations": found}
        )
        return Learngene(config=config, state=of_blocks(state, spec, kept))


def watched(settings: Watching, start: Descendant, task: Task, run: Run) -> tuple[StateDict, Json]:
    """The tensors of the model after its training, without its head; its metrics, and s of every epoch and block."""
    import torch

    from learngene_zoo.plugin import evaluate, objective_for, state_of, train, training_images, without_head

    recipe, model = settings.training, start.model()
    objective = objective_for(task, model, recipe, derive_seed(run.seed, "attributes"))
    # A buffer, so that a resumed training continues with the sums.
    objective.register_buffer("shares", torch.zeros(recipe.epochs, start.spec.layers))
    loader = training_images(task, start.input_format, recipe, run)
    for step in train(objective, loader, recipe, run, label=f"watching {task.name}"):
        objective.get_buffer("shares")[step.epoch] += shares_of(model, settings.eps) / loader.steps
    found = evaluate(model, task, "validation", start.input_format, run)
    metrics = {f"validation_{found.metric}": found.value, "validation_images": found.images}
    shares = objective.get_buffer("shares").tolist()
    return without_head(state_of(model), start.spec), {**metrics, "training_images": loader.images, "shares": shares}


def shares_of(model: Model, eps: float) -> torch.Tensor:
    """The share of entries above `eps` in the gradient of every block, (B,), of the last step."""
    import torch

    found = []
    for block in model.blocks:
        gradients = [parameter.grad.flatten() for parameter in block.parameters() if parameter.grad is not None]
        found.append((torch.cat(gradients).abs() > eps).float().mean())
    return torch.stack(found)


_MINI = replace(TRAINING, epochs=3, images=2000, batch_size=32, lr=1e-3)
HEUR_LG = Method(
    name="heur_lg",
    title="the blocks with the steadiest gradients while the ancestry model learns, behind random ones",
    paper="Wang, Geng, Lin, Xia, Qi, Xu. Learngene: From Open-World to Your Learning Task. AAAI 2022",
    expander=Complete(),
    presets={
        # Nearly all gradients of so small a model are above the paper's 5e-10.
        "mini": KeepSteadiest(each=Watching(eps=1e-4, training=_MINI)),
        "paper": KeepSteadiest(each=Watching(training=replace(PAPER, epochs=50))),
        "smoke": KeepSteadiest(count=1, each=Watching(eps=1e-4, training=replace(SMOKE, epochs=2))),
    },
    families=("vit", "eva"),
    tasks="many",
    details=Details,
)
