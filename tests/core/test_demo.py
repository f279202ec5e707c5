"""The demo builds its arms as the bench does."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.learngene import load
from learngene_zoo.artifacts.shelf import find
from learngene_zoo.bench import demo, trial
from learngene_zoo.runs.run import Run
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.testing import tiny_task


def test_the_bench_and_the_demo_start_from_the_same_function(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Any] = []
    monkeypatch.setattr(trial, "build", lambda cell, learngene, task, run: built.append((cell, learngene, run.seed)))
    monkeypatch.setattr(lifecycle, "extract", lambda method, run: method)
    for arm in demo.ARMS:
        demo.build(arm, 7, "a learngene", tiny_task(), Run(seed=4))  # type: ignore[arg-type]
    assert [(c.arm.method, c.arm.control, c.layers, gene, seed) for c, gene, seed in built] == [
        ("lsamd", None, 7, "a learngene", 4),
        ("lsamd", "shuffled", 7, "a learngene", 4),
        ("scratch", None, 7, "scratch", 4),
        ("scratch", None, 7, "scratch", 4),
    ]
    assert [c.arm.expand for c, _, _ in built][2:] == [{"init": "timm"}, {"init": "fan_in"}]


def test_its_arms_differ_in_what_they_inherit_alone() -> None:
    gene, task = load(find("lsamd")), open_task("digits")
    own, shuffled, timm, fan_in = (demo.build(arm, 5, gene, task, Run(seed=4)) for arm in demo.ARMS)
    name = "blocks.0.attn.qkv.weight"
    for start in (own, shuffled, timm, fan_in):
        assert (start.spec, start.task, start.mean) == (own.spec, "digits", own.mean)
        assert torch.equal(start.state["head.weight"], own.state["head.weight"])
    assert torch.equal(shuffled.state[name].flatten().sort().values, own.state[name].flatten().sort().values)
    assert timm.state[name].std() < 0.03 < fan_in.state[name].std()
