"""The page in a real browser: no errors, no sideways scrolling, light and dark, keyboard and touch."""

import pathlib
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import machine
import pytest
import report_runs
from gameday.test_gameday_verdict import DAY, day, rehearsed, verdict_of
from gameday.test_gameday_verdict import card as act_card
from report_pages import CARDS, page_of, risen

from harness.campaign.repeats import repeat_verdict
from harness.gameday import day_report
from harness.gameday.day_verdict import Expected
from harness.gate import gate_report, history_report, stored_gate
from harness.gate.baseline_comparison import Question, Regressions, Success, compare
from harness.gate.two_runs_report import compare as compare_runs
from harness.gate.two_runs_report import render as render_comparison
from harness.judge.verdict import Verdict
from harness.report import run_report


def compared() -> str:
    made = report_runs.spot_evict(), report_runs.never_recovered()
    before, after = map(run_report.from_scorecard, made)
    ranks = {"rank 0, restore": 0.1, "rank 1, startup": 0.8}, {"rank 0, restore": 2.5, "rank 1, startup": 0.9}
    return render_comparison(compare_runs(before, after, ranks))


LONG = "kill-during-checkpoint-of-a-language-model-with-many-experts"


def named() -> str:
    """A run whose faults and nodes have long names."""
    card = replace(report_runs.double_evict(), run_id=LONG, scenario=LONG)
    run = card.evidence.run
    faults = [replace(fault, id=LONG, targets=({"node": LONG},)) for fault in run.faults]
    return page_of(report_runs.with_run(card, faults=faults, processes=[replace(p, node=LONG) for p in run.processes]))


def gate() -> str:
    """A gate that is worse than its baseline, and left something out."""
    card = report_runs.spot_evict()
    row = gate_report.SuiteRow(LONG, card.title, repeat_verdict([card]), (card,))
    slower = Question(LONG, "recovery_time", (7.0, 7.1, 7.2, 7.3), (10.6, 10.7, 10.9, 10.8), 0.1)
    held = Regressions("last-week", compare([slower], [Success("spot-evict", 0, 4, 0, 4)]), ["node-loss"], ["a: b"])
    left_out = (stored_gate.LeftOut("double-evict", "it takes about 240 s", True),)
    part = stored_gate.Part(3, 3, "", "", 0, "", (), left_out=left_out)
    told = ("pre-launch", "Before a long run", "pre-launch-1", Verdict.FAIL, held.reasons[0], row, (row,), held, part)
    return gate_report.render(gate_report.GateResult(*told))["report.html"]


def game_day() -> str:
    reasons = ["recovered in 2.00 s; losses identical bit for bit; not judged: pace, last checkpoint"]
    cards = {name: replace(act_card(), reasons=reasons) for name in ("checkpoint-corrupt-latest", LONG)}
    events = day(rehearsed("checkpoint-corrupt-latest", 10), rehearsed(LONG, 50))
    result = verdict_of(events, Expected("checkpoint-corrupt-latest", 0), Expected(LONG, 1), cards=cards)
    return day_report.render(DAY, result)["report.html"]


OTHER_PAGES: dict[str, Callable[[], str]] = {
    "history": lambda: history_report.render(risen()),
    "no_history": lambda: history_report.render([]),
    "comparison": compared,
    "gate": gate,
    "game_day": game_day,
    "named": named,
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with machine.headless_browser() as started:
        yield started


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("pages")
    for make in CARDS:
        (folder / f"{make.__name__}.html").write_text(page_of(make()), encoding="utf-8")
    for name, draw in OTHER_PAGES.items():
        (folder / f"{name}.html").write_text(draw(), encoding="utf-8")
    return folder


def _open(browser: Any, path: pathlib.Path, width: int, scheme: str, **more: Any) -> tuple[Any, list[str]]:
    page = machine.browser_page(browser, viewport={"width": width, "height": 900}, color_scheme=scheme, **more)
    heard: list[str] = []
    page.on("console", lambda message: heard.append(message.text))
    page.on("pageerror", lambda error: heard.append(str(error)))
    allowed = (path.as_uri(), "data:,")
    page.on("request", lambda request: heard.append(request.url) if request.url not in allowed else None)
    page.goto(path.as_uri())
    return page, heard


_CLIPPED = """() => [...document.querySelectorAll("svg text")].filter((node) => {
  const box = node.getBoundingClientRect(), around = node.ownerSVGElement.getBoundingClientRect();
  return box.width && (box.left < around.left - 1 || box.right > around.right + 1);
}).map((node) => node.textContent)"""


@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("name", [*(make.__name__ for make in CARDS), *OTHER_PAGES])
def test_no_error_no_request_no_sideways_scrolling_and_no_clipped_label(
    browser: Any, folder: pathlib.Path, name: str, width: int
) -> None:
    page, heard = _open(browser, folder / f"{name}.html", width, "light")
    assert heard == []
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate(_CLIPPED) == []
    for box in page.locator(".scroll").all() if name in ("gate", "game_day") else ():
        shown = box.get_attribute("aria-label")  # a long name would push columns away
        assert box.evaluate("box => box.scrollWidth - box.clientWidth") <= 1, shown
    page.evaluate("for (const box of document.querySelectorAll('details')) box.open = true")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.close()


def test_on_a_phone_all_accounts_are_seen_and_a_wide_table_scrolls(browser: Any, folder: pathlib.Path) -> None:
    page, _ = _open(browser, folder / "spot_evict.html", 390, "light")
    assert page.locator("#gpu .scroll").first.evaluate("box => box.scrollWidth - box.clientWidth") <= 1
    wide = page.locator("#faults .scroll").first.evaluate("box => [box.scrollWidth, box.clientWidth]")
    assert wide[0] > wide[1] + 100, "it is not squeezed until every word has a line"
    page.close()


def _contrast(first: str, second: str) -> float:
    """WCAG 2 contrast ratio of two `rgb(…)` colours."""
    lights = []
    for colour in (first, second):
        channels = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        lights.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(lights) + 0.05) / (min(lights) + 0.05)


