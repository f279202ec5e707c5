"""Parts of training: schedule, parameter groups, seeds, mixing, drop path, devices, objectives,
divergence guard, checkpoints.
"""

from __future__ import annotations

import json
import math
import random
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from training_toy import Batch

import learngene_zoo as lg
from learngene_zoo.errors import Refused, TrainingFailed, Unavailable, WrongCall
from learngene_zoo.runs.progress import open_metrics_file
from learngene_zoo.runs.run import Run, open_device
from learngene_zoo.seeds import seed_step
from learngene_zoo.settings import Recipe
from learngene_zoo.training import checkpoint
from learngene_zoo.training.checkpoint import Checkpoint
from learngene_zoo.training.fit import check_progress
from learngene_zoo.training.loop import (
    Step,
    compute_learning_rate,
    make_parameter_groups,
    use_stochastic_depth,
)
from learngene_zoo.training.objectives import Classification, make_mixup


def rates(**settings) -> list[float]:
    recipe = Recipe(epochs=10, lr=1.0, **settings)
    return [compute_learning_rate(recipe, step, 10) for step in range(1, 101)]


def test_cosine():
    values = rates(min_lr=0.2)
    assert values[0] == 1.0
    assert values[50] == pytest.approx(0.6)
    assert values == sorted(values, reverse=True)
    assert 0.2 < values[-1] < 0.201


def test_poly():
    assert rates(schedule="poly", power=0.9) == pytest.approx(
        [(1 - t / 100) ** 0.9 for t in range(100)]
    )


def test_warmup_rises_linearly_to_the_peak_and_the_rest_follows():
    values = rates(schedule="constant", warmup=2.0)
    assert values[:20] == pytest.approx([n / 20 for n in range(1, 21)])
    assert set(values[20:]) == {1.0}
    shorter = [compute_learning_rate(Recipe(epochs=8, lr=1.0), step, 10) for step in range(1, 81)]
    assert rates(warmup=2.0)[20:] == shorter


def test_warmup_longer_than_training():
    assert rates(warmup=20.0)[-1] == 0.5


def test_decay_is_for_matrices_only():
    from timm.models.vision_transformer import VisionTransformer

    vit = VisionTransformer(
        img_size=8, patch_size=4, embed_dim=8, depth=1, num_heads=1, num_classes=3, init_values=0.1
    )
    vit.pos_embed.requires_grad_(True)
    vit.patch_embed.requires_grad_(False)
    decayed, undecayed = make_parameter_groups(
        nn.ModuleDict({"model": vit}), Recipe(weight_decay=0.3)
    )
    names = {id(parameter): name for name, parameter in vit.named_parameters()}
    assert {names[id(p)] for p in decayed["params"]} == {
        "blocks.0.attn.qkv.weight",
        "blocks.0.attn.proj.weight",
        "blocks.0.mlp.fc1.weight",
        "blocks.0.mlp.fc2.weight",
        "head.weight",
    }
    assert {"cls_token", "pos_embed", "norm.weight", "blocks.0.ls1.gamma"} <= {
        names[id(p)] for p in undecayed["params"]
    }
    assert len(decayed["params"]) + len(undecayed["params"]) == len(names) - 2
    assert (decayed["weight_decay"], undecayed["weight_decay"]) == (0.3, 0.0)


def draws() -> tuple:
    return torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random()


def test_seeds_are_functions_of_seed_step_and_rank():
    def at(seed, step, rank=0):
        seed_step(seed, step, rank)
        return draws()

    assert at(1, 2) == at(1, 2)
    assert len({repr(at(*where)) for where in [(1, 2), (1, 3), (2, 2), (1, 2, 1)]}) == 4


