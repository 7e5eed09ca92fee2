"""Splits the difference between two runs by recovery phase, by use of GPU time, and by rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.timeline.timeline import Episode, Process, Timeline

S = 1_000_000_000


@dataclass(frozen=True)
class Line:
    name: str
    before: float | None
    after: float | None

    @property
    def change(self) -> float | None:
        return None if self.before is None or self.after is None else self.after - self.before


def lines(before: Mapping[str, float], after: Mapping[str, float]) -> list[Line]:
    """Pairs the durations of two runs by name, the largest change first. A duration that a run lacks counts as 0."""
    names = [name for name in dict.fromkeys([*before, *after]) if before.get(name) or after.get(name)]
    found = [Line(name, before.get(name, 0.0), after.get(name, 0.0)) for name in names]
    return sorted(found, key=lambda line: -abs(line.change or 0.0))


def rank_lines(before: Mapping[str, float], after: Mapping[str, float]) -> list[Line]:
    """Pairs each rank's durations in two runs, the largest change first. A duration that one run lacks is `None`."""
    names = dict.fromkeys([*before, *after])
    found = [Line(name, before.get(name), after.get(name)) for name in names]
    return sorted(found, key=lambda line: -abs(line.change or 0.0))


def starts_by_rank(run: Timeline) -> dict[str, float]:
    """Returns how many seconds each phase of a rank's start took in the longest recovery, under a key such as `rank 1,
    startup`. If a rank started several times in the recovery, only the latest start counts. A rank whose process kept
    running in the recovery has no values."""
    longest = max(run.episodes, key=lambda each: each.end - each.t_stop, default=None)
    if longest is None:
        return {}
    last: dict[int, Process] = {}
    for process in run.processes:
        if longest.t_stop <= process.started <= longest.end:
            known = last.get(process.rank)
            if known is None or process.started > known.started:
                last[process.rank] = process
    return {f"rank {rank}, {name}": took / S for rank in sorted(last) for name, took in _parts(last[rank], longest)}


def _parts(process: Process, episode: Episode) -> list[tuple[str, int]]:
    parts = [("wait for its start", process.launched - episode.t_stop)]
    if process.rendezvous is not None:
        parts.append(("startup", process.rendezvous - process.launched))
        if process.restored is not None:
            parts.append(("restore", process.restored - process.rendezvous))
    return [(name, took) for name, took in parts if took >= 0]
