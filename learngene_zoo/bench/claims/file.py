"""A claim of a paper as a file written before its results: `benchmarks/claims/NAME.toml`.

Keys are the fields of `Claim`; tables are `[compare]`, `[recipe]`, `[tuning]`, one `[arms.NAME]`
per arm, `[[exact]]` for sums, and `[full]`, whose keys replace the others with `--budget full`.
docs/claims.md explains them.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from math import prod
from pathlib import Path
from typing import Any, Literal

from learngene_zoo.artifacts.records import Control
from learngene_zoo.bench.grid.cell import label
from learngene_zoo.bench.results.statistics import Scope, Spread, plan_effect
from learngene_zoo.errors import MAX_NEAR, BadFile, WrongCall, refuse_unknown
from learngene_zoo.families.family import Convention
from learngene_zoo.method.installed import METHODS
from learngene_zoo.settings import Json, Recipe, from_json
from learngene_zoo.tasks import catalogue
from learngene_zoo.text import count_noun

Kind = Literal["over", "ordering", "trend", "closing", "factorial", "overlap", "exact"]
Decision = Literal["holds", "refuted", "negligible", "undecided"]
ClaimBudget = Literal["standard", "full"]
MIN_TASKS, MIN_SEEDS, HEADLINE_SEEDS = 4, 3, 5
PROTOCOL = 2  # the rules under which claims are filed; verdicts on earlier ones go on opening
MAX_EFFECT = 10.0  # points: a claim that could see only this much or more is not filed
MAX_OVERLAP = 30.0  # the same for an overlap, in hundredths of the Jaccard index
REAL_TASK = "digits"  # a real task, among the targets of every claim on descendants
ARMS_OF: dict[Kind, tuple[int, int | None]] = {  # fewest and most arms of a comparison
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
    """One arm; a setting `random 5 of 12` lets each seed draw five numbers from 1 to 12."""

    method: str
    preset: str = "mini"
    settings: Mapping[str, Json] = field(default_factory=dict)  # of the extractor
    expand: Mapping[str, Json] = field(default_factory=dict)  # of the expander
    control: Control | None = None
    ancestries: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()  # of the extraction
    draw_tasks: int | None = None  # each seed draws this many of `tasks`; None: all
    leave_out: bool = False
    epochs: int | None = None  # instead of the recipe's
    # instead of the claim's, compared with them in pairs
    sizes: tuple[Mapping[str, Json], ...] = ()


@dataclass(frozen=True, kw_only=True)
class ArmComparison:
    """The kind of a comparison, and its arms, whose meaning depends on the kind.

    over: the first exceeds the others (the strongest of them, per task and size).
    ordering: each exceeds the next.
    trend: the arm rises from the fewest to the most layers.
    closing: the first exceeds the second by more than the third exceeds the fourth.
    factorial: the first has both of two factors, the second and the third one each, the fourth
        none; three findings, the two main effects and the interaction.
    overlap: both extractions keep the same blocks, beyond chance (Jaccard index).
    exact: no arms, see `Sum`.
    """

    kind: Kind
    arms: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """The choice of each arm's learning rate, by the best mean on validation images.

    The seed is separate from those of the claim. Under protocol 2 the grid widens until the best
    rate lies inside, the other targets join where an arm does not leave chance on `tasks`, and each
    arm has the better augmentation of `augment` (`search`).
    """

    lr: tuple[float, ...]
    augment: tuple[Literal["none", "light"], ...] = ()  # (): the recipe's alone
    seed: int = 1000
    tasks: tuple[str, ...] = ()  # (): all targets
    layers: int | None = None  # None: the middle one of the claim


@dataclass(frozen=True, kw_only=True)
class Power:
    """The effect that a claim can detect, from standard deviations stated beforehand, in points.

    `plan_effect` simulates it from the numbers of tasks and seeds. A claim that could detect only
    effects of `MAX_EFFECT` points or more is not filed.
    """

    sees: float  # the true gain that is called so in four of five such experiments
    tasks: float  # standard deviation of the true gain from task to task
    seeds: float  # of the part that all tasks of a seed share
    rest: float  # of a task and a seed, averaged over sizes
    source: str  # where the three come from


@dataclass(frozen=True, kw_only=True)
class Sum:
    """An exact claim: a number that follows from a family's table, or from the paper's own figures.

    saved: the share of parameters saved by storing the learngene instead of all its
        descendants, in per cent.
    smallest: the parameters of the smallest descendant, in millions.
    stored: the share of parameters saved by storing the descendants of `sizes` and their
        stitches instead of the ancestry models of `instead` and theirs, in per cent.
    times: `work` over `instead_work`, both sums of products, as epochs times models.
    """

    what: str
    method: str
    quantity: Literal["saved", "smallest", "stored", "times"] = "saved"
    sizes: tuple[Mapping[str, Json], ...] = ()
    # linear layers: how many, from which width, to which
    stitches: tuple[tuple[int, int, int], ...] = ()
    instead: tuple[str, ...] = ()
    instead_stitches: tuple[tuple[int, int, int], ...] = ()
    work: tuple[tuple[float, ...], ...] = ()  # of `times`: [[18, 150]] is 18 · 150
    instead_work: tuple[tuple[float, ...], ...] = ()  # [[150], [200], [50]] is 150 + 200 + 50
    ancestry: str | None = None  # None: the bundled one
    ancestries: tuple[str, ...] = ()  # instead, if the method takes several
    settings: Mapping[str, Json] = field(default_factory=dict)
    layers: tuple[int, ...] = ()  # of the descendants to count; (): all
    classes: int = 1000
    convention: Convention = "exact"
    # the paper's value, rounded to `decimals`; None: ours, for comparison
    paper: float | None = None
    decimals: int = 2

    @property
    def unit(self) -> str:
        """Return the unit of the value."""
        return {"smallest": "M parameters", "times": "times"}.get(self.quantity, "%")

    def agrees(self, value: float) -> bool | None:
        """Return whether a value is the paper's, to the last printed digit.

        It is None if the paper has no value.
        """
        return (
            None
            if self.paper is None
            else abs(value - self.paper) <= 0.5 * 10**-self.decimals + 1e-9
        )


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim of a paper, and how it is decided."""

    name: str
    paper: str
    where: str  # table or figure
    says: str  # the paper's claim, with its numbers
    estimand: str  # the quantity that is estimated
    compare: ArmComparison
    expected: Decision  # our prediction, made beforehand
    # the rules under which it is decided; files are filed under the newest
    protocol: Literal[1, 2] = 1
    note: str = ""
    # Whose metric: a fine-tuned descendant's or the extraction's own, and which of the latter's.
    measure: Literal["descendant", "extraction"] = "descendant"
    metric: str = "validation_accuracy"  # or as low.validation_accuracy, or paths.accuracy by size
    arms: Mapping[str, Competitor] = field(default_factory=dict)
    targets: tuple[str, ...] = ()
    layers: tuple[int, ...] = ()
    # Instead of layers: layers = 3, width = 64, or settings of the expander, as low = 3, high = 3.
    sizes: tuple[Mapping[str, Json], ...] = ()
    seeds: int = HEADLINE_SEEDS  # 0, 1, ...; each repeats extraction and fine-tuning
    recipe: Recipe = field(default_factory=Recipe)
    tuning: Tuning | None = None
    smallest: float = 1.0  # the smallest effect that matters, in points
    power: Power | None = None
    # targets, too, where their data is on the machine; a verdict's `targets` have them
    where_installed: tuple[str, ...] = ()
    scope: Scope = "tasks"
    headline: bool = False
    seen: bool = False  # whether the targets may be among the extraction's tasks
    void_if_same: bool = False  # undecided if two arms always built the same model
    # of tasks' test images (a kept verdict's); others: today's
    versions: Mapping[str, int] = field(default_factory=dict)
    # the stamps of the user's own data among its tasks, when its cells were run
    data: Mapping[str, str] = field(default_factory=dict)
    minutes: float = 0.0  # planned, on two cores, without the cells shared with other claims
    exact: tuple[Sum, ...] = ()

    def epochs_of(self, arm: str) -> int:
        """Return the number of epochs of an arm."""
        epochs = self.arms[arm].epochs
        return self.recipe.epochs if epochs is None else epochs


