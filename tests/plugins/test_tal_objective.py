"""A step of meta-training equals its formula; trainings resume exactly; tasks are mixed by step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tal_toy import ATTRIBUTES, RECIPE, SIZE, build_ancestry, build_source_task
from torch.nn import functional

from learngene_zoo.errors import TrainingFailed
from learngene_zoo.families.tensors import build_model
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.runs.run import Run
from learngene_zoo.tasks.loader import Loader
from learngene_zoo.testing import make_tiny_task
from learngene_zoo.training.checkpoint import RECORD, load_newest
from learngene_zoo.training.distillation import compute_divergence
from learngene_zoo.training.loop import train
from learngene_zoo.training.objectives import compute_attribute_loss
from lgzoo_tal.config import Guidance
from lgzoo_tal.modules import objective as objectives
from lgzoo_tal.modules.graph import SINK, build_graph
from lgzoo_tal.modules.hypernet import Hypernet
from lgzoo_tal.modules.mixture import TaskBatch, TaskMixture
from lgzoo_tal.modules.objective import (
    Guide,
    MetaObjective,
    TaskSpec,
    draw_random_matrix,
    sum_norms,
)

ZOO = tuple(
    ViTSpec(layers=layers, width=width, heads=width // 16, classes=4, image_size=16, patch_size=8)
    for layers, width in ((1, 16), (2, 16), (1, 32), (2, 32))
)
VIEW = build_ancestry().input_format


def build_batch(task: Any = None, number: int = 0) -> TaskBatch:
    loaded = next(iter(Loader(task or make_tiny_task(), "train", VIEW, batch_size=8).epoch(0)))
    return TaskBatch(*loaded, tasks=torch.full_like(loaded.indices, number))


def build_hypernet(task: int | None = None) -> Hypernet:
    return Hypernet(SIZE.build_spec().with_(task=task), 0)


def build_objective(
    task_specs: tuple[TaskSpec, ...] = (TaskSpec(classes=3),),
    guide: Guide | None = None,
    **rules: Any,
) -> MetaObjective:
    task = None if task_specs[0].embedding is None else len(task_specs[0].embedding)
    return MetaObjective(
        build_hypernet(task), ZOO, task_specs, 7, label_smoothing=0.1, guide=guide, **rules
    )


def test_the_loss_is_that_of_the_model_with_the_predicted_weights() -> None:
    meta, loaded = build_objective(norm_weight=0.01), build_batch()
    losses = meta(loaded)
    spec = meta.get_architecture(0).with_(classes=3)
    with torch.no_grad():
        state = meta.hypernet(build_graph(spec))
    logits = build_model(spec, state)(loaded.inputs)
    expected = functional.cross_entropy(logits, loaded.labels, label_smoothing=0.1)
    assert losses["cross_entropy"].item() == pytest.approx(expected.item(), rel=1e-5)
    norms = sum(tensor.norm().item() for tensor in state.values())
    assert losses["norm"].item() == pytest.approx(0.01 * norms, rel=1e-5)
    assert set(losses) == {"cross_entropy", "norm"}


def test_every_architecture_of_a_meta_batch_is_trained() -> None:
    """The losses and the gradient are means over the architectures.

    The last architecture alone would give others.
    """
    pair = build_objective(meta_batch=2)
    losses, gradient = _with_gradient(pair, build_batch())
    singles = []
    for draw in (0, 1):
        other_objective = build_objective()
        other_objective.finished.fill_(draw)
        singles.append(_with_gradient(other_objective, build_batch()))
    assert pair.get_architecture(0) != pair.get_architecture(1)
    for name, loss in losses.items():
        assert loss == pytest.approx(sum(single[name] for single, _ in singles) / 2, rel=1e-5)
    assert torch.allclose(gradient, (singles[0][1] + singles[1][1]) / 2, atol=1e-6)
    assert not torch.allclose(gradient, singles[1][1] / 2, atol=1e-5)


def _with_gradient(meta: MetaObjective, loaded: TaskBatch) -> tuple[dict[str, float], torch.Tensor]:
    losses = meta(loaded)
    torch.stack(list(losses.values())).sum().backward()
    gradients = [parameter.grad for parameter in meta.parameters() if parameter.grad is not None]
    return {name: loss.item() for name, loss in losses.items()}, torch.cat(
        [g.flatten() for g in gradients]
    )


def test_the_next_step_has_the_next_architecture_whatever_was_done_before() -> None:
    meta = build_objective()
    draws = [meta.get_architecture(draw) for draw in range(12)]
    assert draws == [build_objective().get_architecture(draw) for draw in range(12)]
    assert {(spec.layers, spec.width) for spec in draws} == {
        (spec.layers, spec.width) for spec in ZOO
    }


def test_no_architecture_of_a_meta_batch_is_drawn_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    meta, drawn = build_objective(meta_batch=3), []
    real = meta.get_architecture
    monkeypatch.setattr(meta, "get_architecture", lambda draw: drawn.append(draw) or real(draw))
    for step in range(3):
        meta.finished.fill_(step)
        meta(build_batch())
    assert drawn == list(range(9))


def test_attributes_are_read_by_rows_of_the_sink() -> None:
    task_spec = TaskSpec(classes=6, attributes=ATTRIBUTES)
    meta, loaded = build_objective((task_spec,)), build_batch(build_source_task())
    losses = meta(loaded)
    spec = meta.get_architecture(0).with_(classes=6)
    with torch.no_grad():
        state = meta.hypernet(build_graph(spec, sink=(4, spec.width)))
        weight, bias = (state.pop(name) for name in SINK)
        features = build_model(spec, state).forward_features(loaded.inputs)[:, 0]
        answers = features @ weight.T + bias
    assert loaded.attributes is not None
    for name, rows, truth in (("hue", slice(0, 3), 0), ("turn", slice(3, 4), 1)):
        expected = compute_attribute_loss(answers[:, rows], loaded.attributes[:, truth])
        assert losses[f"attributes/{name}"].item() == pytest.approx(expected.item(), rel=1e-4)


@pytest.mark.parametrize("projection", ["predicted", "random"])
def test_the_guidance_is_equation_4_with_this_projection(projection: Any) -> None:
    master = build_ancestry().model()
    task_spec, alpha = TaskSpec(classes=6, attributes=ATTRIBUTES), 0.3
    meta = build_objective(
        (task_spec,), Guide(master, Guidance(alpha=alpha, projection=projection))
    )
    loaded = build_batch(build_source_task())
    losses = meta(loaded)
    spec = meta.get_architecture(0).with_(classes=6)
    rows = 32 if projection == "predicted" else 0
    with torch.no_grad():
        state = meta.hypernet(build_graph(spec, sink=(rows + 4, spec.width)))
        weight, bias = (state.pop(name)[:rows] for name in SINK)
        if projection == "random":
            weight, bias = draw_random_matrix(32, spec.width, 7, 0)
        features = build_model(spec, state).forward_features(loaded.inputs)[:, 0]
        guided, features = features @ weight.T + bias, master.forward_features(loaded.inputs)[:, 0]
        expected = compute_divergence(guided, features, direction="student-teacher")
        entropy = functional.cross_entropy(
            build_model(spec, state)(loaded.inputs), loaded.labels, label_smoothing=0.1
        )
    assert losses["guidance"].item() == pytest.approx(alpha * expected.item(), rel=1e-4)
    assert losses["cross_entropy"].item() == pytest.approx((1 - alpha) * entropy.item(), rel=1e-4)
    with torch.no_grad():
        weight, bias = (
            meta.hypernet(build_graph(spec, sink=(rows + 4, spec.width)))[name][rows:]
            for name in SINK
        )
        student_features = build_model(spec, state).forward_features(loaded.inputs)[:, 0]
        hue = compute_attribute_loss(
            (student_features @ weight.T + bias)[:, :3], loaded.attributes[:, 0]
        )
    assert losses["attributes/hue"].item() == pytest.approx((1 - alpha) * hue.item(), rel=1e-4)


def test_a_predicted_projection_is_learnt_and_a_random_one_is_not() -> None:
    """With nothing but guidance, the decoder's gradient of the sink is there or is not."""
    gradients = {}
    for projection in ("predicted", "random"):
        settings = Guidance(alpha=1.0, projection=projection)  # type: ignore[arg-type]
        meta = build_objective(guide=Guide(build_ancestry().model(), settings), norm_weight=0.0)
        gradients[projection] = _with_gradient(meta, build_batch())[1].abs().sum().item()
    assert all(value > 0 for value in gradients.values())
    assert gradients["predicted"] != gradients["random"]


