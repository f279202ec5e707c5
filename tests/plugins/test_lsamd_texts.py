"""LSAMD on text models: masks, tokens of routers, votes without texts, and descendants."""

from __future__ import annotations

import copy
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import learngene_zoo as lg
from learngene_zoo.errors import WrongCall
from learngene_zoo.families.forward import compute_logits, embed_tokens, get_blocks
from learngene_zoo.families.tensors import build_model, initialise
from learngene_zoo.families.text_format import Tokens
from learngene_zoo.families.text_spec import TextSpec
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Recipe
from learngene_zoo.testing import make_tiny_ancestry
from learngene_zoo.testing.laws import make_tiny_task
from lgzoo_lsamd.lsamd import LSAMD, LsamdExtractor
from lgzoo_lsamd.modules.supernet import (
    BASE,
    SPECIFIC,
    attach_head,
    build_super_net,
    compute_or_abstain,
    iterate_routed_blocks,
    measure_preferences,
)
from lgzoo_lsamd.settings import SearchSettings

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "core"))
from text_models_toy import SPECS, draw_words, write_tokenizer

transformers = pytest.importorskip("transformers")

each_family = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
RUN = Run(threads=1)
RECIPE = Recipe(epochs=1, batch_size=16, lr=1e-3, schedule="poly", augment="none")


def build(spec: TextSpec, seed: int | None = 1, **choices: str) -> nn.Module:
    """Return a super net in eval mode whose specific blocks and routers are random.

    Without a seed the blocks are copies, and routers undecided.
    """
    model = build_super_net(build_model(spec, initialise(spec, 0, "fan_in")), text=spec, **choices)
    if seed is not None:
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in model.named_parameters():
            if ".specific." in name or name.endswith("router.preference"):
                parameter.data += 0.2 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def draw_texts(spec: TextSpec, count: int = 4) -> Tokens:
    """Return texts of several lengths, the longest of which has all positions."""
    ids = draw_words(spec, count)
    return Tokens(ids, (ids != spec.pad_token).long())


def read_preferences(model: nn.Module) -> torch.Tensor:
    """Return the probabilities of all routers in the last forward pass, (L, B, 2)."""
    return torch.stack([block.preferences_B2 for block in iterate_routed_blocks(model)])


@each_family
@pytest.mark.parametrize("routing", ["batch", "image"])
@pytest.mark.parametrize("gate", ["update", "stream", "both"])
def test_a_new_super_net_of_texts_is_the_ancestry_model(
    spec: TextSpec, routing: str, gate: str
) -> None:
    texts, plain = draw_texts(spec), build_model(spec, initialise(spec, 0, "fan_in")).eval()
    model = build(spec, None, routing=routing, gate=gate)
    with torch.no_grad():
        expected = compute_logits(plain, texts)
        assert torch.equal(compute_logits(model, texts), expected)
        torch.testing.assert_close(compute_logits(model.train(), texts), expected)


@each_family
def test_texts_that_agree_take_the_same_path_one_by_one_and_together(spec: TextSpec) -> None:
    texts = draw_texts(spec)
    for side in (SPECIFIC, BASE):
        nets = [build(spec, routing=routing) for routing in ("batch", "image")]
        for model in nets:
            for block in iterate_routed_blocks(model):
                probabilities = torch.full((2,), 0.3)
                probabilities[side] = 0.7
                block.router.forward = lambda x_BD, p=probabilities: p.expand(len(x_BD), 2)
        with torch.no_grad():
            logits = [compute_logits(model, texts) for model in nets]
        torch.testing.assert_close(*logits)


