"""Claims: their files, their cells, and verdicts from rows that say what they should say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from learngene_zoo.bench.cell import Arm, Cell, Row
from learngene_zoo.bench.claim_cells import arm_of, cells_of, drawn, place_of, rates_of, sizes_of, tuning_cells
from learngene_zoo.bench.claim_cost import markdown as cost_table
from learngene_zoo.bench.claim_cost import prices
from learngene_zoo.bench.claim_file import Claim, load_claim, names
from learngene_zoo.bench.findings import jaccard, jaccard_by_chance, rises, stronger
from learngene_zoo.bench.telling import as_json, between, markdown, read_all, read_verdict, tell
from learngene_zoo.bench.verdict import judge
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.folder import write_json
from learngene_zoo.learngene import AncestryRecord, LearngeneConfig
from learngene_zoo.recipe import Recipe
from learngene_zoo.settings import to_json
from learngene_zoo.spec import ViTSpec

TASKS = ("digits", "fashion_mnist", "cifar10", "cifar100")
FILE = """
name = "toy"
paper = "A paper"
where = "Table 1"
says = "ours is better than theirs"
estimand = "the difference"
expected = "holds"
targets = ["digits", "fashion_mnist", "cifar10", "cifar100"]
layers = [6]
seeds = 3

[compare]
kind = "over"
arms = ["ours", "timm", "fan_in"]

[recipe]
epochs = 4
images = 1000

[tuning]
lr = [1e-3, 2e-3]
tasks = ["digits"]

[arms.ours]
method = "lsamd"
settings = { keep = [1, 2, 3] }

[arms.timm]
method = "scratch"

[arms.fan_in]
method = "scratch"
expand = { init = "fan_in" }

