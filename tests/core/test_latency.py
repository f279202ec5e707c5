"""Latencies: the median after the warm-up, of a model and of its exported file in turns."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from learngene_zoo.lifecycle import latency, runtime_checks
from learngene_zoo.runs.run import Run

WARM_UP, REPEATS = 5, 30


class Clock:
    """Simulated time, of which this process has a share."""

    def __init__(self, share: float = 1.0) -> None:
        self.now, self.share = 0.0, share

    def perf_counter(self) -> float:
        return self.now

    def process_time(self) -> float:
        return self.share * self.now

    def spend(self, seconds: list[float]) -> Callable[..., torch.Tensor]:
        """Return a function whose calls take these seconds in turn."""
        waiting = iter(seconds)

        def call(*images: torch.Tensor) -> torch.Tensor:
            self.now += next(waiting)
            return torch.zeros(1)

        return call


class Model(nn.Module):
    """A module that calls the given function."""

    def __init__(self, call: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.call = call

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.call(images)


def slow_at_first(unit: float) -> list[float]:
    """A warm-up that takes 100 units per call, then 1, 2, ..., 30 units: the median is 15.5."""
    return [100 * unit] * WARM_UP + [unit * number for number in range(1, REPEATS + 1)]


def test_the_warm_up_of_a_model_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(latency, "time", clock)
    model = Model(clock.spend(slow_at_first(1.0)))
    assert latency.time_forward(
        model, torch.zeros(1, 3, 8, 8), Run(threads=1, device="cpu")
    ) == pytest.approx(15.5)


@pytest.mark.parametrize(("share", "is_busy"), [(0.5, True), (1.0, False), (2.0, False)])
def test_a_busy_processor_is_named(
    share: float, is_busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = list[str]()
    clock = Clock(share)
    monkeypatch.setattr(latency, "time", clock)
    monkeypatch.setattr(latency, "print_note", lambda text, key: notes.append(text))
    model = Model(clock.spend(slow_at_first(1.0)))
    latency.time_forward(model, torch.zeros(1, 3, 8, 8), Run(threads=1, device="cpu"))
    assert [text.partition(",")[0] for text in notes] == (
        ["the processor is busy with other programs"] if is_busy else []
    )


def test_a_model_and_its_file_are_timed_in_turns_without_the_warm_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr(runtime_checks, "time", clock)
    model, runner = (clock.spend(slow_at_first(unit)) for unit in (1.0, 0.1))
    latencies = runtime_checks.measure_latencies(Model(model), runner, torch.zeros(1, 3, 8, 8))
    assert latencies == pytest.approx((15.5, 1.55))
