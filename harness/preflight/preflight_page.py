"""Writes the result of a preflight as JSON, as an HTML page, as Markdown and as JUnit XML."""

from __future__ import annotations

import datetime
import pathlib
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from markupsafe import Markup

from harness.judge.verdict import Verdict
from harness.preflight.checks.contract import Finding, rate, scaled
from harness.preflight.checks.links import SLOW
from harness.preflight.fitness import KNOWN, NOT_JUDGED, Answer, Curve, Preflight, in_words, store
from harness.report import html_page, junit, markdown, write_files
from harness.report.charts import svg
from harness.report.charts.loss_curves import Curves, Series, loss_chart
from harness.report.words import minute, one_line, quantity, size, words
from harness.units import counted

LINKS, ARROW = "links", " → "
OF_NETWORKS = ("link ", "bus bandwidth")
CELL, LABEL = 56.0, 96.0
SIDE_MAX = 64  # of the matrix: more of them are not drawn
WIDTH = 1054.0
DARKEST = 0.6


def write(found: Preflight, folder: pathlib.Path) -> None:
    store(KNOWN, found, folder)
    cases = []
    for each in found.checks:
        told = "\n".join(f"{one.words} ({one.cause})" if one.cause else one.words for one in each.judged.findings)
        cases.append((each.title, each.verdict, told or in_words(each)))
    suite = in_junit(f"preflight {found.scenario}", cases)
    write_files({"report.html": page(found), "report.md": text(found), "junit.xml": suite}, folder)


def in_junit(name: str, cases: Iterable[tuple[str, Verdict | None, str]]) -> str:
    told = list(cases)
    suite = junit.empty_suite(name, [verdict for _, verdict, _ in told])
    for case, verdict, why in told:
        junit.case(suite, name, case, verdict, one_line(why), why)
    return junit.document([suite])


def _told(answer: Answer) -> str:
    return answer.verdict.value if answer.verdict else NOT_JUDGED


def where(finding: Finding) -> str:
    ranks = ", ".join(f"rank {rank}" for rank in finding.ranks[:8])
    return ARROW.join(finding.link) or ", ".join(filter(None, [", ".join(finding.nodes[:8]), ranks]))


def about(found: Preflight) -> list[str]:
    told = [f"scenario {found.scenario}", f"backend {found.backend}", counted(len(found.nodes), "node")]
    told += [f"against {found.against}"] if found.against else []
    return told + (["with the scenario's faults"] if found.faults else [])


def text(found: Preflight) -> str:
    rows = [(_told(each), each.title, in_words(each)) for each in found.checks]
    wrong = [(one.words, where(one), one.cause) for _, one in found.findings]
    parts = [f"# {markdown.SIGNS[found.verdict]} {found.verdict.value.capitalize()}: {markdown.text(found.why)}"]
    parts += [markdown.text(" · ".join(about(found)))]
    parts += [markdown.table(("Found", "Where", "What usually causes it"), wrong)] if wrong else []
    return "\n\n".join([*parts, markdown.table(("Verdict", "Check", "What was seen"), rows)]) + "\n"


def page(found: Preflight) -> str:
    figures = {each.name: {**each.judged.shown, **each.judged.figures} for each in found.checks}
    links = {ends: speed for name, speed in figures.get(LINKS, {}).items() if (ends := _ends(name))}
    slow = {True: 0.0, False: 0.0}  # whether within a node: what is slower than this is slow
    for one in (one for _, one in found.findings if one.link and one.usual):
        within = len(set(one.link)) == 1
        slow[within] = max(slow[within], SLOW * (one.usual or 0))
    return html_page.fill(
        f"{__package__}/preflight.jinja",
        verdict=found.verdict.value,
        run_id=found.run_id,
        drill=found.drill,
        at=minute(datetime.datetime.fromtimestamp(found.at_s, datetime.UTC).isoformat(timespec="seconds")),
        summary=found.why,
        facts=about(found),
        findings=[(_verdict(one), one.words, where(one), one.cause) for _, one in found.findings],
        checks=[(_told(each), each.title, in_words(each)) for each in found.checks],
        links=matrix(links, slow),
        curves=list(_curves(found.canary)) if found.canary else [],
        figures=[_shown(name, value) for each in figures.values() for name, value in each.items()],
    )


def _shown(name: str, value: float) -> tuple[str, str]:
    what, _, unit = name.removesuffix(")").rpartition(" (")
    if unit.startswith("bytes"):
        return what, rate(value) if what.startswith(OF_NETWORKS) else size(value) + unit.removeprefix("bytes")
    return what, scaled(value, unit) if unit == "FLOP/s" else quantity(value, unit)


def _verdict(finding: Finding) -> str:
    return (Verdict.FAIL if finding.certain else Verdict.INCONCLUSIVE).value


def _ends(figure: str) -> tuple[str, str] | None:
    a, arrow, b = figure.removeprefix("link ").rpartition(" (")[0].partition(ARROW)
    return (a, b) if arrow else None


def matrix(links: Mapping[tuple[str, str], float], slow: Mapping[bool, float]) -> Markup | None:
    """Draws the speeds of links as a matrix, with senders as rows and receivers as columns. Fast links are dark, and
    slow links have another colour. Returns `None` for more than 64 nodes or ranks."""
    names = list(dict.fromkeys(end for link in links for end in link))
    if not names or len(names) > SIDE_MAX:
        return None
    most, parts = max(links.values()), list[Markup]()
    for place, name in enumerate(names):
        at = (place + 0.5) * CELL
        parts.append(svg.text(LABEL - 8, LABEL / 2 + at, name, "tick", "end"))
        parts.append(svg.text(LABEL + at, LABEL / 2 - 14, name, "tick", "middle"))
    for (a, b), speed in links.items():
        x, y = LABEL + names.index(b) * CELL, LABEL / 2 + names.index(a) * CELL
        colour = {"fill_opacity": f"{DARKEST * speed / most:.2f}", "class_": "p-productive"}
        if speed < slow[a.partition("/")[0] == b.partition("/")[0]]:
            colour = {"class_": "p-detect"}
        tip = svg.tag("title", f"{a}{ARROW}{b}: {rate(speed)}")
        parts.append(svg.tag("rect", tip, x=x, y=y, width=CELL - 2, height=CELL - 2, **colour))
        for line, word in enumerate(rate(speed).split()):
            parts.append(svg.text(x + CELL / 2 - 1, y + CELL / 2 - 3 + 14 * line, word, "", "middle"))
    side, label = CELL * len(names), f"{counted(len(links), 'link')} and their speeds"
    return svg.picture(max(LABEL + side, WIDTH), LABEL / 2 + side, label, parts)


def _curves(curve: Curve) -> Iterator[Markup]:
    step, *all_told = (np.array(each, float) for each in (curve.step, curve.loss, curve.grad_norm))
    for name, told in zip(("loss", "grad_norm"), all_told, strict=True):
        if np.isfinite(told).any():
            drawn = loss_chart(Curves(Series(step, told, told), None, None, int(step.max())), what=words(name))
            yield drawn or Markup("")
