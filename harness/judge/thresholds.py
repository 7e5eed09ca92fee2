"""Every number that the judge compares a measurement with: its unit, what it parts, and where it comes from.

* `healthy("<=", …)`: a healthy run measures this at most. The words say what is healthy | what is broken.
* `judged(">=", …)`: so much evidence is needed before a rule speaks. The words say what is too little | what is enough.
* `method(…)`: a choice inside a method. No measurement is compared with it alone.

A source begins with `runs:` (which ones show it), `formula:`, `published:`, `meaning:` (it follows from what the words
mean) or `guess:` (no stored run comes near it). `make margins` shows the nearest healthy run and the nearest broken one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

Sign = Literal["<", "<=", ">", ">="]
Number = TypeVar("Number", int, float)
SOURCES = ("runs: ", "formula: ", "published: ", "meaning: ", "guess: ")


@dataclass(frozen=True)
class Threshold:
    kind: Literal["healthy", "judged", "method"]
    sign: Sign | None  # of what a healthy run measures, or of evidence that is enough
    value: float
    unit: str
    parts: str
    source: str


_ROWS: list[Threshold] = []


def healthy(sign: Sign, value: Number, unit: str, parts: str, source: str) -> Number:
    _ROWS.append(Threshold("healthy", sign, value, unit, parts, source))
    return value


def judged(sign: Sign, value: Number, unit: str, parts: str, source: str) -> Number:
    _ROWS.append(Threshold("judged", sign, value, unit, parts, source))
    return value


def method(value: Number, unit: str, parts: str, source: str) -> Number:
    _ROWS.append(Threshold("method", None, value, unit, parts, source))
    return value


def table() -> Mapping[str, Threshold]:
    """By name, in the order of the file."""
    names = [name for name, value in globals().items() if name[0] != "_" and isinstance(value, int | float)]
    return dict(zip(names, _ROWS, strict=True))


# fmt: off

# Clocks, and what is told late

BEFORE_NS = healthy("<=", 10**8, "ns", "a fault acts so long before it is told | earlier", "guess: the harness tells its own deeds within 100 ms")
COARSE_NS = healthy("<=", 5 * 10**7, "ns", "times of two tellers are rounded | apart", "runs: docs/margins.json")
ROUNDED_NS = healthy("<=", 10**7, "ns", "times of one process are rounded | apart", "runs: docs/margins.json")
APART_NS = healthy("<=", 125 * 10**6, "ns", "two clocks of one host, set at two moments | apart", "runs: docs/margins.json")
ALLOCATED_NS = healthy("<=", 3 * 10**9, "ns", "a node is seen late | it did steps before it was given", "runs: docs/margins.json")
SEEN_NS = healthy("<=", 3 * 10**9, "ns", "a recovery is seen late on a busy host | told too early", "runs: docs/margins.json")
LAST_WORDS_NS = healthy("<=", 10**9, "ns", "a save's end is told after the process left | it goes on", "runs: docs/margins.json")
NOTICED_NS = healthy("<=", 10**9, "ns", "a notice beside the strike that it announces | told before it was given", "runs: 0.22 s in golden/B-notice-cancelled")
USUAL_FACTOR = healthy("<=", 2, "× usual", "as late as without a fault | later", "runs: docs/margins.json")
LATE_SAVES = healthy("<", 3, "saves in a row", "seen late by chance | told before they were", "runs: docs/margins.json")
FINE_NS = judged("<", 10**5, "ns", "clocks too coarse to tell copies | fine enough", "formula: with COPIED_STEPS")
COPIED_STEPS = method(5, "steps", "in a row that a copy shares", "formula: 5 steps that scatter by 10 ms are alike at 0.1 ms in 100^-5 of cases")
STEPS_LOOKED_AT = method(4096, "steps", "that show how coarse clocks are", "meaning: more change no divisor")

# What is computed

DIFFERS_FOR_GOOD = judged(">=", 0.9, "of later steps", "differs for a while | never the same again", "runs: torch 2.4.1, from its second step on")
TERMS_LEAST = method(2**20, "terms", "of the longest sum, where no save tells more", "meaning: a model of a million parameters")
PARAMETER_BYTES = method(12, "bytes", "of a save for each parameter", "published: Kingma and Ba 2015: Adam keeps two moments of each, here as 32-bit floats")

# The host, and the pace

TOO_FAST = healthy(">=", 0.25, "× usual", "so fast | its steps were not done then", "runs: docs/margins.json")
HIDDEN_SHARE = healthy("<=", 0.5, "of what was saved", "a slower end | the time is hidden in it", "meaning: more than half of it")
SPENT_SHARE = healthy("<", 0.5, "of a step", "a line is lost whose step was skipped | done", "meaning: half of it")
