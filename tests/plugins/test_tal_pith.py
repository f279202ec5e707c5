"""PITH: the released code's predictions and gradients, the mixture by number, and its method."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import tal_toy
import torch
from safetensors import safe_open
from torch import Tensor
from torch.testing import assert_close

from learngene_zoo.artifacts.learngene import Learngene
from learngene_zoo.errors import WrongCall
from learngene_zoo.families.tensors import build_model, get_shapes
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.runs.run import Run
from lgzoo_tal.config import Curriculum, MetaStep
from lgzoo_tal.hypernet_spec import HypernetSpec
from lgzoo_tal.meta_training import MetaTraining
from lgzoo_tal.modules.graph import build_graph
from lgzoo_tal.modules.hypernet import Hypernet, build_frozen_hypernet
from lgzoo_tal.modules.inheritance import Inheritance, normalise_tensors
from lgzoo_tal.modules.narrowing import build_projection, merge_norms, select_neurons
from lgzoo_tal.pith import PITH, PithExtractor, check_projections

# Numbers that the released code computes from random tensors: `state/NAME` of the hypernetwork,
# `teacher/NAME` in half precision, the embedding `task`, and STAGE/TARGET/NAME, every third or
# every 31st number of the predicted tensors; by stage and target the norms of the gradients of
# sum(cos(index) * number) over each tensor, without the class token's position.
VECTORS = Path(__file__).parents[1] / "data" / "tal" / "pith.safetensors"
TEACHER = ViTSpec(layers=2, width=32, heads=2, patch_size=4, image_size=32, classes=10)
PUBLISHED = HypernetSpec(
    hidden=8, layers=2, heads=2, decoder="projected", rank=5, chunk=400, widest=4096, classes=10
)
TARGETS = {
    "narrow": TEACHER.with_(width=24, heads=2),
    "wide": TEACHER.with_(width=48, heads=3),
}


@lru_cache(maxsize=1)
def load_vectors() -> tuple[dict[str, Tensor], dict[str, dict[str, float]]]:
    with safe_open(VECTORS, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return tensors, json.loads(file.metadata()["gradients"])


def select_vectors(prefix: str) -> dict[str, Tensor]:
    tensors, _ = load_vectors()
    return {name.removeprefix(prefix): tensors[name] for name in tensors if name.startswith(prefix)}


def build_official(stage: str) -> tuple[Hypernet, Tensor | None]:
    state = select_vectors("state/")
    if stage == "stage_1":
        spec, task = PUBLISHED, None
        state = {name: tensor for name, tensor in state.items() if ".TEN." not in name}
    else:
        spec, task = PUBLISHED.with_(task=6), load_vectors()[0]["task"]
    hypernet = build_frozen_hypernet(spec, state)
    teacher = select_vectors("teacher/")
    del teacher["head.weight"], teacher["head.bias"]
    hypernet.inheritance = Inheritance(spec, TEACHER, teacher)
    return hypernet, task


def select_numbers(name: str, tensor: Tensor, step: int) -> Tensor:
    return (tensor[:, 1:] if name == "pos_embed" else tensor).flatten()[::step]


@pytest.mark.parametrize("stage", ["stage_1", "stage_2"])
@pytest.mark.parametrize("target", TARGETS)
def test_predictions_are_the_released_codes(stage: str, target: str) -> None:
    hypernet, task = build_official(stage)
    graph = build_graph(TARGETS[target], msa=False)
    expected = select_vectors(f"{stage}/{target}/")
    step = 3 if (stage, target) == ("stage_1", "narrow") else 31
    for predicted in (hypernet(graph, task=task), hypernet.predict(graph, task=task)):
        assert {name: tuple(tensor.shape) for name, tensor in predicted.items()} == get_shapes(
            TARGETS[target]
        )
        assert expected.keys() == predicted.keys() - {"cls_token"}
        for name, numbers in expected.items():
            actual = select_numbers(name, predicted[name], step)
            assert_close(actual, numbers, rtol=1e-5, atol=1e-6, msg=lambda text: f"{name}: {text}")  # noqa: B023


@pytest.mark.parametrize("stage", ["stage_1", "stage_2"])
@pytest.mark.parametrize("target", TARGETS)
def test_gradients_are_the_released_codes(stage: str, target: str) -> None:
    hypernet, task = build_official(stage)
    hypernet.requires_grad_()
    predicted = hypernet(build_graph(TARGETS[target], msa=False), task=task)
    loss: Any = 0
    for name, tensor in predicted.items():
        if name != "cls_token":
            numbers = select_numbers(name, tensor, 1)
            loss = loss + (numbers * torch.arange(len(numbers)).float().cos()).sum()
    loss.backward()
    recorded = load_vectors()[1][f"{stage}/{target}"]
    norms = {
        name: parameter.grad.norm().item()
        for name, parameter in hypernet.named_parameters()
        if parameter.grad is not None
    }
    assert len(norms) == len(hypernet.state_dict())
    assert norms == {name: pytest.approx(recorded[name], rel=1e-4, abs=1e-5) for name in norms}


# The mixture by number, and what is inherited.

SIZE = HypernetSpec(
    hidden=16, layers=1, heads=2, decoder="projected", rank=4, widest=128, chunk=512, form="centred"
)


def build_teacher(spec: ViTSpec = TEACHER, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator) * 0.1
        for name, shape in get_shapes(spec).items()
        if not name.startswith("head.")
    }


def build_hypernet(spec: HypernetSpec, **parts: Any) -> Hypernet:
    hypernet = Hypernet(spec, seed=1)
    hypernet.inheritance = Inheritance(spec, TEACHER, build_teacher(), **parts)
    return hypernet


@pytest.mark.parametrize("spec", [SIZE, SIZE.with_(form="published")])
def test_the_fusion_starts_at_eighteen_percent(spec: HypernetSpec) -> None:
    assert torch.sigmoid(Hypernet(spec, seed=3).fusion_weight).item() == pytest.approx(
        0.18, abs=0.003
    )


def test_a_matrix_is_the_mixture_of_a_new_and_a_projected_one() -> None:
    """W of fc1 from its node, step by step, with P and Q as matrices."""
    hypernet: Any = build_hypernet(SIZE.with_(form="published"))
    target = TEACHER.with_(width=24, heads=2)
    graph = build_graph(target)
    name = "blocks.1.mlp.fc1.weight"
    with torch.no_grad():
        hypernet.fusion_weight.fill_(0.4)
        node = hypernet.encode(graph)[graph.sources[name]]
        mlp, steps = hypernet.decoder.mlp.fc, hypernet.decoder
        lines = mlp(node).relu().view(8, 4)
        lines = steps.l2_step3(steps.l2_step2(steps.l2_step1(lines).relu()).relu())
        U, V = lines.reshape(2, -1, 4)
        projector = hypernet.decoderpq
        U_P, V_P = projector.l2(projector.mlp.fc(node).relu().view(8, 4)).reshape(2, -1, 4)
        P, Q = U_P[:96] @ V_P[:128].T, U_P[:32] @ V_P[:24].T
        teacher = build_teacher()[name]
        alpha = torch.sigmoid(torch.tensor(0.4))
        expected = (1 - alpha) * (U[:96] @ V[:24].T) + alpha * (P @ teacher @ Q)
        assert_close(hypernet.predict(graph)[name], expected * (2 / 24) ** 0.5)


def test_vectors_and_the_head_inherit_nothing_and_matrices_do() -> None:
    hypernet, graph = build_hypernet(SIZE), build_graph(TEACHER)
    before = hypernet.predict(graph)
    hypernet.inheritance = Inheritance(SIZE, TEACHER, build_teacher(seed=1))
    after = hypernet.predict(graph)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {
        name for name, tensor in before.items() if tensor.dim() > 1 and not name.startswith("head")
    } - {"cls_token"}


def test_blocks_beyond_the_last_inherit_from_the_last() -> None:
    hypernet, graph = build_hypernet(SIZE), build_graph(TEACHER.with_(layers=4))
    before = hypernet.predict(graph)
    teacher = build_teacher()
    teacher["blocks.1.mlp.fc2.weight"] = teacher["blocks.1.mlp.fc2.weight"] + 1
    hypernet.inheritance = Inheritance(SIZE, TEACHER, teacher)
    after = hypernet.predict(graph)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {f"blocks.{block}.mlp.fc2.weight" for block in (1, 2, 3)}


def test_positions_are_resampled_to_other_images() -> None:
    target = TEACHER.with_(image_size=48)
    predicted = build_hypernet(SIZE).predict(build_graph(target))
    assert predicted["pos_embed"].shape == (1, 145, 32)


@pytest.mark.parametrize("spec", [SIZE, SIZE.with_(form="published")])
@pytest.mark.parametrize("changes", [{}, {"width": 48, "heads": 3, "layers": 3}])
def test_prediction_without_gradients_is_the_same(
    spec: HypernetSpec, changes: dict[str, Any]
) -> None:
    hypernet, graph = build_hypernet(spec), build_graph(TEACHER.with_(**changes))
    differentiable, predicted = hypernet(graph), hypernet.predict(graph)
    for name, tensor in predicted.items():
        assert_close(differentiable[name], tensor, rtol=1e-5, atol=1e-6)


# The start at projections.


def silence(hypernet: Hypernet) -> Hypernet:
    """Set W_g, the predicted vectors and the deviations of P and Q to 0."""
    with torch.no_grad():
        for name, parameter in hypernet.named_parameters():
            if name.startswith(("decoder.l2_step3", "decoderpq.l2")):
                parameter.zero_()
    return hypernet


def draw_directions() -> Tensor:
    """Return an orthogonal matrix whose last column is the vector of ones."""
    generator = torch.Generator().manual_seed(2)
    columns = torch.randn(32, 32, generator=generator, dtype=torch.float64)
    columns[:, 0] = 1
    return torch.linalg.qr(columns)[0].roll(-1, 1).float()


@pytest.mark.parametrize("writers", ["published", "by_depth"])
@pytest.mark.parametrize("form", ["published", "centred"])
def test_at_full_size_it_starts_at_the_ancestry_model(form: Any, writers: Any) -> None:
    """The stream before the final norm is equal; positions only in the form `centred`."""
    spec = SIZE.with_(start="projections", form=form, writers=writers)
    hypernet = silence(build_hypernet(spec, directions=draw_directions()))
    predicted = hypernet.predict(build_graph(TEACHER))
    teacher = {**predicted, **build_teacher()}
    if form == "published":
        teacher["pos_embed"] = predicted["pos_embed"]
        teacher["cls_token"] = predicted["cls_token"]
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    streams = []
    for state in (predicted, teacher):
        model = build_model(TEACHER, state)
        model.norm = torch.nn.Identity()
        streams.append(model.forward_features(images).detach())
    assert_close(*streams, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("ratio", [1, 2, 3])
def test_with_fewer_hidden_neurons_it_starts_at_the_largest_ones(ratio: int) -> None:
    """Ratios 1 and 3 give the MLP's first layer the shape of an attention matrix."""
    spec = SIZE.with_(start="projections", form="centred", writers="by_depth")
    hypernet = silence(build_hypernet(spec, directions=draw_directions()))
    whole, smaller = (
        hypernet.predict(build_graph(spec))
        for spec in (TEACHER, TEACHER.with_(mlp_ratio=float(ratio)))
    )
    for layer in range(TEACHER.layers):
        prefix = f"blocks.{layer}."
        neurons = select_neurons(whole, prefix, ratio * TEACHER.width)
        for part, axis in (("fc1.weight", 0), ("fc1.bias", 0), ("fc2.weight", 1)):
            name = f"{prefix}mlp.{part}"
            whole[name] = whole[name].index_select(axis, torch.tensor(neurons))
    for name, tensor in smaller.items():
        assert_close(tensor, whole[name], rtol=1e-4, atol=1e-5)