def test_a_student_runs_once_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[ViTSpec] = []
    real = objectives.compute_tokens
    monkeypatch.setattr(
        objectives, "compute_tokens", lambda spec, *rest: calls.append(spec) or real(spec, *rest)
    )
    guide = Guide(build_ancestry().model(), Guidance())
    build_objective((TaskSpec(classes=6, attributes=ATTRIBUTES),), guide)(
        build_batch(build_source_task())
    )
    assert len(calls) == 1


def test_the_batchs_task_chooses_classes_and_embedding() -> None:
    embeddings = torch.zeros(5), torch.ones(5)
    task_specs = (
        TaskSpec(classes=3, embedding=embeddings[0]),
        TaskSpec(classes=4, embedding=embeddings[1]),
    )
    meta = build_objective(task_specs)
    with torch.no_grad():
        for layer in meta.hypernet.gnn:
            layer.TEN.fc_gamma.weight.fill_(0.5)
    first, second = (meta(build_batch(number=number))["norm"].item() for number in (0, 1))
    spec = meta.get_architecture(0)
    with torch.no_grad():
        expected = [
            sum_norms(
                meta.hypernet(
                    build_graph(spec.with_(classes=task_spec.classes)), task=task_spec.embedding
                )
            ).item()
            for task_spec in task_specs
        ]
    assert [first, second] == pytest.approx([3e-5 * norm for norm in expected], rel=1e-5)
    assert first != pytest.approx(second, rel=1e-3)


