"""The numbers of the released code for small random hypernetworks: tests/data/tal/NAME.bin.xz.

Such a file is lzma over: 4 bytes, the length of the header; the header, JSON with each tensor's
type and shape; the tensors, each as planes of its first, second, … bytes (which packs better). In
it, for a target of two blocks of width 48:

    state/NAME             the hypernetwork's tensors; of some only the rows that this target
                           reads (header: kept)
    task                   the task's embedding
    MODE/x0 placed nodes   node features: of type and shape; with their places; after the final
                           norm. MODE is msa or nomsa
    MODE/edges             the edge bias of the first five nodes, (5, N, heads)
    MODE/vectors head      the outputs of GHN-3's decoders for vectors and for the head
    MODE/row               the class token's position in the following
    MODE/made/NAME         the predicted tensors by timm's names; of all but one prediction every
                           `step`-th number
    MODE/logits targets    of the predicted model, for `images`
"""

from __future__ import annotations

import json
import lzma
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from learngene_zoo.families.vit.spec import ViTSpec
from lgzoo_tal.hypernet_spec import HypernetSpec

DATA = Path(__file__).parents[1] / "data" / "tal"
TARGET = ViTSpec(layers=2, width=48, heads=3, patch_size=4, image_size=32, classes=10)
NAMES = ("ghn3", "logah", "tal")
MODES = ("msa", "nomsa")


@dataclass(frozen=True)
class Vectors:
    """One of the files."""

    spec: HypernetSpec
    step: int
    numbers: dict[str, Any]  # by mode: losses, and the norm of the gradient of every tensor
    tensors: dict[str, Tensor]
    kept: dict[str, Any]

    def state(self, missing: float = float("nan")) -> dict[str, Tensor]:
        """Return the hypernetwork's tensors; rows that are not in the file are `missing`."""
        state_dict = self.within("state/")
        for name, stored in self.kept.items():
            complete = torch.full(stored["shape"], missing)
            rows = (
                _list_centre_rows(stored["shape"][0])
                if stored["rows"] == "fc"
                else torch.tensor(stored["rows"])
            )
            complete[rows] = state_dict[name]
            state_dict[name] = complete
        return state_dict

    def within(self, prefix: str) -> dict[str, Tensor]:
        """Return the tensors whose names start so, without it."""
        return {
            name.removeprefix(prefix): t.clone()
            for name, t in self.tensors.items()
            if name.startswith(prefix)
        }


def _list_centre_rows(rows: int) -> Tensor:
    """Return the rows of GHN-3's first decoder layer for the middle positions.

    These are 8 by 8 of 16 by 16.
    """
    return torch.arange(rows).view(-1, 16, 16)[:, 4:12, 4:12].flatten()


@lru_cache(maxsize=3)
def load_vectors(name: str) -> Vectors:
    """Load those of ghn3, logah or tal."""
    content = lzma.decompress((DATA / f"{name}.bin.xz").read_bytes())
    start = 4 + int.from_bytes(content[:4], "little")
    header = json.loads(content[4:start])
    tensors = {}
    for key, (kind, shape) in header["tensors"].items():
        size = np.dtype(kind).itemsize
        end = start + prod(shape) * size
        planes = np.frombuffer(content[start:end], np.uint8).reshape(size, -1)
        tensors[key] = torch.from_numpy(planes.T.copy().view(kind).reshape(shape))
        start = end
    spec = HypernetSpec(**header["spec"])
    return Vectors(spec, header["step"], header["numbers"], tensors, header["kept"])
