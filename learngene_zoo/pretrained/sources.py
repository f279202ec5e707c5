"""Sources of ancestry models, and the facts about a model before its weights are read.

Sources: `timm:NAME[.TAG]`, `hf-hub:organisation/name[@revision]`, a local folder in timm's layout,
a safetensors file (config.json beside it, or `FILE.safetensors#architecture`), the name of a model
on the zoo's shelf, and `bundled`, the ancestry model there. Folders and repositories may also have
transformers' format (from_transformers.py) or open_clip's (from_open_clip.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from learngene_zoo.artifacts.records import LOCAL_SCHEMES
from learngene_zoo.errors import (
    BadFile,
    Unavailable,
    WrongCall,
    ZooError,
    find_nearest,
    refuse_unknown,
    suggest_path,
)
from learngene_zoo.families import timm_config, transformers_config
from learngene_zoo.families.family import TransformersNames, find_family, iterate_families
from learngene_zoo.families.spec import Spec
from learngene_zoo.families.timm_config import find_architecture
from learngene_zoo.families.transformers_config import read_text
from learngene_zoo.hub.client import (
    HubFile,
    Repository,
    fetch_from_hub,
    read_card_licence,
    read_licence,
)
from learngene_zoo.pretrained import from_open_clip as open_clip
from learngene_zoo.pretrained import from_transformers as foreign
from learngene_zoo.pretrained.formats.layout import FORMATS, TRANSFORMERS
from learngene_zoo.pretrained.from_transformers_towers import unwrap_tower
from learngene_zoo.pretrained.layouts import choose_tensors
from learngene_zoo.settings import to_json
from learngene_zoo.storage import (
    CONFIG,
    EXPORTED,
    INDEX,
    TOKENIZER,
    TOKENIZER_FILES,
    WEIGHTS,
    StateDict,
    Tensors,
    is_index,
    read_json,
    read_shapes,
    read_weight_map,
    refuse_pickle,
)
from learngene_zoo.text import name_option, quote_path

_TEXT_CLASSIFIER = "ForSequenceClassification"  # the end of the names of classifiers
_WEIGHTS = (WEIGHTS, INDEX)  # names of the files of weights
# Renames tensors of another package to timm's names, and describes those that are left out.
RenameTensors = Callable[[Tensors, Spec], tuple[StateDict, tuple[str, ...]]]


@dataclass(frozen=True, kw_only=True)
class AncestryFiles:
    """The facts about an ancestry model and its weights file, before it is read."""

    spec: Spec
    images: Mapping[str, Any]  # timm's pretrained_cfg
    weights: Path
    licence: str = "unknown"
    revision: str | None = None
    rename: RenameTensors | None = None  # if the weights have another package's names
    architecture: str = ""  # timm's name, if it is known
    texts: Mapping[str, str] = field(default_factory=dict)  # the tokenizer's files by name


@dataclass(frozen=True)
class Pretrained:
    """Pretrained weights of timm: their `pretrained_cfg`, the file, and their licence."""

    images: Mapping[str, Any]
    weights: HubFile
    licence: str


def find(source: str, offline: bool, accept: Callable[[Spec], object]) -> AncestryFiles:
    """Return the model that a source names.

    `accept` is called with its spec before its weights are downloaded.
    """
    scheme, name = split_source(source)
    if scheme == "timm":
        return _find_timm(name, offline, accept)
    if scheme == "hf-hub":
        return _find_hub(_parse_repository(name), offline, accept)
    path = _parse_local_path(scheme, name)
    description, weights = _read_local_config(path)
    accept(description.spec)
    images = description.images()
    return AncestryFiles(
        spec=description.spec,
        images=images,
        weights=weights,
        licence=_find_licence(images, path),
        rename=description.rename,
        architecture=description.architecture,
        texts=description.texts(),
    )


def _find_licence(images: Mapping[str, Any], folder: str) -> str:
    """Return the licence in the config of a local model, or on the card in its folder."""
    licence, card = str(images.get("license") or "unknown"), Path(folder, "README.md")
    return read_licence(card) if licence == "unknown" and card.is_file() else licence


def _find_timm(name: str, offline: bool, accept: Callable[[Spec], object]) -> AncestryFiles:
    spec = timm_config.read_architecture(name)
    accept(spec)
    pretrained = fetch_from_timm(name, offline=offline)
    return AncestryFiles(
        spec=spec,
        images=pretrained.images,
        weights=pretrained.weights.path,
        licence=pretrained.licence,
        revision=pretrained.weights.commit,
        architecture=name.partition(".")[0],
    )


def fetch_from_timm(name: str, *, offline: bool) -> Pretrained:
    """Fetch the weights of a pretrained model of timm's from its Hub repository.

    A card with the licence lies beside them. Raises `WrongCall` for a name that timm does not have,
    `Unavailable` if it has no weights, `BadFile` if they are a pickle.
    """
    timm_config.check_timm_name(name)
    import timm

    cfg = timm.models.get_pretrained_cfg(name)
    if cfg is None or not cfg.hf_hub_id:
        tags = ", ".join(timm.list_pretrained(f"{name.partition('.')[0]}.*")) or "none"
        raise Unavailable(f"timm:{name} has no weights on the Hub; available: {tags}")
    repository = Repository(cfg.hf_hub_id)
    if cfg.hf_hub_filename:
        refuse_pickle(Path(cfg.hf_hub_filename))
    weights = fetch_from_hub(repository, cfg.hf_hub_filename or WEIGHTS, offline=offline)
    licence = read_card_licence(replace(repository, revision=weights.commit), offline=offline)
    return Pretrained(
        images=timm_config.read_image_settings(
            {"pretrained_cfg": to_json(cfg.to_dict())}, f"timm:{name}"
        ),
        weights=weights,
        licence=licence if licence != "unknown" else cfg.license or "unknown",
    )


def _find_hub(
    repository: Repository, offline: bool, accept: Callable[[Spec], object]
) -> AncestryFiles:
    folder, config = _read_on_hub(repository, offline)
    description = _read_description(config, folder)
    accept(description.spec)
    return AncestryFiles(
        spec=description.spec,
        images=description.images(),
        weights=find_weights_on_hub(folder.repository, description.weights, offline=offline),
        licence=read_card_licence(folder.repository, offline=offline),
        revision=folder.repository.revision,
        rename=description.rename,
        architecture=description.architecture,
        texts=description.texts(),
    )


def find_weights_on_hub(
    repository: Repository, names: Sequence[str] = _WEIGHTS, *, offline: bool
) -> Path:
    """Return the weights file of a repository at its commit.

    If it is an index, every shard is fetched too. Raises as `fetch_from_hub` does.
    """
    weights = _find_on_hub(repository, names, offline).path
    if is_index(weights):
        for shard in sorted(set(read_weight_map(weights).values())):
            fetch_from_hub(repository, shard, offline=offline)
    return weights


def _read_on_hub(
    repository: Repository, offline: bool
) -> tuple[_HubFolder, Mapping[str, Any] | None]:
    """Return a repository at one commit, and its config.json.

    None if it has only open_clip's.
    """
    file = _find_on_hub(repository, (CONFIG, open_clip.CONFIG), offline)
    folder = _HubFolder(replace(repository, revision=file.commit), str(repository), offline)
    return folder, read_json(file.path) if file.path.name == CONFIG else None


def _find_on_hub(repository: Repository, names: Sequence[str], offline: bool) -> HubFile:
    """Return the first of these files that the repository has, or offline the cache.

    Raises as `fetch_from_hub` for the first.
    """
    missing: list[ZooError] = []
    for name in names:
        try:
            return fetch_from_hub(repository, name, offline=offline)
        except (BadFile, Unavailable) as error:
            if isinstance(error, Unavailable) and not offline:
                raise
            missing.append(error)
    raise missing[0]


def read_spec_at(source: str, *, offline: bool = False) -> Spec:
    """Return the spec of any model that a source can name.

    Stitched models, which no method condenses, are included.
    """
    scheme, name = split_source(source)
    if scheme == "timm":
        spec = find_architecture(name)
        usual = "." not in name or name.endswith("in1k")  # other tags may have other heads
        return spec if spec and usual else timm_config.read_architecture(name)
    if scheme == "hf-hub":
        folder, config = _read_on_hub(_parse_repository(name), offline)
        return _read_description(config, folder).spec
    return _read_local_config(_parse_local_path(scheme, name))[0].spec


def find_format(source: str) -> str | None:
    """Return the format of a source's files: timm, transformers, open_clip or dinov2.

    The kind of a model of transformers follows, if such models are written ("transformers:vit").
    None if the format cannot be told from files on this machine.
    """
    scheme, name = split_source(source)
    if scheme in ("timm", "bundled"):
        return "timm"
    folder: _Folder | _HubFolder
    try:
        if scheme == "hf-hub":
            folder, config = _read_on_hub(_parse_repository(name), offline=True)
        else:
            file, hash_sign, _ = name.rpartition("#")
            if hash_sign and not Path(name).exists():
                return _find_format_of_tensors(read_shapes(_check_exists(Path(file))))
            path = _check_exists(Path(name))
            folder = _Folder(path if path.is_dir() else path.parent)
            config = folder.json(CONFIG)
    except ZooError:
        return None
    if _yields_to_open_clip(config) and folder.json(open_clip.CONFIG) is not None:
        return "open_clip"
    if config is None:
        return None
    config = unwrap_tower(config)
    if _is_foreign(config) and config["model_type"] not in foreign.KINDS:
        return None
    if _is_foreign(config):
        kind = str(config["model_type"]).removesuffix("_vision_model")
        return f"{TRANSFORMERS}:{kind}" if kind in FORMATS[TRANSFORMERS] else TRANSFORMERS
    return "dinov2" if "dinov2" in config else "timm"


def _find_format_of_tensors(names: Collection[str]) -> str:
    """Return the format of a file by the names of its tensors."""
    if any(name.startswith("visual.") for name in names):
        return "open_clip"
    return "dinov2" if "mask_token" in names else "timm"


def check_source(source: str) -> None:
    """Raise for a source that cannot name an ancestry model, without opening it.

    torch is not imported.
    """
    scheme, name = split_source(source)
    if scheme == "path":
        path = Path(_parse_local_path(scheme, name))
        if not path.exists() and not Path(name.rpartition("#")[0] or name).exists():
            raise _refuse_missing(name)
    elif scheme == "timm" and find_architecture(name) is None:
        timm_config.check_timm_name(name)


def split_source(source: str) -> tuple[str, str]:
    """Return the scheme (`timm`, `hf-hub`, `bundled` or `path`) and the rest.

    Raises `WrongCall`.
    """
    scheme, colon, name = source.partition(":")
    if source == "bundled":
        return "bundled", ""
    if colon and scheme in ("timm", "hf-hub"):
        if not name:
            raise WrongCall(
                f"{source!r} does not name a model; write timm:deit_base_patch16_224 or "
                "hf-hub:organisation/name"
            )
        return scheme, name
    if not source:
        raise WrongCall(
            "the ancestry is empty; write timm:NAME, hf-hub:organisation/name, a folder, or bundled"
        )
    return "path", source


def _parse_repository(name: str) -> Repository:
    repository, _, revision = name.partition("@")
    return Repository(repository, revision or None)


def _parse_local_path(scheme: str, name: str) -> str:
    from learngene_zoo.artifacts.shelf import BUNDLED_CARD, find_cards_folder, is_card

    if scheme != "bundled" and is_card(name) and not Path(name).exists():
        return str(find_cards_folder() / name)
    if scheme == "bundled":
        card = find_cards_folder() / BUNDLED_CARD
        if not card.is_dir():
            raise Unavailable(
                f"this installation has no bundled ancestry model ({card}); name another one"
            )
        return str(card)
    return name


def _read_local_config(reference: str) -> tuple[_Description, Path]:
    """Return the description and the weights of a local source.

    It is a folder, a safetensors file, or FILE.safetensors#architecture.
    """
    file, hash_sign, name = reference.rpartition("#")
    if hash_sign and not Path(reference).exists():
        weights = _check_exists(Path(file))
        if weights.is_dir():
            weights = find_local_weights(weights)
        spec = _adopt_head(weights, find_architecture(name) or timm_config.read_architecture(name))
        return _Description(spec=spec, architecture=name.partition(".")[0]), weights
    path = _check_exists(Path(reference))
    folder = _Folder(path if path.is_dir() else path.parent)
    config = folder.json(CONFIG)
    if config is None and folder.json(open_clip.CONFIG) is None:
        weights = find_local_weights(path) if path.is_dir() else path
        remedy = f"write {weights}#ARCHITECTURE to say which timm model it is"
        if folder.text(TOKENIZER) is not None:
            remedy = "copy that of this text model"
        raise BadFile(f"there is no {CONFIG} beside {weights}; {remedy}")
    if config and "method" in config and "architecture" not in config:
        remedy = f"build models from it with `lgzoo expand {quote_path(path)}`"
        raise BadFile(f"{path} is a learngene, not an ancestry model; {remedy}")
    description = _read_description(config, folder)
    return description, find_local_weights(path, description.weights) if path.is_dir() else path


def _adopt_head(weights: Path, spec: Spec) -> Spec:
    """Return the spec of an architecture with the classes of a weights file.

    0 classes if it has no head.
    """
    shapes = read_shapes(weights)
    names, _ = choose_tensors(shapes, str(weights))
    for name, axis in (("head.weight", 0), ("visual.head.proj.weight", 0), ("visual.proj", 1)):
        shape = shapes[names[name]] if name in names else ()
        if len(shape) == 2:
            return spec.with_(classes=shape[axis])
    return spec.with_(classes=0)


@dataclass(frozen=True)
class _Folder:
    """A local folder."""

    path: Path

    def name_of(self, file: str) -> str:
        """Return the path of a file in it, for a message."""
        return str(self.path / file)

    def json(self, file: str) -> Mapping[str, Any] | None:
        """Return the content of a file in it; None if there is none of that name."""
        return read_json(self.path / file) if (self.path / file).is_file() else None

    def text(self, file: str) -> str | None:
        """Return the text of a file in it; None if there is none of that name."""
        return read_text(self.path / file) if (self.path / file).is_file() else None


@dataclass(frozen=True)
class _HubFolder:
    """A repository at one commit; `name` is the user's reference to it."""

    repository: Repository
    name: str
    offline: bool

    def name_of(self, file: str) -> str:
        """Return the name of a file in it, for a message."""
        return f"{file} of {self.name}"

    def json(self, file: str) -> Mapping[str, Any] | None:
        """Return the content of a file in it; None if there is none of that name."""
        try:
            return read_json(fetch_from_hub(self.repository, file, offline=self.offline).path)
        except BadFile:
            return None

    def text(self, file: str) -> str | None:
        """Return the text of a file in it; None if there is none of that name.

        Offline, a file that is not cached counts as absent.
        """
        try:
            path = fetch_from_hub(self.repository, file, offline=self.offline).path
        except BadFile:
            return None
        except Unavailable:
            if self.offline:
                return None
            raise
        return read_text(path)


