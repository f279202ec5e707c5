"""What `ligo.py` does with tensors: its operators, the larger model that they make, and their training.

Operators, by name: `stream` (D' - D, D); of each layer i of the larger model `i.q`, `i.k`, `i.v` (A' - A, A) and `i.hidden` (M' - M, M);
and of each kind of tensor `depth.KIND` (parts, L', L), of queries, keys and values three parts. D: width, A: of all heads together, M:
hidden neurons, L: layers; ' of the larger model. What does not grow has no operator of width.
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
    Task,
    derive_seed,
    mapped,
    objective_for,
    only,
    resize_positions,
    shapes,
    state_of,
    table_of,
    train,
    training_images,
)
from lgzoo_baselines.factored_blocks import tree
from lgzoo_baselines.mixed_blocks import bare, give

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Operators:
    """`tensors` by name, and for those of width `shares` (D,): 1 / c, how much of an input each of its first copies read."""

    tensors: Tensors
    shares: Tensors


def started(state: StateDict, small: Spec, maps: Mapping[str, list[int]], places: list[int]) -> Operators:
    """The operators, float64, that do what `growth` does: copies by `maps`, for each of its axes, and blocks by `places`."""
    table = table_of(small)
    heads = [g * small.head_width + k for g in maps["heads"] for k in range(small.head_width)]
    copies = {"stream": maps["width"]}
    for i in range(len(places)):
        copies |= {f"{i}.{kind}": heads for kind in "qkv"} | {f"{i}.hidden": maps["hidden"]}
    widths = {name: nn.functional.one_hot(torch.tensor(g)).double() for name, g in copies.items()}
    grows = {name: whole for name, whole in widths.items() if whole.shape[0] > whole.shape[1]}
    stack = nn.functional.one_hot(torch.tensor(places), small.layers).double()
    inside = [table.inner_name(name) for name in state if table.block_of(name) == 0]
    return Operators(
        {
            **{name: whole[whole.shape[1] :] for name, whole in grows.items()},
            **{f"depth.{inner}": stack.repeat(_parts(inner), 1, 1) for inner in inside},
        },
        {name: 1 / whole.sum(dim=0) for name, whole in grows.items()},
    )


def _parts(inner: str) -> int:
    """How many kinds of weights a tensor of a block holds."""
    return 3 if inner.startswith("attn.qkv.") else 1


def grown(state: StateDict, small: Spec, operators: Operators) -> dict[str, torch.Tensor]:
    """The larger model's tensors, without its head, steps 1 and 2; gradients reach the operators."""
    table, tensors = table_of(small), operators.tensors
    stream = {"width": _along(operators, "stream")} if "stream" in tensors else {}
    made = dict(mapped(only(state, lambda name: table.block_of(name) is None), small, stream))
    kinds = [name.removeprefix("depth.") for name in tensors if name.startswith("depth.")]
    deep = {kind: _deep(state, small, kind, tensors[f"depth.{kind}"]) for kind in kinds}
    for i in range(len(next(iter(deep.values())))):
        block = {table.block_name(i, kind): deep[kind][i] for kind in kinds}
        made |= mapped(block, small, {**stream, **_inside(operators, i)})
    return {name: tensor.to(next(iter(state.values())).dtype) for name, tensor in made.items()}


def _deep(state: StateDict, small: Spec, kind: str, weights_PIJ: torch.Tensor) -> torch.Tensor:
    """Step 1: the tensors of this kind of all layers of the larger model, as wide as they were."""
    name_of = table_of(small).block_name
    whole = torch.stack([state[name_of(j, kind)] for j in range(small.layers)]).to(weights_PIJ.dtype)
    parts = whole.unflatten(1, (len(weights_PIJ), -1))
    return torch.einsum("pij,jp...->ip...", weights_PIJ, parts).flatten(1, 2)


def _inside(operators: Operators, i: int) -> dict[str, Along]:
    """The maps of axes within layer i."""
    found: dict[str, Along] = {}
    if f"{i}.q" in operators.tensors:
        whole = torch.block_diag(*(_whole(operators.tensors[f"{i}.{kind}"]) for kind in "qkv"))
        found = {"qkv heads head_width": Along(write=whole), "heads head_width": _along(operators, f"{i}.v")}
    return found | ({"hidden": _along(operators, f"{i}.hidden")} if f"{i}.hidden" in operators.tensors else {})


def _along(operators: Operators, name: str) -> Along:
    whole = _whole(operators.tensors[name])
    return Along(write=whole, read=whole * operators.shares[name], scale=whole)


def _whole(new: torch.Tensor) -> torch.Tensor:
    """B = [I ; R]."""
    return torch.cat([torch.eye(new.shape[1], dtype=new.dtype, device=new.device), new])


class Growing(nn.Module):
    """The objective of a task for the model that the operators make, in every pass anew, of weights that stay."""

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
        self.small, self.expected = small, shapes(start.spec)
        self.operators = tree(operators.tensors)
        self.model: Any = bare(start.model(), keep=table_of(start.spec).is_head)
        self.objective = objective_for(task, self.model, recipe, seed)
        self._fixed = (dict(state), {name: share.float() for name, share in operators.shares.items()})

    def tensors(self) -> dict[str, torch.Tensor]:
        """The larger model's as it is now, without its head."""
        own = dict(self.operators.named_parameters())
        device = next(iter(own.values())).device
        state, shares = ({name: one.to(device) for name, one in fixed.items()} for fixed in self._fixed)
        made = grown(state, self.small, Operators(own, shares))
        return {name: tensor for name, tensor in made.items() if name in self.expected}

    def forward(self, batch: Any) -> dict[str, torch.Tensor]:
        """The losses by name."""
        give(self.model, self.tensors())
        losses: dict[str, torch.Tensor] = self.objective(batch)
        return losses


def learnt(
    recipe: Recipe, start: Descendant, state: StateDict, small: Spec, operators: Operators, task: Task, run: Run
) -> Descendant:
    """`start` with the weights that the operators make, and the head, after they learnt on a task."""
    resized = resize_positions(state, small, small.with_(image_size=start.spec.image_size))
    growing = Growing(start, resized, small, operators, task, recipe, derive_seed(run.seed, "attributes"))
    loader = training_images(task, start.input_format, recipe, run)
    for _ in train(growing, loader, recipe, run, label=f"operators on {task.name}"):
        pass
    with torch.no_grad():
        made = {**growing.cpu().tensors(), **state_of(growing.model)}  # of the model itself only the head is left
    return start.with_state({name: made[name].clone() for name in growing.expected})