[full]
seeds = 5
recipe = { epochs = 16 }
"""


def written(folder: Path, text: str = FILE, **changes: str) -> Path:
    """The file with some lines replaced: `seeds="seeds = 2"` replaces the first line that starts with `seeds`."""
    lines = text.splitlines()
    for name, line in changes.items():
        lines[next(i for i, old in enumerate(lines) if old.startswith(name))] = line
    path = folder / "toy.toml"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.fixture
def toy(tmp_path: Path) -> Claim:
    """The claim of `FILE`."""
    return load_claim(written(tmp_path))


def row(cell: Cell, value: float, error: str | None = None, correct: str | None = None) -> Row:
    """What a finished cell would leave."""
    return Row(
        key=cell.key,
        arm=cell.arm.name,
        method=cell.arm.method,
        control=cell.arm.control,
        task=cell.task,
        layers=cell.layers,
        width=96,
        seed=cell.seed,
        epochs=cell.recipe.epochs,
        lr=cell.recipe.lr,
        images=1000,
        split=cell.split,
        error=error,
        value=None if error else value,
        correct=correct or f"{cell.key}",
        seconds=2.0,
        extraction_seconds=1.0,
        machine="a machine",
    )


def ran(claim: Claim, value: Callable[[Cell], float], tuned: Callable[[Cell], float] | None = None) -> list[Row]:
    """Rows of both grids; the tuning prefers 2e-3 unless `tuned` says otherwise."""
    tuning = [row(cell, (tuned or (lambda cell: cell.recipe.lr))(cell)) for cell in tuning_cells(claim)]
    choices, missing = rates_of(claim, tuning)
    assert not missing
    return [*tuning, *(row(cell, value(cell)) for cell in cells_of(claim, {a: c.lr for a, c in choices.items()}))]


def jitter(cell: Cell) -> float:
    """A little that differs by task and seed, and by nothing else; zero on average over four tasks and three seeds."""
    return 0.001 * (TASKS.index(cell.task) - 1.5 + 2 * (cell.seed - 1))


def gains(gain: float, of: str = "ours", noise: float = 1.0) -> Callable[[Cell], float]:
    """`of` is better by so much than every other arm, give or take the jitter."""
    return lambda cell: 0.5 + (gain + noise * jitter(cell) if cell.arm.name == of else 0.0)


# ---- files


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
        ({"name": 'name = "other"'}, "the claim is named 'other', its file toy.toml"),
        ({"arms = ": 'arms = ["ours", "thiers"]'}, "compare names the arm 'thiers', but there is no table"),
        ({"arms = ": 'arms = ["ours"]'}, "names 1 arms; the kind 'over' takes at least 2"),
        ({"kind": 'kind = "better"'}, 'compare: kind is "better"; it must be one of over'),
        ({"seeds": "seeds = 2"}, "seeds is 2; a claim needs at least 3"),
        ({"seeds": "seeds = 4\nheadline = true"}, "seeds is 4; a headline claim needs at least 5"),
        ({"targets": 'targets = ["digits", "cifar10", "cifar100"]'}, "there are 3 targets; at least 4"),
        ({"targets": 'targets = ["digits", "digits"]'}, "each once"),
        (
            {"targets": 'targets = ["digits", "cifar10", "cifar100", "dgits"]'},
            "no task named 'dgits'; did you mean digits?",
        ),
        ({"layers": "layers = []"}, "layers is []; name at least one"),
        ({"layers": "sizes = [{}]"}, "sizes is ['']; name at least one"),
        ({"layers": "sizes = [{ low = 3 }, { low = 3 }]"}, "each once"),
        ({"layers": "layers = [6]\nsizes = [{ low = 3 }]"}, "layers or sizes, not both"),
        (
            {"layers": "sizes = [{ low = 3 }]", "settings": "sizes = [{ low = 1 }, { low = 2 }]"},
            "it has 2 sizes, the claim 1",
        ),
        ({"method": 'method = "lsmad"'}, "arm 'ours': no method named 'lsmad'; did you mean lsamd?"),
        ({"settings": 'tasks = ["cifar10"]'}, "its extraction sees the target 'cifar10'"),
        ({"settings": 'tasks = ["objects"]\ndraw_tasks = 2'}, "draw_tasks is 2, of 1 tasks"),
        ({"lr": "lr = [1e-3, 0.0]"}, "tuning: lr is [0.001, 0.0]"),
        ({"lr": "lr = [1e-3]\nseed = 2"}, "tuning: its seed 2 is one of the claim's own"),
        ({"tasks": 'tasks = ["objects"]'}, "tuning: 'objects' is none of the targets"),
        ({"epochs": "epochs = -1"}, "epochs is -1"),
        ({"paper": "paper = "}, "Invalid value"),
        ({"[full]": "[full]\nseeds = 1", "seeds = 5": ""}, "seeds is 1"),
    ],
)
def test_a_file_that_cannot_be_decided_is_one_clear_line(tmp_path: Path, changes: dict[str, str], message: str) -> None:
    with pytest.raises(BadFile) as caught:
        load_claim(written(tmp_path, **changes))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "toy.toml" in str(caught.value)


def test_a_claim_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(WrongCall, match="no claim named"):
        load_claim("lsamd-scrtach")
    with pytest.raises(WrongCall, match="there is no file"):
        load_claim(tmp_path / "none.toml")


# ---- cells


def test_tuning_sees_validation_images_and_a_seed_of_its_own_only(toy: Claim) -> None:
    tuning, own = tuning_cells(toy), cells_of(toy)
    assert {cell.split for cell in tuning} == {"validation"}
    assert {cell.split for cell in own} == {"test"}
    assert not {cell.seed for cell in tuning} & {cell.seed for cell in own}
    assert len(tuning) == 3 * 2 * 1
    assert len(own) == 3 * 4 * 3 == len({cell.key for cell in own})


def test_the_rate_is_the_best_on_validation_and_tells_its_edge(toy: Claim) -> None:
    choices, missing = rates_of(toy, [row(cell, -cell.recipe.lr) for cell in tuning_cells(toy)])
    assert not missing
    assert {choice.lr for choice in choices.values()} == {1e-3}
    assert not choices["ours"].edge  # of two one is always at the edge
    wide = replace(toy, tuning=replace(toy.tuning, lr=(5e-4, 1e-3, 2e-3)))
    choices, _ = rates_of(wide, [row(cell, -abs(cell.recipe.lr - 1e-3)) for cell in tuning_cells(wide)])
    assert choices["ours"].lr == 1e-3
    assert not choices["ours"].edge
    choices, _ = rates_of(wide, [row(cell, cell.recipe.lr) for cell in tuning_cells(wide)])
    assert (choices["ours"].lr, choices["ours"].edge) == (2e-3, True)


def test_test_rows_do_not_change_the_rate(toy: Claim) -> None:
    rows = [row(cell, -cell.recipe.lr) for cell in tuning_cells(toy)]
    other = [row(cell, 1.0) for cell in cells_of(toy, dict.fromkeys(toy.arms, 2e-3))]
    assert rates_of(toy, [*rows, *other])[0] == rates_of(toy, rows)[0]


def test_a_rate_that_failed_is_out_of_the_running_and_one_that_did_not_run_holds_all_up(toy: Claim) -> None:
    rows = [row(cell, 0.5, error="loss is nan" if cell.recipe.lr == 2e-3 else None) for cell in tuning_cells(toy)]
    choices, missing = rates_of(toy, rows)
    assert not missing
    assert choices["ours"].lr == 1e-3
    assert choices["ours"].failed == ("0.002: loss is nan",)
    _, missing = rates_of(toy, rows[1:])
    assert missing == ["ours: digits with lr 0.001: not run"]
    assert judge(toy, rows[1:]).verdict == "incomplete"


def test_seeds_draw_what_an_arm_leaves_to_them(toy: Claim) -> None:
    ours = replace(toy.arms["ours"], settings={"keep": "random 5 of 12"}, tasks=("objects", "signs"), draw_tasks=1)
    claim = replace(toy, arms={**toy.arms, "ours": ours})
    arms = [arm_of(claim, "ours", seed) for seed in range(12)]
    assert len({tuple(arm.settings["keep"]) for arm in arms}) > 6
    assert {arm.tasks for arm in arms} == {("objects",), ("signs",)}
    assert arm_of(claim, "ours", 3) == arms[3]
    kept = arms[0].settings["keep"]
    assert kept == sorted(set(kept)) == drawn(5, 12, 0)
    assert all(1 <= block <= 12 for block in kept)
    counts = [sum(block in drawn(5, 12, seed) for seed in range(300)) for block in range(1, 13)]
    assert min(counts) > 90  # of 125 expected


def test_what_is_measured_on_the_extraction_trains_no_descendant_and_reads_no_test_image(toy: Claim) -> None:
    claim = extraction(toy)
    cells = cells_of(claim)
    assert {(cell.recipe.epochs, cell.split) for cell in cells} == {(0, "validation")}
    assert len(cells) == 2 * 3
    assert {cell.arm.settings["lr"] for cell in tuning_cells(claim)} == {1e-3, 2e-3}


def sized(toy: Claim) -> Claim:
    """Two pools at two sizes that the expander's settings name; the second's own sizes stand beside the claim's."""
    ours = replace(toy.arms["ours"], method="pool", settings={"blocks": 6})
    theirs = replace(ours, settings={"blocks": 9}, sizes=({"low": 9, "high": 0}, {"low": 6, "high": 3}))
    sizes = ({"low": 6, "high": 0}, {"low": 3, "high": 3})
    compare = replace(toy.compare, arms=("ours", "theirs"))
    return replace(toy, arms={"ours": ours, "theirs": theirs}, layers=(), sizes=sizes, compare=compare)


