"""The ancestry model as a teacher: with its streams recorded anew, or with those that its extraction has kept.

Shapes: D the ancestry model's width.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from learngene_zoo.plugin import InputFormat, Learngene, Run, Spec, StateDict, Task
    from lgzoo_closed_form.calibration import Calibration
    from lgzoo_closed_form.solve import Teacher

PART = "statistics"  # of an extraction's run


@contextmanager
def teaching(
    state: StateDict,
    spec: Spec,
    settings: Calibration,
    task: Task,
    input_format: InputFormat,
    run: Run,
    folder: Path | None = None,
) -> Iterator[Teacher]:
    """The ancestry model, and its streams over images of a task; in this folder, or for as long as they are used."""
    from lgzoo_closed_form.recording import place_for, size_of

    size = 0 if folder else size_of(spec, settings.images, settings.tokens)
    with place_for(size) as place:
        yield teacher_of(state, spec, settings, task, input_format, run, folder or place)


def teacher_of(
    state: StateDict,
    spec: Spec,
    settings: Calibration,
    task: Task,
    input_format: InputFormat,
    run: Run,
    folder: Path | None = None,
) -> Teacher:
    """The ancestry model, and its streams over images of a task; in files, if there is a folder for them."""
    from learngene_zoo.plugin import model_of, open_device
    from lgzoo_closed_form.solve import Teacher
    from lgzoo_closed_form.streams import pictures, record

    open_device(replace(run, device="cpu"))  # sets the number of threads
    bare = spec.with_(classes=0)
    model = model_of(bare, state)
    shown = pictures(
        task,
        bare.prefix_tokens,
        bare.patches,
        input_format,
        run,
        images=settings.images,
        tokens=settings.tokens,
        weight=settings.class_weight,
    )
    return Teacher(bare, state, model, shown, record(model, shown, folder))


def kept_teacher(learngene: Learngene, directions_DD: torch.Tensor, state: StateDict, run: Run) -> Teacher | None:
    """The ancestry model of these tensors with the streams that lie beside its learngene, if the extraction has kept them."""
    from learngene_zoo.plugin import model_of, open_device
    from lgzoo_closed_form.recording import STREAMS, kept
    from lgzoo_closed_form.solve import Teacher

    if learngene.folder is None:
        return None
    beside, spec = learngene.folder.resolve(), learngene.config.spec.with_(classes=0)
    found = kept(beside.with_name(f"{beside.name}.run") / "parts" / PART / STREAMS, directions_DD, spec)
    if found is None:
        return None
    open_device(replace(run, device="cpu"))  # sets the number of threads
    shown, streams = found
    return Teacher(spec, state, model_of(spec, state), replace(shown, bars=run.progress), streams)
