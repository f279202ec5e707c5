"""Quantities as people write them: 20M parameters, 3G FLOPs, 15ms."""

import math
import re

from learngene_zoo.errors import WrongCall

_SCALES = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_NUMBER = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_count(text: str) -> int:
    """`20M` is 20,000,000; `3G` (or `3B`) is 3e9; a bare number is itself. Raises `WrongCall`."""
    number, unit = _split(text, "20M or 3G")
    if unit not in _SCALES:
        raise WrongCall(f"{text!r} has no known unit; write K, M, G or T, as in 20M")
    return round(number * _SCALES[unit])


def parse_seconds(text: str) -> float:
    """`15ms` is 0.015; the unit (s, ms or us) is required. Raises `WrongCall`."""
    number, unit = _split(text, "15ms")
    if unit not in _SECONDS:
        raise WrongCall(f"{text!r} is not a duration; write s, ms or us, as in 15ms")
    return number * _SECONDS[unit]


def _split(text: str, example: str) -> tuple[float, str]:
    match = _NUMBER.fullmatch(text)
    if not match or not math.isfinite(float(match[1])) or float(match[1]) <= 0:
        raise WrongCall(f"{text!r} is not a positive quantity; write it as {example}")
    return float(match[1]), match[2].lower()


def human_count(value: int) -> str:
    """1,234,567 as `1.23M`."""
    for unit, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("K", 1e3)):
        if value >= scale:
            return f"{value / scale:.2f}{unit}"
    return str(value)


def human_seconds(value: float) -> str:
    """Durations for people: 12ms, 3.4s, 5m 06s, 1h 02m."""
    if value < 1e-3:
        return f"{value * 1e6:.0f}us"
    if value < 1:
        return f"{value * 1e3:.0f}ms"
    if value < 60:
        return f"{value:.1f}s"
    minutes, seconds = divmod(round(value), 60)
    return f"{minutes}m {seconds:02d}s" if minutes < 60 else f"{minutes // 60}h {minutes % 60:02d}m"
