"""Models in other runtimes: one `.onnx` or `.pt2` file that needs neither this package nor timm.

The file takes `pixel_values` of shape (batch, channels, size, size), normalised fp32 images, and
returns `logits`: (batch, classes), or (batch, classes, size, size) of a dense model. A text
model takes `input_ids`, `attention_mask` and, if it tells the texts of a pair apart,
`token_type_ids`, int64 (batch, tokens), and returns `logits`, or without classes its features,
`sentence_embedding` (batch, width), as sentence-transformers computes them. The batch and the
tokens are dynamic. Labels, preprocessing (with the tokenizer) and origin are in its metadata.
Before the file is moved to its path it is opened again and compared with the module.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from learngene_zoo.atomic import new_file
from learngene_zoo.errors import BadFile, Unavailable
from learngene_zoo.families.picture_format import InputFormat
from learngene_zoo.families.tensors import make_example_inputs
from learngene_zoo.families.text_format import TextFormat, Tokens
from learngene_zoo.lifecycle.runtime_checks import (
    BATCHES,
    Runner,
    compute_outputs,
    draw_inputs,
    measure_difference,
    measure_features,
    measure_file,
    measure_latencies,
)
from learngene_zoo.pretrained.exported import (
    Dtype,
    Format,
    check_format,
    name_output,
    start_session,
    to_arrays,
)
from learngene_zoo.pretrained.exported_inputs import (
    TOKENIZER,
    list_input_names,
    split_inputs,
)
from learngene_zoo.runs.progress import report_activity
from learngene_zoo.runs.run import open_device
from learngene_zoo.settings import Json, to_json
from learngene_zoo.tasks.texts.encoding import Encoder, build_tokenizer
from learngene_zoo.training.evaluate import check_head

if TYPE_CHECKING:
    from learngene_zoo.artifacts.descendant import Descendant
    from learngene_zoo.pretrained.timm_model import TimmModel
    from learngene_zoo.runs.run import Run
    from learngene_zoo.tasks.task import Task

BATCH, LENGTH = "batch", "tokens"  # names of the dynamic axes
OPSET = 20


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
    images: int | None = None  # on which both were measured
    is_text: bool = False  # whether `images` counts texts
    latency: float | None = None  # seconds of one image, or text of the largest length; median
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
        dtype: "fp16" halves the file; images and its output stay fp32. "int8" (ONNX only) stores
            the matrices of linear layers as signed bytes, one scale per output channel, and
            quantises their inputs at run time; embeddings of words have one scale.
        task: its validation split measures an int8 file before it is written. Of a model without
            classes its training inputs do, whose labels are not read, by the mean cosine of the
            features with those of the model.
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
    if task is not None and descendant.classes:
        check_head(descendant, task)
    open_device(run)
    model = descendant.model()
    inputs = draw_inputs(model, descendant.input_format, max(BATCHES))
    facts: dict[str, Any] = {"format": format, "dtype": dtype}
    with new_file(path, force) as draft:
        with report_activity(f"writing {path.name}"):
            write_file(descendant, draft, dtype)
        with report_activity(f"comparing {path.name} with the model"):
            runner = open_runner(draft, run.threads)
            facts["difference"] = measure_difference(model, runner, inputs, dtype)
        if dtype == "int8":
            assert task is not None, "int8 is measured on a task"
            measure = measure_file if descendant.classes else measure_features
            facts |= measure(descendant, model, runner, task, max_drop, run)
            facts["is_text"] = task.is_text
        if timed:
            facts["model_latency"], facts["latency"] = measure_latencies(
                model, runner, make_example_inputs(descendant.input_format, 1)
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
            "pip install 'learngene-zoo[onnx]'; a .pt2 file needs nothing else"
        ) from error


def open_runner(path: Path, threads: int | None = None) -> Runner:
    """Return the function of an exported file, in its runtime on the CPU."""
    if path.suffix == ".pt2":
        return _open_program(path)
    session = start_session(path, threads)
    names = [value.name for value in session.get_inputs()]

    def run(inputs: torch.Tensor | Tokens) -> torch.Tensor:
        return torch.from_numpy(session.run(None, to_arrays(inputs, names))[0])

    return run


def _open_program(path: Path) -> Runner:
    program = torch.export.load(path)
    module, names = program.module(), program.graph_signature.user_inputs

    def run(inputs: torch.Tensor | Tokens) -> torch.Tensor:
        logits: torch.Tensor = module(*split_inputs(inputs, names).values())
        return logits

    return run


def collect_metadata(descendant: Descendant | TimmModel, dtype: Dtype) -> dict[str, str]:
    """Return the metadata of an exported file: text by name, JSON if it is more than a word.

    `preprocessing` is complete: no reader's defaults are needed to present images or texts to it.
    """
    facts: dict[str, Json] = {
        "labels": list(descendant.class_names),
        **describe_inputs(descendant.input_format, descendant.provenance.get("pairs")),
        "task": descendant.task or "",
        "dtype": dtype,
        "model": str(descendant.identity),
        "license": descendant.licence,
        "method": descendant.provenance.get("method", ""),
        "learngene_zoo": to_json(descendant.provenance.get("versions", {})),
    }
    return {
        name: fact if isinstance(fact, str) else json.dumps(fact) for name, fact in facts.items()
    }


def describe_inputs(form: InputFormat | TextFormat, pairs: Json = None) -> dict[str, Json]:
    """Return the metadata from which inputs are made, complete without defaults of a reader.

    Args:
        form: the input format of the model.
        pairs: whether a text model was trained on pairs; None: unknown.
    """
    if isinstance(form, TextFormat):
        try:
            separator = Encoder.of(form).separator
        except BadFile:  # the tokenizer cannot separate the texts of a pair
            separator, pairs = None, False
        facts: dict[str, Json] = {
            "tokens": form.tokens,
            "pad_token_id": form.pad,
            "pairs": pairs,
            "pair_separator_id": separator,
        }
        return {"preprocessing": facts, TOKENIZER: build_tokenizer(form).to_str()}
    return {
        "preprocessing": {
            "input_size": [form.channels, form.image_size, form.image_size],
            "interpolation": form.view.interpolation,
            "crop_pct": form.view.crop_pct,
            "crop_mode": form.view.crop_mode,
            "mean": list(form.mean),
            "std": list(form.std),
        }
    }


class _ImageModule(nn.Module):
    """The model with fixed names of input and output, both in fp32."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.model, self.dtype = model.to(dtype), dtype

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        return compute_outputs(self.model, pixel_values.to(self.dtype)).float()


