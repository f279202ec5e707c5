"""Methods on text models: what a method promises about the function holds for them too."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from processes_toy import imitate_processes

import learngene_zoo as lg
from learngene_zoo.families.family import get_table, load_family
from learngene_zoo.families.forward import compute_logits, compute_pooled, compute_tokens
from learngene_zoo.families.tensors import build_model
from learngene_zoo.families.text_format import Tokens
from learngene_zoo.families.text_spec import TextSpec
from learngene_zoo.pretrained.ancestry import Ancestry
from learngene_zoo.runs.run import Run
from learngene_zoo.testing import make_tiny_ancestry, make_tiny_task
from lgzoo_baselines.blocks.block_choice import BlockChoiceExtractor
from lgzoo_baselines.modules.weight_subcloning import sum_magnitudes
from lgzoo_baselines.weights.weight_subcloning import (
    IMPORTANCE,
    NeuronRanking,
    rank_neurons,
    reorder_neurons,
    rescale_weights,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "core"))
from text_models_toy import draw_words

pytest.importorskip("transformers")

SPECS = {name: load_family(name).examples[0] for name in ("gpt2", "bert")}
TASK = make_tiny_task("texts", image_size=0)
each_family = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)


def perturb(spec: TextSpec) -> Ancestry:
    """Return random tensors, so that no gain is 1 and no shift 0."""
    generator, plain = torch.Generator().manual_seed(0), make_tiny_ancestry(spec=spec)
    for tensor in plain.state.values():
        tensor += 0.1 * torch.randn(tensor.shape, generator=generator)
    return plain


def expand(method: str, ancestry: Ancestry, **sizes: Any) -> lg.Descendant:
    learngene = BlockChoiceExtractor()([ancestry], [], Run())
    return lg.expand(learngene.with_config(method=method, ancestries=(ancestry.record,)), **sizes)


@torch.no_grad()
def compute_stream(spec: TextSpec, state: Any) -> torch.Tensor:
    """Return the tokens after the final norm, (B, N, D)."""
    return compute_tokens(build_model(spec, state).double(), draw_words(spec))


@each_family
@pytest.mark.parametrize("method", ["growth", "ligo"])
def test_copies_of_every_channel_keep_the_function(spec: TextSpec, method: str) -> None:
    if spec.family == "bert" and method == "ligo":
        pytest.skip("it reads queries, keys and values in one matrix")
    ancestry = perturb(spec)
    expected = compute_stream(spec, ancestry.state)
    larger = expand(method, ancestry, width=2 * spec.width)
    actual = compute_stream(larger.spec, larger.state)
    assert (actual - expected.repeat(1, 1, 2)).abs().max() < 1e-5
    deeper = expand(method, ancestry, mlp_ratio=2 * spec.mlp_ratio)
    assert (compute_stream(deeper.spec, deeper.state) - expected).abs().max() < 1e-5


def test_operators_learn_on_texts(tmp_path: Path) -> None:
    rows = [f"w{2 + text} w{1 + text % 5},{'ab'[text % 2]}" for text in range(30)]
    (tmp_path / "mine.csv").write_text("\n".join(["text,label", *rows]))
    ancestry, sizes = perturb(SPECS["gpt2"]), {"width": 48, "heads": 3}
    learngene = replace(BlockChoiceExtractor()([ancestry], [], Run()), files=ancestry.files)
    learngene = learngene.with_config(method="ligo", ancestries=(ancestry.record,))
    options: dict[str, Any] = {"images": 16, "batch_size": 8, "epochs": 1}
    learnt = lg.expand(learngene, task=f"csv:{tmp_path / 'mine.csv'}", **options, **sizes)
    assert learnt.provenance["learnt"]
    plain, name = lg.expand(learngene, **sizes), "transformer.h.0.mlp.c_fc.weight"
    assert not torch.equal(learnt.state[name], plain.state[name])


@each_family
def test_all_first_blocks_are_the_ancestry_model(spec: TextSpec) -> None:
    ancestry, words = perturb(spec), draw_words(spec)
    copy = expand("first_k", ancestry, layers=spec.layers)
    with torch.no_grad():
        pooled = [compute_pooled(model.model(), words) for model in (copy, ancestry)]
    assert torch.equal(*pooled)
    assert not any(get_table(spec).is_head(name) for name in copy.inherited)


@each_family
def test_reordered_neurons_compute_the_same(spec: TextSpec) -> None:
    ancestry, words = perturb(spec), draw_words(spec)
    model = ancestry.model()
    sums = sum_magnitudes(model, spec, [words])
    with torch.no_grad():
        expected = compute_logits(model, words)
    assert len(sums.stream.unique()) == spec.width
    importances = {
        f"{IMPORTANCE}width": sums.stream,
        f"{IMPORTANCE}heads": sums.heads.unflatten(1, (spec.heads, -1)).sum(dim=2),
        f"{IMPORTANCE}hidden": sums.hidden,
    }
    state = reorder_neurons(ancestry.state, spec, importances)
    with torch.no_grad():
        assert (compute_logits(build_model(spec, state), words) - expected).abs().max() < 1e-5


@each_family
def test_importances_do_not_depend_on_the_texts_of_a_batch(spec: TextSpec) -> None:
    model, ids = perturb(spec).model(), draw_words(spec)
    mask = (ids != spec.pad_token).long()
    alone = [
        Tokens(ids[text : text + 1, :length], mask[text : text + 1, :length])
        for text, length in enumerate(mask.sum(dim=1).tolist())
    ]
    assert len({len(text.ids[0]) for text in alone}) == len(ids)
    for one, other in zip(
        sum_magnitudes(model, spec, [Tokens(ids, mask)]), sum_magnitudes(model, spec, alone)
    ):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@each_family
def test_processes_rank_neurons_together(spec: TextSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    ancestry, settings = perturb(spec), NeuronRanking(images=24)
    expected, _ = rank_neurons(settings, ancestry, TASK, Run(seed=1))
    together = imitate_processes(
        lambda: rank_neurons(settings, ancestry, TASK, Run(seed=1))[0],
        "lgzoo_baselines.modules.weight_subcloning.gather_values",
        monkeypatch,
    )
    for name, values in expected.items():
        torch.testing.assert_close(together[name], values)


def test_the_inputs_of_a_matrix_of_gpt2_are_its_rows() -> None:
    spec = SPECS["gpt2"]
    half = spec.with_(width=16, heads=1)
    state = {name: torch.ones(1) for name in make_tiny_ancestry(spec=spec).state}
    rescaled = rescale_weights(state, spec, half)
    factors = {name: value.item() for name, value in rescaled.items() if value != 1}
    weights = {get_table(spec).inner_name(name) for name in factors if name != "score.weight"}
    layers = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    assert weights == {f"{layer}.weight" for layer in layers}
    assert list(factors.values()) == pytest.approx([2**0.5] * len(factors))
