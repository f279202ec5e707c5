"""Steps of meta-training that TAL, LoGAH and GHN-3 share, in the order of an extraction.

`split_tasks` and `embed_tasks` prepare the data, `meta_train_on_source` and `meta_train_on_groups`
train stage 1 and stage 2 without guidance, and `collect_learngene` writes the result. Each step
of training draws an architecture, predicts its weights, and backpropagates the task's loss and
3e-5 times the norms of the predicted tensors into the hypernetwork.
"""

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
    build_model,
    compute_once,
    derive_seed,
    evaluate,
    get_state_dict,
    load_training_images,
    mark_chance,
    name_option,
    open_task,
    parse_details,
    print_note,
    train,
)
from lgzoo_tal.architectures import draw_training_set
from lgzoo_tal.config import Curriculum, Stage
from lgzoo_tal.hypernet_spec import (
    TASKS,
    HypernetDetails,
    HypernetSpec,
    get_prefix,
    is_encoder,
    is_inheriting,
    to_learngene_name,
)
from lgzoo_tal.modules.embedding import EmbeddingSettings, embed_task
from lgzoo_tal.modules.hypernet import Hypernet, predict_tensors
from lgzoo_tal.modules.mixture import TaskMixture
from lgzoo_tal.modules.objective import Guide, MetaObjective, TaskSpec

Donor = Spec | Ancestry
Groups = Mapping[str | None, tuple[Task, ...]]  # the tasks of a hypernetwork, by its owner


def split_tasks(
    curriculum: Curriculum, ancestry: Spec, tasks: Sequence[Task], run: Run
) -> tuple[Task | None, tuple[Task, ...]]:
    """Return the task of stage 1 and those of stage 2.

    The source task is opened unless it is among the tasks. A note says if there is no stage 1
    because the default source task does not suit the model.

    Args:
        curriculum: the tasks of both stages.
        ancestry: the shape of the ancestry model.
        tasks: the opened tasks.
        run: whether the network may be used.

    Raises:
        WrongCall: without any task, for a segmentation task, and for image tasks and text tasks.
    """
    named = curriculum.source
    curriculum = curriculum.for_inputs(ancestry)
    if curriculum.source != named:
        print_note(
            f"there is no stage 1: {named} is an image task, and the model takes texts; "
            f"{name_option('source')} takes a text task",
            "no stage 1",
        )
    if not tasks and curriculum.source is None:
        raise WrongCall(
            f"there is no task to train on; add some with {name_option('tasks')}, or a "
            f"{name_option('source')}"
        )
    _check_dense(tasks)
    if curriculum.source is None:
        return None, tuple(tasks)
    given = [task for task in tasks if task.name == curriculum.source]
    source = given[0] if given else open_task(curriculum.source, offline=run.offline)
    _check_dense([source])
    other = next((task for task in tasks if task.is_text != source.is_text), None)
    if other is not None:
        raise WrongCall(
            f"the source task {source.name} has {source.sample_noun}s and {other.name} has"
            f" {other.sample_noun}s; choose another {name_option('source')}, or none"
        )
    return source, tuple(task for task in tasks if task.name != source.name)


def _check_dense(tasks: Sequence[Task]) -> None:
    for task in tasks:
        if task.dense:
            raise WrongCall(
                f"{task.name} is a segmentation task, but hypernetworks predict no dense head; "
                "leave it out"
            )


def embed_tasks(
    curriculum: Curriculum,
    ancestry: Ancestry,
    source: Task | None,
    tasks: Sequence[Task],
    run: Run,
) -> dict[str, Part]:
    """Compute the embeddings of the tasks of both stages.

    Args:
        curriculum: whether there is a task layer, and the number of images of an embedding.
        ancestry: the model whose features are averaged.
        source: the task of stage 1.
        tasks: those of stage 2.
        run: each embedding is a part of it.

    Returns:
        The parts by task; none without a task layer, or without a stage 2 that trains it.
    """
    if not curriculum.task_layer or not tasks:
        return {}
    settings = EmbeddingSettings(images=curriculum.embedding_images)
    return {
        task.name: compute_once(
            run.part(f"embeddings/{task.name}"),
            "tal.embeddings",
            embed_task,
            settings,
            [ancestry, task],
        )
        for task in ([source] if source else []) + list(tasks)
    }


def group_tasks(curriculum: Curriculum, tasks: tuple[Task, ...]) -> Groups:
    """Return the tasks that share a hypernetwork in stage 2.

    Its owner is a task, or None for the only hypernetwork.
    """
    if curriculum.joint:
        return {None: tasks} if tasks else {}
    return {task.name: (task,) for task in tasks}


def meta_train_on_source(
    stage: Stage, ancestry: Ancestry, source: Task | None, run: Run
) -> Part | None:
    """Train stage 1 without guidance; return None without a source task."""
    if source is None:
        return None
    inputs = [choose_donor(stage, ancestry), ancestry.input_format, (source,), None, {}]
    return compute_once(run.part("stage-1"), "tal.meta_train", meta_train, stage, inputs)


