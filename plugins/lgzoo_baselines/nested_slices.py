"""What `nested.py` does with tensors: slices of a model, and the training in which one of them answers in every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from learngene_zoo.plugin import (
    Ancestry,
    Descendant,
    Distilled,
    Json,
    Model,
    Run,
    Spec,
    StateDict,
    Task,
    assemble,
    derive_seed,
    empty,
    evaluate,
    guide,
    mapped,
    model_of,
    objective_for,
    state_of,
    table_of,
    train,
    training_images,
)
from lgzoo_baselines.distillation import imitated
from lgzoo_baselines.mixed_blocks import bare, give
from lgzoo_baselines.nested_sizes import BLOCKS, Nesting
from lgzoo_baselines.vanilla_lg import shifted
from lgzoo_baselines.weight_subcloning import Ranking, ranking, reordered

if TYPE_CHECKING:
    from learngene_zoo.plugin import TimmModel


def sliced(state: StateDict, whole: Spec, small: Spec, blocks: Sequence[int]) -> StateDict:
    """The first channels, heads and neurons of a model of shape `whole`, in these blocks: the tensors of one of shape `small`.

    Gradients flow back. Segments of `small` differ in attention and MLP alone.
    """
    made, start = dict[str, torch.Tensor](), 0
    for segment in small.segments:
        stop = start + segment.layers
        made |= shifted(_cut(state, whole, segment, blocks[start:stop]), whole, start)
        start = stop
    return made


def _cut(state: StateDict, whole: Spec, small: Spec, blocks: Sequence[int]) -> StateDict:
    table = table_of(whole)
    before, kept = table.sizes(whole), table.sizes(small)
    fewer = {axis: range(kept[axis]) for axis in ("width", "heads", "hidden") if kept[axis] < before[axis]}
    return mapped(state, whole, {**fewer, "layers": blocks})


def number_of_step(sizes: int, seed: int, step: int) -> int:
    """Which of so many sizes, from 0, step number `step` (from 1) trains: uniform, a function of seed and step."""
    return derive_seed(seed, "slice", step) % sizes


class Answering:
    """The slice that answers in this step, as a model of its width; not a module, so that it is registered once."""

    def __init__(self, small: Model) -> None:
        self.small = small

    def __call__(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.small(images_BCHW)
        return logits

    def forward_features(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """The tokens after the last block."""
        tokens: torch.Tensor = self.small.forward_features(images_BCHW)
        return tokens

    def forward_head(self, tokens_BND: torch.Tensor, pre_logits: bool = False) -> torch.Tensor:
        """What the head reads, or the logits."""
        answer: torch.Tensor = self.small.forward_head(tokens_BND, pre_logits=pre_logits)
        return answer

    @property
    def norm(self) -> nn.Module:
        """The final norm."""
        norm: nn.Module = self.small.norm
        return norm

    def get_classifier(self) -> Any:
        """The head."""
        return self.small.get_classifier()


class SampledSlices(nn.Module):
    """The objective of the slice that a step trains.

    There is one objective for each width: the layer that predicts attributes has it. After each step the loop must write its number
    into `finished`.
    """

    finished: torch.Tensor  # steps; a buffer, so that a resumed training continues with the right slice

    def __init__(
        self,
        model: Model,
        spec: Spec,
        slices: Sequence[tuple[Spec, Sequence[int]]],
        objective: Callable[[Any, Spec], nn.Module],
        seed: int,
    ) -> None:
        super().__init__()
        self.model, self.spec, self.slices, self.seed = model, spec, tuple(slices), seed
        self.register_buffer("finished", torch.zeros((), dtype=torch.int64))
        self.small = nn.ModuleList(bare(empty(small)) for small, _ in self.slices)
        by_width = {small.width: (small, module) for (small, _), module in zip(self.slices, self.small, strict=True)}
        self.answering = {width: Answering(module) for width, (_, module) in by_width.items()}
        self.objectives = nn.ModuleDict(
            {str(width): objective(one, by_width[width][0]) for width, one in self.answering.items()}
        )

    def given(self, number: int) -> nn.Module:
        """The module of that slice, with its tensors of the whole model as it is now."""
        small, blocks = self.slices[number]
        module = self.small[number]
        give(module, sliced(dict(self.model.named_parameters()), self.spec, small, blocks))
        return module

    def forward(self, batch: Any) -> dict[str, torch.Tensor]:
        """The losses by name."""
        number = number_of_step(len(self.slices), self.seed, int(self.finished) + 1)
        width = self.slices[number][0].width
        self.answering[width].small = self.given(number)
        losses: dict[str, torch.Tensor] = self.objectives[str(width)](batch)
        return losses


def opened_for(ancestry: Ancestry, task: Task, seed: int) -> Descendant:
    """The ancestry model with a fresh head for a task."""
    record = ancestry.record
    own = assemble(ancestry.spec, ancestry.state, seed=seed, mean=record.mean, std=record.std, view=record.view)
    return own.for_task(task.name, task.class_names, seed=seed, dense=task.dense)


def nested(
    settings: Nesting, ancestry: Ancestry, start: Descendant, teacher: Descendant | TimmModel, task: Task, run: Run
) -> tuple[StateDict, Json]:
    """The tensors of the whole model after its training, and what its smallest and its largest slice know."""
    spec, recipe, images, state = start.spec, settings.training, start.input_format, dict(start.state)
    if settings.order != "none":
        importances, _ = ranking(Ranking(images=settings.ranked), ancestry, task, run)
        state = dict(reordered(state, spec, importances))
    sizes = settings.grid.sizes(spec)
    slices = [(small, BLOCKS[settings.grid.choice](spec.layers, small.layers)) for small in sizes]
    model, frozen = model_of(spec, state), guide(teacher, images, run) if settings.share else None

    def objective(small: Any, shape: Spec) -> nn.Module:
        labels = objective_for(task, small, recipe, derive_seed(run.seed, "attributes"))
        if frozen is None:
            return labels
        imitation = imitated(settings, shape, teacher, frozen, run)
        return Distilled(labels, small, frozen, imitation, (1 - settings.share, settings.share))

    loader, sampled = (
        training_images(task, images, recipe, run),
        SampledSlices(model, spec, slices, objective, run.seed),
    )
    for step in train(sampled, loader, recipe, run, unused=True, label=f"{len(sizes)} nested models on {task.name}"):
        sampled.finished.fill_(step.step)

    trained, metrics = state_of(model.cpu()), dict[str, Json]()
    for name, (small, blocks) in {"smallest": slices[0], "largest": slices[-1]}.items():
        found = evaluate(model_of(small, sliced(trained, spec, small, blocks)), task, "validation", images, run)
        metrics[name] = {f"validation_{found.metric}": found.value, "validation_images": found.images}
    return trained, {**metrics, "sizes": len(sizes), "training_images": loader.images}
