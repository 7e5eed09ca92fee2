"""Checks whether stored runs meet service level objectives. The result for too few runs is `inconclusive`.

An objective is inconclusive if unjudged runs could decide the result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from harness.judge.verdict import Verdict

P95 = 0.95
ROUNDED = 1.001  # factor by which rounded waste may exceed the GPU time
NAMED_MAX = 5  # most runs that a reason names


@dataclass(frozen=True)
class Past:
    """One stored run. `recovery_s` is the recovery time in seconds, infinite if the job never recovered, or `None` if
    no recovery time is known. `allocated` and `wasted` are GPU-seconds, or `None` if not measured."""

    run_id: str
    begun_s: float
    verdict: Verdict
    recovery_s: float | None
    allocated: float | None
    wasted: float | None

    @property
    def possible(self) -> bool:
        told = (self.recovery_s, self.allocated, self.wasted)
        most = math.inf if self.allocated is None else ROUNDED * self.allocated
        return all(each is None or each >= 0 for each in told) and (self.wasted or 0) <= most

    @property
    def tells_waste(self) -> bool:
        return bool(self.allocated) and self.wasted is not None and self.possible

    @property
    def judged(self) -> bool:
        return self.verdict in (Verdict.PASS, Verdict.FAIL) and self.possible


@dataclass(frozen=True)
class Answer:
    """The result of checking one bound of an objective. `observed` is the measured value, or `None` if no finite value
    was measured. The values `observed` and `bound` are in the unit `unit`."""

    figure: str
    verdict: Verdict
    observed: float | None
    bound: float
    unit: str
    reason: str
    runs: int
    burn_rate: float | None = None


def success(runs: Sequence[Past], percent_min: float, runs_min: int) -> Answer:
    judged = [run for run in runs if run.judged]
    passed = sum(run.verdict is Verdict.PASS for run in judged)
    observed = 100 * passed / len(judged) if judged else None
    said = f"{passed} of {len(judged)} judged runs passed"
    said += _named("more not judged", [run for run in runs if not run.judged])
    if observed is None or len(judged) < runs_min:
        verdict, said = _too_few(len(judged), runs_min, said)
    elif observed < percent_min:
        verdict = Verdict.FAIL
    elif 100 * passed / len(runs) < percent_min:
        verdict = Verdict.INCONCLUSIVE
        said += ", and these decide it"
    else:
        verdict = Verdict.PASS
    return Answer("success", verdict, observed, percent_min, "%", said, len(judged))


def recovery_p95(runs: Sequence[Past], seconds_max: float, runs_min: int) -> Answer:
    """Checks whether the 95th percentile of recovery times is at most `seconds_max`. A run that never recovered has an
    infinite recovery time."""
    judged = [run for run in runs if run.judged]
    known = [run.recovery_s for run in judged if run.recovery_s is not None]
    unknown = sum(run.recovery_s is None and run.verdict is Verdict.FAIL for run in judged) + len(runs) - len(judged)
    observed = _p95(known)
    said = f"of {len(known)} recoveries, {sum(math.isinf(each) for each in known)} of them never ended"
    said += _named("more not judged", [run for run in runs if not run.judged])
    if observed is None or len(known) < runs_min:
        verdict, said = _too_few(len(known), runs_min, said)
    elif observed > seconds_max:
        verdict = Verdict.FAIL
    elif (_p95([*known, *[math.inf] * unknown]) or 0.0) > seconds_max:
        verdict, said = Verdict.INCONCLUSIVE, f"{said}; {unknown} runs do not tell theirs, and decide it"
    else:
        verdict = Verdict.PASS
    shown = None if observed is None or math.isinf(observed) else observed
    return Answer("recovery p95", verdict, shown, seconds_max, "s", said, len(known))


def waste(runs: Sequence[Past], percent_max: float, burn_rate_max: float, burn_since_s: float, runs_min: int) -> Answer:
    """Checks the wasted share of the allocated GPU time, and the burn rate of the budget. The burn rate is the wasted
    share in the newest runs divided by the budget `percent_max`. A burn rate of 1 uses up exactly the budget (Google's
    *Site Reliability Workbook*, chapter 5)."""
    known = [run for run in runs if run.tells_waste]
    observed = _share(known)
    burnt = _share([run for run in known if run.begun_s >= burn_since_s])
    rate = None if burnt is None else burnt / percent_max
    said = f"{len(known)} of {len(runs)} runs tell their GPU time"
    said += _named("not", [run for run in runs if not run.tells_waste])
    if observed is None or len(known) < runs_min:
        verdict, said = _too_few(len(known), runs_min, said)
    elif observed > percent_max:
        verdict = Verdict.FAIL
    elif rate is not None and rate > burn_rate_max:
        verdict, said = Verdict.FAIL, f"{said}; lately the budget burns {rate:.1f} times as fast as it may"
    elif 2 * len(known) < len(runs):
        verdict = Verdict.INCONCLUSIVE
    else:
        verdict = Verdict.PASS
    return Answer("waste", verdict, observed, percent_max, "%", said, len(known), rate)


def runs_needed(percent_min: float, least: int) -> int:
    """Returns how many runs are needed, at least `least`, so that `percent_min` percent still pass if one run fails."""
    return least if percent_min >= 100 else max(least, math.ceil(round(100 / (100 - percent_min), 6)))


def _too_few(runs: int, least: int, said: str) -> tuple[Verdict, str]:
    return Verdict.INCONCLUSIVE, f"too little evidence: {said}; {least} are needed, {max(least - runs, 0)} more"


def _named(what: str, runs: Sequence[Past]) -> str:
    names = ", ".join(run.run_id for run in runs[:NAMED_MAX]) + ", …" * (len(runs) > NAMED_MAX)
    return f"; {len(runs)} {what}: {names}" if runs else ""


def _p95(values: Sequence[float]) -> float | None:
    return sorted(values)[math.ceil(P95 * len(values)) - 1] if values else None


def _share(runs: Sequence[Past]) -> float | None:
    allocated = sum(run.allocated or 0.0 for run in runs)
    return 100 * sum(run.wasted or 0.0 for run in runs) / allocated if allocated else None
