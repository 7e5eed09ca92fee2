"""The live page in a real browser: it updates, reconnects, fits a phone, obeys the keyboard, and trusts no trainer."""

import pathlib
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import machine
import numpy as np
import pytest
from waiting import until

pytest.importorskip("starlette", reason="starlette is missing: make setup")

from gameday.page_days import EVIL, scenes, view

from harness.gameday.day_view import RanksView, RankView, ended
from harness.gameday.page.chart import drawing
from harness.gameday.page.page_server import PageAddress, Served, serving
from harness.gameday.requests import Ask, Desk
from harness.gameday.steady import Course
from harness.report.charts.loss_curves import Series

WIDTHS = (1920, 1440, 390)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with machine.headless_browser() as started:
        yield started


class Day:
    """A page without a job: shows what a test wants, and remembers what was pressed."""

    def __init__(self, served: Served, desk: Desk):
        self.served, self.desk, self.shown = served, desk, view()
        self.pressed: list[Ask] = []
        self.over = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self.over:
            while (asked := self.desk.take()) is not None:
                if isinstance(asked, Ask):
                    self.pressed.append(asked)
                    asked.reply.set_result("")
            self.served.hub.publish(self.shown, [])
            time.sleep(0.1)

    def end(self) -> None:
        self.over = True
        self._thread.join()


@pytest.fixture
def day(tmp_path: pathlib.Path) -> Iterator[Day]:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "node0.1.log").write_text(f"step 997 loss 3.21\n{EVIL}\n" * 8)
    (tmp_path / "logs" / "node1.1.log").write_text("node1 speaks\n")
    steps = np.arange(1.0, 401.0)
    kept = Course()
    for step in range(1, 400):
        kept.steps.append((step, 4.0 / step**0.2 + 0.05 * np.sin(step), 90_000_000))
    chart = drawing(kept, lambda: Series(steps, 4.0 / steps**0.2, steps * 0 + 0.09))
    desk = Desk()
    with serving(PageAddress(), desk, tmp_path, chart) as served:
        day = Day(served, desk)
        yield day
        day.end()


def opened(
    browser: Any, day: Day, role: str = "master", width: int = 1440, scheme: str = "light"
) -> tuple[Any, list[str]]:
    page = machine.browser_page(browser, viewport={"width": width, "height": 900}, color_scheme=scheme)
    heard: list[str] = []
    page.on("console", lambda message: heard.append(message.text))
    page.on("pageerror", lambda error: heard.append(str(error)))
    page.on("request", lambda r: heard.append(r.url) if not r.url.startswith((day.served.address, "data:")) else None)
    page.goto(day.served.url(role))
    wait(page, "document.getElementById('step').textContent !== '—'")
    return page, heard


def wait(page: Any, condition: str) -> None:
    """Asked from here: the page's own policy forbids what playwright's waiting does inside it."""
    until(lambda: page.evaluate(condition), condition)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("role", "scheme"), [("master", "light"), ("master", "dark"), ("participant", "light")])
def test_it_fits_says_no_error_and_runs_no_foreign_word(
    browser: Any, day: Day, role: str, scheme: str, width: int, tmp_path: pathlib.Path
) -> None:
    page, heard = opened(browser, day, role, width, scheme)
    page.wait_for_selector("#chart svg")
    wait(page, "document.getElementById('log').textContent.includes('loss 3.21')")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.title().startswith("Game day") and page.locator("img").count() == 0
    assert "<img src=x" in page.locator("#log").inner_text(), "it is shown as the text that it is"
    assert "token" not in page.url
    assert heard == []
    page.screenshot(path=str(tmp_path / f"{role}-{scheme}-{width}.png"), full_page=True)
    page.close()


