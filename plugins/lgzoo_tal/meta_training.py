"""The parts of meta-training that TAL, LoGAH and GHN-3 share: tasks, what a stage trains and what it leaves, the learngene."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from learngene_zoo.plugin import (
    Ancestry,
    InputFormat,
    Json,
    Learngene,
    LearngeneConfig,
    Part,
    Run,
    Spec,
    StateDict,
    Task,
    WrongCall,
    derive_seed,
    details_of,
    evaluate,
    model_of,
    once,
    open_task,
    state_of,
    training_images,
)
from lgzoo_tal.architectures import drawn
from lgzoo_tal.config import Curriculum, Stage
from lgzoo_tal.embedding import Embedding, embedded
from lgzoo_tal.hypernet import Hypernet, predicted
from lgzoo_tal.hypernet_spec import HypernetSpec
from lgzoo_tal.learngene import TASKS, Details, is_encoder, learngene_name, prefix_of
from lgzoo_tal.mixture import Mixture
from lgzoo_tal.objective import Guide, Lesson, MetaObjective


def tasks_of_stages(curriculum: Curriculum, tasks: Sequence[Task], run: Run) -> tuple[Task | None, tuple[Task, ...]]:
    """The task of stage 1, opened unless it is among the tasks, and those of stage 2. Raises `WrongCall`."""
    if not tasks and curriculum.source is None:
        raise WrongCall("there is no task to train on; add some with --task, or a --source")
    _check_dense(tasks)
    if curriculum.source is None:
        return None, tuple(tasks)
    named = [task for task in tasks if task.name == curriculum.source]
    source = named[0] if named else open_task(curriculum.source, offline=run.offline)
    _check_dense([source])
    return source, tuple(task for task in tasks if task.name != source.name)


def _check_dense(tasks: Sequence[Task]) -> None:
    for task in tasks:
        if task.dense:
            raise WrongCall(
                f"{task.name} is a segmentation task, but hypernetworks predict no dense head; leave it out"
            )


def task_embeddings(
    curriculum: Curriculum, ancestry: Ancestry, source: Task | None, tasks: Sequence[Task], run: Run
) -> dict[str, Part]:
    """The embeddings of the tasks of both stages by name; none without a task layer, or without a stage 2 that trains it."""
    if not curriculum.task_layer or not tasks:
        return {}
    settings = Embedding(images=curriculum.embedding_images)
    return {
        task.name: once(run.part(f"embeddings/{task.name}"), "tal.embeddings", embedded, settings, [ancestry, task])
        for task in ([source] if source else []) + list(tasks)
    }


def groups_of_tasks(curriculum: Curriculum, tasks: tuple[Task, ...]) -> dict[str | None, tuple[Task, ...]]:
    """The tasks that share a hypernetwork in stage 2, by its owner: a task, or None for the only one."""
    if curriculum.joint:
        return {None: tasks} if tasks else {}
    return {task.name: (task,) for task in tasks}


def stage_2_of(owner: str | None, run: Run) -> Run:
    """The part of a run that is stage 2 of one hypernetwork."""
    return run.part(f"stage-2/{owner}" if owner else "stage-2")


def starting(spec: HypernetSpec, before: Part | None, run: Run) -> Hypernet:
    """A hypernetwork with the tensors of stage 1, if there was one; the others, as its task layers, are freshly initialised."""
    hypernet = Hypernet(spec, derive_seed(run.seed, "hypernet"))
    if before is not None:
        hypernet.load_state_dict({**hypernet.state_dict(), **before.state})
    return hypernet


def freeze_encoder(hypernet: Hypernet) -> None:
    """Train the decoder and the task layers alone."""
    for name, parameter in hypernet.named_parameters():
        parameter.requires_grad_(not is_encoder(name) or ".TEN." in name)


class MetaTraining:
    """One stage, ready to be trained: what it minimises on which batches; afterwards its result."""

    def __init__(
        self,
        stage: Stage,
        hypernet: Hypernet,
        ancestry: Spec,
        input_format: InputFormat,
        tasks: Sequence[Task],
        run: Run,
        *,
        embeddings: Mapping[str, Part] | None = None,
        guide: Guide | None = None,
    ) -> None:
        self.stage, self.run, self.tasks = stage, run, tasks
        vectors = {name: part.state["embedding"] for name, part in (embeddings or {}).items()}
        lessons = [
            Lesson(
                classes=task.classes,
                attributes=task.attributes if stage.attributes else (),
                embedding=vectors.get(task.name),
            )
            for task in tasks
        ]
        self.objective = MetaObjective(
            hypernet,
            drawn(stage.step.architectures, stage.step.hold_out, ancestry),
            lessons,
            run.seed,
            meta_batch=stage.step.meta_batch,
            norm_weight=stage.step.norm_weight,
            label_smoothing=stage.recipe.label_smoothing,
            guide=guide,
        )
        self.batches = Mixture(
            {task.name: training_images(task, input_format, stage.recipe, run) for task in tasks},
            batch_size=stage.recipe.batch_size,
            temperature=stage.sampling,
            seed=derive_seed(run.seed, "tasks"),
        )
        self.label = f"hypernetwork on {', '.join(task.name for task in tasks)}"

    def result(self) -> tuple[StateDict, Json]:
        """The trained tensors by the released code's names; the training's length, and the accuracy of predicted models."""
        epochs = self.stage.recipe.epochs
        record: dict[str, Json] = {
            "training_images": self.batches.images,
            "epochs": epochs,
            "steps": epochs * self.batches.steps,
        }
        if self.stage.step.judged != 0:
            record["untrained"] = {task.name: dict(self._accuracies(number)) for number, task in enumerate(self.tasks)}
        state = state_of(self.objective.hypernet.cpu())
        return {name: tensor.clone() for name, tensor in state.items()}, record

    def _accuracies(self, number: int) -> Iterator[tuple[str, float]]:
        """Validation accuracy of predicted models of three depths on one task, by layers x width."""
        task, lesson = self.tasks[number], self.objective.lessons[number]
        for spec in evaluated_sizes(self.objective.architectures):
            spec = spec.with_(classes=task.classes)
            model = model_of(spec, predicted(self.objective.hypernet, spec, lesson.embedding, self.run))
            images, view = self.stage.step.judged, self.batches.input_format
            value = evaluate(model, task, "validation", view, self.run, images=images).value
            yield f"{spec.layers}x{spec.width}", round(value, 4)


def evaluated_sizes(architectures: Sequence[Spec]) -> list[Spec]:
    """The widest architectures of the smallest, the middle and the largest depth."""
    depths = sorted({spec.layers for spec in architectures})
    chosen = sorted({depths[0], depths[len(depths) // 2], depths[-1]})
    return [max((s for s in architectures if s.layers == layers), key=lambda spec: spec.width) for layers in chosen]


def learngene_of(
    outline: LearngeneConfig,
    source: Task | None,
    tasks: Sequence[Task],
    first: Part | None,
    seconds: Mapping[str | None, Part],
    embeddings: Mapping[str, Part],
) -> Learngene:
    """The hypernetworks of stage 2 by their owners, or without a stage 2 that of stage 1; and the tasks' embeddings."""
    state: StateDict = {f"{TASKS}{name}": part.state["embedding"] for name, part in embeddings.items()}
    for owner, part in (seconds or ({None: first} if first else {})).items():
        state = {**state, **{f"{prefix_of(owner)}{learngene_name(name)}": part.state[name] for name in part.state}}
    metrics = {"stage_1": first.record} if first else {}
    metrics |= {f"stage_2/{owner}" if owner else "stage_2": part.record for owner, part in seconds.items()}
    details = details_of(outline, Details)
    details = replace(
        details,
        hypernet=details.hypernetwork if seconds else details.hypernetwork.without_task_layer(),
        tasks=tuple(task.name for task in tasks),
        apart=bool(seconds) and None not in seconds,
        embedded=tuple(embeddings),
        source=source.record if source else None,
    )
    return Learngene(config=replace(outline, details=details.json(), metrics=metrics), state=state)
