"""How a bench is computed: the precision, and the versions of this package.

The key of a cell names neither, so a finished cell counts as finished for every version. Results of
two precisions are never mixed; a change of the version is said once. `computation.json` in the
bench's folder keeps both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from learngene_zoo.atomic import new_file
from learngene_zoo.errors import Refused
from learngene_zoo.runs.run import Precision, Run
from learngene_zoo.settings import from_json, to_json
from learngene_zoo.storage import read_json, write_json
from learngene_zoo.version import __version__

COMPUTATION = "computation.json"


@dataclass(frozen=True, kw_only=True)
class Computation:
    """How the results of a bench were computed."""

    precision: Precision = "fp32"
    versions: tuple[str, ...] = ()  # of this package, in the order of their first use


def check_same_computation(
    out: Path, run: Run, *, has_results: bool, say: Callable[[str], None]
) -> None:
    """Record the precision and the version with which a bench is computed.

    Args:
        out: the bench's folder, which this process has locked.
        run: how to compute.
        has_results: whether the folder has finished cells. Those of earlier versions, without a
            record, count as computed with the default precision.
        say: receives a line if the results come from another version of this package.

    Raises:
        Refused: the results were computed with another precision.
    """
    path = out / COMPUTATION
    if path.is_file():
        before = from_json(Computation, read_json(path), str(path))
    else:
        before = Computation() if has_results else Computation(precision=run.precision)
    if before.precision != run.precision:
        raise Refused(
            f"the results in {out} were computed with --precision {before.precision}, not "
            f"{run.precision}; choose another folder with -o, or start over with --force"
        )
    if __version__ in before.versions:
        return
    if before.versions:
        say(
            f"the results in {out} come from learngene_zoo {', '.join(before.versions)}, this is "
            f"{__version__}: finished cells are kept; if a method that you compare has changed, "
            "start over with --force or choose another folder with -o"
        )
    with new_file(path, force=True) as draft:
        write_json(draft, to_json(replace(before, versions=(*before.versions, __version__))))
