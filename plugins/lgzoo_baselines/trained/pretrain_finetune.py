"""Pretrain-finetune: a separate model for every size, trained from scratch on the source task.

The baseline that learngenes are meant to replace: the upper bound in accuracy and in storage
(LSAMD, section "Experiments": 787.03 M parameters for 5 to 15 layers). `lgzoo finetune` fine-tunes
the models, as any descendant.

    for each depth and width    train a model from random weights on the task, and drop its head

The tensors of the model with 7 layers are named `layers-7/blocks.0.attn.qkv.weight`; if it is
narrower than the widest model, `layers-7-width-64/...`. `distillation` stores its models likewise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from learngene_zoo.plugin import (
    BadFile,
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
    adapt_rates,
    compute_once,
    derive_seed,
)
from lgzoo_baselines.trained.stored_models import (
    DEPTHS,
    Depths,
    Init,
    PretrainFinetuneDetails,
    Widths,
    check_sizes,
    collect_models,
    estimate_work,
    find_stored_spec,
    list_specs,
    list_stored_specs,
    name_size,
    outline_models,
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

    def adapt(self, ancestries: Sequence[Spec]) -> Self:
        """Return the settings with learning rates for the width of the ancestry model."""
        return adapt_rates(self, ancestries, random_rates=["lr"])

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
        inputs: Any = {name: getattr(ancestry.record, name) for name in ("mean", "std", "view")}
        inputs["files"] = ancestry.files
        config, trained = self.outline([ancestry.spec]), dict[str, Part]()
        for size in list_specs(self.depths, self.widths, ancestry.spec):
            name = name_size(size, config.spec)
            part, spec = run.part(name), size.with_(classes=task.classes, dense=task.dense)
            seed = derive_seed(part.seed, "init")
            start = assemble(spec, {}, seed=seed, scheme=self.init, **inputs)
            trained[name] = compute_once(
                part, "pretrain_finetune.train", train_model, self.training, [start, task]
            )
        return collect_models(config, trained, {})


def train_model(recipe: Recipe, start: Descendant, task: Task, run: Run) -> tuple[StateDict, Json]:
    """Return the tensors of one trained model, without its head, and its metrics."""
    from learngene_zoo.plugin import fit, remove_head

    model = fit(start, task, recipe, run)
    return remove_head(model.state, model.spec), dict(model.provenance["metrics"])


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
        provenance: dict[str, Json] = {"pretrained": prefix.rstrip("/")}
        return assemble(spec, parts, seed=run.seed, provenance=provenance)


PRETRAIN_FINETUNE = Method(
    name="pretrain_finetune",
    title="a separate model for every size, pretrained from scratch",
    paper="",
    expander=PretrainFinetuneExpander(),
    presets={
        "mini": PretrainFinetuneExtractor(init="fan_in", training=MINI),
        "paper": PretrainFinetuneExtractor(depths=tuple(range(5, 16)), training=PAPER),
        "smoke": PretrainFinetuneExtractor(depths=(1, 2), init="fan_in", training=SMOKE),
    },
    families=("vit", "eva", "gpt2", "bert"),
    tasks="one",
    details=PretrainFinetuneDetails,
)
