"""`Descendant`: a model built from a learngene (or trained), as tensors, spec and provenance.

Its folder is timm's: `timm.create_model("local-dir:PATH", pretrained=True)` opens it without this
package (a dense or a stitched model after `import learngene_zoo.timm`). The folder of a text
model is transformers': `AutoModelForSequenceClassification.from_pretrained(PATH)` opens it, or
`AutoModel` if it has no head, and `AutoTokenizer` its tokenizer. This package adds only the key
`learngene` of its config.json. The tensors of a loaded descendant are read from disk when they
are used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from learngene_zoo.artifacts.records import (
    CONTROLS,
    FORMAT,
    Control,
    check_format,
    check_not_converted,
    join_licences,
    read_provenance,
)
from learngene_zoo.atomic import new_folder
from learngene_zoo.errors import BadFile, WrongCall, refuse_unknown
from learngene_zoo.families import tensors
from learngene_zoo.families.family import Convention, Cost, count_cost, get_table
from learngene_zoo.families.picture_format import (
    USUAL_VIEW,
    Fit,
    InputFormat,
    View,
    fit_view,
)
from learngene_zoo.families.picture_spec import require_pictures
from learngene_zoo.families.spec import Spec
from learngene_zoo.families.tensors import (
    Model,
    Scheme,
    build_model,
    check_state,
    fill_missing_tensors,
    get_shapes,
    initialise,
)
from learngene_zoo.families.text_spec import TextSpec
from learngene_zoo.families.timm_config import (
    check_agreement,
    check_keys,
    read_image_settings,
    read_normalisation,
    read_view,
    write_pretrained_cfg,
    write_timm_config,
)
from learngene_zoo.families.transformers_config import check_agreement as check_text_agreement
from learngene_zoo.families.transformers_config import (
    check_tokenizer,
    class_names_in,
    find_names,
    fingerprint_tokenizer,
    read_text_format,
    read_tokenizer_files,
    write_transformers_config,
)
from learngene_zoo.settings import Json, fingerprint, from_json, to_json
from learngene_zoo.storage import (
    CONFIG,
    WEIGHTS,
    StateDict,
    Tensors,
    fingerprint_of_state,
    read_json,
    write_json,
    write_tensors,
)


@dataclass(frozen=True, kw_only=True, repr=False)
class Descendant:
    """A complete model; tensors of `state` can share memory, those of `model()` never do.

    `inherited` names the tensors that come from a learngene; the others were initialised. `mean`
    and `std` normalise the images, per channel; `view` describes how they are resized and cropped.
    """

    spec: Spec
    state: StateDict
    inherited: frozenset[str] = frozenset()
    provenance: Mapping[str, Json] = field(default_factory=dict)
    task: str | None = None
    class_names: tuple[str, ...] = ()
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    view: View = USUAL_VIEW
    # Written beside config and weights; of a text model its tokenizer among them.
    files: Mapping[str, str] = field(default_factory=dict, compare=False)
    folder: Path | None = None  # where it was loaded from

    def __post_init__(self) -> None:
        if not len(self.mean) == len(self.std) == self.spec.channels:
            raise WrongCall(
                f"mean and std have {len(self.mean)} and {len(self.std)} values for "
                f"{self.spec.channels} channels"
            )
        if self.class_names and len(self.class_names) != self.spec.classes:
            raise WrongCall(f"{len(self.class_names)} class names for {self.spec.classes} classes")

    def __repr__(self) -> str:
        spec, made_by = self.spec, self.provenance.get("method", "")
        where = f", folder={str(self.folder)!r}" if self.folder else ""
        size = f"{spec.layers} layers, width {self.width}, {self.cost().params:,} parameters"
        return (
            f"Descendant({f'{made_by}: ' if made_by else ''}{size}, task={self.task!r}, "
            f"classes={spec.classes}{where})"
        )

    @property
    def classes(self) -> int:
        """Return the number of classes."""
        return self.spec.classes

    @property
    def width(self) -> int:
        """Return the width of the tokens; of a stitched model, the largest width."""
        return max(segment.width for segment in self.spec.segments)

    @property
    def dense(self) -> bool:
        """Return whether the model has one class per pixel."""
        return self.spec.dense

    @property
    def identity(self) -> Json:
        """Return the data that distinguish its function from that of other models."""
        return fingerprint_of(self)

    @property
    def input_format(self) -> Any:
        """Return how images or texts are presented to the model: `InputFormat`, `TextFormat`.

        Raises `WrongCall` for a text model without a tokenizer.
        """
        if isinstance(self.spec, TextSpec):
            return read_text_format(self.spec, self.files)
        spec = require_pictures(self.spec)
        return InputFormat(
            image_size=spec.image_size,
            channels=spec.channels,
            mean=self.mean,
            std=self.std,
            view=self.view,
        )

    @property
    def licence(self) -> str:
        """Return the licence of the ancestry models; "unknown" if any of theirs is."""
        records = self.provenance.get("ancestries")
        if not isinstance(records, (list, tuple)) or not records:
            records = [self.provenance]
        return join_licences(
            str(record.get("licence", "unknown")) if isinstance(record, Mapping) else "unknown"
            for record in records
        )

    def cost(self, convention: Convention = "exact") -> Cost:
        """Return parameters and FLOPs of one image."""
        return count_cost(self.spec, convention)

    def model(self, device: str = "cpu") -> Model:
        """Return timm's or transformers' module in eval mode, trainable, fp32.

        It shares no memory with `state`.
        """
        if isinstance(self.spec, TextSpec):
            return build_model(self.spec, self.state, class_names=self.class_names).to(device)
        images = write_pretrained_cfg(
            self.spec, mean=self.mean, std=self.std, licence=self.licence, view=self.view
        )
        labels = {"label_names": list(self.class_names)} if self.class_names else {}
        module = build_model(self.spec, self.state, pretrained_cfg={**images, **labels})
        return module if device == "cpu" else module.to(device)

    def with_state(self, state: StateDict, **changes: object) -> Descendant:
        """Return a copy with other tensors, not on disk. Raises `BadFile` if they do not fit."""
        check_state(state, self.spec, "this state")
        return replace(self, state=state, folder=None, **changes)  # type: ignore[arg-type]

    def for_task(
        self, task: str, class_names: Sequence[str], *, seed: int, dense: bool = False
    ) -> Descendant:
        """Return this model for a task, with a new head where the old one does not fit.

        The head is kept if the model was built for this task, or for none, and has its classes: as
        many, and of the same names where the model has names.
        `dense`: whether the task has one class per pixel.
        """
        names = tuple(class_names)
        if self.has_head_for(task, names, dense=dense):
            return replace(self, task=task, class_names=names)
        spec = self.spec.with_(classes=len(names), dense=dense)
        spec_names = get_shapes(spec)  # without pooling, if the head is for pixels
        backbone = tensors.select_tensors(
            self.state, lambda name: name in spec_names and not get_table(spec).is_head(name)
        )
        fresh = assemble(spec, backbone, seed=seed, mean=self.mean, std=self.std)
        return replace(
            self,
            spec=spec,
            state=fresh.state,
            inherited=self.inherited & set(backbone),
            task=task,
            class_names=names,
            folder=None,
        )

    def has_head_for(self, task: str, class_names: Sequence[str], *, dense: bool = False) -> bool:
        """Return whether the head has the classes of a task, as `for_task` describes."""
        is_same = (self.spec.classes, self.spec.dense) == (len(class_names), dense)
        is_known = self.task in (task, None)
        return is_known and is_same and self.class_names in ((), tuple(class_names))

    def with_fit(self, fit: Fit | None) -> Descendant:
        """Return a copy that crops, pads or stretches pictures that are not square.

        None: as this model does.
        """
        return self if fit is None else replace(self, view=fit_view(self.view, fit), folder=None)

    def with_image_size(self, image_size: int) -> Descendant:
        """Return a copy for images of another size, whose position embedding is resampled.

        Raises `WrongCall` for a size that the model does not take.
        """
        from learngene_zoo.families.tensors import resize_positions

        spec = self.spec.with_(image_size=image_size)
        return replace(
            self, spec=spec, state=resize_positions(self.state, self.spec, spec), folder=None
        )

    def config(self) -> dict[str, Json]:
        """Return the content of its config.json.

        It has timm's or transformers' keys, and ours under `learngene`.
        """
        ours = {
            "format": FORMAT,
            "spec": to_json(self.spec),
            "inherited": sorted(self.inherited),
            "task": self.task,
        }
        host = (
            write_transformers_config(self.spec, self.class_names)
            if isinstance(self.spec, TextSpec)
            else write_timm_config(
                self.spec,
                mean=self.mean,
                std=self.std,
                class_names=self.class_names,
                licence=self.licence,
                view=self.view,
            )
        )
        return {**host, "learngene": {**to_json(self.provenance), **ours}}

    def save(
        self,
        path: str | Path,
        force: bool = False,
        before: Callable[[Path], None] | None = None,
        dtype: Literal["fp32", "fp16"] = "fp32",
    ) -> Path:
        """Write the folder atomically and return its path.

        Args:
            path: the folder.
            force: replace an existing folder of ours.
            before: called with the finished draft.
            dtype: of the stored tensors.

        Raises:
            Refused: if the folder exists and `force` is not set.
        """
        import torch

        from learngene_zoo.artifacts.card import render_descendant_card

        state = tensors.cast(self.state, {"fp32": torch.float32, "fp16": torch.float16}[dtype])
        config = self.config()
        texts = {"README.md": render_descendant_card(config), **self.files}
        if isinstance(self.spec, TextSpec):
            from learngene_zoo.families.sentence_transformers import write_sentence_files

            texts |= write_sentence_files(self.spec)
        with new_folder(Path(path), force, before) as draft:
            write_json(draft / CONFIG, config)
            write_tensors(draft / WEIGHTS, state)
            for name, text in texts.items():
                (draft / name).parent.mkdir(exist_ok=True)
                (draft / name).write_text(text, encoding="utf-8")
        return Path(path)


def assemble(
    spec: Spec,
    parts: StateDict,
    *,
    seed: int,
    scheme: Scheme = "timm",
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    view: View = USUAL_VIEW,
    provenance: Mapping[str, Json] | None = None,
    task: str | None = None,
    class_names: Sequence[str] = (),
    files: Mapping[str, str] | None = None,
) -> Descendant:
    """Build a descendant from inherited parts.

    Args:
        spec: the shape of the model.
        parts: inherited tensors by name. Every other tensor is initialised, see
            `fill_missing_tensors`.
        seed: for the initialised tensors.
        scheme: of the initialisation.
        mean: mean of the images per channel; default: 0.5.
        std: standard deviation of the images per channel; default: 0.5.
        view: how images are resized and cropped.
        provenance: records for its config.json.
        task: the task that the model is for.
        class_names: names of its classes.
        files: texts to write beside config and weights; of a text model its tokenizer.
    """
    return Descendant(
        spec=spec,
        state=fill_missing_tensors(spec, parts, seed, scheme),
        inherited=frozenset(parts),
        provenance=dict(provenance or {}),
        task=task,
        class_names=tuple(class_names),
        mean=tuple(mean) if mean is not None else (0.5,) * spec.channels,
        std=tuple(std) if std is not None else (0.5,) * spec.channels,
        view=view,
        files=dict(files or {}),
    )


@dataclass(frozen=True, kw_only=True)
class _DescendantRecord:
    """The keys read under `learngene`; every other key there is provenance."""

    format: int
    spec: Spec
    inherited: tuple[str, ...] = ()
    task: str | None = None


def load_descendant(path: Path | str) -> Descendant:
    """Open a descendant's folder with strict checks; tensors are read when they are used.

    Raises `WrongCall` if there is no such folder and `BadFile` if it cannot be trusted or was not
    made by this package.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise WrongCall(f"no model folder at {folder}; make one with `lgzoo expand`")
    where = str(folder / CONFIG)
    config = read_json(folder / CONFIG)
    ours = config.get("learngene")
    if "method" in config and ours is None:
        raise BadFile(
            f"{folder} is a learngene, not a model; build one with `lgzoo expand {folder}`"
        )
    if not isinstance(ours, dict):
        raise BadFile(
            f"{where} has no key 'learngene', so this package did not make it; use it as an "
            "ancestry model (first_k, expanded to all layers, is the same model)"
        )
    check_format(ours, where)
    check_not_converted(config, where)
    if ours.get("method") == "timm":
        raise BadFile(
            f"{folder} is a model of timm's, not a descendant; it can be finetuned, evaluated and "
            "compared, and timm opens it"
        )
    record_fields = {
        key: value for key, value in ours.items() if key in _DescendantRecord.__dataclass_fields__
    }
    record = from_json(_DescendantRecord, record_fields, f"{where}: learngene")
    read_provenance(ours, f"{where}: learngene")
    names = find_names(record.spec)
    inputs = (_read_images if names is None else _read_texts)(config, record.spec, folder)
    weights = Tensors(folder / WEIGHTS)
    state: StateDict = weights
    if names is not None and not get_shapes(record.spec).keys() <= weights.keys():
        # `AutoModel.save_pretrained` leaves out the prefix of the names.
        state, _ = names.rename(weights, record.spec)
    check_state(state, record.spec, str(weights.path))
    absent = sorted(set(record.inherited) - set(get_shapes(record.spec)))
    if absent:
        raise BadFile(f"{where}: inherited names {absent[0]!r}, which this model does not have")
    try:
        return Descendant(
            spec=record.spec,
            state=state,
            inherited=frozenset(record.inherited),
            provenance={key: value for key, value in ours.items() if key not in record_fields},
            task=record.task,
            folder=folder,
            **inputs,
        )
    except WrongCall as error:
        raise BadFile(f"{where}: {error}") from error


