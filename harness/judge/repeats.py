"""One verdict for several runs of one scenario, decided by the tail of their figures. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from harness.judge.score import Scorecard, Verdict, merge
from harness.judge.statistics import Assessment, assess, failure_bound, failure_interval
from harness.units import counted, format_duration


@dataclass(frozen=True)
class RepeatVerdict:
    """What several runs say together. `assessments`: every upper bound, in shares of it that were used."""

    verdict: Verdict
    reasons: tuple[str, ...]
    assessments: Mapping[str, Assessment] = field(default_factory=dict)


def repeat_verdict(cards: Sequence[Scorecard]) -> RepeatVerdict:
    """One run speaks for itself; several are held against the tail of what they scatter."""
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
    return RepeatVerdict(verdict, (_confidence(len(cards)), *_together(cards)), assessments)


def _together(cards: Sequence[Scorecard]) -> list[str]:
    """`recovered in 5.64 s to 7.51 s; 34.4 % to 39.9 % of GPU time wasted by faults; not judged: pace`."""
    took, wasted = _figures(cards, "recovery_time", "seconds"), _figures(cards, "wasted_gpu_hours", "percent_by_faults")
    clauses = [f"recovered in {_range([format_duration(round(s * 1e9)) for s in took])}"] if took else []
    clauses += [f"{_range([f'{share:.1f} %' for share in wasted])} of GPU time wasted by faults"] if wasted else []
    untold = dict.fromkeys(item for card in cards for item in card.not_judged)
    clauses += [f"not judged: {', '.join(untold)}"] if untold else []
    return ["; ".join(clauses)] if clauses else []


def _figures(cards: Sequence[Scorecard], score: str, name: str) -> list[float]:
    """From the least to the most; none where a run has none."""
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


def _confidence(runs: int) -> str:
    return (
        f"all {runs} runs passed: with 95 % confidence, fewer than {100 * failure_bound(runs):.0f} % of all runs fail"
    )


def _assessments(cards: Sequence[Scorecard]) -> dict[str, Assessment]:
    shares: dict[str, list[float]] = {}
    for card in cards:
        for line in card.expectations:
            if line.share is not None:
                shares.setdefault(line.name, []).append(line.share)
    return {name: assess(values, limit=1.0) for name, values in shares.items() if len(values) == len(cards)}


def _doubt(name: str, found: Assessment) -> str:
    tail = f"90 % of runs use up to {100 * found.tail:.0f} % of the bound, with 95 % confidence"
    typical = f"median: {100 * found.median:.0f} %"
    if found.more is None:
        return f"{name}: {tail} ({typical}); more runs would not help: the values scatter too close to the bound"
    return f"{name}: {tail} ({typical}); about {counted(found.more, 'more run')} would settle it"
