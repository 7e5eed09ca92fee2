"""Real jobs of a light trainer: several rehearsals on one job, stop requests, observers, and holds that end."""

import pathlib
import time
from typing import Any

import pytest
import small_jobs
from small_jobs import fault, told
from waiting import until

from harness.backends.local.backend import BACKEND, LocalCluster
from harness.errors import BackendError, FaultError, UsageError
from harness.evidence.logs import load_evidence
from harness.judge.score import Scorecard, judge
from harness.judge.verdict import Verdict
from harness.log.journal import is_closed
from harness.plan.run_plan import Plan
from harness.report.next_steps import next_steps
from harness.run.job import Outcome, execute, run_job
from harness.run.observers import Silent, Status
from harness.run.rehearsal import SETTLED_STEPS, Rehearsal, named
from harness.run.stop import StopRequest
from harness.run.undo import heal

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("plain")]  # real jobs
EXPECT = {"recovery_time": {"max": "10m"}}


def plan_of(*faults: dict[str, Any], steps: int = 150, name: str = "light", wall_clock_s: float = 600) -> Plan:
    expect = EXPECT if faults else {}
    return small_jobs.job(
        name, small_jobs.light(steps), *faults, steps=steps, checkpoint={"every_steps": 10**6}, expect=expect,
        wall_clock_s=wall_clock_s,
    )  # fmt: skip


def last_step(run_dir: pathlib.Path) -> int:
    return max(event.get("step", 0) for event in told(run_dir))


def judged(run_dir: pathlib.Path, rehearsal: str | None) -> Scorecard:
    return judge(load_evidence(run_dir, rehearsal), rehearsal or "job")


def episodes(card: Scorecard) -> list[tuple[str, ...]]:
    return [episode.faults for episode in card.evidence.run.episodes]


def test_two_rehearsals_one_after_the_other(tmp_path: pathlib.Path) -> None:
    kill = plan_of(fault("kill", "rank_kill", {"step": 20}), name="kill")
    again = plan_of(fault("kill", "rank_kill", {"after_ns": 200_000_000}), name="again")
    first = Rehearsal(named(kill, "kill"))
    second = Rehearsal(named(again, "again"), follows=first)
    outcome = run_job(plan_of(), [first, second], tmp_path / "run", BACKEND)
    assert outcome.outcome == "completed", outcome
    rehearsed = told(tmp_path / "run", "rehearsal.started", "rehearsal.finished")
    assert [(e["event"].split(".")[1], e["rehearsal"]) for e in rehearsed] == [
        ("started", "kill"),
        ("finished", "kill"),
        ("started", "again"),
        ("finished", "again"),
    ]
    assert [e["outcome"] for e in rehearsed[1::2]] == ["settled", "settled"]
    recovered = {e["fault"]: e["step"] for e in told(tmp_path / "run", "fault.recovered")}
    for name, struck in (("kill", "kill"), ("again", "again-kill")):
        card = judged(tmp_path / "run", name)
        assert card.verdict is Verdict.PASS, card.reasons
        assert episodes(card) == [(struck,)]
        assert card.evidence.run.reached_step >= recovered[struck] + SETTLED_STEPS
    assert episodes(judged(tmp_path / "run", None)) == [("kill",), ("again-kill",)]


LEAVES = """
import os, pathlib, signal, sys, time
from harness.node.emitter import Emitter
rank = int(os.environ["CHAOS_NODE"].removeprefix("node"))
lives = [pathlib.Path(sys.argv[1], f"again-{each}") for each in range(2)]
born = pathlib.Path(sys.argv[1], f"born-{rank}")
first = not born.exists()
born.touch(), lives[rank].touch()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
emit = Emitter.open("trainer", rank=rank, local_rank=0, world_size=2)
emit("started")
while not all(life.exists() for life in lives):
    time.sleep(0.01)  # the rendezvous
emit("rendezvous", world_size=2)
emit("restored", step=0 if first else 25, source="scratch" if first else "a file", fallback=[])
begin = time.monotonic_ns()
for step in range(1 if first else 26, 26 if first else 51):
    time.sleep(0.02)
    begin = emit("step", step=step, begin_ns=begin, loss=1.0 / step)
if first:
    lives[rank].unlink()
"""


@pytest.mark.parametrize(("notice", "outcome"), [("2s", "completed"), ("0s", "aborted")])
def test_a_job_that_leaves_over_a_notice_starts_again_with_the_replacement(
    tmp_path: pathlib.Path, notice: str, outcome: str
) -> None:
    """One that leaves with 0 though no notice was given is over, as for a scheduler."""
    evict = fault("evict", "preemption", {"step": 20}, notice=notice, replacement={"after": "1s"})
    evict["targets"][0]["node_index"] = 1
    command = ["{python}", "-S", "-c", LEAVES, "{run_dir}"]
    plan = small_jobs.job("leaves", command, evict, nodes=2, steps=50, wall_clock_s=8)
    assert run_job(plan, [Rehearsal(plan)], tmp_path / "run", BACKEND).outcome == outcome
    lives = [(each["node"], each["incarnation"]) for each in told(tmp_path / "run", "node.allocated")]
    again = [("node0", 2)] if outcome == "completed" else []
    assert lives == [("node0", 1), ("node1", 1), ("node1", 2), *again]


