"""The verdict on a claim: *holds*, *refuted*, *negligible*, *undecided*, or *incomplete* while cells are missing."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise
from typing import Literal

from learngene_zoo.artifacts.records import LearngeneConfig
from learngene_zoo.bench.cell import Cell
from learngene_zoo.bench.claim_cells import ConfigOf, cells_of, measured, place_of, rates_of
from learngene_zoo.bench.claim_file import Claim, Decision
from learngene_zoo.bench.contrasts import (
    Finding,
    Unit,
    Values,
    by_task,
    exact_value,
    finding,
    jaccard,
    jaccard_by_chance,
    means_by,
    rise,
    stronger,
    weighted,
)
from learngene_zoo.bench.results import Row
from learngene_zoo.bench.search import Choice
from learngene_zoo.bench.statistics import holm
from learngene_zoo.bench.summary import STEMS
from learngene_zoo.errors import BadFile
from learngene_zoo.tasks.catalogue import origin_of


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result, with everything that a reader needs to judge it."""

    claim: str
    verdict: Literal["holds", "refuted", "negligible", "undecided", "incomplete"]
    findings: tuple[Finding, ...] = ()  # what decides the claim
    beside: tuple[Finding, ...] = ()  # reported with it: the gains over the other arms
    means: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # arm -> task -> per cent
    choices: Mapping[str, Choice] = field(default_factory=dict)  # of the learning rates
    missing: tuple[str, ...] = ()  # cells without a result, with their errors
    notes: tuple[str, ...] = ()
    machines: tuple[str, ...] = ()
    cells: int = 0
    seconds: float = 0.0  # of extractions (each counted once) and trainings, summed over workers


@dataclass(frozen=True)
class _Evidence:
    """The finished cells of a claim, arm by arm."""

    claim: Claim
    rows: Mapping[str, Mapping[Unit, Row]]
    values: Mapping[str, Values]
    configs: Mapping[str, Mapping[int, LearngeneConfig]]  # by seed; empty unless the extraction is measured


def judge(claim: Claim, rows: Iterable[Row], config_of: ConfigOf | None = None) -> Verdict:
    """Decide the claim from the rows of the results file (its tuning rows among them; others are ignored).

    `config_of` reads the config of a cell's learngene; only claims about extractions need it. While any cell is missing the
    verdict is "incomplete".
    """
    if claim.compare.kind == "exact":
        return _exact(claim)
    rows = list(rows)
    done = {row.key: row for row in rows}
    choices, missing = rates_of(claim, rows, config_of)
    cells = [] if missing else cells_of(claim, choices)
    missing += [_named(cell, done.get(cell.key)) for cell in cells if cell.key not in done or done[cell.key].error]
    if missing:
        count = len(cells)
        return Verdict(claim=claim.name, verdict="incomplete", choices=choices, missing=tuple(missing), cells=count)
    evidence = _evidence(claim, cells, done, config_of)
    findings, notes = _DECIDE[claim.compare.kind](evidence)
    own = [done[cell.key] for cell in cells]
    return Verdict(
        claim=claim.name,
        verdict=_overall(claim, findings),
        findings=tuple(findings),
        beside=tuple(_beside(evidence)),
        means={name: means_by(values, 0) for name, values in evidence.values.items()},
        choices=choices,
        notes=(*notes, *_warnings(claim, findings, choices)),
        machines=tuple(sorted({row.machine for row in own if row.machine})),
        cells=len(cells),
        seconds=_seconds(cells, done),
    )


def _named(cell: Cell, row: Row | None) -> str:
    reason = row.error if row is not None else "not run"
    return f"{cell.arm.name}, {cell.task}, {cell.at}, seed {cell.seed}: {reason}"


def _evidence(claim: Claim, cells: Sequence[Cell], done: Mapping[str, Row], config_of: ConfigOf | None) -> _Evidence:
    rows: dict[str, dict[Unit, Row]] = {}
    values: dict[str, dict[Unit, float]] = {}
    configs: dict[str, dict[int, LearngeneConfig]] = {}
    for cell in cells:
        name, row, place = cell.arm.name, done[cell.key], place_of(claim, cell)
        rows.setdefault(name, {})[(cell.task, place, cell.seed)] = row
        for (task, size), value in measured(claim, cell, row, config_of).items():
            values.setdefault(name, {})[(task, size, cell.seed)] = value
        if claim.measure == "extraction" and config_of is not None:
            configs.setdefault(name, {})[cell.seed] = config_of(cell)
    return _Evidence(claim, rows, values, configs)


