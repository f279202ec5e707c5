"""From stored blocks to descendants: every order printed in the paper, the blocks' sources, and
refusals.
"""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import get_args

import pytest
import torch

from learngene_zoo import lifecycle
from learngene_zoo.artifacts import shelf as learngenes
from learngene_zoo.artifacts.learngene import Learngene
from learngene_zoo.artifacts.records import AncestryRecord, LearngeneConfig
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families.tensors import initialise
from learngene_zoo.families.vit.spec import TABLE, ViTSpec
from learngene_zoo.method.sizes import Target
from learngene_zoo.runs.run import Run
from learngene_zoo.storage import Tensors
from lgzoo_lsamd.blocks import (
    Expansion,
    LsamdExpander,
    Priority,
    grow_stage,
    order_blocks,
    order_stages,
    select_base_blocks,
    split_stages,
)
from lgzoo_lsamd.lsamd import LSAMD

SPEC = ViTSpec(layers=5, width=32, heads=2, classes=7, image_size=16, patch_size=8)
KEPT = [1, 4, 5]
RECORD = AncestryRecord(source="test", spec=SPEC, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))


@pytest.fixture(scope="module")
def ancestor() -> dict[str, torch.Tensor]:
    return dict(initialise(SPEC, seed=0))


@pytest.fixture
def gene(ancestor) -> Learngene:
    config = LearngeneConfig(
        method="lsamd", spec=SPEC, ancestries=(RECORD,), details={"kept": KEPT}
    )
    return Learngene(config=config, state=select_base_blocks(ancestor, SPEC, KEPT))


def expand(gene: Learngene, expander: LsamdExpander | None = None, **sizes: int):
    return (expander or LSAMD.expander)(gene, Target(**sizes), Run(seed=3))


def test_a_learngene_holds_the_kept_blocks_under_their_names_and_shares_their_memory(
    ancestor, gene
) -> None:
    blocks = {name.split(".")[1] for name in gene.state if name.startswith("blocks.")}
    assert blocks == {"0", "3", "4"}
    assert {"cls_token", "pos_embed", "patch_embed.proj.weight", "norm.weight"} <= set(gene.state)
    assert not any(map(TABLE.is_head, gene.state))
    assert all(tensor is ancestor[name] for name, tensor in gene.state.items())


def test_each_block_of_a_descendant_is_the_ancestrys_block_of_the_order(ancestor, gene) -> None:
    descendant = expand(gene, layers=6)
    for i, source in enumerate([1, 1, 4, 5, 5, 5]):  # two stages: (1) and (4, 5), the last first
        assert (
            descendant.state[f"blocks.{i}.mlp.fc1.weight"]
            is ancestor[f"blocks.{source - 1}.mlp.fc1.weight"]
        )
    assert descendant.state["norm.weight"] is ancestor["norm.weight"]
    assert descendant.provenance["blocks"] == [1, 1, 4, 5, 5, 5]
    assert set(descendant.state) - descendant.inherited == {"head.weight", "head.bias"}


def test_expansion_and_priority_are_settings(gene) -> None:
    cyclic = LsamdExpander(expansion="cyclic", priority="first-middle-last")
    assert expand(gene, cyclic, layers=6).provenance["blocks"] == [1, 1, 1, 4, 5, 4]


def test_the_silent_sizes_are_the_ancestrys(gene) -> None:
    assert expand(gene).spec == SPEC
    assert expand(gene, classes=3, layers=3).spec == SPEC.with_(classes=3, layers=3)


def test_every_member_of_the_family_is_built_and_runs(gene) -> None:
    for member in LSAMD.expander.family(gene.config):
        descendant = LSAMD.expander(gene, member.target, Run())
        assert descendant.spec == member.spec
        assert sum(tensor.numel() for tensor in descendant.state.values()) == member.cost().params
    assert descendant.model()(torch.zeros(2, 3, 16, 16)).shape == (2, 7)


def test_more_layers_than_the_family_lists_can_be_asked_for(gene) -> None:
    assert expand(gene, layers=20).spec.layers == 20


