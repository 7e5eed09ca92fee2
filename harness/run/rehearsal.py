"""Runs one scenario's faults on a running job: injects each fault when it is due, heals it, and ends the rehearsal."""

import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from harness.errors import UsageError
from harness.plan.run_plan import Plan
from harness.run.injection import Injection, LiveJob
from harness.run.observers import FaultStatus
from harness.run.trigger import Firing, obstacle

HELD_S_MAX = 1.5  # a trainer stands at its trigger no longer than that after the fault acts
SETTLED_STEPS = 10  # complete steps after the last recovery that belong to the rehearsal
THREAD_END_S = 15.0


class Before(Protocol):
    @property
    def over(self) -> bool: ...


class Rehearsal:
    """One scenario's faults on a running job. A rehearsal begins with the job, or when the rehearsal `follows` is over.
    A rehearsal ends ten steps after the job's recovery or at a time limit, but with `to_the_end` only with the job."""

    def __init__(self, plan: Plan, name: str = "", follows: Before | None = None, to_the_end: bool = False):
        self.plan, self.name = plan, name or plan.scenario.name
        self.follows, self.to_the_end = follows, to_the_end
        self.firings = {planned.id: Firing(planned, index) for index, planned in enumerate(plan.faults)}
        self.begun_ns: int | None = None
        self.outcome = ""  # settled · aborted · stopped · skipped · job_ended · never_began; empty while it is not over
        self._injections: list[Injection] = []
        self._threads: list[threading.Thread] = []
        self._recovered_step: int | None = None
        self._given_up = ("", "")  # the outcome that it comes to, and why

    @property
    def over(self) -> bool:
        return bool(self.outcome)

    @property
    def going(self) -> bool:
        return self.begun_ns is not None and not self.over

    @property
    def busy(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def place(self, labels: Sequence[str]) -> None:
        self.plan = self.plan.placed(labels)
        self.firings = {planned.id: Firing(planned, index) for index, planned in enumerate(self.plan.faults)}

    def begin(self, job: LiveJob, now_ns: int) -> None:
        if self.begun_ns is not None or self.over or (self.follows is not None and not self.follows.over):
            return
        self.begun_ns = now_ns
        for firing in self.firings.values():
            firing.begun_step = job.progress.complete_step
        job.firings.update(self.firings)
        if not self.to_the_end:  # else its plan is the job's own, the first event of the log
            job.emit("plan", plan=self.plan.to_json(), rehearsal=self.name)
        job.emit("rehearsal.started", rehearsal=self.name)
        job.holds.begin(self.plan.faults)

    def tick(self, job: LiveJob, now_ns: int) -> None:
        """Begins or ends the rehearsal, injects due faults, and logs recoveries, also after the end. Never blocks."""
        if self.begun_ns is None and self._given_up[0] and not self.over:
            self._finish(job, self._given_up[0])
        self.begin(job, now_ns)
        self._note_recoveries(job, now_ns)
        if not self.going:
            return
        self._let_trainers_go(job, now_ns)
        if not self._given_up[0]:
            self._fire_due(job, now_ns)
        self._finish_if_over(job, now_ns)

    def cancel(self, job_goes_on: bool = False) -> None:
        """Ends all waits of the rehearsal's faults. With `job_goes_on`, lost nodes and processes return at once."""
        for injection in self._injections:
            injection.cancel(job_goes_on)

    def give_up(self, outcome: str, reason: str) -> None:
        """Ends the rehearsal early (or before its begin) and undoes its faults, while the job continues."""
        if not self.over and not self._given_up[0]:
            self._given_up = (outcome, reason)
            self.cancel(job_goes_on=True)

    @property
    def waiting(self) -> list[Firing]:
        return [each for each in self.firings.values() if not each.fired and each.planned.when.following is None]

    def fire_at_once(self, job: LiveJob, now_ns: int) -> str:
        """Makes all waiting faults due now. If limits forbid all waiting faults, only returns the reason."""
        reasons = [obstacle(each, job.firings.values(), self.plan.limits, now_ns) for each in self.waiting]
        if reasons and all(reasons):
            return str(reasons[0])
        for firing in self.waiting:
            firing.at_once = True
        return ""

    def end(self, job: LiveJob) -> None:
        """Stops the threads of the rehearsal's faults at the end of the job, and heals the faults in reverse order."""
        self.cancel()
        deadline = time.monotonic() + THREAD_END_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        for injection in reversed(self._injections):
            injection.heal()
        if not self.over:
            self._finish(job, "never_began" if self.begun_ns is None else "job_ended")

    def faults(self) -> list[FaultStatus]:
        fired = [firing for firing in self.firings.values() if firing.fired]
        return [FaultStatus(firing.planned.id, firing.newest_moment) for firing in fired]

    def _let_trainers_go(self, job: LiveJob, now_ns: int) -> None:
        """Releases trainers that a fault holds after `HELD_S_MAX` seconds: a longer wait would look like a hang."""
        for firing in self.firings.values():
            injected_ns = firing.moments_ns.get("injected")
            if injected_ns is not None and not firing.let_go and now_ns - injected_ns >= HELD_S_MAX * 1e9:
                firing.let_go = True
                job.holds.release(firing.planned.id)

    def _note_recoveries(self, job: LiveJob, now_ns: int) -> None:
        """Logs a recovery from a fault once every rank has passed the furthest step that was done before the fault."""
        for firing in self.firings.values():
            injected_ns = firing.moments_ns.get("injected")
            if injected_ns is None or "recovered" in firing.moments_ns:
                continue
            if firing.planned.kills and not job.progress.reborn_since(injected_ns):
                firing.furthest_before = job.progress.furthest_step
            elif job.progress.complete_step > firing.furthest_before:
                firing.moments_ns["recovered"] = now_ns
                job.emit("fault.recovered", fault=firing.planned.id, step=job.progress.complete_step)

    def _fire_due(self, job: LiveJob, now_ns: int) -> None:
        assert self.begun_ns is not None
        for firing in self.firings.values():
            if firing.fired:
                continue
            armed_before = firing.armed_ns
            if firing.due(job.progress, self.firings, self.begun_ns, now_ns):
                self._fire_or_postpone(firing, job, now_ns)
            elif firing.armed_ns != armed_before:
                job.holds.arm(firing.planned.id)
                job.emit("fault.armed", fault=firing.planned.id)

    def _fire_or_postpone(self, firing: Firing, job: LiveJob, now_ns: int) -> None:
        reason = obstacle(firing, job.firings.values(), self.plan.limits, now_ns)
        if reason is None:
            self._fire(firing, job)
        elif not firing.held_back:
            firing.held_back = reason
            job.holds.release(firing.planned.id)  # a job that is held could not recover
            job.emit("fault.postponed", fault=firing.planned.id, reason=reason)

    def _fire(self, firing: Firing, job: LiveJob) -> None:
        firing.fired = True
        firing.furthest_before = job.progress.furthest_step
        if firing.planned.when.more_steps is not None:
            job.holds.stand(firing.planned.id)
        injection = Injection(firing, self.plan, job)
        thread = threading.Thread(target=injection.run, name=f"fault-{firing.planned.id}", daemon=True)
        self._injections.append(injection)
        self._threads.append(thread)
        thread.start()

    def _finish_if_over(self, job: LiveJob, now_ns: int) -> None:
        assert self.begun_ns is not None
        limit_ns = self.plan.abort.wall_clock_ns
        if self.to_the_end or self.busy:
            return
        if self._given_up[0]:
            self._finish(job, self._given_up[0])
        elif self._settled(job):
            self._finish(job, "settled")
        elif now_ns - self.begun_ns > limit_ns:
            self.give_up("aborted", f"the rehearsal took longer than {limit_ns / 1e9:g} s")

    def _settled(self, job: LiveJob) -> bool:
        if any(not firing.fired or firing.over_ns() is None for firing in self.firings.values()):
            return False
        if self._recovered_step is None:
            self._recovered_step = job.progress.complete_step
        return job.progress.complete_step >= self._recovered_step + SETTLED_STEPS

    def _finish(self, job: LiveJob, outcome: str) -> None:
        self.outcome = outcome
        for identity in self.firings:
            job.holds.release(identity)
        job.emit("rehearsal.finished", rehearsal=self.name, outcome=outcome, reason=self._given_up[1])


def named(plan: Plan, name: str) -> Plan:
    """Renames each fault to `name-id`, so that the faults of several plans can share one log. If `name` already ends
    with a fault's id, the fault is renamed to `name` alone."""

    def of(fault: str) -> str:
        return name if f"-{name}".endswith(f"-{fault}") else f"{name}-{fault}"

    faults = []
    for planned in plan.faults:
        followed = planned.when.following
        when = planned.when.model_copy(update={"following": of(followed)}) if followed else planned.when
        faults.append(planned.model_copy(update={"id": of(planned.id), "when": when}))
    return plan.model_copy(update={"faults": tuple(faults)})


def all_faults(plan: Plan, rehearsals: Sequence[Rehearsal]) -> Plan:
    """Returns the job's plan with all rehearsals' faults. Raises `UsageError` if rehearsals or faults share a name."""
    faults = tuple(planned for each in rehearsals for planned in each.plan.faults)
    used = {"rehearsal": [each.name for each in rehearsals], "fault": [planned.id for planned in faults]}
    for what, names in used.items():
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise UsageError(f"{what} {twice[0]!r} is used twice; names must differ within one job")
    return plan.model_copy(update={"faults": faults})
