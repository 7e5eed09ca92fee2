"""Makes sweeps (restarts of a job from several saves) part of suites, stored results and the pre-launch checklist."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from harness.backends.contract import Backend
from harness.campaign.wings import Item, Part, Proof, Result, Swept, Wing, newest
from harness.errors import UsageError
from harness.judge.verdict import Verdict
from harness.log.journal import is_running
from harness.matrix import sweep
from harness.plan.run_plan import Plan
from harness.report.run_report import ReportError
from harness.run.stop import StopRequest
from harness.units import counted

BUDGET_S = 900.0
FIRST = "the sweep is at work, in its run without faults"


def _resumes(
    plan: Plan, reports: pathlib.Path, backend: Backend, stop: StopRequest, tell: Callable[[str], None], known: bool
) -> Swept:
    from harness.matrix import resume_report  # imported late: the list of runs does not need it
    from harness.matrix.resume_matrix import Setting, run_sweep

    found = run_sweep(plan, Setting(reports, backend, stop, tell, BUDGET_S, known=known))
    resume_report.write(found, reports / found.name)
    return Swept(found.name, found.verdict, found.findings or [found.why])


class _Sweeps:
    report = sweep.KNOWN

    def is_in(self, folder: pathlib.Path) -> bool:
        return sweep.is_in(folder)

    def read(self, folder: pathlib.Path) -> Result:
        running = is_running(folder)
        if running and not (folder / sweep.KNOWN).exists():
            return Result(Verdict.INCONCLUSIVE, [FIRST], [])
        found = _stored(folder)
        shown = _shown(found)
        if not running:
            return shown
        return replace(
            shown, reasons=[f"the sweep is at work, {counted(len(found.tried), 'restart')} so far", *shown.reasons]
        )

    def values(self, folder: pathlib.Path) -> Any:
        from harness.matrix.resume_report import plain

        return plain(_stored(folder))

    def judge(self, folder: pathlib.Path) -> tuple[Result, Callable[[], None]]:
        from harness.matrix import resume_report
        from harness.matrix.restart_judged import judge_sweep

        if is_running(folder):
            raise UsageError(f"{folder.name}: the sweep is at work, and judges by itself; chaos show tells of it")
        found = judge_sweep(_stored(folder), folder)
        return _shown(found), functools.partial(resume_report.write, found, folder)


def _stored(folder: pathlib.Path) -> sweep.Sweep:
    if found := sweep.stored(folder):
        return found
    if is_running(folder):
        raise ReportError(f"{folder.name}: {FIRST}")
    why = "cannot be read" if (folder / sweep.KNOWN).exists() else "is not there yet"
    raise ReportError(f"{folder / sweep.KNOWN} {why}; make the sweep with: chaos matrix resume")


def _shown(found: sweep.Sweep) -> Result:
    parts = [Part(each.moment.told, each.verdict, told or [each.short]) for each, told in found.told_once()]
    return Result(found.verdict, [found.why, *found.findings[1:]], parts)


def _proofs(reports: pathlib.Path) -> Iterator[Proof]:
    for folder, at_s in newest(reports, "plan.json"):
        found = sweep.stored(folder)
        if found is not None and found.complete:
            commit, clean = found.code.get("trainer_commit"), found.code.get("trainer_diff") == "clean"
            commits = frozenset({commit if clean else f"{commit}-dirty"} if commit else ())
            words = f"{counted(len(found.tried), 'restart')} from its saves: {found.why}"
            yield Proof(Item.RESUMES, found.verdict, words, folder, at_s, commits, frozenset({found.trainer}))
            return


WING = Wing(stored=[_Sweeps()], sweeps={"resume": _resumes}, proofs=_proofs)