def meta_train_on_groups(
    stage: Stage,
    ancestry: Ancestry,
    groups: Groups,
    first: Part | None,
    embeddings: Mapping[str, Part],
    run: Run,
) -> dict[str | None, Part]:
    """Train stage 2 for each group of tasks and return the hypernetworks by their owners.

    Args:
        stage: the settings of stage 2.
        ancestry: its shape and its input format are used; its embeddings if they are inherited.
        groups: the tasks of each hypernetwork.
        first: the hypernetwork of stage 1, from which all start.
        embeddings: the task embeddings by task.
        run: each training is a part of it.
    """
    return {
        owner: compute_once(
            get_stage_2_run(owner, run),
            "tal.meta_train",
            meta_train,
            stage,
            [choose_donor(stage, ancestry), ancestry.input_format, tasks, first, embeddings],
        )
        for owner, tasks in groups.items()
    }


def choose_donor(stage: Stage, ancestry: Ancestry) -> Donor:
    """Return what a stage takes from the ancestry model: its shape, or all of it.

    Hypernetworks for texts can inherit its embeddings.
    """
    return ancestry if is_inheriting(stage.hypernet) else ancestry.spec


def get_stage_2_run(owner: str | None, run: Run) -> Run:
    """Return the part of a run that is stage 2 of one hypernetwork."""
    return run.part(f"stage-2/{owner}" if owner else "stage-2")


def meta_train(
    stage: Stage,
    ancestry: Donor,
    input_format: InputFormat,
    tasks: tuple[Task, ...],
    before: Part | None,
    embeddings: Mapping[str, Part],
    run: Run,
) -> tuple[StateDict, Json]:
    """Train one stage: each step predicts an architecture of another size for one of the tasks.

    Args:
        stage: the settings of the stage.
        ancestry: the shape of the ancestry model, or the model.
        input_format: the format of the images.
        tasks: each step samples one of them.
        before: the hypernetwork of the stage before; None starts from a new one.
        embeddings: the task embeddings by task.
        run: how to compute.

    Returns:
        The trained tensors and the record of the training, as `MetaTraining.collect_result`.
    """
    hypernet = build_hypernet(stage.hypernet, before, run)
    training = MetaTraining(
        stage, hypernet, ancestry, input_format, tasks, run, embeddings=embeddings
    )
    objective, batches, label = training.objective, training.batches, training.label
    for step in train(objective, batches, stage.recipe, run, unused=True, label=label):
        objective.finished.fill_(step.step)  # the next step draws other architectures
    return training.collect_result()


def build_hypernet(spec: HypernetSpec, before: Part | None, run: Run) -> Hypernet:
    """Build a hypernetwork with the tensors of stage 1, if there was one.

    All other tensors, as those of its task layers, are initialised.
    """
    hypernet = Hypernet(spec, derive_seed(run.seed, "hypernet"))
    if before is not None:
        hypernet.load_state_dict({**hypernet.state_dict(), **before.state})
    return hypernet


def freeze_encoder(hypernet: Hypernet) -> None:
    """Freeze all parameters but those of the decoder and of the task layers."""
    for name, parameter in hypernet.named_parameters():
        parameter.requires_grad_(not is_encoder(name) or ".TEN." in name)


