"""The result of `shrink`: the model and the table of everything that was compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from learngene_zoo.atomic import new_file
from learngene_zoo.families.family import count_cost
from learngene_zoo.families.spec import Spec
from learngene_zoo.lifecycle.shrinking.candidates import ShrinkCandidate
from learngene_zoo.lifecycle.shrinking.finishing import FinishedCandidate
from learngene_zoo.lifecycle.shrinking.request import ShrinkRequest, count_megabytes
from learngene_zoo.lifecycle.shrinking.trainings import ShrinkTraining
from learngene_zoo.lifecycle.training_warnings import describe_few
from learngene_zoo.runs.cache import compute_once
from learngene_zoo.runs.run import Run, describe_machine
from learngene_zoo.settings import Json, from_json, to_json
from learngene_zoo.storage import read_json, write_json

if TYPE_CHECKING:
    from learngene_zoo.artifacts.descendant import Descendant
    from learngene_zoo.lifecycle.shrinking.ranking import Ranking
    from learngene_zoo.storage import StateDict

ORIGINAL = "original"  # the name of the pretrained model
TABLE = "table.json"  # in the folder of the run


@dataclass(frozen=True, kw_only=True)
class ShrinkRow:
    """The original model, or a candidate that was probed. None: not measured."""

    method: str  # "original" for the pretrained model
    layers: int
    width: int
    heads: int
    params: int
    flops: int  # of one image, or of one text of the largest length
    megabytes: float  # 10^6 bytes of fp32 weights
    latency: float  # seconds of one such input on this machine
    # Leave-one-out accuracy of a linear probe; without a task, R² of the original's features.
    probe: float
    low: float  # 95 % interval
    high: float
    tied: bool | None = None  # whether the images do not distinguish it from the best candidate
    # Accuracy (or the task's metric) on validation images after fine-tuning, of the original with
    # its probe. Without a task, R² after healing.
    validation: float | None = None
    test: float | None = None  # the same of the winner and of the original on test images
    test_low: float | None = None
    test_high: float | None = None
    kept: bool = False


@dataclass(frozen=True, kw_only=True)
class ShrinkTable:
    """The rows, the original first, then the candidates from the best probe on."""

    task: str | None
    images: int  # of the probe
    validation_images: int
    rows: tuple[ShrinkRow, ...]
    max_drop: float | None = None  # in points
    exported: str | None = None  # name of the file beside the model's folder
    noun: str = "image"  # or "text"
    metric: str = "accuracy"
    trainings: tuple[ShrinkTraining, ...] = ()
    is_disturbed: bool = False  # whether other programs disturbed a measurement of latency
    max_params: int | None = None  # the budget; that in megabytes as parameters

    @property
    def winner(self) -> ShrinkRow:
        """The row of the model that is kept."""
        return next(row for row in self.rows if row.kept)

    @property
    def drop(self) -> float | None:
        """The original's validation accuracy less the winner's, in points."""
        original, winner = self.rows[0].validation, self.winner.validation
        if original is None or winner is None:
            return None
        return round(100 * (original - winner), 9)  # 98 % less 97 % is 1 point, not a little more

    def describe_test(self) -> str:
        """Describe the result on test images; "" if none was measured."""
        row = self.winner
        if row.test is None:
            return ""
        original = self.rows[0]
        reference = (
            ""
            if original.test is None
            else f"; a linear probe of the original has {_describe_value(original)}"
        )
        return (
            f"{self.metric} {_describe_value(row)} on test {self.noun}s of {self.task}{reference}"
        )

    def describe_drop(self) -> str:
        """Describe the drop on validation images, and whether it is within the bound."""
        if self.drop is None:
            return ""
        is_kept = self.max_drop is None or self.drop <= self.max_drop
        size = f"{abs(self.drop):.1f}"
        if size == "0.0" and is_kept:
            change = "level with"
        else:
            change = f"{size} points {'below' if self.drop > 0 else 'above'}"
        few = describe_few({"validation_images": self.validation_images}, self.noun)
        inputs = few or f"{self.validation_images} validation {self.noun}s"
        text = (
            f"on {inputs}{',' if few else ''} the model is {change} a linear probe of the original"
        )
        if self.max_drop is None:
            return f"{text}: too few to compare them" if few else text
        if few:
            return f"{text}: too few to show whether the accepted drop of {self.max_drop:g} is kept"
        word = "within" if is_kept else "more than"
        return f"{text}, {word} the accepted drop of {self.max_drop:g}"

    def describe_healing(self) -> str:
        """Describe a fall of R² while the winner was healed; "" without one."""
        row = self.winner
        if self.task is not None or row.validation is None or row.validation >= row.probe:
            return ""
        return (
            f"healing lowered the R² of the model from {row.probe:.3f} to {row.validation:.3f}; "
            f"give more {self.noun}s, or do without healing"
        )

    def describe(self) -> list[str]:
        """Return the sentences about the result, without those that do not apply."""
        texts = (self.describe_test(), self.describe_drop(), self.describe_healing())
        return [text for text in texts if text]


@dataclass(frozen=True, kw_only=True)
class Shrunk:
    """A finished small model, and the table of everything that was compared."""

    model: Descendant
    table: ShrinkTable
    report: Path | None = field(default=None, compare=False)
    exported: Path | None = field(default=None, compare=False)

    def save(
        self, path: str | Path, force: bool = False, before: Callable[[Path], None] | None = None
    ) -> Path:
        """Write the folder of the model; see `Descendant.save`."""
        return self.model.save(path, force, before)


def write_table(table: ShrinkTable, folder: Path) -> None:
    """Write the table into the folder of a run, from which `load_result` reads it."""
    with new_file(folder / TABLE, force=True) as draft:
        write_json(draft, to_json(table))


def load_result(folder: Path, out: Path) -> Shrunk:
    """Load a finished result: the model at `out`, and the table from the folder of its run."""
    from learngene_zoo.artifacts.descendant import load_descendant

    path = folder / TABLE
    table = from_json(ShrinkTable, read_json(path), str(path))
    return Shrunk(model=load_descendant(out), table=table)


def list_outputs(out: Path, export_format: str) -> list[Path]:
    """Return the files beside the model's folder: the report, and the exported file if any."""
    suffixes = ["html", *([export_format] if export_format != "none" else [])]
    return [out.with_name(f"{out.name}.{suffix}") for suffix in suffixes]


