"""What `lets.py` does with tensors: wider ones, deeper ones, and an auxiliary model whose weights are made so in every pass.

Below `blocks.grow.` of the learngene: `stream` and `head` (e, d), of each source block m `m.q`, `m.k`, `m.v` (e, d) and `m.hidden`
(r e, r d), r the MLPs' ratio, e = d' - d; and `scalars.i` (32,), of each kind of tensor, of its weight and bias, (g_0, g_1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.utils import parametrize

from learngene_zoo.plugin import Descendant, Json, Run, Spec, StateDict, Task, derive_seed, initial, model_of
from lgzoo_baselines.block_choice import even
from lgzoo_baselines.distillation import Distilling, taught
from lgzoo_baselines.factored_blocks import tree
from lgzoo_baselines.mixed_blocks import MadeBlocks, below

if TYPE_CHECKING:
    from learngene_zoo.plugin import TimmModel

Tensors = Mapping[str, torch.Tensor]
Plan = tuple[tuple[int, int], ...]  # of each layer the first of its two source blocks, and its set of scalars
# The one choice that the authors give, 12 layers of 16: auxiliary layers, and the sets of scalars that they take.
TWELVE = ((0, 0), (1, 1), (4, 2), (5, 2), (6, 3), (7, 3), (8, 4), (9, 4), (10, 5), (11, 5), (12, 6), (13, 7))
KINDS = ("norm1", "q", "k", "v", "proj", "norm2", "fc1", "fc2")
# What each kind reads and writes, and where it stands in a block.
PLACES = {
    "norm1": (None, "stream", "norm1"),
    "q": ("stream", "q", "attn.qkv"),
    "k": ("stream", "k", "attn.qkv"),
    "v": ("stream", "v", "attn.qkv"),
    "proj": ("v", "stream", "attn.proj"),
    "norm2": (None, "stream", "norm2"),
    "fc1": ("stream", "hidden", "mlp.fc1"),
    "fc2": ("hidden", "stream", "mlp.fc2"),
}


def first_of(layer: int, sources: int, layers: int) -> int:
    """The first source block of a layer of the auxiliary model."""
    return layer * sources // layers // 2 * 2


def plan(sources: int, whole: int, layers: int) -> Plan:
    """Where the layers of a descendant are from: of as many as the auxiliary model's, all of them."""
    chosen = TWELVE if (whole, layers) == (16, 12) else tuple((t, t // 2) for t in even(whole, layers))
    return tuple((first_of(t, sources, whole), scalars) for t, scalars in chosen)


def out(tensor: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """[W ; R W], also of biases and of convolutions."""
    new = matrix @ tensor.flatten(1) if tensor.dim() > 1 else matrix @ tensor
    return torch.cat([tensor, new.reshape(-1, *tensor.shape[1:])])


def into(tensor: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """[W , W R']."""
    return torch.cat([tensor, tensor @ matrix.T], dim=1)


def grow_shapes(source: Spec, whole: Spec) -> dict[str, tuple[int, ...]]:
    """Matrices and scalars, by their names in the learngene."""
    more, width = whole.width - source.width, source.width
    hidden = int(whole.width * whole.mlp_ratio), int(width * whole.mlp_ratio)
    shapes: dict[str, tuple[int, ...]] = {"stream": (more, width), "head": (more, width)}
    for m in range(source.layers):
        shapes |= {f"{m}.{kind}": (more, width) for kind in "qkv"}
        shapes[f"{m}.hidden"] = (hidden[0] - hidden[1], hidden[1])
    shapes |= {f"scalars.{i}": (4 * len(KINDS),) for i in range((whole.layers + 1) // 2)}
    return {f"blocks.grow.{name}": shape for name, shape in shapes.items()}


def wider(block: Tensors, matrices: Tensors) -> dict[str, dict[str, torch.Tensor]]:
    """A source block with its matrices applied, by kind and "weight" or "bias"."""
    made = {}
    for kind, (reads, writes, place) in PLACES.items():
        tensors = below(block, place)
        if kind in "qkv":
            tensors = {name: tensor.chunk(3)["qkv".index(kind)] for name, tensor in tensors.items()}
        if reads is not None:
            tensors["weight"] = into(tensors["weight"], matrices[reads])
        made[kind] = {name: out(tensor, matrices[writes]) for name, tensor in tensors.items()}
    return made


def made_blocks(stored: Tensors, layers: Plan, more: int) -> Iterator[dict[str, torch.Tensor]]:
    """The blocks of a model, `more` channels wider than the source, from what is stored below `blocks.`."""
    grow = below(stored, "grow")
    ratio = len(grow["0.hidden"]) // max(len(grow["stream"]), 1)
    wide = {}
    for m in {m + k for m, _ in layers for k in (0, 1)}:
        own = {**below(grow, str(m)), "stream": grow["stream"]}
        rows = {name: matrix[: more * ratio] if name == "hidden" else matrix[:more] for name, matrix in own.items()}
        wide[m] = wider(below(stored, str(m)), rows)
    for m, i in layers:
        yield _deeper(wide[m], wide[m + 1], grow[f"scalars.{i}"].reshape(len(KINDS), 2, 2))


def _deeper(
    first: dict[str, dict[str, torch.Tensor]], second: dict[str, dict[str, torch.Tensor]], scalars: torch.Tensor
) -> dict[str, torch.Tensor]:
    """g_0 theta_m + g_1 theta_(m + 1), under the names within a block."""
    found: dict[str, list[torch.Tensor]] = {}
    for kind, of_kind in zip(KINDS, scalars):
        for name, (g0, g1) in zip(("weight", "bias"), of_kind):
            mixed = g0 * first[kind][name] + g1 * second[kind][name]
            found.setdefault(f"{PLACES[kind][2]}.{name}", []).append(mixed)
    return {name: torch.cat(parts) if len(parts) > 1 else parts[0] for name, parts in found.items()}


def sized(state: StateDict, layers: Plan, more: int, width: int) -> StateDict:
    """A model `more` channels wider than the source, `width` in all, from a learngene's tensors."""
    stored = below(state, "blocks")
    rows = {name: stored[f"grow.{name}"][:more] for name in ("stream", "head")}
    made: dict[str, torch.Tensor] = {
        f"blocks.{i}.{name}": one
        for i, block in enumerate(made_blocks(stored, layers, more))
        for name, one in block.items()
    }
    for name, tensor in state.items():
        if name == "pos_embed":
            made[name] = tensor[..., :width].contiguous()
        elif name == "head.weight":
            made[name] = into(tensor, rows["head"])
        elif not name.startswith("blocks."):
            made[name] = tensor if name == "head.bias" else out(tensor, rows["stream"])
    return made


class Widened(nn.Module):
    """A parametrization: the weight that a model uses, from the narrow one that is trained. `grow` holds the matrix of this name."""

    def __init__(self, grow: nn.Module, name: str) -> None:
        super().__init__()
        self._grow, self.name = (grow,), name  # a tuple: the matrix is a parameter of the blocks alone

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        """The wide tensor."""
        matrix = self._grow[0].get_parameter(self.name)
        return into(tensor, matrix) if self.name == "head" else out(tensor, matrix)


def drawn(start: Descendant, whole: Spec, seed: int) -> StateDict:
    """The source, and its matrices at random; layers 2 i and 2 i + 1 of the auxiliary model start as their first and second block."""
    made = dict(start.state)
    for name, shape in grow_shapes(start.spec, whole).items():
        if ".scalars." in name:
            pair = [1.0, 0.0] if int(name.rpartition(".")[2]) % 2 == 0 else [0.0, 1.0]
            made[name] = torch.tensor(pair * (2 * len(KINDS)))
        else:
            generator = torch.Generator().manual_seed(derive_seed(seed, name))
            made[name] = torch.randn(*shape, generator=generator) * shape[1] ** -0.5
    made["pos_embed"] = initial(whole, seed, "fan_in", names=["pos_embed"])["pos_embed"]
    return made


def grown(
    settings: Distilling,
    layers: int,
    heads: int,
    start: Descendant,
    teacher: Descendant | TimmModel,
    task: Task,
    run: Run,
) -> tuple[StateDict, Json]:
    """Source, matrices and scalars after the auxiliary model's training, and its metrics."""
    whole = start.spec.with_(layers=layers, width=heads * start.spec.head_width, heads=heads)
    model = auxiliary(drawn(start, whole, run.seed), start.spec, whole)
    label = f"auxiliary model of {layers} layers on {task.name}"
    state, metrics = taught(settings, model, whole, start.input_format, teacher, task, run, label)
    return {
        name.replace("parametrizations.", "").replace(".original", ""): tensor for name, tensor in state.items()
    }, metrics


def auxiliary(stored: StateDict, source: Spec, whole: Spec) -> nn.Module:
    """A model of shape `whole` that is made of what is stored in every pass."""
    layers, more = plan(source.layers, whole.layers, whole.layers), whole.width - source.width
    model = model_of(whole, sized(stored, layers, more, whole.width))
    own = tree(below(stored, "blocks"))
    model.blocks = MadeBlocks(model.blocks[0], own, lambda tensors: made_blocks(tensors, layers, more))
    grow = model.blocks.get_submodule("grow")
    for name, tensor in stored.items():
        if name.startswith("blocks.") or name in ("pos_embed", "head.bias"):
            continue
        path, _, leaf = name.rpartition(".")
        module = model.get_submodule(path)
        setattr(module, leaf, nn.Parameter(tensor.clone()))
        parametrize.register_parametrization(
            module, leaf, Widened(grow, "head" if path == "head" else "stream"), unsafe=True
        )
    return model
