"""`TimmModel`: any image classifier of timm's, with its input size and normalisation.

Descendants are compared with it. Sources: `timm:NAME[.TAG]`, `hf-hub:organisation/name[@revision]`,
and a folder in timm's layout. A saved `TimmModel` is such a folder; this package adds only the key
`learngene` of its config.json.

`open_model` opens any model: a `TimmModel`, or a descendant of ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from learngene_zoo.artifacts.records import (
    FORMAT,
    check_format,
    check_model,
    is_of_transformers,
    read_provenance,
)
from learngene_zoo.artifacts.shelf import find_model
from learngene_zoo.atomic import new_folder
from learngene_zoo.errors import BadFile, WrongCall, refuse_unknown
from learngene_zoo.families.picture_format import (
    Fit,
    InputFormat,
    fit_view,
)
from learngene_zoo.families.spec import parse_image_size
from learngene_zoo.families.timm_config import (
    read_image_settings,
    read_normalisation,
    read_view,
    refuse_other_head,
)
from learngene_zoo.hub.client import SCHEME, fetch_from_hub, parse_repository, read_card_licence
from learngene_zoo.pretrained.layouts import strip_wrappers
from learngene_zoo.pretrained.sources import (
    fetch_from_timm,
    find_local_weights,
    find_weights_on_hub,
)
from learngene_zoo.settings import Json, fingerprint, to_json
from learngene_zoo.storage import (
    CONFIG,
    WEIGHTS,
    StateDict,
    fingerprint_of_state,
    hash_weights,
    open_tensors,
    read_json,
    refuse_pickle,
    write_json,
    write_tensors,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from learngene_zoo.artifacts.descendant import Descendant

# Keys of timm's pretrained_cfg that describe a model's images and name its head; the others locate
# its weights.
IMAGES = [
    "input_size",
    "fixed_input_size",
    "min_input_size",
    "interpolation",
    "crop_pct",
    "crop_mode",
    "mean",
    "std",
    "pool_size",
    "first_conv",
    "classifier",
    "license",
]
# Options of `timm.create_model` that are not the architecture's own: they read files, or return
# something else than a classifier.
_REFUSED = [
    "pretrained",
    "pretrained_cfg",
    "pretrained_cfg_overlay",
    "checkpoint_path",
    "cache_dir",
    "features_only",
    "out_indices",
    "scriptable",
    "exportable",
    "no_jit",
]
_LARGEST = 65_536  # of any number among a model's arguments


@dataclass(frozen=True, kw_only=True, repr=False)
class TimmModel:
    """A complete model by timm's name and arguments; `model()` shares no memory with `state`."""

    architecture: str  # without a tag
    arguments: Mapping[str, Json] = field(default_factory=dict)  # of timm.create_model
    images: Mapping[str, Any]  # of timm's pretrained_cfg, the keys `IMAGES`
    classes: int
    state: StateDict
    provenance: Mapping[str, Json] = field(default_factory=dict)
    task: str | None = None
    class_names: tuple[str, ...] = ()
    # Written beside config and weights.
    files: Mapping[str, str] = field(default_factory=dict, compare=False)
    folder: Path | None = None  # where it was loaded from

    dense = False

    def __repr__(self) -> str:
        where = f", folder={str(self.folder)!r}" if self.folder else ""
        return (
            f"TimmModel({self.architecture!r}, task={self.task!r}, classes={self.classes}{where})"
        )

    @property
    def width(self) -> int:
        """Return the number of features before the head.

        Of a Vision Transformer it is the width of the tokens.
        """
        return int(self._create(self.classes).num_features)

    @property
    def identity(self) -> Json:
        """Return the data that distinguish its function from that of other models."""
        settings = [self.architecture, dict(self.arguments), dict(self.images), self.classes]
        return fingerprint([*settings, fingerprint_of_state(self.state)])

    @property
    def input_format(self) -> InputFormat:
        """Return how images are presented to the model."""
        channels, size, _ = self.images.get("input_size", (3, 224, 224))
        mean, std = read_normalisation(self.images, channels)
        view = read_view(self.images, self.architecture)
        return InputFormat(image_size=size, channels=channels, mean=mean, std=std, view=view)

    @property
    def licence(self) -> str:
        """Return the licence of its weights."""
        return str(self.provenance.get("licence", "unknown"))

    def model(self, device: str = "cpu") -> nn.Module:
        """Return timm's module in eval mode, trainable, fp32."""
        module = self._create(self.classes)
        module.load_state_dict(dict(self.state))
        return module.eval().to(device)

    def _create(self, classes: int) -> Any:
        """Build timm's module with newly initialised tensors and a head of that many classes."""
        return _create_model(self.architecture, self.arguments, self.images, classes)

    def with_state(self, state: StateDict, **changes: Any) -> TimmModel:
        """Return a copy with other tensors, not on disk."""
        return replace(self, state=state, folder=None, **changes)

    def for_task(
        self, task: str, class_names: Sequence[str], *, seed: int, dense: bool = False
    ) -> TimmModel:
        """Return this model for a task, with a new head where the old one does not fit.

        The head is kept if it has these very classes by name. Raises `WrongCall` for a task with a
        class per pixel.
        """
        names = tuple(class_names)
        if dense:
            raise WrongCall(
                f"{task} has one class per pixel; "
                "timm's classifiers have one per image: use a descendant"
            )
        if self.class_names == names:
            return replace(self, task=task)
        with _seed_generators(seed):
            fresh = self._create(len(names)).state_dict()
        head = _list_heads(self.images, self.architecture)
        state = {
            name: tensor if name.startswith(head) else self.state[name]
            for name, tensor in fresh.items()
        }
        return self.with_state(state, classes=len(names), task=task, class_names=names)

    def with_fit(self, fit: Fit | None) -> TimmModel:
        """Return a copy that crops, pads or stretches pictures that are not square.

        None: as this model does.
        """
        if fit is None:
            return self
        view = fit_view(self.input_format.view, fit)
        images = {**self.images, "crop_mode": view.crop_mode, "crop_pct": view.crop_pct}
        return replace(self, images=images, folder=None)

    def config(self) -> dict[str, Json]:
        """Return the content of its config.json: timm's keys, and ours under `learngene`."""
        names = {"label_names": list(self.class_names)} if self.class_names else {}
        return {
            "architecture": self.architecture,
            "num_classes": self.classes,
            "model_args": dict(self.arguments),
            "pretrained_cfg": {**self.images, "num_classes": self.classes, "license": self.licence},
            **names,
            "learngene": {**to_json(self.provenance), "format": FORMAT, "task": self.task},
        }

    def with_image_size(self, image_size: int) -> TimmModel:
        """Return a copy for images of another size, to which timm converts the weights.

        Raises `WrongCall` for a size that the architecture does not take.
        """
        from learngene_zoo.families.tensors import get_state_dict

        channels, size, _ = self.images.get("input_size", (3, 224, 224))
        image_size = parse_image_size(image_size) or size
        if image_size == size:
            return self
        images = {**self.images, "input_size": [channels, image_size, image_size]}
        names = self.arguments.keys() & {"img_size"}
        arguments = {**self.arguments, **dict.fromkeys(names, image_size)}
        try:
            with _seed_generators(0):
                module = _create_model(
                    self.architecture, arguments, images, self.classes, dict(self.state)
                )
        except (RuntimeError, ValueError, AssertionError) as error:
            raise WrongCall(
                f"{self.architecture} does not take images of {image_size} pixels: {error}"
            ) from error
        return self.with_state(get_state_dict(module), arguments=arguments, images=images)

    def save(
        self, path: str | Path, force: bool = False, before: Callable[[Path], None] | None = None
    ) -> Path:
        """Write the folder atomically; `before` is called with the finished draft.

        Raises `Refused` if the folder exists and `force` is not set.
        """
        from learngene_zoo.artifacts.card import render_timm_card

        config = self.config()
        with new_folder(Path(path), force, before) as draft:
            write_json(draft / CONFIG, config)
            write_tensors(draft / WEIGHTS, self.state)
            for name, text in {"README.md": render_timm_card(config), **self.files}.items():
                (draft / name).write_text(text, encoding="utf-8")
        return Path(path)