@dataclass(frozen=True, kw_only=True)
class _Description:
    """The facts in the files beside the weights.

    `images` reads timm's pretrained_cfg, for which it may fetch another file.
    """

    spec: Spec
    images: Callable[[], Mapping[str, Any]] = dict
    weights: Sequence[str] = _WEIGHTS  # their possible names
    rename: RenameTensors | None = None
    architecture: str = ""  # timm's name, if it is known
    texts: Callable[[], Mapping[str, str]] = dict  # reads the tokenizer's files


def _is_foreign(config: Mapping[str, Any]) -> bool:
    """Return whether a config.json is that of a model in transformers' format."""
    return isinstance(config.get("model_type"), str) and "architecture" not in config


def _yields_to_open_clip(config: Mapping[str, Any] | None) -> bool:
    """Return whether a config of open_clip's has precedence over a config.json.

    It has over that of a model with two towers in transformers' format, of a kind that is not read,
    and over none.
    """
    return config is None or (_is_foreign(config) and config["model_type"] not in foreign.KINDS)


def _read_description(
    config: Mapping[str, Any] | None, folder: _Folder | _HubFolder
) -> _Description:
    """Read a config.json of timm or transformers, or else open_clip's config.

    open_clip's is read if there is no config.json, or one of a kind that is not supported.
    """
    where = folder.name_of(CONFIG)
    family = None if config is None else find_family(config)
    if config is not None and family is not None and family.transformers is not None:
        return _describe_text_model(config, family.transformers, folder)
    if config is None or _yields_to_open_clip(config):
        other, name = folder.json(open_clip.CONFIG), folder.name_of(open_clip.CONFIG)
        if config is None or other is not None:
            return _Description(
                spec=open_clip.read_spec(other or {}, name),
                images=partial(open_clip.read_images, other or {}, name),
                weights=open_clip.WEIGHTS,
                rename=open_clip.select_trunk,
            )
    if _is_foreign(config):
        images = partial(foreign.read_images, config, where, folder.json)
        return _Description(
            spec=foreign.read_spec(config, where),
            images=images,
            rename=partial(foreign.rename_tensors, config),
        )
    return _Description(
        spec=timm_config.read_spec(config, where),
        images=partial(timm_config.read_image_settings, config, where),
        architecture=str(config["architecture"]).partition(".")[0],
    )


