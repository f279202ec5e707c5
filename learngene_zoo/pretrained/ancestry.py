"""`Ancestry`: a pretrained model to inherit from, with its provenance.

`sources.py` lists the sources that an ancestry model can come from.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from learngene_zoo.artifacts.own_data import LocalOrigin, find_origin
from learngene_zoo.artifacts.records import AncestryRecord, LearngeneConfig
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families import timm_config
from learngene_zoo.families.family import get_family, get_table, load_host
from learngene_zoo.families.picture_format import USUAL_VIEW, InputFormat
from learngene_zoo.families.picture_spec import require_pictures
from learngene_zoo.families.spec import Spec
from learngene_zoo.families.text_spec import TextSpec
from learngene_zoo.families.transformers_config import (
    check_tokenizer,
    fingerprint_tokenizer,
    read_text_format,
)
from learngene_zoo.pretrained.layouts import choose_tensors, strip_wrappers
from learngene_zoo.pretrained.sources import AncestryFiles, find, read_spec_at, split_source
from learngene_zoo.runs.progress import print_note
from learngene_zoo.settings import Json, to_json
from learngene_zoo.storage import (
    TOKENIZER,
    StateDict,
    fingerprint_of_state,
    hash_weights,
    open_tensors,
)
from learngene_zoo.text import name_option

if TYPE_CHECKING:
    from learngene_zoo.families.tensors import Model
    from learngene_zoo.runs.run import Run


@dataclass(frozen=True, kw_only=True, repr=False)
class Ancestry:
    """A pretrained model: its fp32 tensors, and where they come from."""

    record: AncestryRecord
    state: StateDict
    class_names: tuple[str, ...] = ()
    # Of a text model, its tokenizer: the texts of files by name.
    files: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __repr__(self) -> str:
        return (
            f"Ancestry({self.record.source!r}, {self.spec.layers} layers, width {self.spec.width})"
        )

    @property
    def spec(self) -> Spec:
        """Return the shape of the model."""
        return self.record.spec

    @property
    def identity(self) -> Json:
        """Return the data that distinguish its function from that of other models.

        The tensors are hashed unless the checksum of the file is known.
        """
        record = self.record
        weights = record.sha256 or fingerprint_of_state(self.state)
        inputs = [] if record.view == USUAL_VIEW else [to_json(record.view)]
        inputs += [record.tokenizer] if record.tokenizer else []
        return [to_json(record.spec), list(record.mean), list(record.std), weights, *inputs]

    @property
    def input_format(self) -> Any:
        """Return how images or texts are presented to the model: `InputFormat`, `TextFormat`.

        Raises `WrongCall` for a text model without a tokenizer.
        """
        if isinstance(self.spec, TextSpec):
            return read_text_format(self.spec, self.files)
        spec, record = require_pictures(self.spec), self.record
        return InputFormat(
            image_size=spec.image_size,
            channels=spec.channels,
            mean=record.mean,
            std=record.std,
            view=record.view,
        )

    def model(self) -> Model:
        """Return timm's or transformers' module in eval mode; it shares no memory with `state`."""
        from learngene_zoo.families.tensors import build_model

        record = self.record
        if isinstance(self.spec, TextSpec):
            return build_model(self.spec, self.state, class_names=self.class_names)
        images = timm_config.write_pretrained_cfg(
            self.spec, mean=record.mean, std=record.std, licence=record.licence, view=record.view
        )
        return build_model(self.spec, self.state, pretrained_cfg=images)


def open_ancestry(
    source: str,
    *,
    image_size: int | None = None,
    pool: str | None = None,
    offline: bool = False,
    accept: Callable[[Spec], object] = lambda spec: None,
) -> Ancestry:
    """Open an ancestry model; its record pins revision, checksum and licence.

    Weights in half precision are converted to fp32.

    Args:
        source: as `sources.py` describes it.
        image_size: the model is opened for images of this size; its position embedding is
            resampled, as for a descendant of another size.
        pool: the pooling of the model. Tensors of the original pooling, if it has any (SigLIP's
            attention), are left out.
        offline: read only files that are cached.
        accept: called with the spec before the weights are downloaded; it raises to refuse the
            model.

    Raises:
        WrongCall: for a source that does not exist or is not supported.
        BadFile: for files that cannot be trusted (pickles are refused).
        Unavailable: for failed downloads.
    """

    def check(spec: Spec) -> None:
        spec = _of_one_width(spec, source)
        accept(spec)
        spec.with_(image_size=image_size)

    files = find(source, offline, check)
    import torch

    from learngene_zoo.families.tensors import cast, get_shapes, resize_positions

    tensors, left_out = _read_tensors(files)
    state = cast(tensors, torch.float32)
    spec = files.spec.with_(image_size=image_size).with_pool(pool)
    spec_names = [name for name in state if name in get_shapes(spec)]
    if len(spec_names) < len(state):
        left_out += ("pooling by attention",)
    is_of_texts, presentation, tokenizer = isinstance(spec, TextSpec), files.images, None
    if is_of_texts:
        check_tokenizer(files.texts, spec, source)
        tokenizer = fingerprint_tokenizer(files.texts)
        if tokenizer is None:
            print_note(
                f"{source} has no {TOKENIZER}, without which neither it nor its descendants take "
                "texts; copy that of its author",
                "no tokenizer",
            )
    mean, std = timm_config.read_normalisation(presentation, spec.channels)
    view = USUAL_VIEW if is_of_texts else timm_config.read_view(presentation, source)
    record = AncestryRecord(
        source=source,
        spec=spec,
        revision=files.revision,
        sha256=hash_weights(files.weights),
        licence=files.licence,
        mean=mean,
        std=std,
        left_out=left_out,
        tokenizer=tokenizer,
        view=view,
    )
    names = tuple(files.images.get("label_names", ()))
    return Ancestry(
        record=record,
        state=resize_positions({name: state[name] for name in spec_names}, files.spec, spec),
        class_names=names if len(names) == spec.classes else (),
        files=files.texts,
    )


def reopen_ancestry(
    record: AncestryRecord, named: str | None, *, offline: bool = False, option: str = "ancestry"
) -> Ancestry:
    """Open the ancestry model of an artifact's record again and check its checksum.

    A record alone may only open the bundled models and timm's, and those by their checksum.
    The user must have `named` any other model (`Run.ancestry`), now or when the artifact was made
    on this machine (`own_data.py`). `option` is the option by which the user can name it.

    Raises `WrongCall` if it is not named, `BadFile` for weights that differ from the recorded ones,
    and as `open_ancestry` does.
    """
    from learngene_zoo.artifacts.shelf import is_ours

    origin, is_bundled = None, is_ours(record.source)
    if named is None:
        origin = find_origin(record.source)
    if origin and is_bundled and not os.path.exists(origin.location.partition("#")[0]):
        origin = None
    named = origin.location if origin else named
    scheme, name = split_source(named or record.source)
    typed = f"add {name_option(option, record.source)}"
    if named is None and scheme != "timm" and not is_bundled:
        raise WrongCall(
            f"the ancestry model was {record.source!r}, "
            f"which is opened only if you name it: {typed}"
        )
    if named is None and record.sha256 is None:
        raise WrongCall(
            f"no checksum of the ancestry model {record.source!r} is recorded, so any model would "
            f"pass for it; if you trust it, {typed}"
        )
    pinned = scheme == "hf-hub" and "@" not in name and named == record.source and record.revision
    source = f"{named}@{record.revision}" if pinned else named or record.source
    ancestry = open_ancestry(
        source, image_size=record.spec.image_size, pool=record.spec.pool, offline=offline
    )
    if record.sha256 not in (None, ancestry.record.sha256):
        raise BadFile(
            f"{named or record.source} has the checksum {str(ancestry.record.sha256)[:12]}…, but "
            f"{str(record.sha256)[:12]}… is recorded: it is another model than the one before; "
            "restore that one, or extract again"
        )
    return ancestry


def find_origins_of_models(records: Sequence[AncestryRecord]) -> dict[str, LocalOrigin]:
    """Return the locations of the ancestry models that the user named by path or repository.

    `own_data.remember` stores them.
    """
    from learngene_zoo.artifacts.shelf import is_ours

    origins = {}
    for record in records:
        if is_ours(record.source):
            continue
        scheme, name = split_source(record.source)
        if record.sha256 is not None and scheme == "path":
            path, mark, architecture = name.partition("#")
            origins[record.source] = LocalOrigin(
                f"{os.path.abspath(path)}{mark}{architecture}", record.sha256
            )
        elif record.sha256 is not None and scheme == "hf-hub":
            origins[record.source] = LocalOrigin(record.source, record.sha256)
    return origins


def copy_weights(
    config: LearngeneConfig,
    state: StateDict,
    run: Run,
    keep: Callable[[str], bool] = lambda name: True,
) -> StateDict:
    """Return the ancestry model's tensors without its head, or those that `keep` accepts.

    Args:
        config: the config of the learngene.
        state: the tensors of the learngene, which has all of the ancestry model's or none. If it
            has none, the ancestry model is opened again (`reopen_ancestry`).
        run: locates the ancestry model (`Run.ancestry`).
        keep: selects tensors by name; default: all.

    Raises:
        BadFile: for a learngene that lacks some of the tensors.
        WrongCall: for one that neither stores nor records its ancestry model.
    """
    from learngene_zoo.families.tensors import get_shapes, read_shapes

    table, stored_shapes = get_table(config.spec), read_shapes(state)
    expected = {
        name: shape
        for name, shape in get_shapes(config.spec).items()
        if not table.is_head(name) and keep(name)
    }
    if stored_shapes.keys().isdisjoint(expected):
        if not config.ancestries:
            raise WrongCall(
                "this learngene neither stores nor records its ancestry model; extract it again"
            )
        state = reopen_ancestry(config.ancestries[0], run.ancestry, offline=run.offline).state
        stored_shapes = read_shapes(state)
    for name, shape in expected.items():
        if stored_shapes.get(name) != shape:
            fault = (
                f"{name} has shape {stored_shapes[name]}"
                if name in stored_shapes
                else f"{name} is missing"
            )
            raise BadFile(
                f"the {config.method} learngene: {fault}; "
                f"expected shape {shape}: extract or fetch it again"
            )
    return {name: state[name] for name in expected}


def read_ancestry_spec(source: str, *, offline: bool = False) -> Spec:
    """Return the spec of an ancestry model, without reading its weights.

    timm is imported only for architectures that no family lists. Raises as `open_ancestry` does.
    """
    return _of_one_width(read_spec_at(source, offline=offline), source)


def _of_one_width(spec: Spec, source: str) -> Spec:
    if not spec.plain:  # methods would take blocks out of it that do not fit together
        widths = ", ".join(str(segment.width) for segment in spec.sizes)
        kind = (
            f"a stitched model (widths {widths})"
            if spec.stitched
            else "a model whose blocks were pruned"
        )
        raise WrongCall(f"{source} is {kind}; an ancestry model must have one width")
    return spec


def _read_tensors(files: AncestryFiles) -> tuple[StateDict, tuple[str, ...]]:
    """Return every tensor, and descriptions of those that were left out.

    Shapes are checked against the spec, and numbers are checked to be finite.
    """
    from learngene_zoo.families.tensors import check_state

    tensors, where = open_tensors(files.weights), str(files.weights)
    if files.rename:
        renamed, left_out = files.rename(tensors.select(strip_wrappers(tensors, where)), files.spec)
        state, trimmed = load_host(get_family(files.spec)).trim_state(renamed)
        check_state(state, files.spec, where)
    else:
        names, left_out = choose_tensors(tensors, where)
        stored, trimmed = load_host(get_family(files.spec)).trim_state(tensors.select(names))
        state, changes = _convert(stored, files)
        left_out += changes
    return {name: state[name] for name in state}, (*left_out, *trimmed)


def _convert(stored: StateDict, files: AncestryFiles) -> tuple[StateDict, tuple[str, ...]]:
    """Return the tensors by timm's names, from any layout that timm knows.

    The second value describes how the positions were resampled. Raises `BadFile` for tensors that
    are not those of the model.
    """
    from learngene_zoo.families.tensors import check_state, get_shapes, read_shapes

    where = str(files.weights)
    try:
        check_state(stored, files.spec, where)
        return stored, ()
    except BadFile as error:
        plain = error
    stored_shapes, expected = read_shapes(stored), get_shapes(files.spec)
    patches = str(get_table(files.spec).find_parameter("patches"))
    if stored_shapes.get(patches, ())[2:] not in ((), expected[patches][2:]):
        raise plain  # timm would resample the patches to those of another model
    state = _convert_layout(stored, files, plain)
    # Names that were timm's already: the error is about the stored tensors.
    if state.keys() == stored_shapes.keys() - {"mask_token"}:
        _raise_unless_fitting(state, files, plain)
    check_state(state, files.spec, where)
    return state, _describe_resampling(
        stored_shapes, read_shapes(state), str(get_table(files.spec).find_parameter("positions"))
    )


def _raise_unless_fitting(state: StateDict, files: AncestryFiles, plain: BadFile) -> None:
    from learngene_zoo.families.tensors import get_shapes, read_shapes

    if read_shapes(state) != get_shapes(files.spec):
        raise plain


def _convert_layout(stored: StateDict, files: AncestryFiles, plain: BadFile) -> StateDict:
    """Return tensors by timm's names, converted from another layout that timm knows.

    Raises `plain` for tensors that have timm's names already.
    """
    from learngene_zoo.families.tensors import build_empty, get_shapes

    try:
        return load_host(get_family(files.spec)).convert_state(
            dict(stored), build_empty(files.spec), files.architecture
        )
    except (
        Exception
    ) as error:  # timm guesses the layout by a name or two, and can then fail anywhere
        if set(stored) & set(get_shapes(files.spec)):
            raise plain from error
        raise BadFile(
            f"{files.weights} is not in a layout that timm can convert: {error!r}"
        ) from error


def _describe_resampling(
    before: Mapping[str, tuple[int, ...]], after: Mapping[str, tuple[int, ...]], positions: str
) -> tuple[str, ...]:
    """Describe how positions of one grid of patches became those of another.

    Empty if the grid is the same.
    """
    if len(before.get(positions, ())) != 3 or positions not in after:
        return ()
    old, new = (math.isqrt(shapes[positions][1]) for shapes in (before, after))
    return (
        () if old == new else (f"positions of {old} x {old} patches (resampled to {new} x {new})",)
    )
