"""Estimates the phases of an outage that is still going on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.run.live_progress import LiveProgress

STANDING = "standing_still"  # phase without a word in the report: no step is done for an unknown reason
RESTARTING = "restarting"  # phase without a word in the report: only the faults tell whether a node is missing
_STARTS, _RESTORES = ("startup", "starting"), ("restore", "restored")
_REPORTED = {"starting": "startup", "restored": "first_step", "exiting": "teardown"}


@dataclass
class Span:
    phase: str
    begin_ns: int
    end_ns: int
    missing: bool = False  # a node of the job is missing


def newest_word(progress: LiveProgress) -> str:
    """Returns the newest phase that the trainer logged, or `restored` once every rank has restored its state."""
    if progress.phase != "restore":
        return progress.phase
    workers = list(progress.workers.values())
    complete = bool(workers) and len(workers) >= progress.world_size
    restored = complete and all(worker.restored_step == worker.last_step for worker in workers)
    return "restored" if restored else progress.phase


def phase_now(progress: LiveProgress, standing: bool) -> str:
    """Returns the job's phase for the live page, by a name that does not reveal the fault to the participants.
    `standing` is True if the job completes no steps."""
    word = newest_word(progress)
    if word == "training":
        again = progress.complete_step < progress.furthest_step
        return STANDING if standing else "recompute" if again else "running"
    reborn = any(worker.since_ns > progress.last_step_ns for worker in progress.workers.values())
    if word == "rendezvous" and progress.last_step_ns and not reborn:
        return RESTARTING  # a launcher waits for the others, which end old workers, or for a missing node
    return _REPORTED.get(word, word)


def phases_of(outage: Sequence[Span], recovered_ns: int | None, node_taken: bool) -> list[tuple[str, float]]:
    """Returns an outage's phases with durations in seconds. `recovered_ns` is the time of the recovery from all faults.
    `node_taken` is True if the job waits for another node."""
    found: list[tuple[str, float]] = []
    started_ns = None  # last time at which new processes joined; a restore means a new process, too
    for span in outage:
        if span.phase in _STARTS or (span.phase in _RESTORES and started_ns is None):
            started_ns = span.begin_ns
        for phase, begin_ns, end_ns in _parts(span, started_ns, recovered_ns, node_taken):
            took_s = (end_ns - begin_ns) / 1e9
            if found and found[-1][0] == phase:
                took_s += found.pop()[1]
            found.append((phase, took_s))
    return found


def _parts(
    span: Span, started_ns: int | None, recovered_ns: int | None, node_taken: bool
) -> list[tuple[str, int, int]]:
    if span.phase == "training":
        lost = "detect" if started_ns is None else "recompute"
        if recovered_ns is None or recovered_ns < (started_ns or 0) or recovered_ns >= span.end_ns:
            return [(lost, span.begin_ns, span.end_ns)]
        if recovered_ns <= span.begin_ns:
            return [("running", span.begin_ns, span.end_ns)]
        return [(lost, span.begin_ns, recovered_ns), ("running", recovered_ns, span.end_ns)]
    if span.phase == "rendezvous" and started_ns is None:  # the launchers meet; no new process joined yet
        waits = "reschedule" if span.missing else "startup"  # the replacement is there, and has to start
        return [(waits if node_taken else "teardown", span.begin_ns, span.end_ns)]
    return [(_REPORTED.get(span.phase, span.phase), span.begin_ns, span.end_ns)]
