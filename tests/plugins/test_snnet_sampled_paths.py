"""Joint training: one path per step, the same everywhere, on labels and a teacher."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from stitching_toy import anchors, images, stitched
from stitching_toy import train_stitches as trained_by
from torch.nn import functional

from learngene_zoo.errors import TrainingFailed
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Recipe
from learngene_zoo.storage import Tensors
from learngene_zoo.tasks.task import Task
from learngene_zoo.testing import make_tiny_task
from learngene_zoo.training.distillation import Teacher, compute_divergence
from lgzoo_pool.modules.network import StitchedNetwork
from lgzoo_pool.modules.objectives import SampledPaths, draw_path, freeze_anchors
from lgzoo_pool.paths import StitchLayout
from lgzoo_pool.settings import PathSettings

TOY = Path(__file__).with_name("stitching_toy.py")
RECIPE = Recipe(epochs=2, batch_size=12, lr=1e-3, augment="none", ema=0.9, drop_path=0.1)
TASK = make_tiny_task(classes=4)


def train_sampled(
    network: StitchedNetwork, run: Run, recipe: Recipe = RECIPE, **options: Any
) -> None:
    trained_by(network, run, recipe, TASK, **options)


def state(network: StitchedNetwork) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in network.state_dict().items()}


def test_paths_are_uniform_and_a_function_of_seed_and_step() -> None:
    paths = StitchLayout(depths=(6, 6)).paths
    draws = [draw_path(paths, 5, step) for step in range(1, 1801)]
    assert draws == [draw_path(paths, 5, step) for step in range(1, 1801)]
    assert draws[:50] != [draw_path(paths, 6, step) for step in range(1, 51)]
    counts = Counter(draws)
    assert set(counts) == set(paths)
    assert max(counts.values()) < 150
    assert min(counts.values()) > 60


def test_a_step_trains_what_lies_on_its_path_and_nothing_else() -> None:
    network, details = stitched()
    run = Run(
        seed=next(
            s for s in range(99) if draw_path(details.layout.paths, s, 1) == details.layout.paths[4]
        )
    )
    before = state(network)
    recipe = replace(RECIPE, epochs=1, images=12, ema=None, weight_decay=0.1)
    train_sampled(network, run, recipe)
    changed = {
        name for name, tensor in state(network).items() if not torch.equal(tensor, before[name])
    }
    path = details.layout.paths[4]
    assert [part[1:] for part in path.parts] == [(0, 2), (0, 3)]
    inside = tuple(
        f"anchors.0.{name}"
        for name in ("cls_token", "pos_embed", "patch_embed", "blocks.0.", "blocks.1.")
    )
    inside += ("anchors.1.blocks.", "anchors.1.norm.", "anchors.1.head.", "stitches.0.0.")
    assert changed == {name for name in before if name.startswith(inside)}


@pytest.mark.slow
def test_a_seed_gives_one_training_whatever_was_drawn_before() -> None:
    first, second = stitched()[0], stitched()[0]
    train_sampled(first, Run(seed=3))
    torch.rand(7)
    train_sampled(second, Run(seed=3))
    assert all(torch.equal(tensor, state(second)[name]) for name, tensor in state(first).items())
    third = stitched()[0]
    train_sampled(third, Run(seed=4))
    assert any(not torch.equal(tensor, state(third)[name]) for name, tensor in state(first).items())
    assert not first.training


@pytest.mark.slow
def test_resuming_continues_with_the_path_of_the_step(tmp_path: Path) -> None:
    """Checkpoints after every step, an interruption after the fifth of eight, and a bit-equal
    result.
    """
    full = stitched()[0]
    train_sampled(full, Run(seed=3))
    train_sampled(stitched()[0], Run(seed=3, folder=tmp_path), until=6)
    assert (tmp_path / "checkpoint-5").is_dir()
    resumed = stitched()[0]
    train_sampled(resumed, Run(seed=3, folder=tmp_path, resume=True))
    assert all(torch.equal(tensor, state(resumed)[name]) for name, tensor in state(full).items())
    steps = [
        line.split('"step": ')[1].split(",")[0]
        for line in (tmp_path / "metrics.jsonl").read_text().splitlines()
    ]
    assert [int(step) for step in steps] == list(range(1, 9))


def batch() -> Any:
    return SimpleNamespace(inputs=images(6), labels=torch.arange(6) % 4, attributes=None)


def sampled_paths(
    network: StitchedNetwork, task: Task = TASK, teacher: Any = None, guidance: Any = "none"
) -> SampledPaths:
    settings = PathSettings(recipe=RECIPE, guidance=guidance, share=0.25, temperature=2.0)
    return SampledPaths(network, task, settings, 1, teacher=teacher)


def objective(guidance: Any) -> tuple[SampledPaths, Any]:
    teacher = anchors()[1].model()
    return sampled_paths(stitched()[0], teacher=Teacher(teacher), guidance=guidance), teacher


@pytest.mark.parametrize("kind", ["soft", "hard"])
def test_the_loss_is_the_labels_share_and_the_teachers(kind: Any) -> None:
    sampled, teacher = objective(kind)
    losses = sampled(batch())
    with torch.no_grad():
        given, expected = sampled.network(batch().inputs, sampled.path), teacher(batch().inputs)
        far = (
            compute_divergence(given, expected, 2.0)
            if kind == "soft"
            else functional.cross_entropy(given, expected.argmax(1))
        )
        labels = functional.cross_entropy(given, batch().labels)
    assert losses["cross_entropy"].item() == pytest.approx(0.75 * labels.item(), rel=1e-5)
    assert losses["distillation"].item() == pytest.approx(0.25 * far.item(), rel=1e-5)
    assert set(losses) == {"cross_entropy", "distillation"}


def test_the_teacher_is_neither_trained_nor_saved() -> None:
    sampled, teacher = objective("soft")
    sum(sampled(batch()).values()).backward()
    assert all(parameter.grad is None for parameter in teacher.parameters())
    saved = set(sampled.state_dict())
    assert saved == {f"network.{name}" for name in sampled.network.state_dict()} | {"finished"}
    assert not sampled.network.get_anchor(0).get_classifier()._forward_hooks


@pytest.mark.slow
def test_without_a_teacher_or_with_the_guidance_none_labels_alone_count() -> None:
    first, second = stitched()[0], stitched()[0]
    train_sampled(first, Run(seed=3), teacher=Teacher(anchors()[1].model()), guidance="none")
    train_sampled(second, Run(seed=3))
    assert all(torch.equal(tensor, state(second)[name]) for name, tensor in state(first).items())
    third = stitched()[0]
    train_sampled(third, Run(seed=3), teacher=Teacher(anchors()[1].model()), guidance="hard")
    assert any(not torch.equal(tensor, state(third)[name]) for name, tensor in state(first).items())


@pytest.mark.parametrize("heads", [True, False])
def test_stitches_and_class_tokens_alone(heads: bool) -> None:
    network, _ = stitched()
    before = state(network)
    paths = freeze_anchors(network, heads=heads)
    assert paths == network.layout.paths
    steps = range(1, 17)
    seed = next(
        s for s in range(99) if paths[1] in [draw_path(paths, s, step) for step in steps]
    )  # the last anchor's
    train_sampled(network, Run(seed=seed), replace(RECIPE, epochs=4), paths=paths)
    changed = {
        name for name, tensor in state(network).items() if not torch.equal(tensor, before[name])
    }
    expected = {"anchors.0.cls_token", "anchors.1.cls_token"} | {
        name for name in before if name.startswith("stitches.")
    }
    expected |= {name for name in before if ".head." in name} if heads else set()
    assert changed == expected


def test_without_class_tokens_whole_anchors_have_nothing_to_train() -> None:
    network, _ = stitched(sizes={"class_token": False, "pool": "avg"})
    paths = freeze_anchors(network, heads=False)
    assert paths == tuple(path for path in network.layout.paths if path.stitches)
    train_sampled(network, Run(seed=3), paths=paths)
    assert freeze_anchors(network, heads=True) == network.layout.paths


def test_a_loss_that_is_not_finite_ends_it() -> None:
    network, _ = stitched()
    with torch.no_grad():
        network.get_anchor(1).head.weight.fill_(float("inf"))
    with pytest.raises(TrainingFailed):
        train_sampled(network, Run(seed=1), replace(RECIPE, ema=None))


def test_pixels_and_attributes_are_learnt_too() -> None:
    """One objective per anchor: what reads attributes has its width, and a dense anchor answers for
    pixels.
    """
    from learngene_zoo.tasks.task import Attribute

    network, _ = stitched()
    described = replace(TASK, attributes=(Attribute("size"), Attribute("kind", 3)))
    sampled = sampled_paths(network, described)
    readers = {
        name: tuple(p.shape)
        for name, p in sampled.named_parameters()
        if name.startswith("objectives.")
    }
    assert readers["objectives.0.reader.weight"] == (4, 16)
    assert readers["objectives.1.reader.weight"] == (4, 32)
    labels = SimpleNamespace(**vars(batch()) | {"attributes": torch.zeros(6, 2)})
    assert set(sampled(labels)) == {"cross_entropy", "attributes/size", "attributes/kind"}


@pytest.mark.exhaustive
@pytest.mark.slow
def test_two_processes_train_as_one_with_the_whole_batch(tmp_path: Path, torchrun: Any) -> None:
    """Least squares and joint training: stitches, sampled paths and weights agree but for the order
    of additions.
    """
    program = [str(TOY), str(tmp_path / "two"), str(tmp_path / "two.safetensors")]
    output = torchrun(program, lambda text: "step" in text)
    assert output.count("step done") == 2
    command = [sys.executable, str(TOY), str(tmp_path / "one"), str(tmp_path / "one.safetensors")]
    subprocess.run(command, check=True, capture_output=True, timeout=240)
    ours, theirs = Tensors(tmp_path / "two.safetensors"), Tensors(tmp_path / "one.safetensors")
    assert set(ours) == set(theirs)
    for name in ours:
        first, second = ours[name], theirs[name]
        if name.endswith(
            "qkv.bias"
        ):  # what a key's bias adds is the same for every key: its gradient is rounding alone
            first, second = (torch.cat(tensor.chunk(3)[::2]) for tensor in (first, second))
        torch.testing.assert_close(
            first, second, rtol=1e-3, atol=2e-5, msg=lambda text, n=name: f"{n}: {text}"
        )
