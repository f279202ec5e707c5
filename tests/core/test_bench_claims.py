"""Claims: their files, and the cells that they need."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from claims_toy import at, extraction, row, with_two_sizes, write_claim

from learngene_zoo.bench.claims import file as claim_file
from learngene_zoo.bench.claims.arms import check_arms
from learngene_zoo.bench.claims.cells import (
    build_arm,
    choose_rates,
    draw_seeds,
    list_cells,
    list_sizes,
    list_tuning_cells,
    name_size,
)
from learngene_zoo.bench.claims.file import Claim, compute_planned_effect, load_claim
from learngene_zoo.bench.claims.run import describe_phase, run_claim
from learngene_zoo.bench.claims.verdict import _list_warnings, judge
from learngene_zoo.bench.grid.cell import Arm, Cell
from learngene_zoo.bench.results.rows import Row
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Recipe


@pytest.fixture
def toy(tmp_path: Path) -> Claim:
    """The claim of `claims_toy.FILE`."""
    return load_claim(write_claim(tmp_path))


def test_a_file_says_everything_about_its_claim(toy: Claim, tmp_path: Path) -> None:
    assert toy.compare.arms == ("ours", "timm", "fan_in")
    assert (toy.smallest, toy.scope, toy.recipe.epochs, toy.arms["fan_in"].expand) == (
        1.0,
        "tasks",
        4,
        {"init": "fan_in"},
    )
    full = load_claim(tmp_path / "toy.toml", "full")
    assert (full.seeds, full.recipe.epochs, full.recipe.images) == (5, 16, 1000)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": "seeds = 3\nseed = 1"}, "unknown key 'seed'"),
        ({"says": ""}, "the key 'says' is missing"),
        ({"name": 'name = "other"'}, "the claim is named 'other', but its file is toy.toml"),
        (
            {"arms = ": 'arms = ["ours", "thiers"]'},
            "compare names the arm 'thiers', but there is no table",
        ),
        ({"arms = ": 'arms = ["ours"]'}, "names 1 arm; the kind 'over' takes at least 2"),
        ({"kind": 'kind = "better"'}, 'compare: kind is "better"; it must be one of over'),
        ({"seeds": "seeds = 2"}, "a claim needs at least 3 seeds, got 2"),
        ({"seeds": "seeds = 4\nheadline = true"}, "a headline claim needs at least 5 seeds, got 4"),
        (
            {"targets": 'targets = ["digits", "cifar10", "cifar100"]'},
            "there are 3 targets; an interval over tasks needs at least 4",
        ),
        (
            {"targets": 'targets = ["digits", "digits"]'},
            "targets must be a non-empty list without repetitions",
        ),
        (
            {"targets": 'targets = ["digits", "cifar10", "cifar100", "dgits"]'},
            "no task named 'dgits'; did you mean digits?",
        ),
        ({"layers": "layers = []"}, "layers must be a non-empty list without repetitions, got []"),
        (
            {"layers": "sizes = [{}]"},
            "sizes must be a non-empty list without repetitions, got ['']",
        ),
        (
            {"layers": "sizes = [{ low = 3 }, { low = 3 }]"},
            "sizes must be a non-empty list without repetitions",
        ),
        ({"layers": "layers = [6]\nsizes = [{ low = 3 }]"}, "layers or sizes, not both"),
        (
            {"layers": "sizes = [{ low = 3 }]", "settings": "sizes = [{ low = 1 }, { low = 2 }]"},
            "it has 2 sizes, the claim 1",
        ),
        (
            {"method": 'method = "lsmad"'},
            "arm 'ours': no method named 'lsmad'; did you mean lsamd?",
        ),
        ({"settings": 'tasks = ["cifar10"]'}, "its extraction sees the target 'cifar10'"),
        ({"settings": 'tasks = ["objects"]\ndraw_tasks = 2'}, "draw_tasks is 2, but it has 1 task"),
        ({"lr": "lr = [1e-3, 0.0]"}, "tuning: expected learning rates above 0, got [0.001, 0.0]"),
        ({"lr": "lr = [1e-3]\nseed = 2"}, "tuning: the seed 2 is also one of the claim"),
        ({"tasks": 'tasks = ["objects"]'}, "tuning: 'objects' is not one of the targets"),
        ({"epochs": "epochs = -1"}, "epochs is -1"),
        ({"protocol": ""}, "claims are filed under protocol 2, got 1; add protocol = 2"),
        (
            {"smallest": ""},
            "the key 'smallest' is missing: the smallest effect that matters, in points",
        ),
        ({"augment": ""}, "tuning: the key 'augment' is missing"),
        ({"augment": 'augment = ["rand"]'}, 'augment[0] is "rand"'),
        (
            {"targets": 'targets = ["wings", "fashion_mnist", "cifar10", "cifar100"]', "tasks": ""},
            "digits is not among the targets; every claim on descendants has a real task",
        ),
        (
            {
                "[power]": "[full.arms]",
                "sees": "",
                "tasks = 1": "",
                "seeds = 1": "",
                "rest": "",
                "source": "",
            },
            "[power] is missing",
        ),
        (
            {"sees": "sees = 10.0"},
            "sees is 10; a claim that could see only 10 points or more is not filed",
        ),
        ({"paper": "paper = "}, "Invalid value"),
        ({"[full]": "[full]\nseeds = 1", "seeds = 5": ""}, "at least 3 seeds, got 1"),
    ],
)
def test_a_file_that_cannot_be_decided_is_one_clear_line(
    tmp_path: Path, changes: dict[str, str], message: str
) -> None:
    with pytest.raises(BadFile) as caught:
        load_claim(write_claim(tmp_path, **changes))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "toy.toml" in str(caught.value)


def test_a_claim_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(
        WrongCall, match=r"similar: lsamd-scratch, .*--claim \./mine\.toml$"
    ) as caught:
        load_claim("lsamd-scrtach")
    assert len(str(caught.value)) < 400  # it does not list every claim
    with pytest.raises(WrongCall, match="there is no file"):
        load_claim(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"settings": "settings = { keeps = [1] }"},
            "arm 'ours', settings: no setting named 'keeps'; did you mean keep?",
        ),
        ({"settings": 'settings = { keep = "a" }'}, "arm 'ours', settings: keep is 'a'"),
        ({"settings": 'preset = "mino"'}, "arm 'ours', preset: no preset of lsamd named 'mino'"),
        (
            {"expand = ": 'expand = { init = "fan_out" }'},
            "arm 'fan_in', expand: init is 'fan_out'",
        ),
        ({"layers": "layers = [6, 2]"}, "arm 'ours', layers: "),
        (
            {"method": 'method = "first_k"', "settings": "", "layers": "layers = [14]"},
            "arm 'ours', layers: layers is 14; the ancestry model has 12",
        ),
        ({"layers": "sizes = [{ low = 3 }]"}, "arm 'ours', sizes: ours builds layers alone"),
        (
            {"settings": 'ancestries = ["bundled", "bundled"]'},
            "arm 'ours', ancestries: lsamd takes 1",
        ),
        (
            {"method": 'method = "first_k"', "settings": 'tasks = ["objects"]'},
            "arm 'ours', tasks: first_k does not train on a task",
        ),
        (
            {"targets": 'targets = ["digits", "signs", "wings", "petals"]', "settings": ""},
            "arm 'ours', tasks: the extraction trains on objects, signs, glyphs",
        ),
        (
            {
                "targets": 'targets = ["digits", "signs", "wings", "petals"]',
                "settings": "leave_out = true",
            },
            "arm 'ours', tasks: the extraction trains on objects, signs, glyphs",
        ),
    ],
)
def test_an_arm_that_cannot_be_run_is_named_before_anything_is_trained(
    tmp_path: Path, changes: dict[str, str], message: str
) -> None:
    path = write_claim(tmp_path, **changes)
    with pytest.raises(WrongCall) as caught:
        check_arms(load_claim(path), path)
    text = str(caught.value)
    assert text.startswith(f"{path}: {message}"), text
    assert text.endswith("; correct the file")
    assert "\n" not in text


def test_an_arm_may_see_the_targets_if_the_claim_says_so(tmp_path: Path) -> None:
    """The default tasks of LSAMD contain `signs`."""
    targets = 'targets = ["digits", "signs", "wings", "petals"]'
    path = write_claim(tmp_path, targets=f"seen = true\n{targets}", settings="")
    check_arms(load_claim(path), path)
    path = write_claim(
        tmp_path, targets=targets, settings='tasks = ["signs", "objects"]\nleave_out = true'
    )
    check_arms(load_claim(path), path)


def test_targets_of_texts_need_an_ancestry_model_of_texts(tmp_path: Path) -> None:
    texts = tmp_path / "moods.csv"
    texts.write_text("text,label\n" + "good,up\nbad,down\n" * 12, encoding="utf-8")
    targets = f'targets = ["digits", "csv:{texts}", "cifar10", "cifar100"]'
    path = write_claim(tmp_path, targets=targets)
    with pytest.raises(WrongCall, match=r"arm 'ours', targets: csv:.* is a text task, and"):
        check_arms(load_claim(path), path)


# ---- cells


def test_tuning_sees_validation_images_and_a_seed_of_its_own_only(toy: Claim) -> None:
    tuning, cells = list_tuning_cells(toy), list_cells(toy)
    assert {cell.split for cell in tuning} == {"validation"}
    assert {cell.split for cell in cells} == {"test"}
    assert not {cell.seed for cell in tuning} & {cell.seed for cell in cells}
    assert len(tuning) == 3 * 2 * 1
    assert len(cells) == 3 * 4 * 3 == len({cell.key for cell in cells})


def test_the_rate_is_the_best_on_validation_and_tells_its_edge(toy: Claim) -> None:
    toy = replace(toy, protocol=1)
    choices, missing = choose_rates(
        toy, [row(cell, 0.5 - cell.recipe.lr) for cell in list_tuning_cells(toy)]
    )
    assert not missing
    assert {choice.lr for choice in choices.values()} == {1e-3}
    assert not choices["ours"].edge  # of two one is always at the edge
    wide = replace(toy, tuning=replace(toy.tuning, lr=(5e-4, 1e-3, 2e-3)))
    choices, _ = choose_rates(
        wide, [row(cell, 0.5 - abs(cell.recipe.lr - 1e-3)) for cell in list_tuning_cells(wide)]
    )
    assert choices["ours"].lr == 1e-3
    assert not choices["ours"].edge
    choices, _ = choose_rates(wide, [row(cell, cell.recipe.lr) for cell in list_tuning_cells(wide)])
    assert (choices["ours"].lr, choices["ours"].edge) == (2e-3, True)


def test_test_rows_do_not_change_the_rate(toy: Claim) -> None:
    rows = [row(cell, 0.5 - cell.recipe.lr) for cell in list_tuning_cells(toy)]
    other = [row(cell, 1.0) for cell in list_cells(toy, at(toy, 2e-3))]
    assert choose_rates(toy, [*rows, *other])[0] == choose_rates(toy, rows)[0]


def test_a_rate_that_failed_is_out_of_the_running_and_one_that_did_not_run_holds_all_up(
    toy: Claim,
) -> None:
    toy = replace(toy, protocol=1)
    rows = [
        row(cell, 0.5, error="loss is nan" if cell.recipe.lr == 2e-3 else None)
        for cell in list_tuning_cells(toy)
    ]
    choices, missing = choose_rates(toy, rows)
    assert not missing
    assert choices["ours"].lr == 1e-3
    assert choices["ours"].failed == ("0.002: loss is nan",)
    _, missing = choose_rates(toy, rows[1:])
    assert missing == ["ours: digits with lr 0.001: not run"]
    assert judge(toy, rows[1:]).verdict == "incomplete"


def test_under_protocol_2_the_grid_widens_and_every_arm_has_its_own_augmentation(
    toy: Claim,
) -> None:
    """Equal budgets: the tuning cells of any two arms differ only in the arm and in the rate of the
    augmentations.
    """
    claim = replace(toy, tuning=replace(toy.tuning, augment=("light", "none")))
    best_rates = {"ours": 8e-3, "timm": 1e-3, "fan_in": 2e-3}

    def value(cell: Cell) -> float:
        away = abs(math.log2(cell.recipe.lr / best_rates[cell.arm.name]))
        return 0.5 - 0.02 * away + 0.1 * (cell.recipe.augment == "none") * (cell.arm.name == "timm")

    rows: list[Row] = []
    cells: list[Cell] = []
    while expected := list_tuning_cells(claim, rows):
        assert choose_rates(claim, rows)[1], "something is missing"
        cells += expected
        rows += [row(cell, value(cell)) for cell in expected]
    choices, missing = choose_rates(claim, rows)
    assert not missing
    assert {name: choice.lr for name, choice in choices.items()} == best_rates
    assert {name: choice.augment for name, choice in choices.items()} == {
        "ours": "light",
        "timm": "none",
        "fan_in": "light",
    }
    tried = [
        [
            cell.recipe.lr
            for cell in cells
            if (cell.arm.name, cell.recipe.augment) == (name, "light")
        ]
        for name in claim.arms
    ]
    assert tried[0] == tried[1] == tried[2]
    assert min(tried[0]) < 1e-3
    assert max(tried[0]) > 8e-3
    assert {len([cell for cell in cells if cell.arm.name == name]) for name in claim.arms} == {
        len(tried[0]) + 1
    }
    own = list_cells(claim, choices)
    assert {(cell.arm.name, cell.recipe.augment) for cell in own} == {
        ("ours", "light"),
        ("timm", "none"),
        ("fan_in", "light"),
    }


def test_progress_names_the_phase_of_the_tuning(toy: Claim) -> None:
    first = list_tuning_cells(toy)
    assert describe_phase(toy, first) == f"tuning, learning rates: {len(first)} cells"
    later = [replace(cell, recipe=replace(cell.recipe, augment="rand")) for cell in first]
    assert describe_phase(toy, later[:1]) == "tuning, augmentation rand: 1 cell"


def test_an_arm_at_chance_is_tuned_on_the_next_target(toy: Claim) -> None:
    rows: list[Row] = []
    while expected := list_tuning_cells(toy, rows):
        for cell in expected:
            low = cell.arm.name == "timm" and cell.task == "digits"
            result = row(cell, 0.11 if low else 0.5 - abs(cell.recipe.lr - 1.5e-3))
            rows.append(replace(result, chance=0.1, correct="f" * 75, evaluated=300))
    choices, _ = choose_rates(toy, rows)
    assert (choices["timm"].tasks, choices["timm"].at_chance) == (("fashion_mnist",), ("digits",))
    assert choices["ours"].tasks == ("digits", "fashion_mnist")
    assert list(_list_warnings(toy, [], {"timm": choices["timm"]})) == [
        "timm: no better than a constant answer on digits"
    ]


@pytest.mark.slow
def test_a_claim_that_says_it_sees_more_than_it_can_is_not_run(toy: Claim, tmp_path: Path) -> None:
    assert compute_planned_effect(toy) <= 9.0
    blind = replace(toy, power=replace(toy.power, tasks=8.0))
    with pytest.raises(
        WrongCall,
        match=(
            r"toy says that it sees 9 points, but with 4 tasks and 3 seeds it would see"
            r" \d+\.\d; add"
        ),
    ):
        run_claim(blind, tmp_path, Run())


def test_targets_where_installed_are_targets_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        'targets = ["digits", "wings", "textures", "motion"]\nwhere_installed = ["fashion_mnist"]'
    )
    path = write_claim(tmp_path, targets=text)
    for there in (False, True):
        monkeypatch.setattr(claim_file, "is_installed", lambda name, there=there: there)
        assert ("fashion_mnist" in load_claim(path).targets) is there


def test_seeds_draw_what_an_arm_leaves_to_them(toy: Claim) -> None:
    ours = replace(
        toy.arms["ours"],
        settings={"keep": "random 5 of 12"},
        tasks=("objects", "signs"),
        draw_tasks=1,
    )
    claim = replace(toy, arms={**toy.arms, "ours": ours})
    arms = [build_arm(claim, "ours", seed) for seed in range(12)]
    assert len({tuple(arm.settings["keep"]) for arm in arms}) > 6
    assert {arm.tasks for arm in arms} == {("objects",), ("signs",)}
    assert build_arm(claim, "ours", 3) == arms[3]
    kept = arms[0].settings["keep"]
    assert kept == sorted(set(kept)) == draw_seeds(5, 12, 0)
    assert all(1 <= block <= 12 for block in kept)
    counts = [
        sum(block in draw_seeds(5, 12, seed) for seed in range(300)) for block in range(1, 13)
    ]
    assert min(counts) > 90  # of 125 expected


def test_none_is_nothing_where_a_setting_may_be_that(toy: Claim) -> None:
    ours = replace(
        toy.arms["ours"],
        method="logah",
        settings={"source": "none", "augment": "none", "rank": "none"},
    )
    settings = build_arm(replace(toy, arms={"ours": ours}), "ours", 0).settings
    assert settings == {"source": None, "augment": "none", "rank": "none"}
    pool = replace(
        toy.arms["ours"], method="pool", settings={"guidance": "none"}
    )  # one of its choices
    assert build_arm(replace(toy, arms={"ours": pool}), "ours", 0).settings == {"guidance": "none"}


def test_what_is_measured_on_the_extraction_trains_no_descendant_and_reads_no_test_image(
    toy: Claim,
) -> None:
    claim = extraction(toy)
    cells = list_cells(claim)
    assert {(cell.recipe.epochs, cell.split) for cell in cells} == {(0, "validation")}
    assert len(cells) == 2 * 3
    assert {cell.arm.settings["lr"] for cell in list_tuning_cells(claim)} == {1e-3, 2e-3}


def test_sizes_are_named_by_the_expanders_settings(toy: Claim) -> None:
    claim = with_two_sizes(toy)
    assert list_sizes(claim, "ours") == [
        (6, None, {"low": 6, "high": 0}),
        (6, None, {"low": 3, "high": 3}),
    ]
    assert list_sizes(claim, "theirs") == [
        (9, None, {"low": 9, "high": 0}),
        (9, None, {"low": 6, "high": 3}),
    ]
    cells = list_cells(claim)
    assert len({cell.key for cell in cells}) == len(cells) == 2 * 4 * 2 * 3
    assert len({cell.key for cell in list_cells(toy)} & {cell.key for cell in cells}) == 0
    assert {name_size(claim, cell) for cell in cells} == {"low 6, high 0", "low 3, high 3"}
    assert {(cell.arm.name, cell.size["low"]) for cell in list_tuning_cells(claim)} == {
        ("ours", 3),
        ("theirs", 6),
    }
    absent = replace(claim, sizes=({"low": 1, "high": 1}, {"low": 3, "high": 3}))
    with pytest.raises(WrongCall, match=r"ours builds low 6, high 0; .*, not low 1, high 1"):
        list_cells(absent)


def test_sizes_are_named_by_layers_and_width(toy: Claim) -> None:
    sizes = ({"layers": 3, "width": 64}, {"layers": 3, "width": 96}, {"layers": 6})
    claim = replace(
        toy, protocol=1, layers=(), sizes=sizes, tuning=replace(toy.tuning, layers=None)
    )
    cells = list_cells(claim)
    assert {(cell.layers, cell.width) for cell in cells} == {(3, 64), (3, 96), (6, None)}
    assert {name_size(claim, cell) for cell in cells} == {
        "layers 3, width 64",
        "layers 3, width 96",
        "layers 6",
    }
    rows = {cell.key: row(cell, 0.5) for cell in [*list_tuning_cells(claim), *cells]}
    dropped = next(cell for cell in cells if cell.width == 64)
    del rows[dropped.key]
    (missing,) = judge(claim, rows.values()).missing
    assert ", 3 layers of width 64, seed" in missing


def test_a_cell_without_a_named_size_keeps_its_key() -> None:
    """Results that were measured before sizes had names stay valid."""
    cell = Cell(
        arm=Arm(name="lsamd", method="lsamd"), task="digits", layers=9, seed=0, recipe=Recipe()
    )
    assert cell.key == "f816cf7c919748d2"
    assert replace(cell, size={"low": 3}).key != cell.key