def find_claims_folder() -> Path:
    """Return the folder of all claims.

    It is `learngene_zoo/claims` in a wheel, `benchmarks/claims` in a checkout.
    """
    package = Path(__file__).resolve().parents[2]
    inside = package / "claims"
    return inside if inside.is_dir() else package.parent / "benchmarks" / "claims"


def list_claims() -> list[str]:
    """Return the names of all claims, sorted."""
    return sorted(path.stem for path in find_claims_folder().glob("*.toml"))


def find_claim(reference: str | Path) -> Path:
    """Return the path of the claim with this name, or of this file.

    Raises:
        WrongCall: there is no claim of this name.
    """
    path = Path(reference)
    if path.suffix == ".toml":
        return path
    names = list_claims()
    if str(reference) in names:
        return find_claims_folder() / f"{reference}.toml"
    close = get_close_matches(str(reference), names, MAX_NEAR, cutoff=0.5)
    near = f"similar: {', '.join(close)}; " if close else ""
    raise WrongCall(
        f"no claim named {str(reference)!r}; {near}{find_claims_folder()} holds all; for a claim "
        "of your own, give the path of its file, as --claim ./mine.toml"
    )


def load_claim(reference: str | Path, budget: ClaimBudget = "standard") -> Claim:
    """Return the claim with this name, or in this file.

    Raises:
        WrongCall: there is no such claim or file.
        BadFile: the claim is invalid.
    """
    path = find_claim(reference)
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise WrongCall(
            f"there is no file {path}; `lgzoo bench --claim` takes a name or a .toml file"
        ) from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadFile(f"{path}: {error}") from error
    full = data.pop("full", {})
    if not isinstance(full, dict):
        raise BadFile(f"{path}: full must be a table, [full]")
    larger = _parse_claim(_merge_tables(data, full), path)
    return larger if budget == "full" else _parse_claim(data, path)


