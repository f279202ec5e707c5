"""`lgzoo predict MODEL IMAGE...`: classify images or texts."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.records import is_own_data
from learngene_zoo.artifacts.shelf import is_card
from learngene_zoo.cli.job import Job, WholeNumber, make_job_options, print_rows, say, take_job
from learngene_zoo.errors import BadData, WrongCall, suggest_path
from learngene_zoo.families.text_format import TextFormat
from learngene_zoo.hub.client import parse_hub_reference
from learngene_zoo.pretrained.exported import is_exported_file
from learngene_zoo.pretrained.timm_model import is_timm_source
from learngene_zoo.runs.progress import report_activity
from learngene_zoo.runs.run import is_first
from learngene_zoo.storage import CONFIG
from learngene_zoo.text import count_noun, escape_controls, quote_word

if TYPE_CHECKING:
    from learngene_zoo.training.predict import Prediction, UnreadableText
from learngene_zoo.cli.evaluation.evaluate import find_evaluated_model
from learngene_zoo.cli.sections import SettingsCommand


def predict(
    model: str,
    images: tuple[str, ...],
    text: tuple[str, ...],
    top: int,
    batch_size: int,
    **options: Any,
) -> int:
    """Print the classes of every picture as it is read; return 1 if a picture cannot be read."""
    job = take_job(options)
    # A model is a folder, so that a file or stdin is the first input, for the default model.
    if model == "-" or (Path(model).is_file() and not is_exported_file(model)):
        model, images = "", (model, *images)
    if not text or images:
        model, images = _sort_words(model, images)
    _refuse_data(images)
    named = find_evaluated_model(model, "finetuned", offline=job.run.offline)
    missing = [word for word in images if word != "-" and not os.path.exists(word)]
    if images and len(missing) == len(images):  # before anything is loaded
        remedy = (
            "give an image or a folder of images, or for a text model a .txt file or --text TEXT"
        )
        raise BadData(f"{missing[0]} does not exist; {suggest_path(Path(missing[0]), remedy)}")
    if text and not images and not any(map(_is_complete, text)):
        raise BadData("an empty text; write a text")
    from learngene_zoo.training.predict import predict as predicted

    opened = lifecycle.opening.open_answering(named, job.run)
    is_text = isinstance(opened.input_format, TextFormat)
    if text and not is_text:
        raise WrongCall("--text is for text models, and the model takes images; give an image")
    key, noun = ("text", "text") if is_text else ("image", "picture")
    files: list[str] = []
    inputs: Iterator[Any] = (
        _iterate_texts(text, images, opened.provenance.get("pairs"), files)
        if is_text
        else _iterate_paths(images, job)
    )
    broken = 0
    rows: list[dict[str, Any]] = []
    activity = click.get_current_context().with_resource(report_activity(f"{noun}s"))
    for prediction in predicted(opened, inputs, job.run, top=top, batch_size=batch_size):
        activity.note = f"{len(rows)} done"
        if prediction.error is not None:
            broken += 1
            if is_first():
                click.echo(f"error: {escape_controls(prediction.error)}", err=True)
            rows.append({key: prediction.image, "error": prediction.error})
            continue
        file = files[len(rows)] if is_text else ""
        rows.append({**({"file": file} if file else {}), **_make_row(prediction, key)})
        if is_first() and not job.as_json:
            name = file or _shorten(prediction.image, is_text)
            click.echo(escape_controls(_format_line(name, prediction)))
    if job.as_json:
        print_rows(rows, as_json=True)
    if broken < len(rows):
        lifecycle.opening.warn_of_random_head(opened)
    if broken and len(rows) > 1:
        say(f"{broken} of {count_noun(len(rows), noun)} could not be read", job)
    return 1 if broken else 0


def _refuse_data(words: Sequence[str]) -> None:
    """Raise `WrongCall` for data such as csv:FILE, which `evaluate` takes."""
    for word in words:
        if is_own_data(word) and not os.path.exists(word):
            raise WrongCall(
                f"{word} is data of a task, for lgzoo evaluate --task {quote_word(word)}; give an "
                "image or a folder of images, or for a text model a .txt file or --text TEXT"
            )


def _sort_words(model: str, images: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Return the model, "" for the default one, and the pictures from the words of a call.

    Raises `BadData` for a missing picture in the model's position, and `WrongCall` if there are no
    pictures.
    """
    if _is_lost_picture(model):
        remedy = (
            "give an existing image, or a model before the image: lgzoo predict finetuned photo.jpg"
        )
        raise BadData(f"{model} does not exist; {suggest_path(Path(model), remedy)}")
    later = next((word for word in images if (Path(word) / CONFIG).is_file()), None)
    if later is not None and not model:
        others = " ".join(quote_word(word) for word in images if word != later)
        raise WrongCall(
            f"{later} is a model, which comes first: lgzoo predict {quote_word(later)} {others}"
        )
    if model and not images and Path(model).is_dir() and not (Path(model) / CONFIG).is_file():
        return "", (model,)  # a folder of pictures
    if not images:
        exists = (
            Path(model).exists()
            or parse_hub_reference(model)
            or is_card(model)
            or is_timm_source(model)
        )
        problem = (
            "missing argument 'IMAGES...'" if not model or exists else f"{model} does not exist"
        )
        raise WrongCall(
            f"{problem}; lgzoo predict finetuned photo.jpg (for a text model: --text TEXT)"
        )
    return model, images


