"""Pruning and elastic on text models: laws of cuts, removed blocks, and refused sizes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import learngene_zoo as lg
from learngene_zoo.artifacts.descendant import load_descendant
from learngene_zoo.errors import WrongCall
from learngene_zoo.families.family import get_family, get_table, load_family, load_host
from learngene_zoo.families.forward import compute_pooled, compute_tokens
from learngene_zoo.families.tensors import build_model
from learngene_zoo.families.text_spec import TextSpec
from learngene_zoo.pretrained.ancestry import Ancestry
from learngene_zoo.runs.run import Run
from learngene_zoo.storage import StateDict
from learngene_zoo.tasks import catalogue
from learngene_zoo.testing import make_tiny_ancestry, make_tiny_task
from lgzoo_closed_form.calibration import sample_pictures
from lgzoo_closed_form.elastic import ELASTIC, ElasticExpander, ElasticExtractor
from lgzoo_closed_form.modules.curvature import draw_spans, extract_features, measure_curvatures
from lgzoo_closed_form.modules.importance import measure_importances, measure_influences
from lgzoo_closed_form.pruning import PRUNING, PruningExpander, Scoring

pytest.importorskip("transformers")

SPECS: dict[str, Any] = {name: load_family(name).examples[0] for name in ("gpt2", "bert")}
TASK = make_tiny_task("texts", image_size=0)
METHODS: dict[str, Any] = {"pruning": PRUNING, "elastic": ELASTIC}
each_family = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
each_method = pytest.mark.parametrize("method", METHODS)


@pytest.fixture(autouse=True)
def texts_in_the_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "_open_named", lambda name, offline: TASK)


@cache
def perturb(spec: TextSpec) -> Ancestry:
    """Return random tensors, so that no gain is 1 and no shift 0."""
    generator, plain = torch.Generator().manual_seed(0), make_tiny_ancestry(spec=spec)
    for tensor in plain.state.values():
        tensor += 0.1 * torch.randn(tensor.shape, generator=generator)
    return plain


def extract(method: str, ancestry: Ancestry) -> lg.Learngene:
    learngene = METHODS[method].presets["smoke"]([ancestry], [TASK], Run(seed=1))
    return replace(
        learngene.with_config(method=method, ancestries=(ancestry.record,)), files=ancestry.files
    )


extract_once = cache(lambda method, family: extract(method, perturb(SPECS[family])))


def sample_words(ancestry: Ancestry) -> Any:
    settings = Scoring().calibration
    return sample_pictures(ancestry.spec, settings, TASK, ancestry.input_format, Run(seed=1))


@torch.no_grad()
def compare_texts(ancestry: Ancestry, small: lg.Descendant) -> float:
    """Return the largest difference of the words' features from the ancestry model's."""
    words = sample_words(ancestry).images
    is_word = words != ancestry.spec.pad_token  # type: ignore[attr-defined]
    streams = [compute_tokens(model.model(), words)[is_word] for model in (ancestry, small)]
    return float((streams[0] - streams[1]).abs().max())


def name_layers(spec: TextSpec, block: int) -> tuple[Any, Any, Any]:
    """Return the names of reader, writer and the rows of the table of a block's MLP."""
    table = get_table(spec)
    mlp = table.branches(spec)[1]
    return (*(table.block_name(block, name) for name in (mlp.readers[0], mlp.writer)), table)


def select_outputs(state: StateDict, table: Any, layer: str, index: Any) -> torch.Tensor:
    """Return a view of the weights (outputs, inputs) of some outputs of a layer."""
    name = f"{layer}.weight"
    return state[name].movedim(table.find(name).writes, 0)[index]


# What is built.


@each_method
@each_family
def test_with_nothing_cut_the_ancestry_model_is_left(spec: TextSpec, method: str) -> None:
    learngene = extract_once(method, spec.family)
    descendant = lg.expand(learngene)
    assert descendant.spec == spec
    for name in descendant.inherited:
        assert torch.equal(descendant.state[name], perturb(spec).state[name]), name
    assert "calibration" not in descendant.provenance


