"""Settings of transformers' text models are read as transformers reads them, or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from text_models_toy import SPECS, draw_words

from learngene_zoo.artifacts.descendant import assemble, load_descendant
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families.forward import compute_logits, compute_pooled, compute_tokens
from learngene_zoo.pretrained.ancestry import open_ancestry

transformers = pytest.importorskip("transformers")

SIZES: dict[str, dict[str, Any]] = {
    "gpt2": {
        "hidden_size": 32,
        "max_position_embeddings": 12,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "n_inner": 48,
        "vocab_size": 40,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 1,
    },
    "bert": {
        "hidden_size": 32,
        "max_position_embeddings": 12,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "intermediate_size": 48,
        "vocab_size": 40,
    },
}
CLASSES = {
    "gpt2": (transformers.GPT2Config, transformers.GPT2ForSequenceClassification),
    "bert": (transformers.BertConfig, transformers.BertForSequenceClassification),
}
ACTIVATION = {"gpt2": "activation_function", "bert": "hidden_act"}
WORDS = {family: draw_words(spec) for family, spec in SPECS.items()}


def build(family: str, folder: Path, **settings: Any) -> Any:
    """Save a random classifier of transformers whose weights are large enough to differ."""
    config, classifier = CLASSES[family]
    torch.manual_seed(0)
    settings = {"initializer_range": 0.3, **SIZES[family], **settings}
    model = classifier(config(**settings)).eval()
    model.save_pretrained(folder)
    return model


def change(folder: Path, **changes: Any) -> None:
    """Change keys of a config.json; None removes one."""
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: config[key] for key in config if config[key] is not None}))


def predict(model: Any, words: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(words, attention_mask=(words != 0).long()).logits
    return logits


@pytest.mark.parametrize("activation", ["swish", "gelu_python", "gelu_python_tanh"])
@pytest.mark.parametrize("family", SIZES)
def test_other_names_of_activations_are_read(family: str, activation: str, tmp_path: Path) -> None:
    expected = predict(
        build(family, tmp_path, **{ACTIVATION[family]: activation}, num_labels=3), WORDS[family]
    )
    ancestry = open_ancestry(str(tmp_path))
    with torch.no_grad():
        logits = compute_logits(ancestry.model(), WORDS[family])
    torch.testing.assert_close(logits, expected)


def test_the_general_names_of_sizes_are_read_and_come_first(tmp_path: Path) -> None:
    expected = predict(build("gpt2", tmp_path, num_labels=3), WORDS["gpt2"])
    change(
        tmp_path,
        **dict.fromkeys(("n_embd", "n_positions", "n_head")),
        hidden_size=32,
        max_position_embeddings=12,
        num_attention_heads=2,
        num_hidden_layers=2,
        n_layer=7,
    )
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert torch.equal(predict(theirs, WORDS["gpt2"]), expected)
    with torch.no_grad():
        logits = compute_logits(open_ancestry(str(tmp_path)).model(), WORDS["gpt2"])
    torch.testing.assert_close(logits, expected)


@pytest.mark.parametrize("family", SIZES)
def test_of_several_words_that_end_texts_the_first_is_read(family: str, tmp_path: Path) -> None:
    build(family, tmp_path, num_labels=3)
    change(tmp_path, eos_token_id=[7, 1])
    spec: Any = open_ancestry(str(tmp_path)).spec
    assert spec.eos_token == 7
    change(tmp_path, eos_token_id=[])
    with pytest.raises(BadFile, match=r"eos_token_id is \[\]; expected int"):
        open_ancestry(str(tmp_path))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"num_labels": 3, "problem_type": "multi_label_classification"}, "multi_label"),
        ({"num_labels": 3, "problem_type": "regression"}, "regression"),
        ({"num_labels": 1}, "regression"),
    ],
)
@pytest.mark.parametrize("family", SIZES)
def test_a_head_that_does_not_choose_one_class_is_left_out(
    family: str, settings: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    theirs = build(family, tmp_path, **settings)
    ancestry = open_ancestry(str(tmp_path))
    assert (ancestry.spec.classes, ancestry.class_names) == (0, ())
    words = "its head, which does not choose one of several classes (problem_type '"
    assert any(part.startswith(words + problem) for part in ancestry.record.left_out)
    body, words_BN = getattr(theirs, theirs.base_model_prefix), WORDS[family]
    with torch.no_grad():
        expected = body(words_BN, attention_mask=(words_BN != 0).long()).last_hidden_state
        torch.testing.assert_close(compute_tokens(ancestry.model(), words_BN), expected)


@pytest.mark.parametrize("family", SIZES)
def test_a_descendant_that_others_trained_for_another_problem_is_refused(
    family: str, tmp_path: Path
) -> None:
    assemble(SPECS[family], {}, seed=0).save(tmp_path / "model")
    change(tmp_path / "model", problem_type="multi_label_classification")
    with pytest.raises(BadFile, match=r"problem_type is 'multi_.* use the model as an ances"):
        load_descendant(tmp_path / "model")
    assert open_ancestry(str(tmp_path / "model")).spec.classes == 0


@pytest.mark.parametrize("family", SIZES)
def test_a_number_of_labels_overrides_their_names(family: str, tmp_path: Path) -> None:
    build(family, tmp_path, num_labels=3)
    change(tmp_path, num_labels=3, id2label={"0": "a", "1": "b"})
    ancestry = open_ancestry(str(tmp_path))
    assert (ancestry.spec.classes, ancestry.class_names) == (3, ())


def build_untied(folder: Path) -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(**SIZES["gpt2"], tie_word_embeddings=False)
    model = transformers.GPT2LMHeadModel(config).eval()
    model.save_pretrained(folder)
    return model


def test_a_descendant_without_the_head_of_its_language_model_does_not_pretend_one(
    tmp_path: Path,
) -> None:
    theirs, words = build_untied(tmp_path / "ancestry"), WORDS["gpt2"]
    ancestry = open_ancestry(str(tmp_path / "ancestry"))
    assert ancestry.record.left_out == ("lm_head",)
    folder = assemble(ancestry.spec, ancestry.state, seed=0).save(tmp_path / "descendant")
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["GPT2Model"]
    assert load_descendant(folder).spec == ancestry.spec
    body = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        expected = theirs.transformer(words).last_hidden_state
        torch.testing.assert_close(body(words).last_hidden_state, expected)
    _, report = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert set(report["missing_keys"]) == {"lm_head.weight"}, "transformers says that it is new"


def test_a_head_that_differs_from_the_embedding_it_is_said_to_be_is_refused(tmp_path: Path) -> None:
    build_untied(tmp_path)
    change(tmp_path, tie_word_embeddings=True)
    with pytest.raises(BadFile, match='write "tie_word_embeddings": false into it'):
        open_ancestry(str(tmp_path))
    state = load_file(tmp_path / "model.safetensors")
    state["lm_head.weight"] = state["transformer.wte.weight"].clone()
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert open_ancestry(str(tmp_path)).spec.tied_head  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("content", "pool"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, "mean"),
        ({"pooling_mode_cls_token": True}, "token"),
        ({"embedding_dimension": 32, "pooling_mode": "mean", "include_prompt": True}, "mean"),
        ({"pooling_mode": ["cls"]}, "token"),
        ({"word_embedding_dimension": 32, "pooling_mode_mean_tokens": False}, "mean"),
        ({"pooling_mode_max_tokens": True}, None),
        ({"pooling_mode": "lasttoken"}, None),
        ({"pooling_mode": ["cls", "mean"]}, None),
    ],
)
def test_the_pooling_of_sentence_transformers_is_read_or_refused(
    content: dict[str, Any], pool: str | None, tmp_path: Path
) -> None:
    build("bert", tmp_path)
    change(tmp_path, architectures=["BertModel"])
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(content))
    if pool is None:
        with pytest.raises(WrongCall, match=r"1_Pooling/config\.json pools by .*remove it and"):
            open_ancestry(str(tmp_path))
        return
    ancestry, words = open_ancestry(str(tmp_path)), WORDS["bert"]
    assert ancestry.spec.pool == pool
    with torch.no_grad():
        tokens_BND = compute_tokens(ancestry.model(), words)
        mask_BN1 = (words != 0)[..., None]
        mean_BD = (tokens_BND * mask_BN1).sum(1) / mask_BN1.sum(1)
        pooled_BD = compute_pooled(ancestry.model(), words)
    torch.testing.assert_close(pooled_BD, mean_BD if pool == "mean" else tokens_BND[:, 0])
