"""The suites of the papers' data sets: the Visual Decathlon, LSAMD's twelve, TAL's unseen tasks, and beside them ImageNet."""

from learngene_zoo.plugin import Entry, Suite, Task
from lgzoo_papers import entries


def open_task(entry: Entry, offline: bool) -> Task:
    """The task of an entry of these suites."""
    from lgzoo_papers import opening

    return opening.open_task(entry, offline)


def _suite(name: str, title: str, rows: tuple[entries.Row, ...], *beside: entries.Row) -> Suite:
    """`beside` are tasks that come with the suite and are not run with it."""
    return Suite(
        name=name,
        title=title,
        entries=tuple(row.entry for row in (*rows, *beside)),
        tasks=tuple(row.entry.name for row in rows),
        open=open_task,
        hub=entries.on_hub,
    )


DECATHLON = _suite("decathlon", "the Visual Decathlon (TAL, TAL+)", entries.DECATHLON, entries.IMAGENET_1K)
LSAMD12 = _suite("lsamd12", "LSAMD's ten classification and two segmentation tasks", entries.LSAMD)
TAL_UNSEEN = _suite("tal_unseen", "TAL's unseen tasks", entries.TAL_UNSEEN)
