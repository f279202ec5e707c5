"""Blocks of the ancestry model selected by position alone: baselines without training.

Of the ancestry model's L blocks, counted from 0, a descendant of k <= L layers has in this order

    first_k          0, ..., k - 1
    last_k           L - k, ..., L - 1
    middle_k         m, ..., m + k - 1      with m = floor((L - k) / 2)
    evenly_spaced    i (L - 1) / (k - 1)    for i = 0, ..., k - 1, rounded

with the stem and final norm of the ancestry model and a new head. The code of learngene papers has
such baselines (the first, middle or last ten blocks). Evenly spaced blocks include the first and
the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, Literal

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
    get_table,
)

if TYPE_CHECKING:
    from learngene_zoo.plugin import Ancestry, Descendant, Json, Run, StateDict, Task

Store = Annotated[
    bool,
    "store the ancestry model's weights; otherwise every expansion loads "
    "that model again and verifies its checksum",
]


def choose_first(depth: int, count: int) -> list[int]:
    """Return the indices of the first `count` of `depth` blocks."""
    return list(range(count))


def choose_last(depth: int, count: int) -> list[int]:
    """Return the indices of the last `count` of `depth` blocks."""
    return list(range(depth - count, depth))


def choose_middle(depth: int, count: int) -> list[int]:
    """Return indices with as many blocks left out before as after them, or one more after them."""
    start = (depth - count) // 2
    return list(range(start, start + count))


def choose_evenly(depth: int, count: int) -> list[int]:
    """Return evenly spaced indices, the first and the last block included; halves are rounded up.

    A single block is the first.
    """
    gaps = max(count - 1, 1)
    return [(2 * i * (depth - 1) + gaps) // (2 * gaps) for i in range(count)]


@dataclass(frozen=True, kw_only=True)
class BlockChoiceExtractor(Extractor):
    """Keep the ancestry model without its head, or only its name."""

    store: Store = True

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """Return the config with the ancestry model's shape."""
        return LearngeneConfig(spec=ancestries[0])

    def __call__(
        self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run
    ) -> Learngene:
        """Return the learngene; nothing is computed."""
        from learngene_zoo.plugin import remove_head

        spec, state = ancestries[0].spec, ancestries[0].state
        return Learngene(
            config=self.outline([spec]), state=remove_head(state, spec) if self.store else {}
        )


@dataclass(frozen=True, kw_only=True)
class FirstKExpander(Expander):
    """Take the first blocks."""

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Return every depth up to the ancestry model's."""
        return list_shallower_members(config)

    def check_target(self, config: LearngeneConfig, target: Target) -> None:
        """Raise `WrongCall` for more layers than the ancestry model has."""
        apply_target(config, target)

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Build a descendant of the first blocks, with resized positions and a new head."""
        return build_from_choice(choose_first, learngene, target, run)


@dataclass(frozen=True, kw_only=True)
class LastKExpander(Expander):
    """Take the last blocks."""

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Return every depth up to the ancestry model's."""
        return list_shallower_members(config)

    def check_target(self, config: LearngeneConfig, target: Target) -> None:
        """Raise `WrongCall` for more layers than the ancestry model has."""
        apply_target(config, target)

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Build a descendant of the last blocks, with resized positions and a new head."""
        return build_from_choice(choose_last, learngene, target, run)


@dataclass(frozen=True, kw_only=True)
class MiddleKExpander(Expander):
    """Take the blocks in the middle."""

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Return every depth up to the ancestry model's."""
        return list_shallower_members(config)

    def check_target(self, config: LearngeneConfig, target: Target) -> None:
        """Raise `WrongCall` for more layers than the ancestry model has."""
        apply_target(config, target)

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Build a descendant of the middle blocks, with resized positions and a new head."""
        return build_from_choice(choose_middle, learngene, target, run)


@dataclass(frozen=True, kw_only=True)
class EvenlySpacedExpander(Expander):
    """Take evenly spaced blocks."""

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Return every depth up to the ancestry model's."""
        return list_shallower_members(config)

    def check_target(self, config: LearngeneConfig, target: Target) -> None:
        """Raise `WrongCall` for more layers than the ancestry model has."""
        apply_target(config, target)

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Build a descendant of evenly spaced blocks, with resized positions and a new head."""
        return build_from_choice(choose_evenly, learngene, target, run)


def list_shallower_members(config: LearngeneConfig) -> list[Member]:
    """Return every depth up to the ancestry model's."""
    spec = config.spec
    return [Member(spec=spec.with_(layers=layers)) for layers in range(1, spec.layers + 1)]


def list_smaller_members(config: LearngeneConfig) -> list[Member]:
    """Return every depth up to the ancestry model's, with every possible number of its heads."""
    spec, members = config.spec, []
    for layers, heads in product(range(1, spec.layers + 1), range(1, spec.heads + 1)):
        # Not every number is possible: the heads of a pooling layer must divide the width.
        with suppress(WrongCall):
            smaller = spec.with_(layers=layers, width=heads * spec.head_width, heads=heads)
            members.append(Member(spec=smaller))
    return members


