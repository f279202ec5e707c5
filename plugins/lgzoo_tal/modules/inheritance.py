"""The ancestry model's tensors that PITH projects, in the order of a predicted model's nodes.

Block i inherits from block min(i, L - 1) of the L of the ancestry model (the released code has this
rule, but its lookup by name serves i < L only). Biases, norms and the head are not inherited.

`normalise_tensors` brings the tensors of any ViT with a plain MLP into the shapes of a plain ViT: a
layer scale is multiplied into the layer before it, and registers have no positions. Of the
positions the released code takes the first rows, the class token's included, so that every patch
has the position of its predecessor. The form `published` does so too; `centred` takes the patches'.

The start `projections` is a narrower copy of the ancestry model, see narrowing.py (beyond the
paper). P0 T Q0 is this copy divided by a = 0.18 and by the factors of all predicted tensors, so
that the predicted tensors start near it. Its biases are added to the predicted ones, since norms
are merged into the layers that read them, and the class token's position is that of the copy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from learngene_zoo.plugin import (
    Ancestry,
    BadFile,
    Learngene,
    Part,
    Run,
    Spec,
    StateDict,
    WrongCall,
    get_shapes,
    require_pictures,
)
from lgzoo_tal.architectures import derive_plain_spec
from lgzoo_tal.hypernet_spec import ANCESTRY, HypernetSpec, Start
from lgzoo_tal.modules.embedding import open_recorded_ancestry
from lgzoo_tal.modules.forms import (
    CHANGES,
    POSITIONS,
    compute_writer_scale,
    interleave_rows,
    is_interleaved,
)
from lgzoo_tal.modules.graph import Shape
from lgzoo_tal.modules.narrowing import (
    READERS,
    WRITERS,
    build_projection,
    check_narrower,
    project_stream,
)
from lgzoo_tal.modules.tensors import TensorGroup, compute_scale, is_vector

STEM = ("patch_embed.proj.weight", "pos_embed")
DIRECTIONS = "directions"  # (D, D), a column for each direction
ALPHA_START = 1 / (1 + math.exp(1.5))


class StartParts(NamedTuple):
    """P0 T (L, o, n, ...), T Q0 (L, m, i, ...) and P0 T Q0 (L, o, i, ...)."""

    PT: Tensor
    TQ: Tensor
    PTQ: Tensor


@dataclass(frozen=True)
class Source:
    """The ancestry model's tensors (L, m, n, p, q) for a group, and the fixed parts of a start."""

    tensors: Tensor
    start: StartParts | None = None


def list_inherited_names(spec: Spec, start: Start) -> list[str]:
    """Return the ancestry model's tensors that a hypernetwork reads.

    Args:
        spec: the plain ViT with the ancestry model's shape.
        start: that of P and Q; `projections` also reads vectors.
    """
    matrices = tuple(f"{layer}.weight" for layer in (*READERS, *WRITERS))
    return [
        name
        for name in get_shapes(spec)
        if not name.startswith("head.")
        and (start == "projections" or name in STEM or name.endswith(matrices))
    ]


def collect_inherited(
    ancestry: Ancestry, start: Start, directions: Part | None, *, store: bool = True
) -> StateDict:
    """Return the tensors that models inherit, by their names in a learngene.

    Args:
        ancestry: the ancestry model.
        start: the initial P and Q.
        directions: the principal directions, if P and Q start there.
        store: whether the ancestry model's tensors are among them.

    Raises:
        WrongCall: for an ancestry model without these tensors.
    """
    tensors: dict[str, Tensor] = {}
    if store:
        plain = derive_plain_spec(ancestry.spec)
        tensors |= normalise_tensors(ancestry.state, ancestry.spec, plain, start)
    if directions is not None:
        tensors |= directions.state
    return {f"{ANCESTRY}{name}": tensor for name, tensor in tensors.items()}


def build_inheritance(hypernet: HypernetSpec, ancestry: Spec, tensors: StateDict) -> Inheritance:
    """Build the source of P W_a Q from tensors of `collect_inherited`.

    Args:
        hypernet: the spec of the hypernetwork.
        ancestry: the shape of the ancestry model.
        tensors: among others those of `collect_inherited`.

    Raises:
        BadFile: for missing tensors.
    """
    parts = {
        name.removeprefix(ANCESTRY): tensors[name] for name in tensors if name.startswith(ANCESTRY)
    }
    directions = parts.pop(DIRECTIONS, None)
    return Inheritance(hypernet, derive_plain_spec(ancestry), parts, directions)


