"""The cost of a learngene on the shelf: as counted by the bench, with an available ancestry model."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.card import render_learngene_card
from learngene_zoo.artifacts.learngene import Learngene
from learngene_zoo.artifacts.records import CardCost, CardRecord
from learngene_zoo.bench.grid.cell import Arm
from learngene_zoo.bench.running.extraction import count_images, estimate_works
from learngene_zoo.errors import WrongCall
from learngene_zoo.method.installed import METHODS
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import with_settings
from learngene_zoo.storage import read_json
from learngene_zoo.tasks.catalogue import SOURCE_TASK, find_entry

sys.path.append(str(Path(__file__).resolve().parents[2] / "tools"))
shelf_cost = pytest.importorskip("shelf_cost")
table = pytest.importorskip("shelf_table")

RUN = Run(seed=0, threads=1)


def first_k(store: bool) -> Learngene:
    return lifecycle.extract(
        "first_k", extractor=with_settings(METHODS.load("first_k").preset("mini"), {"store": store})
    )


def test_an_ancestry_model_is_counted_whether_it_is_kept_or_named() -> None:
    kept, named = (shelf_cost.compute_cost(first_k(store), 1.26, 7) for store in (True, False))
    assert (kept.seconds, kept.images, named.images) == (1.26, 7, 7)
    assert 0.9 * kept.params < named.params <= kept.params + 200_000


def test_an_extraction_is_made_once_and_its_cost_kept(tmp_path: Path) -> None:
    arm = Arm(name="any", method="vanilla_lg")
    learngene, cost = shelf_cost.extract_learngene(arm, tmp_path, RUN)
    again, same = shelf_cost.extract_learngene(replace(arm, name="other"), tmp_path, RUN)
    assert cost == same
    assert cost.seconds > 0
    assert cost.params == sum(tensor.numel() for tensor in learngene.state.values()) > 100_000
    assert shelf_cost.compute_difference(learngene, again) == 0.0
    name = next(iter(learngene.state))
    moved = replace(learngene, state={**learngene.state, name: learngene.state[name] + 0.5})
    assert shelf_cost.compute_difference(learngene, moved) == pytest.approx(0.5)
    assert shelf_cost.compute_difference(learngene, replace(learngene, state={})) is None


def test_seconds_of_an_interrupted_extraction_add_up(tmp_path: Path) -> None:
    clock = tmp_path / "new" / "clock.json"
    with pytest.raises(KeyboardInterrupt), shelf_cost.count_seconds(clock):
        raise KeyboardInterrupt
    first = read_json(clock)["seconds"]
    with shelf_cost.count_seconds(clock):
        sum(range(10**6))
    assert read_json(clock)["seconds"] > first >= 0


def test_a_card_and_readmes_table_say_what_it_cost() -> None:
    learngene = first_k(False)
    card = render_learngene_card(
        replace(
            learngene.config,
            card=CardRecord(cost=CardCost(seconds=252.0, images=106_000, params=264_200)),
        )
    )
    assert "saw 106,000 images (every pass counted) and took 4m 12s of one core" in card
    assert "needs 264,200 stored parameters" in card
    assert table.format_cost(CardCost(seconds=252.0, images=106_000, params=264_200)) == [
        "264.20K",
        "106.00K",
        "4m 12s",
    ]
    assert table.format_cost(None) == ["", "", ""]


@pytest.mark.parametrize(
    "wrong", [{"seconds": -1.0}, {"seconds": float("nan")}, {"images": -1}, {"params": -1}]
)
def test_an_impossible_cost_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(WrongCall):
        CardCost(**{"seconds": 1.0, "images": 1, "params": 1, **wrong})  # type: ignore[arg-type]


def test_a_source_task_among_the_tasks_is_counted_once() -> None:
    arm = Arm(name="any", method="logah", tasks=("digits",), settings={"source": "forms"})
    first, second = estimate_works(arm, lambda _: 1000, False)
    with_source = replace(arm, tasks=("forms", "digits"))
    assert estimate_works(with_source, lambda _: 1000, False) == [first, second]


def test_images_are_those_of_training_or_those_that_are_looked_at(tmp_path: Path) -> None:
    looks = Arm(name="any", method="closed_form", settings={"images": 24})
    source = find_entry(SOURCE_TASK)
    assert count_images(looks, 0) == 24
    assert count_images(looks, 70) == 70  # of the steps, where there are any
    assert source is not None
    assert count_images(replace(looks, settings={"images": 10**7}), 0) == source.sizes["train"]
    assert count_images(Arm(name="any", method="first_k"), 0) == 0
    for label in ("cat", "dog"):
        (tmp_path / "train" / label).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (32, 32)).save(tmp_path / "train" / label / f"{number}.png")
    own = replace(looks, tasks=(f"folder:{tmp_path}",))
    assert 0 < count_images(own, 0) <= 6  # a task that no catalogue lists
