"""Makes JUnit XML for CI systems, with one test case for each expectation, and one for the verdict."""

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Sequence

from harness.judge.verdict import Verdict
from harness.report import view
from harness.report.commands import step_here
from harness.report.run_report import Report
from harness.report.words import plain

_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # not allowed in XML 1.0


def render(report: Report) -> str:
    return document([suite_of(report)])


def document(suites: Iterable[ElementTree.Element]) -> str:
    root = ElementTree.Element("testsuites")
    root.extend(suites)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def suite_of(report: Report, name: str = "") -> ElementTree.Element:
    name = name or report.scenario
    verdicts = [report.verdict, *(e.verdict for e in report.expectations)]
    suite = empty_suite(name, verdicts, time=f"{report.run.duration_s or 0:.3f}")
    _properties(suite, report)
    told = "\n".join([*report.reasons, *(f"Next: {step_here(step)}" for step in report.next_steps)])
    case(suite, name, "verdict", report.verdict, view.headline(report), told, report.run.duration_s)
    for e in report.expectations:
        message = f"{e.name}: observed {e.observed}, bound {e.bound}"
        case(suite, name, e.name, e.verdict, message, e.reason)
    return suite


def empty_suite(name: str, verdicts: Sequence[Verdict | None], **more: str) -> ElementTree.Element:
    failures = verdicts.count(Verdict.FAIL)
    errors = verdicts.count(Verdict.INCONCLUSIVE) + verdicts.count(Verdict.INVALID)
    counts = {"tests": str(len(verdicts)), "failures": str(failures), "errors": str(errors)}
    counts |= {"skipped": str(verdicts.count(None))}
    return ElementTree.Element("testsuite", {"name": clean(name), **counts, **more})


def clean(value: object) -> str:
    """Returns the text without characters that XML cannot hold, even if escaped."""
    return _ILLEGAL.sub("�", plain(value))


def _properties(suite: ElementTree.Element, report: Report) -> None:
    values = [(name, str(getattr(report, name))) for name in ("run_id", "backend", "seed", "verdict")]
    for score, figures in report.scores.items():
        plain = {name: figure for name, figure in figures.items() if isinstance(figure, int | float | str)}
        values += view.flat(plain, f"{score}.")
    values += view.flat(report.metrics, "metrics.")
    values += [("not_judged", ", ".join(report.not_judged))] if report.not_judged else []
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in values:
        ElementTree.SubElement(properties, "property", name=clean(name), value=clean(value))


def case(
    suite: ElementTree.Element,
    scenario: str,
    name: str,
    verdict: Verdict | None,
    message: str,
    body: str,
    took_s: float | None = None,
) -> None:
    """Adds a test case. The verdict `fail` becomes a failure, `inconclusive` and `invalid` become an error, and `None`
    (not judged) becomes a skipped test."""
    named = {"classname": f"chaos.{clean(scenario)}", "name": clean(name), "time": f"{took_s or 0:.3f}"}
    made = ElementTree.SubElement(suite, "testcase", named)
    if verdict is Verdict.PASS:
        return
    if verdict is None:
        ElementTree.SubElement(made, "skipped", message=clean(message))
        return
    kind = "failure" if verdict is Verdict.FAIL else "error"
    ElementTree.SubElement(made, kind, type=verdict.value, message=clean(message)).text = clean(body or message)
