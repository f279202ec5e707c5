"""Learngenes that store a trained model of every size: their sizes, names and costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Literal

from learngene_zoo.plugin import (
    LIMITS,
    OMIT_DEFAULT,
    BadFile,
    Bounds,
    Learngene,
    LearngeneConfig,
    Part,
    Recipe,
    Target,
    Work,
    WrongCall,
    parse_details,
)

if TYPE_CHECKING:
    from learngene_zoo.plugin import Json, Spec, StateDict

MIN_DEPTH, MAX_DEPTH = 1, LIMITS["layers"]

# Settings of this method and of `distillation`.
DEPTHS = (3, 6, 9, 12)

Depths = Annotated[tuple[int, ...], "layers of the models", Bounds(least=MIN_DEPTH, most=MAX_DEPTH)]

Widths = Annotated[
    tuple[int, ...],
    "widths of the models, multiples of the ancestry's head width (default: the ancestry's width)",
    Bounds(least=1),
]

Init = Annotated[
    Literal["timm", "fan_in"], "initialisation: timm's, or standard deviation 1/sqrt(fan_in)"
]


@dataclass(frozen=True, kw_only=True)
class PretrainFinetuneDetails:
    """Record the sizes that a learngene of stored models has."""

    depths: tuple[int, ...]  # layers of the stored models, ascending
    # With each of which every depth is stored, ascending; (): the learngene's width alone.
    widths: tuple[int, ...] = field(default=(), metadata=OMIT_DEFAULT)


def check_sizes(depths: Sequence[int], widths: Sequence[int]) -> None:
    """Raise `WrongCall` for no depth, and for a depth or a width that is named twice."""
    if not depths or len(set(depths)) < len(depths):
        raise WrongCall(f"depths is {list(depths)}; name at least one, and each once")
    if len(set(widths)) < len(widths):
        raise WrongCall(f"widths is {list(widths)}; name each once")


def list_specs(depths: Sequence[int], widths: Sequence[int], ancestry: Spec) -> list[Spec]:
    """Return the shapes of the models, ascending.

    Args:
        depths: the numbers of layers.
        widths: each of which every depth has; if empty, the ancestry model's.
        ancestry: the shape from which the models differ in depth, width and heads.

    Raises:
        WrongCall: for a width that is not a multiple of the ancestry model's head width.
    """
    return [
        Target(layers=layers, width=width).whole_heads(ancestry).apply(ancestry)
        for layers in sorted(depths)
        for width in sorted(widths) or [ancestry.width]
    ]


def outline_models(depths: Sequence[int], widths: Sequence[int], ancestry: Spec) -> LearngeneConfig:
    """Return the config of stored models: the largest one's shape, and all depths and widths."""
    details = PretrainFinetuneDetails(depths=tuple(sorted(depths)), widths=tuple(sorted(widths)))
    spec = list_specs(depths, widths, ancestry)[-1]
    return LearngeneConfig(spec=spec).with_details(details)


def estimate_work(
    specs: Sequence[Spec],
    ancestry: Spec,
    recipe: Recipe,
    images: int,
    *,
    has_teacher: bool = False,
) -> list[Work]:
    """Return the cost of training each model, in layers of the ancestry model's width.

    Args:
        specs: the shapes of the models.
        ancestry: the shape of the ancestry model.
        recipe: of each training.
        images: training images of the task.
        has_teacher: whether the ancestry model is the teacher in every training.
    """
    num_images = min(recipe.images or images, images) * recipe.epochs
    frozen = ancestry.layers if has_teacher else 0
    return [
        Work(images=num_images, trained=spec.layers * spec.width / ancestry.width, frozen=frozen)
        for spec in specs
    ]


def name_size(spec: Spec, largest: Spec) -> str:
    """Return the prefix of a model's tensors, which is also the name of its part of a run."""
    return f"layers-{spec.layers}" + ("" if spec.width == largest.width else f"-width-{spec.width}")


def collect_models(
    config: LearngeneConfig, trained: Mapping[str, Part], metrics: Mapping[str, Json]
) -> Learngene:
    """Return the learngene that holds the trained models.

    Args:
        config: as `outline_models` returns it.
        trained: the models by the names of their sizes.
        metrics: joined by the record of each training.
    """
    state: StateDict = {
        f"{size}/{name}": tensor
        for size, part in trained.items()
        for name, tensor in part.state.items()
    }
    records = {size: part.record for size, part in trained.items()}
    return Learngene(config=replace(config, metrics={**metrics, **records}), state=state)


def find_stored_spec(config: LearngeneConfig, spec: Spec) -> Spec:
    """Return the shape of the stored model with the depth, width and heads of `spec`.

    Raises `WrongCall` if there is no such model.
    """
    stored = list_stored_specs(config)
    for candidate in stored:
        if _read_size(candidate) == _read_size(spec):
            return candidate
    depths, widths = ({getattr(size, name) for size in stored} for name in ("layers", "width"))
    has_other_width = spec.width not in widths or len(widths) > 1
    of_width = f" of width {', '.join(map(str, sorted(widths)))}" if has_other_width else ""
    raise WrongCall(
        f"no model with {spec.layers} layers"
        f"{f' of width {spec.width}' if has_other_width else ''} is stored; choose "
        f"{', '.join(map(str, sorted(depths)))} layers{of_width}, or train others with "
        f"lgzoo extract {config.method} {'--depths --widths' if has_other_width else '--depths'}"
    )


def list_stored_specs(config: LearngeneConfig) -> list[Spec]:
    """Return the shapes of the stored models, ascending. Raises `BadFile` for impossible ones."""
    details = parse_details(config, PretrainFinetuneDetails)
    depths, widths = details.depths, details.widths
    is_valid = depths and len(set(depths)) == len(depths)
    if not is_valid or not MIN_DEPTH <= min(depths) <= max(depths) <= MAX_DEPTH:
        raise BadFile(
            f"the {config.method} learngene says depths {list(depths)}; expected different numbers "
            f"from {MIN_DEPTH} to {MAX_DEPTH}"
        )
    try:
        return list_specs(depths, widths, config.spec)
    except WrongCall as error:
        raise BadFile(
            f"the {config.method} learngene says widths {list(widths)}: {error}"
        ) from None


def _read_size(spec: Spec) -> tuple[int, int, int]:
    return spec.layers, spec.width, spec.heads