@each_family
def test_each_text_has_the_blocks_that_it_prefers_and_its_mask(spec: TextSpec) -> None:
    """The logits of a batch whose texts take different paths are those of its texts alone."""
    texts, model = draw_texts(spec, count=5), build(spec, routing="image")
    with torch.no_grad():
        together, preferences = compute_logits(model, texts), read_preferences(model)
        for text in range(5):
            alone = compute_logits(model, texts[text : text + 1])
            torch.testing.assert_close(together[text : text + 1], alone)
            torch.testing.assert_close(preferences[:, text : text + 1], read_preferences(model))
    for_base_LB = preferences[..., BASE] >= preferences[..., SPECIFIC]
    assert (for_base_LB.any(dim=1) & ~for_base_LB.all(dim=1)).any(), "no layer has both sides"


@each_family
@pytest.mark.parametrize("token", ["class", "patches"])
def test_padding_does_not_change_the_routing(spec: TextSpec, token: str) -> None:
    texts = draw_texts(spec)[1:]  # their last two positions are padding
    changed = texts.ids.masked_fill(~texts.mask.bool(), 7)
    model = build(spec, router_token=token, routing="image")
    with torch.no_grad():
        read = []
        for inputs in (texts, Tokens(changed, texts.mask), texts[:, :-2]):
            compute_logits(model, inputs)
            read.append(read_preferences(model))
    torch.testing.assert_close(read[0], read[1])
    torch.testing.assert_close(read[0], read[2])


@each_family
def test_routers_read_the_token_of_the_head_or_the_mean_of_all_words(spec: TextSpec) -> None:
    texts = draw_texts(spec)
    for token in ("class", "patches", "constant"):
        model, seen = build(spec, router_token=token), list[torch.Tensor]()
        first = next(iterate_routed_blocks(model))
        first.router.register_forward_hook(lambda _, inputs, __, seen=seen: seen.append(inputs[0]))
        with torch.no_grad():
            tokens_BND = embed_tokens(model, texts)
            compute_logits(model, texts)
        for row, words in enumerate(texts.mask.sum(dim=1).tolist()):
            head = words - 1 if spec.pool == "last" else 0
            expected = {
                "class": tokens_BND[row, head],
                "patches": tokens_BND[row, :words].mean(dim=0),
                "constant": torch.ones(spec.width),
            }
            torch.testing.assert_close(seen[0][row], expected[token])


@each_family
@pytest.mark.parametrize("gate", ["update", "both"])
def test_only_copies_routers_and_head_are_trained(spec: TextSpec, gate: str) -> None:
    model, texts = build(spec, gate=gate).train(), draw_texts(spec)
    compute_logits(model, texts).square().sum().backward()
    for name, parameter in model.named_parameters():
        is_trained = any(part in name for part in (".specific.", ".router.", "classifier", "score"))
        assert parameter.requires_grad == is_trained
    for block in iterate_routed_blocks(model):
        assert block.router.preference.grad.norm() > 1e-6


def test_blocks_that_return_tuples_are_routed() -> None:
    class Wrapped(nn.Module):
        def __init__(self, block: nn.Module) -> None:
            super().__init__()
            self.block = block

        def forward(self, x_BND: torch.Tensor, *arguments: Any, **named: Any) -> tuple[Any, ...]:
            return self.block(x_BND, *arguments, **named), None

    spec = SPECS["bert"]
    plain, texts = build_model(spec, initialise(spec, 0, "fan_in")).eval(), draw_texts(spec)
    wrapped = copy.deepcopy(plain)
    for number, block in enumerate(get_blocks(wrapped)):
        get_blocks(wrapped)[number] = Wrapped(block)  # type: ignore[index]
    tokens_BND = embed_tokens(plain, texts)
    model = build_super_net(wrapped, text=spec, routing="image")
    for routed, block in zip(iterate_routed_blocks(model), get_blocks(plain), strict=True):
        routed.mask_BN = texts.mask
        mask_B11N = texts.mask[:, None, None].bool()
        (output_BND,) = routed(tokens_BND, mask_B11N)
        torch.testing.assert_close(output_BND, block(tokens_BND, mask_B11N))


