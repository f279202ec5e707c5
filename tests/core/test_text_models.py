"""Models of texts: their tables are transformers', and the functions of forward.py call them."""

from __future__ import annotations

import ast
import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from text_models_toy import BERT, GPT2, SPECS, draw_words, write_tokenizer

import learngene_zoo
from learngene_zoo.artifacts.descendant import assemble
from learngene_zoo.errors import BadFile, Unavailable, WrongCall
from learngene_zoo.families.family import count_cost, count_params, get_family, load_host
from learngene_zoo.families.forward import (
    compute_logits,
    compute_pooled,
    compute_tokens,
    embed_tokens,
    get_blocks,
    get_classifier,
)
from learngene_zoo.families.gpt2 import names as gpt2_names
from learngene_zoo.families.spec import FAMILIES
from learngene_zoo.families.surgery import map_axes
from learngene_zoo.families.tensors import build_model, get_shapes, get_state_dict, initialise
from learngene_zoo.families.text_format import Tokens
from learngene_zoo.families.text_spec import TextSpec
from learngene_zoo.pretrained.ancestry import open_ancestry
from learngene_zoo.settings import from_json, to_json
from learngene_zoo.tasks.texts.encoding import Encoder
from learngene_zoo.training.distillation import record_features

transformers = pytest.importorskip("transformers")

PACKAGE = Path(learngene_zoo.__file__).resolve().parent
VARIANTS = [
    spec.with_(**changes)
    for spec in SPECS.values()
    for changes in (
        {},
        {"classes": 0},
        {"classes": 1, "layers": 1, "pad_token": 5},
        {"mlp_ratio": 1.5, "activation": "relu", "heads": 4},
    )
]


@pytest.mark.parametrize("spec", VARIANTS, ids=repr)
def test_the_table_is_the_state_dict_of_transformers(spec: TextSpec) -> None:
    model = build_model(spec, initialise(spec, 0))
    expected = [(name, tuple(tensor.shape)) for name, tensor in model.state_dict().items()]
    assert list(get_shapes(spec).items()) == expected
    assert count_params(spec) == sum(tensor.numel() for tensor in model.parameters())
    assert load_host(get_family(spec)).read_spec(model) == spec
    assert from_json(type(spec), to_json(spec), "spec") == spec
    assert not any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))


@pytest.mark.parametrize(
    ("layers", "width", "heads", "params"),
    [
        (12, 768, 12, 124_439_808),
        (24, 1024, 16, 354_823_168),
        (36, 1280, 20, 774_030_080),
        (48, 1600, 25, 1_557_611_200),
        (6, 768, 12, 81_912_576),
    ],
)
def test_the_published_sizes_of_gpt2(layers: int, width: int, heads: int, params: int) -> None:
    sizes = {"layers": layers, "width": width, "heads": heads}
    spec = GPT2.with_(**sizes, vocabulary=50257, positions=1024, classes=0)
    assert count_params(spec) == params
    assert count_params(spec.with_(classes=2)) == params + 2 * width


