"""A game day of five entries whose stop is pressed in a real browser, in the middle of a fault."""

import json
import pathlib
import re
from typing import Any

import light_day
import machine
import pytest
from e2e import gameday_runs

pytestmark = pytest.mark.slow  # a real job
ENTRIES = """\
  - {scenario: rank-kill, overrides: {faults: {kill: {when: {step: 5}, target: {rank: 0}}}}}
  - rest: 1s
  - {scenario: silent-hang, overrides: {faults: {silence: {when: {step: 5}, target: {rank: 0}, duration: 10m}}}}
  - pause: Is everybody back at their desk?
  - {replay: {trace: two-kills.csv, speed: 60x}}
"""


def pressed(page: Any, name: str) -> None:
    page.get_by_role("button", name=name).click()


def rehearse(going: gameday_runs.Going, browser: Any) -> None:
    going.wait_for('"gameday.started"')
    master, participant = (machine.browser_page(browser) for _ in range(2))
    master.goto(going.address("game master"))
    participant.goto(going.address("participants"))
    master.get_by_label("Your name").fill("Grace")
    participant.get_by_label("Your name").fill("Ada")
    going.wait_for('"fault.effect","fault":"silent-hang-silence"')
    assert "silent-hang" not in participant.content(), "participants have to find out"
    pressed(participant, "I see a problem")
    pressed(master, "Stop")
    going.wait_for('"fault.healed","fault":"silent-hang-silence"')
    pressed(master, "Lift the stop")
    going.wait_for('"kind":"pause"')
    pressed(master, "Continue")
    going.wait_for('"gameday.finished"')


def test_stop_in_a_browser_heals_at_once_and_the_job_goes_on_to_its_end(tmp_path: pathlib.Path) -> None:
    (tmp_path / "two-kills.csv").write_text("time,node,event\n0,a,killed\n60,a,killed\n")
    with machine.headless_browser() as browser:
        going = gameday_runs.Going(light_day.write(tmp_path, ENTRIES, 500), tmp_path)
        try:
            rehearse(going, browser)
            assert going.process.wait() in (1, 3)
        finally:
            going.end()
    told = [json.loads(line) for line in going.log().splitlines()[1:]]
    (stop,) = [e["mono_ns"] for e in told if e["event"] == "gameday.person" and e["action"] == "stop"]
    (healed,) = [e["mono_ns"] for e in told if e["event"] == "fault.healed" and e["fault"] == "silent-hang-silence"]
    assert healed > stop
    (finished,) = [e for e in told if e["event"] == "run.finished"]
    assert finished["outcome"] == "completed"
    report = json.loads((going.run_dir / "gameday-report.json").read_text())
    outcomes = [each["outcome"] for each in report["rehearsals"]]
    assert outcomes == ["settled", "stopped", "settled", "settled"], report["reasons"]
    assert report["rehearsals"][1]["verdict"] == "inconclusive"
    assert report["rehearsals"][1]["people_s"]["detect"] is not None
    assert re.search(r"- \[ \] Action", (going.run_dir / "report.md").read_text())
