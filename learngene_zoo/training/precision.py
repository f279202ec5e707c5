"""Trainings in bfloat16 on processors: attention in single precision, which is faster.

On a processor torch computes the attention of bfloat16 tensors with products of matrices that take
longer than those of single precision, most of all in the backward pass and also with AMX
(`benchmarks/speed.py bfloat16_step` measures whole steps).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from learngene_zoo.runs.progress import print_note
from learngene_zoo.runs.run import Run, has_bf16, list_cpu_capabilities
from learngene_zoo.text import name_option


def choose_attention(
    run: Run, device: torch.device, compiled: bool = False
) -> AbstractContextManager[object]:
    """Return the context of the forward pass of each training step.

    Args:
        run: gives the precision.
        device: the device of the run.
        compiled: whether the pass is compiled, which chooses its own kernels.
    """
    # Elsewhere than on x86 it was not measured.
    is_x86 = list_cpu_capabilities().get("architecture") == "x86_64"
    if run.precision == "bf16" and device.type == "cpu" and is_x86 and not compiled:
        return SinglePrecisionAttention()
    return nullcontext()


def note_emulation(run: Run) -> None:
    """Print a note if the run is in bfloat16 and its processor has no instructions for that."""
    is_on_cpu = run.precision == "bf16" and run.device_name == "cpu"
    if is_on_cpu and list_cpu_capabilities() and not has_bf16(run):
        print_note(
            "this processor has no instructions for bf16 and emulates it; "
            f"{name_option('precision', 'fp32', of_run=True)} is several times as fast",
            "emulated bf16",
        )


class SinglePrecisionAttention(TorchFunctionMode):
    """Compute `scaled_dot_product_attention` in float32, also under autocast.

    The output has the type that autocast gives it.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call `func`, an attention with its tensors in float32."""
        options = kwargs or {}
        if func is not functional.scaled_dot_product_attention:
            return func(*args, **options)
        with torch.autocast("cpu", enabled=False):
            output = func(
                *map(_use_float32, args),
                **{name: _use_float32(value) for name, value in options.items()},
            )
        return output.to(torch.get_autocast_dtype("cpu"))


def _use_float32(value: Any) -> Any:
    """Return a tensor of floating-point numbers in float32, and anything else as it is."""
    is_floating = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.float() if is_floating else value
