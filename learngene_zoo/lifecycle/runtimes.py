"""Models in other runtimes: one `.onnx` or `.pt2` file that needs neither this package nor timm.

The file takes `pixel_values` of shape (batch, channels, size, size), normalised fp32 images, and
returns `logits`: (batch, classes), or (batch, classes, size, size) of a dense model. The batch is
dynamic. Labels, preprocessing and origin are in its metadata. Before the file is moved to its path
it is opened again and compared with the module.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from learngene_zoo.atomic import new_file
from learngene_zoo.errors import Refused, TrainingFailed, Unavailable
from learngene_zoo.pretrained.exported import (
    LOGITS,
    PIXELS,
    Dtype,
    Format,
    check_format,
    start_session,
)
from learngene_zoo.runs.progress import report_activity
from learngene_zoo.runs.run import open_device
from learngene_zoo.settings import Json, to_json
from learngene_zoo.training.evaluate import check_head, evaluate_each

if TYPE_CHECKING:
    from learngene_zoo.artifacts.descendant import Descendant
    from learngene_zoo.pretrained.timm_model import TimmModel
    from learngene_zoo.runs.run import Run
    from learngene_zoo.tasks.task import Task

Runner = Callable[[torch.Tensor], torch.Tensor]  # images_BCHW -> logits, both fp32 on the CPU

BATCH = "batch"
BATCHES = (1, 2, 5)  # sizes that are compared with the module
# The largest accepted difference, relative to the largest logit: many times the measured
# differences.
TOLERANCES: Mapping[Dtype, float] = {"fp32": 1e-4, "fp16": 2e-2}
OPSET = 20
WARM_UP, REPEATS = 5, 30


@dataclass(frozen=True, kw_only=True)
class Exported:
    """An exported file and its largest difference from the PyTorch module."""

    path: Path
    format: Format
    dtype: Dtype
    bytes: int
    difference: float  # the largest of a logit, over BATCHES
    task: str | None = None  # of an int8 file: on the validation split
    metric: str | None = None
    value: float | None = None  # of the file
    model_value: float | None = None
    latency: float | None = None  # seconds of one image, median
    model_latency: float | None = None


def export_descendant(
    descendant: Descendant | TimmModel,
    path: Path,
    *,
    dtype: Dtype = "fp32",
    task: Task | None = None,
    max_drop: float = 0.01,
    timed: bool = False,
    run: Run,
    force: bool = False,
) -> Exported:
    """Write `descendant` as one file, ONNX or `torch.export`'s, and check it.

    Nothing is written if a check fails.

    Args:
        descendant: the model.
        path: the file; its suffix chooses the format.
        dtype: "fp16" halves the file; its input and output stay fp32. "int8" (ONNX only) stores the
            matrices of linear layers as signed bytes, one scale per output channel, and quantises
            their inputs at run time.
        task: its validation split measures an int8 file before it is written.
        max_drop: the largest accepted fall of the metric of an int8 file.
        timed: also measure latencies.
        run: how to compute.
        force: replace existing content of `path`.

    Raises:
        Refused: if the metric of an int8 file falls by more than `max_drop`.
        TrainingFailed: if the outputs of the file differ from those of the module.
        Unavailable: if packages are missing.
    """
    format = check_format(path, dtype)
    check_packages(format)
    if task is not None:
        check_head(descendant, task)
    open_device(run)
    model = descendant.model()
    images_BCHW = _sample_images(descendant, max(BATCHES))
    facts: dict[str, Any] = {"format": format, "dtype": dtype}
    with new_file(path, force) as draft:
        with report_activity(f"writing {path.name}"):
            write_file(descendant, draft, dtype)
        with report_activity(f"comparing {path.name} with the model"):
            runner = open_runner(draft, run.threads)
            facts["difference"] = _measure_difference(model, runner, images_BCHW, dtype)
        if dtype == "int8":
            assert task is not None, "int8 is measured on a task"
            facts |= _measure_file(descendant, model, runner, task, max_drop, run)
        if timed:
            facts["model_latency"], facts["latency"] = _measure_latencies(
                model, runner, images_BCHW[:1]
            )
        facts["bytes"] = draft.stat().st_size
    return Exported(path=path, **facts)


def check_packages(format: Format) -> None:
    """Raise `Unavailable` unless the packages for this format are installed."""
    try:
        if format == "onnx":
            import onnx  # noqa: F401
            import onnxruntime  # noqa: F401
            import onnxscript  # noqa: F401
    except ImportError as error:
        raise Unavailable(
            f"ONNX files need {error.name}, which is not installed: "
            "pip install 'learngene-zoo[onnx]'; a .pt2 file needs nothing else (--format pt2)"
        ) from error


def open_runner(path: Path, threads: int | None = None) -> Runner:
    """Return the function of an exported file, in its runtime on the CPU."""
    if path.suffix == ".pt2":
        program: Runner = torch.export.load(path).module()
        return program
    session = start_session(path, threads)

    def run(images_BCHW: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(session.run([LOGITS], {PIXELS: images_BCHW.numpy()})[0])

    return run


def collect_metadata(descendant: Descendant | TimmModel) -> dict[str, str]:
    """Return the metadata of an exported file: text by name, JSON if it is more than a word.

    `preprocessing` is complete: no reader's defaults are needed to present images to it.
    """
    images = descendant.input_format
    facts: dict[str, Json] = {
        "labels": list(descendant.class_names),
        "preprocessing": {
            "input_size": [images.channels, images.image_size, images.image_size],
            "interpolation": images.view.interpolation,
            "crop_pct": images.view.crop_pct,
            "crop_mode": images.view.crop_mode,
            "mean": list(images.mean),
            "std": list(images.std),
        },
        "task": descendant.task or "",
        "license": descendant.licence,
        "method": descendant.provenance.get("method", ""),
        "learngene_zoo": to_json(descendant.provenance.get("versions", {})),
    }
    return {
        name: fact if isinstance(fact, str) else json.dumps(fact) for name, fact in facts.items()
    }


class _ExportModule(nn.Module):
    """The model with fixed names of input and output, both in fp32."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.model, self.dtype = model.to(dtype), dtype

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(pixel_values.to(self.dtype))
        return logits.float()


