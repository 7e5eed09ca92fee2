"""The page in a real browser: no errors, no sideways scrolling, light and dark, keyboard and touch."""

from __future__ import annotations

import pathlib
import re
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import report_runs
import tools

from harness.judge.score import Scorecard
from harness.report import html

CARDS: list[Callable[[], Scorecard]] = [
    report_runs.spot_evict,
    report_runs.never_recovered,
    report_runs.thousand_ranks,
    report_runs.long_run,
    report_runs.empty,
    report_runs.hostile,
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    tools.need("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.skip("playwright is missing: pip install playwright")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"], timeout=60_000
        )
        yield started
        started.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("pages")
    for make in CARDS:
        (folder / f"{make.__name__}.html").write_text(html.render(make()), encoding="utf-8")
    return folder


def _open(browser: Any, path: pathlib.Path, width: int, scheme: str, **more: Any) -> tuple[Any, list[str]]:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme, **more)
    page.set_default_timeout(30_000)
    heard: list[str] = []
    page.on("console", lambda message: heard.append(message.text))
    page.on("pageerror", lambda error: heard.append(str(error)))
    allowed = (path.as_uri(), "data:,")
    page.on("request", lambda request: heard.append(request.url) if request.url not in allowed else None)
    page.goto(path.as_uri())
    return page, heard


@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("name", [make.__name__ for make in CARDS])
def test_no_error_no_request_and_no_sideways_scrolling(
    browser: Any, folder: pathlib.Path, name: str, width: int
) -> None:
    page, heard = _open(browser, folder / f"{name}.html", width, "light")
    assert heard == []
    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.evaluate("for (const box of document.querySelectorAll('details')) box.open = true")
    assert page.evaluate("document.documentElement.scrollWidth") == width
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


@pytest.mark.parametrize("scheme, dark", [("light", False), ("dark", True)])
@pytest.mark.parametrize("name", ["spot_evict", "never_recovered", "empty"])
def test_colours_follow_the_scheme_with_good_contrast(
    browser: Any, folder: pathlib.Path, name: str, scheme: str, dark: bool
) -> None:
    page, _ = _open(browser, folder / f"{name}.html", 1440, scheme)
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (_contrast(background, "rgb(0, 0, 0)") < 3) == dark
    selectors = [
        "h1",
        ".verdict .word",
        ".verdict .why",
        ".figure .detail",
        ".badge",
        "nav a",
        "td",
        "th",
        "svg .label",
    ]
    for selector, (ink, paper) in zip(selectors, page.evaluate(_COLOURS, selectors), strict=True):
        assert _contrast(ink, paper) >= 4.5, (selector, ink, paper)
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
    assert "Wait for capacity: 1.90 s" in page.locator("#tip").inner_text()
    page.keyboard.press("Escape")
    assert page.locator("#tip").is_hidden()
    assert heard == []
    page.close()


def test_the_keyboard_reaches_the_charts_and_every_folded_part(browser: Any, folder: pathlib.Path) -> None:
    page, _ = _open(browser, folder / "spot_evict.html", 1440, "light")
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate("document.activeElement.getAttribute('aria-label') || document.activeElement.textContent")
        )
    assert {"Skip to the timeline", "Timeline of the run", "Environment", "Plan"} <= reached
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
    page.pdf(path=str(tmp_path / "report.pdf"), format="A4")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
    page.close()
