"""Finds incidents in one process's log: bad losses, bad saves, damaged checkpoints, scarce memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from harness.diagnosis.answer import NAME_MAX, Decision, Kind, Suspect
from harness.diagnosis.incident import NS, Incident, files, suspects, told
from harness.diagnosis.view import Event, View, Worker

BEFORE = 20  # steps whose highest loss counts
SPIKE_TIMES = 1.5  # times that loss, in two steps one after the other; losses of small batches scatter widely
SLOW_SAVE_TIMES, SLOW_SAVE_NS = 4.0, 2 * NS  # times the usual duration of a save, and at least so long
SKIPPED = "skipped"  # begins the error of a save that was left out, as the one before it was still being written
SKIPPED_MIN, SKIPPED_TIMES = 4, 2.0  # saves in a row, and times the usual duration of a save
SAVES_MIN = 3  # of which a usual duration is known
MEMORY_SHARE = 0.9  # of a node's memory limit, from which on it is short
MEMORY_GROWTH = 0.1  # of that limit by which it grew since the first figure


def signs(view: View) -> Iterator[Incident]:
    for worker in view.workers:
        yield from _losses(worker)
        yield from _memory(worker)
    yield from _saves(view)
    yield from _fallbacks(view)


def _losses(worker: Worker) -> Iterator[Incident]:
    loss, norm, ends = (worker.steps[name] for name in ("loss", "grad_norm", "end"))
    places, words = np.flatnonzero(_broken(loss) | _broken(norm)), "is no number"
    if not len(places) and len(loss) > BEFORE + 1:
        highest = np.lib.stride_tricks.sliding_window_view(loss[:-1], BEFORE).max(axis=1)
        high = loss[BEFORE:] > SPIKE_TIMES * highest
        high[1:] |= high[:-1] & (loss[BEFORE + 1 :] > SPIKE_TIMES * highest[:-1])
        places, words = BEFORE + np.flatnonzero(high[:-1] & high[1:]), "is far above the usual"
    if len(places):
        place = int(places[0])
        known, name = int(ends[min(place + 1, len(ends) - 1)]), f"step {worker.steps['step'][place]}"
        shown = " ".join(f"{each:.3g}" for each in loss[max(0, place - 2) : place + 3])
        evidence = told([Event(known, name, worker.place, {"losses": shown})])
        why = f"the loss of {name} {words}"
        yield Incident(int(ends[place]), known, Kind.BAD_DATA, (), Decision.ROLL_BACK, 0.8, why, evidence)


def _broken(values: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Marks logged values that are NaN or infinite. A NaN with a negative sign means that no value was logged."""
    return np.isinf(values) | (np.isnan(values) & ~np.signbit(values))


def _memory(worker: Worker) -> Iterator[Incident]:
    figures = [event for event in worker.told("usage") if event.fields.get("memory_bytes_limit")]
    for event in figures:
        limit, used = event.fields["memory_bytes_limit"], event.fields.get("memory_bytes", 0)
        grown = used - figures[0].fields.get("memory_bytes", 0)
        if used > MEMORY_SHARE * limit and grown > MEMORY_GROWTH * limit:
            why = f"{worker.place} uses {used / 2**20:,.0f} of {limit / 2**20:,.0f} MiB, and its memory grows"
            begin, who, evidence = figures[0].at, suspects([worker]), told([figures[0], event])
            yield Incident(begin, event.at, Kind.CRASH, who, Decision.RESTART_IN_PLACE, 0.6, why, evidence)
            return


def _saves(view: View) -> Iterator[Incident]:
    """Yields each save of a checkpoint that failed, was far too slow, or held up later saves. Leaves out a save if the
    save before had the same flaw."""
    saves = [event for event in view.told("checkpoint.committed") if event.fields.get("duration_ns")]
    usual = float(np.median([event.fields["duration_ns"] for event in saves])) if len(saves) >= SAVES_MIN else 0.0
    patience, before, skipped = max(SLOW_SAVE_NS, SLOW_SAVE_TIMES * usual), "", list[Event]()
    for event in sorted([*saves, *view.told("checkpoint.failed")], key=lambda event: event.at):
        ns, error = event.fields.get("duration_ns") or 0, str(event.fields.get("error") or "no reason was told")
        failed = event.name == "checkpoint.failed"
        skipped = [*skipped, event] if failed and error.startswith(SKIPPED) else []
        waited = event.at - skipped[0].at if skipped else 0
        many = len(skipped) >= SKIPPED_MIN and waited > max(SLOW_SAVE_NS, SKIPPED_TIMES * usual)
        now = "failed" if failed and not skipped else "slow" if many or ns > patience else ""
        if now == "failed" and before != now:
            why = f"a save failed: {error}"
            yield Incident(event.at, event.at, Kind.STORAGE, files(error), Decision.IGNORE, 0.9, why, told([event]))
        elif now == "slow" and before != now:
            why = f"a save took more than {max(ns, waited) / NS:.1f} s; the usual time of all is {usual / NS:.1f} s"
            begin = event.at - max(ns, waited)
            yield Incident(begin, event.at, Kind.STORAGE, (), Decision.IGNORE, 0.6, why, told([*skipped[:1], event]))
        before = now or (before if skipped else "")


def _fallbacks(view: View) -> Iterator[Incident]:
    seen = set()
    for event in view.told("restored"):
        for passed in event.fields.get("fallback") or ():
            source = str(passed.get("source") or "")[:NAME_MAX]
            if source and source not in seen:
                seen.add(source)
                why, who = f"a restart passed over {source}: {passed.get('reason') or ''}", (Suspect(file=source),)
                yield Incident(event.at, event.at, Kind.CORRUPTION, who, Decision.ROLL_BACK, 0.9, why, told([event]))
