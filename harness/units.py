"""Parses quantities with a unit, as they are written in scenario files.

A parser returns a number in the unit that the parser's name gives. For an invalid value, a parser raises `ValueError`
and says what is allowed. `Duration`, `Size` and `Rate` also keep the text, which pydantic models write to JSON.
"""

import re
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

_DURATION_NS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
_SIZE_BYTES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_RATE_BITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z%/]*)\Z")
LENGTH_MAX = 40  # characters of a quantity
DURATION_NS_MAX = 8760 * _DURATION_NS["h"]  # a year
SIZE_BYTES_MAX = 2**60
RATE_BITS_MAX = 10**15
SPEED_MAX = 10**6


def _parse(text: object, units: dict[str, int], what: str, example: str, most: int, most_text: str) -> int:
    match = _NUMBER.match(text.strip()) if isinstance(text, str) and len(text) <= LENGTH_MAX else None
    if match is None or match[2] not in units:
        allowed = ", ".join(units)
        raise ValueError(f"{_short(text)} is not a {what}: write a number and one of {allowed}, like {example}")
    whole, _, fraction = match[1].partition(".")
    scale = units[match[2]]
    value = int(whole) * scale + (int(fraction) * scale // 10 ** len(fraction) if fraction else 0)
    if value > most:
        raise ValueError(f"{text!r} is too much: a {what} is at most {most_text}")
    return value


def _short(value: object) -> str:
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "a mapping"
    text = repr(value) if isinstance(value, (str, int, float, type(None))) else type(value).__name__
    return text if len(text) <= 2 * LENGTH_MAX else text[: 2 * LENGTH_MAX] + "…"


def parse_duration_ns(text: object) -> int:
    """Parses a duration into nanoseconds, for example `'1.5s'` into 1_500_000_000."""
    return _parse(text, _DURATION_NS, "duration", "30s", DURATION_NS_MAX, "8760h")


def parse_percent(text: object) -> float:
    """Parses a percentage from 0 to 100, for example `'25%'` or `25` into 25.0."""
    raw = text[:-1] if isinstance(text, str) and text.endswith("%") else text
    try:
        value = float(raw)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        value = -1.0
    if isinstance(text, bool) or not 0 <= value <= 100:
        raise ValueError(f"{_short(text)} is not a percentage: write a number from 0 to 100, like 25%")
    return value


def parse_per_hour(text: object) -> float:
    """Parses a rate (per `/s`, `/m` or `/h`) into events per hour, for example `'2/h'` into 2.0."""
    match = _NUMBER.match(text.strip()) if isinstance(text, str) and len(text) <= LENGTH_MAX else None
    per = {"/s": 3600.0, "/m": 60.0, "/h": 1.0}
    if match is None or match[2] not in per or float(match[1]) <= 0:
        raise ValueError(f"{_short(text)} is not a rate of events: write a number and /s, /m or /h, like 2/h")
    return float(match[1]) * per[match[2]]


def parse_speed(text: object) -> float:
    """Parses a speed, which is at most a million, for example `'60x'` into 60.0."""
    match = _NUMBER.match(text.strip()) if isinstance(text, str) and len(text) <= LENGTH_MAX else None
    if match is None or match[2] != "x" or not 0 < float(match[1]) <= SPEED_MAX:
        raise ValueError(f"{_short(text)} is not a speed: write a number above 0 and x, like 60x")
    return float(match[1])


@dataclass(frozen=True)
class _Quantity:
    text: str

    pattern: ClassVar[str]
    example: ClassVar[str]

    def __str__(self) -> str:
        return self.text

    @classmethod
    def _of(cls, written: object) -> Self:
        if isinstance(written, cls):
            return written
        return cls(written)  # type: ignore[arg-type]  # whatever it is: parsing says what is wrong with it

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: object) -> Any:
        from pydantic_core import core_schema  # what runs on a node has no pydantic

        as_text = core_schema.to_string_ser_schema()
        return core_schema.no_info_plain_validator_function(cls._of, serialization=as_text)

    @classmethod
    def __get_pydantic_json_schema__(cls, *_: object) -> dict[str, Any]:
        return {"type": "string", "pattern": cls.pattern, "examples": [cls.example]}


@dataclass(frozen=True)
class Duration(_Quantity):
    """A duration, as a text with its unit; for example, `Duration("1.5s").ns == 1_500_000_000`."""

    ns: int = field(init=False)

    pattern = r"^[0-9]+(\.[0-9]+)?\s*(ns|us|ms|s|m|h)$"
    example = "30s"

    def __post_init__(self) -> None:
        object.__setattr__(self, "ns", parse_duration_ns(self.text))

    @property
    def s(self) -> float:
        return self.ns / 1e9

    @property
    def ms(self) -> float:
        return self.ns / 1e6


@dataclass(frozen=True)
class Size(_Quantity):
    """A number of bytes, as a text with its unit; for example, `Size("64MiB").bytes == 67_108_864`."""

    bytes: int = field(init=False)

    pattern = r"^[0-9]+(\.[0-9]+)?\s*(B|kB|MB|GB|KiB|MiB|GiB)$"
    example = "64MiB"

    def __post_init__(self) -> None:
        number = _parse(self.text, _SIZE_BYTES, "size", "64MiB", SIZE_BYTES_MAX, "2^60 bytes")
        object.__setattr__(self, "bytes", number)


@dataclass(frozen=True)
class Rate(_Quantity):
    """A bandwidth, as a text with its unit; for example, `Rate("1gbit").bits_per_s == 1_000_000_000`."""

    bits_per_s: int = field(init=False)

    pattern = r"^[0-9]+(\.[0-9]+)?\s*(bit|kbit|mbit|gbit)$"
    example = "100mbit"

    def __post_init__(self) -> None:
        number = _parse(self.text, _RATE_BITS, "bandwidth", "100mbit", RATE_BITS_MAX, "1000000gbit")
        object.__setattr__(self, "bits_per_s", number)


def counted(number: int, noun: str, many: str = "") -> str:
    """Formats a number with its noun, for example as `1 step`, `1,024 steps` or `2 entries`."""
    return f"{number:,} {noun if number == 1 else many or noun + 's'}"


def format_duration(ns: int) -> str:
    """Formats a duration in nanoseconds for people, for example as `1.24 s`, `85 ms` or `3 min 20 s`."""
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
