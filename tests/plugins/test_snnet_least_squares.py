"""Stitches by least squares: the sums are those of solving every pair by itself, and every block
runs once.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
import torch
from stitching_toy import anchors, images, stitched

from learngene_zoo.runs.run import Run
from learngene_zoo.storage import StateDict
from learngene_zoo.testing import make_tiny_task
from lgzoo_pool.modules.least_squares import (
    Moments,
    compute_moments,
    group_pairs,
    iterate_images,
    measure_fit,
    solve_stitches,
)
from lgzoo_pool.modules.network import StitchedNetwork
from lgzoo_pool.settings import LeastSquaresSettings
from lgzoo_pool.snnet import attach_heads
from lgzoo_pool.snnet_steps import start_stitches


@torch.no_grad()
def one_by_one(network: StitchedNetwork, images_BCHW: torch.Tensor) -> StateDict:
    """Every pair by itself: `lstsq` on the stacked rows, then the mean over the pairs that share a
    layer.
    """
    layout, solved = network.layout, {}
    for stitch, pairs in layout.stitches:
        front, end = layout.joints[stitch.joint]
        weights = []
        for pair in pairs:
            tokens = network.embed_images(images_BCHW, front)
            for block in network.get_anchor(front).blocks[: pair.j + 1]:
                tokens = block(tokens)
            target = network.embed_images(images_BCHW, end)
            for block in network.get_anchor(end).blocks[: pair.k]:
                target = block(target)
            rows = tokens.flatten(0, 1).double()
            rows = torch.cat([rows, torch.ones(len(rows), 1, dtype=torch.float64)], dim=1)
            weights.append(
                torch.linalg.lstsq(rows, target.flatten(0, 1).double(), driver="gelsd").solution
            )
        mean = torch.stack(weights).mean(dim=0).float()
        solved |= {f"{stitch.name}.weight": mean[:-1].T, f"{stitch.name}.bias": mean[-1]}
    return solved


def assert_close(ours: StateDict, theirs: StateDict, most: float = 1e-6) -> None:
    assert set(ours) == set(theirs)
    for name in ours:
        scale = theirs[name].abs().max().item()
        assert (ours[name] - theirs[name]).abs().max().item() <= most * max(scale, 1.0), name


@pytest.mark.parametrize(
    ("depths", "nearest"),
    [((3, 3), True), ((3, 3, 3), False), ((2, 4), True)],
    ids=["two", "three, far", "unequal"],
)
def test_it_is_the_solution_of_every_pair_averaged(depths: tuple[int, ...], nearest: bool) -> None:
    network, details = stitched(depths, nearest=nearest)
    pictures = images(24)
    stitches = solve_stitches(compute_moments(network, pictures.split(10)))
    assert_close(stitches, one_by_one(network, pictures))
    assert set(stitches) == {
        f"{stitch.name}.{kind}"
        for stitch, _ in details.layout.stitches
        for kind in ("weight", "bias")
    }
    network.load_state_dict({**network.state_dict(), **stitches})


def test_where_the_rank_is_not_full_it_is_the_smallest_solution() -> None:
    """Two images have 10 rows of 16 and one columns; and an anchor may repeat a channel."""
    network, _ = stitched((2, 2))
    stitches = solve_stitches(compute_moments(network, [images(2)]))
    assert all(tensor.isfinite().all() for tensor in stitches.values())
    assert_close(stitches, one_by_one(network, images(2)), most=2e-4)
    large = max(tensor.abs().max().item() for tensor in stitches.values())
    assert large < 10 * max(
        tensor.abs().max().item() for tensor in one_by_one(network, images(24)).values()
    )


def test_a_known_map_is_found_again() -> None:
    """The end anchor's stream is a linear function of the front anchor's: nothing is missed."""
    network, details = stitched((1, 1))
    front, end = network.anchors
    with torch.no_grad():
        for block in front.blocks:
            block.attn.proj.weight.zero_(), block.attn.proj.bias.zero_()
            block.mlp.fc2.weight.zero_(), block.mlp.fc2.bias.zero_()
        weight, bias = torch.randn(32, 16), torch.randn(32)
        projection = weight @ front.patch_embed.proj.weight.flatten(1)
        end.patch_embed.proj.weight.copy_(projection.view_as(end.patch_embed.proj.weight))
        end.patch_embed.proj.bias.copy_(weight @ front.patch_embed.proj.bias + bias)
        end.pos_embed.copy_(front.pos_embed @ weight.T)
        end.cls_token.copy_(front.cls_token @ weight.T + bias)
    counted = compute_moments(network, [images(24)])
    stitches = solve_stitches(counted)
    torch.testing.assert_close(stitches["stitches.0.0.weight"], weight, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(stitches["stitches.0.0.bias"], bias, rtol=1e-3, atol=1e-3)
    fit = measure_fit(counted, stitches)
    assert fit["missed"]["mean"] == pytest.approx(0, abs=1e-6)
    assert fit["norm_ratio"]["stitches.0.0"] == pytest.approx(1, abs=1e-4)
    assert len(details.layout.stitches) == 1


@torch.no_grad()
def test_the_fit_is_what_it_says() -> None:
    network, details = stitched((2, 2))
    fit = measure_fit(compute_moments(network, images(8).split(3)), dict(network.state_dict()))
    outputs, targets, missed = 0.0, 0.0, 0.0
    for stitch, pairs in details.layout.stitches:
        for pair in pairs:
            given = network.apply_stitch(network.compute_streams(images(8), 0)[pair.j + 1], stitch)
            expected = network.compute_streams(images(8), 1)[pair.k]
            outputs += given.square().sum().item()
            targets += expected.square().sum().item()
            missed += (given - expected).square().sum().item()
    assert fit["norm_ratio"]["stitches.0.0"] == pytest.approx((outputs / targets) ** 0.5, rel=1e-4)
    assert fit["missed"]["stitches.0.0"] == pytest.approx(missed / targets, rel=1e-4)


def test_least_squares_fits_better_than_anything_near_it() -> None:
    network, _ = stitched((1, 1))
    counted = compute_moments(network, [images(24)])
    best = solve_stitches(counted)
    least = measure_fit(counted, best)["missed"]["mean"]
    for name in best:
        for sign in (0.01, -0.01):
            assert measure_fit(counted, {**best, name: best[name] + sign})["missed"]["mean"] > least


@torch.no_grad()
def test_jointly_solved_no_stitch_that_pairs_share_can_fit_all_of_them_better() -> None:
    network, details = stitched((3, 3))
    assert all(len(pairs) > 1 for _, pairs in details.layout.stitches)
    counted = compute_moments(network, [images(24)])
    best, mean = solve_stitches(counted, joint=True), solve_stitches(counted)
    fit, other = (measure_fit(counted, stitches)["missed"] for stitches in (best, mean))
    assert all(fit[name] < other[name] for name in fit)
    assert all(0 <= missed <= 1 for missed in fit.values())  # a stitch of zeros misses all of it, 1
    for name in best:
        for sign in (0.01, -0.01):
            assert (
                measure_fit(counted, {**best, name: best[name] + sign})["missed"]["mean"]
                > fit["mean"]
            )


@torch.no_grad()
def test_a_mean_fit_is_that_of_all_stitches() -> None:
    network, _ = stitched((3, 3))
    fit = measure_fit(compute_moments(network, [images(8)]), dict(network.state_dict()))
    for kind in ("norm_ratio", "missed"):
        each = [value for name, value in fit[kind].items() if name != "mean"]
        assert len(each) > 1
        assert fit[kind]["mean"] == pytest.approx(sum(each) / len(each), abs=2e-6)


def test_processes_add_their_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of two processes has half of the images.

    Both have the sums over all of them afterwards.
    """
    network, _ = stitched((2, 2))
    ours, theirs, both = (
        compute_moments(network, [part]) for part in (*images(24).split(12), images(24))
    )

    def every(counted: Moments) -> list[torch.Tensor]:
        return [*counted.gram.values(), *counted.cross.values(), *counted.norm.values()]

    waiting = every(theirs)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("torch.distributed.all_reduce", lambda total: total.add_(waiting.pop(0)))
    added = compute_moments(network, [images(24)[:12]])
    assert not waiting
    for first, second, half in zip(every(added), every(both), every(ours)):
        torch.testing.assert_close(first, second)
        assert not torch.equal(first, half)


