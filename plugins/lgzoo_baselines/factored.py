"""Auxiliary models whose matrices are made of factors that all layers share and small scalers of each layer's own: WAVE, FINE, SWEET.

    W_i = form(factors, S_i)        every matrix of block i, from the scaler S_i

Factors and scalers learn with the ancestry model as their teacher. For a new size the factors stay: a descendant of L' layers has
scalers on the lines between those of the auxiliary model's L layers, its first layer those of the first and its last those of the last,

    S'_j = (1 - f) S_i + f S_(i + 1)        i + f = j (L - 1) / (L' - 1)

and may learn them on a task's images, with the factors frozen but those of a size. Vectors (biases, norms) are each layer's own, as scalers are. The learngene
holds a ViT's tensors, but for each matrix of block i its scaler, under the matrix's name, and the factors under `blocks.shared.`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar

from learngene_zoo.plugin import (
    FLAT,
    Expander,
    LearngeneConfig,
    Member,
    Recipe,
    WrongCall,
    details_of,
    once,
    table_of,
)
from lgzoo_baselines.auxiliary import Origin, Taught, held, opened, read_from, without_token
from lgzoo_baselines.block_choice import completed, narrower
from lgzoo_baselines.distillation import Distilling, taught
from lgzoo_baselines.forms import Form, fan_in, matrices

if TYPE_CHECKING:
    from learngene_zoo.plugin import (
        Ancestry,
        Descendant,
        Json,
        Learngene,
        Part,
        Run,
        Spec,
        StateDict,
        Target,
        Task,
        TimmModel,
    )

LEARNING = Recipe(epochs=0, lr=1e-3, weight_decay=0.0, clip=1.0, augment="none")


@dataclass(frozen=True, kw_only=True)
class Factor(Taught):
    """Train factors and scalers in an auxiliary model of as many layers as the ancestry model has."""

    details: ClassVar[type[Origin]]

    form: Form = field(metadata=FLAT)

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """The auxiliary model's shape. Raises `WrongCall` for one whose matrices cannot be made so."""
        spec = without_token(ancestries[0], ancestries[0].layers)
        self.form.draws(spec, fan_in)
        return LearngeneConfig(method=self.method, spec=spec, details=self.details(form=self.form).json())  # type: ignore[call-arg]

    def learnt(
        self, config: LearngeneConfig, ancestry: Ancestry, teacher: Descendant | TimmModel, task: Task, part: Run
    ) -> tuple[Origin, Part]:
        """Stem, factors, scalers and vectors of all layers, final norm and head."""
        from learngene_zoo.plugin import initial

        details = details_of(config, self.details).of(task)
        spec = config.spec.with_(classes=task.classes, dense=task.dense)
        start = opened(spec, initial(spec, part.seed, self.init), ancestry, part.seed)
        return details, once(
            part, f"{self.method}.train_factors", factored, self.each, [self.form, self.init, start, teacher, task]
        )


def factored(
    settings: Distilling,
    form: Form,
    init: str,
    start: Descendant,
    teacher: Descendant | TimmModel,
    task: Task,
    run: Run,
) -> tuple[StateDict, Json]:
    """The auxiliary model's tensors after its training, and its metrics."""
    from lgzoo_baselines.factored_blocks import drawn, made_of

    std = fan_in if init == "fan_in" else (lambda matrix: 0.02)
    factors, scalers = form.draws(start.spec, std)
    stored = drawn(start.state, start.spec, factors, scalers, run.seed)
    model = made_of(start.model(), start.spec, stored, form)
    label = f"auxiliary model of {start.spec.layers} layers on {task.name}"
    return taught(settings, model, start.spec, start.input_format, teacher, task, run, label)


