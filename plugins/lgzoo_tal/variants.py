"""The hypernetworks that the papers publish, as plain numbers, and how many parameters they have. Cold.

GHN-3 (Knyazev et al., "Can We Scale Transformers to Predict Parameters of Diverse ImageNet Models?", 2023) comes in four
sizes with a convolutional decoder, LoGAH (Zhou et al., 2024) in four with a low-rank one; TAL is LoGAH's small one with a
task layer in each layer of its encoder.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from learngene_zoo.plugin import ViTSpec, WrongCall
from lgzoo_tal.grid import channel_grid, spatial_grid

Decoder = Literal["conv", "low_rank"]
TaskForm = Literal["residual", "plain"]
TaskPlace = Literal["layers", "graph"]
Form = Literal["published", "centred"]

# Rows of the encoder's tables.
NODE_TYPES, DEGREES, INPUT_DISTANCES, EDGES = 15, 101, 1001, 257


@dataclass(frozen=True, kw_only=True)
class HypernetSpec:
    """Everything that fixes a hypernetwork's tensors and its function. Raises `WrongCall` for numbers that describe none."""

    hidden: int  # width of the encoder
    layers: int  # of the encoder
    heads: int
    decoder: Decoder
    rank: int | None = None  # of the matrices that the low-rank decoder makes
    widest: int = 2048  # channels beyond which a tensor is made of copies (the papers' max_shape)
    chunk: int = 2048 * 16  # rows that the low-rank decoder can make of each factor (ck)
    classes: int = 1000
    spatial: int = 16  # largest kernel, in rows and columns, that is made and not interpolated
    task: int | None = None  # dimension of the task embedding; None: no task layer
    task_form: TaskForm = "residual"  # (1 + gamma) * f + beta, starting from f; or the paper's gamma * f + beta
    task_place: TaskPlace = (
        "layers"  # in every layer, after its first norm; or once, on the nodes before the first layer
    )

    form: Form = (
        "published"  # or centred.py: the same tensors, but what all nodes share is not moved by all of them at once
    )

    def __post_init__(self) -> None:
        for name in ("hidden", "layers", "heads", "widest", "chunk", "classes", "spatial"):
            if getattr(self, name) < 1:
                raise WrongCall(f"{name} is {getattr(self, name)}; a hypernetwork needs at least 1")
        if self.hidden % 4 or self.hidden % self.heads:
            raise WrongCall(
                f"a hypernetwork's width of {self.hidden} must be a multiple of 4 and of its {self.heads} heads"
            )
        if (self.rank is not None) != (self.decoder == "low_rank"):
            raise WrongCall(
                f"decoder {self.decoder!r} with rank {self.rank}; a rank belongs to the low-rank decoder alone"
            )
        if self.rank is not None and self.rank < 1:
            raise WrongCall(f"rank is {self.rank}; it must be at least 1")
        if self.task is not None and self.task < 1:
            raise WrongCall(f"the task embedding has {self.task} numbers; it needs at least 1, or be left out")

    def with_(self, **changes: Any) -> HypernetSpec:
        """This spec with other values."""
        return replace(self, **changes)


def _ghn3(hidden: int, layers: int, heads: int) -> HypernetSpec:
    return HypernetSpec(hidden=hidden, layers=layers, heads=heads, decoder="conv", widest=hidden)


def _logah(hidden: int, rank: int, layers: int, heads: int) -> HypernetSpec:
    return HypernetSpec(hidden=hidden, rank=rank, layers=layers, heads=heads, decoder="low_rank")


VARIANTS: dict[str, HypernetSpec] = {
    "ghn3-t": _ghn3(64, 3, 8),
    "ghn3-s": _ghn3(128, 5, 16),
    "ghn3-l": _ghn3(256, 12, 16),
    "ghn3-xl": _ghn3(384, 24, 16),
    "logah-tiny": _logah(64, 32, 3, 8),
    "logah-small": _logah(128, 90, 5, 16),
    "logah-base": _logah(256, 128, 5, 16),
    "logah-large": _logah(256, 256, 12, 16),
}


