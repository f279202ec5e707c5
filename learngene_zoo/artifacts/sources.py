"""Where an ancestry model is found: what its source says of it, before its weights are read.

Sources: `timm:NAME[.TAG]`, `hf-hub:organisation/name[@revision]`, a local folder in timm's layout, a safetensors file
(config.json beside it, or `FILE.safetensors#architecture`), the name of a model on the zoo's shelf, and `bundled`, the
ancestry model there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from learngene_zoo.artifacts import foreign
from learngene_zoo.artifacts.hub import HubFile, Repository, fetch_from_hub, licence_on_card
from learngene_zoo.errors import BadFile, Unavailable, WrongCall, unknown
from learngene_zoo.families import timm_config
from learngene_zoo.families.family import families
from learngene_zoo.families.spec import Spec
from learngene_zoo.families.timm_config import architecture
from learngene_zoo.settings import to_json
from learngene_zoo.storage import CONFIG, WEIGHTS, read_json, refuse_pickle

BUNDLED_CARD = "ancestry-mini"  # its name on the shelf


@dataclass(frozen=True, kw_only=True)
class Found:
    """What is known of an ancestry model before its weights are read."""

    spec: Spec
    images: Mapping[str, Any]  # timm's pretrained_cfg
    weights: Path
    licence: str = "unknown"
    revision: str | None = None
    foreign_names: bool = False  # whether the weights can be in another layout that timm converts
    transformers: bool = False  # whether the weights have that package's names
    architecture: str = ""  # timm's name, if it is known


@dataclass(frozen=True)
class Pretrained:
    """Weights that timm knows of: its `pretrained_cfg`, the file, and their licence."""

    images: Mapping[str, Any]
    weights: HubFile
    licence: str


def find(source: str, offline: bool, accept: Callable[[Spec], object]) -> Found:
    """The model that a source names. `accept` is called with its spec before its weights are downloaded."""
    scheme, name = split_source(source)
    if scheme == "timm":
        return _find_timm(name, offline, accept)
    if scheme == "hf-hub":
        return _find_hub(_repository(name), offline, accept)
    path = _local_path(scheme, name)
    spec, images, weights = _local_config(path)
    accept(spec)
    other = (weights.parent / CONFIG).is_file() and foreign.is_foreign(read_json(weights.parent / CONFIG))
    licence = str(images.get("license", "unknown"))
    return Found(spec=spec, images=images, weights=weights, licence=licence, transformers=other)


def _find_timm(name: str, offline: bool, accept: Callable[[Spec], object]) -> Found:
    spec = timm_config.architecture_of_timm(name)
    accept(spec)
    found = pretrained_of_timm(name, offline=offline)
    return Found(
        spec=spec,
        images=found.images,
        weights=found.weights.path,
        licence=found.licence,
        revision=found.weights.commit,
        foreign_names=True,
        architecture=name.partition(".")[0],
    )


def pretrained_of_timm(name: str, *, offline: bool) -> Pretrained:
    """The weights of a pretrained model of timm's: they are in a Hub repository, beside a card with the licence.

    Raises `WrongCall` for a name that timm does not have, `Unavailable` if it has no weights, `BadFile` if they are a pickle.
    """
    import timm

    timm_config.check_timm_name(name)
    cfg = timm.models.get_pretrained_cfg(name)
    if cfg is None or not cfg.hf_hub_id:
        tags = ", ".join(timm.list_pretrained(f"{name.partition('.')[0]}.*")) or "none"
        raise Unavailable(f"timm:{name} has no weights on the Hub; available: {tags}")
    repository = Repository(cfg.hf_hub_id)
    if cfg.hf_hub_filename:
        refuse_pickle(Path(cfg.hf_hub_filename))
    weights = fetch_from_hub(repository, cfg.hf_hub_filename or WEIGHTS, offline=offline)
    licence = licence_on_card(replace(repository, revision=weights.commit), offline=offline)
    return Pretrained(
        images=timm_config.image_settings({"pretrained_cfg": to_json(cfg.to_dict())}, f"timm:{name}"),
        weights=weights,
        licence=licence if licence != "unknown" else cfg.license or "unknown",
    )


def _find_hub(repository: Repository, offline: bool, accept: Callable[[Spec], object]) -> Found:
    config_file = fetch_from_hub(repository, CONFIG, offline=offline)
    pinned = replace(repository, revision=config_file.commit)
    config, where = read_json(config_file.path), f"{CONFIG} of {repository}"
    spec, images = _described(config, where, partial(_beside_on_hub, pinned, offline))
    accept(spec)
    return Found(
        spec=spec,
        images=images,
        weights=fetch_from_hub(pinned, WEIGHTS, offline=offline).path,
        licence=licence_on_card(pinned, offline=offline),
        revision=config_file.commit,
        foreign_names=True,
        transformers=foreign.is_foreign(config),
        architecture=str(config.get("architecture", "")),
    )


def spec_at(source: str, *, offline: bool = False) -> Spec:
    """The spec of any model that a source can name, also of a stitched one, which no method condenses."""
    scheme, name = split_source(source)
    if scheme == "timm":
        known = architecture(name)
        usual = "." not in name or name.endswith("in1k")  # other tags may have other heads
        return known if known and usual else timm_config.architecture_of_timm(name)
    if scheme == "hf-hub":
        config, where = (
            read_json(fetch_from_hub(_repository(name), CONFIG, offline=offline).path),
            f"{CONFIG} of {name}",
        )
        return foreign.spec_of(config, where) if foreign.is_foreign(config) else timm_config.spec_in(config, where)
    return _local_config(_local_path(scheme, name))[0]


def split_source(source: str) -> tuple[str, str]:
    """The scheme (`timm`, `hf-hub`, `bundled` or `path`) and the rest. Raises `WrongCall`."""
    scheme, colon, name = source.partition(":")
    if source == "bundled":
        return "bundled", ""
    if colon and scheme in ("timm", "hf-hub"):
        if not name:
            raise WrongCall(
                f"{source!r} does not name a model; write timm:deit_base_patch16_224 or hf-hub:organisation/name"
            )
        return scheme, name
    if not source:
        raise WrongCall("the ancestry is empty; write timm:NAME, hf-hub:organisation/name, a folder, or bundled")
    return "path", source


def _repository(name: str) -> Repository:
    repository, _, revision = name.partition("@")
    return Repository(repository, revision or None)


def _local_path(scheme: str, name: str) -> str:
    from learngene_zoo.artifacts.shelf import cards_folder, is_card

    if scheme != "bundled" and is_card(name) and not Path(name).exists():
        return str(cards_folder() / name)
    if scheme == "bundled":
        card = cards_folder() / BUNDLED_CARD
        if not card.is_dir():
            raise Unavailable(f"this installation has no bundled ancestry model ({card}); choose one with --ancestry")
        return str(card)
    return name


def _local_config(reference: str) -> tuple[Spec, Mapping[str, Any], Path]:
    """Spec, image settings and weights file of a folder, of a safetensors file, or of FILE.safetensors#architecture."""
    file, hash_sign, name = reference.rpartition("#")
    if hash_sign and not Path(reference).exists():
        weights = _existing(Path(file))
        return architecture(name) or timm_config.architecture_of_timm(name), {}, weights
    path = _existing(Path(reference))
    weights = path / WEIGHTS if path.is_dir() else path
    if not (weights.parent / CONFIG).is_file():
        raise BadFile(
            f"there is no {CONFIG} beside {weights}; write {weights}#ARCHITECTURE to say which timm model it is"
        )
    config, where = read_json(weights.parent / CONFIG), str(weights.parent / CONFIG)
    if "method" in config and "architecture" not in config:
        raise BadFile(f"{path} is a learngene, not an ancestry model")
    spec, images = _described(config, where, partial(_beside, weights.parent))
    return spec, images, _existing_weights(weights)


