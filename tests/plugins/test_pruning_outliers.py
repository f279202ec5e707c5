"""Pruning: narrower heads, and the penalty of models with outlier channels."""

import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from pruning_toy import SETTINGS, SPEC, sample_toy_pictures

import learngene_zoo as lg
from learngene_zoo.errors import WrongCall
from learngene_zoo.families.family import load_family
from learngene_zoo.families.picture_spec import PictureSpec
from learngene_zoo.families.tensors import build_model, initialise
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.runs.run import Run
from learngene_zoo.testing import make_tiny_ancestry, make_tiny_task
from lgzoo_closed_form.modules.cutting import (
    Absorption,
    Selection,
    compensate_model,
    record_blocks,
)
from lgzoo_closed_form.modules.head_dims import (
    compute_roots,
    factor_products,
    factor_writer,
    narrow_heads,
)
from lgzoo_closed_form.modules.ridge import choose_penalty, measure_largest
from lgzoo_closed_form.modules.streams import Pictures
from lgzoo_closed_form.pruned import check_head_dim
from lgzoo_closed_form.pruning import PruningExpander, PruningExtractor, Scoring
from lgzoo_closed_form.sizes import derive_even_spec

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
damping = pytest.importorskip("compensation_damping")

EVA = load_family("eva").examples[0].with_(layers=4, width=48, heads=3)
FULL = Selection([list(range(3))] * 4, [list(range(SPEC.hidden))] * 4)


@pytest.fixture(autouse=True)
def tiny_in_the_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "learngene_zoo.tasks.catalogue._open_named", lambda name, offline: make_tiny_task(name)
    )


def extract_toy(spec: PictureSpec) -> lg.Learngene:
    ancestry = make_tiny_ancestry(spec=spec)
    extractor = PruningExtractor(each=Scoring(calibration=SETTINGS))
    learngene = extractor([ancestry], [make_tiny_task()], Run(seed=1))
    return learngene.with_config(method="pruning", ancestries=(ancestry.record,))


# Outlier channels.


def draw_images(count: int, seed: int) -> torch.Tensor:
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(seed))


@cache
def measure_errors(family: str, is_planted: bool) -> dict[str, float]:
    """Return the squared error of the features on new images by penalty."""
    errors: dict[str, float] = damping.measure_random(family, is_planted)
    return errors


@pytest.mark.slow
@pytest.mark.parametrize("family", ["vit", "eva"])
def test_a_penalty_for_each_input_does_not_see_planted_outliers(family: str) -> None:
    plain, planted = (measure_errors(family, is_planted) for is_planted in (False, True))
    for penalty in ("each 0.001", "each 0.01", "each 0.1"):
        assert planted[penalty] == pytest.approx(plain[penalty], rel=0.02)
    assert planted["each 0.01"] <= planted["no penalty"]
    assert planted["each 0.01"] < planted["none"]


@pytest.mark.slow
def test_a_common_penalty_of_outliers_leaves_less_of_the_compensation() -> None:
    """It is large beside all inputs except the two outliers: with the largest eigenvalue most."""
    plain, planted = (measure_errors("vit", is_planted) for is_planted in (False, True))
    for kind in ("mean 0.01", "largest 0.01"):
        assert plain[kind] < 1.1 * plain["each 0.01"]
        assert 1.2 * planted["each 0.01"] < planted[kind] < planted["none"]
    assert planted["mean 0.01"] < planted["largest 0.01"]


def test_penalties_by_number() -> None:
    gram = torch.diag(torch.tensor([1.0, 2.0, 9.0], dtype=torch.float64))
    assert float(choose_penalty(gram, 0.1, "mean")) == pytest.approx(0.4)
    assert float(choose_penalty(gram, 0.1, "largest")) == pytest.approx(0.9)
    assert choose_penalty(gram, 0.1, "each").tolist() == pytest.approx([0.1, 0.2, 0.9])
    assert (choose_penalty(0 * gram, 0.1, "each") > 0).all()
    assert (choose_penalty(gram, 0.0, "largest") > 0).all()


