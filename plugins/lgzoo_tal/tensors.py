"""The names of a learngene's tensors, in both directions. Cold.

    encoder.NAME    the graph encoder, task layers included: the learngene in the paper's sense
    decoder.NAME    what turns a node into a tensor
    tasks.TASK      a task's embedding

NAME is the tensor's name in the papers' released code. Of several hypernetworks, one for each task, all stand behind
`hypernets.TASK.`.
"""

from __future__ import annotations

from collections.abc import Iterable

DECODERS = ("decoder", "decoder_1d", "bias_class")  # what the released code's decoder tensors begin with
TASKS = "tasks."


def learngene_name(official: str) -> str:
    """Where a learngene keeps the tensor that the released code calls so."""
    part = "decoder" if official.partition(".")[0] in DECODERS else "encoder"
    return f"{part}.{official}"


def official_name(name: str) -> str:
    """The inverse of `learngene_name`."""
    return name.partition(".")[2]


def is_encoder(official: str) -> bool:
    """Whether a tensor is the encoder's."""
    return learngene_name(official).startswith("encoder.")


def prefix_of(task: str | None) -> str:
    """What the tensors of a task's own hypernetwork begin with; of the only one there is (None) with nothing."""
    return "" if task is None else f"hypernets.{task}."


def hypernet_names(names: Iterable[str], task: str | None) -> dict[str, str]:
    """Of a learngene's tensors those of one hypernetwork: from the released code's name to the learngene's."""
    prefix = prefix_of(task)
    own = [name for name in names if name.startswith((f"{prefix}encoder.", f"{prefix}decoder."))]
    return {official_name(name.removeprefix(prefix)): name for name in own}