def _is_lost_picture(word: str) -> bool:
    """Return whether a word has a picture's suffix, but no such file exists."""
    from learngene_zoo.tasks.listing import list_suffixes

    is_named_so = os.path.splitext(word)[1].lower() in list_suffixes()
    return is_named_so and not os.path.exists(word) and not is_timm_source(word)


def _make_row(prediction: Prediction, key: str) -> dict[str, Any]:
    best = {
        key: prediction.image,
        "class": prediction.classes[0],
        "probability": prediction.probabilities[0],
    }
    return {
        **best,
        "classes": list(prediction.classes),
        "probabilities": list(prediction.probabilities),
    }


MAX_SHOWN_TEXT = 100  # characters of a text; --json prints all of them


def _shorten(name: str, is_text: bool) -> str:
    is_long = is_text and len(name) > MAX_SHOWN_TEXT
    return f"{name[: MAX_SHOWN_TEXT - 1]}…" if is_long else name


def _format_line(name: str, prediction: Prediction) -> str:
    answers = (
        f"{name} {share:.3f}" for name, share in zip(prediction.classes, prediction.probabilities)
    )
    return f"{name}: {', '.join(answers)}"


def _iterate_paths(images: Sequence[str], job: Job) -> Iterator[str]:
    """Yield paths of pictures: a file, all pictures below a folder, for `-` the lines of stdin."""
    for word in images:
        if word == "-":
            yield from _read_lines()
        elif Path(word).is_dir():
            yield from _list_below(word, job)
        else:
            yield word


def _iterate_texts(
    texts: Sequence[str], words: Sequence[str], pairs: Any, files: list[str]
) -> Iterator[str | tuple[str, str] | UnreadableText]:
    """Yield texts: those given, the contents of files, for `-` the lines of stdin.

    Args:
        texts: those given.
        words: files and folders.
        pairs: whether the model reads pairs, whose texts a tab separates; None: unknown.
        files: gets the file of each text, "" for texts that are not of a file.
    """
    from learngene_zoo.training.predict import UnreadableText

    for file, text in _iterate_single_texts(texts, words):
        files.append(file)
        if pairs is False or isinstance(text, UnreadableText):
            yield text
        elif pairs and text.count("\t") > 1:
            reason = f"a pair has one tab between its texts, and {text!r:.80} has several"
            yield UnreadableText(text, reason)
        elif pairs and file and "\t" not in text:
            reason = f"{file} has one text, and the model takes pairs; put a tab between both texts"
            yield UnreadableText(text, reason)
        else:
            yield _split_pair(text)


def _iterate_single_texts(
    texts: Sequence[str], words: Sequence[str]
) -> Iterator[tuple[str, str | UnreadableText]]:
    """Yield texts as `_iterate_texts` does, with their files; pairs are not divided."""
    from learngene_zoo.tasks.texts.rows import decode_text

    for text in texts:
        if text == "-":
            yield from (("", line) for line in _read_texts())
            continue
        # Bytes of the command line that are not UTF-8 are surrogates, which no tokenizer takes.
        yield "", decode_text(text.encode("utf-8", "surrogatepass"), "--text")
    for word in words:
        if word == "-":
            yield from (("", line) for line in _read_texts())
        else:
            yield from ((str(path), _read_text_file(path)) for path in _list_text_files(word))


def _read_text_file(path: Path) -> str | UnreadableText:
    from learngene_zoo.tasks.texts.rows import decode_text
    from learngene_zoo.training.predict import UnreadableText

    try:
        text = decode_text(path.read_bytes(), str(path)).strip()
    except (BadData, OSError) as error:
        reason = str(error) if isinstance(error, BadData) else f"{path}: {error.strerror}"
        return UnreadableText(str(path), reason)
    return text or UnreadableText(str(path), f"{path} is empty; write a text")


