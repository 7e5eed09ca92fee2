"""Finds what slowed a training job without stopping the job: one long step, or a stretch of slow steps.

The time of a rank's step has four parts: its own work, data, checkpointing, and the wait in the gradients' all-reduce.
A rank that is slow by itself makes its peers wait in the all-reduce. The network is slow if even the rank that enters
the all-reduce last has to wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.diagnosis.answer import Decision, Kind, Suspect
from harness.diagnosis.incident import NS, Incident, link, names, suspects, told
from harness.diagnosis.links import Links
from harness.diagnosis.view import Event, View, Worker

FIRST_STEPS = 3  # steps of each world that are left out: programs warm up
STALL_NS = 15 * NS // 10  # a step so long is a stall, at least; a healthy step of a noisy host took 0.9 s
STALL_STEPS = 5  # and so many usual steps
PAUSE_NS = 5 * NS  # of some ranks; a shorter one passes by itself before any watchdog fires
STALL_SHARE = 0.5  # share of a stall that one part of a rank's step must explain
WINDOW = 20  # steps whose median counts
WINDOWS_AT_ONCE = 65_536  # so that the memory stays small
RATIO = 1.7  # own work of a straggler over that of its peers; in healthy runs of a noisy host at most 1.5
SLOWER_NS = 20 * 10**6  # of that work, at least: the first rank logs and saves, too
WAITED = 0.2  # share of a step for which the others wait longer than a straggler, at least
NETWORK_NS, NETWORK_TIMES = 30 * 10**6, 4.0  # the last rank's wait: at most 20 ms in healthy runs, where 7 are usual
DATA_NS, DATA_TIMES = 30 * 10**6, 5.0  # the longest wait for data: at most 18 ms in healthy runs, where 3 are usual
PARTS = {"own": "own work", "data": "wait for data", "checkpoint": "checkpointing", "sync": "wait in the all-reduce"}
SURE = {Kind.STRAGGLER: 0.85, Kind.NETWORK: 0.6, Kind.STORAGE: 0.5}  # a slow node answers late, a slow link slows saves

SURE_OF_A_NODE = 0.8
Matrix = npt.NDArray[np.float64]  # ns, by rank and step


@dataclass(frozen=True)
class World:
    """Workers that did the same steps. The times `took` and `parts` (ns) have a row per worker, and a column per
    step."""

    workers: Sequence[Worker]
    steps: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]  # of each step, the last rank's
    took: Matrix
    parts: dict[str, Matrix]


def slowness(view: View) -> Iterator[Incident]:
    known = [world for world in _worlds(view) if len(world.workers) > 1]
    usual = {name: _median([world.parts[name] for world in known]) for name in PARTS}
    usual["took"] = _median([world.took for world in known])
    links = Links(view)
    yield from links.incidents()
    for world in known:
        yield from _on_a_link(links, _stalls(world, usual))
        if world.took.shape[1] >= WINDOW:
            yield from _stragglers(world)
    waits = [("sync", world, world.parts["sync"].min(axis=0)) for world in known]
    waits += [("data", world, world.parts["data"].max(axis=0)) for world in known]
    for name, times, least, kind, words in (
        ("sync", NETWORK_TIMES, NETWORK_NS, Kind.NETWORK, "even the last rank waited {:.0f} ms in the all-reduce"),
        ("data", DATA_TIMES, DATA_NS, Kind.STORAGE, "a rank waited {:.0f} ms for data"),
    ):
        often = _median([wait for part, _, wait in waits if part == name])
        for world, wait in ((world, wait) for part, world, wait in waits if part == name):
            found = _rolling(wait)
            for places in _stretches(found > max(least, times * often)):
                why = f"{words.format(found[places].max() / 1e6)} a step, where {often / 1e6:.0f} ms are usual"
                who = link(world.workers) if kind is Kind.NETWORK else ()
                yield from _on_a_link(links, [_stretch(world, places, kind, who, Decision.IGNORE, why)])


def _on_a_link(links: Links, found: Iterable[Incident]) -> Iterator[Incident]:
    """Sets the suspect of each network incident to the node whose connections were bad. Drops a network incident if no
    connection was bad although enough nodes logged their connections, because the ranks waited for something else."""
    for each in found:
        bad = links.bad_node(each.begin, each.known) if each.kind is Kind.NETWORK else None
        if bad and bad.node:
            who, known, why = (Suspect(node=bad.node),), max(each.known, bad.known), f"{each.why}; {bad.why}"
            yield replace(each, who=who, known=known, why=f"{why} of {bad.node}", sure=SURE_OF_A_NODE)
        elif not bad:
            yield each


def _worlds(view: View) -> Iterator[World]:
    groups: list[dict[int, Worker]] = [{}]
    for worker in view.workers:
        if worker.rank in groups[-1]:  # a rank that comes again begins a new world
            groups.append({})
        groups[-1][worker.rank] = worker
    for group in filter(None, groups):
        workers = [group[rank] for rank in sorted(group)]
        count = min(len(worker.steps["end"]) for worker in workers)
        rows = {c: np.array([each.steps[c][FIRST_STEPS:count] for each in workers]) for c in workers[0].steps}
        if count > FIRST_STEPS and (rows["step"] == rows["step"][0]).all():
            took = (rows["end"] - rows["begin"]).astype(np.float64)
            parts = {name: rows[f"{name}_ns"].clip(min=0).astype(np.float64) for name in ("data", "checkpoint", "sync")}
            parts["own"] = (took - sum(parts.values())).clip(min=1)
            yield World(workers, rows["step"][0], rows["end"].max(axis=0), took, parts)


def _median(parts: Sequence[Matrix]) -> float:
    return float(np.median(np.concatenate([part.ravel() for part in parts]))) if parts else 0.0


def _stalls(world: World, usual: dict[str, float]) -> Iterator[Incident]:
    longest, count = world.took.max(axis=0), len(world.workers)
    for place in np.flatnonzero(longest > max(STALL_NS, STALL_STEPS * usual["took"])).tolist():
        excess = float(longest[place]) - usual["took"]
        slow = {name: np.flatnonzero(part[:, place] - usual[name] > STALL_SHARE * excess).tolist()
                for name, part in world.parts.items()}  # fmt: skip
        busy = count - len(slow["sync"])  # ranks for which the others waited
        some = next((name for name in ("own", "data") if 0 < len(slow[name]) == busy < count), None)
        late = [world.workers[row] for row in slow[some]] if some else []
        if some and excess < PAUSE_NS:
            continue
        if some:
            kind = Kind.HANG if some == "own" else Kind.STORAGE
            words = f"on {names(late)} by its {PARTS[some]}; then it went on"
        elif slow["checkpoint"] or len(slow["data"]) == count:
            kind, words = Kind.STORAGE, f"by its {PARTS['checkpoint' if slow['checkpoint'] else 'data']}"
        elif len(slow["sync"]) == count:
            kind, words = Kind.NETWORK, "and all ranks waited in the all-reduce"
        else:
            continue
        why, end = f"step {world.steps[place]} took {excess / NS:.1f} s too long, {words}", int(world.ends[place])
        evidence = _figures(world, place, place + 1)
        who = link(world.workers) if kind is Kind.NETWORK else suspects(late)
        sure = 0.7 if some else SURE[kind]
        yield Incident(end - int(longest[place]), end, kind, who, Decision.IGNORE, sure, why, evidence)


def _stragglers(world: World) -> Iterator[Incident]:
    at = np.array([worker.node for worker in world.workers])
    nodes = sorted({*at.tolist()})
    parts = world.parts["own"], world.parts["sync"]
    own, sync = (np.array([np.median(part[at == node], axis=0) for node in nodes]) for part in parts)
    took, many = world.took.max(axis=0).clip(min=1), (np.median(own, axis=0), np.median(sync, axis=0))
    for place, node in enumerate(nodes if len(nodes) > 1 else ()):
        usual_own, usual_sync = (own[1 - place], sync[1 - place]) if len(nodes) == 2 else many
        ratio, waited = _rolling(own[place] / usual_own), _rolling((usual_sync - sync[place]) / took)
        slower = (ratio > RATIO) & (waited > WAITED) & (_rolling(own[place] - usual_own) > SLOWER_NS)
        for places in _stretches(slower):
            why = f"the work of {node} took {ratio[places].max():.1f} times as long as that of the other nodes"
            yield _stretch(world, places, Kind.STRAGGLER, (Suspect(node=node),), Decision.EVICT_NODE, why)


def _stretches(slow: npt.NDArray[np.bool_]) -> Iterator[npt.NDArray[np.int64]]:
    places = np.flatnonzero(slow)
    return filter(len, np.split(places, np.flatnonzero(np.diff(places) > WINDOW) + 1))


def _stretch(
    world: World, places: npt.NDArray[Any], kind: Kind, who: tuple[Suspect, ...], decision: Decision, why: str
) -> Incident:
    first, last = int(places[0]), int(places[-1]) + WINDOW - 1
    shown = f"{why} (steps {world.steps[first]} to {world.steps[last]})"
    evidence = _figures(world, first, first + WINDOW)
    begin, known = int(world.ends[first]), int(world.ends[first + WINDOW - 1])
    return Incident(begin, known, kind, who, decision, SURE[kind], shown, evidence)


def _figures(world: World, first: int, last: int) -> tuple[Event, ...]:
    at, name = int(world.ends[last - 1]), f"step {world.steps[first]}"
    parts = {each: np.median(part[:, first:last], axis=1) / 1e6 for each, part in world.parts.items()}
    return told(
        Event(at, name, worker.place, {PARTS[each]: f"{ms[row]:.0f} ms" for each, ms in parts.items()})
        for row, worker in enumerate(world.workers)
    )


def _rolling(values: Matrix) -> Matrix:
    if len(values) < WINDOW:
        return np.zeros(0)
    windows = np.lib.stride_tricks.sliding_window_view(values, WINDOW)
    blocks = range(0, len(windows), WINDOWS_AT_ONCE)
    return np.concatenate([np.median(windows[begin : begin + WINDOWS_AT_ONCE], axis=1) for begin in blocks])
