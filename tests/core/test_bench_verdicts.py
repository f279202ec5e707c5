"""Verdicts on claims from rows with given results, and their texts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from claims_toy import (
    TASKS,
    at,
    config,
    extraction,
    gains,
    jitter,
    ran,
    row,
    with_two_sizes,
    write_claim,
)

from learngene_zoo.artifacts.records import LearngeneConfig
from learngene_zoo.bench.claims.cells import choose_rates, list_cells, list_tuning_cells, name_size
from learngene_zoo.bench.claims.contrasts import (
    Finding,
    choose_stronger,
    compute_chance_jaccard,
    compute_jaccard,
    decide_outcome,
    group_by_task,
    measure_rise,
)
from learngene_zoo.bench.claims.file import Claim, load_claim
from learngene_zoo.bench.claims.run import (
    format_verdict,
    make_config_reader,
    read_verdict,
    write_verdict,
)
from learngene_zoo.bench.claims.verdict import _apply_holm, _combine_outcomes, judge
from learngene_zoo.bench.grid.cell import Cell
from learngene_zoo.errors import BadFile
from learngene_zoo.settings import to_json
from learngene_zoo.storage import CONFIG, write_json
from lgzoo_mini.suite import MINI


@pytest.fixture
def toy(tmp_path: Path) -> Claim:
    """Return the claim of `claims_toy.FILE` with two fixed rates; their search is tested elsewhere."""
    return replace(load_claim(write_claim(tmp_path)), protocol=1)


@pytest.mark.parametrize(
    ("gain", "outcome"),
    [(0.03, "holds"), (0.0, "negligible"), (-0.05, "refuted"), (0.0101, "undecided")],
)
def test_the_verdict_depends_on_where_the_interval_lies(
    toy: Claim, gain: float, outcome: str
) -> None:
    verdict = judge(toy, ran(toy, gains(gain)))
    (finding,) = verdict.findings
    assert verdict.verdict == finding.outcome == outcome
    assert finding.value == pytest.approx(100 * gain, abs=0.2)
    assert finding.low < finding.value < finding.high
    assert (finding.low > 1.0, finding.high < 0.0) == (outcome == "holds", outcome == "refuted")
    assert (finding.low >= -1.0 and finding.high <= 1.0) == (outcome == "negligible")
    assert (finding.p < 0.05) == (outcome != "undecided")
    assert finding.units == 12
    assert (verdict.cells, verdict.seconds, verdict.machines) == (
        36,
        36 * 2.0 + 6 * 1.0,
        ("a machine",),
    )


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (1.01, 9.0, "holds"),
        (0.2, 9.0, "undecided"),
        (-0.9, 0.9, "negligible"),
        (-1.0, 1.0, "negligible"),
        (-0.9, -0.1, "negligible"),
        (-5.0, -0.1, "refuted"),
        (-5.0, 0.5, "undecided"),  # it has room for a gain, if for none that matters
        (-5.0, 5.0, "undecided"),
    ],
)
def test_a_word_for_every_interval(low: float, high: float, word: str) -> None:
    assert decide_outcome(low, high, 1.0) == word


def test_the_smallest_effect_is_the_claims_own(toy: Claim) -> None:
    small = replace(toy, smallest=0.0)
    assert judge(small, ran(small, gains(0.0101))).verdict == "holds"


def test_noise_makes_it_undecided_and_says_what_would_have_been_seen(toy: Claim) -> None:
    verdict = judge(toy, ran(toy, gains(0.02, noise=20.0)))
    (finding,) = verdict.findings
    assert verdict.verdict == "undecided"
    assert finding.detectable > finding.high - finding.value + toy.smallest
    assert f"{finding.detectable:.1f} points would have been detected" in "\n".join(
        format_verdict(toy, verdict)
    )


def test_without_a_task_by_number(toy: Claim) -> None:
    def value(cell: Cell) -> float:
        return 0.5 + (0.04 * TASKS.index(cell.task) if cell.arm.name == "ours" else 0.0)

    (verdict,) = judge(toy, ran(toy, value)).findings
    assert verdict.value == pytest.approx(6.0)
    assert verdict.tasks == pytest.approx(dict(zip(TASKS, (0.0, 4.0, 8.0, 12.0))))
    assert verdict.without == pytest.approx(dict(zip(TASKS, (8.0, 20 / 3, 16 / 3, 4.0))))
    assert (verdict.low_here, verdict.high_here) == pytest.approx(
        (6.0, 6.0)
    )  # no seed differs from another
    assert verdict.low < 0 < verdict.high  # but other tasks may


def test_the_stronger_arm_is_chosen_for_each_task_and_size() -> None:
    timm = {("a", 6, 0): 10.0, ("a", 6, 1): 20.0, ("b", 6, 0): 50.0, ("b", 6, 1): 50.0}
    fan_in = {("a", 6, 0): 30.0, ("a", 6, 1): 10.0, ("b", 6, 0): 40.0, ("b", 6, 1): 45.0}
    values, chosen = choose_stronger({"timm": timm, "fan_in": fan_in})
    assert chosen == {("a", 6): "fan_in", ("b", 6): "timm"}
    assert values == {("a", 6, 0): 30.0, ("a", 6, 1): 10.0, ("b", 6, 0): 50.0, ("b", 6, 1): 50.0}


def test_named_sizes_are_paired_and_told(toy: Claim) -> None:
    claim = with_two_sizes(toy)

    def value(cell: Cell) -> float:
        large = name_size(claim, cell) == "low 3, high 3"
        return 0.5 + jitter(cell) + (cell.arm.name == "ours") * (0.06 if large else -0.02)

    verdict = judge(claim, ran(claim, value))
    (finding,) = verdict.findings
    assert finding.value == pytest.approx(2.0)
    assert finding.units == 2 * 4 * 3
    assert "ahead at 1 of 2 sizes: low 6, high 0 -2.00; low 3, high 3 +6.00" in verdict.notes
    assert "4 tasks, 2 sizes, 3 seeds" in "\n".join(format_verdict(claim, verdict))
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
    text = "\n".join(format_verdict(toy, verdict))
    assert "No verdict" in text
    assert "out of memory" in text
    assert not verdict.findings


def test_rows_of_other_claims_are_passed_over(toy: Claim) -> None:
    rows = ran(toy, gains(0.05))
    strange = [replace(row, key=f"x{row.key}", value=0.0) for row in rows]
    assert judge(toy, [*strange, *rows]) == judge(toy, rows)


def test_an_ordering_is_corrected_and_needs_every_pair(toy: Claim) -> None:
    claim = replace(toy, compare=replace(toy.compare, kind="ordering"))

    def value(cell: Cell) -> float:
        return {"ours": 0.60, "timm": 0.575, "fan_in": 0.50}[cell.arm.name] + (
            cell.arm.name == "timm"
        ) * jitter(cell)

    rows = ran(claim, value)
    verdict = judge(claim, rows)
    assert [finding.what for finding in verdict.findings] == ["ours over timm", "timm over fan_in"]
    assert verdict.verdict == "holds"
    alone = replace(claim, compare=replace(claim.compare, kind="over", arms=("ours", "timm")))
    sure, unsure = sorted(finding.p for finding in verdict.findings)
    assert unsure == pytest.approx(
        judge(alone, rows).findings[0].p
    )  # the less sure pair is judged last, and alone
    assert sure < unsure


def test_an_ordering_fails_with_one_of_its_pairs(toy: Claim) -> None:
    claim = replace(toy, compare=replace(toy.compare, kind="ordering"))
    level = {"ours": 0.60, "timm": 0.45, "fan_in": 0.50}
    rows = ran(claim, lambda cell: level[cell.arm.name] + jitter(cell) * (cell.arm.name == "timm"))
    verdict = judge(claim, rows)
    assert [finding.outcome for finding in verdict.findings] == ["holds", "refuted"]
    assert verdict.verdict == "refuted"


def test_arms_that_are_one_model_decide_nothing_where_the_claim_says_so(toy: Claim) -> None:
    claim = replace(toy, compare=replace(toy.compare, kind="ordering"), void_if_same=True)
    rows = [
        replace(item, correct="f", evaluated=4)
        for item in ran(claim, lambda cell: 0.5 + jitter(cell))
    ]
    verdict = judge(claim, rows)
    assert verdict.verdict == "undecided"
    assert any("the same model in all 12 units" in note for note in verdict.notes)
    assert judge(replace(claim, void_if_same=False), rows).verdict == "negligible"


def test_models_of_one_answer_are_not_one_model(toy: Claim) -> None:
    """Before their training they are different; after it both give the most frequent class."""
    claim = replace(toy, compare=replace(toy.compare, kind="ordering"), void_if_same=True)

    def judge_with(digests: dict[str, str], epochs: dict[str, int]) -> Any:
        rows = [
            replace(
                item,
                correct="f",
                evaluated=4,
                weights=digests[item.arm],
                epochs=epochs.get(item.arm, 4),
            )
            for item in ran(claim, lambda cell: 0.5)
        ]
        return judge(claim, rows)

    different, same = {"ours": "a", "timm": "b", "fan_in": "c"}, dict.fromkeys(toy.arms, "a")
    assert [finding.same for finding in judge_with(different, {}).findings] == [0, 0]
    assert [finding.same for finding in judge_with(same, {}).findings] == [12, 12]
    assert [finding.same for finding in judge_with(same, {"timm": 8}).findings] == [0, 0]


def test_an_interval_of_one_task_is_over_its_seeds(toy: Claim) -> None:
    claim = replace(toy, targets=("digits", "signs", "wings", "petals"))
    rows = ran(claim, lambda cell: 0.5 + 0.001 * (cell.arm.name == "ours") * cell.seed)
    text = format_verdict(claim, judge(claim, rows))
    (line,) = [line for line in text if line.startswith("  on real tasks: ")]
    assert line.endswith("] (one task: over seeds)")
    (line,) = [line for line in text if line.startswith("  on left out tasks: ")]
    assert "], over seeds only [" in line


def make_finding(what: str, p: float = 0.0, outcome: Any = "holds", **units: int) -> Finding:
    return Finding(what=what, value=2.0, low=None, high=None, p=p, outcome=outcome, **units)


def test_several_pairs_are_corrected_by_holm() -> None:
    result = _apply_holm(
        [make_finding("a", 0.03), make_finding("b", 0.04), make_finding("c", 0.001)]
    )
    assert [item.p for item in result] == pytest.approx([0.06, 0.06, 0.003])
    assert [item.outcome for item in result] == ["undecided", "undecided", "holds"]
    assert [item.outcome for item in _apply_holm([make_finding("a", 0.049, "refuted")])] == [
        "refuted"
    ]


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        (["holds", "holds"], "holds"),
        (["holds", "undecided"], "undecided"),
        (["holds", "refuted"], "refuted"),
        (["undecided", "refuted", "negligible"], "refuted"),
        (["holds", "negligible"], "negligible"),
        (["undecided", "negligible"], "negligible"),
    ],
)
def test_every_finding_must_hold(toy: Claim, outcomes: list[str], verdict: str) -> None:
    assert (
        _combine_outcomes(
            toy, [make_finding(f"{number}", outcome=item) for number, item in enumerate(outcomes)]
        )
        == verdict
    )


def test_a_claim_is_void_only_where_all_units_are_one_model(toy: Claim) -> None:
    claim = replace(toy, void_if_same=True)
    assert _combine_outcomes(claim, [make_finding("a", units=6, same=6)]) == "undecided"
    assert _combine_outcomes(claim, [make_finding("a", units=6, same=5)]) == "holds"
    assert (
        _combine_outcomes(replace(toy, void_if_same=False), [make_finding("a", units=6, same=6)])
        == "holds"
    )


def test_a_trend_is_the_rise_of_the_line_of_least_squares(toy: Claim) -> None:
    assert group_by_task(
        {("a", 5, 0): 10.0, ("a", 10, 0): 40.0, ("a", 15, 0): 20.0}, measure_rise
    ) == {"a": [pytest.approx(10.0)]}
    claim = replace(
        toy, compare=replace(toy.compare, kind="trend", arms=("ours",)), layers=(5, 10, 15)
    )
    verdict = judge(claim, ran(claim, lambda cell: 0.004 * cell.layers + jitter(cell)))
    assert verdict.findings[0].value == pytest.approx(4.0)
    assert verdict.findings[0].units == 36
    assert verdict.verdict == "holds"


def test_a_closing_gap_is_a_difference_of_differences(toy: Claim) -> None:
    arms = {"full early": 0.6, "ours early": 0.3, "full": 0.7, "ours": 0.65}
    claim = replace(
        toy,
        arms={
            name: replace(toy.arms["ours"], epochs=1 if "early" in name else None) for name in arms
        },
        compare=replace(toy.compare, kind="closing", arms=tuple(arms)),
    )
    assert {cell.recipe.epochs for cell in list_cells(claim)} == {1, 4}
    verdict = judge(
        claim,
        ran(claim, lambda cell: arms[cell.arm.name] + (cell.arm.name == "ours") * jitter(cell)),
    )
    assert verdict.findings[0].value == pytest.approx(25.0)
    assert verdict.verdict == "holds"


def test_two_things_are_judged_with_and_without_each_other(toy: Claim) -> None:
    """The paper's figures: each change alone hurts, both together help."""
    arms = {"both": 53.37, "layer": 46.80, "guided": 40.71, "none": 49.23}
    compare = replace(toy.compare, kind="factorial", arms=tuple(arms))
    claim = replace(toy, arms=dict.fromkeys(arms, toy.arms["ours"]), compare=compare)
    noise = {"both": 1.0, "layer": 0.4, "guided": -0.7, "none": 0.2}
    verdict = judge(
        claim,
        ran(claim, lambda cell: arms[cell.arm.name] / 100 + noise[cell.arm.name] * jitter(cell)),
    )
    assert [finding.value for finding in verdict.findings] == pytest.approx([5.115, -0.975, 15.09])
    assert [finding.outcome for finding in verdict.findings] == ["holds", "refuted", "holds"]
    assert verdict.verdict == "refuted"
    assert verdict.notes == (
        "alone: layer over none -2.43 points",
        "alone: guided over none -8.52 points",
    )


