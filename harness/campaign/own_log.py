"""Reads from a trainer's own logs which steps the job executed, and which steps it repeated after a restart."""

import array
import math
import pathlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import yaml
from pydantic import ValidationError

from harness.errors import FaultError, UsageError
from harness.evidence.losses import WORDS
from harness.judge.facts.repeated_steps import Executed
from harness.log import untrusted_files
from harness.log.reading import UNTOLD, is_told
from harness.spec.document import printable, short
from harness.trainers.readers import contract as readers
from harness.trainers.readers.contract import LineSource, Reader, Told
from harness.units import counted

CHUNK_BYTES = 2 * 2**20
STEPS_MAX = 5_000_000
SAID_MAX = 20
HOLE = 1.5  # factor of the usual distance of two lines from which a line is missing
PLACES = ("first", "count")
LINE_SAVED = "line.saved"  # event of a save that only common words tell
_SAVED = re.compile(r"(?=.*(?:checkpoint|ckpt|\.pth?\b)).*\b(?:saved|wrote|written)\b", re.IGNORECASE)
_NO_SAVE = re.compile(r"\b(?:not|no|fail\w*|error|will|best|skip\w*|delet\w*|remov\w*)\b", re.IGNORECASE)
LINE_TOO_LARGE = "line.too-large"  # event of a number that no step can have
STEP_MAX, SAVE_MAX = 10**15, 10**10  # readers take no larger step; in common words, no larger one of a save
_LARGE = re.compile(
    r"(?:step|iter|iteration|checkpoint|ckpt)s?[\"'\s=_:#-]*(\d{11,}|\d+(?:\.\d*)?e\+?\d\d+)(?!\d)", re.IGNORECASE
)
_STEP = re.compile(r"(?:step|iter|iteration|checkpoint|ckpt)s?[\s=_:#-]*(\d{1,10})(?!\d)", re.IGNORECASE)


def reader_of(text: str) -> Reader:
    """Makes a reader of logs from its name or from YAML such as `lines: {regex: …}`. Raises `UsageError` on failure."""
    try:
        return reader_as(yaml.safe_load(text))
    except (ValueError, yaml.YAMLError) as error:
        lines = "; ".join(str(error).splitlines())
        if isinstance(error, ValidationError):
            lines = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        names = f"{', '.join(readers.reader_names())}, or \"lines: {{regex: 'step (?P<step>[0-9]+)'}}\""
        raise UsageError(f"--read {text}: {lines}; write one of: {names}") from error


def reader_as(given: object) -> Reader:
    if isinstance(given, str) and given in readers.reader_names():
        return readers.load_reader(given)()
    if isinstance(given, (Mapping, Reader)):
        return readers.build_reader(given)
    raise ValueError("no reader has this name")


class _SavesSource(LineSource):
    """Finds lines that report a save in common words, like `saved checkpoint step_110.pt`. If a line has several
    numbers, the smallest is the step."""

    chars_max = readers.EXPRESSION_CHARS_MAX

    def line(self, text: str) -> Iterator[Told]:
        if _SAVED.match(text) and not _NO_SAVE.search(text) and (steps := _STEP.findall(text)):
            yield Told(LINE_SAVED, {"step": min(map(int, steps))})


class _LargeSource(LineSource):
    chars_max = readers.EXPRESSION_CHARS_MAX

    def __init__(self, save_max: int) -> None:
        super().__init__()
        self._save_max = save_max

    def line(self, text: str) -> Iterator[Told]:
        found = _LARGE.search(text)
        if found and float(found[1]) >= (self._save_max if _SAVED.match(text) else STEP_MAX):
            yield Told(LINE_TOO_LARGE, {"text": found[0]})


@dataclass
class _Rank:
    """The state of the reader of one rank's log. A smaller step than before means a restart. If the next step is the
    largest so far, the smaller step was only printed late."""

    last: int | None = None  # the newest step
    row: int = -1  # row of the newest step
    held: Told | None = None  # a smaller step than the one before it
    newest: tuple[int, int] = (0, 0)  # newest saves at that time


@dataclass
class OwnLog:
    """The steps of a job according to the job's own logs. `told` holds the executed steps. `doubts` are texts on flaws
    of the logs, such as missing steps. `untold` names what no log line states, such as samples."""

    told: Executed
    doubts: list[str]
    untold: list[str]