def test_it_starts_at_a_model_with_a_layer_scale_and_no_position_of_the_class_token() -> None:
    spec = TEACHER.with_(layer_scale=0.1, no_embed_class=True, classes=0)
    check_projections(spec, widest=128)
    size = SIZE.with_(start="projections")
    state = build_teacher(spec)
    hypernet = silence(Hypernet(size, seed=1))
    inherited = normalise_tensors(state, spec, TEACHER, "projections")
    hypernet.inheritance = Inheritance(size, TEACHER, inherited, draw_directions())
    other = build_model(TEACHER, hypernet.predict(build_graph(TEACHER)))
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    streams = []
    for model in (build_model(spec, state), other):
        model.norm = torch.nn.Identity()
        streams.append(model.forward_features(images).detach())
    assert_close(*streams, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "obstacle"),
    [
        ({"qk_norm": True}, "norms of queries and keys"),
        ({"registers": 4}, "register tokens"),
        ({"activation": "quick_gelu"}, "another activation than GELU"),
        ({"norm_eps": 1e-5}, "an epsilon of 1e-06"),
        ({"pool": "avg", "class_token": False}, "another pooling than the class token"),
    ],
)
def test_the_start_at_projections_refuses_other_than_plain_vits(
    change: dict[str, Any], obstacle: str
) -> None:
    specs = [tal_toy.build_ancestry().spec.with_(**change)]
    with pytest.raises(WrongCall, match=f"has .*{obstacle}.* or the start noise"):
        build_extractor(start="projections", hypernet_widest=128).outline(specs)
    assert build_extractor().outline(specs)