_COLOURS = """(selectors) => selectors.map((selector) => {
  const node = document.querySelector(selector);
  let back = node;
  while (back && getComputedStyle(back).backgroundColor === "rgba(0, 0, 0, 0)") back = back.parentElement;
  const style = getComputedStyle(node);
  return [node instanceof SVGElement ? style.fill : style.color, getComputedStyle(back).backgroundColor];
})"""


# What is written on a bar, and the bar: the last one before it.
_ON_BARS = """() => [...document.querySelectorAll("svg .on")].map((node) => {
  let bar = node.previousElementSibling;
  while (bar.tagName !== "rect") bar = bar.previousElementSibling;
  return [getComputedStyle(node).fill, getComputedStyle(bar).fill];
})"""


_OF_A_REPORT = ["h1", ".verdict .word", ".verdict .why", ".figure .detail", ".badge", "nav a", "td", "th", "svg .label"]
_OF_TABLES = ["h1", "h2", ".badge", "td"]
_OF_CHARTS = ["h1", "h2", ".badge", "svg .tick", "summary"]
_WRITTEN = {
    **dict.fromkeys(("spot_evict", "never_recovered", "empty"), _OF_A_REPORT),
    **dict.fromkeys(("gate", "game_day"), _OF_TABLES),
    **dict.fromkeys(("history", "comparison"), _OF_CHARTS),
}


@pytest.mark.parametrize("name", _WRITTEN)
def test_colours_follow_the_scheme_with_good_contrast(browser: Any, folder: pathlib.Path, name: str) -> None:
    page, _ = _open(browser, folder / f"{name}.html", 1440, "light")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (_contrast(background, "rgb(0, 0, 0)") < 3) == (scheme == "dark")
        seen = [*page.evaluate(_ON_BARS), *page.evaluate(_COLOURS, _WRITTEN[name])]
        assert [pair for pair in seen if _contrast(*pair) < 4.5] == [], scheme
    page.close()


def test_each_width_has_its_own_charts(browser: Any, folder: pathlib.Path) -> None:
    for width, shown, hidden in ((1440, "wide", "narrow"), (390, "narrow", "wide")):
        page, _ = _open(browser, folder / "spot_evict.html", width, "light")
        assert page.locator(f".chart.{shown}").first.is_visible()
        assert not page.locator(f".chart.{hidden}").first.is_visible()
        page.close()


def test_touching_a_mark_shows_what_it_is(browser: Any, folder: pathlib.Path) -> None:
    page, heard = _open(browser, folder / "spot_evict.html", 390, "light", has_touch=True)
    page.locator("#recovery .chart.narrow rect.p-reschedule").first.tap()
    assert "Wait for capacity: 935 ms" in page.locator("#tip").inner_text()
    page.keyboard.press("Escape")
    assert page.locator("#tip").is_hidden()
    assert heard == []
    page.close()


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("spot_evict", {"Skip to what happened", "Timeline of the run", "Environment", "Plan"}),
        ("history", {"Recovery time"}),
        ("comparison", {"By account of GPU time"}),
    ],
)
def test_the_keyboard_reaches_the_charts_and_every_folded_part(
    browser: Any, folder: pathlib.Path, name: str, wanted: set[str]
) -> None:
    page, _ = _open(browser, folder / f"{name}.html", 1440, "light")
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        focus = "document.activeElement"
        reached.add(page.evaluate(f"{focus}.getAttribute('aria-label') || {focus}.textContent"))
    assert wanted <= reached
    page.close()


def test_a_script_that_is_not_ours_does_not_run(browser: Any, folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    spoiled = tmp_path / "spoiled.html"
    source = (folder / "spot_evict.html").read_text(encoding="utf-8")
    evil = '<script>document.title = "owned"</script><img src="x" onerror="document.title = 1">'
    spoiled.write_text(source.replace("</main>", evil + "</main>"), encoding="utf-8")
    page, heard = _open(browser, spoiled, 1440, "light")
    assert page.title().startswith("Pass")
    assert any("Content Security Policy" in entry for entry in heard)
    page.close()


def test_it_prints_on_white_paper(browser: Any, folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    page, _ = _open(browser, folder / "spot_evict.html", 1440, "dark")
    page.emulate_media(media="print", color_scheme="dark")
    for selector, (ink, paper) in zip(["h1", "td"], page.evaluate(_COLOURS, ["h1", "td"]), strict=True):
        assert _contrast(paper, "rgb(255, 255, 255)") < 1.1, (selector, paper)
        assert _contrast(ink, paper) >= 4.5, (selector, ink, paper)
    page.set_viewport_size({"width": 1030, "height": 700})  # A4 across, within its margins
    for name in ("spot_evict", "gate", "game_day", "history", "named"):
        page.goto((folder / f"{name}.html").as_uri())
        assert page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.evaluate("document.documentElement.scrollWidth") <= 1030, f"{name} is cut off on paper"
    page.pdf(path=str(tmp_path / "report.pdf"), prefer_css_page_size=True)
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
    page.close()
