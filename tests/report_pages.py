"""What tests of reports share: a page taken apart, and a history whose level changes."""

from collections.abc import Callable
from html.parser import HTMLParser

import numpy as np
import report_runs

from harness.gate.history_report import Moment
from harness.judge.score import Scorecard
from harness.judge.verdict import Verdict
from harness.report import html_page, run_report

CARDS: list[Callable[[], Scorecard]] = [  # of every kind of run
    report_runs.spot_evict,
    report_runs.double_evict,
    report_runs.never_recovered,
    report_runs.thousand_ranks,
    report_runs.meshed,
    report_runs.long_run,
    report_runs.empty,
    report_runs.no_outage,
    report_runs.hostile,
]
VOID = {"meta", "link", "br", "img", "input", "hr"}


def page_of(card: Scorecard) -> str:
    return html_page.render(run_report.from_scorecard(card), card.evidence)


class Page(HTMLParser):
    """Checks nesting and gathers elements, attributes and the text of each element with an id."""

    def __init__(self, source: str):
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        data = data.replace("\u00a0", " ")
        if "script" not in self.open and "style" not in self.open:
            self.texts.append(data)
        if "td" in self.open or "th" in self.open:
            self.rows[-1][-1] += data

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def moment(place: int, recovery: float | None, **more: object) -> Moment:
    values: dict[str, object] = {
        "run_id": f"spot-evict-{place}",
        "begun_s": 1_790_000_000 + 3600 * place,
        "scenario": "spot-evict",
        "profile": None,
        "backend": "local",
        "seed": "1",
        "commit": f"{place // 5:08x}ffff",
        "verdict": Verdict.PASS,
        "is_control": False,
        "recovery_s": recovery,
        "waste_percent": None if recovery is None else 2 * recovery,
        "headline": "recovered in 7 s",
    }
    return Moment(**{**values, **more})  # type: ignore[arg-type]


def risen() -> list[Moment]:
    """Twenty runs around 7 s, then fifteen around 10.5 s, some of them of no use."""
    dice = np.random.default_rng(1)
    made = [moment(i, float((7.0 if i < 20 else 10.5) * np.exp(0.05 * dice.standard_normal()))) for i in range(35)]
    made[4] = moment(4, 31.0, verdict=Verdict.FAIL)
    made[11] = moment(11, None, verdict=Verdict.INCONCLUSIVE)
    made[25] = moment(25, 1.0, verdict=Verdict.INVALID)
    return made
