"""What a model's features say of pictures before any training: a linear probe, leaving each picture out in turn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from learngene_zoo.errors import BadData

if TYPE_CHECKING:
    from learngene_zoo.tasks.loader import Batches

# Of the ridge, as multiples of the number of pictures: features are standardised, so that 1 halves a direction of unit variance.
PENALTIES = (1e-3, 1e-2, 1e-1, 1.0)


def features(model: Any, loader: Batches) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The inputs of the head, float32 (B, D), and the classes (B,), of every batch, on the CPU.

    `model` is a module of timm's with `forward_features` and `forward_head`, in eval mode.
    """
    device = next(model.parameters()).device
    for batch in loader.epoch(0):
        with torch.no_grad():
            pooled_BD = model.forward_head(model.forward_features(batch.images.to(device)), pre_logits=True)
        yield pooled_BD.float().cpu(), batch.labels


def left_out(features_ND: np.ndarray, labels_N: np.ndarray) -> np.ndarray:
    """Which pictures a ridge regression onto the classes names rightly if it is fitted to all others, bool (N,).

    In closed form (Hastie, Tibshirani and Friedman, The Elements of Statistical Learning, section 7.10.1): with fitted values y^
    and the diagonal h of the matrix that makes them, the prediction without picture i is y_i - (y_i - y^_i) / (1 - h_i). The
    penalty is the one of `PENALTIES` with the least squared error of these predictions. Raises `BadData` if the pictures show
    fewer than two classes.
    """
    known, numbers_N = np.unique(labels_N, return_inverse=True)
    if len(known) < 2:
        raise BadData(f"the pictures show {len(known)} class; a probe needs at least two")
    targets_NK = np.eye(len(known))[numbers_N]
    count, mean_K = len(targets_NK), targets_NK.mean(axis=0)
    centred_ND = features_ND.astype(np.float64) - features_ND.mean(axis=0, dtype=np.float64)
    standard_ND = centred_ND / np.maximum(centred_ND.std(axis=0), 1e-6)
    basis_NR, singular_R, _ = np.linalg.svd(standard_ND, full_matrices=False)
    best_NK, least = targets_NK, np.inf
    for penalty in PENALTIES:
        kept_R = singular_R**2 / (singular_R**2 + penalty * count)
        fitted_NK = mean_K + basis_NR @ (kept_R[:, None] * (basis_NR.T @ targets_NK))
        leverage_N = 1 / count + (basis_NR**2 * kept_R).sum(axis=1)
        error_NK = (targets_NK - fitted_NK) / (1 - leverage_N)[:, None]
        if (squared := float((error_NK**2).sum())) < least:
            best_NK, least = targets_NK - error_NK, squared
    return np.asarray(best_NK.argmax(axis=1) == numbers_N)
