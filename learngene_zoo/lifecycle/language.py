"""Train a language model from scratch, to extract learngenes of text models from."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from learngene_zoo.artifacts.records import list_versions
from learngene_zoo.errors import WrongCall, refuse_unknown
from learngene_zoo.families.family import Family, iterate_families, load_family, load_host
from learngene_zoo.families.text_spec import TextSpec
from learngene_zoo.lifecycle.models import TRAIN
from learngene_zoo.lifecycle.opening import make_run
from learngene_zoo.runs.folder import check_start, produce
from learngene_zoo.runs.progress import say
from learngene_zoo.runs.run import Run, parse_run
from learngene_zoo.seeds import derive_seed
from learngene_zoo.settings import Bounds, Recipe, check_bounds, to_json
from learngene_zoo.storage import TOKENIZER, parse_json

if TYPE_CHECKING:
    from learngene_zoo.artifacts.descendant import Descendant
    from learngene_zoo.tasks.texts.corpus import Corpus


@dataclass(frozen=True, kw_only=True)
class TextSizes:
    """The sizes of a language model that an image model does not have."""

    vocabulary: Annotated[
        int, "largest number of tokens of a language model's vocabulary", Bounds(least=1)
    ] = 4000
    positions: Annotated[
        int, "largest number of tokens of a text, for a language model", Bounds(least=2)
    ] = 64


# The shape of a model that is trained in minutes.
LANGUAGE_SIZES: Mapping[str, Any] = {
    "layers": 6,
    "width": 96,
    "heads": 3,
    "mlp_ratio": 4.0,
    **vars(TextSizes()),
}
LANGUAGE_TEXTS = ("words",)  # the suite whose texts are used by default
_NEUTRAL = Recipe(augment="none")
_UNUSED = ("augment", "drop_path", "mixup", "cutmix", "images", "repeats", "layer_decay")


def list_language_families() -> list[str]:
    """Return the names of the families whose models predict words."""
    return [family.name for family in iterate_families() if family.predicts_words]


def train_language(
    texts: Sequence[str] = LANGUAGE_TEXTS,
    *,
    family: str,
    recipe: Recipe = TRAIN,
    out: str | Path | None = None,
    run: Run | None = None,
    force: bool = False,
    **sizes: Any,
) -> Descendant:
    """Train a language model and its tokenizer: a text ancestry model.

    Args:
        texts: what to train on: names of text tasks and suites, `text:PATH` for plain texts, or
            labelled texts such as `csv:PATH`, whose labels are not used.
        family: the family of the model, one whose models predict words.
        recipe: the training; a step has `batch_size` blocks of `positions` tokens.
        out: folder to write the model to; transformers opens it.
        run: how to compute. None: `Run()`, with progress in a notebook.
        force: replace existing content of `out`.
        sizes: the shape, by the names in `LANGUAGE_SIZES`, whose values are the defaults.

    Raises:
        WrongCall: for a family that predicts no words, a size that describes no model, a setting
            that texts do not have, and texts that fill no batch.
        BadData: for texts that cannot be read.
        TrainingFailed: if the loss is still near that of guessing after a tenth of the steps.
    """
    run = parse_run(run, make_run)
    check_start(out, run, force)
    kind = _find_family(family)
    spec = _build_spec(kind, sizes)
    _check_recipe(recipe)
    load_host(kind)  # refuses a machine without transformers before the texts are read
    from learngene_zoo.artifacts.descendant import load_descendant
    from learngene_zoo.tasks.texts.corpus import open_corpus

    corpus = open_corpus(texts, offline=run.offline)
    settings = {
        "texts": [to_json(source.record) for source in corpus.sources],
        "spec": to_json(spec),
        "recipe": to_json(recipe),
    }

    def make(run: Run) -> Descendant:
        return _make(corpus, spec, recipe, run)

    return produce(
        make,
        load_descendant,
        out=out,
        verb="train language",
        settings=settings,
        run=run,
        force=force,
        data=corpus.stamp,
    )


def _find_family(name: str) -> Family:
    names = list_language_families()
    if name not in names:
        raise refuse_unknown("family of language models", name, names)
    return load_family(name)


def _build_spec(family: Family, sizes: Mapping[str, Any]) -> TextSpec:
    """Return the shape of a model. Raises `WrongCall` for a size that the family does not have."""
    wrong = next((name for name in sizes if name not in LANGUAGE_SIZES), None)
    if wrong is not None:
        raise refuse_unknown("size of a language model", wrong, LANGUAGE_SIZES)
    spec: Any = family.spec(classes=0, **{**LANGUAGE_SIZES, **sizes})
    check_bounds(TextSizes(vocabulary=spec.vocabulary, positions=spec.positions))
    return spec  # type: ignore[no-any-return]


def _check_recipe(recipe: Recipe) -> None:
    """Raise `WrongCall` for a setting of images."""
    for name in _UNUSED:
        if getattr(recipe, name) != getattr(_NEUTRAL, name):
            raise WrongCall(
                f"{name} is {getattr(recipe, name)}, which a language model does not use; leave it"
                " out"
            )


def _make(corpus: Corpus, spec: TextSpec, recipe: Recipe, run: Run) -> Descendant:
    from learngene_zoo.families.text_format import make_text_format
    from learngene_zoo.training.language import (
        PAD,
        SPECIAL,
        BlockBatches,
        encode_blocks,
        train_tokenizer,
    )

    content = train_tokenizer(corpus.train, spec.vocabulary)
    tokenizer: Any = parse_json(content.encode())
    words = tokenizer["model"]["vocab"]
    pad, end = (words[name] for name in SPECIAL)
    if len(words) < spec.vocabulary:
        say(run, f"the texts give {len(words):,} words instead of {spec.vocabulary:,}")
    spec = spec.with_(vocabulary=len(words), pad_token=pad, bos_token=end, eos_token=end)
    form = make_text_format(content, spec.positions, pad=pad)
    blocks = encode_blocks(corpus.train, form, derive_seed(run.seed, "texts"))
    batches = BlockBatches(blocks, form, recipe.batch_size, derive_seed(run.seed, "data"))
    files = {
        TOKENIZER: content,
        "tokenizer_config.json": json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "model_max_length": spec.positions,
                "padding_side": "right",
                "pad_token": PAD,
                **dict.fromkeys(("bos_token", "eos_token", "unk_token"), SPECIAL[1]),
            },
            indent=2,
        ),
    }
    return _fit(corpus, spec, batches, recipe, run, files)


def _fit(
    corpus: Corpus,
    spec: TextSpec,
    batches: Any,
    recipe: Recipe,
    run: Run,
    files: Mapping[str, str],
) -> Descendant:
    from learngene_zoo.artifacts.descendant import assemble
    from learngene_zoo.families.tensors import get_state_dict
    from learngene_zoo.training.fit import check_progress
    from learngene_zoo.training.language import NextWord, encode_blocks, measure_loss
    from learngene_zoo.training.loop import train

    start = assemble(spec, {}, seed=derive_seed(run.seed, "init"), files=files)
    model: Any = start.model()
    objective = NextWord(model, spec, recipe.label_smoothing)
    steps = train(objective, batches, recipe, run, label="language model")
    for _ in check_progress(steps, spec.vocabulary, run.folder) if recipe.epochs else steps:
        pass
    form = batches.input_format
    metrics: dict[str, Any] = dict(_count(batches))
    if corpus.validation:
        held_out = encode_blocks(corpus.validation, form)
        metrics["validation_tokens"] = int((held_out != form.pad).sum())
        metrics["validation_loss"] = round(measure_loss(model, spec, held_out, form.pad, run), 4)
    provenance: dict[str, Any] = {
        "method": "train",
        "corpus": [to_json(source.record) for source in corpus.sources],
        "recipe": to_json(recipe),
        "training_seed": run.seed,
        "device": run.device_name,
        "metrics": {
            **metrics,
            "epochs": recipe.epochs,
            "uniform_loss": _compute_uniform_loss(spec),
        },
        "versions": list_versions(),
    }
    state = {name: tensor.cpu().clone() for name, tensor in get_state_dict(model).items()}
    return start.with_state(state, provenance=provenance)


def _count(batches: Any) -> Iterator[tuple[str, int]]:
    yield "training_blocks", batches.images
    yield "training_tokens", int((batches.blocks_MN != batches.input_format.pad).sum())


def _compute_uniform_loss(spec: TextSpec) -> float:
    return round(math.log(spec.vocabulary), 4)
