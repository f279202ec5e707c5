"""The expander of the three methods: predict the weights of a plain ViT of any size, for any task. Cold.

The hypernetwork reads the target's graph and, where it has a task layer, the task's embedding:

* a task of the extraction: the stored one;
* any other: it is embedded now, from `embedding_images` training images, by the ancestry model that the learngene records;
* no task at all: the mean of the stored ones.

Nothing of this is stored, and nothing is drawn: one learngene and one target give one model (a `fresh` head is the seed's).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from learngene_zoo.plugin import Expander, Learngene, LearngeneConfig, Member, Target, ViTSpec, WrongCall
from lgzoo_tal.course import widths
from lgzoo_tal.details import hypernet_in, read_details
from lgzoo_tal.variants import check_target

if TYPE_CHECKING:
    from learngene_zoo.plugin import Descendant, Run


@dataclass(frozen=True, kw_only=True)
class Predict(Expander):
    """Predict every weight of one model."""

    axes = frozenset({"layers", "width", "heads", "classes", "image_size"})

    embedding_images: Annotated[
        int, "training images that a task is embedded from which the extraction did not see"
    ] = 500
    head: Annotated[Literal["predicted", "fresh"], "the classifier: as predicted, or drawn anew"] = "predicted"

    def __post_init__(self) -> None:
        if self.embedding_images < 1:
            raise WrongCall(f"embedding_images is {self.embedding_images}; it must be at least 1")

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Every depth that was trained on, with every width in whole heads of the ancestry's up to its own.

        Other sizes may be asked for as well: deeper, wider, or with other heads.
        """
        least, most = read_details(config).layers
        sizes = [(layers, width) for layers in range(least, most + 1) for width in widths(config.spec)]
        unit = config.spec.head_width
        return [
            Member(spec=config.spec.with_(layers=layers, width=width, heads=width // unit)) for layers, width in sizes
        ]

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Predict it. Raises `WrongCall` for a size that the decoder cannot reach and for a task that cannot be embedded."""
        from lgzoo_tal.expanding import expanded

        return expanded(self, learngene, reachable(learngene.config, target), target.task, run)


def reachable(config: LearngeneConfig, target: Target) -> ViTSpec:
    """The shape asked for; heads that are not named have the ancestry's width. Raises `WrongCall`."""
    if target.dense:
        raise WrongCall(
            "a hypernetwork predicts no head that gives a class to every pixel; choose a classification task"
        )
    unit = config.spec.head_width
    heads = target.heads
    if heads is None and target.width is not None:
        if target.width % unit:
            near = max(round(target.width / unit), 1) * unit
            raise WrongCall(
                f"width {target.width} is no number of whole heads of {unit}; take {near}, or name the heads too"
            )
        heads = target.width // unit
    named = {"width": target.width, "layers": target.layers, "classes": target.classes, "image_size": target.image_size}
    spec = config.spec.with_(heads=heads, **named)
    check_target(hypernet_in(config), spec)
    return spec