def write_file(descendant: Descendant | TimmModel, path: Path, dtype: Dtype) -> None:
    """Write the file, unchecked, over any file at `path`.

    Raises `Unavailable` for a model that torch cannot export.
    """
    with _silence_exporters():
        program = _trace(descendant, torch.float16 if dtype == "fp16" else torch.float32)
        if check_format(path, dtype) == "pt2":
            # Into memory first: torch's writer ends the process if the disk is full.
            archive = io.BytesIO()
            torch.export.save(
                program,
                archive,
                extra_files={"metadata.json": json.dumps(collect_metadata(descendant))},
            )
            path.write_bytes(archive.getbuffer())
        else:
            _write_onnx(program, descendant, path, quantised=dtype == "int8")


def _trace(
    descendant: Descendant | TimmModel, numbers: torch.dtype
) -> torch.export.ExportedProgram:
    """Return the model as a program for batches of any size, without paths of this machine."""
    served = _ExportModule(descendant.model(), numbers).eval()
    try:
        program = torch.export.export(
            served,
            (_sample_images(descendant, 2),),
            dynamic_shapes={PIXELS: {0: torch.export.Dim(BATCH, min=1)}},
        )
    except Exception as error:  # tracing runs the model's code, which may raise anything
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise Unavailable(f"torch cannot export this model for any batch: {reason}") from error
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                node.meta.pop("stack_trace", None)
    return program


def _write_onnx(
    program: torch.export.ExportedProgram,
    descendant: Descendant | TimmModel,
    draft: Path,
    quantised: bool,
) -> None:
    import onnx

    torch.onnx.export(
        program,
        (),
        draft,
        input_names=[PIXELS],
        output_names=[LOGITS],
        dynamic_shapes={PIXELS: {0: BATCH}},
        opset_version=OPSET,
        external_data=False,
        verbose=False,
    )
    graph = onnx.load(draft)
    _remove_notes_of_exporter(graph)
    if quantised:
        graph = _quantise(graph, draft)
    for name, text in collect_metadata(descendant).items():
        entry = graph.metadata_props.add()
        entry.key, entry.value = name, text
    onnx.save(graph, draft)


