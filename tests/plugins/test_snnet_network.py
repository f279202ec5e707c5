"""The stitched network, and the descendants that its paths are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from stitching_toy import anchors, images, learngene, stitched
from torch import nn

from learngene_zoo.artifacts.descendant import load_descendant
from learngene_zoo.artifacts.learngene import Learngene, load_learngene
from learngene_zoo.errors import BadFile
from learngene_zoo.families.tensors import get_shapes
from learngene_zoo.method.sizes import Target
from learngene_zoo.runs.run import Run
from learngene_zoo.storage import read_json
from learngene_zoo.tasks.task import Attribute
from learngene_zoo.training.objectives import ClassAndAttributes
from lgzoo_pool.expand import build_descendant, choose_candidate, list_candidates
from lgzoo_pool.modules.network import (
    PathModel,
    StitchedNetwork,
    build_network,
    draw_stitches,
    list_stitch_shapes,
)
from lgzoo_pool.snnet import SnnetExpander
from lgzoo_pool.snnet_steps import name_path

VARIANTS: list[dict[str, Any]] = [
    {},
    {"class_token": False, "pool": "avg"},
    {
        "registers": 2,
        "layer_scale": 1e-2,
        "pre_norm": True,
        "qk_norm": True,
        "no_embed_class": True,
    },
    {"dense": True},
    {"final_norm": False, "mlp_ratio": 2.5},
]


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    assert one.shape == other.shape
    return (one - other).abs().max().item()


@torch.no_grad()
def test_a_path_is_blocks_a_linear_layer_and_blocks() -> None:
    network, details = stitched((3, 3))
    (path,) = [
        p for p in details.layout.paths if [part[1:] for part in p.parts] == [(0, 2), (1, 3)]
    ]
    first, last = network.anchors
    tokens = first.pos_embed + torch.cat(
        [first.cls_token.expand(4, -1, -1), first.patch_embed(images())], dim=1
    )  # as timm embeds
    for block in first.blocks[:2]:
        tokens = block(tokens)
    tokens = nn.functional.linear(
        tokens,
        network.state_dict()["stitches.0.0.weight"],
        network.state_dict()["stitches.0.0.bias"],
    )
    for block in last.blocks[1:]:
        tokens = block(tokens)
    assert difference(network(images(), path), last.head(last.norm(tokens)[:, 0])) == 0


@torch.no_grad()
def test_anchors_are_themselves() -> None:
    network, details = stitched((2, 3))
    for ancestry, path in zip(anchors((2, 3)), details.layout.paths):
        assert difference(network(images(), path), ancestry.model()(images())) == 0


@torch.no_grad()
@pytest.mark.parametrize("sizes", VARIANTS, ids=str)
def test_every_descendant_is_its_path_to_the_last_bit(sizes: dict[str, Any]) -> None:
    network, details = stitched(
        (2, 2, 2), sizes, nearest=False, task="t", classes=4, dense=bool(sizes.get("dense"))
    )
    gene = learngene(network, details, **sizes)
    every = list_candidates(gene.config, name_path)
    assert len(every) == len(details.layout.paths) > 20
    for choice in every[:: 5 if sizes else 1]:
        descendant = build_descendant(gene, choice, task="t", seed=0)
        assert difference(descendant.model()(images()), network(images(), choice.path)) == 0
        assert descendant.spec == choice.member.spec
        assert descendant.inherited == set(get_shapes(descendant.spec))


def test_tensors_have_the_learngenes_names() -> None:
    network, _ = stitched((2, 2))
    expected = {
        f"anchors.{i}.{name}": s
        for i in (0, 1)
        for name, s in get_shapes(anchors((2, 2))[i].spec).items()
    }
    expected |= {"stitches.0.0.weight": (32, 16), "stitches.0.0.bias": (32,)}
    assert {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()} == expected


def test_stitches_start_as_a_function_of_seed_and_name() -> None:
    _, details = stitched((3, 3))
    specs = [ancestry.spec for ancestry in anchors((3, 3))]
    once, again, other = (draw_stitches(specs, details.layout, seed) for seed in (1, 1, 2))
    assert list(once) == list(list_stitch_shapes(specs, details.layout))
    assert all(torch.equal(once[name], again[name]) for name in once)
    assert not torch.equal(once["stitches.0.0.weight"], other["stitches.0.0.weight"])
    assert not torch.equal(once["stitches.0.0.weight"], once["stitches.0.1.weight"])
    assert once["stitches.0.0.weight"].std().item() == pytest.approx(16**-0.5, rel=0.2)
    assert not once["stitches.0.0.bias"].any()


def test_the_network_has_memory_of_its_own() -> None:
    network, details = stitched((2, 2))
    state = {name: tensor.detach() for name, tensor in network.state_dict().items()}
    other = build_network([ancestry.spec for ancestry in anchors((2, 2))], details.layout, state)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert all(tensor.any() for name, tensor in state.items() if name.endswith("weight"))


def test_objectives_see_a_model() -> None:
    """What reads attributes, and what reads pixels, work on a path as on timm's model."""
    network, details = stitched((2, 2))
    path = details.layout.paths[-1]
    along: Any = PathModel(network, path)
    with torch.no_grad():
        features = along.forward_head(along.forward_features(images()), pre_logits=True)
        assert difference(along.get_classifier()(features), along(images())) == 0
    objective = ClassAndAttributes(along, [Attribute("size")], 0.0)
    assert {name for name, _ in objective.named_parameters()} == {"reader.weight", "reader.bias"}
    dense, details = stitched((2, 2), {"dense": True})
    assert PathModel(dense, path)(images()).shape == (4, 4, 16, 16)