def open_timm_model(source: str, *, offline: bool = False) -> TimmModel:
    """Open `timm:NAME[.TAG]` or `hf-hub:organisation/name[@revision]`.

    Revision, checksum and licence are in its provenance. The weights are read by timm itself, from
    a safetensors file. Raises `WrongCall` for a name that does not exist, `BadFile` for files that
    cannot be trusted (pickles are refused), `Unavailable` for failed downloads.
    """
    scheme, _, name = source.partition(":")
    if scheme == "timm":
        pretrained = fetch_from_timm(name, offline=offline)
        model = _open_weights(
            name.partition(".")[0], {}, to_json(pretrained.images), pretrained.weights.path, source
        )
        return _add_origin(
            model, source, pretrained.weights.commit, pretrained.weights.path, pretrained.licence
        )
    repository = parse_repository(name)
    config_file = fetch_from_hub(repository, CONFIG, offline=offline)
    pinned = replace(repository, revision=config_file.commit)
    weights = find_weights_on_hub(pinned, offline=offline)
    model = _read_config(read_json(config_file.path), weights, f"{CONFIG} of {repository}")
    return _add_origin(
        model, source, pinned.revision, weights, read_card_licence(pinned, offline=offline)
    )


def load_timm_model(folder: Path) -> TimmModel:
    """Open a folder in timm's layout. Raises `BadFile` if it cannot be trusted."""
    where, config = str(folder / CONFIG), read_json(folder / CONFIG)
    weights = find_local_weights(folder)
    model = replace(_read_config(config, weights, where), folder=folder)
    ours = config.get("learngene")
    if not isinstance(ours, dict) or is_of_transformers(config):
        return _add_origin(
            model, str(folder), None, weights, str(model.images.get("license", "unknown"))
        )
    check_format(ours, where)
    read_provenance(ours, f"{where}: learngene")
    task = ours.get("task")
    if not isinstance(task, str | None):
        raise BadFile(f"{where}: learngene: task is {task!r:.40}; expected a name")
    return replace(
        model,
        task=task,
        provenance={key: ours[key] for key in ours if key not in ("format", "task")},
    )