LINGERS = """
import os, time
from harness.node.emitter import Emitter
rank = int(os.environ["CHAOS_NODE"].removeprefix("node"))
emit = Emitter.open("trainer", rank=rank, local_rank=0, world_size=2)
emit("started"), emit("rendezvous", world_size=2), emit("restored", step=0, source="scratch", fallback=[])
emit("step", step=1, begin_ns=time.monotonic_ns(), loss=1.0)
time.sleep(0.3)  # its end is read after its beginning
Emitter.open("agent")("worker.exit", local_rank=0, rank=rank, pid=os.getpid(), code=0)
time.sleep(1)
"""


def test_a_launcher_may_wait_for_the_others_at_its_end(tmp_path: pathlib.Path) -> None:
    plan = small_jobs.job("lingers", ["{python}", "-S", "-c", LINGERS], nodes=2)
    assert run_job(plan, [], tmp_path / "run", BACKEND).outcome == "completed"
    assert [each["incarnation"] for each in told(tmp_path / "run", "node.allocated")] == [1, 1]


class Reborn(Silent):
    """Watches for the process that comes after the one that a fault has killed; a rehearsal can follow that."""

    def __init__(self, fault: str, before_step: int):
        self.fault, self.before_step, self.over = fault, before_step, False

    def status(self, status: Status) -> None:
        killed = any((fault.id, fault.moment) == (self.fault, "healed") for fault in status.faults)
        self.over |= killed and status.step < self.before_step


def test_two_rehearsals_at_once_share_an_outage(tmp_path: pathlib.Path) -> None:
    reborn: Any = Reborn("left", before_step=30)
    left = Rehearsal(plan_of(fault("left", "rank_kill", {"step": 60}), name="left"))
    right = Rehearsal(plan_of(fault("right", "rank_kill", {"step": 30}), name="right"), follows=reborn)
    outcome = run_job(plan_of(), [left, right], tmp_path / "run", BACKEND, reborn)
    assert outcome.outcome == "completed", outcome
    for name in ("left", "right", None):
        card = judged(tmp_path / "run", name)
        assert card.verdict is Verdict.PASS, card.reasons
        assert episodes(card) == [("left", "right")]


def test_a_rehearsal_that_takes_too_long_is_given_up_and_the_job_goes_on(tmp_path: pathlib.Path) -> None:
    waits = plan_of(fault("late", "rank_kill", {"after_ns": 60 * 10**9}), name="waits", wall_clock_s=0.25)
    outcome = run_job(plan_of(steps=300), [Rehearsal(waits)], tmp_path / "run", BACKEND)
    assert outcome.outcome == "completed", outcome
    (finished,) = told(tmp_path / "run", "rehearsal.finished")
    assert (finished["outcome"], finished["reason"]) == ("aborted", "the rehearsal took longer than 0.25 s")
    card = judged(tmp_path / "run", "waits")
    assert card.verdict is Verdict.INCONCLUSIVE, card.reasons  # no fault ever struck


def test_one_that_never_begins_is_told(tmp_path: pathlib.Path) -> None:
    first = Rehearsal(plan_of(fault("a", "rank_kill", {"step": 5}), name="first"), to_the_end=True)
    second = Rehearsal(plan_of(fault("b", "rank_kill", {"step": 5}), name="second"), follows=first)
    run_job(plan_of(steps=40), [first, second], tmp_path / "run", BACKEND)
    outcomes = {e["rehearsal"]: e["outcome"] for e in told(tmp_path / "run", "rehearsal.finished")}
    assert outcomes == {"first": "job_ended", "second": "never_began"}


def test_names_must_differ_within_one_job(tmp_path: pathlib.Path) -> None:
    plan = plan_of(fault("kill", "rank_kill", {"step": 20}))
    with pytest.raises(UsageError, match="rehearsal 'light' is used twice"):
        run_job(plan_of(), [Rehearsal(plan), Rehearsal(named(plan, "b"))], tmp_path / "run", BACKEND)
    with pytest.raises(UsageError, match="fault 'kill' is used twice"):
        run_job(plan_of(), [Rehearsal(plan), Rehearsal(plan, "other")], tmp_path / "run", BACKEND)
    follows = {"following": "kill", "event": "recovered"}
    first, second = named(
        plan_of(fault("kill", "rank_kill", {"step": 20}), fault("b", "rank_kill", follows)), "x"
    ).faults
    assert (first.id, second.id, second.when.following) == ("x-kill", "x-b", "x-kill"), "it still follows it"


