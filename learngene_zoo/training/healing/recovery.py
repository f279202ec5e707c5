"""Train a descendant to predict the tokens of its ancestry model, on images without labels.

`recover` fits the maps, trains, and watches every epoch. The maps are not part of the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from learngene_zoo.artifacts.records import list_versions
from learngene_zoo.families.family import get_table
from learngene_zoo.families.picture_format import InputFormat, fit_view
from learngene_zoo.families.tensors import get_state_dict
from learngene_zoo.families.text_spec import TextSpec
from learngene_zoo.runs.cache import compute_once
from learngene_zoo.runs.run import Run, open_device
from learngene_zoo.seeds import derive_seed
from learngene_zoo.settings import Json, Recipe, to_json
from learngene_zoo.storage import StateDict
from learngene_zoo.training.distillation import Teacher, check_tokenizers
from learngene_zoo.training.fit import drop_training_records
from learngene_zoo.training.healing.blocks import match_blocks
from learngene_zoo.training.healing.fitting import fit_maps
from learngene_zoo.training.healing.objective import STREAMS, Recovery, Side
from learngene_zoo.training.healing.settings import HealConfig
from learngene_zoo.training.healing.watching import Examiner
from learngene_zoo.training.loop import train
from learngene_zoo.training.objectives import load_training_images
from learngene_zoo.training.watch import Epoch, Watch, choose_epoch

if TYPE_CHECKING:
    from learngene_zoo.artifacts.descendant import Descendant
    from learngene_zoo.families.text_format import TextFormat
    from learngene_zoo.pretrained.ancestry import Ancestry
    from learngene_zoo.tasks.task import Task


def recover(
    start: Descendant,
    ancestry: Ancestry,
    images: Task,
    recipe: Recipe,
    healing: HealConfig,
    run: Run,
    *,
    records: Mapping[str, Json],
    task: Task | None = None,
    task_format: InputFormat | TextFormat | None = None,
) -> Descendant:
    """Train `start` on the tokens of its ancestry model, and return it with a record `healed`.

    A training that diverges ends there: the weights of the best epoch until then are kept, or those
    of the start, and a `warning` in the metrics says so.

    Args:
        start: the descendant. Its head and its final norm are not trained.
        ancestry: the teacher.
        images: the images without labels, with held-out ones as validation images.
        recipe: settings of the training.
        healing: the other settings.
        run: folder, seed, device and so on.
        records: records of the student that `match_blocks` reads.
        task: probes of the features on this task choose the epoch; None: the held-out losses.
        task_format: how the images of the task are presented to the model.

    Raises:
        WrongCall: for a teacher with other patches, and if all losses are left out.
        BadData: for images that cannot be read.
        TrainingFailed: if tokens or features of the start are not finite.
    """
    objective = build_objective(start, ancestry, healing, run, records)
    seed = derive_seed(run.seed, "data")
    part = compute_once(
        run.part("maps"), "heal.maps", _fit_part, healing, (start, ancestry, images, seed, records)
    )
    objective.maps.load_state_dict(dict(part.state))
    objective.maps.requires_grad_(healing.maps == "learnt")
    input_format = objective.student_side.input_format
    loader = load_training_images(images, input_format, recipe, run)
    examiner = Examiner(
        objective=objective,
        images=images,
        input_format=input_format,
        run=run,
        task=task,
        task_format=task_format or input_format,
        map_images=healing.map_images,
        refit=healing.maps == "refit",
    )
    watch = Watch(run=run, keep=healing.keep, patience=healing.patience)
    # The loss of the streams alone reaches no parameters behind the last matched block.
    unused, label = set(objective.weights) == {STREAMS}, f"healing on {images.name}"
    steps = train(objective, loader, recipe, run, label=label, lines=False, unused=unused)
    failure = watch.follow(steps, objective.model, examiner, recipe.epochs)
    healed: dict[str, Json] = {
        "images": to_json(images.record),
        "recipe": to_json(recipe),
        "settings": to_json(healing),
        "seed": run.seed,
        "device": run.device_name,
        "versions": list_versions(),
        "metrics": {
            **({"task": task.name} if task is not None else {}),
            "training_images": loader.images,
            "held_out_images": examiner.held_out.images,
            # Of the task, on which the features are probed
            **({"validation_images": watch.images} if task is not None else {}),
            "epochs": recipe.epochs,
            **describe_history(watch),
            **describe_failure(watch, failure, recipe),
        },
    }
    if "healed" in start.provenance:
        healed["before"] = start.provenance["healed"]
    provenance = _record(start.provenance, healed, is_changed=find_kept(watch).epoch > 0)
    return replace(start, state=get_state_dict(objective.model), provenance=provenance, folder=None)


def _record(
    before: Mapping[str, Json], healed: dict[str, Json], *, is_changed: bool
) -> dict[str, Json]:
    """Return a provenance with the record of the healing.

    If the weights changed, records of a training before, which do not hold any more, move there.
    """
    kept = drop_training_records(before) if is_changed else dict(before)
    former = {name: value for name, value in before.items() if name not in kept}
    return {**kept, "healed": {**healed, **({"trained_before": former} if former else {})}}


def build_objective(
    start: Descendant,
    ancestry: Ancestry,
    healing: HealConfig,
    run: Run,
    records: Mapping[str, Json],
) -> Recovery:
    """Return the objective on the run's device; its maps have no values yet."""
    used = records if healing.match == "recorded" else {}
    layers, depth = start.spec.layers, ancestry.spec.layers
    blocks, matched = match_blocks(layers, depth, healing.blocks, used)
    device = open_device(run)
    model: Any = start.model()
    table = get_table(start.spec)
    for name, parameter in model.named_parameters():
        if table.is_head(name) or table.is_final_norm(name):
            parameter.requires_grad_(False)
    if isinstance(start.spec, TextSpec):
        check_tokenizers(ancestry, start.input_format)
    objective = Recovery(
        model,
        Teacher(ancestry.model().to(device), matched),
        Side(spec=start.spec, input_format=choose_format(start, healing), blocks=blocks),
        Side(spec=ancestry.spec, input_format=ancestry.input_format, blocks=matched),
        healing.weights,
        healing.max_patches,
    )
    return objective.to(device)


