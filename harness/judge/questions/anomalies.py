"""Counts abnormal events, and measures the time from the start of a memory leak until the trainer reported the leak.

The abnormal events, which the guarantees `result.*` judge, are loss spikes, ranks with weights other than the
majority's, and batches with missing samples. Loss and gradient norm are sums over all ranks, and prove nothing about
one rank. A rank's weight digest (`weights`) and sample count (`rank_samples`) can prove a flaw of this rank.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from harness.evidence import ranks
from harness.judge.bounds import MemoryBounds
from harness.judge.facts.alarms import UNTOLD, Said, about, false_alarms
from harness.judge.facts.analysis import Analysis
from harness.judge.guarantee import guarantees
from harness.judge.score import S, Score, ScoreResult, line
from harness.judge.thresholds import LEAK_MEAN_FACTOR, LEAK_RATE_FACTOR
from harness.node.emitter import abnormal
from harness.node.emitter.strikes import LEAKING
from harness.timeline.lookups import first_from, grouped
from harness.timeline.timeline import FaultRecord, Timeline


def _sign(name: str, order: int, guarantee: str, values: Callable[[Analysis], dict[str, Any]]) -> Score:
    def score(evidence: Analysis, bounds: object) -> ScoreResult:
        return ScoreResult(values(evidence), why_not=guarantees()[guarantee].nothing(evidence))

    return Score(name, order, score, "metrics")


def _spikes(evidence: Analysis) -> dict[str, Any]:
    left_out = sum(end - begin for begin, end in evidence.left_out.accepted)
    return {"loss_spikes": len(evidence.spikes), "samples_left_out": left_out}


def _replicas(evidence: Analysis) -> dict[str, Any]:
    told, apart = evidence.weights_apart
    return {"replica_checks": told, "replicas_apart": len(apart)}


def _rank_samples(evidence: Analysis) -> dict[str, Any]:
    run, rows = evidence.run, ranks.samples_counted(evidence.run)
    if not len(rows):
        return {}
    totals = np.bincount(run.steps.rank[rows], weights=run.steps.rank_samples[rows])
    totals = totals[np.unique(run.steps.rank[rows])]
    values = {"rank_samples_min": int(totals.min()), "rank_samples_max": int(totals.max())}
    return values | {"batches_short": len(ranks.samples_short(run.steps, rows))}


def memory_growth(evidence: Analysis, bounds: MemoryBounds | None) -> ScoreResult:
    """Checks that the trainer reported each memory leak before the leaking rank ended, if a scenario demands this."""
    seen = _foreseen(evidence)
    if not seen and bounds is None:
        return ScoreResult({})
    values = {"seconds_until_told": {f"rank {rank}": seen[rank] for rank in sorted(seen)}}
    if bounds is None or not bounds.foreseen:
        return ScoreResult(values)
    told = [after for after in seen.values() if after is not None]
    unseen = min((rank for rank, after in seen.items() if after is None), default=None)
    leaked = f"the memory of rank {unseen} leaked until it ended"
    untold = f"{leaked}, {UNTOLD}, told another rate, or gave false alarms before"
    reason = ("" if unseen is None else untold) if seen else "no rank's memory leaked"
    observed = f"{len(told)} of {len(seen)} ranks" if seen else None
    summary = f"the leak was found {max(told):.1f} s after it began" if told else ""
    return ScoreResult(values, [line("memory_growth.foreseen", "each leak", observed, reason)], summary=summary)


def _foreseen(evidence: Analysis) -> dict[int, float | None]:
    """Maps each leaking rank to the seconds from the start of the leak until the trainer reported the leak. The value
    is `None` if the rank's process ended before a report."""
    run, false = evidence.run, false_alarms(evidence.run, evidence.disturbances, evidence.spikes)
    ends = grouped((exit_["rank"], exit_["at"]) for exit_ in run.exits)
    alarms = grouped((about(alarm), alarm) for alarm in Said(run, abnormal.MEMORY).all)
    false = [alarm for alarm in false if alarm.get("kind") == abnormal.MEMORY]
    leaking = (each for each in run.faults if each.leaks and all(effect.get("ok") for effect in each.effects))
    leaks = ((each, target.get("rank")) for each in leaking for target in each.targets)
    found = dict[int, float | None]()
    for fault, rank in leaks:
        begin = fault.injected
        if begin is None or not isinstance(rank, int):
            continue
        rate = _bytes_per_s(run, fault, rank)
        ended, since = min(first_from(ends.get(rank, ()), begin), run.end), begin - run.uncertainty_ns
        cried = {each["process"] for each in false if about(each) == rank and each["at"] < since}
        sound = [each for each in alarms.get(rank, ()) if each["process"] not in cried and _tells_rate(each, rate)]
        at = first_from([each["at"] for each in sound], since)
        found[rank] = (at - begin) / S if at <= ended + run.uncertainty_ns else None
    return found


def _bytes_per_s(run: Timeline, fault: FaultRecord, rank: int) -> float | None:
    leaking, nodes = ([target.get(key) for target in fault.targets] for key in ("rank", "node"))
    place = leaking.index(rank)
    taken = [(int(each["at"]), each.get("measured", 0.0)) for each in fault.effects if "bytes" in str(each.get("unit"))]
    begun = [each["at"] for each in run.phases if (each["rank"], each.get("name")) == (rank, LEAKING)]
    begin = first_from(begun, (fault.injected or 0) - run.uncertainty_ns)
    if len(taken) != len(nodes) or nodes.count(nodes[place]) > 1 or begin >= taken[place][0]:
        return None
    return float(taken[place][1]) * S / (taken[place][0] - begin)


def _tells_rate(alarm: Mapping[str, Any], bytes_per_s: float | None) -> bool:
    """Returns True for an alarm without a rate, or with one that the growth explains, or a mean with time before it."""
    told = alarm.get("rate_bytes")
    if not told or not bytes_per_s:
        return True
    return bool(told <= LEAK_RATE_FACTOR * bytes_per_s and bytes_per_s <= LEAK_MEAN_FACTOR * told)


SCORES = (
    Score("memory_growth", 26, memory_growth),
    _sign("rank_samples", 27, "result.batches_whole", _rank_samples),
    _sign("replicas", 28, "result.replicas_together", _replicas),
    _sign("divergence", 29, "result.divergence_undone", _spikes),
)
