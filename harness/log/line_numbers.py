"""Finds missing lines of an event log by gaps in the line numbers, which are a field of each line.

Equal lines with the same number are taken for copies, which a repeated transfer of the log can make. Lines missing at
the end of a file, for example after a kill, leave no gap and are not found.
"""

import array
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.log import event_log, files
from harness.log.checked_lines import Record
from harness.log.files import EventFile
from harness.units import counted

Ints = npt.NDArray[np.int64]
GAPS_MAX = 64  # of one file that are told apart; the last one stands for all that follow
NONE = -1


@dataclass
class LineGap:
    """Consecutive lines that are missing from an event file. `since` and `until` are the times (ns) of the lines around
    the gap. `after` is the last step that was logged before the gap, and `before` the first step after the gap (`None`:
    no step)."""

    lines: int
    since: int
    until: int
    after: int | None
    before: int | None
    full_disk: bool  # a full disk took them, as their writer says

    def may_hold(self, first: int, last: int) -> bool:
        """Returns True if the missing lines may include the line of a step from `first` to `last`. The job may have
        rolled back to an earlier step within the gap."""
        begins, ends = self.after is None or self.after < last, self.before is None or self.before > first
        back = self.after is not None and self.before is not None and self.before <= self.after
        return begins or ends if back else begins and ends


def look(source: EventFile, header: Record) -> tuple[tuple[LineGap, ...], list[str]]:
    """Returns the gaps in an event file's line numbers, and messages about lines whose number is missing or not unique.
    Raises `EventLogError` for a damaged line."""
    rows, untold = array.array("q", (0, NONE, header["mono_ns"], NONE, 0, 0)), 0
    lines = itertools.chain.from_iterable(files.Blocks(source))
    first = next(lines, b"")
    for place, line in enumerate(lines, 2):
        if line == first:
            continue
        record = event_log.read_event(source, place, line, event_log.role_of(header))
        if "line" not in record:
            untold += 1
            continue
        step = record["step"] if record["event"] == "step" else NONE
        fork, dropped = record.get("line_fork", NONE), record.get("dropped", 0)
        rows.extend((record["line"], fork, record["mono_ns"], step, dropped, hash(line)))
    table = np.array(rows, np.int64).reshape(-1, 6)
    table = table[np.lexsort((table[:, 0], table[:, 1]))]
    number, fork, digest = table[:, 0], table[:, 1], table[:, 5]
    again = np.append(False, (np.diff(number) == 0) & (np.diff(fork) == 0))
    others = number[again & (digest != np.roll(digest, 1))]
    problems = [f"{source.name}: {counted(untold, 'line')} without a number, though its first line has one"]
    problems = problems[: bool(untold)]
    if len(others):
        problems.append(f"{source.name}: two different lines have the number {others[0]}")
    return tuple(_gaps(table[~again])), problems


def _gaps(table: Ints) -> Iterator[LineGap]:
    number, fork, at, step, dropped, _ = table.T
    begins = np.append(True, np.diff(fork) != 0)
    missing = number - np.where(begins, -1, np.roll(number, 1)) - 1
    rows = np.arange(len(number))
    told = (step >= 0) & (fork == NONE)
    last = np.maximum.accumulate(np.where(told, rows, -1))
    following = np.minimum.accumulate(np.where(told, rows, len(rows))[::-1])[::-1]
    places = np.flatnonzero(missing).tolist()
    for nth, place in enumerate(places[:GAPS_MAX], 1):
        until = places[-1] if nth == GAPS_MAX else place
        mine = np.array(places[nth - 1 :] if nth == GAPS_MAX else [place])
        times = int(at[max(place - 1, 0)]), int(at[until])
        own = fork[place] == NONE == fork[until]
        before, after = (int(last[place - 1]), int(following[until])) if own else (-1, -1)
        yield LineGap(
            lines=sum(missing[mine].tolist()),
            since=min(times),
            until=max(times),
            after=int(step[before]) if before >= 0 else None,
            before=int(step[after]) if 0 <= after < len(rows) else None,
            full_disk=bool((dropped[mine] >= missing[mine]).all()),
        )