def test_another_image_size_resamples_the_positions(ancestor, gene) -> None:
    descendant = expand(gene, layers=3, image_size=32)
    assert descendant.state["pos_embed"].shape == (1, 17, 32)
    assert torch.equal(descendant.state["pos_embed"][:, 0], ancestor["pos_embed"][:, 0])
    assert descendant.model()(torch.zeros(1, 3, 32, 32)).shape == (1, 7)


def test_the_head_is_drawn_from_the_seed(gene) -> None:
    heads = [
        LSAMD.expander(gene, Target(layers=3), Run(seed=seed)).state["head.weight"]
        for seed in (1, 1, 2)
    ]
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])


def test_from_disk_only_what_is_used_is_read_and_that_once(
    gene, tmp_path: Path, monkeypatch
) -> None:
    loaded = learngenes.load_learngene(gene.save(tmp_path / "gene"))
    read = []
    original = Tensors.__getitem__
    monkeypatch.setattr(
        Tensors, "__getitem__", lambda self, name: read.append(name) or original(self, name)
    )
    descendant = expand(loaded, layers=9)
    assert sorted(read) == sorted(set(read))
    assert torch.equal(
        descendant.state["blocks.8.attn.qkv.weight"], gene.state["blocks.4.attn.qkv.weight"]
    )


def test_the_learngene_is_left_as_it_was(gene) -> None:
    before = {name: tensor.clone() for name, tensor in gene.state.items()}
    model = expand(gene, layers=8, image_size=32).model()
    for parameter in model.parameters():
        parameter.data.zero_()
    assert all(torch.equal(gene.state[name], tensor) for name, tensor in before.items())


def test_sizes_that_cannot_be_reached(gene) -> None:
    with pytest.raises(WrongCall, match="2 layers are fewer than the 3 blocks"):
        expand(gene, layers=2)
    with pytest.raises(
        WrongCall, match="width is 64, but all descendants of this learngene have width 32"
    ):
        lifecycle.expand(gene, width=64)
    with pytest.raises(WrongCall, match="tile"):
        expand(gene, image_size=20)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("blocks.3.norm1.bias"), "lacks the tensor blocks.3.norm1.bias"),
        (lambda state: state.pop("norm.weight"), "lacks the tensor norm.weight"),
        (
            lambda state: state.update({"pos_embed": torch.zeros(1, 4, 32)}),
            r"shape \(1, 4, 32\) in pos_embed",
        ),
        (lambda state: state.update({"stranger": torch.zeros(1)}), "holds the tensor stranger"),
    ],
)
def test_a_learngene_that_is_not_whole(gene, change, message: str) -> None:
    state = dict(gene.state)
    change(state)
    with pytest.raises(BadFile, match=message):
        expand(Learngene(config=gene.config, state=state), layers=4)


# stages and orders

PAPER = (1, 4, 5, 7, 8)

ORDERS = {
    5: "1 4 5 7 8",
    6: "1 4 5 7 8 8",
    7: "1 4 5 5 7 8 8",
    8: "1 1 4 5 5 7 8 8",
    9: "1 1 4 5 5 7 8 8 8",
    10: "1 1 4 5 5 5 7 8 8 8",
    11: "1 1 1 4 5 5 5 7 8 8 8",
    12: "1 1 1 4 5 5 5 7 8 8 8 8",
    13: "1 1 1 4 5 5 5 5 7 8 8 8 8",
    14: "1 1 1 1 4 5 5 5 5 7 8 8 8 8",
    15: "1 1 1 1 4 5 5 5 5 7 8 8 8 8 8",
}


@pytest.mark.parametrize("layers", ORDERS)
def test_the_orders_of_last_middle_first(layers: int) -> None:
    assert order_blocks(PAPER, layers) == tuple(map(int, ORDERS[layers].split()))