def test_sizes_are_named_by_the_expanders_settings(toy: Claim) -> None:
    claim = sized(toy)
    assert sizes_of(claim, "ours") == [(6, {"low": 6, "high": 0}), (6, {"low": 3, "high": 3})]
    assert sizes_of(claim, "theirs") == [(9, {"low": 9, "high": 0}), (9, {"low": 6, "high": 3})]
    cells = cells_of(claim)
    assert len({cell.key for cell in cells}) == len(cells) == 2 * 4 * 2 * 3
    assert len({cell.key for cell in cells_of(toy)} & {cell.key for cell in cells}) == 0
    assert {place_of(claim, cell) for cell in cells} == {"low 6, high 0", "low 3, high 3"}
    assert {(cell.arm.name, cell.size["low"]) for cell in tuning_cells(claim)} == {("ours", 3), ("theirs", 6)}
    absent = replace(claim, sizes=({"low": 1, "high": 1}, {"low": 3, "high": 3}))
    with pytest.raises(WrongCall, match="ours builds no descendant with low 1, high 1; there are low 6, high 0; "):
        cells_of(absent)


def test_a_cell_without_a_named_size_keeps_its_key() -> None:
    """Results that were measured before sizes had names stay valid."""
    cell = Cell(arm=Arm(name="lsamd", method="lsamd"), task="digits", layers=9, seed=0, recipe=Recipe())
    assert cell.key == "f816cf7c919748d2"
    assert replace(cell, size={"low": 3}).key != cell.key