def test_on_a_wall_schedule_ranks_and_loss_stand_side_by_side(browser: Any, day: Day) -> None:
    page, _ = opened(browser, day, width=1920)
    page.set_viewport_size({"width": 1920, "height": 1080})
    wait(page, "document.querySelector('#chart svg') !== null")
    boxes = [page.locator(each).first.bounding_box() for each in ("#schedule", "#ranks", "#chart svg")]
    assert [box["x"] for box in boxes] == sorted(box["x"] for box in boxes) and boxes[0]["x"] < 100
    assert all(box["y"] + box["height"] < 1080 for box in boxes), "without scrolling"
    assert boxes[2]["x"] + boxes[2]["width"] > 1850, "the whole width is used"
    day.shown = view(64, scenes=[*[scenes()[0]] * 20, *scenes()])
    wait(page, "document.querySelectorAll('.rank').length === 64")
    assert page.evaluate("document.documentElement.scrollHeight") == 1080, "nor with much to show"
    now, around = page.locator("#schedule > .now").bounding_box(), page.locator("#schedule").bounding_box()
    assert around["y"] <= now["y"] and now["y"] + now["height"] <= around["y"] + around["height"], "it is in sight"
    page.close()


def test_nothing_moves_when_an_outage_begins(browser: Any, day: Day) -> None:
    day.shown = view(outage=[], outage_open=False)
    page, _ = opened(browser, day)
    assert page.locator("#outage-title").inner_text() == "No outage so far"
    before = page.locator("#people").bounding_box()
    day.shown = view(outage=[("detect", 1.2)])
    wait(page, "document.getElementById('outage-title').textContent === 'No progress for 1.2 s'")
    assert page.locator("#people").bounding_box() == before
    page.close()


def test_what_was_not_measured_is_not_nought(browser: Any, day: Day) -> None:
    day.shown = view(
        ranks=RanksView(0, [], True), wasted="", wasted_words="", counted_s=None, budget=(), steps_per_s=None
    )
    page, _ = opened(browser, day)
    assert page.locator("#wasted").inner_text() == "—"
    assert page.locator("#share").inner_text() == "the ledger is being worked out"
    assert page.locator("#pace").inner_text() == ""
    assert page.locator("#ranks-words").inner_text() == "No ranks yet."
    page.close()


def test_on_a_phone_stop_stays_in_reach(browser: Any, day: Day) -> None:
    page, _ = opened(browser, day, width=390)
    page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    box = page.locator("[data-act=stop]").bounding_box()
    assert 0 < box["y"] < box["y"] + box["height"] <= 900
    for name in ("I see a problem", "Leave a note", "Skip"):
        page.get_by_role("button", name=name).scroll_into_view_if_needed()
        other = page.get_by_role("button", name=name).bounding_box()
        assert other["y"] + other["height"] <= box["y"], "no other button lies below it"
    page.close()


def test_stop_is_one_press_and_the_page_follows(browser: Any, day: Day) -> None:
    page, heard = opened(browser, day)
    page.get_by_role("button", name="Stop").click()
    until(lambda: [ask.action for ask in day.pressed] == ["stop"], "the press")
    wait(page, "document.getElementById('answer').textContent.startsWith('Stopped')")
    day.shown = view(blocked=True, saying="Stopped by Ada at 2:39: nothing is injected until it is lifted.")
    page.get_by_role("button", name="Lift the stop").wait_for()
    assert page.get_by_role("button", name="Inject now").is_disabled()
    assert page.title().startswith("Stopped")
    stop = page.locator("[data-act=stop]")
    assert stop.is_disabled() and stop.inner_text() == "Stopped nothing is injected"
    day.shown = view(blocked=False)
    wait(page, "!document.querySelector('[data-act=stop]').disabled")
    assert stop.inner_text() == "Stop heal everything" and heard == []
    page.close()