@pytest.mark.parametrize("widest", [None, 512])
def test_the_preset_starts_at_an_ancestry_model_wider_than_the_bundled_one(
    widest: int | None,
) -> None:
    """No matrix is cropped and tiled: its tensors are the ancestry model's, norms merged."""
    spec = TEACHER.with_(width=192, heads=6, layers=1)
    extractor: Any = PITH.adapt_preset("mini", [spec])
    assert extractor.outline([spec]).spec.width == 192
    assert (extractor.hypernet.widest, extractor.hypernet.chunk) == (768, 2048)
    stage, _ = extractor.build_stages(spec)
    small = stage.hypernet.with_(hidden=8, layers=1, heads=2, rank=4, form="published")
    small = small.with_(widest=widest or small.widest, writers="published")
    hypernet = silence(Hypernet(small, seed=1))
    teacher = build_teacher(spec)
    hypernet.inheritance = Inheritance(small, spec, teacher, torch.eye(192))
    predicted = hypernet.predict(build_graph(spec))
    block = merge_norms(teacher, "blocks.0.")
    is_equal = [torch.allclose(predicted[name], block[name], atol=1e-5) for name in block]
    assert all(is_equal) == (widest is None)


def test_the_start_at_projections_refuses_a_decoder_that_would_tile_them() -> None:
    spec = tal_toy.build_ancestry().spec
    with pytest.raises(WrongCall, match=r"has 128 rows.*64; increase hypernet_widest"):
        build_extractor(start="projections").outline([spec])
    assert build_extractor(start="projections", hypernet_widest=128).outline([spec])
    assert build_extractor().outline([spec])


