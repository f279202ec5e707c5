"""20M, 3G, 15ms: there and back."""

import pytest

from learngene_zoo.errors import WrongCall
from learngene_zoo.text import (
    format_count,
    format_round_count,
    format_seconds,
    parse_count,
    parse_seconds,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("20M", 20_000_000),
        ("3G", 3 * 10**9),
        ("3b", 3 * 10**9),
        ("1.5k", 1500),
        ("7", 7),
        (" 2 T ", 2 * 10**12),
        ("1e3", 1000),
    ],
)
def test_counts(text: str, value: int) -> None:
    assert parse_count(text) == value


@pytest.mark.parametrize(
    ("text", "value"), [("15ms", 0.015), ("2s", 2.0), ("250us", 0.00025), ("1.5 s", 1.5)]
)
def test_durations(text: str, value: float) -> None:
    assert parse_seconds(text) == pytest.approx(value)


@pytest.mark.parametrize(
    "text", ["", "M", "-3M", "0", "3X", "20 M M", "1e999", "inf", "nan", "0x10"]
)
def test_what_is_no_count(text: str) -> None:
    with pytest.raises(WrongCall, match="20M"):
        parse_count(text)


@pytest.mark.parametrize("text", ["15", "15m", "-1ms", "0ms", "ms", "fast"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(WrongCall, match="15ms"):
        parse_seconds(text)


def test_for_people() -> None:
    assert [format_count(value) for value in (999, 1234, 5_717_416, 17_582_740_224)] == [
        "999",
        "1.23K",
        "5.72M",
        "17.58G",
    ]
    assert [format_seconds(value) for value in (0.012, 3.44, 306, 3720)] == [
        "12ms",
        "3.4s",
        "5m 06s",
        "1h 02m",
    ]
    assert [format_seconds(value) for value in (119.6, 3599.7)] == ["2m 00s", "1h 00m"], (
        "rounded, not cut"
    )


def test_round_counts_have_no_zeros_after_the_point() -> None:
    counts = (0, 20, 100, 500_000, 2_500_000, 10_000_000, 1_234_567)
    texts = ["0", "20", "100", "500K", "2.5M", "10M", "1.23M"]
    assert [format_round_count(value) for value in counts] == texts


def test_a_number_that_rounds_up_gets_the_next_unit() -> None:
    counts = (999_994, 999_999, 999_994_999, 10**12 - 1)
    assert [format_count(value) for value in counts] == ["999.99K", "1.00M", "999.99M", "1.00T"]
    seconds = (0.0009994, 0.0009996, 0.9994, 0.9996, 59.94, 59.97)
    assert [format_seconds(value) for value in seconds] == [
        "999us",
        "1ms",
        "999ms",
        "1.0s",
        "59.9s",
        "1m 00s",
    ]