def test_gains_over_controls_are_told_beside_the_claim(toy: Claim) -> None:
    control = replace(toy.arms["ours"], control="shuffled")
    claim = replace(toy, arms={**toy.arms, "ours shuffled": control})
    verdict = judge(claim, ran(claim, gains(0.05)))
    (beside,) = verdict.beside
    assert beside.what == "inherited knowledge: ours over ours shuffled"
    assert (beside.value, beside.outcome) == (pytest.approx(verdict.findings[0].value), None)


def test_extractions_are_compared_by_their_own_metric(toy: Claim) -> None:
    claim = extraction(toy)

    def config_of(cell: Cell) -> LearngeneConfig:
        return config(
            (0.7 if cell.arm.name == "batch" else 0.6)
            + 0.001 * cell.seed
            + cell.arm.settings.get("lr", 0),
            [1, 2],
        )

    tuning = [row(cell, 0.0) for cell in list_tuning_cells(claim)]
    choices, _ = choose_rates(claim, tuning, config_of)
    assert {choice.lr for choice in choices.values()} == {2e-3}
    rows = [*tuning, *(row(cell, 0.0) for cell in list_cells(claim, at(claim, 2e-3)))]
    verdict = judge(claim, rows, config_of)
    assert verdict.verdict == "holds"
    assert verdict.findings[0].tasks == pytest.approx(dict.fromkeys(TASKS, 10.0))


