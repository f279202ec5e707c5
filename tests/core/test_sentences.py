"""Models of sentences: sentence-transformers opens our folders, and we read its files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from click.testing import CliRunner
from text_models_toy import BERT, GPT2, WORDS, write_tokenizer

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.descendant import Descendant, assemble, load_descendant
from learngene_zoo.cli.main import main
from learngene_zoo.errors import BadFile, Refused, WrongCall
from learngene_zoo.families.bert.spec import BertSpec
from learngene_zoo.families.forward import compute_pooled
from learngene_zoo.families.text_format import TextFormat
from learngene_zoo.method.sizes import Target
from learngene_zoo.pretrained.ancestry import open_ancestry
from learngene_zoo.publishing.publication import _list_files, _open_members
from learngene_zoo.storage import MODULES, POOLING, SENTENCE_CONFIG, TOKENIZER
from learngene_zoo.tasks.texts.encoding import Encoder

transformers = pytest.importorskip("transformers")

PACKAGE = "sentence_transformers.models"


def write_encoder(folder: Path, *modules: str, **pooling: Any) -> Path:
    """Write a sentence encoder in sentence-transformers' layout, with modules after pooling."""
    model = assemble(BERT.with_(classes=0, pool="pooler"), {}, seed=0, scheme="fan_in").model()
    model.base_model.save_pretrained(folder)
    write_tokenizer(folder)
    (folder / POOLING).parent.mkdir()
    (folder / POOLING).write_text(json.dumps(pooling or {"pooling_mode_mean_tokens": True}))
    names = ("Transformer", "Pooling", *modules)
    listed = [{"idx": n, "path": "", "type": f"{PACKAGE}.{name}"} for n, name in enumerate(names)]
    (folder / MODULES).write_text(json.dumps(listed))
    return folder


def expand(ancestry: Path, tmp_path: Path, classes: int = 0) -> Path:
    """Build a model of two of its layers, and return its folder."""
    lifecycle.extract("first_k", ancestries=str(ancestry), out=tmp_path / "learngene")
    target = Target(layers=2, classes=classes)
    lifecycle.expand(tmp_path / "learngene", target=target, out=tmp_path / "small")
    return tmp_path / "small"


def make_model(spec: BertSpec, folder: Path) -> Descendant:
    """Return a model with random weights, after saving and loading it."""
    tokenizer = folder.parent / f"{folder.name} tokenizer"
    tokenizer.mkdir()
    write_tokenizer(tokenizer)
    files = {path.name: path.read_text() for path in tokenizer.iterdir()}
    made = assemble(spec, {}, seed=0, scheme="fan_in")
    return load_descendant(Descendant(**{**vars(made), "files": files}).save(folder))


@pytest.mark.parametrize("modules", [[], ["Normalize"]])
def test_a_descendant_has_the_modules_of_its_ancestry_model(
    modules: list[str], tmp_path: Path
) -> None:
    small = expand(write_encoder(tmp_path / "encoder", *modules), tmp_path)
    listed = json.loads((small / MODULES).read_text())
    assert [module["type"] for module in listed] == [
        f"{PACKAGE}.{name}" for name in ("Transformer", "Pooling", *modules)
    ]
    assert [module["path"] for module in listed][:2] == ["", "1_Pooling"]
    pooling = json.loads((small / POOLING).read_text())
    assert pooling["word_embedding_dimension"] == BERT.width
    assert [key for key, value in pooling.items() if value is True] == ["pooling_mode_mean_tokens"]
    spec: Any = load_descendant(small).spec
    assert (spec.pool, spec.normalize) == ("mean", bool(modules))
    card = (small / "README.md").read_text()
    assert "library_name: sentence-transformers" in card
    assert "pipeline_tag: sentence-similarity" in card
    assert "SentenceTransformer(" in card
    assert ("scaled to unit length" in card) == bool(modules)
    assert "0 classes" not in card
    shown = CliRunner().invoke(main, ["show", str(small)]).stdout
    assert re.search(r"opens_with +sentence-transformers, transformers\n", shown)


