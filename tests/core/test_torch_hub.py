"""Return values and messages of the torch.hub entries; `tests/test_hubconf.py` loads them through
torch.hub from a bare checkout.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import learngene_zoo as lg
from learngene_zoo import torch_hub
from learngene_zoo.artifacts import shelf
from learngene_zoo.errors import Unavailable, WrongCall
from learngene_zoo.families.family import load_family
from learngene_zoo.method.contract import METHODS
from learngene_zoo.runs.run import Run
from learngene_zoo.testing import tiny_ancestry


def build_with_warnings(method: str, **options: Any) -> tuple[Any, list[str]]:
    """Return a model, and the warnings while it was built."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = torch_hub.method_vit(method, **options)
    return model, [str(warning.message) for warning in caught]


def test_a_random_head_is_told_and_one_that_is_predicted_is_not() -> None:
    model, told = build_with_warnings("lsamd", task="digits", layers=6)
    assert model.label_names == list("0123456789")
    assert len(told) == 1
    assert "10 classes of digits, is random" in told[0]
    model, told = build_with_warnings("tal", task="signs", layers=2)
    assert (len(model.label_names), told) == (model.num_classes, [])
    for options in ({"classes": 0}, {"pretrained": False}):
        model, told = build_with_warnings("lsamd", layers=6, **options)
        assert (model.label_names, told) == ([], [])


def test_sizes_may_be_text_as_on_the_command_line() -> None:
    for options in ({"depth": "5"}, {"max_params": "700K"}, {"max_flops": "10.2M"}):
        assert len(build_with_warnings("lsamd", classes=326, **options)[0].blocks) == 5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"layer": 7}, "no size or setting named 'layer'; did you mean layers?"),
        ({"embed_dims": 64}, "did you mean embed_dim?"),
        ({"layers": "many"}, "layers is 'many'; expected a whole number"),
        ({"layers": [7]}, r"layers is \[7\]; expected a whole number"),
        ({"layers": 7.5}, "layers is 7.5; expected a whole number"),
        ({"layers": True}, "layers is True; expected a whole number"),
        ({"max_params": "1Q"}, "'1Q' has no known unit"),
    ],
)
def test_what_is_no_size_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(WrongCall, match=words):
        torch_hub.method_vit("lsamd", **options)


def test_the_device_is_torchs_own_unless_it_is_named() -> None:
    named = build_with_warnings("lsamd", layers=5, device=torch.device("meta"))[0]
    with torch.device("meta"):
        default = build_with_warnings("lsamd", layers=5)[0]
    for model in (named, default):
        assert {tensor.device.type for tensor in model.state_dict().values()} == {"meta"}


def test_an_entry_without_a_learngene_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "ancestry-mini").mkdir()
    (tmp_path / "ancestry-mini" / "config.json").write_text("{}")
    monkeypatch.setattr(shelf, "cards_folder", lambda: tmp_path)
    with pytest.raises(
        WrongCall,
        match=r"pool_vit needs a learngene, and the shelf has none of pool .*extract pool",
    ) as told:
        torch_hub.method_vit("pool")
    assert "ancestry-mini" not in str(told.value)


def test_scratch_builds_random_weights_and_what_is_not_shipped_is_no_entry() -> None:
    model, _ = build_with_warnings("scratch", task="digits", layers=2, embed_dim=64, num_heads=2)
    assert (len(model.blocks), model.embed_dim, model.num_classes) == (2, 64, 10)
    assert "scratch_vit" in torch_hub.entries()
    for name, why in (
        ("distillation_vit", "no learngene of distillation comes"),
        ("ligo_vit", "ligo trains when"),
    ):
        assert name not in torch_hub.entries()
        with pytest.raises(AttributeError, match=f"no entry named '{name}': {why}"):
            torch_hub.entry(name)
    with pytest.raises(AttributeError, match="no entry named 'nothing_vit'; there are "):
        torch_hub.entry("nothing_vit")


def test_without_a_task_and_classes_a_model_has_no_head() -> None:
    for options, classes in (
        ({}, 0),
        ({"num_classes": 7}, 7),
        ({"classes": 5}, 5),
        ({"task": "digits"}, 10),
    ):
        assert build_with_warnings("lsamd", layers=5, **options)[0].num_classes == classes
    model, told = build_with_warnings("lsamd", layers=5)
    assert (model(torch.zeros(1, 3, 32, 32)).shape, told) == ((1, model.embed_dim), [])


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "accelerate", None)

    def needs(*_: object, **__: object) -> None:
        import accelerate  # noqa: F401

    monkeypatch.setattr("learngene_zoo.lifecycle.expand", needs)
    with pytest.raises(
        Unavailable, match="the package accelerate, which is not installed: pip install accelerate"
    ):
        torch_hub.method_vit("lsamd", layers=5)


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_a_learngene_of_texts_builds_a_model_of_transformers_with_a_tokenizer(
    family: str, tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    ancestry = tiny_ancestry(spec=load_family(family).examples[0].with_(vocabulary=90))
    extractor = METHODS.load("first_k").extractor
    learngene = replace(extractor([ancestry], [], Run()), files=ancestry.files)
    folder = learngene.with_config(method="first_k", ancestries=(ancestry.record,)).save(
        tmp_path / "learngene"
    )
    with pytest.warns(UserWarning, match="2 classes of sentiment, is random"):
        model = torch_hub.build(folder, task="sentiment", layers=2, seed=3)
    expected = lg.expand(folder, task="sentiment", layers=2, run=Run(seed=3))
    assert type(model).__module__.startswith("transformers.")
    assert model.label_names == ["bad", "good"]
    first, second = model.tokenizer.encode_batch(["w5 w6 w7", "w8 " * 50])
    assert (first.ids[:3], len(first.ids)) == ([5, 6, 7], len(second.ids))
    assert len(second.ids) == ancestry.spec.positions
    texts = {"input_ids": torch.tensor([first.ids, second.ids])}
    texts["attention_mask"] = torch.tensor([first.attention_mask, second.attention_mask])
    with torch.no_grad():
        assert torch.equal(model(**texts).logits, expected.model()(**texts).logits)
