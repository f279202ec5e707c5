"""The super ancestry net: beside every frozen base block a copy that one data set may train, and a router between them.

LSAMD, section "Super Ans-Net". Shapes: B images, N tokens, D width. The net stays timm's VisionTransformer, with each
block replaced by a `RoutedBlock`, so that everything around the blocks is the ancestry model's own.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import nn

from lgzoo_lsamd.router import BASE, SPECIFIC, Noise, Router, prefers_base, vote

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer

Routing = Literal["batch", "image"]
GateForm = Literal["update", "stream", "both"]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How a routed block decides, and how its router learns."""

    routing: Routing = "batch"
    gate: GateForm = "update"
    noise: Noise = "gaussian"


class Gate(torch.autograd.Function):
    """Straight-through: the chosen block's output unchanged, and to its probability the gradient <dL/dy, h - x>.

    That is the gradient of `x + (h - x) * (1 + p - stopgrad(p))`: it tells the router how useful the block's own update
    of the stream is. With `x` None it is that of `h * (1 + p - stopgrad(p))`. Written out, because this way nothing is
    stored that the blocks have not stored already, and the value is h to the last bit.
    """

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        h_BND: torch.Tensor,
        p_B: torch.Tensor,
        x_BND: torch.Tensor | None,
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

    def __init__(self, base: nn.Module, width: int, class_token: bool, rules: Rules) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.specific = copy.deepcopy(base).requires_grad_(True)
        self.router = Router(width, rules.noise)
        self.class_token = class_token
        self.rules = rules
        self.preferences_B2 = torch.empty(0, 2)

    def forward(self, x_BND: torch.Tensor) -> torch.Tensor:
        """The tokens after the chosen block; only that block runs, unless the gate is "both" and this is training."""
        p_B2 = self.router(x_BND[:, 0] if self.class_token else x_BND.mean(dim=1))
        self.preferences_B2 = p_B2
        if self.training and self.rules.gate == "both":
            return self._both(x_BND, p_B2)
        if self.rules.routing == "image":
            return self._by_image(x_BND, p_B2)
        chosen = vote(p_B2)
        return self._gated(chosen, x_BND, p_B2)

    def _gated(self, chosen: int, x_BND: torch.Tensor, p_B2: torch.Tensor) -> torch.Tensor:
        h_BND = self.base(x_BND) if chosen == BASE else self.specific(x_BND)
        return Gate.apply(h_BND, p_B2[:, chosen], x_BND if self.rules.gate == "update" else None)

    def _by_image(self, x_BND: torch.Tensor, p_B2: torch.Tensor) -> torch.Tensor:
        """Every image through the block it prefers itself, the outputs put back in order."""
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
    model: VisionTransformer, rules: Rules, specific: Mapping[str, torch.Tensor] | None = None
) -> VisionTransformer:
    """Turn a timm VisionTransformer (of one's own) into its super net, in place.

    Trainable are the copies, the routers and the head; patch embedding, class token, positions and the final norm stay
    the ancestry's, so that all data sets judge the same base blocks. `specific` are the copies and routers of an earlier
    search to go on from (`specific_set` gives them).
    """
    model.requires_grad_(False)
    model.blocks = nn.Sequential(
        *[RoutedBlock(block, model.embed_dim, model.cls_token is not None, rules) for block in model.blocks]
    )
    model.get_classifier().requires_grad_(True)
    for name, tensor in (specific or {}).items():
        model.get_parameter(name).data.copy_(tensor)
    return model


def routed_blocks(model: nn.Module) -> Iterator[RoutedBlock]:
    """The layers of a super net, first to last."""
    return (module for module in model.modules() if isinstance(module, RoutedBlock))


def specific_set(model: nn.Module) -> dict[str, torch.Tensor]:
    """The copies and routers of a super net by name, detached: what `shared` carries from data set to data set."""
    wanted = (".specific.", ".router.")
    return {name: p.detach() for name, p in model.named_parameters() if any(word in name for word in wanted)}


class SearchObjective(nn.Module):
    """Any task's objective on a super net, and where asked a loss that keeps the two sides in balance.

    The balance is Switch's auxiliary loss (Fedus et al. 2021, eq. 4) for two experts, averaged over the layers: 1 when
    both sides have half of the images, 2 when one has all. The paper mentions none, so its weight is 0 by default.
    """

    def __init__(self, task_objective: nn.Module, balance_weight: float = 0.0) -> None:
        super().__init__()
        self.task_objective = task_objective
        self.balance_weight = balance_weight

    def forward(self, batch: object) -> dict[str, torch.Tensor]:
        """The task's losses by name, and `balance`."""
        losses = self.task_objective(batch)
        if self.balance_weight:
            by_layer = [balance(block.preferences_B2) for block in routed_blocks(self)]
            losses = {**losses, "balance": self.balance_weight * torch.stack(by_layer).mean()}
        return losses


def balance(p_B2: torch.Tensor) -> torch.Tensor:
    """2 sum_k f_k P_k: f the share of the images that prefer side k, P their mean probability of it."""
    base = prefers_base(p_B2).to(p_B2.dtype).mean()
    return 2 * (torch.stack([1 - base, base]) * p_B2.mean(dim=0)).sum()
