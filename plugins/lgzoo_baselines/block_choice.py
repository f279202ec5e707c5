"""Whole blocks of the ancestry model, chosen by their places alone: the rivals that cost nothing.

Of the ancestry model's L blocks, counted from 0, a descendant of k <= L layers has in this order

    first_k          0, ..., k - 1
    last_k           L - k, ..., L - 1
    middle_k         m, ..., m + k - 1      with m = floor((L - k) / 2)
    evenly_spaced    i (L - 1) / (k - 1)    for i = 0, ..., k - 1, rounded: the first and the last are among them

with stem and final norm as they are, and a fresh head. These are the arms that learngene papers name "first n", "last n" and
"middle n layers"; the first six blocks are also what Auto-Learngene keeps in its authors' comparisons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from learngene_zoo.plugin import (
    Expander,
    Extractor,
    Learngene,
    LearngeneConfig,
    Member,
    Method,
    Spec,
    Target,
    WrongCall,
    table_of,
)

if TYPE_CHECKING:
    from learngene_zoo.plugin import Ancestry, Descendant, Json, Run, StateDict, Task


def first(whole: int, layers: int) -> list[int]:
    """The first blocks."""
    return list(range(layers))


def last(whole: int, layers: int) -> list[int]:
    """The last blocks."""
    return list(range(whole - layers, whole))


def middle(whole: int, layers: int) -> list[int]:
    """As many blocks left out before them as after them, or one more after them."""
    start = (whole - layers) // 2
    return list(range(start, start + layers))


def even(whole: int, layers: int) -> list[int]:
    """Evenly spaced, the first and the last among them; halves are rounded up. Of one block the first."""
    gaps = max(layers - 1, 1)
    return [(2 * i * (whole - 1) + gaps) // (2 * gaps) for i in range(layers)]


CHOICES: dict[str, Callable[[int, int], list[int]]] = {
    "first_k": first,
    "last_k": last,
    "middle_k": middle,
    "evenly_spaced": even,
}


@dataclass(frozen=True, kw_only=True)
class Keep(Extractor):
    """Keep the ancestry model without its head, or only its name."""

    method: ClassVar[str]

    store: Annotated[
        bool, "keep the ancestry model's weights; otherwise every expansion opens that model again, by its checksum"
    ] = True

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """The ancestry model's shape."""
        return LearngeneConfig(method=self.method, spec=ancestries[0])

    def __call__(self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run) -> Learngene:
        """Nothing is computed."""
        from learngene_zoo.plugin import without_head

        spec, state = ancestries[0].spec, ancestries[0].state
        return Learngene(config=self.outline([spec]), state=without_head(state, spec) if self.store else {})


@dataclass(frozen=True, kw_only=True)
class Take(Expander):
    """Take as many blocks as the descendant has layers, from the method's places."""

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Every depth up to the ancestry model's."""
        return [Member(spec=config.spec.with_(layers=layers)) for layers in range(1, config.spec.layers + 1)]

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """The chosen blocks, positions resized, a new head. Raises `WrongCall` for more layers than there are."""
        config = learngene.config
        spec = target.apply(config.spec)
        if spec.layers > config.spec.layers:
            raise WrongCall(
                f"layers is {spec.layers}; the ancestry model has {config.spec.layers}, and {config.method} builds no deeper "
                "one: choose fewer, or the method stacked"
            )
        return taken(learngene, spec, CHOICES[config.method](config.spec.layers, spec.layers), run)


def narrower(config: LearngeneConfig) -> list[Member]:
    """Every depth up to the ancestry model's, with every number of its heads for which there is such a model."""
    spec, made = config.spec, []
    for layers, heads in product(range(1, spec.layers + 1), range(1, spec.heads + 1)):
        with suppress(WrongCall):  # as where the heads of a pooling layer do not divide the width
            made.append(Member(spec=spec.with_(layers=layers, width=heads * spec.head_width, heads=heads)))
    return made


def body_of(spec: Spec, whole: Spec) -> Spec:
    """The ancestry model's shape with the blocks of a descendant of shape `spec`: the head, and what is read, stay its own."""
    return whole.with_(layers=spec.layers, width=spec.width, heads=spec.heads, mlp_ratio=spec.mlp_ratio)


def taken(learngene: Learngene, spec: Spec, sources: Sequence[int], run: Run) -> Descendant:
    """A descendant whose block `i` is the ancestry model's block `sources[i]`, counted from 0."""
    from learngene_zoo.plugin import take_blocks

    config = learngene.config
    parts = take_blocks(inherited_blocks(learngene, sources, run), config.spec, sources)
    return completed(config, spec, parts, run, {"blocks": list(sources)})


def inherited_blocks(learngene: Learngene, blocks: Iterable[int], run: Run) -> StateDict:
    """The ancestry model's tensors: all of these blocks, counted from 0, and all that belong to no block."""
    from learngene_zoo.plugin import inherited_weights

    table, read = table_of(learngene.config.spec), {None, *blocks}
    return inherited_weights(learngene.config, learngene.state, run, lambda name: table.block_of(name) in read)


def completed(
    config: LearngeneConfig,
    spec: Spec,
    parts: StateDict,
    run: Run,
    provenance: dict[str, Json],
    scheme: Literal["timm", "fan_in"] = "timm",
) -> Descendant:
    """A descendant with these inherited tensors, their positions resized to its patches, and new ones for all others."""
    from learngene_zoo.plugin import assemble, only, resize_positions, shapes

    parts = resize_positions(parts, config.spec, spec)
    parts = only(parts, shapes(spec).__contains__)  # without pooling, if the head is for pixels
    mean, std = config.normalisation
    return assemble(spec, parts, seed=run.seed, scheme=scheme, mean=mean, std=std, provenance=provenance)


class KeepForFirst(Keep):
    """Keep the ancestry model for `first_k`."""

    method = "first_k"


class KeepForLast(Keep):
    """Keep the ancestry model for `last_k`."""

    method = "last_k"


class KeepForMiddle(Keep):
    """Keep the ancestry model for `middle_k`."""

    method = "middle_k"


class KeepForEven(Keep):
    """Keep the ancestry model for `evenly_spaced`."""

    method = "evenly_spaced"


def _method(kept: Keep, title: str) -> Method:
    return Method(
        name=kept.method,
        title=title,
        paper="",
        expander=Take(),
        presets={"mini": kept, "paper": kept, "smoke": kept},
        families=("vit", "eva"),
        tasks="none",
    )


FIRST_K = _method(KeepForFirst(), "the first blocks of the ancestry model")
LAST_K = _method(KeepForLast(), "the last blocks of the ancestry model")
MIDDLE_K = _method(KeepForMiddle(), "the blocks in the middle of the ancestry model")
EVENLY_SPACED = _method(KeepForEven(), "evenly spaced blocks of the ancestry model")
