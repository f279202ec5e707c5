"""`Ancestry`: a pretrained model to inherit from, with its provenance; sources.py says where it may come from."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from learngene_zoo.artifacts.layouts import choose_tensors, strip_wrappers
from learngene_zoo.artifacts.own_data import LocalOrigin, find_origin, name_option
from learngene_zoo.artifacts.records import AncestryRecord, LearngeneConfig
from learngene_zoo.artifacts.shards import hash_weights, open_tensors
from learngene_zoo.artifacts.sources import Found, find, spec_at, split_source
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families import timm_config
from learngene_zoo.families.family import family_of, host, table_of
from learngene_zoo.families.spec import USUAL_VIEW, InputFormat, Spec
from learngene_zoo.settings import Json, to_json
from learngene_zoo.storage import StateDict, fingerprint_of_state

if TYPE_CHECKING:
    from learngene_zoo.families.tensors import Model
    from learngene_zoo.runs.run import Run


@dataclass(frozen=True, kw_only=True, repr=False)
class Ancestry:
    """A pretrained model: its fp32 tensors, and where they come from."""

    record: AncestryRecord
    state: StateDict
    class_names: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Ancestry({self.record.source!r}, {self.spec.layers} layers, width {self.spec.width})"

    @property
    def spec(self) -> Spec:
        """Its shape."""
        return self.record.spec

    @property
    def identity(self) -> Json:
        """What distinguishes its function from that of other models; the tensors are hashed unless the file's checksum is known."""
        record = self.record
        weights = record.sha256 or fingerprint_of_state(self.state)
        view = [] if record.view == USUAL_VIEW else [to_json(record.view)]
        return [to_json(record.spec), list(record.mean), list(record.std), weights, *view]

    @property
    def input_format(self) -> InputFormat:
        """How images are presented to it."""
        spec, record = self.spec, self.record
        return InputFormat(
            image_size=spec.image_size, channels=spec.channels, mean=record.mean, std=record.std, view=record.view
        )

    def model(self) -> Model:
        """timm's module in eval mode, in memory of its own."""
        from learngene_zoo.families.tensors import model_of

        record = self.record
        images = timm_config.pretrained_cfg(
            self.spec, mean=record.mean, std=record.std, licence=record.licence, view=record.view
        )
        return model_of(self.spec, self.state, pretrained_cfg=images)


def open_ancestry(
    source: str,
    *,
    image_size: int | None = None,
    pool: str | None = None,
    offline: bool = False,
    accept: Callable[[Spec], object] = lambda spec: None,
) -> Ancestry:
    """Open an ancestry model; its revision, checksum and licence are pinned in its record.

    Weights in half precision are converted to fp32. With `image_size`, the model is one for images of that size: its position
    embedding is resampled, as for a descendant of another size; with `pool`, one that pools so, without the tensors of its own
    pooling, if it has any (SigLIP's attention). `accept` is called with its spec before its weights are
    downloaded, and raises where they are not wanted. Raises `WrongCall` for a source that does not exist or is not
    supported, `BadFile` for files that cannot be trusted (pickles are refused), `Unavailable` for failed downloads.
    """
    import torch

    from learngene_zoo.families.tensors import cast, resize_positions, shapes

    found = find(source, offline, lambda spec: accept(_of_one_width(spec, source)))
    tensors, left_out = _tensors(found)
    state, spec = cast(tensors, torch.float32), found.spec.with_(image_size=image_size).with_pool(pool)
    own = [name for name in state if name in shapes(spec)]
    if len(own) < len(state):
        left_out += ("pooling by attention",)
    mean, std = timm_config.normalisation(found.images, found.spec.channels)
    record = AncestryRecord(
        source=source,
        spec=spec,
        revision=found.revision,
        sha256=hash_weights(found.weights),
        licence=found.licence,
        mean=mean,
        std=std,
        left_out=left_out,
        view=timm_config.view_in(found.images, source),
    )
    names = tuple(found.images.get("label_names", ()))
    return Ancestry(
        record=record,
        state=resize_positions({name: state[name] for name in own}, found.spec, spec),
        class_names=names if len(names) == spec.classes else (),
    )