def test_narrower_layernorm_is_exact_within_the_directions() -> None:
    directions = draw_directions()
    P = build_projection(directions, 16)
    tokens = torch.randn(7, 15) @ directions[:, :15].T + 0.3
    normed = torch.nn.functional.layer_norm(tokens, (32,), eps=0)
    narrow = torch.nn.functional.layer_norm(tokens @ P.T, (16,), eps=0)
    assert_close(normed @ P.T, 2**0.5 * narrow, rtol=1e-4, atol=1e-4)


def test_the_start_refuses_wider_models() -> None:
    spec = SIZE.with_(start="projections")
    hypernet = build_hypernet(spec, directions=draw_directions())
    with pytest.raises(WrongCall, match="at most as wide"):
        hypernet.predict(build_graph(TEACHER.with_(width=48, heads=3)))


# The method.


def build_extractor(**changes: Any) -> Any:
    small = PithExtractor(
        curriculum=Curriculum(
            source="tiny-source", task_layer=True, attributes=False, embedding_images=16
        ),
        step=MetaStep(architectures="tal+", judged=0),
        hypernet=tal_toy.SIZE,
        training=tal_toy.RECIPE,
        tuning=tal_toy.RECIPE,
    )
    return tal_toy.change_settings(small, changes)


def extract_learngene(run: Run | None = None, **changes: Any) -> Learngene:
    model = tal_toy.build_ancestry()
    learngene = build_extractor(**changes)([model], tal_toy.build_tasks(), run or Run(seed=3))
    return learngene.with_config(method="pith", ancestries=(model.record,))


@pytest.fixture(scope="module")
def learngene() -> Learngene:
    return extract_learngene()


@pytest.mark.slow
def test_the_learngene_stores_the_ancestry_models_matrices_or_only_its_name(
    learngene: Learngene,
) -> None:
    stored = {name for name in learngene.state if name.startswith("ancestry.")}
    layers = tal_toy.build_ancestry().spec.layers
    assert len(stored) == 2 + 4 * layers
    named = extract_learngene(store=False)
    assert learngene.state.keys() - named.state.keys() == stored
    name = "decoder.decoderpq.l2.weight"
    assert torch.equal(learngene.state[name], named.state[name])


@pytest.mark.slow
@pytest.mark.parametrize("start", ["noise", "projections"])
def test_an_interrupted_extraction_ends_with_the_same_learngene(start: str, tmp_path: Path) -> None:
    settings = {"start": start, "hypernet_widest": 128}
    complete = extract_learngene(**settings)
    folder, calls = tmp_path / "run", []
    real = MetaTraining.collect_result

    def stop_second(training: MetaTraining) -> Any:
        calls.append(training)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(training)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MetaTraining, "collect_result", stop_second)
        with pytest.raises(KeyboardInterrupt):
            extract_learngene(Run(seed=3, folder=folder), **settings)
    resumed = extract_learngene(Run(seed=3, folder=folder, resume=True), **settings)
    assert complete.state.keys() == resumed.state.keys()
    assert all(torch.equal(complete.state[name], resumed.state[name]) for name in complete.state)


@pytest.mark.slow
def test_both_stages_train_the_fusion_and_the_projections(learngene: Learngene) -> None:
    still = replace(tal_toy.RECIPE, epochs=0)
    one = extract_learngene(tuning=still)
    none = extract_learngene(tuning=still, training=still)
    for name in ("decoder.fusion_weight", "decoder.decoderpq.l2.weight"):
        values = [other.state[name] for other in (none, one, learngene)]
        assert not torch.equal(values[0], values[1])
        assert not torch.equal(values[1], values[2])


def test_an_ancestry_model_whose_largest_matrix_is_beyond_the_factors_is_refused() -> None:
    with pytest.raises(WrongCall, match="increase hypernet_chunk"):
        build_extractor(hypernet_chunk=100).outline([tal_toy.build_ancestry().spec])
