"""Folders of text models: transformers opens ours, and we open transformers'."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from text_models_toy import BERT, GPT2, SPECS, WORDS, draw_words, write_tokenizer

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.descendant import Descendant, assemble, load_descendant
from learngene_zoo.artifacts.learngene import load_learngene
from learngene_zoo.artifacts.shelf import read_kind
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families.forward import compute_logits, compute_tokens
from learngene_zoo.families.tensors import initialise
from learngene_zoo.families.text_spec import TextSpec
from learngene_zoo.lifecycle.analyse import assemble_ancestry
from learngene_zoo.method.sizes import Target
from learngene_zoo.pretrained.ancestry import open_ancestry, read_ancestry_spec
from learngene_zoo.storage import CONFIG, TOKENIZER, WEIGHTS, compute_sha256

transformers = pytest.importorskip("transformers")

NAMES = ("cat", "dog", "bird")
OPEN = """
import sys, torch
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer
for folder in sys.argv[1:]:
    kind = AutoModelForSequenceClassification if folder.endswith("-3") else AutoModel
    model, report = kind.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    words, mask = torch.load(folder + ".words")
    answer = model.eval()(input_ids=words, attention_mask=mask)
    answer = answer.logits if hasattr(answer, "logits") else answer.last_hidden_state
    torch.save(answer, folder + ".answer")
    print(model.config.id2label, AutoTokenizer.from_pretrained(folder)("the cat").input_ids)