def _merge_tables(data: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return `data` with the changes; tables are merged, everything else is replaced."""
    merged = dict(data)
    for name, value in changes.items():
        old = merged.get(name)
        merged[name] = (
            _merge_tables(old, value)
            if isinstance(old, dict) and isinstance(value, dict)
            else value
        )
    return merged


def _parse_claim(data: dict[str, Any], path: Path) -> Claim:
    """Return the claim that a file's data describes, and add the installed targets."""
    claim = from_json(Claim, data, str(path))
    if claim.where_installed:
        installed = tuple(
            name
            for name in claim.where_installed
            if name not in claim.targets and is_installed(name)
        )
        claim = replace(claim, targets=(*claim.targets, *installed))
    problem = _find_problem(claim, path) or _find_unstated(claim, data)
    if problem:
        raise BadFile(f"{path}: {problem}")
    return claim


def _find_problem(claim: Claim, path: Path) -> str | None:
    """Return the first reason why this claim cannot be decided as written."""
    if claim.name != path.stem:
        return f"the claim is named {claim.name!r}, but its file is {path.name}"
    if claim.smallest < 0:
        return f"smallest must not be negative, got {claim.smallest:g}"
    min_arms, max_arms = ARMS_OF[claim.compare.kind]
    num_arms = len(claim.compare.arms)
    if num_arms < min_arms or (max_arms is not None and num_arms > max_arms):
        expected = str(min_arms) if min_arms == max_arms else f"at least {min_arms}"
        return (
            f"compare names {count_noun(num_arms, 'arm')}; the kind {claim.compare.kind!r} takes "
            f"{expected}"
        )
    absent = [arm for arm in claim.compare.arms if arm not in claim.arms]
    if absent:
        return f"compare names the arm {absent[0]!r}, but there is no table [arms.{absent[0]!r}]"
    if claim.compare.kind == "exact":
        return _find_problem_of_sums(claim.exact)
    return (
        _find_problem_of_design(claim)
        or _find_problem_of_arms(claim)
        or _find_problem_of_tuning(claim)
    )


def _find_problem_of_sums(sums: Sequence[Sum]) -> str | None:
    if not sums:
        return "an exact claim needs at least one [[exact]] table"
    if all(each.paper is None for each in sums):
        return "no [[exact]] table has the paper's value, the key 'paper'"
    needed = {"times": ("work", "instead_work"), "stored": ("sizes", "instead")}
    for each in sums:
        for name in needed.get(each.quantity, ()):
            if not getattr(each, name):
                return (
                    f"exact: {each.what!r} has the quantity {each.quantity!r}, which needs {name}"
                )
        if each.quantity == "times" and not all(map(prod, each.instead_work)):
            return f"exact: {each.what!r} divides by the products of instead_work; one is 0"
    return None


def is_installed(task: str) -> bool:
    """Return whether a task's data is on this machine, so that nothing is downloaded for it."""
    entry = catalogue.find_entry(task)
    return entry is not None and catalogue.find_suite_of(entry).hub(entry) is None


def _find_unstated(claim: Claim, data: Mapping[str, Any]) -> str | None:
    """Return the first decision that the file leaves open, but must state since protocol 2."""
    if claim.protocol != PROTOCOL:
        return (
            f"claims are filed under protocol {PROTOCOL}, got {claim.protocol}; add protocol = "
            f"{PROTOCOL}"
        )
    if claim.compare.kind == "exact":
        return None
    if "smallest" not in data:
        return "the key 'smallest' is missing: the smallest effect that matters, in points"
    is_on_descendants = claim.measure == "descendant"
    if (
        is_on_descendants
        and any(claim.epochs_of(name) for name in claim.arms)
        and not (claim.tuning and claim.tuning.augment)
    ):
        return 'tuning: the key \'augment\' is missing, as augment = ["none", "light"]'
    if (
        is_on_descendants
        and REAL_TASK not in claim.targets
        and claim.targets != (catalogue.SOURCE_TASK,)
    ):
        return f"{REAL_TASK} is not among the targets; every claim on descendants has a real task"
    return _find_problem_of_power(claim)


def _find_problem_of_power(claim: Claim) -> str | None:
    power = claim.power
    if power is None:
        return (
            "the table [power] is missing: which effect the claim can see, and the standard "
            "deviations that this rests on"
        )
    limit = MAX_OVERLAP if claim.compare.kind == "overlap" else MAX_EFFECT
    if not 0 < power.sees < limit:
        return (
            f"power: sees is {power.sees:g}; a claim that could see only {limit:g} points or more "
            "is not filed"
        )
    return None


def compute_planned_effect(claim: Claim) -> float:
    """Return the true gain, in points, that four of five such experiments would detect.

    It depends on the numbers of tasks and seeds (`statistics.plan_effect`).

    Raises:
        WrongCall: the claim states a smaller gain.
    """
    power = claim.power
    assert power is not None, "an exact claim has no power"
    tasks = 1 if claim.compare.kind == "overlap" else len(claim.targets)
    spread = Spread(tasks=power.tasks, seeds=power.seeds, rest=power.rest)
    effect = claim.smallest + plan_effect(tasks, claim.seeds, spread, claim.scope)
    if effect > power.sees + 0.05:
        design = f"{count_noun(tasks, 'task')} and {count_noun(claim.seeds, 'seed')}"
        raise WrongCall(
            f"{claim.name} says that it sees {power.sees:g} points, but with {design} it would see "
            f"{effect:.1f}; add tasks or seeds"
        )
    return effect


def _find_problem_of_design(claim: Claim) -> str | None:
    min_seeds = HEADLINE_SEEDS if claim.headline else MIN_SEEDS
    sizes = ("sizes", [*map(label, claim.sizes)]) if claim.sizes else ("layers", [*claim.layers])
    for name, values in (("targets", [*claim.targets]), sizes):
        if not values or "" in values or len(set(values)) < len(values):
            return f"{name} must be a non-empty list without repetitions, got {values}"
    if claim.sizes and (claim.layers or claim.compare.kind == "trend"):
        return "give layers or sizes, not both; a trend needs layers"
    if claim.seeds < min_seeds:
        return (
            f"a {'headline ' if claim.headline else ''}claim needs at least {min_seeds} seeds, got "
            f"{claim.seeds}"
        )
    if (
        claim.scope == "tasks"
        and claim.compare.kind != "overlap"
        and len(claim.targets) < MIN_TASKS
    ):
        return (
            f"there are {len(claim.targets)} targets; an interval over tasks needs at least "
            f"{MIN_TASKS}, or set "
            'scope = "seeds" for one over seeds only'
        )
    if claim.compare.kind == "trend" and len(claim.layers) < 2:
        return "a trend over layers needs at least two numbers of layers"
    return None


def _find_problem_of_arms(claim: Claim) -> str | None:
    task_names, methods = {entry.name for entry in catalogue.list_entries()}, METHODS.references()
    for name, arm in claim.arms.items():
        if arm.method not in methods:
            return f"arm {name!r}: {refuse_unknown('method', arm.method, methods)}"
        if arm.draw_tasks is not None and not 1 <= arm.draw_tasks <= len(arm.tasks):
            return (
                f"arm {name!r}: draw_tasks is {arm.draw_tasks}, but it has "
                f"{count_noun(len(arm.tasks), 'task')}"
            )
        if arm.sizes and len(arm.sizes) != len(claim.sizes):
            count = count_noun(len(arm.sizes), "size")
            return (
                f"arm {name!r}: it has {count}, the claim {len(claim.sizes)}; they are compared in "
                "pairs"
            )
        shared = [task for task in arm.tasks if task in claim.targets]
        if shared and not (arm.leave_out or claim.seen):
            return (
                f"arm {name!r}: its extraction sees the target {shared[0]!r}; leave it out, or set "
                "seen = true"
            )
        if (
            claim.measure == "extraction"
            and set(arm.tasks) != set(claim.targets)
            and claim.compare.kind != "overlap"
        ):
            return (
                f"arm {name!r}: the extraction itself is measured, so its tasks must be the targets"
            )
    tasks = [*claim.targets, *(task for arm in claim.arms.values() for task in arm.tasks)]
    wrong = [task for task in tasks if ":" not in task and task not in task_names]
    return str(refuse_unknown("task", wrong[0], task_names)) if wrong else None


def _find_problem_of_tuning(claim: Claim) -> str | None:
    tuning = claim.tuning
    if tuning is None:
        return (
            "the table [tuning] is missing; it lists candidates for the learning rates, as lr = "
            "[5e-4, 1e-3]"
        )
    if not tuning.lr or any(not rate > 0 for rate in tuning.lr):
        return f"tuning: expected learning rates above 0, got {list(tuning.lr)}"
    if 0 <= tuning.seed < claim.seeds:
        return (
            f"tuning: the seed {tuning.seed} is also one of the claim, 0 to {claim.seeds - 1}; "
            "choose another"
        )
    wrong = [task for task in tuning.tasks if task not in claim.targets]
    if wrong:
        return f"tuning: {wrong[0]!r} is not one of the targets"
    if tuning.layers is not None and tuning.layers not in claim.layers:
        return f"tuning: {tuning.layers} is not one of the claim's layers"
    return None
