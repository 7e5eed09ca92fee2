"""JUnit XML: one test case for each expectation and one for the verdict, as CI systems show them."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable

from harness.judge.score import Scorecard, Verdict
from harness.report import view

_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # not allowed in XML 1.0


def render(card: Scorecard) -> str:
    return document([suite_of(card)])


def document(suites: Iterable[ElementTree.Element]) -> str:
    """A whole JUnit file."""
    root = ElementTree.Element("testsuites")
    root.extend(suites)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def suite_of(card: Scorecard) -> ElementTree.Element:
    """The test suite of one run."""
    run = card.evidence.run
    verdicts = [card.verdict, *(e.verdict for e in card.expectations)]
    failures = sum(verdict is Verdict.FAIL for verdict in verdicts)
    errors = sum(verdict in (Verdict.INCONCLUSIVE, Verdict.INVALID) for verdict in verdicts)
    suite = ElementTree.Element(
        "testsuite",
        name=clean(card.scenario),
        tests=str(len(verdicts)),
        failures=str(failures),
        errors=str(errors),
        skipped="0",
        time=f"{(run.end - run.begin) / 1e9:.3f}",
    )
    _properties(suite, card)
    case(suite, card.scenario, "verdict", card.verdict, view.headline(card), "\n".join(card.reasons))
    for e in card.expectations:
        message = f"{e.name}: observed {e.observed}, bound {e.bound}"
        case(suite, card.scenario, e.name, e.verdict, message, e.reason)
    return suite


def clean(value: object) -> str:
    """Without the characters that XML cannot hold, not even escaped."""
    return _ILLEGAL.sub("�", str(value))


def _properties(suite: ElementTree.Element, card: Scorecard) -> None:
    values = [("run_id", card.run_id), ("backend", card.backend), ("seed", str(card.seed)), ("verdict", card.verdict)]
    for score, figures in card.scores.items():
        plain = {name: figure for name, figure in figures.items() if isinstance(figure, int | float | str)}
        values += view.flat(plain, f"{score}.")
    values += view.flat(card.metrics, "metrics.")
    values += [("not_judged", ", ".join(card.not_judged))] if card.not_judged else []
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in values:
        ElementTree.SubElement(properties, "property", name=clean(name), value=clean(value))


def case(suite: ElementTree.Element, scenario: str, name: str, verdict: Verdict, message: str, body: str) -> None:
    """Adds one test case: what fails is a failure, what cannot be told an error."""
    made = ElementTree.SubElement(suite, "testcase", classname=f"chaos.{clean(scenario)}", name=clean(name), time="0")
    if verdict is Verdict.PASS:
        return
    kind = "failure" if verdict is Verdict.FAIL else "error"
    ElementTree.SubElement(made, kind, type=verdict.value, message=clean(message)).text = clean(body or message)
