"""The report of a gate: suite.json, report.md, report.html and junit.xml, pure functions of its answer."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass

from harness.judge.repeats import RepeatVerdict
from harness.judge.score import Scorecard, Verdict
from harness.report import html as page
from harness.report import junit, markdown, model

SUITE_SCHEMA = 1
HEAD = ("Verdict", "Scenario", "Runs", "Reason", "Newest run")


@dataclass(frozen=True)
class SuiteRow:
    """What one scenario of a suite came to."""

    name: str
    title: str
    result: RepeatVerdict
    cards: Sequence[Scorecard] = ()

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        newest = self.cards[-1].run_id if self.cards else "—"
        return self.result.verdict.value, self.name, str(len(self.cards)), self.result.reasons[0], newest


@dataclass(frozen=True)
class GateResult:
    """What a gate says. Without rows it did not get past its canary."""

    suite: str
    title: str
    run_id: str
    verdict: Verdict
    reason: str
    canary: SuiteRow
    rows: Sequence[SuiteRow] = ()


def render(answer: GateResult) -> dict[str, str]:
    """File name → content."""
    return {
        "suite.json": _json(answer),
        "report.md": _markdown(answer),
        "report.html": page.fill("suite.jinja", answer=answer),
        "junit.xml": _junit(answer),
    }


def _json(answer: GateResult) -> str:
    content = {
        "schema": SUITE_SCHEMA,
        "suite": answer.suite,
        "run_id": answer.run_id,
        "verdict": answer.verdict.value,
        "reason": answer.reason,
        "canary": _json_row(answer.canary),
        "scenarios": [_json_row(row) for row in answer.rows],
    }
    return model.json_text(content)


def _json_row(row: SuiteRow) -> dict[str, object]:
    figures = {
        name: {
            "runs": len(found.values),
            "median_share": found.median,
            "median_interval": list(found.interval),
            "tail_share": found.tail,
        }
        for name, found in row.result.assessments.items()
    }
    return {
        "scenario": row.name,
        "verdict": row.result.verdict.value,
        "reasons": list(row.result.reasons),
        "runs": [{"run_id": card.run_id, "verdict": card.verdict.value} for card in row.cards],
        "shares_of_bounds": figures,
    }


def _markdown(answer: GateResult) -> str:
    sign = markdown.SIGNS[answer.verdict]
    head = f"# {sign} {answer.verdict.value.capitalize()}: {markdown.text(answer.reason)}"
    title = f"**{markdown.text(answer.title)}** · suite {markdown.code(answer.suite)} · {markdown.code(answer.run_id)}"
    canary = f"The canary, which must fail: {answer.canary.result.verdict}, {answer.canary.result.reasons[0]}"
    rows = [row.cells for row in answer.rows]
    return "\n\n".join([head, title, markdown.text(canary), markdown.table(HEAD, rows)]) + "\n"


def _junit(answer: GateResult) -> str:
    """One suite for the gate itself, with the canary and every scenario, and one for each run."""
    caught = bool(answer.rows)
    cases = [("canary", Verdict.PASS, answer.canary.result.reasons)]
    cases = cases if caught else [("canary", Verdict.INVALID, (answer.reason,))]
    cases += [(row.name, row.result.verdict, row.result.reasons) for row in answer.rows]
    failures = sum(verdict is Verdict.FAIL for _, verdict, _ in cases)
    errors = sum(verdict in (Verdict.INCONCLUSIVE, Verdict.INVALID) for _, verdict, _ in cases)
    counts = {"tests": str(len(cases)), "failures": str(failures), "errors": str(errors), "skipped": "0"}
    gate = ElementTree.Element("testsuite", {"name": junit.clean(answer.suite), **counts})
    for name, verdict, reasons in cases:
        junit.case(gate, answer.suite, name, verdict, reasons[0], "\n".join(reasons))
    return junit.document(
        [gate, *(junit.suite_of(model.from_scorecard(card)) for row in answer.rows for card in row.cards)]
    )