def test_the_published_size_of_bert() -> None:
    spec = BERT.with_(layers=12, width=768, heads=12, vocabulary=30522, positions=512, classes=0)
    assert count_params(spec) == 109_482_240


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_flops_are_those_of_the_modules(spec: TextSpec) -> None:
    model, words = build_model(spec, initialise(spec, 0)), draw_words(spec, count=1)
    sums = {"linear": 0}

    def count(module: torch.nn.Module, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        sums["linear"] += inputs[0].numel() * output.shape[-1]

    for module in model.modules():
        if isinstance(module, torch.nn.Linear) or type(module).__name__ == "Conv1D":
            module.register_forward_hook(count)
    compute_logits(model, words)
    n, d = spec.tokens, spec.width
    products, norms = 2 * spec.layers * n * n * d, 5 * n * d * (2 * spec.layers + 1)
    assert count_cost(spec).flops == sums["linear"] + products + norms


def test_initial_values_are_those_of_transformers() -> None:
    spec = GPT2.with_(layers=4, width=96, heads=6)
    torch.manual_seed(0)
    module = transformers.GPT2ForSequenceClassification(
        build_model(spec, initialise(spec, 0)).config
    )
    ours, theirs = initialise(spec, 0), get_state_dict(module)
    for name, tensor in ours.items():
        expected = theirs[name].std().item()
        assert tensor.std().item() == pytest.approx(expected, rel=0.15, abs=1e-8), name
    deep = torch.cat([ours[name].flatten() for name in ours if name.endswith("c_proj.weight")])
    assert deep.std().item() == pytest.approx(0.02 / math.sqrt(2 * 4), rel=0.02)


def test_the_fan_in_of_a_matrix_whose_rows_are_inputs() -> None:
    spec = GPT2.with_(width=64, heads=4, mlp_ratio=8.0)
    state = initialise(spec, 0, "fan_in")
    for name, inputs in (("attn.c_attn", 64), ("mlp.c_fc", 64), ("mlp.c_proj", 512)):
        std = state[f"transformer.h.0.{name}.weight"].std().item()
        assert std == pytest.approx(1 / math.sqrt(inputs), rel=0.05), name


@pytest.mark.parametrize("spec", VARIANTS, ids=repr)
def test_the_head_reads_the_pooled_features(spec: TextSpec) -> None:
    model, words = build_model(spec, initialise(spec, 0, "fan_in")), draw_words(spec)
    with torch.no_grad():
        pooled_BD = compute_pooled(model, words)
        assert torch.allclose(get_classifier(model)(pooled_BD), compute_logits(model, words))
    assert pooled_BD.shape == (len(words), spec.width)
    assert compute_tokens(model, words).shape == (len(words), spec.positions, spec.width)
    assert len(get_blocks(model)) == spec.layers


@pytest.mark.parametrize("spec", VARIANTS[:2] + VARIANTS[4:6], ids=repr)
def test_padding_has_no_effect(spec: TextSpec) -> None:
    model, words = build_model(spec, initialise(spec, 0, "fan_in")), draw_words(spec)
    with torch.no_grad():
        together = compute_logits(model, words)
        for text, logits in zip(words, together):
            alone = compute_logits(model, text[text != spec.pad_token][None])
            assert torch.allclose(alone[0], logits, atol=1e-6)


def test_segments_are_those_of_transformers() -> None:
    model, words = build_model(BERT, initialise(BERT, 0)), draw_words(BERT)
    segments = torch.zeros_like(words)
    segments[:, 4:] = 1
    with torch.no_grad():
        mask = (words != 0).long()
        logits = compute_logits(model, Tokens(words, mask, segments))
        expected = model(input_ids=words, attention_mask=mask, token_type_ids=segments).logits
        assert torch.equal(logits, expected)
        assert not torch.equal(logits, compute_logits(model, words))


def test_a_model_with_one_segment_does_not_tell_the_texts_of_a_pair_apart() -> None:
    spec = BERT.with_(segments_of_text=1)
    model, words = build_model(spec, initialise(spec, 0)), draw_words(BERT)
    mask, segments = (words != 0).long(), torch.zeros_like(words)
    segments[:, 4:] = 1
    with torch.no_grad():
        logits = compute_logits(model, Tokens(words, mask, segments))
        assert torch.equal(logits, compute_logits(model, Tokens(words, mask)))
        assert embed_tokens(model, Tokens(words, mask, segments)).isfinite().all()


def test_a_bert_of_masked_words_alone_opens_with_the_identity_as_pooler(tmp_path: Path) -> None:
    config = transformers.BertConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        vocab_size=40,
        max_position_embeddings=12,
    )
    theirs = transformers.BertForMaskedLM(config).eval()
    theirs.save_pretrained(tmp_path)
    ancestry, words = open_ancestry(str(tmp_path)), draw_words(BERT)
    assert ancestry.record.left_out == ("cls", "pooler (the file has none: the identity)")
    with torch.no_grad():
        expected = theirs.bert(words, attention_mask=(words != 0).long()).last_hidden_state
        assert torch.equal(compute_tokens(ancestry.model(), words), expected)
        assert torch.equal(compute_pooled(ancestry.model(), words), expected[:, 0].tanh())