def test_a_stop_request_ends_the_job_in_order(tmp_path: pathlib.Path) -> None:
    plan = plan_of(fault("frozen", "hang", {"step": 10}, how="freeze_node", duration="60s"), steps=100_000)
    stop = StopRequest()
    watching = Watcher(stop)
    outcome = execute(plan, tmp_path / "run", BACKEND, watching, stop)
    assert outcome == Outcome("interrupted", "the web page said so")
    names = [e["event"] for e in told(tmp_path / "run", "fault.healed", "rehearsal.finished", "run.finished")]
    assert names == ["fault.healed", "rehearsal.finished", "run.finished"]
    assert {fault.id for status in watching.seen for fault in status.faults} == {"frozen"}
    assert watching.seen[-1].steps == 100_000 and watching.seen[-1].rehearsals == ["light"]
    assert judged(tmp_path / "run", None).verdict in (Verdict.INCONCLUSIVE, Verdict.INVALID)


def test_a_trainer_is_let_go_though_the_effect_is_still_being_measured(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.faults.rank_kill import FAULT

    def slow(self: object, targets: object, context: Any) -> None:
        context.injected()
        until(lambda: last_step(tmp_path / "run") > 20, "a step after the trigger's")
        context.effect(1, 1, "things", ok=True)

    monkeypatch.setattr(FAULT, "inject", slow)
    plan = plan_of(fault("slow", "rank_kill", {"step": 20}), steps=80)
    outcome = execute(plan, tmp_path / "run", BACKEND)
    assert outcome.outcome == "completed", outcome
    injected, effect = (told(tmp_path / "run", f"fault.{what}")[0]["mono_ns"] for what in ("injected", "effect"))
    after = [e["mono_ns"] for e in told(tmp_path / "run", "step") if e["step"] > 20]
    assert injected + 1_400_000_000 < after[0] < effect


class Watcher(Silent):
    """An observer that remembers all it is told, and asks for the end when it has seen a fault act."""

    def __init__(self, stop: StopRequest | None = None) -> None:
        self.stop, self.seen, self.left = stop, list[Status](), list[str]()

    def status(self, status: Status) -> None:
        self.seen.append(status)
        if self.stop and any(fault.moment == "effect" for fault in status.faults):
            self.stop.ask("the web page said so")

    def left_behind(self, reason: str) -> None:
        self.left.append(reason)


def test_a_cleanup_that_fails_is_told_beside_the_result(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(**_: object) -> None:
        raise FaultError("the engine does not answer")

    def slow(*given: Any) -> Any:
        time.sleep(0.3)
        return opened(*given)

    opened, watcher = BACKEND.open, Watcher()
    monkeypatch.setattr(BACKEND, "open", slow)
    monkeypatch.setattr("harness.backends.local.backend.UNDO", fails)
    outcome = run_job(plan_of(steps=5), [], tmp_path / "run", BACKEND, watcher)
    assert outcome.outcome == "completed" and watcher.seen[0].elapsed_s >= 0.3, (
        "as the report, it counts from the opening on"
    )
    assert len(watcher.left) == 1 and "the engine does not answer" in watcher.left[0]
    assert "does not answer" in told(tmp_path / "run", "cleanup.failed")[0]["error"]
    assert not is_closed(tmp_path / "run"), "heal still finds it"
    card = judged(tmp_path / "run", None)
    assert card.verdict is Verdict.INCONCLUSIVE
    assert any("left something behind" in each and "does not answer" in each for each in card.reasons), card.reasons
    assert any(step.endswith(": chaos heal") for step in next_steps(card))
    monkeypatch.undo()
    monkeypatch.setenv("CHAOS_LOCAL_MODE", "plain")
    assert heal(tmp_path) == (["run"], [])


@pytest.mark.parametrize("ends", ["alone", "with its nodes"])
def test_a_backend_that_breaks_leaves_evidence_that_is_judged(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """As after the restart of an API server: every line to a pod has ended."""
    run_dir = tmp_path / "run"
    exits, close = LocalCluster.exits, LocalCluster.close

    def broken(self: LocalCluster) -> Any:
        if any(b'"step":20,' in log.read_bytes() for log in (run_dir / "events").glob("*/*.jsonl")):
            raise BackendError("the control host is lost")
        return exits(self)

    def cannot(self: LocalCluster) -> None:
        close(self)
        raise BackendError("the engine does not answer")

    monkeypatch.setattr(LocalCluster, "exits", broken)
    if ends == "with its nodes":
        monkeypatch.setattr(LocalCluster, "close", cannot)
    plan = plan_of(fault("kill", "rank_kill", {"step": 100}))
    outcome = execute(plan, run_dir, BACKEND)
    assert outcome == Outcome("broken", "the backend failed: the control host is lost")
    assert told(run_dir, "cleanup.failed")
    (finished,) = told(run_dir, "run.finished")
    assert finished["outcome"] == "interrupted" and finished["reason"] == outcome.reason
    card = judged(run_dir, None)
    assert card.verdict in (Verdict.INCONCLUSIVE, Verdict.INVALID), card.reasons
    assert any("the control host is lost" in reason for reason in card.reasons)
    assert is_closed(run_dir)
