"""Pretrain-finetune: every size trained from scratch on the source task, and all of them stored. Cold.

What learngenes are to replace: the upper bound in accuracy and in storage (LSAMD, section "Experiments": 787 M parameters
for 5 to 15 layers). Each size is a part of the run: resumed by itself, loaded once it is finished. Fine-tuning is what
`lgzoo finetune` does with any descendant.

The tensors of the size with 7 layers are named `layers-7/blocks.0.attn.qkv.weight`. `details` hold `depths`, ascending.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.learngene import Learngene, LearngeneConfig
from learngene_zoo.method import Expander, Extractor, Member, Method, Target
from learngene_zoo.recipe import Recipe
from learngene_zoo.spec import LIMITS, ViTSpec

if TYPE_CHECKING:
    from learngene_zoo.ancestry import Ancestry
    from learngene_zoo.descendant import Descendant
    from learngene_zoo.folder import State
    from learngene_zoo.run import Run
    from learngene_zoo.tasks.task import Task

# As for the ancestry model: the source task's attributes would not be true of images that were moved.
_TRAINING = Recipe(epochs=10, lr=1e-3, warmup=0.5, clip=1.0, augment="none")
# A tenth of the images that the bundled ancestry model saw, for every size: enough to leave chance far behind.
MINI = replace(_TRAINING, epochs=1, images=100_000, batch_size=64, lr=2e-3, min_lr=1e-5, warmup=0.05, weight_decay=0.05)


@dataclass(frozen=True, kw_only=True)
class Pretrain(Extractor):
    """Train a model of each depth on the source task; of the ancestry model only the shape is used."""

    depths: Annotated[tuple[int, ...], "how many layers the models have"] = (3, 6, 9, 12)
    init: Annotated[Literal["timm", "fan_in"], "the weights that training starts from"] = "timm"
    training: Recipe = _TRAINING

    def __post_init__(self) -> None:
        check_depths(self.depths)

    def outline(self, ancestries: Sequence[ViTSpec]) -> LearngeneConfig:
        """The ancestry model's shape with the deepest of the depths."""
        depths = sorted(self.depths)
        return LearngeneConfig(
            method=PRETRAIN_FINETUNE.name, spec=ancestries[0].with_(layers=depths[-1]), details={"depths": depths}
        )

    def __call__(self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run) -> Learngene:
        """Train them one after the other; the heads are dropped."""
        ancestry, task = ancestries[0], tasks[0]
        config = self.outline([ancestry.spec])
        state: dict[str, Any] = {}
        metrics: dict[str, Any] = {}
        for layers in config.details["depths"]:
            name = f"layers-{layers}"
            tensors, record = run.part(name).once(partial(self._pretrained, layers, ancestry, task))
            state |= {f"{name}/{tensor}": value for tensor, value in tensors.items()}
            metrics[name] = record
        return Learngene(config=replace(config, metrics=metrics), state=state)

    def _pretrained(self, layers: int, ancestry: Ancestry, task: Task, run: Run) -> tuple[State, dict[str, Any]]:
        """The tensors of one trained size, without its head, and its validation accuracy."""
        from learngene_zoo.descendant import assemble
        from learngene_zoo.run import derive_seed
        from learngene_zoo.surgery import without_head
        from learngene_zoo.training.fit import fit

        start = assemble(
            ancestry.spec.with_(layers=layers, classes=task.classes, dense=task.dense),
            {},
            seed=derive_seed(run.seed, "init"),
            scheme=self.init,
            mean=ancestry.record.mean,
            std=ancestry.record.std,
        )
        trained = fit(start, task, self.training, run)
        return without_head(trained.state), dict(trained.provenance["metrics"])


@dataclass(frozen=True, kw_only=True)
class Take(Expander):
    """Take the stored model of that depth."""

    def family(self, config: LearngeneConfig) -> list[Member]:
        """The stored depths."""
        return [Member(spec=config.spec.with_(layers=layers)) for layers in _depths(config)]

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """The stored tensors, positions resized, and a fresh head. Raises `WrongCall` for a size that is not stored."""
        from learngene_zoo.descendant import assemble
        from learngene_zoo.surgery import resize_positions

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


PRETRAIN_FINETUNE = Method(
    name="pretrain_finetune",
    title="pretrain every size from scratch and store them all: the upper bound",
    paper="",
    expander=Take(),
    presets={
        "mini": Pretrain(init="fan_in", training=MINI),
        "paper": Pretrain(
            depths=tuple(range(5, 16)),
            training=Recipe(
                epochs=100,
                batch_size=1024,
                lr=1e-3,
                warmup=5,
                drop_path=0.1,
                label_smoothing=0.1,
                mixup=0.8,
                augment="rand",
            ),
        ),
        "smoke": Pretrain(
            depths=(1, 2), init="fan_in", training=replace(_TRAINING, epochs=1, images=32, batch_size=16, warmup=0.0)
        ),
    },
    tasks="one",
)
