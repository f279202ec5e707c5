"""An auxiliary model whose L blocks are made of fewer numbers, and learn with the ancestry model as their teacher.

`Guided` is what all methods share that train one model so, `Taught` what those with an auxiliary model do. `Condense` is that of TLEG
and SWS, whose blocks are sums of stored ones:

    theta_i = sum over k of c_ik theta_k        block i = 0, ..., L - 1 of the auxiliary model, k over the stored blocks

The numbers c_ik are the method's, and only the theta_k are trained, by the gradients of all blocks that they are part of. An auxiliary
model has no class token and its head reads the mean of the patches; it starts from random weights. TLEG's and SWS' learn from the
ancestry model's answers alone:

    loss = t^2 KL(softmax(teacher / t) || softmax(auxiliary / t))        t = 1

(in general `distillation`'s loss, with a share of 1). The learngene is all that was trained: a ViT's tensors under timm's names, with
as many blocks as are stored. Descendants of any depth are made by the same formula, with the c_ik of their depth.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeVar

from learngene_zoo.plugin import (
    FLAT,
    LIMITS,
    BadFile,
    Bounds,
    Extractor,
    Learngene,
    LearngeneConfig,
    Recipe,
    Work,
    check_bounds,
    details_of,
    once,
    table_of,
    to_json,
)
from lgzoo_baselines.block_choice import completed
from lgzoo_baselines.distillation import TOKENS, Distilling, taught, teacher_of
from lgzoo_baselines.pretrain_finetune import MINI, SMOKE, TRAINING, work_of

if TYPE_CHECKING:
    from learngene_zoo.plugin import Ancestry, Descendant, Json, Part, Run, Spec, StateDict, Target, Task, TimmModel

# What the authors' code gives the auxiliary models of DeiT-Small's width, in both papers; those of DeiT-Base's have 100 epochs.
AUXILIARY = Recipe(
    epochs=150, batch_size=512, lr=5e-4, min_lr=1e-5, warmup=5, mixup=0.8, cutmix=1.0, augment="deit", repeats=3
)
ANSWERS = Distilling(share=1.0, temperature=1.0)  # the teacher's, and no labels

T = TypeVar("T", bound="Taught")
Rows = tuple[tuple[float, ...], ...]  # c_ik: for each layer, the share of each stored block


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where the stored head is from: what `details` of all these learngenes hold."""

    task: str | None = None  # of the stored head; None before the extraction
    classes: Annotated[int | None, "of that task", Bounds(least=1, most=LIMITS["classes"])] = None
    dense: bool = False

    def __post_init__(self) -> None:
        check_bounds(self)

    def json(self) -> dict[str, Json]:
        """As they are written; what is not known yet is left out."""
        return {name: value for name, value in to_json(self).items() if value is not None}

    def of(self, task: Task) -> Self:
        """The same, with the head of this task."""
        return replace(self, task=task.name, classes=task.classes, dense=task.dense)

    def serves(self, target: Target, spec: Spec) -> bool:
        """Whether the stored head is that of a descendant of shape `spec`."""
        own = target.task is not None and target.task == self.task
        return own and (spec.classes, spec.dense) == (self.classes, self.dense)


@dataclass(frozen=True, kw_only=True)
class Details(Origin):
    """What `details` of a learngene of TLEG or SWS hold."""

    blocks: Annotated[int, "stored blocks", Bounds(least=1, most=LIMITS["layers"])]


@dataclass(frozen=True, kw_only=True)
class Guided(Extractor):
    """Train one model with the ancestry model as its teacher, and keep what it is made of."""

    method: ClassVar[str]
    part: ClassVar[str] = "auxiliary"  # of the run: the training

    each: Distilling = field(default=ANSWERS, metadata=FLAT)
    teacher: Annotated[
        str | None,
        "another teacher than the ancestry model: timm:NAME, hf-hub:ORG/REPO or a folder, a classifier of the task",
    ] = None
    teaching: Annotated[Recipe, "the teacher's fine-tuning, if the task is not its own"] = TRAINING

    def work(self, ancestries: Sequence[Spec], images: Sequence[int]) -> list[Work]:
        """One training; the teacher's fine-tuning is not counted."""
        return work_of([self.outline(ancestries).spec], ancestries[0], self.each.training, images[0], taught=True)

    def __call__(self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run) -> Learngene:
        """Prepare the teacher, then train the model, a part of the run."""
        ancestry, task, config = ancestries[0], tasks[0], self.outline([ancestries[0].spec])
        teacher, metrics = teacher_of(self.teacher, ancestry, task, self.teaching, run)
        details, found = self.learnt(config, ancestry, teacher, task, run.part(self.part))
        measured = {**found.record, **({"teacher": metrics} if metrics else {})}
        return Learngene(config=replace(config, details=details.json(), metrics=measured), state=found.state)

    @abstractmethod
    def learnt(
        self, config: LearngeneConfig, ancestry: Ancestry, teacher: Descendant | TimmModel, task: Task, part: Run
    ) -> tuple[Origin, Part]:
        """What is trained in this part of the run: the learngene's tensors and metrics, and its details."""


