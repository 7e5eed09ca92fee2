"""Figures from the log: step times, throughput, checkpoints, resumes, alarms; traffic and how busy GPUs were; hangs of
collectives; what the log tells. A bound may be set on some; only evidence that is missing decides a verdict by itself.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.judge.bounds import MetricBounds
from harness.judge.facts import alarms, reported
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.saves import Save, Saves
from harness.judge.facts.usual import Times
from harness.judge.score import (
    Evidence,
    Expectation,
    S,
    Score,
    ScoreResult,
    at_least,
    at_most,
)
from harness.judge.verdict import Code, unknown
from harness.node.emitter import TELLS
from harness.timeline.lineage import NEVER
from harness.timeline.lookups import first_from, grouped
from harness.timeline.save_events import COMMITTED, FAILED, PART
from harness.timeline.sorted_events import CLEAN_CODES
from harness.timeline.timeline import FaultRecord, Timeline
from harness.units import counted

QUANTILES = (50, 95, 99)
LINKS_SHOWN = 16
HANGS_SHOWN = 100
APART_NS = 120 * S  # ranks tell of one hang within this time: their time-outs differ

Counter = tuple[str, int, str]  # what is counted: node, incarnation, link
Told = Mapping[str, Any]


class Metrics(Score):
    name = "metrics"
    section = "metrics"

    def score(self, evidence: Analysis, bounds: MetricBounds | None) -> ScoreResult:
        run = evidence.run
        values = _steps(run) | _checkpoints(run, evidence.saves) | _resumes(run) | _alarms(evidence) | _whole(run)
        false = values["false_alarms"] if bounds is None or bounds.max_false_alarms is None else 0
        why = f"{counted(false, 'alarm')} of the trainer that no fault explains, and no bound on that"
        lines = _expectations(values, bounds) if bounds else ()
        return ScoreResult(values, lines, not_judged=[("alarms of the trainer", why)] if false else [])


def _steps(run: Timeline) -> dict[str, Any]:
    """Step time is the time between ends of complete steps of one epoch; samples per second are those of surviving
    steps, over the whole time from the first step's begin to the last one's end."""
    told = Times.of(run)
    times = told.end - told.begin
    values: dict[str, Any] = {}
    for quantile in QUANTILES:
        taken = float(np.percentile(times, quantile)) / S if len(times) else None
        values[f"step_seconds_p{quantile}"] = taken
    steps = run.steps
    sync = steps.sync_ns[steps.sync_ns > 0]
    values["sync_seconds_p50"] = float(np.median(sync)) / S if len(sync) else None
    samples, span = _samples(run), int(run.progress.end[-1] - run.progress.begin[0]) if len(run.progress) else 0
    values["samples_per_second"] = samples * S / span if samples is not None and span else None
    values["steps_executed"] = len(run.progress)
    values["steps_rolled_back"] = len(run.progress) - len(np.unique(run.progress.step))
    return values


def _whole(run: Timeline) -> dict[str, Any]:
    """Of the job from its begin to its end."""
    completed = run.finished and run.outcome == "completed"
    lasted = run.end - run.begin
    price, samples = (run.plan.get("scenario") or {}).get("price_per_gpu_hour"), _samples(run)
    million = None  # dollars for so many samples that count: all allocated GPU time, at the scenario's price
    if price is not None and samples:
        gpu_ns = sum(slot.released - slot.allocated for slot in run.slots)
        million = float(price) * gpu_ns / (3600 * S) / samples * 1e6
    epoch = million * run.data_samples / 1e6 if million is not None and run.data_samples is not None else None
    return {
        "time_to_complete_seconds": lasted / S if completed else None,
        "requeues_per_hour": _replacements(run) * 3600 * S / lasted if lasted > 0 and run.slots else None,
        "dollars_per_million_samples": million,
        "dollars_per_epoch": epoch,
    }


def _samples(run: Timeline) -> float | None:
    """Samples of surviving steps, each once; `None` where they are not told."""
    steps = run.steps
    rows = np.flatnonzero(steps.survives & steps.complete)
    if not len(rows) or (steps.count[rows] < 0).any():
        return None
    chosen = rows[np.unique(steps.step[rows], return_index=True)[1]]
    return float(steps.count[chosen].sum(dtype=np.float64))


@dataclass
class _Checkpoint:
    """One checkpoint, by all who took part in it: each rank may begin it, and one of them or another commit it."""

    began: set[int] = field(default_factory=set)  # rows in Timeline.processes
    done: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    over: int = NEVER  # when the first of them told how it ended

    def may_be_joined(self, save: Save, worlds: Mapping[int, set[int]]) -> bool:
        """By one who has not begun it yet: while it goes on, or later if its world is the one that did it."""
        fresh = save.process not in self.began
        return fresh and (self.over > save.at or any(worlds[save.process] & worlds[row] for row in self.began))

    def add(self, save: Save) -> None:
        if save.begun is not None:
            self.began.add(save.process)
        if save.how in (COMMITTED, FAILED):  # whoever commits the last part commits the checkpoint
            (self.done if save.how == COMMITTED else self.failed).add(save.process)
            self.over = min(self.over, save.ended or 0)


def _together(run: Timeline, saves: Saves) -> list[_Checkpoint]:
    worlds: dict[int, set[int]] = {row: set() for row in range(len(run.processes))}
    for epoch in run.epochs:
        for row in epoch.processes:
            worlds[row].add(epoch.world)
    found: list[_Checkpoint] = []
    current: dict[int, _Checkpoint] = {}
    for save in saves.all:
        held, begins = current.get(save.step), save.begun is not None
        if not begins and save.how == PART:
            continue
        if held is None or (begins and not held.may_be_joined(save, worlds)):
            held = current[save.step] = _Checkpoint()
            found.append(held)
        held.add(save)
    return found


def _checkpoints(run: Timeline, saves: Saves) -> dict[str, Any]:
    """A checkpoint that was begun and neither committed nor cut off by a death has failed, too."""
    checkpoints = _together(run, saves)
    lived = {index for index, process in enumerate(run.processes) if process.exit_code in CLEAN_CODES}
    bad = [bool(each.failed - each.done) or (not each.done and each.began <= lived) for each in checkpoints]
    done = sum(bool(each.done) and not failed for each, failed in zip(checkpoints, bad, strict=True))
    tried = done + sum(bad)
    took = grouped((save.kind, save.duration_ns) for save in saves.whole)
    durations = [save.duration_ns for save in saves.whole]
    return {
        "checkpoints_committed": done,
        "checkpoints_failed": sum(bad),
        "checkpoint_success_percent": 100 * done / tried if tried else None,
        "checkpoint_seconds_p50": float(np.median(durations)) / S if durations else None,
        "checkpoint_seconds_max": max(durations) / S if durations else None,
        "checkpoint_seconds_max_by_kind": {kind: max(each) / S for kind, each in sorted(took.items())} or None,
    }


def _resumes(run: Timeline) -> dict[str, Any]:
    """Every outage asks for a resume; it succeeded when the furthest step was passed again."""
    resumed = [episode.t_regained is not None for episode in run.episodes]
    restored = [p for p in run.processes if p.restored_step]
    return {
        "resumes": len(resumed),
        "resume_success_percent": 100 * sum(resumed) / len(resumed) if resumed else None,
        "fallbacks": sum(len(process.fallback) for process in restored),
        "preemptions": sum(fault.preempts and fault.injected is not None for fault in run.faults),
        "replacements": _replacements(run),
        "worker_starts": len(run.processes),
    }


def _replacements(run: Timeline) -> int:
    """Nodes that came for others. Those that came before a window are in it from its begin."""
    return len({(s.node, s.incarnation) for s in run.slots if s.incarnation > 1 and s.allocated > run.begin})


def _alarms(evidence: Analysis) -> dict[str, Any]:
    """False alarms, and the time from a fault to its first evidence."""
    run = evidence.run
    windows = [*evidence.windows]
    windows += [(f.injected, f.healed or run.end) for f in run.faults if f.injected is not None]
    ends = _episode_ends(run)
    detect = [taken for fault in run.faults if (taken := _detection(run, fault, ends)) is not None]
    return {
        "anomalies": len(run.anomalies),
        "false_alarms": len(alarms.false_alarms(run, windows, evidence.spikes)),
        "detection_seconds_max": max(detect) / S if detect else None,
    }


def _episode_ends(run: Timeline) -> Mapping[str, Sequence[int]]:
    """When the episodes of each fault ended, in order of time."""
    ended = sorted((episode.end, fault) for episode in run.episodes for fault in episode.faults)
    return grouped((fault, at) for at, fault in ended)


def _detection(run: Timeline, fault: FaultRecord, ends: Mapping[str, Sequence[int]]) -> int | None:
    """From the injection to the first sign, within its episode, that somebody in the job noticed something."""
    if fault.injected is None:
        return None
    at, over = int(np.searchsorted(run.evidence, fault.injected)), first_from(ends.get(fault.id, ()), fault.injected)
    if at == len(run.evidence) or run.evidence[at] > ((fault.healed or run.end) if over == NEVER else over):
        return None
    return int(run.evidence[at]) - fault.injected


def _expectations(values: dict[str, Any], bounds: MetricBounds) -> list[Expectation]:
    table: Sequence[tuple[str, str, Callable[..., Expectation], Callable[[Any], str], str]] = (
        ("step_p50_max", "step_seconds_p50", at_most, _seconds, "s"),
        ("step_p95_max", "step_seconds_p95", at_most, _seconds, "s"),
        ("step_p99_max", "step_seconds_p99", at_most, _seconds, "s"),
        ("detection_max", "detection_seconds_max", at_most, _seconds, "s"),
        ("max_false_alarms", "false_alarms", at_most, str, ""),
        ("steps_rolled_back_max", "steps_rolled_back", at_most, str, ""),
        ("checkpoint_success_min", "checkpoint_success_percent", at_least, _percent, "%"),
        ("resume_success_min", "resume_success_percent", at_least, _percent, "%"),
    )
    return [
        held(f"metrics.{name}", values[key], bound / S if unit == "s" else bound, show, unit=unit)
        for name, key, held, show, unit in table
        if (bound := getattr(bounds, name)) is not None
    ]


def _seconds(value: float) -> str:
    return f"{value:.3f} s"


def _percent(value: float) -> str:
    return f"{value:.1f} %"


# Usage


class Usage(Score):
    """Bytes on each node's network links, and how busy its GPUs were."""

    name = "usage"
    section = "metrics"
    order = 61

    def score(self, evidence: Evidence, bounds: object) -> ScoreResult:
        run = evidence.run
        rates = sorted(_rates(_link_counters(run)).items())
        by_link = {f"{node} {link}": rate for (node, _, link), rate in rates}  # the newest incarnation stands for all
        busiest = sorted(by_link, key=lambda link: -by_link[link])[:LINKS_SHOWN]
        nvlink = list(_rates(_nvlink_counters(run)).values())
        gpus = [gpu for event in run.usage for gpu in event.get("gpus") or ()]
        told = [float(gpu["busy_percent"]) for gpu in gpus if gpu.get("busy_percent") is not None]
        busy = [percent for percent in told if 0 <= percent <= 100]  # anything else is no share of time
        memory = [int(gpu["memory_bytes"]) for gpu in gpus if gpu.get("memory_bytes") is not None]
        values = {
            "network_bytes_per_second": {link: by_link[link] for link in sorted(busiest) if by_link[link] > 0} or None,
            "network_bytes_per_second_max": max(by_link.values(), default=None),
            "gpu_busy_percent": statistics.fmean(busy) if busy else None,
            "gpu_memory_bytes_max": max(memory, default=None),
            "nvlink_bytes_per_second": statistics.fmean(nvlink) if nvlink else None,
        }
        return ScoreResult(values)