def _read_images(config: Mapping[str, Json], spec: Spec, folder: Path) -> dict[str, Any]:
    """Check a config.json of timm's; return class names, normalisation and view of a model."""
    where = str(folder / CONFIG)
    check_keys(config, where)
    check_agreement(config, spec, where)
    images = read_image_settings(config, where)
    mean, std = read_normalisation(images, spec.channels)
    names = tuple(images.get("label_names", ()))
    return {"class_names": names, "mean": mean, "std": std, "view": read_view(images, where)}


def _read_texts(config: Mapping[str, Json], spec: Spec, folder: Path) -> dict[str, Any]:
    """Check a config.json of transformers'; return class names and tokenizer of a model."""
    where, files = str(folder / CONFIG), read_tokenizer_files(folder)
    check_text_agreement(config, spec, where)
    check_tokenizer(files, spec, str(folder))
    names = class_names_in(config, spec, where)
    return {"class_names": names, "mean": (), "std": (), "files": files}


def fingerprint_of(descendant: Descendant) -> str:
    """Return a hash of its function: spec, view, normalisation, tokenizer and every tensor.

    A resumed run compares it.
    """
    view = [] if descendant.view == USUAL_VIEW else [to_json(descendant.view)]
    inputs = [*view]
    if isinstance(descendant.spec, TextSpec):
        inputs.append(fingerprint_tokenizer(descendant.files))
    settings = [to_json(descendant.spec), descendant.mean, descendant.std, *inputs]
    return fingerprint([*settings, fingerprint_of_state(descendant.state)])


def apply_control(descendant: Descendant, control: Control, seed: int) -> Descendant:
    """Replace the inherited tensors of a descendant by a control, as a function of the seed.

    `shuffled` permutes the entries of every inherited tensor: the gain of a method over it is
    inherited knowledge, and the gain of `shuffled` over random weights is the scale of the
    inherited numbers. `stem` keeps the inherited stem and final norm and draws every other
    inherited tensor as timm does, `stem_fan_in` with a standard deviation of 1/sqrt(fan in): see
    `initialise`.

    Raises `WrongCall` for a control that does not exist.
    """
    if control not in CONTROLS:
        raise refuse_unknown("control", control, CONTROLS)
    if control == "shuffled":
        return descendant.with_state(
            tensors.shuffle_tensors(descendant.state, descendant.inherited, seed)
        )
    table = get_table(descendant.spec)
    stem_names = {
        name for name in descendant.inherited if table.is_stem(name) or table.is_final_norm(name)
    }
    scheme: Scheme = "fan_in" if control == "stem_fan_in" else "timm"
    fresh = initialise(descendant.spec, seed, scheme, names=descendant.inherited - stem_names)
    return descendant.with_state({**descendant.state, **fresh}, inherited=frozenset(stem_names))
