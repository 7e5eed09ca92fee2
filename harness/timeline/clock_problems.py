"""Finds contradictions between times in an event log, such as a step that ended before its process began."""

import bisect
from collections.abc import Iterator, Sequence

from harness.log.reading import DRIFT_MAX, JUMP_NS_MIN, Log, Writer
from harness.timeline.lineage import Life
from harness.units import format_duration


def problems(log: Log, lives: Sequence[Life], skewed: bool) -> Iterator[str]:
    """Yields a message for each contradiction between times in a log. `skewed` is True if a fault sets clocks wrong on
    purpose."""
    for life in lives:
        if len(life.step_ends) and int(life.step_ends.min()) < life.started - log.uncertainty_ns - JUMP_NS_MIN:
            text = f"steps of rank {life.rank} on {life.key[0]} ended before their process began"
            yield f"{text}: their times are missing or wrong"
    if log.harness is not None and not skewed:
        yield from _elsewhere(log.harness, log.writers)


def _elsewhere(harness: Writer, writers: Sequence[Writer]) -> Iterator[str]:
    """Yields a message for each event file whose header names the harness's monotonic clock, but whose times contradict
    this clock."""
    known = sorted({one["wall_ns"] - one["mono_ns"] for one in (harness.header, *harness.events) if "wall_ns" in one})
    for writer in writers:
        same = writer.header.get("clock") == harness.header.get("clock")
        if not same or "wall_ns" not in writer.header or not known:
            continue
        ahead = writer.header["wall_ns"] - writer.header["mono_ns"]
        drift = DRIFT_MAX * abs(writer.header["mono_ns"] - harness.header["mono_ns"])
        near = bisect.bisect(known, ahead)
        apart = min(abs(ahead - each) for each in known[max(near - 1, 0) : near + 1])
        if apart > drift + JUMP_NS_MIN:
            text = f"{writer.name} claims the harness's clock, but is {format_duration(apart)} off"
            yield f"{text}: its times cannot be compared"