def _link_counters(run: Timeline) -> Iterator[tuple[Counter, int, int]]:
    """(what is counted, moment in ns, bytes received and sent until then). Nodes that share their links count once."""
    shared = [str(event.get("namespace") or event["node"]) for event in run.usage]
    owner: dict[str, str] = {}
    for namespace, event in zip(shared, run.usage, strict=True):
        owner[namespace] = min(owner.get(namespace, str(event["node"])), str(event["node"]))
    for namespace, event in zip(shared, run.usage, strict=True):
        for link in event.get("links") or ():
            both = int(link.get("received_bytes") or 0) + int(link.get("sent_bytes") or 0)
            yield (owner[namespace], int(event["incarnation"]), str(link["link"])), event["at"], both


def _nvlink_counters(run: Timeline) -> Iterator[tuple[Counter, int, int]]:
    for event in run.usage:
        for gpu in event.get("gpus") or ():
            if gpu.get("nvlink_bytes") is not None:
                yield (str(event["node"]), int(event["incarnation"]), str(gpu["gpu"])), event["at"], gpu["nvlink_bytes"]


def _rates(counters: Iterator[tuple[Counter, int, int]]) -> dict[Counter, float]:
    """Bytes per second of what was sampled twice. A counter that went back was reset: that stretch is left out."""
    last: dict[Counter, tuple[int, int]] = {}
    moved: dict[Counter, tuple[int, int]] = {}
    for what, at, count in counters:
        before_at, before = last.get(what, (at, count))
        last[what] = at, count
        if at > before_at and count >= before:
            spent, total = moved.get(what, (0, 0))
            moved[what] = spent + at - before_at, total + count - before
    return {what: total * S / spent for what, (spent, total) in moved.items()}