def test_the_largest_eigenvalue_is_found() -> None:
    rows = torch.randn(50, 20, generator=torch.Generator().manual_seed(0)).double()
    gram = rows.T @ rows
    assert float(measure_largest(gram)) == pytest.approx(
        float(torch.linalg.eigvalsh(gram)[-1]), rel=1e-2
    )
    assert float(measure_largest(0 * gram)) == 0


# Narrower heads.


def draw_gram(heads: int, size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows (heads, 40, size) and their Gram matrices."""
    rows = torch.randn(heads, 40, size, generator=torch.Generator().manual_seed(seed)).double()
    return rows, rows.mT @ rows


def test_products_are_the_best_of_their_rank() -> None:
    (queries, gram_q), (keys, gram_k) = draw_gram(2, 6, 0), draw_gram(2, 6, 1)
    first, second = factor_products(gram_q, gram_k, 4)
    narrow = (queries @ first.mT) @ (keys @ second.mT).mT
    products = queries @ keys.mT
    U, S, Vh = torch.linalg.svd(products)
    best = (U[:, :, :4] * S[:, None, :4]) @ Vh[:, :4]
    torch.testing.assert_close(narrow, best)


def test_logits_keep_their_scale() -> None:
    """Attention divides products by the root of the number of channels, 4 instead of 6."""
    (queries, gram_q), (keys, gram_k), (_, gram_o) = (draw_gram(2, 6, seed) for seed in range(3))
    maps = narrow_heads(gram_q, gram_k, gram_o, draw_gram(2, 6, 3)[0], 4)
    logits = (queries @ maps.queries.mT) @ (keys @ maps.keys.mT).mT / 4**0.5
    U, S, Vh = torch.linalg.svd(queries @ keys.mT / 6**0.5)
    torch.testing.assert_close(logits, (U[:, :, :4] * S[:, None, :4]) @ Vh[:, :4])


def test_updates_are_the_best_of_their_rank() -> None:
    (outputs, gram), writer = draw_gram(2, 6, 0), draw_gram(2, 6, 1)[0]
    down, up = factor_writer(gram, writer, 4)
    updates = outputs @ writer.mT
    U, S, Vh = torch.linalg.svd(updates, full_matrices=False)
    best = (U[:, :, :4] * S[:, None, :4]) @ Vh[:, :4]
    torch.testing.assert_close((outputs @ down.mT) @ up.mT, best)


def test_channels_without_energy_are_left_out() -> None:
    gram = draw_gram(1, 6, 0)[1]
    gram[:, 2], gram[:, :, 2] = 0, 0
    root, inverse = compute_roots(gram)
    assert root.isfinite().all()
    assert inverse.isfinite().all()
    assert inverse[0, 2].abs().max() < 1e-6
    torch.testing.assert_close(root @ root, gram)


@pytest.mark.parametrize("changes", [{}, {"qkv_bias": False, "layer_scale": 0.1}])
def test_with_all_channels_the_function_stays(changes: dict[str, Any]) -> None:
    spec = SPEC.with_(classes=0, **changes)
    state = initialise(spec, 0, "fan_in")
    model = build_model(spec, state).eval()
    absorption = Absorption(1e-9, "mean", spec.head_width)
    parts = compensate_model(model, state, spec, FULL, sample_toy_pictures(spec), absorption)
    images = draw_images(8, 0)
    with torch.no_grad():
        difference = build_model(spec, parts).eval()(images) - model(images)
    assert any(not torch.equal(parts[name], state[name]) for name in parts)
    assert difference.abs().max() < 1e-3


def test_narrower_heads_follow_what_the_layer_scale_leaves_of_their_updates() -> None:
    """A layer scale that is multiplied into the projections instead gives the same function."""
    spec = SPEC.with_(classes=0, layer_scale=1.0)
    scaled, folded = dict(initialise(spec, 0, "fan_in")), dict(initialise(spec, 0, "fan_in"))
    gamma = torch.logspace(-2, 1, spec.width)
    for number in range(spec.layers):
        scaled[f"blocks.{number}.ls1.gamma"] = gamma
        for part in ("weight", "bias"):
            name = f"blocks.{number}.attn.proj.{part}"
            folded[name] = (folded[name].movedim(0, -1) * gamma).movedim(-1, 0)
    small, images = derive_even_spec(spec, 3, spec.mlp_ratio, 8), draw_images(8, 1)
    absorption, pictures = Absorption(1e-3, "mean", 8), sample_toy_pictures(spec)
    outputs = []
    for state in (scaled, folded):
        model = build_model(spec, state).eval()
        parts = compensate_model(model, state, spec, FULL, pictures, absorption)
        with torch.no_grad():
            outputs.append(build_model(small, parts).eval().forward_features(images))
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-3, atol=1e-3)


def test_narrower_heads_keep_more_than_the_first_channels() -> None:
    spec = SPEC.with_(classes=0)
    state = dict(initialise(spec, 0, "fan_in"))
    model, images = build_model(spec, state).eval(), draw_images(64, 1)
    small = derive_even_spec(spec, 3, spec.mlp_ratio, 8)
    assert (small.heads, small.attention_width, small.head_width) == (3, 24, 8)
    tokens = torch.arange(spec.tokens).expand(100, -1)
    pictures = Pictures(
        draw_images(100, 0), tokens, torch.ones(tokens.numel(), dtype=torch.float64)
    )
    solved = compensate_model(model, state, spec, FULL, pictures, Absorption(1e-3, "mean", 8))
    first = dict(state)
    for name in state:
        if name.endswith(("attn.qkv.weight", "attn.qkv.bias")):
            parts = state[name].unflatten(0, (3, 3, 16))[:, :, :8].flatten(0, 2).clone()
            parts[:24] *= 0.5**0.5  # the logits are divided by the root of fewer channels
            first[name] = parts
        elif name.endswith("attn.proj.weight"):
            first[name] = state[name].unflatten(1, (3, 16))[:, :, :8].flatten(1)
    with torch.no_grad():
        full = model.forward_features(images)
        errors = [
            float(
                (build_model(small, parts).eval().forward_features(images) - full).square().mean()
            )
            for parts in (solved, first)
        ]
    assert errors[0] < 0.5 * errors[1]


def test_an_expansion_narrows_the_heads() -> None:
    learngene = extract_toy(SPEC)
    for settings in (
        {"head_dim": 8},
        {"head_dim": 8, "ranking": "global", "keep": 0.6},
        {"head_dim": 12, "keep": 0.5, "damping": "each"},
    ):
        expander = PruningExpander(**settings)
        descendant = lg.expand(learngene, expander=expander)
        assert {part.head_width for part in descendant.spec.segments} == {expander.head_dim}
        assert descendant.provenance["calibration"] == make_tiny_task().name
        assert descendant.model()(torch.zeros(1, 3, 16, 16)).isfinite().all()
    unchanged = lg.expand(learngene, expander=PruningExpander(head_dim=16))
    assert unchanged.spec == SPEC
    assert "calibration" not in unchanged.provenance


@pytest.mark.parametrize(
    ("spec", "head_dim", "said"),
    [
        (SPEC, 17, "the heads of the ancestry model have 16 channels"),
        (
            SPEC.with_(qk_norm=True),
            8,
            "norms of queries and keys, so its heads keep all their channels",
        ),
        (
            EVA.with_(rotary=True),
            8,
            "rotary positions, which turn pairs of channels, so its heads",
        ),
        (EVA.with_(rotary=False), 8, "attention of the family 'eva', which is not implemented"),
    ],
)
def test_heads_that_cannot_be_narrower_are_refused(
    spec: PictureSpec, head_dim: int, said: str
) -> None:
    with pytest.raises(WrongCall, match=said):
        check_head_dim(spec, head_dim)
    check_head_dim(spec, spec.head_width)


def test_pooling_by_attention_keeps_its_heads_beside_narrower_ones() -> None:
    spec = ViTSpec(
        **{"layers": 2, "width": 32, "heads": 4, "image_size": 32, "patch_size": 8},
        classes=0,
        class_token=False,
        pool="map",
    )
    small: Any = derive_even_spec(spec, 4, 4.0, head_dim=4)
    assert (small.attention_width, small.pool_heads, small.head_width) == (16, 4, 4)


def test_narrower_heads_need_images() -> None:
    learngene = extract_toy(SPEC)
    with pytest.raises(WrongCall, match="head_dim needs images; leave out compensate=False"):
        lg.expand(learngene, expander=PruningExpander(head_dim=8, compensate=False))


def test_queries_and_keys_are_recorded_if_asked_for() -> None:
    model = build_model(SPEC, initialise(SPEC, 0)).eval()
    pictures = sample_toy_pictures(SPEC)
    for reads_qkv in (False, True):
        recording = next(record_blocks(model, pictures, reads_qkv=reads_qkv))
        assert (recording.qkv is None) != reads_qkv
    assert recording.qkv is not None
    assert recording.qkv.shape == (len(recording.outputs), 3 * SPEC.width)


# Groups of the scores.


def test_scores_of_one_group_have_mean_one_over_all_blocks() -> None:
    ancestry = make_tiny_ancestry(spec=SPEC)
    learngenes = [
        PruningExtractor(each=Scoring(calibration=SETTINGS, group=group))(
            [ancestry], [make_tiny_task()], Run(seed=1)
        )
        for group in ("block", "model")
    ]
    for name in ("importance.heads", "importance.hidden"):
        by_block, by_model = (learngene.state[name] for learngene in learngenes)
        torch.testing.assert_close(by_block.mean(dim=1), torch.ones(4))
        torch.testing.assert_close(by_model.mean(), torch.tensor(1.0))
        torch.testing.assert_close(by_model / by_model.mean(dim=1, keepdim=True), by_block)
        assert by_model.mean(dim=1).std() > 1e-3


# Pooling by attention, and families.


@pytest.mark.parametrize(
    "spec",
    [
        SPEC.with_(class_token=False, pool="map"),
        EVA.with_(pool="map", pool_heads=2),
        EVA.with_(rope_type="cat", swiglu_multiple=8, mlp_ratio=2.7),
        EVA.with_(attention="rope", rope_type="dinov3", qkv_fused=False),
    ],
    ids=["siglip", "pe_core", "rounded", "unfused"],
)
def test_pruned_models_of_other_families(spec: PictureSpec) -> None:
    learngene = extract_toy(spec)
    pool = {name for name in learngene.state if name.startswith("attn_pool.")}
    for expander in (PruningExpander(keep=0.5), PruningExpander(keep=0.5, compensate=False)):
        small = lg.expand(learngene, expander=expander)
        assert all(torch.equal(small.state[name], learngene.state[name]) for name in pool)
        assert small.model()(torch.zeros(1, 3, 16, 16)).isfinite().all()
        assert small.spec.hidden == round(0.5 * spec.hidden)
    if getattr(spec, "rope_type", "") != "mixed":
        small = lg.expand(learngene, expander=PruningExpander(ranking="global", keep=0.6))
        assert sum(part.layers * part.hidden for part in small.spec.segments) == round(
            0.6 * 4 * spec.hidden
        )


def test_learned_frequencies_need_equal_blocks() -> None:
    learngene = extract_toy(EVA)
    small = lg.expand(learngene, expander=PruningExpander(compensate=False), heads=2)
    for block in range(4):
        kept = learngene.state["importance.heads"][block].topk(2).indices.sort().values
        assert torch.equal(
            small.state["rope.freqs"][:, block], learngene.state["rope.freqs"][:, block, kept]
        )
    with pytest.raises(WrongCall, match="learned frequencies for each head"):
        lg.expand(learngene, expander=PruningExpander(ranking="global", keep=0.55))
