"""The tensors of `factored.py`: draws, a model with factored blocks, and the training of scalers.

Stored tensors have the names that they have below `blocks.` of the learngene:
`shared.attn.qkv.weight.templates`, `3.attn.qkv.weight` (the scaler of block 3), `3.norm1.weight`.
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
    build_model,
    derive_seed,
    get_state_dict,
    get_table,
    load_training_images,
    make_objective,
    train,
)
from lgzoo_baselines.learnt.forms import Draws, Factorisation, list_matrices
from lgzoo_baselines.modules.mixed_blocks import ComputedBlocks, select_below


def draw_factors(
    state: StateDict, spec: Spec, factors: Draws, scalers: Draws, seed: int
) -> StateDict:
    """Return everything that an auxiliary model's blocks are computed from.

    Args:
        state: a plain model of shape `spec`, whose vectors are taken.
        spec: the shape of the auxiliary model.
        factors: shapes and standard deviations of the normal factors.
        scalers: the same of the scalers of each block.
        seed: of the draws.
    """
    draws = {f"shared.{name}": draw for name, draw in factors.items()}
    draws |= {f"{i}.{name}": draw for i in range(spec.layers) for name, draw in scalers.items()}
    drawn = {name: _draw_normal(*draw, derive_seed(seed, name)) for name, draw in draws.items()}
    return {**_select_blocks(state, spec), **drawn}


def _draw_normal(shape: Sequence[int], std: float, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * std


def _select_blocks(state: StateDict, spec: Spec) -> dict[str, torch.Tensor]:
    """Return the tensors of all blocks of a model, under their names below `blocks.`."""
    return {
        f"{i}.{name}": tensor
        for i in range(spec.layers)
        for name, tensor in select_below(state, f"blocks.{i}").items()
    }


def name_blocks(blocks: Sequence[StateDict], spec: Spec) -> StateDict:
    """Return the tensors of blocks, in their order, under their names in a model."""
    table = get_table(spec)
    return {
        table.block_name(i, name): tensor
        for i, block in enumerate(blocks)
        for name, tensor in block.items()
    }


def install_factored_blocks(
    model: Model, spec: Spec, stored: StateDict, form: Factorisation
) -> Model:
    """Return `model` with blocks that are computed from `stored` in every pass.

    Args:
        model: of shape `spec`; the tensors of its blocks are not used.
        spec: the shape of the model.
        stored: factors, scalers and vectors; copies of them become parameters.
        form: how matrices are factorised.
    """
    kinds = list_matrices(spec)

    def compute_blocks(parameters: Mapping[str, torch.Tensor]) -> Iterator[StateDict]:
        factors = select_below(parameters, "shared")
        layers = (select_below(parameters, str(i)) for i in range(spec.layers))
        return (form.build_block(factors, layer, kinds) for layer in layers)

    model.blocks = ComputedBlocks(model.blocks[0], build_module(stored), compute_blocks)
    return model


def build_module(tensors: StateDict) -> nn.Module:
    """Build a module whose parameters are copies of these tensors, under their dotted names."""
    root = nn.Module()
    for name, tensor in tensors.items():
        *path, leaf = name.split(".")
        module = root
        for child in path:
            if child not in module._modules:
                module.add_module(child, nn.Module())
            module = module.get_submodule(child)
        module.register_parameter(leaf, nn.Parameter(tensor.detach().clone().float()))
    return root


def train_scalers(
    recipe: Recipe,
    form: Factorisation,
    start: Descendant,
    factors: StateDict,
    scalers: Sequence[StateDict],
    task: Task,
    run: Run,
) -> StateDict:
    """Train scalers, vectors, final norm and head; return the state of the trained descendant.

    The stem and the factors are frozen, but not the factors that belong to a size.

    Args:
        recipe: of the training.
        form: how matrices are factorised.
        start: the descendant, whose vectors are taken.
        factors: of a model of this width.
        scalers: of each of its layers.
        task: whose images it sees.
        run: how to compute.
    """
    spec, table = start.spec, get_table(start.spec)
    stored = {
        **_select_blocks(start.state, spec),
        **{
            f"{i}.{name}": scaler
            for i, layer in enumerate(scalers)
            for name, scaler in layer.items()
        },
        **{f"shared.{name}": factor for name, factor in factors.items()},
    }
    model = install_factored_blocks(build_model(spec, start.state), spec, stored, form)
    frozen = {f"blocks.shared.{name}" for name in factors if name not in form.adapted}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not (name in frozen or table.is_stem(name)))
    objective = make_objective(task, model, recipe, derive_seed(run.seed, "attributes"))
    loader = load_training_images(task, start.input_format, recipe, run)
    for _ in train(objective, loader, recipe, run, label="scalers"):
        pass
    return _multiply_trained(get_state_dict(model.cpu()), spec, form)


def _multiply_trained(trained: StateDict, spec: Spec, form: Factorisation) -> StateDict:
    """Return the tensors of a plain model from those of a model with factored blocks."""
    factors, kinds = select_below(trained, "blocks.shared"), list_matrices(spec)
    layers = [select_below(trained, f"blocks.{i}") for i in range(spec.layers)]
    blocks = [form.build_block(factors, layer, kinds) for layer in layers]
    outside = {name: tensor for name, tensor in trained.items() if not name.startswith("blocks.")}
    return {**outside, **name_blocks(blocks, spec)}
