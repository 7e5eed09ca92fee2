"""Stores the results of restarting a job from several saves (a sweep), so that a stopped sweep can continue."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pydantic import ConfigDict, TypeAdapter

from harness.judge.verdict import Verdict
from harness.matrix.moments import Moment
from harness.matrix.resume_comparison import Finding, Kind
from harness.matrix.told_saves import none_found
from harness.report import write_files
from harness.report.run_report import read_regular
from harness.units import counted

KNOWN = "resume.json"
NAMED_MAX = 3  # most restarts named for one cause
_FIGURE = re.compile(r"\d+(?:\.\d+)?(?:e[-+]?\d+)?")
SCHEMA = 3
BASE, COPIES, RESUMED = "base", "copies", "resumed"
REPEATS = ("repeat", "repeat-2", "repeat-3")  # names of repeats of the run, made once a difference may be chance


class Forgotten(NamedTuple):
    """The files, other than saves, that the uninterrupted run wrote but a restart did not. `compared` counts the files
    of the uninterrupted run that the harness looked for in the restart. `unseen` is the reason why the harness could
    not look for files, or is empty."""

    words: tuple[str, ...] = ()
    compared: int = 0
    unseen: str = ""


NONE_FORGOTTEN = Forgotten()


@dataclass(frozen=True)
class Tried:
    """The result of one restart from a save. `found` lists differences between the restart and the uninterrupted run.
    `ended` says how the restart failed, or is empty. `compared` counts the compared values, by kind such as samples or
    losses. `to_end` is True if the restart ran to the end of the job. `tensors` names tensors that differ between run
    and restart. `unsure` says why the result of the restart is inconclusive, or is empty."""

    moment: Moment
    folder: str
    found: tuple[Finding, ...]
    steps: int  # steps that both runs did
    seconds: float
    compared: Mapping[str, int]
    ended: str = ""
    beside: Forgotten = NONE_FORGOTTEN
    to_end: bool = False
    tensors: tuple[str, ...] = ()
    unsure: str = ""

    @property
    def right(self) -> bool:
        return not self.found and not self.ended

    @property
    def waits(self) -> bool:
        """Returns True if the uninterrupted run must be repeated once more, to tell a wrong restart from chance."""
        return bool(self.unsure) and bool(self.compared)

    @property
    def verdict(self) -> Verdict:
        """Returns the verdict on one restart. A restart that did steps is inconclusive if no value of the restart could
        be compared with the uninterrupted run."""
        if not self.right:
            return Verdict.FAIL
        if self.unsure:
            return Verdict.INCONCLUSIVE
        return Verdict.PASS if any(self.compared.values()) or not self.steps else Verdict.INCONCLUSIVE

    @property
    def words(self) -> list[str]:
        return [self.ended] if self.ended else [each.words for each in self.found]

    @property
    def short(self) -> str:
        if self.ended:
            return "it did no step that was left" if not self.steps else "it ended in another way"
        if self.unsure and self.right:
            return f"inconclusive: {self.unsure}"
        same = "the same samples; nothing else is compared" if self.moment.elsewhere else "the same"
        if not any(self.compared.values()):
            same = "nothing could be compared" if self.steps else "no step was left to do, and it did none"
        return ", ".join({each.kind.value: 0 for each in self.found}) or same


@dataclass
class Sweep:
    """The state of a sweep, which restarts a job from several saves. `code` holds commit and digests of the trainer's
    code. `not_tried` lists the planned restarts that were not tried, each with the reason."""

    __pydantic_config__ = ConfigDict(ser_json_inf_nan="constants")

    name: str
    trainer: str
    digest: str
    code: Mapping[str, str]
    files: bool = False  # a file that a restart did not write is a finding
    steps: int = 0
    saves: list[int] = field(default_factory=list)  # numbers in the names of all saves of the run
    told: int = 0  # number of saves that the trainer told
    copied: list[int] = field(default_factory=list)
    unnamed: dict[int, str] = field(default_factory=dict)  # see `Copies.unnamed`
    ends: list[int] | None = None
    repeats: bool | None = None  # repeats of the run are the same bit for bit; `None`: none was needed
    apart: dict[str, float] = field(default_factory=dict)  # figure → relative difference of the repeats
    tried: list[Tried] = field(default_factory=list)
    of_saves: list[Finding] = field(default_factory=list)  # findings on the saves of the run by themselves
    not_had: dict[str, str] = field(default_factory=dict)  # restart that the job cannot make → reason
    lost: dict[str, str] = field(default_factory=dict)  # restart that could not be tried → reason
    not_tried: list[tuple[str, str]] = field(default_factory=list)
    missed: int = 0  # number of restarts that were not tried though the job made the save
    complete: bool = False
    interrupted: bool = False
    schema: int = SCHEMA  # is raised whenever a value changes its meaning

    @property
    def known_saves(self) -> str:
        return counted(len(self.saves), "save") if self.saves or not self.told else counted(self.told, "told save")

    @property
    def findings(self) -> list[str]:
        """Returns errors in the saves of the uninterrupted run, and the first error of each wrong restart. An error
        that several restarts share is listed once."""
        tried = []
        for first, *others in self.causes:
            also = "".join(f", {each.moment.in_words}" for each in others[:NAMED_MAX])
            more = f" and {len(others) - NAMED_MAX} more" if len(others) > NAMED_MAX else ""
            likewise = f"; likewise from {also[2:]}{more}" if others else ""
            tried.append(f"from {first.moment.in_words}: {first.words[0]}{likewise}")
        return [each.words for each in self.of_saves] + tried

    @property
    def causes(self) -> list[list[Tried]]:
        """Groups the restarts that went wrong by the text of the first difference from the uninterrupted run. Two texts
        that differ only in numbers count as equal."""
        found: dict[str, list[Tried]] = {}
        for each in self.wrong:
            found.setdefault(_FIGURE.sub("#", each.words[0]), []).append(each)
        return list(found.values())

    @property
    def wrong(self) -> list[Tried]:
        """Returns the restarts that went wrong, except those from a save that another wrong restart had made."""
        return [each for each in self.tried if not each.right and not self.spoilt_by(each)]

    def spoilt_by(self, tried: Tried) -> Tried | None:
        """Returns the restart that made the save from which the restart `tried` began, if both restarts went wrong. A
        single error of the trainer can make two successive restarts go wrong."""
        before = None if tried.right else self.before_in_row(tried.moment)
        return None if before is None or before.right else before

    def before_in_row(self, moment: Moment) -> Tried | None:
        """Returns the restart that made the save for the restart `moment`, or `None` if no restart made this save."""
        if moment.resume == 1:
            return None
        first = (each for each in self.tried if each.moment.resume == moment.resume - 1)
        before = [each for each in first if not (each.moment.elsewhere or each.moment.notice or each.moment.also)]
        begun = min(self.saves, default=None)
        return next((each for each in before if each.moment.resume > 1 or each.moment.save == begun), None)

    def told_once(self) -> list[tuple[Tried, Sequence[str]]]:
        """Returns each restart with texts that describe its differences from the uninterrupted run. If several restarts
        share a difference, only the first of these restarts gets the full text."""
        first = {id(each): cause[0] for cause in self.causes for each in cause[1:]}
        return [(each, self._words(each, first)) for each in self.tried]

    def _words(self, tried: Tried, first: Mapping[int, Tried]) -> Sequence[str]:
        if before := self.spoilt_by(tried):
            return [f"it began from a save of a wrong restart ({before.moment.words}): {tried.words[0]}"]
        return [f"the same as from {first[id(tried)].moment.words}"] if id(tried) in first else tried.words

    @property
    def compared(self) -> dict[str, int]:
        kinds = {kind: 0 for each in self.tried for kind in each.compared}
        return {kind: sum(each.compared.get(kind, 0) for each in self.tried) for kind in kinds}

    @property
    def verdict(self) -> Verdict:
        """Returns the verdict on all restarts together. A planned restart is ignored if the job did not make the save
        for this restart. Without findings, the verdict is inconclusive if a restart from an existing save was not
        tried, or if the logs hold neither samples nor losses."""
        if self.findings:
            return Verdict.FAIL
        shown = self.compared.get(Kind.SAMPLES.name, 0) or self.compared.get(Kind.COMPUTED.name, 0)
        judged = self.complete and not self.missed and shown and not self._files_unseen and not self.unsure
        return Verdict.PASS if judged else Verdict.INCONCLUSIVE

    @property
    def unsure(self) -> list[Tried]:
        return [each for each in self.tried if each.unsure and each.right]

    @property
    def _files_unseen(self) -> str:
        if not self.files:
            return ""
        unseen = next((each for each in self.tried if each.beside.unseen), None)
        if unseen:
            return f"from {unseen.moment.words}: {unseen.beside.unseen}"
        return "" if any(each.beside.compared for each in self.tried) else "none could be compared"

    @property
    def why(self) -> str:
        if self.findings:
            wrong = len(self.wrong)
            first = f"{wrong} of {counted(len(self.tried), 'restart')} went wrong; " if wrong else ""
            return first + self.findings[0]
        if self.unsure:
            return f"inconclusive: from {self.unsure[0].moment.in_words}: {self.unsure[0].unsure}"
        if self.missed or not self.complete:
            words, why = self.not_tried[0] if self.not_tried else ("a part of it", "it goes on, or was stopped")
            return f"not tried: {words}: {why}"
        if not self.tried:
            return none_found(self.told) or "the job made no save from which it could be started again"
        if self._files_unseen:
            return f"not judged: files beside the saves, which --files asks for: {self._files_unseen}"
        if self.verdict is not Verdict.PASS:
            return "the log tells neither samples nor losses, so nothing was compared"
        return f"{counted(len(self.tried), 'restart')} did what the run without a stop did"


_FORM = TypeAdapter(Sweep)


def store(sweep: Sweep, folder: pathlib.Path) -> None:
    write_files({KNOWN: _FORM.dump_json(sweep, indent=1).decode() + "\n"}, folder)


def is_in(folder: pathlib.Path) -> bool:
    return (folder / RESUMED).is_dir() and (folder / BASE).is_dir()


def stored(folder: pathlib.Path) -> Sweep | None:
    """Reads a stored sweep (restarts from several saves). Returns `None` if the folder holds no results that this
    version of the harness can read."""
    try:
        found = _FORM.validate_json(read_regular(folder / KNOWN))
    except (OSError, ValueError, RecursionError):
        return None
    inside = all(each.folder == pathlib.PurePath(each.folder).name for each in found.tried)
    return found if inside and found.schema == SCHEMA else None
