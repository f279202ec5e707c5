"""What a learngene of TAL, LoGAH or GHN-3 holds: its `details`, and its tensors:

    encoder.NAME    the graph encoder, task layers included: the learngene in the paper's sense
    decoder.NAME    what turns a node into a tensor
    tasks.TASK      a task's embedding

NAME is the tensor's name in the papers' released code. If there is a hypernetwork for each task, the names of its tensors
begin with `hypernets.TASK.`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from learngene_zoo.plugin import LIMITS, BadFile, Json, TaskRecord, WrongCall, to_json
from lgzoo_tal.hypernet_spec import HypernetSpec

DECODERS = ("decoder", "decoder_1d", "bias_class")  # the modules of a decoder in the released code
TASKS = "tasks."


@dataclass(frozen=True, kw_only=True)
class Release:
    """Where a released checkpoint came from."""

    reference: str
    sha256: str
    revision: str | None = None
    licence: str = "unknown"


@dataclass(frozen=True, kw_only=True)
class Details:
    """Which hypernetworks a learngene holds, and what they were trained on. Raises `WrongCall` for impossible depths."""

    hypernet: HypernetSpec | None = None  # None before a released checkpoint was read
    layers: tuple[int, int] = (3, 12)  # of the shallowest and the deepest training architecture
    tasks: tuple[str, ...] = ()  # of stage 2, in order
    apart: bool = False  # whether each of them has a hypernetwork of its own
    embedded: tuple[str, ...] = ()  # the tasks whose embedding is stored
    source: TaskRecord | None = None  # the task of stage 1
    released: Release | None = None

    def __post_init__(self) -> None:
        least, most = self.layers
        if not 1 <= least <= most <= LIMITS["layers"]:
            raise WrongCall(
                f"layers is {list(self.layers)}; expected two ascending numbers from 1 to {LIMITS['layers']}"
            )

    def json(self) -> dict[str, Json]:
        """As written to the config, without what is None."""
        return {name: value for name, value in to_json(self).items() if value is not None}

    @property
    def hypernetwork(self) -> HypernetSpec:
        """The spec of the hypernetwork. Raises `BadFile` without one."""
        if self.hypernet is None:
            raise BadFile("the learngene's details describe no hypernetwork; extract or fetch it again")
        return self.hypernet

    def owner(self, task: str | None) -> str | None:
        """The task whose hypernetwork serves `task`; None if all tasks share one. Raises `WrongCall`."""
        if not self.apart or task in self.tasks:
            return task if self.apart else None
        if len(self.tasks) == 1:
            return self.tasks[0]
        raise WrongCall(
            f"this learngene has a hypernetwork for each of {', '.join(self.tasks)}, and none for {task or 'no task'}; "
            "choose one of them with --task"
        )


def learngene_name(official: str) -> str:
    """The learngene's name of a tensor, from that in the released code."""
    part = "decoder" if official.partition(".")[0] in DECODERS else "encoder"
    return f"{part}.{official}"


def official_name(name: str) -> str:
    """The inverse of `learngene_name`."""
    return name.partition(".")[2]


def is_encoder(official: str) -> bool:
    """Whether a tensor is the encoder's."""
    return learngene_name(official).startswith("encoder.")


def prefix_of(task: str | None) -> str:
    """The prefix of the tensors of a task's own hypernetwork; empty for None, the only hypernetwork."""
    return "" if task is None else f"hypernets.{task}."


def hypernet_names(names: Iterable[str], task: str | None) -> dict[str, str]:
    """The tensors of one hypernetwork among `names`: from the released code's name to the learngene's."""
    prefix = prefix_of(task)
    own = [name for name in names if name.startswith((f"{prefix}encoder.", f"{prefix}decoder."))]
    return {official_name(name.removeprefix(prefix)): name for name in own}
