"""Against the real Prometheus and Alertmanager: metrics, rules and the dashboard, and an alert that reaches a game day."""

import contextlib
import json
import pathlib
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import light_day
import pytest
import yaml
from event_files import read_log
from machine import need
from monitoring import telling
from monitoring.prometheus_servers import alerting, query_range
from monitoring.telling import S, harness, plan, save, status, step, trainer
from waiting import HANG_S

from harness.backends.local.backend import BACKEND
from harness.campaign.campaign_observers import Stage
from harness.campaign.ledger_so_far import so_far
from harness.errors import ChaosError
from harness.evidence.ledger import ACCOUNTS
from harness.gameday.day import run_day
from harness.gameday.day_plan import plan_day
from harness.gameday.day_verdict import DayResult
from harness.gameday.starts_and_stops import Director
from harness.monitoring.metrics_server import serving
from harness.monitoring.monitor import Monitor, show_ledger
from harness.node.emitter import abnormal
from harness.run.injection import LiveJob
from harness.run.stop import StopRequest

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "monitoring"
LEDGER = 'sum(chaos_ledger_gpu_seconds{job="chaos"})'
HANG = """\
  - scenario: silent-hang
    overrides: {faults: {silence: {when: {step: 5}, target: {rank: 0}, duration: 12s}}}
    expect: {alerts: [{name: TrainingStalled, within: 10m}]}
"""


def shortened(rules: str) -> str:
    """The rules for a test of seconds: the same questions with shorter times."""
    for before, after in (
        ("chaos_job_last_progress_timestamp_seconds > 60", "chaos_job_last_progress_timestamp_seconds > 3"),
        ("for: 1m", "for: 0s"),
        ("[30m] offset 2m", "[30m]"),
    ):
        assert before in rules
        rules = rules.replace(before, after)
    return rules