def _add_origin(
    model: TimmModel, source: str, revision: str | None, weights: Path, licence: str
) -> TimmModel:
    origin = {"source": source, "revision": revision, "sha256": hash_weights(weights)}
    return replace(model, provenance={"method": "timm", "licence": licence, "origin": origin})


def _read_config(config: Mapping[str, Json], weights: Path, where: str) -> TimmModel:
    name, arguments = config.get("architecture"), config.get("model_args", {})
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise BadFile(
            f"{where} names no timm architecture; "
            "expected the config.json of a folder that timm can open"
        )
    refuse_other_head(config, where)
    for key, value in arguments.items():
        _check_argument(key, value, where)
    return _open_weights(name, arguments, read_image_settings(config, where), weights, where)


def _check_argument(key: str, value: Json, where: str) -> None:
    """Raise `BadFile` for an argument that is not a plain value of an architecture.

    Paths and code are never accepted.
    """
    for item in value if isinstance(value, list) else [value]:
        plain = (
            item is None
            or isinstance(item, bool)
            or (isinstance(item, str) and re.fullmatch(r"[\w-]{0,40}", item))
        )
        if key in _REFUSED or not (
            plain or (isinstance(item, (int, float)) and abs(item) <= _LARGEST)
        ):
            raise BadFile(
                f"{where}: the argument {key} is {item!r:.40}, which is refused; "
                "only plain values are accepted"
            )


def _open_weights(
    name: str, arguments: Mapping[str, Json], cfg: Mapping[str, Any], weights: Path, where: str
) -> TimmModel:
    """Return the model that timm reads from a safetensors file.

    timm converts the names of other layouts. Raises `BadFile` for weights of another model.
    """
    import timm
    import torch

    from learngene_zoo.families.tensors import get_state_dict

    if not timm.is_model(name):
        raise refuse_unknown("timm model", name, timm.list_models())
    size = cfg.get("input_size", (3, 224, 224))
    if size[1] != size[2]:
        raise BadFile(f"{where}: input_size is {list(size)}; only square images are supported")
    refuse_pickle(weights)
    stored = open_tensors(weights)
    # Every tensor is read here, so that its numbers are checked.
    state = dict(stored.select(strip_wrappers(stored, str(weights))))
    classes = int(cfg.get("num_classes", 1000))
    images = {key: value for key, value in cfg.items() if key in IMAGES}
    try:
        with torch.random.fork_rng(devices=[]):
            module = _create_model(name, arguments, images, classes, state)
    except (RuntimeError, TypeError, ValueError, KeyError, AssertionError, AttributeError) as error:
        raise BadFile(
            f"{weights} does not hold the model that {where} describes: {error}"
        ) from error
    state = {
        key: tensor.float() if tensor.is_floating_point() else tensor
        for key, tensor in get_state_dict(module).items()
    }
    names = tuple(cfg.get("label_names", ()))
    model_args = {key: value for key, value in arguments.items() if key != "num_classes"}
    return TimmModel(
        architecture=name,
        arguments=model_args,
        images=images,
        classes=classes,
        state=state,
        class_names=names if len(names) == classes else (),
    )