# Collectives


class Collectives(Score):
    """Where each rank was when the training hung, as PyTorch's flight recorder says."""

    name = "collectives"
    order = 60

    def score(self, evidence: Evidence, bounds: object) -> ScoreResult:
        return ScoreResult({"hangs": hangs(evidence.run)})


def hangs(run: Timeline) -> list[str]:
    """One sentence for each hang of a process group, in order of time; the first `HANGS_SHOWN` of them."""
    groups = grouped((str(event["group"]), event) for event in run.collectives)
    found = sorted((hang for events in groups.values() for hang in _hangs(events)), key=lambda hang: int(hang[0]["at"]))
    sizes = {process: epoch.size for epoch in run.epochs for process in epoch.processes}  # of its last world
    shown = [_in_words(sizes.get(hang[0]["process"], 0), hang) for hang in found[:HANGS_SHOWN]]
    more = len(found) - len(shown)
    return [*shown, f"{more} more hangs of process groups"] if more else shown


def _hangs(events: Sequence[Told]) -> Iterator[list[Told]]:
    """Of one group's events. A process tells of one hang once, and then it ends."""
    hang, ranks = list[Told](), set[int]()
    for event in events:
        if hang and (event["at"] - hang[0]["at"] > APART_NS or event["rank"] in ranks):
            yield hang
            hang, ranks = [], set()
        hang.append(event)
        ranks.add(event["rank"])
    if hang:
        yield hang


