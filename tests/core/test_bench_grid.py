"""Grids: which arms and cells they have, and why some have none. Nothing is computed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from learngene_zoo.bench.grid.cell import Arm, Cell
from learngene_zoo.bench.grid.grid import (
    BUDGETS,
    SCRATCH,
    choose_tasks,
    find_size,
    list_cells,
    list_members,
    list_standard_arms,
    list_targets,
    select_members,
    select_tasks_of_budget,
)
from learngene_zoo.bench.grid.search import Trial
from learngene_zoo.bench.grid.tuning import GridTuning
from learngene_zoo.bench.report.report import read_grid, write_grid
from learngene_zoo.errors import WrongCall
from learngene_zoo.settings import Recipe
from learngene_zoo.tasks.catalogue import DEFAULT_TASKS, find_suite

RECIPE = Recipe(images=100, lr=1e-3)
DEIT = ("timm:deit_tiny_patch16_224",)  # twelve layers of width 192, known without a download
ARMS = list_standard_arms(["lsamd"], ancestries=DEIT)


def grid(**changes: Any) -> list[Cell]:
    settings: dict[str, Any] = {
        "tasks": ["digits", "objects"],
        "arms": ARMS,
        "layers": [6, 9],
        "epochs": [1, 4],
        "seeds": [0, 1],
        "recipe": RECIPE,
        **changes,
    }
    return list_cells(settings.pop("tasks"), settings.pop("arms"), **settings)


def test_every_method_comes_with_its_controls_and_both_scratch_arms() -> None:
    arms = list_standard_arms(["lsamd", "pretrain_finetune"])
    assert [arm.name for arm in arms] == [
        "lsamd",
        "lsamd shuffled",
        "lsamd stem",
        "lsamd stem_fan_in",
        "pretrain_finetune",
        "pretrain_finetune shuffled",
        "pretrain_finetune stem",
        "pretrain_finetune stem_fan_in",
        "scratch timm",
        "scratch fan_in",
    ]
    assert [arm.control for arm in arms[:4]] == [None, "shuffled", "stem", "stem_fan_in"]
    assert [dict(arm.expand) for arm in arms[-2:]] == [{"init": "timm"}, {"init": "fan_in"}]


def test_a_layer_decay_is_not_for_scratch_arms() -> None:
    decays = {
        cell.arm.name: cell.recipe.layer_decay
        for cell in grid(recipe=replace(RECIPE, layer_decay=0.75))
    }
    scratch = {decays.pop(name) for name in list(decays) if name.startswith("scratch")}
    assert (set(decays.values()), scratch) == ({0.75}, {1.0})


def test_only_settings_of_all_arms_are_recorded_for_the_grid(tmp_path: Path) -> None:
    cells = list(grid(recipe=replace(RECIPE, layer_decay=0.75)))
    write_grid(cells, tmp_path)
    settings = read_grid(tmp_path).settings
    assert "layer_decay" not in settings
    assert settings["lr"] == RECIPE.lr


def test_heads_start_from_a_ridge_regression_unless_told_otherwise() -> None:
    """A cell with a random head keeps the key that it had before there was another."""
    ridge, random = grid()[0], grid(head="random")[0]
    assert (ridge.head, random.head) == ("ridge", "random")
    assert ridge.key != random.key


def test_an_arm_and_its_controls_share_one_extraction() -> None:
    cells = [cell for cell in grid(seeds=[0], tasks=["digits"]) if cell.arm.method == "lsamd"]
    assert len({cell.key for cell in cells}) == len(cells)
    assert all(cell.extraction == cells[0].extraction for cell in cells)
    other = grid(
        arms=list_standard_arms(["lsamd"], ancestries=DEIT, settings={"lsamd": {"top": 4}})
    )[0]
    assert other.extraction != cells[0].extraction


def test_what_extractions_see_is_for_methods_that_see_several_tasks() -> None:
    arms = {
        arm.name: arm
        for arm in list_standard_arms(["lsamd", "pretrain_finetune"], tasks=["objects", "digits"])
    }
    assert arms["lsamd stem"].tasks == ("objects", "digits")
    assert arms["pretrain_finetune"].tasks == (), "which of two it would see is not said"
    alone = {
        arm.name: arm.tasks
        for arm in list_standard_arms(["lsamd", "pretrain_finetune"], tasks=["objects"])
    }
    assert alone["lsamd"] == alone["pretrain_finetune"] == ("objects",)
    several = list_standard_arms(["first_k", "closed_form"], tasks=["objects"])
    named = {arm.name: arm.tasks for arm in several}
    assert (named["first_k"], named["closed_form"]) == ((), ("objects",))
    left = {arm.name: arm for arm in list_standard_arms(["lsamd"], leave_out=True)}
    assert left["lsamd"].tasks == DEFAULT_TASKS
    assert left["lsamd"].tasks_for("objects") == DEFAULT_TASKS[1:]
    assert not left["scratch timm"].leave_out
    kept = list_standard_arms(["lsamd"], settings={"lsamd": {"keep": (1, 2)}}, leave_out=True)
    assert not kept[0].leave_out, "blocks that are named need no task"


def test_a_grid_is_the_product_in_a_fixed_order() -> None:
    cells = grid()
    assert len(cells) == 2 * 2 * 2 * 2 * 6
    assert len({cell.key for cell in cells}) == len(cells)
    assert [cell.seed for cell in cells] == sorted(cell.seed for cell in cells)
    assert [cell.arm.name for cell in cells[:6]] == [
        arm.name for arm in list_standard_arms(["lsamd"])
    ]
    assert grid() == cells


def test_every_budget_has_a_complete_schedule_of_its_own() -> None:
    recipes = {cell.recipe.epochs: cell.recipe for cell in grid(epochs=[0, 1, 16])}
    assert {epochs: recipe.warmup for epochs, recipe in recipes.items()} == {
        0: 0.0,
        1: 0.1,
        16: 1.6,
    }
    assert all((recipe.lr, recipe.images) == (1e-3, 100) for recipe in recipes.values())
    assert {cell.recipe.lr for cell in grid(rates={"lsamd": 0.5}) if cell.arm.name == "lsamd"} == {
        0.5
    }
    assert {cell.recipe.lr for cell in grid(rates={"lsamd": 0.5}) if cell.arm.name != "lsamd"} == {
        1e-3
    }


def test_sizes_that_a_method_cannot_build_are_left_out_and_named() -> None:
    heard: list[str] = []
    cells = grid(layers=[3, 6], say=heard.append)
    assert {cell.layers for cell in cells} == {6}, "scratch alone at a size compares nothing"
    assert heard == ["lsamd builds 5 to 15 layers of width 192, not 3 layers; skipped"]
    mixed = grid(
        arms=list_standard_arms(["lsamd", "pretrain_finetune"], ancestries=DEIT),
        layers=[3, 6, 7],
        say=heard.append,
    )
    assert {(cell.arm.method, cell.layers) for cell in mixed} == {
        ("lsamd", 6),
        ("lsamd", 7),
        ("pretrain_finetune", 3),
        ("pretrain_finetune", 6),
        ("scratch", 3),
        ("scratch", 6),
        ("scratch", 7),
    }
    assert {cell.layers for cell in grid(arms=SCRATCH, layers=[1, 200])} == {1, 200}
    members = list_members(Arm(name="x", method="lsamd", settings={"top": 12}, ancestries=DEIT))
    assert [(member.spec.layers, member.spec.width) for member in members] == [
        (n, 192) for n in range(12, 16)
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"layers": [3, 99]},
            "lsamd builds 5 to 15 layers of width 192, not 3 layers or 99 layers",
        ),
        ({"widths": [64]}, "not 6 layers of width 64 or 9 layers of width 64"),
        ({"layers": []}, "no layers"),
        ({"seeds": []}, "no seeds"),
        ({"tasks": []}, "no task"),
        ({"arms": []}, "no arm"),
        ({"arms": [*SCRATCH, SCRATCH[0]]}, "two arms are named 'scratch timm'"),
        (
            {
                "tasks": ["objects"],
                "arms": list_standard_arms(["lsamd"], tasks=["objects"], leave_out=True),
            },
            "the extraction of lsamd has no task",
        ),
        ({"epochs": [-1]}, "epochs is -1"),
    ],
)
def test_a_grid_without_cells_says_why(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(WrongCall, match=words):
        grid(**changes)


def test_methods_are_named_as_they_are_registered() -> None:
    with pytest.raises(WrongCall, match="did you mean lsamd"):
        list_standard_arms(["lsmd"])
    with pytest.raises(WrongCall, match="scratch is an arm of every grid"):
        list_standard_arms(["scratch"])
    with pytest.raises(WrongCall, match="at least one method"):
        list_standard_arms([])
    with pytest.raises(WrongCall, match="no setting named 'tip'"):
        list_standard_arms(["lsamd"], settings={"lsamd": {"tip": 4}})
    with pytest.raises(WrongCall, match="but the methods of this grid are"):
        list_standard_arms(["lsamd"], settings={"tal": {"top": 4}})


def test_targets_are_tasks_of_suites_in_the_order_of_the_catalogue() -> None:
    assert list_targets("mini") == find_suite("mini").tasks
    assert list_targets("mini", only=["signs", "objects"]) == ("objects", "signs")
    assert list_targets("digits") == ("digits",)
    assert list_targets("folder:photos") == ("folder:photos",)
    assert (
        list_targets("words", "mini", "mini")
        == find_suite("mini").tasks + find_suite("words").tasks
    )
    mixed = ["folder:b", "stamps", "digits", "textures", "folder:a", "objects"]
    ordered = ("objects", "textures", "digits", "stamps", "folder:b", "folder:a")
    assert list_targets(*mixed) == list_targets("pictures", *mixed, only=mixed) == ordered
    with pytest.raises(WrongCall, match=r"no task of mini named 'digits'.*leave out mini and give"):
        list_targets("mini", only=["digits"])
    with pytest.raises(WrongCall, match="no task of mini and digits named 'sings'; did you mean s"):
        list_targets("mini", "digits", only=["sings"])
    with pytest.raises(WrongCall, match="no suite or task named 'mni'; did you mean mini"):
        list_targets("digits", "mni")


def test_tasks_are_chosen_by_suites_and_names() -> None:
    quick, standard = BUDGETS["quick"], BUDGETS["standard"]
    assert choose_tasks(standard, ()) == find_suite("mini").tasks
    three = tuple(task for task in find_suite("mini").tasks if task in quick.tasks)
    assert choose_tasks(quick, ()) == choose_tasks(quick, ["mini"]) == three
    assert choose_tasks(quick, ["words", "mini"]) == three + find_suite("words").tasks[:3]
    assert choose_tasks(quick, [], ["signs", "objects"]) == ("objects", "signs"), "as before"
    names = ["stamps", "digits", "fashion_mnist", "textures", "folder:photos"]
    assert choose_tasks(quick, [], names) == choose_tasks(quick, names)
    assert set(choose_tasks(quick, names)) == set(names)
    assert choose_tasks(quick, ["mini"], ["signs"]) == ("signs",)


def test_tasks_of_texts_and_of_images_need_two_grids(tmp_path: Path) -> None:
    message = "text tasks: entailment, sentiment; image tasks: digits, stamps; an ancestry"
    with pytest.raises(WrongCall, match=message):
        grid(tasks=["digits", "entailment", "stamps", "sentiment"])
    with pytest.raises(WrongCall, match="entailment is a text task"):
        grid(tasks=["entailment", "sentiment"])
    for label in ("good", "bad"):
        (tmp_path / label).mkdir()
        for number in range(8):
            (tmp_path / label / f"{number}.txt").write_text(f"{label} {number}")
    with pytest.raises(WrongCall, match=r"text tasks: folder:.*; image tasks: digits;"):
        grid(tasks=["digits", f"folder:{tmp_path}"])


WORDS = ("ancestry-words",)


def test_named_tasks_of_texts_need_an_ancestry_model_of_texts() -> None:
    arms = list_standard_arms(["first_k"], ancestries=WORDS)
    named = grid(tasks=["entailment", "sentiment"], arms=arms)
    assert {cell.task for cell in named} == {"entailment", "sentiment"}
    assert {cell.arm.ancestries for cell in named} == {WORDS}
    with pytest.raises(
        WrongCall, match="digits is an image task, and the ancestry model ancestry-words takes"
    ):
        grid(tasks=["digits"], arms=arms)
    closed_form = list_standard_arms(["closed_form"], ancestries=WORDS)
    with pytest.raises(WrongCall, match=r"extracts from forms, an image task.*--extract-task"):
        grid(tasks=["sentiment"], arms=closed_form)
    assert grid(
        tasks=["sentiment"],
        arms=list_standard_arms(["closed_form"], ancestries=WORDS, tasks=["sentiment"]),
    )


def test_a_small_budget_takes_its_own_tasks_or_the_first_ones() -> None:
    quick = BUDGETS["quick"]
    assert set(select_tasks_of_budget(quick, find_suite("mini").tasks)) == set(quick.tasks)
    assert len(quick.tasks) == quick.most_tasks == 3
    assert all(budget.seeds >= 3 for budget in BUDGETS.values()), (
        "fewer have no interval over tasks and seeds"
    )
    assert select_tasks_of_budget(quick, ("a", "b", "c", "d")) == ("a", "b", "c")
    assert (
        select_tasks_of_budget(BUDGETS["standard"], find_suite("mini").tasks)
        == find_suite("mini").tasks
    )


def test_sizes_that_settings_name_have_controls_and_no_scratch() -> None:
    arms = list_standard_arms(["pool", "lsamd"], ancestries=DEIT)
    heard: list[str] = []
    sizes = [{"low": 6, "high": 0}, {"low": 3, "high": 4}]
    cells = grid(
        arms=arms, layers=[], sizes=sizes, tasks=["digits"], epochs=[1], seeds=[0], say=heard.append
    )
    assert [(cell.arm.name, cell.layers) for cell in cells] == [
        ("pool", 6),
        ("pool shuffled", 6),
        ("pool stem", 6),
        ("pool stem_fan_in", 6),
        ("pool", 7),
        ("pool shuffled", 7),
        ("pool stem", 7),
        ("pool stem_fan_in", 7),
    ]
    assert cells[4].size == sizes[1]
    assert heard == ["lsamd builds layers alone, not low 6, high 0 or low 3, high 4; skipped"]
    both = grid(arms=arms, layers=[6], sizes=sizes[:1], tasks=["digits"], epochs=[1], seeds=[0])
    assert {bool(cell.size) for cell in both if cell.arm.name == "pool"} == {True, False}
    assert len({cell.key for cell in both}) == len(both)
    tuning = GridTuning(both, (1e-3,), ("light",))
    assert tuning.cell_of(Trial("pool", "digits", 1e-3, "light")).size == sizes[0]
    with pytest.raises(
        WrongCall, match=r"builds these sizes: pool builds low .*, not low 1, high 1"
    ):
        grid(arms=arms, layers=[], sizes=[{"low": 1, "high": 1}])


def test_of_several_sizes_with_the_named_settings_the_largest_is_meant() -> None:
    pool = list_standard_arms(["pool"], ancestries=DEIT)[0]
    layers = [member.spec.layers for member in select_members(list_members(pool), {"high": 4})]
    assert len(set(layers)) > 1
    assert find_size(pool, {"high": 4}).layers == layers[-1] == max(layers)


def test_the_image_size_is_that_of_all_arms() -> None:
    arms = list_standard_arms(["first_k", "closed_form"], image_size=16)
    assert {arm.image_size for arm in arms} == {16}
    assert "scratch fan_in" in {arm.name for arm in arms}
    assert {member.spec.image_size for arm in arms for member in list_members(arm)} == {16}
