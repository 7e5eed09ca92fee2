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
def day(tmp_path: pathlib.Path, browser: Any) -> Iterator[Day]:
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
        for context in browser.contexts:
            context.close()
        day.end()


def opened(
    browser: Any, day: Day, role: str = "master", width: int = 1440, scheme: str = "light"
) -> tuple[Any, list[str]]:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = machine.browser_page(context)
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


@pytest.mark.parametrize(
    ("role", "scheme", "width"),
    [("master", "light", 1920), ("master", "dark", 1440), ("master", "light", 390), ("participant", "light", 390)],
)
def test_it_fits_says_no_error_and_runs_no_foreign_word(
    browser: Any, day: Day, role: str, scheme: str, width: int
) -> None:
    page, heard = opened(browser, day, role, width, scheme)
    page.wait_for_selector("#chart svg")
    wait(page, "document.getElementById('log').textContent.includes('loss 3.21')")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.title().startswith("Game day") and page.locator("img").count() == 0
    assert "<img src=x" in page.locator("#log").inner_text(), "it is shown as the text that it is"
    assert "token" not in page.url
    assert heard == []


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


def test_an_outage_moves_nothing_and_has_the_words_and_colours_of_the_report(browser: Any, day: Day) -> None:
    day.shown = view(outage=[], outage_open=False)
    page, _ = opened(browser, day)
    assert page.locator("#outage-title").inner_text() == "No outage so far"
    before = page.locator("#people").bounding_box()
    day.shown = view(outage=[("detect", 1.2)])
    wait(page, "document.getElementById('outage-title').textContent === 'No progress for 1.2 s'")
    assert page.locator("#people").bounding_box() == before
    day.shown = view()
    wait(page, "document.querySelectorAll('#outage rect').length === 4")
    words = "[...document.querySelectorAll('#outage-words li')]"
    told = page.evaluate(words + ".map((n) => [n.textContent, n.querySelector('rect').getAttribute('class')])")
    phases = [["Detect 1.2 s", "p-detect"], ["Start-up 0.8 s", "p-startup"], ["Recompute 0.3 s", "p-recompute"]]
    assert told[:3] == phases and told[3][1] == "p-unknown"
    fill = "getComputedStyle(document.querySelector('#outage .p-recompute')).fill"
    assert page.evaluate(fill) == "rgb(140, 92, 207)", "--recompute of the style sheet of the reports"


def test_what_was_not_measured_is_not_nought_and_a_stopped_entry_is_not_green(browser: Any, day: Day) -> None:
    nothing: dict[str, Any] = {"ranks": RanksView(0, [], True), "wasted": "", "wasted_words": "", "counted_s": None}
    day.shown = view(
        scenes=[replace(scenes()[0], state="stopped"), *scenes()[1:]], budget=(), steps_per_s=None, **nothing
    )
    page, _ = opened(browser, day)
    texts = {"wasted": "—", "share": "the ledger is being worked out", "pace": "", "ranks-words": "No ranks yet."}
    assert {name: page.locator(f"#{name}").inner_text() for name in texts} == texts
    colours = "[...document.querySelectorAll('#schedule > li')].map((n) => getComputedStyle(n).borderLeftColor)"
    assert page.locator("#schedule > li .head .word").first.inner_text() == "stopped"
    assert page.evaluate(colours)[:2] == ["rgb(77, 90, 105)", "rgb(11, 122, 67)"]
    assert page.get_by_text("the same job without a fault").is_visible()
    day.shown = view(fault_free=False)
    wait(page, "document.getElementById('without-fault').hidden")
    assert not page.get_by_text("the same job without a fault").is_visible(), "no run that is not there is named"


def test_on_a_phone_stop_stays_in_reach(browser: Any, day: Day) -> None:
    page, _ = opened(browser, day, width=390)
    page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    box = page.locator("[data-act=stop]").bounding_box()
    assert 0 < box["y"] < box["y"] + box["height"] <= 900
    for name in ("I see a problem", "Leave a note", "Skip"):
        page.get_by_role("button", name=name).scroll_into_view_if_needed()
        other = page.get_by_role("button", name=name).bounding_box()
        assert other["y"] + other["height"] <= box["y"], "no other button lies below it"


