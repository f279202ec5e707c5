"""Fine-tuning with validation: the kept epoch, early stopping, exact resuming, and the report."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.descendant import Descendant, assemble
from learngene_zoo.errors import BadData, WrongCall
from learngene_zoo.families.spec import Segment
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.lifecycle.rates import describe_batches
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Recipe
from learngene_zoo.tasks.splits.cutting import ensure_validation, limit_validation
from learngene_zoo.tasks.task import Task
from learngene_zoo.testing import make_tiny_task
from learngene_zoo.training import loop, tuning
from learngene_zoo.training.evaluate import evaluate
from learngene_zoo.training.fit import describe_chance
from learngene_zoo.training.tuning import tune
from lgzoo_baselines.learnt.sws import SWS

TASK = make_tiny_task()
START = assemble(
    ViTSpec(layers=2, width=8, heads=2, classes=3, image_size=16, patch_size=8), {}, seed=0
)
RECIPE = Recipe(epochs=4, batch_size=16, lr=3e-3)
RUN = Run(threads=1, device="cpu")


class Killed(BaseException):
    pass


def script_values(monkeypatch: pytest.MonkeyPatch, *values: float) -> list[dict[str, torch.Tensor]]:
    """Replace validation by these values, from epoch 0 on; return the weights it was given."""
    seen: list[dict[str, torch.Tensor]] = []

    def measure(model: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        evaluation = evaluate(model, *args, **kwargs)
        seen.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
        return replace(evaluation, value=values[len(seen) - 1])

    monkeypatch.setattr(tuning, "evaluate", measure)
    return seen


def test_limited_validation_images_are_a_fixed_sample_in_proportion() -> None:
    class Numbered:
        labels = np.repeat([0, 1, 2], [60, 30, 10])

        def __len__(self) -> int:
            return 100

        def __getitems__(self, indices: list[int]) -> list[int]:
            return list(indices)

    task = replace(
        TASK, sizes={**TASK.sizes, "validation": 100}, open_split=lambda name: Numbered()
    )
    limited = limit_validation(task, 20)
    assert limited.sizes == {**task.sizes, "validation": 20}
    split = limited.split("validation")
    counts = np.bincount(split.labels)
    assert counts.tolist() == [12, 6, 2]
    assert len(split) == 20
    few = limit_validation(task, 4).split("validation").labels
    assert np.bincount(few).tolist() == [2, 1, 1]  # of shares 2.4, 1.2 and 0.4
    members = split.__getitems__(range(20))
    assert members == sorted(set(members))
    assert members == limit_validation(task, 20).split("validation").__getitems__(range(20))
    assert isinstance(limited.split("test"), Numbered)
    assert isinstance(limited.split("train"), Numbered)
    for count in (None, 100, 1000):
        assert limit_validation(task, count) is task
    with pytest.raises(WrongCall, match="streamed; leave it out"):
        limit_validation(replace(task, open_stream=lambda name: None), 20)


def test_fine_tuning_validates_on_a_limited_number_of_images(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("learngene_zoo.lifecycle.opening.open_task", lambda name, **_: TASK)
    numbers: list[int] = []

    def measure(*args: Any, **kwargs: Any) -> Any:
        evaluation = evaluate(*args, **kwargs)
        numbers.append(evaluation.images)
        return evaluation

    monkeypatch.setattr(tuning, "evaluate", measure)
    run = replace(RUN, lines=True)
    model = lifecycle.finetune(START, task="tiny", epochs=2, validation_images=5, run=run)
    metrics: Any = model.provenance["metrics"]
    assert numbers == [5, 5, 5]
    assert metrics["validation_images"] == 5
    assert metrics["test_images"] == TASK.sizes["test"]
    printed = capsys.readouterr().err
    assert "; the epoch is chosen on 5 of the validation images" in printed
    assert "--validation-images" not in printed
    lifecycle.finetune(START, task="tiny", epochs=1, images=3, run=run)
    assert "validation takes longer than training" in capsys.readouterr().err


def test_few_validation_images_do_not_show_that_a_model_is_at_chance() -> None:
    counts = [describe_chance(0.0, TASK, RECIPE, images) != "" for images in (9, 10, None)]
    assert counts == [False, True, True]


def same(one: Descendant, weights: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one.state[name], weights[name]) for name in weights)


@pytest.mark.parametrize(("images", "values"), [(25, (0.80, 0.72)), (1600, (0.9, 0.8925))])
def test_an_epoch_exactly_one_standard_error_below_the_best_is_chosen(
    images: int, values: tuple[float, float]
) -> None:
    history = [
        tuning.Epoch(epoch=epoch, step=epoch, loss=1.0, value=value)
        for epoch, value in enumerate((0.0, *values))
    ]
    chosen = tuning.choose_epoch(history, images)
    assert chosen is not None
    assert chosen.epoch == 2


@pytest.mark.parametrize(
    ("values", "settings", "epochs", "kept"),
    [
        ((0.0, 0.1, 0.6, 0.3, 0.2), {}, 4, 2),
        ((0.0, 0.1, 0.4, 0.4, 0.2), {}, 4, 3),  # the last of equals
        ((0.0, 0.1, 0.4, 0.3, 0.2), {}, 4, 3),  # the standard error of 0.4 on 12 images is 0.14
        # one image of 12 fewer than all of them
        ((0.5, 0.7, 1.0, 11 / 12, 0.8), {}, 4, 3),
        ((0.35, 0.1, 0.4, 0.3, 0.3), {}, 4, 2),  # none below the start
        ((0.5, 0.1, 0.3, 0.4, 0.2), {}, 4, 0),  # the start counts
        ((0.0, 0.1, 0.4, 0.3, 0.2), {"keep": "last"}, 4, 4),
        ((0.0, 0.4, 0.1, 0.2, 0.9), {"patience": 2}, 3, 1),
        ((0.5, 0.4, 0.1, 0.9, 0.9), {"patience": 2}, 2, 0),
        ((0.0, 0.4, 0.1, 0.3, 0.9), {"patience": 2, "keep": "last"}, 3, 3),
        ((0.0, 0.4, 0.1, 0.5, 0.1), {"patience": 2}, 4, 3),
    ],
)
def test_which_epoch_is_kept_and_when_it_stops(
    monkeypatch: pytest.MonkeyPatch,
    values: tuple[float, ...],
    settings: dict[str, Any],
    epochs: int,
    kept: int,
) -> None:
    seen = script_values(monkeypatch, *values)
    model = tune(START, TASK, RECIPE, RUN, **settings)
    metrics = model.provenance["metrics"]
    assert len(seen) == epochs + 1 == len(metrics["history"])
    assert same(model, seen[kept])
    assert (metrics["kept_epoch"], metrics["validation_accuracy"]) == (kept, values[kept])


@pytest.mark.parametrize("settings", [{}, {"patience": 1, "keep": "last"}])
def test_the_moving_average_is_what_is_validated_and_kept(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    seen = script_values(monkeypatch, 0.1, 0.6, 0.3, *[0.2] * 9)
    model = tune(START, TASK, replace(RECIPE, ema=0.9), RUN, **settings)
    plain = tune(START, TASK, RECIPE, RUN, keep="last")
    assert not same(plain, seen[4 if not settings else 2])
    assert same(model, seen[2 if settings else 1])


def killed_after(steps: int) -> Any:
    """Return a `train` that saves after every step and raises `Killed` at the given step."""

    def train(*args: Any, **kwargs: Any) -> Iterator[loop.Step]:
        for number, step in enumerate(loop.train(*args, **kwargs, seconds_between_checkpoints=0)):
            if number == steps:
                raise Killed
            yield step

    return train


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [RECIPE, replace(RECIPE, ema=0.9)], ids=["weights", "average"])
@pytest.mark.parametrize("deaths", [(4,), (3, 3), (2, 2, 2, 2)], ids=str)
def test_a_killed_fine_tuning_ends_as_if_it_had_not_been(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, deaths: tuple[int, ...], recipe: Recipe
) -> None:
    monkeypatch.setattr("learngene_zoo.lifecycle.opening.open_task", lambda name, **_: TASK)
    call = partial(lifecycle.finetune, START, task="tiny", recipe=recipe, patience=4)
    full = call(out=tmp_path / "whole", run=RUN)
    for number, steps in enumerate(deaths):
        monkeypatch.setattr(tuning, "train", killed_after(steps))
        with pytest.raises(Killed):
            call(out=tmp_path / "killed", run=replace(RUN, resume=number > 0))
    monkeypatch.setattr(tuning, "train", loop.train)
    call(out=tmp_path / "killed", run=replace(RUN, resume=True))
    for name in ("config.json", "model.safetensors", "report.html", "README.md"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert full.provenance["metrics"]["history"]
    assert sorted(path.name for path in (tmp_path / "killed.run").iterdir()) == [
        ".lgzoo",
        "metrics.jsonl",
        "run.json",
    ]


def test_force_replaces_what_a_fine_tuning_wrote(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("learngene_zoo.lifecycle.opening.open_task", lambda name, **_: TASK)
    call = partial(
        lifecycle.finetune, START, task="tiny", out=tmp_path / "out", run=RUN, epochs=1, keep="last"
    )
    call(lr=1e-3)
    before = (tmp_path / "out" / "report.html").read_bytes()
    call(lr=3e-3, force=True)
    assert (tmp_path / "out" / "report.html").read_bytes() != before


def test_an_older_best_epoch_stays_until_no_checkpoint_needs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script_values(monkeypatch, 0.0, 0.1, 0.2, 0.3, 0.4)
    run = replace(RUN, folder=tmp_path)
    tune(
        START, TASK, RECIPE, run
    )  # too quick for a checkpoint before the last step: any start may be needed
    assert [path.name for path in tmp_path.glob("best-*")] == ["best-4"]
    checkpoint = tmp_path / "checkpoint-6"  # as if one had been written after the second epoch
    next(tmp_path.glob("checkpoint-*")).rename(checkpoint)
    watch = tuning.Watch(run=run, keep="best", patience=None)
    for epoch in range(1, 5):
        watch.history.append(tuning.Epoch(epoch=epoch, step=3 * epoch, loss=1.0, value=epoch / 10))
        watch.state = dict(START.state)
        watch._save(watch.history[-1])
    assert sorted(path.name for path in tmp_path.glob("best-*")) == ["best-2", "best-4"]


def test_lines_of_epochs_go_to_stderr_and_their_numbers_to_the_metrics(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tune(START, TASK, replace(RECIPE, epochs=2), replace(RUN, folder=tmp_path, lines=True))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert re.fullmatch(r"epoch 0 of 2, before training: validation accuracy [01]\.\d{4}", lines[0])
    assert re.fullmatch(
        r"epoch 2 of 2: loss \d\.\d{4}, validation accuracy [01]\.\d{4}, [\d.]+m?s", lines[2]
    )
    logged = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    epochs = [line for line in logged if "validation/value" in line]
    assert [line["step"] for line in epochs] == [3, 6]
    losses = [line["loss"] for line in logged if "loss" in line and line["epoch"] == 1]
    assert epochs[1]["epoch_loss"] == pytest.approx(sum(losses) / 3)


def test_a_task_without_validation_images_lends_some_of_its_training_images() -> None:
    class Numbered:
        labels = np.arange(40) % 4

        def __len__(self) -> int:
            return 40

        def __getitems__(self, indices: list[int]) -> list[int]:
            return list(indices)

    sizes = {"train": 40, "validation": 0, "test": 4}
    bare = replace(TASK, sizes=sizes, open_split=lambda name: Numbered())
    lent = ensure_validation(bare)
    assert lent.sizes == {"train": 36, "validation": 4, "test": 4}
    train, validation = (lent.split(name) for name in ("train", "validation"))
    shown = [*train.__getitems__(range(36)), *validation.__getitems__(range(4))]
    assert sorted(shown) == list(range(40)), "no image is in both, and none is lost"
    assert sorted(validation.labels.tolist()) == [0, 1, 2, 3]
    assert isinstance(lent.split("test"), Numbered)
    assert ensure_validation(TASK) is TASK
    with pytest.raises(BadData, match="no validation images"):
        ensure_validation(
            replace(
                bare,
                open_split=lambda name: TASK.split("test").__class__(torch.zeros(1), np.zeros(1)),
            )
        )


def test_what_was_lent_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = replace(TASK, sizes={**TASK.sizes, "validation": 0})
    metrics = tune(START, bare, replace(RECIPE, epochs=1), RUN).provenance["metrics"]
    assert (
        metrics["validation_taken_from"],
        metrics["validation_images"],
        metrics["training_images"],
    ) == (
        "train",
        5,
        43,
    )


def named(task: Task, *names: str) -> Task:
    return replace(task, class_names=names, classes=len(names))


def test_the_report_is_one_page_that_loads_and_runs_nothing() -> None:
    evil = "<script>alert(1)</script>"
    model = tune(START, named(TASK, evil, 'a"b', "c&d"), replace(RECIPE, epochs=2), RUN)
    page = model.files["report.html"]
    assert evil not in page
    assert "&lt;script&gt;" in page
    assert not re.findall(r"<script|<link|https?:|url\(", page)
    assert all(
        source.startswith("data:image/png;base64,") for source in re.findall(r'src="([^"]*)', page)
    )
    wrong = round(12 * (1 - model.provenance["metrics"]["test_accuracy"]))
    assert page.count("<figure>") == wrong > 0
    assert f"{model.provenance['metrics']['test_accuracy']:.4f}" in page
    assert page.count("<circle") == 5  # the loss of two epochs, the accuracy before and after each


def test_a_report_of_many_classes_lists_the_pairs_that_are_confused() -> None:
    many = make_tiny_task("many", classes=48)
    start = START.for_task("many", many.class_names, seed=0)
    page = tune(start, many, Recipe(epochs=1, batch_size=16, lr=1e-3), RUN).files["report.html"]
    assert 'class="matrix"' not in page
    assert "<th>of the class</th>" in page


def test_the_test_images_decide_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def measure(model: Any, task: Any, split: str, *args: Any, **kwargs: Any) -> Any:
        calls.append(split)
        return evaluate(model, task, split, *args, **kwargs)

    monkeypatch.setattr(tuning, "evaluate", measure)
    tune(START, TASK, RECIPE, RUN)
    assert set(calls) == {"validation"}


@pytest.mark.parametrize(
    ("width", "rate"), [(32, 3e-3), (96, 3e-3), (192, 1.5e-3), (384, 7.5e-4), (768, 3.75e-4)]
)
def test_the_usual_learning_rate_falls_with_the_width(width: int, rate: float) -> None:
    assert lifecycle.choose_rate(width) == rate


def test_a_learning_rate_that_nobody_names_is_that_of_the_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("learngene_zoo.lifecycle.opening.open_task", lambda name, **_: TASK)
    for module in ("lifecycle", "method"):
        monkeypatch.setattr(f"learngene_zoo.{module}.rates.FULL_RATE", 4)
    wider_first = START.spec.with_(layers=3, front=(Segment(layers=1, width=16, heads=2),))
    assert (START.width, assemble(wider_first, {}, seed=0).width) == (8, 16)

    def taken(**named: Any) -> float:
        model: Any = lifecycle.finetune(START, task="tiny", run=replace(RUN, lines=True), **named)
        return float(model.provenance["recipe"]["lr"])

    assert taken(epochs=1) == 1.5e-3
    assert (
        "the learning rate is 0.0015, the default of models of width 8\n" in capsys.readouterr().err
    )
    assert taken(epochs=1, lr=0.01) == 0.01
    assert taken(recipe=replace(lifecycle.FINETUNE, epochs=1)) == 3e-3
    assert "learning rate" not in capsys.readouterr().err


def make_heir(*widths: Any, inherited: bool = True) -> Descendant:
    """Return a model of width 8 with a record of ancestry models of these widths."""
    records = [{"source": "timm:some", "spec": {"width": width}} for width in widths]
    kept = frozenset(START.state) if inherited else frozenset()
    return replace(START, inherited=kept, provenance={"ancestries": records})


@pytest.mark.parametrize(
    ("model", "rates"),
    [
        (make_heir(384), (1e-4, 0.75)),
        (make_heir(64, 128), (1e-4, 0.75)),
        (make_heir(96), (3e-3, 1.0)),  # the bundled one
        (make_heir(384, inherited=False), (3e-3, 1.0)),
        (
            replace(
                START, provenance={"ancestries": ["odd", {"spec": None}, {"spec": {"width": "x"}}]}
            ),
            (3e-3, 1.0),
        ),
        (START, (3e-3, 1.0)),
    ],
    ids=["wide", "the widest counts", "narrow", "nothing inherited", "odd records", "from scratch"],
)
def test_what_inherits_from_a_wide_model_is_trained_gently(
    model: Descendant, rates: tuple[float, float]
) -> None:
    assert lifecycle.choose_rates(model) == rates


def test_the_steps_of_a_training_are_stated() -> None:
    recipe = replace(lifecycle.FINETUNE, epochs=2)
    for images, steps in ((40, 1), (64, 1), (65, 2), (426, 7), (512, 8), (1000, 15)):
        line = describe_batches(recipe, images, "image", is_default=True)
        assert line.startswith(f"training: 2 epochs of {steps} step")


def test_the_gentle_rates_are_used_and_said_unless_others_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("learngene_zoo.lifecycle.opening.open_task", lambda name, **_: TASK)

    def take(**named: Any) -> tuple[float, float]:
        model: Any = lifecycle.finetune(
            make_heir(384), task="tiny", run=replace(RUN, lines=True), **named
        )
        return model.provenance["recipe"]["lr"], model.provenance["recipe"].get("layer_decay", 1.0)

    images = TASK.sizes["train"]
    assert take(epochs=1, batch_size=images // 5) == (1e-4, 0.75)
    assert (
        "the learning rate is 0.0001 and the layer decay 0.75, the defaults of models that"
        " inherit from an ancestry model of width 384\n" in capsys.readouterr().err
    )
    assert take(epochs=1) == (3.54e-5, 0.75)
    assert "that is 0.35 times the usual 0.0001, for batches of 8\n" in capsys.readouterr().err
    assert take(epochs=1, batch_size=images // 2) == (4e-5, 0.75)
    assert (
        "that inherit from an ancestry model of width 384; that is 0.4 times the usual 0.0001, as"
        " an epoch has only 2 steps\n" in capsys.readouterr().err
    )
    assert take(epochs=1, lr=1e-3, images=20) == (1e-3, 0.75)
    err = capsys.readouterr().err
    assert f"tiny has {images} training, 12 validation and" in err
    assert "; 20 of the training images are used\n" in err
    assert (
        "training: 1 epoch of 3 steps, in batches of 8 images (64 with more than 256 training"
        " images)\nthe layer decay is 0.75, the default of models that inherit from" in err
    )
    assert take(epochs=1, lr=1e-3, layer_decay=1.0, batch_size=images) == (1e-3, 1.0)
    err = capsys.readouterr().err
    assert f"training: 1 epoch of 1 step, in batches of {images} images\n" in err
    assert "default" not in err
    assert "are used" not in err
    assert take(epochs=1, lr=1e-3, layer_decay=0.75) == (1e-3, 0.75)
    assert "default" not in capsys.readouterr().err
    assert take(epochs=1, layer_decay=1.0, batch_size=images // 5) == (1e-4, 1.0)
    assert take(recipe=replace(lifecycle.FINETUNE, epochs=1)) == (3e-3, 1.0)


@pytest.mark.parametrize(
    ("settings", "images", "batch_size", "factor", "warmup"),
    [
        ({}, 320, 64, 1.0, 1.0),
        ({}, 257, 64, 1.0, 1.0),
        ({}, 256, 32, 0.707, 1.0),
        ({}, 225, 32, 0.707, 1.0),
        ({}, 224, 16, 0.5, 1.0),
        ({}, 128, 16, 0.5, 1.0),
        ({}, 64, 8, 0.354, 1.0),
        ({}, 40, 8, 0.354, 1.0),
        ({}, 16, 8, 0.141, 2.5),  # two steps in an epoch
        ({"epochs": 4}, 8, 8, 0.0707, 2.0),  # at most half of the training
        ({"images": 64}, 5000, 8, 0.354, 1.0),
        ({"warmup": 8.0}, 64, 8, 0.354, 8.0),
        ({"batch_size": 8}, 64, 8, 1.0, 1.0),
        ({}, 0, 64, 1.0, 1.0),
    ],
)
def test_with_few_steps_in_an_epoch_the_batches_are_smaller_and_the_rate_is_lower(
    settings: dict[str, Any], images: int, batch_size: int, factor: float, warmup: float
) -> None:
    recipe = replace(lifecycle.FINETUNE, lr=1e-3, **settings)
    adapted = lifecycle.adapt_to_steps(recipe, images)
    lr = pytest.approx(1e-3 * factor)
    assert (adapted.batch_size, adapted.lr, adapted.warmup) == (batch_size, lr, warmup)
    assert replace(adapted, batch_size=recipe.batch_size, lr=1e-3, warmup=recipe.warmup) == recipe


@pytest.mark.parametrize(("processes", "batch_size"), [(2, 8), (16, 16), (64, 64), (3, 64)])
def test_a_small_batch_can_be_shared_among_the_processes(
    monkeypatch: pytest.MonkeyPatch, processes: int, batch_size: int
) -> None:
    monkeypatch.setenv("WORLD_SIZE", str(processes))
    assert lifecycle.adapt_to_steps(lifecycle.FINETUNE, 64).batch_size == batch_size


def test_a_small_batch_can_be_divided() -> None:
    recipe = replace(lifecycle.FINETUNE, accumulate=16)
    assert lifecycle.adapt_to_steps(recipe, 64).batch_size == 16


@pytest.mark.parametrize(
    ("settings", "images", "factor", "warmup"),
    [
        ({}, 64, 0.2, 5.0),  # one step in an epoch
        ({}, 65, 0.4, 2.5),
        ({}, 250, 0.8, 1.25),
        ({"epochs": 4}, 64, 0.2, 2.0),
    ],
)
def test_batches_that_are_named_and_those_of_texts_do_not_change(
    settings: dict[str, Any], images: int, factor: float, warmup: float
) -> None:
    recipe = replace(lifecycle.FINETUNE, lr=1e-3, **settings)
    adapted = lifecycle.adapt_to_steps(recipe, images, has_batch_size=True)
    assert adapted == replace(recipe, lr=float(f"{1e-3 * factor:.3g}"), warmup=warmup)
    of_texts = lifecycle.adapt_to_steps(recipe, images, is_text=True)
    assert of_texts == replace(recipe, warmup=warmup), "the rate on texts does not change"


def test_the_adapted_warmup_is_used_unless_another_is_named_or_nothing_is_pretrained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("learngene_zoo.lifecycle.opening.open_task", lambda name, **_: TASK)
    half = TASK.sizes["train"] // 2

    def take(model: Descendant, **named: Any) -> tuple[float, float]:
        result = lifecycle.finetune(
            model, task="tiny", run=RUN, epochs=4, batch_size=half, layer_decay=1.0, **named
        )
        recipe: Any = result.provenance["recipe"]
        return recipe["lr"], recipe["warmup"]

    assert take(make_heir(384)) == (4e-5, 2.0)
    assert take(make_heir(384), warmup=0.5) == (4e-5, 0.5)
    assert take(make_heir(384), lr=1e-3) == (1e-3, 2.0)
    named = lifecycle.finetune(make_heir(384), task="tiny", run=RUN, epochs=1, layer_decay=1.0)
    found: Any = named.provenance["recipe"]
    assert (found["batch_size"], found["lr"]) == (8, 3.54e-5)
    assert take(make_heir(384, inherited=False)) == (3e-3, 1.0)


def test_settings_may_be_given_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learngene_zoo.lifecycle.opening.open_task", lambda name, **_: TASK)
    model = lifecycle.finetune(START, task="tiny", epochs=1, batch_size=16, patience=3, run=RUN)
    assert model.provenance["recipe"] == {
        **model.provenance["recipe"],
        "epochs": 1,
        "batch_size": 16,
        "lr": 3e-3,
    }
    with pytest.raises(WrongCall, match="no setting named 'epoch'; did you mean epochs"):
        lifecycle.finetune(START, task="tiny", epoch=1, run=RUN)


BY_LSAMD = replace(START, provenance={"method": "lsamd"})


def test_a_preset_is_the_papers_recipe_with_its_rate_for_the_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def taken(task: str, **named: Any) -> dict[str, Any]:
        monkeypatch.setattr(
            "learngene_zoo.lifecycle.opening.open_task", lambda name, **_: make_tiny_task(name)
        )
        model: Any = lifecycle.finetune(
            BY_LSAMD, task=task, preset="paper", epochs=1, run=RUN, **named
        )
        return dict(model.provenance["recipe"])

    cars = taken("cars")  # LSAMD, Table 5, column Des-Net
    assert (cars["lr"], cars["batch_size"], cars["schedule"], cars["power"]) == (
        1e-5,
        128,
        "poly",
        0.9,
    )
    assert [taken(task)["lr"] for task in ("flowers102", "inat2019")] == [1e-4, 5e-5]
    assert taken("tiny")["lr"] == lifecycle.choose_rate(START.width) == 3e-3, (
        "the paper has no such task"
    )
    assert taken("cars", lr=0.5)["lr"] == 0.5
    assert taken("cars", batch_size=16)["batch_size"] == 16


def test_without_epochs_the_head_is_validated(capsys: pytest.CaptureFixture[str]) -> None:
    result: Any = tune(START, TASK, replace(RECIPE, epochs=0), replace(RUN, lines=True))
    metrics: Any = result.provenance["metrics"]
    value = evaluate(START.model(), TASK, "validation", START.input_format, RUN).value
    assert metrics["validation_accuracy"] == value
    assert not {"kept_epoch", "history", "warning"} & set(metrics)
    assert f"without training: validation accuracy {value:.4f}" in capsys.readouterr().err


def test_a_preset_without_rates_of_tasks_has_its_own_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learngene_zoo.lifecycle.opening.open_task", lambda name, **_: TASK)
    start = replace(START, provenance={"method": "sws"})
    model: Any = lifecycle.finetune(start, task="tiny", preset="paper", epochs=0, run=RUN)
    assert model.provenance["recipe"]["lr"] == SWS.finetuning["paper"].recipe.lr == 5e-5
    model = lifecycle.finetune(start, task="tiny", preset="paper", epochs=0, lr=1e-5, run=RUN)
    assert model.provenance["recipe"]["lr"] == 1e-5


@pytest.mark.parametrize(
    ("model", "call", "says"),
    [
        (
            BY_LSAMD,
            {"preset": "papr"},
            "no preset for fine-tuning descendants of lsamd named 'papr'; did you mean paper",
        ),
        (
            BY_LSAMD,
            {"preset": "paper", "recipe": RECIPE},
            "expected a recipe or a preset, got both",
        ),
        (
            START,
            {"preset": "paper"},
            (
                "this model was not built by a method, so it has no presets .*methods that have any:"
                " lsamd"
            ),
        ),
        (
            replace(START, provenance={"method": "scratch"}),
            {"preset": "paper"},
            "descendants of scratch have no presets",
        ),
        (replace(START, provenance={"method": "../x"}), {"preset": "paper"}, "no presets"),
    ],
)
def test_presets_that_there_are_not(model: Descendant, call: dict[str, Any], says: str) -> None:
    with pytest.raises(WrongCall, match=says):
        lifecycle.finetune(model, task="tiny", run=RUN, **call)
