"""The tensors of `lets.py`: wider ones, deeper ones, and an auxiliary model computed in every pass.

Below `blocks.grow.` of the learngene: `stream` and `head` (e, d), of each source block m `m.q`,
`m.k`, `m.v` (e, d) and `m.hidden` (r e, r d), r the MLPs' ratio, e = d' - d; and `scalars.i` (32,),
of each kind of tensor, of its weight and bias, (g_0, g_1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.utils import parametrize

from learngene_zoo.plugin import (
    Descendant,
    Json,
    Run,
    Spec,
    StateDict,
    Task,
    build_model,
    derive_seed,
    initialise,
)
from lgzoo_baselines.blocks.block_choice import choose_evenly
from lgzoo_baselines.modules.factored import build_module
from lgzoo_baselines.modules.mixed_blocks import ComputedBlocks, select_below
from lgzoo_baselines.trained.with_teacher import DistillationSettings, train_with_teacher

if TYPE_CHECKING:
    from learngene_zoo.plugin import TimmModel

Tensors = Mapping[str, torch.Tensor]
Block = dict[str, dict[str, torch.Tensor]]  # by kind and "weight" or "bias"
# Of each layer the first of its two source blocks, and its set of scalars.
Plan = tuple[tuple[int, int], ...]
# The authors' only example, 12 layers of 16: auxiliary layers, and their sets of scalars.
TWELVE = (
    (0, 0),
    (1, 1),
    (4, 2),
    (5, 2),
    (6, 3),
    (7, 3),
    (8, 4),
    (9, 4),
    (10, 5),
    (11, 5),
    (12, 6),
    (13, 7),
)
KINDS = ("norm1", "q", "k", "v", "proj", "norm2", "fc1", "fc2")
# The matrices of the axes that each kind reads and writes, and its module in a block.
AXES_OF_KINDS = {
    "norm1": (None, "stream", "norm1"),
    "q": ("stream", "q", "attn.qkv"),
    "k": ("stream", "k", "attn.qkv"),
    "v": ("stream", "v", "attn.qkv"),
    "proj": ("v", "stream", "attn.proj"),
    "norm2": (None, "stream", "norm2"),
    "fc1": ("stream", "hidden", "mlp.fc1"),
    "fc2": ("hidden", "stream", "mlp.fc2"),
}


def find_source_block(layer: int, sources: int, layers: int) -> int:
    """Return the first source block of a layer: m = 2 floor(floor(t S / T) / 2).

    Args:
        layer: t, of the auxiliary model.
        sources: S, layers of the source.
        layers: T, layers of the auxiliary model.
    """
    return layer * sources // layers // 2 * 2


def plan_layers(sources: int, auxiliary_layers: int, layers: int) -> Plan:
    """Return source block and set of scalars for each layer of a descendant.

    Args:
        sources: layers of the source.
        auxiliary_layers: layers of the auxiliary model.
        layers: of the descendant; as many as the auxiliary model's for the auxiliary model.
    """
    chosen: Plan = tuple((t, t // 2) for t in choose_evenly(auxiliary_layers, layers))
    if (auxiliary_layers, layers) == (16, 12):
        chosen = TWELVE
    return tuple(
        (find_source_block(t, sources, auxiliary_layers), scalars) for t, scalars in chosen
    )


def widen_outputs(tensor: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """Return [W ; R W], also of biases and of convolutions."""
    added = matrix @ tensor.flatten(1) if tensor.dim() > 1 else matrix @ tensor
    return torch.cat([tensor, added.reshape(-1, *tensor.shape[1:])])


def widen_inputs(tensor: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """Return [W , W R']."""
    return torch.cat([tensor, tensor @ matrix.T], dim=1)


def list_growth_shapes(source: Spec, auxiliary: Spec) -> dict[str, tuple[int, ...]]:
    """Return the shapes of matrices and scalars, by their names in the learngene."""
    added, width = auxiliary.width - source.width, source.width
    hidden = int(width * auxiliary.mlp_ratio)
    added_hidden = int(auxiliary.width * auxiliary.mlp_ratio) - hidden
    shapes: dict[str, tuple[int, ...]] = {"stream": (added, width), "head": (added, width)}
    for m in range(source.layers):
        shapes |= {f"{m}.{kind}": (added, width) for kind in "qkv"}
        shapes[f"{m}.hidden"] = (added_hidden, hidden)
    shapes |= {f"scalars.{i}": (4 * len(KINDS),) for i in range((auxiliary.layers + 1) // 2)}
    return {f"blocks.grow.{name}": shape for name, shape in shapes.items()}


def widen_block(block: Tensors, matrices: Tensors) -> Block:
    """Return a source block with its matrices applied."""
    wide = {}
    for kind, (read_axis, written_axis, module) in AXES_OF_KINDS.items():
        tensors = select_below(block, module)
        if kind in "qkv":
            tensors = {name: tensor.chunk(3)["qkv".index(kind)] for name, tensor in tensors.items()}
        if read_axis is not None:
            tensors["weight"] = widen_inputs(tensors["weight"], matrices[read_axis])
        wide[kind] = {
            name: widen_outputs(tensor, matrices[written_axis]) for name, tensor in tensors.items()
        }
    return wide


def compute_blocks(stored: Tensors, layers: Plan, added: int) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the blocks of a model.

    Args:
        stored: tensors of the learngene, under their names below `blocks.`.
        layers: source block and set of scalars of each layer.
        added: channels of the model's width beyond the source's.
    """
    grow = select_below(stored, "grow")
    ratio = len(grow["0.hidden"]) // max(len(grow["stream"]), 1)
    wide = {}
    for m in {m + k for m, _ in layers for k in (0, 1)}:
        matrices = {**select_below(grow, str(m)), "stream": grow["stream"]}
        rows = {
            name: matrix[: added * ratio] if name == "hidden" else matrix[:added]
            for name, matrix in matrices.items()
        }
        wide[m] = widen_block(select_below(stored, str(m)), rows)
    for m, i in layers:
        scalars = grow[f"scalars.{i}"].reshape(len(KINDS), 2, 2)
        yield _add_weighted(wide[m], wide[m + 1], scalars)


def _add_weighted(first: Block, second: Block, scalars: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return g_0 theta_m + g_1 theta_(m + 1), under the names within a block."""
    parts: dict[str, list[torch.Tensor]] = {}
    for kind, of_kind in zip(KINDS, scalars):
        for name, (g0, g1) in zip(("weight", "bias"), of_kind):
            weighted = g0 * first[kind][name] + g1 * second[kind][name]
            parts.setdefault(f"{AXES_OF_KINDS[kind][2]}.{name}", []).append(weighted)
    # Queries, keys and values are one tensor.
    return {
        name: torch.cat(tensors) if len(tensors) > 1 else tensors[0]
        for name, tensors in parts.items()
    }


def grow_source(state: StateDict, layers: Plan, added: int, width: int) -> StateDict:
    """Return the tensors of a wider and deeper model.

    Args:
        state: the learngene's tensors.
        layers: source block and set of scalars of each layer.
        added: channels of the model's width beyond the source's.
        width: of the model.
    """
    stored = select_below(state, "blocks")
    rows = {name: stored[f"grow.{name}"][:added] for name in ("stream", "head")}
    grown: dict[str, torch.Tensor] = {
        f"blocks.{i}.{name}": tensor
        for i, block in enumerate(compute_blocks(stored, layers, added))
        for name, tensor in block.items()
    }
    for name, tensor in state.items():
        if name == "pos_embed":
            grown[name] = tensor[..., :width].contiguous()
        elif name == "head.weight":
            grown[name] = widen_inputs(tensor, rows["head"])
        elif not name.startswith("blocks."):
            is_head_bias = name == "head.bias"
            grown[name] = tensor if is_head_bias else widen_outputs(tensor, rows["stream"])
    return grown


class WidenedWeight(nn.Module):
    """Compute the weight that a model uses from the narrow weight in training.

    A parametrization of `torch.nn.utils.parametrize`; `grow` holds the matrix of this name.
    """

    def __init__(self, grow: nn.Module, name: str) -> None:
        super().__init__()
        self._grow = (grow,)  # a tuple: the matrix is a parameter of the blocks alone
        self.name = name

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the wide tensor."""
        matrix = self._grow[0].get_parameter(self.name)
        return (widen_inputs if self.name == "head" else widen_outputs)(tensor, matrix)


def draw_growth(start: Descendant, auxiliary: Spec, seed: int) -> StateDict:
    """Return the source with random matrices, and the auxiliary model's positions.

    Two layers share their scalars: layers 4 i and 4 i + 1 of the auxiliary model start as the first
    of their two source blocks, layers 4 i + 2 and 4 i + 3 as the second.

    Args:
        start: the source.
        auxiliary: the shape of the auxiliary model.
        seed: of the draws.
    """
    state = dict(start.state)
    for name, shape in list_growth_shapes(start.spec, auxiliary).items():
        if ".scalars." in name:
            is_first = int(name.rpartition(".")[2]) % 2 == 0
            pair = [1.0, 0.0] if is_first else [0.0, 1.0]
            state[name] = torch.tensor(pair * (2 * len(KINDS)))
        else:
            generator = torch.Generator().manual_seed(derive_seed(seed, name))
            state[name] = torch.randn(*shape, generator=generator) * shape[1] ** -0.5
    positions = initialise(auxiliary, seed, "fan_in", names=["pos_embed"])
    state["pos_embed"] = positions["pos_embed"]
    return state


def train_source(
    settings: DistillationSettings,
    layers: int,
    heads: int,
    start: Descendant,
    teacher: Descendant | TimmModel,
    task: Task,
    run: Run,
) -> tuple[StateDict, Json]:
    """Train source, matrices and scalars in an auxiliary model; return them, and its metrics.

    Args:
        settings: the recipe, and the shares of the losses.
        layers: of the auxiliary model.
        heads: of the auxiliary model.
        start: the source.
        teacher: a classifier of the task.
        task: whose images they see.
        run: the part of the run.
    """
    width = heads * start.spec.head_width
    auxiliary = start.spec.with_(layers=layers, width=width, heads=heads)
    model = build_auxiliary(draw_growth(start, auxiliary, run.seed), start.spec, auxiliary)
    label = f"auxiliary model of {layers} layers on {task.name}"
    state, metrics = train_with_teacher(
        settings, model, auxiliary, start.input_format, teacher, task, run, label
    )
    # The narrow weights of parametrized modules, under the modules' names.
    renamed = {
        name.replace("parametrizations.", "").replace(".original", ""): tensor
        for name, tensor in state.items()
    }
    return renamed, metrics


def build_auxiliary(stored: StateDict, source: Spec, auxiliary: Spec) -> nn.Module:
    """Build a model of shape `auxiliary` that is computed from `stored` in every pass.

    Args:
        stored: tensors of a learngene; copies of them become parameters.
        source: the shape of the source.
        auxiliary: the shape of the model.
    """
    layers = plan_layers(source.layers, auxiliary.layers, auxiliary.layers)
    added = auxiliary.width - source.width
    model = build_model(auxiliary, grow_source(stored, layers, added, auxiliary.width))
    parameters = build_module(select_below(stored, "blocks"))
    model.blocks = ComputedBlocks(
        model.blocks[0], parameters, lambda tensors: compute_blocks(tensors, layers, added)
    )
    grow = model.blocks.get_submodule("grow")
    for name, tensor in stored.items():
        if name.startswith("blocks.") or name in ("pos_embed", "head.bias"):
            continue
        path, _, leaf = name.rpartition(".")
        module = model.get_submodule(path)
        setattr(module, leaf, nn.Parameter(tensor.clone()))
        widened = WidenedWeight(grow, "head" if path == "head" else "stream")
        parametrize.register_parametrization(module, leaf, widened, unsafe=True)
    return model