def test_every_block_runs_once_per_batch() -> None:
    network, details = stitched((3, 3, 3))
    runs: Counter[tuple[int, int]] = Counter()
    for anchor, model in enumerate(network.anchors):
        for number, block in enumerate(model.blocks):
            block.register_forward_hook(lambda *_, at=(anchor, number): runs.update([at]))
    network.train()
    counted = compute_moments(network, images(9).split(3))
    assert not network.training, "features are those of eval mode"
    assert set(runs.values()) == {3}
    assert set(runs) == {(anchor, block) for anchor in range(3) for block in range(3)}
    assert len(counted.gram) == 6, "one Gram matrix per front block"
    shared = sum(len(group.ends) for group in group_pairs(details.layout))
    assert shared == 2 * 7
    assert len(counted.cross) == 2 * 4, (
        "pairs of one layer that leave one block are added before they are multiplied"
    )
    assert all(gram.dtype == torch.float64 for gram in counted.gram.values())


def test_no_image_is_a_mistake_of_ours() -> None:
    network, _ = stitched((2, 2))
    with pytest.raises(ValueError, match="no image"):
        solve_stitches(compute_moments(network, [images(0)]))


def test_the_images_are_the_seeds() -> None:
    task, input_format = make_tiny_task(classes=4), anchors()[0].input_format
    once, again, other = (
        torch.cat(list(iterate_images(task, input_format, 40, Run(seed=seed))))
        for seed in (1, 1, 2)
    )
    assert once.shape == (40, 3, 16, 16)
    assert torch.equal(once, again)
    assert not torch.equal(once, other)
    network, details = stitched((2, 2))
    models, _ = attach_heads(anchors((2, 2)), task, 0)
    stitches, record = start_stitches(
        LeastSquaresSettings(images=40), details.layout, models, task, Run(seed=1)
    )
    assert record["images"] == 40
    assert record["missed"]["mean"] == record["missed"]["stitches.0.0"]
    same = solve_stitches(compute_moments(network, [once]))
    assert_close(stitches, same)
    assert all(one != other for one, other in pairwise(sorted(stitches)))