class _Reading:
    def __init__(self) -> None:
        self.rows = array.array("q")  # rank, step, life
        self.figures = {name: array.array("d") for name in WORDS}
        self.places = {name: array.array("q") for name in PLACES}
        self.lives, self.saved, self.restored = dict[int, int](), dict[int, int](), dict[int, int]()
        self.worded = dict[int, int]()  # life → newest save by common words, a doubt and no proof
        self.newest = (0, 0)  # newest save by the reader, and by common words
        self.empty: list[str] = []  # files without a step
        self.late: list[int] = []  # steps that were printed after later ones
        self.twice: list[int] = []  # steps with two different figures
        self.too_large: list[str] = []  # numbers that no step can have, as they are written

    def take(self, told: Told, of: _Rank) -> None:
        step = int(told.fields["step"])
        if of.held is not None:
            held, of.held = of.held, None
            if of.last is not None and step > of.last:
                self.late.append(int(held.fields["step"]))
            else:
                self._begin(held, of, of.newest)
        if of.last is None:
            self._begin(told, of, self.newest)
        elif step == of.last:
            pairs = [(_figure(told, name), column[of.row]) for name, column in self.figures.items()]
            same = all(one == two or (math.isnan(one) and math.isnan(two)) for one, two in pairs)
            self.twice += [] if same else [step]
        elif step < of.last:
            of.held, of.newest = told, self.newest
        else:
            self._add(told, of)

    def _begin(self, told: Told, of: _Rank, newest: tuple[int, int]) -> None:
        life = self.lives[told.rank] = self.lives.get(told.rank, -1) + 1
        for saves, step in zip((self.saved, self.worded), newest, strict=True):
            saves.setdefault(life, step)
        self._add(told, of)

    def _add(self, told: Told, of: _Rank) -> None:
        of.last, of.row = int(told.fields["step"]), len(self.rows) // 3
        self.rows.extend((told.rank, of.last, self.lives[told.rank]))
        for name, column in self.figures.items():
            column.append(_figure(told, name))
        for name, numbers in self.places.items():
            numbers.append(int(told.fields.get(name, -1)))


def _figure(told: Told, name: str) -> float:
    value = told.fields.get(name)
    return UNTOLD if value is None else math.nan if math.isnan(value) else float(value)


def executed(files: Sequence[pathlib.Path], reader: Reader) -> OwnLog:
    """Reads a job's own logs, the oldest file first. A new file, or a return to an earlier step, counts as a restart.
    Raises `UsageError` for too many steps, and for a reader whose files never show a step twice."""
    if reader.whole:
        raise UsageError(f"--read {reader.name}: its files hold the whole history without repeated steps")
    reading = _Reading()
    for path in files:
        ranks, at = dict[int, _Rank](), 0
        for told in _events(path, reader):
            if told.event == "checkpoint.committed":
                reading.newest = max(reading.newest[0], int(told.fields.get("step", 0))), reading.newest[1]
            elif told.event == LINE_SAVED:  # some trainers name a save by the next step
                reading.newest = reading.newest[0], max(reading.newest[1], min(told.fields["step"], at))
            elif told.event == LINE_TOO_LARGE:
                reading.too_large.append(short(printable(told.fields["text"])))
            elif told.event == "restored":
                reading.restored[reading.lives.get(told.rank, -1) + 1] = int(told.fields.get("step", 0))
            elif told.event == "step":
                at = int(told.fields["step"])
                reading.take(told, ranks.setdefault(told.rank, _Rank()))
            if len(reading.rows) > 3 * STEPS_MAX:
                raise UsageError(f"{path}: more than {STEPS_MAX} steps")
        if not ranks:
            reading.empty.append(path.name)
    rank, step, life = np.array(reading.rows, np.int64).reshape(-1, 3).T
    figures = {name: np.array(column) for name, column in reading.figures.items()}
    places = {name: np.array(column, np.int64) for name, column in reading.places.items()}
    ranks_of = Counter(int(each) for each in np.unique(np.stack([life, rank]), axis=1)[0]) if len(life) else {}
    size = np.array([ranks_of[each] for each in life.tolist()], np.int64)
    done = Executed(rank, step, life, figures, places, size=size, saved=reading.saved)
    return OwnLog(done, [*_gaps(done), *_doubts(reading, done)], _untold(reading, done))


