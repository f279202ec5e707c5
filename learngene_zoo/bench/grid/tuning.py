"""The tuning of a grid's arms (`search` chooses), and its description in words."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from learngene_zoo.bench.grid.cell import Arm, Cell
from learngene_zoo.bench.grid.search import Augment, Choice, Space, Trial
from learngene_zoo.errors import WrongCall
from learngene_zoo.families.spec import Spec
from learngene_zoo.families.text_spec import TextSpec
from learngene_zoo.lifecycle.rates import choose_rate
from learngene_zoo.method.installed import METHODS
from learngene_zoo.method.rates import FULL_RATE, INHERITED_DECAY, INHERITED_LR, TEXT_LR, scale_rate
from learngene_zoo.pretrained.ancestry import read_ancestry_spec
from learngene_zoo.text import count_noun

TUNING_SEED = 1000  # far from those of a grid itself
# Validation images from which choosing a rate pays: benchmarks/archive/tuning_images.py.
MIN_IMAGES = 100


@dataclass(frozen=True)
class GridTuning:
    """Tuning of a grid's arms: at its middle size, with its longest budget and first learngene.

    Tasks that are too `small` are not used; if all are, no arm is tuned.
    """

    cells: Sequence[Cell]
    rates: tuple[float, ...]
    augments: tuple[Augment, ...]
    opening: int | None = 1  # tasks of the grid that are used from the beginning; None: all
    # tasks that may join (see `search`); without a limit tuning may cost more than the grid
    joining: int = 1
    widen: bool = True
    # tasks with too few validation images to choose on
    small: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if any(cell.seed == TUNING_SEED for cell in self.cells):
            raise WrongCall(
                f"the seed {TUNING_SEED} is kept for choosing learning rates; choose other seeds"
            )
        if any(not rate > 0 for rate in self.rates):
            raise WrongCall(
                "learning rates must be above 0, got "
                f"{', '.join(f'{rate:g}' for rate in self.rates)}"
            )

    @property
    def space(self) -> Space:
        """Return the settings to try. Arms that are not trained are not tuned."""
        trained = [cell for cell in self.cells if cell.recipe.epochs > 0]
        arms = tuple(dict.fromkeys(cell.arm.name for cell in trained))
        tasks = tuple(dict.fromkeys(cell.task for cell in trained if cell.task not in self.small))
        if not tasks:
            arms = ()
        opening = tasks[: self.opening]
        further = tasks[len(opening) :][: self.joining]
        rates, augments = tuple(dict.fromkeys(self.rates)), tuple(dict.fromkeys(self.augments))
        return Space(
            arms=arms,
            rates=rates,
            augments=augments,
            tasks=opening,
            further=further,
            widen=self.widen,
        )

    @property
    def default_choices(self) -> dict[str, Choice]:
        """Return every arm with the first rate and augmentation, for grids without a choice."""
        names = dict.fromkeys(cell.arm.name for cell in self.cells)
        return {
            name: Choice(arm=name, lr=self.rates[0], augment=self.augments[0], means={})
            for name in names
        }

    def cell_of(self, trial: Trial) -> Cell:
        """Return the cell of a trial, evaluated on validation images."""
        first = min(cell.seed for cell in self.cells)
        candidates = [
            cell
            for cell in self.cells
            if (cell.arm.name, cell.task, cell.seed) == (trial.arm, trial.task, first)
        ]
        sizes = sorted({(cell.layers, cell.width or 0, str(cell.at)) for cell in candidates})
        longest = max(cell.recipe.epochs for cell in candidates)
        cell = next(
            cell
            for cell in candidates
            if str(cell.at) == sizes[len(sizes) // 2][-1] and cell.recipe.epochs == longest
        )
        recipe = replace(cell.recipe, lr=trial.lr, augment=trial.augment)
        bare = replace(cell, recipe=recipe, seed=TUNING_SEED, split="validation", look=False)
        return replace(bare, extraction_seed=cell.extraction.seed)


def find_small(cells: Iterable[Cell], count_images: Callable[[str], int]) -> dict[str, int]:
    """Return the tasks with too few validation images to choose on, each with their number."""
    counts = {task: count_images(task) for task in dict.fromkeys(cell.task for cell in cells)}
    return {task: count for task, count in counts.items() if count < MIN_IMAGES}


def apply_choices(cells: Iterable[Cell], choices: Mapping[str, Choice]) -> list[Cell]:
    """Return the cells with the chosen rate and augmentation of each arm."""
    tuned = []
    for cell in cells:
        choice = choices.get(cell.arm.name)
        if choice is not None:
            augment = choice.augment or cell.recipe.augment
            cell = replace(cell, recipe=replace(cell.recipe, lr=choice.lr, augment=augment))
        tuned.append(cell)
    return tuned


def apply_default_rates(
    cells: Sequence[Cell], named: Collection[str] = (), offline: bool = False
) -> list[Cell]:
    """Return the cells, those of ancestry models wider than `FULL_RATE` with other rates.

    A rate that suits random weights destroys inherited ones. Arms of a method that inherits, their
    controls among them, have the rate and the layer decay that `lgzoo finetune` has for models that
    inherit: on validation images of a real model controls choose the same
    (benchmarks/real_models.py). Scratch arms have the rate of random weights of the cell's width,
    and with random heads the controls too.

    Args:
        cells: the cells.
        named: fields of the recipe that the user names, which stay as they are.
        offline: whether nothing may be downloaded.
    """
    widths = {
        cell.arm.name: find_wide_ancestry(cell.arm, offline)
        for cell in {cell.arm.name: cell for cell in cells}.values()
    }
    return [_apply_default_rate(cell, widths[cell.arm.name], named) for cell in cells]


def takes_texts(arm: Arm, offline: bool) -> bool:
    """Return whether the ancestry models of an arm take texts."""
    sources = METHODS.load(arm.method).sources(arm.ancestries)
    return any(isinstance(read_ancestry_spec(name, offline=offline), TextSpec) for name in sources)


def find_wide_ancestry(arm: Arm, offline: bool) -> Spec | None:
    """Return the widest ancestry model of an arm if it is wider than `FULL_RATE`, else None."""
    sources = METHODS.load(arm.method).sources(arm.ancestries)
    specs = [read_ancestry_spec(name, offline=offline) for name in sources]
    widest = max(specs, key=lambda spec: spec.width, default=None)
    return widest if widest is not None and widest.width > FULL_RATE else None


def _apply_default_rate(cell: Cell, ancestry: Spec | None, named: Collection[str]) -> Cell:
    if ancestry is None:
        return cell
    is_control = cell.arm.control is not None
    has_pretrained_rate = METHODS.load(cell.arm.method).inherits and not (
        is_control and cell.head == "random"
    )
    recipe: dict[str, Any] = {"lr": choose_rate(cell.width or ancestry.width)}
    if has_pretrained_rate:
        recipe = {"lr": INHERITED_LR, "layer_decay": INHERITED_DECAY}
        if isinstance(ancestry, TextSpec):
            recipe = {"lr": scale_rate(TEXT_LR, ancestry.width), "layer_decay": 1.0}
    changes = {name: value for name, value in recipe.items() if name not in named}
    return replace(cell, recipe=replace(cell.recipe, **changes))


def describe_tuning(
    cells: Sequence[Cell], choices: Mapping[str, Choice], small: Mapping[str, int] = {}
) -> list[str]:
    """Return the lines that describe the tuning.

    There is one for each arm that was tuned, one for all arms that learnt nothing, or one stating
    that none was tuned.
    """
    if not choices:
        return [explain_untuned(cells, small)]
    lost: dict[tuple[str, ...], list[Choice]] = {}
    for choice in choices.values():
        if not choice.tasks:
            lost.setdefault(choice.at_chance, []).append(choice)
    lines = [describe_choice(choice) for choice in choices.values() if choice.tasks]
    return lines + [_describe_lost(group, tasks) for tasks, group in lost.items()]


def _describe_lost(group: Sequence[Choice], tasks: Iterable[str]) -> str:
    arms, rates = (
        ", ".join(dict.fromkeys(words)) for words in zip(*((c.arm, f"{c.lr:g}") for c in group))
    )
    kept = "any rate, so the middle one ({})"
    if all(len(choice.means) == 1 for choice in group):
        kept = "the only rate ({}), which"
    return (
        f"{arms}: no better than a constant answer on {', '.join(tasks)} at "
        f"{kept.format(rates)} is kept"
    )


def describe_choice(choice: Choice) -> str:
    """Return the choice of an arm in words, with its candidates and tasks."""
    rates = ", ".join(f"{rate} {mean:.1f}" for rate, mean in choice.means.items())
    text = f"{choice.arm}: learning rate {choice.lr:g} (validation images, %: {rates})"
    if choice.augments:
        augments = ", ".join(f"{name} {mean:.1f}" for name, mean in choice.augments.items())
        text += f", augmentation {choice.augment} ({augments})"
    text += f"; tuned on {', '.join(choice.tasks)}"
    if choice.alike:
        text += f"; within a standard error of the best rate: {', '.join(choice.alike)}"
    return f"{text}; its best rate is at the edge of the grid" if choice.edge else text


def explain_untuned(cells: Sequence[Cell], small: Mapping[str, int] = {}) -> str:
    """Return the sentence on a grid without tuning: tasks too small, or tuning not requested."""
    arms: dict[tuple[float, float, Augment], dict[str, None]] = {}
    for cell in cells:
        recipe = cell.recipe
        settings = (recipe.lr, recipe.layer_decay, recipe.augment)
        arms.setdefault(settings, {})[cell.arm.name] = None
    words = " and ".join(
        f"learning rate {rate:g}{f', layer decay {decay:g}' if decay != 1 else ''}, augmentation "
        f"{augment} for {'all' if len(arms) == 1 else ', '.join(names)}"
        for (rate, decay, augment), names in arms.items()
    )
    counts = ", ".join(
        f"{task} has {count_noun(count, 'validation image')}" for task, count in small.items()
    )
    why = (
        f" {counts}; choosing pays from {MIN_IMAGES} on (--tune with several rates chooses all the"
        " same)."
        if small
        else ""
    )
    return f"No arm was tuned: {words}.{why}"
