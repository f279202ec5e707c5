"""From the ancestry model to the kept blocks, and from the kept blocks to a descendant.

A learngene's tensors keep the names that they have in the ancestry model (timm's, blocks counted from 0): of the kept blocks 1, 4
and 5 it holds `blocks.0.*`, `blocks.3.*` and `blocks.4.*`. Everywhere else blocks are counted from 1, as in the paper.

LSAMD, section "Expansion": a stage is a maximal run of adjacent kept blocks; (1, 4, 5, 7, 8) has the stages (1), (4, 5) and
(7, 8). A descendant with more layers than kept blocks repeats blocks inside the stages, one layer at a time, the stages taking
turns. The paper prints the orders for 6 and 7 layers only. Taking turns beyond that is this package's reading; the other
candidate, all additions into one stage, contradicts the printed order of 7 layers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from learngene_zoo.plugin import BadFile, Learngene, Spec, WrongCall, table_of

if TYPE_CHECKING:
    from learngene_zoo.plugin import Descendant, StateDict

Shape = tuple[int, ...]
Stage = tuple[int, ...]
Expansion = Literal["neighbor", "cyclic"]
Priority = Literal[
    "last-middle-first",
    "last-first-middle",
    "middle-last-first",
    "middle-first-last",
    "first-last-middle",
    "first-middle-last",
]


def base_blocks(state: StateDict, spec: Spec, kept: Collection[int]) -> StateDict:
    """Of an ancestry model's tensors (shared, not copied): stem, final norm, and the blocks `kept`."""
    from learngene_zoo.plugin import only

    return only(state, _inside(spec, kept))


def stages(kept: Sequence[int]) -> list[Stage]:
    """The maximal runs of consecutive numbers in `kept`, which is ascending."""
    runs: list[Stage] = []
    for block in kept:
        if runs and block == runs[-1][-1] + 1:
            runs[-1] += (block,)
        else:
            runs.append((block,))
    return runs


def turns(count: int, priority: Priority = "last-middle-first") -> list[int]:
    """The stages' positions, 0 to `count` - 1, in the order in which they take additions.

    With more than three stages "middle" is all inner ones, the last of them first; with two there is no middle, and a
    single stage takes every turn.
    """
    positions = {"first": [0], "middle": list(range(count - 2, 0, -1)), "last": [count - 1] if count > 1 else []}
    return [position for word in priority.split("-") for position in positions[word]]


def grown(stage: Stage, additions: int, expansion: Expansion = "neighbor") -> Stage:
    """The stage with `additions` more blocks: its last one repeated (neighbor), or the whole stage again (cyclic).

    (7, 8) grows by two to (7, 8, 8, 8) or to (7, 8, 7, 8).
    """
    if expansion == "neighbor":
        return stage + stage[-1:] * additions
    return tuple(stage[i % len(stage)] for i in range(len(stage) + additions))


def order(
    kept: Sequence[int], layers: int, *, expansion: Expansion = "neighbor", priority: Priority = "last-middle-first"
) -> tuple[int, ...]:
    """For each of `layers` blocks of a descendant the ancestry block that it inherits.

    Raises `WrongCall` for fewer layers than kept blocks, which the paper leaves undefined.
    """
    missing = layers - len(kept)
    if missing < 0:
        raise WrongCall(
            f"{layers} layers are fewer than the {len(kept)} blocks this learngene keeps; choose {len(kept)} or more, "
            f"or extract again with --top {layers}"
        )
    parts = stages(kept)
    rounds = turns(len(parts), priority)
    additions = [0] * len(parts)
    for addition in range(missing):
        additions[rounds[addition % len(parts)]] += 1
    return tuple(block for part, more in zip(parts, additions) for block in grown(part, more, expansion))


def build(learngene: Learngene, spec: Spec, sources: Sequence[int], *, seed: int) -> Descendant:
    """A descendant whose block `i` is the ancestry's block `sources[i]`, with a new head.

    Every tensor is read once, however often its block is repeated. Raises `BadFile` if the learngene lacks one.
    """
    from learngene_zoo.plugin import assemble, resize_positions, take_blocks

    config = learngene.config
    _check(learngene, set(sources))
    held = base_blocks(learngene.state, spec, set(sources))
    parts = resize_positions(take_blocks(held, spec, [source - 1 for source in sources]), config.spec, spec)
    mean, std = config.normalisation
    return assemble(spec, parts, seed=seed, mean=mean, std=std, provenance={"blocks": list(sources)})


def _check(learngene: Learngene, kept: Collection[int]) -> None:
    """Stem, kept blocks and final norm must be whole: `assemble` would draw what is missing, and nobody would notice."""
    from learngene_zoo.plugin import shapes, shapes_in

    spec, where = learngene.config.spec, str(learngene.folder or "the learngene")
    expected, found = (_parts(every, spec, kept) for every in (shapes(spec), shapes_in(learngene.state)))
    for name, shape in expected.items():
        if found.get(name) != shape:
            what = f"has shape {found[name]} in {name}" if name in found else f"lacks the tensor {name}"
            raise BadFile(f"{where} {what}; expected shape {shape}: extract or fetch it again")
    extra = sorted(set(found) - set(expected))
    if extra:
        raise BadFile(f"{where} holds the tensor {extra[0]}, which its model does not have; extract or fetch it again")


def _parts(every: Mapping[str, Shape], spec: Spec, kept: Collection[int]) -> dict[str, Shape]:
    inside = _inside(spec, kept)
    return {name: shape for name, shape in every.items() if inside(name)}


def _inside(spec: Spec, kept: Collection[int]) -> Callable[[str], bool]:
    """Whether a tensor belongs to stem, final norm or the blocks `kept`."""
    table, blocks = table_of(spec), {None, *(block - 1 for block in kept)}
    return lambda name: table.block_of(name) in blocks and not table.is_head(name)
