"""Write and read transformers' `config.json`, so that transformers alone opens our folders.

A family's `TransformersNames` has the keys of its models. This module adds the labels, checks that
file and spec agree, and names the files of tokenizers, which are copied from folder to folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families.family import (
    TransformersNames,
    find_family,
    get_family,
    iterate_families,
)
from learngene_zoo.families.spec import Spec
from learngene_zoo.families.text_format import TextFormat, find_pad, make_text_format
from learngene_zoo.families.text_spec import TextSpec
from learngene_zoo.settings import Json, from_json
from learngene_zoo.storage import MAX_JSON_BYTES, TOKENIZER, TOKENIZER_CONFIG, TOKENIZER_FILES
from learngene_zoo.text import check_name


def list_text_types() -> list[str]:
    """Return the `model_type` of every family of transformers'."""
    return [kind.transformers.model_type for kind in iterate_families() if kind.transformers]


def find_names(spec: Spec) -> TransformersNames | None:
    """Return the names of a model in transformers; None for a model of timm's."""
    return get_family(spec).transformers


def write_transformers_config(spec: Spec, class_names: Sequence[str]) -> dict[str, Json]:
    """Return a config.json that transformers opens.

    Args:
        spec: the model, of a family of transformers'.
        class_names: names of the classes, in order; may be empty.
    """
    names = find_names(spec)
    assert names is not None, spec.family
    labels = list(class_names) or [f"LABEL_{index}" for index in range(spec.classes)]
    classification: dict[str, Json] = {
        "id2label": {str(index): label for index, label in enumerate(labels)},
        "label2id": {label: index for index, label in enumerate(labels)},
        "problem_type": _ONE_CLASS,
    }
    return {
        "model_type": names.model_type,
        **names.config(spec),
        **(classification if labels else {}),
    }


def read_spec(config: Mapping[str, Json], where: str) -> Spec:
    """Return the spec of the model that transformers would build from a config.json.

    Raises `WrongCall` for a function that no spec expresses, `BadFile` for wrong values; `where`
    names the file.
    """
    family = find_family(config)
    if family is None or family.transformers is None:
        raise BadFile(f"{where}: model_type is {config.get('model_type')!r:.40}, which is not read")
    return from_json(family.spec, family.transformers.values(config, where), where)


def check_agreement(config: Mapping[str, Json], spec: Spec, where: str) -> None:
    """Raise `BadFile` unless transformers would build the model of `spec` from a config.json."""
    labels = _read_labels(config, where)
    if spec.classes and describe_other_head(config, len(labels) or spec.classes):
        raise BadFile(
            f"{where}: problem_type is {config.get('problem_type')!r:.40}, and a descendant chooses"
            " one class; use the model as an ancestry model, whose head is left out"
        )
    theirs = read_spec(config, where)
    if theirs.family != spec.family:
        raise BadFile(
            f"{where} contradicts itself: the family is {theirs.family!r} for transformers and"
            f" {spec.family!r} under 'learngene'"
        )
    ours, stated = (write_transformers_config(other, ()) for other in (spec, theirs))
    for key, value in ours.items():
        if stated.get(key) != value:
            raise BadFile(
                f"{where} contradicts itself: {key} is {stated.get(key)!r:.60} for transformers and"
                f" {value!r:.60} under 'learngene'"
            )


def class_names_in(config: Mapping[str, Json], spec: Spec, where: str) -> tuple[str, ...]:
    """Return the labels of a config.json; none if it has only the default ones.

    Raises `BadFile` for labels that are not texts.
    """
    labels = _read_labels(config, where)
    if len(labels) != spec.classes or all(
        label == f"LABEL_{index}" for index, label in enumerate(labels)
    ):
        return ()
    for label in labels:
        try:
            check_name(label, "class")
        except WrongCall as error:
            raise BadFile(f"{where}: {error}") from error
    return tuple(labels)


def _read_labels(config: Mapping[str, Json], where: str) -> list[str]:
    labels = config.get("id2label")
    if labels is None:
        return []
    numbers = range(len(labels)) if isinstance(labels, dict) else ()
    ordered = [label for number in numbers if isinstance(label := labels.get(str(number)), str)]
    if not isinstance(labels, dict) or len(ordered) < len(labels):
        raise BadFile(f"{where}: id2label must name every class from 0 on")
    return ordered


