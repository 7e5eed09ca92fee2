"""The runs of a reports folder, found again by scenario, backend, commit, verdict and time.

The folder is the truth. An SQLite index beside the runs only saves reading each report every time: it is brought up to
date before each answer, and made anew when it is missing, damaged or of another version. Where it cannot be written,
the answer is the same and takes longer. Several processes may do this at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import os
import pathlib
import re
import sqlite3
import stat
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from harness.campaign.wings import stored_kind_of, stored_kinds
from harness.errors import UsageError
from harness.judge.score import Verdict
from harness.report import model
from harness.report.words import one_line

INDEX = ".runs.sqlite"
VERSION = 2
LOCK_S_MAX = 5.0
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}\Z")
_NEWEST = 5
_DATE = "2026-11-22T08:00:00+00:00"


@dataclass(frozen=True)
class StoredRun:
    """What a run is found by. `verdict` is `None` for a run that was not judged: it still goes on, or was killed."""

    run_id: str
    begun_s: float  # seconds since 1970
    scenario: str
    backend: str
    seed: str
    commit: str  # of the project under test; empty where it is not known
    verdict: Verdict | None
    headline: str

    @property
    def begun_at(self) -> str:
        """In UTC, ISO 8601, to the second."""
        return datetime.datetime.fromtimestamp(self.begun_s, datetime.UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class Wanted:
    """What to look for; `None` is whatever. `commit` may be the beginning of one; `since_s`: seconds since 1970."""

    scenario: str | None = None
    backend: str | None = None
    commit: str | None = None
    verdict: Verdict | None = None
    since_s: float | None = None


class NotARun(Exception):
    """Why a folder is passed over."""


class Store:
    """The runs under one folder. `notes` says what the last answer passed over, and why."""

    def __init__(self, reports: pathlib.Path):
        self.reports = reports
        self.notes: list[str] = []

    def runs(self, wanted: Wanted | None = None) -> list[StoredRun]:
        """The runs that fit, newest first."""
        path = self.reports / INDEX
        for _ in ("as it is", "made anew"):
            try:
                with contextlib.closing(_open(path)) as index:
                    return self._answer(index, wanted or Wanted())
            except (OSError, sqlite3.OperationalError):  # not ours, locked, read-only, or replaced under our feet
                break
            except (sqlite3.DatabaseError, ValueError):  # damaged
                with contextlib.suppress(OSError, sqlite3.Error):
                    _make(path, os.replace)
        with contextlib.closing(_made(":memory:")) as index:
            return self._answer(index, wanted or Wanted())

    def find(self, name: str) -> pathlib.Path:
        """The folder of a run by path, by id, by the beginning of its id, or of the newest one as `last`."""
        if name != "last":
            for given in (pathlib.Path(name), self.reports / name):
                if (given / "events").is_dir() or (given / "report.json").is_file():
                    return given
        known = [run.run_id for run in self.runs()]
        fitting = known[:1] if name == "last" else [run_id for run_id in known if run_id.startswith(name)]
        if len(fitting) == 1:
            return self.reports / fitting[0]
        if fitting:
            raise UsageError(f"{name!r} fits {len(fitting)} runs: {', '.join(fitting)}")
        newest = ", ".join(known[:_NEWEST]) or "none yet"
        raise UsageError(f"unknown run {name!r} in {self.reports}; the newest are: {newest}")

    def _answer(self, index: sqlite3.Connection, wanted: Wanted) -> list[StoredRun]:
        self._refresh(index)
        return [
            msgspec.convert(dict(zip(_FIELDS, row, strict=True)), StoredRun) for row in index.execute(*_query(wanted))
        ]

    def _refresh(self, index: sqlite3.Connection) -> None:
        """Reads what changed since, forgets what is gone."""
        found = dict(_folders(self.reports))
        known = dict(index.execute("SELECT run_id, stamp FROM runs"))
        self.notes = []
        gone = known.keys() - found.keys()
        changed = [(run_id, stamp) for run_id, stamp in found.items() if known.get(run_id) != stamp]
        if gone or changed:
            index.executemany("DELETE FROM runs WHERE run_id = ?", [(run_id,) for run_id in gone])
            index.executemany(_INSERT, [_row(self.reports / run_id, stamp) for run_id, stamp in changed])
            index.commit()
        passed_over = index.execute("SELECT run_id, note FROM runs WHERE note != '' ORDER BY run_id")
        self.notes = [f"{one_line(run_id)}: {one_line(note)}" for run_id, note in passed_over]


_FIELDS = [each.name for each in dataclasses.fields(StoredRun)]
_COLUMNS = [f'"{name}"' for name in _FIELDS]
_INSERT = (
    f"INSERT OR REPLACE INTO runs (stamp, note, {', '.join(_COLUMNS)}) VALUES ({', '.join('?' * (2 + len(_COLUMNS)))})"
)
_SCHEMA = f"CREATE TABLE runs (run_id PRIMARY KEY, stamp, note, {', '.join(_COLUMNS[1:])})"


def _query(wanted: Wanted) -> tuple[str, list[object]]:
    conditions, values = ["scenario IS NOT NULL"], list[object]()
    for name in ("scenario", "backend", "verdict"):
        if (value := getattr(wanted, name)) is not None:
            conditions.append(f'"{name}" = ?')
            values.append(str(value))
    if wanted.commit is not None:
        conditions.append('substr("commit", 1, length(?)) = ?')
        values += [wanted.commit, wanted.commit]
    if wanted.since_s is not None:
        conditions.append("begun_s >= ?")
        values.append(wanted.since_s)
    where = " AND ".join(conditions)
    return f"SELECT {', '.join(_COLUMNS)} FROM runs WHERE {where} ORDER BY begun_s DESC, run_id DESC", values


def _open(path: pathlib.Path) -> sqlite3.Connection:
    """The index in this file, made where it is missing. Raises `OSError` for something that is not ours."""
    with contextlib.suppress(FileExistsError):
        if not os.path.lexists(path):
            _make(path, os.link)  # two that make it at once agree on one
    if not stat.S_ISREG(os.lstat(path).st_mode):
        raise OSError(f"{path} is not an index of runs")
    return _checked(path)


def _checked(path: pathlib.Path) -> sqlite3.Connection:
    """Raises `sqlite3.DatabaseError` for a file that is damaged or of another version."""
    index = sqlite3.connect(path, timeout=LOCK_S_MAX)
    try:
        (version,) = index.execute("PRAGMA user_version").fetchone()
        columns = [row[1] for row in index.execute("PRAGMA table_info(runs)")]
        sound = index.execute("PRAGMA quick_check(1)").fetchone() == ("ok",)
        if version != VERSION or columns != ["run_id", "stamp", "note", *_FIELDS[1:]] or not sound:
            raise sqlite3.DatabaseError(f"{path} is damaged or of another version")
        index.execute("BEGIN IMMEDIATE")
    except BaseException:
        index.close()
        raise
    return index


def _make(path: pathlib.Path, put: Callable[[str, pathlib.Path], object]) -> None:
    """Puts an empty index there, at once: `os.link` keeps what is there, `os.replace` does not."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f"{INDEX}.")
    os.close(descriptor)
    try:
        _made(name).close()
        os.chmod(name, 0o644)
        put(name, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


def _made(name: str) -> sqlite3.Connection:
    index = sqlite3.connect(name, timeout=LOCK_S_MAX)
    index.execute(_SCHEMA)
    index.execute(f"PRAGMA user_version = {VERSION}")
    index.commit()
    return index


def _folders(reports: pathlib.Path) -> Iterator[tuple[str, str]]:
    """Folders that hold a plan, with a stamp that changes with it and with the report. Hidden ones are caches."""
    try:
        entries = sorted(os.scandir(reports), key=lambda entry: entry.name)
    except OSError:
        return
    names = ("plan.json", "report.json", *(kind.report for kind in stored_kinds()))
    for entry in entries:
        if not entry.name.startswith(".") and (entry.is_dir(follow_symlinks=False) or entry.is_symlink()):
            stamps = [_stamp(os.path.join(entry.path, name)) for name in names]
            if stamps[0]:
                yield entry.name, f"{'link' if entry.is_symlink() else ''} {stamps}"


def _stamp(path: str) -> str:
    try:
        status = os.stat(path, follow_symlinks=False)
    except OSError:
        return ""
    return f"{status.st_mtime_ns}.{status.st_size}.{status.st_ino}.{stat.S_IFMT(status.st_mode)}"


def _row(folder: pathlib.Path, stamp: str) -> tuple[object, ...]:
    """What the index holds of a folder: nothing but a note where it is no run."""
    try:
        found, note = _read(folder)
        run = dataclasses.astuple(found)
    except NotARun as reason:
        run, note = (folder.name, *[None] * (len(_FIELDS) - 1)), str(reason)
    values = (value.encode(errors="replace").decode() if isinstance(value, str) else value for value in run)
    return stamp, note, *values


def _read(folder: pathlib.Path) -> tuple[StoredRun, str]:
    """A run, and what is wrong with its report. Raises `NotARun` for a folder that no run of ours made."""
    if folder.is_symlink():
        raise NotARun("a link; a run is a folder of its own")
    if not _RUN_ID.match(folder.name):
        raise NotARun("not the name of a run")
    try:
        kind = stored_kind_of(folder)
        if not os.path.lexists(folder / (kind.report if kind else "report.json")):
            return _planned(folder), ""
        if kind:
            parts = kind.read(folder)
            headline = (parts.reasons or [""])[0]
            return dataclasses.replace(_planned(folder), verdict=parts.verdict, headline=headline), ""
        return _judged(model.read(folder / "report.json"), folder), ""
    except model.ReportError as error:
        return _planned(folder), str(error)


def _judged(report: model.Report, folder: pathlib.Path) -> StoredRun:
    return StoredRun(
        run_id=folder.name,
        begun_s=_begun_s(report.begun_at, folder),
        scenario=report.scenario,
        backend=report.backend,
        seed=str(report.seed),
        commit=report.commit or "",
        verdict=report.verdict,
        headline=report.reasons[0] if report.reasons else "",
    )


class _Named(msgspec.Struct):
    name: str


class _Plan(msgspec.Struct):
    """As much of plan.json as a run is found by."""

    scenario: _Named
    backend: str
    seed: int


def _planned(folder: pathlib.Path) -> StoredRun:
    try:
        plan = msgspec.json.decode(model.read_regular(folder / "plan.json"), type=_Plan)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NotARun(f"its plan.json cannot be read: {error}") from error
    begun_s = _begun_s(None, folder)
    return StoredRun(folder.name, begun_s, plan.scenario.name, plan.backend, str(plan.seed), "", None, "not judged")


def _begun_s(told: str | None, folder: pathlib.Path) -> float:
    """As the report tells it; else when the plan was written, which is the first thing a run does."""
    with contextlib.suppress(ValueError, OverflowError):
        moment = datetime.datetime.fromisoformat(told or "").timestamp()
        if not _in_calendar(moment):
            raise model.ReportError(f"report.json: begun_at is {told}, not a date in UTC like {_DATE}")
        return moment
    try:
        moment = os.stat(folder / "plan.json", follow_symlinks=False).st_mtime
    except OSError as error:
        raise NotARun(f"plan.json: {error.strerror}") from error
    if not _in_calendar(moment):
        raise NotARun(f"plan.json: it was changed {moment:.0f} s after 1970, which is not a date")
    return moment


def _in_calendar(moment_s: float) -> bool:
    try:
        datetime.datetime.fromtimestamp(moment_s, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return False
    return True
