"""Gives one verdict on several runs of a scenario, by estimating the limits below which 90 % of all runs stay.

If any run fails, the verdict is fail, however good the other runs are: the stack is then called *flaky*. If all runs
pass, each bound that the scenario sets is checked against the tail of the distribution: with 95 % confidence, 90 % of
all runs must stay within the bound. With too few runs for a confidence of 95 %, the verdict is inconclusive, and states
how many further runs are needed. The bootstrap has a fixed seed, so that equal runs always get the same verdict.
"""

import math
import statistics
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from harness.judge.score import Scorecard
from harness.judge.verdict import Verdict, merge
from harness.timeline.lookups import grouped
from harness.units import counted, format_duration

CONFIDENCE = 0.95
COVERAGE = 0.90  # the share of runs the tail bound is about
RESAMPLES = 4000
RUNS_MAX = 1000
_NORMAL = statistics.NormalDist()
# One-sided tolerance factors of a normal sample, 90 % coverage at 95 % confidence, 2 to 10 values (Lieberman 1958).
_FACTORS = (20.581, 6.155, 4.162, 3.407, 3.006, 2.755, 2.582, 2.454, 2.355)


@dataclass(frozen=True)
class RepeatVerdict:
    """The one verdict on several runs of a scenario. `assessments` maps each upper bound to its check on all runs."""

    verdict: Verdict
    reasons: tuple[str, ...]
    assessments: Mapping[str, "Assessment"] = field(default_factory=dict)


def repeat_verdict(cards: Sequence[Scorecard]) -> RepeatVerdict:
    if len(cards) == 1:
        return RepeatVerdict(cards[0].verdict, tuple(cards[0].reasons))
    verdict = merge(card.verdict for card in cards)
    worst = [card.reasons[0] for card in cards if card.verdict is verdict]
    if verdict is Verdict.FAIL:
        return RepeatVerdict(verdict, (_failures(cards), *dict.fromkeys(worst)))
    if verdict is not Verdict.PASS:
        are = "is" if len(worst) == 1 else "are"
        return RepeatVerdict(verdict, (f"{len(worst)} of {len(cards)} runs {are} {verdict}: {worst[0]}",))
    assessments = _assessments(cards)
    doubts = tuple(_doubt(name, found) for name, found in assessments.items() if not found.within)
    if doubts:
        return RepeatVerdict(Verdict.INCONCLUSIVE, doubts, assessments)
    rate = f"fewer than {100 * failure_bound(len(cards)):.0f} % of all runs fail"
    sure = f"all {len(cards)} runs passed: with 95 % confidence, {rate}"
    return RepeatVerdict(verdict, (sure, *_together(cards)), assessments)


def _together(cards: Sequence[Scorecard]) -> list[str]:
    took, wasted = _figures(cards, "recovery_time", "seconds"), _figures(cards, "wasted_gpu_hours", "percent_by_faults")
    clauses = [f"recovered in {_range([format_duration(round(s * 1e9)) for s in took])}"] if took else []
    clauses += [f"{_range([f'{share:.1f} %' for share in wasted])} of GPU time wasted by faults"] if wasted else []
    untold = dict.fromkeys(item for card in cards for item in card.not_judged)
    clauses += [f"not judged: {', '.join(untold)}"] if untold else []
    return ["; ".join(clauses)] if clauses else []


def _figures(cards: Sequence[Scorecard], score: str, name: str) -> list[float]:
    found = [card.scores.get(score, {}).get(name) for card in cards]
    return sorted(float(value) for value in found if value is not None) if None not in found else []


def _range(ascending: Sequence[str]) -> str:
    first, last = ascending[0], ascending[-1]
    return first if first == last else f"{first} to {last}"


def _failures(cards: Sequence[Scorecard]) -> str:
    failed = sum(card.verdict is Verdict.FAIL for card in cards)
    passed = sum(card.verdict is Verdict.PASS for card in cards)
    if not passed:
        return f"{failed} of {len(cards)} runs failed, and none passed"
    low, high = failure_interval(failed, failed + passed)
    rate = f"with 95 % confidence, between {100 * low:.1f} % and {100 * high:.1f} % of all runs fail"
    return f"flaky: {failed} of {failed + passed} runs failed; {rate}"


def _assessments(cards: Sequence[Scorecard]) -> dict[str, "Assessment"]:
    lines = (line for card in cards for line in card.expectations if line.name.partition(".")[0] in _expected(card))
    shares = grouped((line.name, line.share) for line in lines if line.share is not None)
    return {name: assess(values) for name, values in shares.items() if len(values) == len(cards)}


