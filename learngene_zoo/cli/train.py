"""`lgzoo train`: an ancestry model, or a model of any size from scratch."""

from __future__ import annotations

from typing import Any, Literal

import click

from learngene_zoo import lifecycle
from learngene_zoo.cli.job import job_of, job_options
from learngene_zoo.cli.options import SettingsCommand, chosen, options_of
from learngene_zoo.cli.output import print_made
from learngene_zoo.families.vit.spec import ViTSpec

# As small as a model can be that still has something to inherit; `classes`, `channels` and `dense` come from the task.
SPEC = ViTSpec(layers=12, width=96, heads=3, image_size=32, patch_size=8)
FROM_TASK = ("classes", "channels", "dense")
HELPS = {
    "layers": "transformer blocks",
    "width": "width of the tokens",
    "heads": "attention heads of each block; they divide the width",
    "image_size": "pixels of a side of the images",
    "patch_size": "pixels of a side of a patch",
    "mlp_ratio": "hidden width of the MLPs, as a multiple of the width",
    "pool": "what the head sees: the class token, or a mean of the patches",
    "class_token": "put a class token before the patches",
    "registers": "register tokens",
    "qkv_bias": "biases of queries, keys and values",
    "proj_bias": "biases of the other linear layers of a block",
    "qk_norm": "normalise queries and keys",
    "layer_scale": "initial value of LayerScale",
    "pre_norm": "a norm before the first block",
    "final_norm": "a norm after the last block",
    "fc_norm": "put the last norm after pooling (none: where timm puts it)",
    "no_embed_class": "no position for the class token",
    "dynamic_image_size": "let images of other sizes in",
}


def train(task: str, init: Literal["timm", "fan_in"], **given: Any) -> None:
    """Train the model and write it."""
    job = job_of(given)
    lifecycle.train(
        task,
        spec=chosen(SPEC),
        recipe=chosen(lifecycle.TRAIN),
        init=init,
        out=job.out,
        run=job.run,
        force=job.force,
    )
    print_made(job.out, job, f"lgzoo extract lsamd --ancestry {job.out}")


command = SettingsCommand(
    "train",
    callback=train,
    help="Train a Vision Transformer from scratch: an ancestry model to extract from, or a rival of any size.",
    epilog="\b\nExamples:\n  lgzoo train\n  lgzoo train --task digits --layers 6 --width 64 --heads 2 --init fan_in -o rival",
    params=[
        click.Option(["--task"], default=lifecycle.SOURCE_TASK, show_default=True, help="What to train on."),
        click.Option(
            ["--init"],
            type=click.Choice(["timm", "fan_in"]),
            default="timm",
            show_default=True,
            help="Initial weights: timm's (std 0.02), or std 1/sqrt(fan in).",
        ),
        *options_of(SPEC, without=FROM_TASK, helps=HELPS),
        *options_of(lifecycle.TRAIN),
        *job_options("ancestry"),
    ],
)