@each_family
def test_a_process_without_texts_takes_part_in_the_votes(
    spec: TextSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    votes: list[int] = []
    monkeypatch.setattr(
        "lgzoo_lsamd.modules.supernet.vote", lambda p_B2: votes.append(len(p_B2)) or BASE
    )
    for routing, expected in (("batch", [0] * spec.layers), ("image", [])):
        votes.clear()
        logits = compute_or_abstain(build(spec, routing=routing), draw_texts(spec)[:0], 3)
        assert logits.shape == (0, 3)
        assert votes == expected


def test_features_that_hardly_differ_are_spread_before_a_search() -> None:
    ancestry = make_tiny_ancestry(spec=SPECS["bert"])
    ancestry.state["bert.pooler.dense.weight"] *= 1e-5
    task = make_tiny_task("texts", image_size=0)
    model = attach_head(ancestry, task, RUN).eval()
    spread = model.state_dict()["bert.pooler.dense.weight"].abs().max()
    assert spread > 1e3 * ancestry.state["bert.pooler.dense.weight"].abs().max()


@each_family
def test_shares_of_a_search_are_those_of_all_texts(spec: TextSpec) -> None:
    ancestry, task = make_tiny_ancestry(spec=spec), make_tiny_task("texts", image_size=0)
    model = build_super_net(attach_head(ancestry, task, RUN), text=spec)
    results = [
        measure_preferences(model, task, ancestry.input_format, RUN, batch_size=size)
        for size in (12, 5)
    ]
    assert results[0] == results[1]
    assert results[0].paths == (1, 1, 1)
    assert results[0].validation_images == 12


@each_family
def test_transformers_opens_a_descendant_of_texts(spec: TextSpec, tmp_path: Path) -> None:
    ancestry = tmp_path / "ancestry"
    plain = spec.with_(classes=0)
    module = build_model(plain, initialise(plain, 0, "fan_in"))
    getattr(module, module.base_model_prefix).save_pretrained(ancestry)
    write_tokenizer(ancestry)
    rows = [f"{a} {b},{a}" for a in ("cat", "dog") for b in ("sees", "hears", "no", "the") * 5]
    for name in ("one", "two"):
        (tmp_path / f"{name}.csv").write_text("\n".join(["text,label", *rows]))
    tasks = [f"csv:{tmp_path / name}.csv" for name in ("one", "two")]
    settings = LsamdExtractor(top=2, each=SearchSettings(training=RECIPE, routing="image"))
    gene, out = tmp_path / "gene", tmp_path / "small"
    with pytest.raises(WrongCall, match="digits is an image task, and the model takes texts"):
        lg.extract("lsamd", ancestries=str(ancestry), tasks="digits", extractor=settings, run=RUN)
    learngene = lg.extract(
        "lsamd", ancestries=str(ancestry), tasks=tasks, extractor=settings, out=gene, run=RUN
    )
    assert len(learngene.config.details["datasets"]) == 2
    assert (gene / "tokenizer.json").exists()
    small = lg.expand(gene, layers=4, out=out, run=RUN)
    opened = transformers.AutoModelForSequenceClassification.from_pretrained(out).eval()
    texts = draw_texts(spec)
    with torch.no_grad():
        theirs = opened(input_ids=texts.ids, attention_mask=texts.mask).logits
        assert torch.equal(compute_logits(small.model(), texts), theirs)
    kept = small.provenance["blocks"]
    assert len(kept) == 4
    assert set(kept) == set(learngene.config.details["kept"])
    assert transformers.AutoTokenizer.from_pretrained(out)("cat")["input_ids"] == [3]


def test_a_model_of_images_refuses_texts() -> None:
    smoke = replace(LSAMD.presets["smoke"], top=2)
    with pytest.raises(WrongCall, match="sentiment is a text task, and the model takes images"):
        lg.extract("lsamd", tasks="sentiment", extractor=smoke, run=RUN)
