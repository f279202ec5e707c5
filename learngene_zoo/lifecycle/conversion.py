"""`convert`: a model written in the layout of another package."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from learngene_zoo.artifacts.arguments import refuse_unknown_arguments
from learngene_zoo.artifacts.own_data import find_origin, open_for_artifact
from learngene_zoo.artifacts.records import (
    SOURCES,
    AncestryRecord,
    check_model,
    is_of_transformers,
    parse_reference,
    parse_task,
    read_provenance,
)
from learngene_zoo.artifacts.shelf import find
from learngene_zoo.atomic import check_apart, claim, new_folder
from learngene_zoo.errors import WrongCall
from learngene_zoo.families.text_spec import TextSpec
from learngene_zoo.families.transformers_config import OTHER_HEAD
from learngene_zoo.lifecycle.opening import make_run, warn_of_random_head
from learngene_zoo.pretrained.formats.layout import FORMATS, TIMM, split_format
from learngene_zoo.pretrained.sources import check_source, find_format, split_source
from learngene_zoo.pretrained.timm_model import TimmModel, is_timm_source
from learngene_zoo.runs.progress import print_note
from learngene_zoo.runs.run import Run, parse_run
from learngene_zoo.settings import check_type, to_json
from learngene_zoo.storage import CONFIG, read_json, write_json, write_tensors
from learngene_zoo.text import name_option

if TYPE_CHECKING:
    from learngene_zoo.artifacts.descendant import Descendant
    from learngene_zoo.lifecycle.interface import TokenAgreement
    from learngene_zoo.pretrained.ancestry import Ancestry
    from learngene_zoo.pretrained.formats.layout import Convertible, LayoutFiles, PackageLayout


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """The result of `convert`.

    Attributes:
        path: the written folder.
        format: the format and the kind of the model: "transformers:dinov2".
        difference: the largest difference of an output from that of the model; None if the package
            that opens the folder is not installed.
        changes: differences of the written tensors from those of the model.
        left_out: parts of the ancestry models that were left out when these were read.
        agreement: of the tokens with those of the ancestry model, if it was measured.
    """

    path: Path
    format: str
    difference: float | None
    changes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    agreement: TokenAgreement | None = None


@refuse_unknown_arguments
def convert(
    model: str | Path | Descendant | TimmModel,
    out: str | Path,
    *,
    format: str | None = None,
    head: bool = True,
    keep_interface: bool = False,
    images: str | None = None,
    ancestry: str | None = None,
    run: Run | None = None,
    force: bool = False,
) -> Conversion:
    """Write a model in the layout of another package, and compare the outputs.

    Args:
        model: a descendant, a classifier of timm's, or a reference to one or to any ancestry model.
        out: the folder to write.
        format: "timm", "transformers", "open_clip" or "dinov2"; a kind of model may follow
            ("transformers:vit"). None: the format that the ancestry model was read from.
        head: write the head too.
        keep_interface: refuse a model whose tokens have another width or grid than those of its
            ancestry model.
        images: images without labels on which the tokens are compared with those of the ancestry
            model, as for `heal`; only with `keep_interface`.
        ancestry: source of the ancestry model. None: the one that the descendant records.
        run: how to compute. None: `Run()`, with progress in a notebook.
        force: replace existing content of `out`.

    Raises:
        WrongCall: for a model that the format cannot express, with the reason; for a head of
            several labels at once or of numbers; for a format that is not known; and with
            `keep_interface` for a model without an ancestry model that can be opened.
        TrainingFailed: if the outputs differ by more than rounding.
        Refused: if `out` is the model's folder, or exists and `force` is not set.
    """
    run, images = parse_run(run, make_run), parse_task(images, "images")
    check_model("model", model)
    claim(Path(out), force)
    if format is not None:
        check_type("format", format, str)
        split_format(format)
    if images is not None and not keep_interface:
        remedy = f"add {name_option('keep_interface', True)}"
        raise WrongCall(f"the images {images!r:.60} are used only to compare tokens; {remedy}")
    ancestry = _parse_source(ancestry)
    folder = model if isinstance(model, (str, Path)) else model.folder
    check_apart(out, *(Path(source) for source in (folder, ancestry) if source is not None))
    opened, descendant = open_convertible(model, run)
    if isinstance(opened.spec, TextSpec):
        raise WrongCall(
            f"{opened.name} is a text model, which has no other layout; transformers opens its"
            " folder as it is"
        )
    recorded = read_provenance(dict(opened.record), opened.name).ancestries
    text = format or _find_source_format(descendant, recorded, ancestry, opened.name)
    if head:
        _check_head(opened, descendant, recorded)
    opened = opened if head else opened.without_head()
    agreement = None
    if keep_interface:
        agreement = _compare(opened, descendant, recorded, ancestry, images, run)
    left_out = tuple(part for record in recorded for part in record.left_out)
    if split_format(text)[0] == TIMM:
        from learngene_zoo.pretrained.formats.opening import assemble_model

        whole = descendant if head else None
        (whole or assemble_model(opened)).save(out, force)
        return Conversion(
            path=Path(out), format=TIMM, difference=0.0, left_out=left_out, agreement=agreement
        )
    from learngene_zoo.pretrained.formats.layout import choose_layout

    layout = choose_layout(opened, text)
    files = layout.write(opened)
    return Conversion(
        path=Path(out),
        format=layout.name,
        difference=_write(opened, layout, files, Path(out), force),
        changes=files.changes,
        left_out=left_out,
        agreement=agreement,
    )


def _parse_source(ancestry: Any) -> str | None:
    """Return the source of an ancestry model, or None. Raises `WrongCall` if it cannot be one."""
    if ancestry is None:
        return None
    source = parse_reference("ancestry", ancestry, SOURCES)
    check_source(source)
    return source


def _check_head(
    opened: Convertible, descendant: Descendant | None, recorded: Sequence[AncestryRecord]
) -> None:
    """Warn of the random head of a descendant. Raise `WrongCall` for another source whose head was
    left out because of what it computes.
    """
    if descendant is not None:
        warn_of_random_head(descendant)
        return
    if opened.spec.classes:  # What is recorded is of its ancestry model.
        return
    parts = [part for record in recorded for part in record.left_out]
    fault = next((part for part in parts if part.startswith(OTHER_HEAD)), None)
    if fault is not None:
        remedy = f"leave it out with {name_option('head', False)}"
        raise WrongCall(f"{opened.name}: {fault}, is not written; {remedy}")


# Opening.


def open_convertible(
    model: str | Path | Descendant | TimmModel, run: Run
) -> tuple[Convertible, Descendant | None]:
    """Open any model: a descendant, which is returned too, or one that others made."""
    from learngene_zoo.artifacts.descendant import Descendant, load_descendant
    from learngene_zoo.pretrained.formats.opening import open_source

    if isinstance(model, (str, Path)) and not is_timm_source(model):
        folder = find(model, offline=run.offline)
        if _is_descendant(folder):
            model = load_descendant(folder)
    if isinstance(model, Descendant):
        return _describe_descendant(model), model
    if isinstance(model, TimmModel):
        if model.folder is None:
            raise WrongCall("save this model of timm's, and name its folder")
        model = model.folder
    return open_source(str(model), offline=run.offline), None


def _is_descendant(folder: Path) -> bool:
    """Return whether a folder is that of a descendant in timm's layout."""
    config = read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    ours = config.get("learngene")
    return (
        isinstance(ours, dict)
        and "spec" in ours
        and "layout" not in ours
        and ours.get("method") != "timm"
        and not is_of_transformers(config)
    ) or "method" in config


