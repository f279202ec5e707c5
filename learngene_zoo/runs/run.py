"""Define how and where to compute: `Run`, the processes that share one, and the device of each.

A run owns a folder (`learngene.run` beside `learngene`) with its settings, its metrics, its
checkpoints, and the results of its finished parts. Without other processes nothing here needs torch
before a device is opened.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from learngene_zoo.errors import Unavailable, WrongCall, refuse_unknown
from learngene_zoo.seeds import derive_seed
from learngene_zoo.settings import Bounds, check_bounds, check_type
from learngene_zoo.text import name_option

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator


Precision = Literal["fp32", "bf16", "fp16"]
AUTO = "auto"
PARTS = "parts"  # the folder of the parts of a run, in its own
DEVICES = (AUTO, "cpu", "cuda", "mps")
# accelerate's word for each precision
MIXED_PRECISION = {
    "fp32": "no",
    "bf16": "bf16",
    "fp16": "fp16",
}
# also of processes that load images; systems refuse far more, each in its own way
MAX_THREADS = 1024
MAX_SEED = 2**63 - 1
# Seconds; many times those that gloo's threads need to release the tensors of the last collective.
_SETTLED = 0.1
_LOOK = 0.5  # seconds between two looks at the parent
_UNWIND = 3.0  # seconds that a process has to end by itself once its parent is gone
_PR_SET_PDEATHSIG = 1  # of Linux's prctl


@dataclass(frozen=True, kw_only=True)
class Run:
    """The settings of a computation that do not change its meaning.

    `seed` is the only field that changes the numbers; `device`, `precision` and `threads` change
    their last digits. Raises `WrongCall` for values of another type and out of bounds.
    """

    folder: Path | None = None  # None: keep nothing (no checkpoints, no metrics file)
    seed: Annotated[int, Bounds(least=0, most=MAX_SEED)] = 0
    # a GPU if torch finds one, else the processor; mps, which is not tested, only if it is named
    device: str = AUTO
    precision: Precision = "fp32"
    threads: Annotated[int | None, Bounds(least=1, most=MAX_THREADS)] = None
    workers: Annotated[int, Bounds(least=0, most=MAX_THREADS)] = 0
    resume: bool = False
    progress: bool = False  # draw bars
    lines: bool = False  # print a line of every epoch on stderr
    tracker: str | None = None
    offline: bool = False
    # the user's own path of the ancestry model that an artifact records
    ancestry: str | None = None
    # folder of parts that other runs may need as well; None: parts are not shared
    shared: Path | None = None
    # A fingerprint of the computation, for checkpoints; empty where nothing is kept.
    plan: str = ""
    # The package, version and digest of a plugin's code, on which its parts depend; empty for a
    # method of this project.
    code: str = ""
    name: str = ""  # of the part; empty for the whole run

    def __post_init__(self) -> None:
        if self.precision not in tuple(MIXED_PRECISION):
            raise refuse_unknown("precision", self.precision, MIXED_PRECISION)
        if self.device is not None:
            object.__setattr__(self, "device", str(self.device))  # also a torch.device
        check_bounds(self)

    @property
    def device_name(self) -> str:
        """The name of the device; "auto" is resolved for this machine."""
        if self.device != AUTO:
            return self.device
        import torch

        return "cuda" if torch.cuda.is_available() else "cpu"

    def part(self, name: str) -> Run:
        """Return a sub-run with its own seed, folder and checkpoints.

        The name may contain slashes. Any name, such as that of a task with a path, gives a folder
        within the run's.
        """
        return replace(
            self,
            folder=self.folder / PARTS / _make_relative(name) if self.folder else None,
            seed=derive_seed(self.seed, "part", name),
            name=f"{self.name}/{name}" if self.name else name,
        )


def parse_run(run: Run | None, make_default: Callable[[], Run] = Run) -> Run:
    """Return the run of a call, by default a new one. Raises `WrongCall` for any other object."""
    if run is None:
        return make_default()
    check_type("run", run, Run)
    return run


def _make_relative(name: str) -> str:
    """Return the name of a part as a path that leads nowhere above its start.

    The dots of a component `..` and a slash at the start are written as in an URL.
    """
    components = ["%2E%2E" if component == ".." else component for component in name.split("/")]
    path = "/".join(components)
    return f"%2F{path[1:]}" if path.startswith("/") else path


def check_device(name: str) -> None:
    """Check that a name is that of a device, on this machine or any other.

    Raises `WrongCall` otherwise.
    """
    kind, colon, number = name.partition(":")
    if kind not in DEVICES:
        raise refuse_unknown("device", name, DEVICES)
    if colon and not (kind == "cuda" and number.isascii() and number.isdigit() and len(number) < 4):
        raise WrongCall(f"no device named {name!r}; expected auto, cpu, cuda, cuda:<number> or mps")


def rank() -> int:
    """Return this process's number under torchrun; 0 alone, whatever RANK is.

    Raises `WrongCall` for an impossible one.
    """
    processes = get_world_size()
    number = _read_number("RANK", 0) if processes > 1 else 0
    if number >= processes:
        raise WrongCall(
            f"RANK is {number} of {processes} processes; start all of them with torchrun, or "
            "unset WORLD_SIZE"
        )
    return number


def get_world_size() -> int:
    """Return the number of processes that torchrun started; 1 alone."""
    return max(1, _read_number("WORLD_SIZE", 1))


def _read_number(variable: str, default: int) -> int:
    text = os.environ.get(variable, "")
    if text and not (text.isascii() and text.isdigit() and len(text) < 10):
        raise WrongCall(
            f"{variable} is {text!r}; torchrun sets it to a number: start with torchrun, or unset "
            "it"
        )
    return int(text) if text else default


def is_first() -> bool:
    """Return whether this process writes the files that only one process may write."""
    return rank() == 0


def join(device: str) -> None:
    """Join the process group, so that `wait_for_all` waits for the others.

    A single process does nothing. Raises `Unavailable` if torchrun did not set where the processes
    meet.
    """
    if get_world_size() > 1:
        missing = [
            name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)
        ]
        if missing:
            raise Unavailable(
                f"WORLD_SIZE is {get_world_size()}, but {', '.join(missing)} is not set; start "
                "all processes with torchrun, or unset WORLD_SIZE"
            )
        # Only under torchrun: a process that a shell started may outlive the shell.
        if "TORCHELASTIC_RUN_ID" in os.environ:
            end_with_parent()
        from accelerate import PartialState

        PartialState(cpu=device == "cpu")
        atexit.unregister(leave)
        atexit.register(leave)


@cache
def end_with_parent() -> None:
    """End this process within seconds of its parent, however the parent ends.

    It is terminated as by SIGTERM (on Linux by the system, at once), so that it can unwind, and
    killed after a moment. Processes that load data end with theirs: torch sees to that.
    """
    threading.Thread(target=_wait_for_parent, args=(os.getppid(),), daemon=True).start()
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _wait_for_parent(parent: int) -> None:
    """Wait for the end of the parent, then end this process."""
    while os.getppid() == parent:
        time.sleep(_LOOK)
    if sys.platform != "linux":
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_UNWIND)
    os._exit(1)


def leave() -> None:
    """Leave the process group, so that gloo's threads do not abort a process that is done.

    They hold the tensors of the last collective for a moment after it is over, and need the
    interpreter to release them. A module that was trained in parallel keeps its group and these
    threads alive after the group is destroyed, and no call waits for them.
    """
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()
        time.sleep(_SETTLED)


def wait_for_all() -> None:
    """Return when every process has called this."""
    if get_world_size() > 1:
        import torch.distributed as dist

        if dist.is_initialized():
            dist.barrier()


def share_of_batch(images: int, device: torch.device) -> float:
    """Return the weight of this process's mean loss, so that the average over processes is the mean
    over all images.
    """
    if get_world_size() == 1:
        return 1.0
    import torch
    import torch.distributed as dist

    total = torch.tensor([float(images)], device=device)
    dist.all_reduce(total)
    return images * get_world_size() / float(total)


def sum_counts(counts: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the sum over processes of each scalar int64 tensor."""
    if get_world_size() == 1 or not counts:
        return dict(counts)
    import torch
    import torch.distributed as dist

    sums = torch.stack(list(counts.values()))
    dist.all_reduce(sums)
    return dict(zip(counts, sums.unbind()))


