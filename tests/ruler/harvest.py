"""Keeps the histories that tests bend and judge, as runs for the ruler: a plug-in of pytest.

PYTHONPATH=tests CHAOS_HARVEST=FOLDER python -m pytest -p ruler.harvest tests/judge
make ruler OLD=CHECKOUT ARGS='--folder FOLDER'

A timeline that a test has changed itself, without its log, is not kept.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

import judging
from simulator import History

from harness.judge.score import Evidence, Scorecard
from harness.timeline.timeline import Timeline

FOLDER = pathlib.Path(os.environ["CHAOS_HARVEST"]).resolve()
LOGS = tempfile.TemporaryDirectory()
count = 0
load, judge = judging.load, judging.judge


def kept(history: History, logs: judging.Logs | None = None, rename: Callable[[str], str] = str) -> Timeline:
    found = load(history, logs, rename)
    folder = pathlib.Path(tempfile.mkdtemp(dir=LOGS.name))
    object.__setattr__(found, "_log", history.write(folder, logs, rename))
    return found


def harvested(evidence: Evidence, run_id: str) -> Scorecard:
    global count
    parts = {".": evidence.run, "fault-free": evidence.fault_free}
    parts |= {f"calibration-{number}": each for number, each in enumerate(evidence.calibration)}
    logs: dict[str, Any] = {name: getattr(each, "_log", None) for name, each in parts.items() if each is not None}
    if all(logs.values()) and not evidence.drill:
        count += 1
        test = os.environ.get("PYTEST_CURRENT_TEST", "").partition("::")[2].partition(" ")[0]
        name = "".join(letter if letter.isalnum() else "-" for letter in test)[:100]
        for part, log in logs.items():
            shutil.copytree(log / "events", FOLDER / f"{name}-{count}" / part / "events")
    return judge(evidence, run_id)


judging.load, judging.judge = kept, harvested