def _describe_descendant(model: Descendant) -> Convertible:
    from learngene_zoo.pretrained.formats.layout import Convertible

    record: Any = model.config()["learngene"]
    return Convertible(
        spec=model.spec,
        state=model.state,
        images=model.input_format,
        class_names=model.class_names,
        licence=model.licence,
        record=to_json(record),
        name=str(model.folder or "the model"),
    )


# The ancestry model.


def _locate(descendant: Descendant | None, recorded: AncestryRecord) -> str | None:
    """Return the source of a recorded ancestry model if it may be opened without being named."""
    if split_source(recorded.source)[0] in ("timm", "bundled") or descendant is None:
        return recorded.source
    with open_for_artifact(descendant):
        origin = find_origin(recorded.source)
    return origin.location if origin else None


def _find_source_format(
    descendant: Descendant | None,
    recorded: Sequence[AncestryRecord],
    named: str | None,
    name: str,
) -> str:
    """Return the format of the file that the ancestry model was read from.

    Raises `WrongCall` if it is not known, or timm's, in which the model is already.
    """
    source = named or (_locate(descendant, recorded[0]) if len(recorded) == 1 else None)
    known = find_format(source) if source is not None else None
    choices = ", ".join(other for other in FORMATS if other != known or descendant is None)
    if known is None:
        raise WrongCall(
            f"the format that the ancestry model of {name} had is not known here; choose one: "
            f"{name_option('format')} {choices}"
        )
    if known == TIMM and descendant is not None:
        raise WrongCall(
            f"{name} is in timm's format already, as its ancestry model was; choose another one: "
            f"{name_option('format')} {choices}"
        )
    return known


