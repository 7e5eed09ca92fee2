"""Injects faults into a job that somebody else started. Every fault is recorded in the undo journal before its
injection, and is undone even if the harness is killed. Observations are appended to `attached.jsonl` in the run's
folder, as one JSON record per line."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import pathlib
import random
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from harness.backends.attached import ENDED, NEEDS_KILL, OPT_IN, RUNNING, AttachedJob, Seen, Undo
from harness.errors import BackendError, FaultError, UsageError
from harness.gameday.attach.job_log import JobLog
from harness.gameday.attach.strikes_file import AttachedDay, AttachedEntry
from harness.gameday.probes import Asking
from harness.log.journal import Journal
from harness.run.stop import StopRequest
from harness.run.undo import close, resolve, start_reverter
from harness.units import counted

LOG, LOGS = "attached.jsonl", "logs"
LOOK_EVERY_S = 1.0
EFFECT_S_MAX = 10.0  # seconds within which a strike must show
MATCHES_MAX = 1e15  # largest number that can be a step


def check(day: AttachedDay, job: AttachedJob) -> None:
    """Raises `UsageError` if a scheduled fault is impossible on this job, exceeds the plan's limits, or lacks the
    permission of the job's owner. The check changes nothing in the job."""
    for number, entry in enumerate(day.entries, 1):
        if entry.strike is None:
            continue
        if why := _refusal(day, job, entry.strike, entry.nodes):
            raise UsageError(f"entry {number}: {why}")
        for node in job.nodes:
            job.undo_of(entry.strike, node)


def _refusal(day: AttachedDay, job: AttachedJob, verb: str, nodes: int) -> str:
    allowed = day.nodes_max(len(job.nodes))
    if verb not in job.verbs:
        why = f" ({job.lacks[verb]})" if verb in job.lacks else ""
        return f"{job.name}: {verb} cannot be done to it{why}; allowed: {', '.join(job.verbs)}"
    if verb in NEEDS_KILL and not job.allows_kill:
        return f"{verb} ends processes: the job's owner must set {OPT_IN}=kill for it"
    if nodes > allowed:
        limit = f"{day.limits.nodes:g}% of its {counted(len(job.nodes), 'node')} is {allowed}"
        return f"too many nodes at once: {nodes}; {limit} (limits.nodes)"
    return ""


class _Over(Exception):
    """Raised to end the schedule of faults early."""

    def __init__(self, outcome: str, reason: str) -> None:
        super().__init__(reason)
        self.outcome = outcome


def run_attached(
    day: AttachedDay,
    job: AttachedJob,
    run_dir: pathlib.Path,
    seed: int,
    stop: StopRequest,
    say: Callable[[str], None] = lambda line: None,
) -> None:
    """Injects and undoes all scheduled faults, and reports each action to `say`. Raises `FaultError` if a fault cannot
    be undone."""
    run_dir.mkdir(parents=True)
    (run_dir / LOGS).mkdir()
    journal = Journal(run_dir)
    reverter = start_reverter(run_dir)
    try:
        with stop.attended():
            AttachedRun(day, job, journal, random.Random(seed), stop, say).run()
    finally:
        try:
            close(journal)
        except FaultError:
            # The reverter outlives this process and tries again; this process does not wait for it.
            reverter.returncode = 0
            raise
        reverter.kill()
        reverter.wait()


