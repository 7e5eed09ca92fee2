"""`chaos gameday` from the outside: a day with its page, notes from the command line, a harness that is killed."""

import json
import os
import pathlib
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator

import light_day
import pytest
from e2e.chaos_cli import leftovers
from e2e.gameday_runs import ROOT, Going, chaos
from waiting import until

pytestmark = pytest.mark.slow  # real jobs
HANG = (
    "  - {scenario: silent-hang, overrides: {faults: {silence: {when: {step: 5}, target: {rank: 0}, duration: 10m}}}}\n"
)
PAUSE = "  - pause: Is everybody there?\n"


@pytest.fixture
def started(tmp_path: pathlib.Path) -> Iterator[Callable[..., Going]]:
    all_of_them: list[Going] = []

    def start(entries: str, **more: str) -> Going:
        all_of_them.append(Going(light_day.write(tmp_path, entries, 100_000, **more), tmp_path))
        return all_of_them[-1]

    yield start
    for each in all_of_them:
        each.end()


def test_a_harness_that_is_killed_leaves_nothing_and_the_day_is_ended_honestly(started: Callable[..., Going]) -> None:
    going = started(HANG + PAUSE)
    going.wait_for('"fault.effect"')
    run_dir = going.run_dir
    refused = resumed(str(run_dir))
    assert refused.returncode == 2 and "still going on" in refused.stderr
    os.kill(going.process.pid, signal.SIGKILL)
    going.process.wait()
    done = resumed(run_dir.name, "--reports", str(going.reports))
    assert done.returncode == 3, done.stdout + done.stderr
    assert "INCONCLUSIVE" in done.stdout or "INVALID" in done.stdout
    until(lambda: leftovers("light-day") == [], lambda: leftovers("light-day"))
    report = json.loads((run_dir / "gameday-report.json").read_text())
    assert any("the harness ended before it was over" in reason for reason in report["reasons"])
    assert json.loads((run_dir / "undo.jsonl").read_text().splitlines()[-1]) == {"closed": True}
    assert not list((going.reports / ".gamedays").glob("*.json"))
    assert resumed(str(run_dir)).returncode == 3, "resuming twice changes nothing"


def resumed(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(chaos("resume", *words), cwd=ROOT, capture_output=True, text=True)


def test_people_and_alerts_reach_a_day_that_is_going_on(started: Callable[..., Going], tmp_path: pathlib.Path) -> None:
    (tmp_path / "one-kill.csv").write_text("time,node,event\n0,a,killed\n")
    kill, hurry = "  - {scenario: rank-kill, overrides: {faults: {kill: {target: {rank: 0}}}}}\n", tmp_path / "hurry"
    replay = "  - {replay: {trace: one-kill.csv, speed: 60x}}\n"
    going = started(PAUSE + kill + replay, hurry=str(hurry), when_done="stop")
    going.wait_for('"kind":"pause"')
    secret = going.reports / ".gamedays" / f"{going.run_dir.name}.json"
    assert secret.stat().st_mode & 0o777 == 0o600
    assert going.note("nobody is here yet", "--who", "Ada").returncode == 0
    assert going.note("x", "--detected", "--mitigated").returncode == 2
    assert going.note().returncode == 2
    address, token = going.address("game master").split("/?token=")
    assert going.command("stop", "--who", "Ada").returncode == 0
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    for action in (b"lift", b"continue"):
        request = urllib.request.Request(f"{address}/notes", b'{"action": "%s"}' % action, headers)
        with urllib.request.urlopen(request) as answer:
            assert answer.status == 200
    hurry.touch()
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(f"{address}/events")
    assert going.process.wait() in (0, 1, 3)
    report = json.loads((going.run_dir / "gameday-report.json").read_text())
    said = [each["what"] for each in report["timeline"] if each["kind"] == "person"]
    assert said == ["Ada: note (nobody is here yet)", "Ada: stop", "master: lift", "master: continue"]
    assert [each["outcome"] for each in report["rehearsals"]] == ["settled", "settled"], report["reasons"]
    assert "- [ ] Action" in (going.run_dir / "report.md").read_text()
    assert "no game day" in going.note("too late").stderr