def read_pad(spec: Spec, config: Mapping[str, Json], read: Callable[[str], str | None]) -> Spec:
    """Return the spec of a model with the pad token of its tokenizer, if config.json names none.

    A pad token that is not in the vocabulary of the model leaves the spec unchanged.

    Args:
        spec: the model by its config.json.
        config: the content of that file.
        read: returns the text of a file beside it; None if there is none of that name.
    """
    if config.get("pad_token_id") is not None or not isinstance(spec, TextSpec):
        return spec
    settings = parse_object(read(TOKENIZER_CONFIG) or "{}", TOKENIZER_CONFIG)
    content = read(TOKENIZER) if settings.get("pad_token") else None
    if content is not None:
        with contextlib.suppress(BadFile):
            pad = find_pad(content, settings)
            return spec.with_(pad_token=pad) if pad < spec.vocabulary else spec
    return spec


def parse_object(text: str, where: str) -> dict[str, Any]:
    """Return the JSON object of a file beside a config.json. Raises `BadFile` for anything else."""
    try:
        content = json.loads(text)  # not `parse_json`: some numbers have more than 64 bits
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{where} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise BadFile(f"{where} is not a JSON object")
    return content


# Tokenizers.


def read_tokenizer_files(folder: Path) -> dict[str, str]:
    """Return the texts of a tokenizer's files in a folder, by their names; {} without any."""
    files = {name: folder / name for name in TOKENIZER_FILES}
    return {name: read_text(path) for name, path in files.items() if path.is_file()}


def set_right_side(files: Mapping[str, str]) -> dict[str, str]:
    """Return a tokenizer's files with padding and truncation on the right, as texts are encoded
    here, so that transformers encodes texts for our models in the same way.
    """
    settings = parse_object(files.get(TOKENIZER_CONFIG, "{}"), TOKENIZER_CONFIG)
    sides = {"padding_side": "right", "truncation_side": "right"}
    if all(settings.get(key, side) == side for key, side in sides.items()):
        return dict(files)
    settings |= sides
    return {**files, TOKENIZER_CONFIG: json.dumps(settings, indent=2, ensure_ascii=False) + "\n"}


def check_tokenizer(files: Mapping[str, str], spec: Spec, where: str) -> None:
    """Raise `BadFile` for a tokenizer that is not that of a model.

    Its words have numbers that the model does not know, or other numbers than in the vocabulary
    file beside it. Without `tokenizer.json` nothing is checked.

    Args:
        files: the texts of its files by name.
        spec: the model.
        where: the folder, for messages.
    """
    if TOKENIZER not in files or not isinstance(spec, TextSpec):
        return
    where = f"{where}: {TOKENIZER}"
    try:
        content = parse_object(files[TOKENIZER], where)
        words, added = content["model"]["vocab"], content.get("added_tokens") or []
        numbers = list(words.values()) if isinstance(words, dict) else range(len(words))
        largest = max([*numbers, *(token["id"] for token in added)], default=0)
    except (KeyError, TypeError, AttributeError) as error:
        raise BadFile(f"{where} does not describe a tokenizer: {error!r:.100}") from error
    if not isinstance(largest, int) or largest >= spec.vocabulary:
        raise BadFile(
            f"{where} has the token id {largest!r:.40}, but the model has {spec.vocabulary} tokens;"
            " use the tokenizer of this model"
        )
    if isinstance(words, dict):
        _check_vocabulary_file(files, words, where)


def _check_vocabulary_file(files: Mapping[str, str], words: Mapping[str, Any], where: str) -> None:
    """Raise `BadFile` if most words of `vocab.txt` or `vocab.json` have other numbers.

    Args:
        files: the texts of the tokenizer's files by name.
        words: the id of every token in `tokenizer.json`.
        where: `tokenizer.json`, for messages.
    """
    if "vocab.txt" in files:
        name, lines = "vocab.txt", files["vocab.txt"].removesuffix("\n").split("\n")
        listed: Mapping[str, Any] = {word: number for number, word in enumerate(lines)}
    elif "vocab.json" in files:
        name, listed = "vocab.json", parse_object(files["vocab.json"], "vocab.json")
    else:
        return
    others = [word for word, number in listed.items() if words.get(word) != number]
    if 2 * len(others) > len(listed):
        raise BadFile(
            f"{where} contradicts {name} beside it: {len(others):,} of {len(listed):,} "
            f"tokens have another id, such as {others[0]!r:.40}; restore the file"
        )


def read_text_format(spec: TextSpec, files: Mapping[str, str]) -> TextFormat:
    """Return the format of the texts of a model, and make its tokenizer known to this process.

    Args:
        spec: the model.
        files: the texts of its tokenizer's files by name.

    Raises:
        WrongCall: without `tokenizer.json`.
        BadFile: if neither the model nor the tokenizer names a pad token.
    """
    if TOKENIZER not in files:
        raise WrongCall(f"this text model has no {TOKENIZER}; copy that of its ancestry model")
    settings = parse_object(files.get(TOKENIZER_CONFIG, "{}"), TOKENIZER_CONFIG)
    return make_text_format(files[TOKENIZER], spec.tokens, settings, spec.pad_token)