def resize_like(spec: Spec, other: Spec) -> Spec:
    """Return `spec` with the depth, width, heads and MLP ratio of `other`."""
    return spec.with_(
        layers=other.layers, width=other.width, heads=other.heads, mlp_ratio=other.mlp_ratio
    )


def apply_target(config: LearngeneConfig, target: Target) -> Spec:
    """Return the shape of a target. Raises `WrongCall` for more layers than `config.spec` has."""
    spec = target.apply(config.spec)
    if spec.layers > config.spec.layers:
        raise WrongCall(
            f"layers is {spec.layers}; the ancestry model has {config.spec.layers}, and "
            f"{config.method} builds no deeper one: choose fewer, or the method stacked"
        )
    return spec


def build_from_choice(
    choose: Callable[[int, int], list[int]], learngene: Learngene, target: Target, run: Run
) -> Descendant:
    """Build a descendant of as many chosen blocks as `target` has layers.

    Args:
        choose: returns the block indices for the ancestry model's depth and the number of blocks.
        learngene: of a `BlockChoiceExtractor`.
        target: the sizes of the descendant.
        run: gives the seed of new tensors.

    Raises:
        WrongCall: for more layers than the ancestry model has.
    """
    config = learngene.config
    spec = apply_target(config, target)
    return build_from_blocks(learngene, spec, choose(config.spec.layers, spec.layers), run)


def build_from_blocks(
    learngene: Learngene, spec: Spec, sources: Sequence[int], run: Run
) -> Descendant:
    """Build a descendant whose block `i` is the ancestry model's block `sources[i]`.

    Args:
        learngene: of a `BlockChoiceExtractor`.
        spec: the shape of the descendant, of `len(sources)` layers.
        sources: for each layer the index of the block that it copies, counted from 0.
        run: gives the seed of new tensors.
    """
    from learngene_zoo.plugin import take_blocks

    config = learngene.config
    parts = take_blocks(read_blocks(learngene, sources, run), config.spec, sources)
    return build_descendant(learngene, spec, parts, run, {"blocks": list(sources)})


def read_blocks(learngene: Learngene, blocks: Iterable[int], run: Run) -> StateDict:
    """Return the ancestry model's tensors of these blocks and all tensors outside the blocks.

    Args:
        learngene: with the ancestry model's tensors, or only its name.
        blocks: indices, counted from 0.
        run: may name another place of the ancestry model.
    """
    from learngene_zoo.plugin import copy_weights

    table, read = get_table(learngene.config.spec), {None, *blocks}
    return copy_weights(
        learngene.config, learngene.state, run, lambda name: table.block_of(name) in read
    )


def build_descendant(
    learngene: Learngene,
    spec: Spec,
    parts: StateDict,
    run: Run,
    provenance: dict[str, Json],
    scheme: Literal["timm", "fan_in"] = "timm",
) -> Descendant:
    """Build a descendant from inherited tensors; all other tensors are initialised.

    It takes images and texts as the ancestry model does, so it can be trained.

    Args:
        learngene: gives the ancestry model's shape, its input format and its tokenizer.
        spec: the shape of the descendant.
        parts: inherited tensors by name; positions are resized to the patches of `spec`, and
            tensors that `spec` does not have are left out, such as pooling if the head is for
            pixels.
        run: gives the seed of new tensors.
        provenance: recorded in the descendant.
        scheme: the initialisation of new tensors.
    """
    from learngene_zoo.plugin import assemble, get_shapes, resize_positions, select_tensors

    config = learngene.config
    parts = resize_positions(parts, config.spec, spec)
    parts = select_tensors(parts, get_shapes(spec).__contains__)
    mean, std = config.normalisation
    inputs: dict[str, Any] = {"mean": mean, "std": std, "view": config.view}
    inputs["files"] = learngene.files
    return assemble(spec, parts, seed=run.seed, scheme=scheme, provenance=provenance, **inputs)


def _make_method(name: str, title: str, expander: Expander) -> Method:
    extractor = BlockChoiceExtractor()
    return Method(
        name=name,
        title=title,
        paper="",
        expander=expander,
        presets={"mini": extractor, "paper": extractor, "smoke": extractor},
        families=("vit", "eva", "gpt2", "bert"),
        tasks="none",
    )


FIRST_K = _make_method("first_k", "the first blocks of the ancestry model", FirstKExpander())
LAST_K = _make_method("last_k", "the last blocks of the ancestry model", LastKExpander())
MIDDLE_K = _make_method("middle_k", "the middle blocks of the ancestry model", MiddleKExpander())
EVENLY_SPACED = _make_method(
    "evenly_spaced", "evenly spaced blocks of the ancestry model", EvenlySpacedExpander()
)
