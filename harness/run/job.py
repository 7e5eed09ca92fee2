"""One run, top to bottom: launch, wait for triggers, inject, verify, heal, collect.

Everything that happens goes into the event log; nothing is judged here.
"""

from __future__ import annotations

import json
import pathlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from harness.backends.contract import Backend, Cluster, Exit
from harness.emitter import EXIT_LEFT, Emitter, clock_id
from harness.errors import ChaosError, FaultError
from harness.log import hostile
from harness.log.events import Tail
from harness.plan.making import Plan
from harness.run.injection import Injection
from harness.run.trigger import Firing, Holds, Progress, obstacle
from harness.run.undo import Journal, start_reverter
from harness.spec import secrets as redaction
from harness.trainers.workload import environment_facts, render_workload, write_data

TICK_S = 0.004
THREAD_END_S = 15.0


@dataclass(frozen=True)
class Status:
    """What a live display may show."""

    elapsed_s: float
    phase: str
    step: int
    steps: int
    loss: float | None
    faults: str


@dataclass(frozen=True)
class Outcome:
    outcome: str  # completed · failed · aborted · interrupted
    reason: str


def execute(plan: Plan, run_dir: pathlib.Path, backend: Backend, show: Callable[[Status], None]) -> Outcome:
    """Runs the plan into `run_dir` (which must not exist yet) and leaves the event log there.

    Raises `ChaosError` when the nodes cannot be had at all. Ctrl-C ends the run as `interrupted`, healed.
    """
    references = redaction.references(render_workload(plan).env)
    for name in ("events", "logs"):
        (run_dir / name).mkdir(parents=True)
    (run_dir / "plan.json").write_text(json.dumps(plan.to_json(), indent=2) + "\n")
    emit = Emitter(run_dir / "events" / "harness.jsonl", {"role": "harness", "clock": clock_id()})
    emit("plan", plan=plan.to_json())
    emit("environment", **environment_facts())
    journal = Journal(run_dir)
    # The first record is undone last, when nobody is left to print a secret; by the reverter if the harness is killed.
    journal.record("harness.spec.secrets:undo", {"run_dir": str(run_dir), "references": references})
    reverter = start_reverter(run_dir)
    try:
        outcome = _Run(plan, run_dir, backend, emit, journal).drive(show)
    except ChaosError as error:
        outcome = Outcome("failed", str(error))
        emit("run.finished", outcome=outcome.outcome, reason=outcome.reason)
        raise
    finally:
        journal.close()
        reverter.kill()  # the journal is closed: nothing is left for it to do
        reverter.wait()
        emit.close()
    return outcome