def test_pages_of_two_roles_in_one_browser_keep_their_roles(browser: Any, day: Day) -> None:
    context = browser.new_context()
    master, observer = context.new_page(), context.new_page()
    master.goto(day.served.url("master"))
    observer.goto(day.served.url("observer"))
    master.reload()
    master.get_by_role("button", name="Stop").click()
    until(lambda: [(ask.action, ask.role) for ask in day.pressed] == [("stop", "master")], "the press")
    observer.reload()
    day.shown = view(step=2222)
    for page in (master, observer):
        wait(page, "document.getElementById('step').textContent.startsWith('2,222')")
    assert not observer.locator("[data-act]").count()
    context.close()


def test_the_keyboard_alone_leaves_a_note(browser: Any, day: Day) -> None:
    page, _ = opened(browser, day, "participant")
    page.focus("#who")
    page.keyboard.type("Ada")
    page.keyboard.press("Tab")
    page.keyboard.type("loss is flat")
    page.keyboard.press("Enter")
    until(lambda: day.pressed, "the note")
    (ask,) = day.pressed
    assert (ask.action, ask.who, ask.text, ask.role) == ("note", "Ada", "loss is flat", "participant")
    reached = set()
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.textContent"))
    assert {"I see a problem", "I take it", "It is mitigated"} <= reached
    page.close()


def test_an_answer_says_what_was_noted_and_fades(browser: Any, day: Day) -> None:
    page, _ = opened(browser, day, "participant")
    page.get_by_label("Your name").fill("Ada")
    for button, words in (("I see a problem", "Noted: detected."), ("Stop", "Stopped: everything is being healed.")):
        page.get_by_role("button", name=button).click()
        wait(page, f"document.getElementById('answer').textContent === {words!r}")
    assert page.get_by_role("status").get_attribute("aria-live") == "polite"
    wait(page, "document.getElementById('answer').textContent === ''")
    page.close()


def test_a_name_is_asked_for_before_the_first_action(browser: Any, day: Day) -> None:
    page, heard = opened(browser, day, "participant")
    page.get_by_role("button", name="I see a problem").press("Enter")
    wait(page, "document.activeElement.id === 'who'")
    assert page.get_by_role("alert").inner_text() == "Write your name first, then press Enter."
    assert page.get_by_label("Your name").get_attribute("aria-invalid") == "true"
    time.sleep(0.3)
    assert day.pressed == []
    page.keyboard.type("Ada")
    page.keyboard.press("Enter")
    until(lambda: [(ask.action, ask.who) for ask in day.pressed] == [("detected", "Ada")], "the press")
    assert page.get_by_label("Your name").get_attribute("aria-invalid") == "false"
    assert page.locator("#who-why").inner_text() == ""
    page.get_by_role("button", name="I take it").click()
    until(lambda: len(day.pressed) == 2, "the second press")
    assert heard == []
    page.close()


def test_ranks_that_stand_still_are_grey_and_say_for_how_long(browser: Any, day: Day) -> None:
    still = [RankView(rank, "node0", 1000, None, 23.4, True) for rank in range(4)]
    ranks = RanksView(4, still, True, [1000, 1000, 1000], [])
    day.shown = view(ranks=ranks, idle_s=23.4, standing=True, steps_go=False, phase="standing_still")
    page, _ = opened(browser, day)
    wait(page, "document.querySelectorAll('.rank.standing').length === 4")
    assert page.locator(".rank span").all_inner_texts() == ["no step for 23 s"] * 4
    assert not page.locator(".rank .bar-line").first.is_visible()
    assert page.locator("#idle").inner_text() == "no step for 23 s"
    day.shown = view(12)
    wait(page, "document.querySelectorAll('.rank').length === 12")
    assert page.locator(".rank.late span").all_inner_texts() == ["3 behind"]
    day.shown = view(step=0, phase="rendezvous", idle_s=1.0, steps_go=False)
    wait(page, "document.getElementById('step').textContent.startsWith('0 of')")
    assert page.locator("#idle").inner_text() == ""
    assert page.locator("#furthest").inner_text() == "step 1,000 was reached before"
    page.close()


