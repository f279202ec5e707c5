"""The verdict on a claim: *holds*, *refuted*, *negligible*, *undecided* or *incomplete*.

It is *incomplete* while cells are missing.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise
from typing import Literal

from learngene_zoo.artifacts.records import LearngeneConfig
from learngene_zoo.bench.claims.cells import (
    ConfigOf,
    choose_rates,
    list_cells,
    list_tried_cells,
    list_values,
    name_size,
)
from learngene_zoo.bench.claims.contrasts import (
    Finding,
    Unit,
    Values,
    average_by,
    choose_stronger,
    compute_chance_jaccard,
    compute_jaccard,
    exact_value,
    group_by_task,
    make_finding,
    measure_rise,
    sum_weighted,
)
from learngene_zoo.bench.claims.file import Claim, Decision
from learngene_zoo.bench.grid.cell import Cell
from learngene_zoo.bench.grid.search import Choice
from learngene_zoo.bench.results.rows import Row
from learngene_zoo.bench.results.statistics import adjust_by_holm
from learngene_zoo.bench.results.summary import STEMS
from learngene_zoo.errors import BadFile
from learngene_zoo.settings import Json, fingerprint, to_json
from learngene_zoo.tasks.catalogue import get_origin


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result, with everything that a reader needs to judge it."""

    claim: str
    verdict: Literal["holds", "refuted", "negligible", "undecided", "incomplete"]
    findings: tuple[Finding, ...] = ()  # they decide the claim
    beside: tuple[Finding, ...] = ()  # reported with it: the gains over the other arms
    # arm -> task -> per cent
    means: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    choices: Mapping[str, Choice] = field(default_factory=dict)  # of the learning rates
    missing: tuple[str, ...] = ()  # cells without a result, with their errors
    notes: tuple[str, ...] = ()
    machines: tuple[str, ...] = ()
    cells: int = 0
    seconds: float = 0.0  # of extractions (each counted once) and trainings, summed over workers
    digest: str = ""  # of the rows that it was judged from; "" in verdicts of earlier versions


@dataclass(frozen=True)
class _Evidence:
    """The finished cells of a claim, arm by arm."""

    claim: Claim
    rows: Mapping[str, Mapping[Unit, Row]]
    values: Mapping[str, Values]
    # by seed; empty unless the extraction is measured
    configs: Mapping[str, Mapping[int, LearngeneConfig]]


def judge(claim: Claim, rows: Iterable[Row], config_of: ConfigOf | None = None) -> Verdict:
    """Decide the claim from the rows of the results file, among them those of its tuning.

    Other rows are ignored. `config_of` reads the config of a cell's learngene; only claims about
    extractions need it. While any cell is missing the verdict is "incomplete".
    """
    if claim.compare.kind == "exact":
        return _judge_exact(claim)
    rows = list(rows)
    rows_by_key = {row.key: row for row in rows}
    choices, missing = choose_rates(claim, rows, config_of)
    cells = [] if missing else list_cells(claim, choices)
    missing += [
        _name_cell(cell, rows_by_key.get(cell.key))
        for cell in cells
        if cell.key not in rows_by_key or rows_by_key[cell.key].error
    ]
    if missing:
        count = len(cells)
        return Verdict(
            claim=claim.name,
            verdict="incomplete",
            choices=choices,
            missing=tuple(missing),
            cells=count,
        )
    evidence = _collect_evidence(claim, cells, rows_by_key, config_of)
    findings, notes = _DECIDE[claim.compare.kind](evidence)
    used = [rows_by_key[cell.key] for cell in cells]
    return Verdict(
        claim=claim.name,
        verdict=_combine_outcomes(claim, findings),
        findings=tuple(findings),
        beside=tuple(_iterate_other_findings(evidence)),
        means={name: average_by(values, 0) for name, values in evidence.values.items()},
        choices=choices,
        notes=(*notes, *_list_warnings(claim, findings, choices)),
        machines=tuple(sorted({row.machine for row in used if row.machine})),
        cells=len(cells),
        seconds=_count_seconds(cells, rows_by_key),
        digest=_compute_digest(
            claim, [*list_tried_cells(claim, rows, config_of), *cells], rows_by_key, config_of
        ),
    )


