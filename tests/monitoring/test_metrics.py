"""What `--metrics` serves: figures that are right, nothing that was not measured, and nothing that a trainer can blow up."""

import contextlib
import dataclasses
import json
import math
import pathlib
import socket
import threading
import time
import urllib.error
import urllib.request
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from monitoring import telling
from monitoring.telling import S, harness, plan, save, served, status, step, trainer
from waiting import HANG_S

from harness.campaign import ledger_so_far
from harness.campaign.campaign_observers import SILENT_CAMPAIGN, Stage, Together
from harness.errors import CannotRunError, UsageError
from harness.evidence.ledger import ACCOUNTS
from harness.log import checked_lines
from harness.log.vocabulary import EVENTS
from harness.monitoring import metrics, metrics_server
from harness.monitoring.board import SERIES_MAX, Board
from harness.monitoring.metrics import METRICS, RANKS_SHOWN
from harness.monitoring.metrics_server import place, serving
from harness.monitoring.monitor import LEDGER_EVERY_S, LEDGER_FAILED_S, Monitor, show_ledger

ROOT = pathlib.Path(__file__).resolve().parents[2]


def heard(*events: tuple[dict[str, Any], dict[str, Any]], now: Any = None) -> telling.Samples:
    monitor = Monitor()
    monitor.new_events(list(events))
    monitor.status(now or status())
    return served(monitor)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_names_follow_the_conventions(metric: metrics.Metric) -> None:
    assert metric.name.startswith("chaos_") and metric.name == metric.name.lower()
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert not any(unit in metric.name for unit in ("_ms", "_ns", "_percent", "_hours", "_minutes"))
    assert metric.meaning.endswith(".") and bool(metric.buckets) == (metric.kind == "histogram")


def test_what_was_not_measured_is_absent() -> None:
    found = {name for name, _ in served(Monitor())}
    assert found == {"chaos_harness_info", "chaos_job_up"}
    found = {name for name, _ in heard((trainer(), step(1, 1.0)), (trainer(), step(2, 1.5)))}
    assert "chaos_step_duration_seconds_count" in found
    for name in ("loss", "gradient_norm", "gradient_sync_seconds_total", "goodput_ratio", "samples_total"):
        assert f"chaos_{name}" not in found
    assert not any("checkpoint" in name for name in found)


def test_steps_are_counted_with_those_that_were_done_again() -> None:
    told = [(trainer(rank), step(n, n / 2 + rank / 10, count=8)) for n in range(1, 11) for rank in (0, 1)]
    told += [(trainer(rank, pid=9), {"event": "restored", "step": 5, "mono_ns": 20 * S}) for rank in (0, 1)]
    told += [(trainer(rank, pid=9), step(n, 20 + n)) for n in range(6, 13) for rank in (0, 1)]
    found = heard(*told)
    assert found["chaos_steps_total", ()] == 17 and found["chaos_samples_total", ()] == 80
    for rank in ("0", "1"):
        labels = (("rank", rank),)
        assert found["chaos_step_duration_seconds_count", labels] == 9 + 6, "no step lasts across a restart"
        assert found["chaos_step_duration_seconds_sum", labels] == pytest.approx(9 * 0.5 + 6 * 1)
        assert found["chaos_step_duration_seconds_bucket", (("le", "0.5"), ("rank", rank))] == 9
        assert found["chaos_step_duration_seconds_bucket", (("le", "+Inf"), ("rank", rank))] == 15


def test_an_outage_is_one_restart_of_the_job_and_late_words_are_none() -> None:
    told = [(trainer(rank, pid=life), step(1, life)) for life in (1, 2, 3) for rank in (0, 1)]
    found = heard(plan(), *told)
    assert found["chaos_worker_restarts_total", ()] == 4
    assert found["chaos_job_restarts_total", ()] == 2
    assert heard(plan())["chaos_job_restarts_total", ()] == 0
    told = [(trainer(pid=life), step(n, n)) for n, life in enumerate((1, 1, 2, 1, 2, 1, 2, 2), 1)]
    found = heard(plan(), *told)
    assert found["chaos_worker_restarts_total", ()] == found["chaos_job_restarts_total", ()] == 1
    assert found["chaos_steps_total", ()] == 8
    assert found["chaos_step_duration_seconds_sum", (("rank", "0"),)] == 2


