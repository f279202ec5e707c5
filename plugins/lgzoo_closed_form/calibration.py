"""Calibration of closed-form methods: unlabelled images, the weights of their tokens, and the
ancestry model as a teacher, with streams recorded now or kept by its extraction.

Shapes: D the ancestry model's width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, TypeVar

from learngene_zoo.plugin import (
    BadFile,
    Bounds,
    InputFormat,
    TextSpec,
    WrongCall,
    check_bounds,
    name_option,
    require_pictures,
)

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from learngene_zoo.plugin import (
        Learngene,
        LearngeneConfig,
        Run,
        Spec,
        StateDict,
        Target,
        Task,
        TextFormat,
        Tokens,
    )
    from lgzoo_closed_form.modules.streams import OpenFile, Pictures, Recording, StreamTeacher

T = TypeVar("T", "torch.Tensor", "Tokens")
PART = "statistics"  # of an extraction's run
# The learngene's tensor (D, D): principal directions of the streams, by falling variance.
DIRECTIONS = "directions"
TEXT_PENALTY = 1000  # of the penalty for texts; docs/results/text.md has a measurement


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Number of images and of recorded tokens, and weights of the equations."""

    images: Annotated[int, "training images, without their labels", Bounds(least=1)] = 600
    tokens: Annotated[
        int,
        "tokens recorded of each image: the prefix tokens and randomly drawn patches",
        Bounds(least=2),
    ] = 32
    class_weight: Annotated[
        float,
        "weight of the class token (the first prefix token) in every sum of squares; refused for "
        "models without one, and of texts, whose tokens have equal weights",
        Bounds(above=0),
    ] = 4.0
    ridge: Annotated[
        float,
        "penalty on the change of the copied weights, relative to the mean square of the inputs "
        "(closed_form: for texts 1,000 times this)",
        Bounds(least=0),
    ] = 1e-3

    def __post_init__(self) -> None:
        check_bounds(self)

    def check_class_weight(self, spec: Spec) -> None:
        """Raise `WrongCall` for a weight that has no effect on a model of this shape."""
        if self.class_weight == Calibration.class_weight:
            return
        if isinstance(spec, TextSpec):
            reason = "all tokens of texts have the same weight"
        elif not spec.prefix_tokens:
            reason = "the ancestry model has no class token"
        else:
            return
        raise WrongCall(
            f"class_weight is {self.class_weight:g}, but {reason}; leave out "
            f"{name_option('class_weight')}"
        )

    def find_penalty(self, spec: Spec) -> float:
        """Return the relative penalty for a model of this shape.

        Texts are short: a few hundred of them have fewer tokens than images have.
        """
        return TEXT_PENALTY * self.ridge if isinstance(spec, TextSpec) else self.ridge


def open_calibration_task(
    named: str | None, seen: str | None, target: Target, run: Run, alternative: str = ""
) -> Task:
    """Open the task whose training images are the calibration images, with labels or without.

    Args:
        named: the task that the user names for calibration; it comes first.
        seen: the task of the extraction. If it is data of the learngene's maker that this machine
            does not have, the target's task is opened instead.
        target: the size of the descendant, with its task.
        run: whether the Hub may be asked.
        alternative: the end of the error message, with another thing that the user can do.

    Raises:
        WrongCall: if none of these can be opened.
    """
    from learngene_zoo.plugin import find_origin, is_own_data, open_seen, open_task

    if named is not None or (seen and not is_own_data(seen)):
        return open_task(named or seen or "", offline=run.offline, require_labels=False)
    if seen and find_origin(seen) is not None:
        return open_seen(seen, "calibration", offline=run.offline, require_labels=False)
    if target.task is not None:
        return open_task(target.task, offline=run.offline)
    raise WrongCall(
        f"this learngene has seen {seen or 'no images'}, which is opened only if you name it; name "
        f"some pictures with {name_option('calibration', 'folder:PATH')} (their labels are not "
        f"used){alternative}"
    )


def derive_input_format(
    config: LearngeneConfig, files: Mapping[str, str] = MappingProxyType({})
) -> InputFormat | TextFormat:
    """Return the format of the images or texts that the ancestry model takes.

    Args:
        config: of the learngene.
        files: of the learngene; of a text model its tokenizer.
    """
    if isinstance(config.spec, TextSpec):
        from learngene_zoo.plugin import read_text_format

        return read_text_format(config.spec, files)
    (mean, std), spec = config.normalisation, require_pictures(config.spec)
    return InputFormat(
        image_size=spec.image_size, channels=spec.channels, mean=mean, std=std, view=config.view
    )