def average_losses(losses: Mapping[str, torch.Tensor], device: torch.device) -> dict[str, float]:
    """Return the average over processes of each loss, which is weighted already.

    The weights are those of `share_of_batch` or, with `sum_counts`, of the number of terms.
    """
    import torch
    import torch.distributed as dist

    values = torch.stack([loss.detach().float() for loss in losses.values()]).to(device)
    if get_world_size() > 1:
        dist.all_reduce(values)
        values /= get_world_size()
    return dict(zip(losses, values.tolist()))


def gather_values(value: Any) -> list[Any]:
    """Return the value of every process, in the order of their ranks."""
    if get_world_size() == 1:
        return [value]
    import torch.distributed as dist

    values: list[Any] = [None] * get_world_size()
    dist.all_gather_object(values, value)
    return values


def check_agreed(value: Any, what: str) -> None:
    """Check that all processes have the same value.

    Raises `Unavailable` in every process otherwise.
    """
    values = gather_values(value)
    if any(other != values[0] for other in values):
        raise Unavailable(
            f"the processes see different {what}: {values}; the run's folder must be one that all "
            "of them share"
        )


def check_has_device(run: Run) -> None:
    """Check that this machine has the device of a run, unless it is chosen automatically.

    Raises `Unavailable` otherwise.
    """
    if run.device not in (AUTO, "cpu"):
        open_device(run)