def _list_heads(images: Mapping[str, Any], architecture: str) -> tuple[str, ...]:
    """Return the prefixes of the names of the head's tensors."""
    from timm.models import get_pretrained_cfg_value

    named = images.get("classifier") or get_pretrained_cfg_value(architecture, "classifier")
    return tuple(f"{name}." for name in ([named] if isinstance(named, str) else named))


def _create_model(
    architecture: str,
    arguments: Mapping[str, Json],
    images: Mapping[str, Any],
    classes: int,
    state: StateDict | None = None,
) -> Any:
    """Build timm's module; with `state` timm loads it, and converts the names of other layouts.

    timm derives arguments that are not given from `images`: the size of images of a fixed size, and
    their channels.
    """
    import timm

    weights = {} if state is None else {"state_dict": state, "custom_load": False}
    return timm.create_model(
        architecture,
        pretrained=state is not None,
        pretrained_cfg={**images, "num_classes": classes, **weights},
        **{**arguments, "num_classes": classes},
    )


@contextmanager
def _seed_generators(seed: int) -> Iterator[None]:
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


# Any model: a descendant of ours, or a classifier of timm's.


def is_timm_source(reference: object) -> bool:
    """Return whether a reference names a model of timm's or of the Hub, and not a folder."""
    return isinstance(reference, str) and reference.startswith(("timm:", "hf-hub:"))


def open_model(
    model: Descendant | TimmModel | Path | str, *, offline: bool = False
) -> Descendant | TimmModel:
    """Return a model object as it is, or open the model that a reference names.

    It is a descendant that `find` resolves, or any classifier of timm's, by name (`timm:NAME`,
    `hf-hub:organisation/name`) or from a folder in timm's layout, or one of transformers' models,
    by its folder or `hf-hub:organisation/name`. Raises `WrongCall` for an object that is no model
    of this package.
    """
    if not isinstance(model, (str, Path)):
        check_model("model", model)
        return model
    if is_timm_source(model) and not _is_ours(str(model), offline):
        if _is_of_other_package(str(model), offline):
            from learngene_zoo.pretrained.formats.opening import open_transformers_model

            return open_transformers_model(str(model), offline=offline)
        return open_timm_model(str(model), offline=offline)
    return load_model(find_model(model, offline=offline))


def load_model(folder: Path) -> Descendant | TimmModel:
    """Load a descendant, a classifier of timm's, or a model of transformers from a folder.

    Raises as `load_descendant`, `load_timm_model` and `open_ancestry` do.
    """
    from learngene_zoo.artifacts.descendant import load_descendant
    from learngene_zoo.pretrained.from_transformers import is_transformers_folder

    if is_transformers_folder(folder):
        from learngene_zoo.pretrained.formats.opening import open_transformers_model

        return open_transformers_model(str(folder), folder=folder)
    if (folder / CONFIG).is_file():
        config = read_json(folder / CONFIG)
        ours = config.get("learngene", {"method": "timm"})
        of_timm = is_of_transformers(config) or (
            isinstance(ours, dict) and ours.get("method") == "timm"
        )
        if "architecture" in config and of_timm:
            return load_timm_model(folder)
    return load_descendant(folder)


def _is_of_other_package(source: str, offline: bool) -> bool:
    """Return whether `hf-hub:organisation/name` is an image model in transformers' format."""
    from learngene_zoo.pretrained.from_transformers import is_transformers_config

    if not source.startswith(SCHEME):
        return False
    config = fetch_from_hub(parse_repository(source), CONFIG, offline=offline)
    return is_transformers_config(read_json(config.path))


def _is_ours(source: str, offline: bool) -> bool:
    """Return whether `hf-hub:organisation/name` was published by this package."""
    if not source.startswith(SCHEME):
        return False
    repository = parse_repository(source)
    if repository.inside:
        return True
    config = read_json(fetch_from_hub(repository, CONFIG, offline=offline).path)
    if is_of_transformers(config):
        return False
    ours = config.get("learngene", config if "method" in config else None)
    return isinstance(ours, dict) and ("spec" in ours)