@pytest.mark.parametrize("size", [1, 5, 8])
@pytest.mark.parametrize(
    "recipe", [Recipe(mixup=1.0), Recipe(cutmix=1.0), Recipe(mixup=0.5, cutmix=0.5)]
)
def test_mixing_keeps_the_shares_of_labels(size, recipe):
    seed_step(0, 1, 0)
    images = torch.arange(size).float()[:, None, None, None].expand(size, 3, 8, 8)
    batch = Batch(images, torch.arange(size), torch.arange(size))
    mixed = make_mixup(recipe, classes=size)(batch)
    assert mixed.inputs.shape == images.shape
    assert mixed.labels.shape == (size, size)
    torch.testing.assert_close(mixed.labels.sum(dim=1), torch.ones(size))
    # Image i is constantly i, so that the mean pixel and the mean label are mixed alike.
    torch.testing.assert_close(
        mixed.inputs.mean(dim=(1, 2, 3)), mixed.labels @ torch.arange(size).float()
    )
    assert torch.equal(
        batch.inputs, torch.arange(size).float()[:, None, None, None].expand(size, 3, 8, 8)
    )


def test_no_mixing():
    assert make_mixup(Recipe(), classes=3) is None


def test_drop_path_rises_linearly_and_goes_away():
    import timm

    vit = timm.create_model("vit_tiny_patch16_224", img_size=32, embed_dim=8, num_heads=1, depth=3)
    with use_stochastic_depth(nn.ModuleDict({"model": vit}), 0.4):
        assert [
            getattr(block.drop_path1, "drop_prob", 0.0) for block in vit.blocks
        ] == pytest.approx([0.0, 0.2, 0.4])
        assert [
            getattr(block.drop_path2, "drop_prob", 0.0) for block in vit.blocks
        ] == pytest.approx([0.0, 0.2, 0.4])
    assert all(isinstance(block.drop_path1, nn.Identity) for block in vit.blocks)


def test_classification_with_hard_and_soft_labels():
    torch.manual_seed(0)
    logits, labels = torch.randn(6, 4), torch.tensor([0, 1, 2, 3, 0, 1])
    for target in (labels, functional.one_hot(labels, 4).float()):
        objective = Classification(nn.Identity(), label_smoothing=0.1)
        loss = objective(SimpleNamespace(inputs=logits, labels=target))["cross_entropy"]
        shares = 0.9 * functional.one_hot(labels, 4) + 0.1 / 4
        torch.testing.assert_close(loss, -(shares * logits.log_softmax(dim=1)).sum(dim=1).mean())


