"""The Markdown report, for a CI summary or a chat message."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from harness.judge.verdict import Verdict
from harness.report import view
from harness.report.commands import step_here
from harness.report.run_report import Report
from harness.report.section import Section
from harness.report.words import DASH, one_line, seconds, words

SIGNS = {Verdict.PASS: "✅", Verdict.FAIL: "❌", Verdict.INCONCLUSIVE: "❔", Verdict.INVALID: "⚠️"}
_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~!])")


def render(report: Report, sections: Sequence[Section] = ()) -> str:
    figures = [(f.name, f.value, f.bound or DASH, f.verdict or DASH, f.detail) for f in view.figures(report)]
    expected = [(f"{SIGNS[e.verdict]} {e.verdict}", e.name, e.bound, e.observed, e.reason) for e in report.expectations]
    keys = ["id", "kind", "target", "struck", "measured", "expected", "undone"]
    faults = [[row[key] for key in keys] for row in view.fault_rows(report)]
    of_faults = ["Fault", "Kind", "Target", "Struck at", "Effect measured", "Expected", "Undone"]
    hangs = "\n".join(f"- {text(hang)}" for hang in view.hangs(report))
    provenance = [(words(name), value) for name, value in report.provenance.items()]
    mute = [(view.guarantee_name(each.name), each.why) for each in report.guarantees if each.state == "not judged"]
    parts = [
        f"# {SIGNS[report.verdict]} {report.verdict.value.capitalize()}: {text(view.headline_alone(report))}",
        _identity(report),
        "\n".join(f"- {text(reason)}" for reason in view.reasons(report)[1:]),
        text(view.not_judged(report)),
        "\n".join(text(each.top) for each in sections if each.top),
        "\n".join(f"- Next: {text(step_here(step))}" for step in report.next_steps),
        table(["", "Observed", "Bound", "Verdict", ""], figures),
        _section("Expectations", ["Verdict", "Expectation", "Bound", "Observed", "Reason"], expected),
        _section(
            "Guarantees that did not hold", ["State", "Guarantee", "What it says", "Why"], view.guarantee_rows(report)
        ),
        _section("Guarantees of which this run says nothing", ["Guarantee", "Why"], mute),
        _recoveries(report),
        _accounts(report),
        _closed_forms(report),
        _section("Faults", of_faults, faults, right=[3, 4, 5]),
        f"## Where training hung\n\n{hangs}" if hangs else "",
        *(_whole_section(each) for each in sections),
        _section("Provenance", ["", ""], provenance),
        "## Run it again\n\n```sh\n" + "\n".join(map(one_line, view.reproduce(report))).replace("```", "") + "\n```",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _identity(report: Report) -> str:
    told = [("scenario", report.scenario), ("backend", report.backend), ("seed", str(report.seed))]
    told += [("commit", report.commit)] if report.commit else []
    told += [*sorted(report.labels.items()), ("run", report.run_id)]
    names = " · ".join(f"{name} {code(value)}" for name, value in told)
    return f"**{text(report.title or report.scenario)}** · {names}"


def text(value: object) -> str:
    """Words from a log as plain text: no markup, no HTML, no table break."""
    return _SPECIAL.sub(r"\\\1", one_line(value))


def code(value: str) -> str:
    return "`" + one_line(value).replace("`", "'").replace("|", "¦") + "`"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> str:
    """A table; the columns in `right` hold numbers."""
    rule = ["--:" if i in right else ":--" for i in range(len(head))]
    lines = [head, rule, *([text(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _section(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    return f"## {title}\n\n" + table(head, rows, right) if rows else ""


def _whole_section(each: Section) -> str:
    right = () if each.all_text else range(1, len(each.head))
    parts = [f"## {text(each.title)}", *map(text, each.words), table(each.head, each.rows, right) if each.rows else ""]
    return "\n\n".join(part for part in parts if part)


def _recoveries(report: Report) -> str:
    parts = []
    for number, episode in view.longest_first(report)[:3]:
        took = seconds(view.lasted_s(report, episode))
        ended = f"recovered in {took}" if episode.seconds is not None else f"never recovered, {took} until the end"
        rows = [(words(phase), seconds(amount)) for phase, amount in episode.phases.items()]
        parts.append(f"## Recovery {number}: {ended}\n\n" + table(["Phase", "Time"], rows, right=[1]))
    return "\n\n".join(parts)


def _accounts(report: Report) -> str:
    lines, total = view.accounts(report)
    if total is None:
        return ""
    rows = [(line.label, line.seconds, line.by_faults, line.percent) for line in [*lines, total]]
    ledger = table(["Account", "GPU-seconds", "By faults", "Share"], rows, right=[1, 2, 3])
    return f"## Where the GPU time went\n\n{ledger}\n\n{text(view.baseline_words(report))}".rstrip()


def _closed_forms(report: Report) -> str:
    rows = view.closed_forms(report)
    if not rows:
        return ""
    forms = table(["", "Measured", "Closed form"], rows, right=[1, 2])
    return f"## Compared with closed forms\n\n{text(view.closed_forms_words(report))}\n\n{forms}"