def _describe_text_model(
    config: Mapping[str, Any], names: TransformersNames, folder: _Folder | _HubFolder
) -> _Description:
    from learngene_zoo.families import sentence_transformers

    where, read = folder.name_of(CONFIG), cache(folder.text)
    spec = transformers_config.read_spec(config, where)
    spec = sentence_transformers.read_pooling(spec, config, read, where)
    spec = transformers_config.read_pad(spec, config, read)
    others = sentence_transformers.list_left_out_parts(read, where)
    return _Description(
        spec=spec,
        images=lambda: {
            "label_names": list(transformers_config.class_names_in(config, spec, where))
        },
        rename=partial(_rename_text_tensors, config, names, others),
        texts=lambda: transformers_config.set_right_side(
            {name: text for name in TOKENIZER_FILES if (text := read(name)) is not None}
        ),
    )


def _rename_text_tensors(
    config: Mapping[str, Any],
    names: TransformersNames,
    others: Sequence[str],
    stored: Tensors,
    spec: Spec,
) -> tuple[StateDict, tuple[str, ...]]:
    """Rename tensors; also return what is left out, with `others` beside the tensors."""
    state, left_out = names.rename(stored, spec)
    head = transformers_config.describe_left_out_head(config, [_TEXT_CLASSIFIER])
    return state, (*left_out, *head, *others)


