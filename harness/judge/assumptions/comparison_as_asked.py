"""The run can be compared with its fault-free runs, and what the harness made for comparison did what it was asked.

The harness makes fault-free runs, some of which change their size. After the run, the harness makes a restore drill and
a second restart.

A fault-free run gives no band in these cases: it did not finish, it restarted, it was another job (seed, size,
arguments, code), it began from a save, or its loss is not a number in several steps. The harness then repeats it once.
"""

import itertools

from harness.judge.assumption import FRESH, Analysis, Assumption, Kind, Reasons, Spoils
from harness.judge.facts.after_the_run import not_as_asked, restore_drill, second_restart
from harness.judge.facts.done_again import done_again


def _broken(evidence: Analysis) -> Reasons:
    """Yields one sentence: the first flaw of the restore drill, and the first flaw of the second restart."""
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
