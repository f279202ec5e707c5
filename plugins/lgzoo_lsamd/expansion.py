"""From the ancestry model to the kept blocks, and from the kept blocks to a descendant. Cold at its top.

A learngene's tensors keep the names they have in the ancestry model (timm's, blocks counted from 0), so that a block can
be told by its name: of the kept blocks 1, 4, 5 the artifact holds `blocks.0.*`, `blocks.3.*` and `blocks.4.*`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from learngene_zoo.plugin import BadFile, Learngene, Spec, table_of

if TYPE_CHECKING:
    from learngene_zoo.plugin import Descendant, StateDict

Shape = tuple[int, ...]


def base_blocks(state: StateDict, spec: Spec, kept: Collection[int]) -> StateDict:
    """Of an ancestry model's tensors (shared, not copied): stem, final norm, and the blocks `kept`, counted from 1."""
    from learngene_zoo.plugin import only

    return only(state, _inside(spec, kept))


def build(learngene: Learngene, spec: Spec, sources: Sequence[int], *, seed: int) -> Descendant:
    """A descendant whose block `i` is the ancestry's block `sources[i]` (counted from 1), with a fresh head.

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
    """Stem, kept blocks and last norm must be there, whole: `assemble` would draw what is not, and nobody would notice."""
    from learngene_zoo.plugin import shapes, shapes_in

    spec, where = learngene.config.spec, str(learngene.folder or "the learngene")
    wanted, found = (_parts(every, spec, kept) for every in (shapes(spec), shapes_in(learngene.state)))
    for name, shape in wanted.items():
        if found.get(name) != shape:
            what = f"has shape {found[name]} in {name}" if name in found else f"lacks the tensor {name}"
            raise BadFile(f"{where} {what}; shape {shape} is wanted: extract or fetch it again")
    extra = sorted(set(found) - set(wanted))
    if extra:
        raise BadFile(f"{where} holds the tensor {extra[0]}, which its model does not have; extract or fetch it again")


def _parts(every: Mapping[str, Shape], spec: Spec, kept: Collection[int]) -> dict[str, Shape]:
    inside = _inside(spec, kept)
    return {name: shape for name, shape in every.items() if inside(name)}


def _inside(spec: Spec, kept: Collection[int]) -> Callable[[str], bool]:
    """Whether a tensor belongs to stem, last norm or the blocks `kept`."""
    table, blocks = table_of(spec), {None, *(block - 1 for block in kept)}
    return lambda name: table.block_of(name) in blocks and not table.is_head(name)
