"""Tests whether the runs of a gate are worse than the runs of a baseline.

Durations and costs are compared by their logarithms, because their ratio matters, not their difference. A value more
than a factor of 1.5 away from the median of its group is clipped to this factor (Huber 1964), so that a single
disturbed run does not hide a difference. The t-test for unequal variances (Welch 1947) compares the clipped values of
gate and baseline. A standard deviation below 5 % counts as 5 %, because coarse measurements may agree by chance.
Fisher's exact test (1935) compares the success rates.

A quantity is *worse* if its ratio to the baseline is above 1.1 and the t-test is significant. Each ratio is first
divided by the machine's slowdown since the baseline. The significance is corrected for the number of comparisons (Holm
1979). A quantity is *not worse* if its ratio to the baseline is below 1.5 with 95 % confidence. A quantity that is
neither worse nor not worse is inconclusive. A comparison passes only with at least three judged runs in the gate and
three in the baseline."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from harness.gate import t_distribution
from harness.judge.verdict import Verdict, merge
from harness.units import counted

TOLERATED = 1.10  # ratio that two days of one machine may show, too
FOUND = 1.5  # ratio that a green verdict excludes with 95 % confidence
CONFIDENCE = 0.95
ALPHA = 0.03  # error rate of a whole gate; nominal, so that quantised figures stay within 5 %
SCATTER_MIN = 0.05  # least scatter of logarithms: 5 %
RUNS_MIN = 3  # least number of judged runs on each side
RUNS_USUAL = 5
RUNS_MAX = 100

Values = Sequence[float]
FIGURES = {
    "recovery_time": "recovery time",
    "wasted_gpu_seconds": "waste by faults",
    "checkpoint_stall": "checkpoint stall",
}


@dataclass(frozen=True)
class Question:
    """The values of one measured quantity of a scenario, in the baseline's runs (`before`) and in the new runs (`now`).
    `offset` is added to all values before the comparison, so that tiny values do not give large ratios. `doubt` is the
    reason why the values prove nothing, or is empty. `pace` is the median step time of the new runs divided by that of
    the baseline, and all quantities may grow by this factor."""

    scenario: str
    figure: str
    before: tuple[float, ...]
    now: tuple[float, ...]
    offset: float = 0.0
    doubt: str = ""
    pace: float = 1.0


@dataclass(frozen=True)
class Success:
    scenario: str
    failed_before: int
    runs_before: int
    failed_now: int
    runs_now: int
    figure: str = "success"

    @property
    def p(self) -> float:
        return fisher(self.failed_before, self.runs_before, self.failed_now, self.runs_now)


@dataclass(frozen=True)
class _Test:
    difference: float
    error: float
    freedom: float
    explained: float = 0.0  # part of the difference that the machine explains

    @property
    def p_worse(self) -> float:
        """Returns the p-value of the measured difference, without the part that a slower machine explains."""
        return t_distribution.tail((self.difference - self.explained) / self.error, self.freedom)

    @property
    def worth_telling(self) -> bool:
        return self.difference - self.explained > math.log(TOLERATED)

    @property
    def p_found(self) -> float:
        """Returns the probability of measuring at most the measured ratio if the true ratio (new runs to baseline) is
        `FOUND`."""
        return t_distribution.tail((math.log(FOUND) - self.difference) / self.error, self.freedom)

    def bounds(self) -> tuple[float, float]:
        reach = t_distribution.quantile(CONFIDENCE, self.freedom) * self.error
        return math.exp(self.difference - reach), math.exp(self.difference + reach)


@dataclass(frozen=True)
class Answer:
    """The result of comparing one quantity, or the success rate, between gate and baseline. `test` is the result of the
    t-test, or `None` if no t-test was made. `family` is the number of comparisons that the gate makes."""

    question: Question | Success
    verdict: Verdict
    why: str = ""
    test: _Test | None = None
    family: int = 1

    @property
    def ratio(self) -> float | None:
        """Returns the geometric mean of the new runs divided by the geometric mean of the baseline, or `None` if no
        t-test was made."""
        return None if self.test is None else math.exp(self.test.difference)

    @functools.cached_property
    def bounds(self) -> tuple[float, float] | None:
        """Returns the lower and upper bound of the ratio (new runs to baseline) with 95 % confidence each, or `None` if
        no t-test was made."""
        return None if self.test is None else self.test.bounds()

    @functools.cached_property
    def more(self) -> int | None:
        """Returns how many more runs the gate and the baseline each need to settle the comparison, or `None` if the
        comparison is settled or the number is not known."""
        if self.verdict is not Verdict.INCONCLUSIVE:
            return None
        if isinstance(self.question, Success):
            fewest = min(self.question.runs_before, self.question.runs_now)
            return RUNS_USUAL - fewest if fewest < RUNS_MIN else None
        if self.question.doubt:
            return None
        if self.test is None:
            return max(RUNS_USUAL - min(len(self.question.before), len(self.question.now)), 0) or None
        return _more(self.question, self.test, self.family)

    @property
    def reason(self) -> str:
        said = self.why
        if self.bounds is not None:
            said = f"{self.ratio:.2f} × the baseline (95 % bounds {self.bounds[0]:.2f} and {self.bounds[1]:.2f})"
            if self.verdict is Verdict.INCONCLUSIVE:
                said += f": it may be {FOUND:g} × or more"
                pace = self.question.pace if isinstance(self.question, Question) else 1.0
                if pace > TOLERATED:
                    said += f"; the median step also took {pace:.2f} × as long: the machine may be busier"
        more = self.more
        return said if more is None else f"{said}; about {counted(more, 'more run')} on each side would settle it"


@dataclass(frozen=True)
class Regressions:
    """The comparison of a gate with a baseline. `not_compared` lists measurements that could not be compared."""

    baseline: str
    answers: Sequence[Answer]
    missing: Sequence[str] = ()  # scenarios without a counterpart, each a doubt
    not_compared: Sequence[str] = ()  # figures that neither side has
    runs: Mapping[str, str] = field(default_factory=dict)  # newest run of the baseline, by scenario

    @property
    def verdict(self) -> Verdict:
        doubts = [Verdict.INCONCLUSIVE] * bool(self.missing)
        return merge([Verdict.PASS, *(answer.verdict for answer in self.answers), *doubts])

    @property
    def reasons(self) -> list[str]:
        ordered = [each for each in self.answers if each.verdict is Verdict.FAIL]
        ordered += [each for each in self.answers if each.verdict is Verdict.INCONCLUSIVE]
        said = [f"{each.question.scenario}: {title(each.question.figure)}: {each.reason}" for each in ordered]
        return said + [f"{name}: the baseline has no runs of this scenario" for name in self.missing]


def title(figure: str) -> str:
    return FIGURES.get(figure, figure)


def compare(questions: Sequence[Question], successes: Sequence[Success] = ()) -> list[Answer]:
    """Compares a gate with a baseline. Returns the results for the measurements, followed by the results for the
    success rates. A gate with more comparisons needs stronger evidence for each regression. A scenario's success rate
    counts as a comparison only if a run of the scenario failed in gate or baseline (Tarone 1990)."""
    tests = [None if _lacking(question) else _test(question) for question in questions]
    p = [1.0 if test is None else test.p_worse for test in tests]
    open_ones = [each for each in successes if each.failed_before + each.failed_now]
    worse = holm([*p, *(each.p for each in open_ones)])
    family = len(worse)
    rejected = iter(worse[len(p) :])
    found = [_answer(*each, family) for each in zip(questions, tests, worse, strict=False)]
    return found + [_of_success(each, each in open_ones and next(rejected)) for each in successes]


def holm(p: Values, alpha: float = ALPHA) -> list[bool]:
    """Returns a boolean for each p-value: True if Holm's method (1979) rejects the hypothesis. The chance that the
    method rejects any true hypothesis is at most `alpha`."""
    rejected = [False] * len(p)
    for rank, place in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        if p[place] > alpha / (len(p) - rank):
            break
        rejected[place] = True
    return rejected


def fisher(failed_before: int, runs_before: int, failed_now: int, runs_now: int) -> float:
    """Returns the p-value of Fisher's exact test (1935): the probability that, by chance, at least `failed_now` of all
    failures are among the new runs."""
    failed, runs = failed_before + failed_now, runs_before + runs_now
    ways = sum(
        math.comb(runs_now, k) * math.comb(runs_before, failed - k)
        for k in range(failed_now, min(failed, runs_now) + 1)
        if failed - k <= runs_before
    )
    return ways / math.comb(runs, failed)


def _test(question: Question) -> _Test:
    before, now = (_clipped([value + question.offset for value in side]) for side in (question.before, question.now))
    found = _welch(*_moments(before), len(before), *_moments(now), len(now))
    return replace(found, explained=math.log(max(question.pace, 1.0)))


def _welch(mean: float, scatter: float, runs: int, mean_now: float, scatter_now: float, runs_now: int) -> _Test:
    a, b = scatter**2 / runs, scatter_now**2 / runs_now
    freedom = (a + b) ** 2 / (a**2 / (runs - 1) + b**2 / (runs_now - 1))
    return _Test(mean_now - mean, math.sqrt(a + b), freedom)


def _moments(logs: Values) -> tuple[float, float]:
    return statistics.fmean(logs), max(statistics.stdev(logs), SCATTER_MIN)


def _clipped(values: Values) -> list[float]:
    logs = [math.log(value) for value in values]
    middle, reach = statistics.median(logs), math.log(FOUND)
    return [min(max(log, middle - reach), middle + reach) for log in logs]


def _lacking(question: Question) -> str:
    if question.doubt:
        return question.doubt
    if min(len(question.before), len(question.now)) < RUNS_MIN:
        before = counted(len(question.before), "run")
        return f"{before} in the baseline and {len(question.now)} here; each side needs {RUNS_MIN}"
    values = [value + question.offset for value in (*question.before, *question.now)]
    return "" if all(math.isfinite(value) and value > 0 for value in values) else "not all values are positive numbers"


def _answer(question: Question, test: _Test | None, worse: bool, family: int) -> Answer:
    if test is None:
        return Answer(question, Verdict.INCONCLUSIVE, _lacking(question))
    if worse and test.worth_telling:
        return Answer(question, Verdict.FAIL, "", test, family)
    settled = test.p_found <= 1 - CONFIDENCE
    return Answer(question, Verdict.PASS if settled else Verdict.INCONCLUSIVE, "", test, family)


def _of_success(counts: Success, worse: bool) -> Answer:
    said = f"{counts.failed_now} of {counts.runs_now} runs failed"
    said += f", in the baseline {counts.failed_before} of {counts.runs_before}"
    more_often = counts.failed_now * counts.runs_before > counts.failed_before * counts.runs_now
    few = min(counts.runs_before, counts.runs_now) < RUNS_MIN
    said += f"; each side needs {RUNS_MIN} judged runs" if few else ""
    verdict = Verdict.FAIL if worse else Verdict.INCONCLUSIVE if more_often or few else Verdict.PASS
    return Answer(counts, verdict, said)


def _more(question: Question, test: _Test, family: int) -> int | None:
    sides = [_clipped([value + question.offset for value in side]) for side in (question.before, question.now)]
    (mean, scatter), (mean_now, scatter_now) = map(_moments, sides)
    for more in range(1, RUNS_MAX):
        grown = _welch(mean, scatter, len(sides[0]) + more, mean_now, scatter_now, len(sides[1]) + more)
        grown = replace(grown, explained=test.explained)
        if (grown.p_worse <= ALPHA / family and grown.worth_telling) or grown.p_found <= 1 - CONFIDENCE:
            return more
    return None
