"""A fault explains each death.

A fault that kills explains the death of its target, if the target was alive when the fault struck. Until the ranks do a
step in a new process group, a fault that kills one rank explains the deaths of all ranks, because their collectives
fail. A replacement node explains the deaths of workers that ran when the node joined. A fault that may stop a healthy
job (a partition, a hang, a full store) explains each death while the fault acts. An exit with code 75 is explained if
the job starts again with more ranks, or if the harness or engine gave a notice. A fault that only slows the job
explains no death, and neither does a notice that only the trainer reports. A death may be logged up to 1 s before its
cause. An exit code 128 + n counts as signal n. Only a fault that kills explains a segmentation fault (or SIGILL,
SIGFPE), and only in its target. An exit that a worker logs as an `error` is explained only by a fault on this worker
that kills the worker or may stop the job. A damaged checkpoint whose digests are right explains each death of a worker
that loaded it.
"""

from typing import Any

from harness.evidence.deaths import End, describe_alike
from harness.evidence.work import spoiler
from harness.judge.facts import tellers
from harness.judge.guarantee import Analysis, Breaches, Guarantee, breach

NAMED_DEATHS = 3  # most kinds of deaths in one breach


def breaches(evidence: Analysis) -> Breaches:
    run, dead = evidence.run, evidence.deaths_unexplained
    damage = spoiler(run) if dead else None
    kinds: dict[tuple[Any, ...], list[End]] = {}
    for death in dead:
        spoilt = damage is not None and death.at >= (damage.injected or 0)
        kinds.setdefault((spoilt, death.rank is None, death.code, death.error, death.met), []).append(death)
    lines = list[str]()
    for (spoilt, *_), alike in [*kinds.items()][:NAMED_DEATHS]:
        why = f"it came after `{damage.id}` had damaged a checkpoint" if spoilt and damage else "no fault explains it"
        lines.append(f"unexplained death{'s' * (len(alike) > 1)}: {describe_alike(alike, run.begin)} ({why})")
    if rest := sum(map(len, [*kinds.values()][NAMED_DEATHS:])):
        lines.append(f"{rest} more unexplained death{'s' * (rest > 1)}")
    if dead:
        yield breach("; ".join(lines), tellers.DEATHS)


GUARANTEE = Guarantee(breaches, needs_steps=False)