def _expected(card: Scorecard) -> Container[str]:
    told = card.evidence.run.plan.get("expect")
    return told if isinstance(told, dict) else ()


def _doubt(name: str, found: "Assessment") -> str:
    tail = f"with 95 % confidence 9 of 10 runs use at most {100 * found.tail:.0f} % of the bound, not 100 %"
    typical = f"median: {100 * found.median:.0f} %"
    if found.more is None:
        return f"{name}: {tail} ({typical}); more runs would not help: the values scatter too close to the bound"
    return f"{name}: {tail} ({typical}); about {counted(found.more, 'more run')} would settle it"


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Returns the percentile bootstrap interval of the median of `values` (at least one)."""
    dice = np.random.default_rng(0)
    data = np.asarray(values, float)
    found = np.median(data[dice.integers(len(data), size=(RESAMPLES, len(data)))], axis=1)
    low, high = np.percentile(found, [50 * (1 - CONFIDENCE), 50 * (1 + CONFIDENCE)])
    return float(low), float(high)


def tolerance_factor(runs: int) -> float:
    """Returns the one-sided tolerance factor k for a normal sample of `runs` values.

    With 95 % confidence, 90 % of all values lie below the sample's mean plus k standard deviations. The sources are
    Lieberman 1958 for up to 10 values, and Natrella's approximation (1963) for more.
    """
    if runs < 2:
        return math.inf
    if runs - 2 < len(_FACTORS):
        return _FACTORS[runs - 2]
    share, sure = _NORMAL.inv_cdf(COVERAGE), _NORMAL.inv_cdf(CONFIDENCE)
    a = 1 - sure**2 / (2 * (runs - 1))
    b = share**2 - sure**2 / runs
    return (share + math.sqrt(share**2 - a * b)) / a


def tail_bound(values: Sequence[float]) -> float:
    """Returns the value below which, with 95 % confidence, 90 % of all runs stay (infinity for fewer than two values).

    Values are assumed to be log-normally distributed if all are positive, as durations and costs are, and otherwise
    normally.
    """
    if len(values) < 2:
        return math.inf
    scale = _scale(values)
    bound = statistics.fmean(scale) + tolerance_factor(len(values)) * statistics.stdev(scale)
    return math.exp(min(bound, 700.0)) if min(values) > 0 else bound


def _scale(values: Sequence[float]) -> list[float]:
    return [math.log(value) for value in values] if min(values) > 0 else list(values)


def failure_interval(failures: int, runs: int) -> tuple[float, float]:
    """Returns the two-sided 95 % interval of the rate of failures (Clopper and Pearson 1934)."""
    return _rate(failures - 1, runs, 1 - (1 - CONFIDENCE) / 2), _rate(failures, runs, (1 - CONFIDENCE) / 2)


def failure_bound(runs: int) -> float:
    """Returns the highest failure rate that is possible, with 95 % confidence, if none of `runs` runs failed."""
    return _rate(0, runs, 1 - CONFIDENCE)


def _rate(most: int, runs: int, probability: float) -> float:
    if most < 0:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(60):
        rate = (low + high) / 2
        chance = sum(math.comb(runs, k) * rate**k * (1 - rate) ** (runs - k) for k in range(most + 1))
        low, high = (rate, high) if chance > probability else (low, rate)
    return (low + high) / 2


@dataclass(frozen=True)
class Assessment:
    """Statistics of one measured value over several runs. Each run's value is divided by the value's upper bound."""

    runs: int
    median: float
    interval: tuple[float, float]  # of the median
    tail: float
    more: int | None  # further runs like these that would bring the tail within the bound; `None`: no number would

    @property
    def within(self) -> bool:
        return self.tail <= 1


def assess(shares: Sequence[float]) -> Assessment:
    tail = tail_bound(shares)
    more = 0 if tail <= 1 else _more(shares)
    return Assessment(len(shares), float(np.median(shares)), median_interval(shares), tail, more)


def _more(shares: Sequence[float]) -> int | None:
    if len(shares) < 2:
        return 2  # scatter is seen from two on, and bounded usefully from three
    scale = _scale(shares)
    room, spread = (0 if min(shares) > 0 else 1) - statistics.fmean(scale), statistics.stdev(scale)
    for runs in range(len(shares) + 1, RUNS_MAX):
        if tolerance_factor(runs) * spread <= room:
            return runs - len(shares)
    return None
