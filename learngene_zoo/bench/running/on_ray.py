"""The jobs of a grid on a Ray cluster: a local one, or an existing one by its address.

Ray (the extra `ray`) is imported when it is used. The machines of a cluster need learngene-zoo
installed but no shared disk: learngenes travel through Ray's object store, and results come back as
rows.
"""

import io
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from uuid import uuid4
from zipfile import ZipFile

from learngene_zoo.atomic import new_file
from learngene_zoo.bench.grid.cell import Cell, Extraction
from learngene_zoo.bench.running.executors import Executor, Failure, Job, Outcome, perform
from learngene_zoo.bench.running.extraction import TOKEN, ExtractionCost, is_finished
from learngene_zoo.errors import Unavailable, WrongCall
from learngene_zoo.runs.cache import wait_for_lock
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import fingerprint

PATIENCE = 5.0  # seconds in which an address must accept a connection
LOCAL = "local"  # instead of an address: a cluster of this machine alone


class Ray(Executor):
    """Ray tasks, as many at once as the cluster has cores (or, with `--device cuda`, GPUs) for.

    Raises:
        Unavailable: Ray is not installed, or no cluster answers at the address.
    """

    def __init__(self, address: str | None = None) -> None:
        self._ray = _import_ray()
        self._address = None if address in (None, "", LOCAL) else address
        if self._address is not None:
            _check_answers(self._address)
        self._jobs: dict[Any, Job] = {}
        self._packed: dict[str, Any] = {}

    def open(self, out: Path, run: Run) -> None:
        """Connect, and count the jobs that the cluster can run at once."""
        super().open(out.resolve(), run)
        self._token = read_token(out)
        self._connect()
        gpus = 1 if run.device_name.startswith("cuda") else 0
        cores = run.threads or 1
        resources = self._ray.cluster_resources()
        self.slots = int(resources.get("GPU", 0) if gpus else resources.get("CPU", 1) // cores)
        if self.slots < 1:
            raise Unavailable(
                f"the Ray cluster has no room for one job of {cores} cores and {gpus} GPUs"
            )
        # Ray must not retry: a job that lost its machine is recorded as failed, and retried by the
        # next call.
        self._remote = self._ray.remote(num_cpus=cores, num_gpus=gpus, max_retries=0)(run_remotely)

    def _connect(self) -> None:
        if self._ray.is_initialized():
            return
        # Processes that Ray starts here use our import path; those of a cluster have their own.
        variables = (
            {}
            if self._address
            else {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        )
        try:
            self._ray.init(
                address=self._address, runtime_env={"env_vars": variables}, log_to_driver=False
            )
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            if self._address:
                raise _refuse_cluster(self._address) from error
            raise Unavailable(
                f"Ray could not start here: {' '.join(str(error).split())}"
            ) from error

    def start(self, job: Job) -> None:
        """Send the job, for a cell with its learngene, which Ray stores once for all cells."""
        packed = None
        if isinstance(job, Cell):
            key = job.extraction.key
            if key not in self._packed:
                self._packed[key] = self._ray.put(pack(job.extraction, self._out))
            packed = self._packed[key]
        remote = self._remote.remote(job, str(self._out), self._run, packed, self._token)
        self._jobs[remote] = job

    def wait(self) -> tuple[Job, Outcome]:
        """Return the next answer; copy a learngene extracted elsewhere to the bench's folder."""
        reference = self._ray.wait(list(self._jobs), num_returns=1)[0][0]
        job = self._jobs.pop(reference)
        try:
            outcome, packed = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            return job, Failure(f"ray: {str(error).strip().splitlines()[-1]}")
        if isinstance(job, Extraction) and packed is not None:
            unpack(packed, job, self._out)
        return job, outcome

    def close(self) -> None:
        """Cancel the running jobs and disconnect."""
        for ref in self._jobs:
            self._ray.cancel(ref, force=True)
        self._jobs.clear()
        self._packed.clear()
        self._ray.shutdown()


def read_token(out: Path) -> str:
    """Return a text that no other bench has, which a bench keeps until it starts over."""
    path = out / TOKEN
    if not path.is_file():
        with new_file(path, force=True) as draft:
            draft.write_text(uuid4().hex, encoding="utf-8")
    return path.read_text(encoding="utf-8")


def run_remotely(
    job: Job, out: str, run: Run, packed: bytes | None, token: str
) -> tuple[Outcome, bytes | None]:
    """Run a job on any machine of a cluster.

    Args:
        job: the job.
        out: the bench's folder; a temporary folder is used if it is not mounted on this machine.
        run: how to compute.
        packed: the learngene of a cell (`pack`).
        token: the bench's text from `read_token`.

    Returns: the job's outcome and, for an extraction, the packed learngene.
    """
    folder = Path(out)
    if not folder.is_dir():  # the disk with the results is not mounted here
        folder = Path(tempfile.gettempdir()) / f"lgzoo-bench-{fingerprint([out, token])}"
    if isinstance(job, Cell) and packed is not None:
        unpack(packed, job.extraction, folder)
    outcome = perform(job, folder, run)
    return outcome, pack(job, folder) if isinstance(job, Extraction) and isinstance(
        outcome, ExtractionCost
    ) else None


def pack(extraction: Extraction, out: Path) -> bytes:
    """Return a finished extraction's learngene and cost record, as the bytes of a zip file."""
    buffer = io.BytesIO()
    with ZipFile(buffer, "w") as archive:
        for root in (extraction.folder(out), extraction.record(out)):
            for path in (root, *sorted(root.rglob("*"))):
                archive.write(path, path.relative_to(root.parent))
    return buffer.getvalue()


def unpack(packed: bytes, extraction: Extraction, out: Path) -> None:
    """Write the content of `pack`, unless the learngene already exists."""
    folder = extraction.folder(out)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with wait_for_lock(
        folder.with_name(f"{folder.name}.lock"), f"extracting {extraction.arm.name}"
    ):
        if not is_finished(extraction, out):
            with ZipFile(io.BytesIO(packed)) as archive:
                archive.extractall(folder.parent)


def _import_ray() -> Any:
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise Unavailable(
            "Ray is not installed; pip install 'learngene-zoo[ray]', or use --workers"
        ) from error
    return ray


def _check_answers(address: str) -> None:
    """Check that a Ray cluster answers within 20 seconds.

    The address is `host:port`, `ray://host:port` or `auto`. The connection is tried in a separate
    process: if another service listens there, Ray waits for minutes.

    Raises:
        Unavailable: no cluster answers.
    """
    try:
        if address != "auto":
            socket.create_connection(_parse_address(address), timeout=PATIENCE).close()
        call = [sys.executable, "-c", "import sys, ray; ray.init(address=sys.argv[1])", address]
        subprocess.run(call, check=True, capture_output=True, timeout=20 - PATIENCE)
    except (OSError, OverflowError, subprocess.SubprocessError) as error:
        raise _refuse_cluster(address) from error


def _parse_address(address: str) -> tuple[str, int]:
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not (colon and host and port.isdigit()):
        raise WrongCall(
            f"{address!r} is not an address of a Ray cluster; expected HOST:PORT, ray://HOST:PORT "
            "or auto"
        )
    return host.strip("[]"), int(port)


def _refuse_cluster(address: str) -> Unavailable:
    return Unavailable(
        f"no Ray cluster answers at {address}; start one with `ray start --head`, or use --workers"
    )