def _remove_notes_of_exporter(model: Any) -> None:
    """Remove torch's notes on nodes and tensors: names of modules, and lines of source files."""
    graph = model.graph
    tensors = (*graph.input, *graph.output, *graph.value_info, *graph.initializer)
    for noted in (graph, *graph.node, *tensors):
        del noted.metadata_props[:]
        noted.doc_string = ""


def _quantise(graph: Any, draft: Path) -> Any:
    """Return the graph with the matrices of its linear layers in int8.

    Their inputs are quantised at run time.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    # Quantising renames tensors and refuses a graph with shapes recorded under the old names.
    del graph.graph.value_info[:]
    onnx.save(graph, draft)
    # Signed: unsigned weights are slower by a third to a half. Of 7 bits: sums of two products of 8
    # bits saturate on x86 processors without VNNI, so that one file would answer differently there.
    quantize_dynamic(
        draft,
        draft,
        op_types_to_quantize=["MatMul", "Gemm"],
        per_channel=True,
        weight_type=QuantType.QInt8,
        reduce_range=True,
    )
    return onnx.load(draft)


@contextlib.contextmanager
def _silence_exporters() -> Iterator[None]:
    """Silence torch's and onnxscript's exporters within this context.

    They print their steps and warn about their internals.
    """
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def _sample_images(descendant: Descendant | TimmModel, count: int) -> torch.Tensor:
    channels, size = descendant.input_format.channels, descendant.input_format.image_size
    return torch.randn(count, channels, size, size, generator=torch.Generator().manual_seed(0))


def _measure_difference(
    model: nn.Module, runner: Runner, images_BCHW: torch.Tensor, dtype: Dtype
) -> float:
    """Return the largest difference of a logit over `BATCHES`.

    Raises `TrainingFailed` if it is beyond rounding.
    """
    worst = largest = 0.0
    with torch.no_grad():
        for size in BATCHES:
            expected, logits = model(images_BCHW[:size]), runner(images_BCHW[:size])
            if logits.shape != expected.shape or not torch.isfinite(logits).all():
                raise TrainingFailed(
                    "the logits of the file are not finite or have another shape than those of "
                    f"the model ({size} images); nothing was written"
                )
            worst = max(worst, float((logits - expected).abs().max()))
            largest = max(largest, float(expected.abs().max()))
    if dtype in TOLERANCES and worst > TOLERANCES[dtype] * max(1.0, largest):
        raise TrainingFailed(
            f"the logits of the file differ from those of the model by up to {worst:.2g}; nothing "
            "was written"
        )
    return worst


def _measure_file(
    descendant: Descendant | TimmModel,
    model: nn.Module,
    runner: Runner,
    task: Task,
    max_drop: float,
    run: Run,
) -> dict[str, Any]:
    def answers(images_BCHW: torch.Tensor) -> Iterator[torch.Tensor]:
        yield model(images_BCHW)
        yield runner(images_BCHW)

    run = replace(run, device="cpu")  # on which the file runs
    judged = evaluate_each(answers, model, task, "validation", descendant.input_format, run)
    module, file = (result.evaluation for result in judged)
    if module.value - file.value > max_drop:
        raise Refused(
            f"in int8 the {file.metric} on {file.images} validation images of {task.name} falls "
            f"from {module.value:.3f} to {file.value:.3f}, by more than {max_drop:g} (--max-drop); "
            "nothing was written; try --dtype fp16"
        )
    return {
        "task": task.name,
        "metric": file.metric,
        "value": file.value,
        "model_value": module.value,
    }


def _measure_latencies(
    model: nn.Module, runner: Runner, image_1CHW: torch.Tensor
) -> tuple[float, float]:
    """Return the median seconds of the module and of the file for one image.

    They take turns, so that other load affects both alike.
    """
    functions: tuple[Runner, ...] = (model, runner)
    seconds: tuple[list[float], ...] = ([], [])
    with torch.inference_mode():
        for _ in range(WARM_UP + REPEATS):
            for function, spent in zip(functions, seconds):
                started = time.perf_counter()
                function(image_1CHW)
                spent.append(time.perf_counter() - started)
    module, file = (statistics.median(spent[WARM_UP:]) for spent in seconds)
    return module, file