class MetaTraining:
    """The objective and the batches of one stage, and its result after the training.

    Args:
        stage: the settings of the stage.
        hypernet: the hypernetwork, which is trained in place.
        ancestry: the shape of the ancestry model, to which the architectures are scaled; or the
            model, of which the embeddings are inherited.
        input_format: the format of the images.
        tasks: each step samples one of them.
        run: how to compute.
        embeddings: the task embeddings by task.
        guide: the ancestry model that guides the training.
    """

    def __init__(
        self,
        stage: Stage,
        hypernet: Hypernet,
        ancestry: Donor,
        input_format: InputFormat,
        tasks: Sequence[Task],
        run: Run,
        *,
        embeddings: Mapping[str, Part] | None = None,
        guide: Guide | None = None,
    ) -> None:
        self.stage, self.run, self.tasks = stage, run, tasks
        spec = ancestry.spec if isinstance(ancestry, Ancestry) else ancestry
        if isinstance(ancestry, Ancestry) and is_inheriting(stage.hypernet):
            from lgzoo_tal.modules.text_embeddings import read_tables, store_embeddings

            stored = store_embeddings(ancestry.state, spec)
            hypernet.tables = read_tables(stored, spec, "the ancestry model")
        vectors = {name: part.state["embedding"] for name, part in (embeddings or {}).items()}
        task_specs = [
            TaskSpec(
                classes=task.classes,
                attributes=task.attributes if stage.attributes else (),
                embedding=vectors.get(task.name),
            )
            for task in tasks
        ]
        self.objective = MetaObjective(
            hypernet,
            draw_training_set(stage.step.architectures, stage.step.hold_out, spec),
            task_specs,
            run.seed,
            meta_batch=stage.step.meta_batch,
            norm_weight=stage.step.norm_weight,
            label_smoothing=stage.recipe.label_smoothing,
            guide=guide,
        )
        self.batches = TaskMixture(
            {
                task.name: load_training_images(task, input_format, stage.recipe, run)
                for task in tasks
            },
            batch_size=stage.recipe.batch_size,
            temperature=stage.sampling,
            seed=derive_seed(run.seed, "tasks"),
        )
        self.label = f"hypernetwork on {', '.join(task.name for task in tasks)}"

    def collect_result(self) -> tuple[StateDict, Json]:
        """Return the trained tensors by the released code's names, and a record.

        The record holds the length of the training and the accuracy of predicted models.
        """
        epochs = self.stage.recipe.epochs
        record: dict[str, Json] = {
            "training_images": self.batches.images,
            "epochs": epochs,
            "steps": epochs * self.batches.steps,
        }
        if self.stage.step.judged != 0:
            found = {
                task.name: dict(self._measure_accuracies(number))
                for number, task in enumerate(self.tasks)
            }
            record |= {"untrained": found, **self._mark_chance(found)}
        state = get_state_dict(self.objective.hypernet.cpu())
        return {name: tensor.clone() for name, tensor in state.items()}, record

    def _mark_chance(self, found: Mapping[str, Mapping[str, float]]) -> dict[str, Json]:
        """Return the tasks on which no predicted model is better than a constant answer, each with
        a warning.
        """
        recipe, images = self.stage.recipe, self.stage.step.judged
        marks = {
            task.name: mark_chance(max(found[task.name].values()), task, recipe, images=images)
            for task in self.tasks
        }
        at_chance = {name: mark for name, mark in marks.items() if mark}
        return {"tasks_at_chance": at_chance} if at_chance else {}

    def _measure_accuracies(self, number: int) -> Iterator[tuple[str, float]]:
        """Yield the validation accuracy of predicted models of three depths on one task.

        Each comes with the size of the model, layers x width.
        """
        task, task_spec = self.tasks[number], self.objective.task_specs[number]
        images, input_format = self.stage.step.judged, self.batches.input_format
        for spec in select_evaluated_sizes(self.objective.architectures):
            spec = spec.with_(classes=task.classes)
            tensors = predict_tensors(self.objective.hypernet, spec, task_spec.embedding, self.run)
            model = build_model(spec, tensors)
            result = evaluate(model, task, "validation", input_format, self.run, images=images)
            yield f"{spec.layers}x{spec.width}", round(result.value, 4)


def select_evaluated_sizes(architectures: Sequence[Spec]) -> list[Spec]:
    """Return the widest architectures of the smallest, the middle and the largest depth."""
    depths = sorted({spec.layers for spec in architectures})
    chosen = sorted({depths[0], depths[len(depths) // 2], depths[-1]})
    return [
        max((spec for spec in architectures if spec.layers == depth), key=lambda spec: spec.width)
        for depth in chosen
    ]


def collect_learngene(
    outline: LearngeneConfig,
    source: Task | None,
    tasks: Sequence[Task],
    first: Part | None,
    seconds: Mapping[str | None, Part],
    embeddings: Mapping[str, Part],
    ancestry: Ancestry | None = None,
) -> Learngene:
    """Return the learngene of the hypernetworks of stage 2 and the task embeddings.

    Args:
        outline: the config of the extraction.
        source: the task of stage 1.
        tasks: those of stage 2.
        first: the result of stage 1, which is written if there is no stage 2.
        seconds: the results of stage 2 by the hypernetworks' owners.
        embeddings: the task embeddings by task.
        ancestry: the model, whose embeddings of words are stored if they are inherited.
    """
    state: StateDict = {
        f"{TASKS}{name}": part.state["embedding"] for name, part in embeddings.items()
    }
    if ancestry is not None and is_inheriting(parse_details(outline, HypernetDetails).hypernetwork):
        from lgzoo_tal.modules.text_embeddings import store_embeddings

        state = {**state, **store_embeddings(ancestry.state, ancestry.spec)}
    for owner, part in (seconds or ({None: first} if first else {})).items():
        prefix = get_prefix(owner)
        tensors = {f"{prefix}{to_learngene_name(name)}": part.state[name] for name in part.state}
        state = {**state, **tensors}
    metrics = {"stage_1": dict(first.record)} if first else {}
    if first and seconds:  # the models of stage 1 are not the result
        metrics["stage_1"].pop("tasks_at_chance", None)
    metrics |= {
        f"stage_2/{owner}" if owner else "stage_2": part.record for owner, part in seconds.items()
    }
    details = parse_details(outline, HypernetDetails)
    spec = details.hypernetwork
    details = replace(
        details,
        hypernet=spec if seconds else spec.without_task_layer(),
        tasks=tuple(task.name for task in tasks),
        apart=bool(seconds) and None not in seconds,
        embedded=tuple(embeddings),
        source=source.record if source else None,
    )
    config = replace(outline, metrics=metrics).with_details(details)
    return Learngene(config=config, state=state)
