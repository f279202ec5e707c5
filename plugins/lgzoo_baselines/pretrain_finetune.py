"""Pretrain-finetune: every size trained from scratch on the source task, and all of them stored.

What learngenes are to replace: the upper bound in accuracy and in storage (LSAMD, section "Experiments": 787 M parameters
for 5 to 15 layers). Fine-tuning is what `lgzoo finetune` does with any descendant. The tensors of the model with 7 layers are
named `layers-7/blocks.0.attn.qkv.weight`; `distillation` stores its models likewise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from learngene_zoo.plugin import (
    LIMITS,
    BadFile,
    Bounds,
    Expander,
    Extractor,
    Learngene,
    LearngeneConfig,
    Member,
    Method,
    Part,
    Recipe,
    Work,
    WrongCall,
    derive_seed,
    details_of,
    once,
    to_json,
)

if TYPE_CHECKING:
    from learngene_zoo.plugin import Ancestry, Descendant, Json, Run, Spec, StateDict, Target, Task


# As for the ancestry model: the source task's attributes would not be true of images that were moved.
TRAINING = Recipe(epochs=10, lr=1e-3, warmup=0.5, clip=1.0, augment="none")
# A tenth of the images that the bundled ancestry model saw, for every size: enough to leave chance far behind.
MINI = replace(TRAINING, epochs=1, images=100_000, batch_size=64, lr=2e-3, min_lr=1e-5, warmup=0.05, weight_decay=0.05)
SMOKE = replace(TRAINING, epochs=1, images=32, batch_size=16, warmup=0.0)
PAPER = Recipe(
    epochs=100, batch_size=1024, lr=1e-3, warmup=5, drop_path=0.1, label_smoothing=0.1, mixup=0.8, augment="rand"
)
DEPTHS = (3, 6, 9, 12)
LEAST, MOST = 1, LIMITS["layers"]  # bounds of depths


@dataclass(frozen=True, kw_only=True)
class Details:
    """What `details` of a learngene hold."""

    depths: tuple[int, ...]  # layers of the stored models, ascending


@dataclass(frozen=True, kw_only=True)
class Sizes(Extractor):
    """Train a model of each depth and store all of them."""

    method: ClassVar[str]

    depths: Annotated[tuple[int, ...], "how many layers the models have", Bounds(least=LEAST, most=MOST)] = DEPTHS
    init: Annotated[Literal["timm", "fan_in"], "the weights that training starts from"] = "timm"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.depths or len(set(self.depths)) < len(self.depths):
            raise WrongCall(f"depths is {list(self.depths)}; name at least one, and each once")

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """The ancestry model's shape with the deepest of the depths."""
        details = Details(depths=tuple(sorted(self.depths)))
        spec = ancestries[0].with_(layers=details.depths[-1])
        return LearngeneConfig(method=self.method, spec=spec, details=to_json(details))


def work_of(depths: Sequence[int], recipe: Recipe, images: int, taught_by: int = 0) -> list[Work]:
    """The work of training a model of each depth, with a teacher of `taught_by` layers."""
    shown = min(recipe.images or images, images) * recipe.epochs
    return [Work(images=shown, trained=layers, frozen=taught_by) for layers in depths]


def stored(config: LearngeneConfig, parts: Mapping[int, Part], metrics: Mapping[str, Json]) -> Learngene:
    """The learngene that holds the trained models, by their layers; each part's record joins `metrics`."""
    state: StateDict = {
        f"layers-{layers}/{name}": tensor for layers, part in parts.items() for name, tensor in part.state.items()
    }
    records = {f"layers-{layers}": part.record for layers, part in parts.items()}
    return Learngene(config=replace(config, metrics={**metrics, **records}), state=state)


@dataclass(frozen=True, kw_only=True)
class Take(Expander):
    """Take the stored model of that depth."""

    def family(self, config: LearngeneConfig) -> list[Member]:
        """The stored depths."""
        return [Member(spec=config.spec.with_(layers=layers)) for layers in _depths(config)]

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """The stored tensors, positions resized, and a new head. Raises `WrongCall` for a depth that is not stored."""
        from learngene_zoo.plugin import assemble, resize_positions

        config = learngene.config
        spec, depths = target.apply(config.spec), _depths(config)
        if spec.layers not in depths:
            raise WrongCall(
                f"no model with {spec.layers} layers is stored; choose {', '.join(map(str, depths))} layers, "
                f"or train others with lgzoo extract {config.method} --depths"
            )
        prefix = f"layers-{spec.layers}/"
        names = [name for name in learngene.state if name.startswith(prefix)]
        if not names:
            where = learngene.folder or "the learngene"
            raise BadFile(
                f"{where} lacks the tensors of its model with {spec.layers} layers; extract or fetch it again"
            )
        own = {name.removeprefix(prefix): learngene.state[name] for name in names}
        parts = resize_positions(own, config.spec.with_(layers=spec.layers), spec)
        mean, std = config.normalisation
        return assemble(spec, parts, seed=run.seed, mean=mean, std=std, provenance={"pretrained": prefix.rstrip("/")})


def _depths(config: LearngeneConfig) -> list[int]:
    """The stored depths. Raises `BadFile`."""
    depths = details_of(config, Details).depths
    if not depths or len(set(depths)) < len(depths) or not LEAST <= min(depths) <= max(depths) <= MOST:
        raise BadFile(
            f"the {config.method} learngene says depths {list(depths)}; expected different numbers from {LEAST} to {MOST}"
        )
    return sorted(depths)


@dataclass(frozen=True, kw_only=True)
class Pretrain(Sizes):
    """Train a model of each depth on the source task; of the ancestry model only the shape is used."""

    method = "pretrain_finetune"

    training: Recipe = TRAINING

    def work(self, ancestries: Sequence[Spec], images: Sequence[int]) -> list[Work]:
        """One training for each depth."""
        return work_of(self.depths, self.training, images[0])

    def __call__(self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run) -> Learngene:
        """Train them one after the other, each a part of the run; their heads are dropped."""
        from learngene_zoo.plugin import assemble

        ancestry, task = ancestries[0], tasks[0]
        mean, std = ancestry.record.mean, ancestry.record.std
        trained: dict[int, Part] = {}
        for layers in sorted(self.depths):
            part = run.part(f"layers-{layers}")
            spec = ancestry.spec.with_(layers=layers, classes=task.classes, dense=task.dense)
            start = assemble(spec, {}, seed=derive_seed(part.seed, "init"), scheme=self.init, mean=mean, std=std)
            trained[layers] = once(part, pretrained, self.training, [start, task])
        return stored(self.outline([ancestry.spec]), trained, {})


def pretrained(recipe: Recipe, start: Descendant, task: Task, run: Run) -> tuple[StateDict, Json]:
    """The tensors of one trained model, without its head, and its metrics."""
    from learngene_zoo.plugin import fit, without_head

    model = fit(start, task, recipe, run)
    return without_head(model.state, model.spec), dict(model.provenance["metrics"])


PRETRAIN_FINETUNE = Method(
    name=Pretrain.method,
    title="pretrain every size from scratch and store them all: the upper bound",
    paper="",
    expander=Take(),
    presets={
        "mini": Pretrain(init="fan_in", training=MINI),
        "paper": Pretrain(depths=tuple(range(5, 16)), training=PAPER),
        "smoke": Pretrain(depths=(1, 2), init="fan_in", training=SMOKE),
    },
    families=("vit", "eva"),
    tasks="one",
    details=Details,
)
