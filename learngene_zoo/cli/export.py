"""`lgzoo export [MODEL]` and `lgzoo convert [MODEL]`: write a model for a runtime, or for another
package.
"""

from pathlib import Path
from typing import Any, Literal

import click
from click.shell_completion import CompletionItem

from learngene_zoo import lifecycle
from learngene_zoo.cli.job import (
    Job,
    Number,
    make_choice_option,
    make_job_options,
    print_row,
    say,
    take_job,
)
from learngene_zoo.cli.options import (
    complete_tasks,
    find_any_model,
    find_typed,
    make_model_argument,
)
from learngene_zoo.cli.sections import DetailOption, SettingsCommand
from learngene_zoo.errors import WrongCall
from learngene_zoo.pretrained.formats.layout import FORMATS
from learngene_zoo.settings import Json
from learngene_zoo.storage import CONFIG, read_json

DEFAULT = "onnx"


def export(
    model: str | None,
    format: str | None,
    dtype: Literal["fp32", "fp16", "int8"],
    task: str | None,
    max_drop: float,
    bench: bool,
    **options: Any,
) -> None:
    """Write the file and print its largest difference from the model."""
    job = take_job(options)
    out = job.path or Path(f"model.{format or DEFAULT}")
    if format and out.suffix != f".{format}":
        raise WrongCall(
            f"{out} does not end in .{format}; leave out --format, or name another file with -o"
        )
    of_int8 = find_typed("task", "max_drop")
    if dtype != "int8" and of_int8 is not None:
        raise WrongCall(f"{of_int8} applies only to --dtype int8; leave it out")
    exported = lifecycle.export(
        _find_exportable(model, job.run.offline),
        out,
        dtype=dtype,
        task=task,
        max_drop=max_drop,
        timed=bench,
        run=job.run,
        force=job.force,
    )
    facts: dict[str, Json] = {
        "format": exported.format,
        "dtype": exported.dtype,
        "bytes": exported.bytes,
        "difference": _describe_difference(exported.difference, job),
    }
    if exported.task is not None:
        facts |= {
            "task": exported.task,
            "metric": exported.metric,
            "value": exported.value,
            "model_value": exported.model_value,
            "texts" if exported.is_text and not job.as_json else "images": exported.images,
        }
    if exported.latency is not None:
        facts |= {"latency": exported.latency, "model_latency": exported.model_latency}
    print_row({**facts, "path": str(out)}, job.as_json)


def _describe_difference(value: float | None, job: Job) -> Json:
    """Return the largest difference from the model: the number for JSON, else with its unit."""
    if job.as_json or value is None:
        return value
    return f"at most {value:.2g} in any output" if value else "none"


def _find_exportable(named: str | None, offline: bool) -> str | Path:
    """Return the model: a folder of ours or of a pretrained model, or the name of a classifier."""
    from learngene_zoo.cli.description.model import is_pretrained

    if named and Path(named).is_dir() and is_pretrained(named):
        return named
    return find_any_model(named, "finetuned", "descendant", offline=offline)


command = SettingsCommand(
    "export",
    callback=export,
    help="Export a model to one file that opens without this package: ONNX (for onnxruntime and "
    "others) or torch.export.\n\n"
    "MODEL is a folder, organisation/name@revision on the Hub, or the name of a timm classifier "
    "(default: ./finetuned, else ./descendant). The input is pixel_values (batch, "
    "channels, size, size), the output is logits, or features without classes; the batch size is "
    "dynamic. A text model takes input_ids and attention_mask (batch, tokens), with two types of "
    "tokens also token_type_ids, and without classes returns sentence_embedding. Labels, "
    "preprocessing and tokenizer are in the file's metadata. The file is compared with the model "
    "before it is written.",
    epilog="\b\nExamples:\n"
    "  lgzoo export\n"
    "  lgzoo export finetuned --dtype fp16 -o small.onnx\n"
    "  lgzoo export --dtype int8 --max-drop 0.005\n"
    "  lgzoo export --format pt2 --bench",
    params=[
        make_model_argument(),
        click.Option(
            ["--format"],
            type=click.Choice(["onnx", "pt2"]),
            help=f"Format of the file.  [default: from the suffix of -o, else {DEFAULT}]",
        ),
        make_choice_option(
            "--dtype",
            ["fp32", "fp16", "int8"],
            "fp32",
            "Data type of the stored weights; int8 (ONNX only) is first evaluated on the "
            "validation split of the task.",
        ),
        click.Option(
            ["--task"],
            shell_complete=complete_tasks,
            help="Task for evaluating int8 (default: the task that the model was trained for). For "
            "a model without classes: images or texts, also without labels, on which its features "
            "are compared.",
        ),
        click.Option(
            ["--max-drop"],
            type=Number(0, 1),
            default=0.01,
            show_default=True,
            help="Largest accepted drop with int8 in accuracy (or the task's metric), or below 1 "
            "in the cosine of features; above it, no file is written.",
        ),
        click.Option(
            ["--bench"],
            is_flag=True,
            help="Also measure the latency for one image, or one text of the largest length, in "
            "the file's runtime and in PyTorch.",
        ),
        *make_job_options(
            None,
            "Path of the file.  [default: model.onnx or model.pt2]",
            without=("tracker", "seed", "precision"),
            force_help="Replace an existing file.",
            resume_help="Replace an existing file if lgzoo export wrote it of the same model in "
            "the same --dtype; another one is an error.",
        ),
    ],
)


