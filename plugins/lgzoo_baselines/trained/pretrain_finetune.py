"""Pretrain-finetune: every size trained from scratch on the source task, and all of them stored.

The baseline that learngenes are to replace: the upper bound in accuracy and in storage (LSAMD,
section "Experiments": 787 M parameters for 5 to 15 layers). Fine-tuning is left to
`lgzoo finetune`, as for any descendant.

    for each depth and width    train a model from random weights on the task, and drop its head

The tensors of the model with 7 layers are named `layers-7/blocks.0.attn.qkv.weight`; if it is
narrower than the widest model, `layers-7-width-64/...`. `distillation` stores its models likewise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Literal

from learngene_zoo.plugin import (
    LIMITS,
    OMIT_DEFAULT,
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
)

if TYPE_CHECKING:
    from learngene_zoo.plugin import Ancestry, Descendant, Json, Run, Spec, StateDict, Task

# As for the ancestry model: the source task's attributes would not be true of augmented images.
TRAINING = Recipe(epochs=10, lr=1e-3, warmup=0.5, clip=1.0, augment="none")
# A few minutes on one core for every size, a thirty-fifth of the images that the bundled ancestry
# model saw.
MINI = replace(
    TRAINING,
    epochs=1,
    images=100_000,
    batch_size=64,
    lr=2e-3,
    min_lr=1e-5,
    warmup=0.05,
    weight_decay=0.05,
)
SMOKE = replace(TRAINING, epochs=1, images=32, batch_size=16, warmup=0.0)
PAPER = Recipe(
    epochs=100,
    batch_size=1024,
    lr=1e-3,
    warmup=5,
    drop_path=0.1,
    label_smoothing=0.1,
    mixup=0.8,
    augment="rand",
)
MIN_DEPTH, MAX_DEPTH = 1, LIMITS["layers"]

# Settings of this method and of `distillation`.
DEPTHS = (3, 6, 9, 12)
Depths = Annotated[
    tuple[int, ...], "how many layers the models have", Bounds(least=MIN_DEPTH, most=MAX_DEPTH)
]
Widths = Annotated[
    tuple[int, ...],
    "how wide they are, in whole heads of the ancestry's (default: as wide as it)",
    Bounds(least=1),
]
Init = Annotated[Literal["timm", "fan_in"], "the weights that training starts from"]


@dataclass(frozen=True, kw_only=True)
class PretrainFinetuneDetails:
    """Record the sizes that a learngene of stored models has."""

    depths: tuple[int, ...]  # layers of the stored models, ascending
    # With each of which every depth is stored, ascending; (): the learngene's width alone.
    widths: tuple[int, ...] = field(default=(), metadata=OMIT_DEFAULT)


@dataclass(frozen=True, kw_only=True)
class PretrainFinetuneExtractor(Extractor):
    """Train a model of each size on the source task, with the shape of the ancestry model."""

    depths: Depths = DEPTHS
    widths: Widths = ()
    init: Init = "timm"
    training: Recipe = TRAINING

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self.depths, self.widths)

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """Return the config with the largest model's shape. Raises `WrongCall` as `list_specs`."""
        return outline_models(self.depths, self.widths, ancestries[0])

    def work(self, ancestries: Sequence[Spec], images: Sequence[int]) -> list[Work]:
        """Estimate one training for each size."""
        specs = list_specs(self.depths, self.widths, ancestries[0])
        return estimate_work(specs, ancestries[0], self.training, images[0])

    def __call__(
        self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run
    ) -> Learngene:
        """Train the models one after the other, each a part of the run; their heads are dropped."""
        from learngene_zoo.plugin import assemble

        ancestry, task = ancestries[0], tasks[0]
        mean, std = ancestry.record.mean, ancestry.record.std
        config, trained = self.outline([ancestry.spec]), dict[str, Part]()
        for size in list_specs(self.depths, self.widths, ancestry.spec):
            name = name_size(size, config.spec)
            part, spec = run.part(name), size.with_(classes=task.classes, dense=task.dense)
            seed = derive_seed(part.seed, "init")
            start = assemble(spec, {}, seed=seed, scheme=self.init, mean=mean, std=std)
            trained[name] = once(
                part, "pretrain_finetune.train", train_model, self.training, [start, task]
            )
        return collect_models(config, trained, {})


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


def train_model(recipe: Recipe, start: Descendant, task: Task, run: Run) -> tuple[StateDict, Json]:
    """Return the tensors of one trained model, without its head, and its metrics."""
    from learngene_zoo.plugin import fit, without_head

    model = fit(start, task, recipe, run)
    return without_head(model.state, model.spec), dict(model.provenance["metrics"])


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


@dataclass(frozen=True, kw_only=True)
class PretrainFinetuneExpander(Expander):
    """Take the stored model of the descendant's size."""

    axes = frozenset({"layers", "width", "heads", "classes", "image_size"})

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Return the stored sizes."""
        return [Member(spec=spec) for spec in list_stored_specs(config)]

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Return the stored model with resized positions and a new head.

        Raises:
            WrongCall: for a size that is not stored.
            BadFile: for a learngene without the tensors of this size.
        """
        from learngene_zoo.plugin import assemble, resize_positions

        config = learngene.config
        spec = target.whole_heads(config.spec).apply(config.spec)
        stored = find_stored_spec(config, spec)
        prefix = f"{name_size(spec, config.spec)}/"
        names = [name for name in learngene.state if name.startswith(prefix)]
        if not names:
            source, model = learngene.folder or "the learngene", prefix.rstrip("/")
            raise BadFile(
                f"{source} lacks the tensors of its model {model}; extract or fetch it again"
            )
        state = {name.removeprefix(prefix): learngene.state[name] for name in names}
        parts = resize_positions(state, stored, spec)
        mean, std = config.normalisation
        provenance: dict[str, Json] = {"pretrained": prefix.rstrip("/")}
        return assemble(spec, parts, seed=run.seed, mean=mean, std=std, provenance=provenance)


def find_stored_spec(config: LearngeneConfig, spec: Spec) -> Spec:
    """Return the shape of the stored model with the depth, width and heads of `spec`.

    Raises `WrongCall` if there is no such model.
    """
    stored = list_stored_specs(config)
    for candidate in stored:
        if _size(candidate) == _size(spec):
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
    details = details_of(config, PretrainFinetuneDetails)
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


def _size(spec: Spec) -> tuple[int, int, int]:
    return spec.layers, spec.width, spec.heads


PRETRAIN_FINETUNE = Method(
    name="pretrain_finetune",
    title="pretrain every size from scratch and store them all: the upper bound",
    paper="",
    expander=PretrainFinetuneExpander(),
    presets={
        "mini": PretrainFinetuneExtractor(init="fan_in", training=MINI),
        "paper": PretrainFinetuneExtractor(depths=tuple(range(5, 16)), training=PAPER),
        "smoke": PretrainFinetuneExtractor(depths=(1, 2), init="fan_in", training=SMOKE),
    },
    families=("vit", "eva"),
    tasks="one",
    details=PretrainFinetuneDetails,
)