def test_stop_is_one_press_and_the_page_follows_while_another_page_keeps_its_role(browser: Any, day: Day) -> None:
    page, heard = opened(browser, day)
    observer = page.context.new_page()
    observer.goto(day.served.url("observer"))
    page.reload()
    page.get_by_role("button", name="Stop").click()
    until(lambda: [(ask.action, ask.role) for ask in day.pressed] == [("stop", "master")], "the press")
    wait(page, "document.getElementById('answer').textContent.startsWith('Stopped')")
    day.shown = view(blocked=True, saying="Stopped by Ada at 2:39: nothing is injected until it is lifted.", step=2222)
    page.get_by_role("button", name="Lift the stop").wait_for()
    assert page.get_by_role("button", name="Inject now").is_disabled()
    assert page.title().startswith("Stopped")
    stop = page.locator("[data-act=stop]")
    assert stop.is_disabled() and stop.inner_text() == "Stopped nothing is injected"
    observer.reload()
    wait(observer, "document.getElementById('step').textContent.startsWith('2,222')")
    assert not observer.locator("[data-act]").count()
    day.shown = view(blocked=False)
    wait(page, "!document.querySelector('[data-act=stop]').disabled")
    assert stop.inner_text() == "Stop heal everything" and heard == []


def test_an_answer_says_what_was_noted_and_fades(browser: Any, day: Day) -> None:
    page, _ = opened(browser, day, "participant")
    page.get_by_label("Your name").fill("Ada")
    for button, words in (("I see a problem", "Noted: detected."), ("Stop", "Stopped: everything is being healed.")):
        page.get_by_role("button", name=button).click()
        wait(page, f"document.getElementById('answer').textContent === {words!r}")
    assert page.get_by_role("status").get_attribute("aria-live") == "polite"
    wait(page, "document.getElementById('answer').textContent === ''")


def test_the_keyboard_alone_names_a_person_acts_and_leaves_a_note(browser: Any, day: Day) -> None:
    page, heard = opened(browser, day, "participant")
    page.get_by_role("button", name="I see a problem").press("Enter")
    wait(page, "document.activeElement.id === 'who'")
    assert page.get_by_role("alert").inner_text() == "Write your name first, then press Enter."
    name = page.get_by_label("Your name")
    assert name.get_attribute("aria-invalid") == "true"
    time.sleep(0.3)
    assert day.pressed == []
    page.keyboard.type("Ada")
    page.keyboard.press("Enter")
    until(lambda: [(ask.action, ask.who) for ask in day.pressed] == [("detected", "Ada")], "the press")
    assert name.get_attribute("aria-invalid") == "false" and page.locator("#who-why").inner_text() == ""
    page.focus("#who")
    page.keyboard.press("Tab")
    page.keyboard.type("loss is flat")
    page.keyboard.press("Enter")
    until(lambda: len(day.pressed) == 2, "the note")
    ask = day.pressed[1]
    assert (ask.action, ask.who, ask.text, ask.role) == ("note", "Ada", "loss is flat", "participant")
    reached = set()
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.textContent"))
    assert {"I see a problem", "I take it", "It is mitigated"} <= reached
    assert heard == []


def test_ranks_say_whether_they_stand_still_and_many_are_legible(browser: Any, day: Day) -> None:
    still = [RankView(rank, "node0", 1000, None, 23.4, True) for rank in range(4)]
    ranks = RanksView(4, still, True, [1000, 1000, 1000], [])
    day.shown = view(ranks=ranks, idle_s=23.4, standing=True, steps_go=False, phase="standing_still")
    page, heard = opened(browser, day)
    wait(page, "document.querySelectorAll('.rank.standing').length === 4")
    assert page.locator(".rank span").all_inner_texts() == ["no step for 23 s"] * 4
    assert not page.locator(".rank .bar-line").first.is_visible()
    assert page.locator("#idle").inner_text() == "no step for 23 s"
    for count, boxes in ((12, 12), (64, 64), (1024, 8)):
        day.shown = view(count)
        wait(page, f"document.querySelectorAll('.rank').length === {boxes}")
        sizes = "[...document.querySelectorAll('.rank b')].map((n) => parseFloat(getComputedStyle(n).fontSize))"
        found = page.evaluate(sizes)
        assert len(found) == boxes and min(found) >= 11
    assert "Step: lowest 997, highest 1,000" in page.locator("#ranks-words").inner_text()
    assert page.locator(".rank.late span").all_inner_texts() == []
    day.shown = view(12, step=0, phase="rendezvous", idle_s=1.0, steps_go=False)
    wait(page, "document.getElementById('step').textContent.startsWith('0 of')")
    assert page.locator(".rank.late span").all_inner_texts() == ["3 behind"]
    assert page.locator("#idle").inner_text() == ""
    assert page.locator("#furthest").inner_text() == "step 1,000 was reached before" and heard == []


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


def test_a_lost_connection_is_told_and_comes_back(browser: Any, day: Day) -> None:
    page, _ = opened(browser, day)
    page.context.set_offline(True)
    page.evaluate("fetch('/page.js').catch(() => 0)")
    page.context.set_offline(False)
    day.shown = view(step=1234)
    wait(page, "document.getElementById('step').textContent.startsWith('1,234')")
    assert page.locator("#link").inner_text() == "live"
