"""Scores of heads and hidden neurons in files of SnapViT's code.

The authors publish scores of ten models as `scores/SET/MODEL.pt`: a dictionary with `mlp_scores`
(L, M), `head_scores` (L, H), sizes and settings, written by `torch.save`. Only torch's restricted
reader opens such a file; it builds tensors, numbers and text. The two enumerations in it become
text. A safetensors file with the same two tensors is read, too.

Shapes: L blocks, H heads, M hidden neurons.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from learngene_zoo.plugin import BadFile, Spec, Tensors

MAX_BYTES = 64 * 2**20  # the largest of the authors' files has 0.7 MB
# Enumerations of text in the authors' code.
_AS_TEXT = ("src.models.enums.ModelType", "src.models.enums.MLPArchitecture")
_NAMES = ("head_scores", "mlp_scores")


def read_scores(path: str, spec: Spec) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the scores of heads (L, H) and of hidden neurons (L, M), float64.

    Args:
        path: the file.
        spec: the shape of the model that they are of.

    Raises:
        BadFile: for a file without such scores.
    """
    tensors, scores = _open_file(path), []
    for name, size in zip(_NAMES, (spec.heads, spec.hidden)):
        tensor, shape = tensors.get(name), (spec.layers, size)
        if not isinstance(tensor, torch.Tensor):
            raise BadFile(f"{path} has no tensor {name}; expected scores of SnapViT's code")
        if tuple(tensor.shape) != shape:
            raise BadFile(
                f"{path}: {name} has shape {tuple(tensor.shape)}; the ancestry model needs "
                f"{shape}. Choose the scores of this model"
            )
        rows = tensor.double()
        if not bool(rows.isfinite().all()) or bool((rows < 0).any()) or not bool(rows.sum() > 0):
            raise BadFile(f"{path}: {name} has numbers that are not finite and at least 0")
        scores.append(rows)
    return scores[0], scores[1]


def _open_file(path: str) -> dict[str, Any]:
    """Return the tensors in a file of scores."""
    file = Path(path)
    if not file.is_file():
        raise BadFile(f"{path} is not a file; name a file of scores (.pt or .safetensors)")
    if file.stat().st_size > MAX_BYTES:
        raise BadFile(f"{path} has more than {MAX_BYTES // 2**20} MB; it is not a file of scores")
    if file.suffix == ".safetensors":
        stored = Tensors(file)
        return {name: stored[name] for name in _NAMES if name in stored}
    try:
        known: list[Any] = [(str, name) for name in _AS_TEXT]
        with torch.serialization.safe_globals([*known, (_take_name, "builtins.getattr")]):
            content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # of any type, for a damaged file
        raise BadFile(
            f"{path} is not a file of scores: torch's reader of plain tensors refuses it "
            f"({type(error).__name__})"
        ) from error
    if not isinstance(content, dict):
        raise BadFile(f"{path} contains a {type(content).__name__}; expected a dictionary")
    return content


def _take_name(kind: object, name: object) -> str:
    """Return the name of an enumeration's member as text.

    It replaces `getattr`, by which Python 3.11.0 to 3.11.3 stores members; nothing is looked up.
    """
    return str(name)
