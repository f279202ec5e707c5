"""LSAMD's super net: which blocks run, its equal models, and which parameters are trained."""

from __future__ import annotations

import copy
import itertools
import subprocess
import sys

import pytest
import timm
import torch
from torch import nn

from learngene_zoo.families.family import load_family
from learngene_zoo.families.tensors import build_model, initialise
from lgzoo_lsamd.modules.supernet import (
    BASE,
    SPECIFIC,
    Gate,
    RoutedBlock,
    SearchObjective,
    build_super_net,
    collect_specific,
    compute_balance,
    iterate_routed_blocks,
    vote,
)

WIDTH, LAYERS, CLASSES = 32, 3, 5


@pytest.fixture(scope="module")
def ancestor() -> nn.Module:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = {"img_size": 16, "patch_size": 8, "embed_dim": WIDTH, "depth": LAYERS, "num_heads": 2}
    model = timm.create_model("vit_base_patch16_224", num_classes=CLASSES, **sizes)
    for parameter in model.parameters():  # timm starts too small for blocks to differ visibly
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model.eval()


def net(ancestor: nn.Module, differ: bool = True, **settings: str) -> nn.Module:
    model = build_super_net(copy.deepcopy(ancestor), **settings)
    if differ:
        generator = torch.Generator().manual_seed(1)
        for name, parameter in model.named_parameters():
            if ".specific." in name:
                parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model


def images(count: int = 8) -> torch.Tensor:
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(2))


def force(model: nn.Module, path: tuple[int, ...]) -> None:
    """Make every router choose `path`, by the last channel, which is then equal for all images."""
    for block, side in zip(iterate_routed_blocks(model), path, strict=True):
        block.router.forward = _always(side)  # type: ignore[method-assign]


def _always(side: int):
    return lambda x_BD: torch.tensor([0.4, 0.6] if side == BASE else [0.6, 0.4]).expand(
        len(x_BD), 2
    )


def by_hand(model: nn.Module, pixels: torch.Tensor, path: tuple[int, ...]) -> torch.Tensor:
    """Run the chosen blocks in turn, without routing."""
    plain = copy.deepcopy(model)
    plain.blocks = nn.Sequential(
        *[block.base if side == BASE else block.specific for block, side in zip(model.blocks, path)]
    )
    return plain(pixels)


@pytest.mark.parametrize("path", list(itertools.product((SPECIFIC, BASE), repeat=LAYERS)))
def test_a_hard_path_equals_its_blocks_exactly_in_training_and_evaluation(ancestor, path) -> None:
    for gate in ("update", "stream"):
        model = net(ancestor, gate=gate)
        force(model, path)
        for mode in (True, False):
            model.train(mode)
            assert torch.equal(model(images()), by_hand(model, images(), path))


def test_training_without_noise_takes_the_path_of_evaluation(ancestor) -> None:
    model = net(ancestor, noise="none")
    for block in iterate_routed_blocks(model):
        block.router.preference.data = torch.randn(
            WIDTH, 2, generator=torch.Generator().manual_seed(3)
        )
    assert torch.equal(model.train()(images()), model.eval()(images()))


def test_a_new_super_net_is_the_ancestry_model(ancestor) -> None:
    assert torch.equal(net(ancestor, differ=False).eval()(images()), ancestor(images()))


@pytest.mark.parametrize("routing", ["batch", "image"])
@pytest.mark.parametrize("gate", ["update", "both"])
@pytest.mark.parametrize("rope", ["cat", "mixed"])
def test_blocks_get_their_rotary_positions(routing: str, gate: str, rope: str) -> None:
    spec = load_family("eva").examples[0].with_(rope_type=rope)
    ancestor = build_model(spec, initialise(spec, 0, "fan_in"))
    model = build_super_net(copy.deepcopy(ancestor), routing=routing, gate=gate)
    torch.testing.assert_close(model.train()(images()), ancestor(images()))
    assert torch.equal(model.eval()(images()), ancestor(images()))


def test_only_the_chosen_block_runs(ancestor) -> None:
    model = net(ancestor)
    force(model, (SPECIFIC, BASE, SPECIFIC))
    ran = []
    for i, block in enumerate(iterate_routed_blocks(model)):
        for side in ("base", "specific"):
            getattr(block, side).register_forward_hook(
                lambda *_, name=f"{i} {side}": ran.append(name)
            )
    model.train()(images())
    assert ran == ["0 specific", "1 base", "2 specific"]


