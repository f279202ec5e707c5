"""DAD: the router that decides, layer by layer, whether a data set uses the base block or its own.

LSAMD eq. 1-2, shapes: B images, D the model's width, 2 choices in the paper's order: column 0 is the data set's own block
(the paper's h^D), column 1 the base block (h^B).

The paper prints `softmax(x W1 + softplus(x W2))` and calls W2 "noisy", after Shazeer et al. 2017, whose gate is
`x W1 + eps * softplus(x W2)` with eps ~ N(0, 1). As printed nothing is noisy, so nothing explores: `gaussian` is
Shazeer's gate and the default, `printed` the paper's letters, `none` has no second term.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn
from torch.nn import functional

Noise = Literal["gaussian", "printed", "none"]
SPECIFIC, BASE = 0, 1


class Router(nn.Module):
    """From one vector per image to the probabilities of the two blocks, (B, D) -> (B, 2).

    Both matrices start at zero: undecided, with a noise of standard deviation ln 2, so that what a search finds comes
    from its data and not from a draw (the class token is nearly the same for all images: a random W1 would send a whole
    data set one way). Gaussian noise is drawn in training only.
    """

    def __init__(self, width: int, noise: Noise = "gaussian") -> None:
        super().__init__()
        self.preference = nn.Parameter(torch.zeros(width, 2))  # W1
        self.spread = nn.Parameter(torch.zeros(width, 2))  # W2
        self.noise = noise

    def forward(self, x_BD: torch.Tensor) -> torch.Tensor:
        """P(h^D | x) and P(h^B | x)."""
        logits_B2 = x_BD @ self.preference
        if self.noise == "printed":
            logits_B2 = logits_B2 + functional.softplus(x_BD @ self.spread)
        elif self.noise == "gaussian" and self.training:
            logits_B2 = logits_B2 + torch.randn_like(logits_B2) * functional.softplus(x_BD @ self.spread)
        return logits_B2.softmax(dim=-1)


def prefers_base(probabilities_B2: torch.Tensor) -> torch.Tensor:
    """Eq. 3: whether each image prefers the base block; a tie does. (B, 2) -> (B,), bool."""
    return probabilities_B2[:, BASE] >= probabilities_B2[:, SPECIFIC]


def vote(probabilities_B2: torch.Tensor) -> int:
    """`SPECIFIC` if more than half of the images prefer it, else `BASE`; over the images of all processes.

    Every process gets the same answer, so that all run the same block.
    """
    against = (~prefers_base(probabilities_B2)).sum()
    ballot = torch.stack([against, torch.full_like(against, len(probabilities_B2))])
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(ballot)
    specific, images = ballot.tolist()
    return SPECIFIC if 2 * specific > images else BASE