class FormatType(click.ParamType):
    """A format, or a format and a kind of model: `transformers:vit`. The verb checks it."""

    name = "format"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the formats and kinds that begin with the typed text."""
        names = list(FORMATS)
        names += [f"{name}:{kind}" for name, kinds in FORMATS.items() for kind in kinds]
        return click.Choice(names).shell_complete(ctx, param, incomplete)


def convert(
    model: str | None,
    format: str | None,
    no_head: bool,
    keep_interface: bool,
    images: str | None,
    ancestry: str | None,
    **options: Any,
) -> None:
    """Write the folder and print how far its outputs are from those of the model."""
    job = take_job(options)
    result = lifecycle.convert(
        _name_model(model, job.run.offline),
        job.out,
        format=format,
        head=not no_head,
        keep_interface=keep_interface,
        images=images,
        ancestry=ancestry,
        run=job.run,
        force=job.force,
    )
    lists: dict[str, tuple[str, ...]] = {"changes": result.changes, "left_out": result.left_out}
    difference = _describe_difference(result.difference, job)
    facts: dict[str, Json] = {"format": result.format, "difference": difference}
    if result.agreement is not None:
        facts |= vars(result.agreement)
    if job.as_json:
        facts |= {name: list(lines) for name, lines in lists.items()}
    else:
        for line in result.changes:
            say(f"note: {line}", job)
        for line in result.left_out:
            say(f"note: left out when the ancestry model was read: {line}", job)
    print_row({**facts, "path": str(job.out)}, job.as_json)


def _name_model(named: str | None, offline: bool) -> str | Path:
    """Return the model: a descendant, or anything that `--ancestry` accepts."""
    path = Path(named or "")
    is_learngene = (path / CONFIG).is_file() and "method" in read_json(path / CONFIG)
    if named and (path.exists() or "#" in named) and not is_learngene:
        return named
    return find_any_model(named, "finetuned", "descendant", offline=offline)


convert_command = SettingsCommand(
    "convert",
    callback=convert,
    help="Write a model in the format of another package, which then opens it without this one: "
    "transformers, open_clip, or the authors' names of DINOv2.\n\n"
    "MODEL is a folder (default: ./finetuned, else ./descendant), or the source of any ancestry "
    "model. The tensors get the other package's names; config, class names and preprocessing are "
    "written beside them. The outputs are compared with those of the model before the folder is "
    "written. A model that the format cannot express is refused, with the reason.",
    epilog="\b\nExamples:\n"
    "  lgzoo convert --format transformers\n"
    "  lgzoo convert descendant --format transformers:dinov2 -o dinov2-6-layers\n"
    "  lgzoo convert --format open_clip --no-head\n"
    "  lgzoo convert --keep-interface --images folder:photos",
    params=[
        make_model_argument(),
        click.Option(
            ["--format"],
            type=FormatType(),
            metavar="[timm|transformers|open_clip|dinov2][:KIND]",
            help="Format; KIND names a kind of model where several fit, such as transformers:vit."
            "  [default: the format that the ancestry model was read from]",
        ),
        click.Option(["--no-head"], is_flag=True, help="Leave the head out."),
        DetailOption(
            ["--keep-interface"],
            is_flag=True,
            help="Refuse a model whose tokens have another width or grid than those of its "
            "ancestry model.",
        ),
        DetailOption(
            ["--images"],
            shell_complete=complete_tasks,
            help="With --keep-interface: images without labels, as for `lgzoo heal`, on which the "
            "tokens are compared with those of the ancestry model (R2 and cosine).",
        ),
        DetailOption(
            ["--ancestry"],
            help="Source of the ancestry model (default: the one that MODEL records).",
        ),
        *make_job_options(
            "converted",
            without=("resume", "seed", "precision", "tracker"),
            force_help="Replace an existing result.",
        ),
    ],
)