@pytest.mark.parametrize(("gpu", "best"), [(True, "cuda"), (False, "cpu")])
def test_the_device_is_the_best_there_is_unless_it_is_named(gpu, best, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    assert (Run().device_name, Run(device="cpu").device_name) == (best, "cpu")


def test_devices():
    assert open_device(Run(device="cpu")) == torch.device("cpu")
    for wrong in ("cpu:1", "cuda:x", "gpu", "", "cuda:-1"):
        with pytest.raises(WrongCall, match="device"):
            open_device(Run(device=wrong))


WRONG_RUNS = [
    ({"seed": 1.0}, "seed is 1.0; expected a value of type int"),
    ({"seed": "1"}, "seed is '1'; expected"),
    ({"seed": True}, "seed is True; expected"),
    ({"seed": 2**70}, f"seed is {2**70}; it must be at least 0 and at most {2**63 - 1}"),
    ({"seed": -1}, "seed is -1; it must be at least 0"),
    ({"threads": 0}, "threads is 0; it must be at least 1 and at most 1024"),
    ({"threads": "2"}, "threads is '2'; expected"),
    ({"workers": 5000}, "workers is 5000; it must be"),
    ({"device": None}, "device is None; expected"),
    ({"folder": 3}, "folder is 3; expected a value of type Path"),
    ({"resume": "yes"}, "resume is 'yes'; expected"),
    ({"precision": ["fp32"]}, "no precision named"),
]


@pytest.mark.parametrize(("values", "said"), WRONG_RUNS)
def test_a_run_refuses_values_of_another_type_and_out_of_bounds(values, said):
    with pytest.raises(WrongCall, match=re.escape(said)):
        Run(**values)


def test_a_run_converts_values_of_the_same_meaning():
    run = Run(seed=np.int64(3), threads=np.int32(2), device=torch.device("cuda", 1), folder="rf")
    assert (run.seed, run.threads, run.device, run.folder) == (3, 2, "cuda:1", Path("rf"))
    assert {type(run.seed), type(run.threads)} == {int}


@pytest.mark.parametrize("run", [{"seed": 1}, {}, 0, "cpu"])
def test_functions_refuse_a_run_of_another_type(run):
    for call in (lg.expand, lg.evaluate, lg.finetune, lg.shrink, partial(lg.predict, images=[])):
        with pytest.raises(WrongCall, match=r"run is of type .*; expected one of the class Run"):
            call("closed_form-mini", run=run)


def test_a_device_that_is_not_here(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(Unavailable, match="this machine has no cuda device"):
        open_device(Run(device="cuda"))


def test_threads_are_applied():
    before = torch.get_num_threads()
    try:
        open_device(Run(threads=2))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def steps(losses: list[float], first: int = 1, total: int | None = None):
    for number, loss in enumerate(losses, start=first):
        yield Step(
            epoch=0,
            step=number,
            steps=total or len(losses),
            losses={"cross_entropy": loss},
            lr=0.1,
            end_of_epoch=False,
        )


def test_the_guard_stops_what_stays_at_chance():
    guarded = check_progress(steps([math.log(10)] * 1000), 10)
    assert [next(guarded).step for _ in range(99)] == list(range(1, 100))
    with pytest.raises(TrainingFailed, match=r"after 100 of 1000 steps the loss is 2\.303"):
        next(guarded)


def test_the_guard_lets_pass_what_learns_what_is_short_and_what_is_resumed():
    chance = math.log(10)
    falling = [chance * (1 - n / 1000) for n in range(1000)]
    assert len(list(check_progress(steps(falling), 10))) == 1000
    assert len(list(check_progress(steps([chance] * 40), 10))) == 40
    assert len(list(check_progress(steps([chance] * 100, first=500, total=1000), 10))) == 100


def test_the_guard_remembers_the_losses_before_a_resumption(tmp_path):
    chance = math.log(10)
    lines = [{"step": n, "loss/cross_entropy": 2 * chance} for n in range(1, 91)]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    rest = [0.9 * chance] * 910  # ten of them are compared, and 40 before
    assert len(list(check_progress(steps(rest, first=91, total=1000), 10))) == 910
    with pytest.raises(TrainingFailed, match=r"after 100 of 1000 steps the loss is 4\.099"):
        list(check_progress(steps(rest, first=91, total=1000), 10, tmp_path))


def written(folder, step, **training):
    weights = {"a": torch.full((3,), float(step)), "n": torch.tensor(step)}
    saved = Checkpoint(
        step=step, training=training, tensors={"weights": weights, "step": {"a": torch.tensor(1.0)}}
    )
    checkpoint.save(folder, saved)
    return saved


def test_checkpoints_round_trip_and_replace_each_other(tmp_path):
    written(tmp_path, 9)
    written(tmp_path, 10, label="x")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-10"]
    loaded = checkpoint.load_newest(tmp_path, {"label": "x"})
    assert loaded is not None
    assert loaded.step == 10
    assert torch.equal(loaded.tensors["weights"]["a"], torch.full((3,), 10.0))
    assert loaded.tensors["weights"]["n"].dtype == torch.int64
    with pytest.raises(Refused, match="label x"):
        checkpoint.load_newest(tmp_path, {"label": "y"})


def test_a_checkpoints_record_never_changes(tmp_path):
    written(tmp_path, 10, label="x")
    record = json.loads((tmp_path / "checkpoint-10" / checkpoint.RECORD).read_text())
    assert record == {"format": 1, "step": 10, "training": {"label": "x"}, "scaler": {}}


def two_checkpoints(tmp_path, first, second):
    """Write two complete checkpoints, as a kill between writing one and removing the other leaves
    them.
    """
    written(tmp_path / "other", first)
    written(tmp_path, second)
    (tmp_path / "other" / f"checkpoint-{first}").rename(tmp_path / f"checkpoint-{first}")


@pytest.mark.parametrize(("first", "second"), [(9, 10), (10, 9), (100, 20)])
def test_of_two_checkpoints_the_one_of_the_later_step_counts(tmp_path, first, second):
    two_checkpoints(tmp_path, first, second)
    assert checkpoint.load_newest(tmp_path, {}).step == max(first, second)


def test_a_checkpoint_under_another_name_is_passed_over(tmp_path):
    two_checkpoints(tmp_path, 3, 12)
    (tmp_path / "checkpoint-12").rename(tmp_path / "checkpoint-13")
    assert checkpoint.load_newest(tmp_path, {}).step == 3


def damage_cut(place):
    data = (place / checkpoint.TENSORS).read_bytes()
    (place / checkpoint.TENSORS).write_bytes(data[: len(data) // 2])


def damage_record(place):
    (place / checkpoint.RECORD).write_text('{"format": 1, "step": ')


def damage_keys(place):
    (place / checkpoint.RECORD).write_text('{"format": 1}')


def damage_format(place):
    (place / checkpoint.RECORD).write_text('{"format": 99}')


def damage_missing(place):
    (place / checkpoint.TENSORS).unlink()


@pytest.mark.parametrize(
    "damage", [damage_cut, damage_record, damage_keys, damage_format, damage_missing]
)
def test_a_damaged_newest_checkpoint_is_passed_over(tmp_path, damage):
    written(tmp_path / "other", 3)
    written(tmp_path, 12)
    (tmp_path / "other" / "checkpoint-3").rename(tmp_path / "checkpoint-3")
    damage(tmp_path / "checkpoint-12")
    loaded = checkpoint.load_newest(tmp_path, {})
    assert loaded is not None
    assert loaded.step == 3


@pytest.mark.parametrize(("rank", "written"), [(0, True), (1, False)])
def test_metrics_are_written_by_the_first_process(rank, written, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", str(rank))
    with open_metrics_file(tmp_path, 0) as log:
        log({"loss": 1.0}, 1)
    assert (tmp_path / "metrics.jsonl").exists() is written


def test_lines_of_later_steps_and_lines_cut_short_are_forgotten(tmp_path):
    lines = [json.dumps({"step": step, "loss": 0.5}) for step in range(1, 6)]
    (tmp_path / "metrics.jsonl").write_text(
        "\n".join([*lines[:2], '{"step": 2, "lo', *lines[2:], '{"loss": 3'])
    )
    with open_metrics_file(tmp_path, 3) as log:
        log({"loss": 0.25}, 4)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["loss"]) for line in rows] == [
        (1, 0.5),
        (2, 0.5),
        (3, 0.5),
        (4, 0.25),
    ]


def test_no_checkpoints(tmp_path):
    assert checkpoint.load_newest(tmp_path / "nowhere", {}) is None
    (tmp_path / "checkpoint-x").mkdir()
    (tmp_path / ".checkpoint-4.77-1-2-abc.draft").mkdir()
    assert checkpoint.load_newest(tmp_path, {}) is None
    checkpoint.forget_drafts(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-x"]


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("clip", 0.0, "clip is 0.0; it must be above 0"),
        ("power", -1.0, "power is -1.0; it must be at least 0"),
    ],
)
def test_a_recipe_refuses_a_clip_of_nothing_and_a_schedule_that_rises(
    field: str, value: float, words: str
) -> None:
    with pytest.raises(WrongCall, match=words):
        Recipe(**{field: value})


def test_a_long_title_leaves_room_for_the_numbers_of_a_bar():
    from learngene_zoo.runs.progress import _shorten_title

    assert _shorten_title("training on digits", 20) == "training on digits"
    short = _shorten_title("search/folder:a-long-name-of-a-data-set: super net", 21)
    assert (len(short), short[:7], short[-9:]) == (21, "search/", "super net")
    assert len(_shorten_title("x" * 50, -5)) == 15


def test_a_line_of_an_epoch_has_its_mean_loss_and_the_number_of_epochs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from learngene_zoo.runs.progress import print_epochs
    from learngene_zoo.runs.run import Run

    with print_epochs(
        Run(lines=True, name="search/digits"), "super net", done=0, steps=6, epochs=3
    ) as watch:
        watch({"epoch": 1, "loss": 9.0}, 4)
        watch({"epoch": 2, "loss": 0.7}, 5)
        watch({"epoch": 2, "loss": 0.3}, 6)
    assert capsys.readouterr().err == "search/digits: super net: epoch 3 of 3: loss 0.5000, 0 s\n"
