"""What the three methods have in common: their settings, and how an extraction goes. Cold.

A method adds what is its own: `tal.py` the ancestry's guidance, `logah.py` and `ghn3.py` released checkpoints; each of them
its decoder and its recipes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from learngene_zoo.plugin import Extractor, Learngene, LearngeneConfig, Recipe, ViTSpec, Work
from lgzoo_tal.architectures import SetName
from lgzoo_tal.course import Course, LowRank, outline, work

if TYPE_CHECKING:
    from learngene_zoo.plugin import Ancestry, Run, Task

# Of the released code of LoGAH and TAL. Attributes of the source task would not be true of images that were moved.
PUBLISHED = Recipe(
    epochs=75, batch_size=512, lr=3e-4, warmup=5, weight_decay=0.01, clip=5.0, label_smoothing=0.1, augment="none"
)

# The low-rank hypernetworks of the presets `mini` and `smoke`.
MINI = LowRank(rank=64, widest=512, chunk=1024, form="centred")
SMOKE = LowRank(hidden=16, layers=1, heads=2, rank=4, widest=64, chunk=512, form="centred")


@dataclass(frozen=True, kw_only=True)
class MetaTraining(Extractor):
    """Train a hypernetwork on models that exist for one step; on a source task first, if there is one."""

    method: ClassVar[str]

    source: Annotated[str | None, "the task of stage 1, opened unless it is among the tasks; none: no stage 1"] = (
        "source"
    )
    joint: Annotated[bool, "one hypernetwork for all tasks of stage 2, or one for each"] = True
    sampling: Annotated[float, "temperature of the sampling of tasks: 1 by their images, inf all alike"] = 2.0
    task_layer: Annotated[bool, "tell the encoder the task in stage 2, as TAL does"] = False
    embedding_images: Annotated[int | None, "training images that a task is embedded from (default: all)"] = None
    attributes: Annotated[
        bool, "learn the source task's attributes too, where it has some (within a few minutes they get in the way)"
    ] = True
    architectures: Annotated[SetName, "the models that are drawn: LoGAH's, TAL's, or the deeper ones of TAL+"] = (
        "vits-1k"
    )
    hold_out: Annotated[tuple[str, ...], "sizes never to draw: 12x96 (layers x width), 12 (layers) or x96 (width)"] = ()
    meta_batch: Annotated[int, "models predicted in each step; all are trained"] = 1
    norm_weight: Annotated[float, "weight of the norms of predicted tensors in the loss"] = 3e-5
    judged: Annotated[
        int | None, "validation images of each task that some predicted models are judged on (default: all)"
    ] = None

    def __post_init__(self) -> None:
        self.course  # noqa: B018  there must be one

    @property
    def course(self) -> Course:
        """What is to be done. Raises `WrongCall` for settings that cannot be meant."""
        own = {name: value for name, value in vars(self).items() if name in Course.__dataclass_fields__}
        return Course(**{**own, "method": self.method, "hypernet": own["hypernet"].spec(), **self.beside()})

    def beside(self) -> dict[str, Any]:
        """What a method makes of settings of its own for the course."""
        return {}

    def outline(self, ancestries: Sequence[ViTSpec]) -> LearngeneConfig:
        """The ancestry's size; a descendant is a plain ViT. Raises `WrongCall` for what the decoder cannot reach."""
        return outline(self.course, ancestries[0])

    def __call__(self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run) -> Learngene:
        """The embeddings of the tasks and both stages, each a part of the run."""
        from lgzoo_tal.stages import extract

        return extract(self.course, self.outline([ancestries[0].spec]), ancestries[0], tasks, run)


@dataclass(frozen=True, kw_only=True)
class Importable(MetaTraining):
    """One that can take a checkpoint of the authors' training code instead of training."""

    released: Annotated[
        str | None, "take this checkpoint instead of training: a file, or hf-hub:organisation/name/file"
    ] = None

    def outline(self, ancestries: Sequence[ViTSpec]) -> LearngeneConfig:
        """As any other; of a checkpoint the hypernetwork's size is not known before it is read."""
        return outline(self.course, ancestries[0], known=self.released is None)

    def __call__(self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run) -> Learngene:
        """Train it, or read it. Of the ancestry's tensors none is used, unless a task layer asks for embeddings."""
        from lgzoo_tal.importing import imported

        if self.released is None:
            return super().__call__(ancestries, tasks, run)
        return imported(self.released, self.course.hypernet.decoder, self.outline([ancestries[0].spec]), run)


def work_of(extractor: Extractor, ancestries: Sequence[ViTSpec], images: Sequence[int]) -> list[Work]:
    """What both stages will take."""
    assert isinstance(extractor, MetaTraining)
    return work(extractor.course, ancestries[0], images)


def mini(recipe: Recipe) -> dict[str, Any]:
    """The settings that the presets `mini` share: minutes of a core."""
    short = replace(recipe, epochs=1, batch_size=64, warmup=0.05)
    return {
        "embedding_images": 500,
        "judged": 500,
        "architectures": "tal+",
        "attributes": False,
        "training": replace(short, images=100_000),
        "tuning": replace(short, epochs=10, images=4000),
    }


def smoke(recipe: Recipe) -> dict[str, Any]:
    """The settings that the presets `smoke` share: two steps a stage."""
    shortest = replace(recipe, epochs=1, images=32, batch_size=16, warmup=0.0)
    return {"embedding_images": 16, "judged": 0, "training": shortest, "tuning": shortest}
