"""What `factored.py` does with tensors: random factors and scalers, a model whose blocks are made of them, and its training.

Stored tensors have the names that they have below `blocks.` of the learngene: `shared.attn.qkv.weight.templates`,
`3.attn.qkv.weight` (the scaler of block 3), `3.norm1.weight`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import nn

from learngene_zoo.plugin import (
    Descendant,
    Model,
    Recipe,
    Run,
    Spec,
    StateDict,
    Task,
    derive_seed,
    model_of,
    objective_for,
    state_of,
    table_of,
    train,
    training_images,
)
from lgzoo_baselines.forms import Draws, Form, matrices
from lgzoo_baselines.mixed_blocks import MadeBlocks, below


def drawn(state: StateDict, spec: Spec, factors: Draws, scalers: Draws, seed: int) -> StateDict:
    """Normal factors and scalers, and the vectors of a plain model of `spec`: what its blocks are made of."""
    draws = {f"shared.{name}": draw for name, draw in factors.items()}
    draws |= {f"{i}.{name}": draw for i in range(spec.layers) for name, draw in scalers.items()}
    vectors = {
        f"{i}.{name}": tensor for i in range(spec.layers) for name, tensor in below(state, f"blocks.{i}").items()
    }
    return {**vectors, **{name: _normal(*draw, derive_seed(seed, name)) for name, draw in draws.items()}}


def _normal(shape: Sequence[int], std: float, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * std


def laid_out(blocks: Sequence[StateDict], spec: Spec) -> StateDict:
    """The tensors of blocks, in their order, under their names in a model."""
    table = table_of(spec)
    return {table.block_name(i, name): tensor for i, block in enumerate(blocks) for name, tensor in block.items()}


def made_of(model: Model, spec: Spec, stored: StateDict, form: Form) -> Model:
    """`model` with blocks that are made of what is stored in every pass."""
    kinds = matrices(spec)

    def layers(own: Mapping[str, torch.Tensor]) -> Iterator[StateDict]:
        factors = below(own, "shared")
        return (form.made(factors, below(own, str(i)), kinds) for i in range(spec.layers))

    model.blocks = MadeBlocks(model.blocks[0], tree(stored), layers)
    return model


def tree(tensors: StateDict) -> nn.Module:
    """A module whose parameters are copies of these tensors, under their dotted names."""
    root = nn.Module()
    for name, tensor in tensors.items():
        *path, leaf = name.split(".")
        module = root
        for part in path:
            if part not in module._modules:
                module.add_module(part, nn.Module())
            module = module.get_submodule(part)
        module.register_parameter(leaf, nn.Parameter(tensor.detach().clone().float()))
    return root


def rescaled(
    recipe: Recipe,
    form: Form,
    start: Descendant,
    factors: StateDict,
    scalers: Sequence[StateDict],
    task: Task,
    run: Run,
) -> StateDict:
    """The state of `start` with scalers, vectors, final norm and head as they are after learning on a task.

    Frozen are the factors, but those that belong to a size, and the stem.
    """
    spec, table = start.spec, table_of(start.spec)
    vectors = {f"{i}.{name}": t for i in range(spec.layers) for name, t in below(start.state, f"blocks.{i}").items()}
    own = {f"{i}.{name}": tensor for i, layer in enumerate(scalers) for name, tensor in layer.items()}
    stored = {**vectors, **own, **{f"shared.{name}": tensor for name, tensor in factors.items()}}
    model = made_of(model_of(spec, start.state), spec, stored, form)
    frozen = {f"blocks.shared.{name}" for name in factors if name not in form.adapted}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not (name in frozen or table.is_stem(name)))
    objective = objective_for(task, model, recipe, derive_seed(run.seed, "attributes"))
    for _ in train(objective, training_images(task, start.input_format, recipe, run), recipe, run, label="scalers"):
        pass
    trained, kinds = state_of(model.cpu()), matrices(spec)
    blocks = [
        form.made(below(trained, "blocks.shared"), below(trained, f"blocks.{i}"), kinds) for i in range(spec.layers)
    ]
    outside = {name: tensor for name, tensor in trained.items() if not name.startswith("blocks.")}
    return {**outside, **laid_out(blocks, spec)}