def read_inheritance(learngene: Learngene, hypernet: HypernetSpec, run: Run) -> Inheritance:
    """Return the ancestry model's tensors for the hypernetwork of a learngene.

    Args:
        learngene: with the ancestry model's tensors, or only its name.
        hypernet: the spec of the hypernetwork.
        run: may locate the ancestry model.

    Raises:
        BadFile: for missing tensors.
        WrongCall: if the ancestry model is neither stored nor recorded, or cannot be opened.
    """
    state = learngene.state
    tensors = {name: state[name] for name in state if name.startswith(ANCESTRY)}
    if f"{ANCESTRY}pos_embed" not in tensors:
        ancestry = open_recorded_ancestry(learngene.config, run, "inherit from")
        tensors |= collect_inherited(ancestry, hypernet.start, None)
    return build_inheritance(hypernet, learngene.config.spec, tensors)


def normalise_tensors(state: StateDict, spec: Spec, plain: Spec, start: Start) -> StateDict:
    """Return the tensors of an ancestry model that are inherited, in the shapes of a plain ViT.

    Args:
        state: the ancestry model's.
        spec: its shape.
        plain: the plain ViT of its shape.
        start: that of P and Q.

    Raises:
        WrongCall: for a model that lacks a tensor, or has it in another shape.
    """
    tensors: dict[str, Tensor] = {}
    for name in list_inherited_names(plain, start):
        if name not in state:
            raise WrongCall(f"the ancestry model lacks {name}; pith inherits from plain ViTs")
        tensor = state[name].float()
        if name == "pos_embed":
            tensor = _complete_positions(tensor, spec)
        for writer, scale in zip(WRITERS, ("ls1.gamma", "ls2.gamma")):
            gamma = name.replace(f"{writer}.weight", scale).replace(f"{writer}.bias", scale)
            if gamma != name and gamma in state:
                factor = state[gamma].float()
                tensor = tensor * (factor[:, None] if tensor.dim() == 2 else factor)
        if tuple(tensor.shape) != get_shapes(plain)[name]:
            raise WrongCall(
                f"the ancestry model's {name} has shape {tuple(tensor.shape)}; pith inherits from "
                f"ViTs in which it is {get_shapes(plain)[name]}"
            )
        tensors[name] = tensor.contiguous()
    return tensors


def _complete_positions(positions: Tensor, spec: Spec) -> Tensor:
    """Return the positions of a class token, zeros if there is none, and of the patches."""
    count = require_pictures(spec).patches
    patches, has_first = positions[:, -count:], positions.shape[1] > count
    first = positions[:, :1] if has_first else torch.zeros_like(positions[:, :1])
    return torch.cat((first, patches), dim=1)


def _is_reader(name: str) -> bool:
    """Return whether a tensor of the ancestry model reads its stream; positions count as one."""
    return name.endswith(("pos_embed", *(f"{layer}.weight" for layer in READERS)))