class _Run:
    def __init__(self, plan: Plan, run_dir: pathlib.Path, backend: Backend, emit: Emitter, journal: Journal):
        self.plan, self.run_dir, self.emit, self.journal = plan, run_dir, emit, journal
        self.progress = Progress()
        self.tail = Tail(run_dir / "events")
        self.holds = Holds(run_dir, plan.faults)
        self.firings = {planned.id: Firing(planned, index) for index, planned in enumerate(plan.faults)}
        self.injections: dict[str, Injection] = {}
        self.threads: list[threading.Thread] = []
        self.ended: dict[tuple[str, int], int] = {}  # (node, incarnation) → exit code of its command
        journal.record(f"harness.backends.{plan.backend}.backend:undo", {"run_id": plan.run_id})
        write_data(plan, run_dir)
        workload = render_workload(plan)
        env = redaction.resolve(workload.env) | self.holds.environment
        for planned in plan.faults:
            env |= planned.build()[0].environment(run_dir)
        mounts = sorted({folder for planned in plan.faults for folder in planned.build()[0].mounts()})
        self.cluster: Cluster = backend.open(replace(workload, env=env, mounts=tuple(mounts)), run_dir, plan.run_id)

    def drive(self, show: Callable[[Status], None]) -> Outcome:
        with self.cluster:
            self.start_ns = time.monotonic_ns()
            outcome = Outcome("failed", "the run did not start")
            try:
                for node in self.cluster.nodes:
                    self.emit("node.allocated", node=node.name, incarnation=node.incarnation, gpus=self._gpus)
                self.cluster.start()
                outcome = self._loop(show)
            except KeyboardInterrupt:
                outcome = Outcome("interrupted", "stopped by the user")
            finally:
                self._end(outcome)
        self.emit("run.finished", outcome=outcome.outcome, reason=outcome.reason)
        return outcome

    @property
    def _gpus(self) -> int:
        return int(self.plan.workload["ranks_per_node"])

    def _loop(self, show: Callable[[Status], None]) -> Outcome:
        while True:
            now_ns = time.monotonic_ns()
            for header, event in self.tail.poll():
                self.progress.absorb(header, event, now_ns)
            self._collect_exits()
            self._collect_changes()
            self._note_recoveries(now_ns)
            self._fire_due(now_ns)
            show(self._status(now_ns))
            outcome = self._finished() or self._aborted(now_ns)
            if outcome:
                return outcome
            time.sleep(TICK_S)

    def _collect_exits(self) -> None:
        for end in self.cluster.exits():
            self._note_exit(end)

    def _collect_changes(self) -> None:
        for change in self.cluster.changes():
            if change.allocated:
                self.emit("node.allocated", node=change.node, incarnation=change.incarnation, gpus=self._gpus)
            else:
                self.emit("node.released", node=change.node, incarnation=change.incarnation, reason=change.reason)
        for clock in self.cluster.clocks():
            self.emit("clock", host=clock.host, offset_ns=clock.offset_ns, uncertainty_ns=clock.uncertainty_ns)

    def _note_exit(self, end: Exit) -> None:
        self.ended[end.node, end.incarnation] = end.code
        self.emit("process.exit", node=end.node, incarnation=end.incarnation, code=end.code)

    def _fire_due(self, now_ns: int) -> None:
        for firing in self.firings.values():
            if firing.fired:
                continue
            armed_before = firing.armed_ns
            if firing.due(self.progress, self.firings, self.start_ns, now_ns):
                self._fire_or_postpone(firing, now_ns)
            elif firing.armed_ns != armed_before:
                self.holds.arm(firing.planned.id)
                self.emit("fault.armed", fault=firing.planned.id)

    def _fire_or_postpone(self, firing: Firing, now_ns: int) -> None:
        reason = obstacle(firing, self.firings.values(), self.plan.limits, now_ns)
        if reason is None:
            self._fire(firing)
        elif not firing.postponed:
            firing.postponed = True
            self.holds.release(firing.planned.id)  # a job that is held could not recover
            self.emit("fault.postponed", fault=firing.planned.id, reason=reason)

    def _fire(self, firing: Firing) -> None:
        firing.fired = True
        firing.furthest_before = self.progress.furthest_step
        injection = Injection(firing, self.plan, self.cluster, self.progress, self.emit, self.journal, self.holds)
        self.injections[firing.planned.id] = injection
        thread = threading.Thread(target=injection.run, name=f"fault-{firing.planned.id}", daemon=True)
        self.threads.append(thread)
        thread.start()

    def _note_recoveries(self, now_ns: int) -> None:
        """Recovered: every rank has done a step beyond the furthest one, in processes born after the injection."""
        for firing in self.firings.values():
            injected_ns = firing.moments_ns.get("injected")
            if injected_ns is None or "recovered" in firing.moments_ns:
                continue
            world = [self.progress.workers.get(rank) for rank in range(self.progress.world_size)]
            reborn = all(worker is not None and worker.since_ns > injected_ns for worker in world)
            if firing.planned.kills and not reborn:
                firing.furthest_before = self.progress.furthest_step
            elif self.progress.complete_step > firing.furthest_before:
                firing.moments_ns["recovered"] = now_ns
                self.emit("fault.recovered", fault=firing.planned.id, step=self.progress.complete_step)

    def _finished(self) -> Outcome | None:
        """The job is over when every node that is still there has ended its command and no fault is at work."""
        if any(thread.is_alive() for thread in self.threads) or self.cluster.waiting:
            return None
        living = [node for node in self.cluster.nodes if node.alive]
        codes = [self.ended.get((node.name, node.incarnation)) for node in living]
        if any(code is None for code in codes):
            return None
        if not living:
            return Outcome("failed", "no node is left, and no replacement comes")
        bad = [(node, code) for node, code in zip(living, codes, strict=True) if code not in (0, EXIT_LEFT)]
        if not bad and codes.count(EXIT_LEFT) == 0:
            return Outcome("completed", "every node's command ended with 0")
        if not bad and codes.count(0) >= self.plan.workload["min_nodes"]:
            return Outcome(
                "completed", f"{codes.count(0)} nodes ended with 0, {codes.count(EXIT_LEFT)} had left the job"
            )
        node, code = (bad or [pair for pair in zip(living, codes, strict=True) if pair[1] != 0])[0]
        return Outcome(
            "failed", f"the command on {node.name} ended with {code}: {self._last_words(node.name, node.incarnation)}"
        )

    def _last_words(self, node: str, incarnation: int) -> str:
        """The last line of the log that looks like the reason."""
        try:
            text = hostile.tail(self.run_dir, f"logs/{node}.{incarnation}.log")
        except FileNotFoundError:
            return "it left no log"
        except FaultError as error:
            return str(error)
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        errors = [line for line in lines if "Error" in line or "error:" in line]
        return (errors or lines or ["its log is empty"])[-1][:300]

    def _aborted(self, now_ns: int) -> Outcome | None:
        limits = self.plan.abort
        idle_ns = now_ns - max(self.start_ns, self.progress.last_step_ns)
        reason = None
        if now_ns - self.start_ns > limits["wall_clock_ns"]:
            reason = f"the run took longer than {limits['wall_clock_ns'] / 1e9:g} s"
        elif idle_ns > limits["if_no_step_for_ns"]:
            phase, step = self.progress.phase, self.progress.complete_step
            reason = f"no step for {limits['if_no_step_for_ns'] / 1e9:g} s: stuck in {phase} after step {step}"
        if reason is None:
            return None
        self.emit("abort", reason=reason)
        return Outcome("aborted", reason)

    def _end(self, outcome: Outcome) -> None:
        """Ends the faults' threads, heals in reverse order, gives the nodes back."""
        for injection in self.injections.values():
            injection.cancel()
        deadline = time.monotonic() + THREAD_END_S
        for thread in self.threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        for injection in reversed(self.injections.values()):
            injection.heal()
        for firing in self.firings.values():
            self.holds.release(firing.planned.id)
        self._collect_exits()
        self._collect_changes()
        for node in self.cluster.nodes:
            if node.alive:
                self.emit("node.released", node=node.name, incarnation=node.incarnation, reason=outcome.outcome)

    def _status(self, now_ns: int) -> Status:
        faults = ", ".join(
            f"{firing.planned.id} {max(firing.moments_ns, key=firing.moments_ns.__getitem__, default='acting')}"
            for firing in self.firings.values()
            if firing.fired
        )
        return Status(
            elapsed_s=(now_ns - self.start_ns) / 1e9,
            phase=self.progress.phase,
            step=self.progress.complete_step,
            steps=int(self.plan.workload["steps"]),
            loss=self.progress.loss,
            faults=faults,
        )