def test_the_curves_are_those_of_the_lowest_rank_and_times_are_added_up_by_rank() -> None:
    high, low = step(1, 1, loss=7.0, grad_norm=9.0), step(1, 1, loss=5.0, grad_norm=2.0)
    found = heard((trainer(1), high), (trainer(0), low), (trainer(1), step(2, 2, loss=7.0)))
    assert found["chaos_loss", ()] == 5 and found["chaos_gradient_norm", ()] == 2
    assert found["chaos_gradient_norm_recent_max", ()] == 9
    odd = step(1, 1, loss="nan", grad_norm="inf")
    found = heard((trainer(), odd), (trainer(), step(2, 2, loss=2.0, grad_norm=1.0)))
    assert found["chaos_loss", ()] == 2 and found["chaos_nonfinite_total", (("quantity", "loss"),)] == 1
    assert found["chaos_gradient_norm_recent_max", ()] == math.inf
    assert math.isnan(heard((trainer(), odd))["chaos_loss", ()]), "no number is shown as such"
    told = [(trainer(rank), step(n, n, sync_ns=S // 4, data_ns=0)) for n in (1, 2) for rank in (0, 1)]
    found = heard(*told)
    assert found["chaos_gradient_sync_seconds_total", (("rank", "1"),)] == 0.5
    assert found["chaos_data_wait_seconds_total", (("rank", "0"),)] == 0
    assert ("chaos_checkpoint_stall_seconds_total", (("rank", "0"),)) not in found


def test_a_checkpoint_of_many_parts_is_one_and_one_that_failed_is_no_success() -> None:
    told = []
    for number in (20, 40):
        told += [(trainer(rank), save("started", number, number)) for rank in (0, 1)]
        told += [(trainer(rank), save("committed", number, number + 1 + rank)) for rank in (0, 1)]
    found = heard(*told)
    assert found["chaos_checkpoints_total", (("result", "success"),)] == 2
    assert found["chaos_checkpoint_duration_seconds_count", ()] == 2
    assert found["chaos_checkpoint_duration_seconds_sum", ()] == pytest.approx(4), "the last part ends it"
    assert found["chaos_checkpoint_last_committed_step", ()] == 40
    assert found["chaos_checkpoint_last_committed_timestamp_seconds", ()] == pytest.approx(time.time(), abs=HANG_S)
    half = heard(*told[:2], told[2])
    assert ("chaos_checkpoints_total", (("result", "success"),)) not in half
    found = heard((trainer(), save("started", 5, 1)), (trainer(), save("failed", 5, 2)))
    assert found["chaos_checkpoints_total", (("result", "failure"),)] == 1
    assert ("chaos_checkpoint_last_committed_step", ()) not in found
    told = [(trainer(), step(n, n / 2)) for n in range(1, 6)]
    found = heard(plan(workload={"checkpoint": {"every_steps": 20}}), *told)
    assert found["chaos_checkpoint_interval_seconds", ()] == pytest.approx(10)


def test_bytes_of_links_count_from_the_first_look_and_the_health_of_a_gpu_shows_as_far_as_it_is_told() -> None:
    def links(received: int) -> dict[str, Any]:
        return {"event": "usage", "links": [{"link": "eth0", "received_bytes": received, "sent_bytes": 0}]}

    sick = {"gpu": 1, "throttle_reasons": 0x44, "ecc_uncorrected": 3, "xid": 48, "xids": 2, "temperature_c": 91}
    well = {"gpu": 0, "throttle_reasons": 0x4, "busy_percent": 40, "memory_bytes": 5}  # a usual limit of power
    told = links(100), links(350), links(10), links(20), {"event": "usage", "gpus": [well, sick]}
    found = heard(*((trainer(), event) for event in told))
    received = found["chaos_network_bytes_total", (("link", "eth0"), ("node", "node0"), ("way", "received"))]
    assert received == 260, "a new counter is no traffic"
    here = {gpu: (("gpu", gpu), ("node", "node0")) for gpu in "01"}
    assert found["chaos_gpu_busy_ratio", here["0"]] == 0.4 and found["chaos_gpu_memory_bytes", here["0"]] == 5
    assert [found["chaos_gpu_slowed", here[gpu]] for gpu in "01"] == [0, 1]
    sick_one = [found[f"chaos_gpu_{name}", here["1"]] for name in ("ecc_uncorrected", "temperature_celsius")]
    assert sick_one == [3, 91] and found["chaos_gpu_xids", (*here["1"], ("xid", "48"))] == 2
    assert ("chaos_gpu_ecc_uncorrected", here["0"]) not in found, "it was not told"


def test_faults_are_active_until_they_are_healed_and_nodes_come_and_go() -> None:
    planned = plan(faults=[{"id": "a", "fault": "hang"}, {"id": "b", "fault": "preemption"}])
    begun = [harness("fault.injected", fault="a", kind="hang"), harness("fault.injected", fault="b", kind="preemption")]
    came = [harness("node.allocated", node=f"node{n}", incarnation=1, gpus=4) for n in (0, 1)]
    gone = harness("node.released", node="node1", incarnation=1)
    found = heard(planned, *begun, harness("fault.healed", fault="a"), *came, gone)
    assert [found["chaos_faults_active", (("fault", fault),)] for fault in ("hang", "preemption")] == [0, 1]
    assert found["chaos_faults_injected_total", (("fault", "hang"),)] == found["chaos_preemptions_total", ()] == 1
    assert found["chaos_nodes", ()] == 1 and found["chaos_gpus", ()] == 4
    found = heard(plan(), *came, harness("node.allocated", node="node1", incarnation=2, gpus=4))
    assert found["chaos_node_replacements_total", ()] == 1


def test_progress_is_a_step_that_was_not_done_before() -> None:
    monitor = Monitor()
    at = []
    for number in (10, 5, 10, 11):
        monitor.status(status(number))
        at.append(served(monitor)["chaos_job_last_progress_timestamp_seconds", ()])
        time.sleep(0.01)
    assert at[0] == at[1] == at[2] < at[3]


def test_an_unknown_phase_is_another_and_the_budget_is_that_of_the_plan() -> None:
    found = heard(now=status(phase="x" * 1000))
    assert found["chaos_job_phase", (("phase", "other"),)] == 1
    assert sum(value for (name, _), value in found.items() if name == "chaos_job_phase") == 1
    found = heard(plan(expect={"wasted_gpu_hours": {"max_percent_by_faults": 25}}))
    assert found["chaos_waste_budget_ratio", (("scope", "faults"),)] == 0.25
    assert ("chaos_waste_budget_ratio", (("scope", "all"),)) not in found
    record = checked_lines.event(
        checked_lines.parse(b'{"event":"step","step":3,"mono_ns":5,"loss":NaN,"extra":[1]}'), "trainer"
    )
    assert heard((trainer(), record))["chaos_steps_total", ()] == 1


def test_each_job_begins_anew_and_several_observers_hear_the_same() -> None:
    both = [Monitor(), Monitor()]
    monitor = Together(*both, SILENT_CAMPAIGN)
    monitor.stage(Stage("fault-free run", 1))
    monitor.new_events([(trainer(), step(n, n)) for n in (1, 2, 3)])
    monitor.status(status(3))
    assert [served(each)["chaos_steps_total", ()] for each in both] == [3, 3]
    monitor.stage_ended(Stage("fault-free run", 1), "completed")
    assert served(both[0])["chaos_job_up", ()] == 0
    monitor.stage(Stage("run with faults", 1))
    monitor.new_events([(trainer(), step(1, 1))])
    monitor.status(status(1))
    assert [served(each)["chaos_steps_total", ()] for each in both] == [1, 1]


def test_ranks_beyond_the_limit_share_their_series_and_a_metric_has_a_limited_number_of_them() -> None:
    many = [(trainer(rank), step(n, n, sync_ns=S)) for n in (1, 2) for rank in range(RANKS_SHOWN + 50)]
    found = heard(*many)
    assert found["chaos_exporter_ranks_folded", ()] == 50
    assert found["chaos_step_duration_seconds_count", (("rank", "other"),)] == 50
    assert found["chaos_gradient_sync_seconds_total", (("rank", "other"),)] == 100
    assert len({labels for name, labels in found if name == "chaos_step_duration_seconds_count"}) == RANKS_SHOWN + 1
    board = Board()
    for number in range(SERIES_MAX + 7):
        board.add("chaos_faults_injected_total", 1, f"kind-{number}")
    assert len(board.values["chaos_faults_injected_total"]) == SERIES_MAX
    assert board.value("chaos_exporter_series_refused_total", "chaos_faults_injected_total") == 7


ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(min_value=0, max_value=10**9), st.floats(), st.text(max_size=5),
    st.sampled_from(["nan", "inf", "-inf", "x" * 3000, '"\n\\', 10**400, [], {}, [[0, 10**30]]]),
)  # fmt: skip
NAMES = st.sampled_from([event.name for event in EVENTS] + ["", "checkpoint.", "made-up"])
FIELDS = st.sampled_from(["step", "mono_ns", "loss", "grad_norm", "sync_ns", "count", "samples", "kind", "duration_ns", "fault", "node", "gpus", "incarnation", "plan", "rehearsal"])  # fmt: skip
WHO = {name: ANYTHING for name in ("rank", "node", "incarnation", "pid")}
WRITERS = st.fixed_dictionaries({"role": st.sampled_from(["trainer", "agent", "harness", "another", None]), **WHO})
TOLD = st.builds(lambda name, fields: fields | {"event": name}, NAMES, st.dictionaries(FIELDS, ANYTHING, max_size=6))


@given(st.lists(st.tuples(WRITERS, TOLD), max_size=30))
def test_nothing_that_is_told_breaks_the_page(told: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    """Even what the reader of logs would refuse."""
    found = heard(*told)
    assert len(found) < 30 * 40 + 200
    totals = {name: value for (name, _), value in found.items() if name.endswith(("_total", "_count", "_bucket"))}
    assert all(math.isfinite(value) and value >= 0 for value in totals.values()), totals


def test_events_that_come_too_fast_are_left_out_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.monitoring.monitor.WAITING_MAX", 10)
    monitor = Monitor()
    for number in range(10):
        monitor.new_events([(trainer(), step(number, number))] * 5)
    monitor.status(status())
    found = served(monitor)
    assert found["chaos_exporter_events_dropped_total", ()] > 0
    kept = found["chaos_harness_events_total", (("role", "trainer"),)]
    assert kept + found["chaos_exporter_events_dropped_total", ()] == 50


def test_the_loop_never_waits_for_a_scrape() -> None:
    """While somebody holds the page, the loop hands over and goes on."""
    monitor = Monitor()
    with monitor._lock:
        done = threading.Event()

        def loop() -> None:
            for number in range(100):
                monitor.new_events([(trainer(), step(number, number))])
                monitor.status(status(number))
            monitor.left_behind("x")
            monitor.stage_ended(Stage("run", 1), "completed")
            monitor.stage(Stage("run", 1))
            done.set()

        threading.Thread(target=loop, daemon=True).start()
        assert done.wait()


# Over HTTP


def test_without_an_address_it_is_this_host_alone_and_another_place_is_refused() -> None:
    assert place(":9464") == ("127.0.0.1", 9464) and place("0.0.0.0:1") == ("0.0.0.0", 1)
    assert place("[::1]:9") == ("::1", 9) and place("localhost:0") == ("localhost", 0)
    for where in ("9464", "", ":", ":x", ":70000", "example.org:1", "[::1:9", "::1", "1.2.3.4.5:1"):
        with pytest.raises(UsageError, match="--metrics"):
            place(where)


def got(address: str) -> str:
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(address) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        return str(answer.read().decode())


def test_it_is_served_over_http() -> None:
    with serving(":0", books=lambda run, fault_free: None) as (monitor, address):
        monitor.new_events([(trainer(), step(n, n)) for n in (1, 2)])
        monitor.status(status(2))
        text = got(address)
        assert "chaos_steps_total 2.0" in text and "chaos_harness_process_cpu_seconds_total" in text
        with pytest.raises(urllib.error.HTTPError, match="404"):
            got(address.replace("/metrics", "/plan.json"))
        taken = address.split(":")[2].split("/")[0]
        with pytest.raises(CannotRunError, match="the metrics cannot be served on"), serving(f":{taken}"):
            pass
    with pytest.raises(urllib.error.URLError):
        got(address)


def connected(address: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(address.split(":")[2].split("/")[0])), 5)


def asked_of(address: str, host: str) -> int:
    """The status that a request with this Host has for an answer; an empty one: without any Host."""
    named = f"Host: {host}\r\n" if host else ""
    with connected(address) as connection:
        connection.sendall(f"GET /metrics HTTP/1.0\r\n{named}\r\n".encode())
        return int(connection.recv(100).split()[1])


def test_a_slow_request_ends_though_it_never_stops_sending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "ENDS_WITHIN_S", 1.0)
    with serving(":0", books=lambda run, fault_free: None) as (_, address), connected(address) as slow:
        slow.sendall(b"GET /metrics HTTP/1.1\r\nX-Word: ")
        until = time.monotonic() + 6
        with pytest.raises(OSError):
            while time.monotonic() < until:
                slow.sendall(b"a")
                time.sleep(0.1)


def test_connections_that_ask_slowly_or_nothing_keep_nobody_out() -> None:
    with serving(":0", books=lambda run, fault_free: None) as (_, address), contextlib.ExitStack() as held:
        for _ in range(20):
            held.enter_context(connected(address))
        assert "chaos_job_up" in got(address)
        for _ in range(3 * metrics_server.CONNECTIONS_MAX):
            slow = held.enter_context(connected(address))
            with contextlib.suppress(OSError):
                slow.sendall(b"GET /metrics HTTP/1.1\r\nX-Word: ")
        handlers = [each for each in threading.enumerate() if "process_request_thread" in each.name]
        assert len(handlers) <= metrics_server.CONNECTIONS_MAX
        assert "chaos_job_up" in got(address)


OWN_NAMES = [
    socket.gethostname(),
    socket.getfqdn(),
    *["127.0.0.1:9464", "10.1.2.3:80", "[::1]:9464", "::1", "LOCALHOST:1"],
]
PRIVATE = [
    "metrics:9464",
    "chaos.training.svc:9464",
    "chaos.training.svc.cluster.local",
    "host.docker.internal:9464",
    "",
]
OTHERS = ["example.org", "example.org:9464", "127.0.0.1.example.org", "a.localhost.example.org"]


def test_scrapes_by_address_and_private_name_are_answered_and_by_somebody_elses_only_if_it_is_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A page of another site may have its own name lead to this host, and read what it likes (DNS rebinding)."""
    with serving(":0", books=lambda run, fault_free: None) as (_, address):
        for host in OWN_NAMES + PRIVATE + OTHERS:
            assert asked_of(address, host) == (421 if host in OTHERS else 200), host
    allowed = ", ".join(host.partition(":")[0].upper() for host in OTHERS)
    monkeypatch.setenv("CHAOS_METRICS_HOSTS", f"other.example.net, {allowed}")
    with serving(":0", books=lambda run, fault_free: None) as (_, address):
        assert [asked_of(address, host) for host in OTHERS] == [200] * len(OTHERS)


# The ledger


def log_of(run_dir: pathlib.Path, name: str, *told: dict[str, Any], **header: Any) -> None:
    folder = run_dir / "events"
    folder.mkdir(parents=True, exist_ok=True)
    first = {"schema": 1, "writer": name, "host": "h", "clock": "c"} | header
    lines = [{"wall_ns": 10**18 + each["mono_ns"]} | each for each in (first, *told)]
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_ledger_so_far_is_the_judges_and_a_hang_counts(tmp_path: pathlib.Path) -> None:
    now_ns = time.monotonic_ns()
    begin_ns = now_ns - 100 * S
    work = {"nodes": 1, "ranks_per_node": 1, "steps": 100}
    at = [begin_ns + second * S for second in range(11)]
    log_of(
        tmp_path, "harness",
        {"event": "plan", "mono_ns": at[0], "plan": {"workload": work}},
        {"event": "node.allocated", "mono_ns": at[0], "node": "node0", "incarnation": 1, "gpus": 1},
        role="harness", mono_ns=at[0],
    )  # fmt: skip
    steps = [{"event": "step", "step": n, "mono_ns": at[n], "begin_ns": at[n - 1]} for n in range(1, 11)]
    log_of(tmp_path, "trainer-node0.1-0-aa", *steps, role="trainer", node="node0", incarnation=1, rank=0, local_rank=0, world_size=1, pid=5, mono_ns=at[0])  # fmt: skip
    told = ledger_so_far.ask(tmp_path)
    assert told is not None
    assert set(told["accounts"]) == set(ACCOUNTS)
    assert sum(told["accounts"].values()) == pytest.approx(told["allocated"])
    assert told["accounts"]["productive"] == pytest.approx(10)
    assert 100 < told["allocated"] < 200, "nothing was written for 90 s, and the GPU was allocated"
    assert told["goodput"] == pytest.approx(10 / told["allocated"])
    board = Board()
    show_ledger(board, told)
    assert board.value("chaos_ledger_gpu_seconds", "productive") == pytest.approx(10)
    with (tmp_path / "events" / "harness.jsonl").open("a") as log:
        over = {"event": "run.finished", "outcome": "done", "mono_ns": at[10] + 30 * S, "wall_ns": 2 * 10**18}
        log.write(json.dumps(over) + "\n")
    done = ledger_so_far.ask(tmp_path)
    assert done is not None and done["allocated"] == pytest.approx(40), "the job is over: its GPU time runs on no more"
    assert board.value("chaos_waste_cost_dollars") is None


@pytest.mark.parametrize(("cpu_s", "pause_s"), [(None, LEDGER_FAILED_S), (0.1, LEDGER_EVERY_S), (3.0, 60.0)])
@pytest.mark.parametrize("of_the_stage", [True, False])  # a fault-free run: the job itself tells where its log is
def test_the_ledger_takes_a_small_part_of_a_core_and_tells_that_it_cannot_be_worked_out(
    cpu_s: float | None, pause_s: float, of_the_stage: bool, tmp_path: pathlib.Path
) -> None:
    told = {"accounts": {"productive": 1.0}, "wasted_all": 0.0, "wasted_faults": 0.0, "cpu_s": cpu_s}
    monitor, asked = Monitor(), list[pathlib.Path]()
    monitor.stage(Stage("run", 1, folder=tmp_path) if of_the_stage else Stage("fault-free run", 1))
    monitor.status(status() if of_the_stage else dataclasses.replace(status(), run_dir=tmp_path))
    monitor.count()
    assert monitor._settle(lambda run, fault_free: (asked.append(run), told if cpu_s else None)[1]) == pause_s
    found = served(monitor)
    assert asked == [tmp_path] and ledger_so_far.ask(tmp_path) is None
    ledger = {name: value for name, value in found.items() if name[0].startswith("chaos_ledger")}
    if cpu_s:
        assert ledger["chaos_ledger_gpu_seconds", (("account", "productive"),)] == 1
    else:
        assert found["chaos_exporter_ledger_failures_total", ()] == 1 and not ledger