# ---- verdicts


@pytest.mark.parametrize(
    ("gain", "outcome"), [(0.03, "holds"), (0.0, "does not hold"), (-0.05, "does not hold"), (0.0101, "undecided")]
)
def test_the_verdict_depends_on_where_the_interval_lies(toy: Claim, gain: float, outcome: str) -> None:
    verdict = judge(toy, ran(toy, gains(gain)))
    (found,) = verdict.findings
    assert verdict.verdict == found.outcome == outcome
    assert found.value == pytest.approx(100 * gain, abs=0.2)
    assert found.low < found.value < found.high
    assert (found.low > 1.0, found.high < 1.0) == (outcome == "holds", outcome == "does not hold")
    assert found.units == 12
    assert (verdict.cells, verdict.seconds, verdict.machines) == (36, 36 * 2.0 + 6 * 1.0, ("a machine",))


def test_the_smallest_effect_is_the_claims_own(toy: Claim) -> None:
    small = replace(toy, smallest=0.0)
    assert judge(small, ran(small, gains(0.0101))).verdict == "holds"


def test_noise_makes_it_undecided_and_says_what_would_have_been_seen(toy: Claim) -> None:
    verdict = judge(toy, ran(toy, gains(0.02, noise=20.0)))
    (found,) = verdict.findings
    assert verdict.verdict == "undecided"
    assert found.detectable > found.high - found.value + toy.smallest
    assert f"{found.detectable:.1f} points would have been seen" in "\n".join(tell(toy, verdict))


def test_without_a_task_by_number(toy: Claim) -> None:
    def value(cell: Cell) -> float:
        return 0.5 + (0.04 * TASKS.index(cell.task) if cell.arm.name == "ours" else 0.0)

    (found,) = judge(toy, ran(toy, value)).findings
    assert found.value == pytest.approx(6.0)
    assert found.tasks == pytest.approx(dict(zip(TASKS, (0.0, 4.0, 8.0, 12.0))))
    assert found.without == pytest.approx(dict(zip(TASKS, (8.0, 20 / 3, 16 / 3, 4.0))))
    assert (found.low_here, found.high_here) == pytest.approx((6.0, 6.0))  # no seed differs from another
    assert found.low < 0 < found.high  # but other tasks may