def _compare(
    model: Convertible,
    descendant: Descendant | None,
    recorded: Sequence[AncestryRecord],
    named: str | None,
    images: str | None,
    run: Run,
) -> TokenAgreement | None:
    """Check that a model keeps the interface of its ancestry model, and compare their tokens."""
    from learngene_zoo.families.tensors import build_model
    from learngene_zoo.lifecycle.interface import check_interface, measure_agreement
    from learngene_zoo.pretrained.ancestry import read_ancestry_spec
    from learngene_zoo.tasks.catalogue import say_notes
    from learngene_zoo.tasks.unlabelled.opening import open_images

    option = name_option("ancestry", "SOURCE")
    if named is None and len(recorded) != 1:
        count = f"{len(recorded)} ancestry models" if recorded else "no ancestry model"
        raise WrongCall(f"{model.name} records {count}; name one: add {option}")
    record = recorded[0] if recorded and named is None else None
    source = named or (_locate(descendant, record) if record else None)
    if source is not None:
        check_interface(model.spec, read_ancestry_spec(source, offline=run.offline), model.name)
    if record is not None:
        check_interface(model.spec, record.spec, model.name)
    if images is None:
        return None
    data = open_images(images, offline=run.offline)
    ancestry = _open_ancestry(descendant, record, named, run)
    say_notes([data], run)
    module = build_model(model.spec, model.state)
    return measure_agreement(module, model.images, model.spec, ancestry, data, run)


def _open_ancestry(
    descendant: Descendant | None, record: AncestryRecord | None, named: str | None, run: Run
) -> Ancestry:
    from learngene_zoo.pretrained.ancestry import open_ancestry, reopen_ancestry

    if named is not None or record is None or descendant is None:
        return open_ancestry(named or (record.source if record else ""), offline=run.offline)
    with open_for_artifact(descendant):
        return reopen_ancestry(record, None, offline=run.offline)


# Writing.


def _write(
    model: Convertible, layout: PackageLayout, files: LayoutFiles, out: Path, force: bool
) -> float | None:
    """Write the files, and return the largest difference of an output from that of the model."""
    from learngene_zoo.pretrained.formats.card import render_converted_card
    from learngene_zoo.pretrained.formats.check import is_installed, measure_difference

    differences: list[float] = []

    def compare(draft: Path) -> None:
        if is_installed(layout):
            differences.append(measure_difference(model, layout, draft))

    with new_folder(out, force, compare) as draft:
        for name, content in files.documents.items():
            write_json(draft / name, content)
        write_tensors(draft / files.weights, files.state)
        card = render_converted_card(model, files, layout.name)
        (draft / "README.md").write_text(card, encoding="utf-8")
    if not differences:
        print_note(
            f"the outputs were not compared, because {layout.name.partition(':')[0]} is not "
            "installed: pip install 'learngene-zoo[formats]'",
            "not compared",
        )
        return None
    return differences[0]
