"""Registers preflights with the harness's core, as stored results and as answers to the launch checklist."""

from __future__ import annotations

import functools
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from harness.campaign.wings import Item, Part, Proof, Result, Wing, newest, trainers_of
from harness.judge.verdict import Verdict
from harness.preflight.checks.contract import check_names
from harness.preflight.fitness import ASKED, KNOWN, Asked, Preflight, in_words, kept
from harness.report.run_report import ReportError, read_as


class _Preflights:
    report = KNOWN

    def is_in(self, folder: pathlib.Path) -> bool:
        return any(os.path.lexists(folder / name) for name in (ASKED, KNOWN))

    def read(self, folder: pathlib.Path) -> Result:
        return _shown(read_as(folder / KNOWN, Preflight))

    def values(self, folder: pathlib.Path) -> Any:
        return plain(read_as(folder / KNOWN, Preflight))

    def judge(self, folder: pathlib.Path) -> tuple[Result, Callable[[], None]]:
        from harness.preflight import preflight_page, stored_evidence  # which the list of runs does without

        asked = read_as(folder / ASKED, Asked)
        before = kept(asked.against, folder.parent, str(asked.plan.get("backend"))) if asked.against else None
        found = stored_evidence.judged(folder, before)
        return _shown(found), functools.partial(preflight_page.write, found, folder)


def plain(found: Preflight) -> dict[str, Any]:
    """Returns a preflight as JSON values."""
    return {**msgspec.to_builtins(found), "verdict": found.verdict.value, "why": found.why}


def _shown(found: Preflight) -> Result:
    parts = [
        Part(
            each.title,
            each.verdict,
            [one.words for one in each.judged.findings] or [in_words(each)],
        )
        for each in found.checks
    ]
    return Result(found.verdict, [found.why], parts)


def _proofs(reports: pathlib.Path) -> Iterator[Proof]:
    for folder, at_s in newest(reports, KNOWN):
        try:
            found, asked = read_as(folder / KNOWN, Preflight), read_as(folder / ASKED, Asked)
        except ReportError:
            continue
        if [each.name for each in found.checks] != asked.checks or not (folder / "events").is_dir():
            continue  # it does not come from what lies here
        if found.faults or (found.verdict is Verdict.PASS and {each.name for each in found.checks} < {*check_names()}):
            continue  # a test of the preflight itself; or what was not asked may be wrong
        commits = frozenset(filter(None, [found.commit]))
        yield Proof(Item.CLUSTER, found.verdict, found.why, folder, at_s, commits, trainers_of(asked.plan))
        return


WING = Wing(stored=[_Preflights()], proofs=_proofs)
