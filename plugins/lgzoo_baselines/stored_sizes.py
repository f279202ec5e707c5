"""Models of several depths, each trained by itself and all of them stored: what learngenes are to replace. Cold.

The tensors of the size with 7 layers are named `layers-7/blocks.0.attn.qkv.weight`. `details` hold `depths`, ascending.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from learngene_zoo.plugin import (
    LIMITS,
    BadFile,
    Expander,
    Learngene,
    LearngeneConfig,
    Member,
    Recipe,
    Target,
    ViTSpec,
    WrongCall,
)

if TYPE_CHECKING:
    from learngene_zoo.plugin import Descendant, Run, StateDict

    # From a depth and a part of the run to the tensors of that size, without its head, and what to record of it.
    TrainOne = Callable[[int, Run], tuple[StateDict, dict[str, Any]]]

# As for the ancestry model: the source task's attributes would not be true of images that were moved.
TRAINING = Recipe(epochs=10, lr=1e-3, warmup=0.5, clip=1.0, augment="none")
# A tenth of the images that the bundled ancestry model saw, for every size: enough to leave chance far behind.
MINI = replace(TRAINING, epochs=1, images=100_000, batch_size=64, lr=2e-3, min_lr=1e-5, warmup=0.05, weight_decay=0.05)
SMOKE = replace(TRAINING, epochs=1, images=32, batch_size=16, warmup=0.0)
PAPER = Recipe(
    epochs=100, batch_size=1024, lr=1e-3, warmup=5, drop_path=0.1, label_smoothing=0.1, mixup=0.8, augment="rand"
)


def outline_of(method: str, depths: Sequence[int], ancestry: ViTSpec) -> LearngeneConfig:
    """The ancestry model's shape with the deepest of the depths."""
    ascending = sorted(depths)
    return LearngeneConfig(method=method, spec=ancestry.with_(layers=ascending[-1]), details={"depths": ascending})


def train_each(config: LearngeneConfig, one: TrainOne, run: Run, metrics: dict[str, Any]) -> Learngene:
    """Train the sizes one after the other, each a part of the run: resumed by itself, loaded once it is finished."""
    state: dict[str, Any] = {}
    metrics = dict(metrics)
    for layers in config.details["depths"]:
        name = f"layers-{layers}"
        tensors, metrics[name] = run.part(name).once(partial(one, layers))
        state |= {f"{name}/{tensor}": value for tensor, value in tensors.items()}
    return Learngene(config=replace(config, metrics=metrics), state=state)


@dataclass(frozen=True, kw_only=True)
class Take(Expander):
    """Take the stored model of that depth."""

    def family(self, config: LearngeneConfig) -> list[Member]:
        """The stored depths."""
        return [Member(spec=config.spec.with_(layers=layers)) for layers in _depths(config)]

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """The stored tensors, positions resized, and a fresh head. Raises `WrongCall` for a size that is not stored."""
        from learngene_zoo.plugin import assemble, resize_positions

        config = learngene.config
        spec = _reachable(config, target)
        prefix = f"layers-{spec.layers}/"
        names = [name for name in learngene.state if name.startswith(prefix)]
        if not names:
            raise BadFile(
                f"{learngene.folder or 'the learngene'} lacks the tensors of its model with {spec.layers} layers"
            )
        stored = {name.removeprefix(prefix): learngene.state[name] for name in names}
        parts = resize_positions(stored, config.spec.with_(layers=spec.layers), spec)
        mean, std = config.normalisation
        return assemble(spec, parts, seed=run.seed, mean=mean, std=std, provenance={"pretrained": prefix.rstrip("/")})


def _reachable(config: LearngeneConfig, target: Target) -> ViTSpec:
    spec, depths = target.apply(config.spec), _depths(config)
    if spec.layers not in depths:
        raise WrongCall(
            f"no model with {spec.layers} layers was pretrained; there are {', '.join(map(str, depths))} "
            f"(others: lgzoo extract {config.method} --depths)"
        )
    if (spec.width, spec.heads) != (config.spec.width, config.spec.heads):
        raise WrongCall(
            f"the stored models have width {config.spec.width} and {config.spec.heads} heads, "
            f"not {spec.width} and {spec.heads}; choose layers, classes or image size"
        )
    return spec


def _depths(config: LearngeneConfig) -> list[int]:
    """The stored depths, as the artifact says; it may come from anywhere."""
    depths = config.details.get("depths")
    if not isinstance(depths, (list, tuple)) or not all(type(layers) is int for layers in depths):
        raise BadFile(f"a {config.method} learngene must list its depths as whole numbers under details.depths")
    try:
        check_depths(depths)
    except WrongCall as error:
        raise BadFile(f"details of the learngene: {error}") from error
    return sorted(depths)


def check_depths(depths: Sequence[int]) -> None:
    """Raises `WrongCall` for depths that cannot be meant."""
    if not depths or len(set(depths)) < len(depths):
        raise WrongCall(f"depths is {list(depths)}; name at least one, and each once")
    if not all(1 <= layers <= LIMITS["layers"] for layers in depths):
        raise WrongCall(f"depths is {list(depths)}; each must lie between 1 and {LIMITS['layers']}")
