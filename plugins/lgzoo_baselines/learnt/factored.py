"""Matrices of factors that all layers share and small scalers of each layer: WAVE, FINE, SWEET.

    W_i = form(factors, S_i)        every matrix of block i, from the scaler S_i

Factors and scalers are trained in an auxiliary model with the ancestry model as teacher. For a new
size the factors are unchanged: the scalers of a descendant of L' layers are interpolated linearly
between those of the auxiliary model's L layers, from the first to the last,

    S'_j = (1 - f) S_i + f S_(i + 1)        i + f = j (L - 1) / (L' - 1)

and are optionally trained on a task's images, with all factors frozen except those of a size. Each
layer has separate vectors (biases, norms) and scalers. The learngene has a ViT's tensors, with
every matrix of block i replaced by its scaler, and the factors under `blocks.shared.`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from learngene_zoo.plugin import (
    LearngeneConfig,
    Recipe,
    WrongCall,
    compute_once,
    get_table,
    name_option,
)
from lgzoo_baselines.blocks.block_choice import build_descendant
from lgzoo_baselines.learnt.auxiliary import (
    HeadRecord,
    collect_learngene,
    derive_auxiliary_spec,
    load_tensors,
    select_shapes,
    start_auxiliary,
)
from lgzoo_baselines.learnt.forms import Factorisation, compute_fan_in_std, list_matrices
from lgzoo_baselines.trained.with_teacher import (
    DistillationSettings,
    prepare_teacher,
    train_with_teacher,
)

if TYPE_CHECKING:
    from learngene_zoo.plugin import (
        Ancestry,
        Descendant,
        Json,
        Learngene,
        Run,
        Spec,
        StateDict,
        Target,
        Task,
        TimmModel,
    )

LEARNING = Recipe(epochs=0, lr=1e-3, weight_decay=0.0, clip=1.0, augment="none")
ScalerTraining = Annotated[
    Recipe, "training of scalers, biases, norms and head on images of the target's task"
]


def outline_factors(ancestry: Spec, form: Factorisation, details: HeadRecord) -> LearngeneConfig:
    """Return the config with the auxiliary model's shape, as deep as the ancestry model.

    Raises `WrongCall` for a shape whose matrices cannot be factorised.
    """
    spec = derive_auxiliary_spec(ancestry, ancestry.layers)
    form.list_draws(spec, compute_fan_in_std)
    return LearngeneConfig(spec=spec).with_details(details)


def extract_factors(
    extractor: Any,
    form: Factorisation,
    details: HeadRecord,
    name: str,
    ancestry: Ancestry,
    task: Task,
    run: Run,
) -> Learngene:
    """Return the learngene: stem, factors, scalers and vectors of all layers, final norm and head.

    Args:
        extractor: the method's settings: `each`, `teacher`, `teaching` and `init` are read.
        form: how matrices are factorised.
        details: the method's record, without a task.
        name: the name of the part of the run.
        ancestry: the teacher, unless `extractor` names another one.
        task: whose images they see.
        run: how to compute.
    """
    config = outline_factors(ancestry.spec, form, details)
    teacher, metrics = prepare_teacher(extractor.teacher, ancestry, task, extractor.teaching, run)
    part, spec = run.part("auxiliary"), config.spec.with_(classes=task.classes, dense=task.dense)
    start = start_auxiliary(spec, extractor.init, ancestry, part.seed)
    inputs = [form, extractor.init, start, teacher, task]
    trained = compute_once(part, name, train_factors, extractor.each, inputs)
    return collect_learngene(config, details.with_task(task), trained, metrics)


def train_factors(
    settings: DistillationSettings,
    form: Factorisation,
    init: str,
    start: Descendant,
    teacher: Descendant | TimmModel,
    task: Task,
    run: Run,
) -> tuple[StateDict, Json]:
    """Train factors and scalers in an auxiliary model; return its tensors and metrics.

    Args:
        settings: the recipe, and the shares of the losses.
        form: how matrices are factorised.
        init: the scheme of the matrices, "timm" or "fan_in".
        start: a plain model of the auxiliary model's shape; its matrices are not used.
        teacher: a classifier of the task.
        task: whose images they see.
        run: the part of the run.
    """
    from lgzoo_baselines.modules.factored import draw_factors, install_factored_blocks

    std = compute_fan_in_std if init == "fan_in" else (lambda shape: 0.02)
    factors, scalers = form.list_draws(start.spec, std)
    stored = draw_factors(start.state, start.spec, factors, scalers, run.seed)
    model = install_factored_blocks(start.model(), start.spec, stored, form)
    label = f"auxiliary model of {start.spec.layers} layers on {task.name}"
    return train_with_teacher(
        settings, model, start.spec, start.input_format, teacher, task, run, label
    )


def expand_factors(
    learngene: Learngene,
    details: HeadRecord,
    form: Factorisation,
    target: Target,
    learning: Recipe,
    run: Run,
) -> Descendant:
    """Build a descendant from the factors, with scalers for its layers.

    Positions are resized; the head is new unless the task is the learngene's.

    Args:
        learngene: of WAVE, FINE or SWEET.
        details: the record of its head.
        form: how its matrices are factorised.
        target: the sizes of the descendant.
        learning: of the scalers on the target's task; without epochs they stay interpolated.
        run: gives the seed, and computes the training.

    Raises:
        WrongCall: for a wider model, and where scalers are to learn without a task.
    """
    config = learngene.config
    named = target.whole_heads(config.spec) if target.heads is None else target
    spec = named.apply(config.spec)
    has_head = details.has_head_for(target, spec)
    outside, factors, layers = load_factors(learngene, details, form, head=has_head)
    layers = interpolate_layers(layers, spec.layers)
    deep = config.spec.with_(layers=spec.layers, classes=details.classes, dense=details.dense)
    narrow = deep.with_(width=spec.width, heads=spec.heads)
    parts = multiply_factors(outside, factors, layers, form, deep, narrow)
    start = build_descendant(learngene, spec, parts, run, {"learnt": bool(learning.epochs)})
    if not learning.epochs:
        return start
    return train_descendant(start, form, factors, layers, target, learning, run)


def load_factors(
    learngene: Learngene, details: HeadRecord, form: Factorisation, *, head: bool
) -> tuple[StateDict, StateDict, list[StateDict]]:
    """Return tensors outside of the blocks, factors, and scalers and vectors of each layer.

    Args:
        learngene: of WAVE, FINE or SWEET.
        details: the record of its head.
        form: how its matrices are factorised.
        head: whether its head is returned.
    """
    from learngene_zoo.plugin import get_shapes
    from lgzoo_baselines.modules.mixed_blocks import select_below

    spec = learngene.config.spec.with_(classes=details.classes, dense=details.dense)
    table, (factors, scalers) = get_table(spec), form.list_draws(spec, compute_fan_in_std)
    plain = select_shapes(get_shapes(spec), spec, head=head)
    matrices = {
        name
        for name, shape in plain.items()
        if len(shape) == 2 and table.block_of(name) is not None
    }
    expected = {
        name: scalers[table.inner_name(name)][0] if name in matrices else shape
        for name, shape in plain.items()
    }
    expected |= {f"blocks.shared.{name}": shape for name, (shape, _) in factors.items()}
    state = load_tensors(learngene, expected)
    layers: list[StateDict] = [select_below(state, f"blocks.{i}") for i in range(spec.layers)]
    outside = {name: tensor for name, tensor in state.items() if not name.startswith(table.prefix)}
    return outside, select_below(state, "blocks.shared"), layers


def interpolate_layers(layers: Sequence[StateDict], count: int) -> list[StateDict]:
    """Return as many layers on the lines between these; of a single layer the first."""
    from lgzoo_baselines.modules.mixed_blocks import add_blocks

    interpolated: list[StateDict] = []
    for j in range(count):
        position = j * (len(layers) - 1) / max(count - 1, 1)  # i + f
        i = min(int(position), len(layers) - 1)
        pair = layers[i : i + 2]
        interpolated.append(add_blocks((1 - position + i, position - i)[: len(pair)], pair))
    return interpolated


def multiply_factors(
    outside: StateDict,
    factors: StateDict,
    layers: Sequence[StateDict],
    form: Factorisation,
    spec: Spec,
    narrow: Spec,
) -> StateDict:
    """Return the tensors of a plain model whose matrices are computed from the factors.

    Args:
        outside: tensors outside of the blocks.
        factors: that all layers share.
        layers: scalers and vectors of each layer.
        form: how matrices are factorised.
        spec: the shape with as many layers, as wide as the auxiliary model.
        narrow: the shape that is returned: the first channels of `spec`.
    """
    from learngene_zoo.plugin import map_axes
    from lgzoo_baselines.modules.factored import name_blocks

    entries, kinds = form.select_entries(spec, narrow), list_matrices(spec)
    blocks = [form.build_block(factors, layer, kinds) for layer in layers]
    state = {**outside, **name_blocks(blocks, spec)}
    parts = map_axes(state, spec, entries) if entries else state
    return {name: tensor.contiguous() for name, tensor in parts.items()}


def train_descendant(
    start: Descendant,
    form: Factorisation,
    factors: StateDict,
    layers: Sequence[StateDict],
    target: Target,
    learning: Recipe,
    run: Run,
) -> Descendant:
    """Return a descendant whose scalers have learnt on the target's task.

    Args:
        start: with interpolated scalers.
        form: how its matrices are factorised.
        factors: of the learngene.
        layers: scalers and vectors for each layer of `start`, as wide as the auxiliary model.
        target: names the task.
        learning: the recipe.
        run: how to compute.

    Raises:
        WrongCall: for a target without a task.
    """
    from learngene_zoo.plugin import open_task
    from lgzoo_baselines.modules.factored import train_scalers

    if target.task is None:
        raise WrongCall(
            f"scalers learn from a task's images; name it with {name_option('task')}, or leave out "
            f"{name_option('epochs')}"
        )
    task, kinds = open_task(target.task, offline=run.offline), list_matrices(start.spec)
    narrowed = [
        form.narrow(factors, {kind: layer[kind] for kind in kinds}, start.spec) for layer in layers
    ]
    scalers = [layer for _, layer in narrowed]
    return start.with_state(
        train_scalers(learning, form, start, narrowed[0][0], scalers, task, run)
    )
