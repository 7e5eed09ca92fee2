"""Finds lines that are missing from the log of a worker or launcher, by gaps in the line numbers.

A process that logged its exit, or ended with a clean exit code, wrote all lines of its log. If the log of a process
that ended cleanly lacks lines, these lines were lost in transfer or removed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.evidence.deaths import End
from harness.log.line_numbers import LineGap
from harness.timeline.lineage import CLEAN_CODES
from harness.timeline.sorted_events import key_of
from harness.timeline.timeline import Timeline
from harness.units import counted, format_duration


@dataclass(frozen=True)
class Lost:
    """A text about the lines that are missing from one log. Lines lost to a full disk do not count as missing."""

    words: str
    killed: bool  # the process was killed


def lost_lines(run: Timeline, taken: Sequence[int], ends: Sequence[End]) -> Iterator[Lost]:
    """Yields a text for each log that lacks lines. `taken` holds, for each process, the time at which a fault killed
    it, or -1. `ends` holds the ends of all workers and of all commands that nodes ran."""
    died = {row for end in ends if end.code not in CLEAN_CODES for row in end.processes}
    gone = {slot.key for slot in run.slots if not slot.kept}
    for row, each in enumerate(run.processes):
        lived = each.left is not None or each.exit_code in CLEAN_CODES
        killed = not lived and (taken[row] >= 0 or row in died or each.key in gone)
        yield from _lost(f"rank {each.rank} on {each.node}", each.gaps or (), killed, run.begin)
    targets = (target for fault in run.faults if fault.kills and fault.strikes for target in fault.targets)
    gone |= {key_of(target) for target in targets if target.get("rank") is None}
    gone |= {key_of(each) for each in run.exits if each["rank"] is None and each["code"] not in CLEAN_CODES}
    for launcher in run.launchers:
        killed = not launcher.left and launcher.key in gone
        yield from _lost(f"the launcher on {launcher.key[0]}", launcher.gaps, killed, run.begin)


def _lost(whose: str, gaps: Sequence[LineGap], killed: bool, begin: int) -> Iterator[Lost]:
    if gaps := [gap for gap in gaps if not gap.full_disk]:
        lines, first = counted(sum(gap.lines for gap in gaps), "line"), _place(gaps[0], begin)
        where = first if len(gaps) == 1 else f"in {counted(len(gaps), 'place')}, the first {first}"
        yield Lost(f"the log of {whose} lacks {lines} {where}", killed)


def _place(gap: LineGap, begin: int) -> str:
    if gap.after is not None and gap.before is not None:
        return f"between steps {gap.after} and {gap.before}"
    if gap.after is not None or gap.before is not None:
        return f"before step {gap.before}" if gap.after is None else f"after step {gap.after}"
    return f"between {format_duration(gap.since - begin)} and {format_duration(gap.until - begin)}"
