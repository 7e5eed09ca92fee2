"""A fault explains each death."""

from typing import Any

from harness.judge.facts import tellers
from harness.judge.facts.deaths import End, describe_alike
from harness.judge.facts.job_end import spoiler
from harness.judge.guarantee import Analysis, Breaches, Guarantee, breach

NAMED_DEATHS = 3  # kinds of them


def breaches(evidence: Analysis) -> Breaches:
    """One, for all of them: the first few kinds, and how many deaths are of none of these."""
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
