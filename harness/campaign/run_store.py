"""Finds the runs in a folder of reports by scenario, backend, commit, verdict and time."""

import contextlib
import dataclasses
import datetime
import os
import pathlib
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import msgspec

from harness.campaign.wings import stored_kind_of
from harness.errors import ChaosError, UsageError
from harness.evidence.logs import load_evidence
from harness.judge.score import judge
from harness.judge.verdict import PRIORITY, Verdict
from harness.plan.run_plan import CONTROL, FIRST_LOOK
from harness.report import run_report
from harness.report.commands import REHEARSALS
from harness.report.run_report import Report, ReportError
from harness.report.words import one_line
from harness.spec.document import short
from harness.units import counted

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}\Z")
_NEWEST = 5
PASSED_OVER_MAX = 100  # most runs that `last` looks at
EARLIEST_S = 1_577_836_800  # 2020-01-01: no run began earlier
CLOCKS_APART_S = 86_400  # seconds by which another host's clock may be ahead
_DATE = "2026-11-22T08:00:00+00:00"


@dataclass(frozen=True)
class StoredRun:
    """The facts by which a stored run is found. `verdict` is `None` for a run that is going on or was killed."""

    run_id: str
    begun_s: float  # seconds since 1970
    scenario: str
    backend: str
    seed: str
    commit: str  # commit of the project under test; empty: unknown
    verdict: Verdict | None
    headline: str
    is_control: bool  # the trainer is broken on purpose: the run says nothing of any other

    @property
    def begun_at(self) -> str:
        return datetime.datetime.fromtimestamp(self.begun_s, datetime.UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class Wanted:
    """A filter of stored runs. A field that is `None` accepts every run. `commit` is a commit id or its beginning.
    `since_s` is in seconds since 1970."""

    scenario: str | None = None
    backend: str | None = None
    commit: str | None = None
    verdict: Verdict | None = None
    since_s: float | None = None

    def fits(self, run: StoredRun) -> bool:
        same = all(getattr(self, name) in (None, getattr(run, name)) for name in ("scenario", "backend", "verdict"))
        late_enough = self.since_s is None or run.begun_s >= self.since_s
        return same and late_enough and run.commit.startswith(self.commit or "")


class ByLog(NamedTuple):
    run: StoredRun
    report: Report
    plan: Mapping[str, Any]


class NotARun(Exception):
    pass


class FirstLook(NotARun):
    """Raised for a folder that `chaos init` made (a first look), which is not a run and is not listed as one."""


class Store:
    """The runs in one folder of reports. `notes` says which folders the last call skipped, and why."""

    def __init__(self, reports: pathlib.Path):
        self.reports = reports
        self.notes: list[str] = []

    def runs(self, wanted: Wanted | None = None) -> list[StoredRun]:
        fitting = [run for run in self._read()[0] if (wanted or Wanted()).fits(run)]
        return sorted(fitting, key=lambda run: (run.begun_s, run.run_id), reverse=True)

    def evidence(self, wanted: Wanted | None = None) -> list[StoredRun]:
        """Returns the judged runs of trainers that are not broken on purpose, the newest first. Of several copies of a
        run, returns the copy with the worst verdict."""
        judged = [run for run in self.runs(wanted) if run.verdict is not None and not run.is_control]
        return self.once(run for run in judged if stored_kind_of(self.reports / run.run_id) is None)

    def once(self, runs: Iterable[StoredRun]) -> list[StoredRun]:
        """Returns each run once: of several copies, the copy with the worst verdict. Lists all copies in `notes`."""
        once = dict[tuple[float, str, str, str], StoredRun]()
        for run in runs:
            kept = once.setdefault(key := (run.begun_s, run.scenario, run.backend, run.seed), run)
            if kept is not run:
                once[key] = max(kept, run, key=lambda each: PRIORITY.index(each.verdict or Verdict.FAIL))
                self.notes.append(f"{run.run_id} and {kept.run_id} are one run, which counts once")
        return list(once.values())

    def find(self, name: str) -> pathlib.Path:
        """Returns a run's folder by path, id, beginning of an id, or `last`, the newest with an event log. Raises
        `UsageError` if not exactly one run matches, or if `chaos init` made the folder."""
        if name != "last":
            for given in (pathlib.Path(name), self.reports / name):
                files = (given / "report.json", given / "plan.json")
                if (given / "events").is_dir() or any(file.is_file() for file in files):
                    refuse_first_look(given)
                    return given
        known = [run.run_id for run in self.runs()]
        if name == "last":  # a sweep of resumes has only a report
            known = [run_id for run_id in known if (self.reports / run_id / "events").is_dir()]
        if not any(name == "last" or run_id.startswith(name) for run_id in known):
            for look in self._read()[1]:
                if name == "last" or look.startswith(name):
                    refuse_first_look(self.reports / look)
        return self.reports / picked(name, known, "run", self.reports)

    def _read(self) -> tuple[list[StoredRun], list[str]]:
        runs, looks = list[StoredRun](), list[str]()
        self.notes = []
        for folder in _folders(self.reports):
            try:
                run, note = _read(folder)
                runs.append(run)
            except FirstLook:
                looks.append(folder.name)
                continue
            except NotARun as reason:
                note = str(reason)
            self.notes += [f"{one_line(folder.name)}: {one_line(note)}"] if note else []
        return runs, looks


T = TypeVar("T")


def usable(
    name: str, reports: pathlib.Path, read: Callable[[pathlib.Path], T], passed_over: list[str]
) -> tuple[pathlib.Path, T]:
    """Returns the folder of the named run, and the result of `read` for this folder.

    The name `last` means the newest run that `read` accepts. The reasons why newer runs were skipped are added to
    `passed_over`. Raises `UsageError` if `read` accepts no run.
    """
    if name != "last":
        folder = Store(reports).find(name)
        return folder, read(folder)
    newest = Store(reports).runs()[:PASSED_OVER_MAX]
    for run in newest:
        try:
            return reports / run.run_id, read(reports / run.run_id)
        except UsageError as error:
            passed_over.append(str(error))
    if not newest:
        Store(reports).find(name)
    raise UsageError(f"last: none of the newest {counted(len(newest), 'run')} can be used; {passed_over[0]}")


def refuse_first_look(folder: pathlib.Path) -> None:
    """Raises `UsageError` if `chaos init` made the folder (a first look), because it is not a run."""
    try:
        _plan(folder)
    except FirstLook:
        raise UsageError(
            f"{folder.name} is a first look of chaos init, no run to be judged, compared or run again; "
            "run a scenario that init wrote, by default: chaos run chaos/rank-kill.yaml"
        ) from None
    except NotARun:
        return  # the reader of this run says what is wrong with it


def part_of_a_day(folder: pathlib.Path) -> tuple[pathlib.Path, str | None]:
    """For the folder of a rehearsal, returns the folder of its game day (several rehearsals on one job) and the
    rehearsal's name. For any other folder, returns this folder and `None`."""
    day = folder.absolute().parent.parent
    is_one = folder.absolute().parent.name == REHEARSALS and not (folder / "events").exists()
    return (day, folder.name) if is_one and (day / "events").is_dir() else (folder, None)


def picked(name: str, known: Sequence[str], what: str, reports: pathlib.Path) -> str:
    """Returns the only name in `known` that begins with `name`. For `last`, returns the first name, the newest."""
    fitting = known[:1] if name == "last" else [each for each in known if each.startswith(name)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        newest = f"the newest of these is {fitting[0]}, and last is the newest {what} of all"
        raise UsageError(f"{short(name)!r} fits {len(fitting)} {what}s: {', '.join(fitting)}; {newest}")
    newest = ", ".join(known[:_NEWEST]) or "none yet"
    raise UsageError(f"unknown {what} {short(name)!r} in {reports}; the newest are: {newest}")


def _folders(reports: pathlib.Path) -> list[pathlib.Path]:
    try:
        entries = sorted(path for path in reports.iterdir() if not path.name.startswith("."))
    except OSError:
        return []
    return [path for path in entries if (path.is_dir() or path.is_symlink()) and os.path.lexists(path / "plan.json")]


def _read(folder: pathlib.Path) -> tuple[StoredRun, str]:
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
        try:
            control = CONTROL in _plan(folder).scenario.tags  # the trainer is broken on purpose
        except FirstLook:
            raise
        except NotARun:
            control = False
        report = run_report.read(folder / "report.json")
        begun_s, headline = _begun_s(report.begun_at, folder), report.reasons[0] if report.reasons else ""
        told = (report.scenario, report.backend, str(report.seed), report.commit or "", report.verdict, headline)
        return StoredRun(folder.name, begun_s, *told, control), ""
    except run_report.ReportError as error:
        return _planned(folder), str(error)


def by_log(folder: pathlib.Path) -> ByLog:
    """Judges a stored run from its log alone. Raises `ReportError` if the log cannot be judged, or `FirstLook` for a
    folder that `chaos init` made."""
    try:
        card = judge(load_evidence(folder), folder.name)
    except (ChaosError, OSError) as error:
        raise ReportError(f"its log cannot be judged: {error}") from error
    plan = card.evidence.run.plan
    tags = (plan.get("scenario") or {}).get("tags") or ()
    if FIRST_LOOK in tags:
        raise FirstLook
    report = run_report.from_scorecard(card)
    begun_s, told = _begun_s(report.begun_at, folder), (report.scenario, report.backend, str(report.seed))
    run = StoredRun(folder.name, begun_s, *told, report.commit or "", report.verdict, "", CONTROL in tags)
    if not is_possible(begun_s):
        raise ReportError(f"it began {run.begun_at}; allowed: from 2020 until now")
    return ByLog(run, report, plan)


def is_possible(begun_s: float) -> bool:
    return EARLIEST_S <= begun_s <= time.time() + CLOCKS_APART_S


class _Named(msgspec.Struct):
    name: str
    tags: tuple[str, ...] = ()


class _Plan(msgspec.Struct):
    scenario: _Named
    backend: str
    seed: int


def _plan(folder: pathlib.Path) -> _Plan:
    try:
        plan = msgspec.json.decode(run_report.read_regular(folder / "plan.json"), type=_Plan)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NotARun(f"its plan.json cannot be read: {error}") from error
    if FIRST_LOOK in plan.scenario.tags:
        raise FirstLook
    return plan


def _planned(folder: pathlib.Path) -> StoredRun:
    plan = _plan(folder)
    told = plan.scenario.name, plan.backend, str(plan.seed), "", None, "not judged"
    return StoredRun(folder.name, _begun_s(None, folder), *told, is_control=CONTROL in plan.scenario.tags)


def _begun_s(told: str | None, folder: pathlib.Path) -> float:
    with contextlib.suppress(ValueError, OverflowError):
        moment = datetime.datetime.fromisoformat(told or "").timestamp()
        if not _in_calendar(moment):
            raise run_report.ReportError(f"report.json: begun_at is {told}, not a date in UTC like {_DATE}")
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