def test_an_extraction_may_have_one_number_or_one_for_every_size(toy: Claim) -> None:
    claim = replace(
        with_two_sizes(toy),
        measure="extraction",
        metric="paths.accuracy",
        seen=True,
        scope="seeds",
        targets=("digits",),
    )
    claim = replace(claim, tuning=replace(claim.tuning, lr=(1e-3,), tasks=()))
    assert len(list_cells(claim)) == 2 * 3
    assert not any("lr" in cell.arm.settings for cell in list_cells(claim)), (
        "one rate is no choice: the preset's is kept"
    )

    def config_of(cell: Cell) -> LearngeneConfig:
        ours = cell.arm.name == "ours"
        lows = (6, 3) if ours else (9, 6)
        paths = [
            {"low": low, "high": high, "accuracy": 0.5 + 0.1 * ours * high}
            for low, high in zip(lows, (0, 3))
        ]
        return replace(
            config(0.5, [1]),
            metrics={"low": {"validation_accuracy": 0.6 if ours else 0.4}, "paths": paths},
        )

    rows = [row(cell, 0.0) for cell in list_cells(claim)]
    verdict = judge(claim, rows, config_of)
    assert verdict.findings[0].value == pytest.approx((0 + 30) / 2)
    single = replace(claim, metric="low.validation_accuracy", sizes=(), layers=(6,))
    single = replace(
        single, arms={name: replace(arm, sizes=()) for name, arm in single.arms.items()}
    )
    rows = [row(cell, 0.0) for cell in list_cells(single)]
    assert judge(single, rows, config_of).findings[0].value == pytest.approx(20.0)
    with pytest.raises(
        BadFile, match=r"a learngene of pool has no metric 'high.validation_accuracy'"
    ):
        judge(replace(single, metric="high.validation_accuracy"), rows, config_of)
    with pytest.raises(BadFile, match=r"has no metric 'paths.value' at low 6, high 0"):
        judge(
            replace(claim, metric="paths.value"),
            [row(cell, 0.0) for cell in list_cells(claim)],
            config_of,
        )