def test_image_routing_sends_each_image_its_own_way(ancestor) -> None:
    block = RoutedBlock(
        copy.deepcopy(ancestor.blocks[0]), WIDTH, slice(0, 1), routing="image"
    ).eval()
    block.specific = copy.deepcopy(ancestor.blocks[1])
    x_BND = torch.randn(6, 5, WIDTH, generator=torch.Generator().manual_seed(4))
    block.router.preference.data[:, SPECIFIC] = torch.randn(
        WIDTH, generator=torch.Generator().manual_seed(5)
    )
    y_BND = block(x_BND)
    to_base_B = block.preferences_B2[:, BASE] >= block.preferences_B2[:, SPECIFIC]
    assert 0 < to_base_B.sum() < 6, "this test needs images on both sides"
    expected = torch.where(to_base_B[:, None, None], block.base(x_BND), block.specific(x_BND))
    torch.testing.assert_close(y_BND, expected)


def seen_by_routers(model: nn.Module) -> list[torch.Tensor]:
    """Return the inputs of each router when the model runs."""
    seen: list[torch.Tensor] = []
    for block in iterate_routed_blocks(model):
        block.router.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
    model.eval()(images(4))
    return seen


def test_block_1_is_blind_to_the_image_by_its_class_token_and_not_by_its_patches(ancestor) -> None:
    by_class, by_patches = (
        seen_by_routers(net(ancestor, router_token=token))[0] for token in ("class", "patches")
    )
    assert by_class.var(dim=0).max() == 0
    assert by_patches.var(dim=0).min() > 0
    embedded_BND = ancestor._pos_embed(ancestor.patch_embed(images(4)))
    assert torch.equal(by_class, embedded_BND[:, 0])
    torch.testing.assert_close(by_patches, embedded_BND[:, 1:].mean(dim=1))


def test_later_routers_see_what_the_blocks_before_made_of_these_tokens(ancestor) -> None:
    by_class, by_patches, by_ones = (
        seen_by_routers(net(ancestor, router_token=token))
        for token in ("class", "patches", "constant")
    )
    x_BND = ancestor._pos_embed(ancestor.patch_embed(images(4)))
    for block, of_class, of_patches, ones in zip(
        ancestor.blocks, by_class, by_patches, by_ones, strict=True
    ):
        torch.testing.assert_close(of_class, x_BND[:, 0])
        torch.testing.assert_close(of_patches, x_BND[:, 1:].mean(dim=1))
        assert torch.equal(ones, torch.ones(4, WIDTH))
        x_BND = block(x_BND)


def test_without_a_class_token_routers_see_all_tokens_or_all_but_the_registers() -> None:
    sizes = {"img_size": 16, "patch_size": 8, "embed_dim": WIDTH, "depth": 1, "num_heads": 2}
    plain = timm.create_model(
        "vit_base_patch16_224", class_token=False, global_pool="avg", reg_tokens=2, **sizes
    )
    x_BND = plain._pos_embed(plain.patch_embed(images(4)))
    for token, first in (("class", 0), ("patches", 2)):
        (seen,) = seen_by_routers(build_super_net(copy.deepcopy(plain), router_token=token))
        torch.testing.assert_close(seen, x_BND[:, first:].mean(dim=1))


def test_the_gates_gradients_are_those_of_the_formula() -> None:
    torch.manual_seed(0)
    kind = {"requires_grad": True}
    h, x, p = torch.randn(3, 4, 5, **kind), torch.randn(3, 4, 5, **kind), torch.rand(3, **kind)
    weight = torch.randn(3, 4, 5)
    scale = (1 + p - p.detach())[:, None, None]
    for stream, ours in ((False, Gate.apply(h, p, x)), (True, Gate.apply(h, p, None))):
        formula = h * scale if stream else x + (h - x) * scale
        got = torch.autograd.grad((ours * weight).sum(), [h, p])
        # h and x are independent here: the formula's gradient to x through the update is 1 - 1 = 0.
        expected = torch.autograd.grad((formula * weight).sum(), [h, p])
        for ours_, theirs in zip(got, expected):
            torch.testing.assert_close(ours_, theirs)


def trained_step(model: nn.Module, balance_weight: float = 0.0) -> dict[str, torch.Tensor]:
    labels = torch.arange(8) % CLASSES
    task = _Task(model, labels)
    torch.manual_seed(0)
    losses = SearchObjective(task, balance_weight).train()(images())
    sum(losses.values()).backward()
    return losses


class _Task(nn.Module):
    def __init__(self, model: nn.Module, labels: torch.Tensor) -> None:
        super().__init__()
        self.model, self.labels = model, labels

    def forward(self, pixels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"cross_entropy": nn.functional.cross_entropy(self.model(pixels), self.labels)}


