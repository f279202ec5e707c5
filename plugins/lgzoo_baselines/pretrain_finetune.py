"""Pretrain-finetune: every size trained from scratch on the source task, and all of them stored.

What learngenes are to replace: the upper bound in accuracy and in storage (LSAMD, section "Experiments": 787 M parameters
for 5 to 15 layers). Fine-tuning is what `lgzoo finetune` does with any descendant. The tensors of the model with 7 layers are
named `layers-7/blocks.0.attn.qkv.weight`, of one that is narrower than the widest `layers-7-width-64/...`; `distillation` stores its
models likewise.
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
    Target,
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
# A few minutes on one core for every size, a thirty-fifth of the images that the bundled ancestry model saw.
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
    widths: tuple[int, ...] = ()  # with each of which every depth is stored, ascending; (): the learngene's width alone


@dataclass(frozen=True, kw_only=True)
class Sizes(Extractor):
    """Train a model of each depth, with each width, and store all of them."""

    method: ClassVar[str]

    depths: Annotated[tuple[int, ...], "how many layers the models have", Bounds(least=LEAST, most=MOST)] = DEPTHS
    widths: Annotated[
        tuple[int, ...], "how wide they are, in whole heads of the ancestry's (default: as wide as it)", Bounds(least=1)
    ] = ()
    init: Annotated[Literal["timm", "fan_in"], "the weights that training starts from"] = "timm"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.depths or len(set(self.depths)) < len(self.depths):
            raise WrongCall(f"depths is {list(self.depths)}; name at least one, and each once")
        if len(set(self.widths)) < len(self.widths):
            raise WrongCall(f"widths is {list(self.widths)}; name each once")

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """The ancestry model's shape with the deepest of the depths and the widest of the widths."""
        details = Details(depths=tuple(sorted(self.depths)), widths=tuple(sorted(self.widths)))
        spec = self.specs(ancestries[0])[-1]
        record = {name: value for name, value in to_json(details).items() if name != "widths" or value}
        return LearngeneConfig(method=self.method, spec=spec, details=record)

    def specs(self, ancestry: Spec) -> list[Spec]:
        """The shapes of the models, ascending. Raises `WrongCall` for a width that is not of whole heads."""
        return [
            Target(layers=layers, width=width).whole_heads(ancestry).apply(ancestry)
            for layers in sorted(self.depths)
            for width in sorted(self.widths) or [ancestry.width]
        ]


def work_of(specs: Sequence[Spec], ancestry: Spec, recipe: Recipe, images: int, *, taught: bool = False) -> list[Work]:
    """The work of training each model, with the ancestry as its teacher if `taught`; in layers of the ancestry's width."""
    shown, frozen = min(recipe.images or images, images) * recipe.epochs, ancestry.layers if taught else 0
    return [Work(images=shown, trained=spec.layers * spec.width / ancestry.width, frozen=frozen) for spec in specs]


def place(spec: Spec, whole: Spec) -> str:
    """What the names of a model's tensors, and of its part of a run, begin with."""
    return f"layers-{spec.layers}" + ("" if spec.width == whole.width else f"-width-{spec.width}")


def stored(config: LearngeneConfig, parts: Mapping[str, Part], metrics: Mapping[str, Json]) -> Learngene:
    """The learngene that holds the trained models, by their places; each part's record joins `metrics`."""
    state: StateDict = {
        f"{where}/{name}": tensor for where, part in parts.items() for name, tensor in part.state.items()
    }
    records = {where: part.record for where, part in parts.items()}
    return Learngene(config=replace(config, metrics={**metrics, **records}), state=state)


@dataclass(frozen=True, kw_only=True)
class Take(Expander):
    """Take the stored model of that size."""

    axes = frozenset({"layers", "width", "heads", "classes", "image_size"})

    def family(self, config: LearngeneConfig) -> list[Member]:
        """The stored sizes."""
        return [Member(spec=spec) for spec in _sizes(config)]

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """The stored tensors, positions resized, and a new head. Raises `WrongCall` for a size that is not stored."""
        from learngene_zoo.plugin import assemble, resize_positions

        config = learngene.config
        spec, sizes = target.whole_heads(config.spec).apply(config.spec), _sizes(config)
        found = next((size for size in sizes if _shape(size) == _shape(spec)), None)
        if found is None:
            depths, widths = ({getattr(size, name) for size in sizes} for name in ("layers", "width"))
            of = (
                f" of width {', '.join(map(str, sorted(widths)))}"
                if spec.width not in widths or len(widths) > 1
                else ""
            )
            raise WrongCall(
                f"no model with {spec.layers} layers{f' of width {spec.width}' if of else ''} is stored; choose "
                f"{', '.join(map(str, sorted(depths)))} layers{of}, or train others with lgzoo extract {config.method} "
                f"{'--depths --widths' if of else '--depths'}"
            )
        prefix = f"{place(spec, config.spec)}/"
        names = [name for name in learngene.state if name.startswith(prefix)]
        if not names:
            where = learngene.folder or "the learngene"
            raise BadFile(f"{where} lacks the tensors of its model {prefix.rstrip('/')}; extract or fetch it again")
        own = {name.removeprefix(prefix): learngene.state[name] for name in names}
        parts = resize_positions(own, found, spec)
        mean, std = config.normalisation
        return assemble(spec, parts, seed=run.seed, mean=mean, std=std, provenance={"pretrained": prefix.rstrip("/")})


def _sizes(config: LearngeneConfig) -> list[Spec]:
    """The shapes of the stored models, ascending. Raises `BadFile`."""
    details = details_of(config, Details)
    depths, widths = details.depths, details.widths
    if not depths or len(set(depths)) < len(depths) or not LEAST <= min(depths) <= max(depths) <= MOST:
        raise BadFile(
            f"the {config.method} learngene says depths {list(depths)}; expected different numbers from {LEAST} to {MOST}"
        )
    try:
        return [
            Target(layers=layers, width=width).whole_heads(config.spec).apply(config.spec)
            for layers in sorted(depths)
            for width in sorted(widths) or [config.spec.width]
        ]
    except WrongCall as error:
        raise BadFile(f"the {config.method} learngene says widths {list(widths)}: {error}") from None


def _shape(spec: Spec) -> tuple[int, int, int]:
    return spec.layers, spec.width, spec.heads


@dataclass(frozen=True, kw_only=True)
class Pretrain(Sizes):
    """Train a model of each size on the source task; of the ancestry model only the shape is used."""

    method = "pretrain_finetune"

    training: Recipe = TRAINING

    def work(self, ancestries: Sequence[Spec], images: Sequence[int]) -> list[Work]:
        """One training for each size."""
        return work_of(self.specs(ancestries[0]), ancestries[0], self.training, images[0])

    def __call__(self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run) -> Learngene:
        """Train them one after the other, each a part of the run; their heads are dropped."""
        from learngene_zoo.plugin import assemble

        ancestry, task = ancestries[0], tasks[0]
        mean, std = ancestry.record.mean, ancestry.record.std
        outline, trained = self.outline([ancestry.spec]), dict[str, Part]()
        for size in self.specs(ancestry.spec):
            where = place(size, outline.spec)
            part, spec = run.part(where), size.with_(classes=task.classes, dense=task.dense)
            start = assemble(spec, {}, seed=derive_seed(part.seed, "init"), scheme=self.init, mean=mean, std=std)
            trained[where] = once(part, "pretrain_finetune.train", pretrained, self.training, [start, task])
        return stored(outline, trained, {})


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
