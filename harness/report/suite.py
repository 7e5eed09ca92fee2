"""The report of a gate: suite.json, report.md, report.html and junit.xml, pure functions of its answer."""

from __future__ import annotations

import html
import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass

from harness.repeats import Together
from harness.report import junit, markdown
from harness.score import Scorecard, Verdict

SUITE_SCHEMA = 1
HEAD = ("Verdict", "Scenario", "Runs", "Reason", "Newest run")
STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { max-width: 70rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .4rem .8rem; border-bottom: 1px solid #8886 }
.pass { color: #2a8a4a } .fail { color: #c8372d } .inconclusive { color: #a87400 } .invalid { color: #9440a8 }
"""


@dataclass(frozen=True)
class Row:
    """What one scenario of a suite came to."""

    name: str
    title: str
    result: Together
    cards: Sequence[Scorecard] = ()

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        newest = self.cards[-1].run_id if self.cards else "—"
        return self.result.verdict.value, self.name, str(len(self.cards)), self.result.reasons[0], newest


@dataclass(frozen=True)
class Answer:
    """What a gate says. Without rows it did not get past its canary."""

    suite: str
    title: str
    run_id: str
    verdict: Verdict
    reason: str
    canary: Row
    rows: Sequence[Row] = ()


def render(answer: Answer) -> dict[str, str]:
    """File name → content."""
    return {
        "suite.json": _json(answer),
        "report.md": _markdown(answer),
        "report.html": _html(answer),
        "junit.xml": _junit(answer),
    }


def _json(answer: Answer) -> str:
    content = {
        "schema": SUITE_SCHEMA,
        "suite": answer.suite,
        "run_id": answer.run_id,
        "verdict": answer.verdict.value,
        "reason": answer.reason,
        "canary": _json_row(answer.canary),
        "scenarios": [_json_row(row) for row in answer.rows],
    }
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _json_row(row: Row) -> dict[str, object]:
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


def _markdown(answer: Answer) -> str:
    sign = markdown.SIGNS[answer.verdict]
    head = f"# {sign} {answer.verdict.value.capitalize()}: {markdown.text(answer.reason)}"
    title = f"**{markdown.text(answer.title)}** · suite {markdown.code(answer.suite)} · {markdown.code(answer.run_id)}"
    canary = f"The canary, which must fail: {answer.canary.result.verdict}, {answer.canary.result.reasons[0]}"
    rows = [row.cells for row in answer.rows]
    return "\n\n".join([head, title, markdown.text(canary), markdown.table(HEAD, rows)]) + "\n"


def _html(answer: Answer) -> str:
    escape = html.escape
    rows = "".join(_html_row(row) for row in answer.rows)
    head = "".join(f"<th scope=col>{name}</th>" for name in HEAD)
    canary = f"{answer.canary.result.verdict}, {answer.canary.result.reasons[0]}"
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(answer.suite)}: {answer.verdict}</title>"
        f"<meta name=viewport content='width=device-width'><style>{STYLE}</style>"
        f"<h1 class={answer.verdict}>{answer.verdict.value.capitalize()}</h1><p>{escape(answer.reason)}</p>"
        f"<p>{escape(answer.title)} · {escape(answer.run_id)}</p><p>The canary, which must fail: {escape(canary)}</p>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></html>\n"
    )


def _html_row(row: Row) -> str:
    verdict, name, runs, reason, newest = map(html.escape, row.cells)
    link = f"<a href='../{newest}/report.html'>{newest}</a>" if row.cards else newest
    cells = (f"<b class={verdict}>{verdict}</b>", f"{name}<br>{html.escape(row.title)}", runs, reason, link)
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _junit(answer: Answer) -> str:
    """One suite for the gate itself, with the canary and every scenario, and one for each run."""
    caught = answer.canary.result.verdict is Verdict.FAIL
    canary = Verdict.PASS if caught else Verdict.INVALID
    cases = [("canary", canary, answer.canary.result.reasons)]
    cases += [(row.name, row.result.verdict, row.result.reasons) for row in answer.rows]
    failures = sum(verdict is Verdict.FAIL for _, verdict, _ in cases)
    errors = sum(verdict in (Verdict.INCONCLUSIVE, Verdict.INVALID) for _, verdict, _ in cases)
    counts = {"tests": str(len(cases)), "failures": str(failures), "errors": str(errors), "skipped": "0"}
    gate = ElementTree.Element("testsuite", {"name": junit.clean(answer.suite), **counts})
    for name, verdict, reasons in cases:
        junit.case(gate, answer.suite, name, verdict, reasons[0], "\n".join(reasons))
    return junit.document([gate, *(junit.suite_of(card) for row in answer.rows for card in row.cards)])
