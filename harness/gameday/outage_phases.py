"""The phases of an outage that is still going on, in the words of the report (`harness.timeline.phases`).

The report knows the whole log. Here a trainer's newest word is all that there is, so this is an estimate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.run.live_progress import LiveProgress

STANDING = "standing_still"  # no word of the report: nobody knows yet why no step is done
RESTARTING = "restarting"  # nor this: whether a node is missing only the faults tell
_STARTS, _RESTORES = ("startup", "starting"), ("restore", "restored")
_REPORTED = {"starting": "startup", "restored": "first_step", "exiting": "teardown"}


@dataclass
class Span:
    """A part of an outage. `phase` is the trainer's own word."""

    phase: str
    begin_ns: int
    end_ns: int
    missing: bool = False  # a node of the job


def newest_word(progress: LiveProgress) -> str:
    """Of the trainer. Once every rank has its state back, the next thing is a step, even where none of them says so."""
    if progress.phase != "restore":
        return progress.phase
    workers = list(progress.workers.values())
    complete = bool(workers) and len(workers) >= progress.world_size
    restored = complete and all(worker.restored_step == worker.last_step for worker in workers)
    return "restored" if restored else progress.phase


def phase_now(progress: LiveProgress, standing: bool) -> str:
    """What the job does, as everybody may see it: nothing is taken from the faults. `standing`: it does no step."""
    word = newest_word(progress)
    if word == "training":
        again = progress.complete_step < progress.furthest_step
        return STANDING if standing else "recompute" if again else "running"
    reborn = any(worker.since_ns > progress.last_step_ns for worker in progress.workers.values())
    if word == "rendezvous" and progress.last_step_ns and not reborn:
        return RESTARTING  # a launcher is ready to meet; the others end what is left, or a node is missing
    return _REPORTED.get(word, word)


def phases_of(outage: Sequence[Span], recovered_ns: int | None, node_taken: bool) -> list[tuple[str, float]]:
    """Phase and seconds, neighbours of one phase as one. `recovered_ns`: when all of its faults were recovered from;
    `node_taken`: one of them takes a node away, so that the job waits for another one."""
    found: list[tuple[str, float]] = []
    started_ns = None  # when new processes were met last; who restores its state is new, or has noticed
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
    if span.phase == "rendezvous" and started_ns is None:  # of the launchers: no new process was met yet
        waits = "reschedule" if span.missing else "startup"  # its replacement is there, and has to start
        return [(waits if node_taken else "teardown", span.begin_ns, span.end_ns)]
    return [(_REPORTED.get(span.phase, span.phase), span.begin_ns, span.end_ns)]