class _TextModule(nn.Module):
    """The text model with fixed names of its inputs; its output is in fp32."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.model = model.to(dtype)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        texts = Tokens(input_ids, attention_mask, token_type_ids)
        return compute_outputs(self.model, texts).float()


def write_file(descendant: Descendant | TimmModel, path: Path, dtype: Dtype) -> None:
    """Write the file, unchecked, over any file at `path`.

    Raises `Unavailable` for a model that torch cannot export.
    """
    with _silence_exporters():
        format = check_format(path, dtype)
        numbers = torch.float16 if dtype == "fp16" else torch.float32
        program = _trace(descendant, numbers, is_plain=format == "onnx")
        if format == "pt2":
            # Into memory first: torch's writer ends the process if the disk is full.
            archive = io.BytesIO()
            torch.export.save(
                program,
                archive,
                extra_files={"metadata.json": json.dumps(collect_metadata(descendant, dtype))},
            )
            path.write_bytes(archive.getbuffer())
        else:
            _write_onnx(program, descendant, path, dtype)


def _trace(
    descendant: Descendant | TimmModel, numbers: torch.dtype, is_plain: bool
) -> torch.export.ExportedProgram:
    """Return the model as a program for batches of any size, without paths of this machine.

    Args:
        descendant: the model.
        numbers: the type of its weights.
        is_plain: write the attention of transformers' modules as matrix products and a softmax.
            torch's own function becomes a graph of ONNX with checks for rows without any token,
            which take a tenth of the time of a long text.
    """
    model: Any = descendant.model()
    form = descendant.input_format
    if isinstance(form, TextFormat) and is_plain:
        model.set_attn_implementation("eager")
    served = _TextModule if isinstance(form, TextFormat) else _ImageModule
    inputs = split_inputs(draw_inputs(model, form, 2), list_input_names(model, form))
    axes: dict[int, Any] = {0: torch.export.Dim(BATCH, min=1)}
    if isinstance(form, TextFormat):
        axes[1] = torch.export.Dim(LENGTH, min=1, max=form.tokens)
    try:
        program = torch.export.export(
            served(model, numbers).eval(),
            tuple(inputs.values()),
            dynamic_shapes=dict.fromkeys(inputs, axes),
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
    dtype: Dtype,
) -> None:
    import onnx

    names = program.graph_signature.user_inputs
    is_text = isinstance(descendant.input_format, TextFormat)
    axes = {0: BATCH, 1: LENGTH} if is_text else {0: BATCH}
    torch.onnx.export(
        program,
        (),
        draft,
        input_names=names,
        output_names=[name_output(descendant.classes > 0, is_text)],
        dynamic_shapes=dict.fromkeys(names, axes),
        opset_version=OPSET,
        external_data=False,
        verbose=False,
    )
    graph = onnx.load(draft)
    _remove_notes_of_exporter(graph)
    if dtype == "int8":
        graph = _quantise(graph, draft, is_text)
    del graph.metadata_props[:]  # the notes of the quantiser
    for name, text in collect_metadata(descendant, dtype).items():
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


def _quantise(graph: Any, draft: Path, is_text: bool) -> Any:
    """Return the graph with the matrices of its linear layers, and its embeddings, in int8.

    Their inputs are quantised at run time.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    # Quantising renames tensors and refuses a graph with shapes recorded under the old names.
    del graph.graph.value_info[:]
    onnx.save(graph, draft)
    # Embeddings of words too: in a small text model they are most of the file.
    # Signed: unsigned weights are slower by a third to a half. Of 7 bits: sums of two products of 8
    # bits saturate on x86 processors without VNNI, so that one file would answer differently there.
    quantize_dynamic(
        draft,
        draft,
        op_types_to_quantize=["MatMul", "Gemm", *(["Gather"] if is_text else [])],
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
