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
from e2e.gameday_runs import ROOT, Going, chaos
from waiting import until

pytestmark = pytest.mark.slow  # real jobs
HANG = (
    "  - {scenario: silent-hang, overrides: {faults: {silence: {when: {step: 5}, target: {rank: 0}, duration: 10m}}}}\n"
)
PAUSE = "  - pause: Is everybody there?\n"


@pytest.fixture
def started(tmp_path: pathlib.Path) -> Iterator[Callable[[str, int], Going]]:
    all_of_them: list[Going] = []

    def start(entries: str, steps: int, hurry: str = "") -> Going:
        all_of_them.append(Going(light_day.write(tmp_path, entries, steps, hurry), tmp_path))
        return all_of_them[-1]

    yield start
    for each in all_of_them:
        each.end()


def trainers(run_dir: pathlib.Path) -> list[str]:
    """Processes that still work for this run."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
        try:
            if str(run_dir).encode() in path.read_bytes():
                found.append((path.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


def test_a_harness_that_is_killed_leaves_nothing_and_the_day_is_ended_honestly(
    started: Callable[[str, int], Going],
) -> None:
    going = started(HANG + PAUSE, 100_000)
    going.wait_for('"fault.effect"')
    run_dir = going.run_dir
    refused = subprocess.run(chaos("resume", str(run_dir)), cwd=ROOT, capture_output=True, text=True)
    assert refused.returncode == 2 and "still going on" in refused.stderr
    os.kill(going.process.pid, signal.SIGKILL)
    going.process.wait()
    resumed = subprocess.run(
        chaos("resume", run_dir.name, "--reports", str(going.reports)), cwd=ROOT, capture_output=True, text=True
    )
    assert resumed.returncode == 3, resumed.stdout + resumed.stderr
    assert "INCONCLUSIVE" in resumed.stdout or "INVALID" in resumed.stdout
    until(lambda: not trainers(run_dir), "the end of its processes")
    report = json.loads((run_dir / "gameday-report.json").read_text())
    assert any("the harness ended before it was over" in reason for reason in report["reasons"])
    assert json.loads((run_dir / "undo.jsonl").read_text().splitlines()[-1]) == {"closed": True}
    assert not list((going.reports / ".gamedays").glob("*.json"))
    again = subprocess.run(chaos("resume", str(run_dir)), cwd=ROOT, capture_output=True, text=True)
    assert again.returncode == 3, "resuming twice changes nothing"


def test_people_and_alerts_reach_a_day_that_is_going_on(
    started: Callable[[str, int, str], Going], tmp_path: pathlib.Path
) -> None:
    kill, hurry = "  - {scenario: rank-kill, overrides: {faults: {kill: {target: {rank: 0}}}}}\n", tmp_path / "hurry"
    going = started(PAUSE + kill, 1500, str(hurry))
    going.wait_for('"kind":"pause"')
    secret = going.reports / ".gamedays" / f"{going.run_dir.name}.json"
    assert secret.stat().st_mode & 0o777 == 0o600
    assert going.note("nobody is here yet", "--who", "Ada").returncode == 0
    assert going.note("x", "--detected", "--mitigated").returncode == 2
    assert going.note().returncode == 2
    page = going.address("game master")
    address, token = page.split("/?token=")
    assert going.command("stop", "--who", "Ada").returncode == 0
    for action in (b"lift", b"continue"):
        request = urllib.request.Request(
            f"{address}/notes",
            b'{"action": "%s"}' % action,
            {"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            assert answer.status == 200
    hurry.touch()
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(f"{address}/events")
    going.wait_for('"fault.recovered"')
    assert going.process.wait() in (0, 1, 3)
    report = json.loads((going.run_dir / "gameday-report.json").read_text())
    said = [each["what"] for each in report["timeline"] if each["kind"] == "person"]
    assert said == ["Ada: note (nobody is here yet)", "Ada: stop", "master: lift", "master: continue"]
    assert report["rehearsals"][0]["outcome"] == "settled"
    assert "no game day" in going.note("too late").stderr
