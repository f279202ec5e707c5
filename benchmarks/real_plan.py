"""The plan of real.py, before anything is trained: images, hours, and bytes to download.

Hours are those of training steps and evaluations, by their FLOPs, at the speed of the ancestry
model. Reading the pictures is not included: use enough `--workers`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol
from urllib.parse import urlsplit

from learngene_zoo.bench.grid.cell import Cell
from learngene_zoo.bench.running.extraction import estimate_work
from learngene_zoo.errors import ZooError
from learngene_zoo.families.family import cost
from learngene_zoo.families.spec import Spec
from learngene_zoo.hub.client import Repository, translate_hub_errors
from learngene_zoo.publishing.publication import machine_paths
from learngene_zoo.runs.run import Run, open_device
from learngene_zoo.settings import to_json
from learngene_zoo.tasks.catalogue import entries, open_task, suite_of
from learngene_zoo.tasks.task import Entry
from learngene_zoo.terminal import text_table
from learngene_zoo.text import human_count, human_seconds

STEP = 3  # times the cost of a forward pass
FLOAT = 4  # bytes
WARM_UP, SECONDS, MOST = (
    3,
    3.0,
    100,
)  # steps that are not counted; how long, and how many steps at most, are


class Planned(Protocol):
    """What is planned: a `real.Job`."""

    source: str
    run: Run
    spec: Spec
    grid: list[Cell]
    trials: list[Cell]


def text(job: Planned, seen: Sequence[str], speed: float | None) -> str:
    """What is computed and downloaded. `speed`: training images of the ancestry model per second;
    None: it is measured.
    """
    said = "as given" if speed else f"measured on {job.run.device_name} without reading pictures"
    speed = speed or measured_speed(job.spec, job.grid[0].recipe.batch_size, job.run)
    found = list(stages(job, seen))
    found.append(
        ("all", "", sum(images for *_, images, _ in found), sum(work for *_, work in found))
    )
    rows = [
        (name, what, human_count(images), human_seconds(work / speed))
        for name, what, images, work in found
    ]
    weights = f"{job.source} ({human_count(cost(job.spec).params * FLOAT)}B)"
    data = [
        f"{task} ({data_size(task, job.run.offline)})"
        for task in dict.fromkeys((*seen, *tasks_of(job.grid)))
    ]
    return (
        f"{text_table(('stage', 'what', 'images', 'time'), rows, right=(2, 3), width=110)}\n"
        f"at {speed:.3g} training images of the ancestry model per second ({said})\n"
        f"to download, unless it is here already: {', '.join([weights, *data])}"
    )


def announced(job: Planned, seen: Sequence[str], repository: str | None) -> str:
    """Who will be contacted, for what, and what becomes public if `repository` names where to
    publish.
    """
    from huggingface_hub import HfApi

    tasks = list(dict.fromkeys((*seen, *tasks_of(job.grid))))
    sources = {task: suite_of(entry_of(task)).hub(entry_of(task)) for task in tasks}
    kind, _, name = job.source.partition(":")
    model = {"timm": [f"timm/{name}"], "hf-hub": [name]}.get(kind, [])
    found = [*model, *dict.fromkeys(source.reference for source in sources.values() if source)]
    host = urlsplit(HfApi().endpoint).netloc.rpartition("@")[2]
    lines = [
        (
            f"contacts {host} for {', '.join(found)}"
            if found and not job.run.offline
            else "contacts nobody to read"
        )
    ]
    if repository:
        own = [
            to_json(open_task(task, offline=True).record)
            for task, source in sources.items()
            if source is None
        ]
        paths = ", ".join(sorted(set(machine_paths([job.source, *own])))) or "none"
        lines.append(
            f"publishes {repository} on {host}, for everyone to read; paths of this machine on its"
            f" card: {paths}"
        )
    return "\n".join(lines)


def stages(job: Planned, seen: Sequence[str]) -> Iterator[tuple[str, str, int, float]]:
    """Every stage: its name, what it does, its training images, its cost in training images of the
    ancestry model.
    """
    extraction = job.grid[0].extraction
    sees = f" on {', '.join(seen)}" if extraction.arm.extractor.needs_tasks() else ""
    work = estimate_work(extraction, job.run.offline) / job.spec.layers
    yield "extract", f"{extraction.arm.method} of {job.source}{sees}", round(work), work
    for name, what, found in (
        ("tune", "to choose learning rates", job.trials),
        ("train", "for the table", job.grid),
    ):
        if found:
            depths = ", ".join(map(str, sorted({cell.layers for cell in found})))
            told = f"{len(found)} trainings {what}: {', '.join(tasks_of(found))}; {depths} layers"
            yield (
                name,
                told,
                sum(map(images_of, found)),
                sum(work_of(cell, job.spec) for cell in found),
            )


def tasks_of(found: Iterable[Cell]) -> list[str]:
    """The tasks of some cells, each once."""
    return list(dict.fromkeys(cell.task for cell in found))


def images_of(cell: Cell) -> int:
    """The training images of a cell, over all epochs."""
    count = entry_of(cell.task).sizes["train"]
    return min(cell.recipe.images or count, count) * cell.recipe.epochs


def work_of(cell: Cell, spec: Spec) -> float:
    """The cost of a cell, its evaluation included, in training images of the ancestry model."""
    share = cost(spec.with_(layers=cell.layers)).flops / cost(spec).flops
    return share * (images_of(cell) + entry_of(cell.task).sizes[cell.split] / STEP)


def entry_of(task: str) -> Entry:
    """The row of the catalogue. Exits for a task that is not there: of others nothing is known
    beforehand.
    """
    found = next((entry for entry in entries() if entry.name == task), None)
    if found is None:
        raise SystemExit(f"error: no task named {task!r} in the catalogue; see `lgzoo list tasks`")
    return found


def data_size(task: str, offline: bool) -> str:
    """How much the Hub would send of a task's data: at most all files of its repository."""
    entry = entry_of(task)
    source = suite_of(entry).hub(entry)
    if source is None or offline:
        return "not from the Hub" if source is None else "size unknown"
    from huggingface_hub import HfApi

    name, _, revision = source.reference.partition("@")
    repository = Repository(name.partition(":")[0], revision or None)
    try:
        with translate_hub_errors(repository, f"the size of {task} is not known"):
            found = HfApi().dataset_info(
                repository.name, revision=repository.revision, files_metadata=True
            )
    except ZooError:
        return "size unknown"
    return f"{human_count(sum(file.size or 0 for file in found.siblings or ()))}B"


def measured_speed(spec: Spec, batch: int, run: Run) -> float:
    """Training images per second of a model with random weights on random images; on the processor
    in small batches.
    """
    import torch

    from learngene_zoo.families.tensors import initial, model_of

    device = open_device(run)
    model = model_of(spec, initial(spec, run.seed)).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters())
    batch = min(batch, 4) if device.type == "cpu" else batch
    images_BCHW = torch.randn(batch, spec.channels, spec.image_size, spec.image_size, device=device)
    ends: list[float] = []
    while len(ends) <= WARM_UP or (ends[-1] - ends[WARM_UP - 1] < SECONDS and len(ends) < MOST):
        with torch.autocast(device.type, torch.bfloat16, enabled=run.precision != "fp32"):
            loss = model(images_BCHW).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()  # waits for the device
        ends.append(time.monotonic())
    return batch * (len(ends) - WARM_UP) / (ends[-1] - ends[WARM_UP - 1])