def describe_machine(run: Run) -> str:
    """Return what measured times and memory depend on, for the key of a part that measures them."""
    return f"{run.device_name}, threads {run.threads}, processes {get_world_size()}"


def open_device(run: Run) -> torch.device:
    """Return the device of a run and set torch's number of threads.

    Under torchrun each process gets its own GPU. Raises `WrongCall` for an unknown device,
    `Unavailable` for one that this machine does not have.
    """
    import torch

    if run.threads is not None:
        torch.set_num_threads(run.threads)
    check_device(run.device)
    device = torch.device(run.device_name)
    if device.type == "cuda":
        return _open_gpu(device)
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise _refuse_device("mps")
    return device


def _refuse_device(kind: str) -> Unavailable:
    remedy = name_option("device", "cpu", of_run=True)
    return Unavailable(f"this machine has no {kind} device; use {remedy}")


def _open_gpu(device: torch.device) -> torch.device:
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        raise _refuse_device("cuda")
    if get_world_size() > 1 and device.index is not None:
        raise WrongCall(
            "under torchrun each process takes its own GPU; use "
            f"{name_option('device', 'cuda', of_run=True)} instead of {device}"
        )
    number = int(os.environ.get("LOCAL_RANK", "0")) if device.index is None else device.index
    if number >= count:
        raise Unavailable(
            f"cuda:{number} does not exist: this machine has {count} GPUs, counted from 0"
        )
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def open_accelerator(run: Run, device: torch.device, unused: bool = False) -> Accelerator:
    """Return a new accelerator with the run's precision; trainings in one process may differ in
    theirs.

    Args:
        run: gives the precision and the tracker.
        device: the device of the run.
        unused: allow parameters without a gradient.

    Raises:
        WrongCall, Unavailable: for a precision that the device does not support.
        Unavailable: if the processes did not find each other.
    """
    from accelerate import Accelerator, DistributedDataParallelKwargs
    from accelerate.state import AcceleratorState

    check_precision(run)
    join(device.type)
    # Accelerate keeps one state per process. The process group outlives a training; the rest must
    # not.
    AcceleratorState._reset_state(reset_partial_state=get_world_size() == 1)
    accelerator = Accelerator(
        cpu=device.type == "cpu",
        device_placement=False,
        mixed_precision=MIXED_PRECISION[run.precision],
        log_with=run.tracker,
        project_dir=str(run.folder or Path()) if run.tracker else None,
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=unused)],
    )
    if accelerator.num_processes != get_world_size():
        raise Unavailable(
            f"torchrun started {get_world_size()} processes, but only "
            f"{accelerator.num_processes} train together; start all of them with one torchrun "
            "command, and unset ACCELERATE_* variables"
        )
    return accelerator


def has_bf16(run: Run) -> bool:
    """Return whether the run's device has instructions for bfloat16, as far as torch knows.

    Others emulate it, slowly.
    """
    import torch

    if run.device_name.startswith("cuda"):
        return torch.cuda.is_bf16_supported(including_emulation=False)
    names = [name for name, is_there in list_cpu_capabilities().items() if is_there is True]
    return run.device_name == "cpu" and any("bf16" in name for name in names)


def list_cpu_capabilities() -> dict[str, Any]:
    """Return torch's facts about the processor by name; {} from an earlier torch without them."""
    import torch

    find: Any = getattr(torch.cpu, "get_capabilities", dict)
    return dict(find())


def check_precision(run: Run) -> None:
    """Check that the run's device computes in its precision.

    Raises `WrongCall` or `Unavailable` otherwise.
    """
    if run.precision == "fp32":
        return
    from torch import cuda

    kind = run.device_name.partition(":")[0]
    if run.precision == "fp16" and kind == "cpu":
        other = " or bf16" if has_bf16(run) else ""
        raise WrongCall(f"fp16 needs a GPU; use the precision fp32{other} on the cpu")
    if run.precision == "bf16" and kind == "cuda" and not cuda.is_bf16_supported():
        raise Unavailable("this GPU does not support bf16; use the precision fp16 or fp32")