def test_an_overlap_is_measured_against_chance(toy: Claim) -> None:
    claim = extraction(toy)
    claim = replace(
        claim, compare=replace(claim.compare, kind="overlap"), scope="seeds", smallest=10.0
    )
    kept = {"batch": [1, 2, 3, 4, 5], "image": [1, 2, 3, 4, 6]}

    def config_of(cell: Cell) -> LearngeneConfig:
        return config(0.5, kept[cell.arm.name])

    tuning = [row(cell, 0.0) for cell in list_tuning_cells(claim)]
    choices, _ = choose_rates(claim, tuning, config_of)
    rows = [*tuning, *(row(cell, 0.0) for cell in list_cells(claim, choices))]
    verdict = judge(claim, rows, config_of)
    assert verdict.findings[0].value == pytest.approx(
        100 * (4 / 6 - compute_chance_jaccard(5, 5, 12))
    )
    assert verdict.verdict == "holds"
    assert any("1 2 3 4 5; 1 2 3 4 5; 1 2 3 4 5" in note for note in verdict.notes)


def test_jaccard_by_number() -> None:
    assert compute_jaccard({1, 2, 3}, {2, 3, 4}) == 0.5
    assert compute_jaccard(set(), set()) == 1.0
    assert compute_chance_jaccard(1, 1, 4) == pytest.approx(1 / 4)
    assert compute_chance_jaccard(2, 2, 3) == pytest.approx(
        (2 * (1 / 3) + 1) / 3
    )  # of 3 pairs one is equal, two share one


