"""Import released hypernetworks as learngenes: their origin, and their tensors in our layout.

GHN-3's files (SamsungSAILMontreal/ghn3 on the Hub: ghn3tm8.pt, ghn3sm8.pt, ghn3lm8.pt,
ghn3xlm16.pt) are flat dictionaries of tensors; checkpoints of the training code of GHN-3, LoGAH and
TAL have them under `state_dict`, next to a `config`. Sizes that the tensors' shapes do not
determine come from the config, or else from the papers.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from math import isqrt
from pathlib import Path
from typing import Any

import torch

from learngene_zoo.plugin import (
    BadFile,
    Learngene,
    LearngeneConfig,
    Repository,
    Run,
    StateDict,
    TextSpec,
    WrongCall,
    compute_sha256,
    fetch_from_hub,
    name_option,
    parse_details,
    read_card_licence,
)
from lgzoo_tal.hypernet_spec import (
    Decoder,
    HypernetDetails,
    HypernetSpec,
    Release,
    to_learngene_name,
)
from lgzoo_tal.modules.checkpoints import StoredTensor, read_checkpoint
from lgzoo_tal.modules.hypernet import check_shapes

_FILE_ON_HUB = re.compile(r"([^/@]+/[^/@]+)/([^@]+)(?:@(.+)?)?")
# In the released files these are beside the layers, in the training code's inside the first one.
_MOVED = ("centrality_embed_in.", "centrality_embed_out.", "input_dist_embed.")
# With a low-rank decoder, the same tensor under two names, and what nothing ever reads.
_ALIAS, _NAMED = "decoder.seq.1.", "decoder.l2."
_DEAD = ("decoder.l1.", "decoder_1d.", "bias_class.")
_AS_ALWAYS = {"weight_norm": True, "ve": True, "layernorm": True, "is_ghn2": False}


def import_checkpoint(
    reference: str, decoder: Decoder, config: LearngeneConfig, run: Run
) -> Learngene:
    """Return the learngene of a checkpoint. Its origin and licence are in `details.released`.

    Args:
        reference: a file, or `hf-hub:organisation/name/file`.
        decoder: the expected kind of decoder.
        config: the outline of the learngene.
        run: whether the Hub may be asked.

    Raises:
        WrongCall: for a text ancestry model, for a hypernetwork with another decoder, and as
            `fetch_checkpoint` does.
        BadFile: as `read_hypernet` does.
    """
    if isinstance(config.spec, TextSpec):
        raise WrongCall(
            "released checkpoints predict image models, and the ancestry model takes texts; "
            f"choose another ancestry model, or leave out {name_option('released')}"
        )
    path, release = fetch_checkpoint(reference, offline=run.offline)
    spec, state = read_hypernet(path)
    if spec.decoder != decoder:
        method = {"conv": "ghn3", "low_rank": "logah"}[spec.decoder]
        raise WrongCall(
            f"{reference} is a hypernetwork of another kind; read it with `lgzoo extract {method}`"
        )
    details = replace(parse_details(config, HypernetDetails), hypernet=spec, released=release)
    return Learngene(
        config=config.with_details(details),
        state={to_learngene_name(name): tensor for name, tensor in state.items()},
    )


def fetch_checkpoint(reference: str, *, offline: bool = False) -> tuple[Path, Release]:
    """Return a file, `path` or `hf-hub:organisation/name/file[@revision]`, and its origin.

    Raises `WrongCall` for anything else, and as `fetch_from_hub` does.
    """
    scheme, colon, name = reference.partition(":")
    if not colon or scheme != "hf-hub":
        path = Path(reference)
        if not path.is_file():
            raise WrongCall(
                f"there is no file {reference}; expected a checkpoint, or "
                "hf-hub:organisation/name/file, for example "
                "hf-hub:SamsungSAILMontreal/ghn3/ghn3tm8.pt"
            )
        return path, Release(reference=reference, sha256=compute_sha256(path))
    match = _FILE_ON_HUB.fullmatch(name)
    if match is None:
        raise WrongCall(
            f"expected hf-hub:organisation/name/file or .../file@revision, got {reference!r}"
        )
    repository, filename, revision = match.groups()
    file = fetch_from_hub(Repository(repository, revision), filename, offline=offline)
    licence = read_card_licence(Repository(repository, file.commit), offline=offline)
    return file.path, Release(
        reference=reference, sha256=compute_sha256(file.path), revision=file.commit, licence=licence
    )


def read_hypernet(path: Path) -> tuple[HypernetSpec, StateDict]:
    """Read a checkpoint's hypernetwork: its spec, and the fp32 tensors of `Hypernet` of that spec.

    Raises `BadFile` for files with anything but tensors, for damaged ones, for GHN-2 and other
    networks.
    """
    stored, config = _split_checkpoint(read_checkpoint(path), path)
    if any(name.startswith("gnn.gru.") for name in stored):
        raise BadFile(
            f"{path} is a GHN-2, which has another graph network; expected GHN-3, LoGAH or TAL"
        )
    stored = _rename_tensors(stored)
    try:
        spec = _infer_spec(stored, config)
    except KeyError as error:
        raise BadFile(
            f"{path} lacks the tensor {error.args[0]}; it is not a checkpoint of GHN-3, LoGAH or "
            "TAL"
        ) from None
    except WrongCall as error:
        raise BadFile(f"{path} does not describe a hypernetwork: {error}") from error
    _check_config(spec, config, path)
    try:
        check_shapes(spec, {name: tensor.shape for name, tensor in stored.items()})
    except BadFile as error:
        raise BadFile(f"{path}: {error}") from error
    return spec, {name: _read_tensor(tensor, name, path) for name, tensor in stored.items()}


def _split_checkpoint(value: Any, path: Path) -> tuple[dict[str, StoredTensor], Mapping[str, Any]]:
    """Return a checkpoint's tensors and its config, if it has one."""
    config: Any = {}
    if type(value) is dict and "state_dict" in value:
        value, config = value["state_dict"], value.get("config") or {}
    tensors = type(value) is dict and all(
        type(k) is str and type(v) is StoredTensor for k, v in value.items()
    )
    if not tensors or type(config) is not dict:
        raise BadFile(f"{path} does not hold tensors by name; expected a hypernetwork's checkpoint")
    return value, config