@contextlib.contextmanager
def made_up_job() -> Iterator[str]:
    """Serves a job that tells everything there is to tell, step after step. Yields its host and port."""
    over = threading.Event()

    def tell(monitor: Monitor) -> None:
        monitor.stage(Stage("run", 2))
        monitor.new_events([plan(workload={"checkpoint": {"every_steps": 4}}, expect={"wasted_gpu_hours": {"max_percent": 20}}, faults=[{"fault": "hang"}])])  # fmt: skip
        monitor.new_events([harness("node.allocated", node="node0", incarnation=1, gpus=2)])
        monitor.new_events([harness("fault.injected", fault="h", kind="hang")])
        number = 0
        while not over.wait(0.1):
            number += 1
            at_s = number / 10
            told = {"loss": 5 - number / 100, "grad_norm": 1.0, "lr": 0.1, "count": 8, "sync_ns": S // 50, "data_ns": S // 100, "checkpoint_ns": S // 200}  # fmt: skip
            monitor.new_events([(trainer(rank), step(number, at_s, **told)) for rank in (0, 1)])
            if number % 4 == 0:
                monitor.new_events([(trainer(), save("started", number, at_s - 0.1)), (trainer(), save("committed", number, at_s))])  # fmt: skip
            if number == 10:
                monitor.new_events([(trainer(), save("failed", 10, at_s)), (trainer(), {"event": "anomaly", "kind": "hang"})])  # fmt: skip
            monitor.status(status(number, steps=1000))
            monitor.count()
            with monitor._lock:
                show_ledger(monitor._board, _books(number))
                monitor._board.add("chaos_exporter_ledger_failures_total", 1)
                monitor._board.add("chaos_exporter_series_refused_total", 1, "x")
                monitor._board.add("chaos_harness_events_odd_total", 1)

    with serving(":0", books=lambda run, fault_free: None) as (monitor, address):
        telling_it = threading.Thread(target=tell, args=(monitor,), daemon=True)
        telling_it.start()
        try:
            yield address.split("/")[2]
        finally:
            over.set()
            telling_it.join()


def _books(number: int) -> dict[str, Any]:
    accounts = {name: float(number) * (2 if name == "productive" else 0.1) for name in ACCOUNTS}
    allocated = sum(accounts.values())
    waste = allocated - accounts["productive"]
    told = {"allocated": allocated, "at": time.time(), "goodput": 0.6, "dollars": 1.0}
    return told | {"accounts": accounts, "wasted_all": waste, "wasted_faults": waste / 2}


@dataclass
class Seen:
    """What came of the day, and the Prometheus that watched it."""

    prometheus: str
    result: DayResult
    alerts: list[dict[str, Any]]
    begin_s: float
    end_s: float

    def asked(self, query: str) -> list[Any]:
        for name, value in (("$__rate_interval", "6s"), ("$job", ".*"), ("$instance", ".*")):
            query = query.replace(name, value)
        return query_range(self.prometheus, query, self.begin_s, self.end_s)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    need("prometheus", "prometheus-alertmanager", "setpriv")
    from harness.gameday.page.page_server import PageAddress
    from harness.gameday.page.page_server import serving as page_serving

    folder = tmp_path_factory.mktemp("watched")
    day = plan_day(light_day.write(folder, HANG, 20000), 1, "local", "watched-1", ROOT / "scenarios")
    director, stop, begin_s = Director(day), StopRequest(), time.time()

    def ends_it(watched: Director, job: LiveJob, now_ns: int) -> None:
        """The job ends once its alert is over and its ledger was scraped, or never came."""
        resolved = any("TrainingStalled resolved" in news.text for news in watched.feed)
        over = watched.state == "over" and resolved and query_range(prometheus, LEDGER, begin_s, time.time())
        if over or time.time() > begin_s + HANG_S:
            stop.ask("enough was seen")

    def books(run: pathlib.Path, fault_free: pathlib.Path | None) -> dict[str, Any] | None:
        """In this process: one of low priority may not get a CPU for minutes."""
        with contextlib.suppress(ChaosError):
            return so_far(run, fault_free or run)
        return None

    director.watcher = ends_it
    rules = shortened((EXAMPLES / "alerts.yaml").read_text())
    run_dir = folder / "reports" / "watched-1"
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as held:
        patch.setenv("CHAOS_LOCAL_MODE", "plain")
        patch.setattr("harness.monitoring.monitor.LEDGER_EVERY_S", 1.0)
        page = held.enter_context(page_serving(PageAddress(), director.desk, run_dir, lambda narrow: ""))
        monitor, address = held.enter_context(serving(":0", budget=0.4, books=books))
        targets = {"chaos": address.split("/")[2], "made-up": held.enter_context(made_up_job())}
        webhook = f"{page.address}/alerts"
        prometheus = held.enter_context(alerting(folder, targets, rules, webhook, page.access.tokens["alerts"]))
        result = run_day(day, folder / "reports", BACKEND, director, monitor, stop).result
        (log,) = [log for log in read_log(run_dir / "events") if log.header["role"] == "harness"]
        alerts = [event for event in log.events if event["event"] == "gameday.alert"]
        yield Seen(prometheus, result, alerts, begin_s, time.time())


def test_a_stall_fires_the_alert_and_the_game_day_hears_it(seen: Seen) -> None:
    told = [(each["name"], each["status"]) for each in seen.alerts if each["name"] == "TrainingStalled"]
    assert told[0] == ("TrainingStalled", "firing") and ("TrainingStalled", "resolved") in told, seen.alerts
    assert {"The job makes no progress"} == {e["summary"] for e in seen.alerts if e["name"] == "TrainingStalled"}
    (act,) = seen.result.acts
    (watch,) = [watch for watch in act.watches if watch.what.startswith("alert ")]
    assert watch.verdict.value == "pass", (watch, seen.result.reasons)


def test_the_ledger_was_scraped_while_the_job_ran(seen: Seen) -> None:
    total, allocated = seen.asked(LEDGER), seen.asked('chaos_ledger_allocated_gpu_seconds{job="chaos"}')
    assert float(total[0]["values"][-1][1]) == pytest.approx(float(allocated[0]["values"][-1][1]))
    assert seen.asked('chaos_faults_active{job="chaos", fault="hang"} == 1')


PANELS = json.loads((EXAMPLES / "dashboard.json").read_text())["panels"]
QUERIES = [(panel["title"], each["expr"]) for panel in PANELS for each in panel.get("targets", ())]


@pytest.mark.parametrize(("title", "query"), QUERIES, ids=[f"{title}-{n}" for n, (title, _) in enumerate(QUERIES)])
def test_each_query_of_the_dashboard_has_an_answer(title: str, query: str, seen: Seen) -> None:
    numbers = [float(value) for series in seen.asked(query) for _, value in series["values"]]
    assert any(number == number for number in numbers), f"{title}: no answer to {query}"


def test_the_annotation_of_the_dashboard_marks_the_fault(seen: Seen) -> None:
    (faults,) = json.loads((EXAMPLES / "dashboard.json").read_text())["annotations"]["list"]
    assert "hang" in [each["metric"]["fault"] for each in seen.asked(faults["expr"])]


SOURCE = {"type": "prometheus", "uid": "${datasource}"}
KEYS = {"id", "type", "title", "description", "datasource", "gridPos", "targets", "fieldConfig", "options"}


def test_the_dashboard_has_three_rows_and_keeps_grafanas_schema() -> None:
    """Version 38, as far as it is used here."""
    dashboard = json.loads((EXAMPLES / "dashboard.json").read_text())
    assert dashboard["schemaVersion"] == 38 and dashboard["title"] and re.fullmatch(r"[\w-]{1,40}", dashboard["uid"])
    rows = [panel for panel in dashboard["panels"] if panel["type"] == "row"]
    assert [row["title"].split(":")[0] for row in rows] == ["Executive", "On call", "Debug"]
    assert all(row["panels"] == [] and row["collapsed"] is False for row in rows)
    ids, taken = [panel["id"] for panel in dashboard["panels"]], set[tuple[int, int]]()
    assert len(ids) == len(set(ids)) and min(ids) > 0
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + dx, at["y"] + dy) for dx in range(at["w"]) for dy in range(at["h"])}
        assert cells and not cells & taken and at["x"] >= 0 and at["x"] + at["w"] <= 24, panel["title"]
        taken |= cells
        if panel["type"] == "row":
            continue
        assert panel.keys() == KEYS and panel["type"] in ("stat", "timeseries", "heatmap"), panel["title"]
        assert panel["datasource"] == SOURCE and panel["title"] and panel["description"] and panel["targets"]
        for target in panel["targets"]:
            assert target["expr"] and target["datasource"] == SOURCE and re.fullmatch("[A-Z]", target["refId"])
            assert target.keys() <= {"expr", "datasource", "refId", "legendFormat", "instant", "format"}
        defaults = panel["fieldConfig"]["defaults"]
        assert defaults.keys() <= {"unit", "min", "max", "custom", "color", "mappings", "thresholds"}
        assert defaults["unit"] in ("none", "short", "percentunit", "s", "ops", "currencyUSD")
        assert "thresholds" not in defaults or defaults["thresholds"]["steps"][0]["value"] is None


