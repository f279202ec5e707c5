"""The tensors of `nested.py`: slices of a model, and the training of one of them in every step."""

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
    build_empty,
    build_model,
    count_terms,
    derive_seed,
    evaluate,
    get_state_dict,
    get_table,
    guide,
    load_training_images,
    make_objective,
    map_axes,
    mark_chance,
    train,
)
from lgzoo_baselines.blocks.vanilla_lg import shift_blocks
from lgzoo_baselines.learnt.nested_sizes import NestedSettings
from lgzoo_baselines.modules.mixed_blocks import assign_tensors, remove_parameters
from lgzoo_baselines.trained.with_teacher import build_imitation_loss
from lgzoo_baselines.weights.weight_subcloning import NeuronRanking, rank_neurons, reorder_neurons

if TYPE_CHECKING:
    from learngene_zoo.plugin import TimmModel

Slice = tuple[Spec, Sequence[int]]  # shape, and the indices of its blocks


def slice_state(state: StateDict, full: Spec, spec: Spec, blocks: Sequence[int]) -> StateDict:
    """Return the first channels, heads and neurons of a model; gradients flow back.

    Args:
        state: of the full model.
        full: the shape of the full model.
        spec: the shape of the slice, whose segments differ in attention and MLP alone.
        blocks: the blocks that the slice has, counted from 0.
    """
    sliced, start = dict[str, torch.Tensor](), 0
    for segment in spec.segments:
        stop = start + segment.layers
        sliced |= shift_blocks(_cut_axes(state, full, segment, blocks[start:stop]), full, start)
        start = stop
    return sliced


def _cut_axes(state: StateDict, full: Spec, spec: Spec, blocks: Sequence[int]) -> StateDict:
    table = get_table(full)
    before, after = table.sizes(full), table.sizes(spec)
    axes = [axis for axis in ("width", "heads", "hidden") if after[axis] < before[axis]]
    return map_axes(state, full, {**{axis: range(after[axis]) for axis in axes}, "layers": blocks})


def draw_slice(count: int, seed: int, step: int) -> int:
    """Return which of `count` slices, from 0, a step trains: uniform, a function of seed and step.

    Args:
        count: of slices.
        seed: of the run.
        step: counted from 1.
    """
    return derive_seed(seed, "slice", step) % count


