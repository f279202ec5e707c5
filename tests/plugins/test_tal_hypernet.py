"""`Hypernet`: the released code's predictions, losses and gradients; and its own laws."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tal_toy import VARIANTS
from tal_vectors import MODES, NAMES, TARGET, Vectors, load_vectors
from torch import Tensor
from torch.testing import assert_close

from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families.tensors import build_empty, build_model, get_shapes
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.runs.run import Run
from lgzoo_tal.hypernet_spec import HypernetSpec
from lgzoo_tal.modules.graph import SINK, build_graph
from lgzoo_tal.modules.hypernet import (
    Hypernet,
    build_frozen_hypernet,
    compute_class_position,
    predict_tensors,
)

CONV = HypernetSpec(hidden=16, layers=2, heads=2, decoder="conv", widest=16, classes=7)
LOW = HypernetSpec(hidden=16, layers=2, heads=2, decoder="low_rank", rank=4, widest=64, chunk=1024)
BOTH = pytest.mark.parametrize("spec", [CONV, LOW])
NEVER_READ = float(
    "nan"
)  # what the rows hold that the target does not use: whoever reads one predicts it


def build_target(**changes: Any) -> ViTSpec:
    return TARGET.with_(**{"layers": 1, "width": 24, "heads": 2, "image_size": 16, **changes})


def select_stored(name: str, tensor: Tensor, stored: Tensor, step: int) -> Tensor:
    numbers = (tensor[:, 1:] if name == "pos_embed" else tensor).flatten()
    return numbers if numbers.numel() == stored.numel() else numbers[::step]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NAMES)
def test_predictions_are_the_released_codes(name: str, mode: str) -> None:
    vectors = load_vectors(name)
    hypernet = build_frozen_hypernet(vectors.spec, vectors.state(NEVER_READ))
    graph, task = build_graph(TARGET, msa=mode == "msa"), vectors.tensors.get("task")
    expected = vectors.within(f"{mode}/made/")
    for predicted in (hypernet(graph, task=task), hypernet.predict(graph, task=task)):
        assert {key: tuple(tensor.shape) for key, tensor in predicted.items()} == get_shapes(TARGET)
        assert expected.keys() == predicted.keys() - {"cls_token"}
        for key, numbers in expected.items():
            assert_close(
                select_stored(key, predicted[key], numbers, vectors.step),
                numbers,
                rtol=1e-5,
                atol=1e-5,
            )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NAMES)
def test_losses_and_gradients_are_the_released_codes(name: str, mode: str) -> None:
    vectors = load_vectors(name)
    hypernet = (
        build_frozen_hypernet(vectors.spec, vectors.state(NEVER_READ)).requires_grad_().train()
    )
    recorded, logits, cross_entropy, regulariser = _compute_losses(hypernet, vectors, mode)
    assert_close(logits, vectors.tensors[f"{mode}/logits"], rtol=1e-5, atol=1e-5)
    assert cross_entropy.item() == pytest.approx(recorded["ce_label_smoothing_0_1"], rel=1e-5)
    assert regulariser.item() == pytest.approx(recorded["predparam_wd_3e_5"], rel=1e-5)
    (cross_entropy + regulariser).backward()
    norms = {key: parameter.grad.norm().item() for key, parameter in hypernet.named_parameters()}
    assert norms == pytest.approx(recorded["gradient_norms"], rel=1e-4, abs=1e-7)


def _compute_losses(
    hypernet: Hypernet, known: Vectors, mode: str
) -> tuple[dict[str, Any], Tensor, Tensor, Tensor]:
    parameters = hypernet(build_graph(TARGET, msa=mode == "msa"), task=known.tensors.get("task"))
    row = known.tensors[f"{mode}/row"][None, None]
    parameters["pos_embed"] = torch.cat((row, parameters["pos_embed"][:, 1:]), dim=1)
    images, targets = load_vectors("ghn3").tensors["images"], known.tensors[f"{mode}/targets"]
    logits = torch.func.functional_call(
        build_empty(TARGET).to_empty(device="cpu"), parameters, (images,)
    )
    cross_entropy = torch.nn.functional.cross_entropy(logits, targets, label_smoothing=0.1)
    regulariser = 3e-5 * sum(parameters[key].norm() for key in parameters if key != "cls_token")
    return known.numbers[mode], logits, cross_entropy, regulariser  # type: ignore[return-value]


@BOTH
@pytest.mark.parametrize(
    "changes", [{}, {"width": 80, "layers": 2}, {"classes": 3}, {"classes": 30}, {"channels": 1}]
)
def test_prediction_without_gradients_is_the_same(
    spec: HypernetSpec, changes: dict[str, Any]
) -> None:
    hypernet, graph = Hypernet(spec, seed=5), build_graph(build_target(**changes))
    differentiable, predicted = hypernet(graph), hypernet.predict(graph)
    assert list(differentiable) == list(predicted) == list(get_shapes(graph.spec))
    for name, tensor in predicted.items():
        assert not tensor.requires_grad
        assert_close(differentiable[name], tensor, rtol=1e-5, atol=1e-6)
        assert tensor.untyped_storage().nbytes() == 4 * tensor.numel()


@BOTH
def test_heads_and_seed(spec: HypernetSpec) -> None:
    hypernet = Hypernet(spec, seed=1)
    two, four = (hypernet.predict(build_graph(build_target(heads=heads))) for heads in (2, 4))
    assert all(torch.equal(two[name], four[name]) for name in two)
    again, other = (Hypernet(spec, seed).predict(build_graph(build_target())) for seed in (1, 2))
    assert all(torch.equal(two[name], again[name]) for name in two)
    assert not torch.equal(two["head.weight"], other["head.weight"])


@BOTH
def test_the_head_repeats_or_crops_what_ghn3_makes(spec: HypernetSpec) -> None:
    hypernet = Hypernet(spec.with_(classes=7), seed=1)
    few, same, many = (
        hypernet.predict(build_graph(build_target(classes=n)))["head.weight"] for n in (3, 7, 17)
    )
    assert few.shape[0] == 3
    assert many.shape[0] == 17
    if (
        spec.decoder == "conv"
    ):  # its shape encoder sees the number of classes, so heads differ in more than their rows
        assert_close(many[7:14], many[:7])
        assert_close(many[14:], many[:3])
    else:
        assert not torch.allclose(many[7:14], many[:7])
    assert same.shape == (7, 24)


@BOTH
def test_the_head_can_be_left_out(spec: HypernetSpec) -> None:
    hypernet, graph = Hypernet(spec, seed=1), build_graph(build_target())
    complete = hypernet.predict(graph)
    for without in (hypernet(graph, head=False), hypernet.predict(graph, head=False)):
        assert complete.keys() - without.keys() == {"head.weight", "head.bias"}
        assert_close(without["blocks.0.mlp.fc1.weight"], complete["blocks.0.mlp.fc1.weight"])


@BOTH
def test_the_sink_is_predicted_beside_the_model(spec: HypernetSpec) -> None:
    hypernet, graph = Hypernet(spec, seed=1), build_graph(build_target(), sink=(40, 24))
    tensors = hypernet(graph)
    assert list(tensors)[-2:] == list(SINK)
    assert [tuple(tensors[name].shape) for name in SINK] == [(40, 24), (40,)]
    (tensors[SINK[0]].sum() + tensors[SINK[1]].sum()).backward()
    assert hypernet.embed.weight.grad.abs().sum() > 0
    assert_close(hypernet.predict(graph)[SINK[0]], tensors[SINK[0]])


@BOTH
def test_a_predicted_model_runs(spec: HypernetSpec) -> None:
    state = predict_tensors(Hypernet(spec, seed=1), build_target(), None, Run())
    logits = build_model(build_target(), state)(torch.rand(2, 3, 16, 16))
    assert logits.shape == (2, 10)
    assert bool(logits.isfinite().all())


def test_the_class_tokens_position_is_a_function_of_the_width() -> None:
    wide = compute_class_position(768)
    assert torch.equal(wide[:48], compute_class_position(48))
    assert wide.std().item() == pytest.approx(0.02, rel=0.1)
    assert wide.mean().item() == pytest.approx(0, abs=0.002)
    graph, hypernet = build_graph(build_target()), Hypernet(LOW, seed=0)
    fixed = hypernet.predict(graph)
    assert torch.equal(fixed["pos_embed"][0, 0], wide[:24])
    assert not fixed["cls_token"].any()


def test_first_numbers_follow_the_released_rules() -> None:
    spec = VARIANTS["ghn3-t"].with_(classes=10)
    state = Hypernet(spec, seed=3).state_dict()
    for name, fan_in, share in (
        ("gnn.1.attn.to_qkv.weight", 64, 1),
        ("decoder.fc.0.bias", 64, 1),
        ("decoder.conv.2.weight", 512, 5),
        ("decoder_1d.fc.2.weight", 128, 5),
        ("decoder.class_layer_predictor.1.weight", 64, 5),
        ("bias_class.1.weight", 64, 1),
    ):
        bound = fan_in**-0.5 / share
        assert state[name].abs().max().item() == pytest.approx(bound, rel=0.02)
        assert state[name].std().item() == pytest.approx(bound / 3**0.5, rel=0.1)
    for name in (
        "decoder.conv.2.bias",
        "decoder_1d.fc.2.bias",
        "decoder.class_layer_predictor.1.bias",
    ):
        assert not state[name].any()
    assert state["gnn.0.input_dist_embed.weight"].std().item() == pytest.approx(64**-0.5, rel=0.05)
    assert state["shape_enc.embed_channel.weight"].std().item() == pytest.approx(16**-0.5, rel=0.05)
    assert bool((state["ln.weight"] == 1).all())
    low = Hypernet(LOW, seed=3).state_dict()
    assert low["decoder.l2.weight"].abs().max().item() == pytest.approx(
        4**-0.5, rel=0.02
    )  # never damped
    assert torch.equal(
        low["embed.weight"],
        Hypernet(LOW.with_(layers=3, task=8), seed=3).state_dict()["embed.weight"],
    )


def test_other_tensors_than_the_variants_are_refused() -> None:
    state = dict(Hypernet(LOW, seed=0).state_dict())
    with pytest.raises(BadFile, match=r"embed.weight to have shape \(15, 32\), got \(15, 16\)"):
        build_frozen_hypernet(LOW.with_(hidden=32), state)
    with pytest.raises(BadFile, match=r"gnn.2.*is missing"):
        build_frozen_hypernet(LOW.with_(layers=3), state)
    with pytest.raises(BadFile, match=r"got a tensor 'gnn\.1.*, which"):
        build_frozen_hypernet(LOW.with_(layers=1), state)


def test_loaded_tensors_are_shared_and_frozen() -> None:
    state = dict(Hypernet(LOW, seed=0).state_dict())
    frozen = build_frozen_hypernet(LOW, state)
    assert frozen.embed.weight.data_ptr() == state["embed.weight"].data_ptr()
    assert not any(parameter.requires_grad for parameter in frozen.parameters())


def test_decoders_compute_in_full_precision_under_autocast() -> None:
    hypernet, graph = Hypernet(LOW, seed=0), build_graph(build_target())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        tensors = hypernet(graph)
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}
    assert_close(tensors["head.weight"], hypernet(graph)["head.weight"], rtol=0.1, atol=0.1)


def test_a_target_beyond_the_decoder_is_refused() -> None:
    with pytest.raises(WrongCall, match="choose a narrower model or another patch size"):
        Hypernet(LOW.with_(chunk=64), seed=0).predict(build_graph(build_target(width=48)))