def test_the_first_token_is_kept_as_the_embedding(tmp_path: Path) -> None:
    small = expand(write_encoder(tmp_path / "encoder", pooling_mode="cls"), tmp_path)
    pooling = json.loads((small / POOLING).read_text())
    assert [key for key, value in pooling.items() if value is True] == ["pooling_mode_cls_token"]
    assert "The embedding of a text is its first token." in (small / "README.md").read_text()


def test_other_models_have_no_modules(tmp_path: Path) -> None:
    classifier = expand(write_encoder(tmp_path / "encoder"), tmp_path, classes=3)
    for folder in (
        classifier,
        assemble(GPT2.with_(classes=0), {}, seed=0).save(tmp_path / "gpt2"),
        assemble(BERT.with_(classes=0, pool="pooler"), {}, seed=0).save(tmp_path / "pooler"),
    ):
        assert not (folder / MODULES).exists()
        assert not (folder / POOLING).exists()
        assert "SentenceTransformer(" not in (folder / "README.md").read_text()


def test_texts_are_truncated_as_by_the_ancestry_model(tmp_path: Path) -> None:
    encoder = write_encoder(tmp_path / "encoder")
    (encoder / SENTENCE_CONFIG).write_text('{"max_seq_length": 5, "do_lower_case": false}')
    small = load_descendant(expand(encoder, tmp_path))
    assert small.input_format.tokens == 5
    stated = json.loads((tmp_path / "small" / SENTENCE_CONFIG).read_text())
    assert stated["max_seq_length"] == 5
    head = small.for_task("a task", ("no", "yes"), seed=0)
    assert head.input_format.tokens == BERT.positions  # as in transformers
    (encoder / SENTENCE_CONFIG).write_text('{"max_seq_length": 512}')  # more than positions
    assert open_ancestry(str(encoder)).input_format.tokens == BERT.positions
    for text, message in (("[]", "is not a JSON object"), ('{"max_seq_length": "5"}', "positive")):
        (encoder / SENTENCE_CONFIG).write_text(text)
        with pytest.raises(BadFile, match=rf"{SENTENCE_CONFIG}.* {message}"):
            open_ancestry(str(encoder))


def test_other_modules_are_left_out_and_named(tmp_path: Path) -> None:
    encoder = write_encoder(tmp_path / "encoder", "Dense", "Normalize")
    left_out = open_ancestry(str(encoder)).record.left_out
    assert "a module of sentence-transformers: Dense" in left_out


@pytest.mark.parametrize("text", ["{", "{}x", "[1]", '[{"idx": 0}]', "3", '[{"type": 3}]'])
def test_a_damaged_list_of_modules_is_refused(text: str, tmp_path: Path) -> None:
    encoder = write_encoder(tmp_path / "encoder")
    (encoder / MODULES).write_text(text)
    with pytest.raises(BadFile, match=r"modules\.json is not a list of modules"):
        open_ancestry(str(encoder))


@pytest.mark.parametrize("spec", [BERT, GPT2], ids=["bert", "gpt2"])
def test_automodel_saves_what_we_open_again(spec: Any, tmp_path: Path) -> None:
    made = assemble(spec.with_(classes=0), {}, seed=0, scheme="fan_in")
    made.save(tmp_path / "model")
    transformers.AutoModel.from_pretrained(tmp_path / "model").save_pretrained(tmp_path / "again")
    again = load_descendant(tmp_path / "again")
    assert again.spec == made.spec
    assert again.state.keys() == made.state.keys()
    assert all(torch.equal(again.state[name], made.state[name]) for name in made.state)


def test_a_model_of_sentences_is_published_whole(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    make_model(BERT.with_(classes=0), folder)
    files = _list_files(folder, "small/", "", is_of_texts=True)
    assert {f"small/{MODULES}", f"small/{POOLING}", "small/config.json"} <= files.keys()
    (folder / "1_Pooling" / "notes.txt").write_text("x")
    with pytest.raises(Refused, match="1_Pooling is not part of an artifact"):
        _list_files(folder, "", "", is_of_texts=True)
    (folder / "1_Pooling" / "notes.txt").unlink()
    (folder / "1_Pooling").rename(tmp_path / "elsewhere")
    (folder / "1_Pooling").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Refused, match="1_Pooling is not part of an artifact"):
        _list_files(folder, "", "", is_of_texts=True)


