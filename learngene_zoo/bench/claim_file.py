"""A claim, as one file says it before there are results: `benchmarks/claims/NAME.toml`. Cold.

Keys are the fields of `Claim`; tables are `[compare]`, `[recipe]`, `[tuning]`, one `[arms.NAME]` per arm, `[[exact]]` for sums,
and `[full]`, whose keys replace the others' under `--budget full`. docs/claims.md explains them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from learngene_zoo import registry
from learngene_zoo.artifacts.records import Control
from learngene_zoo.bench.cell import label
from learngene_zoo.bench.statistics import Scope
from learngene_zoo.errors import BadFile, WrongCall, unknown
from learngene_zoo.families.cost import Convention
from learngene_zoo.recipe import Recipe
from learngene_zoo.settings import Json, from_json
from learngene_zoo.tasks import catalogue

Kind = Literal["over", "ordering", "trend", "closing", "factorial", "overlap", "exact"]
Outcome = Literal["holds", "does not hold", "undecided"]
ClaimBudget = Literal["standard", "full"]

LEAST_TASKS, LEAST_SEEDS, HEADLINE_SEEDS = 4, 3, 5
ARMS_OF: dict[Kind, tuple[int, int | None]] = {  # least and most arms of a comparison
    "over": (2, None),
    "ordering": (2, None),
    "trend": (1, 1),
    "closing": (4, 4),
    "factorial": (4, 4),
    "overlap": (2, 2),
    "exact": (0, 0),
}


@dataclass(frozen=True, kw_only=True)
class Competitor:
    """One arm. A setting may be `random 5 of 12`: each seed draws its own ascending numbers from 1 to 12."""

    method: str
    preset: str = "mini"
    settings: Mapping[str, Json] = field(default_factory=dict)  # of the extractor
    expand: Mapping[str, Json] = field(default_factory=dict)  # of the expander
    control: Control | None = None
    ancestries: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()  # what the extraction sees
    draw_tasks: int | None = None  # so many of `tasks`, drawn by each seed; None: all
    leave_out: bool = False
    epochs: int | None = None  # other than the recipe's
    sizes: tuple[Mapping[str, Json], ...] = ()  # other than the claim's, each in the place of the one it stands beside


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What is compared; the meaning of `arms` depends on the kind.

    over: the first exceeds the others (of several the stronger, per task and size). ordering: each exceeds the next. trend: the
    one arm rises from the fewest to the most layers. closing: the first exceeds the second by more than the third the fourth.
    factorial: the first has both of two things, the second and the third one each, the fourth none; three findings, the gain
    by each thing, averaged over having the other or not, and how much more each gains where the other one is there.
    overlap: both extractions keep the same blocks, more than chance would (Jaccard). exact: no arms, see `Sum`.
    """

    kind: Kind
    arms: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """The learning rate of each arm: the candidate with the best mean on validation images, by a seed of its own."""

    lr: tuple[float, ...]
    seed: int = 1000
    tasks: tuple[str, ...] = ()  # (): all targets
    layers: int | None = None  # None: the middle one of the claim's


@dataclass(frozen=True, kw_only=True)
class Sum:
    """An exact claim about a family.

    saved: the share of parameters saved by storing the learngene instead of all of its descendants, in per cent. smallest: the
    parameters of the smallest descendant, in millions.
    """

    what: str
    method: str
    quantity: Literal["saved", "smallest"] = "saved"
    ancestry: str | None = None  # None: the bundled one
    ancestries: tuple[str, ...] = ()  # instead, where the method takes several
    settings: Mapping[str, Json] = field(default_factory=dict)
    layers: tuple[int, ...] = ()  # of the descendants that are counted; (): all
    classes: int
    convention: Convention = "exact"
    paper: float | None = None  # what it must come to, at this number of decimals; None: ours, for comparison
    decimals: int = 2


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim of a paper, and how it is decided."""

    name: str
    paper: str
    where: str  # table or figure
    says: str  # what the paper says, with its numbers
    estimand: str  # what is estimated here, in words
    compare: Comparison
    expected: Outcome  # what we think will come out, said beforehand
    note: str = ""
    measure: Literal["descendant", "extraction"] = (
        "descendant"  # whose metric: a tuned descendant's, or the extraction's own
    )
    metric: str = (
        "validation_accuracy"  # which of the extraction's own, as low.validation_accuracy, or paths.accuracy by size
    )
    arms: Mapping[str, Competitor] = field(default_factory=dict)
    targets: tuple[str, ...] = ()
    layers: tuple[int, ...] = ()
    # Instead of layers: layers = 3, width = 64, or what is asked of the expander, as low = 3, high = 3.
    sizes: tuple[Mapping[str, Json], ...] = ()
    seeds: int = HEADLINE_SEEDS  # 0, 1, ...; each repeats extraction and fine-tuning
    recipe: Recipe = field(default_factory=Recipe)
    tuning: Tuning | None = None
    smallest: float = 1.0  # the smallest effect that matters, in points
    scope: Scope = "tasks"
    headline: bool = False
    seen: bool = False  # whether the targets may be among the extraction's tasks
    void_if_same: bool = False  # undecided, where two arms always built the same model
    minutes: float = 0.0  # of two cores, planned, without the cells that other claims share
    exact: tuple[Sum, ...] = ()

    def epochs_of(self, arm: str) -> int:
        """How long an arm is trained."""
        own = self.arms[arm].epochs
        return self.recipe.epochs if own is None else own


def claims_folder() -> Path:
    """Where the claims lie: `learngene_zoo/claims` in a wheel, `benchmarks/claims` in a checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "claims"
    return inside if inside.is_dir() else package.parent / "benchmarks" / "claims"


def names() -> list[str]:
    """The names of all claims, sorted."""
    return sorted(path.stem for path in claims_folder().glob("*.toml"))


