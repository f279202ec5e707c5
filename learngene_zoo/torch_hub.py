"""What the entries of hubconf.py do. Needs only torch, timm, safetensors and huggingface_hub."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from learngene_zoo import lifecycle
from learngene_zoo.artifacts import shelf
from learngene_zoo.artifacts.shelf import Learngene
from learngene_zoo.errors import WrongCall
from learngene_zoo.method import METHODS
from learngene_zoo.runs.run import Run

if TYPE_CHECKING:
    from torch import nn

SUFFIX = "_vit"


def entries() -> list[str]:
    """`METHOD_vit` for every registered method."""
    return [f"{name}{SUFFIX}" for name in METHODS.references()]


def entry(name: str) -> Callable[..., nn.Module]:
    """The entry of that name. Raises `AttributeError`, as a module does, if no method has it."""
    if name not in entries():
        raise AttributeError(f"no entry named {name!r}; there are {', '.join(entries())}")
    method = name.removesuffix(SUFFIX)
    function = partial(method_vit, method)
    function.__doc__ = (
        f"A Vision Transformer from a learngene of the method {method}.\n\n"
        "The same parameters as `descendant`; `learngene` is optional if the shelf has one of this method."
    )
    return function


def method_vit(
    method: str, task: str | None = None, *, learngene: str | Path | None = None, **options: Any
) -> nn.Module:
    """A model from a learngene of one method (default: the one on the shelf).

    Raises `WrongCall` for a learngene of another method.
    """
    gene = shelf.open_learngene(learngene if learngene is not None else method)
    if gene.config.method != method:
        raise WrongCall(
            f"{learngene} is a learngene of {gene.config.method}, not of {method}; use the entry `descendant`"
        )
    return build(gene, task, **options)


def build(
    learngene: str | Path | Learngene,
    task: str | None = None,
    *,
    pretrained: bool = True,
    seed: int = 0,
    device: str = "cpu",
    ancestry: str | None = None,
    **sizes: Any,
) -> nn.Module:
    """A timm model in eval mode. `sizes` are those of `lifecycle.expand`, by our names or timm's; so are the errors.

    `ancestry` is where the ancestry model lies, for the methods that embed an unseen task with it (see `Run.ancestry`).
    """
    gene = shelf.open_learngene(learngene)
    made = lifecycle.expand(gene, run=Run(seed=seed, device=device, ancestry=ancestry), **{"task": task, **sizes})
    if not pretrained:
        from learngene_zoo.families.tensors import initial

        made = made.with_state(initial(made.spec, seed), inherited=frozenset())
    return made.model().to(device)
