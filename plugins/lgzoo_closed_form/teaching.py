"""The ancestry model as a teacher, with streams recorded now or kept by its extraction.

Shapes: D the ancestry model's width.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from lgzoo_closed_form.calibration import derive_input_format

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from learngene_zoo.plugin import InputFormat, Learngene, Run, Spec, StateDict, Task
    from lgzoo_closed_form.calibration import Calibration
    from lgzoo_closed_form.modules.recording import Recording
    from lgzoo_closed_form.modules.solve import StreamTeacher

PART = "statistics"  # of an extraction's run


@contextmanager
def open_teacher(
    state: StateDict,
    spec: Spec,
    settings: Calibration,
    task: Task,
    input_format: InputFormat,
    run: Run,
    folder: Path | None = None,
) -> Iterator[StreamTeacher]:
    """Yield the ancestry model with its streams; large ones are in a temporary folder.

    Args: as `record_teacher`, which uses a given `folder` in any case.
    """
    from lgzoo_closed_form.modules.recording import estimate_size, open_temporary_folder

    size = 0 if folder else estimate_size(spec, settings.images, settings.tokens)
    with open_temporary_folder(size) as temporary:
        folder = folder or temporary
        yield record_teacher(state, spec, settings, task, input_format, run, folder)


def record_teacher(
    state: StateDict,
    spec: Spec,
    settings: Calibration,
    task: Task,
    input_format: InputFormat,
    run: Run,
    folder: Path | None = None,
) -> StreamTeacher:
    """Record the streams of the ancestry model over images of a task.

    Args:
        state: the ancestry model's tensors, without a head.
        spec: its shape.
        settings: how many images and tokens are recorded.
        task: whose training images are seen.
        input_format: size and normalisation of the images.
        run: seed, threads and progress.
        folder: where the streams are written; None keeps them in memory.
    """
    from learngene_zoo.plugin import model_of, open_device
    from lgzoo_closed_form.modules.solve import StreamTeacher
    from lgzoo_closed_form.modules.streams import record_streams, sample_pictures

    open_device(replace(run, device="cpu"))  # sets the number of threads
    headless = spec.with_(classes=0)
    model = model_of(headless, state)
    pictures = sample_pictures(headless, settings, task, input_format, run)
    streams = record_streams(model, pictures, folder)
    return StreamTeacher(headless, state, model, pictures, streams)


def find_recording(learngene: Learngene, directions_DD: torch.Tensor) -> Recording | None:
    """Return the streams that the extraction has kept beside its learngene; None if it has not.

    Args:
        learngene: a learngene of closed_form.
        directions_DD: its directions, which identify the recording.
    """
    from lgzoo_closed_form.modules.recording import STREAMS, load_recording

    if learngene.folder is None:
        return None
    folder, spec = learngene.folder.resolve(), learngene.config.spec.with_(classes=0)
    folder = folder.with_name(f"{folder.name}.run") / "parts" / PART / STREAMS
    return load_recording(folder, directions_DD, spec)


@contextmanager
def open_first_blocks(
    learngene: Learngene,
    depth: int,
    settings: Calibration,
    task: Task,
    kept: Recording | None,
    run: Run,
) -> Iterator[StreamTeacher]:
    """Yield the first blocks of a learngene's ancestry model as a teacher.

    Args:
        learngene: a learngene of closed_form, with or without the ancestry model's weights.
        depth: the number of blocks.
        settings: as in the extraction.
        task: whose training images are seen, unless streams are kept.
        kept: streams of all blocks, see `find_recording`. None records those of the first blocks.
        run: seed, threads and progress.
    """
    from learngene_zoo.plugin import inherited_weights, model_of, open_device, take_blocks
    from lgzoo_closed_form.modules.solve import StreamTeacher

    config = learngene.config
    spec = config.spec.with_(layers=depth, classes=0)
    weights = inherited_weights(config, learngene.state, run)
    # Weights of learngenes on the shelf are in half precision.
    whole = {name: weights[name].float() for name in weights}
    state = take_blocks(whole, config.spec.with_(classes=0), range(depth))
    if kept is None:
        with open_teacher(state, spec, settings, task, derive_input_format(config), run) as teacher:
            yield teacher
        return
    open_device(replace(run, device="cpu"))  # sets the number of threads
    pictures, streams = kept
    pictures = replace(pictures, has_progress=run.progress)
    yield StreamTeacher(spec, state, model_of(spec, state), pictures, streams.truncate(depth))