def sample_pictures(
    spec: Spec, settings: Calibration, task: Task, input_format: InputFormat | TextFormat, run: Run
) -> Pictures:
    """Sample training images of a task with the seed, without augmentation.

    Labels only balance the sample over the classes.

    Of each text as many randomly drawn tokens are recorded, all with the weight 1; of a shorter
    text all. Processes share the reading; each returns all images.

    Args:
        spec: the shape of the model that sees them. Its prefix tokens are recorded of each image.
        settings: how many images, how many tokens of each are recorded (the prefix tokens and
            patches drawn at random), and the weight of the first prefix token.
        task: whose training images are sampled.
        input_format: size and normalisation of the images.
        run: seed, workers and progress.

    Raises:
        WrongCall: for a task without training images.
    """
    import torch

    from learngene_zoo.plugin import derive_seed, draw_uniform, sample_images, show_progress
    from lgzoo_closed_form.modules.streams import AT_ONCE, Pictures

    if not task.sizes["train"]:
        raise WrongCall(
            f"{task.name} has no training images to calibrate with; choose another task"
        )
    loader = sample_images(
        task, "train", input_format, run, images=settings.images, batch_size=AT_ONCE
    )
    steps = show_progress(range(loader.steps), f"reading images of {task.name}", run.progress)
    inputs = gather_samples([batch.inputs for _, batch in zip(steps, loader.epoch(0))])
    if isinstance(spec, TextSpec):
        return _draw_words(inputs, settings, task, spec, run)
    images = torch.cat(inputs)
    prefix = spec.prefix_tokens
    patches = require_pictures(spec).patches
    draws = draw_uniform(derive_seed(run.seed, "tokens"), range(len(images)), patches)
    order_BN = torch.from_numpy(draws).argsort(dim=1)
    patches_BK = order_BN[:, : max(settings.tokens - prefix, 1)] + prefix
    tokens_BK = torch.cat([torch.arange(prefix).expand(len(images), -1), patches_BK], dim=1)
    note_few_tokens(tokens_BK.numel(), task, spec)
    weights_BK = torch.ones(tokens_BK.shape, dtype=torch.float64)
    if prefix:
        weights_BK[:, 0] = settings.class_weight
    return Pictures(images, tokens_BK, weights_BK.flatten(), run.progress)


def gather_samples(batches: Sequence[T]) -> list[T]:
    """Return the samples of all processes as batches of one, in the order of a single process.

    Args:
        batches: this process's share of each batch: every n-th sample of it, for n processes.
    """
    from learngene_zoo.plugin import gather_values

    return [
        share[row : row + 1]
        for shares in zip(*gather_values(batches))
        for row in range(max(map(len, shares)))
        for share in shares
        if row < len(share)
    ]


def note_few_tokens(tokens: int, task: Task, spec: Spec) -> None:
    """Print a note if there are fewer tokens than channels: the equations have many solutions."""
    from learngene_zoo.plugin import print_note

    if tokens < spec.width:
        print_note(
            f"{task.name} has {tokens} tokens to calibrate with, fewer than the {spec.width} "
            f"channels of the model; give some hundred {task.sample_noun}s",
            "few tokens",
        )


def _draw_words(
    batches: Sequence[Tokens], settings: Calibration, task: Task, spec: TextSpec, run: Run
) -> Pictures:
    """Return texts as ids of equal length, with randomly drawn tokens that are no padding."""
    import torch
    from torch.nn import functional

    from learngene_zoo.plugin import derive_seed, draw_uniform
    from lgzoo_closed_form.modules.streams import Pictures

    length, pad = max(batch.ids.shape[1] for batch in batches), spec.pad_token or 0
    ids_BN, mask_BN = (
        torch.cat(
            [functional.pad(part, (0, length - part.shape[1]), value=value) for part in parts]
        )
        for parts, value in (
            ([batch.ids for batch in batches], pad),
            ([batch.mask for batch in batches], 0),
        )
    )
    draws_BN = torch.from_numpy(
        draw_uniform(derive_seed(run.seed, "tokens"), range(len(ids_BN)), length)
    )
    order_BN = draws_BN.masked_fill(mask_BN == 0, 2.0).argsort(dim=1)
    tokens_BK = order_BN[:, : settings.tokens]
    weights_BK = mask_BN.gather(1, tokens_BK).double()  # padding counts nothing
    note_few_tokens(int(weights_BK.sum()), task, spec)
    return Pictures(ids_BN, tokens_BK, weights_BK.flatten(), run.progress)


@contextmanager
def open_teacher(
    state: StateDict,
    spec: Spec,
    settings: Calibration,
    task: Task,
    input_format: InputFormat | TextFormat,
    run: Run,
    folder: Path | None = None,
) -> Iterator[StreamTeacher]:
    """Yield the ancestry model with its streams; large ones are in temporary files.

    Args: as `record_teacher`, and `folder`, where the streams are kept.
    """
    from lgzoo_closed_form.modules.streams import estimate_size, open_files

    size = estimate_size(spec, settings.images, settings.tokens)
    with open_files(size, folder) as open_file:
        yield record_teacher(state, spec, settings, task, input_format, run, open_file)


