"""Closed form: the narrow stream, and the layers that read it."""

import pytest
import torch
from closed_form_toy import EVA, SPEC

from learngene_zoo.families.spec import Spec
from learngene_zoo.families.tensors import build_model, fill_missing_tensors
from learngene_zoo.testing import make_tiny_ancestry
from lgzoo_closed_form.modules.anatomy import split_block
from lgzoo_closed_form.modules.width import (
    build_basis,
    build_projection,
    fold_norms,
    narrow_block,
    narrow_parts,
)


@pytest.mark.parametrize("narrow", [2, 7, 32])
def test_the_narrow_basis_is_orthonormal_and_of_mean_zero(narrow: int) -> None:
    columns = build_basis(narrow)
    torch.testing.assert_close(columns.T @ columns, torch.eye(narrow - 1, dtype=torch.float64))
    torch.testing.assert_close(columns.sum(dim=0), torch.zeros(narrow - 1, dtype=torch.float64))


def test_layer_norm_stays_exact_in_the_narrow_stream() -> None:
    generator = torch.Generator().manual_seed(0)
    wide, narrow = 24, 9
    raw = torch.randn(wide, wide, generator=generator, dtype=torch.float64)
    columns, _ = torch.linalg.qr(
        raw - raw.mean(dim=0)
    )  # its first 23 columns are orthogonal to the ones
    P_dD = build_projection(columns, narrow)
    inside = (
        torch.randn(5, narrow - 1, generator=generator, dtype=torch.float64)
        @ columns[:, : narrow - 1].T
    )
    tokens = inside + torch.randn(5, 1, generator=generator, dtype=torch.float64)  # any mean
    norm = torch.nn.functional.layer_norm
    expected = norm(tokens, (wide,), eps=0.0) @ P_dD.T
    torch.testing.assert_close(
        (wide / narrow) ** 0.5 * norm(tokens @ P_dD.T, (narrow,), eps=0.0), expected
    )


def test_a_layer_scale_becomes_one_number() -> None:
    generator = torch.Generator().manual_seed(0)
    spec = SPEC.with_(layer_scale=0.1)
    state = make_tiny_ancestry(spec=spec).state
    block = {
        name.removeprefix("blocks.0."): state[name]
        for name in state
        if name.startswith("blocks.0.")
    }
    gamma = torch.rand(spec.width, generator=generator)
    P_dD = torch.randn(spec.head_width, spec.width, generator=generator, dtype=torch.float64)
    narrow = narrow_block({**block, "ls1.gamma": gamma}, spec, P_dD, [1], range(spec.hidden // 2))
    expected = P_dD.float() @ (gamma[:, None] * block["attn.proj.weight"])[:, spec.head_width :]
    torch.testing.assert_close(narrow["ls1.gamma"][:, None] * narrow["attn.proj.weight"], expected)
    assert narrow["ls1.gamma"].unique().numel() == 1


def test_learned_rotary_frequencies_go_with_their_blocks_and_heads() -> None:
    spec = EVA.with_(rope_type="mixed")
    state = {
        name: tensor
        for name, tensor in make_tiny_ancestry(spec=spec).state.items()
        if not name.startswith("head.")
    }
    P_dD = build_projection(
        torch.linalg.qr(torch.randn(spec.width, spec.width).double())[0], spec.head_width
    )
    neurons = list(range(spec.hidden // 2))
    parts = narrow_parts(state, spec, P_dD, [0, 3], [[1], [0]], [neurons, neurons])
    expected = torch.stack([state["rope.freqs"][:, 0, 1:], state["rope.freqs"][:, 3, :1]], dim=1)
    assert torch.equal(parts["rope.freqs"], expected)


def test_shifts_of_norms_go_to_the_biases_beside_joint_queries_keys_and_values() -> None:
    generator = torch.Generator().manual_seed(0)
    state = dict(make_tiny_ancestry(spec=EVA).state)
    shift = torch.randn(EVA.width, generator=generator)
    block = {name: tensor for name, tensor in state.items() if name.startswith("blocks.0.")}
    folded = fold_norms({**block, "blocks.0.norm1.bias": shift}, EVA)
    query, _, value = (block["blocks.0.attn.qkv.weight"] @ shift).chunk(3)
    torch.testing.assert_close(
        folded["blocks.0.attn.q_bias"] - block["blocks.0.attn.q_bias"], query
    )
    torch.testing.assert_close(
        folded["blocks.0.attn.v_bias"] - block["blocks.0.attn.v_bias"], value
    )


@pytest.mark.parametrize("spec", [SPEC, EVA, EVA.with_(swiglu=True)], ids=repr)
@torch.no_grad()
def test_what_reads_the_narrow_stream_reads_the_same(spec: Spec) -> None:
    generator = torch.Generator().manual_seed(0)
    state = dict(make_tiny_ancestry(spec=spec).state)
    for name in ("blocks.0.norm1.weight", "blocks.0.norm1.bias"):
        state[name] = torch.randn(spec.width, generator=generator)
    state = {name: tensor for name, tensor in state.items() if not name.startswith("head.")}
    raw = torch.randn(spec.width, spec.width, generator=generator, dtype=torch.float64)
    columns, small = (
        torch.linalg.qr(raw - raw.mean(dim=0))[0],
        spec.with_(layers=1, width=spec.head_width, heads=1),
    )
    P_dD, neurons = build_projection(columns, small.width), list(range(small.hidden))
    narrow_state = narrow_parts(state, spec, P_dD, [0], [[1]], [neurons])
    wide, narrow = (
        split_block(build_model(shape, fill_missing_tensors(shape, parts, seed=0)), 0)[0]
        for shape, parts in ((spec.with_(classes=0), state), (small.with_(classes=0), narrow_state))
    )
    tokens = (
        100
        * torch.randn(5, small.width - 1, generator=generator).double()
        @ columns[:, : small.width - 1].T
    )
    indices = range(spec.head_width, 2 * spec.head_width)
    for new, old in list(zip(narrow.readers, wide.readers))[
        :: 2 if spec.family == "eva" else 1
    ]:  # keys have no bias
        read = new(narrow.norm((tokens @ P_dD.T).float()))
        torch.testing.assert_close(
            read, old.select_outputs(indices)(wide.norm(tokens.float())), atol=1e-3, rtol=1e-3
        )


@pytest.mark.parametrize("group", [None, 6])
def test_all_widths_have_their_directions_from_one_basis(group: int | None) -> None:
    generator = torch.Generator().manual_seed(0)
    columns = torch.linalg.qr(torch.randn(36, 36, generator=generator, dtype=torch.float64))[0]
    narrow, wide = (build_projection(columns, width, group) for width in (12, 24))
    for P_dD in (narrow, wide):
        lost = 1 if group is None else len(P_dD) // group
        torch.testing.assert_close(
            torch.linalg.svdvals(P_dD)[:-lost], torch.ones(len(P_dD) - lost).double()
        )
        assert torch.linalg.svdvals(P_dD)[-lost:].max() < 1e-9
        torch.testing.assert_close(
            P_dD.unflatten(0, (lost, -1)).mean(dim=1), torch.zeros(lost, 36).double()
        )
    if group is None:  # the first coefficients of the wide stream are those of the narrow one
        coefficients = build_basis(24).T @ wide
        torch.testing.assert_close(build_basis(12) @ coefficients[:11], narrow)
    else:
        torch.testing.assert_close(wide[:12], narrow)