@pytest.mark.parametrize("family", SPECS)
def test_transformers_pads_texts_as_this_package(family: str, tmp_path: Path) -> None:
    """Of a model whose config.json names no pad token, and whose tokenizer pads on the left."""
    spec, texts = SPECS[family], ["the cat sees no dog", "a bird"]
    assemble(spec, {}, seed=0).save(tmp_path / "first")
    write_tokenizer(tmp_path / "first")
    for name, changes in (
        ("config.json", {"pad_token_id": None, "learngene": {}}),
        ("tokenizer_config.json", {"padding_side": "left", "truncation_side": "left"}),
    ):
        path = tmp_path / "first" / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    ancestry = open_ancestry(str(tmp_path / "first"))
    assert ancestry.spec.pad_token == 0
    copy = assemble(ancestry.spec, ancestry.state, seed=0, files=ancestry.files)
    copy.save(tmp_path / "second")
    encode = transformers.AutoTokenizer.from_pretrained(tmp_path / "second")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "second")
    batch = Encoder.of(copy.input_format)(texts, texts)
    encoded = encode(texts, padding="max_length", max_length=8, return_tensors="pt")
    assert torch.equal(encoded["input_ids"], batch.ids)
    with torch.no_grad():
        theirs = model(batch.ids, attention_mask=encoded["attention_mask"]).logits
        assert torch.equal(compute_logits(copy.model(), batch), theirs)
    assert encode(texts[0], truncation=True, max_length=2)["input_ids"] == batch.ids[0, :2].tolist()


def test_a_pad_token_outside_the_vocabulary_is_not_used(tmp_path: Path) -> None:
    spec = GPT2.with_(classes=0)
    folder = assemble(replace(spec, pad_token=None), {}, seed=0).save(tmp_path / "model")
    write_tokenizer(folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "pad_token": "[NONE]"}))
    tokenizer = (folder / "tokenizer.json").read_text().replace("<pad>", "<none>")
    (folder / "tokenizer.json").write_text(tokenizer)
    assert open_ancestry(str(folder)).spec.pad_token == spec.eos_token


def test_a_tokenizer_that_contradicts_the_list_of_words_is_refused(tmp_path: Path) -> None:
    folder = assemble(GPT2.with_(classes=0), {}, seed=0).save(tmp_path / "model")
    write_tokenizer(folder)
    words = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    listed = sorted(words, key=words.__getitem__)
    (folder / "vocab.txt").write_text("\n".join(listed) + "\n")
    open_ancestry(str(folder))
    (folder / "vocab.txt").write_text("\n".join(reversed(listed)) + "\n")
    with pytest.raises(BadFile, match=r"contradicts vocab\.txt beside it: \d+ of \d+"):
        open_ancestry(str(folder))
    (folder / "vocab.txt").unlink()
    (folder / "vocab.json").write_text(json.dumps(dict.fromkeys(words, 0)))
    with pytest.raises(BadFile, match=r"contradicts vocab\.json beside it"):
        open_ancestry(str(folder))


def test_pooling_of_a_bert_without_a_head() -> None:
    spec, words = BERT.with_(classes=0), draw_words(BERT)
    state = initialise(spec, 0, "fan_in")
    models = {
        pool: build_model(spec.with_(pool=pool), state) for pool in ("mean", "token", "pooler")
    }
    with torch.no_grad():
        features = {pool: compute_pooled(model, words) for pool, model in models.items()}
        tokens = compute_tokens(models["mean"], words)
        lengths = (words != 0).sum(dim=1)
        for text, length in enumerate(lengths):
            mean = tokens[text, :length].mean(dim=0)
            assert torch.allclose(features["mean"][text], mean, atol=1e-6)
        assert torch.equal(features["token"], tokens[:, 0])
        pooler = models["pooler"].bert(input_ids=words, attention_mask=(words != 0).long())
        assert torch.equal(features["pooler"], pooler.pooler_output)


