"""The head that a fine-tuning starts from, and epoch 0."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import timm
import torch

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.descendant import Descendant, assemble
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.pretrained.timm_model import TimmModel
from learngene_zoo.runs.cache import compute_once
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Recipe
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.testing import make_tiny_task
from learngene_zoo.training import automatic, heads, tuning
from learngene_zoo.training.evaluate import evaluate, judge
from learngene_zoo.training.heads import (
    MAX_IMAGES,
    MAX_LOGIT_STEP,
    find_linear_heads,
    has_trained_head,
    initialise_head,
    limit_scale,
    rescale_head,
)
from learngene_zoo.training.probes import compute_features, find_patch_labels, fit_ridge
from learngene_zoo.training.watch import Validation

SPEC = ViTSpec(layers=2, width=16, heads=2, classes=3, image_size=16, patch_size=8)
BRIEF = Recipe(epochs=2, batch_size=16, augment="none", lr=1e-3)
GENTLE = replace(BRIEF, lr=1e-9)  # leaves the calibrated scale as it is


@pytest.fixture(scope="module")
def descendant() -> Descendant:
    """A model with some accuracy on digits before it is trained."""
    return lifecycle.expand("closed_form-mini", layers=4, width=64, task="digits")


@pytest.mark.slow
def test_the_head_is_the_scaled_ridge_regression(descendant: Descendant) -> None:
    task = open_task("digits")
    fresh = descendant.for_task("digits", task.class_names, seed=0)
    headed, record = initialise_head(fresh, task, replace(GENTLE, images=300), Run())
    features = compute_features(fresh.model(), task, "train", fresh.input_format, Run(), images=300)
    ridge = fit_ridge(features, 10)
    assert torch.allclose(
        headed.state["head.weight"].double(),
        torch.from_numpy(ridge.scale * ridge.weight),
        atol=1e-5,
    )
    assert torch.allclose(
        headed.state["head.bias"].double(), torch.from_numpy(ridge.scale * ridge.bias), atol=1e-5
    )
    assert {
        name for name in fresh.state if not torch.equal(fresh.state[name], headed.state[name])
    } == {
        "head.weight",
        "head.bias",
    }
    assert (record["init"], record["images"], record["penalty"]) == ("ridge", 300, ridge.penalty)
    value = evaluate(headed.model(), task, "validation", headed.input_format, Run()).value
    assert (
        value > evaluate(fresh.model(), task, "validation", fresh.input_format, Run()).value + 0.5
    )
    assert value == pytest.approx(record["left_out_accuracy"], abs=0.06)


@pytest.mark.slow
def test_augmented_copies_of_the_images_are_named(descendant: Descendant) -> None:
    task = make_tiny_task()
    fresh = descendant.for_task("tiny", task.class_names, seed=0)
    texts = [
        heads.describe_head(
            initialise_head(fresh, task, replace(GENTLE, augment=augment), Run())[1]
        )
        for augment in ("none", "light")
    ]
    images = f"the head starts from a ridge regression on {task.sizes['train']} images"
    assert [text.partition(" (leave")[0] for text in texts] == [
        images,
        f"{images}, each also augmented",
    ]


def test_its_probabilities_are_as_sure_as_they_are_right(descendant: Descendant) -> None:
    """The mean probability of the predictions equals the accuracy, on images not used for the fit."""
    task = open_task("digits")
    fresh = descendant.for_task("digits", task.class_names, seed=0)
    headed, _ = initialise_head(fresh, task, replace(GENTLE, images=300), Run())
    held_out = compute_features(headed.model(), task, "validation", headed.input_format, Run())
    with torch.no_grad():
        chances = headed.model().head(torch.from_numpy(held_out.values)).softmax(dim=1).max(dim=1)
    right = (chances.indices.numpy() == held_out.labels).mean()
    assert float(chances.values.mean()) == pytest.approx(right, abs=0.06)


def test_a_model_without_a_linear_head_starts_from_random_weights() -> None:
    class Odd(TimmModel):
        def model(self) -> Any:
            return torch.nn.Conv2d(1, 1, 1)

    odd = Odd(architecture="odd", arguments={}, images={}, classes=3, state={})
    same, record = initialise_head(odd, make_tiny_task(classes=3), BRIEF, Run())
    assert same is odd
    assert record == {"init": "random", "reason": "no linear head"}
    assert find_linear_heads(torch.nn.Conv2d(1, 1, 1)) == []


def test_the_head_of_a_class_for_every_pixel_is_a_regression_on_patches() -> None:
    scenes = open_task("scenes")
    spec = SPEC.with_(classes=scenes.classes, dense=True, image_size=32)
    dense = assemble(spec, {}, seed=0, mean=scenes.mean, std=scenes.std)
    headed, record = initialise_head(dense, scenes, replace(GENTLE, images=40), Run())
    features = compute_features(
        dense.model(), scenes, "train", dense.input_format, Run(), images=40
    )
    assert features.values.shape == (len(features.labels), 16)
    assert (record["images"], record["patches"]) == (40, len(features.labels))
    assert 0 < record["patches"] <= 40 * 16
    ridge = fit_ridge(features, scenes.classes)
    assert torch.allclose(
        headed.state["head.weight"].double(),
        torch.from_numpy(ridge.scale * ridge.weight),
        atol=1e-5,
    )


@pytest.mark.slow
def test_it_knows_the_classes_of_pixels_before_any_training() -> None:
    scenes = open_task("scenes")
    start = lifecycle.expand("closed_form-mini", layers=4, width=64, task="scenes")
    headed, _ = initialise_head(start, scenes, replace(BRIEF, images=100), Run())
    before, after = (
        evaluate(model.model(), scenes, "validation", model.input_format, Run()).value
        for model in (start, headed)
    )
    assert after > before + 0.1


def test_the_images_of_a_class_for_every_pixel_are_limited_by_their_patches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scenes = open_task("scenes")
    dense = assemble(SPEC.with_(classes=scenes.classes, dense=True, image_size=32), {}, seed=0)
    monkeypatch.setattr(heads, "MAX_PATCHES", 16 * 30)
    _, record = initialise_head(dense, scenes, replace(BRIEF, images=40), Run())
    assert record["images"] == 30
    text = heads.describe_head(record)
    assert text.startswith(
        f"the head starts from a ridge regression on {record['patches']} patches of 30 images (lea"
    )


def test_pixels_beyond_the_last_patch_are_not_counted() -> None:
    labels = torch.tensor([[[0, 0, 1], [0, 0, 1], [2, 2, 2]]])
    assert find_patch_labels(labels, (2, 2), 3).tolist() == [[0]]


def test_a_patch_has_the_most_frequent_class_of_its_pixels_that_count() -> None:
    labels = torch.tensor([[[0, 2, 1, 255], [2, 2, 255, 255], [255, 255, 0, 1], [255, 255, 1, 1]]])
    assert find_patch_labels(labels, (2, 2), 3).tolist() == [[2, 1, 255, 1]]
    assert find_patch_labels(labels, (1, 4), 3).tolist() == [[0, 2, 0, 1]]


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("vit_tiny_patch16_224", ["head"]),
        ("deit_tiny_distilled_patch16_224", ["head", "head_dist"]),
        ("resnet10t", ["fc"]),
        ("convnext_atto", ["head.fc"]),
        ("test_efficientnet", ["classifier"]),
    ],
)
def test_timm_s_classifiers_get_it_too(name: str, layers: list[str]) -> None:
    model = timm.create_model(name, num_classes=3).eval()
    assert find_linear_heads(model) == layers
    images = {**model.pretrained_cfg, "input_size": (3, 32, 32)}
    arguments: dict[str, Any] = {"img_size": 32} if "patch16" in name else {}
    classifier = timm.create_model(name, num_classes=3, **arguments)
    kept = {
        key: images[key]
        for key in ("input_size", "mean", "std", "classifier", "interpolation", "crop_pct")
    }
    start = TimmModel(
        architecture=name,
        arguments=arguments,
        images=kept,
        classes=3,
        state=classifier.state_dict(),
    )
    task = make_tiny_task(classes=3)
    headed, record = initialise_head(start, task, GENTLE, Run())
    assert record["init"] == "ridge"
    features = compute_features(start.model(), task, "train", start.input_format, Run())
    ridge = fit_ridge(features, 3)
    seen = headed.model()
    with torch.no_grad():
        logits = torch.cat([seen(batch.inputs) for batch in _batches(task, headed)])
    expected = torch.from_numpy(ridge.scale * ridge.predict(features.values)).float()
    assert torch.allclose(logits, expected, atol=1e-2 * float(expected.abs().max()))


def _batches(task: Any, model: TimmModel) -> Any:
    from learngene_zoo.tasks.loader import Loader

    return Loader(task, "train", model.input_format, batch_size=8, drop_last=False).epoch(0)


def test_a_head_that_knows_the_classes_is_kept() -> None:
    task = make_tiny_task(classes=3)
    bare = assemble(SPEC, {}, seed=0, class_names=task.class_names, task="tiny")
    assert not has_trained_head(bare, task)
    assert has_trained_head(replace(bare, provenance={"trained_on": {}}), task)
    assert has_trained_head(replace(bare, inherited=frozenset(bare.state)), task)
    trained = replace(bare, provenance={"trained_on": {}})
    assert not has_trained_head(replace(trained, task="other"), task)
    assert not has_trained_head(trained, make_tiny_task(classes=4))


@pytest.mark.parametrize(("head", "known"), [("ridge", True), ("random", False)])
def test_fine_tuning_starts_from_it_unless_told_otherwise(
    descendant: Descendant, head: str, known: bool
) -> None:
    model = lifecycle.finetune(
        descendant, task="digits", head=head, epochs=1, images=200, lr=1e-5, run=Run()
    )
    metrics: Any = model.provenance["metrics"]
    first = metrics["history"][0]
    assert first["epoch"] == 0
    assert "loss" not in first
    assert (first["validation_accuracy"] > 0.6) == known
    assert ("head" in model.provenance) == known


def test_a_training_that_loses_what_was_inherited_keeps_epoch_0(descendant: Descendant) -> None:
    model = lifecycle.finetune(
        descendant, task="digits", epochs=1, images=200, lr=0.3, clip=1.0, run=Run()
    )
    metrics: Any = model.provenance["metrics"]
    values = [row["validation_accuracy"] for row in metrics["history"]]
    assert values[1] < values[0]
    assert (metrics["kept_epoch"], metrics["validation_accuracy"]) == (0, values[0])
    assert metrics["test_accuracy"] > 0.6
    assert "No epoch validates better than epoch 0" in model.files["report.html"]


def test_another_training_neither_scales_the_head_again_nor_keeps_its_records(
    descendant: Descendant,
) -> None:
    brief = {"epochs": 0, "images": 60, "run": Run()}
    first = lifecycle.finetune(descendant, task="digits", **brief)
    assert first.provenance["head"]["calibrated_scale"] > 1
    first = replace(first, provenance={**first.provenance, "found": {"lr": []}})
    second = lifecycle.finetune(first, task="digits", **brief)
    assert torch.equal(second.state["head.weight"], first.state["head.weight"])
    assert not {"head", "found"} & set(second.provenance)
    assert second.provenance["metrics"]["training_images"] == 60


def test_few_images_are_used_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_IMAGES == 10_000
    monkeypatch.setattr("learngene_zoo.training.heads.MAX_IMAGES", 20)
    task = make_tiny_task(classes=3)
    _, record = initialise_head(assemble(SPEC, {}, seed=0), task, BRIEF, Run())
    assert record["images"] == 20


@pytest.mark.parametrize(
    ("fit", "mode"),
    [(None, "center"), ("crop", "center"), ("pad", "border"), ("stretch", "squash")],
)
def test_the_fit_of_pictures_is_recorded_in_the_model(fit: Any, mode: str) -> None:
    for start in (assemble(SPEC, {}, seed=0), _timm_model()):
        view = start.with_fit(fit).input_format.view
        assert view.crop_mode == mode
        assert view.crop_pct == (start.input_format.view.crop_pct if fit in (None, "crop") else 1.0)
        assert start.with_fit("pad").with_fit("crop").input_format.view.crop_pct == 1.0


def _timm_model() -> TimmModel:
    model = timm.create_model("resnet10t", num_classes=3)
    images = {
        "input_size": (3, 32, 32),
        "mean": (0.5,) * 3,
        "std": (0.5,) * 3,
        "crop_pct": 0.875,
        "classifier": "fc",
    }
    return TimmModel(architecture="resnet10t", images=images, classes=3, state=model.state_dict())


def test_the_watch_keeps_the_start_where_no_epoch_is_better() -> None:
    watch = tuning.Watch(run=Run(), keep="best", patience=None)
    model = assemble(SPEC, {}, seed=0).model()
    watch.begin(model, lambda *_: Validation(value=0.5, text="", images=10), 1)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    watch.finish(model)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_a_new_head_stretches_and_a_kept_one_sees_pictures_as_before(
    descendant: Descendant,
) -> None:
    task, scenes = open_task("digits"), open_task("scenes")
    assert lifecycle.choose_fit(descendant, task) == "stretch"
    assert lifecycle.choose_fit(descendant, scenes) is None
    assert lifecycle.choose_fit(descendant.with_fit("pad"), task) is None
    cropped = lifecycle.finetune(descendant, task="digits", epochs=0, images=40, fit="crop")
    stretched = lifecycle.finetune(descendant, task="digits", epochs=0, images=40)
    assert (cropped.input_format.view.crop_mode, stretched.input_format.view.crop_mode) == (
        "center",
        "squash",
    )
    assert lifecycle.choose_fit(cropped, task) is None
    assert lifecycle.choose_fit(cropped, open_task("petals")) == "stretch"
    again = lifecycle.finetune(cropped, task="digits", epochs=0, images=40)
    assert again.input_format.view.crop_mode == "center"


def test_a_probe_fits_pictures_as_a_fine_tuning_would(
    descendant: Descendant, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def watch(model: Any, task: Any, split: str, shown: Any, *rest: Any, **more: Any) -> Any:
        seen.append(shown.view.crop_mode)
        return compute_features(model, task, split, shown, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr("learngene_zoo.training.probes.compute_features", watch)
    lifecycle.probe(descendant, task="digits", images=40)
    lifecycle.probe(descendant, task="digits", images=40, fit="crop")
    assert seen == ["squash", "squash", "center", "center"]


def test_the_scale_is_limited_by_the_learning_rate(descendant: Descendant) -> None:
    task = open_task("digits")
    features = compute_features(
        descendant.model(), task, "train", descendant.input_format, Run(), images=300
    )
    ridge = fit_ridge(features, 10)
    total = np.abs(ridge.weight).sum(axis=1).mean()
    middle = MAX_LOGIT_STEP / (total * (1 + ridge.scale) / 2)
    limit = partial(limit_scale, ridge.scale, total, is_text=False)
    assert limit(1e-6) == ridge.scale
    assert limit(middle) == pytest.approx((1 + ridge.scale) / 2)
    assert limit(1.0) == 1.0


def test_a_head_is_rescaled_to_that_of_another_learning_rate(descendant: Descendant) -> None:
    task = open_task("digits")
    fresh = descendant.for_task("digits", task.class_names, seed=0)

    def fit(lr: float) -> Descendant:
        recipe = replace(GENTLE, images=300, lr=lr)
        headed, record = initialise_head(fresh, task, recipe, Run())
        return replace(headed, provenance={"head": record})

    gentle, high = fit(1e-6), fit(1e-2)
    assert high.provenance["head"]["scale"] < gentle.provenance["head"]["scale"]
    for start, lr, expected in ((high, 1e-6, gentle), (gentle, 1e-2, high)):
        rescaled = rescale_head(start, lr)
        assert rescaled.provenance == expected.provenance
        for name in ("head.weight", "head.bias"):
            assert torch.allclose(rescaled.state[name], expected.state[name], rtol=1e-5)
    assert rescale_head(gentle, 1e-6) is gentle
    assert rescale_head(fresh, 1e-2) is fresh


def prefer_1e_4(recipe: Recipe, *_: Any) -> tuple[Any, Any]:
    return {}, {"value": -abs(recipe.lr - 1e-4)}


def compute_and_note(
    scales: dict[float, float], run: Run, name: str, function: Any, recipe: Recipe, inputs: Any
) -> Any:
    """Compute a trial, and note the scale of the head that it starts from."""
    scales[recipe.lr] = inputs[0].provenance["head"]["scale"]
    return compute_once(run, name, function, recipe, inputs)


def test_each_tried_rate_has_a_head_of_its_own(
    descendant: Descendant, monkeypatch: pytest.MonkeyPatch
) -> None:
    scales: dict[float, float] = {}
    monkeypatch.setattr(automatic, "measure_rate", prefer_1e_4)
    monkeypatch.setattr(automatic, "compute_once", partial(compute_and_note, scales))
    tuned = lifecycle.finetune(
        descendant, task="digits", lr="auto", epochs=1, images=100, run=Run(threads=1)
    )
    assert scales[1e-5] > scales[3e-3] >= 1
    record: Any = tuned.provenance["head"]
    assert record["scale"] == scales[1e-4]


def test_a_head_of_classes_with_other_names_is_new(descendant: Descendant) -> None:
    task = open_task("digits")
    known = descendant.for_task("digits", task.class_names, seed=0)
    known = replace(known, provenance={"trained_on": "digits"})
    assert heads.has_trained_head(known, task)
    swapped = replace(task, class_names=tuple(reversed(task.class_names)))
    assert not heads.has_trained_head(known, swapped)
    again = known.for_task("digits", swapped.class_names, seed=1)
    assert not torch.equal(again.state["head.weight"], known.state["head.weight"])


def test_a_head_that_no_training_improved_gives_probabilities(
    descendant: Descendant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Epoch 0 is kept here: its head was scaled down for training, and gets its scale back."""
    reported: list[Any] = []

    def note_rows(model: Any, task: Any, judged: Any) -> str:
        reported.append(judged.rows)
        return ""

    monkeypatch.setattr("learngene_zoo.training.tuning.report", note_rows)
    brief = {"task": "digits", "images": 300, "augment": "none", "lr": 1.0, "fit": "crop"}
    start = lifecycle.finetune(descendant, epochs=0, **brief)
    record: Any = start.provenance["head"]
    assert record["scale"] == 1.0 < record["calibrated_scale"]
    task = open_task("digits")
    fresh = descendant.for_task("digits", task.class_names, seed=0)
    calibrated, _ = initialise_head(fresh, task, replace(BRIEF, images=300, lr=1e-6), Run())
    assert torch.allclose(start.state["head.weight"], calibrated.state["head.weight"], rtol=1e-5)
    assert torch.allclose(start.state["head.bias"], calibrated.state["head.bias"], rtol=1e-5)
    assert start.files.keys() == {"report.html"}
    expected = judge(start.model(), task, "test", start.input_format, Run()).rows
    assert np.allclose(reported[0], expected, atol=1e-5)