def _compute_digest(
    claim: Claim, cells: Iterable[Cell], rows_by_key: Mapping[str, Row], config_of: ConfigOf | None
) -> str:
    """Return a digest of the results of the cells.

    A cell's key does not name the version of its method, so rows of another version have equal keys
    and other results.
    """
    results: dict[str, Json] = {}
    for cell in cells:
        row = rows_by_key[cell.key]
        results[row.key] = [row.value, row.correct]
        if claim.measure == "extraction" and config_of is not None and row.error is None:
            results[row.key] = to_json(config_of(cell).metrics)
    return fingerprint(results)


def _name_cell(cell: Cell, row: Row | None) -> str:
    reason = row.error if row is not None else "not run"
    return f"{cell.arm.name}, {cell.task}, {cell.at}, seed {cell.seed}: {reason}"


def _collect_evidence(
    claim: Claim, cells: Sequence[Cell], rows_by_key: Mapping[str, Row], config_of: ConfigOf | None
) -> _Evidence:
    rows: dict[str, dict[Unit, Row]] = {}
    values: dict[str, dict[Unit, float]] = {}
    configs: dict[str, dict[int, LearngeneConfig]] = {}
    for cell in cells:
        name, row, size_name = cell.arm.name, rows_by_key[cell.key], name_size(claim, cell)
        rows.setdefault(name, {})[(cell.task, size_name, cell.seed)] = row
        for (task, size), value in list_values(claim, cell, row, config_of).items():
            values.setdefault(name, {})[(task, size, cell.seed)] = value
        if claim.measure == "extraction" and config_of is not None:
            configs.setdefault(name, {})[cell.seed] = config_of(cell)
    return _Evidence(claim, rows, values, configs)


def _estimate(
    evidence: _Evidence,
    arms: Sequence[str],
    title: str = "",
    weights: Sequence[float] = (1.0, -1.0),
    decides: bool = True,
) -> Finding:
    """Return the estimate of a weighted sum of several arms; of two arms their difference."""
    values = sum_weighted([evidence.values[name] for name in arms], weights)
    same = _count_same_models(evidence, *arms) if len(arms) == 2 else 0
    title = title or f"{arms[0]} over {arms[1]}"
    return make_finding(
        title,
        group_by_task(values),
        claim=evidence.claim,
        units=len(values),
        same=same,
        decides=decides,
    )


def _judge_over(evidence: _Evidence) -> tuple[list[Finding], list[str]]:
    first, *rivals = evidence.claim.compare.arms
    theirs, chosen = choose_stronger({name: evidence.values[name] for name in rivals})
    rival = rivals[0] if len(rivals) == 1 else f"the stronger of {' and '.join(rivals)}"
    counts = ", ".join(f"{name} in {list(chosen.values()).count(name)}" for name in rivals)
    notes = [f"the stronger arm, by task and size: {counts}"] if len(rivals) > 1 else []
    if evidence.claim.sizes:
        by_size = average_by(sum_weighted([evidence.values[first], theirs]), 1)
        gains = "; ".join(f"{size} {gain:+.2f}" for size, gain in by_size.items())
        notes.append(
            f"ahead at {sum(gain > 0 for gain in by_size.values())} of {len(by_size)} sizes: "
            f"{gains}"
        )
    return [
        _estimate(replace(evidence, values={**evidence.values, rival: theirs}), (first, rival))
    ], notes


def _judge_ordering(evidence: _Evidence) -> tuple[list[Finding], list[str]]:
    return _apply_holm(
        [_estimate(evidence, pair) for pair in pairwise(evidence.claim.compare.arms)]
    ), []


def _judge_trend(evidence: _Evidence) -> tuple[list[Finding], list[str]]:
    (arm,), layers = evidence.claim.compare.arms, evidence.claim.layers
    title = f"{arm}: rise from {min(layers)} to {max(layers)} layers"
    return [
        make_finding(
            title,
            group_by_task(evidence.values[arm], measure_rise),
            claim=evidence.claim,
            units=len(evidence.values[arm]),
        )
    ], []


def _judge_closing(evidence: _Evidence) -> tuple[list[Finding], list[str]]:
    ahead, behind, ahead_late, behind_late = evidence.claim.compare.arms
    early, late = (
        sum_weighted([evidence.values[name] for name in pair])
        for pair in ((ahead, behind), (ahead_late, behind_late))
    )
    title = f"the gap of {ahead} over {behind} exceeds that of {ahead_late} over {behind_late}"
    return [
        make_finding(
            title,
            group_by_task(sum_weighted([early, late])),
            claim=evidence.claim,
            units=len(early),
        )
    ], []