def _rename_tensors(stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    renamed = {
        f"gnn.0.{name}" if name.startswith(_MOVED) else name: tensor
        for name, tensor in stored.items()
    }
    aliases = {name: tensor for name, tensor in renamed.items() if name.startswith(_ALIAS)}
    if not aliases and f"{_NAMED}weight" not in renamed:
        return renamed  # a convolutional decoder
    remaining = {
        name: tensor for name, tensor in renamed.items() if not name.startswith((_ALIAS, *_DEAD))
    }
    return {
        **{name.replace(_ALIAS, _NAMED): tensor for name, tensor in aliases.items()},
        **remaining,
    }


def _infer_spec(stored: Mapping[str, StoredTensor], config: Mapping[str, Any]) -> HypernetSpec:
    """Return the spec of a checkpoint's hypernetwork.

    Raises `KeyError` for a missing tensor, `WrongCall` for sizes that no hypernetwork has.
    """

    def count_rows(name: str) -> int:
        return (*stored[name].shape, 0)[0]

    def count_columns(name: str) -> int:
        return (*stored[name].shape, 0, 0)[1]

    spatial = 11 if count_rows("shape_enc.embed_spatial.weight") == 9 else 16
    task = "gnn.0.TEN.fc_gamma.weight"
    low_rank = f"{_NAMED}weight" in stored
    shared: dict[str, Any] = {
        "hidden": count_columns("embed.weight"),
        "layers": sum(name.startswith("gnn.") and name.endswith(".ln1.weight") for name in stored),
        "heads": count_rows("gnn.0.attn.proj_e.2.bias"),
        "spatial": spatial,
        "task": count_columns(task) if task in stored else None,
    }
    if low_rank:
        return HypernetSpec(
            **shared,
            decoder="low_rank",
            rank=count_columns(f"{_NAMED}weight"),
            chunk=count_rows(f"{_NAMED}weight"),
            widest=_read_widest(config),
            classes=_check_count(
                config.get("num_classes", 1000 if spatial == 16 else 10), "num_classes"
            ),
        )
    return HypernetSpec(
        **shared,
        decoder="conv",
        widest=isqrt(count_rows("decoder.conv.2.weight")),
        classes=count_rows("decoder.class_layer_predictor.1.bias"),
    )


def _read_widest(config: Mapping[str, Any]) -> int:
    """Return the first of the config's max_shape; the papers' 2048 without a config."""
    max_shape = config.get("max_shape", 2048)
    return _check_count(
        (*max_shape, None)[0] if type(max_shape) in (tuple, list) else max_shape, "max_shape"
    )


def _check_count(value: Any, name: str) -> int:
    if type(value) is not int or not 0 < value <= 1_000_000:
        raise WrongCall(
            f"{name} is {value if type(value) is int else type(value).__name__} in its config"
        )
    return value


def _check_config(spec: HypernetSpec, config: Mapping[str, Any], path: Path) -> None:
    """Check the config against the tensors and the options that all hypernetworks here share.

    Raises `BadFile`.
    """
    known = {"hid": spec.hidden, "layers": spec.layers, "heads": spec.heads, **_AS_ALWAYS}
    for name, value in known.items():
        actual = config.get(name, value)
        if type(actual) not in (int, bool) or actual != value:
            label = actual if type(actual) in (int, bool) else type(actual).__name__
            raise BadFile(
                f"{path}: {name} is {label} in its config, but {value} by its tensors; it is "
                "another variant"
            )


def _read_tensor(stored: StoredTensor, name: str, path: Path) -> torch.Tensor:
    tensor = stored.read()
    if not torch.isfinite(tensor).all():
        raise BadFile(f"{path}: {name} holds values that are not finite; fetch or write it again")
    return tensor
