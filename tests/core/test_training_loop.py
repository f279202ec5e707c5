"""The loop: equal to a plain training, its files, and exact resuming."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from training_toy import CLASSES, ToyLoader, ToyModel, toy_objective

from learngene_zoo.errors import Refused, TrainingFailed, Unavailable, WrongCall
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Recipe
from learngene_zoo.training import loop
from learngene_zoo.training.loop import compute_learning_rate, train
from learngene_zoo.training.objectives import Classification

RECIPE = Recipe(
    epochs=3, batch_size=8, lr=1e-2, warmup=1.0, ema=0.9, mixup=0.3, cutmix=0.3, clip=1.0
)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run_training(recipe: Recipe = RECIPE, run: Run = Run(), dropout: float = 0.2, **options):  # noqa: B008
    objective = toy_objective(dropout)
    steps = list(train(objective, ToyLoader(), recipe, run, **options))
    return objective, steps


def assert_equal(one: nn.Module, other: nn.Module) -> None:
    for (name, a), b in zip(one.state_dict().items(), other.state_dict().values()):
        assert torch.equal(a, b), name


def assert_close(one: nn.Module, other: nn.Module) -> None:
    for (name, a), b in zip(one.state_dict().items(), other.state_dict().values()):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=name)


def plain(recipe: Recipe, dropout: float = 0.0) -> nn.Module:
    """Run the same training written with torch alone."""
    objective, loader = toy_objective(dropout), ToyLoader()
    matrices = [p for p in objective.parameters() if p.dim() > 1]
    vectors = [p for p in objective.parameters() if p.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": recipe.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups)
    objective.train()
    for epoch in range(recipe.epochs):
        for number, batch in enumerate(loader.epoch(epoch)):
            for group in optimizer.param_groups:
                group["lr"] = compute_learning_rate(
                    recipe, epoch * loader.steps + number + 1, loader.steps
                )
            optimizer.zero_grad()
            functional.cross_entropy(objective.model(batch.inputs), batch.labels).backward()
            if recipe.clip:
                nn.utils.clip_grad_norm_(objective.parameters(), recipe.clip)
            optimizer.step()
    return objective


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(epochs=2, lr=1e-2, warmup=0.5, clip=0.3),
        Recipe(epochs=2, lr=1e-2, schedule="poly", weight_decay=0.5),
        Recipe(epochs=2, lr=1e-2, batch_size=8, accumulate=4),
        Recipe(epochs=2, lr=1e-2, batch_size=9, accumulate=3),
    ],
)
def test_equals_training_written_out(recipe):
    assert_close(run_training(recipe, dropout=0.0)[0], plain(recipe))


def test_learns():
    _, steps = run_training(Recipe(epochs=30, lr=1e-2))
    assert steps[0].loss > 1.0
    assert steps[-1].loss < 0.5


def test_steps_count_and_epochs_end():
    _, steps = run_training()
    assert [step.step for step in steps] == list(range(1, 16))
    assert [step.epoch for step in steps] == [0] * 5 + [1] * 5 + [2] * 5
    assert [step.step for step in steps if step.end_of_epoch] == [5, 10, 15]
    assert {step.steps for step in steps} == {15}


def test_same_seed_same_weights_and_another_seed_others():
    first, second, other = run_training()[0], run_training()[0], run_training(run=Run(seed=1))[0]
    assert_equal(first, second)
    assert not torch.equal(first.model.net[1].weight, other.model.net[1].weight)


class Drawing(nn.Module):
    """Records a random draw of each step."""

    def __init__(self, drawn: list[float]) -> None:
        super().__init__()
        self.inner, self.drawn = toy_objective(), drawn

    def forward(self, batch: Any) -> dict[str, torch.Tensor]:
        self.drawn.append(torch.rand(()).item())
        return self.inner(batch)


def test_every_step_draws_anew_whatever_came_before(tmp_path):
    recipe, full, rest = Recipe(epochs=3, lr=1e-2), [], []
    for _ in train(Drawing(full), ToyLoader(), recipe, Run()):
        pass
    assert len(set(full)) == len(full) == 15
    run = Run(folder=tmp_path, resume=True)
    for step in train(Drawing([]), ToyLoader(), recipe, run, seconds_between_checkpoints=0):
        if step.step == 7:
            break
    for _ in train(Drawing(rest), ToyLoader(), recipe, run):
        pass
    assert rest == full[6:]


def test_a_run_with_another_plan_is_not_resumed(tmp_path):
    for step in train(
        toy_objective(),
        ToyLoader(),
        RECIPE,
        Run(folder=tmp_path, plan="a"),
        seconds_between_checkpoints=0,
    ):
        if step.step == 3:
            break
    with pytest.raises(Refused, match="plan a"):
        run_training(run=Run(folder=tmp_path, plan="b", resume=True))
    assert run_training(run=Run(folder=tmp_path, plan="a", resume=True))[1][0].step == 3


def test_global_randomness_before_does_not_matter():
    first = run_training()[0]
    objective = toy_objective()
    torch.manual_seed(12345)
    for step in train(objective, ToyLoader(), RECIPE, Run()):
        torch.rand(step.step)
    assert_equal(first, objective)


def test_zero_epochs_do_nothing():
    objective = toy_objective()
    assert list(train(objective, ToyLoader(), Recipe(epochs=0), Run())) == []
    assert_equal(objective, toy_objective())


@pytest.mark.parametrize("stop", [1, 5, 7, 14])
def test_resuming_is_exact(tmp_path, stop):
    full, _ = run_training()
    run = Run(folder=tmp_path, resume=True)
    for step in train(toy_objective(), ToyLoader(), RECIPE, run, seconds_between_checkpoints=0):
        if step.step == stop:
            break
    objective, steps = run_training(run=run, seconds_between_checkpoints=0)
    assert steps[0].step == stop  # left in its body: that step's checkpoint was not written yet
    assert_equal(full, objective)
    assert [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").open()] == list(
        range(1, 16)
    )


def test_resuming_what_is_finished_costs_nothing(tmp_path):
    run = Run(folder=tmp_path, resume=True)
    first, _ = run_training(run=run)
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-15"]
    again, steps = run_training(run=run)
    assert steps == []
    assert_equal(first, again)
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 15


def test_without_resume_old_checkpoints_are_forgotten(tmp_path):
    run_training(run=Run(folder=tmp_path))
    _, steps = run_training(run=Run(folder=tmp_path))
    assert len(steps) == 15
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 15


def test_another_training_in_the_same_folder_is_refused(tmp_path):
    run_training(run=Run(folder=tmp_path), label="search")
    with pytest.raises(Refused, match=r"another training \(label search"):
        run_training(run=Run(folder=tmp_path, resume=True), label="tuning")


def test_another_model_is_refused(tmp_path):
    run_training(run=Run(folder=tmp_path))
    wider = Classification(nn.Sequential(nn.Flatten(), nn.Linear(18, CLASSES)))
    with pytest.raises(Refused, match="not of the model being trained"):
        next(train(wider, ToyLoader(), RECIPE, Run(folder=tmp_path, resume=True)))


def test_the_moving_average_is_what_is_kept():
    recipe = Recipe(epochs=2, lr=1e-2, ema=0.8)
    objective = toy_objective(0.0)
    average = None
    for step in train(objective, ToyLoader(), recipe, Run()):
        decay = min(0.8, 1 - step.step ** (-2 / 3))
        now = {name: t.clone() for name, t in objective.state_dict().items()}
        average = (
            {k: decay * average[k] + (1 - decay) * v for k, v in now.items()} if average else now
        )
    for name, tensor in objective.state_dict().items():
        torch.testing.assert_close(tensor, average[name], msg=name)


def test_frozen_weights_stay():
    objective = toy_objective()
    objective.model.net[1].requires_grad_(False)
    before = objective.model.net[1].weight.clone()
    list(train(objective, ToyLoader(), RECIPE, Run()))
    assert torch.equal(before, objective.model.net[1].weight)


def test_leaves_eval_mode_and_no_gradients():
    objective, _ = run_training()
    assert not any(module.training for module in objective.modules())
    assert all(parameter.grad is None for parameter in objective.parameters())


class Exploding(nn.Module):
    """Its loss is not finite from a given call on."""

    def __init__(self, when: int) -> None:
        super().__init__()
        self.inner, self.when = toy_objective(), when
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, batch):
        self.calls += 1
        losses = self.inner(batch)
        return {
            **losses,
            "extra": losses["cross_entropy"] * (math.nan if self.calls >= self.when else 0.0),
        }


def test_a_loss_that_is_not_finite_stops_training_and_keeps_the_last_checkpoint(tmp_path):
    objective = Exploding(8)
    steps = train(
        objective, ToyLoader(), RECIPE, Run(folder=tmp_path), seconds_between_checkpoints=0
    )
    with pytest.raises(TrainingFailed, match="loss extra is nan at step 8 of 15"):
        list(steps)
    assert [path.name for path in tmp_path.glob("*checkpoint-*")] == ["checkpoint-7"]
    assert all(torch.isfinite(p).all() for p in objective.parameters())


def train_without_average(objective, folder):
    """Train with a checkpoint after every step."""
    recipe, run = replace(RECIPE, ema=None), Run(folder=folder)
    return train(objective, ToyLoader(), recipe, run, seconds_between_checkpoints=0)


def test_weights_that_are_not_finite_are_never_saved(tmp_path):
    objective = toy_objective()
    steps = train_without_average(objective, tmp_path)
    next(steps)
    next(steps)
    with torch.no_grad():
        objective.model.net[1].bias[0] = math.inf
    with pytest.raises(TrainingFailed, match=r"model\.net\.1\.bias is not finite after step 2"):
        next(steps)
    assert [path.name for path in tmp_path.glob("*checkpoint-*")] == ["checkpoint-1"]


def test_of_several_processes_none_fails_alone_when_it_saves(tmp_path, monkeypatch):
    """Only the first process saves, and the others would wait for it in the next step."""
    monkeypatch.setattr(loop, "get_world_size", lambda: 2)
    objective = toy_objective()
    steps = train_without_average(objective, tmp_path)
    next(steps)
    with torch.no_grad():
        objective.model.net[1].bias[0] = math.inf
    with pytest.raises(TrainingFailed, match="the loss cross_entropy is nan at step 2 of 15"):
        next(steps)
    assert not list(tmp_path.glob("*checkpoint-*"))


def test_bf16_and_fp32_in_one_process():
    exact = run_training(Recipe(epochs=1, lr=1e-2), dropout=0.0)[0]
    rough = run_training(Recipe(epochs=1, lr=1e-2), run=Run(precision="bf16"), dropout=0.0)[0]
    again = run_training(Recipe(epochs=1, lr=1e-2), dropout=0.0)[0]
    assert_equal(exact, again)
    assert not torch.equal(exact.model.net[1].weight, rough.model.net[1].weight)
    assert rough.model.net[1].weight.dtype == torch.float32
    torch.testing.assert_close(
        exact.model.net[1].weight, rough.model.net[1].weight, rtol=0.1, atol=0.02
    )


def test_groups_may_scale_the_learning_rate():
    def slow(module, recipe):
        return [{"params": list(module.parameters()), "lr_scale": 1e-9, "weight_decay": 0.0}]

    objective, steps = run_training(Recipe(epochs=1, lr=1e-2), groups=slow)
    torch.testing.assert_close(
        objective.model.net[1].weight, toy_objective().model.net[1].weight, atol=1e-7, rtol=0
    )
    assert steps[0].lr == 1e-2


def test_metrics_hold_every_loss(tmp_path):
    _, steps = run_training(run=Run(folder=tmp_path))
    line = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[3])
    assert line["step"] == 4
    assert line["loss/cross_entropy"] == steps[3].losses["cross_entropy"]
    assert line["lr"] == steps[3].lr


def test_progress_goes_to_stderr(capsys):
    run_training(Recipe(epochs=1), run=Run(progress=True, name="part"), label="fitting")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "part: fitting" in captured.err
    assert "5/5" in captured.err


@pytest.mark.parametrize(
    ("run", "recipe", "error", "words"),
    [
        (Run(tracker="wandbb"), RECIPE, WrongCall, "did you mean wandb"),
        (Run(tracker="aim"), RECIPE, Unavailable, "not installed"),
        (Run(precision="fp16"), RECIPE, WrongCall, "fp16 needs a GPU; use the precision fp32"),
        (Run(device="cudda"), RECIPE, WrongCall, "did you mean cuda"),
        (Run(), replace(RECIPE, drop_path=0.1), WrongCall, "drop_path1"),
    ],
)
def test_impossible_calls(run, recipe, error, words):
    with pytest.raises(error, match=words):
        run_training(recipe, run=run)


def test_nothing_to_train():
    objective = toy_objective().requires_grad_(False)
    with pytest.raises(WrongCall, match="no trainable parameter"):
        next(train(objective, ToyLoader(), RECIPE, Run()))
    with pytest.raises(WrongCall, match="do not fill one batch"):
        next(train(toy_objective(), ToyLoader(steps=0), RECIPE, Run()))


def test_a_tracker_gets_every_step(monkeypatch):
    from accelerate import tracking

    seen = []

    class Remember(tracking.GeneralTracker):
        name = "remember"
        requires_logging_directory = False
        tracker = None

        def __init__(self, run_name, **options):
            super().__init__()

        def store_init_configuration(self, values):
            seen.append(values["label"])

        def log(self, values, step, **options):
            seen.append((step, values["loss"]))

        def finish(self):
            seen.append("finished")

    monkeypatch.setitem(tracking.LOGGER_TYPE_TO_CLASS, "remember", Remember)
    _, steps = run_training(Recipe(epochs=1), run=Run(tracker="remember"), label="fitting")
    assert seen == ["fitting", *[(step.step, step.loss) for step in steps], "finished"]


def test_an_objective_can_be_trained_twice_and_saved(tmp_path: Path):
    objective = toy_objective()
    for _ in range(2):
        list(train(objective, ToyLoader(), Recipe(epochs=1), Run(precision="bf16")))
    assert isinstance(objective.model, ToyModel)
    assert "forward" not in vars(objective)


@pytest.mark.exhaustive
def test_compiled_training_is_nearly_the_same():
    recipe = Recipe(epochs=1, lr=1e-2)
    assert_close(
        run_training(replace(recipe, compile=True), dropout=0.0)[0],
        run_training(recipe, dropout=0.0)[0],
    )


@pytest.mark.parametrize("change", [{"lr": 1e-3}, {"weight_decay": 0.5}, {"label_smoothing": 0.3}])
def test_a_checkpoint_of_other_settings_is_not_continued(
    tmp_path: Path, change: dict[str, float]
) -> None:
    run_training(run=Run(folder=tmp_path))
    assert run_training(run=Run(folder=tmp_path, resume=True))[1] == []
    with pytest.raises(Refused, match="belongs to another training"):
        run_training(replace(RECIPE, **change), Run(folder=tmp_path, resume=True))