def tabulate(
    request: ShrinkRequest,
    ranking: Ranking,
    candidates: Sequence[ShrinkCandidate],
    finished: Mapping[str, FinishedCandidate],
    winner: str,
    out: Path,
    run: Run,
) -> ShrinkTable:
    """Return the table of the original and the candidates; latencies are measured once."""
    classes = request.task.classes if request.task else 0
    spec = request.ancestry.spec.with_(classes=classes, dense=False)
    specs = [spec, *(item.member.spec for item in ranking.candidates)]
    part = compute_once(
        run.part("latency"),
        "shrink.latency",
        measure_latencies,
        None,
        [specs, describe_machine(run)],
    )
    record: Any = part.record
    seconds = [item["seconds"] for item in record]
    original = ShrinkRow(
        method=ORIGINAL,
        **_list_sizes(spec, seconds[0]),
        probe=ranking.probe,
        low=ranking.interval[0],
        high=ranking.interval[1],
        validation=ranking.validation,
        **_list_test(ranking.test, ranking.test_interval),
    )
    methods = {candidate.name: candidate.method for candidate in candidates}
    rows = [
        ShrinkRow(
            method=methods[item.learngene],
            **_list_sizes(item.member.spec, latency),
            probe=item.probe,
            low=item.interval[0],
            high=item.interval[1],
            tied=bool(item.is_tied),
            validation=finished[item.learngene].value if item.learngene in finished else None,
            **(_list_winner_test(request, finished[winner]) if item.learngene == winner else {}),
            kept=item.learngene == winner,
        )
        for item, latency in zip(ranking.candidates, seconds[1:], strict=True)
    ]
    files = list_outputs(out, request.export_format)
    return ShrinkTable(
        task=request.reference,
        images=ranking.candidates[0].images,
        validation_images=ranking.validation_images,
        rows=(original, *rows),
        max_drop=request.config.max_drop,
        exported=files[1].name if len(files) > 1 else None,
        noun=request.images.sample_noun,
        metric=request.task.metric if request.task else "accuracy",
        trainings=tuple(item.training for item in finished.values() if item.training is not None),
        is_disturbed=any(item["is_disturbed"] for item in record),
        max_params=request.budget.max_params,
    )


def _list_sizes(spec: Spec, latency: float) -> dict[str, Any]:
    size = count_cost(spec)
    return {
        "layers": spec.layers,
        "width": spec.width,
        "heads": spec.heads,
        "params": size.params,
        "flops": size.flops,
        "megabytes": count_megabytes(size),
        "latency": latency,
    }


def _list_winner_test(request: ShrinkRequest, winner: FinishedCandidate) -> dict[str, Any]:
    if request.task is None:
        return {}
    metrics = winner.metrics
    return _list_test(metrics[f"test_{request.task.metric}"], metrics["test_interval"])


def _list_test(value: float | None, interval: Sequence[float] | None) -> dict[str, Any]:
    low, high = interval or (None, None)
    return {"test": value, "test_low": low, "test_high": high}


def _describe_value(row: ShrinkRow) -> str:
    """Describe the result of a row on test images."""
    return f"{row.test:.4f} (95 % interval {row.test_low:.4f} to {row.test_high:.4f})"


def measure_latencies(
    _: None, specs: Sequence[Spec], _machine: str, run: Run
) -> tuple[StateDict, Json]:
    """Return the `Latency` of each shape. Equal shapes are measured once."""
    from learngene_zoo.lifecycle.latency import measure_latency

    measured = {spec: to_json(measure_latency(spec, run)) for spec in dict.fromkeys(specs)}
    return {}, [measured[spec] for spec in specs]