def test_the_stronger_arm_is_chosen_for_each_task_and_size() -> None:
    timm = {("a", 6, 0): 10.0, ("a", 6, 1): 20.0, ("b", 6, 0): 50.0, ("b", 6, 1): 50.0}
    fan_in = {("a", 6, 0): 30.0, ("a", 6, 1): 10.0, ("b", 6, 0): 40.0, ("b", 6, 1): 45.0}
    values, chosen = stronger({"timm": timm, "fan_in": fan_in})
    assert chosen == {("a", 6): "fan_in", ("b", 6): "timm"}
    assert values == {("a", 6, 0): 30.0, ("a", 6, 1): 10.0, ("b", 6, 0): 50.0, ("b", 6, 1): 50.0}


def test_named_sizes_are_paired_and_told(toy: Claim) -> None:
    claim = sized(toy)

    def value(cell: Cell) -> float:
        large = place_of(claim, cell) == "low 3, high 3"
        return 0.5 + jitter(cell) + (cell.arm.name == "ours") * (0.06 if large else -0.02)

    verdict = judge(claim, ran(claim, value))
    (found,) = verdict.findings
    assert found.value == pytest.approx(2.0)
    assert found.units == 2 * 4 * 3
    assert "ahead at 1 of 2 sizes: low 6, high 0 -2.00; low 3, high 3 +6.00" in verdict.notes
    assert "4 tasks, 2 sizes, 3 seeds" in "\n".join(tell(claim, verdict))
    missing = judge(claim, ran(claim, value)[:-1]).missing
    assert missing == ("theirs, cifar100, low 6, high 3, seed 2: not run",)


def test_missing_and_failed_cells_are_named_and_there_is_no_verdict(toy: Claim) -> None:
    rows = ran(toy, gains(0.05))
    rows[-1] = replace(rows[-1], value=None, error="out of memory")
    verdict = judge(toy, rows[:-2] + rows[-1:])
    assert verdict.verdict == "incomplete"
    assert len(verdict.missing) == 2
    assert "fan_in, cifar100, 6 layers, seed 2: out of memory" in verdict.missing
    assert any(line.endswith("not run") for line in verdict.missing)
    text = "\n".join(tell(toy, verdict))
    assert "No verdict" in text
    assert "out of memory" in text
    assert not verdict.findings


def test_rows_of_other_claims_are_passed_over(toy: Claim) -> None:
    rows = ran(toy, gains(0.05))
    strange = [replace(one, key=f"x{one.key}", value=0.0) for one in rows]
    assert judge(toy, [*strange, *rows]) == judge(toy, rows)


def test_an_ordering_is_corrected_and_needs_every_pair(toy: Claim) -> None:
    claim = replace(toy, compare=replace(toy.compare, kind="ordering"))

    def value(cell: Cell) -> float:
        return {"ours": 0.60, "timm": 0.575, "fan_in": 0.50}[cell.arm.name] + (cell.arm.name == "timm") * jitter(cell)

    rows = ran(claim, value)
    verdict = judge(claim, rows)
    assert [found.what for found in verdict.findings] == ["ours over timm", "timm over fan_in"]
    assert verdict.verdict == "holds"
    alone = replace(claim, compare=replace(claim.compare, kind="over", arms=("ours", "timm")))
    sure, unsure = sorted(found.p for found in verdict.findings)
    assert unsure == pytest.approx(judge(alone, rows).findings[0].p)  # the less sure pair is judged last, and alone
    assert sure < unsure


def test_an_ordering_fails_with_one_of_its_pairs(toy: Claim) -> None:
    claim = replace(toy, compare=replace(toy.compare, kind="ordering"))
    level = {"ours": 0.60, "timm": 0.45, "fan_in": 0.50}
    rows = ran(claim, lambda cell: level[cell.arm.name] + jitter(cell) * (cell.arm.name == "timm"))
    verdict = judge(claim, rows)
    assert [found.outcome for found in verdict.findings] == ["holds", "does not hold"]
    assert verdict.verdict == "does not hold"


