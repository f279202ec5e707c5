"""Write and read timm's `config.json`, so that timm alone opens our folders and we open its models.

A file never contains a path or a class: arguments are numbers, flags and words from a closed list.
"""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from difflib import SequenceMatcher
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from learngene_zoo.errors import BadFile, WrongCall, refuse_unknown
from learngene_zoo.errors import find_nearest as find_nearest
from learngene_zoo.families.family import Family, get_family, get_table, iterate_families, load_host
from learngene_zoo.families.picture_format import (
    MIN_STD,
    USUAL_VIEW,
    View,
)
from learngene_zoo.families.picture_spec import require_pictures
from learngene_zoo.families.spec import LIMITS, Spec
from learngene_zoo.families.transformers_config import describe_other_head
from learngene_zoo.settings import Json, from_json, to_json
from learngene_zoo.text import check_name

# timm's defaults for a pretrained_cfg.
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_CROP_PCT = 0.875
_VIEW_FIELDS = tuple(field.name for field in fields(View))
_ROOT_KEYS = {
    "architecture",
    "num_classes",
    "num_features",
    "global_pool",
    "model_args",
    "pretrained_cfg",
    "label_names",
}


def write_timm_config(
    spec: Spec,
    *,
    mean: Sequence[float],
    std: Sequence[float],
    class_names: Sequence[str],
    licence: str,
    view: View = USUAL_VIEW,
) -> dict[str, Json]:
    """Return the root of a config.json for `timm.create_model("local-dir:...", pretrained=True)`.

    For a model that timm does not have (dense or stitched), timm understands it after `import
    learngene_zoo.timm`. The number of classes is at the root only: transformers passes it to timm
    beside `model_args`.

    Args:
        spec: the model.
        mean: mean of each channel of the images.
        std: standard deviation of each channel of the images.
        class_names: names of the classes, in order; may be empty.
        licence: licence of the weights.
        view: how images are resized and cropped.
    """
    kind = get_family(spec)
    args = {name: value for name, value in kind.arguments(spec).items() if name != "num_classes"}
    config: dict[str, Json] = {
        "architecture": kind.architecture(spec),
        "num_classes": spec.classes,
        "num_features": spec.width,
        "global_pool": args["global_pool"],
        "model_args": args,
        "pretrained_cfg": write_pretrained_cfg(
            spec, mean=mean, std=std, licence=licence, view=view
        ),
    }
    return {**config, "label_names": list(class_names)} if class_names else config


def write_pretrained_cfg(
    spec: Spec,
    *,
    mean: Sequence[float],
    std: Sequence[float],
    licence: str = "unknown",
    view: View = USUAL_VIEW,
) -> dict[str, Json]:
    """Return timm's description of a model's weights and images.

    The arguments are those of `write_timm_config`.
    """
    spec, table = require_pictures(spec), get_table(spec)
    return {
        "input_size": [spec.channels, spec.image_size, spec.image_size],
        "fixed_input_size": not spec.dynamic_image_size,
        "interpolation": view.interpolation,
        "crop_pct": view.crop_pct,
        **({"crop_mode": view.crop_mode} if view.crop_mode != USUAL_VIEW.crop_mode else {}),
        "mean": list(mean),
        "std": list(std),
        "num_classes": spec.classes,
        "pool_size": None,
        "first_conv": str(table.find_parameter("patches")).removesuffix(".weight"),
        "classifier": table.head[0].name.removesuffix(".weight"),
        "license": licence,
    }


def check_keys(config: Mapping[str, Json], where: str) -> None:
    """Raise `BadFile` for a key that `write_timm_config` does not write; `where` names the file."""
    known_keys = {*_ROOT_KEYS, "learngene"}
    extra = sorted(set(config) - known_keys)
    if extra:
        raise BadFile(
            f"{where}: unknown key {extra[0]!r}; known are {', '.join(sorted(known_keys))}"
        )


def read_spec(config: Mapping[str, Json], where: str) -> Spec:
    """Return the spec of the model that timm would build from a config.json.

    timm is imported only for architectures that no family lists.

    Args:
        config: the content of the file.
        where: the file, for messages.

    Raises:
        BadFile: for a file that is not a timm config, for arguments that no spec can express, and
            for impossible sizes.
        WrongCall: for an architecture of no family, and a head that does not choose one class.
    """
    name, args, images = (
        config.get("architecture"),
        config.get("model_args", {}),
        read_image_settings(config, where),
    )
    if not isinstance(name, str):
        raise BadFile(
            f"{where} names no timm architecture; expected the config.json of a folder that timm"
            " can open"
        )
    if not isinstance(args, dict):
        raise BadFile(f"{where}: model_args is {type(args).__name__}; expected an object")
    refuse_other_head(config, where)
    spec = find_registered(name) or find_architecture(name)
    # Without weights an architecture has images of 224 pixels: timm usually takes the image size
    # from the config of the pretrained weights.
    base = (
        spec.with_(image_size=224)
        if spec
        else read_architecture(name, pretrained_cfg={"num_classes": 1000})
    )
    stated = {"classes": images.get("num_classes", 1000)}
    size = images.get("input_size")
    if size is not None:
        stated["channels"] = size[0]
        if images.get("fixed_input_size"):
            stated["image_size"] = size[-1]
    values = {**to_json(base), **stated, **get_family(base).values(name, args, where)}
    return from_json(type(base), values, where)


