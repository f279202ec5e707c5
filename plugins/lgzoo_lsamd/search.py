"""One search: train the super ancestry net on one data set, then ask its routers which blocks they prefer.

LSAMD, section "Search". Every data set's search is a part of the run: resumed by itself, and loaded once it is finished.
By default each starts anew from the ancestry model; the base is frozen, so their order does not matter. With `shared` the
specific blocks and routers go on from one data set to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import nn

from learngene_zoo.plugin import (
    Ancestry,
    Batches,
    Json,
    Recipe,
    Run,
    StateDict,
    Task,
    WrongCall,
    assemble,
    derive_seed,
    objective_for,
    parameter_groups,
    train,
    training_images,
    without_head,
    world,
)
from lgzoo_lsamd.preference import preferences
from lgzoo_lsamd.rates import check_rates
from lgzoo_lsamd.router import Router
from lgzoo_lsamd.supernet import Rules, SearchObjective, specific_set, super_net

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer

    from lgzoo_lsamd.method import Search


def search_all(search: Search, ancestry: Ancestry, tasks: Sequence[Task], run: Run) -> dict[str, Json]:
    """What the search on each task found, by the task's name. Raises `WrongCall` without a task."""
    if not tasks:
        raise WrongCall("LSAMD searches on tasks; name at least one with --task, or the blocks themselves with --keep")
    check_rates(search.task_lr, [task.name for task in tasks])
    found: dict[str, Json] = {}
    carried: StateDict = {}
    for task in tasks:
        compute = partial(search_one, search, ancestry, task, carried)
        tensors, found[task.name] = run.part(f"search/{task.name}").once(compute)
        carried = tensors if search.shared else {}
    return found


def search_one(search: Search, ancestry: Ancestry, task: Task, carried: StateDict, run: Run) -> tuple[StateDict, Json]:
    """Train the super net on `task`, from the ancestry's weights and the `carried` specific set.

    Returns the specific set (with `shared`, else nothing), and the record of `details.datasets` (see `method.py`).
    """
    recipe = search.recipe(task.name)
    rules = Rules(routing=search.routing, gate=search.gate, noise=search.noise)
    model = super_net(start(ancestry, task, run), rules, carried)
    objective = SearchObjective(
        objective_for(task, model, recipe, derive_seed(run.seed, "attributes")), search.balance_weight
    )
    loader = training_images(task, ancestry.input_format, recipe, run)
    _check_pieces(loader, recipe)
    groups = partial(groups_with_routers, router_lr=search.router_lr)
    for _ in train(objective, loader, recipe, run, groups=groups, unused=True, label="super net"):
        pass
    asked = preferences(model, task, ancestry.input_format, run)
    record = {
        "paths": [int(share >= 0.5) for share in asked.shares],
        "shares": [round(share, 6) for share in asked.shares],
        "validation_accuracy": asked.value,
        "metric": asked.metric,
        "validation_images": asked.images,
        "training_images": loader.images,
        "lr": recipe.lr,
    }
    return (specific_set(model) if search.shared else {}), record


def start(ancestry: Ancestry, task: Task, run: Run) -> VisionTransformer:
    """The ancestry model, in memory of its own, with a fresh head for the task's classes."""
    spec = ancestry.spec.with_(classes=task.classes, dense=task.dense)
    return assemble(spec, without_head(ancestry.state, spec), seed=derive_seed(run.seed, "head")).model()


def groups_with_routers(module: nn.Module, recipe: Recipe, *, router_lr: float) -> list[dict[str, Any]]:
    """AdamW's groups: the usual ones, and the routers apart, at a learning rate of their own and without decay."""
    routers = {id(p): p for part in module.modules() if isinstance(part, Router) for p in part.parameters()}
    groups = [
        {**group, "params": [p for p in group["params"] if id(p) not in routers]}
        for group in parameter_groups(module, recipe)
    ]
    apart = {"params": list(routers.values()), "weight_decay": 0.0, "lr_scale": router_lr / recipe.lr}
    return [group for group in [*groups, apart] if group["params"]]


def _check_pieces(loader: Batches, recipe: Recipe) -> None:
    """Raises `WrongCall` where processes would cut their shares of a batch into unequal numbers of pieces to vote on."""
    if loader.images < recipe.batch_size and recipe.accumulate > loader.images // world():
        raise WrongCall(
            f"{loader.images} images cannot be shared by {world()} processes in {recipe.accumulate} pieces each"
        )
