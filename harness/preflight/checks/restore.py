"""Checks that the trainer continues from its checkpoints after a rank was killed."""

from __future__ import annotations

from harness.judge.verdict import Verdict
from harness.preflight.checks.contract import Check, Finding, Judged, Seen, doubt

CAUSE = "it begins anew instead of loading its newest save, or a save lacks a part of its state"


class Restore(Check):
    title = "Save, kill, restore"
    order = 12
    needs = "drill"

    def judge(self, seen: Seen) -> Judged:
        if seen.drill is None:
            return Judged(findings=[doubt(f"no restore was tried: {seen.drill_ended}")])
        card = seen.drill
        words = _of_the_restart(card.reasons[0])
        if card.verdict is Verdict.PASS:
            return Judged(words)
        failed = card.verdict is Verdict.FAIL
        struck = (each.get("rank") for fault in card.evidence.run.faults for each in fault.targets)
        ranks = [int(rank) for rank in struck if rank is not None]
        told = f"after rank {', '.join(map(str, ranks))} was killed: {words}" if ranks else words
        nodes = [seen.node_of(rank) for rank in ranks]
        return Judged(words, [Finding(told, CAUSE if failed else "", nodes, ranks, certain=failed)])


def _of_the_restart(headline: str) -> str:
    clauses = [each for each in headline.split("; ") if each != "the scenario expects nothing else"]
    return "; ".join(each.replace("not judged: ", "not judged in this step: ", 1) for each in clauses)


CHECK = Restore()