def gene_of(depths: tuple[int, ...] = (3, 3), **details: Any) -> tuple[StitchedNetwork, Learngene]:
    network, made = stitched(depths, None, task="t", classes=4, **details)
    return network, learngene(network, made)


def test_another_tasks_head_is_fresh_and_a_function_of_the_seed() -> None:
    _, gene = gene_of()
    choice = choose_candidate(gene.config, name_path, Target(classes=7), {"config": 4})
    first, same, second = (
        build_descendant(gene, choice, task="u", seed=seed) for seed in (1, 1, 2)
    )
    assert first.spec.classes == 7
    assert torch.equal(first.state["head.weight"], same.state["head.weight"])
    assert not torch.equal(first.state["head.weight"], second.state["head.weight"])
    assert set(get_shapes(first.spec)) - first.inherited == {"head.weight", "head.bias"}
    for target, task in [(Target(), None), (Target(), "u"), (Target(classes=7), "t")]:
        choice = choose_candidate(gene.config, name_path, target, {"config": 4})
        assert "head.weight" not in build_descendant(gene, choice, task=task, seed=0).inherited


def test_positions_follow_the_image_size() -> None:
    _, gene = gene_of()
    choice = choose_candidate(gene.config, name_path, Target(image_size=32), {"config": 5})
    descendant = build_descendant(gene, choice, task=None, seed=0)
    assert descendant.state["pos_embed"].shape == (1, 17, 16)
    assert torch.equal(descendant.state["pos_embed"][:, 0], gene.state["anchors.0.pos_embed"][:, 0])
    assert descendant.model()(images(2, 32)).shape == (2, 4)


@torch.no_grad()
def test_legacy_leaves_the_last_norm_out_of_stitched_paths_alone() -> None:
    network, gene = gene_of()
    every = list_candidates(gene.config, name_path, legacy=True)
    assert [choice.member.spec.final_norm for choice in every] == [True, True] + [False] * (
        len(every) - 2
    )
    descendant = build_descendant(gene, every[3], task="t", seed=0)
    assert not any(name.startswith("norm.") for name in descendant.state)
    last = network.get_anchor(1)
    last.norm = nn.Identity()
    assert difference(descendant.model()(images()), network(images(), every[3].path)) == 0


@torch.no_grad()
def test_an_anchor_is_a_plain_folder(tmp_path: Path) -> None:
    network, gene = gene_of()
    descendant = SnnetExpander(config=1)(gene, Target(task="t"), Run())
    descendant.save(tmp_path / "anchor")
    assert (
        read_json(tmp_path / "anchor" / "config.json")["architecture"] == "vit_base_patch16_224"
    ), "timm knows it alone"
    reopened = timm.create_model(f"local-dir:{tmp_path / 'anchor'}", pretrained=True).eval()
    assert difference(reopened(images()), network(images(), network.layout.paths[1])) == 0


@torch.no_grad()
def test_a_stitched_folder_opens_in_timm_and_here(tmp_path: Path) -> None:
    network, gene = gene_of()
    descendant = SnnetExpander(config=7)(
        load_learngene(gene.save(tmp_path / "learngene")), Target(task="t"), Run()
    )
    descendant.save(tmp_path / "stitched")
    expected = network(images(), network.layout.paths[7])
    reopened = timm.create_model(f"local-dir:{tmp_path / 'stitched'}", pretrained=True).eval()
    assert difference(reopened(images()), expected) == 0
    assert difference(load_descendant(tmp_path / "stitched").model()(images()), expected) == 0


@pytest.mark.parametrize(
    "name", ["stitches.0.1.weight", "anchors.0.blocks.2.attn.qkv.bias", "anchors.0.cls_token"]
)
def test_a_learngene_without_what_a_path_needs(name: str, tmp_path: Path) -> None:
    _, gene = gene_of()
    state = {other: tensor for other, tensor in gene.state.items() if other != name}
    broken = Learngene(config=gene.config, state=state).save(tmp_path / "broken")
    (choice,) = [
        c
        for c in list_candidates(gene.config, name_path)
        if [part[1:] for part in c.path.parts] == [(0, 3), (2, 3)]
    ]
    number = choice.member.settings["config"]
    with pytest.raises(BadFile, match=f"lacks the tensor {name}"):
        SnnetExpander(config=number)(load_learngene(broken), Target(), Run())
    assert SnnetExpander(config=1)(load_learngene(broken), Target(), Run()).spec.width == 32, (
        "other paths do not need it"
    )
    shorter = Learngene(config=gene.config, state={**gene.state, name: gene.state[name][:1]})
    if gene.state[name].shape[0] > 1:
        with pytest.raises(BadFile, match=f"for the tensor {name}, got"):
            SnnetExpander(config=number)(shorter, Target(), Run())