def test_a_verdict_survives_its_file(toy: Claim, tmp_path: Path) -> None:
    verdict = judge(toy, ran(toy, gains(0.03)))
    write_json(tmp_path / "toy.json", {"claim": to_json(toy), "verdict": to_json(verdict)})
    assert read_verdict(tmp_path / "toy.json") == (toy, verdict)
    write_json(tmp_path / "toy.json", {"claim": to_json(toy)})
    with pytest.raises(BadFile, match="is not a verdict: the key 'verdict' is missing"):
        read_verdict(tmp_path / "toy.json")


def test_changed_data_of_the_user_gives_other_cells(toy: Claim) -> None:
    own = replace(toy, targets=(*toy.targets, "folder:photos"))
    before, after = (
        {cell.key for cell in list_cells(replace(own, data={"folder:photos": stamp}))}
        for stamp in ("1", "2")
    )
    assert len(before & after) == len(list_cells(toy)), "those of other tasks are the same"


def test_a_kept_verdict_stays_with_the_test_images_that_it_was_made_on(
    toy: Claim, tmp_path: Path
) -> None:
    toy = replace(toy, targets=("digits", "signs", "wings", "petals"))
    write_verdict(toy, judge(toy, []), tmp_path / "toy.json")
    kept, _ = read_verdict(tmp_path / "toy.json")
    assert kept.versions == {
        "digits": 1,
        **dict.fromkeys(("signs", "wings", "petals"), MINI.version),
    }
    rates = choose_rates(toy, [])[0] or at(toy, 1e-3)
    assert {
        cell.version
        for cell in list_cells(replace(kept, versions={"digits": 1, "signs": 7}), rates)
    } == {
        1,
        7,
        MINI.version,
    }


def test_everything_a_reader_needs_is_told(toy: Claim) -> None:
    verdict = judge(toy, ran(toy, gains(0.03)))
    text = "\n".join(format_verdict(toy, verdict))
    assert (
        "Measured   4 tasks, 6 layers, 3 seeds; 4 epochs of 1000 images in batches of 128" in text
    )
    for part in (
        "ours is better than theirs",
        "the difference",
        "fashion_mnist",
        "0.002",
        "a machine",
        "[+2",
        "holds",
    ):
        assert part in text
    assert "the stronger arm, by task and size: timm in 4, fan_in in 0" in text


def test_a_claim_on_extractions_is_judged_from_rows_and_configs_alone(
    toy: Claim, tmp_path: Path
) -> None:
    """benchmarks/results/claims keeps only the config.json of a learngene."""
    claim = extraction(toy)
    cells = [*list_tuning_cells(claim), *list_cells(claim, at(claim, 1e-3))]
    for cell in cells:
        better = 0.05 * (cell.arm.name == "batch") - 10 * cell.arm.settings["lr"]
        write_json(
            make_folder(cell.extraction.folder(tmp_path)) / CONFIG,
            to_json(config(0.5 + better, (1, 2, 3))),
        )
    verdict = judge(claim, [row(cell, 0.0) for cell in cells], make_config_reader(tmp_path))
    assert verdict.findings[0].value == pytest.approx(5.0)


def make_folder(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