@each_family
def test_constant_neurons_are_cut_first_and_not_missed(spec: TextSpec) -> None:
    """Half of the neurons read nothing, so that their outputs are the activation of the bias."""
    plain = perturb(spec)
    ancestry = replace(plain, state={name: plain.state[name].clone() for name in plain.state})
    constant = slice(0, spec.hidden // 2)
    for block in range(spec.layers):
        reader, _, table = name_layers(spec, block)
        select_outputs(ancestry.state, table, reader, constant).zero_()
    learngene = extract("pruning", ancestry)
    small = lg.expand(learngene, mlp_ratio=spec.mlp_ratio / 2)
    for block in range(spec.layers):
        reader, _, table = name_layers(spec, block)
        cut = select_outputs(small.state, table, reader, slice(None))
        kept = select_outputs(ancestry.state, table, reader, slice(spec.hidden // 2, None))
        assert torch.equal(cut, kept)
    assert compare_texts(ancestry, small) < 1e-4
    bare = lg.expand(learngene, mlp_ratio=spec.mlp_ratio / 2, compensate=False)
    assert compare_texts(ancestry, bare) > 1e-2


@each_method
@each_family
def test_compensation_comes_nearer_to_the_ancestry_model(spec: TextSpec, method: str) -> None:
    learngene, ancestry = extract_once(method, spec.family), perturb(spec)
    words = sample_words(ancestry).images
    is_word = words != spec.pad_token
    errors = []
    for compensate in (True, False):
        small = lg.expand(learngene, keep=0.5, compensate=compensate)
        assert small.spec.hidden == spec.hidden // 2
        with torch.no_grad():
            streams = [compute_tokens(model.model(), words) for model in (ancestry, small)]
        errors.append(float((streams[0] - streams[1])[is_word].square().sum()))
    assert errors[0] < 0.8 * errors[1]


@each_family
def test_the_best_neurons_of_each_block_are_kept(spec: TextSpec) -> None:
    learngene = extract_once("pruning", spec.family)
    small = lg.expand(learngene, layers=2, mlp_ratio=spec.mlp_ratio / 4, compensate=False)
    order = learngene.state["importance.blocks"].argsort(descending=True)
    blocks = sorted(order[:2].tolist())
    hidden = small.spec.hidden
    kept = {"blocks": blocks, "heads": [spec.heads] * 2, "hidden": [hidden] * 2}
    assert small.provenance["kept"] == kept
    for place, block in enumerate(blocks):
        neurons = learngene.state["importance.hidden"][block].topk(hidden).indices.sort().values
        reader, _, table = name_layers(spec, block)
        expected = select_outputs(perturb(spec).state, table, reader, neurons)
        reader, _, table = name_layers(spec, place)
        assert torch.equal(select_outputs(small.state, table, reader, slice(None)), expected)


@each_family
def test_a_block_without_influence_is_removed_first(spec: TextSpec) -> None:
    """The second block adds nothing, and the norms of a BERT find normalised streams."""
    plain = perturb(spec)
    ancestry = replace(plain, state={name: plain.state[name].clone() for name in plain.state})
    table = get_table(spec)
    for name, kind in ((name, table.find(name)) for name in ancestry.state):
        assert kind is not None
        is_writer = any(
            table.block_of(name) == 1 and table.inner_name(name).startswith(f"{branch.writer}.")
            for branch in table.branches(spec)
        )
        if is_writer:
            ancestry.state[name].zero_()
        if table.norms_after(spec) and "LayerNorm" in name:
            ancestry.state[name].fill_(float(kind.start == "one"))
    learngene = extract("pruning", ancestry)
    influences = learngene.state["importance.blocks"]
    assert abs(float(influences[1])) < 1e-6 < 1e-3 < float(influences[[0, 2]].min())
    small = lg.expand(learngene, layers=2)
    assert small.spec.layers == 2
    assert small.provenance["kept"]["blocks"] == [0, 2]
    assert "calibration" not in small.provenance
    assert compare_texts(ancestry, small) < 1e-4


@each_method
@each_family
def test_transformers_opens_a_pruned_folder(spec: TextSpec, method: str, tmp_path: Path) -> None:
    learngene = extract_once(method, spec.family)
    small = lg.expand(learngene, layers=2, mlp_ratio=1.3, classes=2, out=tmp_path / "small")
    model: Any = load_host(get_family(small.spec)).open_folder(tmp_path / "small", small.spec)
    assert model.config.num_hidden_layers == 2
    words = sample_words(perturb(spec)).images[:3]
    mask = (words != spec.pad_token).long()
    with torch.no_grad():
        logits = [
            opened(input_ids=words, attention_mask=mask).logits for opened in (model, small.model())
        ]
    assert torch.equal(*logits)
    assert load_descendant(tmp_path / "small").spec.hidden == small.spec.hidden == 41


# Scores.


@each_family
def test_magnitudes_and_energies_by_number(spec: TextSpec) -> None:
    ancestry = perturb(spec)
    pictures, state = sample_words(ancestry), ancestry.state
    reader, writer, table = name_layers(spec, 1)
    columns = select_outputs(state, table, writer, slice(None)).double()
    written = select_outputs(state, table, reader, slice(None)).double()
    _, hidden = measure_importances("magnitude", ancestry, pictures)
    expected = written.square().sum(dim=1) + columns.square().sum(dim=0)
    torch.testing.assert_close(hidden[1], expected / expected.mean())
    model = build_model(spec, state)
    rows: list[torch.Tensor] = []
    layer = model.get_submodule(writer)
    handle = layer.register_forward_pre_hook(lambda _, inputs: rows.append(inputs[0]))
    with torch.no_grad():
        compute_tokens(model, pictures.images)
    handle.remove()
    is_recorded = pictures.weights > 0
    activations = pictures.select_rows(rows[0])[is_recorded].double()
    expected = activations.var(dim=0) * columns.square().sum(dim=0)
    _, hidden = measure_importances("energy", ancestry, pictures)
    torch.testing.assert_close(hidden[1], expected / expected.mean(), atol=1e-4, rtol=1e-4)


@each_family
def test_curvature_is_the_mean_of_squares_over_texts(spec: TextSpec) -> None:
    ancestry = perturb(spec)
    model, words = build_model(spec, ancestry.state), sample_words(ancestry).images[:2]
    _, hidden = measure_curvatures(model, spec, words, num_small=2, seed=9)
    sums = []
    for block in range(spec.layers):
        reader, _, table = name_layers(spec, block)
        weight, total = model.get_parameter(f"{reader}.weight"), torch.zeros(spec.hidden)
        for number, text in enumerate(words):
            spans = draw_spans(text, 9, number, 2, spec.pad_token or 0)
            unit = torch.nn.functional.normalize(extract_features(model, spec, spans), dim=-1)
            targets, logs = unit[:2].detach().softmax(dim=-1), unit.log_softmax(dim=-1)
            pairs = [(t, s) for t in range(2) for s in range(4) if t != s]
            loss = -sum((targets[t] * logs[s]).sum() for t, s in pairs)
            (slope,) = torch.autograd.grad(loss, weight)
            kind = table.find(f"{reader}.weight")
            total = total + slope.square().movedim(kind.writes, 0).mean(dim=1)
        sums.append(total.double())
    expected = torch.stack(sums)
    torch.testing.assert_close(hidden, expected / expected.mean(), atol=1e-3, rtol=1e-3)


def test_spans_are_consecutive_words_between_the_first_and_the_last() -> None:
    text = torch.tensor([*range(2, 42), 0, 0])
    for number in range(20):
        spans = draw_spans(text, 3, number, 4, 0)
        lengths = (spans != 0).sum(dim=1) - 2
        assert len(spans) == 6
        for span, length in zip(spans.tolist(), lengths.tolist()):
            first = span[1]
            assert span[: length + 2] == [2, *range(first, first + length), 41]
            assert 2 < first < first + length <= 41
        assert bool((lengths[:2] >= 9).all())
        assert bool((lengths[2:] <= 10).all())
    assert draw_spans(torch.tensor([5, 6, 0]), 3, 0, 1, 0).tolist() == [[5, 6]] * 3
    assert draw_spans(torch.tensor([0, 0]), 3, 0, 0, 0).tolist() == [[0], [0]]


@each_family
def test_influences_are_the_cosines_of_the_streams(spec: TextSpec) -> None:
    ancestry = perturb(spec).model()
    pictures = sample_words(perturb(spec))
    with torch.no_grad():
        body = ancestry.get_submodule("bert" if spec.family == "bert" else "transformer")
        mask = (pictures.images != spec.pad_token).long()
        answer: Any = body(
            input_ids=pictures.images, attention_mask=mask, output_hidden_states=True
        )
    is_recorded = pictures.weights > 0
    before, after = (
        pictures.select_rows(answer.hidden_states[block])[is_recorded] for block in (0, 1)
    )
    expected = 1 - torch.nn.functional.cosine_similarity(before, after, dim=1).mean()
    influences = measure_influences(ancestry, pictures)
    assert influences.shape == (spec.layers,)
    assert float(influences[0]) == pytest.approx(float(expected), abs=1e-5)


# What is refused.


@pytest.mark.parametrize(
    ("expander", "sizes", "said"),
    [
        (
            PruningExpander(),
            {"heads": 1},
            "have heads 2; sizes that can be chosen: layers, mlp_ratio, classes$",
        ),
        (PruningExpander(), {"layers": 4}, "layers is 4; the ancestry model has 3, and pruning"),
        (PruningExpander(), {"mlp_ratio": 8.0}, "mlp_ratio is 8.0; the ancestry model has 4.0"),
        (PruningExpander(), {"mlp_ratio": 0.01}, "leaves no hidden neuron"),
        (
            PruningExpander(ranking="global", keep=0.5),
            {},
            "one MLP ratio for all blocks; leave out",
        ),
        (PruningExpander(head_dim=8), {}, "head_dim is 8, but the format of bert"),
        (ElasticExpander(), {"heads": 1}, "sizes that can be chosen: layers, mlp_ratio, classes$"),
        (ElasticExpander(), {"width": 16}, "width is 16, but all descendants"),
        (ElasticExpander(), {"image_size": 16}, "models of the family 'bert' have no image_size"),
    ],
)
def test_sizes_that_the_format_cannot_express_are_refused(
    expander: Any, sizes: dict[str, Any], said: str
) -> None:
    method = "pruning" if isinstance(expander, PruningExpander) else "elastic"
    with pytest.raises(WrongCall, match=said) as raised:
        lg.expand(extract_once(method, "bert"), expander=expander, **sizes)
    assert "\n" not in str(raised.value)


def test_scores_of_images_are_refused() -> None:
    with pytest.raises(WrongCall, match="such files are for image models"):
        ElasticExtractor(scores="scores.pt").outline([SPECS["gpt2"]])


@each_method
def test_a_budget_is_kept(method: str) -> None:
    full = lg.expand(extract_once(method, "gpt2")).cost().params
    small = lg.expand(extract_once(method, "gpt2"), max_params=int(0.7 * full), compensate=False)
    assert 0.5 * full < small.cost().params <= 0.7 * full


def test_the_feature_of_a_text_is_that_of_the_head() -> None:
    spec = SPECS["gpt2"]
    model, words = perturb(spec).model(), sample_words(perturb(spec)).images[:4]
    with torch.no_grad():
        assert torch.equal(extract_features(model, spec, words), compute_pooled(model, words))