def reopen_ancestry(record: AncestryRecord, named: str | None, *, offline: bool = False) -> Ancestry:
    """The ancestry model of an artifact's record, opened again and checked by its checksum.

    A record chooses nothing but the bundled model or one of timm's, and those by their checksum. Any other model the user must
    have `named` (`Run.ancestry`), now or when the artifact was made on this machine (`own_data.py`).

    Raises `WrongCall` if it is not, `BadFile` for other weights than the recorded ones, and as `open_ancestry` does.
    """
    origin = find_origin(record.source) if named is None else None
    named = origin.location if origin else named
    scheme, name = split_source(named or record.source)
    typed = f"add {name_option('ancestry', record.source)}"
    if named is None and scheme not in ("bundled", "timm"):
        raise WrongCall(f"the ancestry model was {record.source!r}, which is opened only if you name it: {typed}")
    if named is None and record.sha256 is None:
        raise WrongCall(
            f"no checksum of the ancestry model {record.source!r} is recorded, so any model would pass for it; if you trust it, {typed}"
        )
    pinned = scheme == "hf-hub" and "@" not in name and named == record.source and record.revision
    source = f"{named}@{record.revision}" if pinned else named or record.source
    found = open_ancestry(source, image_size=record.spec.image_size, pool=record.spec.pool, offline=offline)
    if record.sha256 not in (None, found.record.sha256):
        raise BadFile(
            f"{named or record.source} has the checksum {str(found.record.sha256)[:12]}…, but {str(record.sha256)[:12]}… is recorded: "
            "it is another model than the one before; restore that one, or extract again"
        )
    return found


def origins_of_models(records: Sequence[AncestryRecord]) -> dict[str, LocalOrigin]:
    """Return where the ancestry models lie that the user named by a path or a repository, for `own_data.remember`."""
    origins = {}
    for record in records:
        scheme, name = split_source(record.source)
        if record.sha256 is not None and scheme == "path":
            path, mark, architecture = name.partition("#")
            origins[record.source] = LocalOrigin(f"{os.path.abspath(path)}{mark}{architecture}", record.sha256)
        elif record.sha256 is not None and scheme == "hf-hub":
            origins[record.source] = LocalOrigin(record.source, record.sha256)
    return origins


def inherited_weights(
    config: LearngeneConfig, state: StateDict, run: Run, keep: Callable[[str], bool] = lambda name: True
) -> StateDict:
    """The ancestry model's tensors without its head, or those of them that `keep` accepts, of a learngene that has all or none.

    They are taken from `state`, the learngene's; if that has none of them, the ancestry model is opened again (`reopen_ancestry`).
    Raises `BadFile` for a learngene that lacks some, `WrongCall` for one that neither stores nor records its ancestry model.
    """
    from learngene_zoo.families.tensors import shapes, shapes_in

    table, found = table_of(config.spec), shapes_in(state)
    expected = {name: shape for name, shape in shapes(config.spec).items() if not table.is_head(name) and keep(name)}
    if found.keys().isdisjoint(expected):
        if not config.ancestries:
            raise WrongCall("this learngene neither stores nor records its ancestry model; extract it again")
        state = reopen_ancestry(config.ancestries[0], run.ancestry, offline=run.offline).state
        found = shapes_in(state)
    for name, shape in expected.items():
        if found.get(name) != shape:
            what = f"{name} has shape {found[name]}" if name in found else f"{name} is missing"
            raise BadFile(f"the {config.method} learngene: {what}; expected shape {shape}: extract or fetch it again")
    return {name: state[name] for name in expected}


