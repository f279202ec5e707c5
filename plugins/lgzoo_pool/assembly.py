"""A path's descendant, out of a learngene's tensors.

The stem is the first anchor's, the last norm and the head are the last one's; the blocks of all parts are counted on, and a
stitch belongs to the first block behind it. Only what the path needs is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from learngene_zoo.plugin import (
    BadFile,
    Descendant,
    Json,
    Learngene,
    ViTSpec,
    assemble,
    resize_positions,
    shapes,
    table_of,
)
from lgzoo_pool.details import Details, read_details
from lgzoo_pool.paths import Path

if TYPE_CHECKING:
    import torch

    from learngene_zoo.plugin import StateDict

STITCH = "stitch."


def build(learngene: Learngene, path: Path, spec: ViTSpec, *, task: str | None, seed: int) -> Descendant:
    """The descendant along a path, of the shape `spec` (`members.spec_of` says it), its positions resized.

    Its head is fresh, unless `task` is the one that the learngene's heads answer. Raises `BadFile` if the learngene lacks a
    tensor that the path needs, or holds one of another shape.
    """
    config = learngene.config
    details = read_details(config)
    stored = spec.with_(image_size=config.spec.image_size, classes=details.classes, dense=details.dense)
    own = task is not None and task == details.task and (spec.classes, spec.dense) == (stored.classes, stored.dense)
    held = _held(learngene, path, stored, heads=own)
    parts = resize_positions(held, stored, spec)
    mean, std = config.normalisation
    return assemble(spec, parts, seed=seed, mean=mean, std=std, provenance={"path": described(path, details)})


def described(path: Path, details: Details) -> Json:
    """A path as JSON: for each part its width and its blocks of the anchor, counted from 0, without `stop`."""
    return [
        {"width": details.anchors[part.anchor].width, "start": part.start, "stop": part.stop} for part in path.parts
    ]


def sources(path: Path, spec: ViTSpec, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """For every tensor of a path's model its name in the learngene."""
    blocks = [(number, block) for number, part in enumerate(path.parts) for block in range(part.start, part.stop)]
    table = table_of(spec)
    for name in names:
        block = table.block_of(name)
        if block is None:
            anchor = path.parts[0].anchor if table.is_stem(name) else path.last
            yield name, f"anchors.{anchor}.{name}"
            continue
        inner, (number, source) = table.inner_name(name), blocks[block]
        if inner.startswith(STITCH):
            yield name, f"{path.stitches[number - 1].name}.{inner.removeprefix(STITCH)}"
        else:
            yield name, f"anchors.{path.parts[number].anchor}.{table.block_name(source, inner)}"


def _held(learngene: Learngene, path: Path, spec: ViTSpec, *, heads: bool) -> StateDict:
    """The tensors of a path's model by their names in it, shared, not copied."""
    where = str(learngene.folder or "the learngene")
    wanted = {name: shape for name, shape in shapes(spec).items() if heads or not table_of(spec).is_head(name)}
    held: dict[str, torch.Tensor] = {}
    for name, source in sources(path, spec, list(wanted)):
        try:
            tensor = learngene.state[source]
        except KeyError:
            raise BadFile(f"{where} lacks the tensor {source}; extract or fetch it again") from None
        if tuple(tensor.shape) != wanted[name]:
            raise BadFile(
                f"{where} has shape {tuple(tensor.shape)} in {source}; shape {wanted[name]} is wanted: "
                "extract or fetch it again"
            )
        held[name] = tensor
    return held