def test_arms_that_are_one_model_decide_nothing_where_the_claim_says_so(toy: Claim) -> None:
    claim = replace(toy, compare=replace(toy.compare, kind="ordering"), void_if_same=True)
    rows = [replace(one, correct="f") for one in ran(claim, lambda cell: 0.5 + jitter(cell))]
    verdict = judge(claim, rows)
    assert verdict.verdict == "undecided"
    assert any("the same model in all 12 units" in note for note in verdict.notes)
    assert judge(replace(claim, void_if_same=False), rows).verdict == "does not hold"


def test_a_trend_is_the_rise_of_the_line_of_least_squares(toy: Claim) -> None:
    assert rises({("a", 5, 0): 10.0, ("a", 10, 0): 40.0, ("a", 15, 0): 20.0}) == {"a": [pytest.approx(10.0)]}
    claim = replace(toy, compare=replace(toy.compare, kind="trend", arms=("ours",)), layers=(5, 10, 15))
    verdict = judge(claim, ran(claim, lambda cell: 0.004 * cell.layers + jitter(cell)))
    assert verdict.findings[0].value == pytest.approx(4.0)
    assert verdict.findings[0].units == 36
    assert verdict.verdict == "holds"


def test_a_closing_gap_is_a_difference_of_differences(toy: Claim) -> None:
    arms = {"full early": 0.6, "ours early": 0.3, "full": 0.7, "ours": 0.65}
    claim = replace(
        toy,
        arms={name: replace(toy.arms["ours"], epochs=1 if "early" in name else None) for name in arms},
        compare=replace(toy.compare, kind="closing", arms=tuple(arms)),
    )
    assert {cell.recipe.epochs for cell in cells_of(claim)} == {1, 4}
    verdict = judge(claim, ran(claim, lambda cell: arms[cell.arm.name] + (cell.arm.name == "ours") * jitter(cell)))
    assert verdict.findings[0].value == pytest.approx(25.0)
    assert verdict.verdict == "holds"


def test_gains_over_controls_are_told_beside_the_claim(toy: Claim) -> None:
    control = replace(toy.arms["ours"], control="shuffled")
    claim = replace(toy, arms={**toy.arms, "ours shuffled": control})
    verdict = judge(claim, ran(claim, gains(0.05)))
    (beside,) = verdict.beside
    assert beside.what == "inherited knowledge: ours over ours shuffled"
    assert (beside.value, beside.outcome) == (pytest.approx(verdict.findings[0].value), None)


# ---- extractions


def extraction(toy: Claim) -> Claim:
    """Two arms whose extractions are compared."""
    one = replace(toy.arms["ours"], settings={}, tasks=TASKS)
    arms = {"batch": one, "image": replace(one, settings={"routing": "image"})}
    compare = replace(toy.compare, arms=("batch", "image"))
    return replace(toy, arms=arms, compare=compare, measure="extraction", seen=True)


def config(accuracy: float, kept: Sequence[int]) -> LearngeneConfig:
    """What an extraction would have written."""
    spec = ViTSpec(layers=12, width=96, heads=3, image_size=32, patch_size=8)
    return LearngeneConfig(
        method="lsamd",
        spec=spec,
        ancestries=(AncestryRecord(source="bundled", spec=spec),),
        metrics={"validation_accuracy": dict.fromkeys(TASKS, accuracy)},
        details={"kept": list(kept)},
    )


def test_extractions_are_compared_by_their_own_metric(toy: Claim) -> None:
    claim = extraction(toy)

    def config_of(cell: Cell) -> LearngeneConfig:
        return config(
            (0.7 if cell.arm.name == "batch" else 0.6) + 0.001 * cell.seed + cell.arm.settings.get("lr", 0), [1, 2]
        )

    tuning = [row(cell, 0.0) for cell in tuning_cells(claim)]
    choices, _ = rates_of(claim, tuning, config_of)
    assert {choice.lr for choice in choices.values()} == {2e-3}
    rows = [*tuning, *(row(cell, 0.0) for cell in cells_of(claim, dict.fromkeys(claim.arms, 2e-3)))]
    verdict = judge(claim, rows, config_of)
    assert verdict.verdict == "holds"
    assert verdict.findings[0].tasks == pytest.approx(dict.fromkeys(TASKS, 10.0))


