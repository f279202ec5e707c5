"""The content of a learngene of TAL, LoGAH or GHN-3: its `details`, and its tensors.

    encoder.NAME    the graph encoder, task layers included: the learngene in the paper's sense
    decoder.NAME    the layers that turn a node into a tensor
    tasks.TASK      a task's embedding

NAME is the tensor's name in the papers' released code. If there is a hypernetwork for each task,
the names of its tensors begin with `hypernets.TASK.`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from learngene_zoo.plugin import LIMITS, BadFile, TaskRecord, WrongCall
from lgzoo_tal.hypernet_spec import HypernetSpec

DECODERS = ("decoder", "decoder_1d", "bias_class")  # the modules of a decoder in the released code
TASKS = "tasks."


@dataclass(frozen=True, kw_only=True)
class Release:
    """The origin of a released checkpoint."""

    reference: str
    sha256: str
    revision: str | None = None
    licence: str = "unknown"


@dataclass(frozen=True, kw_only=True)
class HypernetDetails:
    """The hypernetworks of a learngene and their training.

    Raises `WrongCall` for impossible depths.
    """

    hypernet: HypernetSpec | None = None  # None before a released checkpoint was read
    layers: tuple[int, int] = (3, 12)  # of the shallowest and the deepest training architecture
    tasks: tuple[str, ...] = ()  # of stage 2, in order
    apart: bool = False  # whether each of them has a hypernetwork of its own
    embedded: tuple[str, ...] = ()  # the tasks whose embedding is stored
    source: TaskRecord | None = None  # the task of stage 1
    released: Release | None = None

    def __post_init__(self) -> None:
        min_layers, max_layers = self.layers
        if not 1 <= min_layers <= max_layers <= LIMITS["layers"]:
            raise WrongCall(
                f"layers is {list(self.layers)}; expected two ascending numbers from 1 to "
                f"{LIMITS['layers']}"
            )

    @property
    def hypernetwork(self) -> HypernetSpec:
        """Return the spec of the hypernetwork. Raises `BadFile` without one."""
        if self.hypernet is None:
            raise BadFile(
                "the learngene's details describe no hypernetwork; extract or fetch it again"
            )
        return self.hypernet

    def find_owner(self, task: str | None) -> str | None:
        """Return the task whose hypernetwork serves `task`; None if all tasks share one.

        Raises `WrongCall` if none does.
        """
        if not self.apart or task in self.tasks:
            return task if self.apart else None
        if len(self.tasks) == 1:
            return self.tasks[0]
        raise WrongCall(
            f"this learngene has a hypernetwork for each of {', '.join(self.tasks)}, and none for "
            f"{task or 'no task'}; choose one of them with --task"
        )


def to_learngene_name(official: str) -> str:
    """Return the learngene's name of a tensor, from that in the released code."""
    part = "decoder" if official.partition(".")[0] in DECODERS else "encoder"
    return f"{part}.{official}"


def to_official_name(name: str) -> str:
    """Return the inverse of `to_learngene_name`."""
    return name.partition(".")[2]


def is_encoder(official: str) -> bool:
    """Return whether a tensor is the encoder's."""
    return to_learngene_name(official).startswith("encoder.")


def get_prefix(task: str | None) -> str:
    """Return the prefix of the tensors of a task's own hypernetwork.

    It is empty for None, the only hypernetwork.
    """
    return "" if task is None else f"hypernets.{task}."


def select_hypernet_names(names: Iterable[str], task: str | None) -> dict[str, str]:
    """Return the tensors of one hypernetwork among `names`.

    The keys are the released code's names, the values the learngene's.
    """
    prefix = get_prefix(task)
    selected = [
        name for name in names if name.startswith((f"{prefix}encoder.", f"{prefix}decoder."))
    ]
    return {to_official_name(name.removeprefix(prefix)): name for name in selected}
