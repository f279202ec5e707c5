"""Task embeddings: the mean of the ancestry's features, and the ancestry of a learngene."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tal_toy import build_ancestry

from learngene_zoo.artifacts.descendant import assemble
from learngene_zoo.artifacts.records import LearngeneConfig
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families.forward import compute_pooled
from learngene_zoo.families.gpt2.spec import Gpt2Spec
from learngene_zoo.families.tensors import build_model, initialise
from learngene_zoo.families.text_format import Tokens
from learngene_zoo.runs.run import Run
from learngene_zoo.tasks.transforms import normalise_images
from learngene_zoo.testing import make_tiny_task
from lgzoo_tal.modules import embedding
from lgzoo_tal.modules.embedding import compute_embedding, open_recorded_ancestry


def test_it_is_the_mean_of_the_class_tokens_features_over_all_training_images() -> None:
    model, task = build_ancestry(), make_tiny_task()
    images = normalise_images(task.split("train").__getitems__(range(48)), model.input_format)
    with torch.no_grad():
        expected = model.model().forward_features(images)[:, 0].mean(dim=0)
    embedding = compute_embedding(model.model(), task, model.input_format, Run(), None)
    assert embedding.shape == (32,)
    assert torch.allclose(embedding, expected, atol=1e-6)


def test_some_images_have_all_classes_and_the_seed_changes_nothing() -> None:
    """The mean of two classes' bright pixels lies between both."""
    model, task = build_ancestry(), make_tiny_task()
    few = compute_embedding(model.model(), task, model.input_format, Run(seed=1), 6)
    assert torch.equal(
        few, compute_embedding(model.model(), task, model.input_format, Run(seed=2), 6)
    )
    assert not torch.equal(
        few, compute_embedding(model.model(), task, model.input_format, Run(seed=1), 12)
    )


def test_it_tells_tasks_and_ancestries_apart() -> None:
    first, second = build_ancestry(), build_ancestry(heads=4)
    a, b = make_tiny_task("a"), make_tiny_task("b")
    mine = compute_embedding(first.model(), a, first.input_format, Run(), None)
    assert not torch.equal(
        mine, compute_embedding(first.model(), b, first.input_format, Run(), None)
    )
    assert not torch.equal(
        mine, compute_embedding(second.model(), a, second.input_format, Run(), None)
    )


def test_a_process_without_a_text_of_a_batch_adds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    spec = Gpt2Spec(layers=1, width=32, heads=4, classes=3, vocabulary=9, positions=6, pad_token=0)
    model, ids = build_model(spec, initialise(spec, 0)), torch.randint(1, 9, (4, 6))
    texts = Tokens(ids, torch.ones_like(ids))
    batches = [SimpleNamespace(inputs=texts), SimpleNamespace(inputs=texts[torch.arange(0)])]
    loader = SimpleNamespace(epoch=lambda _: batches)
    monkeypatch.setattr(embedding, "sample_images", lambda *_, **__: loader)
    unused: Any = None  # what the replaced sampling would read
    result = compute_embedding(model, make_tiny_task(), unused, Run(device="cpu"), None)
    with torch.no_grad():
        expected = compute_pooled(model.eval(), texts).mean(dim=0)
    assert torch.allclose(result, expected, atol=1e-6)


def test_a_dense_ancestry_gives_the_mean_of_its_patches() -> None:
    model, task = build_ancestry(dense=True), make_tiny_task()
    images = normalise_images(task.split("train").__getitems__(range(48)), model.input_format)
    with torch.no_grad():
        expected = model.model().forward_features(images)[:, 1:].mean(dim=(0, 1))
    assert torch.allclose(
        compute_embedding(model.model(), task, model.input_format, Run(), None), expected, atol=1e-6
    )


@pytest.fixture
def recorded_config(tmp_path: Path) -> LearngeneConfig:
    """A learngene's config whose ancestry lies in a folder."""
    from learngene_zoo.pretrained.ancestry import open_ancestry

    model = build_ancestry()
    assemble(model.spec, model.state, seed=0).save(tmp_path / "ancestry")
    record = open_ancestry(str(tmp_path / "ancestry")).record
    return LearngeneConfig(method="tal", spec=model.spec, ancestries=(record,))


def test_the_recorded_ancestry_is_opened_again(recorded_config: LearngeneConfig) -> None:
    opened_ancestry = open_recorded_ancestry(
        recorded_config, Run(ancestry=recorded_config.ancestries[0].source, offline=True)
    )
    assert opened_ancestry.record == recorded_config.ancestries[0]
    assert torch.equal(opened_ancestry.state["cls_token"], build_ancestry().state["cls_token"])


def test_other_weights_in_its_place_are_refused(recorded_config: LearngeneConfig) -> None:
    record = replace(recorded_config.ancestries[0], sha256="f" * 64)
    with pytest.raises(BadFile, match=r"has the checksum .* but ffffffffffff… is recorded"):
        open_recorded_ancestry(
            replace(recorded_config, ancestries=(record,)),
            Run(ancestry=record.source, offline=True),
        )


@pytest.mark.parametrize(
    "source", ["ancestry", "/etc", "../x", "a b.safetensors", "hf-hub:org/name"]
)
def test_a_record_chooses_no_place(
    source: str, recorded_config: LearngeneConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learngene_zoo.pretrained.ancestry.open_ancestry", pytest.fail)
    record = replace(recorded_config.ancestries[0], source=source, revision="a" * 40)
    with pytest.raises(
        WrongCall, match=f'opened only if you name it: add ancestry="{re.escape(source)}"$'
    ):
        open_recorded_ancestry(replace(recorded_config, ancestries=(record,)), Run(offline=True))


@pytest.mark.parametrize("source", ["bundled", "timm:vit_tiny_patch16_224"])
def test_no_checksum_is_no_pin(
    source: str, recorded_config: LearngeneConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "learngene_zoo.pretrained.ancestry.open_ancestry", lambda *_, **__: build_ancestry()
    )
    record = replace(recorded_config.ancestries[0], source=source, sha256=None)
    config = replace(recorded_config, ancestries=(record,))
    with pytest.raises(
        WrongCall, match=f'any model would pass for it; if you trust it, add ancestry="{source}"$'
    ):
        open_recorded_ancestry(config, Run(offline=True))
    assert (
        open_recorded_ancestry(config, Run(ancestry=source, offline=True)).record.sha256 == "0" * 64
    )
    pinned = replace(recorded_config, ancestries=(replace(record, sha256="0" * 64),))
    assert open_recorded_ancestry(pinned, Run(offline=True)).record.sha256 == "0" * 64


def test_a_learngene_without_an_ancestry_embeds_nothing(recorded_config: LearngeneConfig) -> None:
    with pytest.raises(WrongCall, match="records no ancestry model"):
        open_recorded_ancestry(replace(recorded_config, ancestries=()), Run(offline=True))


def test_a_revision_of_the_hub_is_pinned(
    recorded_config: LearngeneConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources_asked: list[str] = []

    def open_fake(source: str, *, offline: bool, **how: object) -> object:
        sources_asked.append(source)
        return build_ancestry()

    monkeypatch.setattr("learngene_zoo.pretrained.ancestry.open_ancestry", open_fake)
    sources = {
        "hf-hub:org/name": "hf-hub:org/name@" + "a" * 40,
        "hf-hub:org/name@main": "hf-hub:org/name@main",
    }
    for source in sources:
        record = replace(build_ancestry().record, source=source, revision="a" * 40)
        open_recorded_ancestry(
            replace(recorded_config, ancestries=(record,)), Run(ancestry=source, offline=True)
        )
    assert sources_asked == list(sources.values())