assert not any(name.startswith("learngene_zoo") for name in sys.modules)
"""


def make_descendant(spec: TextSpec, folder: Path | None = None) -> Descendant:
    """Return a descendant with random weights; its tokenizer is in a folder."""
    names = NAMES if spec.classes == len(NAMES) else ()
    made = assemble(spec, {}, seed=0, scheme="fan_in", class_names=names)
    if folder is None:
        return made
    folder.mkdir()
    write_tokenizer(folder)
    texts = {path.name: path.read_text() for path in folder.iterdir()}
    return Descendant(**{**vars(made), "files": texts})


def write_config(folder: Path, **changes: Any) -> None:
    """Change keys of a config.json."""
    path = folder / CONFIG
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def save_foreign(spec: TextSpec, folder: Path) -> Any:
    """Save a model by transformers alone, and return it."""
    model = make_descendant(spec).model()
    base = model if spec.classes else model.base_model
    base.config.num_labels = max(spec.classes, 1)
    base.save_pretrained(folder)
    return model


@pytest.mark.slow
def test_transformers_opens_our_folders_alone(tmp_path: Path) -> None:
    models = {}
    for name, spec in SPECS.items():
        for classes in (0, 3):
            folder = tmp_path / f"{name}-{classes}"
            made = make_descendant(
                spec.with_(classes=classes), tmp_path / f"tokenizer-{folder.name}"
            )
            made.save(folder)
            words = draw_words(spec)
            torch.save((words, (words != spec.pad_token).long()), f"{folder}.words")
            models[folder] = made, words
    done = subprocess.run(
        [sys.executable, "-c", OPEN, *models],
        capture_output=True,
        text=True,
        env={"PATH": "", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    printed = dict(zip(models, done.stdout.splitlines(), strict=True))
    for folder, (made, words) in models.items():
        call = compute_logits if made.classes else compute_tokens
        with torch.no_grad():
            expected = call(made.model(), words)
        assert torch.equal(torch.load(f"{folder}.answer"), expected), folder.name
        assert str([WORDS.index("the"), WORDS.index("cat")]) in printed[folder]
        assert not made.classes or str(dict(enumerate(NAMES))) in printed[folder]


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_a_folder_is_read_as_it_was_written(spec: TextSpec, tmp_path: Path) -> None:
    made = make_descendant(spec, tmp_path / "tokenizer")
    again = load_descendant(made.save(tmp_path / "model"))
    assert (again.spec, again.class_names, again.files) == (spec, NAMES, made.files)
    assert again.identity == made.identity
    tokens = again.input_format
    assert (tokens.tokens, tokens.pad) == (spec.positions, spec.pad_token)
    assert tokens.tokenizer == compute_sha256(tmp_path / "model" / TOKENIZER)
    assert read_kind(tmp_path / "model") == "model"
    card = (tmp_path / "model" / "README.md").read_text()
    assert "library_name: transformers" in card
    assert "timm" not in card.partition("versions")[0]
    again.save(tmp_path / "again")
    for name in (CONFIG, WEIGHTS, TOKENIZER):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "model" / name).read_bytes()


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_our_record_survives_save_pretrained(spec: TextSpec, tmp_path: Path) -> None:
    make_descendant(spec).save(tmp_path / "model")
    kind = transformers.AutoModelForSequenceClassification
    kind.from_pretrained(tmp_path / "model").save_pretrained(tmp_path / "again")
    again = load_descendant(tmp_path / "again")
    assert (again.spec, again.class_names) == (spec, NAMES)


@pytest.mark.parametrize(
    ("key", "value"),
    [("pad_token_id", 3), ("vocab_size", 41), ("id2label", {"0": "a", "1": "b"})],
)
def test_a_contradiction_is_refused(key: str, value: Any, tmp_path: Path) -> None:
    make_descendant(GPT2).save(tmp_path / "model")
    write_config(tmp_path / "model", **{key: value})
    with pytest.raises(BadFile, match="contradicts itself"):
        load_descendant(tmp_path / "model")


def test_a_model_without_a_tokenizer_takes_no_texts() -> None:
    with pytest.raises(WrongCall, match=r"has no tokenizer\.json"):
        make_descendant(BERT).input_format  # noqa: B018


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    made = make_descendant(BERT.with_(vocabulary=8), tmp_path / "tokenizer")
    made.save(tmp_path / "model")
    for open_folder in (load_descendant, lambda folder: open_ancestry(str(folder))):
        with pytest.raises(BadFile, match="the token id 9, but the model has 8 tokens"):
            open_folder(tmp_path / "model")
    (tmp_path / "model" / TOKENIZER).write_text("[1]")
    with pytest.raises(BadFile, match="is not a JSON object"):
        load_descendant(tmp_path / "model")
    (tmp_path / "model" / TOKENIZER).write_text('{"model": 1}')
    with pytest.raises(BadFile, match="does not describe a tokenizer"):
        load_descendant(tmp_path / "model")


@pytest.mark.parametrize("classes", [0, 3])
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_a_model_of_transformers_is_an_ancestry(
    spec: TextSpec, classes: int, tmp_path: Path
) -> None:
    model = save_foreign(spec.with_(classes=classes), tmp_path / "model")
    write_tokenizer(tmp_path / "model")
    ancestry, words = open_ancestry(str(tmp_path / "model")), draw_words(spec)
    assert (ancestry.spec.layers, ancestry.spec.classes) == (spec.layers, classes)
    assert ancestry.record.tokenizer is not None
    assert ancestry.record.mean == ()
    assert read_ancestry_spec(str(tmp_path / "model")) == ancestry.spec
    with torch.no_grad():
        assert torch.equal(compute_tokens(ancestry.model(), words), compute_tokens(model, words))


def test_the_layouts_of_the_hub(tmp_path: Path) -> None:
    """GPT-2 without prefix and with masks, BERT with older names and a pretraining head."""
    for spec in SPECS.values():
        folder = tmp_path / spec.family
        model = save_foreign(spec.with_(classes=0), folder)
        state = load_file(folder / WEIGHTS)
        if spec.family == "gpt2":
            state = {name.removeprefix("transformer."): state[name] for name in state}
            state["h.0.attn.bias"] = torch.ones(1, 1, 12, 12)
            state["lm_head.weight"] = state["wte.weight"].clone()
        else:
            state = {
                name.replace("LayerNorm.weight", "LayerNorm.gamma"): state[name] for name in state
            }
            state = {
                name.replace("LayerNorm.bias", "LayerNorm.beta"): state[name] for name in state
            }
            state["cls.predictions.bias"] = torch.zeros(40)
            state["embeddings.position_ids"] = torch.zeros(1, 12)
        save_file(state, folder / WEIGHTS)
        ancestry, words = open_ancestry(str(folder)), draw_words(spec)
        assert ancestry.record.left_out == (("lm_head",) if spec.family == "gpt2" else ("cls",))
        with torch.no_grad():
            tokens = compute_tokens(ancestry.model(), words)
            assert torch.equal(tokens, compute_tokens(model, words))


@pytest.mark.parametrize(
    ("spec", "key", "value"),
    [
        (GPT2, "scale_attn_by_inverse_layer_idx", True),
        (GPT2, "add_cross_attention", True),
        (GPT2, "reorder_and_upcast_attn", True),
        (BERT, "is_decoder", True),
        (BERT, "position_embedding_type", "relative_key"),
        (BERT, "quantization_config", {"bits": 4}),
    ],
)
def test_other_functions_are_refused(spec: TextSpec, key: str, value: Any, tmp_path: Path) -> None:
    save_foreign(spec, tmp_path / "model")
    write_config(tmp_path / "model", **{key: value})
    with pytest.raises(WrongCall, match=key):
        open_ancestry(str(tmp_path / "model"))


@pytest.mark.parametrize(
    ("spec", "key", "value"),
    [
        (GPT2, "activation_function", "mish"),
        (GPT2, "n_embd", "32"),
        (BERT, "hidden_size", -1),
        (BERT, "pad_token_id", 99),
        (BERT, "id2label", [1]),
        (BERT, "intermediate_size", None),
    ],
)
def test_wrong_values_are_refused(spec: TextSpec, key: str, value: Any, tmp_path: Path) -> None:
    save_foreign(spec, tmp_path / "model")
    write_config(tmp_path / "model", **{key: value})
    with pytest.raises(BadFile, match=CONFIG):
        open_ancestry(str(tmp_path / "model"))


def test_another_kind_of_model_is_named(tmp_path: Path) -> None:
    save_foreign(BERT, tmp_path / "model")
    write_config(tmp_path / "model", model_type="t5")
    with pytest.raises(WrongCall, match=r"'t5'.*gpt2, bert"):
        open_ancestry(str(tmp_path / "model"))


def test_the_pooling_of_a_sentence_encoder_is_read(tmp_path: Path) -> None:
    save_foreign(BERT.with_(classes=0), tmp_path / "model")
    assert read_ancestry_spec(str(tmp_path / "model")).pool == "pooler"
    (tmp_path / "model" / "1_Pooling").mkdir()
    pooling = tmp_path / "model" / "1_Pooling" / "config.json"
    pooling.write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    assert read_ancestry_spec(str(tmp_path / "model")).pool == "mean"


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_the_tokenizer_goes_from_ancestry_to_descendant(spec: TextSpec, tmp_path: Path) -> None:
    made = make_descendant(spec, tmp_path / "tokenizer")
    folder = made.save(tmp_path / "ancestry")
    lifecycle.extract("first_k", ancestries=str(folder), out=tmp_path / "learngene")
    learngene = load_learngene(tmp_path / "learngene")
    assert learngene.files == made.files
    small = lifecycle.expand(
        tmp_path / "learngene", target=Target(layers=2), out=tmp_path / "small"
    )
    assert load_descendant(tmp_path / "small").files == made.files
    assert small.spec == spec.with_(layers=2)
    words = draw_words(spec)
    two = initialise(small.spec, 0, "fan_in")
    expected = {name: made.state[name] for name in two if name in small.inherited}
    assert all(torch.equal(small.state[name], expected[name]) for name in expected)
    with torch.no_grad():
        assert compute_logits(small.model(), words).shape == (len(words), spec.classes)


def test_a_trained_model_keeps_its_tokenizer(tmp_path: Path) -> None:
    made = make_descendant(GPT2, tmp_path / "tokenizer")
    assert made.for_task("other", ("a", "b"), seed=0).files == made.files
    trained = made.with_state(initialise(made.spec, 1))
    assert trained.files == made.files
    ancestry = open_ancestry(str(made.save(tmp_path / "model")))
    assert assemble_ancestry(ancestry, 0).input_format == made.input_format
