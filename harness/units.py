"""Quantities with a unit, as they are written in scenario files.

Every parser takes the text as written and returns an integer in the base unit named by the function,
or raises `ValueError` with the bad value and what is allowed.
"""

from __future__ import annotations

import re

_DURATION_NS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
_SIZE_BYTES = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
}
_RATE_BITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z%/]*)\Z")


def _parse(text: object, units: dict[str, int], what: str, example: str) -> int:
    match = _NUMBER.match(text.strip()) if isinstance(text, str) else None
    if match is None or match[2] not in units:
        allowed = ", ".join(units)
        raise ValueError(f"{text!r} is not a {what}: write a number and one of {allowed}, like {example}")
    whole, _, fraction = match[1].partition(".")
    scale = units[match[2]]
    return int(whole) * scale + (int(fraction) * scale // 10 ** len(fraction) if fraction else 0)


def parse_duration_ns(text: object) -> int:
    """`'1.5s'` → 1_500_000_000."""
    return _parse(text, _DURATION_NS, "duration", "30s")


def parse_size_bytes(text: object) -> int:
    """`'64MiB'` → 67_108_864."""
    return _parse(text, _SIZE_BYTES, "size", "64MiB")


def parse_rate_bits(text: object) -> int:
    """`'1gbit'` → 1_000_000_000 bits per second."""
    return _parse(text, _RATE_BITS, "bandwidth", "100mbit")


def parse_percent(text: object) -> float:
    """`'25%'` or `25` → 25.0; between 0 and 100."""
    raw = text[:-1] if isinstance(text, str) and text.endswith("%") else text
    try:
        value = float(raw)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        value = -1.0
    if isinstance(text, bool) or not 0 <= value <= 100:
        raise ValueError(f"{text!r} is not a percentage: write a number from 0 to 100, like 25%")
    return value


def parse_per_hour(text: object) -> float:
    """`'2/h'` → 2.0 events per hour (`/s`, `/m` and `/h` are known)."""
    match = _NUMBER.match(text.strip()) if isinstance(text, str) else None
    per = {"/s": 3600.0, "/m": 60.0, "/h": 1.0}
    if match is None or match[2] not in per or float(match[1]) <= 0:
        raise ValueError(f"{text!r} is not a rate of events: write a number and /s, /m or /h, like 2/h")
    return float(match[1]) * per[match[2]]


def format_duration(ns: int) -> str:
    """Human text for a duration in nanoseconds: `1.24 s`, `85 ms`, `3 min 20 s`."""
    if ns < 0:
        return "-" + format_duration(-ns)
    if ns < 10**6:
        return f"{ns / 1e3:.0f} µs"
    if ns < 10**9:
        return f"{ns / 1e6:.0f} ms"
    if ns < 120 * 10**9:
        return f"{ns / 1e9:.2f} s"
    minutes, seconds = divmod(round(ns / 1e9), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"