def test_phases_of_an_outage_have_the_words_and_colours_of_the_report(browser: Any, day: Day) -> None:
    page, _ = opened(browser, day)
    wait(page, "document.querySelectorAll('#outage rect').length === 4")
    found = page.evaluate(
        "[...document.querySelectorAll('#outage-words li')].map((n) => [n.textContent, n.querySelector('rect').getAttribute('class')])"
    )
    assert found[:3] == [
        ["Detect 1.2 s", "p-detect"],
        ["Start-up 0.8 s", "p-startup"],
        ["Recompute 0.3 s", "p-recompute"],
    ]
    assert found[3][1] == "p-unknown"
    fill = "getComputedStyle(document.querySelector('#outage .p-recompute')).fill"
    assert page.evaluate(fill) == "rgb(140, 92, 207)", "--recompute of the style sheet of the reports"
    page.close()


def test_the_legend_names_no_run_that_is_not_there_and_a_stopped_entry_is_not_green(browser: Any, day: Day) -> None:
    day.shown = view(scenes=[replace(scenes()[0], state="stopped"), *scenes()[1:]])
    page, _ = opened(browser, day)
    colours = "[...document.querySelectorAll('#schedule > li')].map((n) => getComputedStyle(n).borderLeftColor)"
    assert page.locator("#schedule > li .head .word").first.inner_text() == "stopped"
    assert page.evaluate(colours)[:2] == ["rgb(77, 90, 105)", "rgb(11, 122, 67)"]
    assert page.get_by_text("the same job without a fault").is_visible()
    day.shown = view(fault_free=False)
    wait(page, "document.getElementById('without-fault').hidden")
    assert not page.get_by_text("the same job without a fault").is_visible()
    page.close()


def test_after_the_day_the_verdict_stands_and_nothing_can_be_pressed(browser: Any, day: Day) -> None:
    pages = [opened(browser, day, role)[0] for role in ("master", "participant")]
    day.shown = view(state="over")
    for page in pages:
        wait(page, "document.querySelector('[data-act=stop]').disabled")
        assert page.get_by_role("button", name="I see a problem").is_enabled(), "the job still goes on"
    day.shown = ended(view(), "fail", "silent-hang: too slow", "/reports/a-day/report.html")
    for page in pages:
        wait(page, "document.getElementById('report-path').textContent === '/reports/a-day/report.html'")
        assert page.locator("#saying").inner_text() == "The day is over: fail. silent-hang: too slow"
        assert "fail" in str(page.locator("#state").get_attribute("class")).split()
        assert page.locator("button[data-act]:enabled, #note-form :enabled").count() == 0
        assert page.locator("#main-buttons").is_hidden() and page.locator("#stop-bar").is_hidden()
        page.close()


def test_a_lost_connection_is_told_and_comes_back(browser: Any, day: Day) -> None:
    page, _ = opened(browser, day)
    page.context.set_offline(True)
    page.evaluate("fetch('/page.js').catch(() => 0)")
    page.context.set_offline(False)
    day.shown = view(step=1234)
    wait(page, "document.getElementById('step').textContent.startsWith('1,234')")
    assert page.locator("#link").inner_text() == "live"
    page.close()


@pytest.mark.parametrize(("count", "boxes"), [(64, 64), (1024, 8)])
def test_many_ranks_are_legible(browser: Any, day: Day, count: int, boxes: int) -> None:
    day.shown = view(count)
    page, heard = opened(browser, day)
    wait(page, f"document.querySelectorAll('.rank').length === {boxes}")
    words = page.locator("#ranks-words").inner_text()
    assert words.startswith(f"{count:,} ranks. Step: lowest 997, highest 1,000")
    sizes = "[...document.querySelectorAll('.rank b')].map((n) => parseFloat(getComputedStyle(n).fontSize))"
    assert min(page.evaluate(sizes)) >= 11 and heard == []
    page.close()
