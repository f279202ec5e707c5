"""`lgzoo train` and `lgzoo finetune`: train a model from scratch, or an existing one."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import click

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.records import is_own_data
from learngene_zoo.cli.extract import make_image_size_option
from learngene_zoo.cli.job import (
    Job,
    format_task_option,
    make_choice_option,
    make_job_options,
    print_made,
    say,
    take_job,
)
from learngene_zoo.cli.options import (
    check_tasks,
    complete_tasks,
    find_any_model,
    find_typed,
    list_typed,
    make_auto_options,
    make_model_argument,
    make_options,
    name_parameter,
    read_settings,
)
from learngene_zoo.cli.sections import SettingsCommand, SizeOption, TrainingOption
from learngene_zoo.errors import WrongCall
from learngene_zoo.families.spec import DEFAULT_FAMILY
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.lifecycle.training_warnings import (
    describe_choice,
    describe_few,
    name_sample,
)
from learngene_zoo.method.sizes import Target
from learngene_zoo.runs.run import is_first
from learngene_zoo.settings import list_settings
from learngene_zoo.tasks.catalogue import SOURCE_TASK
from learngene_zoo.text import count_noun, escape_controls, quote_path

# A small model whose weights are still useful to inherit. `FROM_TASK` comes from the task.
SPEC = ViTSpec(layers=12, width=96, heads=3, image_size=32, patch_size=8)
FROM_TASK = ("classes", "channels", "dense")
LANGUAGE_FAMILIES = lifecycle.list_language_families()
HELPS = {
    **{setting.name: setting.help for setting in list_settings(Target())},
    "patch_size": "height and width of a patch in pixels",
    "pool": "pooling before the head: the class token, a mean or maximum of the patches (or both), "
    "or attention pooling",
    "class_token": "put a class token before the patches",
    "registers": "number of register tokens",
    "qkv_bias": "biases of queries, keys and values",
    "proj_bias": "biases of the other linear layers of a block",
    "qk_norm": "normalise queries and keys",
    "layer_scale": "initial value of LayerScale",
    "pre_norm": "a norm before the first block",
    "final_norm": "a norm after the last block",
    "fc_norm": "put the final norm after pooling (none: as timm decides)",
    "no_embed_class": "no position embedding for the class token",
    "dynamic_image_size": "accept images of other sizes",
    "norm": "type of all norms: LayerNorm or RMSNorm",
    "norm_eps": "epsilon of the norms: 1e-06, or 1e-05 as in CLIP",
    "activation": "activation of the MLPs: exact, tanh or quick GELU, or SiLU",
    "mlp": "form of the MLPs: two layers, or SwiGLU with its first layer in two tensors or in one",
    "embed_norm": "normalise the embedding of every patch",
    "scale_norms": "norms within attention and MLP, as in BEiT-3",
    "post_norm": "norms after attention and MLP instead of before",
    "attention_width": "total width of all heads (none: the width of the tokens)",
    "pool_prefix": "include the class token and registers in the pooling",
}


def train(
    task: str,
    init: Literal["timm", "fan_in"],
    family: str,
    texts: tuple[str, ...],
    **options: Any,
) -> None:
    """Train the model and write it."""
    job = take_job(options)
    if family != DEFAULT_FAMILY:
        train_language(family, texts, job)
        return
    text_sizes = [setting.name for setting in list_settings(lifecycle.TextSizes())]
    refuse_typed(("texts", *map(name_parameter, text_sizes)), OF_TEXTS)
    check_tasks(task)
    model = lifecycle.train(
        task,
        spec=read_settings(SPEC),
        recipe=read_settings(lifecycle.TRAIN),
        init=init,
        out=job.out,
        run=job.run,
        force=job.force,
    )
    print_training_warning(model.provenance["metrics"])
    print_made(
        job.out,
        job,
        f"lgzoo extract lsamd --ancestry {quote_path(job.out)}{format_task_option(task)}",
    )


# The ends of the errors for options of the other kind of model.
OF_IMAGES = "is for image models; leave it out with --family {family}"
OF_TEXTS = "is for language models; add --family {families}, or leave it out"


def train_language(family: str, texts: tuple[str, ...], job: Job) -> None:
    """Train a language model and write it. Raises `WrongCall` for options of images."""
    sizes = {**list_typed(SPEC), **list_typed(lifecycle.TextSizes())}
    of_images = [setting.name for setting in list_settings(SPEC)]
    unknown_here = [name for name in of_images if name not in lifecycle.LANGUAGE_SIZES]
    parameters = ("task", "init", *map(name_parameter, unknown_here))
    refuse_typed(parameters, OF_IMAGES.format(family=family))
    lifecycle.train_language(
        texts or lifecycle.LANGUAGE_TEXTS,
        family=family,
        recipe=read_settings(lifecycle.TRAIN),
        out=job.out,
        run=job.run,
        force=job.force,
        **sizes,
    )
    print_made(job.out, job, f"lgzoo extract first_k --ancestry {quote_path(job.out)}")


def refuse_typed(parameters: Iterable[str], reason: str) -> None:
    """Raise `WrongCall` that names the first of these options that was typed."""
    option = find_typed(*parameters)
    if option is not None:
        raise WrongCall(f"{option} {reason.format(families=' or '.join(LANGUAGE_FAMILIES))}")


command = SettingsCommand(
    "train",
    callback=train,
    help="Train a Vision Transformer from scratch: an ancestry model to extract from, or a model "
    "of any size to compare with.\n\n"
    f"With --family {' or '.join(LANGUAGE_FAMILIES)} it is a language model with its "
    "tokenizer, trained to predict the next word of texts: by default 6 layers of width 96 with 3 "
    "heads.",
    epilog="\b\nExamples:\n"
    "  lgzoo train\n"
    "  lgzoo train --task digits --layers 6 --width 64 --heads 2 -o scratch\n"
    f"  lgzoo train --family {LANGUAGE_FAMILIES[0]} --texts words --texts text:notes.txt "
    "-o language",
    params=[
        click.Option(
            ["--task"],
            shell_complete=complete_tasks,
            default=SOURCE_TASK,
            show_default=True,
            help="Task to train on.",
        ),
        make_choice_option(
            "--family",
            [DEFAULT_FAMILY, *LANGUAGE_FAMILIES],
            DEFAULT_FAMILY,
            "Kind of model.",
        ),
        click.Option(
            ["--texts"],
            multiple=True,
            metavar="TEXTS",
            shell_complete=complete_tasks,
            help="Texts of a language model: a text task or a suite of them, or text:PATH, a "
            ".txt file or a folder of them; may be repeated.  [default: words]",
        ),
        make_choice_option(
            "--init",
            ["timm", "fan_in"],
            "timm",
            "Initial weights: timm's (std 0.02), or with std 1/sqrt(fan_in).",
        ),
        *make_options(SPEC, without=FROM_TASK, helps=HELPS, kind=SizeOption),
        *make_options(lifecycle.TextSizes(), kind=SizeOption),
        *make_options(lifecycle.TRAIN),
        *make_job_options("ancestry"),
    ],
)


def finetune(
    model: str | None,
    task: str | None,
    preset: str | None,
    image_size: int | None,
    **options: Any,
) -> int:
    """Train the model, write it, and print its test results.

    Returns 1 if training diverged before the model learnt anything, else 0.
    """
    job = take_job(options)
    check_tasks(task)
    finetuned = lifecycle.finetune(
        find_any_model(model, "descendant", offline=job.run.offline),
        task=task,
        preset=preset,
        image_size=image_size,
        out=job.out,
        run=job.run,
        force=job.force,
        **list_typed(lifecycle.FINETUNE),
        **list_typed(lifecycle.FinetuneConfig()),
    )
    metrics: Any = finetuned.provenance["metrics"]
    facts = _list_facts(metrics)
    if facts:
        recipe: Any = finetuned.provenance["recipe"]
        noun = name_sample(finetuned)
        keep = list_typed(lifecycle.FinetuneConfig()).get("keep")
        kept_text = _describe_kept(facts.get("kept_epoch"), metrics, noun, keep)
        measured = f"{facts['metric']} {facts['value']:.4f} on {facts['images']} test {noun}s"
        say(f"{kept_text}{measured} (95 % interval {facts['low']:.4f} to {facts['high']:.4f})", job)
        if facts.get("kept_epoch") == 0:
            say(advise_training(metrics, recipe, noun), job)
    status = print_training_warning(metrics)
    where = "" if str(job.out) == "finetuned" else f" {quote_path(job.out)}"
    print_made(
        job.out,
        job,
        f"lgzoo evaluate{where}{format_task_option(task if task and is_own_data(task) else None)}",
        **facts,
    )
    return status


# With fewer epochs or steps, more are advised rather than another learning rate.
MIN_EPOCHS, MIN_STEPS = 4, 100
SIGMAS = 3  # standard errors that a validation result falls, which are not chance
SPIKE = 2.0  # a training loss that is so many times that of the first epoch
BEGUN = 0.9  # a training loss below so many times that of the first epoch has begun to fall


def _describe_kept(
    epoch: int | None, metrics: Mapping[str, Any], noun: str, keep: str | None = None
) -> str:
    """Return which epoch is kept, and if few images chose it.

    Args:
        epoch: the epoch; 0 is the model before training.
        metrics: the results of the training.
        noun: what the task has, "image" or "text".
        keep: the value of `--keep`, if it was given.
    """
    if epoch is None:
        return ""
    if keep == "last":
        return f"epoch {epoch} of {metrics['epochs']} is kept, the last one; "
    if epoch:
        return f"{describe_choice(epoch, metrics, noun)}; "
    few = describe_few(metrics, noun)
    result = f"a worse result on {few}," if few else "a worse validation result"
    return f"every epoch has {result} than the model before training, which is kept; "


def advise_training(metrics: Mapping[str, Any], recipe: Mapping[str, Any], noun: str) -> str:
    """Return advice after a training of which no epoch is kept.

    Args:
        metrics: of the training.
        recipe: its settings.
        noun: the word for one sample, "image" or "text".
    """
    from learngene_zoo.tasks.epochs import count_steps

    epochs = metrics["epochs"]
    steps = epochs * count_steps(metrics["training_images"], recipe["batch_size"])
    losses = [epoch["loss"] for epoch in metrics.get("history", ()) if "loss" in epoch]
    is_too_fast = any(loss > SPIKE * losses[0] for loss in losses)
    # The head of a text model starts so small that the first steps hardly change the loss
    has_begun = not losses or losses[-1] < BEGUN * losses[0]
    fall = _describe_fall(metrics)
    if noun == "text" and not is_too_fast and steps < MIN_STEPS and not has_begun:
        advice = (
            f"more --epochs or a smaller --batch-size (after {count_noun(steps, 'step')} the "
            f"training loss is still {losses[-1]:.4f})"
        )
    elif is_too_fast or fall:
        advice = (
            f"a smaller --lr ({recipe['lr']:g} was used, and {fall or 'the training loss rose'})"
        )
    elif epochs < MIN_EPOCHS:
        advice = f"more --epochs ({epochs} {'was' if epochs == 1 else 'were'} trained)"
    elif steps < MIN_STEPS:
        advice = f"more --epochs ({epochs} were trained, in {steps} steps)"
    else:
        advice = f"a smaller --lr ({recipe['lr']:g} was used)"
    return f"try {advice}, or more training {noun}s"


def _describe_fall(metrics: Mapping[str, Any]) -> str:
    """Describe a validation result that falls far below that before training; "" if none does."""
    history = metrics.get("history", ())
    name = next((key for row in history[:1] for key in row if key.startswith("validation_")), "")
    start, *values = [row[name] for row in history if name in row] or [0.0]
    images = metrics.get("validation_images", 0)
    if not values or not images or not 0 <= start <= 1:
        return ""
    error = max(1 / images, math.sqrt(start * (1 - start) / images))
    if start - min(values) <= SIGMAS * error:
        return ""
    return f"the {name.replace('_', ' ')} fell from {start:.4f} to {min(values):.4f}"


def print_training_warning(metrics: Mapping[str, Any]) -> int:
    """Print the warning of a written model; return 1 if it diverged and is at chance, else 0."""
    warning = str(metrics.get("warning", ""))
    if warning and is_first():
        click.echo(f"warning: {escape_controls(warning)}", err=True)
    return 1 if metrics.get("diverged") and metrics.get("at_chance") else 0


def _list_facts(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of a training for JSON; empty for results of earlier versions."""
    names = (name.removeprefix("test_") for name in metrics if name.startswith("test_"))
    metric = next((name for name in names if name not in ("interval", "images")), None)
    if metric is None:
        return {}
    low, high = metrics["test_interval"]
    epoch = {"kept_epoch": metrics["kept_epoch"]} if "kept_epoch" in metrics else {}
    value, images = metrics[f"test_{metric}"], metrics["test_images"]
    return {**epoch, "metric": metric, "value": value, "low": low, "high": high, "images": images}