def test_a_listed_pooling_that_is_missing_is_refused(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / "encoder", "Dense")
    assert any("Dense" in line for line in open_ancestry(str(folder)).record.left_out)
    (folder / POOLING).unlink()
    with pytest.raises(
        BadFile, match=r"modules\.json names a pooling, but 1_Pooling/config\.json is"
    ):
        open_ancestry(str(folder))
    (folder / MODULES).unlink()
    found = open_ancestry(str(folder))
    assert cast(BertSpec, found.spec).pool == "pooler"
    assert not any("Dense" in line for line in found.record.left_out)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / "encoder")
    (folder / TOKENIZER).unlink()
    lifecycle.extract("first_k", ancestries=str(folder), out=tmp_path / "learngene")
    call = ["expand", str(tmp_path / "learngene"), "--layers", "2", "-o", str(tmp_path / "small")]
    assert "next: copy tokenizer.json of the ancestry" in CliRunner().invoke(main, call).stderr
    write_tokenizer(folder)
    (folder / "config.json").unlink()
    with pytest.raises(BadFile, match=r"no config\.json .*; copy that of this text model"):
        open_ancestry(str(folder))


def test_no_member_has_the_name_of_the_folder_of_pooling(tmp_path: Path) -> None:
    encoder = write_encoder(tmp_path / "encoder")
    top = lifecycle.extract("first_k", ancestries=str(encoder), out=tmp_path / "learngene")
    member = expand(encoder, tmp_path / "other").rename(tmp_path / "1_Pooling")
    with pytest.raises(WrongCall, match="has a folder 1_Pooling; rename"):
        _open_members(top, [member])


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("pool", ["mean", "token"])
def test_sentence_transformers_computes_our_features(
    pool: str, normalize: bool, tmp_path: Path
) -> None:
    package = pytest.importorskip("sentence_transformers")
    made = make_model(BERT.with_(classes=0, pool=pool, normalize=normalize), tmp_path / "model")
    texts = [" ".join(WORDS[2:number]) for number in range(4, 10)]
    theirs_ND = package.SentenceTransformer(str(tmp_path / "model"), device="cpu").encode(
        texts, convert_to_tensor=True
    )
    encode = Encoder.of(cast(TextFormat, made.input_format))
    with torch.no_grad():
        ours_ND = compute_pooled(made.model(), encode(texts, texts))
    if normalize:
        ours_ND = torch.nn.functional.normalize(ours_ND)
    torch.testing.assert_close(ours_ND, theirs_ND)


def test_a_limit_of_the_tokenizer_counts_without_another(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / "encoder")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    for most, expected in ((8, 8), (1e30, None), (BERT.positions, None)):
        settings["model_max_length"] = most
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        assert cast(BertSpec, open_ancestry(str(folder)).spec).max_tokens == expected
    (folder / SENTENCE_CONFIG).write_text(json.dumps({"max_seq_length": 5}))
    assert cast(BertSpec, open_ancestry(str(folder)).spec).max_tokens == 5


def test_a_lower_case_that_the_tokenizer_does_not_have_is_refused(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / "encoder")
    (folder / SENTENCE_CONFIG).write_text(json.dumps({"do_lower_case": True}))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    for normalizer in (None, {"type": "BertNormalizer", "lowercase": False}):
        (folder / "tokenizer.json").write_text(json.dumps({**tokenizer, "normalizer": normalizer}))
        with pytest.raises(
            WrongCall, match=r"lower-cases texts .*, which the tokenizer .* does not"
        ):
            open_ancestry(str(folder))
    lowering = {"type": "Sequence", "normalizers": [{"type": "Lowercase"}]}
    (folder / "tokenizer.json").write_text(json.dumps({**tokenizer, "normalizer": lowering}))
    open_ancestry(str(folder))


def test_a_prompt_before_every_text_is_named(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / "encoder")
    prompts = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    assert "the prompt before every text: query" in open_ancestry(str(folder)).record.left_out
