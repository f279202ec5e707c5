"""Both stages of an extraction, and the embeddings between them; each is a part of the run.

Stage 1 is on the source task, stage 2 on the other ones: on all together, or on each by itself from what stage 1 left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch

from learngene_zoo.plugin import (
    Ancestry,
    InputFormat,
    Json,
    Learngene,
    LearngeneConfig,
    Recipe,
    Run,
    StateDict,
    Task,
    ViTSpec,
    WrongCall,
    assemble,
    derive_seed,
    fingerprint_of,
    open_device,
    open_task,
    state_of,
    to_json,
    train,
    training_images,
)
from lgzoo_tal.course import Course
from lgzoo_tal.details import read_details
from lgzoo_tal.embedding import embed
from lgzoo_tal.guidance import Guide
from lgzoo_tal.hypernet import Hypernet
from lgzoo_tal.judging import untrained
from lgzoo_tal.meta import Lesson, MetaObjective, Rules
from lgzoo_tal.mixture import Mixture
from lgzoo_tal.tensors import TASKS, is_encoder, learngene_name, prefix_of
from lgzoo_tal.variants import HypernetSpec


@dataclass(frozen=True, kw_only=True)
class Extraction:
    """One extraction: what is to be done, with which ancestry, on which tasks of stage 2."""

    course: Course
    ancestry: Ancestry
    tasks: tuple[Task, ...]
    source: Task | None
    run: Run

    @property
    def input_format(self) -> InputFormat:
        """How all models see images, predicted ones and the ancestry."""
        return self.ancestry.input_format

    @cached_property
    def zoo(self) -> tuple[ViTSpec, ...]:
        """The architectures that are trained on."""
        return self.course.drawn(self.ancestry.spec)

    @cached_property
    def identity(self) -> dict[str, Json]:
        """What every part depends on beside settings and tasks."""
        return {
            "ancestry": to_json(self.ancestry.spec),
            "view": to_json(self.input_format),
            "precision": self.run.precision,
        }

    @cached_property
    def ancestor(self) -> dict[str, Json]:
        """What those parts depend on that ask the ancestry model."""
        whole = assemble(self.ancestry.spec, self.ancestry.state, seed=0)
        return {"ancestor": fingerprint_of(whole)}


def extract(course: Course, config: LearngeneConfig, ancestry: Ancestry, tasks: Sequence[Task], run: Run) -> Learngene:
    """The learngene: every hypernetwork, and the embeddings of the tasks. `config` is its outline."""
    source, others = _source_and_others(course, tasks, run)
    made = Extraction(course=course, ancestry=ancestry, tasks=others, source=source, run=run)
    embeddings = _embeddings(made)
    first, metrics = _stage_1(made)
    state: StateDict = {f"{TASKS}{name}": tensor for name, tensor in embeddings.items()}
    for task, group in _groups(made):
        tensors, record = _stage_2(made, task, group, first, embeddings) if group else (first, {})
        prefix = prefix_of(task)
        state = {**state, **{f"{prefix}{learngene_name(name)}": tensors[name] for name in tensors}}
        metrics |= record
    details = replace(
        read_details(config),
        hypernet=course.tuned_hypernet(ancestry.spec) if others else course.hypernet,
        tasks=tuple(task.name for task in others),
        apart=not course.joint and len(others) > 0,
        embedded=tuple(embeddings),
        source=source.record if source else None,
    )
    return Learngene(config=replace(config, details=details.json(), metrics=metrics), state=state)


def _source_and_others(course: Course, tasks: Sequence[Task], run: Run) -> tuple[Task | None, tuple[Task, ...]]:
    """The task of stage 1, opened unless it is among the tasks, and those of stage 2. Raises `WrongCall`."""
    dense = next((task for task in tasks if task.dense), None)
    if dense is not None:
        raise WrongCall(f"{dense.name} asks for the class of every pixel, and no such head is predicted; leave it out")
    if course.source is None:
        if not tasks:
            raise WrongCall("there is no task to train on; name some with --task, or a --source")
        return None, tuple(tasks)
    named = [task for task in tasks if task.name == course.source]
    source = named[0] if named else open_task(course.source, offline=run.offline)
    if source.dense:
        raise WrongCall(f"{source.name} asks for the class of every pixel; take another --source")
    return source, tuple(task for task in tasks if task.name != source.name)


def _groups(made: Extraction) -> list[tuple[str | None, tuple[Task, ...]]]:
    """The tasks that share a hypernetwork, and whose it is (None: the only one)."""
    if made.course.joint or not made.tasks:
        return [(None, made.tasks)]
    return [(task.name, (task,)) for task in made.tasks]


def _embeddings(made: Extraction) -> dict[str, torch.Tensor]:
    """Of every task of stage 2, and of the source task; none where there is no task layer."""
    if not made.course.task_layer or not made.tasks:
        return {}
    found = {}
    for task in (*([made.source] if made.source else []), *made.tasks):
        depends = {"embedding": made.course.embedding_images, "task": to_json(task.record)}
        compute = partial(_embedded, made, task)
        tensors, _ = made.run.part(f"embeddings/{task.name}").once(
            compute, {**depends, **made.identity, **made.ancestor}
        )
        found[task.name] = tensors["embedding"]
    return found


def _embedded(made: Extraction, task: Task, run: Run) -> tuple[StateDict, Json]:
    tensor = embed(made.ancestry.model(), task, made.input_format, run, made.course.embedding_images)
    return {"embedding": tensor}, {}


def _stage_1(made: Extraction) -> tuple[StateDict, dict[str, Any]]:
    """The hypernetwork after meta-training on the source task; nothing without one."""
    if made.source is None:
        return {}, {}
    tensors, record = made.run.part("stage-1").once(partial(_guided, made), _stage_1_depends(made))
    return tensors, {"stage_1": record}


def _stage_1_depends(made: Extraction) -> dict[str, Json]:
    task = to_json(made.source.record) if made.source else None
    asked = made.ancestor if made.course.guidance else {}
    return {**made.course.stage_settings(1), "task": task, **made.identity, **asked}


def _guided(made: Extraction, run: Run) -> tuple[StateDict, Json]:
    course, task = made.course, made.source
    assert task is not None
    hypernet = Hypernet(course.hypernet, derive_seed(run.seed, "hypernet"))
    attributes = task.attributes if course.attributes else ()
    lesson = Lesson(classes=task.classes, attributes=attributes)
    guide = Guide(made.ancestry.model().to(open_device(run)), course.guidance) if course.guidance else None
    return _trained(made, hypernet, [(task, lesson)], course.training, run, guide=guide)


def _stage_2(
    made: Extraction, own: str | None, tasks: tuple[Task, ...], first: StateDict, embeddings: dict[str, torch.Tensor]
) -> tuple[StateDict, dict[str, Any]]:
    """The hypernetwork of these tasks, from what stage 1 left."""
    name = f"stage-2/{own}" if own else "stage-2"
    depends = {
        **made.course.stage_settings(2),
        "tasks": [to_json(task.record) for task in tasks],
        "stage 1": {**_stage_1_depends(made), "seed": made.run.part("stage-1").seed} if made.source else None,
        **made.identity,
        **(made.ancestor if made.course.task_layer else {}),
    }
    compute = partial(_joint, made, tasks, first, embeddings)
    tensors, record = made.run.part(name).once(compute, depends)
    return tensors, {f"stage_2/{own}" if own else "stage_2": record}


def _joint(
    made: Extraction, tasks: tuple[Task, ...], first: StateDict, embeddings: dict[str, torch.Tensor], run: Run
) -> tuple[StateDict, Json]:
    course = made.course
    hypernet = inheriting(course.tuned_hypernet(made.ancestry.spec), first, derive_seed(run.seed, "hypernet"))
    if course.freeze:
        for name, parameter in hypernet.named_parameters():
            parameter.requires_grad_(not is_encoder(name) or ".TEN." in name)
    lessons = [(task, Lesson(classes=task.classes, embedding=embeddings.get(task.name))) for task in tasks]
    return _trained(made, hypernet, lessons, course.tuning, run)


def inheriting(spec: HypernetSpec, first: StateDict, seed: int) -> Hypernet:
    """A hypernetwork that starts from stage 1's tensors; what it has beyond them, a task layer, is as it is made."""
    hypernet = Hypernet(spec, seed)
    own = hypernet.state_dict()
    hypernet.load_state_dict({**own, **{name: first[name] for name in first}})
    return hypernet


