"""Finds and opens the files of an event log, without trusting what nodes put into the log's folders.

Only regular files are opened. Links are not followed, and opening a file never blocks. The sizes and the number of
files are limited. An event log holds these files:

    events/harness.jsonl             the harness's own events
    events/<node>/<writer>.jsonl     what one process on that node wrote (`control`: the control node)
    events/<writer>.jsonl            the same in older runs
"""

import contextlib
import os
import pathlib
import re
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from harness.errors import EventLogError

HARNESS_FILE = "harness.jsonl"
SUFFIX = ".jsonl"
FILES_MAX = 2**18
FILE_BYTES_MAX = 4 * 2**30
LINE_BYTES_MAX = 2**20
PLAN_BYTES_MAX = 64 * 2**20  # of a line of the harness: its first one holds the whole plan
BLOCK_BYTES = 32 * 2**20
_NOT_SHOWN = re.compile("[^ -~\u00a0-\u200d\u2010-\u2027\u2030-\u2065\u206a-\ud7ff\uf900-\ufffd\U00010000-\U000effff]")
_KINDS = {stat.S_IFLNK: "a symbolic link", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}
_KINDS |= {stat.S_IFDIR: "a folder", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def visible(text: str, keep: str = "") -> str:
    """Returns the text with each control character, except those in `keep`, written as an escape such as `\\x1b`."""
    return _NOT_SHOWN.sub(lambda found: found[0] if found[0] in keep else _escaped(found[0]), text)


def _escaped(character: str) -> str:
    number = ord(character)
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}" if number < 65536 else f"\\U{number:08x}"


@dataclass(frozen=True)
class EventFile:
    """An event file. `folder` is the folder of a node below `events/`, or `None` if the file lies in `events/`
    itself."""

    events: pathlib.Path
    folder: str | None
    file: str
    size: int = 0

    @property
    def place(self) -> str:
        return f"{self.folder}/{self.file}" if self.folder else self.file

    @property
    def path(self) -> pathlib.Path:
        return self.events / self.place

    @property
    def shown(self) -> str:
        return visible(str(self.path))

    @property
    def name(self) -> str:
        return visible(self.file.removesuffix(SUFFIX))

    @property
    def is_harness(self) -> bool:
        return self.folder is None and self.file == HARNESS_FILE

    @property
    def line_bytes_max(self) -> int:
        return PLAN_BYTES_MAX if self.is_harness else LINE_BYTES_MAX

    @classmethod
    def of(cls, path: pathlib.Path) -> Self:
        return cls(path.parent, None, path.name)


def scan(events: pathlib.Path) -> tuple[list[EventFile], list[str]]:
    """Returns the event files of a log, sorted by path, and an error message for each entry that cannot be an event
    file, such as a link. Raises `EventLogError` if `events` is not a folder, or holds too many files."""
    sources, problems, here = list[EventFile](), list[str](), events
    try:
        for folder in _entries(events, None, sources, problems):
            here = events / folder
            _entries(events, folder, sources, problems)
    except OSError as error:
        raise EventLogError(f"{visible(str(here))}: no event log here: {error.strerror}") from error
    return sorted(sources, key=lambda source: source.place), problems


def find(events: pathlib.Path) -> list[EventFile]:
    """Returns the event files of a log, sorted by path. Raises `EventLogError` if an entry cannot be an event file,
    such as a link."""
    sources, problems = scan(events)
    if problems:
        raise EventLogError(problems[0])
    return sources


def _entries(events: pathlib.Path, folder: str | None, sources: list[EventFile], problems: list[str]) -> list[str]:
    folders = []
    with _opened_folder(events, folder) as descriptor, os.scandir(descriptor) as entries:
        for entry in entries:
            found = entry.stat(follow_symlinks=False)
            source = EventFile(events, folder, entry.name, found.st_size)
            if stat.S_ISDIR(found.st_mode) and not entry.name.endswith(SUFFIX):
                folders.append(entry.name)
            elif entry.name.endswith(SUFFIX) or (folder is None and entry.is_symlink()):
                if problem := _refused(source, found):
                    problems.append(problem)
                else:
                    sources.append(source)
            if len(sources) + len(problems) + len(folders) > FILES_MAX:
                raise EventLogError(f"{source.shown}: more than {FILES_MAX} files and folders in this event log")
    return sorted(folders)


@contextlib.contextmanager
def _opened_folder(events: pathlib.Path, folder: str | None) -> Iterator[int]:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    with contextlib.ExitStack() as opened:
        descriptor = os.open(events, flags)
        opened.callback(os.close, descriptor)
        if folder is not None:
            descriptor = os.open(folder, flags, dir_fd=descriptor)
            opened.callback(os.close, descriptor)
        yield descriptor


def _refused(source: EventFile, found: os.stat_result) -> str:
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        return f"{source.shown}: {kind}; an event file must be a regular file"
    if found.st_size > FILE_BYTES_MAX:
        return f"{source.shown}: {found.st_size} bytes; an event file may have at most {FILE_BYTES_MAX}"
    return ""


def open_source(source: EventFile) -> int:
    """Opens an event file, and returns its file descriptor. Raises `EventLogError` if the file is larger than 4 GiB or
    not a regular file."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    try:
        with _opened_folder(source.events, source.folder) as folder:
            descriptor = os.open(source.file, flags, dir_fd=folder)
    except OSError as error:
        raise EventLogError(f"{source.shown}: cannot be read: {error.strerror}") from error
    if problem := _refused(source, os.fstat(descriptor)):
        os.close(descriptor)
        raise EventLogError(problem)
    return descriptor


class Blocks:
    """Iterates over an event file in blocks of complete lines. Afterwards, `torn` is True if the file ends with an
    incomplete line. Raises `EventLogError` if the file cannot be read or a line is too long. Lines that are written
    after the file was opened are not read."""

    def __init__(self, source: EventFile):
        self.source = source
        self.torn = False

    def __iter__(self) -> Iterator[list[bytes]]:
        rest, number = b"", 1
        with os.fdopen(open_source(self.source), "rb", buffering=0) as file:
            left = os.fstat(file.fileno()).st_size
            while left:
                try:
                    block = file.read(min(left, BLOCK_BYTES))
                except OSError as error:
                    raise EventLogError(f"{self.source.shown}: cannot be read: {error.strerror}") from error
                left = left - len(block) if block else 0
                *lines, rest = (rest + block).split(b"\n")
                longest = max(len(rest), max(map(len, lines), default=0))
                if longest > self.source.line_bytes_max:
                    lengths = [len(line) for line in (*lines, rest)]
                    where = f"{self.source.shown}:{number + lengths.index(longest)}"
                    raise EventLogError(f"{where}: {too_long(self.source)}")
                number += len(lines)
                yield lines
        self.torn = bool(rest)


def too_long(source: EventFile) -> str:
    return f"a line of over {source.line_bytes_max} bytes"


def attach(events: pathlib.Path, target: pathlib.Path) -> None:
    """Copies the event files of a log into the new folder `target`. Does not use hard links, because processes may
    still be writing to the files."""
    target.mkdir(parents=True)
    for source in find(events):
        folder = target / (source.folder or "")
        folder.mkdir(parents=True, exist_ok=True)
        with os.fdopen(open_source(source), "rb") as read, (folder / source.file).open("xb") as copy:
            shutil.copyfileobj(read, copy, 2**20)
