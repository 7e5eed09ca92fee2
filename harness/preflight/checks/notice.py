"""Checks that a checkpoint is always written within the shortest preemption notice, so that no work is lost."""

from __future__ import annotations

from harness.preflight.checks.contract import Check, Finding, Judged, Seen
from harness.report import figures

CAUSE = "save more often and in parts, save asynchronously, or ask for a longer notice"


class Notice(Check):
    title = "Longest save, shortest notice"
    order = 11
    needs = "canary"
    most = 3.0
    cause = "slower storage, or larger saves"

    def judge(self, seen: Seen) -> Judged:
        notices = [each.action.notice_s for each in seen.plan.faults if each.action.notice_s]
        longest = figures.metrics(seen.canary).get("checkpoint_seconds_max") if seen.canary else None
        if longest is None:
            return Judged(not_judged="the trainer told of no save")
        told = f"the longest save took {longest:.3g} s"
        if not notices:
            return Judged(not_judged=f"{told}; the scenario has no fault with a notice")
        shortest = min(notices)
        words = f"{told}, the shortest notice is {shortest:g} s"
        late = [Finding(words, CAUSE, figure=longest, usual=shortest, unit="s")] if longest > shortest else []
        return Judged(words, late, {"longest save (s)": longest})


CHECK = Notice()