@pytest.mark.parametrize("routing", ["batch", "image"])
@pytest.mark.parametrize("gate", ["update", "both"])
def test_every_router_has_a_gradient_worth_learning_from(ancestor, routing: str, gate: str) -> None:
    model = net(ancestor, routing=routing, gate=gate)
    trained_step(model)
    for block in iterate_routed_blocks(model):
        assert block.router.preference.grad.norm() > 1e-4
        assert block.router.spread.grad.norm() > 1e-5


@pytest.mark.parametrize("noise", ["printed", "none"])
def test_every_router_has_a_gradient_under_other_noises(ancestor, noise: str) -> None:
    model = net(ancestor, noise=noise)
    trained_step(model)
    for block in iterate_routed_blocks(model):
        assert block.router.preference.grad.norm() > 1e-4
        assert (block.router.spread.grad is None) == (noise == "none")


def test_scaling_the_stream_leaves_the_last_router_without_a_signal(ancestor) -> None:
    """So `update` is the default: the final norm undoes a scale of the entire stream."""
    last = {}
    for gate in ("update", "stream"):
        model = net(ancestor, gate=gate)
        trained_step(model)
        last[gate] = float(list(iterate_routed_blocks(model))[-1].router.preference.grad.norm())
    assert last["stream"] < 0.01 * last["update"]


def test_what_learns_is_the_copies_the_routers_and_the_head(ancestor) -> None:
    model = net(ancestor)
    free = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    expected = {
        n
        for n, _ in model.named_parameters()
        if ".specific." in n or ".router." in n or n.startswith("head.")
    }
    assert free == expected
    before = {name: p.detach().clone() for name, p in model.named_parameters() if name not in free}
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], lr=0.1, weight_decay=0.1
    )
    for _ in range(3):
        optimizer.zero_grad()
        trained_step(model)
        optimizer.step()
    after = dict(model.named_parameters())
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert len(before) == len(list(ancestor.parameters())) - 2  # all but the head's two


def test_balance_is_one_when_even_and_two_when_one_sided() -> None:
    assert float(compute_balance(torch.tensor([[0.5, 0.5]] * 4))) == pytest.approx(1.0)
    assert float(compute_balance(torch.tensor([[0.0, 1.0]] * 4))) == pytest.approx(2.0)
    assert float(compute_balance(torch.tensor([[0.7, 0.3], [0.1, 0.9]]))) == pytest.approx(
        2 * (0.5 * 0.4 + 0.5 * 0.6)
    )


def test_balance_is_a_loss_of_its_own_where_asked(ancestor) -> None:
    assert set(trained_step(net(ancestor))) == {"cross_entropy"}
    losses = trained_step(net(ancestor), balance_weight=0.5)
    assert 0.5 <= losses["balance"].item() <= 1.0


def test_a_specific_set_goes_on_from_one_net_to_the_next(ancestor) -> None:
    first = net(ancestor)
    for block in iterate_routed_blocks(first):
        block.router.preference.data += 1
    second = build_super_net(copy.deepcopy(ancestor), specific=collect_specific(first))
    assert torch.equal(second.eval()(images()), first.eval()(images()))
    for mine, theirs in zip(iterate_routed_blocks(second), iterate_routed_blocks(first)):
        assert torch.equal(mine.router.preference, theirs.router.preference)
        assert all(
            torch.equal(a, b)
            for a, b in zip(mine.specific.parameters(), theirs.specific.parameters())
        )


RANK = """
import sys
import torch
from lgzoo_lsamd.modules.supernet import vote

rank, store = int(sys.argv[1]), torch.distributed.FileStore(sys.argv[2], 2)
torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
rows = {"split": [[[0.9, 0.1]] * 3, [[0.1, 0.9]] * 2], "tied": [[[0.9, 0.1]] * 2, [[0.1, 0.9]] * 2]}
print(*[vote(torch.tensor(halves[rank])) for halves in rows.values()])
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_that_disagree_take_one_path(tmp_path) -> None:
    calls = [[sys.executable, "-c", RANK, str(rank), str(tmp_path / "store")] for rank in range(2)]
    processes = [subprocess.Popen(call, stdout=subprocess.PIPE, text=True) for call in calls]
    messages = [process.communicate(timeout=120)[0].strip() for process in processes]
    assert messages == [f"{SPECIFIC} {BASE}"] * 2


def test_a_processes_vote_is_everybodys() -> None:
    """One process of a group: its images decide, through the reduction that many processes use."""
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        assert vote(torch.tensor([[0.6, 0.4], [0.6, 0.4], [0.1, 0.9]])) == SPECIFIC
        assert vote(torch.tensor([[0.6, 0.4], [0.1, 0.9]])) == BASE
    finally:
        torch.distributed.destroy_process_group()
