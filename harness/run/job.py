"""Runs one job from start to end. `RunningJob.run` shows the order in which nodes, trainer and faults start and end.

A job is a training run on a backend, with one event log. A job's rehearsals are the sets of faults that act on it. All
events of a job go into its log, which other modules judge.
"""

import json
import pathlib
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from harness.backends.contract import Backend, Cluster, Launch, Node
from harness.errors import BackendError, ChaosError, FaultError
from harness.faults.contract import CheckpointPlace
from harness.log.event_log import Tail
from harness.log.journal import Journal
from harness.node.emitter import EXIT_LEFT, Emitter, clock_id
from harness.plan.rdma_paths import refuse_bypassed
from harness.plan.run_plan import Plan
from harness.run import drill, provenance, second_restart
from harness.run.gpu_hours import GpuCap
from harness.run.host_load import HostLoad
from harness.run.injection import LiveJob
from harness.run.last_words import first_error
from harness.run.live_progress import LiveProgress
from harness.run.observers import SILENT, Observer, Status
from harness.run.rehearsal import Rehearsal, all_faults
from harness.run.stop import StopRequest
from harness.run.store_watch import Publications, hidden
from harness.run.trainer_output import Readings
from harness.run.trigger_holds import TriggerHolds
from harness.run.undo import SECRETS, close, start_reverter
from harness.spec import secrets
from harness.trainers.shared.outcome_inputs import environment_facts, write_data

TICK_S = 0.004
REST_FACTOR = 10  # times as long as a look at the event log took, the loop rests: it takes a tenth of a core at most
REST_S_MAX = 0.25
DESERTED_S = 2.0  # without any node before the job has failed


class Direction(Protocol):
    """Directs a running job, as a game day does. Methods must not block. `done` is the reason to end the job, or ""."""

    done: str

    def begin(self, job: LiveJob, now_ns: int) -> None: ...

    def tick(self, job: LiveJob, now_ns: int) -> None: ...

    def end(self, job: LiveJob) -> None: ...


@dataclass(frozen=True)
class Outcome:
    outcome: str  # completed · failed · aborted · interrupted · broken (by its backend) · capped (its GPU time is used)
    # · saved (as far as it was to go) · done (its director needs it no more)
    reason: str

    @property
    def told(self) -> str:
        return "interrupted" if self.outcome in ("broken", "capped", "saved", "done") else self.outcome


def execute(
    plan: Plan,
    run_dir: pathlib.Path,
    backend: Backend,
    observer: Observer = SILENT,
    stop: StopRequest | None = None,
    until_saved: int | None = None,
    before: Plan | None = None,
) -> Outcome:
    """Runs one job with one rehearsal (set of faults), which lasts as long as the job. See `run_job` for parameters."""
    rehearsal = Rehearsal(plan, to_the_end=True)
    return run_job(plan, [rehearsal], run_dir, backend, observer, stop, until_saved=until_saved, before=before)


def run_job(
    plan: Plan,
    rehearsals: Sequence[Rehearsal],
    run_dir: pathlib.Path,
    backend: Backend,
    observer: Observer = SILENT,
    stop: StopRequest | None = None,
    director: Direction | None = None,
    until_saved: int | None = None,
    before: Plan | None = None,
) -> Outcome:
    """Runs the workload of `plan` with these rehearsals (sets of faults) in `run_dir`.

    `run_dir` must be empty, apart from a state to resume from. A `director` directs the running job, and is called
    before the rehearsals in each round of the loop. The job ends at the checkpoint of step `until_saved`, or soon after
    if the trainer cannot be paused. If this run is fault-free, `before` is the plan of the run with faults that will be
    compared with it. Raises `ChaosError` if the backend gives no nodes. A user's request to stop ends the job as
    `interrupted`, with all faults undone.
    """
    plan = all_faults(plan, rehearsals)
    references = secrets.references(plan.launch().env)
    for name in ("events", "logs"):
        (run_dir / name).mkdir(parents=True, exist_ok=True)
    (run_dir / "plan.json").write_text(json.dumps(plan.to_json(), indent=2) + "\n")
    emit = Emitter(run_dir / "events" / "harness.jsonl", {"role": "harness", "clock": clock_id()})
    emit("plan", plan=plan.to_json())
    emit("environment", **environment_facts(), **provenance.facts(plan, backend))
    journal = Journal(run_dir)
    # The first record is undone last, when no process can print a secret any more; by the reverter after a kill.
    journal.record(SECRETS, {"references": references})
    reverter = start_reverter(run_dir)
    try:
        job = RunningJob(plan, rehearsals, backend, emit, journal, director, until_saved)
        outcome = job.run(observer, stop or StopRequest(), before)
    except ChaosError as error:
        emit("run.finished", outcome="failed", reason=str(error))
        raise
    finally:
        _clean_up(journal, reverter, emit, observer)
        emit.close()
    return outcome


