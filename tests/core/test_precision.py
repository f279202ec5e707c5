"""Attention in single precision within a training in bfloat16 on a processor."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from learngene_zoo.errors import WrongCall
from learngene_zoo.runs import progress
from learngene_zoo.runs.run import Precision, Run, check_precision
from learngene_zoo.training import precision as module
from learngene_zoo.training.precision import SinglePrecisionAttention, choose_attention


@pytest.mark.parametrize(("is_causal", "has_mask"), [(False, False), (True, False), (False, True)])
def test_attention_is_computed_in_float32_and_returned_in_bfloat16(
    is_causal: bool, has_mask: bool
) -> None:
    q, k, v = (torch.randn(2, 3, 5, 8, requires_grad=True) for _ in range(3))
    mask = torch.randn(2, 1, 5, 5) if has_mask else None
    lower = [tensor.bfloat16() for tensor in (q, k, v)]
    with torch.autocast("cpu", torch.bfloat16), SinglePrecisionAttention():
        found = scaled_dot_product_attention(*lower, attn_mask=mask, is_causal=is_causal)
        product = q @ k.mT
    wanted = scaled_dot_product_attention(
        *(tensor.float() for tensor in lower), attn_mask=mask, is_causal=is_causal
    )
    assert (found.dtype, product.dtype) == (torch.bfloat16, torch.bfloat16)
    assert torch.equal(found, wanted.bfloat16())
    found.float().sum().backward()
    assert all(tensor.grad is not None and tensor.grad.isfinite().all() for tensor in (q, k, v))


@pytest.mark.parametrize(
    ("precision", "device", "capabilities", "compiled", "is_single"),
    [
        ("bf16", "cpu", {"architecture": "x86_64", "amx_bf16": False}, False, True),
        ("bf16", "cpu", {"architecture": "x86_64", "amx_bf16": True}, False, True),
        ("bf16", "cpu", {"architecture": "aarch64"}, False, False),
        ("bf16", "cpu", {}, False, False),
        ("bf16", "cpu", {"architecture": "x86_64", "amx_bf16": False}, True, False),
        ("bf16", "cuda", {"architecture": "x86_64", "amx_bf16": False}, False, False),
        ("fp32", "cpu", {"architecture": "x86_64", "amx_bf16": False}, False, False),
    ],
)
def test_it_is_used_where_it_is_faster(
    precision: Precision,
    device: str,
    capabilities: dict[str, object],
    compiled: bool,
    is_single: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module.torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    found = choose_attention(Run(precision=precision), torch.device(device), compiled)
    assert isinstance(found, SinglePrecisionAttention) == is_single
    assert is_single or isinstance(found, nullcontext)


@pytest.mark.parametrize(
    ("capabilities", "is_noted"),
    [
        ({"avx2": True, "avx512_bf16": False}, True),
        ({"avx512_bf16": True}, False),
        ({}, False),  # unknown
    ],
)
def test_emulation_of_bf16_is_noted_once(
    capabilities: dict[str, object],
    is_noted: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    monkeypatch.setattr(progress, "_printer", progress._Printer())
    with progress.print_activities(is_command=True):
        for _ in range(2):
            module.note_emulation(Run(precision="bf16", device="cpu"))
    assert capsys.readouterr().err.count("emulates it") == is_noted


def test_fp16_is_refused_with_what_the_processor_has(monkeypatch: pytest.MonkeyPatch) -> None:
    for capabilities, precisions in (({"amx_bf16": True}, "fp32 or bf16"), ({}, "fp32")):
        monkeypatch.setattr(
            torch.cpu, "get_capabilities", lambda known=capabilities: known, raising=False
        )
        with pytest.raises(WrongCall, match=f"use the precision {precisions} on the cpu"):
            check_precision(Run(precision="fp16", device="cpu"))


def test_it_can_be_entered_again() -> None:
    attention, q = SinglePrecisionAttention(), torch.ones(1, 1, 2, 2)
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16), attention:
            assert scaled_dot_product_attention(q, q, q).dtype == torch.bfloat16
    assert scaled_dot_product_attention(q, q, q).dtype == torch.float32