@dataclass(frozen=True, kw_only=True)
class Rescale(Expander):
    """The same factors with scalers for as many layers as are named."""

    details: ClassVar[type[Origin]]

    learning: Annotated[Recipe, "of the scalers, vectors, final norm and head, on images of the target's task"] = (
        LEARNING
    )

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Every depth up to the auxiliary model's, and where widths can change every width in whole heads."""
        members = narrower(config)
        return members if "width" in self.axes else [one for one in members if one.spec.width == config.spec.width]

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Positions resized, a new head unless the task is the learngene's.

        Raises `WrongCall` for a wider model, and where scalers are to learn without a task.
        """
        from learngene_zoo.plugin import mapped
        from lgzoo_baselines.factored_blocks import laid_out

        config = learngene.config
        spec = (target.whole_heads(config.spec) if target.heads is None else target).apply(config.spec)
        details = details_of(config, self.details)
        form: Form = details.form  # type: ignore[attr-defined]
        state, factors, layers = read(learngene, form, details, head=details.serves(target, spec))
        layers = between(layers, spec.layers)
        deep = config.spec.with_(layers=spec.layers, classes=details.classes, dense=details.dense)
        small = deep.with_(width=spec.width, heads=spec.heads)
        indices = form.indices(deep, small)
        kinds = matrices(deep)
        whole = [form.made(factors, layer, kinds) for layer in layers]
        parts = (
            mapped({**state, **laid_out(whole, deep)}, deep, indices) if indices else {**state, **laid_out(whole, deep)}
        )
        parts = {name: tensor.contiguous() for name, tensor in parts.items()}
        made = completed(config, spec, parts, run, {"learnt": bool(self.learning.epochs)})
        return made if not self.learning.epochs else self._learnt(made, form, factors, layers, target, run)

    def _learnt(
        self, start: Descendant, form: Form, factors: StateDict, layers: list[StateDict], target: Target, run: Run
    ) -> Descendant:
        """With scalers that are learnt on the target's task. Raises `WrongCall` where it has none."""
        from learngene_zoo.plugin import open_task
        from lgzoo_baselines.factored_blocks import rescaled

        if target.task is None:
            raise WrongCall("scalers learn from a task's images; name it with --task, or leave out --epochs")
        task, kinds = open_task(target.task, offline=run.offline), matrices(start.spec)
        small = [form.narrowed(factors, {kind: layer[kind] for kind in kinds}, start.spec) for layer in layers]
        own = [scalers for _, scalers in small]
        return start.with_state(rescaled(self.learning, form, start, small[0][0], own, task, run))


def between(layers: Sequence[StateDict], count: int) -> list[StateDict]:
    """As many layers on the lines between these; of one layer the first."""
    from lgzoo_baselines.mixed_blocks import weighted

    made: list[StateDict] = []
    for j in range(count):
        place = j * (len(layers) - 1) / max(count - 1, 1)
        i = min(int(place), len(layers) - 1)
        pair = layers[i : i + 2]
        made.append(weighted((1 - place + i, place - i)[: len(pair)], pair))
    return made


def read(
    learngene: Learngene, form: Form, details: Origin, *, head: bool
) -> tuple[StateDict, StateDict, list[StateDict]]:
    """What such a learngene holds: the tensors outside of the blocks, the factors, and scalers and vectors of each layer."""
    from learngene_zoo.plugin import shapes
    from lgzoo_baselines.mixed_blocks import below

    spec = learngene.config.spec.with_(classes=details.classes, dense=details.dense)
    table, (factors, scalers) = table_of(spec), form.draws(spec, fan_in)
    plain = read_from(shapes(spec), spec, head=head)
    stored = {
        name: scalers[table.inner_name(name)][0] if len(shape) == 2 and table.block_of(name) is not None else shape
        for name, shape in plain.items()
    }
    state = held(learngene, {**stored, **{f"blocks.shared.{name}": shape for name, (shape, _) in factors.items()}})
    layers: list[StateDict] = [below(state, f"blocks.{i}") for i in range(spec.layers)]
    outside = {name: tensor for name, tensor in state.items() if not name.startswith(table.prefix)}
    return outside, below(state, "blocks.shared"), layers
