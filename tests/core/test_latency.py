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
    """A warm-up that takes 100 units per call, then 71, 72, ..., 100: the median is 85.5."""
    return [100 * unit] * WARM_UP + [unit * number for number in range(71, 71 + REPEATS)]


def measure(
    seconds: list[float], monkeypatch: pytest.MonkeyPatch, share: float = 1.0
) -> tuple[latency.Latency, list[str]]:
    """Return the latency of a model whose calls take these seconds, and the notes."""
    clock, notes = Clock(share), list[str]()
    monkeypatch.setattr(latency, "time", clock)
    monkeypatch.setattr(latency, "print_note", lambda text, key: notes.append(text))
    model = Model(clock.spend(seconds))
    measured = latency.time_forward(model, torch.zeros(1, 3, 8, 8), Run(threads=1, device="cpu"))
    return measured, [text.partition(",")[0] for text in notes]


@pytest.mark.parametrize("share", [1.0, 2.0])
def test_the_latency_is_the_median_after_the_warm_up(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured, notes = measure(slow_at_first(1.0), monkeypatch, share)
    assert measured.seconds == pytest.approx(85.5)
    assert not measured.is_disturbed
    assert not notes


UNEVEN = [1.0] * WARM_UP + [1.0] * 14 + [1.6] * 16


@pytest.mark.parametrize(
    ("seconds", "share", "fastest"),
    [
        pytest.param(slow_at_first(1.0), 0.5, 71.0, id="the process had half of the time"),
        pytest.param(UNEVEN, 2.0, 1.0, id="passes differ, waiting threads used the processor"),
    ],
)
def test_on_a_busy_processor_the_fastest_pass_counts_and_a_note_says_so(
    seconds: list[float], share: float, fastest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured, notes = measure(seconds, monkeypatch, share)
    assert measured == latency.Latency(pytest.approx(fastest), is_disturbed=True)
    assert notes == ["the processor is busy with other programs"]


def test_a_model_and_its_file_are_timed_in_turns_without_the_warm_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr(runtime_checks, "time", clock)
    model, runner = (clock.spend(slow_at_first(unit)) for unit in (1.0, 0.1))
    latencies = runtime_checks.measure_latencies(Model(model), runner, torch.zeros(1, 3, 8, 8))
    assert latencies == pytest.approx((85.5, 8.55))