def params(spec: HypernetSpec) -> int:
    """All parameters of a hypernetwork."""
    return _encoder(spec) + _task(spec) + (_low_rank(spec) if spec.decoder == "low_rank" else _conv(spec))


def published_params(spec: HypernetSpec) -> int:
    """The parameters as the papers count them: with those of the released code that nothing ever reads.

    Beside a low-rank decoder lie two linear layers from one number to one; LoGAH's, unlike TAL's, has a third of (r, r).
    """
    if spec.rank is None:
        return params(spec)
    return params(spec) + 2 * _linear(1, 1) + (0 if spec.task else _linear(spec.rank, spec.rank))


def _linear(into: int, out: int, bias: bool = True) -> int:
    return into * out + (out if bias else 0)


def _encoder(spec: HypernetSpec) -> int:
    h = spec.hidden
    shapes = (len(channel_grid(spec.classes)) + 1 + len(spatial_grid(spec.spatial)) + 1) * (h // 4)
    tables = (NODE_TYPES + 2 * DEGREES + INPUT_DISTANCES + EDGES) * h
    edges = _linear(2 * h, h) + _linear(h, spec.heads)
    layer = 4 * h + _linear(h, 3 * h, bias=False) + _linear(h, h) + _linear(h, 4 * h) + _linear(4 * h, h)
    return shapes + tables + edges + spec.layers * layer + 2 * h


def _task(spec: HypernetSpec) -> int:
    if spec.task is None:
        return 0
    places = spec.layers if spec.task_place == "layers" else 1
    return places * 2 * _linear(spec.task, spec.hidden, bias=spec.task_form == "residual")


def _conv(spec: HypernetSpec) -> int:
    h, k = spec.hidden, spec.widest
    matrices = _linear(h, 4 * h * spec.spatial**2) + _linear(4 * h, 8 * h) + _linear(8 * h, k * k)
    vectors = _linear(h, 2 * h) + _linear(2 * h, 2 * k)
    return matrices + vectors + 2 * _linear(k, spec.classes)


def _low_rank(spec: HypernetSpec) -> int:
    h, r = spec.hidden, spec.rank or 0
    return _linear(h, 4 * h) + _linear(4 * h, 8 * h) + _linear(8 * h, 2 * r * r) + _linear(r, spec.chunk)


def reach(size: int, widest: int) -> int:
    """Channels that are decoded for a tensor of `size` channels: m(n, j) of the released code.

    Sizes are made fewer: a multiple of three becomes four thirds of itself, half of the widest or more all of it.
    """
    made = min(size, widest)
    if made % 3 == 0:
        made = made * 4 // 3
    return widest if made >= widest / 2 else made


def check_target(spec: HypernetSpec, target: ViTSpec) -> None:
    """Raises `WrongCall` for an image of one patch, and if the low-rank decoder's factors have too few rows for a tensor."""
    if target.patches == 1:
        raise WrongCall(
            f"an image of {target.image_size} pixels is a single patch, whose position no hypernetwork predicts; "
            f"choose an image size of at least {2 * target.patch_size}"
        )
    if spec.decoder != "low_rank":
        return
    side, wide = target.image_size // target.patch_size, min(target.width, spec.widest)
    rows = {
        f"patches of {target.patch_size} pixels at a width of {target.width}": wide * target.patch_size,
        f"{target.channels} channels in patches of {target.patch_size} pixels": target.channels * target.patch_size,
        f"{side} x {side} patches at a width of {target.width}": target.width * side,
        **{
            f"{what} of {size} numbers": reach(size, spec.widest) + min(size, spec.widest)
            for what, size in (
                ("a bias", target.width),
                ("a bias", 3 * target.width),
                ("a bias", target.hidden),
                ("a head's bias", target.classes),
            )
        },
    }
    found = next((what for what, needed in rows.items() if needed > spec.chunk), None)
    if found is not None:
        raise WrongCall(
            f"{found} would need {rows[found]} rows of the low-rank decoder's factors, which have {spec.chunk}; "
            "take a narrower model or other patches"
        )