def _judge_factorial(evidence: _Evidence) -> tuple[list[Finding], list[str]]:
    _, first, second, neither = arms = evidence.claim.compare.arms
    weights = {
        f"main effect: {first} over {neither}": (0.5, 0.5, -0.5, -0.5),
        f"main effect: {second} over {neither}": (0.5, -0.5, 0.5, -0.5),
        "interaction": (1.0, -1.0, -1.0, 1.0),
    }
    alone = [_estimate(evidence, (name, neither), decides=False) for name in (first, second)]
    notes = [f"alone: {each.what} {each.value:+.2f} points" for each in alone]
    return [_estimate(evidence, arms, title, signs) for title, signs in weights.items()], notes


def _judge_overlap(evidence: _Evidence) -> tuple[list[Finding], list[str]]:
    ours, theirs = evidence.claim.compare.arms
    blocks_of = {
        name: {seed: _read_kept(config) for seed, config in evidence.configs[name].items()}
        for name in (ours, theirs)
    }
    total = next(iter(evidence.configs[ours].values())).ancestries[0].spec.layers
    pairs = [(blocks_of[ours][seed], blocks_of[theirs][seed]) for seed in blocks_of[ours]]
    points = [
        100 * (compute_jaccard(a, b) - compute_chance_jaccard(len(a), len(b), total))
        for a, b in pairs
    ]
    title = f"Jaccard index of the kept blocks of {ours} and {theirs}, beyond chance, times 100"
    notes = [
        f"{name} keeps "
        f"{'; '.join(' '.join(map(str, sorted(blocks))) for blocks in blocks_of[name].values())}; "
        "its seeds among themselves have a Jaccard index of "
        f"{_average_jaccard(combinations(blocks_of[name].values(), 2)):.2f}"
        for name in (ours, theirs)
    ]
    notes.append(f"the Jaccard index itself is {_average_jaccard(pairs):.2f}")
    # a block more in common
    step = 100 / min(len(blocks) for by_seed in blocks_of.values() for blocks in by_seed.values())
    return [
        make_finding(
            title, {"kept blocks": points}, claim=evidence.claim, units=len(points), step=step
        )
    ], notes


def _read_kept(config: LearngeneConfig) -> set[int]:
    blocks = config.details.get("kept")
    if not isinstance(blocks, (list, tuple)) or not all(type(block) is int for block in blocks):
        raise BadFile(
            f"a learngene of {config.method} lists no kept blocks under details.kept; an overlap "
            "needs them"
        )
    return set(blocks)


def _average_jaccard(pairs: Iterable[tuple[set[int], set[int]]]) -> float:
    indices = [compute_jaccard(a, b) for a, b in pairs]
    return sum(indices) / len(indices)


_DECIDE: dict[str, Callable[[_Evidence], tuple[list[Finding], list[str]]]] = {
    "over": _judge_over,
    "ordering": _judge_ordering,
    "trend": _judge_trend,
    "closing": _judge_closing,
    "factorial": _judge_factorial,
    "overlap": _judge_overlap,
}


def _count_same_models(evidence: _Evidence, ours: str, theirs: str) -> int:
    """Return the number of units in which two arms are the same model.

    They are compared before their training, which has equal budgets.
    """
    if evidence.claim.measure == "extraction" or theirs not in evidence.rows:
        return 0
    rivals = evidence.rows[theirs]
    return sum(
        unit in rivals and _are_same_models(row, rivals[unit])
        for unit, row in evidence.rows[ours].items()
    )


def _are_same_models(row: Row, rival: Row) -> bool:
    """Return whether two rows are of one model and budget, by the digests before the training.

    Rows of earlier versions have no digest; there both are right on exactly the same images.
    """
    if row.weights and rival.weights:
        return (row.weights, row.epochs) == (rival.weights, rival.epochs)
    return (row.value, row.correct) == (rival.value, rival.correct)


def _apply_holm(findings: Sequence[Finding]) -> list[Finding]:
    """Apply Holm's correction: a pair is undecided unless its adjusted p-value is below 0.05."""
    adjusted = adjust_by_holm(
        {finding.what: 1.0 if finding.p is None else finding.p for finding in findings}
    )
    outcomes = [
        finding.outcome if adjusted[finding.what] < 0.05 else "undecided" for finding in findings
    ]
    return [
        replace(finding, p=adjusted[finding.what], outcome=outcome)
        for finding, outcome in zip(findings, outcomes)
    ]


