"""Predict the classes of image files or texts, prepared as for the model's evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from PIL.Image import Image

from learngene_zoo.artifacts.descendant import Descendant
from learngene_zoo.errors import BadData, WrongCall
from learngene_zoo.families.forward import compute_logits
from learngene_zoo.families.picture_format import InputFormat
from learngene_zoo.families.text_format import TextFormat
from learngene_zoo.pretrained.exported import ExportedModel
from learngene_zoo.pretrained.timm_model import TimmModel
from learngene_zoo.runs.progress import print_note
from learngene_zoo.runs.run import Run, open_device
from learngene_zoo.settings import check_whole
from learngene_zoo.tasks.images import decode_image, describe_deep_grey
from learngene_zoo.tasks.task import Sample
from learngene_zoo.tasks.texts.encoding import Encoder, describe_truncation
from learngene_zoo.tasks.transforms import fit_images, normalise_images
from learngene_zoo.training.evaluate import use_evaluation_mode

TEXT_BATCHES = 8  # texts are read so many batches at once, for batches of similar length
MAX_QUOTED = 40  # characters of a text in an error


@dataclass(frozen=True)
class UnreadableText:
    """A text that cannot be read: its file or line, "" if it has none, and why."""

    name: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The most probable classes of an image in descending order, or why it cannot be read."""

    image: str  # its path, if it has one; or the text
    classes: tuple[str, ...] = ()  # names, or numbers if the model has no names
    probabilities: tuple[float, ...] = ()
    error: str | None = None


def predict(
    model: Descendant | TimmModel | ExportedModel,
    images: Iterable[str | Path | tuple[str, str] | Image | UnreadableText],
    run: Run,
    *,
    top: int = 5,
    batch_size: int = 32,
) -> Iterator[Prediction]:
    """Yield a prediction for each image file or text, in their order, as they are read.

    An image that cannot be read does not stop the others.

    Args:
        model: the model.
        images: paths of the images, or images of Pillow; for a text model the texts, or pairs
            of texts. An `UnreadableText` has its reason as the error.
        run: the run, for its device and precision.
        top: how many classes to return for each image.
        batch_size: images per forward pass. Of texts `TEXT_BATCHES` batches are read at once, and
            texts of similar length share a forward pass.

    Raises:
        WrongCall: for a model that predicts a class for every pixel, or that has no classes; for a
            single text if the model was trained on pairs, and the reverse; for `top` or
            `batch_size` below 1.
    """
    top, batch_size = check_whole("top", top), check_whole("batch_size", batch_size)
    if model.dense or not model.classes:
        has = "gives every pixel a class" if model.dense else "has no classes"
        remedy = "train such a head with lgzoo finetune"
        if isinstance(model, ExportedModel):
            remedy = "export a classifier, or compute its outputs with onnxruntime (docs/export.md)"
        raise WrongCall(f"the model {has}; a prediction needs one class for each input: {remedy}")
    device, module = open_device(run), model.model()
    module.to(device)
    reader = _choose_reader(model.input_format, model.provenance.get("pairs"))
    names = model.class_names or tuple(map(str, range(model.classes)))
    waiting = iter(images)
    while window := list(islice(waiting, reader.batches * batch_size)):
        samples = [reader.read(image) for image in window]
        good = [number for number, each in enumerate(samples) if not isinstance(each, BadData)]
        order = [good[place] for place in reader.order([samples[number] for number in good])]
        shares: dict[int, torch.Tensor] = {}
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            inputs = reader.collate([samples[number] for number in batch]).to(device)
            with use_evaluation_mode(module, device, run):
                shares_BK = compute_logits(module, inputs).float().softmax(dim=1).cpu()
            shares.update(zip(batch, shares_BK))
        for number, (name, sample) in enumerate(zip(map(_name, window), samples)):
            if isinstance(sample, BadData):
                yield Prediction(image=name, error=str(sample))
                continue
            most, classes = shares[number].topk(min(top, model.classes))
            yield Prediction(
                image=name,
                classes=tuple(names[number] for number in classes.tolist()),
                probabilities=tuple(most.tolist()),
            )


@dataclass(frozen=True)
class _Reader:
    """Reads the inputs of a model.

    Args:
        read: reads a sample, or returns a `BadData`.
        collate: makes a batch of samples.
        batches: how many batches are read at once.
        order: returns the order in which the samples that were read at once form batches.
    """

    read: Callable[[Any], Any]
    collate: Callable[[list[Any]], Any]
    batches: int = 1
    order: Callable[[list[Any]], list[int]] = lambda samples: [*range(len(samples))]


def _choose_reader(input_format: InputFormat | TextFormat, pairs: Any) -> _Reader:
    """Return the reader of images, or of texts.

    `pairs` is whether a text model was trained on pairs; None: unknown.
    """
    if not isinstance(input_format, TextFormat):
        return _Reader(lambda image: _read_image(image, input_format), torch.cat)
    encoder = Encoder.of(input_format)

    def collate(texts: list[Any]) -> Any:
        return encoder(texts, [_name(text) for text in texts])

    def order(texts: list[Any]) -> list[int]:
        if note := describe_truncation(texts, input_format):
            print_note(note, "truncation")
        lengths = [len(encoder.encode(text)[0]) for text in texts]
        return sorted(range(len(texts)), key=lengths.__getitem__)

    def read(text: str | tuple[str, str] | UnreadableText) -> str | tuple[str, str] | BadData:
        if isinstance(text, UnreadableText):
            return BadData(text.reason)
        parts = text if isinstance(text, tuple) else (text,)
        if not all(map(str.strip, parts)):
            return BadData("an empty text; write a text")
        if pairs is not None:
            _check_pair(text, pairs)
        return text

    return _Reader(read, collate, TEXT_BATCHES, order)


def _check_pair(text: str | tuple[str, str], pairs: bool) -> None:
    """Raise `WrongCall` for a single text if a model reads `pairs`, and the reverse."""
    if pairs and isinstance(text, str):
        raise WrongCall(
            f"the model was trained on pairs of texts, and {_quote(text)} is one text; give both "
            "with a tab between them: --text $'FIRST\\tSECOND' (in Python [(FIRST, SECOND)])"
        )
    if not pairs and not isinstance(text, str):
        raise WrongCall(
            f"the model was trained on single texts, and ({_quote(text[0])}, {_quote(text[1])}) is "
            "a pair; give one text"
        )


def _quote(text: str) -> str:
    return repr(text if len(text) <= MAX_QUOTED else f"{text[: MAX_QUOTED - 1]}…")


def _name(image: str | Path | tuple[str, str] | Image | UnreadableText) -> str:
    """Return the path of an image, or the text; a tab separates the texts of a pair."""
    if isinstance(image, UnreadableText):
        return image.name
    if isinstance(image, Image):
        return str(getattr(image, "filename", "")) or "an image"
    return "\t".join(image) if isinstance(image, tuple) else str(image)


def _read_image(image: str | Path | Image, input_format: InputFormat) -> torch.Tensor | BadData:
    """Return the image as the model takes it, (1, C, H, W), or the error."""
    where, source = _name(image), image if isinstance(image, Image) else str(image)
    try:
        pixels_CHW = decode_image(source, where)
        if note := describe_deep_grey([Sample(source, where)]):
            print_note(note, "deep grey")
    except BadData as error:
        return error
    return normalise_images(
        fit_images([pixels_CHW], input_format.image_size, input_format.view, input_format.fill),
        input_format,
    )