def _described(
    config: Mapping[str, Any], where: str, beside: Callable[[str], Mapping[str, Any] | None]
) -> tuple[Spec, Mapping[str, Any]]:
    """Spec and image settings of a config.json, timm's or that of transformers; `beside` reads other files of its folder."""
    if foreign.is_foreign(config):
        return foreign.spec_of(config, where), foreign.images_of(config, where, beside)
    return timm_config.spec_in(config, where), timm_config.image_settings(config, where)


def _beside_on_hub(repository: Repository, offline: bool, name: str) -> Mapping[str, Any] | None:
    try:
        return read_json(fetch_from_hub(repository, name, offline=offline).path)
    except BadFile:  # the repository has none of this name
        return None


def _beside(folder: Path, name: str) -> Mapping[str, Any] | None:
    return read_json(folder / name) if (folder / name).is_file() else None


def _existing(path: Path) -> Path:
    if not path.exists():
        raise _nothing_at(str(path))
    if path.is_file():
        refuse_pickle(path)
        if path.suffix != ".safetensors":
            raise BadFile(f"{path} is not a safetensors file; expected a folder or a .safetensors file")
    return path


def _existing_weights(weights: Path) -> Path:
    """The weights file of a folder; if it is missing, the error names a pickle that is there instead."""
    if not weights.is_file():
        for file in sorted(weights.parent.iterdir()):
            refuse_pickle(file)
        raise BadFile(f"{weights} does not exist; the folder has no weights")
    return weights


def _nothing_at(name: str) -> WrongCall:
    scheme, colon, _ = name.partition(":")
    if colon and "/" not in scheme and len(scheme) > 1:
        return unknown("source of ancestry models", scheme, ["timm", "hf-hub"])
    if architecture(name):
        return WrongCall(f"no file or folder {name}; did you mean timm:{name}?")
    if name.count("/") == 1 and not name.startswith((".", "/")):
        return WrongCall(f"no file or folder {name}; did you mean hf-hub:{name}?")
    close = str(unknown("ancestry", name, [f"timm:{known}" for kind in families() for known in kind.architectures]))
    return WrongCall(close if "did you mean" in close else f"no file or folder {name} to open as an ancestry model")
