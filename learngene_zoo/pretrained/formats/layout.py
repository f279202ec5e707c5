"""`PackageLayout`: the files in which another package opens a model, and the choice of one.

`FORMATS` lists the formats with their kinds of models. A format with several kinds is written in
the kind that the spec describes, unless the user names one: `transformers:vit`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

from learngene_zoo.errors import WrongCall, refuse_unknown
from learngene_zoo.families.family import get_table
from learngene_zoo.families.picture_format import InputFormat
from learngene_zoo.families.spec import Spec
from learngene_zoo.settings import Json, to_json
from learngene_zoo.storage import StateDict
from learngene_zoo.text import name_option

TRANSFORMERS, OPEN_CLIP, DINOV2, TIMM = "transformers", "open_clip", "dinov2", "timm"
# The kinds of each format; of a format with one kind, no name.
FORMATS: Mapping[str, tuple[str, ...]] = {
    TIMM: (),
    TRANSFORMERS: (
        *("vit", "dinov2", "dinov2_with_registers", "dinov3_vit", "siglip", "clip", "ijepa"),
    ),
    OPEN_CLIP: ("clip", "timm"),
    DINOV2: (),
}
_HOME = {
    TRANSFORMERS: "learngene_zoo.pretrained.formats.to_transformers",
    OPEN_CLIP: "learngene_zoo.pretrained.formats.to_open_clip",
    DINOV2: "learngene_zoo.pretrained.formats.to_dinov2",
}
# Parts that the user can choose instead where a format cannot express a model.
OTHER_FORMATS = "use the format timm, or `lgzoo export` for ONNX or torch.export"


@dataclass(frozen=True, kw_only=True)
class Convertible:
    """A model that is written in another layout.

    Attributes:
        spec: its shape.
        state: its tensors by timm's names.
        images: how images are presented to it.
        class_names: names of its classes; may be empty.
        licence: licence of its weights.
        record: the content of the key `learngene` of the written config.
        name: the model in messages.
    """

    spec: Spec
    state: StateDict
    images: InputFormat
    class_names: tuple[str, ...] = ()
    licence: str = "unknown"
    record: Mapping[str, Json] = field(default_factory=dict)
    name: str = "the model"

    def without_head(self) -> Convertible:
        """Return the model without its head."""
        table = get_table(self.spec)
        kept = {name: self.state[name] for name in self.state if not table.is_head(name)}
        return replace(self, spec=self.spec.with_(classes=0), state=kept, class_names=())


def suggest_headless() -> str:
    """Return the remedy for a head that a format cannot express."""
    without = name_option("head", False)
    return f"leave the head out with {without}, or use the format timm or `lgzoo export`"


def write_record(model: Convertible, layout: str) -> dict[str, Json]:
    """Return the content of the key `learngene`, which names the layout that it is written in.

    Our own loaders refuse a folder with that name, because its tensors have other names.
    """
    record: Any = model.record
    inherited = [name for name in record.get("inherited", ()) if name in model.state]
    return {
        **record,
        "spec": to_json(model.spec),
        **({"inherited": inherited} if "inherited" in record else {}),
        "layout": layout,
    }


@dataclass(frozen=True, kw_only=True)
class LayoutFiles:
    """The content of a folder in another layout.

    Attributes:
        weights: name of the file of tensors.
        state: its tensors.
        documents: the JSON files by name.
        changes: differences from the model's own tensors, one description each.
        usage: Python code that opens the folder, which it calls FOLDER.
        library: the Hub's name of the package.
    """

    weights: str
    state: StateDict
    documents: Mapping[str, Mapping[str, Json]]
    changes: tuple[str, ...] = ()
    usage: str
    library: str


@dataclass(frozen=True, kw_only=True)
class PackageLayout:
    """A kind of model in another package.

    Attributes:
        name: as the user writes it: "transformers:vit".
        find_fault: returns why a model cannot be written, with advice; "" if it can.
        write: returns the files of a model for which there is no fault.
        open_files: opens a written folder with the other package and returns its outputs for
            images (batch, channels, height, width), by the names of `read_outputs`.
    """

    name: str
    find_fault: Callable[[Convertible], str]
    write: Callable[[Convertible], LayoutFiles]
    open_files: Callable[..., Mapping[str, Any]]


def split_format(text: str) -> tuple[str, str]:
    """Return the format and the kind ("" if none is named) of `transformers:vit`.

    Raises `WrongCall` for a name that does not exist.
    """
    name, _, kind = text.partition(":")
    if name not in FORMATS:
        raise refuse_unknown("format", name, FORMATS)
    if kind and kind not in FORMATS[name]:
        if not FORMATS[name]:
            raise WrongCall(f"the format {name} has one kind of model; write the format as {name}")
        raise refuse_unknown(f"kind of {name}", kind, FORMATS[name])
    return name, kind


def choose_layout(model: Convertible, text: str) -> PackageLayout:
    """Return the layout that a format names: the named kind, or the one that the spec describes.

    Raises `WrongCall` for a model that the layout cannot express, with the reason and advice.
    """
    name, kind = split_format(text)
    layout: PackageLayout = import_module(_HOME[name]).choose(model, kind)
    fault = layout.find_fault(model)
    if fault:
        raise WrongCall(f"{model.name} cannot be written as {layout.name}: {fault}")
    return layout


def find_common_fault(spec: Spec, family: str = "") -> str:
    """Return why no package but timm has a model of this shape; "" if others may.

    A format of one `family` of models refuses those of the others.
    """
    if spec.dense:
        return f"it has a class for every pixel; {OTHER_FORMATS}"
    if spec.stitched:
        return f"it is stitched from several widths; {OTHER_FORMATS}"
    if len(spec.segments) > 1:
        return f"its blocks have several sizes; {OTHER_FORMATS}"
    if spec.heads_width != spec.width:
        return (
            f"heads were removed from it: together they have {spec.heads_width} channels and the "
            f"model has {spec.width}; {OTHER_FORMATS}"
        )
    if not spec.plain:
        return f"its pooling has other sizes than its blocks; {OTHER_FORMATS}"
    if family and spec.family != family:
        return f"it is a model of the family {spec.family}; {OTHER_FORMATS}"
    return ""