def _list_text_files(word: str) -> list[Path]:
    """Return a .txt file, or those below a folder in the order of their names.

    Raises `WrongCall` for anything else, and for a folder without any.
    """
    from learngene_zoo.tasks.listing import list_files

    path = Path(word)
    if path.suffix.lower() == ".txt" and path.is_file():
        return [path]
    files = list_files(path, (".txt",)) if path.is_dir() else []
    if not files:
        raise WrongCall(
            f"the model takes texts, and {word} is not a .txt file or a folder of .txt files; give "
            "one, --text TEXT, or - for the lines of stdin"
        )
    return files


def _split_pair(text: str) -> str | tuple[str, str]:
    first, tab, second = text.partition("\t")
    return (first, second) if tab else text


def _read_lines() -> Iterator[str]:
    """Yield the lines that are not blank. Raises `WrongCall` at the first that is not a path."""
    for line in filter(str.strip, sys.stdin):
        if "\0" in line:
            raise WrongCall(
                "stdin is not text; - expects paths, one per line; to classify one image, give "
                "its path instead of -"
            )
        yield line.rstrip("\n")


def _is_complete(text: str) -> bool:
    """Return whether a text, or both texts of a pair, are not blank."""
    pair = _split_pair(text)
    return all(map(str.strip, pair if isinstance(pair, tuple) else (pair,)))


def _read_texts() -> Iterator[str | UnreadableText]:
    """Yield the lines, but blank ones at the end.

    The prediction of a line that is blank or not in UTF-8 is an error, so that every line has an
    answer.
    """
    from learngene_zoo.tasks.texts.rows import decode_text
    from learngene_zoo.training.predict import UnreadableText

    blank: list[UnreadableText] = []  # lines since the last text
    # As bytes, so that the encoding of the terminal has no effect, as with files.
    for number, line in enumerate(sys.stdin.buffer, start=1):
        where = f"line {number} of stdin"
        if b"\0" in line:
            raise WrongCall("stdin is not text; - expects texts in UTF-8, one per line")
        try:
            text: str | UnreadableText = decode_text(line, where).rstrip("\r\n")
        except BadData as error:
            text = UnreadableText("", str(error))
        if isinstance(text, str) and not text.strip():
            blank.append(UnreadableText("", f"{where} is empty; write a text"))
            continue
        yield from blank
        blank.clear()
        yield text


def _list_below(folder: str, job: Job) -> Sequence[str]:
    """Return the pictures below a folder, and print how many files are left out, and why."""
    from learngene_zoo.tasks.listing import describe_left_out, list_pictures

    listing = list_pictures(folder)
    lines = [describe_left_out(listing.left_out), _describe_dangling(listing.dangling)]
    if not listing.pictures:
        notes = "".join(f" ({line})" for line in lines if line)
        raise BadData(f"no images in {folder} or its subfolders{notes}; give a folder with images")
    for line in filter(None, lines):
        say(f"note: {line}", job)
    return listing.pictures


def _describe_dangling(links: Sequence[str]) -> str:
    leads = "leads" if len(links) == 1 else "lead"
    return (
        f"{count_noun(len(links), 'link')} that {leads} nowhere left out; first: {links[0]}"
        if links
        else ""
    )


command = SettingsCommand(
    "predict",
    callback=predict,
    help="Classify images or texts: print the most probable classes of each.\n\n"
    "MODEL is a folder, organisation/name@revision on the Hub, the name of a timm classifier, or "
    "an ONNX file written by lgzoo export (default: ./finetuned, if the first argument is an "
    "image, a folder of images or -, or if only --text is given). IMAGES are files, folders "
    "(searched with their subfolders, links followed), or - for paths from stdin, one per line. "
    "An image or a text that cannot be read is reported on stderr; the others are still "
    "classified, and the exit code is 1. For a text model give --text, .txt files, or - for texts "
    "from stdin, one per line; a tab separates the two texts of a pair.",
    epilog="\b\nExamples:\n"
    "  lgzoo predict finetuned photo.jpg\n"
    "  lgzoo predict finetuned photos --json\n"
    "  find . -name '*.jpg' | lgzoo predict finetuned -\n"
    "  lgzoo predict tuned --text 'not at all boring'\n"
    "  lgzoo predict pairs --text $'first text\\tsecond text'",
    params=[
        click.Argument(["model"], metavar="[MODEL]", default=""),
        click.Argument(["images"], nargs=-1, metavar="IMAGES..."),
        click.Option(
            ["--text"], metavar="TEXT", multiple=True, help="A text to classify (may be repeated)."
        ),
        click.Option(
            ["--top"],
            type=WholeNumber(1),
            default=5,
            show_default=True,
            help="Number of classes for each image.",
        ),
        click.Option(
            ["--batch-size"],
            type=WholeNumber(1),
            default=32,
            show_default=True,
            help="Images per forward pass.",
        ),
        *[
            option
            for option in make_job_options(None)
            if option.name not in ("out", "force", "resume", "tracker", "workers", "seed")
        ],
    ],
)
