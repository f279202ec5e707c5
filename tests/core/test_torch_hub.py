"""Return values and messages of the torch.hub entries; `tests/test_hubconf.py` loads them through
torch.hub from a bare checkout.
"""

from __future__ import annotations

import re
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
from learngene_zoo.artifacts.descendant import assemble
from learngene_zoo.errors import Unavailable, WrongCall
from learngene_zoo.families.family import load_family
from learngene_zoo.method.installed import METHODS
from learngene_zoo.runs.run import Run
from learngene_zoo.testing import make_tiny_ancestry


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


def test_the_page_names_the_methods_without_an_entry() -> None:
    page = (Path(__file__).parents[2] / "docs" / "torch_hub.md").read_text(encoding="utf-8")
    listed = {name.removesuffix(torch_hub.SUFFIX) for name in torch_hub.list_entries()}
    (row,) = (line for line in page.splitlines() if line.startswith("| `METHOD_vit` "))
    named = set(re.findall(r"`(\w+)`", row.partition("there is none for")[2]))
    assert named == set(METHODS.references()) - listed


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
    monkeypatch.setattr(shelf, "find_cards_folder", lambda: tmp_path)
    with pytest.raises(
        WrongCall,
        match=r"pool_vit needs a learngene, and the shelf has none of pool .*extract pool",
    ) as told:
        torch_hub.method_vit("pool")
    assert "ancestry-mini" not in str(told.value)


def test_scratch_builds_random_weights_and_what_is_not_shipped_is_no_entry() -> None:
    model, _ = build_with_warnings("scratch", task="digits", layers=2, embed_dim=64, num_heads=2)
    assert (len(model.blocks), model.embed_dim, model.num_classes) == (2, 64, 10)
    assert "scratch_vit" in torch_hub.list_entries()
    for name, why in (
        ("distillation_vit", "no learngene of distillation comes"),
        ("ligo_vit", "ligo trains when"),
    ):
        assert name not in torch_hub.list_entries()
        with pytest.raises(AttributeError, match=f"no entry named '{name}': {why}"):
            torch_hub.load_entry(name)
    with pytest.raises(AttributeError, match="no entry named 'nothing_vit'; there are "):
        torch_hub.load_entry("nothing_vit")


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
    ancestry = make_tiny_ancestry(spec=load_family(family).examples[0].with_(vocabulary=90))
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


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"depth": 6, "layers": 7}, "depth=6 and layers=7 have one meaning; give one"),
        ({"task": ["digits"]}, "task is of type list; expected a name such as"),
        ({"learngene": 3}, "learngene is of type int; expected a folder, a name of the shelf"),
        ({"control": "shufled"}, "did you mean shuffled?"),
        ({"pretrained": "no"}, "pretrained is 'no'; expected True or False"),
        ({"device": "gpu"}, "device is 'gpu'; expected a device of torch"),
    ],
)
def test_wrong_arguments_are_named_before_anything_is_built(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], words: str
) -> None:
    gene = torch_hub._find_on_shelf("lsamd")
    monkeypatch.setattr("learngene_zoo.artifacts.descendant.Descendant.model", None)
    with pytest.raises(WrongCall, match=words):
        torch_hub.method_vit("lsamd", **{"learngene": gene, **options})


def test_a_gpu_that_is_missing_is_refused_before_anything_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("learngene_zoo.lifecycle.expand", None)
    with pytest.raises(Unavailable, match="this machine has no device cuda:1; use device='cpu'"):
        torch_hub.method_vit("lsamd", device="cuda:1")


def test_paths_work_as_their_strings_and_other_objects_are_refused() -> None:
    task: Any = Path("digits")
    assert lg.expand(Path("lsamd"), layers=5, task=task).spec.classes == 10
    module: Any = torch.nn.Linear(2, 2)
    for call, name in (
        (lambda: lg.expand(module), "learngene"),
        (lambda: lg.expand("lsamd", task=module), "task"),
        (lambda: lg.finetune(module), "model"),
        (lambda: lg.finetune("lsamd", task=3), "task"),  # type: ignore[arg-type]
        (lambda: lg.shrink(module, task="digits", max_params="500K"), "model"),
        (lambda: lg.extract("first_k", ancestries=[3]), "ancestries"),  # type: ignore[list-item]
    ):
        with pytest.raises(WrongCall, match=f"^{name} is of type (Linear|int); expected "):
            call()


def test_another_ancestry_model_is_refused_with_the_way_that_works(tmp_path: Path) -> None:
    ancestry = make_tiny_ancestry()
    assemble(ancestry.spec, ancestry.state, seed=0).save(tmp_path / "other")
    with pytest.raises(WrongCall, match=r"is not the ancestry model of .*lg.extract\('lsamd', anc"):
        torch_hub.method_vit("lsamd", layers=5, ancestry=tmp_path / "other")
    assert len(torch_hub.method_vit("lsamd", layers=5, ancestry="bundled").blocks) == 5