def _finding(
    of: _Evidence, arms: Sequence[str], what: str = "", weights: Sequence[float] = (1.0, -1.0), decides: bool = True
) -> Finding:
    """The estimate of a weighted sum of some arms; of two arms their difference."""
    values = weighted([of.values[name] for name in arms], weights)
    same = _same(of, *arms) if len(arms) == 2 else 0
    what = what or f"{arms[0]} over {arms[1]}"
    return finding(what, by_task(values), claim=of.claim, units=len(values), same=same, decides=decides)


def _over(of: _Evidence) -> tuple[list[Finding], list[str]]:
    first, *others = of.claim.compare.arms
    theirs, chosen = stronger({name: of.values[name] for name in others})
    rival = others[0] if len(others) == 1 else f"the stronger of {' and '.join(others)}"
    counts = ", ".join(f"{name} in {list(chosen.values()).count(name)}" for name in others)
    notes = [f"the stronger arm, by task and size: {counts}"] if len(others) > 1 else []
    if of.claim.sizes:
        found = means_by(weighted([of.values[first], theirs]), 1)
        gains = "; ".join(f"{size} {gain:+.2f}" for size, gain in found.items())
        notes.append(f"ahead at {sum(gain > 0 for gain in found.values())} of {len(found)} sizes: {gains}")
    return [_finding(replace(of, values={**of.values, rival: theirs}), (first, rival))], notes


def _ordering(of: _Evidence) -> tuple[list[Finding], list[str]]:
    return _corrected([_finding(of, pair) for pair in pairwise(of.claim.compare.arms)]), []


def _trend(of: _Evidence) -> tuple[list[Finding], list[str]]:
    (arm,), layers = of.claim.compare.arms, of.claim.layers
    what = f"{arm}: rise from {min(layers)} to {max(layers)} layers"
    return [finding(what, by_task(of.values[arm], rise), claim=of.claim, units=len(of.values[arm]))], []


def _closing(of: _Evidence) -> tuple[list[Finding], list[str]]:
    ahead, behind, ahead_late, behind_late = of.claim.compare.arms
    early, late = (
        weighted([of.values[name] for name in pair]) for pair in ((ahead, behind), (ahead_late, behind_late))
    )
    what = f"the gap of {ahead} over {behind} exceeds that of {ahead_late} over {behind_late}"
    return [finding(what, by_task(weighted([early, late])), claim=of.claim, units=len(early))], []


def _factorial(of: _Evidence) -> tuple[list[Finding], list[str]]:
    _, one, other, none = arms = of.claim.compare.arms
    weights = {
        f"main effect: {one} over {none}": (0.5, 0.5, -0.5, -0.5),
        f"main effect: {other} over {none}": (0.5, -0.5, 0.5, -0.5),
        "interaction": (1.0, -1.0, -1.0, 1.0),
    }
    alone = [_finding(of, (name, none), decides=False) for name in (one, other)]
    notes = [f"alone: {each.what} {each.value:+.2f} points" for each in alone]
    return [_finding(of, arms, what, signs) for what, signs in weights.items()], notes


def _overlap(of: _Evidence) -> tuple[list[Finding], list[str]]:
    ours, theirs = of.claim.compare.arms
    kept = {name: {seed: _kept(config) for seed, config in of.configs[name].items()} for name in (ours, theirs)}
    total = next(iter(of.configs[ours].values())).ancestries[0].spec.layers
    pairs = [(kept[ours][seed], kept[theirs][seed]) for seed in kept[ours]]
    points = [100 * (jaccard(a, b) - jaccard_by_chance(len(a), len(b), total)) for a, b in pairs]
    what = f"Jaccard index of the kept blocks of {ours} and {theirs}, beyond chance, times 100"
    notes = [
        f"{name} keeps {'; '.join(' '.join(map(str, sorted(blocks))) for blocks in kept[name].values())}; "
        f"its seeds among themselves have a Jaccard index of {_mean_jaccard(combinations(kept[name].values(), 2)):.2f}"
        for name in (ours, theirs)
    ]
    notes.append(f"the Jaccard index itself is {_mean_jaccard(pairs):.2f}")
    step = 100 / min(len(blocks) for by_seed in kept.values() for blocks in by_seed.values())  # a block more in common
    return [finding(what, {"kept blocks": points}, claim=of.claim, units=len(points), step=step)], notes


def _kept(config: LearngeneConfig) -> set[int]:
    kept = config.details.get("kept")
    if not isinstance(kept, (list, tuple)) or not all(type(block) is int for block in kept):
        raise BadFile(f"a learngene of {config.method} lists no kept blocks under details.kept; an overlap needs them")
    return set(kept)


def _mean_jaccard(pairs: Iterable[tuple[set[int], set[int]]]) -> float:
    found = [jaccard(a, b) for a, b in pairs]
    return sum(found) / len(found)