def test_an_extraction_may_have_one_number_or_one_for_every_size(toy: Claim) -> None:
    claim = replace(
        sized(toy), measure="extraction", metric="paths.accuracy", seen=True, scope="seeds", targets=("digits",)
    )
    claim = replace(claim, tuning=replace(claim.tuning, lr=(1e-3,), tasks=()))
    assert len(cells_of(claim)) == 2 * 3
    assert not any("lr" in cell.arm.settings for cell in cells_of(claim)), "one rate is no choice: the preset's is kept"

    def config_of(cell: Cell) -> LearngeneConfig:
        ours = cell.arm.name == "ours"
        lows = (6, 3) if ours else (9, 6)
        paths = [{"low": low, "high": high, "accuracy": 0.5 + 0.1 * ours * high} for low, high in zip(lows, (0, 3))]
        return replace(config(0.5, [1]), metrics={"low": {"validation_accuracy": 0.6 if ours else 0.4}, "paths": paths})

    rows = [row(cell, 0.0) for cell in cells_of(claim)]
    verdict = judge(claim, rows, config_of)
    assert verdict.findings[0].value == pytest.approx((0 + 30) / 2)
    one = replace(claim, metric="low.validation_accuracy", sizes=(), layers=(6,))
    one = replace(one, arms={name: replace(arm, sizes=()) for name, arm in one.arms.items()})
    rows = [row(cell, 0.0) for cell in cells_of(one)]
    assert judge(one, rows, config_of).findings[0].value == pytest.approx(20.0)
    with pytest.raises(BadFile, match=r"a learngene of pool has no metric 'high.validation_accuracy'"):
        judge(replace(one, metric="high.validation_accuracy"), rows, config_of)
    with pytest.raises(BadFile, match=r"has no metric 'paths.value' at low 6, high 0"):
        judge(replace(claim, metric="paths.value"), [row(cell, 0.0) for cell in cells_of(claim)], config_of)


def test_an_overlap_is_measured_against_chance(toy: Claim) -> None:
    claim = extraction(toy)
    claim = replace(claim, compare=replace(claim.compare, kind="overlap"), scope="seeds", smallest=10.0)
    kept = {"batch": [1, 2, 3, 4, 5], "image": [1, 2, 3, 4, 6]}

    def config_of(cell: Cell) -> LearngeneConfig:
        return config(0.5, kept[cell.arm.name])

    tuning = [row(cell, 0.0) for cell in tuning_cells(claim)]
    choices, _ = rates_of(claim, tuning, config_of)
    rows = [*tuning, *(row(cell, 0.0) for cell in cells_of(claim, {a: c.lr for a, c in choices.items()}))]
    verdict = judge(claim, rows, config_of)
    assert verdict.findings[0].value == pytest.approx(100 * (4 / 6 - jaccard_by_chance(5, 5, 12)))
    assert verdict.verdict == "holds"
    assert any("1 2 3 4 5; 1 2 3 4 5; 1 2 3 4 5" in note for note in verdict.notes)


def test_jaccard_by_number() -> None:
    assert jaccard({1, 2, 3}, {2, 3, 4}) == 0.5
    assert jaccard(set(), set()) == 1.0
    assert jaccard_by_chance(1, 1, 4) == pytest.approx(1 / 4)
    assert jaccard_by_chance(2, 2, 3) == pytest.approx((2 * (1 / 3) + 1) / 3)  # of 3 pairs one is equal, two share one


# ---- telling