@dataclasses.dataclass
class AttachedRun:
    day: AttachedDay
    job: AttachedJob
    journal: Journal
    dice: random.Random
    stop: StopRequest
    say: Callable[[str], None]

    def __post_init__(self) -> None:
        self._begin_s = time.monotonic()
        self.path = self.journal.run_dir / LOG
        self._questions = Asking(self.day.probes)
        told = self.day.progress is not None and self.day.progress.read is not None
        self._log = JobLog(self.journal.run_dir / LOGS) if told else None
        self._gathered_s = -math.inf

    def run(self) -> None:
        self._tell("begun", job=self.job.name, nodes=list(self.job.nodes), told=self.day.progress is not None)
        try:
            for number, entry in enumerate(self.day.entries):
                if entry.rest is not None:
                    self._doing(number, f"rest for {entry.rest}")
                    self._wait(entry.rest.s)
                else:
                    self._strike(number, entry)
            outcome, reason = "completed", ""
        except _Over as over:
            outcome, reason = over.outcome, str(over)
        except (BackendError, UsageError) as error:
            outcome, reason = "broken", str(error)
        self._gather(last=True)
        self._tell("finished", outcome=outcome, reason=reason)

    def _strike(self, number: int, entry: AttachedEntry) -> None:
        assert entry.strike is not None
        progress = self.day.progress
        self._doing(number, f"looking whether the job {'goes on' if progress else 'is whole'}")
        self._healthy()
        self._ask("before", number)
        verb, job = entry.strike, self.job
        targets = sorted(self.dice.sample(list(job.nodes), entry.nodes))
        before = self._progress(targets)
        undos = {node: job.undo_of(verb, node) for node in targets}
        self._doing(number, f"{verb} of {', '.join(targets)} for {entry.lasts}")
        try:
            for node, undo in undos.items():
                self.journal.record(undo.action, undo.arguments)
                job.act(verb, node)
            seen = self._until(targets, lambda node, now: job.acted(verb, node, now))
            acted = {node: job.acted(verb, node, seen[node]) for node in targets}
            self._tell("struck", entry=number, verb=verb, acted=acted, seen=_plain(seen))
            self._hold(number, entry.lasts.s)
        finally:
            highest = self._undo(undos.values(), before, targets)
        back = self._until(targets, lambda _, now: now.state == RUNNING)
        healed = {node: job.healed(verb, back[node]) for node in targets}
        self._tell("undone", entry=number, healed=healed, seen=_plain(back))
        self._doing(number, f"undone; waiting until the job {'goes on' if progress else 'is whole'}")
        self._watch(number, highest)
        self._ask("after", number)

    def _undo(self, undos: Iterable[Undo], before: Mapping[str, float], targets: Sequence[str]) -> Mapping[str, float]:
        try:
            after = self._progress(before or targets)
        finally:
            for undo in undos:
                # A failed undo shows in the next look, and the journal tries it again at the end.
                with contextlib.suppress(BackendError):
                    resolve(undo.action)(**undo.arguments)
        # The higher number counts: the log of a taken node is gone, and its successor's begins anew.
        return {name: max(number, after.get(name, number)) for name, number in before.items()} if before else after

    def _ask(self, moment: str, number: int) -> None:
        self._questions.ask_all(moment, "")
        while self._questions.is_open(moment) or self._questions.is_open("during"):
            self._wait(0.05)
        self._hear(number)

    def _hold(self, number: int, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left_s := deadline - time.monotonic()) > 0:
            self._questions.ask_due("")
            self._wait(min(left_s, LOOK_EVERY_S))
            self._hear(number)

    def _hear(self, number: int) -> None:
        for heard in self._questions.answers():
            self._tell("probe", entry=number, **heard.told)
            if not heard.ok:
                raise _Over("probe_failed", f"probe {heard.probe} failed ({heard.moment}): {heard.detail}")

    def _healthy(self) -> None:
        looked = self.job.look()
        if any(_is_done(seen) for seen in looked.values()):  # the others may end a moment later
            looked = self._until(list(looked), lambda _, now: _is_done(now))
        if all(_is_done(seen) for seen in looked.values()):
            raise _Over("job_ended", "the job has ended with 0")
        bad = [f"{node} is {seen.state}" for node, seen in looked.items() if seen.state != RUNNING]
        if bad:
            raise _Over("not_steady", f"the job is not whole, so nothing more is done to it: {', '.join(bad)}")
        progress = self.day.progress
        if progress is None:
            return
        first, deadline = self._highest(), time.monotonic() + progress.within.s
        while (now := self._highest()) is None or first is None or now <= first:
            first = now if first is None else first
            if time.monotonic() > deadline:
                said = "no such number is in its log" if now is None else f"it stays at {now:g}"
                raise _Over("not_steady", f"no progress within {progress.within}: {said} before the strike")
            self._wait(LOOK_EVERY_S)

    def _watch(self, number: int, before: Mapping[str, float]) -> None:
        begin, progress = time.monotonic(), self.day.progress
        limit_s = progress.within.s if progress else LOOK_EVERY_S
        while True:
            seen, after = self.job.look(), self._progress(before)
            codes = {node: each.code for node, each in seen.items() if each.state == ENDED}
            over = len(codes) == len(seen) or any(codes.values())
            # The node with the least progress counts; a node without a number comes first.
            pairs = [(number, after.get(name)) for name, number in before.items()]
            came = [-math.inf if now is None else now - highest for highest, now in pairs]
            highest, now = pairs[came.index(min(came))] if pairs else (None, None)
            passed = now is not None and highest is not None and now > highest
            whole = all(each.state in (RUNNING, ENDED) for each in seen.values())
            took_s = time.monotonic() - begin
            if (passed and whole) or over or took_s > limit_s:
                break
            self._wait(LOOK_EVERY_S)
        self._tell("after", entry=number, highest=highest, now=now, codes=codes, took_s=took_s, seen=_plain(seen))

    def _until(self, targets: Sequence[str], holds: Callable[[str, Seen], bool]) -> Mapping[str, Seen]:
        deadline = time.monotonic() + EFFECT_S_MAX
        while True:
            seen = self.job.look()
            if all(holds(node, seen[node]) for node in targets) or time.monotonic() > deadline:
                return seen
            time.sleep(LOOK_EVERY_S / 5)

    def _highest(self) -> float | None:
        return max(self._numbers().values(), default=None)

    def _progress(self, names: Iterable[str]) -> dict[str, float]:
        """Returns the highest progress number (such as the step) that each node in `names` logged. If no node in
        `names` logs a progress number, returns the highest number that any node of the job logs, with an empty name as
        key."""
        numbers = self._numbers()
        own = {name: numbers[name] for name in names if name in numbers}
        return own or ({"": max(numbers.values())} if numbers else {})

    def _numbers(self) -> dict[str, float]:
        if self.day.progress is None:
            return {}
        pattern, found = re.compile(self.day.progress.log), {}
        for name, lines in self.job.log_tails().items():
            if numbers := [number for line in lines for number in _numbers(pattern, line)]:
                found[name] = max(numbers)
        return found

    def _gather(self, last: bool = False) -> None:
        if self._log and (last or time.monotonic() - self._gathered_s > LOOK_EVERY_S):
            with contextlib.suppress(BackendError, OSError):  # a node may have gone, or the disk may be full
                self._log.add(self.job.log_tails(), last)
            self._gathered_s = time.monotonic()

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._gather()
            if self.stop.asked:
                raise _Over("interrupted", self.stop.reason)
            time.sleep(min(0.1, seconds))

    def _doing(self, number: int, what: str) -> None:
        self.say(f"  {time.monotonic() - self._begin_s:6.1f} s  {number + 1}. {what}")

    def _tell(self, what: str, **more: Any) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps({"what": what, "wall_ns": time.time_ns(), **more}) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _is_done(seen: Seen) -> bool:
    return seen.state == ENDED and seen.code == 0


def _plain(seen: Mapping[str, Seen]) -> dict[str, dict[str, Any]]:
    return {node: dataclasses.asdict(each) for node, each in seen.items()}


def _numbers(pattern: re.Pattern[str], line: str) -> list[float]:
    found = []
    for match in pattern.finditer(line):
        with contextlib.suppress(TypeError, ValueError):
            found.append(float(match[1]))
    return [value for value in found if 0 <= value < MATCHES_MAX]
