"""Task embeddings: the mean of the ancestry's features, and the ancestry that a learngene was made with."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tal_toy import ancestry

from learngene_zoo.artifacts.descendant import assemble
from learngene_zoo.artifacts.records import LearngeneConfig
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.runs.run import Run
from learngene_zoo.tasks.transforms import normalised
from learngene_zoo.testing import tiny_task
from lgzoo_tal.embedding import embed, recorded_ancestry


def test_it_is_the_mean_of_the_class_tokens_features_over_all_training_images() -> None:
    model, task = ancestry(), tiny_task()
    images = normalised(task.split("train").__getitems__(range(48)), model.input_format)
    with torch.no_grad():
        wanted = model.model().forward_features(images)[:, 0].mean(dim=0)
    found = embed(model.model(), task, model.input_format, Run(), None)
    assert found.shape == (32,)
    assert torch.allclose(found, wanted, atol=1e-6)


def test_some_images_have_all_classes_and_the_seed_changes_nothing() -> None:
    """The mean of two classes' bright pixels lies between both."""
    model, task = ancestry(), tiny_task()
    few = embed(model.model(), task, model.input_format, Run(seed=1), 6)
    assert torch.equal(few, embed(model.model(), task, model.input_format, Run(seed=2), 6))
    assert not torch.equal(few, embed(model.model(), task, model.input_format, Run(seed=1), 12))


def test_it_tells_tasks_and_ancestries_apart() -> None:
    one, other = ancestry(), ancestry(heads=4)
    a, b = tiny_task("a"), tiny_task("b")
    mine = embed(one.model(), a, one.input_format, Run(), None)
    assert not torch.equal(mine, embed(one.model(), b, one.input_format, Run(), None))
    assert not torch.equal(mine, embed(other.model(), a, other.input_format, Run(), None))


def test_a_dense_ancestry_gives_the_mean_of_its_patches() -> None:
    model, task = ancestry(dense=True), tiny_task()
    images = normalised(task.split("train").__getitems__(range(48)), model.input_format)
    with torch.no_grad():
        wanted = model.model().forward_features(images)[:, 1:].mean(dim=(0, 1))
    assert torch.allclose(embed(model.model(), task, model.input_format, Run(), None), wanted, atol=1e-6)


@pytest.fixture
def recorded(tmp_path: Path) -> LearngeneConfig:
    """A learngene's config whose ancestry lies in a folder."""
    from learngene_zoo.artifacts.ancestry import open_ancestry

    made = ancestry()
    assemble(made.spec, made.state, seed=0).save(tmp_path / "ancestry")
    record = open_ancestry(str(tmp_path / "ancestry")).record
    return LearngeneConfig(method="tal", spec=made.spec, ancestries=(record,))


def test_the_recorded_ancestry_is_opened_again(recorded: LearngeneConfig) -> None:
    found = recorded_ancestry(recorded, Run(ancestry=recorded.ancestries[0].source, offline=True))
    assert found.record == recorded.ancestries[0]
    assert torch.equal(found.state["cls_token"], ancestry().state["cls_token"])


def test_other_weights_in_its_place_are_refused(recorded: LearngeneConfig) -> None:
    record = replace(recorded.ancestries[0], sha256="f" * 64)
    with pytest.raises(BadFile, match=r"has the checksum .* but ffffffffffff… is recorded"):
        recorded_ancestry(replace(recorded, ancestries=(record,)), Run(ancestry=record.source, offline=True))


@pytest.mark.parametrize("source", ["ancestry", "/etc", "../x", "a b.safetensors", "hf-hub:org/name"])
def test_a_record_chooses_no_place(source: str, recorded: LearngeneConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learngene_zoo.artifacts.ancestry.open_ancestry", pytest.fail)
    record = replace(recorded.ancestries[0], source=source, revision="a" * 40)
    quoted = f"'{source}'" if " " in source else source
    with pytest.raises(WrongCall, match=f"opened only if you name it: add --ancestry {re.escape(quoted)}$"):
        recorded_ancestry(replace(recorded, ancestries=(record,)), Run(offline=True))


@pytest.mark.parametrize("source", ["bundled", "timm:vit_tiny_patch16_224"])
def test_no_checksum_is_no_pin(source: str, recorded: LearngeneConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learngene_zoo.artifacts.ancestry.open_ancestry", lambda *_, **__: ancestry())
    record = replace(recorded.ancestries[0], source=source, sha256=None)
    config = replace(recorded, ancestries=(record,))
    with pytest.raises(WrongCall, match=f"any model would pass for it; if you trust it, add --ancestry {source}$"):
        recorded_ancestry(config, Run(offline=True))
    assert recorded_ancestry(config, Run(ancestry=source, offline=True)).record.sha256 == "0" * 64
    pinned = replace(recorded, ancestries=(replace(record, sha256="0" * 64),))
    assert recorded_ancestry(pinned, Run(offline=True)).record.sha256 == "0" * 64


def test_a_learngene_without_an_ancestry_embeds_nothing(recorded: LearngeneConfig) -> None:
    with pytest.raises(WrongCall, match="records no ancestry model"):
        recorded_ancestry(replace(recorded, ancestries=()), Run(offline=True))


def test_a_revision_of_the_hub_is_pinned(recorded: LearngeneConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def opened(source: str, *, offline: bool, **how: object) -> object:
        asked.append(source)
        return ancestry()

    monkeypatch.setattr("learngene_zoo.artifacts.ancestry.open_ancestry", opened)
    sources = {"hf-hub:org/name": "hf-hub:org/name@" + "a" * 40, "hf-hub:org/name@main": "hf-hub:org/name@main"}
    for source in sources:
        record = replace(ancestry().record, source=source, revision="a" * 40)
        recorded_ancestry(replace(recorded, ancestries=(record,)), Run(ancestry=source, offline=True))
    assert asked == list(sources.values())
