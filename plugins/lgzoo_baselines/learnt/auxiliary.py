"""Train an auxiliary model whose blocks are computed from fewer tensors, with a teacher.

Shared by TLEG, SWS, WAVE, FINE, SWEET and LeTs. An auxiliary model has no class token and its head
reads the mean of the patches; it starts from random weights. For TLEG, SWS and LeTs it is trained
with the teacher's logits alone:

    loss = t^2 KL(softmax(teacher / t) || softmax(auxiliary / t))        t = 1

(in general `distillation`'s loss, with a share of 1). The learngene is everything that was trained.
TLEG's and SWS' blocks are sums of stored ones:

    theta_i = sum over k of c_ik theta_k        block i = 0, ..., L - 1, over the stored blocks k

The method gives the numbers c_ik, and only the theta_k are trained, by the gradients of all blocks
that contain them. Their learngene has a ViT's tensors under timm's names, with the stored
blocks for its blocks. Descendants of any depth follow the same formula, with the c_ik of their
depth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

from learngene_zoo.plugin import (
    LIMITS,
    BadFile,
    Bounds,
    Extractor,
    Learngene,
    LearngeneConfig,
    Recipe,
    TextSpec,
    check_bounds,
    get_table,
    parse_details,
)
from lgzoo_baselines.blocks.block_choice import build_descendant
from lgzoo_baselines.trained.pretrain_finetune import MINI, SMOKE, TRAINING
from lgzoo_baselines.trained.with_teacher import TOKENS, DistillationSettings, train_with_teacher

if TYPE_CHECKING:
    from learngene_zoo.plugin import (
        Ancestry,
        Descendant,
        Json,
        Part,
        Run,
        Spec,
        StateDict,
        Target,
        Task,
        TimmModel,
    )

# In both papers, what the authors' code gives the auxiliary models of DeiT-Small's width; those of
# DeiT-Base's have 100 epochs.
AUXILIARY = Recipe(
    epochs=150,
    batch_size=512,
    lr=5e-4,
    min_lr=1e-5,
    warmup=5,
    mixup=0.8,
    cutmix=1.0,
    augment="deit",
    repeats=3,
)
LOGITS = DistillationSettings(share=1.0, temperature=1.0)  # the teacher's logits, and no labels

T = TypeVar("T", bound=Extractor)
Shapes = Mapping[str, tuple[int, ...]]
Rows = tuple[tuple[float, ...], ...]  # c_ik: for each layer, the share of each stored block


@dataclass(frozen=True, kw_only=True)
class HeadRecord:
    """Record the task of the stored head; the details of all learngenes with a head hold it."""

    task: str | None = None  # of the stored head; None before the extraction
    classes: Annotated[
        int | None, "number of classes of that task", Bounds(least=1, most=LIMITS["classes"])
    ] = None
    dense: bool = False

    def __post_init__(self) -> None:
        check_bounds(self)

    def with_task(self, task: Task) -> Self:
        """Return a copy with the head of this task."""
        return replace(self, task=task.name, classes=task.classes, dense=task.dense)

    def has_head_for(self, target: Target, spec: Spec) -> bool:
        """Return whether a descendant of shape `spec` inherits the stored head."""
        is_same_task = target.task is not None and target.task == self.task
        return is_same_task and (spec.classes, spec.dense) == (self.classes, self.dense)


@dataclass(frozen=True, kw_only=True)
class StoredBlocksDetails(HeadRecord):
    """Record what `details` of a learngene of TLEG or SWS hold."""

    blocks: Annotated[int, "number of stored blocks", Bounds(least=1, most=LIMITS["layers"])]


def derive_auxiliary_spec(ancestry: Spec, layers: int) -> Spec:
    """Return the shape of an auxiliary model of so many layers.

    Of images it is the ancestry's without class token and registers, of texts the ancestry's.
    """
    if isinstance(ancestry, TextSpec):
        return ancestry.with_(layers=layers)
    return ancestry.with_(layers=layers, pool="avg", class_token=False, registers=0)


def assemble_start(spec: Spec, weights: StateDict, ancestry: Ancestry, seed: int) -> Descendant:
    """Return a model with these weights that sees images as the ancestry model does.

    Args:
        spec: the shape of the model.
        weights: its tensors.
        ancestry: whose normalisation, resizing and cropping the model has.
        seed: of the tensors that `weights` lacks.
    """
    from learngene_zoo.plugin import assemble

    record = ancestry.record
    inputs: Any = {"mean": record.mean, "std": record.std, "view": record.view}
    return assemble(spec, weights, seed=seed, files=ancestry.files, **inputs)


def start_auxiliary(
    spec: Spec, init: Literal["timm", "fan_in"], ancestry: Ancestry, seed: int
) -> Descendant:
    """Return a plain model with random weights that sees images as the ancestry model does.

    Args:
        spec: the shape of the model.
        init: the scheme of the weights.
        ancestry: whose normalisation, resizing and cropping the model has.
        seed: of the weights.
    """
    from learngene_zoo.plugin import initialise

    return assemble_start(spec, initialise(spec, seed, init), ancestry, seed)


def collect_learngene(
    config: LearngeneConfig, details: HeadRecord, trained: Part, teacher_metrics: Mapping[str, Json]
) -> Learngene:
    """Return the learngene that holds what was trained.

    Args:
        config: the outline.
        details: the method's record, with the task of the head.
        trained: the part of the run with the learngene's tensors and the metrics.
        teacher_metrics: of `prepare_teacher`.
    """
    metrics = {**trained.record, **({"teacher": teacher_metrics} if teacher_metrics else {})}
    return Learngene(
        config=replace(config.with_details(details), metrics=metrics), state=trained.state
    )


def build_presets(
    extractor: Callable[..., T], settings: DistillationSettings = LOGITS, **smoke: Any
) -> dict[str, T]:
    """Return the presets of a method with an auxiliary model.

    Args:
        extractor: the method's class.
        settings: shares of the losses; their recipe is replaced by that of the preset.
        smoke: further settings of the preset `smoke`.
    """
    tuning = replace(TRAINING, epochs=4, images=6000)
    return {
        # On few images of many classes logits alone hardly leave chance.
        "mini": extractor(
            init="fan_in", each=replace(settings, tokens=TOKENS, training=MINI), teaching=tuning
        ),
        "paper": extractor(
            each=replace(settings, training=AUXILIARY),
            teaching=replace(AUXILIARY, epochs=30, lr=1e-4),
        ),
        "smoke": extractor(
            init="fan_in", each=replace(settings, training=SMOKE), teaching=SMOKE, **smoke
        ),
    }


def derive_stored_spec(config: LearngeneConfig, details: StoredBlocksDetails) -> Spec:
    """Return the shape of the plain model whose tensors, and blocks, are the stored ones."""
    return config.spec.with_(layers=details.blocks, classes=details.classes, dense=details.dense)


def start_stored_blocks(
    spec: Spec,
    slopes: Sequence[int],
    init: Literal["timm", "fan_in"],
    ancestry: Ancestry,
    seed: int,
) -> Descendant:
    """Return the plain model of the stored blocks with random weights.

    Args:
        spec: the shape, as `derive_stored_spec` returns it.
        slopes: stored blocks that are added to others: their norms and biases start at 0.
        init: the scheme of the matrices.
        ancestry: whose normalisation, resizing and cropping the model has.
        seed: of the weights.
    """
    from lgzoo_baselines.modules.mixed_blocks import initialise_stored_blocks

    return assemble_start(spec, initialise_stored_blocks(spec, slopes, seed, init), ancestry, seed)


def train_auxiliary(
    settings: DistillationSettings,
    rows: Rows,
    start: Descendant,
    teacher: Descendant | TimmModel,
    task: Task,
    run: Run,
) -> tuple[StateDict, Json]:
    """Train the stored blocks in an auxiliary model; return their model's tensors and metrics.

    Args:
        settings: the recipe, and the shares of the losses.
        rows: c_ik of the auxiliary model.
        start: the plain model of the stored blocks.
        teacher: a classifier of the task.
        task: whose images they see.
        run: the part of the run.
    """
    from lgzoo_baselines.modules.mixed_blocks import install_mixed_blocks

    label = f"auxiliary model of {len(rows)} layers on {task.name}"
    model = install_mixed_blocks(start.model(), rows)
    return train_with_teacher(
        settings, model, start.spec, start.input_format, teacher, task, run, label
    )


def build_from_rows(
    learngene: Learngene, target: Target, rows: Rows, run: Run, provenance: dict[str, Json]
) -> Descendant:
    """Build the descendant whose layers are the sums of `rows`.

    Its head is new, unless its task is the learngene's.

    Args:
        learngene: of TLEG or SWS.
        target: the sizes of the descendant.
        rows: c_ik of the descendant.
        run: gives the seed of new tensors.
        provenance: recorded in the descendant.

    Raises:
        BadFile: for a learngene that lacks a tensor, or has another number of stored blocks.
    """
    from learngene_zoo.plugin import get_shapes
    from lgzoo_baselines.modules.mixed_blocks import mix_blocks

    config, spec = learngene.config, target.apply(learngene.config.spec)
    details = parse_details(config, StoredBlocksDetails)
    if details.blocks != len(rows[0]):
        raise BadFile(
            f"the {config.method} learngene says blocks {details.blocks}; expected {len(rows[0])}"
        )
    stored = derive_stored_spec(config, details)
    expected = select_shapes(get_shapes(stored), stored, head=details.has_head_for(target, spec))
    parts = mix_blocks(load_tensors(learngene, expected), stored, rows)
    return build_descendant(learngene, spec, parts, run, provenance)


def select_shapes(shapes: Shapes, spec: Spec, *, head: bool) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a model's tensors, with or without those of its head."""
    table = get_table(spec)
    return {name: shape for name, shape in shapes.items() if head or not table.is_head(name)}


def load_tensors(learngene: Learngene, expected: Shapes) -> StateDict:
    """Return a learngene's tensors of these names.

    Raises `BadFile` for a tensor that is missing or has another shape than the expected one.
    """
    from learngene_zoo.plugin import read_shapes

    stored, method = read_shapes(learngene.state), learngene.config.method
    for name, shape in expected.items():
        if stored.get(name) != shape:
            fault = f"{name} has shape {stored[name]}" if name in stored else f"{name} is missing"
            raise BadFile(
                f"the {method} learngene: {fault}; expected shape {shape}: "
                "extract or fetch it again"
            )
    return {name: learngene.state[name] for name in expected}
