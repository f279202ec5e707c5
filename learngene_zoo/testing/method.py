"""The contract of a method: `check_method`, the laws that it consists of, and tiny models and tasks to check them with."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import torch

from learngene_zoo import lifecycle, registry
from learngene_zoo.artifacts.ancestry import Ancestry
from learngene_zoo.artifacts.descendant import Descendant
from learngene_zoo.artifacts.learngene import Learngene, load
from learngene_zoo.artifacts.records import AncestryRecord, LearngeneConfig
from learngene_zoo.errors import BadPlugin, WrongCall
from learngene_zoo.families.initialisation import initial
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.method import Extractor, Member, Method
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import from_json, settings_of, to_json, with_settings
from learngene_zoo.storage import StateDict
from learngene_zoo.tasks.task import SPLITS, Task

if TYPE_CHECKING:
    from torch import nn

# The command line's own options: a method's setting of the same name could not be reached.
COMMON = frozenset(
    (
        "device", "seed", "precision", "threads", "workers", "out", "force", "resume", "quiet", "offline",
        "json", "ancestry", "task", "preset", "debug", "help", "layers", "width", "heads", "classes",
        "num_classes", "image_size", "max_params", "max_flops", "max_latency", "learngene", "tracker",
        "convention", "control"
    )
)  # fmt: skip
# What `plan` must not need. Blocked even if it is imported already, so that a test run cannot hide an import.
HOT = (
    "torch",
    "timm",
    "numpy",
    "datasets",
    "learngene_zoo.families.model",
    "learngene_zoo.families.surgery",
    "learngene_zoo.artifacts.descendant",
)
MOST_MEMBERS = 10_000
CLASSES = 5  # of the descendants that are built; no tiny task has as many


def tiny_ancestry(seed: int = 0, **sizes: Any) -> Ancestry:
    """An ancestry model with random weights: 3 layers, width 32, 2 heads, 16 pixels, patches of 8."""
    shape = {"layers": 3, "width": 32, "heads": 2, "classes": 4, "image_size": 16, "patch_size": 8, **sizes}
    spec = ViTSpec(**shape)
    record = AncestryRecord(source=f"tiny-{seed}", spec=spec, licence="apache-2.0")
    return Ancestry(record=record, state=initial(spec, seed, "fan_in"))


@dataclass(frozen=True)
class TinySplit:
    """Random images in memory, brighter in one place per class."""

    images: torch.Tensor  # uint8 (N, C, H, W)
    labels: np.ndarray  # int64 (N,)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, indices: Sequence[int]) -> torch.Tensor:
        """uint8 (len(indices), C, H, W)."""
        return self.images[list(indices)]


@dataclass(frozen=True)
class _Opener:
    """Opens the splits of a tiny task; a class, so that it can be sent to worker processes."""

    name: str
    classes: int
    image_size: int
    sizes: Mapping[str, int]

    def __call__(self, split: str) -> TinySplit:
        generator = np.random.default_rng([*self.name.encode(), SPLITS.index(split)])
        labels = np.arange(self.sizes[split], dtype=np.int64) % self.classes
        images = generator.integers(0, 96, (len(labels), 3, self.image_size, self.image_size), dtype=np.uint8)
        for row, label in enumerate(labels):
            images[row, :, label % self.image_size] += 128
        return TinySplit(torch.from_numpy(images), labels)


def tiny_task(name: str = "tiny", classes: int = 3, image_size: int = 16) -> Task:
    """A classification task in memory: 48 training, 12 validation and 12 test images."""
    sizes = {"train": 48, "validation": 12, "test": 12}
    return Task(
        name=name,
        title="random images in memory",
        classes=classes,
        class_names=tuple(f"class {label}" for label in range(classes)),
        image_size=image_size,
        licence="CC0-1.0",
        sizes=sizes,
        open_split=_Opener(name, classes, image_size, sizes),
    )


def check_method(
    method: Method,
    *,
    extractor: Extractor | None = None,
    ancestry: Ancestry | None = None,
    tasks: Sequence[Task] | None = None,
) -> None:
    """The whole contract of a registered method, on tiny models: about a second, and what its extraction takes, thrice.

    extractor: the settings to use (default: the preset "smoke"). ancestry, tasks: what to extract from (default: tiny ones).
    """
    check_settings(method)
    extractor = extractor or method.presets["smoke"]
    ancestries = _ancestries(method, ancestry)
    data = _tasks(method, tasks)
    learngene = check_extraction(extractor, ancestries, data)
    check_outline(method, extractor, ancestries, learngene.config)
    with tempfile.TemporaryDirectory() as place:
        kept = check_record(method, extractor, ancestries, data, Path(place))
        members = check_family(method, kept.config)
        check_members(method, kept, members, Path(place))


def check_settings(method: Method) -> None:
    """Presets exist and are of one type; no setting shadows an option of the command line."""
    absent = {"mini", "smoke"} - set(method.presets)
    _law(not absent, method, f"lacks the preset {', '.join(sorted(absent))}")
    kinds = {type(preset).__name__ for preset in method.presets.values()}
    _law(
        len({type(preset) for preset in method.presets.values()}) == 1, method, f"has presets of several types: {kinds}"
    )
    for part, settings in (("extractor", method.extractor), ("expander", method.expander)):
        shadows = sorted({setting.name for setting in settings_of(settings)} & COMMON)
        _law(not shadows, method, f"has a setting of its {part} that shadows the common option {', '.join(shadows)}")
        again = from_json(type(settings), to_json(settings), part)
        _law(
            again == settings, method, f"has settings of its {part} that do not survive JSON: {settings} became {again}"
        )


def check_extraction(extractor: Extractor, ancestries: Sequence[Ancestry], tasks: Sequence[Task]) -> Learngene:
    """An extraction changes no ancestry, and two with one seed give one learngene. Returns it."""
    before = [{name: tensor.clone() for name, tensor in ancestry.state.items()} for ancestry in ancestries]
    learngene = extractor(ancestries, tasks, Run(seed=3))
    for ancestry, state in zip(ancestries, before):
        changed = _difference(ancestry.state, state)
        assert not changed, f"the extraction changed its ancestry model: {changed}"
    again = extractor(ancestries, tasks, Run(seed=3))
    changed = _difference(again.state, learngene.state)
    assert not changed, f"two extractions with one seed differ: {changed}"
    assert again.config == learngene.config, f"two extractions with one seed differ: {again.config}, {learngene.config}"
    return learngene


def check_outline(
    method: Method, extractor: Extractor, ancestries: Sequence[Ancestry], written: LearngeneConfig
) -> None:
    """The outline says what will be written, and needs neither torch nor anything that imports it."""
    specs = [ancestry.spec for ancestry in ancestries]
    with _cold(method, "outline"):
        outline = extractor.outline(specs)
        first = list(islice(method.expander.family(outline), 1))
    _law(outline.method == method.name, method, f"outlines a learngene of {outline.method!r}")
    _law(written.method == method.name, method, f"writes a learngene of {written.method!r}")
    _law(outline.spec == written.spec, method, f"outlines {outline.spec} but writes {written.spec}")
    _law(bool(first), method, "plans no descendant from its outline")


def check_record(
    method: Method, extractor: Extractor, ancestries: Sequence[Ancestry], tasks: Sequence[Task], place: Path
) -> Learngene:
    """`lifecycle.extract` writes a folder that gives back config and tensors, and settings that rebuild the extractor."""
    try:
        registered = registry.load(method.name)
    except WrongCall as error:
        raise AssertionError(f"{method.name} is not registered (is its package installed?): {error}") from error
    _law(registered == method, method, f"is registered as another object: {registered}")
    sources = {f"ancestry-{i}": ancestry for i, ancestry in enumerate(ancestries)}
    data = {task.name: task for task in tasks}
    with (
        mock.patch("learngene_zoo.artifacts.ancestry.open_ancestry", lambda source, **_: sources[source]),
        mock.patch.object(lifecycle, "open_task", lambda reference, **_: data[reference]),
    ):
        made = lifecycle.extract(
            method.name,
            ancestries=list(sources),
            tasks=list(data),
            extractor=extractor,
            out=place / "learngene",
            run=Run(seed=3),
        )
    kept = load(place / "learngene")
    _law(to_json(kept.config) == to_json(made.config), method, "has a config that does not survive being written")
    changed = _difference(kept.state, made.state)
    _law(not changed, method, f"has tensors that do not survive being written: {changed}")
    rebuilt = from_json(type(extractor), kept.config.settings, "settings")
    _law(rebuilt == extractor, method, f"records settings that rebuild {rebuilt}, not {extractor}")
    return kept


def check_family(method: Method, config: LearngeneConfig) -> list[Member]:
    """A family is finite, not empty, the same every time, cold, and follows the classes asked for. Returns it."""
    config = replace(config, spec=config.spec.with_(classes=CLASSES))
    with _cold(method, "family"):
        members = list(islice(method.expander.family(config), MOST_MEMBERS + 1))
        again = list(islice(method.expander.family(config), MOST_MEMBERS + 1))
    _law(bool(members), method, "has an empty family")
    _law(len(members) <= MOST_MEMBERS, method, f"has a family of more than {MOST_MEMBERS} members")
    _law(members == again, method, "has a family that changes from call to call")
    other = [member for member in members if member.spec.classes != CLASSES]
    _law(not other, method, f"has a member without the classes asked for: {other[:1]}")
    return members


def check_members(method: Method, learngene: Learngene, members: Sequence[Member], place: Path) -> None:
    """Every member is built as it was promised; the first and the last also pass through timm unchanged."""
    for index, member in enumerate(members):
        made = _expanded(method, learngene, member)
        _law(made.spec == member.spec, method, f"promised {member.spec} and built {made.spec}")
        model = made.model()
        params = sum(parameter.numel() for parameter in model.parameters())
        _law(params == member.cost().params, method, f"promised {member.cost().params} parameters and built {params}")
        outputs = _outputs(model, made)
        _law(tuple(outputs.shape) == (2, CLASSES), method, f"builds a model whose outputs have shape {outputs.shape}")
        _law(bool(outputs.isfinite().all()), method, f"builds a model whose outputs are not finite: {member.spec}")
        if index in (0, len(members) - 1):
            changed = _difference(_expanded(method, learngene, member).state, made.state)
            _law(not changed, method, f"builds two different models with one seed: {changed}")
            _reopened(method, made, outputs, place / f"member-{index}")


def _reopened(method: Method, made: Descendant, outputs: torch.Tensor, folder: Path) -> None:
    import timm

    made.save(folder)
    again = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    difference = (_outputs(again, made) - outputs).abs().max().item()
    _law(difference == 0, method, f"builds a model that timm reopens with outputs that differ by {difference}")


def _expanded(method: Method, learngene: Learngene, member: Member) -> Descendant:
    expander = with_settings(method.expander, member.settings)
    try:
        return lifecycle.expand(learngene, target=member.target, expander=expander, run=Run(seed=5))
    except BadPlugin as error:
        raise AssertionError(f"the method {method.name} breaks its promise: {error}") from error


@torch.no_grad()
def _outputs(model: nn.Module, made: Descendant) -> torch.Tensor:
    """(2, classes), of two fixed random images."""
    input_format = made.input_format
    images_BCHW = torch.randn(
        (2, input_format.channels, input_format.image_size, input_format.image_size),
        generator=torch.Generator().manual_seed(0),
    )
    return model.eval()(images_BCHW)


def _ancestries(method: Method, ancestry: Ancestry | None) -> list[Ancestry]:
    """As few as the method takes; of several each has weights of its own, and is a head wider than the one before."""
    count = method.ancestries[0]
    if not count:
        return []
    first = ancestry or tiny_ancestry()
    heads = range(first.spec.heads, first.spec.heads + count)
    widths = [{"heads": number, "width": number * first.spec.head_width} for number in heads]
    sizes = {name: getattr(first.spec, name) for name in ("layers", "image_size", "patch_size")}
    return [first, *(tiny_ancestry(seed, **sizes, **widths[seed]) for seed in range(1, count))]


def _tasks(method: Method, tasks: Sequence[Task] | None) -> list[Task]:
    most = {"none": 0, "one": 1, "many": 2}[method.tasks]
    return list(tasks) if tasks is not None else [tiny_task("tiny-a"), tiny_task("tiny-b", classes=4)][:most]


def _difference(got: StateDict, wanted: StateDict) -> str:
    """The first tensor that is not bit-equal, in words; empty if there is none."""
    if list(got) != list(wanted) and set(got) != set(wanted):
        return f"tensors {sorted(set(got) ^ set(wanted))[:3]} are in one of them only"
    for name in wanted:
        if got[name].dtype != wanted[name].dtype or not torch.equal(got[name], wanted[name]):
            return f"tensor {name}"
    return ""


@contextmanager
def _cold(method: Method, what: str) -> Iterator[None]:
    """Within, importing anything hot fails."""
    with mock.patch.dict(sys.modules, dict.fromkeys(HOT)):
        try:
            yield
        except ImportError as error:
            raise AssertionError(f"{method.name} needs more than plain numbers for its {what}: {error}") from error


def _law(holds: bool, method: Method, otherwise: str) -> None:
    if not holds:
        raise AssertionError(f"the method {method.name} {otherwise}")