# Descriptions of `lifecycle.choose_rates` and `adapt_to_steps` for --help.
RATE = (
    f"{lifecycle.FINETUNE.lr:g} up to width {lifecycle.FULL_RATE}; wider "
    f"{lifecycle.FINETUNE.lr * lifecycle.FULL_RATE:g}/width, or {lifecycle.INHERITED_LR:g} if "
    f"pretrained, times sqrt(N/{lifecycle.FINETUNE.batch_size}) in smaller batches of N; of "
    f"pretrained text models {lifecycle.TEXT_LR:g}, or "
    f"{lifecycle.TEXT_LR * lifecycle.FULL_RATE:g}/width of a wider ancestry model"
)
BATCH = (
    f"{lifecycle.FINETUNE.batch_size}; 8 to 32 if pretrained, on at most "
    f"{(lifecycle.WARMUP_STEPS - 1) * lifecycle.FINETUNE.batch_size} images; of texts always "
    f"{lifecycle.FINETUNE.batch_size}"
)
WARMUP = f"{lifecycle.FINETUNE.warmup:g}; at least {lifecycle.WARMUP_STEPS} steps if pretrained"
DECAY = (
    f"1; {lifecycle.INHERITED_DECAY:g} on images if pretrained and wider than {lifecycle.FULL_RATE}"
)
finetune_command = SettingsCommand(
    "finetune",
    callback=finetune,
    help="Fine-tune all weights of a model on a task.\n\n"
    "MODEL is a folder, organisation/name@revision on the Hub, or the name of a timm classifier, "
    "such as timm:deit_tiny_patch16_224 (default: ./descendant). The model gets a new head if its "
    "classes are not those of the task.",
    epilog="\b\nExamples:\n"
    "  lgzoo finetune\n"
    "  lgzoo finetune descendant --task digits --epochs 20 --lr 3e-4\n"
    "  lgzoo finetune --task folder:photos\n"
    "  lgzoo finetune timm:convnext_tiny --task folder:photos -o convnext",
    params=[
        make_model_argument(),
        click.Option(
            ["--task"],
            shell_complete=complete_tasks,
            help="Task to train on (default: the task of the catalogue that the model was built "
            "for; else digits, if its ancestry model is the bundled one).",
        ),
        click.Option(
            ["--preset"],
            help="Preset for the settings that are not given; paper: the recipe of the paper of "
            "the method that built MODEL.",
        ),
        make_image_size_option(
            "Image height and width in pixels, also of the fine-tuned model; its position "
            "embedding is resampled.  [default: the model's]"
        ),
        *make_options(lifecycle.FinetuneConfig(), kind=TrainingOption),
        *make_auto_options(lifecycle.FINETUNE, lifecycle.AUTO_SETTINGS, lr=RATE, batch_size=BATCH),
        *make_options(
            lifecycle.FINETUNE,
            without=lifecycle.AUTO_SETTINGS,
            defaults={"layer_decay": DECAY, "warmup": WARMUP},
        ),
        *make_job_options("finetuned"),
    ],
)
