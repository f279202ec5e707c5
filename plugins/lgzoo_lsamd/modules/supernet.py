"""Build the super Ans-Net of LSAMD, and measure which blocks its routers prefer.

LSAMD, section "Learngene Search Across Multiple Datasets", eq. 1-2: every layer has a frozen base
block, a dataset-specific block that is trained on one data set, and a router between them. The net
is timm's or transformers' module with each block replaced by a `RoutedBlock`. This module also has
its objective, its parameter groups, and the measurement of the routers' preferences (eq. 3).
Everything that is said of images holds for texts, with these differences: routers read no padding,
and the class token is the token that the head reads, the first of a BERT and the last of a GPT-2.

The paper prints its router as `softmax(x W1 + softplus(x W2))` and calls W2 "noisy", after Shazeer
et al. 2017, whose gate is `x W1 + eps * softplus(x W2)` with eps ~ N(0, 1). As printed there is no
noise: `gaussian` is Shazeer's gate and the default, `printed` is eq. 1, `none` has no second term.

Shapes: B images, N tokens, D width, L layers, R numbers of a metric; 2 choices, the specific block
(the paper's h^D) and the base block (h^B).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from learngene_zoo.plugin import (
    Loader,
    TextSpec,
    WrongCall,
    build_model,
    choose_batch_size,
    choose_metric,
    compute_logits,
    count_terms,
    derive_seed,
    fill_missing_tensors,
    gather_values,
    get_blocks,
    get_classifier,
    get_shapes,
    get_world_size,
    join,
    make_parameter_groups,
    name_option,
    open_device,
    pool_words,
    remove_head,
    select_tensors,
)
from lgzoo_lsamd.blocks import SearchResult

if TYPE_CHECKING:
    from learngene_zoo.plugin import (
        Ancestry,
        Batches,
        InputFormat,
        Model,
        Recipe,
        Run,
        Task,
        TextFormat,
    )

SPREAD_TEXTS = 256  # training texts whose features are measured before a search
SPECIFIC, BASE = (
    0,
    1,
)  # columns of the routers' probabilities, in the paper's order: P(h^D | x), P(h^B | x)


class Router(nn.Module):
    """The router of a layer: (B, D), a vector per image, to the blocks' probabilities, (B, 2).

    Both matrices start at zero: undecided, with a noise of standard deviation ln 2, so that the
    result of a search comes from its data and not from a draw (the class token is nearly the same
    for all images: a random W1 would send a complete data set one way). Gaussian noise is drawn in
    training only.
    """

    def __init__(self, width: int, noise: str = "gaussian") -> None:
        super().__init__()
        self.preference = nn.Parameter(torch.zeros(width, 2))  # W1
        self.spread = nn.Parameter(torch.zeros(width, 2))  # W2
        self.noise = noise  # gaussian, printed or none

    def forward(self, x_BD: torch.Tensor) -> torch.Tensor:
        """Return P(h^D | x) and P(h^B | x)."""
        logits_B2 = x_BD @ self.preference
        if self.noise == "printed":
            logits_B2 = logits_B2 + functional.softplus(x_BD @ self.spread)
        elif self.noise == "gaussian" and self.training:
            logits_B2 = logits_B2 + torch.randn_like(logits_B2) * functional.softplus(
                x_BD @ self.spread
            )
        return logits_B2.softmax(dim=-1)


def prefers_base(probabilities_B2: torch.Tensor, strictly: bool = False) -> torch.Tensor:
    """Return whether each image prefers the base block, (B,), of its probabilities, (B, 2).

    Eq. 3: a tie does, unless `strictly`.
    """
    base_B, specific_B = probabilities_B2[:, BASE], probabilities_B2[:, SPECIFIC]
    return base_B > specific_B if strictly else base_B >= specific_B


def vote(probabilities_B2: torch.Tensor) -> int:
    """Return `SPECIFIC` if more than half of the images of all processes prefer it, else `BASE`.

    Every process gets the same answer, so that all run the same block.
    """
    against = (~prefers_base(probabilities_B2)).sum()
    ballot = torch.stack([against, torch.full_like(against, len(probabilities_B2))])
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(ballot)
    specific, images = ballot.tolist()
    return SPECIFIC if 2 * specific > images else BASE


class Gate(torch.autograd.Function):
    """A straight-through gate: the chosen block's output unchanged, and a gradient for its router.

    The block's probability gets <dL/dy, h - x>, the gradient of `x + (h - x) * (1 + p -
    stopgrad(p))`: how useful the block's update of the stream is. With `x` None it is that of
    `h * (1 + p - stopgrad(p))`. The backward pass is written out, because this way nothing is
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
        by_image_B = torch.linalg.vecdot(
            gradient_BND.flatten(1).float(), update_BND.flatten(1).float()
        )
        return gradient_BND, by_image_B.to(ctx.kind), None  # type: ignore[attr-defined]


class Arguments(NamedTuple):
    """The arguments of a block beside the tokens: rotary positions, or the mask of texts."""

    by_place: tuple[Any, ...]
    by_name: dict[str, Any]

    def select(self, rows: torch.Tensor, count: int) -> Arguments:
        """Return the arguments for these rows of a batch of `count` texts.

        In transformers the first axis of every tensor is that of the texts, or has the size 1.
        """

        def select_rows(value: Any) -> Any:
            is_by_text = isinstance(value, torch.Tensor) and value.ndim and len(value) == count
            return value[rows] if is_by_text else value

        named = {name: select_rows(value) for name, value in self.by_name.items()}
        return Arguments(tuple(select_rows(value) for value in self.by_place), named)


class RoutedBlock(nn.Module):
    """One layer of the super net.

    `preferences_B2` holds the probabilities of the last forward pass. `mask_BN` is 0 for the
    padding of its texts, and None for images.

    Args:
        base: the frozen block, which the specific block starts as a copy of.
        width: of the tokens.
        router_tokens: the tokens whose mean the router reads; of texts a pooling of `pool_words`;
            None: it reads ones.
        routing, gate, noise: as in `SearchSettings`.
    """

    def __init__(
        self,
        base: nn.Module,
        width: int,
        router_tokens: slice | str | None,
        *,
        routing: str = "batch",
        gate: str = "update",
        noise: str = "gaussian",
    ) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.specific = copy.deepcopy(base).requires_grad_(True)
        self.router = Router(width, noise)
        self.router_tokens = router_tokens
        self.routing, self.gate = routing, gate
        self.preferences_B2 = torch.empty(0, 2)
        self.mask_BN: torch.Tensor | None = None
        self.returns_tuple = False  # as blocks do in some versions of transformers

    def forward(self, x_BND: torch.Tensor, *by_place: Any, **by_name: Any) -> Any:
        """Return the tokens after the chosen block.

        Only that block runs, unless the gate is "both" and this is training. The other arguments
        are those that timm or transformers pass to every block beside the tokens.
        """
        arguments = Arguments(by_place, by_name)
        self.preferences_B2 = p_B2 = self.router(self._read_tokens(x_BND))
        if self.training and self.gate == "both":
            h_BND = self._run_both(x_BND, p_B2, arguments)
        elif self.routing == "image":
            h_BND = self._run_by_image(x_BND, p_B2, arguments)
        else:
            h_BND = self._run_gated(vote(p_B2), x_BND, p_B2, arguments)
        return (h_BND,) if self.returns_tuple else h_BND

    def abstain(self) -> None:
        """Take part in the vote on a batch of which this process has no texts."""
        self.preferences_B2 = self.router.preference.new_empty(0, 2)
        if self.routing == "batch":
            vote(self.preferences_B2)

    def _read_tokens(self, x_BND: torch.Tensor) -> torch.Tensor:
        """Return the router's input, (B, D)."""
        if self.router_tokens is None:
            return torch.ones_like(x_BND[:, 0])
        if isinstance(self.router_tokens, str):
            assert self.mask_BN is not None, "call the super net of texts by `compute_logits`"
            return pool_words(x_BND, self.mask_BN, self.router_tokens)
        return x_BND[:, self.router_tokens].mean(dim=1)

    def _run(self, side: int, x_BND: torch.Tensor, arguments: Arguments) -> torch.Tensor:
        block = self.base if side == BASE else self.specific
        output = block(x_BND, *arguments.by_place, **arguments.by_name)
        self.returns_tuple = isinstance(output, tuple)
        h_BND: torch.Tensor = output[0] if self.returns_tuple else output
        return h_BND

    def _run_gated(
        self, side: int, x_BND: torch.Tensor, p_B2: torch.Tensor, arguments: Arguments
    ) -> torch.Tensor:
        h_BND = self._run(side, x_BND, arguments)
        return Gate.apply(h_BND, p_B2[:, side], x_BND if self.gate == "update" else None)

    def _run_by_image(
        self, x_BND: torch.Tensor, p_B2: torch.Tensor, arguments: Arguments
    ) -> torch.Tensor:
        """Run each image through the block that it prefers, and put the outputs back in order."""
        base_B = prefers_base(p_B2)
        groups = {BASE: base_B.nonzero().flatten(), SPECIFIC: (~base_B).nonzero().flatten()}
        # timm passes no argument by image, and one of N tokens could be mistaken for one of B.
        is_text, count = self.mask_BN is not None, len(x_BND)
        parts = [
            self._run_gated(
                side,
                x_BND[rows],
                p_B2[rows],
                arguments.select(rows, count) if is_text else arguments,
            )
            for side, rows in groups.items()
            if len(rows)
        ]
        order = torch.cat(list(groups.values())).argsort()
        return torch.cat(parts)[order] if parts else x_BND

    def _run_both(
        self, x_BND: torch.Tensor, p_B2: torch.Tensor, arguments: Arguments
    ) -> torch.Tensor:
        """Mix both updates of the stream by their probabilities: x + sum_k p_k (h_k - x)."""
        p_B211 = p_B2.to(x_BND.dtype)[:, :, None, None]
        specific_BND, base_BND = (self._run(side, x_BND, arguments) for side in (SPECIFIC, BASE))
        return p_B211[:, SPECIFIC] * specific_BND + p_B211[:, BASE] * base_BND


def build_super_net(
    model: Model,
    *,
    text: TextSpec | None = None,
    specific: Mapping[str, torch.Tensor] | None = None,
    router_token: str = "class",
    **choices: str,
) -> Model:
    """Turn a model into its super net, in place. It is called by `compute_logits`.

    The specific blocks, the routers and the head are trained; patch embedding, tokens, positions
    and the final norm stay the ancestry's, so that all data sets judge the same base blocks.

    Args:
        model: the ancestry model.
        text: its spec, if it is a text model.
        specific: the specific blocks and routers of an earlier search to continue from, as
            `collect_specific` returns them.
        router_token: the tokens that routers read, see `select_router_tokens`.
        choices: those of `RoutedBlock`.
    """
    model.requires_grad_(False)
    tokens = select_router_tokens(model, router_token, text)
    width, blocks = model.embed_dim if text is None else text.width, get_blocks(model)
    for number, block in enumerate(blocks):
        blocks[number] = RoutedBlock(block, width, tokens, **choices)  # type: ignore[index]
    if text is not None:
        model.register_forward_pre_hook(pass_mask, with_kwargs=True)
    get_classifier(model).requires_grad_(True)
    for name, tensor in (specific or {}).items():
        model.get_parameter(name).data.copy_(tensor)
    return model


def pass_mask(model: nn.Module, _: tuple[Any, ...], arguments: dict[str, Any]) -> None:
    """Give the mask of the texts to every layer of a super net: a hook before its forward pass."""
    for block in iterate_routed_blocks(model):
        block.mask_BN = arguments["attention_mask"]


def select_router_tokens(
    model: Model, router_token: str, text: TextSpec | None = None
) -> slice | str | None:
    """Return the tokens whose mean the routers of a model read; of texts their pooling.

    class     the class token; where there is none, all tokens; of texts the token that the head
              reads, the first or the last
    patches   the patches, without class token and registers; of texts all tokens but padding
    constant  None: the routers read ones, nothing of the image
    """
    if router_token == "constant":
        return None
    if text is not None:
        # A head reads the first token, also where the pooling of a model without a head is the
        # mean.
        head = "last" if text.pool == "last" else "token"
        return "mean" if router_token == "patches" else head
    if router_token == "patches":
        return slice(model.num_prefix_tokens, None)
    return slice(0, 1) if model.cls_token is not None else slice(None)


def iterate_routed_blocks(model: nn.Module) -> Iterator[RoutedBlock]:
    """Return the layers of a super net, first to last."""
    return (module for module in model.modules() if isinstance(module, RoutedBlock))


def collect_specific(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the specific blocks and routers of a super net by name, detached.

    `shared` carries them between data sets.
    """
    parts = (".specific.", ".router.")
    return {
        name: parameter.detach()
        for name, parameter in model.named_parameters()
        if any(part in name for part in parts)
    }


def attach_head(ancestry: Ancestry, task: Task, run: Run) -> Model:
    """Build a copy of the ancestry model with a new head for the task's classes.

    The features of texts get a spread that a head can be trained on, if they have none: see
    `spread_pooled`.
    """
    spec = ancestry.spec.with_(classes=task.classes, dense=task.dense)
    # Without pooling, if the head is for pixels.
    body = select_tensors(remove_head(ancestry.state, spec), get_shapes(spec).__contains__)
    model = build_model(spec, fill_missing_tensors(spec, body, derive_seed(run.seed, "head")))
    if task.is_text:
        # Imported here: a search on images runs none of it.
        from learngene_zoo.plugin import compute_features, spread_pooled

        features = compute_features(
            model, task, "train", ancestry.input_format, run, images=SPREAD_TEXTS
        )
        spread = spread_pooled(model, torch.from_numpy(features.values))
        model.load_state_dict({**model.state_dict(), **spread})
    return model


class SearchObjective(nn.Module):
    """A task's objective on a super net, and with `balance_weight` a loss that balances the sides.

    The balance is Switch's auxiliary loss (Fedus et al. 2021, eq. 4) for two experts, averaged over
    the layers: 1 if both sides have half of the images, 2 if one has all. The paper mentions none,
    so its weight is 0 by default.
    """

    def __init__(self, task_objective: nn.Module, balance_weight: float = 0.0) -> None:
        super().__init__()
        self.task_objective = task_objective
        self.balance_weight = balance_weight

    def forward(self, batch: object) -> dict[str, torch.Tensor]:
        """Return the task's losses by name, and `balance`."""
        losses = self.task_objective(batch)
        if self.balance_weight:
            by_layer = [
                compute_balance(block.preferences_B2) for block in iterate_routed_blocks(self)
            ]
            losses = {**losses, "balance": self.balance_weight * torch.stack(by_layer).mean()}
        return losses

    def count_terms(self, batch: object) -> dict[str, torch.Tensor]:
        """Return the numbers of terms of the task's losses by name."""
        return count_terms(self.task_objective, batch)


def compute_balance(p_B2: torch.Tensor) -> torch.Tensor:
    """Compute 2 sum_k f_k P_k.

    f_k is the share of the images that prefer side k, and P_k their mean probability of it.
    """
    base = prefers_base(p_B2).to(p_B2.dtype).mean()
    return 2 * (torch.stack([1 - base, base]) * p_B2.mean(dim=0)).sum()


def group_parameters(
    module: nn.Module, recipe: Recipe, *, router_lr: float
) -> list[dict[str, Any]]:
    """Return AdamW's groups: the usual ones, and the routers apart.

    Routers have the learning rate `router_lr` and no weight decay.
    """
    routers = {
        id(p): p for part in module.modules() if isinstance(part, Router) for p in part.parameters()
    }
    groups = [
        {**group, "params": [p for p in group["params"] if id(p) not in routers]}
        for group in make_parameter_groups(module, recipe)
    ]
    apart = {
        "params": list(routers.values()),
        "weight_decay": 0.0,
        "lr_scale": router_lr / recipe.lr,
    }
    return [group for group in [*groups, apart] if group["params"]]


def check_pieces(loader: Batches, recipe: Recipe) -> None:
    """Check that all processes cut their shares of a batch into as many pieces to vote on.

    Raises `WrongCall` if they would not.
    """
    if loader.images < recipe.batch_size and recipe.accumulate > loader.images // get_world_size():
        raise WrongCall(
            f"{loader.images} images cannot be shared by {get_world_size()} processes in "
            f"{recipe.accumulate} pieces each; "
            f"use fewer processes, or a smaller {name_option('accumulate')}"
        )


def compute_or_abstain(model: nn.Module, inputs: Any, classes: int) -> torch.Tensor:
    """Return the logits of a super net; transformers' modules cannot compute those of no text."""
    if len(inputs) or isinstance(inputs, torch.Tensor):
        return compute_logits(model, inputs)
    for block in iterate_routed_blocks(model):
        block.abstain()
    return torch.empty(0, classes, device=inputs.ids.device)


def measure_preferences(
    model: nn.Module,
    task: Task,
    input_format: InputFormat | TextFormat,
    run: Run,
    *,
    tie: str = "base",
    batch_size: int | None = None,
) -> SearchResult:
    """Measure which blocks validation images prefer (eq. 3), and the metric of the chosen path.

    The routers have no noise here. Under torchrun the processes share the images.

    Args:
        model: a trained super net; it is left in eval mode on the run's device.
        task: the data set.
        input_format: of the images.
        run: how to compute.
        tie: the block that an image counts for whose two probabilities are equal, as those of an
            untrained router: the base block (the >= of eq. 3), or in each layer the block that the
            run's seed draws ("random").
        batch_size: by default the metric's.

    Raises:
        BadData: for an empty split.
    """
    device, metric = open_device(run), choose_metric(task)
    join(run.device_name)
    size = batch_size or choose_batch_size(metric, input_format, device.type)
    loader = Loader(
        task, "validation", input_format, batch_size=size, workers=run.workers, drop_last=False
    )
    blocks = list(iterate_routed_blocks(model))
    against = [
        tie == "random" and derive_seed(run.seed, "tie", layer) % 2 for layer in range(len(blocks))
    ]
    # Of each batch: per layer the images that prefer the base, then the metric's numbers.
    counts: list[torch.Tensor] = []
    model.to(device).eval()
    kind = torch.float16 if run.precision == "fp16" else torch.bfloat16
    with torch.no_grad(), torch.autocast(device.type, kind, enabled=run.precision != "fp32"):
        for batch in loader.epoch(0):
            # A process without images in this batch takes part all the same: the votes are counted
            # over all processes.
            logits = compute_or_abstain(model, batch.inputs.to(device), task.classes)
            rows_BR = metric.rows(logits, batch.labels.to(device))
            for_base_L = torch.stack(
                [
                    prefers_base(block.preferences_B2, strictly=bool(x)).sum()
                    for block, x in zip(blocks, against)
                ]
            )
            counts.append(torch.cat([for_base_L, rows_BR.sum(dim=0)]).cpu())
    total = np.sum(gather_values(torch.stack(counts).sum(dim=0).numpy()), axis=0)
    shares = [int(count) / loader.images for count in total[: len(blocks)]]
    return SearchResult(
        paths=tuple(int(share >= 0.5) for share in shares),
        shares=tuple(round(share, 6) for share in shares),
        validation_accuracy=metric.value(total[len(blocks) :], loader.images),
        metric=metric.name,
        validation_images=loader.images,
    )
