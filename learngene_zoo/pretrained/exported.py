"""`ExportedModel`: an ONNX file that `lgzoo export` wrote, as a classifier.

The metadata of the file state how images or texts are presented. It can only compute (`evaluate`,
`predict`): its weights cannot be trained and its shape cannot change. A `.pt2` file is never
opened, since `torch.export.load` unpickles; it is for other runtimes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args
from zipfile import BadZipFile, ZipFile

from learngene_zoo.errors import (
    BadFile,
    Exists,
    Refused,
    Unavailable,
    WrongCall,
    ZooError,
    check_choice,
)
from learngene_zoo.families.picture_format import InputFormat
from learngene_zoo.families.text_format import TextFormat
from learngene_zoo.pretrained.exported_inputs import (
    PIXELS,
    WORDS,
    read_input_format,
    read_preprocessing,
    refuse_metadata,
    split_inputs,
)
from learngene_zoo.pretrained.timm_model import TimmModel, open_model
from learngene_zoo.settings import Json
from learngene_zoo.storage import EXPORTED, parse_json
from learngene_zoo.text import name_option

if TYPE_CHECKING:
    from torch import nn

    from learngene_zoo.artifacts.descendant import Descendant

Format = Literal["onnx", "pt2"]
Dtype = Literal["fp32", "fp16", "int8"]
# The output: logits, or without classes the features, of texts as sentence-transformers names them.
LOGITS, FEATURES, EMBEDDING = "logits", "features", "sentence_embedding"
_EXTRA = "pip install 'learngene-zoo[onnx]'"


@dataclass(frozen=True, kw_only=True)
class ExportedModel:
    """An opened file; `session` is onnxruntime's, on the CPU."""

    session: Any
    classes: int
    dense: bool
    input_format: InputFormat | TextFormat
    class_names: tuple[str, ...] = ()
    task: str | None = None
    dtype: str | None = None  # of the stored weights; None if the file does not state it
    provenance: Mapping[str, Json] = field(default_factory=dict)
    folder: Path | None = None  # the file: where it was loaded from

    def model(self, device: str = "cpu") -> nn.Module:
        """Return a module from images (batch, channels, size, size), or `Tokens`, to logits on
        their device.
        """
        return _wrap_session(self.session, str(self.folder))


def is_exported_file(reference: object) -> bool:
    """Return whether a reference has the name of an exported file and is not a folder."""
    path = Path(str(reference))
    return path.suffix.lower() in EXPORTED and not path.is_dir()


def name_output(has_classes: bool, is_text: bool) -> str:
    """Return the name of the output of an exported model."""
    if has_classes:
        return LOGITS
    return EMBEDDING if is_text else FEATURES


def check_own_export(path: Path, dtype: Dtype, model: str | None = None) -> None:
    """Check that `lgzoo export` wrote a file, in a dtype and from a model. Nothing is unpickled.

    Args:
        path: the file.
        dtype: the dtype of its weights.
        model: the fingerprint of the model; None: any. A file that does not state it passes.

    Raises:
        Exists: for a file of other origin.
        Refused: for a file in another dtype, or of another model.
    """
    facts = _read_own_facts(path)
    if facts is None:
        raise Exists(path)
    stated = facts.get("dtype", dtype)
    if stated != dtype:
        raise Refused(
            f"{path} is a file in {stated}, and this call writes {dtype}; choose another path, or "
            "replace it with force=True"
        )
    if model is not None and facts.get("model", model) != model:
        raise Refused(
            f"{path} is a file of another model; choose another path, or replace it with force=True"
        )


def _read_own_facts(path: Path) -> Mapping[str, str] | None:
    """Return the metadata of a file of `lgzoo export`; None for a file of other origin."""
    try:
        if path.suffix.lower() != ".pt2":
            model = open_exported(path)
            facts: Mapping[str, str] = model.session.get_modelmeta().custom_metadata_map
            return facts
        with ZipFile(path) as archive:
            names = archive.namelist()
            entry = next(name for name in names if name.endswith("/extra/metadata.json"))
            read = parse_json(archive.read(entry))
    except (ZooError, BadZipFile, OSError, StopIteration, ValueError):
        return None
    return read if isinstance(read, dict) else None