def ancestry_spec(source: str, *, offline: bool = False) -> Spec:
    """The spec of an ancestry model, without its weights; timm is imported only for architectures that no family lists.

    Raises as `open_ancestry` does.
    """
    return _of_one_width(spec_at(source, offline=offline), source)


def _of_one_width(spec: Spec, source: str) -> Spec:
    if not spec.plain:  # methods would take blocks out of it that do not fit together
        widths = ", ".join(str(segment.width) for segment in spec.sizes)
        kind = f"a stitched model (widths {widths})" if spec.stitched else "a model whose blocks were pruned"
        raise WrongCall(f"{source} is {kind}; an ancestry model must have one width")
    return spec


def _tensors(found: Found) -> tuple[StateDict, tuple[str, ...]]:
    """Every tensor, with its shape checked against the spec and its numbers checked to be finite; and what was left out."""
    from learngene_zoo.families.tensors import check_state

    tensors, where = open_tensors(found.weights), str(found.weights)
    if found.renamed:
        renamed, left_out = found.renamed(tensors.select(strip_wrappers(tensors, where)), found.spec)
        state, trimmed = host(family_of(found.spec)).trimmed(renamed)
        check_state(state, found.spec, where)
    else:
        names, left_out = choose_tensors(tensors, where)
        stored, trimmed = host(family_of(found.spec)).trimmed(tensors.select(names))
        state, changes = _convert(stored, found)
        left_out += changes
    return {name: state[name] for name in state}, (*left_out, *trimmed)


def _convert(stored: StateDict, found: Found) -> tuple[StateDict, tuple[str, ...]]:
    """The tensors by timm's names, from any layout that timm knows, and in words what was done to the positions.

    Raises `BadFile` for tensors that are not those of the model.
    """
    from learngene_zoo.families.tensors import check_state, shapes, shapes_in

    where = str(found.weights)
    try:
        check_state(stored, found.spec, where)
        return stored, ()
    except BadFile as error:
        plain = error
    own, expected = shapes_in(stored), shapes(found.spec)
    patches = str(table_of(found.spec).named("patches"))
    if own.get(patches, ())[2:] not in ((), expected[patches][2:]):
        raise plain  # timm would resample the patches to those of another model
    state = _converted(stored, found, plain)
    if state.keys() == own.keys() - {"mask_token"}:  # names that were timm's, so what was wrong with them is said
        _raise_unless_fitting(state, found, plain)
    check_state(state, found.spec, where)
    return state, _describe_resampling(own, shapes_in(state), str(table_of(found.spec).named("positions")))


def _raise_unless_fitting(state: StateDict, found: Found, plain: BadFile) -> None:
    from learngene_zoo.families.tensors import shapes, shapes_in

    if shapes_in(state) != shapes(found.spec):
        raise plain


def _converted(stored: StateDict, found: Found, plain: BadFile) -> StateDict:
    """Tensors by timm's names, converted from one of the other layouts that timm knows. Raises `plain` for timm's own names."""
    from learngene_zoo.families.tensors import empty, shapes

    try:
        return host(family_of(found.spec)).converted(dict(stored), empty(found.spec), found.architecture)
    except Exception as error:  # timm guesses the layout by a name or two, and can then fail anywhere
        if set(stored) & set(shapes(found.spec)):
            raise plain from error
        raise BadFile(f"{found.weights} is not in a layout that timm can convert: {error!r}") from error


def _describe_resampling(
    before: Mapping[str, tuple[int, ...]], after: Mapping[str, tuple[int, ...]], positions: str
) -> tuple[str, ...]:
    """In words, that the positions of a grid of patches became those of another; nothing if the grid is the same."""
    if len(before.get(positions, ())) != 3 or positions not in after:
        return ()
    old, new = (math.isqrt(shapes[positions][1]) for shapes in (before, after))
    return () if old == new else (f"positions of {old} x {old} patches (resampled to {new} x {new})",)