def test_a_verdict_survives_its_file_and_fills_the_table(toy: Claim, tmp_path: Path) -> None:
    verdict = judge(toy, ran(toy, gains(0.03)))
    write_json(tmp_path / "toy.json", as_json(toy, verdict))
    assert read_verdict(tmp_path / "toy.json") == (toy, verdict)
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- claims -->\nold\n<!-- /claims -->\nafter\n", encoding="utf-8")
    text = between(page, "claims", markdown(read_all(tmp_path)))
    assert text.startswith("before\n<!-- claims -->\n| claim ")
    assert text.endswith("<!-- /claims -->\nafter\n")
    assert markdown([(toy, verdict)]) in text
    assert (
        "| `toy` | ours is better than theirs (Table 1) | ours over the stronger of timm and fan_in | +3.00 |" in text
    )
    assert "**holds**" in text
    page.write_text("no place", encoding="utf-8")
    with pytest.raises(BadFile, match="has no"):
        between(page, "claims", "table")


def test_everything_a_reader_needs_is_told(toy: Claim) -> None:
    verdict = judge(toy, ran(toy, gains(0.03)))
    text = "\n".join(tell(toy, verdict))
    assert "Measured         4 tasks, 6 layers, 3 seeds; 4 epochs of 1000 images in batches of 128" in text
    for part in ("ours is better than theirs", "the difference", "fashion_mnist", "0.002", "a machine", "[+2", "holds"):
        assert part in text
    assert "the stronger arm, by task and size: timm in 4, fan_in in 0" in text


# ---- the claims in tree


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("budget", ["standard", "full"])
def test_every_claim_in_tree_can_be_run(name: str, budget: Any) -> None:
    claim = load_claim(name, budget)
    cells = [*tuning_cells(claim), *cells_of(claim)]
    assert bool(cells) == (claim.compare.kind != "exact")
    assert "" not in (claim.says, claim.estimand, claim.where)


def test_arms_of_one_name_are_one_arm_in_every_claim() -> None:
    told: dict[str, Any] = {}
    for claim in map(load_claim, names()):
        for name, arm in claim.arms.items():
            own = to_json(replace(arm, sizes=()))  # beside which of a claim's sizes they stand is the claim's own
            assert told.setdefault(name, own) == own, f"{claim.name} tells the arm {name!r} otherwise"


@pytest.mark.parametrize("method", ["lsamd", "pool"])
def test_all_claims_on_a_method_fit_in_about_an_hour_of_two_cores(method: str) -> None:
    claims = [load_claim(name) for name in names() if name.startswith(method)]
    found = prices(claims)
    assert sum(price.seconds for price in found.values()) < 2 * 3900
    for claim in claims:
        assert claim.minutes == pytest.approx(found[claim.name].seconds / 120, abs=0.06), claim.name


def test_the_page_says_what_the_claims_cost(checkout: Path) -> None:
    page = checkout / "docs" / "claims.md"
    assert between(page, "claims-cost", cost_table(prices(map(load_claim, names())))) == page.read_text(
        encoding="utf-8"
    )


def test_what_claims_share_is_paid_once(toy: Claim) -> None:
    once, again = (list(prices([replace(toy, name=name) for name in names]).values()) for names in ("a", "ab"))
    assert again[0] == once[0]
    assert (once[0].cells, again[1].cells, again[1].seconds) == (6 + 36, 0, 0.0)
    assert cost_table({"a": once[0]}).splitlines()[-1].startswith("| together | 42 | 0 |")


def test_what_the_learngene_saves_is_the_papers_sum() -> None:
    verdict = judge(load_claim("lsamd-storage"), [])
    assert verdict.verdict == "holds"
    assert round(verdict.findings[0].value, 2) == 95.41
    claim = load_claim("lsamd-storage")
    with pytest.raises(WrongCall, match="no descendant with 4 layers"):
        judge(replace(claim, exact=(replace(claim.exact[0], layers=(4, 5)),)), [])