def check_format(path: Path, dtype: Dtype) -> Format:
    """Return the format of a path's suffix.

    Raises `WrongCall` for any other suffix, for an unknown dtype, and for one that the format does
    not have.
    """
    check_choice("dtype", dtype, get_args(Dtype))
    format = path.suffix.removeprefix(".")
    if format == "onnx":
        return "onnx"
    if format != "pt2":
        raise WrongCall(f"expected a path that ends in .onnx or .pt2, got {path}")
    if dtype == "int8":
        raise WrongCall(
            f"only ONNX files can be int8; name a .onnx file, or use {name_option('dtype', 'fp16')}"
        )
    return "pt2"


def open_classifier(
    model: Descendant | TimmModel | Path | str, *, offline: bool = False, threads: int | None = None
) -> Descendant | TimmModel | ExportedModel:
    """Open any model that `open_model` opens, or an exported file."""
    if isinstance(model, (str, Path)) and is_exported_file(model):
        return open_exported(Path(model), threads=threads)
    return open_model(model, offline=offline)


def to_arrays(inputs: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return images or texts as the arrays that a file takes, by its names of inputs."""
    named = split_inputs(inputs, names)
    return {
        name: (tensor.detach().float() if tensor.is_floating_point() else tensor).cpu().numpy()
        for name, tensor in named.items()
    }


def check_exported_file(path: Path) -> None:
    """Raise `WrongCall` unless there is an ONNX file at a path."""
    if not path.is_file():
        raise WrongCall(f"there is no file {path}; write one with `lgzoo export MODEL -o {path}`")
    if path.suffix.lower() == ".pt2":
        raise WrongCall(
            f"{path} is not opened: torch.export.load unpickles, which may run code; name the "
            "model's folder, or export ONNX"
        )


def open_exported(path: Path, *, threads: int | None = None) -> ExportedModel:
    """Open an ONNX file that `lgzoo export` wrote.

    Raises `WrongCall` if there is none, `BadFile` for a file that cannot be trusted or does not
    state how images are presented, `Unavailable` if onnxruntime is not installed.
    """
    check_exported_file(path)
    session = start_session(path, threads)
    facts = session.get_modelmeta().custom_metadata_map
    if "preprocessing" not in facts:
        raise BadFile(
            f"{path} does not say how it takes images (no 'preprocessing' in its metadata); "
            "expected a file of `lgzoo export`"
        )
    form, names = read_input_format(facts, str(path)), _read_labels(facts, str(path))
    classes, dense = _check_shapes(session, form, str(path))
    if names and len(names) != classes:
        raise BadFile(
            f"{path} contradicts itself: {len(names)} labels for {classes} classes; export it again"
        )
    provenance = {"method": facts.get("method", ""), "licence": facts.get("license", "unknown")}
    if isinstance(form, TextFormat):
        provenance["pairs"] = (read_preprocessing(facts) or {}).get("pairs")
    return ExportedModel(
        session=session,
        classes=classes,
        dense=dense,
        class_names=names,
        input_format=form,
        task=facts.get("task") or None,
        dtype=facts.get("dtype"),
        provenance=provenance,
        folder=path,
    )


def start_session(path: Path, threads: int | None = None) -> Any:
    """Return onnxruntime's session of a file on the CPU.

    Raises `Unavailable` without the packages, `BadFile` for a file that cannot be read.
    """
    import torch

    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise Unavailable(
            f"ONNX files need {error.name}, which is not installed: {_EXTRA}"
        ) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or torch.get_num_threads()
    options.log_severity_level = 4  # errors are raised
    try:
        graph = onnx.load(path, load_external_data=False)
        tensors = onnx.external_data_helper._get_all_tensors(graph)
        outside = next(
            (
                tensor.name
                for tensor in tensors
                if onnx.external_data_helper.uses_external_data(tensor)
            ),
            None,
        )
        if outside is None:
            return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except (
        Exception
    ) as error:  # protobuf and onnxruntime have an exception for each of their stages
        raise BadFile(
            f"{path} is not a readable ONNX file: {_take_first_line(error)}; export it again"
        ) from error
    raise BadFile(
        f"{path} takes the tensor {outside!r:.60} from another file, which is not opened; "
        "export it again"
    )


def _read_labels(facts: Mapping[str, str], where: str) -> tuple[str, ...]:
    """Return the class names in the metadata of a file. Raises `BadFile`."""
    try:
        labels = parse_json(facts.get("labels", "[]").encode())
    except ValueError:
        labels = None
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise refuse_metadata(where)
    return tuple(labels)


def _check_shapes(session: Any, form: InputFormat | TextFormat, where: str) -> tuple[int, bool]:
    """Return the number of classes, and whether every pixel has one.

    Raises `BadFile` for other inputs and outputs.
    """
    inputs, outputs = session.get_inputs(), session.get_outputs()
    is_text = isinstance(form, TextFormat)
    image = [] if isinstance(form, TextFormat) else [form.channels, *[form.image_size] * 2]
    _check_inputs(inputs, image, where)
    shape = list(outputs[0].shape)
    dense, has_classes = shape[2:] == image[1:] != [], outputs[0].name == LOGITS
    if (
        len(outputs) != 1
        or outputs[0].name != name_output(has_classes, is_text)
        or outputs[0].type != "tensor(float)"
        or len(shape) not in (2, 4)
        or type(shape[1]) is not int
        or (len(shape) == 4 and not dense)
    ):
        raise BadFile(
            f"{where} gives {_list_values(outputs)}; "
            f"expected {LOGITS} of tensor(float) (batch, classes)"
        )
    if type(inputs[0].shape[0]) is int:
        noun = "texts" if is_text else "images"
        raise BadFile(
            f"{where} takes batches of {inputs[0].shape[0]} only; expected any number of {noun}"
        )
    return shape[1] if has_classes else 0, dense


def _check_inputs(inputs: Any, image: list[int], where: str) -> None:
    """Raise `BadFile` unless a file takes an image of a size, or texts if that is empty."""
    signature = [(value.name, value.type, list(value.shape)[1:]) for value in inputs]
    if image:
        if signature != [(PIXELS, "tensor(float)", image)]:
            raise BadFile(
                f"{where} takes {_list_values(inputs)}; expected {PIXELS} of tensor(float) (batch, "
                f"{', '.join(map(str, image))})"
            )
        return
    known = [(name, "tensor(int64)") for name in WORDS[: max(2, len(inputs))]]
    if [entry[:2] for entry in signature] != known or any(
        len(entry[2]) != 1 for entry in signature
    ):
        raise BadFile(
            f"{where} takes {_list_values(inputs)}; expected {', '.join(WORDS)} of tensor(int64) "
            "(batch, tokens)"
        )


def _list_values(values: Any) -> str:
    return (
        ", ".join(f"{value.name!r:.40} of {value.type} {tuple(value.shape)}" for value in values)
        or "nothing"
    )


def _take_first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _wrap_session(session: Any, where: str) -> nn.Module:
    import torch
    from torch import nn

    from learngene_zoo.families.text_format import Tokens

    names = [value.name for value in session.get_inputs()]

    class OnnxModule(nn.Module):
        """A module without parameters that runs an ONNX session."""

        def forward(self, inputs: torch.Tensor | Tokens) -> torch.Tensor:
            """Compute logits of images or texts."""
            device = inputs.ids.device if isinstance(inputs, Tokens) else inputs.device
            try:
                (answers,) = session.run(None, to_arrays(inputs, names))
            except Exception as error:  # onnxruntime has an exception for each of its stages
                raise BadFile(
                    f"{where} cannot answer: {_take_first_line(error)}; export it again"
                ) from error
            return torch.from_numpy(answers).to(device)

    return OnnxModule()
