"""What the picture's panels share: Okabe and Ito's colours, which people with any kind of colour vision tell apart. Cold."""

from __future__ import annotations

INK, QUIET_INK, PAPER, LINE = "#1a1b1e", "#5d6168", "#ffffff", "#c9ced3"
TASKS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
MARKERS = ("o", "D", "s", "^")  # of the first six tasks, of the next six, …
LONGEST = 14  # characters of a task's name that have room


def look(task: int) -> dict[str, str]:
    """The colour and the marker of a task, by its place among all."""
    return {"color": TASKS[task % len(TASKS)], "marker": MARKERS[task // len(TASKS) % len(MARKERS)]}


def name_size(tasks: int) -> float:
    """How large the tasks' names are written, in typographic points."""
    return 10.0 if tasks <= len(TASKS) else max(9.5 - 0.15 * max(tasks - 12, 0), 6.0)


def shortened(name: str) -> str:
    """A task's name in one line; of a long one beginning and end, so that `folder:` and the folder are left."""
    name = " ".join(name.split())
    half = LONGEST // 2
    return name if len(name) <= LONGEST else f"{name[: LONGEST - half - 1]}…{name[-half:]}"