def _doubts(reading: _Reading, told: Executed) -> Iterator[str]:
    if reading.empty:
        named = ", ".join(reading.empty[:SAID_MAX])
        yield f"no step is in {named}: whether the job was restarted there is not known"
    if reading.twice:
        what = f"step {reading.twice[0]} is told more than once, with other figures"
        yield f"{what}: several writers, or other lines, match; use a narrower expression, or a log of one rank"
    if reading.late:
        yield f"step {reading.late[0]} is told after later ones: whether that was a restart is not known"
    stride = _stride(told)
    lives, rows = np.unique(told.life, return_index=True)
    begins = told.step[rows]
    early = np.flatnonzero(begins[1:] < np.minimum.accumulate(begins)[:-1])
    if len(early):
        what = f"restart {lives[early[0] + 1]} begins at step {begins[early[0] + 1]}, before all that earlier logs tell"
        yield f"{what}: give the oldest log first"
    for life, first in zip(lives[1:].tolist(), begins[1:].tolist(), strict=True):
        restored, saved = reading.restored.get(life), reading.saved.get(life, 0)
        if restored is not None and first > restored + stride:
            yield f"restart {life}: it restored step {restored}, and the next step in the log is {first}"
        # A new beginning though the reader told a save is judged with the steps.
        if saved and first == int(told.step.min()):
            continue
        if first <= (newest := max(saved, reading.worded.get(life, 0))):
            yield f"restart {life}: it went back to step {first}, though step {newest} was saved"


def _untold(reading: _Reading, told: Executed) -> list[str]:
    silent = [words for name, words in WORDS.items() if not is_told(told.figures[name]).any()]
    silent += ["samples"] if all((numbers < 0).all() for numbers in told.places.values()) else []
    if reading.too_large:
        lines = counted(len(reading.too_large), "line")
        silent.append(f"which step {reading.too_large[0]!r} means ({lines} like this; the number is too large)")
    lives, rows = np.unique(told.life, return_index=True)
    late = _stride(told) + 1  # a save may be told before the line of its step
    for life, first in zip(lives[1:].tolist(), told.step[rows[1:]].tolist(), strict=True):
        newest = max(reading.saved.get(life, 0), reading.worded.get(life, 0))
        if not newest or first > newest + late:
            return [*silent, f"whether restart {life} took the newest save"]
    return silent


def _stride(told: Executed) -> int:
    order = np.lexsort((np.arange(len(told.step)), told.life, told.rank))
    same = (np.diff(told.rank[order]) == 0) & (np.diff(told.life[order]) == 0)
    apart = np.diff(told.step[order])[same]
    return int(np.median(apart)) if len(apart) else 1


def _gaps(told: Executed) -> list[str]:
    found = []
    order = np.lexsort((np.arange(len(told.step)), told.life, told.rank))
    rank, step, life = told.rank[order], told.step[order], told.life[order]
    usual = _stride(told)
    of_ranks = np.split(step, np.flatnonzero(np.diff(rank, prepend=-1))[1:])
    furthest = np.concatenate([np.maximum.accumulate(each) for each in of_ranks])
    begun = np.diff(life) > 0
    before = np.where(begun, furthest[:-1], step[:-1])
    for at in np.flatnonzero((np.diff(rank) == 0) & (step[1:] - before > HOLE * usual)).tolist():
        where = f"restart {life[at + 1]}: " if life[at + 1] else ""
        found.append(f"{where}steps {before[at] + 1} to {step[at + 1] - 1} are in no log")
    return found[:SAID_MAX]


def _events(path: pathlib.Path, reader: Reader) -> Iterator[Told]:
    """Yields the events in a trainer's log. A last line without a line break was cut off, and is skipped."""
    source = reader.open()
    of_lines = isinstance(source, LineSource)
    saves = _SavesSource() if of_lines and "checkpoints" not in reader.tells else None
    large = _LargeSource(SAVE_MAX if saves else STEP_MAX) if of_lines else None
    try:
        path = path.resolve(strict=True)
        with untrusted_files.open_reader(path.parent, path.name) as file:
            while data := file.readline(CHUNK_BYTES) if saves else file.read(CHUNK_BYTES):
                yield from source.feed(data)
                yield from saves.feed(data) if saves else ()
                yield from large.feed(data) if large else ()
    except (OSError, FaultError) as error:
        raise UsageError(f"{path}: {error.strerror if isinstance(error, OSError) else error}") from error
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from error