def _trained(
    made: Extraction,
    hypernet: Hypernet,
    lessons: Sequence[tuple[Task, Lesson]],
    recipe: Recipe,
    run: Run,
    *,
    guide: Guide | None = None,
) -> tuple[StateDict, Json]:
    """Its tensors after training, by the released code's names, and what to record."""
    course = made.course
    rules = Rules(meta_batch=course.meta_batch, norm_weight=course.norm_weight, label_smoothing=recipe.label_smoothing)
    objective = MetaObjective(hypernet, made.zoo, [lesson for _, lesson in lessons], rules, run.seed, guide)
    loader = Mixture(
        {task.name: training_images(task, made.input_format, recipe, run) for task, _ in lessons},
        batch_size=recipe.batch_size,
        temperature=course.sampling,
        seed=derive_seed(run.seed, "tasks"),
    )
    label = f"hypernetwork on {', '.join(task.name for task, _ in lessons)}"
    for step in train(objective, loader, recipe, run, unused=True, label=label):
        objective.finished.fill_(step.step)
    record = {"training_images": loader.images, "epochs": recipe.epochs, "steps": recipe.epochs * loader.steps}
    judged = (
        {
            task.name: untrained(hypernet, made.zoo, task, lesson, made.input_format, run, course.judged)
            for task, lesson in lessons
        }
        if course.judged != 0
        else {}
    )
    tensors = {name: tensor.clone() for name, tensor in state_of(hypernet.cpu()).items()}
    return tensors, {**record, **({"untrained": judged} if judged else {})}
