"""Defines the export `perfetto`, which writes a run as a trace for ui.perfetto.dev.

The trace has a track for each rank with its processes and steps, tracks for phases, recoveries, faults and checkpoints,
and the loss as a counter. The format is Chrome's JSON trace, which Perfetto reads. Times are in microseconds. Slices of
one track must be nested, so events that may overlap (faults, checkpoints) are written as asynchronous pairs.
"""

from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Callable, Iterator
from typing import IO, Any

import numpy as np

from harness.cli import path_arguments
from harness.cli.exports import Export
from harness.monitoring.spans import Span, spans_of
from harness.report.words import one_line
from harness.timeline import timeline
from harness.timeline.timeline import Ints, Timeline

SLICES_MAX = 200_000  # of steps; of more, several consecutive ones share a slice
JOB, RANKS = 1, 2  # the two groups of tracks
_TRACKS = {"run": 1, "phase": 2, "recovery": 3, "recovery phase": 3}
_NAMES = {1: "the run", 2: "phases of the job", 3: "recoveries"}

Event = dict[str, Any]


def write(run: Timeline, file: IO[str]) -> int:
    """Writes a run as a trace for ui.perfetto.dev, in JSON. Returns how many consecutive steps of a process share a
    slice of the trace."""
    together = max(1, math.ceil(len(run.steps) / SLICES_MAX))
    file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
    for number, event in enumerate(events_of(run, together)):
        file.write((",\n" if number else "") + json.dumps(event, allow_nan=False))
    file.write("\n]}\n")
    return together


def events_of(run: Timeline, together: int = 1) -> Iterator[Event]:
    """Yields the events of a run's trace for ui.perfetto.dev. `together` is the number of consecutive steps of a
    process that share a slice."""
    yield from _names(run)
    for number, span in enumerate(spans_of(run)):
        yield from _span(run, span, number)
    yield from _lives(run)
    yield from _steps(run, together)
    yield from _losses(run)


def _names(run: Timeline) -> Iterator[Event]:
    for pid, name in ((JOB, "the job"), (RANKS, "ranks")):
        yield _meta("process_name", pid, 0, name=name)
        yield _meta("process_sort_index", pid, 0, sort_index=pid)
    for tid, name in _NAMES.items():
        yield _meta("thread_name", JOB, tid, name=name)
    for rank in sorted({process.rank for process in run.processes}):
        yield _meta("thread_name", RANKS, rank + 1, name=f"rank {rank}")
        yield _meta("thread_sort_index", RANKS, rank + 1, sort_index=rank)


def _meta(what: str, pid: int, tid: int, **args: Any) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}


def _span(run: Timeline, span: Span, number: int) -> Iterator[Event]:
    args = {key: one_line(value) if isinstance(value, str) else value for key, value in span.attributes.items()}
    args |= {} if span.ok else {"ok": False}
    about = {"name": one_line(span.name), "cat": span.kind, "pid": JOB}
    begin, end = _us(run, span.begin), _us(run, span.end)
    if span.kind in _TRACKS:
        yield about | {"ph": "X", "tid": _TRACKS[span.kind], "ts": begin, "dur": end - begin, "args": _finite(args)}
        return
    yield about | {"ph": "b", "id": number, "tid": 0, "ts": begin, "args": _finite(args)}
    yield about | {"ph": "e", "id": number, "tid": 0, "ts": end}


def _lives(run: Timeline) -> Iterator[Event]:
    """Yields a slice for each worker process. The slice ends at the latest when the next process of the rank starts,
    because slices of one track must not overlap."""
    after: dict[int, int] = {}
    for process in sorted(run.processes, key=lambda each: -each.started):
        end = process.last_seen if process.exited is None else max(process.exited, process.last_seen)
        end = max(process.started, min(end, after.get(process.rank, end)))
        after[process.rank] = process.started
        told = {"node": one_line(process.node), "incarnation": process.incarnation, "pid": process.pid}
        told |= {"exit_code": process.exit_code, "exit_reason": process.exit_reason and one_line(process.exit_reason)}
        begin_us = _us(run, process.started)
        yield {
            "ph": "X", "name": f"worker on {one_line(process.node)}", "cat": "worker", "pid": RANKS,
            "tid": process.rank + 1, "ts": begin_us, "dur": _us(run, end) - begin_us, "args": told,
        }  # fmt: skip


def _steps(run: Timeline, together: int) -> Iterator[Event]:
    steps, busy_until = run.steps, dict[int, int]()
    parts = {"data": steps.data_ns, "checkpoint": steps.checkpoint_ns, "sync": steps.sync_ns}
    for rows in _groups(run, together):
        first, last = int(rows[0]), int(rows[-1])
        rank = int(steps.rank[first])
        begin = max(
            int(steps.begin[first]), busy_until.get(rank, run.begin), run.processes[int(steps.process[first])].started
        )
        end = max(int(steps.end[last]), begin)
        busy_until[rank] = end
        numbers = int(steps.step[first]), int(steps.step[last])
        name = f"step {numbers[0]}" if first == last else f"steps {numbers[0]}–{numbers[1]}"
        args: dict[str, Any] = {"loss": float(steps.loss[last]), "gradient_norm": float(steps.grad_norm[last])}
        args |= {f"{what}_ms": float(column[rows].sum()) / 1e6 for what, column in parts.items()}
        args |= {"survives": bool(steps.survives[rows].all())}
        begin_us = _us(run, begin)
        yield {
            "ph": "X", "name": name, "cat": "step", "pid": RANKS, "tid": rank + 1,
            "ts": begin_us, "dur": _us(run, end) - begin_us, "args": _finite(args),
        }  # fmt: skip


def _groups(run: Timeline, together: int) -> Iterator[Ints]:
    steps = run.steps
    order = np.lexsort((steps.end, steps.process, steps.rank))
    cuts = np.flatnonzero(np.diff(steps.process[order])) + 1
    for rows in np.split(order, cuts) if len(order) else ():
        for at in range(0, len(rows), together):
            yield rows[at : at + together]


def _losses(run: Timeline) -> Iterator[Event]:
    steps = run.steps
    rows = np.flatnonzero(steps.rank == steps.rank.min()) if len(steps) else np.zeros(0, np.int64)
    for row in rows[:: max(1, math.ceil(len(rows) / SLICES_MAX))]:
        if math.isfinite(steps.loss[row]):
            at = _us(run, int(steps.end[row]))
            yield {"ph": "C", "name": "loss", "pid": JOB, "tid": 0, "ts": at, "args": {"loss": float(steps.loss[row])}}


def _finite(args: dict[str, Any]) -> dict[str, Any]:
    """Replaces floats that are not finite by texts, because JSON has no such numbers."""
    return {
        key: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in args.items()
    }


def _us(run: Timeline, at_ns: int) -> float:
    return (at_ns - run.begin) / 1000


def _stored(value: str) -> Callable[[pathlib.Path], str]:
    path = pathlib.Path(value)
    path_arguments.file_to_write("--perfetto")(path)

    def export(run_dir: pathlib.Path) -> str:
        with path.open("w") as file:
            together = write(timeline.load(run_dir), file)
        shared = f"; {together} consecutive steps share a slice" if together > 1 else ""
        return f"{path}: open it at ui.perfetto.dev{shared}"

    return export


EXPORT = Export("FILE", "Write a trace for ui.perfetto.dev into this file.", stored=_stored)