def refuse_other_head(config: Mapping[str, Json], where: str) -> None:
    """Raise `WrongCall` if transformers trained the head for several labels at once or numbers."""
    # A file of timm has no such key.
    if "problem_type" in config and describe_other_head(config, labels=2):
        raise WrongCall(
            f"{where}: problem_type is {config.get('problem_type')!r:.40}, and only heads that"
            " choose one class are read; save the model without its head"
        )


def find_architecture(name: str) -> Spec | None:
    """Return the spec of a timm architecture by name, without its pretrained tag.

    None if no family lists it.
    """
    bare = name.split(".", 1)[0]
    return next(
        (kind.architectures[bare] for kind in iterate_families() if bare in kind.architectures),
        None,
    )


def find_registered(name: str) -> Spec | None:
    """Return the spec of a model that this zoo adds to timm; None for any other name."""
    return next(
        (kind.registered[name] for kind in iterate_families() if name in kind.registered), None
    )


def read_architecture(name: str, **options: Any) -> Spec:
    """Return the spec of any timm architecture, with or without a tag; nothing is downloaded.

    `options` are further arguments of `timm.create_model`. Raises `WrongCall` for an architecture
    that timm does not have or that belongs to no family.
    """
    check_timm_name(name)
    import timm

    bare = name.partition(".")[0]
    module = timm.models.model_entrypoint(bare).__module__
    kind = next((kind for kind in iterate_families() if module in kind.timm_modules), None)
    if kind is None:
        supported = "; ".join(kind.supported for kind in iterate_families() if kind.timm_modules)
        why = f" ({UNSUPPORTED_MODULES[module]})" if module in UNSUPPORTED_MODULES else ""
        raise WrongCall(
            f"{name} is a model of {module}{why}, which is not supported{_suggest(bare)}; supported"
            f" are {supported}"
        )
    try:
        return _read(kind, name, **options)
    except WrongCall as error:
        raise WrongCall(f"{name}: {error}{_suggest(bare)}") from error


def _read(kind: Family, name: str, **options: Any) -> Spec:
    import torch

    with torch.device("meta"):
        return load_host(kind).read_spec(load_host(kind).open_architecture(name, **options))


# The features by which timm's other ViT-like models, by module, differ from those of all families.
UNSUPPORTED_MODULES = {
    "timm.models.beit": "relative positions",
    "timm.models.cait": "layers that only the class token attends in",
    "timm.models.convit": "gated positions in attention",
    "timm.models.crossvit": "two branches",
    "timm.models.naflexvit": "images of any shape, their patches packed",
    "timm.models.vision_transformer_hybrid": "a convolutional stem",
    "timm.models.vision_transformer_relpos": "relative positions",
    "timm.models.vision_transformer_sam": "attention in windows, and relative positions",
    "timm.models.vitamin": "convolutional stages",
    "timm.models.volo": "outlook attention",
    "timm.models.xcit": "attention between channels",
}


def _suggest(name: str) -> str:
    candidate = find_nearest_architecture(name)
    return f"; the nearest that works is timm:{candidate}" if candidate else ""


@lru_cache(maxsize=32)
def find_nearest_architecture(name: str) -> str | None:
    """Return the supported pretrained architecture of timm with the most similar name, or None.

    Names are compared by the number of words (size, patches, images) in common, then by their
    letters.
    """
    import timm

    words = set(name.split("_")[1:])
    modules = {module: kind for kind in iterate_families() for module in kind.timm_modules}
    known = {
        other: timm.models.model_entrypoint(other).__module__
        for other in timm.list_models(pretrained=False)
    }
    pretrained = {tag.partition(".")[0] for tag in timm.list_pretrained()} - {name}

    def likeness(other: str) -> tuple[int, float]:
        return len(words & set(other.split("_")[1:])), SequenceMatcher(None, name, other).ratio()

    close = [other for other, module in known.items() if module in modules and other in pretrained]
    for other in sorted(close, key=likeness, reverse=True)[:5]:
        if likeness(other)[0] < 2:
            return None
        try:
            _read(modules[known[other]], other)
        except WrongCall:
            continue
        return other
    return None


def check_timm_name(name: str) -> None:
    """Raise `WrongCall` if timm has no architecture of this name, or no such pretrained tag."""
    check_timm_source(name)
    import timm

    bare, _, tag = name.partition(".")
    if not timm.is_model(bare):
        raise _refuse_name(bare, timm.list_models())
    if tag and not timm.models.is_model_pretrained(name):
        raise refuse_unknown(f"pretrained tag of {bare}", name, timm.list_pretrained(f"{bare}.*"))


