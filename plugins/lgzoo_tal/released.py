"""Released hypernetworks: where they come from, and what they are in our layout. Cold at its top.

GHN-3's files (SamsungSAILMontreal/ghn3 on the Hub: ghn3tm8.pt, ghn3sm8.pt, ghn3lm8.pt, ghn3xlm16.pt) are flat dictionaries
of tensors; checkpoints of the training code of GHN-3, LoGAH and TAL have them under `state_dict`, with the `config` beside.
What the tensors' shapes do not say is the config's, else the papers'.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, isqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

from learngene_zoo.plugin import BadFile, StateDict, WrongCall
from lgzoo_tal.checkpoints import read_checkpoint
from lgzoo_tal.stored import Stored
from lgzoo_tal.variants import HypernetSpec

if TYPE_CHECKING:
    import torch

# The released files have these beside the layers, the training code's in the first one.
_MOVED = ("centrality_embed_in.", "centrality_embed_out.", "input_dist_embed.")
# The same tensor under another name, and what nothing ever reads, beside a low-rank decoder.
_ALIAS, _NAMED = "decoder.seq.1.", "decoder.l2."
_DEAD = ("decoder.l1.", "decoder_1d.", "bias_class.")
_AS_ALWAYS = {"weight_norm": True, "ve": True, "layernorm": True, "is_ghn2": False}


@dataclass(frozen=True, kw_only=True)
class Release:
    """A checkpoint in reach, with its provenance."""

    reference: str
    path: Path
    sha256: str
    revision: str | None = None
    licence: str = "unknown"


def fetch(reference: str, *, offline: bool = False) -> Release:
    """The file that `hf-hub:organisation/name/file[@revision]` or a path names.

    Raises `WrongCall` for what names no file, and as `hub_file.fetch` does.
    """
    from learngene_zoo.plugin import Repository, licence_on_card, sha256
    from learngene_zoo.plugin import fetch_from_hub as fetch_file

    scheme, colon, name = reference.partition(":")
    if not colon or scheme != "hf-hub":
        path = Path(reference)
        if not path.is_file():
            raise WrongCall(
                f"there is no file {reference}; give a checkpoint, or hf-hub:organisation/name/file, as "
                "hf-hub:SamsungSAILMontreal/ghn3/ghn3tm8.pt"
            )
        return Release(reference=reference, path=path, sha256=sha256(path))
    whole, _, revision = name.partition("@")
    organisation, _, rest = whole.partition("/")
    repository, _, filename = rest.partition("/")
    if not (organisation and repository and filename):
        raise WrongCall(f"{reference!r} names no file; write hf-hub:organisation/name/file or .../file@revision")
    found = fetch_file(Repository(f"{organisation}/{repository}", revision or None), filename, offline=offline)
    licence = licence_on_card(Repository(f"{organisation}/{repository}", found.commit), offline=offline)
    return Release(
        reference=reference, path=found.path, sha256=sha256(found.path), revision=found.commit, licence=licence
    )


def read(path: Path) -> tuple[HypernetSpec, StateDict]:
    """A checkpoint's hypernetwork: its spec, and the tensors that `Hypernet` of that spec has, in fp32.

    Raises `BadFile` for files that could do more than hold tensors, for damaged ones, for GHN-2 and other networks.
    """
    stored, config = _parts(read_checkpoint(path), path)
    if any(name.startswith("gnn.gru.") for name in stored):
        raise BadFile(f"{path} is a GHN-2, whose graph network is another; GHN-3, LoGAH and TAL can be read")
    stored = _our_names(stored)
    try:
        spec = _spec(stored, config)
    except KeyError as error:
        raise BadFile(f"{path} lacks the tensor {error.args[0]}; it is no checkpoint of GHN-3, LoGAH or TAL") from None
    except WrongCall as error:
        raise BadFile(f"{path} describes no hypernetwork: {error}") from error
    _check_config(spec, config, path)
    _check_shapes(spec, stored, path)
    return spec, {name: _numbers(tensor, name, path) for name, tensor in stored.items()}


def _parts(value: Any, path: Path) -> tuple[dict[str, Stored], Mapping[str, Any]]:
    """A checkpoint's tensors and, where it has one, its config."""
    config: Any = {}
    if type(value) is dict and "state_dict" in value:
        value, config = value["state_dict"], value.get("config") or {}
    tensors = type(value) is dict and all(type(k) is str and type(v) is Stored for k, v in value.items())
    if not tensors or type(config) is not dict:
        raise BadFile(f"{path} holds something other than tensors by name; a hypernetwork's checkpoint is wanted")
    return value, config


