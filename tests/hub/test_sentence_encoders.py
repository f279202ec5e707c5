"""A learngene of a sentence encoder is published and fetched, with its descendant."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from standin import StandIn

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.descendant import Descendant, assemble, load_descendant
from learngene_zoo.method.sizes import Target

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "core"))
from text_models_toy import BERT, write_tokenizer

pytest.importorskip("transformers")

Lgzoo = Callable[..., SimpleNamespace]  # what the fixture `lgzoo` is
NAME = "me/sentences"
POOLING = "1_Pooling/config.json"


def make_family(folder: Path) -> tuple[Path, Path]:
    """Make an encoder of sentences, and return its learngene and a descendant of two layers."""
    (folder / "tokenizer").mkdir()
    write_tokenizer(folder / "tokenizer")
    files = {path.name: path.read_text() for path in (folder / "tokenizer").iterdir()}
    made = assemble(BERT.with_(classes=0, normalize=True), {}, seed=0, scheme="fan_in")
    encoder = Descendant(**{**vars(made), "files": files}).save(folder / "encoder")
    lifecycle.extract("first_k", ancestries=str(encoder), out=folder / "learngene")
    lifecycle.expand(folder / "learngene", target=Target(layers=2), out=folder / "small")
    return folder / "learngene", folder / "small"


def test_a_family_of_sentence_encoders_is_published_and_fetched(
    hub: StandIn, lgzoo: Lgzoo, tmp_path: Path
) -> None:
    learngene, small = make_family(tmp_path)
    done = lgzoo("publish", learngene, NAME, "--tag", "v1.0", "--descendant", small)
    assert done.code == 0, done.told
    published = hub.files(NAME)
    named = {"small/modules.json", f"small/{POOLING}", "small/tokenizer.json"}
    assert named <= published.keys()
    assert POOLING not in published  # of the learngene

    assert lgzoo("fetch", f"{NAME}/small@v1.0", "-o", tmp_path / "member").code == 0
    assert lgzoo("fetch", f"{NAME}@v1.0", "-o", tmp_path / "whole").code == 0
    for folder in (tmp_path / "member", tmp_path / "whole" / "small"):
        assert (folder / POOLING).read_bytes() == published[f"small/{POOLING}"]
        assert load_descendant(folder).spec == BERT.with_(classes=0, normalize=True, layers=2)


def test_a_sentence_encoder_is_published_alone(hub: StandIn, lgzoo: Lgzoo, tmp_path: Path) -> None:
    _, small = make_family(tmp_path)
    assert lgzoo("publish", small, NAME).code == 0
    manifest = json.loads(hub.files(NAME)["manifest.json"])
    assert {"modules.json", POOLING, "config.json"} <= manifest["files"].keys()
    assert f'SentenceTransformer("{NAME}"' in hub.files(NAME)["README.md"].decode()

    assert lgzoo("fetch", NAME, "-o", tmp_path / "again").code == 0
    assert (tmp_path / "again" / POOLING).read_bytes() == (small / POOLING).read_bytes()
    assert load_descendant(tmp_path / "again").spec == load_descendant(small).spec
