"""The super ancestry net: beside every frozen base block a specific block that one data set trains, and a router between them.

LSAMD, section "Super Ans-Net", eq. 1-2. Shapes: B images, N tokens, D width; 2 choices, the specific block (the paper's h^D) and
the base block (h^B). The net stays timm's VisionTransformer, with each block replaced by a `RoutedBlock`, so that everything
around the blocks is the ancestry model's own.

The paper prints its router as `softmax(x W1 + softplus(x W2))` and calls W2 "noisy", after Shazeer et al. 2017, whose gate is
`x W1 + eps * softplus(x W2)` with eps ~ N(0, 1). As printed nothing is noisy, so nothing explores: `gaussian` is
Shazeer's gate and the default, `printed` the paper's letters, `none` has no second term.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from lgzoo_lsamd.settings import SearchSettings

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer

SPECIFIC, BASE = 0, 1  # columns of the routers' probabilities, in the paper's order: P(h^D | x), P(h^B | x)


class Router(nn.Module):
    """From one vector per image to the probabilities of the two blocks, (B, D) -> (B, 2).

    Both matrices start at zero: undecided, with a noise of standard deviation ln 2, so that what a search finds comes
    from its data and not from a draw (the class token is nearly the same for all images: a random W1 would send a whole
    data set one way). Gaussian noise is drawn in training only.
    """

    def __init__(self, width: int, settings: SearchSettings) -> None:
        super().__init__()
        self.preference = nn.Parameter(torch.zeros(width, 2))  # W1
        self.spread = nn.Parameter(torch.zeros(width, 2))  # W2
        self.noise = settings.noise

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


class Gate(torch.autograd.Function):
    """Straight-through: the chosen block's output unchanged, and to its probability the gradient <dL/dy, h - x>.

    That is the gradient of `x + (h - x) * (1 + p - stopgrad(p))`: it tells the router how useful the block's own update
    of the stream is. With `x` None it is that of `h * (1 + p - stopgrad(p))`. Written out, because this way nothing is
    stored that the blocks have not stored already, and the value is h to the last bit.
    """

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, h_BND: torch.Tensor, p_B: torch.Tensor, x_BND: torch.Tensor | None
    ) -> torch.Tensor:
        ctx.save_for_backward(*([h_BND] if x_BND is None else [h_BND, x_BND]))
        ctx.kind = p_B.dtype  # type: ignore[attr-defined]
        return h_BND.view_as(h_BND)

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: torch.autograd.function.FunctionCtx, gradient_BND: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, None]:
        h_BND, *x_BND = ctx.saved_tensors  # type: ignore[attr-defined]
        update_BND = h_BND - x_BND[0] if x_BND else h_BND
        # In single precision: a sum over all tokens and channels is too long for sixteen bits.
        by_image_B = torch.linalg.vecdot(gradient_BND.flatten(1).float(), update_BND.flatten(1).float())
        return gradient_BND, by_image_B.to(ctx.kind), None  # type: ignore[attr-defined]


class RoutedBlock(nn.Module):
    """One layer of the super net. `preferences_B2` holds the probabilities of the last forward pass."""

    def __init__(self, base: nn.Module, width: int, class_token: bool, settings: SearchSettings) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.specific = copy.deepcopy(base).requires_grad_(True)
        self.router = Router(width, settings)
        self.class_token = class_token
        self.settings = settings
        self.preferences_B2 = torch.empty(0, 2)

    def forward(self, x_BND: torch.Tensor) -> torch.Tensor:
        """The tokens after the chosen block; only that block runs, unless the gate is "both" and this is training."""
        p_B2 = self.router(x_BND[:, 0] if self.class_token else x_BND.mean(dim=1))
        self.preferences_B2 = p_B2
        if self.training and self.settings.gate == "both":
            return self._both(x_BND, p_B2)
        if self.settings.routing == "image":
            return self._by_image(x_BND, p_B2)
        chosen = vote(p_B2)
        return self._gated(chosen, x_BND, p_B2)

    def _gated(self, chosen: int, x_BND: torch.Tensor, p_B2: torch.Tensor) -> torch.Tensor:
        h_BND = self.base(x_BND) if chosen == BASE else self.specific(x_BND)
        return Gate.apply(h_BND, p_B2[:, chosen], x_BND if self.settings.gate == "update" else None)

    def _by_image(self, x_BND: torch.Tensor, p_B2: torch.Tensor) -> torch.Tensor:
        """Each image through the block that it prefers, the outputs put back in order."""
        base_B = prefers_base(p_B2)
        groups = {BASE: base_B.nonzero().flatten(), SPECIFIC: (~base_B).nonzero().flatten()}
        parts = [self._gated(side, x_BND[rows], p_B2[rows]) for side, rows in groups.items() if len(rows)]
        places = torch.cat(list(groups.values())).argsort()
        return torch.cat(parts)[places] if parts else x_BND

    def _both(self, x_BND: torch.Tensor, p_B2: torch.Tensor) -> torch.Tensor:
        """Both updates of the stream, mixed by their probabilities: x + sum_k p_k (h_k - x)."""
        p_B211 = p_B2.to(x_BND.dtype)[:, :, None, None]
        return p_B211[:, SPECIFIC] * self.specific(x_BND) + p_B211[:, BASE] * self.base(x_BND)


def super_net(
    model: VisionTransformer, settings: SearchSettings, specific: Mapping[str, torch.Tensor] | None = None
) -> VisionTransformer:
    """Turn a timm VisionTransformer into its super net, in place.

    The specific blocks, the routers and the head are trained; patch embedding, tokens, positions and the final norm stay
    the ancestry's, so that all data sets judge the same base blocks. specific: the specific blocks and routers of an earlier
    search to continue from, as `specific_set` returns them.
    """
    model.requires_grad_(False)
    model.blocks = nn.Sequential(
        *[RoutedBlock(block, model.embed_dim, model.cls_token is not None, settings) for block in model.blocks]
    )
    model.get_classifier().requires_grad_(True)
    for name, tensor in (specific or {}).items():
        model.get_parameter(name).data.copy_(tensor)
    return model


def routed_blocks(model: nn.Module) -> Iterator[RoutedBlock]:
    """The layers of a super net, first to last."""
    return (module for module in model.modules() if isinstance(module, RoutedBlock))


def specific_set(model: nn.Module) -> dict[str, torch.Tensor]:
    """The specific blocks and routers of a super net by name, detached: what `shared` carries between data sets."""
    carried = (".specific.", ".router.")
    return {name: p.detach() for name, p in model.named_parameters() if any(part in name for part in carried)}