@dataclass(frozen=True, kw_only=True)
class Taught(Guided):
    """Train an auxiliary model, which starts from random weights."""

    init: Annotated[Literal["timm", "fan_in"], "the weights that training starts from"] = "timm"


def opened(spec: Spec, weights: StateDict, ancestry: Ancestry, seed: int) -> Descendant:
    """A model with these weights that sees images as the ancestry model does."""
    from learngene_zoo.plugin import assemble

    record = ancestry.record
    return assemble(spec, weights, seed=seed, mean=record.mean, std=record.std, view=record.view)


def without_token(ancestry: Spec, layers: int) -> Spec:
    """The shape of an auxiliary model of so many layers."""
    return ancestry.with_(layers=layers, pool="avg", class_token=False, registers=0)


@dataclass(frozen=True, kw_only=True)
class Condense(Taught):
    """Train the auxiliary model, and keep the blocks that its blocks are sums of."""

    slopes: ClassVar[tuple[int, ...]] = ()  # stored blocks that are added to others: their norms and biases start at 0

    @abstractmethod
    def rows(self, ancestry: Spec) -> Rows:
        """c_ik of the auxiliary model."""

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """The auxiliary model's shape."""
        rows = self.rows(ancestries[0])
        spec = without_token(ancestries[0], len(rows))
        return LearngeneConfig(method=self.method, spec=spec, details=Details(blocks=len(rows[0])).json())

    def learnt(
        self, config: LearngeneConfig, ancestry: Ancestry, teacher: Descendant | TimmModel, task: Task, part: Run
    ) -> tuple[Details, Part]:
        """The stored blocks, stem, final norm and head."""
        from lgzoo_baselines.mixed_blocks import started

        rows = self.rows(ancestry.spec)
        details = Details(blocks=len(rows[0])).of(task)
        spec = stored_spec(config, details)
        start = opened(spec, started(spec, self.slopes, part.seed, self.init), ancestry, part.seed)
        return details, once(part, f"{self.method}.condense", condensed, self.each, [rows, start, teacher, task])


def presets(kind: type[T], answers: Distilling = ANSWERS, **smoke: Any) -> dict[str, T]:
    """The presets of such a method; `smoke` are further settings of the one of that name."""
    tuning = replace(TRAINING, epochs=4, images=6000)
    return {
        # On few images of many classes answers alone hardly leave chance.
        "mini": kind(init="fan_in", each=replace(answers, tokens=TOKENS, training=MINI), teaching=tuning),
        "paper": kind(each=replace(answers, training=AUXILIARY), teaching=replace(AUXILIARY, epochs=30, lr=1e-4)),
        "smoke": kind(init="fan_in", each=replace(answers, training=SMOKE), teaching=SMOKE, **smoke),
    }


def stored_spec(config: LearngeneConfig, details: Details) -> Spec:
    """The plain model whose tensors are stored: with the stored blocks for its blocks."""
    return config.spec.with_(layers=details.blocks, classes=details.classes, dense=details.dense)


def condensed(
    settings: Distilling, rows: Rows, start: Descendant, teacher: Descendant | TimmModel, task: Task, run: Run
) -> tuple[StateDict, Json]:
    """The tensors that are left of the auxiliary model after its training, and its metrics."""
    from lgzoo_baselines.mixed_blocks import auxiliary

    label = f"auxiliary model of {len(rows)} layers on {task.name}"
    model = auxiliary(start.model(), rows)
    return taught(settings, model, start.spec, start.input_format, teacher, task, run, label)


def built(learngene: Learngene, target: Target, rows: Rows, run: Run, provenance: dict[str, Json]) -> Descendant:
    """The descendant whose layers are made by these rows. Its head is fresh, unless the task is the learngene's own.

    Raises `BadFile` for a learngene that lacks a tensor.
    """
    from learngene_zoo.plugin import shapes
    from lgzoo_baselines.mixed_blocks import mixed

    config, spec = learngene.config, target.apply(learngene.config.spec)
    details = details_of(config, Details)
    if details.blocks != len(rows[0]):
        raise BadFile(f"the {config.method} learngene says blocks {details.blocks}; expected {len(rows[0])}")
    stored = stored_spec(config, details)
    expected = read_from(shapes(stored), stored, head=details.serves(target, spec))
    return completed(config, spec, mixed(held(learngene, expected), stored, rows), run, provenance)


def read_from(shapes: dict[str, tuple[int, ...]], spec: Spec, *, head: bool) -> dict[str, tuple[int, ...]]:
    """What is read of a model's tensors: all, or all but its head."""
    table = table_of(spec)
    return {name: shape for name, shape in shapes.items() if head or not table.is_head(name)}


def held(learngene: Learngene, expected: Mapping[str, tuple[int, ...]]) -> StateDict:
    """A learngene's tensors of these names and shapes. Raises `BadFile` for one that is missing or of another shape."""
    from learngene_zoo.plugin import shapes_in

    found, method = shapes_in(learngene.state), learngene.config.method
    for name, shape in expected.items():
        if found.get(name) != shape:
            what = f"{name} has shape {found[name]}" if name in found else f"{name} is missing"
            raise BadFile(f"the {method} learngene: {what}; expected shape {shape}: extract or fetch it again")
    return {name: learngene.state[name] for name in expected}
