"""closed_form on text models: streams, runs and widths of GPT-2, depths of BERT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from closed_form_toy import check_copies

import learngene_zoo as lg
from learngene_zoo.errors import WrongCall
from learngene_zoo.families.family import load_family
from learngene_zoo.families.forward import compute_hidden, compute_logits, compute_tokens
from learngene_zoo.families.tensors import build_model, fill_missing_tensors, remove_head
from learngene_zoo.families.text_spec import TextSpec
from learngene_zoo.pretrained.ancestry import Ancestry
from learngene_zoo.runs.run import Run
from learngene_zoo.tasks import catalogue
from learngene_zoo.testing import make_tiny_ancestry, make_tiny_task
from lgzoo_closed_form.calibration import Calibration, record_teacher
from lgzoo_closed_form.closed_form import CLOSED_FORM, ClosedFormExtractor
from lgzoo_closed_form.limits import list_fixed_width_features
from lgzoo_closed_form.modules.anatomy import run_stem, split_block
from lgzoo_closed_form.modules.solve import solve_descendant
from lgzoo_closed_form.modules.streams import StreamTeacher
from lgzoo_closed_form.modules.width import build_projection, narrow_parts
from lgzoo_closed_form.pruning import PruningExtractor, Scoring

pytest.importorskip("transformers")

SPECS: dict[str, Any] = {name: load_family(name).examples[0] for name in ("gpt2", "bert")}
each_family = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
TASK, SETTINGS = make_tiny_task("texts", image_size=0), Calibration(images=24, tokens=4)


def perturb(spec: TextSpec) -> Ancestry:
    """Return random tensors, so that no gain is 1 and no shift 0."""
    generator, plain = torch.Generator().manual_seed(0), make_tiny_ancestry(spec=spec)
    for tensor in plain.state.values():
        tensor += 0.1 * torch.randn(tensor.shape, generator=generator)
    return plain


def record(spec: TextSpec) -> StreamTeacher:
    ancestry, headless = perturb(spec), spec.with_(classes=0)
    state = remove_head(ancestry.state, spec)
    return record_teacher(state, headless, SETTINGS, TASK, ancestry.input_format, Run(seed=1))


@each_family
@torch.no_grad()
def test_branches_compute_the_model(spec: TextSpec) -> None:
    teacher = record(spec)
    ids = teacher.pictures.images
    tokens, masks = run_stem(teacher.model, ids)
    for number, mask in enumerate(masks):
        for branch in split_block(teacher.model, number, mask):
            tokens = branch(tokens)
    table_norm = {"gpt2": lambda model: model.transformer.ln_f, "bert": lambda model: None}
    norm: Any = table_norm[spec.family](teacher.model)
    tokens = tokens if norm is None else norm(tokens)
    is_word = masks[0].bool()
    expected = compute_tokens(teacher.model, ids)
    assert (tokens - expected)[is_word].abs().max() < 1e-5
    assert not is_word.all()
    assert torch.equal(
        teacher.pictures.weights.view(len(ids), -1).sum(dim=1).long().unique(), torch.tensor([4])
    )


@torch.no_grad()
def test_no_word_reads_later_ones_by_any_implementation_of_attention() -> None:
    spec = SPECS["gpt2"]
    model: Any = build_model(spec, perturb(spec).state)
    model.config._attn_implementation = "eager"
    tokens = torch.randn(2, 6, spec.width, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(2, 6)
    whole = compute_hidden(model, 0, True, tokens, mask)
    first = compute_hidden(model, 0, True, tokens[:, :3].contiguous(), mask[:, :3])
    assert torch.allclose(first, whole[:, :3], atol=1e-6)


@each_family
@torch.no_grad()
def test_a_solved_run_is_nearer_than_a_copied_block(spec: TextSpec) -> None:
    teacher = record(spec)
    target, weights = teacher.streams.before[-1], teacher.pictures.weights[:, None]
    errors = []
    for solve in (False, True):
        small = teacher.spec.with_(layers=2)
        parts = solve_descendant(teacher, small, (0, 1), None, rho=1e-3, solve=solve)
        model = build_model(small, fill_missing_tensors(small, parts, seed=0))
        tokens, masks = run_stem(model, teacher.pictures.images)
        for number, mask in enumerate(masks):
            for branch in split_block(model, number, mask):
                tokens = branch(tokens)
        rows = teacher.pictures.select_rows(tokens)
        errors.append(float((weights * (rows - target).square()).sum()))
    assert errors[1] < 0.7 * errors[0]


@torch.no_grad()
def test_a_turned_gpt2_of_equal_width_computes_the_same() -> None:
    """The fold of the norms and the rotation are exact as far as the directions span the stream."""
    spec = SPECS["gpt2"].with_(classes=0)
    ancestry = perturb(SPECS["gpt2"])
    state = dict(remove_head(ancestry.state, SPECS["gpt2"]))
    for name in ("transformer.wte.weight", "transformer.wpe.weight"):
        state[name] = state[name] - state[name].mean(dim=1, keepdim=True)
    generator = torch.Generator().manual_seed(1)
    raw = torch.randn(spec.width, spec.width, generator=generator, dtype=torch.float64)
    P_dD = build_projection(torch.linalg.qr(raw)[0], spec.width)
    heads, neurons = [list(range(spec.heads))] * 3, [list(range(spec.hidden))] * 3
    parts = narrow_parts(state, spec, P_dD, [0, 1, 2], heads, neurons)
    turned = build_model(spec, fill_missing_tensors(spec, parts, seed=0))
    words = torch.randint(2, spec.vocabulary, (3, 9), generator=generator)
    plain = build_model(
        spec,
        {
            **state,
            **{
                f"transformer.ln_f.{name}": value
                for name, value in (
                    ("weight", torch.ones(spec.width)),
                    ("bias", torch.zeros(spec.width)),
                )
            },
        },
    )
    streams = [compute_tokens(model, words) for model in (plain, turned)]
    # The means of the stream, which every norm ignores, are lost; the rest keeps its products.
    products = [tokens.flatten(0, 1) @ tokens.flatten(0, 1).T for tokens in streams]
    assert (products[0] - products[1]).abs().max() < 1e-4 * products[0].abs().max()


@each_family
def test_all_blocks_at_full_width_are_the_ancestry_model(
    spec: TextSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "_open_named", lambda name, offline: TASK)
    ancestry = perturb(spec)
    learngene = ClosedFormExtractor(each=SETTINGS)([ancestry], [TASK], Run(seed=1))
    learngene = lg.Learngene(
        config=learngene.with_config(method="closed_form", ancestries=(ancestry.record,)).config,
        state=learngene.state,
        files=ancestry.files,
    )
    copy = lg.expand(learngene, layers=spec.layers)
    for name in copy.inherited:
        assert torch.equal(copy.state[name], ancestry.state[name]), name
    check_copies(learngene, spec.layers)
    check_copies(learngene, 2, teacher_depth=2)
    check_copies(learngene, 2, teacher_depth=spec.layers, solve=False)
    if spec.family == "bert":
        with pytest.raises(WrongCall, match="norms after attention and MLP"):
            lg.expand(learngene, width=16)
        return
    narrow = lg.expand(learngene, layers=2, width=16)
    words = torch.randint(spec.vocabulary, (2, 5))
    assert compute_logits(narrow.model(), words).isfinite().all()


def test_readme_names_the_family_whose_width_is_kept() -> None:
    families = CLOSED_FORM.families
    fixed = [
        name
        for name in families
        if all(list_fixed_width_features(spec) for spec in load_family(name).examples)
    ]
    assert fixed == ["bert"]
    readme = Path(__file__).parents[2] / "README.md"
    (row,) = (
        line for line in readme.read_text().splitlines() if line.startswith("| [`closed_form`]")
    )
    assert "every smaller depth and width; of CLIP, SigLIP and bert every smaller depth |" in row


@each_family
def test_a_weight_of_the_class_token_that_has_no_effect_is_refused(spec: TextSpec) -> None:
    weighted = Calibration(class_weight=8)
    pictures = load_family("vit").examples[0].with_(class_token=False, registers=0, pool="avg")
    pruning = PruningExtractor(each=Scoring(calibration=weighted))
    for extractor in (ClosedFormExtractor(each=weighted), pruning):
        with pytest.raises(WrongCall, match="tokens of texts have the same weight; leave out cl"):
            extractor.outline([spec])
        with pytest.raises(WrongCall, match="the ancestry model has no class token; leave out"):
            extractor.outline([pictures])
        extractor.outline([pictures.with_(class_token=True)])
    ClosedFormExtractor().outline([spec])
