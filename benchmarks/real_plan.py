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
from learngene_zoo.families.family import count_cost
from learngene_zoo.families.spec import Spec
from learngene_zoo.hub.client import Repository, translate_hub_errors
from learngene_zoo.publishing.publication import find_machine_paths
from learngene_zoo.runs.run import Run, open_device
from learngene_zoo.settings import to_json
from learngene_zoo.tasks.catalogue import find_suite_of, list_entries, open_task
from learngene_zoo.tasks.task import Entry
from learngene_zoo.terminal import format_table
from learngene_zoo.text import format_count, format_seconds

FORWARD_PASSES_OF_STEP = 3  # the cost of a training step
FLOAT = 4  # bytes
WARM_UP_STEPS, MIN_SECONDS, MAX_STEPS = (
    3,
    3.0,
    100,
)  # steps that are not counted; how long, and how many steps at most, are


class Planned(Protocol):
    """The parts of a `real.Job` that a plan needs."""

    source: str
    run: Run
    spec: Spec
    grid: list[Cell]
    trials: list[Cell]


def describe_work(job: Planned, seen: Sequence[str], speed: float | None) -> str:
    """Return the table of computations and downloads.

    Args:
        job: the planned job.
        seen: the tasks of the extraction.
        speed: training images of the ancestry model per second; measured if None.
    """
    source = "as given" if speed else f"measured on {job.run.device_name} without reading pictures"
    speed = speed or measure_speed(job.spec, job.grid[0].recipe.batch_size, job.run)
    work_of_stages = list(list_stages(job, seen))
    work_of_stages.append(
        (
            "all",
            "",
            sum(images for *_, images, _ in work_of_stages),
            sum(work for *_, work in work_of_stages),
        )
    )
    rows = [
        (name, purpose, format_count(images), format_seconds(work / speed))
        for name, purpose, images, work in work_of_stages
    ]
    weights = f"{job.source} ({format_count(count_cost(job.spec).params * FLOAT)}B)"
    data = [
        f"{task} ({describe_data_size(task, job.run.offline)})"
        for task in dict.fromkeys((*seen, *list_tasks(job.grid)))
    ]
    return (
        f"{format_table(('stage', 'what', 'images', 'time'), rows, right=(2, 3), width=110)}\n"
        f"at {speed:.3g} training images of the ancestry model per second ({source})\n"
        f"to download, unless it is here already: {', '.join([weights, *data])}"
    )


def describe_contacts(job: Planned, seen: Sequence[str], repository: str | None) -> str:
    """Return the contacted hosts and their purpose, and what becomes public if `repository` is
    given.
    """
    from huggingface_hub import HfApi

    tasks = list(dict.fromkeys((*seen, *list_tasks(job.grid))))
    sources = {task: find_suite_of(find_entry(task)).hub(find_entry(task)) for task in tasks}
    kind, _, name = job.source.partition(":")
    model = {"timm": [f"timm/{name}"], "hf-hub": [name]}.get(kind, [])
    references = [*model, *dict.fromkeys(source.reference for source in sources.values() if source)]
    host = urlsplit(HfApi().endpoint).netloc.rpartition("@")[2]
    lines = [
        (
            f"contacts {host} for {', '.join(references)}"
            if references and not job.run.offline
            else "contacts nobody to read"
        )
    ]
    if repository:
        records = [
            to_json(open_task(task, offline=True).record)
            for task, source in sources.items()
            if source is None
        ]
        paths = ", ".join(sorted(set(find_machine_paths([job.source, *records])))) or "none"
        lines.append(
            f"publishes {repository} on {host}, for everyone to read; paths of this machine on its"
            f" card: {paths}"
        )
    return "\n".join(lines)


def list_stages(job: Planned, seen: Sequence[str]) -> Iterator[tuple[str, str, int, float]]:
    """Yield each stage: its name, its description, its training images, and its cost in training
    images of the ancestry model.
    """
    extraction = job.grid[0].extraction
    sees = f" on {', '.join(seen)}" if extraction.arm.extractor.needs_tasks() else ""
    work = estimate_work(extraction, job.run.offline) / job.spec.layers
    yield "extract", f"{extraction.arm.method} of {job.source}{sees}", round(work), work
    for name, purpose, stage_cells in (
        ("tune", "to choose learning rates", job.trials),
        ("train", "for the table", job.grid),
    ):
        if stage_cells:
            depths = ", ".join(map(str, sorted({cell.layers for cell in stage_cells})))
            tasks = ", ".join(list_tasks(stage_cells))
            description = f"{len(stage_cells)} trainings {purpose}: {tasks}; {depths} layers"
            yield (
                name,
                description,
                sum(map(count_images, stage_cells)),
                sum(compute_work(cell, job.spec) for cell in stage_cells),
            )


def list_tasks(cells: Iterable[Cell]) -> list[str]:
    """Return the tasks of some cells, each once."""
    return list(dict.fromkeys(cell.task for cell in cells))


def count_images(cell: Cell) -> int:
    """Return the training images of a cell, over all epochs."""
    count = find_entry(cell.task).sizes["train"]
    return min(cell.recipe.images or count, count) * cell.recipe.epochs


def compute_work(cell: Cell, spec: Spec) -> float:
    """Return the cost of a cell with its evaluation, in training images of the ancestry model."""
    share = count_cost(spec.with_(layers=cell.layers)).flops / count_cost(spec).flops
    return share * (
        count_images(cell) + find_entry(cell.task).sizes[cell.split] / FORWARD_PASSES_OF_STEP
    )


def find_entry(task: str) -> Entry:
    """Return the row of the catalogue. Exits if the task is not in it."""
    entry = next((entry for entry in list_entries() if entry.name == task), None)
    if entry is None:
        raise SystemExit(f"error: no task named {task!r} in the catalogue; see `lgzoo list tasks`")
    return entry


def describe_data_size(task: str, offline: bool) -> str:
    """Return the size of a task's data on the Hub: at most all files of its repository."""
    entry = find_entry(task)
    source = find_suite_of(entry).hub(entry)
    if source is None or offline:
        return "not from the Hub" if source is None else "size unknown"
    from huggingface_hub import HfApi

    name, _, revision = source.reference.partition("@")
    repository = Repository(name.partition(":")[0], revision or None)
    try:
        with translate_hub_errors(repository, f"the size of {task} is not known"):
            info = HfApi().dataset_info(
                repository.name, revision=repository.revision, files_metadata=True
            )
    except ZooError:
        return "size unknown"
    return f"{format_count(sum(file.size or 0 for file in info.siblings or ()))}B"


def measure_speed(spec: Spec, batch: int, run: Run) -> float:
    """Return training images per second of a model with random weights on random images.

    On the processor, batches are small.
    """
    import torch

    from learngene_zoo.families.tensors import build_model, initialise

    device = open_device(run)
    model = build_model(spec, initialise(spec, run.seed)).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters())
    batch = min(batch, 4) if device.type == "cpu" else batch
    images_BCHW = torch.randn(batch, spec.channels, spec.image_size, spec.image_size, device=device)
    ends: list[float] = []
    while len(ends) <= WARM_UP_STEPS or (
        ends[-1] - ends[WARM_UP_STEPS - 1] < MIN_SECONDS and len(ends) < MAX_STEPS
    ):
        with torch.autocast(device.type, torch.bfloat16, enabled=run.precision != "fp32"):
            loss = model(images_BCHW).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()  # waits for the device
        ends.append(time.monotonic())
    return batch * (len(ends) - WARM_UP_STEPS) / (ends[-1] - ends[WARM_UP_STEPS - 1])
