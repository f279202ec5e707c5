"""Tensors of `ligo.py`: its operators, the larger model that they compute, and their training.

Operators, by name: `stream` (D' - D, D); of each layer i of the larger model `i.q`, `i.k`, `i.v`
(A' - A, A) and `i.hidden` (M' - M, M); and of each kind of tensor `depth.KIND` (parts, L', L), of
queries, keys and values three parts. D: width, A: of all heads together, M: hidden neurons,
L: layers; ' of the larger model. An axis that does not grow has no operator of width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from learngene_zoo.plugin import (
    Along,
    Descendant,
    Recipe,
    Run,
    Spec,
    StateDict,
    Table,
    Task,
    count_terms,
    derive_seed,
    get_shapes,
    get_state_dict,
    get_table,
    load_training_images,
    make_objective,
    map_axes,
    resize_positions,
    select_tensors,
    train,
)
from lgzoo_baselines.modules.factored import build_module
from lgzoo_baselines.modules.mixed_blocks import assign_tensors, remove_parameters

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Operators:
    """`tensors` by name, and of the operators of width `shares` (D,).

    `shares` is 1 / c: the part of an input that each of its first copies reads.
    """

    tensors: Tensors
    shares: Tensors


def init_operators(
    state: StateDict, small: Spec, maps: Mapping[str, list[int]], sources: list[int]
) -> Operators:
    """Return operators, float64, that compute the same model as `growth`.

    Args:
        state: the ancestry model's tensors; only their names are used.
        small: the shape of the ancestry model.
        maps: g for each axis of `growth.GROWING`.
        sources: the index of the block that each layer copies.
    """
    table = get_table(small)
    head_rows = [g * small.head_width + k for g in maps["heads"] for k in range(small.head_width)]
    copies = {"stream": maps["width"]}
    for i in range(len(sources)):
        copies |= {f"{i}.{kind}": head_rows for kind in "qkv"} | {f"{i}.hidden": maps["hidden"]}
    matrices = {name: nn.functional.one_hot(torch.tensor(g)).double() for name, g in copies.items()}
    growing = {name: B for name, B in matrices.items() if B.shape[0] > B.shape[1]}
    stack = nn.functional.one_hot(torch.tensor(sources), small.layers).double()
    kinds = [table.inner_name(name) for name in state if table.block_of(name) == 0]
    return Operators(
        {
            **{name: B[B.shape[1] :] for name, B in growing.items()},
            **{f"depth.{kind}": stack.repeat(_find_parts(table, kind)[0], 1, 1) for kind in kinds},
        },
        {name: 1 / B.sum(dim=0) for name, B in growing.items()},
    )


def _find_parts(table: Table, kind: str) -> tuple[int, int]:
    """Return how many weights a tensor of a block holds, and the dimension of their outputs.

    Queries, keys and values are three.
    """
    row = table.find(table.block_name(0, kind))
    assert row is not None, kind
    return (3 if "qkv" in row.axes[row.writes] else 1), row.writes


def apply_operators(state: StateDict, small: Spec, operators: Operators) -> dict[str, torch.Tensor]:
    """Return the larger model's tensors, without its head, steps 1 and 2.

    Gradients reach the operators.

    Args:
        state: tensors of a model of shape `small`.
        small: the shape of the ancestry model.
        operators: those of `init_operators`, trained or not.
    """
    table, tensors = get_table(small), operators.tensors
    stream = {"width": _map_width(operators, "stream")} if "stream" in tensors else {}
    outside = select_tensors(state, lambda name: table.block_of(name) is None)
    grown = dict(map_axes(outside, small, stream))
    kinds = [name.removeprefix("depth.") for name in tensors if name.startswith("depth.")]
    deep = {kind: _mix_layers(state, small, kind, tensors[f"depth.{kind}"]) for kind in kinds}
    for i in range(len(next(iter(deep.values())))):
        block = {table.block_name(i, kind): deep[kind][i] for kind in kinds}
        grown |= map_axes(block, small, {**stream, **_map_layer(operators, i)})
    return {name: tensor.to(next(iter(state.values())).dtype) for name, tensor in grown.items()}


def _mix_layers(
    state: StateDict, small: Spec, kind: str, weights_PIJ: torch.Tensor
) -> torch.Tensor:
    """Return the tensors of this kind of all layers of the larger model, step 1.

    They are as wide as those of the smaller model.
    """
    table = get_table(small)
    dimension = 1 + _find_parts(table, kind)[1]  # of the outputs, after that of the layers
    layers = torch.stack([state[table.block_name(j, kind)] for j in range(small.layers)])
    parts = layers.to(weights_PIJ.dtype).unflatten(dimension, (len(weights_PIJ), -1))
    mixed = torch.einsum("pij,jp...->ip...", weights_PIJ, parts.movedim(dimension, 1))
    return mixed.movedim(1, dimension).flatten(dimension, dimension + 1)


def _map_layer(operators: Operators, i: int) -> dict[str, Along]:
    """Return the maps of the axes within layer i, step 2."""
    maps: dict[str, Along] = {}
    if f"{i}.q" in operators.tensors:
        blocks = [_prepend_identity(operators.tensors[f"{i}.{kind}"]) for kind in "qkv"]
        maps["qkv heads head_width"] = Along(write=torch.block_diag(*blocks))
        maps["heads head_width"] = _map_width(operators, f"{i}.v")
    if f"{i}.hidden" in operators.tensors:
        maps["hidden"] = _map_width(operators, f"{i}.hidden")
    return maps


def _map_width(operators: Operators, name: str) -> Along:
    """Return the map of an axis whose outputs are mapped by B and whose inputs are read by A."""
    matrix = _prepend_identity(operators.tensors[name])
    return Along(write=matrix, read=matrix * operators.shares[name], scale=matrix)


def _prepend_identity(new: torch.Tensor) -> torch.Tensor:
    """Return B = [I ; R]."""
    return torch.cat([torch.eye(new.shape[1], dtype=new.dtype, device=new.device), new])


class OperatorObjective(nn.Module):
    """The objective of a task for the model that the operators compute in every pass.

    The operators and the head are trained; the weights of the smaller model are constant.

    Args:
        start: the larger model, with its head.
        state: the tensors of the smaller model.
        small: the shape of the smaller model.
        operators: at the start of their training.
        task: the task that they learn.
        recipe: of their training.
        seed: of the objective.
    """

    def __init__(
        self,
        start: Descendant,
        state: StateDict,
        small: Spec,
        operators: Operators,
        task: Task,
        recipe: Recipe,
        seed: int,
    ) -> None:
        super().__init__()
        self.small, self.expected = small, get_shapes(start.spec)
        self.operators = build_module(operators.tensors)
        is_head = get_table(start.spec).is_head
        self.model: Any = remove_parameters(start.model(), keep=is_head)
        self.objective = make_objective(task, self.model, recipe, seed)
        shares = {name: share.float() for name, share in operators.shares.items()}
        self._constants = (dict(state), shares)

    def compute_tensors(self) -> dict[str, torch.Tensor]:
        """Return the larger model's tensors for the current operators, without its head."""
        tensors = dict(self.operators.named_parameters())
        device = next(iter(tensors.values())).device
        state, shares = (
            {name: tensor.to(device) for name, tensor in constants.items()}
            for constants in self._constants
        )
        grown = apply_operators(state, self.small, Operators(tensors, shares))
        return {name: tensor for name, tensor in grown.items() if name in self.expected}

    def forward(self, batch: Any) -> dict[str, torch.Tensor]:
        """Return the losses by name."""
        assign_tensors(self.model, self.compute_tensors())
        losses: dict[str, torch.Tensor] = self.objective(batch)
        return losses

    def count_terms(self, batch: Any) -> dict[str, torch.Tensor]:
        """Return the numbers of terms of the losses by name."""
        return count_terms(self.objective, batch)


def train_operators(
    recipe: Recipe,
    start: Descendant,
    state: StateDict,
    small: Spec,
    operators: Operators,
    task: Task,
    run: Run,
) -> Descendant:
    """Return `start` with the weights of trained operators and the trained head.

    Args:
        recipe: of the training.
        start: the larger model, with a head for the task.
        state: the tensors of the smaller model.
        small: the shape of the smaller model.
        operators: at the start of their training.
        task: the task that they learn.
        run: gives the device, the seed and the folder of checkpoints.
    """
    resized = resize_positions(state, small, small.with_(image_size=start.spec.image_size))
    seed = derive_seed(run.seed, "attributes")
    objective = OperatorObjective(start, resized, small, operators, task, recipe, seed)
    loader = load_training_images(task, start.input_format, recipe, run)
    for _ in train(objective, loader, recipe, run, label=f"operators on {task.name}"):
        pass
    with torch.no_grad():
        # Of the model itself only the head is left.
        tensors = {**objective.cpu().compute_tensors(), **get_state_dict(objective.model)}
    return start.with_state({name: tensors[name].clone() for name in objective.expected})
