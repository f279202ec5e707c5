"""Functions behind hubconf.py; they need only torch, timm, safetensors and huggingface_hub.

Models of texts also need transformers and tokenizers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from learngene_zoo import lifecycle
from learngene_zoo.artifacts import shelf
from learngene_zoo.artifacts.learngene import Learngene, load_learngene
from learngene_zoo.artifacts.records import SOURCES, parse_reference
from learngene_zoo.errors import Unavailable, WrongCall, ZooError, refuse_unknown
from learngene_zoo.families.family import get_table
from learngene_zoo.families.text_format import TextFormat
from learngene_zoo.method.contract import Method
from learngene_zoo.method.installed import METHODS, find_method
from learngene_zoo.method.sizes import SIZES
from learngene_zoo.runs.run import DEVICES, Run
from learngene_zoo.settings import Recipe, list_settings
from learngene_zoo.tasks.catalogue import find_entry, find_suite_of

if TYPE_CHECKING:
    import torch
    from torch import nn

    from learngene_zoo.artifacts.descendant import Descendant

SUFFIX = "_vit"


def list_entries() -> list[str]:
    """List `METHOD_vit` for every method that can build without further packages.

    Such a method needs only files of this package and torch, timm and safetensors.
    """
    return [f"{name}{SUFFIX}" for name in METHODS.references() if not _explain_unlisted(name)]


def _explain_unlisted(method: str) -> str:
    """Return why a method has no entry; empty if it has one."""
    try:
        record = METHODS.load(method)
    except ZooError as error:
        return str(error)
    if any(isinstance(value, Recipe) for value in vars(record.expander).values()):
        return (
            f"{method} trains when it builds; load its learngene with the entry `descendant`, "
            f"learngene='PATH'"
        )
    if _needs_no_learngene(record) or any(
        card.rpartition("-")[0] == method for card in shelf.list_learngenes()
    ):
        return ""
    return (
        f"no learngene of {method} comes with this package; "
        f"make one with `lgzoo extract {method}` and load it with "
        "the entry `descendant`, learngene='PATH'"
    )


def load_entry(name: str) -> Callable[..., nn.Module]:
    """Return the entry of that name.

    Raises `AttributeError`, as a module does, if there is none.
    """
    method = name.removesuffix(SUFFIX)
    if name not in list_entries():
        if METHODS.is_installed(method):
            raise AttributeError(f"no entry named {name!r}: {_explain_unlisted(method)}")
        raise AttributeError(f"no entry named {name!r}; there are {', '.join(list_entries())}")
    function = partial(method_vit, method)
    function.__doc__ = (
        f"A Vision Transformer from a learngene of the method {method}.\n\n"
        "The same parameters as `descendant`; `learngene` is optional. Without a task and classes "
        "the model has the learngene's head, if it has one. A head\n"
        "that the learngene does not have for the task is random, and a warning says so; "
        "`model.label_names` are its classes."
    )
    return function


def method_vit(
    method: str, task: str | None = None, *, learngene: str | Path | None = None, **options: Any
) -> nn.Module:
    """Build a model from a learngene of one method (default: the one on the shelf).

    Raises `WrongCall` for a learngene of another method, or if the shelf has none of this one.
    """
    with _name_missing_packages():
        gene = _find_on_shelf(method) if learngene is None else shelf.open_learngene(learngene)
    if gene.config.method != method:
        raise WrongCall(
            f"{learngene} is a learngene of {gene.config.method}, not of {method}; "
            "use the entry `descendant`"
        )
    return build(gene, task, **options)


def _needs_no_learngene(method: Method) -> bool:
    """Return whether a method builds without anything learned in an extraction: `scratch`."""
    return not method.inherits and method.tasks == "none"


def _find_on_shelf(method: str) -> Learngene:
    card = shelf.find_card(method)
    if card is not None:
        return load_learngene(shelf.find_cards_folder() / card)
    if _needs_no_learngene(METHODS.load(method)):
        return lifecycle.extract(method)
    raise WrongCall(
        f"{method}{SUFFIX} needs a learngene, and the shelf has none of {method} (only "
        f"{shelf.abbreviate_names(shelf.list_learngenes())}); "
        f"make one with `lgzoo extract {method}` and give its folder, "
        "learngene='PATH', or name one on the Hub"
    )


def build(
    learngene: str | Path | Learngene,
    task: str | None = None,
    *,
    pretrained: bool = True,
    seed: int = 0,
    device: str | torch.device | None = None,
    ancestry: str | None = None,
    **sizes: Any,
) -> nn.Module:
    """Build a timm model in eval mode from a learngene; of texts, a model of transformers.

    `model.label_names` are the classes of its outputs, empty where they are not known. A text
    model has a `model.tokenizer` of the package tokenizers, which pads and truncates. Warns if the
    head is random: a model with such a head has to be fine-tuned. If neither a task nor classes are
    named, and the learngene is for no task, the model has no head: its outputs are features, as
    with timm's `num_classes=0`.

    Args:
        learngene: a learngene or a reference to one.
        task: the task that the model is for.
        pretrained: False: all weights are random.
        seed: for the weights that are not inherited.
        device: the model's device; default: torch's. On `meta` it has no numbers.
        ancestry: location of the ancestry model that the learngene records, for methods that read
            it again. It does not replace that model: extract from another one with
            `lg.extract(METHOD, ancestry=…, out="FOLDER")` and build from the folder.
        sizes: as of `lifecycle.expand`, by our names or timm's; errors too are the same.

    Raises:
        WrongCall: for an argument of another type, for another ancestry model, and as
            `lifecycle.expand` does.
        Unavailable: for a device that this machine does not have.
    """
    with _name_missing_packages():
        from learngene_zoo.families.tensors import initialise

        if not isinstance(pretrained, bool):
            raise WrongCall(f"pretrained is {pretrained!r:.40}; expected True or False")
        model_device = _find_device(device)
        run = Run(
            seed=seed,
            device="cpu" if model_device.type not in DEVICES else str(model_device),
            ancestry=None if ancestry is None else str(ancestry),
        )
        import torch

        with torch.device("cpu"):
            gene = shelf.open_learngene(learngene)
            _check_sizes(gene, sizes)
            if ancestry is not None:
                _check_ancestry(gene, ancestry)
            descendant = lifecycle.expand(
                gene, run=run, **{"task": task, **_choose_classes(gene, task, sizes), **sizes}
            )
            descendant = replace(
                descendant, class_names=descendant.class_names or _class_names(descendant)
            )
            if pretrained:
                _tell_of_head(descendant)
            else:
                descendant = descendant.with_state(
                    initialise(descendant.spec, seed), inherited=frozenset()
                )
            model = descendant.model()
        model.label_names = list(descendant.class_names)
        if isinstance(descendant.input_format, TextFormat):
            from learngene_zoo.tasks.texts.encoding import build_tokenizer

            model.tokenizer = build_tokenizer(descendant.input_format)
        return model.to(model_device)


def _check_sizes(gene: Learngene, sizes: Mapping[str, Any]) -> None:
    """Raise `WrongCall` for a name that is no size, no setting and no control of a learngene."""
    expander = find_method(gene.config, gene.folder or "it").expander
    known = SIZES.union({"control"}, (setting.name for setting in list_settings(expander)))
    for name in sizes:
        if name not in known:
            raise refuse_unknown("size or setting", name, known)


def _check_ancestry(gene: Learngene, source: str | Path) -> None:
    """Raise `WrongCall` unless a source is an ancestry model that a learngene records."""
    from learngene_zoo.pretrained.ancestry import open_ancestry

    source = parse_reference("ancestry", source, SOURCES)
    recorded = gene.config.ancestries
    checksums = {record.sha256 for record in recorded}
    if None in checksums or open_ancestry(source).record.sha256 in checksums:
        return
    names = ", ".join(record.source for record in recorded) or "none"
    raise WrongCall(
        f"{source} is not the ancestry model of this learngene ({names}); to build from {source}, "
        f"extract first: lg.extract({gene.config.method!r}, ancestry={source!r}, out='FOLDER'), "
        "then use the entry `descendant` or lg.expand with 'FOLDER'"
    )


def _find_device(device: str | torch.device | None) -> torch.device:
    """Return the device of a model, by default torch's.

    Raises `WrongCall` for a name that torch does not know, `Unavailable` for a GPU that this
    machine does not have.
    """
    import torch

    if device is None:
        return torch.get_default_device()
    try:
        named = torch.device(device)
    except (RuntimeError, TypeError):
        raise WrongCall(
            f"device is {device!r:.40}; expected a device of torch, such as 'cpu', 'cuda' or 'mps'"
        ) from None
    count = {
        "cuda": lambda: torch.cuda.device_count() if torch.cuda.is_available() else 0,
        "mps": lambda: int(torch.backends.mps.is_available()),
    }.get(named.type)
    if count is not None and (named.index or 0) >= count():
        raise Unavailable(f"this machine has no device {named}; use device='cpu'")
    return named


def _choose_classes(gene: Learngene, task: str | None, sizes: Mapping[str, Any]) -> dict[str, int]:
    """Return `classes: 0` if no task or classes are named and the learngene is for none."""
    config, table = gene.config, get_table(gene.config.spec)
    is_for_task = config.purpose is not None or any(table.is_head(name) for name in gene.state)
    is_named = task is not None or any(
        sizes.get(name) is not None for name in ("task", "classes", "num_classes")
    )
    changes_classes = "classes" in find_method(config, gene.folder or "it").expander.axes
    return {} if is_for_task or is_named or not changes_classes else {"classes": 0}


def _class_names(descendant: Descendant) -> tuple[str, ...]:
    """Return the class names of a catalogue task whose data needs no download."""
    entry = find_entry(descendant.task or "")
    if (
        entry is None
        or find_suite_of(entry).hub(entry) is not None
        or entry.classes != descendant.spec.classes
    ):
        return ()
    try:
        return find_suite_of(entry).open(entry, True).class_names
    except (ZooError, ImportError):
        return ()


def _tell_of_head(descendant: Descendant) -> None:
    """Warn if the model has a head that does not come from the learngene."""
    table = get_table(descendant.spec)
    head = {name for name in descendant.state if table.is_head(name)}
    if head and not head <= descendant.inherited:
        classes_text = (
            f"the {descendant.spec.classes} classes of {descendant.task}"
            if descendant.task
            else f"{descendant.spec.classes} classes"
        )
        warnings.warn(
            f"the head of this model, for {classes_text}, is random, because its learngene has "
            "none for them: train it before use (classes=0 leaves the head out)",
            stacklevel=4,
        )


@contextmanager
def _name_missing_packages() -> Iterator[None]:
    """Raise `Unavailable` with the install command for a missing package."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or str(error)).partition(".")[0]
        raise Unavailable(
            f"this needs the package {package}, which is not installed: pip install {package}"
        ) from error