def _in_words(size: int, hang: Sequence[Told]) -> str:
    """`size`: of the last world in which the first to tell did a step; 0 where it did none."""
    newest = max(event["number"] for event in hang)
    waiting = [event for event in hang if event["number"] == newest]
    behind = [event for event in hang if event["number"] < newest]
    silent = sorted(set(range(size)) - {event["rank"] for event in hang})
    first = waiting[0]
    text = f"{_ranks(waiting)} waited in collective {newest} ({first['operation']}{_at_line(first)})"
    if behind:
        last = max(behind, key=lambda event: int(event["number"]))
        verb = "was" if len(behind) == 1 else "were"
        text += f"; {_ranks(behind)} {verb} still at {last['number']} ({last['operation']}{_at_line(last)})"
    if silent:
        text += f"; {_named(silent)} reported nothing"
    return text if behind or silent else f"{text}; no rank was missing from it"


def _at_line(event: Told) -> str:
    return f", {event['code']}" if event.get("code") else ""


def _ranks(events: Sequence[Told]) -> str:
    return _named(sorted(event["rank"] for event in events))


def _named(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"


# What is told


class ToldScore(Score):
    """What nobody tells is not judged."""

    name = "told"
    section = "metrics"
    order = 5

    def score(self, evidence: Evidence, bounds: object) -> ScoreResult:
        here, scratch = reported.told(evidence.run), reported.from_scratch(evidence.run)
        reasons = [unknown(Code.RESTART_TOLD_SCRATCH, scratch)] if scratch else []
        untold = list(reported.not_judged(evidence, evidence.run.plan.get("expect") or {}))
        return ScoreResult({"tells": [kind for kind in TELLS if kind in here]}, reasons=reasons, not_judged=untold)


SCORES = (Metrics(), Usage(), Collectives(), ToldScore())
