"""Makes the Markdown report of a run, for a CI summary or a chat message."""

import functools
import importlib.resources
import re
from collections.abc import Iterable, Sequence

import jinja2
from markupsafe import Markup

from harness.judge.verdict import Verdict
from harness.report import view
from harness.report.commands import step_here
from harness.report.run_report import Report
from harness.report.section import Section
from harness.report.words import DASH, one_line, seconds, words

SIGNS = {Verdict.PASS: "✅", Verdict.FAIL: "❌", Verdict.INCONCLUSIVE: "❔", Verdict.INVALID: "⚠️"}
_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~!])")


def render(report: Report, sections: Sequence[Section] = ()) -> str:
    keys = ["id", "kind", "target", "struck", "measured", "expected", "undone"]
    mute = [(view.guarantee_name(each.name), each.why) for each in report.guarantees if each.state == "not judged"]
    accounts, total = view.accounts(report)
    expected = [(f"{SIGNS[e.verdict]} {e.verdict}", e.name, e.bound, e.observed, e.reason) for e in report.expectations]
    return _template().render(
        report=report,
        sections=sections,
        figures=[(f.name, f.value, f.bound or DASH, f.verdict or DASH, f.detail) for f in view.figures(report)],
        expected=expected,
        mute=mute,
        ledger=[(each.label, each.seconds, each.by_faults, each.percent) for each in (*accounts, total) if each],
        faults=[[row[key] for key in keys] for row in view.fault_rows(report)],
        provenance=[(words(name), value) for name, value in report.provenance.items()],
    )


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: value if isinstance(value, Markup) else Markup(text(value)),
    )
    environment.filters.update(step_here=step_here)
    environment.globals.update(
        SIGNS=SIGNS,
        view=view,
        seconds=seconds,
        code=lambda value: Markup(code(value)),
        line=lambda value: Markup(one_line(value).replace("```", "")),
        table=lambda *given: Markup(table(*given)),
        phases=lambda episode: [(words(phase), seconds(amount)) for phase, amount in episode.phases.items()],
    )
    return environment.from_string((importlib.resources.files(__package__) / "report.md.jinja").read_text())


def text(value: object) -> str:
    """Escapes Markdown and HTML in a text from a log, and joins its lines, so that the text fits into a table."""
    return _SPECIAL.sub(r"\\\1", one_line(value))


def code(value: str) -> str:
    return "`" + one_line(value).replace("`", "'").replace("|", "¦") + "`"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Returns a Markdown table. `right` holds the indexes of columns that are aligned to the right, for numbers."""
    rule = ["--:" if i in right else ":--" for i in range(len(head))]
    lines = [head, rule, *([text(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