def _clean_up(journal: Journal, reverter: subprocess.Popen[bytes], emit: Emitter, observer: Observer) -> None:
    try:
        close(journal)
    except (FaultError, OSError) as error:
        emit("cleanup.failed", error=str(error))
        observer.left_behind(str(error))
        reverter.returncode = 0  # not waited for: it outlives this process, and then tries again
        return
    reverter.kill()  # the journal is closed: nothing is left for it to do
    reverter.wait()


class RunningJob:
    def __init__(
        self,
        plan: Plan,
        rehearsals: Sequence[Rehearsal],
        backend: Backend,
        emit: Emitter,
        journal: Journal,
        director: Direction | None = None,
        until_saved: int | None = None,
    ) -> None:
        self.plan, self.rehearsals, self.backend, self.emit = plan, rehearsals, backend, emit
        self._logged_ns = time.monotonic_ns()  # the log begins: what is shown counts from here, as the report does
        self.director, self.until_saved = director, until_saved
        self.run_dir = journal.run_dir
        self.progress = LiveProgress()
        self.tail = Tail(self.run_dir / "events")
        reader = plan.workload.trainer.reader()
        size = plan.workload.world_size, plan.workload.ranks_per_node
        self.readings = reader and Readings(reader, self.run_dir, self._first_node, emit, *size)
        self.ended: dict[tuple[str, int], int] = {}  # (node, incarnation) → exit code of its command
        self._deserted_s = 0.0  # since when no node is left
        self._started_again: set[tuple[str, int]] = set()
        gpu_hours = plan.limits.gpu_hours
        self._caps = [] if gpu_hours is None else [GpuCap(gpu_hours, "limits: gpu_hours")]
        found_again = {"run_id": plan.run_id, "environment": backend.whereabouts()}
        journal.record(f"backends.{plan.backend}", found_again)
        write_data(plan.workload, self.run_dir)
        holds = TriggerHolds(self.run_dir, plan.faults, until_saved)
        self.cluster: Cluster = backend.open(self._workload(holds), self.run_dir, plan.run_id)
        self.live = LiveJob(self.cluster, self.progress, emit, journal, holds)
        self._host_load = HostLoad(self.cluster)
        saved = CheckpointPlace(plan.workload.checkpoint.folder, plan.workload.checkpoint.layout)
        folders = drill.written_folders(plan.launch())
        self._publications = Publications(journal, saved, emit, plan.run_id, hidden(plan, backend), folders)

    def _workload(self, holds: TriggerHolds) -> Launch:
        workload = self.plan.launch()
        faults = [planned.action for planned in self.plan.faults]
        env = secrets.resolve(workload.env) | holds.environment
        for fault in faults:
            env |= fault.environment(self.run_dir)
        mounts = sorted({folder for fault in faults for folder in fault.mounts()})
        return replace(workload, env=env, mounts=tuple(mounts))

    def run(self, observer: Observer, stop: StopRequest, before: Plan | None = None) -> Outcome:
        outcome = Outcome("failed", "the run did not start")
        self.start_ns = self._booked_ns = time.monotonic_ns()
        self._caps += [stop.cap] if stop.cap else []
        try:
            for node in self.cluster.nodes:
                self.emit("node.allocated", node=node.name, incarnation=node.incarnation, gpus=self._gpus)
            self._place_domains()
            refuse_bypassed(before or self.plan, self.cluster)
            if self.director:
                self.director.begin(self.live, self.start_ns)
            for rehearsal in self.rehearsals:
                rehearsal.begin(self.live, self.start_ns)
            self.cluster.start()
            self._publications.begin()
            with stop.attended():
                outcome = self._follow(observer, stop)
        except KeyboardInterrupt:
            outcome = Outcome("interrupted", "stopped by the user")
        finally:
            with stop.attended():
                self._end(outcome)
                self._publications.end()
        for header, event in self.tail.rest():  # its last words may have come after the last look
            self.progress.absorb(header, event, time.monotonic_ns())
        drills = outcome.outcome == "completed" and drill.is_wanted(self.plan, self.progress.committed_step)
        self.emit("run.finished", outcome=outcome.told, reason=outcome.reason, drills=drills)
        if drills:
            with stop.attended():
                self._drill(observer, stop)
        return outcome

    def _place_domains(self) -> None:
        if not any(fault.domain for fault in self.plan.faults):
            return
        labels = self.cluster.node_labels(self.plan.workload.node_labels_from)
        self.plan = self.plan.placed(labels)
        for rehearsal in self.rehearsals:
            rehearsal.place(labels)
        self.emit("plan", plan=self.plan.to_json())

    def _follow(self, observer: Observer, stop: StopRequest) -> Outcome:
        """Follows the job to its end. An error of the backend ends the run, but the log so far is judged."""
        try:
            return self._follow_on(observer, stop)
        except BackendError as error:
            return Outcome("broken", f"the backend failed: {error}")

    def _follow_on(self, observer: Observer, stop: StopRequest) -> Outcome:
        while True:
            now_ns = time.monotonic_ns()
            if self.readings:
                self.readings.poll(now_ns)
            found = self.tail.poll()
            looked_s = (time.monotonic_ns() - now_ns) / 1e9
            if found:
                for header, event in found:
                    self.progress.absorb(header, event, now_ns)
                observer.new_events(found)
            self._note_exits()
            self._note_changes()
            for others in self._host_load.taken():
                self.emit("host.load", others=round(others, 3))
            now_ns = time.monotonic_ns()
            if self.director:
                self.director.tick(self.live, now_ns)
            for rehearsal in self.rehearsals:
                rehearsal.tick(self.live, now_ns)
            observer.status(self._status(now_ns))
            if stop.asked:
                return Outcome("interrupted", stop.reason)
            ended = self._saved() or self._finished() or self._done() or self._capped(now_ns) or self._aborted(now_ns)
            if ended:
                return ended
            time.sleep(max(TICK_S, min(REST_FACTOR * looked_s, REST_S_MAX)))

    def _end(self, outcome: Outcome) -> None:
        try:
            with self.cluster:
                self._host_load.close()
                if self.director:
                    self.director.end(self.live)
                for rehearsal in self.rehearsals:
                    rehearsal.cancel()
                for rehearsal in reversed(self.rehearsals):
                    rehearsal.end(self.live)
                if self.readings:
                    self.readings.close()
                self._note_exits()
                self._note_changes()
                for node in self.cluster.nodes:
                    if node.alive:
                        why = outcome.reason if outcome.outcome == "done" else outcome.told
                        self.emit("node.released", node=node.name, incarnation=node.incarnation, reason=why)
        except BackendError as error:
            self.emit("cleanup.failed", error=str(error))

    @property
    def _gpus(self) -> int:
        return self.plan.workload.ranks_per_node

    def _drill(self, observer: Observer, stop: StopRequest) -> None:
        told = (self.plan, self.backend, self.emit, self.live.journal, stop, execute, self.progress, self.start_ns)
        again = drill.Again(*told, observer)
        if not stop.asked:
            drill.rehearse_restore(again)
        if not stop.asked:
            second_restart.make(again, self._publications.indexes)

    def _first_node(self) -> tuple[str, int]:
        """Returns the first living node, because most trainers write their log on the first node."""
        node = next((node for node in self.cluster.nodes if node.alive), self.cluster.nodes[0])
        return node.name, node.incarnation

    def _note_exits(self) -> None:
        for end in self.cluster.exits():
            self.ended[end.node, end.incarnation] = end.code
            self.emit("process.exit", node=end.node, incarnation=end.incarnation, code=end.code)

    def _note_changes(self) -> None:
        for change in self.cluster.changes():
            if change.allocated:
                self.emit("node.allocated", node=change.node, incarnation=change.incarnation, gpus=self._gpus)
            else:
                self.emit("node.released", node=change.node, incarnation=change.incarnation, reason=change.reason)
        for clock in self.cluster.clocks():
            self.emit("clock", host=clock.host, offset_ns=clock.offset_ns, uncertainty_ns=clock.uncertainty_ns)

    def _saved(self) -> Outcome | None:
        if self.until_saved is None or self.progress.committed_step < self.until_saved:
            return None
        return Outcome("saved", f"step {self.progress.committed_step} is saved")

    def _done(self) -> Outcome | None:
        return Outcome("done", self.director.done) if self.director and self.director.done else None

    def _capped(self, now_ns: int) -> Outcome | None:
        gpus = self._gpus * sum(node.alive for node in self.cluster.nodes)
        for cap in self._caps:
            cap.book(gpus, now_ns - self._booked_ns)
        self._booked_ns = now_ns
        return next((Outcome("capped", cap.reason) for cap in self._caps if cap.reached), None)

    def _finished(self) -> Outcome | None:
        if any(rehearsal.busy for rehearsal in self.rehearsals) or self.cluster.waiting:
            return None
        living = [node for node in self.cluster.nodes if node.alive]
        codes = [self.ended.get((node.name, node.incarnation)) for node in living]
        if any(code is None for code in codes):
            self._start_again(living, codes)
            return None
        now_s = time.monotonic()
        self._deserted_s = 0.0 if living else self._deserted_s or now_s
        if not living:  # a backend that broke, and lost sight of all nodes over it, says so within a moment
            over = now_s - self._deserted_s > DESERTED_S
            return Outcome("failed", "no node is left, and no replacement is planned") if over else None
        bad = [(node, code) for node, code in zip(living, codes, strict=True) if code not in (0, EXIT_LEFT)]
        if not bad and codes.count(EXIT_LEFT) == 0:
            return Outcome("completed", "every node's command ended with 0")
        if not bad and codes.count(0) >= self.plan.workload.min_nodes:
            return Outcome("completed", f"{codes.count(0)} nodes ended with 0, {codes.count(EXIT_LEFT)} had left")
        node, code = (bad or [pair for pair in zip(living, codes, strict=True) if pair[1] != 0])[0]
        failed = [each for each, _ in bad] or [node]
        logs = [self.run_dir / "logs" / f"{each.name}.{each.incarnation}.log" for each in failed]
        return Outcome("failed", f"the command on {node.name} ended with {code}: {first_error(logs)}")

    def _start_again(self, living: Sequence[Node], codes: Sequence[int | None]) -> None:
        """Restarts a node's command that ended with code 0 after a preemption notice, once the preempted nodes are
        back. Does nothing on cluster engines that restart commands themselves."""
        steps = self.plan.workload.steps
        faults = [firing.planned for firing in self.live.firings.values() if firing.planned.action.notice_s]
        noticed = {target.node_index for planned in faults for target in planned.targets}
        coded = zip(living, codes, strict=True)
        ended = [node for node, code in coded if (self._has_left(node) if code is None else code == 0)]
        back = [node for node in living if node not in ended and node.index in noticed and node.incarnation > 1]
        done = steps is not None and self.progress.complete_step >= steps
        if self.cluster.tells_changes or done or not back or len(back) + len(ended) < len(living):
            return
        if self._started_again.intersection((node.name, node.incarnation) for node in back):
            return  # it came back over this very notice, and the others have left since
        for node in ended:
            node.kill()
            why = "its workers had ended with 0 over the notice to a node that is back now"
            self.emit("node.released", node=node.name, incarnation=node.incarnation, reason=why)
            self.emit("node.allocated", node=node.name, incarnation=node.incarnation + 1, gpus=self._gpus)
            self._started_again.add((node.name, node.incarnation + 1))
            self.cluster.replace(node)

    def _has_left(self, node: Node) -> bool:
        workers = [*self.progress.workers.values()]
        mine = [each for each in workers if (each.node, each.incarnation) == (node.name, node.incarnation)]
        return bool(mine) and all(each.finished for each in mine)

    def _aborted(self, now_ns: int) -> Outcome | None:
        reason = self._why_give_up(now_ns)
        if reason is None:
            return None
        reason += self._failed_worker()
        self.emit("abort", reason=reason)
        return Outcome("aborted", reason)

    def _failed_worker(self) -> str:
        failed = self.progress.failed_worker
        names = {node.name: node.incarnation for node in self.cluster.nodes}
        if failed is None or failed.at_ns < self.progress.last_step_ns:
            return ""
        if not 0 < failed.incarnation <= names.get(failed.node, 0):  # a launcher may say anything
            return ""
        log = self.run_dir / "logs" / f"{failed.node}.{failed.incarnation}.log"
        return f"; before that a worker on {failed.node} ended with {failed.code}: {first_error([log])}"

    def _why_give_up(self, now_ns: int) -> str | None:
        limits, progress = self.plan.abort, self.progress
        if now_ns - self.start_ns > limits.wall_clock_ns:
            return f"the run took longer than {limits.wall_clock_ns / 1e9:g} s"
        if not progress.first_step_ns:
            limit_ns = limits.if_not_started_for_ns
            late = now_ns - self.start_ns > limit_ns
            return f"no first step within {limit_ns / 1e9:g} s: stuck in {progress.phase}" if late else None
        limit_ns = limits.idle_ns_max(progress.first_step_ns - self.start_ns)
        if now_ns - progress.last_step_ns <= limit_ns:
            return None
        return f"no step for {limit_ns / 1e9:.3g} s: {progress.stuck()}"

    def _status(self, now_ns: int) -> Status:
        return Status(
            run_id=self.plan.run_id,
            elapsed_s=(now_ns - self._logged_ns) / 1e9,
            phase=self.progress.phase,
            step=self.progress.complete_step,
            steps=self.plan.workload.steps,
            loss=self.progress.loss,
            rehearsals=[rehearsal.name for rehearsal in self.rehearsals if rehearsal.going],
            faults=[fault for rehearsal in self.rehearsals for fault in rehearsal.faults()],
            run_dir=self.run_dir,
        )