class Inheritance:
    """The ancestry model's tensors for models of any size. Neither trained nor saved.

    Args:
        hypernet: the spec of the hypernetwork.
        spec: the plain ViT with the ancestry model's shape.
        tensors: those of `list_inherited_names`.
        directions: (D, D) principal directions, for the start `projections`.

    Raises:
        BadFile: for a missing tensor and for one of another shape.
    """

    def __init__(
        self,
        hypernet: HypernetSpec,
        spec: Spec,
        tensors: StateDict,
        directions: Tensor | None = None,
    ) -> None:
        for name in list_inherited_names(spec, hypernet.start):
            if name not in tensors or tuple(tensors[name].shape) != get_shapes(spec)[name]:
                raise BadFile(f"the learngene's {name} of its ancestry model is missing or damaged")
        if hypernet.start == "projections" and (
            directions is None or tuple(directions.shape) != (spec.width, spec.width)
        ):
            raise BadFile("the learngene's directions are missing or damaged; extract it again")
        self.hypernet, self.spec, self.directions = hypernet, spec, directions
        self._shapes = get_shapes(spec)
        self.tensors = {name: tensors[name].float() for name in tensors}
        self._copies: dict[tuple[int, int], tuple[StateDict, StateDict, StateDict]] = {}

    def __deepcopy__(self, memo: object) -> Inheritance:
        return self  # the moving average of an objective has the same ancestry model

    def find_source(self, group: TensorGroup, spec: Spec, device: torch.device) -> Source | None:
        """Return the source of a group of tensors; None if it inherits nothing.

        Args:
            group: the tensors.
            spec: of the predicted model.
            device: of the result.
        """
        if is_vector(group) or group.role in ("class weight", "class bias"):
            return None
        self._move(device)
        names = [self._find_name(name) for name in group.names]
        stored = [name for name in names if name in self.tensors]
        if not stored:
            return None  # the sink
        tensors = self._stack(self.tensors, names, group)
        if self.hypernet.start == "noise":
            return Source(tensors)
        factor = self._compute_factor(group, spec)
        outer, inner, narrow = self._get_copies(spec)
        PT, TQ = (inner, outer) if _is_reader(stored[0]) else (outer, inner)
        start = StartParts(
            self._stack(PT, names, group) / factor**0.5,
            self._stack(TQ, names, group) / factor**0.5,
            self._stack(narrow, names, group) / factor,
        )
        return Source(tensors, start)

    def find_origin(self, name: str) -> tuple[Shape | None, bool]:
        """Return the shape of the tensor that a tensor inherits, and whether it is a reader's.

        Tensors of a group have both in common: with `mlp_ratio` 3 the first layer of the MLP has
        the shape of queries, keys and values, also of an ancestry model with another ratio.
        """
        source = self._find_name(name)
        return self._shapes.get(source), _is_reader(source)

    def _move(self, device: torch.device) -> None:
        """Move all tensors to a device, once."""
        if self.tensors["pos_embed"].device != device:
            self.tensors = {name: tensor.to(device) for name, tensor in self.tensors.items()}
            self._copies.clear()

    def add_biases(self, vectors: Tensor, group: TensorGroup, spec: Spec) -> Tensor:
        """Return vectors (L, n), with the start `projections` plus the projected biases.

        Args:
            vectors: the predicted vectors of a group.
            group: the tensors.
            spec: of the predicted model.
        """
        if self.hypernet.start == "noise" or group.role != "bias":
            return vectors
        self._move(vectors.device)
        _, _, narrow = self._get_copies(spec)
        rows = []
        for name in group.names:
            bias = narrow.get(self._find_name(name), vectors.new_zeros(group.shape))
            rows.append(self._order(name, bias))
        return vectors + torch.stack(rows)[:, : vectors.shape[1]].to(vectors)

    def find_class_position(self, spec: Spec) -> Tensor | None:
        """Return (d,) the class token and its position with the start `projections`."""
        if self.hypernet.start == "noise":
            return None
        _, _, narrow = self._get_copies(spec)
        return narrow["pos_embed"][0, 0] + narrow["cls_token"][0, 0]

    def _find_name(self, name: str) -> str:
        parts = name.split(".")
        if parts[0] == "blocks":
            parts[1] = str(min(int(parts[1]), self.spec.layers - 1))
        return ".".join(parts)

    def _order(self, name: str, tensor: Tensor) -> Tensor:
        is_changed = is_interleaved(name, self.hypernet.form)
        return interleave_rows(tensor) if is_changed else tensor

    def _stack(self, state: StateDict, names: Sequence[str], group: TensorGroup) -> Tensor:
        """Return (L, m, n, p, q); a tensor that the ancestry model lacks is 0."""
        stored = {name: self._order(name, state[name]) for name in names if name in state}
        other = torch.zeros_like(next(iter(stored.values())))
        stacked = torch.stack([stored.get(name, other) for name in names])
        if group.role == "positions":
            return self._shape_positions(stacked[0], group)
        return stacked if stacked.dim() == 5 else stacked[..., None, None]

    def _shape_positions(self, rows: Tensor, group: TensorGroup) -> Tensor:
        """Return (1, 1, n, p, q), resampled to the patches of the predicted model."""
        side = math.isqrt(rows.shape[1] - 1)
        published = "scales" not in CHANGES[self.hypernet.form]
        grid = rows[:, : side * side] if published else rows[:, 1:]
        plane = grid.mT.unflatten(2, (side, side))
        if plane.shape[2:] != group.shape[2:]:
            plane = functional.interpolate(
                plane, group.shape[2:], mode="bicubic", antialias=True, align_corners=False
            )
        return plane[None]

    def _compute_factor(self, group: TensorGroup, spec: Spec) -> float:
        """Return the factor from P T Q to the tensor at the start."""
        if group.role == "positions":
            return ALPHA_START * (POSITIONS if "scales" in CHANGES[self.hypernet.form] else 1)
        factor = ALPHA_START * compute_scale(group.shape)
        if self.hypernet.writers == "by_depth":
            factor *= compute_writer_scale(group.names[0], spec.layers)
        return factor

    def _get_copies(self, spec: Spec) -> tuple[StateDict, StateDict, StateDict]:
        """Return the ancestry model with a narrower stream, with fewer heads and neurons, and both.

        Raises `WrongCall` for a size that the start `projections` cannot give.
        """
        key = (spec.width, spec.hidden)
        if key not in self._copies:
            assert self.directions is not None
            check_narrower(spec, self.spec)
            P = build_projection(self.directions, spec.width).to(self.tensors["pos_embed"])
            self._copies[key] = project_stream(self.tensors, self.spec, P, spec.heads, spec.hidden)
        return self._copies[key]
