"""Each run that the harness makes for comparison did its planned task and can be compared with the judged run.

Some fault-free runs change their number of ranks like the judged run. After the run, the harness tests a restore of the
last save (restore drill). The harness also restarts the job from an older save (second restart).

The tolerance interval of losses is computed without fault-free runs that did not finish, restarted, or began from a
save. Runs with another seed, command or code, or with a loss that is not a number, are not used for it, either. The
harness repeats an unusable fault-free run.
"""

import itertools

from harness.judge.assumption import FRESH, Analysis, Assumption, Kind, Reasons, Spoils
from harness.judge.facts.after_the_run import not_as_asked, restore_drill, second_restart
from harness.judge.facts.done_again import done_again


def _broken(evidence: Analysis) -> Reasons:
    """Yields one text, which names the first flaw of the restore drill and the first flaw of the second restart."""
    drill, second = (not_as_asked(evidence, made) for made in (restore_drill(evidence), second_restart(evidence)))
    again = done_again(evidence)
    alone = again.told_alone() if again else ()
    found = {"restore drill": drill, "second restart": itertools.chain(second, alone)}
    if words := [f"{name}: {why}" for name, mine in found.items() if (why := next(mine, ""))]:
        yield "; ".join(words)


ASSUMPTION = Assumption(
    _broken,
    (
        Spoils(Kind.CURVES, lambda evidence, _: evidence.incomparable, FRESH, alone=True, either_way=True),
        Spoils(Kind.BAND, lambda evidence, _: evidence.resumed_elsewhere, FRESH, alone=True, either_way=True),
    ),
    holds_for=("run",),
    order=1,
    family="drill",
)
