"""The claims about Learngene Pool: the cells that their files need, and each claim run at toy size."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from math import log2
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "core"))

from bench_toy import make_world

from learngene_zoo.artifacts.learngene import Learngene
from learngene_zoo.bench.claims.cells import build_arm, list_cells, list_tuning_cells
from learngene_zoo.bench.claims.file import Claim, Competitor, list_claims, load_claim
from learngene_zoo.bench.claims.run import format_verdict, locate_verdict, read_verdict, run_claim
from learngene_zoo.bench.claims.verdict import judge
from learngene_zoo.bench.grid.cell import Arm, Cell
from learngene_zoo.bench.results.rows import RESULTS, read_rows
from learngene_zoo.bench.running.extraction import PARTS, read_cost
from learngene_zoo.bench.running.trial import find_size
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Recipe, list_settings, with_settings
from learngene_zoo.tasks.catalogue import open_task
from lgzoo_pool.pool import POOL

CLAIMS = [name for name in list_claims() if name.startswith("pool-")]
RUN_IN_CI = ("pool-tm-ls",)
TOY = {
    "images": 16,
    "batch_size": 8,
    "tuning_images": 16,
    "tuning_batch_size": 8,
    "teaching_images": 8,
    "teaching_epochs": 1,
    "stitch_images": 8,
    "judged": 6,
}
World = tuple[str, str]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


def toy(claim: Claim, world: World, seeds: int = 2) -> Claim:
    """Return the claim on a handful of images of one task, used by the extractions too, with the
    first rate only.
    """
    ancestry, task = world
    arms: Mapping[str, Competitor] = {
        name: replace(
            arm, ancestries=(ancestry,), tasks=(task,), settings={**arm.settings, **_small(arm)}
        )
        for name, arm in claim.arms.items()
    }
    assert claim.tuning is not None
    return replace(
        claim,
        arms=arms,
        targets=(task,),
        seeds=seeds,
        recipe=replace(claim.recipe, epochs=1, images=16, batch_size=8),
        tuning=replace(claim.tuning, lr=claim.tuning.lr[:1], augment=(), tasks=()),
        power=None,
        scope="seeds",
    )


def _small(arm: Competitor) -> dict[str, object]:
    """Return settings of a small extraction; an arm that evaluates no path still evaluates none."""
    return {**TOY, "judged": arm.settings["judged"] and TOY["judged"]}


def settings_in(claim: Claim, name: str) -> dict[str, object]:
    """Return all settings of an arm's extraction, by name."""
    arm = build_arm(claim, name, 0)
    given_settings = with_settings(POOL.preset(arm.preset), arm.settings)
    return {setting.name: setting.default for setting in list_settings(given_settings)}


@pytest.mark.parametrize("name", [name for name in CLAIMS if load_claim(name).arms])
def test_all_arms_of_a_claim_see_as_many_images(name: str) -> None:
    claim = load_claim(name)
    shown = {
        (
            given_settings["images"],
            given_settings["epochs"],
            given_settings["tuning_images"],
            given_settings["tuning_epochs"],
            given_settings["batch_size"],
        )
        for given_settings in (settings_in(claim, arm) for arm in claim.arms)
    }
    assert len(shown) == 1
    assert {arm.method for arm in claim.arms.values()} == {"pool"}


def test_the_rival_of_equal_storage_learns_from_labels_alone() -> None:
    claim = load_claim("pool-snnet")
    ours, theirs = (settings_in(claim, name) for name in claim.compare.arms)
    differ = {name for name in ours if ours[name] != theirs[name]}
    assert differ == {"alpha", "stitch"}
    assert (theirs["alpha"], theirs["stitch"], theirs["guidance"]) == (1.0, "ls", None)
    third = settings_in(claim, "pool ls")
    assert {name for name in ours if ours[name] != third[name]} == {"stitch"}


@pytest.mark.slow
def test_claims_that_share_their_pools_cost_nothing_twice() -> None:
    results = {}
    for name in ("pool-snnet", "pool-tm-ls", "pool-snnet-source"):
        claim = load_claim(name)
        results[name] = [*list_tuning_cells(claim), *list_cells(claim)]
    keys = {name: {cell.key for cell in cells} for name, cells in results.items()}
    extractions = {name: {cell.extraction.key for cell in cells} for name, cells in results.items()}
    assert keys["pool-tm-ls"] <= keys["pool-snnet"]
    assert extractions["pool-snnet-source"] <= extractions["pool-snnet"]
    assert len(extractions["pool-snnet-source"]) == 3 * 6