def _check_exists(path: Path) -> Path:
    if not path.exists():
        raise _refuse_missing(str(path))
    if path.is_file():
        refuse_pickle(path)
        if path.suffix.lower() in EXPORTED:
            raise WrongCall(
                f"{path} is an exported file, which cannot be changed; name the folder of the "
                "model that it was exported from"
            )
        if path.suffix != ".safetensors" and not is_index(path):
            raise BadFile(
                f"{path} is not a safetensors file; expected a folder or a .safetensors file"
            )
    return path


def find_local_weights(folder: Path, names: Sequence[str] = _WEIGHTS) -> Path:
    """Return the weights file of a folder.

    If it is missing, the error names a pickle that is there instead. Raises `BadFile`.
    """
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    if path is None:
        for file in sorted(folder.iterdir()):
            refuse_pickle(file)
        raise BadFile(f"{folder / names[0]} does not exist; {_describe_lack(folder)}")
    return path


def _describe_lack(folder: Path) -> str:
    """Return what a folder without weights lacks."""
    if (folder / CONFIG).is_file():
        return "the folder has no weights"
    return f"the folder has no {CONFIG} and no weights, so it is not a pretrained model"


def _may_be_model(path: Path) -> bool:
    """Return whether a path has the form of a pretrained model."""
    return path.suffix == ".safetensors" or (path / CONFIG).is_file()


