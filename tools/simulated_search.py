"""Is the judge right about simulated jobs? `python -m simulated_search [SCHEDULES [SEED]]` (`make simulated-search`).

Draws schedules as `chaos fuzz` does, and simulates a job under each one. The healthy job must never be accused. The same
history with a breakage planted in it must never pass. Nothing runs, so it does thousands of histories a minute.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from judging import verdict
from simulator import Job, Line, Logs, Outage, find, simulate

from harness.backends.contract import Capability, Verb
from harness.fuzz.schedules import Base, Schedule
from harness.fuzz.strategies import Space, draw, space_of
from harness.judge.score import Scorecard
from harness.judge.verdict import Verdict
from harness.log.consequences import May
from harness.plan.run_plan import PlannedFault
from harness.spec.scenario import parse_scenario

JOB = Job(nodes=3, steps=60, every=10)
TEXT = """\
version: 1
name: simulated
title: A simulated job
workload: {nodes: 3, min_nodes: 1, steps: 60, checkpoint: {every_steps: 10}}
"""
AGAIN = ("startup", "rendezvous", "restore")  # phases of a recovery in which another node can be lost
BATCH = 50  # schedules drawn at once

Bend = Callable[[Logs], object]


def space(seed: int = 1) -> Space:
    return space_of(Base(parse_scenario(TEXT, "simulated.yaml"), seed, "local"), Capability(True, "", frozenset(Verb)))


def outages_of(schedule: Schedule, base: Base) -> list[Outage]:
    """What the simulator knows of a schedule: faults that take a process or a node, each by what its contract says."""
    found: list[Outage] = []
    step = 0
    for fault in base.plan(schedule).faults:
        kind = _kind(fault)
        again = fault.when.phase if fault.when.following and fault.when.phase in AGAIN else None
        if kind is None or (again is None and fault.when.step is not None and fault.when.step <= step):
            continue
        if again and found and found[-1].kind == "node":
            found[-1] = Outage(found[-1].after, "node", found[-1].victim, again)
            continue
        at = fault.when.step or step + 3
        found.append(Outage(max(1, at - step), kind, fault.targets[0].node_index))
        step = at
    return found


def _kind(fault: PlannedFault) -> str | None:
    action = fault.action
    if action.notice_s:
        return "notice" if action.replaced() else None
    if action.replaced() is not None:
        return "node" if action.replaced() else "shrink"
    return "rank" if action.aims_at == "rank" and May.KILL in action.consequences().may else None


def _later(change: Callable[[Line], object]) -> Bend:
    """Changes each step after the last restart."""
    return lambda logs: [change(line) for lines in logs.last_lives() for line in lines if line.get("event") == "step"]


def _restores_another(logs: Logs) -> None:
    for lines in logs.last_lives():
        find(lines, "restored")["step"] += 7


def _loses_steps(logs: Logs) -> None:
    last = JOB.steps
    logs.lose("step", step=range(last - 4, last + 1))


BREAKAGES: dict[str, Bend] = {
    "other losses": _later(lambda line: line.update(loss=line["loss"] + 1e-9)),
    "other samples": _later(lambda line: line.update(digest=f"other {line['step']}")),
    "a batch skipped": _later(lambda line: line.update(first=line["first"] + 16)),
    "another learning rate": _later(lambda line: line.update(lr=line["lr"] / 2)),
    "another step restored": _restores_another,
    "the last steps missing": _loses_steps,
}


@dataclass
class Tally:
    verdicts: Counter[Verdict] = field(default_factory=Counter)  # of healthy jobs
    caught: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    @property
    def histories(self) -> int:
        return self.verdicts.total() + self.caught.total() + len(self.wrong)


def judged(outages: Sequence[Outage], seed: int, bend: Bend = lambda logs: None) -> Scorecard:
    return verdict(simulate(JOB, outages, seed), bend)


def one(outages: Sequence[Outage], seed: int, tally: Tally) -> None:
    """Judges one healthy history, and each breakage of it."""
    healthy = judged(outages, seed)
    if healthy.verdict is Verdict.FAIL:
        tally.wrong.append(f"healthy, {list(outages)}, seed {seed}: {healthy.reasons[0]}")
    else:
        tally.verdicts[healthy.verdict] += 1
    for name, bend in BREAKAGES.items():
        if judged(outages, seed, bend).verdict is Verdict.PASS:
            tally.wrong.append(f"{name}, {list(outages)}, seed {seed}: passes")
        else:
            tally.caught[name] += 1


def run(schedules: int, seed: int, where: Space) -> Tally:
    tally = Tally()
    for number in range(0, schedules, BATCH):
        for place, schedule in enumerate(draw(where.schedules(KILLERS), min(BATCH, schedules - number), seed + number)):
            if outages := outages_of(schedule, where.base):
                one(outages, seed + number + place, tally)
    return tally


KILLERS = ("rank_kill", "node_loss", "preemption", "agent_loss", "checkpoint_torn_write", "oom")


def main() -> int:
    parser = argparse.ArgumentParser(prog="simulated_search", description=__doc__)
    parser.add_argument("schedules", type=int, nargs="?", default=1000)
    parser.add_argument("seed", type=int, nargs="?", default=1)
    given = parser.parse_args()
    where, begin = space(given.seed), time.process_time()
    tally = run(given.schedules, given.seed, where)
    seconds = time.process_time() - begin
    healthy = ", ".join(f"{count} {verdict}" for verdict, count in tally.verdicts.items())
    print(f"{tally.histories} histories in {seconds:.0f} s of CPU; healthy: {healthy}; breakages: {dict(tally.caught)}")
    for line in tally.wrong:
        print(f"wrong: {line}")
    return int(bool(tally.wrong))


if __name__ == "__main__":
    sys.exit(main())