def _our_names(stored: Mapping[str, Stored]) -> dict[str, Stored]:
    renamed = {f"gnn.0.{name}" if name.startswith(_MOVED) else name: tensor for name, tensor in stored.items()}
    aliases = {name: tensor for name, tensor in renamed.items() if name.startswith(_ALIAS)}
    if not aliases and f"{_NAMED}weight" not in renamed:
        return renamed  # a convolutional decoder
    kept = {name: tensor for name, tensor in renamed.items() if not name.startswith((_ALIAS, *_DEAD))}
    return {**{name.replace(_ALIAS, _NAMED): tensor for name, tensor in aliases.items()}, **kept}


def _spec(stored: Mapping[str, Stored], config: Mapping[str, Any]) -> HypernetSpec:
    """Raises `KeyError` for a tensor that is not there, `WrongCall` for numbers that describe no hypernetwork."""

    def rows(name: str) -> int:
        return (*stored[name].shape, 0)[0]

    def columns(name: str) -> int:
        return (*stored[name].shape, 0, 0)[1]

    spatial = 11 if rows("shape_enc.embed_spatial.weight") == 9 else 16
    task = "gnn.0.TEN.fc_gamma.weight"
    low_rank = f"{_NAMED}weight" in stored
    shared: dict[str, Any] = {
        "hidden": columns("embed.weight"),
        "layers": sum(name.startswith("gnn.") and name.endswith(".ln1.weight") for name in stored),
        "heads": rows("gnn.0.attn.proj_e.2.bias"),
        "spatial": spatial,
        "task": columns(task) if task in stored else None,
    }
    if low_rank:
        return HypernetSpec(
            **shared,
            decoder="low_rank",
            rank=columns(f"{_NAMED}weight"),
            chunk=rows(f"{_NAMED}weight"),
            widest=_widest(config),
            classes=_count(config.get("num_classes", 1000 if spatial == 16 else 10), "num_classes"),
        )
    return HypernetSpec(
        **shared,
        decoder="conv",
        widest=isqrt(rows("decoder.conv.2.weight")),
        classes=rows("decoder.class_layer_predictor.1.bias"),
    )


def _widest(config: Mapping[str, Any]) -> int:
    """The first of the config's max_shape; without a config the papers' 2048."""
    told = config.get("max_shape", 2048)
    return _count((*told, None)[0] if type(told) in (tuple, list) else told, "max_shape")


def _count(value: Any, name: str) -> int:
    if type(value) is not int or not 0 < value <= 1_000_000:
        raise WrongCall(f"{name} is {value if type(value) is int else type(value).__name__} in its config")
    return value


def _check_config(spec: HypernetSpec, config: Mapping[str, Any], path: Path) -> None:
    """A config must not contradict the tensors, nor leave out what every hypernetwork here does."""
    known = {"hid": spec.hidden, "layers": spec.layers, "heads": spec.heads, **_AS_ALWAYS}
    for name, value in known.items():
        told = config.get(name, value)
        if type(told) not in (int, bool) or told != value:
            shown = told if type(told) in (int, bool) else type(told).__name__
            raise BadFile(f"{path}: its config says {name} {shown}, its tensors {value}; it is of another variant")


def _check_shapes(spec: HypernetSpec, stored: Mapping[str, Stored], path: Path) -> None:
    from lgzoo_tal.hypernet import Hypernet

    wanted = {name: tuple(tensor.shape) for name, tensor in Hypernet(spec, None).state_dict().items()}
    if missing := sorted(wanted.keys() - stored.keys()):
        raise BadFile(f"{path} lacks {len(missing)} tensors of such a hypernetwork, the first being {missing[0]}")
    if extra := sorted(stored.keys() - wanted.keys()):
        raise BadFile(
            f"{path} holds {len(extra)} tensors that no such hypernetwork has, the first being {extra[0]!r:.80}"
        )
    for name, shape in wanted.items():
        if stored[name].shape != shape:
            raise BadFile(f"{path}: {name} has the shape {stored[name].shape}; {shape} is wanted")


def _numbers(stored: Stored, name: str, path: Path) -> torch.Tensor:
    import torch

    tensor = stored.tensor()
    # A sum is finite, without the memory of a second tensor, unless a number is not (or it overflows: look again).
    if not isfinite(tensor.sum()) and not torch.isfinite(tensor).all():
        raise BadFile(f"{path}: {name} holds values that are not finite; fetch or write it again")
    return tensor