_DECIDE: dict[str, Callable[[_Evidence], tuple[list[Finding], list[str]]]] = {
    "over": _over,
    "ordering": _ordering,
    "trend": _trend,
    "closing": _closing,
    "factorial": _factorial,
    "overlap": _overlap,
}


def _same(of: _Evidence, ours: str, theirs: str) -> int:
    """The number of units in which two arms are the same model: right on exactly the same images."""
    if of.claim.measure == "extraction" or theirs not in of.rows:
        return 0
    flags = ({unit: (row.value, row.correct) for unit, row in of.rows[name].items()} for name in (ours, theirs))
    return len(set.intersection(*(set(found.items()) for found in flags)))


def _corrected(findings: Sequence[Finding]) -> list[Finding]:
    """Holm's correction: a pair is undecided unless its adjusted p-value is below 0.05."""
    adjusted = holm({found.what: 1.0 if found.p is None else found.p for found in findings})
    kept = [found.outcome if adjusted[found.what] < 0.05 else "undecided" for found in findings]
    return [replace(found, p=adjusted[found.what], outcome=outcome) for found, outcome in zip(findings, kept)]


def _overall(claim: Claim, findings: Sequence[Finding]) -> Decision:
    """Of several findings each must hold: one that is refuted decides, else one that is negligible."""
    if claim.void_if_same and any(found.same == found.units for found in findings):
        return "undecided"
    outcomes = {found.outcome for found in findings}
    if outcomes == {"holds"}:
        return "holds"
    return "refuted" if "refuted" in outcomes else "negligible" if "negligible" in outcomes else "undecided"


def _beside(of: _Evidence) -> Iterator[Finding]:
    """The first arm's gains over the arms that are not compared, and what decides, on the real and the left-out tasks alone.

    The gain over its own `shuffled` is inherited knowledge; the two stems count as one, the stronger.
    """
    if of.claim.compare.kind != "over":
        return
    first, *others = of.claim.compare.arms
    beside = {name: arm.control for name, arm in of.claim.arms.items() if name not in of.claim.compare.arms}
    stems = [name for name, control in beside.items() if control in STEMS]
    if len(stems) > 1:
        rival = f"the stronger of {' and '.join(stems)}"
        values = {**of.values, rival: stronger({name: of.values[name] for name in stems})[0]}
        yield _finding(replace(of, values=values), (first, rival), decides=False)
    for name, control in beside.items():
        if name not in stems or len(stems) == 1:
            found = _finding(of, (first, name), decides=False)
            yield replace(found, what=f"inherited knowledge: {found.what}") if control == "shuffled" else found
    theirs = stronger({name: of.values[name] for name in others})[0]
    for origin in ("real", "left out"):
        own = {
            unit: value for unit, value in weighted([of.values[first], theirs]).items() if origin_of(unit[0]) == origin
        }
        if own and len(own) < len(theirs):
            yield finding(f"on {origin} tasks", by_task(own), claim=of.claim, units=len(own), decides=False)


def _warnings(claim: Claim, findings: Sequence[Finding], choices: Mapping[str, Choice]) -> Iterator[str]:
    for found in findings:
        if found.same:
            whole = "all" if found.same == found.units else f"{found.same} of"
            yield f"{found.what}: the two arms built the same model in {whole} {found.units} units"
    for choice in choices.values():
        if choice.edge:
            yield f"{choice.arm}: the learning rate {choice.lr:g} is at the edge of its candidates"
        if choice.at_chance:
            kept = "" if choice.tasks else "; the middle rate is kept"
            yield f"{choice.arm}: no better than a constant answer on {', '.join(choice.at_chance)}{kept}"
        for failed in choice.failed:
            yield f"{choice.arm}: excluded: lr {failed}"
    if claim.scope == "seeds":
        yield "the interval generalises over seeds only, not over tasks"


def _seconds(cells: Sequence[Cell], done: Mapping[str, Row]) -> float:
    """The time that the cells took, with shared extractions counted once."""
    extractions = {cell.extraction.key: done[cell.key].extraction_seconds for cell in cells}
    return sum(done[cell.key].seconds for cell in cells) + sum(extractions.values())


def _exact(claim: Claim) -> Verdict:
    """Without an interval: a sum agrees with the paper's to the last printed digit, or it does not."""
    words: dict[bool | None, Decision | None] = {None: None, True: "holds", False: "refuted"}
    findings = []
    for one in claim.exact:
        value = exact_value(one)
        outcome = words[one.agrees(value)]
        findings.append(Finding(what=one.what, value=value, low=value, high=value, outcome=outcome, unit=one.unit))
    outcomes = {found.outcome for found in findings if found.outcome}
    verdict: Decision = "holds" if outcomes == {"holds"} else "refuted"
    return Verdict(claim=claim.name, verdict=verdict, findings=tuple(findings))