def check_timm_source(name: str) -> None:
    """Raise `WrongCall` if timm's source does not contain the architecture.

    timm is not imported; a name that it creates in another way is accepted.
    """
    bare = name.partition(".")[0]
    names = _list_names_in_source(bare)
    if names:
        raise _refuse_name(bare, names)


def check_agreement(config: Mapping[str, Json], spec: Spec, where: str) -> None:
    """Raise `BadFile` unless timm would build the model of `spec`; `where` names the file."""
    theirs = read_spec(config, where)
    for field in fields(spec):
        if getattr(theirs, field.name, None) != getattr(spec, field.name):
            raise BadFile(
                f"{where} contradicts itself: {field.name} is {getattr(theirs, field.name, None)}"
                f" for timm and {getattr(spec, field.name)} under 'learngene'"
            )


def read_image_settings(config: Mapping[str, Json], where: str) -> dict[str, Any]:
    """Return the `pretrained_cfg` of a config.json with the values that its root overrides.

    Raises `BadFile` for values of a wrong type; `where` names the file.
    """
    cfg = config.get("pretrained_cfg", config)
    if not isinstance(cfg, dict):
        raise BadFile(f"{where}: pretrained_cfg is {type(cfg).__name__}; expected an object")
    overridden = {key: config[key] for key in ("num_classes", "label_names") if key in config}
    cfg = {key: value for key, value in {**cfg, **overridden}.items() if value is not None}
    _check_images(cfg, where)
    return cfg


def _check_images(cfg: Mapping[str, Json], where: str) -> None:
    size = cfg.get("input_size", [3, 224, 224])
    is_size = isinstance(size, list) and len(size) == 3
    if not (is_size and all(type(item) is int and item > 0 for item in size)):
        raise BadFile(f"{where}: input_size is {size}; expected [channels, height, width]")
    classes = cfg.get("num_classes", 0)
    if type(classes) is not int or not 0 <= classes <= LIMITS["classes"]:
        raise BadFile(
            f"{where}: num_classes is {classes!r:.40}; expected a whole number from 0 to "
            f"{LIMITS['classes']:,}"
        )
    if cfg.get("fixed_input_size") and size[1] != size[2]:
        raise BadFile(f"{where}: input_size is {size}; only square images are supported")
    for key in ("mean", "std"):
        values = cfg.get(key, [])
        numbers = isinstance(values, list) and all(
            type(item) in (int, float) and abs(item) < 1e6 for item in values
        )
        if not numbers or (key == "std" and not all(item >= MIN_STD for item in values)):
            sign, least = ("positive ", f", at least {MIN_STD:g}") if key == "std" else ("", "")
            raise BadFile(
                f"{where}: {key} is {values}; expected one {sign}number per channel{least}"
            )
    names = cfg.get("label_names", [])
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise BadFile(f"{where}: label_names must be a list of strings")
    for name in names:
        try:
            check_name(name, "class")
        except WrongCall as error:
            raise BadFile(f"{where}: {error}") from error


def read_normalisation(
    images: Mapping[str, Any], channels: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation for each channel.

    If a config has values for another number of channels, their average is used for all.
    """
    mean, std = (
        tuple(map(float, images.get(key) or usual))
        for key, usual in (("mean", _MEAN), ("std", _STD))
    )
    if len(mean) == channels == len(std):
        return mean, std
    return (sum(mean) / len(mean),) * channels, (sum(std) / len(std),) * channels


def read_view(images: Mapping[str, Any], where: str) -> View:
    """Return the view of a `pretrained_cfg`, with timm's defaults for missing values.

    Without any config nothing is cropped. Raises `BadFile` for a view that is not supported.
    """
    if not images:
        return USUAL_VIEW
    stated = {
        "crop_pct": _CROP_PCT,
        **{key: images[key] for key in _VIEW_FIELDS if images.get(key) is not None},
    }
    return from_json(View, stated, f"{where}: pretrained_cfg")


def _refuse_name(name: str, names: Iterable[str]) -> WrongCall:
    close = find_nearest(name, names)
    hint = f"did you mean {close}?" if close else "`lgzoo list ancestries` shows well-known ones"
    return WrongCall(f"no timm model named {name!r}; {hint}")


def _list_names_in_source(name: str) -> list[str]:
    """Return timm's architectures if timm certainly has none called `name`, otherwise [].

    They are read from timm's source, because importing it takes seconds. The result is [] too if
    timm is imported already, since names may have been added, and if its source contains the name.
    """
    spec = find_spec("timm") if "timm" not in sys.modules else None
    folders = spec.submodule_search_locations if spec is not None else None
    model_names: list[str] = []
    for file in sorted(Path(next(iter(folders))).glob("models/*.py")) if folders else []:
        source = file.read_text(encoding="utf-8", errors="replace")
        if re.search(rf"\b{re.escape(name)}\b", source):
            return []
        model_names += re.findall(r"^@register_model\s+def (\w+)", source, flags=re.MULTILINE)
    return sorted(model_names)