def promtool(*words: str, given: str | None = None) -> None:
    need("promtool")
    done = subprocess.run(["promtool", *words], input=given, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stdout + done.stderr


def test_each_alert_fires_and_resolves() -> None:
    files = [EXAMPLES / "alerts_test.yaml", EXAMPLES / "alerts_day_test.yaml"]
    promtool("check", "rules", str(EXAMPLES / "alerts.yaml"))
    promtool("test", "rules", *map(str, files))
    tested = "".join(file.read_text() for file in files)
    for alert in RULES:
        assert tested.count(f"alertname: {alert}") >= 3, f"{alert}: before, while it fires, and after"


def test_promtool_finds_nothing_wrong_with_the_metrics() -> None:
    monitor = Monitor(budget=0.1)
    told = {"loss": 5.0, "grad_norm": 1.0, "lr": 0.1, "count": 8, "sync_ns": 1, "data_ns": 1, "checkpoint_ns": 1}
    monitor.new_events([plan(faults=[{"fault": "hang"}]), harness("node.allocated", node="n", gpus=1)])
    monitor.new_events([(trainer(), step(n, n, **told)) for n in (1, 2)])
    monitor.new_events([(trainer(), save(what, 2, n)) for n, what in enumerate(("started", "committed"), 3)])
    monitor.status(status(2))
    monitor.count()
    show_ledger(monitor._board, _books(5))
    text = telling.page(monitor)
    assert text.count("# TYPE") > 40
    promtool("check", "metrics", given=text)


GROUP = yaml.safe_load((EXAMPLES / "alerts.yaml").read_text())["groups"][0]
RULES = {rule["alert"]: rule["expr"] for rule in GROUP["rules"] if "alert" in rule}
LIMITS = {
    "CheckpointLate": (r"> ([\d.]+) \* chaos_checkpoint_interval_seconds", abnormal.CHECKPOINT_INTERVALS),
    "StepsSlow": (r"> ([\d.]+) \* chaos:step_seconds:usual", 1 + abnormal.STEP_TIME_EXCESS),
    "GradientNormSpike": (r"> ([\d.]+) \* quantile_over_time\(0\.5", abnormal.GRADIENT_NORM_FACTOR),
    "LossStagnant": (r"chaos_loss_improvement_ratio < ([\d.]+)", abnormal.LOSS_IMPROVES_MIN),
    "DataWaitHigh": (r"> 0\) > ([\d.]+)", abnormal.DATA_WAIT_SHARE),
    "ThroughputLow": (r"< ([\d.]+) \* \(rate", 0.9),
}


@pytest.mark.parametrize("alert", LIMITS)
def test_an_alert_has_the_limit_of_the_rule(alert: str) -> None:
    pattern, limit = LIMITS[alert]
    assert [float(found) for found in re.findall(pattern, RULES[alert])] == [pytest.approx(limit)]