def load_claim(reference: str | Path, budget: ClaimBudget = "standard") -> Claim:
    """The claim of that name, or in that file. Raises `WrongCall` if there is none, `BadFile` if it cannot be decided."""
    path = Path(reference)
    if path.suffix != ".toml":
        if str(reference) not in names():
            raise unknown("claim", str(reference), names())
        path = claims_folder() / f"{reference}.toml"
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise WrongCall(f"there is no file {path}; `lgzoo bench --claim` takes a name or a .toml file") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadFile(f"{path}: {error}") from error
    full = data.pop("full", {})
    if not isinstance(full, dict):
        raise BadFile(f"{path}: full must be a table, [full]")
    larger = _read(_merged(data, full), path)
    return larger if budget == "full" else _read(data, path)


def _merged(data: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Tables are merged, everything else is replaced."""
    merged = dict(data)
    for name, value in changes.items():
        old = merged.get(name)
        merged[name] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _read(data: dict[str, Any], path: Path) -> Claim:
    claim = from_json(Claim, data, str(path))
    problem = _problem(claim, path)
    if problem:
        raise BadFile(f"{path}: {problem}")
    return claim


def _problem(claim: Claim, path: Path) -> str | None:
    """The first reason why this claim cannot be decided as it is written."""
    if claim.name != path.stem:
        return f"the claim is named {claim.name!r}, its file {path.name}; they must agree"
    if claim.smallest < 0:
        return f"smallest is {claim.smallest:g} points; it must not be negative"
    fewest, most = ARMS_OF[claim.compare.kind]
    named = len(claim.compare.arms)
    if named < fewest or (most is not None and named > most):
        wanted = str(fewest) if fewest == most else f"at least {fewest}"
        return f"compare names {named} arms; the kind {claim.compare.kind!r} takes {wanted}"
    absent = [arm for arm in claim.compare.arms if arm not in claim.arms]
    if absent:
        return f"compare names the arm {absent[0]!r}, but there is no table [arms.{absent[0]!r}]"
    if claim.compare.kind == "exact":
        return None if claim.exact else "an exact claim needs at least one [[exact]] table"
    return _problem_of_design(claim) or _problem_of_arms(claim) or _problem_of_tuning(claim)


def _problem_of_design(claim: Claim) -> str | None:
    least = HEADLINE_SEEDS if claim.headline else LEAST_SEEDS
    sizes = ("sizes", [*map(label, claim.sizes)]) if claim.sizes else ("layers", [*claim.layers])
    for name, values in (("targets", [*claim.targets]), sizes):
        if not values or "" in values or len(set(values)) < len(values):
            return f"{name} is {values}; name at least one, and each once"
    if claim.sizes and (claim.layers or claim.compare.kind == "trend"):
        return "a claim has layers or sizes, not both, and a trend has layers"
    if claim.seeds < least:
        return f"seeds is {claim.seeds}; a {'headline ' if claim.headline else ''}claim needs at least {least}"
    if claim.scope == "tasks" and claim.compare.kind != "overlap" and len(claim.targets) < LEAST_TASKS:
        return (
            f"there are {len(claim.targets)} targets; at least {LEAST_TASKS} are wanted to speak of other tasks, "
            'or scope = "seeds" to speak of these alone'
        )
    if claim.compare.kind == "trend" and len(claim.layers) < 2:
        return "a trend over layers needs at least two numbers of layers"
    return None


def _problem_of_arms(claim: Claim) -> str | None:
    known, methods = {entry.name for entry in catalogue.entries()}, _methods()
    for name, arm in claim.arms.items():
        if arm.method not in methods:
            return f"arm {name!r}: {unknown('method', arm.method, methods)}"
        if arm.draw_tasks is not None and not 1 <= arm.draw_tasks <= len(arm.tasks):
            return f"arm {name!r}: draw_tasks is {arm.draw_tasks}, of {len(arm.tasks)} tasks"
        if arm.sizes and len(arm.sizes) != len(claim.sizes):
            return (
                f"arm {name!r}: it has {len(arm.sizes)} sizes, the claim {len(claim.sizes)}; they are compared in pairs"
            )
        both = [task for task in arm.tasks if task in claim.targets]
        if both and not (arm.leave_out or claim.seen):
            return f"arm {name!r}: its extraction sees the target {both[0]!r}; leave it out, or say seen = true"
        if claim.measure == "extraction" and set(arm.tasks) != set(claim.targets) and claim.compare.kind != "overlap":
            return f"arm {name!r}: what is measured is the extraction, so its tasks must be the targets"
    tasks = [*claim.targets, *(task for arm in claim.arms.values() for task in arm.tasks)]
    wrong = [task for task in tasks if ":" not in task and task not in known]
    return str(unknown("task", wrong[0], known)) if wrong else None


@cache
def _methods() -> frozenset[str]:
    return frozenset(registry.references())


def _problem_of_tuning(claim: Claim) -> str | None:
    tuning = claim.tuning
    if tuning is None:
        return "the table [tuning] is missing: the candidates for each arm's learning rate, as lr = [5e-4, 1e-3]"
    if not tuning.lr or any(not rate > 0 for rate in tuning.lr):
        return f"tuning: lr is {list(tuning.lr)}; name at least one rate above 0"
    if 0 <= tuning.seed < claim.seeds:
        return f"tuning: its seed {tuning.seed} is one of the claim's own, 0 to {claim.seeds - 1}; take another"
    wrong = [task for task in tuning.tasks if task not in claim.targets]
    if wrong:
        return f"tuning: {wrong[0]!r} is none of the targets"
    if tuning.layers is not None and tuning.layers not in claim.layers:
        return f"tuning: {tuning.layers} is none of the claim's layers"
    return None
