"""`lgzoo export [MODEL]`: write a model as an ONNX or torch.export file."""

from pathlib import Path
from typing import Any, Literal

import click
from click.core import ParameterSource

from learngene_zoo import lifecycle
from learngene_zoo.cli.job import choice_option, job_of, job_options, print_row
from learngene_zoo.cli.options import any_model_of, complete_tasks, model_argument
from learngene_zoo.cli.sections import SettingsCommand
from learngene_zoo.errors import WrongCall
from learngene_zoo.settings import Json

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
    job = job_of(options)
    out = job.path or Path(f"model.{format or DEFAULT}")
    if format and out.suffix != f".{format}":
        raise WrongCall(
            f"{out} does not end in .{format}; leave out --format, or name another file with -o"
        )
    source = click.get_current_context().get_parameter_source("max_drop")
    if dtype != "int8" and source is ParameterSource.COMMANDLINE:
        raise WrongCall("--max-drop applies only to --dtype int8; leave it out")
    if dtype != "int8" and task is not None:
        raise WrongCall("--task applies only to --dtype int8; leave it out")
    exported = lifecycle.export(
        any_model_of(model, "finetuned", "descendant", offline=job.run.offline),
        out,
        dtype=dtype,
        task=task,
        max_drop=max_drop,
        timed=bench,
        run=job.run,
        force=job.force or job.run.resume,
    )
    facts: dict[str, Json] = {
        "format": exported.format,
        "dtype": exported.dtype,
        "bytes": exported.bytes,
        "difference": exported.difference,
    }
    if exported.task is not None:
        facts |= {
            "task": exported.task,
            "metric": exported.metric,
            "value": exported.value,
            "model_value": exported.model_value,
        }
    if exported.latency is not None:
        facts |= {"latency": exported.latency, "model_latency": exported.model_latency}
    print_row({**facts, "path": str(out)}, job.as_json)


command = SettingsCommand(
    "export",
    callback=export,
    help="Export a model to one file that opens without this package: ONNX (for onnxruntime and "
    "others) or torch.export.\n\n"
    "MODEL is a folder, or the name of a timm classifier (default: ./finetuned, else "
    "./descendant). The input is pixel_values (batch, channels, size, size), the output is "
    "logits; the batch size is dynamic. Labels and preprocessing are in the file's metadata. The "
    "file is compared with the model before it is written.",
    epilog="\b\nExamples:\n"
    "  lgzoo export\n"
    "  lgzoo export finetuned --dtype fp16 -o small.onnx\n"
    "  lgzoo export --dtype int8 --max-drop 0.005\n"
    "  lgzoo export --format pt2 --bench",
    params=[
        model_argument(),
        click.Option(
            ["--format"],
            type=click.Choice(["onnx", "pt2"]),
            help=f"Format of the file.  [default: from the suffix of -o, else {DEFAULT}]",
        ),
        choice_option(
            "--dtype",
            ["fp32", "fp16", "int8"],
            "fp32",
            "Data type of the stored weights; int8 (ONNX only) is first evaluated on the "
            "validation split of the task.",
        ),
        click.Option(
            ["--task"],
            shell_complete=complete_tasks,
            help="Task for evaluating int8 (default: the task of the catalogue that the model was "
            "trained for).",
        ),
        click.Option(
            ["--max-drop"],
            type=click.FloatRange(0, 1),
            default=0.01,
            show_default=True,
            help="Largest accepted drop in accuracy (or mIoU) with int8; above it, no file is "
            "written.",
        ),
        click.Option(
            ["--bench"],
            is_flag=True,
            help="Also measure the latency for one image, in the file's runtime and in PyTorch.",
        ),
        *job_options(
            None,
            "Path of the file.  [default: model.onnx or model.pt2]",
            without=("tracker", "seed", "precision"),
        ),
    ],
)
