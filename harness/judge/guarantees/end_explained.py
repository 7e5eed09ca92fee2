"""A fault explains each death.

Explained are: the death of a target of a fault that kills, if it was alive when the fault struck; the death of its
peers until they take part in a step of a new world, as a failed collective fails on all ranks; the death of workers
that ran when a replacement node came; a death during a fault over which a healthy job may have to stop (a partition, a
hang, a full store); an exit with code 75 to start again in a larger world, or after a notice that the harness or the
engine gave. A fault that only slows the job explains no death, and a notice of which only the trainer tells excuses
nothing. The cause is at most one second from the death, however inexact the clocks are. Exit code 128 + n is signal n.
A segmentation fault (SIGILL, SIGFPE) is explained only for a target of a fault that kills; so is an end that the
worker itself calls an `error`, or for one over which a job may have to stop.
"""

from typing import Any

from harness.judge.facts import tellers
from harness.judge.facts.deaths import End, describe_alike
from harness.judge.facts.job_end import spoiler
from harness.judge.guarantee import Analysis, Breaches, Guarantee, breach

NAMED_DEATHS = 3  # most kinds of deaths in one breach


def breaches(evidence: Analysis) -> Breaches:
    """Yields one breach for all deaths: the first few kinds, and the number of the other deaths."""
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
