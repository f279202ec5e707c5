"""Change predicted weights before they are fine-tuned, as the authors of GHN-3 do, by setting.

Knyazev, "Pretraining a Neural Network before Knowing Its Architecture" (2022), section 3, with the
scale 1e-5 of the released code of GHN-3. Predicted rows are nearly alike, so that neurons would
remain alike: conditional noise is larger the more alike they are, and orthogonal matrices have rows
that are not alike at all. Every matrix and kernel but the classifier's changes.

A matrix W is (long, short): the tensor (out, ...) flattened to two axes, transposed if it is wide.

    noise         W + 1e-5 std(corr(rows of W)) N(0, 1)
    orthogonal    Q of W' = Q R, where W' has that noise, with columns' signs such that R's
                  diagonal is positive
"""

from __future__ import annotations

import torch

from learngene_zoo.plugin import StateDict, derive_seed
from lgzoo_tal.hypernet_spec import Post

SCALE = 1e-5


def process_tensors(tensors: StateDict, post: Post, seed: int) -> StateDict:
    """Return the tensors of a model after `post`.

    Args:
        tensors: by timm's names.
        post: the process.
        seed: each tensor is a function of it and of the tensor's name.
    """
    if post == "none":
        return tensors
    return {
        name: _process_tensor(tensor, name, post, seed) if _is_processed(name, tensor) else tensor
        for name, tensor in tensors.items()
    }


def _is_processed(name: str, tensor: torch.Tensor) -> bool:
    return name.endswith(".weight") and tensor.dim() > 1 and not name.startswith("head.")


def _process_tensor(tensor: torch.Tensor, name: str, post: Post, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(derive_seed(seed, "post", name))
    alike = torch.corrcoef(_flatten_long(tensor)).std()
    noisy = tensor + SCALE * alike * torch.randn(tensor.shape, generator=generator)
    return noisy if post == "noise" else orthogonalise(noisy)


def orthogonalise(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor with orthonormal columns, in its shape.

    It has orthonormal rows where it has fewer of them than columns.
    """
    long = _flatten_long(tensor)
    q, r = torch.linalg.qr(long)
    q = q * r.diagonal().sign()
    return (q if long.shape[0] == tensor.shape[0] else q.mT).reshape(tensor.shape)


def _flatten_long(tensor: torch.Tensor) -> torch.Tensor:
    """Return (long, short), a view."""
    flat = tensor.flatten(1)
    return flat.mT if flat.shape[0] < flat.shape[1] else flat
