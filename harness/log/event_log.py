"""Reads lines of an event log, also while a run is still writing to the log.

The folder and the name of an event file show which process on which node wrote the file. An event file is rejected as
damaged if its first line contradicts its folder or its name.
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
    """Parses and checks the first line of an event file. Raises `EventLogError` if the line is invalid, or contradicts
    the file's folder or name."""
    try:
        return _placed(source, checked_lines.header(checked_lines.parse(line)))
    except Damaged as damage:
        raise EventLogError(f"{source.shown}:1: {damage}") from None


def read_event(source: EventFile, number: int, line: bytes, role: str) -> Record:
    """Parses and checks an event in an event file. Raises `EventLogError` with file name and line number if the line is
    invalid."""
    try:
        return checked_lines.event(checked_lines.parse(line), role)
    except Damaged as damage:
        raise EventLogError(f"{source.shown}:{number}: {damage}") from None


def named(source: EventFile) -> tuple[tuple[str, int], int | None, int] | None:
    """Splits the name of an event file into three parts: (node, incarnation), rank (`None` for a launcher), and start
    time (ns). Returns `None` if the name has another form."""
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
    offset: int = 0
    lines: int = 0
    header: Record | None = None
    given_up: bool = False
    read_in: int = 0  # which poll read it last


@dataclass
class Tail:
    """Follows a growing event log. Damaged lines are skipped and counted in `odd`. `notes` describes the first 20
    damaged lines. The judge does not use `Tail`, but `harness.log.reading`, which rejects damaged lines."""

    directory: pathlib.Path
    odd: int = 0
    notes: list[str] = field(default_factory=list)
    _files: dict[str, _Followed] = field(default_factory=dict)
    _polls: int = 0
    _refused: set[str] = field(default_factory=set)

    def poll(self) -> list[tuple[Record, Record]]:
        """Returns the events that were written since the previous call, as pairs (header of the file, event)."""
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
        """Returns all events that `poll` has not returned yet. Call `rest` after all writers have ended."""
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
