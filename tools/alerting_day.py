"""Real faults, real alerts: a game day of the reference trainer, watched by a real Prometheus and Alertmanager.

Each entry provokes an alert of `examples/monitoring/alerts.yaml` and expects it. All times of the rules are divided by
30, so that the day takes two or three minutes. Prints when each alert fired and resolved; exits with 1 if one did not.
"""

import contextlib
import pathlib
import re
import sys
import tempfile
import time
from typing import Any
from unittest import mock

from event_files import read_log
from monitoring.prometheus_servers import alerting

from harness import units
from harness.backends.local.backend import BACKEND
from harness.gameday.day import run_day
from harness.gameday.day_plan import plan_day
from harness.gameday.day_verdict import DayResult
from harness.gameday.page.page_server import PageAddress
from harness.gameday.page.page_server import serving as page_serving
from harness.gameday.starts_and_stops import Director
from harness.monitoring.metrics_server import serving
from harness.run.injection import LiveJob
from harness.run.stop import StopRequest

ROOT = pathlib.Path(__file__).resolve().parents[1]
FASTER = 30
LIMIT_S = 400.0
QUIET_S = 25.0  # after the last entry: alerts resolve
BUDGET = 0.08
DAY = """version: 1
name: alerting
title: Each entry provokes an alert
workload:
  nodes: 2
  steps: 100000
  checkpoint: {every_steps: 30}
  data: {shards: 8}
  args: [--layers, "1", --width, "64", --context, "32", --compute-s, "0"]
fault_free: false
when_done: wait
steady: {steps: 20, band: 75%, within: 2m}
entries:
  - rest: 20s
  - scenario: straggler-thermal
    overrides: {faults: {heat: {when: {step: 20}, factor: 3.0, duration: 14s}}}
    expect: {alerts: [{name: StepsSlow, within: 30s}]}
  - rest: 5s
  - scenario: storage-outage-during-save
    overrides: {faults: {outage: {when: {step: 20}, duration: 14s}}}
    expect: {alerts: [{name: CheckpointLate, within: 30s}]}
  - rest: 5s
  - scenario: loss-spike
    overrides: {faults: {poison: {when: {step: 20}, kind: gradient, factor: 50, steps: 1}}}
    expect: {alerts: [{name: GradientNormSpike, within: 30s}]}
  - rest: 5s
  - scenario: data-starved
    overrides: {faults: {starve: {when: {step: 20}, latency: 100ms, duration: 25s}}}
    expect: {alerts: [{name: DataWaitHigh, within: 40s}]}
  - rest: 5s
  - scenario: silent-hang
    overrides: {faults: {silence: {when: {step: 20}, duration: 15s}}}
    expect: {alerts: [{name: TrainingStalled, within: 30s}, {name: WasteBudgetBurnsFast, within: 60s}]}
"""
WANTED = sorted(set(re.findall(r"name: (\w+), within", DAY)))
_TIME = re.compile(r"(?<=\[)\d+[mhd](?=\])|(?<=offset )\d+[mhd]|(?<=for: )\d+[smh]\b")


def faster(rules: str) -> str:
    """The same rules for a day on which everything goes `FASTER` times as fast."""
    rules = _TIME.sub(lambda found: f"{_seconds(found[0]) / FASTER * 1000:.0f}ms", rules)
    return rules.replace("_timestamp_seconds > 60", f"_timestamp_seconds > {60 / FASTER:g}")


def _seconds(text: str) -> float:
    number = float(text[:-1]) * 24 if text.endswith("d") else 0
    return number * 3600 if number else units.parse_duration_ns(text) / 10**9


def run(folder: pathlib.Path) -> tuple[DayResult, list[dict[str, Any]]]:
    """Runs the day. Returns its result, and what the Alertmanager sent."""
    path = folder / "day.yaml"
    path.write_text(DAY)
    day = plan_day(path, 1, "local", "alerting-1", ROOT / "scenarios")
    director, stop = Director(day), StopRequest()
    limit = time.monotonic() + LIMIT_S
    over: list[float] = []

    def ends_it(watched: Director, job: LiveJob, now_ns: int) -> None:
        now = time.monotonic()
        if watched.state == "over" and not over:
            over.append(now)
        if now > limit or (over and now > over[0] + QUIET_S):
            stop.ask("enough was seen")

    director.watcher = ends_it
    run_dir = folder / "reports" / "alerting-1"
    with contextlib.ExitStack() as held:
        held.enter_context(mock.patch("harness.monitoring.monitor.LEDGER_EVERY_S", 1.0))
        page = held.enter_context(page_serving(PageAddress(), director.desk, run_dir, lambda narrow: ""))
        monitor, address = held.enter_context(serving(":0", budget=BUDGET))
        rules = faster((ROOT / "examples" / "monitoring" / "alerts.yaml").read_text())
        target = {"chaos": address.split("/")[2]}
        held.enter_context(alerting(folder, target, rules, f"{page.address}/alerts", page.access.tokens["alerts"]))
        result = run_day(day, folder / "reports", BACKEND, director, monitor, stop).result
    (log,) = [log for log in read_log(run_dir / "events") if log.header["role"] == "harness"]
    return result, [event for event in log.events if event["event"] == "gameday.alert"]


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="chaos-alerting-") as folder:
        result, alerts = run(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else folder))
    begin = min((alert["mono_ns"] for alert in alerts), default=0)
    for alert in alerts:
        print(f"{(alert['mono_ns'] - begin) / 1e9:7.1f} s  {alert['status']:9} {alert['name']}")
    for act in result.acts:
        print(act.expected.name, *(f"{watch.what}: {watch.verdict}" for watch in act.watches), sep="; ")
    told = {(alert["name"], alert["status"]) for alert in alerts}
    missing = [f"{name} {what}" for name in WANTED for what in ("firing", "resolved") if (name, what) not in told]
    print("missing: " + ", ".join(missing) if missing else f"all {len(WANTED)} alerts fired and resolved")
    sys.exit(1 if missing else 0)


if __name__ == "__main__":
    main()