@pytest.mark.parametrize("classes", [0, 3])
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_features_are_recorded(spec: TextSpec, classes: int) -> None:
    spec, words = spec.with_(classes=classes), draw_words(spec)
    model = build_model(spec, initialise(spec, 0, "fan_in"))
    with torch.no_grad(), record_features(model, [0, 2]) as features:
        logits = compute_logits(model, words)
    assert torch.equal(features.logits, logits)
    assert sorted(features.blocks) == [0, 2]
    assert torch.equal(features.tokens, features.blocks[2])
    with torch.no_grad():
        normed = (
            model.transformer.ln_f(features.tokens) if spec.family == "gpt2" else features.tokens
        )
        assert torch.equal(normed, compute_tokens(model, words))


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_a_permutation_of_channels_keeps_the_function(spec: TextSpec) -> None:
    state, words = initialise(spec, 0, "fan_in"), draw_words(spec)
    generator = torch.Generator().manual_seed(3)
    sizes = {"width": spec.width, "hidden": spec.hidden, "heads": spec.heads}
    maps = {axis: torch.randperm(n, generator=generator).tolist() for axis, n in sizes.items()}
    with torch.no_grad():
        expected = compute_logits(build_model(spec, state), words)
        permuted = compute_logits(build_model(spec, map_axes(state, spec, maps)), words)
    assert torch.allclose(permuted, expected, atol=1e-5)


def test_impossible_specs_are_refused() -> None:
    for changes in ({"vocabulary": 0}, {"positions": 0}, {"pad_token": 40}, {"heads": 5}):
        with pytest.raises(WrongCall):
            GPT2.with_(**changes)
    with pytest.raises(WrongCall, match="have no image_size"):
        BERT.with_(image_size=32)
    with pytest.raises(WrongCall, match="have pool 'last' only"):
        GPT2.with_pool("avg")


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_a_call_is_compiled_as_one_graph(spec: TextSpec) -> None:
    model, words = build_model(spec, initialise(spec, 0, "fan_in")), draw_words(spec)
    expected = compute_logits(model, words)
    compiled = torch.compile(
        lambda inputs: compute_logits(model, inputs), backend="eager", fullgraph=True
    )
    torch.testing.assert_close(compiled(words), expected)


@pytest.mark.slow
def test_models_are_called_without_an_import_of_the_compiler() -> None:
    code = "import sys, learngene_zoo.training.predict; print('torch._dynamo' in sys.modules)"
    got = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert got.stdout == "False\n"


def test_a_missing_transformers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("learngene_zoo.families.gpt2.h")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(Unavailable, match=r'pip install "learngene-zoo\[text\]"'):
        load_host(get_family(GPT2))


def test_specs_and_costs_need_neither_torch_nor_transformers() -> None:
    script = (
        "import sys\n"
        "from learngene_zoo.families.family import count_cost, iterate_families\n"
        "[count_cost(spec) for family in iterate_families() for spec in family.examples]\n"
        "print(*sorted({'torch', 'timm', 'transformers', 'tokenizers'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


NAMED = re.compile(r"\b(gpt_?2|bert)\b|Gpt2|Bert[A-Z]|GPT-2|\bBERT\b", re.IGNORECASE)


def _list_words(path: Path) -> Iterator[str]:
    """Yield the names and texts of a module, without docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            yield node.id if isinstance(node, ast.Name) else node.attr
        elif isinstance(node, ast.alias):
            yield node.name
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_generic_code_does_not_name_a_family_of_texts() -> None:
    families = [PACKAGE / "families" / name for name in SPECS]
    named = {
        path.relative_to(PACKAGE).as_posix(): word
        for path in PACKAGE.rglob("*.py")
        if not any(path.is_relative_to(folder) for folder in families)
        for word in _list_words(path)
        if NAMED.search(word)
    }
    assert named.pop("families/spec.py") in FAMILIES  # the table of families
    assert named == {}


def test_absent_words_of_a_small_vocabulary_are_none() -> None:
    config: dict[str, Any] = {"vocab_size": 40, "n_positions": 12, "n_embd": 32, "n_head": 2}
    values = gpt2_names.convert_config(config, "config.json")
    assert [values[f"{name}_token"] for name in ("bos", "eos", "pad")] == [None] * 3
    published = gpt2_names.convert_config({}, "config.json")
    assert published["pad_token"] == published["eos_token"] == 50256


def test_one_text_has_no_spread_and_gives_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    from learngene_zoo.families.bert.host import spread_pooled

    assert spread_pooled(None, torch.zeros(1, 4)) == {}
    assert not recwarn.list
