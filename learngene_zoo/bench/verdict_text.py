"""A verdict in words: the lines that `lgzoo bench --claim` prints, and the table of all verdicts in docs/claims.md. Cold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from learngene_zoo.bench.claim_file import Claim
from learngene_zoo.bench.contrasts import Finding, pooled
from learngene_zoo.bench.verdict import Verdict
from learngene_zoo.errors import BadFile
from learngene_zoo.settings import Json, from_json, to_json
from learngene_zoo.storage import read_json
from learngene_zoo.units import human_seconds

SHOWN_MISSING = 12


def tell(claim: Claim, verdict: Verdict) -> list[str]:
    """What was claimed, what came out by task, the intervals, and the verdict."""
    return [
        f"{claim.name}: {verdict.verdict}",
        "",
        f"The paper says   {claim.says} ({claim.paper}, {claim.where})",
        f"Estimated here   {claim.estimand}",
        *([f"Said beforehand  {claim.expected}. {claim.note}".rstrip()] if claim.expected or claim.note else []),
        *([f"Measured         {_design(claim)}"] if claim.targets else []),
        *_table(claim, verdict),
        *_block("Decides", [_line(found, claim) for found in verdict.findings]),
        *_block("Beside it", [_line(found, claim) for found in verdict.beside]),
        *_block("Without one task", [_without(found) for found in verdict.findings if found.without]),
        *_block("Learning rates, chosen on validation images", list(_rates(verdict))),
        *_block("Notes", list(verdict.notes)),
        *_block(f"Missing: {len(verdict.missing)} cells; run it again", _cut(verdict.missing)),
        "",
        *_last(claim, verdict),
    ]


def _design(claim: Claim) -> str:
    """How much is measured, in a line."""
    sizes = f"{len(claim.sizes)} sizes" if claim.sizes else f"{_listed(claim.layers)} layers"
    sizes = f"{len(claim.targets)} {'task' if len(claim.targets) == 1 else 'tasks'}, {sizes}, {claim.seeds} seeds"
    if claim.measure == "extraction":
        return f"{sizes}; the extraction itself"
    budgets = sorted({claim.epochs_of(name) for name in claim.arms})
    images = f"{claim.recipe.images} images" if claim.recipe.images else "all images"
    return f"{sizes}; {_listed(budgets)} epochs of {images} in batches of {claim.recipe.batch_size}"


def _listed(numbers: Sequence[int]) -> str:
    *most, last = map(str, numbers)
    return f"{', '.join(most)} and {last}" if most else last


def _block(title: str, lines: Sequence[str]) -> list[str]:
    return ["", title, *(f"  {line}" for line in lines)] if lines else []


def _cut(lines: Sequence[str]) -> list[str]:
    more = len(lines) - SHOWN_MISSING
    return [*lines[:SHOWN_MISSING], f"and {more} more"] if more > 0 else list(lines)


def _last(claim: Claim, verdict: Verdict) -> Iterator[str]:
    if verdict.verdict == "incomplete":
        yield f"No verdict on {claim.name} before every cell has a number."
        return
    if claim.compare.kind != "exact":
        yield f"95 % intervals, of {pooled(claim.scope)}; smallest effect that matters: {claim.smallest:g} points."
        yield f"{verdict.cells} cells, {human_seconds(verdict.seconds)} of extraction and training; {'; '.join(verdict.machines)}"
    yield f"Verdict: {claim.name} {_sentence(verdict)}."


def _sentence(verdict: Verdict) -> str:
    seen = max((found.detectable for found in verdict.findings if found.detectable is not None), default=None)
    if verdict.verdict != "undecided" or seen is None:
        return verdict.verdict
    return f"is undecided; a true gain of {seen:.1f} points would have been seen four times in five"


def _line(found: Finding, claim: Claim) -> str:
    exact = claim.compare.kind == "exact"
    text = f"{found.what}: {_sum(found)}" if exact else f"{found.what}: {found.value:+.2f} points"
    if not exact:
        text += f" {_interval(found.low, found.high)}"
        text += f", on these tasks alone {_interval(found.low_here, found.high_here)}" if claim.scope == "tasks" else ""
    if claim.compare.kind == "ordering" and found.p is not None:
        text += f", p = {found.p:.3f} after Holm"
    return f"{text}: {found.outcome}" if found.outcome else text


def _sum(found: Finding) -> str:
    """What an exact sum comes to, with its unit."""
    return f"{found.value:.2f} {found.unit or '%'}"


def _interval(low: float | None, high: float | None) -> str:
    return "[no interval: one unit]" if low is None or high is None else f"[{low:+.2f}, {high:+.2f}]"


def _without(found: Finding) -> str:
    least, most = (pick(found.without, key=lambda task: found.without[task]) for pick in (min, max))
    return f"{found.what}: {found.without[least]:+.2f} (without {least}) to {found.without[most]:+.2f} (without {most})"


def _rates(verdict: Verdict) -> Iterator[str]:
    for choice in verdict.choices.values():
        tried = ", ".join(f"{rate}: {mean:.1f} %" for rate, mean in choice.means.items())
        if tried:
            yield f"{choice.arm}: {choice.lr:g} (of {tried})"


def _table(claim: Claim, verdict: Verdict) -> list[str]:
    """Per task: every arm's mean in per cent, and the mean difference that decides."""
    if not verdict.means:
        return []
    arms, found = list(verdict.means), list(verdict.findings)
    heads = ["task", *arms, *(["difference"] if len(found) == 1 else [f"pair {i + 1}" for i in range(len(found))])]
    tasks = list(dict.fromkeys(task for means in verdict.means.values() for task in means))
    rows = [
        [
            task,
            *(_number(verdict.means[arm].get(task), ".1f") for arm in arms),
            *(_number(one.tasks.get(task), "+.2f") for one in found),
        ]
        for task in tasks
    ]
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    return [
        "",
        *(
            "  ".join(_set(cell, width, i) for i, (cell, width) in enumerate(zip(row, widths)))
            for row in [heads, *rows]
        ),
    ]


