"""Read and write the files with which sentence-transformers opens a sentence encoder.

`modules.json` lists the modules that a text goes through: the transformer, a pooling of its tokens,
and often a scaling to unit length. A model without classes is written with these files, so that
`SentenceTransformer(PATH).encode(texts)` returns the features of its spec.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families.spec import Spec
from learngene_zoo.families.transformers_config import parse_object
from learngene_zoo.settings import Json, from_json, to_json
from learngene_zoo.storage import (
    MODULES,
    POOLING,
    SENTENCE_CONFIG,
    TOKENIZER,
    TOKENIZER_CONFIG,
    parse_json,
)

_PACKAGE = "sentence_transformers.models"
PROMPTS = "config_sentence_transformers.json"
# The modes of pooling that are read, with their names here and their keys in `POOLING`.
_POOLS = {"mean": "mean", "cls": "token"}
_MODE_KEYS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}


def read_pooling(
    spec: Spec, config: Mapping[str, Json], read: Callable[[str], str | None], where: str
) -> Spec:
    """Return the spec of a model with the pooling of its features, which transformers has no key
    for.

    Args:
        spec: the model by its config.json.
        config: the content of that file; our record in it names the pooling.
        read: returns the text of a file beside it; None if there is none of that name. Without our
            record, `POOLING` names the pooling, `MODULES` a scaling to unit length, and
            `SENTENCE_CONFIG`, else the tokenizer's config, the largest number of tokens.
        where: the file, for messages.

    Raises:
        WrongCall: for another pooling than that of the mean or of the first token, and if
            sentence-transformers lower-cases texts before the tokenizer.
        BadFile: for files that are not in sentence-transformers' layout.
    """
    ours, fields = config.get("learngene"), {field.name for field in dataclasses.fields(spec)}
    if "pool" not in fields:  # the models of the family have one pooling
        return spec
    if isinstance(ours, dict) and isinstance(ours.get("spec"), dict):
        kept = ("pool", "normalize", "max_tokens")
        stated = {key: ours["spec"][key] for key in kept if key in ours["spec"]}
    else:
        pooling, listing = read(POOLING), where.replace("config.json", MODULES)
        modules = _list_modules(read(MODULES), listing)
        if pooling is None:
            if "Pooling" in modules:
                raise BadFile(
                    f"{listing} names a pooling, but {POOLING} is missing beside it; copy it from "
                    f"the original model, or remove {MODULES} to use the pooler"
                )
            return spec
        stated = {
            "pool": _read_pool(pooling, where.replace("config.json", POOLING)),
            "normalize": "Normalize" in modules,
            "max_tokens": _read_max_tokens(read, spec, where),
        }
        _check_case(read, where.replace("config.json", SENTENCE_CONFIG))
    return from_json(type(spec), {**to_json(spec), **stated}, where)


def list_left_out_parts(read: Callable[[str], str | None], where: str) -> tuple[str, ...]:
    """Return descriptions of the parts of a sentence encoder that a spec does not express: other
    modules, and a prompt before every text.

    Args:
        read: returns the text of a file beside config.json; None if there is none of that name.
        where: config.json, for messages.

    Raises:
        BadFile: for files that are not in sentence-transformers' layout.
    """
    if read(POOLING) is None:
        return ()
    known = ("Transformer", "Pooling", "Normalize")
    modules = [
        f"a module of sentence-transformers: {name:.80}"
        for name in _list_modules(read(MODULES), where.replace("config.json", MODULES))
        if name not in known
    ]
    text, name = read(PROMPTS), where.replace("config.json", PROMPTS)
    prompt = None if text is None else parse_object(text, name).get("default_prompt_name")
    return (*modules, *([f"the prompt before every text: {prompt!s:.80}"] if prompt else []))


def write_sentence_files(spec: Spec) -> dict[str, str]:
    """Return the texts of `MODULES`, `POOLING` and, if the length of texts is limited,
    `SENTENCE_CONFIG` by name; {} for other models than of sentences.

    Those have classes, or the features of a pooler, which sentence-transformers does not have.
    """
    values: Any = spec
    if not hasattr(spec, "normalize") or spec.classes or values.pool not in _POOLS.values():
        return {}
    folder = POOLING.partition("/")[0]
    modules = [("Transformer", ""), ("Pooling", folder)]
    if values.normalize:
        modules.append(("Normalize", "2_Normalize"))
    mode = {name: key for key, name in _POOLS.items()}[values.pool]
    listed = [
        {"idx": index, "name": str(index), "path": path, "type": f"{_PACKAGE}.{name}"}
        for index, (name, path) in enumerate(modules)
    ]
    pooling = {
        "word_embedding_dimension": spec.width,
        **{key: name == mode for name, key in _MODE_KEYS.items()},
    }
    files: dict[str, Any] = {MODULES: listed, POOLING: pooling}
    if values.max_tokens is not None:
        files[SENTENCE_CONFIG] = {"max_seq_length": values.max_tokens, "do_lower_case": False}
    return {name: json.dumps(content, indent=2) + "\n" for name, content in files.items()}


def _read_pool(pooling: str, where: str) -> str:
    """Return our name of the pooling in a file of sentence-transformers; its default is "mean"."""
    keys = parse_object(pooling, where)
    older = [mode for mode, key in _MODE_KEYS.items() if keys.get(key)]
    stated = keys.get("pooling_mode", older or "mean")
    modes = stated if isinstance(stated, list) else [stated]
    if len(modes) != 1 or modes[0] not in _POOLS:
        raise WrongCall(
            f"{where} pools by {' and '.join(map(str, modes)):.80}; read are"
            f" {' and '.join(_POOLS)}: remove it and {MODULES} to use the pooler"
        )
    return _POOLS[modes[0]]


def _read_max_tokens(read: Callable[[str], str | None], spec: Any, where: str) -> int | None:
    """Return the largest number of tokens, if it is a limit.

    `SENTENCE_CONFIG` states it, else the tokenizer's config, as for sentence-transformers.
    """
    for file, key in ((SENTENCE_CONFIG, "max_seq_length"), (TOKENIZER_CONFIG, "model_max_length")):
        text, name = read(file), where.replace("config.json", file)
        most = None if text is None else parse_object(text, name).get(key)
        if most is None:
            continue
        # Without a limit, transformers writes a number beyond any text, or 1e30.
        is_number = type(most) is int or (file == TOKENIZER_CONFIG and type(most) is float)
        if not is_number or most < 1:
            raise BadFile(f"{name}: {key} is {most!r:.40}; expected a positive number")
        return int(most) if most < spec.positions else None
    return None


def _check_case(read: Callable[[str], str | None], where: str) -> None:
    """Raise `WrongCall` if sentence-transformers lower-cases texts and the tokenizer does not."""
    text = read(SENTENCE_CONFIG)
    if text is None or not parse_object(text, where).get("do_lower_case"):
        return
    tokenizer = read(TOKENIZER)
    normalizer = None if tokenizer is None else parse_object(tokenizer, where).get("normalizer")
    if not _lowers_case(normalizer):
        raise WrongCall(
            f"{where} lower-cases texts (do_lower_case), which the tokenizer beside it does not; "
            "give tokenizer.json a normaliser that does, such as Lowercase"
        )


def _lowers_case(normalizer: Any) -> bool:
    """Return whether a normaliser of a tokenizer.json lower-cases texts."""
    if not isinstance(normalizer, dict):
        return False
    parts = normalizer.get("normalizers")
    is_lowering = normalizer.get("type") == "Lowercase" or bool(normalizer.get("lowercase"))
    return is_lowering or (isinstance(parts, list) and any(map(_lowers_case, parts)))


def _list_modules(text: str | None, where: str) -> list[str]:
    """Return the classes of the modules in a `modules.json`, in order; none without the file."""
    if text is None:
        return []
    try:
        modules: Any = parse_json(text.encode())
        return [module["type"].rpartition(".")[2] for module in modules]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadFile(f"{where} is not a list of modules: {error!r:.100}") from error