@pytest.mark.parametrize(
    ("priority", "wanted"),
    [
        # Six layers: the one addition goes to the stage named first.
        ("first-middle-last", "1 1 4 5 7 8"),
        ("first-last-middle", "1 1 4 5 7 8"),
        ("middle-first-last", "1 4 5 5 7 8"),
        ("middle-last-first", "1 4 5 5 7 8"),
        ("last-middle-first", "1 4 5 7 8 8"),
        ("last-first-middle", "1 4 5 7 8 8"),
        # Seven layers: the ablation's pairs middle-first, last-first, last-middle, and the three
        # others.
        ("middle-first-last", "1 1 4 5 5 7 8"),
        ("last-first-middle", "1 1 4 5 7 8 8"),
        ("last-middle-first", "1 4 5 5 7 8 8"),
        ("first-middle-last", "1 1 4 5 5 7 8"),
        ("first-last-middle", "1 1 4 5 7 8 8"),
        ("middle-last-first", "1 4 5 5 7 8 8"),
    ],
)
def test_the_ablation_orders(priority: Priority, wanted: str) -> None:
    sources = tuple(map(int, wanted.split()))
    assert order_blocks(PAPER, len(sources), priority=priority) == sources


def test_every_permutation_is_a_priority() -> None:
    assert set(get_args(Priority)) == {
        "-".join(words) for words in permutations(("first", "middle", "last"))
    }


def test_cyclic_repeats_the_stage_from_its_first_block() -> None:
    assert grow_stage((7, 8), 2, "cyclic") == (7, 8, 7, 8)
    assert grow_stage((7, 8), 3, "cyclic") == (7, 8, 7, 8, 7)
    assert grow_stage((7, 8), 2, "neighbor") == (7, 8, 8, 8)
    assert order_blocks(PAPER, 11, expansion="cyclic") == (1, 1, 1, 4, 5, 4, 5, 7, 8, 7, 8)


@pytest.mark.parametrize(
    ("kept", "wanted"),
    [
        ((1, 4, 5, 7, 8), [(1,), (4, 5), (7, 8)]),
        ((3,), [(3,)]),
        ((1, 2, 3, 4), [(1, 2, 3, 4)]),
        ((1, 3, 5), [(1,), (3,), (5,)]),
    ],
)
def test_stages_are_the_maximal_runs(kept: tuple[int, ...], wanted: list[tuple[int, ...]]) -> None:
    assert split_stages(kept) == wanted


def test_turns_with_other_numbers_of_stages() -> None:
    assert order_stages(1) == [0]
    assert order_stages(2) == [1, 0]
    assert order_stages(2, "first-middle-last") == [0, 1]
    # The middle is every inner stage, the last of them first.
    assert order_stages(5) == [4, 3, 2, 1, 0]
    assert order_stages(5, "middle-first-last") == [3, 2, 1, 0, 4]


def test_a_single_stage_takes_every_addition() -> None:
    for priority in get_args(Priority):
        assert order_blocks((3, 4), 5, priority=priority) == (3, 4, 4, 4, 4)


@pytest.mark.parametrize("priority", get_args(Priority))
@pytest.mark.parametrize("expansion", get_args(Expansion))
@pytest.mark.parametrize(
    "kept", [(2,), (1, 2), (1, 3), PAPER, (1, 3, 5, 7, 9), tuple(range(1, 13))]
)
def test_an_order_has_the_length_asked_for_and_stages_that_differ_by_one(
    kept, expansion, priority
) -> None:
    for layers in range(len(kept), 31):
        sources = order_blocks(kept, layers, expansion=expansion, priority=priority)
        assert len(sources) == layers
        assert set(sources) == set(kept)
        additions = [sum(s in stage for s in sources) - len(stage) for stage in split_stages(kept)]
        assert max(additions) - min(additions) <= 1
        # Round robin: of the stages in their turns, the later never has more than the earlier.
        in_turns = [additions[position] for position in order_stages(len(additions), priority)]
        assert in_turns == sorted(in_turns, reverse=True)


def test_fewer_layers_than_kept_blocks_is_refused() -> None:
    with pytest.raises(WrongCall, match=r"4 layers are fewer than the 5 blocks.*top=4"):
        order_blocks(PAPER, 4)