def test_the_norm_of_zeros_has_no_gradient_that_is_not_finite() -> None:
    tensors = {
        "bias": torch.zeros(3, requires_grad=True),
        "weight": torch.ones(4, requires_grad=True),
    }
    sum_norms(tensors).backward()
    assert sum_norms(tensors).item() == pytest.approx(2.0)
    for tensor in tensors.values():
        assert tensor.grad is not None
        assert torch.isfinite(tensor.grad).all()


def build_mixture(seed: int = 0, temperature: float = 2.0, batch_size: int = 16) -> TaskMixture:
    names = {"tiny-a": 3, "tiny-b": 4}
    loaders = {
        name: Loader(
            make_tiny_task(name, classes),
            "train",
            VIEW,
            batch_size=batch_size,
            seed=1,
            shuffle=True,
            images=32 + 16 * (classes == 4),
        )
        for name, classes in names.items()
    }
    return TaskMixture(loaders, batch_size=batch_size, temperature=temperature, seed=seed)


def test_an_epoch_of_a_mixture_is_as_many_images_as_its_tasks_have() -> None:
    mixture = build_mixture()
    assert mixture.steps == 5  # 32 + 48 images in batches of 16
    batches = list(mixture.epoch(0))
    assert len(batches) == 5
    assert {int(shown.tasks[0]) for shown in [*batches, *mixture.epoch(1)]} == {0, 1}
    assert all(int(shown.labels.max()) < (3, 4)[int(shown.tasks[0])] for shown in batches)


def test_a_task_goes_through_its_own_images_epoch_by_epoch() -> None:
    mixture = build_mixture()
    shown = [step for epoch in range(4) for step in mixture.epoch(epoch)]
    for number, images in ((0, 32), (1, 48)):
        own_steps = [step.indices.tolist() for step in shown if int(step.tasks[0]) == number]
        full = images // 16
        used = sorted(mixture.loaders[number]._source.used.tolist())  # type: ignore[attr-defined]
        for start in range(0, len(own_steps) // full * full, full):
            assert (
                sorted(index for step in own_steps[start : start + full] for index in step) == used
            )


def test_a_mixture_can_be_entered_anywhere() -> None:
    full = [step for epoch in range(3) for step in build_mixture().epoch(epoch)]
    for start in (0, 3):
        late = list(build_mixture().epoch(2, start=start))
        for ours, theirs in zip(late, full[10 + start :], strict=True):
            assert torch.equal(ours.tasks, theirs.tasks)
            assert torch.equal(ours.inputs, theirs.inputs)
    assert [build_mixture(1).get_task_index(step) for step in range(40)] != [
        build_mixture(2).get_task_index(step) for step in range(40)
    ]


def train_objective(
    folder: Path | None = None, stop: int | None = None, poison: int | None = None, **run: Any
) -> MetaObjective:
    """Train six steps over a mixture, or as many as are asked for."""
    objective = MetaObjective(build_hypernet(), ZOO, (TaskSpec(classes=3), TaskSpec(classes=4)), 7)
    settings = Run(folder=folder, **run)
    for step in train(
        objective,
        build_mixture(batch_size=32),
        RECIPE_3,
        settings,
        unused=True,
        seconds_between_checkpoints=0,
    ):
        objective.finished.fill_(step.step)
        if step.step == poison:
            with torch.no_grad():
                objective.hypernet.embed.weight.fill_(float("nan"))
        if step.step == stop:
            break
    return objective


RECIPE_3 = type(RECIPE)(epochs=2, batch_size=32, lr=1e-3, ema=0.9, clip=5.0)


def test_a_resumed_training_ends_with_the_same_numbers(tmp_path: Path) -> None:
    full = train_objective().state_dict()
    train_objective(tmp_path / "run", stop=4)
    resumed = train_objective(tmp_path / "run", resume=True).state_dict()
    assert set(resumed) == set(full)
    assert all(torch.equal(resumed[name], tensor) for name, tensor in full.items())


def test_what_is_not_finite_stops_the_training_and_leaves_the_last_good_checkpoint(
    tmp_path: Path,
) -> None:
    with pytest.raises(TrainingFailed, match="not finite"):
        train_objective(tmp_path / "run", poison=3)
    (place,) = (tmp_path / "run").glob("checkpoint-*")
    identity = json.loads((place / RECORD).read_text())["training"]
    kept = load_newest(tmp_path / "run", identity)
    assert kept is not None
    assert kept.step == 2
    assert all(tensor.isfinite().all() for tensor in kept.tensors["weights"].values())