class CurrentSlice:
    """Pass calls on to the slice in training, a model of its width.

    It is not a module, so that it is registered once.
    """

    def __init__(self, model: Model) -> None:
        self.model = model

    def __call__(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(images_BCHW)
        return logits

    def forward_features(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the tokens after the last block."""
        tokens: torch.Tensor = self.model.forward_features(images_BCHW)
        return tokens

    def forward_head(self, tokens_BND: torch.Tensor, pre_logits: bool = False) -> torch.Tensor:
        """Return the input of the head, or the logits."""
        output: torch.Tensor = self.model.forward_head(tokens_BND, pre_logits=pre_logits)
        return output

    @property
    def norm(self) -> nn.Module:
        """The final norm."""
        norm: nn.Module = self.model.norm
        return norm

    def get_classifier(self) -> Any:
        """Return the head."""
        return self.model.get_classifier()


class SampledSlices(nn.Module):
    """Compute the objective of the slice that a step trains.

    There is one objective for each width, for the layer that predicts attributes has a width. After
    each step the training loop must write its number into `finished`.

    Args:
        model: the full model.
        spec: its shape.
        slices: in training.
        build_objective: builds the objective of a slice, from a model and its shape.
        seed: of the draws of slices.
    """

    # Number of steps; a buffer, so that a resumed training continues with the right slice.
    finished: torch.Tensor

    def __init__(
        self,
        model: Model,
        spec: Spec,
        slices: Sequence[Slice],
        build_objective: Callable[[Any, Spec], nn.Module],
        seed: int,
    ) -> None:
        super().__init__()
        self.model, self.spec, self.slices, self.seed = model, spec, tuple(slices), seed
        self.register_buffer("finished", torch.zeros((), dtype=torch.int64))
        self.small = nn.ModuleList(
            remove_parameters(build_empty(small)) for small, _ in self.slices
        )
        by_width = {
            small.width: (small, module)
            for (small, _), module in zip(self.slices, self.small, strict=True)
        }
        self.current = {width: CurrentSlice(module) for width, (_, module) in by_width.items()}
        self.objectives = nn.ModuleDict(
            {
                str(width): build_objective(current, by_width[width][0])
                for width, current in self.current.items()
            }
        )

    def fill_slice(self, number: int) -> nn.Module:
        """Return the module of that slice, with its tensors of the full model as it is now."""
        spec, blocks = self.slices[number]
        module, parameters = self.small[number], dict(self.model.named_parameters())
        assign_tensors(module, slice_state(parameters, self.spec, spec, blocks))
        return module

    def forward(self, batch: Any) -> dict[str, torch.Tensor]:
        """Return the losses by name."""
        number = draw_slice(len(self.slices), self.seed, int(self.finished) + 1)
        width = self.slices[number][0].width
        self.current[width].model = self.fill_slice(number)
        losses: dict[str, torch.Tensor] = self.objectives[str(width)](batch)
        return losses

    def count_terms(self, batch: Any) -> dict[str, torch.Tensor]:
        """Return the numbers of terms of the losses by name, which are those of every width."""
        return count_terms(next(iter(self.objectives.values())), batch)


def assemble_with_head(ancestry: Ancestry, task: Task, seed: int) -> Descendant:
    """Return the ancestry model with a new head for a task."""
    record = ancestry.record
    model = assemble(
        ancestry.spec,
        ancestry.state,
        seed=seed,
        mean=record.mean,
        std=record.std,
        view=record.view,
    )
    return model.for_task(task.name, task.class_names, seed=seed, dense=task.dense)


def train_slices(
    settings: NestedSettings,
    ancestry: Ancestry,
    start: Descendant,
    teacher: Descendant | TimmModel,
    task: Task,
    run: Run,
) -> tuple[StateDict, Json]:
    """Train all slices; return the full model's tensors, and the metrics of two slices.

    Args:
        settings: the grid of sizes, the recipe, and the shares of the losses.
        ancestry: on whose features neurons and heads are ranked.
        start: the ancestry model with a head for the task.
        teacher: a classifier of the task; not called if its share is 0.
        task: whose images they see.
        run: the part of the run.
    """
    spec, recipe, images = start.spec, settings.training, start.input_format
    state = dict(start.state)
    if settings.order != "none":
        importances, _ = rank_neurons(NeuronRanking(images=settings.ranked), ancestry, task, run)
        state = dict(reorder_neurons(state, spec, importances))
    slices: list[Slice] = [
        (small, settings.grid.choose_blocks(spec, small.layers))
        for small in settings.grid.list_specs(spec)
    ]
    model = build_model(spec, state)
    frozen = guide(teacher, images, run) if settings.share else None

    def build_objective(small: Any, shape: Spec) -> nn.Module:
        labels = make_objective(task, small, recipe, derive_seed(run.seed, "attributes"))
        if frozen is None:
            return labels
        imitation = build_imitation_loss(settings, shape, teacher, frozen, run)
        return Distilled(labels, small, frozen, imitation, (1 - settings.share, settings.share))

    loader = load_training_images(task, images, recipe, run)
    sampled = SampledSlices(model, spec, slices, build_objective, run.seed)
    label = f"{len(slices)} nested models on {task.name}"
    for step in train(sampled, loader, recipe, run, unused=True, label=label):
        sampled.finished.fill_(step.step)

    trained, metrics = get_state_dict(model.cpu()), dict[str, Json]()
    for name, (small, blocks) in {"smallest": slices[0], "largest": slices[-1]}.items():
        slice_model = build_model(small, slice_state(trained, spec, small, blocks))
        result = evaluate(slice_model, task, "validation", images, run)
        metrics[name] = {
            f"validation_{result.metric}": result.value,
            "validation_images": result.images,
            **(mark_chance(result.value, task, recipe) if name == "largest" else {}),
        }
    return trained, {**metrics, "sizes": len(slices), "training_images": loader.images}