def _combine_outcomes(claim: Claim, findings: Sequence[Finding]) -> Decision:
    """Return the outcome of the claim: every finding must hold.

    Otherwise one that is refuted decides, else one that is negligible.
    """
    if claim.void_if_same and any(finding.same == finding.units for finding in findings):
        return "undecided"
    outcomes = {finding.outcome for finding in findings}
    if outcomes == {"holds"}:
        return "holds"
    return (
        "refuted"
        if "refuted" in outcomes
        else "negligible"
        if "negligible" in outcomes
        else "undecided"
    )


def _iterate_other_findings(evidence: _Evidence) -> Iterator[Finding]:
    """Yield findings that are reported with the deciding ones.

    They are the first arm's gains over the arms that are not compared, and the deciding gain on the
    real and on the left-out tasks alone. The gain over its own `shuffled` is inherited knowledge;
    the two stems count as one, the stronger.
    """
    if evidence.claim.compare.kind != "over":
        return
    first, *rivals = evidence.claim.compare.arms
    controls = {
        name: arm.control
        for name, arm in evidence.claim.arms.items()
        if name not in evidence.claim.compare.arms
    }
    stems = [name for name, control in controls.items() if control in STEMS]
    if len(stems) > 1:
        rival = f"the stronger of {' and '.join(stems)}"
        values = {
            **evidence.values,
            rival: choose_stronger({name: evidence.values[name] for name in stems})[0],
        }
        yield _estimate(replace(evidence, values=values), (first, rival), decides=False)
    for name, control in controls.items():
        if name not in stems or len(stems) == 1:
            finding = _estimate(evidence, (first, name), decides=False)
            yield (
                replace(finding, what=f"inherited knowledge: {finding.what}")
                if control == "shuffled"
                else finding
            )
    theirs = choose_stronger({name: evidence.values[name] for name in rivals})[0]
    for origin in ("real", "left out"):
        selected = {
            unit: value
            for unit, value in sum_weighted([evidence.values[first], theirs]).items()
            if get_origin(unit[0]) == origin
        }
        if selected and len(selected) < len(theirs):
            yield make_finding(
                f"on {origin} tasks",
                group_by_task(selected),
                claim=evidence.claim,
                units=len(selected),
                decides=False,
            )


def _list_warnings(
    claim: Claim, findings: Sequence[Finding], choices: Mapping[str, Choice]
) -> Iterator[str]:
    for finding in findings:
        if finding.same:
            share = "all" if finding.same == finding.units else f"{finding.same} of"
            yield (
                f"{finding.what}: the two arms built the same model in {share} {finding.units} "
                "units"
            )
    for choice in choices.values():
        if choice.edge:
            yield f"{choice.arm}: the learning rate {choice.lr:g} is at the edge of its candidates"
        if choice.at_chance:
            has_middle = not choice.tasks and len(choice.means) > 1
            consequence = "; the middle rate is kept" if has_middle else ""
            yield (
                f"{choice.arm}: no better than a constant answer on "
                f"{', '.join(choice.at_chance)}{consequence}"
            )
        for failed in choice.failed:
            yield f"{choice.arm}: excluded: lr {failed}"
    if claim.scope == "seeds":
        yield "the interval generalises over seeds only, not over tasks"


def _count_seconds(cells: Sequence[Cell], rows_by_key: Mapping[str, Row]) -> float:
    """Return the time that the cells took, with shared extractions counted once."""
    extractions = {cell.extraction.key: rows_by_key[cell.key].extraction_seconds for cell in cells}
    return sum(rows_by_key[cell.key].seconds for cell in cells) + sum(extractions.values())


def _judge_exact(claim: Claim) -> Verdict:
    """Return the verdict on sums, which have no interval.

    A sum holds if it agrees with the paper's number to the last printed digit, else it is refuted.
    """
    words: dict[bool | None, Decision | None] = {None: None, True: "holds", False: "refuted"}
    findings = []
    for exact in claim.exact:
        value = exact_value(exact)
        outcome = words[exact.agrees(value)]
        findings.append(
            Finding(
                what=exact.what,
                value=value,
                low=value,
                high=value,
                outcome=outcome,
                unit=exact.unit,
            )
        )
    outcomes = {finding.outcome for finding in findings if finding.outcome}
    verdict: Decision = "holds" if outcomes == {"holds"} else "refuted"
    return Verdict(claim=claim.name, verdict=verdict, findings=tuple(findings))
