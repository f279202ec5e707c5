"""How well the features of one model predict those of another by a linear map.

Shapes: N images of the fit, M held-out images, D features, F features to predict, E directions in
which the features vary.
"""

from __future__ import annotations

import numpy as np

from learngene_zoo.errors import BadData
from learngene_zoo.training.probes import PENALTIES, Array, decompose, standardise


def measure_map_errors(
    features_ND: Array, targets_NF: Array, held_out_MD: Array, held_out_targets_MF: Array
) -> Array:
    """Return the squared error of a ridge map for each held-out image, float64 (M,).

    It is divided by the mean squared distance of the held-out targets from the mean of
    `targets_NF`, so that 1 minus its mean is the share of explained variance, R². The penalty is
    the one of `PENALTIES` with the smallest leave-one-out error.

    Args:
        features_ND: features of the images of the fit.
        targets_NF: the features to predict, of the same images.
        held_out_MD: features of the held-out images.
        held_out_targets_MF: the features to predict, of the held-out images.

    Raises:
        BadData: if the targets do not vary.
    """
    mean_D, scale_D, standard_ND = standardise(features_ND)
    directions_DE, coordinates_NE, eigenvalues_E = decompose(standard_ND)
    targets_NF = targets_NF.astype(np.float64)
    target_mean_F, count = targets_NF.mean(axis=0), len(targets_NF)
    centred_NF = targets_NF - target_mean_F
    products_EF = coordinates_NE.T @ centred_NF
    losses = []
    for penalty in PENALTIES:
        damped_E = eigenvalues_E + penalty * count
        errors_NF = centred_NF - coordinates_NE @ (products_EF / damped_E[:, None])
        leverage_N = 1 / count + (coordinates_NE**2 / damped_E).sum(axis=1)
        losses.append(float(np.square(errors_NF / (1 + 1e-9 - leverage_N)[:, None]).sum()))
    chosen = PENALTIES[int(np.argmin(losses))]
    weight_DF = directions_DE @ (products_EF / (eigenvalues_E + chosen * count)[:, None])
    standard_MD = (held_out_MD - mean_D) * scale_D
    distances_MF = held_out_targets_MF - target_mean_F
    variance = float(np.square(distances_MF).sum(axis=1).mean())
    if variance <= 0:
        raise BadData("the features of all images are equal; give images that differ")
    return np.asarray(np.square(distances_MF - standard_MD @ weight_DF).sum(axis=1) / variance)
