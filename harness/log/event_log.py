"""Reads single lines of an event log, and follows the log while a run writes it.

The folder and name of an event file (see `harness.log.files`) show its writer and node. If the first line of an event
file contradicts the file's folder or name, the file counts as damaged.
"""

import os
import pathlib
import re
from dataclasses import dataclass, field

from harness.errors import EventLogError
from harness.log import checked_lines, files
from harness.log.checked_lines import Damaged, Record
from harness.log.files import EventFile

HARNESS = "harness"
NOT_BELIEVED = "another harness"  # the role of a file that says it is the harness's, and is not in its place
FILE_BYTES_A_POLL = 2 * 2**20  # the harness must not stand still over a trainer that floods it
POLL_BYTES_MAX = 8 * 2**20
POLLS_MAX = 1000
NOTES_MAX = 20
_FILE_NAME = re.compile(
    r"(?P<role>trainer|agent)-(?P<node>.+)\.(?P<incarnation>\d{1,7})(-(?P<rank>\d{1,6}))?-(?P<start>[0-9a-f]{1,15})\.jsonl"
)
_PLACE = {"rank": 0, "local_rank": 0, "incarnation": 1, "pid": 0}


def read_header(source: EventFile, line: bytes) -> Record:
    """Reads the first line of an event file, and checks that role and node agree with the file's folder and name.
    Raises `EventLogError`."""
    try:
        return _placed(source, checked_lines.header(checked_lines.parse(line)))
    except Damaged as damage:
        raise EventLogError(f"{source.shown}:1: {damage}") from None


def read_event(source: EventFile, number: int, line: bytes, role: str) -> Record:
    """Reads and checks one event's line in an event file. Raises `EventLogError` with file and line number."""
    try:
        return checked_lines.event(checked_lines.parse(line), role)
    except Damaged as damage:
        raise EventLogError(f"{source.shown}:{number}: {damage}") from None


def named(source: EventFile) -> tuple[tuple[str, int], int | None, int] | None:
    """Parses an event file's name: returns the node and its incarnation, the rank (`None` for a launcher), and the
    start time by the writer's own clock. Returns `None` for any other name."""
    name = _FILE_NAME.fullmatch(source.file)
    if name is None or source.folder not in (None, name["node"]):
        return None
    key, rank = (files.visible(name["node"]), int(name["incarnation"])), name["rank"]
    return key, None if rank is None else int(rank), int(name["start"], 16)


def role_of(header: Record) -> str:
    return str(header.get("role", ""))


def _placed(source: EventFile, header: Record) -> Record:
    if source.is_harness:
        if role_of(header) != HARNESS:
            raise Damaged(f"role {checked_lines.shown(role_of(header))} in the harness's own file")
        return header
    if source.folder is not None:
        header.pop("uncertainty_ns", None)  # of what we read ourselves; nobody makes his own times inexact
        if role_of(header) == HARNESS:
            whose = f"a file of node {checked_lines.shown(source.folder)}"
            raise Damaged(f"forged evidence: {whose} says it is the harness's")
        node = files.visible(source.folder)
        _agree("node", header.get("node", node), node, "its folder")
        return header | {"node": node}
    if role_of(header) == HARNESS:
        return header | {"role": NOT_BELIEVED}
    name = _FILE_NAME.fullmatch(source.file)
    if name is not None:
        node, incarnation = files.visible(name["node"]), int(name["incarnation"])
        _agree("role", role_of(header), name["role"], "its file name")
        _agree("node", header.get("node", node), node, "its file name")
        _agree("incarnation", header.get("incarnation", incarnation), incarnation, "its file name")
    return header


def _agree(what: str, told: object, known: object, by: str) -> None:
    if told != known:
        raise Damaged(f"{what} is {checked_lines.shown(told)} in the header, but {checked_lines.shown(known)} by {by}")


@dataclass
class _Followed:
    """The position up to which an event file has been read. `header` is `None` until the first line of the file was
    read."""

    offset: int = 0
    lines: int = 0
    header: Record | None = None
    given_up: bool = False
    read_in: int = 0  # which poll read it last


@dataclass
class Tail:
    """Reads what is added to a growing event log. Each `poll()` returns the complete lines that were written since the
    previous `poll()`, with their file's header. Damaged lines are left out and counted in `odd`; `notes` describes the
    first of these lines. The judge later reads the log with `harness.log.reading`, which accepts no damaged line."""

    directory: pathlib.Path
    odd: int = 0
    notes: list[str] = field(default_factory=list)
    _files: dict[str, _Followed] = field(default_factory=dict)
    _polls: int = 0
    _refused: set[str] = field(default_factory=set)

    def poll(self) -> list[tuple[Record, Record]]:
        """Returns new events as pairs (header, event), in order within a file. A header holds the writer's rank, node
        and pid."""
        found: list[tuple[Record, Record]] = []
        grown = [(self._files.setdefault(source.place, _Followed()), source) for source in self._sources()]
        grown = [(each, source) for each, source in grown if source.size > each.offset and not each.given_up]
        self._polls += 1
        budget = POLL_BYTES_MAX
        for followed, source in sorted(grown, key=lambda pair: pair[0].read_in):  # who has waited longest comes first
            if budget > 0:
                followed.read_in = self._polls
                before = followed.offset
                found += self._new(source, followed)
                budget -= followed.offset - before
        return found

    def rest(self) -> list[tuple[Record, Record]]:
        """Returns all events that were not returned yet, after all processes have stopped writing. Makes at most
        `POLLS_MAX` polls."""
        found, before = list[tuple[Record, Record]](), -1
        for _ in range(POLLS_MAX):
            read = sum(each.offset for each in self._files.values())
            if read == before:
                break
            before = read
            found += self.poll()
        return found

    def _sources(self) -> list[EventFile]:
        try:
            sources, problems = files.scan(self.directory)
        except EventLogError as error:
            sources, problems = [], [str(error)] if self.directory.exists() else []
        for problem in problems:
            if problem not in self._refused and len(self._refused) < NOTES_MAX:
                self._refused.add(problem)
                self._note(problem)
        return sources

    def _new(self, source: EventFile, followed: _Followed) -> list[tuple[Record, Record]]:
        try:
            with os.fdopen(files.open_source(source), "rb", buffering=0) as file:
                file.seek(followed.offset)
                chunk = file.read(max(FILE_BYTES_A_POLL, source.line_bytes_max + 1))
        except EventLogError as error:
            self._give_up(followed, str(error))
            return []
        except OSError:
            return []  # looked at again with the next poll
        whole = chunk[: chunk.rfind(b"\n") + 1]
        if not whole and len(chunk) > source.line_bytes_max:
            self._give_up(followed, f"{source.shown}:{followed.lines + 1}: {files.too_long(source)}")
        followed.offset += len(whole)
        found = []
        for line in whole.split(b"\n")[:-1]:
            followed.lines += 1
            try:
                if len(line) > source.line_bytes_max:
                    raise EventLogError(f"{source.shown}:{followed.lines}: {files.too_long(source)}")
                if followed.header is None:
                    header = read_header(source, line)
                    followed.header = _PLACE | {"node": header.get("host", "")} | header
                else:
                    record = read_event(source, followed.lines, line, role_of(followed.header))
                    found.append((followed.header, record))
            except EventLogError as error:
                self._note(str(error))
                if followed.header is None:
                    followed.given_up = True
                    break
        return found

    def _give_up(self, followed: _Followed, problem: str) -> None:
        followed.given_up = True
        self._note(problem)

    def _note(self, problem: str) -> None:
        self.odd += 1
        if len(self.notes) < NOTES_MAX:
            self.notes.append(problem)
