"""Event files as their writers wrote them, with each event as a dictionary. The harness reads steps as columns."""

import itertools
import pathlib
from dataclasses import dataclass
from typing import Any

from harness.log import event_log, files
from harness.log.files import EventFile


@dataclass(frozen=True)
class WriterLog:
    """The file of one writer as read back. `torn`: a kill cut its last line."""

    path: pathlib.Path
    header: dict[str, Any]
    events: list[dict[str, Any]]
    torn: bool


def read_log(directory: pathlib.Path) -> list[WriterLog]:
    """Reads all writers of a run, in the order of their paths. Raises `EventLogError`."""
    return [log for source in files.find(directory) if (log := read_writer(source)) is not None]


def read_writer(source: EventFile) -> WriterLog | None:
    """Reads one file; `None` when not even its header was written.

    Raises `EventLogError` naming file and line for anything but one torn last line.
    """
    blocks = files.Blocks(source)
    lines = itertools.chain.from_iterable(blocks)
    first = next(lines, None)
    if first is None:
        return None
    header = event_log.read_header(source, first)
    rest = ((number, line) for number, line in enumerate(lines, 2) if line != first)
    events = [event_log.read_event(source, number, line, event_log.role_of(header)) for number, line in rest]
    return WriterLog(source.path, header, events, blocks.torn)