def choose_format(start: Descendant, healing: HealConfig) -> InputFormat | TextFormat:
    """Return how the images or texts are presented to the student."""
    if isinstance(start.spec, TextSpec):
        form: TextFormat = start.input_format
        return form
    view = start.view
    fit = healing.fit or ("stretch" if view.crop_mode == "center" else None)
    return replace(start.input_format, view=fit_view(view, fit) if fit else view)


def _fit_part(
    healing: HealConfig,
    start: Descendant,
    ancestry: Ancestry,
    images: Task,
    seed: int,
    records: Mapping[str, Json],
    run: Run,
) -> tuple[StateDict, dict[str, Json]]:
    """Fit the maps; return their tensors, and a record of the fit."""
    objective = build_objective(start, ancestry, healing, run, records)
    fit_maps(objective, images, healing.map_images, seed, run)
    return get_state_dict(objective.maps), {
        "images": min(healing.map_images, images.sizes["train"])
    }


def find_kept(watch: Watch) -> Epoch:
    """Return the epoch whose weights are kept."""
    chosen = (
        watch.history[-1] if watch.keep == "last" else choose_epoch(watch.history, watch.images)
    )
    assert chosen is not None, "the start is validated"
    return chosen


def describe_history(watch: Watch) -> dict[str, Json]:
    """Return the results of every epoch, the kept epoch and its results."""
    history = [describe_epoch(epoch) for epoch in watch.history]
    kept = find_kept(watch)
    return {**kept.others, "kept_epoch": kept.epoch, "history": history}


def describe_epoch(epoch: Epoch) -> dict[str, Json]:
    """Return the record of an epoch."""
    loss: dict[str, Json] = {} if epoch.loss is None else {"loss": epoch.loss}
    return {"epoch": epoch.epoch, **loss, **epoch.others}


def describe_failure(watch: Watch, failure: str, recipe: Recipe) -> dict[str, Json]:
    """Return what the metrics record of a training that diverged; of any other nothing."""
    if not failure:
        return {}
    kept = find_kept(watch).epoch
    weights = f"the model of epoch {kept}" if kept else "the model before it"
    reason = failure.partition(";")[0]
    return {
        "diverged": True,
        "warning": f"the training diverged: {reason}; {weights} is kept; train again with a "
        f"smaller lr ({recipe.lr:g} was used), or with clip 1",
    }