def fingerprint_tokenizer(files: Mapping[str, str]) -> str | None:
    """Return the sha256 of `tokenizer.json`; None without one."""
    text = files.get(TOKENIZER)
    return None if text is None else hashlib.sha256(text.encode()).hexdigest()


def read_text(path: Path) -> str:
    """Return the text of a file. Raises `BadFile` if it is not UTF-8, too large or not a file."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise BadFile(f"{path} is larger than {MAX_JSON_BYTES >> 20} MiB")
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadFile(f"{path} is not text in UTF-8") from error


# Heads that do not choose one class.

OTHER_HEAD = "its head, which does not choose one of several classes"
_ONE_CLASS = "single_label_classification"


def describe_other_head(config: Mapping[str, Json], labels: int) -> str:
    """Return a description of a head of several labels at once or of numbers; "" for other heads.

    As in transformers, a head of one label is a regression unless `problem_type` says otherwise.

    Args:
        config: the content of a config.json.
        labels: the number of labels.
    """
    problem = config.get("problem_type") or ("regression" if labels == 1 else _ONE_CLASS)
    return "" if problem == _ONE_CLASS else f"{OTHER_HEAD} (problem_type {problem!r:.40})"


def describe_left_out_head(config: Mapping[str, Json], names: Collection[str]) -> tuple[str, ...]:
    """Return the description of a head that was left out because it does not choose one class.

    Args:
        config: the content of a config.json.
        names: the architectures of classifiers; without one of them there is no such head.
    """
    if not any(name in str(config.get("architectures")) for name in names):
        return ()
    labels = config.get("id2label")
    count = config.get("num_labels", len(labels) if isinstance(labels, dict) else 2)
    return tuple(filter(None, [describe_other_head(config, count)]))


# For the names of families.

# Other names of the same activations in transformers.
ACTIVATIONS = {"swish": "silu", "gelu_python": "gelu", "gelu_python_tanh": "gelu_pytorch_tanh"}


def count_classes(config: Mapping[str, Json], architecture: str, where: str) -> int:
    """Return the classes of a model: those of the labels if it has the head `architecture`, else 0.

    transformers' default is 2 labels, and `num_labels` overrides the names of labels. A head that
    does not choose one class counts as absent.
    """
    if architecture not in (config.get("architectures") or ()):
        return 0
    labels = _read_labels(config, where)
    count = config.get("num_labels", len(labels) or 2)
    if type(count) is not int:
        raise BadFile(f"{where}: num_labels is {count!r:.40}; expected a whole number")
    return 0 if describe_other_head(config, count) else count


def read_fields(
    config: Mapping[str, Json], keys: Mapping[str, tuple[str, Json]], where: str
) -> dict[str, Any]:
    """Return fields of a spec from a config.json.

    Of several words that end a generated text, the first one is read.

    Args:
        config: the content of the file.
        keys: the key of each field, with the value of an absent key.
        where: the file, for messages.

    Raises:
        BadFile: for a value that has another type than the default.
    """
    values = {name: config.get(key, usual) for name, (key, usual) in keys.items()}
    for name, (key, usual) in keys.items():
        if key == "eos_token_id" and isinstance(values[name], list) and values[name]:
            values[name] = values[name][0]
        value, kind = values[name], int if key.endswith("token_id") else type(usual)
        is_absent = value is None and key.endswith("token_id")
        is_right = type(value) is kind or (kind is float and type(value) is int)
        if not (is_right or is_absent):
            raise BadFile(f"{where}: {key} is {value!r:.40}; expected {kind.__name__}")
    return values


def refuse_settings(config: Mapping[str, Json], fixed: Mapping[str, Json], where: str) -> None:
    """Raise `WrongCall` for a setting that makes the model another function than the family's.

    Args:
        config: the content of a config.json.
        fixed: the keys of such settings, with the only supported values.
        where: the file, for messages.
    """
    for key in ("quantization_config", "auto_map", "pruned_heads"):
        if config.get(key):
            raise WrongCall(f"{where} has {key}, which is not supported; save the model without it")
    for key, value in fixed.items():
        if config.get(key, value) != value:
            raise WrongCall(f"{where}: {key} is {config[key]!r:.40}; only {value!r} is supported")
