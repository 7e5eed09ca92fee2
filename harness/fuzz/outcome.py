"""Defines the outcome of one run of a schedule of faults, as stored in the log of a search."""

from __future__ import annotations

import msgspec

from harness.judge.verdict import Verdict


class Strike(msgspec.Struct, frozen=True):
    """A fault that acted in a run. `phase` is the phase of the job when the fault acted."""

    fault: str
    kind: str
    phase: str


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one run of a schedule of faults. `codes` holds the codes of the judge's findings because of which
    the run failed. `unacted` holds the kinds of the faults that did not act as planned. `run` is the id of the stored
    run. `seconds` is the run's duration, including its fault-free runs and its restarts."""

    verdict: Verdict
    codes: tuple[str, ...] = ()
    reason: str = ""
    strikes: tuple[Strike, ...] = ()
    unacted: tuple[str, ...] = ()
    run: str = ""
    seconds: float = 0.0

    @property
    def cells(self) -> frozenset[tuple[str, str]]:
        return frozenset((strike.kind, strike.phase) for strike in self.strikes)

    def is_same_failure(self, codes: frozenset[str]) -> bool:
        return self.verdict is Verdict.FAIL and not codes.isdisjoint(self.codes)
