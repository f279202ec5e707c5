"""The regret of `lgzoo recommend` against the grid of benchmarks/inheritance.py: by hand on a small
one, and one real probe.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from learngene_zoo import lifecycle
from learngene_zoo.bench.grid.cell import Arm, Cell
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.method.sizes import Member
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Recipe

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
page = pytest.importorskip("inheritance_page")
asking = pytest.importorskip("recommend_probes")
regret = pytest.importorskip("recommend_regret")

SPEC = ViTSpec(layers=2, width=16, heads=2, classes=3, image_size=16, patch_size=8)
NAMES = {(2, 16): "deep", (1, 16): "shallow"}
PARAMS = {"deep": 200, "shallow": 100}
STORED = {"closed_form": 10, "lsamd": 500, "scratch timm": 0}
LEVELS = {  # per cent: task, arm, size
    ("digits", "closed_form", "deep"): 60, ("digits", "closed_form", "shallow"): 70,
    ("digits", "lsamd", "deep"): 80, ("digits", "lsamd", "shallow"): 50,
    ("digits", "scratch timm", "deep"): 20, ("digits", "scratch timm", "shallow"): 75,
    ("wings", "closed_form", "deep"): 40, ("wings", "closed_form", "shallow"): 30,
    ("wings", "lsamd", "deep"): 35, ("wings", "lsamd", "shallow"): 45,
    ("wings", "scratch timm", "deep"): 10, ("wings", "scratch timm", "shallow"): 10,
}  # fmt: skip


@pytest.fixture(scope="module")
def rows_of_models() -> Any:
    rows = []
    for (task, arm, size), level in LEVELS.items():
        layers, width = next(shape for shape, name in NAMES.items() if name == size)
        for seed in range(2):
            counts = {
                "params": PARAMS[size],
                "stored_params": STORED[arm],
                "flops": 1,
                "extraction_images": 1,
            }
            row = {
                "arm": arm,
                "task": task,
                "seed": seed,
                "width": width,
                "value": (level + seed) / 100,
                "error": None,
            }
            cell = SimpleNamespace(
                layers=layers,
                width=width,
                size={},
                recipe=SimpleNamespace(images=200, lr=1e-3, augment="none"),
            )
            rows.append((cell, SimpleNamespace(**row, **counts)))
    return page.GridValues(rows, NAMES)


def probe(arm: str, size: str, right: int) -> Any:
    return asking.Probe(
        (arm, size),
        Member(spec=SPEC.with_(layers=2 if size == "deep" else 1)),
        np.arange(100) < right,
    )


PROBES = {
    (task, 200, seed): [
        probe("closed_form", "deep", 70),
        probe("closed_form", "shallow", 60 + 20 * seed),
        probe("lsamd", "deep", 20),
        probe("lsamd", "shallow", 10),
    ]
    for task in ("digits", "wings")
    for seed in range(2)
}


def request_for(rows_of_models: Any, task: str, limit: str) -> Any:
    (request,) = [
        item
        for item in regret.list_requests(rows_of_models)
        if (item.task, item.limit) == (task, limit)
    ]
    return request


def test_a_request_holds_what_fits(rows_of_models: Any) -> None:
    assert len(regret.list_requests(rows_of_models)) == 4
    small = request_for(rows_of_models, "digits", "shallow")
    assert set(small.levels) == {(arm, "shallow") for arm in STORED}
    assert small.answers == [("closed_form", "shallow"), ("lsamd", "shallow")]
    assert len(request_for(rows_of_models, "digits", "deep").levels) == 6


def test_regret_is_against_the_best_arm_scratch_included(rows_of_models: Any) -> None:
    small = request_for(rows_of_models, "digits", "shallow")
    assert small.find_best(small.seeds) == ("scratch timm", "shallow")
    assert small.compute_regret([("closed_form", "shallow")], 1) == pytest.approx(5)
    assert small.compute_regret(small.answers, 0) == pytest.approx((5 + 25) / 2)


def test_policies_name_what_they_say(rows_of_models: Any) -> None:
    named = regret.make_policies(regret.list_requests(rows_of_models), PROBES, {"lsamd"})
    asked = request_for(rows_of_models, "digits", "deep")
    assert [policy(asked, 0) for policy in named.values()] == [
        [("closed_form", "deep")],  # the highest probe of this seed
        [("lsamd", "deep")],  # of those on the shelf
        [("closed_form", "deep")],  # ten in a hundred are told apart
        [("closed_form", "deep")],  # the largest of ours
        [("lsamd", "deep")],  # which stores most
        [("lsamd", "shallow")],  # the best on wings
        asked.answers,
        [("lsamd", "deep")],
    ]
    assert named["recommend, every learngene of the grid"](asked, 1) == [("closed_form", "shallow")]
    assert named["recommend, those on the shelf"](
        request_for(rows_of_models, "digits", "shallow"), 0
    ) == [("lsamd", "shallow")]


def test_the_cheapest_of_those_that_are_not_told_apart(rows_of_models: Any) -> None:
    near = {
        ("digits", 200, 0): [probe("closed_form", "deep", 70), probe("closed_form", "shallow", 69)]
    }
    near["digits", 200, 0][1].right_N[-1] = True  # as many right, on other images
    asked = request_for(rows_of_models, "digits", "deep")
    assert regret.make_recommend_policy(near, cheapest=True)(asked, 0) == [
        ("closed_form", "shallow")
    ]


def test_the_table_means_over_requests(rows_of_models: Any) -> None:
    table = regret.make_regret_table(rows_of_models, PROBES, {"lsamd"}, ["digits"], ["wings"])
    assert table.title == "Regret in 4 requests, points"
    rows = {name: dict(zip(table.columns[1:], cells)) for name, *cells in table.rows}
    ours = rows["always closed_form"]  # 80 - 60, 75 - 70, 45 - 40, 45 - 30
    assert ours["regret"].startswith("11.2 [")
    assert (ours["real"], ours["left out"], ours["worst"]) == (
        "12.5",
        "10.0",
        "20.0 (digits, 200 images, deep)",
    )
    assert ours["best named"] == "0 %"
    assert rows["the best of the other seeds"]["regret"].startswith("0.0")
    assert rows["the best of the other seeds"]["best named"] == "100 %"


@pytest.mark.slow
def test_a_probe_is_what_recommend_says_and_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import grids

    arm = Arm(name="lsamd", method="lsamd")
    cell = Cell(
        arm=arm,
        task="digits",
        layers=5,
        width=96,
        seed=1,
        extraction_seed=0,
        recipe=Recipe(images=40),
    )
    grids.place_learngene(
        cell.extraction, Path(__file__).parents[2] / "cards" / "lsamd-mini", tmp_path
    )
    run = Run(threads=1, device="cpu")
    rows = [(cell, SimpleNamespace(error=None, width=96))]
    ((at, (made,)),) = asking.collect_probes(rows, {(5, 96): "small"}, tmp_path, run).items()
    assert at == ("digits", 40, 1)
    (message,) = lifecycle.recommend(
        "digits", "lsamd", images=40, sizes=1, run=Run(threads=1, device="cpu", seed=cell.draws)
    )
    assert (made.right_N.mean(), made.member.spec.layers) == (
        pytest.approx(message.probe),
        message.member.spec.layers,
    )
    monkeypatch.setattr(asking, "_compute_flags", None)  # what is kept is not probed again
    ((_, (again,)),) = asking.collect_probes(rows, {(5, 96): "small"}, tmp_path, run).items()
    assert (again.right_N == made.right_N).all()