def _refuse_missing(name: str) -> WrongCall:
    scheme, colon, _ = name.partition(":")
    if colon and scheme in LOCAL_SCHEMES:
        return WrongCall(
            f"{name} is data, not a model; name it with {name_option('task')} or "
            f"{name_option('images')}"
        )
    if colon and "/" not in scheme and len(scheme) > 1:
        return refuse_unknown("source of ancestry models", scheme, ["timm", "hf-hub"])
    if find_architecture(name):
        return WrongCall(f"no file or folder {name}; did you mean timm:{name}?")
    if near := suggest_path(Path(name), "", _may_be_model):
        return WrongCall(f"no file or folder {name}; {near}")
    if name.count("/") == 1 and not name.startswith((".", "/")):
        return WrongCall(f"no file or folder {name}; did you mean hf-hub:{name}?")
    if find_nearest(name, ["bundled"]):
        return WrongCall(f"no file or folder {name}; did you mean bundled?")
    from learngene_zoo.artifacts import shelf

    card = find_nearest(name, [card for card in shelf.list_names() if card.startswith("ancestry-")])
    if card and name.startswith("ancestry"):
        return WrongCall(f"no file or folder {name}; did you mean {card}?")
    close = find_nearest(
        name, [listed for kind in iterate_families() for listed in kind.architectures]
    )
    hint = f"; did you mean timm:{close}?" if close else " to open as an ancestry model"
    return WrongCall(f"no file or folder {name}{hint}")