def test_the_smallest_models_are_the_papers_sums() -> None:
    verdict = judge(load_claim("pool-smaller"), [])
    assert verdict.verdict == "holds"
    assert [round(finding.value, 2) for finding in verdict.findings[:3]] == [3.05, 4.38, 5.72]
    assert "5.72 M parameters" in "\n".join(format_verdict(load_claim("pool-smaller"), verdict))


@pytest.mark.slow
def test_a_claim_runs_through_to_its_verdict_and_shares_what_it_can(
    world: World, tmp_path: Path
) -> None:
    claim = toy(load_claim("pool-snnet-source"), world, seeds=1)
    verdict = run_claim(claim, tmp_path, Run(threads=1))
    assert verdict.verdict == "undecided"  # one seed has no interval
    (finding,) = verdict.findings
    assert finding.units == 7
    assert any(note.startswith("ahead at ") and "low 3, high 3" in note for note in verdict.notes)
    parts = (
        2 + 2 + 2 + 3
        # the teacher and its head, as the toy's task is not the ancestry's own; auxiliary models of
        # two kinds; three pools
    )
    assert len(list((tmp_path / PARTS).glob("*/done"))) == parts
    kept, _ = read_verdict(locate_verdict(claim, tmp_path))  # it has the stamps of the data
    cost = {cell.arm.name: read_cost(cell.extraction, tmp_path) for cell in list_cells(kept)}
    assert {name: item.images for name, item in cost.items()} == {
        "pool": 56,
        "pool ls": 56,
        "snnet labels": 48,
    }
    assert (
        cost["pool ls"].seconds > cost["pool ls"].busy
    )  # teacher and auxiliary models were there already
    again = toy(load_claim("pool-tm-ls"), world, seeds=1)
    again = replace(again, sizes=again.sizes[1:2])
    assert run_claim(again, tmp_path, Run(threads=1)).verdict != "incomplete"
    assert len(list((tmp_path / PARTS).glob("*/done"))) == parts, "nothing was distilled again"
    shown = {row.size for row in read_rows(tmp_path / RESULTS) if row.epochs}
    assert shown == {"low 4, high 2"}


def test_a_depth_of_a_pool_is_its_largest_path_and_a_named_size_is_that_path() -> None:
    spec = ViTSpec(layers=12, width=96, heads=3, classes=10, image_size=32, patch_size=8)
    learngene = Learngene(config=POOL.extractor.outline([spec]), state={})
    cell = Cell(
        arm=Arm(name="pool", method="pool"), task="digits", layers=6, seed=0, recipe=Recipe()
    )
    sizes = {
        "a depth": cell,
        "a depth of its narrow width": replace(cell, width=32),
        "a path": replace(cell, size={"low": 3, "high": 3}),
        "another path": replace(cell, layers=7, size={"low": 6, "high": 1}),
    }
    results = {}
    for name, item in sizes.items():
        target, expander = find_size(item, learngene.config, open_task("digits").classes)
        results[name] = (target.layers, target.width, expander.low, expander.high)
    assert results == {
        "a depth": (6, 96, 0, 6),
        "a depth of its narrow width": (6, 32, 6, 0),
        "a path": (6, 96, 3, 3),
        "another path": (7, 96, 6, 1),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in RUN_IN_CI else [pytest.mark.exhaustive])
        for name in CLAIMS
        if load_claim(name).arms
    ],
)
def test_every_claim_runs_through_to_a_verdict(name: str, world: World, tmp_path: Path) -> None:
    claim = toy(load_claim(name), world)
    assert claim.tuning is not None
    claim = replace(claim, tuning=replace(claim.tuning, lr=(1e-3, 2e-3)))
    verdict = run_claim(claim, tmp_path, Run(threads=1))
    assert verdict.verdict != "incomplete", verdict.missing
    assert not [row.error for row in read_rows(tmp_path / RESULTS) if row.error]
    assert set(verdict.means) == set(claim.arms)
    assert verdict.cells == len(list_cells(claim))
    for choice in verdict.choices.values():  # of the two, or of those that the grid widened by
        assert log2(choice.lr / 1e-3).is_integer()
    assert bool(list_tuning_cells(claim))