def record_teacher(
    state: StateDict,
    spec: Spec,
    settings: Calibration,
    task: Task,
    input_format: InputFormat | TextFormat,
    run: Run,
    open_file: OpenFile | None = None,
) -> StreamTeacher:
    """Record the streams of the ancestry model over images of a task.

    Args:
        state: the ancestry model's tensors, without a head.
        spec: its shape.
        settings: how many images and tokens are recorded.
        task: whose training images are seen.
        input_format: size and normalisation of the images.
        run: seed, threads, progress, and the precision in which the model computes: bf16, or fp32
            for any other.
        open_file: opens the file of a stream; None keeps the streams in memory.
    """
    from learngene_zoo.plugin import build_model, open_device
    from lgzoo_closed_form.modules.streams import StreamTeacher, record_streams

    open_device(replace(run, device="cpu"))  # sets the number of threads
    headless = spec.with_(classes=0)
    model = build_model(headless, state)
    pictures = sample_pictures(headless, settings, task, input_format, run)
    streams = record_streams(model, pictures, open_file, run.precision == "bf16")
    return StreamTeacher(headless, state, model, pictures, streams)


def read_directions(learngene: Learngene) -> torch.Tensor:
    """Return the directions (D, D), float64. Raises `BadFile` for another shape."""
    state, width = learngene.state, learngene.config.spec.width
    columns = state.get(DIRECTIONS) if isinstance(state, dict) else state[DIRECTIONS]
    if columns is None or tuple(columns.shape) != (width, width):
        raise BadFile(
            f"{learngene.folder or 'the learngene'} lacks the tensor {DIRECTIONS} of shape "
            f"({width}, {width}); extract it again"
        )
    return columns.double()


def find_recording(learngene: Learngene, directions_DD: torch.Tensor) -> Recording | None:
    """Return the streams that the extraction has kept beside its learngene; None if it has not.

    Args:
        learngene: a learngene of closed_form.
        directions_DD: its directions, which identify the recording.
    """
    from lgzoo_closed_form.modules.streams import STREAMS, load_recording

    if learngene.folder is None:
        return None
    folder, spec = learngene.folder.resolve(), learngene.config.spec.with_(classes=0)
    folder = folder.with_name(f"{folder.name}.run") / "parts" / PART / STREAMS
    return load_recording(folder, directions_DD, spec)


def read_first_blocks(learngene: Learngene, depth: int, run: Run) -> tuple[Spec, StateDict]:
    """Return shape and tensors, float32, of the first blocks of a learngene's ancestry model.

    Args:
        learngene: a learngene of closed_form, with or without the ancestry model's weights.
        depth: the number of blocks.
        run: may name another place of the ancestry model.
    """
    from learngene_zoo.plugin import copy_weights, take_blocks

    config = learngene.config
    weights = copy_weights(config, learngene.state, run)
    # Weights of learngenes on the shelf are in half precision.
    whole = {name: weights[name].float() for name in weights}
    state = take_blocks(whole, config.spec.with_(classes=0), range(depth))
    return config.spec.with_(layers=depth, classes=0), state


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

    Within `share_results`, the streams of all blocks are recorded once for all depths.

    Args:
        learngene: a learngene of closed_form, with or without the ancestry model's weights.
        depth: the number of blocks.
        settings: as in the extraction.
        task: whose training images are seen, unless streams are kept.
        kept: streams of all blocks, see `find_recording`. None records those of the first blocks.
        run: seed, threads and progress.
    """
    from learngene_zoo.plugin import build_model, is_sharing, open_device, open_shared
    from lgzoo_closed_form.modules.streams import StreamTeacher

    def open_new(depth: int) -> AbstractContextManager[StreamTeacher]:
        spec, state = read_first_blocks(learngene, depth, run)
        form = derive_input_format(learngene.config, learngene.files)
        return open_teacher(state, spec, settings, task, form, run)

    with ExitStack() as stack:
        if kept is None and not is_sharing():
            yield stack.enter_context(open_new(depth))
            return
        if kept is None:
            whole = stack.enter_context(
                open_shared(
                    "closed_form.streams",
                    partial(open_new, learngene.config.spec.layers),
                    settings,
                    [learngene, task, run.precision],
                    run.seed,
                )
            )
            kept = whole.pictures, whole.streams
        spec, state = read_first_blocks(learngene, depth, run)
        open_device(replace(run, device="cpu"))  # sets the number of threads
        pictures, streams = kept
        pictures = replace(pictures, has_progress=run.progress)
        model = build_model(spec, state)
        yield StreamTeacher(spec, state, model, pictures, streams.truncate(depth))