def _set(cell: str, width: int, column: int) -> str:
    return cell.ljust(width) if column == 0 else cell.rjust(width)


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def as_json(claim: Claim, verdict: Verdict) -> dict[str, Json]:
    """The verdict's file: the claim as it was asked, and everything that came out."""
    return {"claim": to_json(claim), "verdict": to_json(verdict)}


def read_verdict(path: Path) -> tuple[Claim, Verdict]:
    """What a verdict's file holds. Raises `BadFile`."""
    data = read_json(path)
    for key in ("claim", "verdict"):
        if key not in data:
            raise BadFile(f"{path} holds no verdict: the key {key!r} is missing; run `lgzoo bench --claim` again")
    return (
        from_json(Claim, data["claim"], f"{path}: claim"),
        from_json(Verdict, data["verdict"], f"{path}: verdict"),
    )


def markdown(verdicts: Iterable[tuple[Claim, Verdict]]) -> str:
    """One line per finding that decides, of every claim."""
    lines = [
        "| claim | the paper says | compared | points | 95 % interval | detectable | expected | verdict |",
        "|---|---|---|---:|---|---:|---|---|",
    ]
    for claim, verdict in verdicts:
        decide: list[Finding | None] = [found for found in verdict.findings if found.outcome]
        for found in decide or [None]:
            cells = [f"`{claim.name}`", f"{claim.says} ({claim.where})", *_cells(found, claim), claim.expected]
            lines.append(f"| {' | '.join([*cells, f'**{verdict.verdict}**'])} |")
    return "\n".join(lines)


def _cells(found: Finding | None, claim: Claim) -> list[str]:
    if found is None:
        return ["", "", "", ""]
    if claim.compare.kind == "exact":
        return [found.what, _sum(found), "exact", ""]
    return [found.what, f"{found.value:+.2f}", _interval(found.low, found.high), _number(found.detectable, ".1f")]


def read_all(results: Path) -> list[tuple[Claim, Verdict]]:
    """Every verdict of the standard budget in a folder, by name. Raises `BadFile`."""
    return [read_verdict(path) for path in sorted(results.glob("*.json")) if not path.name.endswith(".full.json")]


def between(page: Path, name: str, table: str) -> str:
    """The text of `page` with `table` between `<!-- name -->` and `<!-- /name -->`. Raises `BadFile` without these."""
    start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, opened, rest = page.read_text(encoding="utf-8").partition(start)
    _, closed, after = rest.partition(end)
    if not (opened and closed):
        raise BadFile(f"{page} has no {start} ... {end} for the table")
    return f"{before}{start}\n{table}\n{end}{after}"
