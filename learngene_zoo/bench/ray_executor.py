"""The jobs of a grid on a Ray cluster: the one Ray starts on this machine, or a remote one by its address.

Ray (the extra `ray`) is imported when it is used. Machines of a cluster need learngene-zoo installed; a shared disk they do
not: learngenes travel through Ray's object store, results come back as rows.
"""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from learngene_zoo.bench.cell import Cell
from learngene_zoo.bench.executors import Executor, Failure, Job, Outcome, extraction_of, perform
from learngene_zoo.bench.extraction import Extraction
from learngene_zoo.bench.trial import failed
from learngene_zoo.errors import Unavailable, WrongCall
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import fingerprint

PATIENCE = 5.0  # seconds that an address gets to accept a connection
HERE = "local"  # in an address's place: a cluster of this machine alone


class Ray(Executor):
    """Ray tasks, as many at once as the cluster has cores (or GPUs, with `--device cuda`) for them.

    Raises `Unavailable` if Ray is not installed or the address does not answer.
    """

    def __init__(self, address: str | None = None) -> None:
        self._ray = _import_ray()
        self._address = None if address in (None, "", HERE) else address
        if self._address is not None:
            _check_answers(self._address)
        self._jobs: dict[Any, Job] = {}
        self._packed: dict[str, Any] = {}

    def open(self, out: Path, run: Run) -> None:
        """Connect, and count what the cluster can do at once."""
        self._out, self._run = out.resolve(), replace(run, threads=run.threads or 1)
        self._connect()
        gpus = 1 if run.device.startswith("cuda") else 0
        cores = self._run.threads or 1
        there = self._ray.cluster_resources()
        self.slots = int(there.get("GPU", 0) if gpus else there.get("CPU", 1) // cores)
        if self.slots < 1:
            raise Unavailable(f"the Ray cluster has no room for one job of {cores} cores and {gpus} GPUs")
        # Nothing is repeated by Ray itself: a job that lost its machine is recorded, and tried again by the next call.
        self._remote = self._ray.remote(num_cpus=cores, num_gpus=gpus, max_retries=0)(travel)

    def _connect(self) -> None:
        if self._ray.is_initialized():
            return
        # Processes that Ray starts here find the packages that we found; those of a cluster have their own.
        here = {} if self._address else {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        try:
            self._ray.init(address=self._address, runtime_env={"env_vars": here}, log_to_driver=False)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            if self._address:
                raise _no_cluster(self._address) from error
            raise Unavailable(f"Ray could not start here: {' '.join(str(error).split())}") from error

    def start(self, job: Job) -> None:
        """Send it; a cell takes the learngene it needs along, which Ray keeps once for all cells."""
        luggage = self._luggage(extraction_of(job)) if isinstance(job, Cell) else None
        self._jobs[self._remote.remote(job, str(self._out), self._run, luggage)] = job

    def _luggage(self, extraction: Extraction) -> Any:
        if extraction.key not in self._packed:
            self._packed[extraction.key] = self._ray.put(pack(extraction, self._out))
        return self._packed[extraction.key]

    def wait(self) -> tuple[Job, Outcome]:
        """The next answer. A learngene that was made elsewhere is put where all others lie."""
        done = self._ray.wait(list(self._jobs), num_returns=1)[0][0]
        job = self._jobs.pop(done)
        try:
            outcome, made = self._ray.get(done)
        except self._ray.exceptions.RayError as error:
            text = f"ray: {str(error).strip().splitlines()[-1]}"
            return job, failed(job, text, self._run) if isinstance(job, Cell) else Failure(text)
        if isinstance(job, Extraction) and made is not None:
            unpack(made, job, self._out)
        return job, outcome

    def close(self) -> None:
        """Cancel what still runs, and part from the cluster."""
        for ref in self._jobs:
            self._ray.cancel(ref, force=True)
        self._jobs.clear()
        self._packed.clear()
        self._ray.shutdown()


def travel(job: Job, out: str, run: Run, luggage: bytes | None) -> tuple[Outcome, bytes | None]:
    """A job on any machine of a cluster: its outcome and, of an extraction, the learngene that was made."""
    place = Path(out)
    if not place.is_dir():  # another disk than the one the results lie on
        place = Path(tempfile.gettempdir()) / f"lgzoo-bench-{fingerprint(out)}"
    if isinstance(job, Cell):
        if luggage is not None:
            unpack(luggage, extraction_of(job), place)
        return perform(job, place, run), None
    outcome = perform(job, place, run)
    return outcome, None if isinstance(outcome, Failure) else pack(job, place)


def pack(extraction: Extraction, out: Path) -> bytes:
    """A finished extraction's learngene and the record of its cost, as the bytes of a tar file."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path in (extraction.folder(out), extraction.record(out)):
            tar.add(path, arcname=path.name)
    return buffer.getvalue()


def unpack(packed: bytes, extraction: Extraction, out: Path) -> None:
    """The inverse of `pack`; nothing happens where the learngene lies already."""
    from filelock import FileLock

    folder = extraction.folder(out)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f"{folder.name}.lock")):
        if not extraction.is_finished(out):
            with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
                tar.extractall(folder.parent, filter="data")


def _import_ray() -> Any:
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise Unavailable("Ray is not installed; pip install 'learngene-zoo[ray]', or use --workers") from error
    return ray


def _check_answers(address: str) -> None:
    """Raises `Unavailable` if no Ray cluster answers at `host:port`, `ray://host:port` or `auto`, within 20 seconds.

    A connection is tried in a process of its own: where something listens that is no cluster, Ray waits for minutes.
    """
    try:
        if address != "auto":
            socket.create_connection(_place_of(address), timeout=PATIENCE).close()
        call = [sys.executable, "-c", "import sys, ray; ray.init(address=sys.argv[1])", address]
        subprocess.run(call, check=True, capture_output=True, timeout=20 - PATIENCE)
    except (OSError, OverflowError, subprocess.SubprocessError) as error:
        raise _no_cluster(address) from error


def _place_of(address: str) -> tuple[str, int]:
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not (colon and host and port.isdigit()):
        raise WrongCall(f"{address!r} is no address of a Ray cluster; write HOST:PORT, ray://HOST:PORT or auto")
    return host.strip("[]"), int(port)


def _no_cluster(address: str) -> Unavailable:
    return Unavailable(f"no Ray cluster answers at {address}; start one with `ray start --head`, or use --workers")
