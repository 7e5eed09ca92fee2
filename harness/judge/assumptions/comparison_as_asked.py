"""Each run that the harness makes for comparison did its planned task and can be compared with the judged run.

Some fault-free runs change their number of ranks in the same way as the judged run. After the run, the harness tests
whether the last save can be restored (restore drill). The harness also restarts the job from the save before the last
one (second restart). The tolerance interval of losses is computed only from fault-free runs that finished, did not
restart, and did not begin from a save. The tolerance interval excludes runs whose seed, command or code differs from
the judged run's, or with a loss that is not a number. The harness repeats a fault-free run that cannot be used.
"""

import itertools

from harness.judge.assumption import FRESH, Analysis, Assumption, Kind, Reasons, Spoils
from harness.judge.facts.after_the_run import not_as_asked, restore_drill, second_restart
from harness.judge.facts.done_again import done_again


def _broken(evidence: Analysis) -> Reasons:
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
        Spoils(Kind.DUE, lambda evidence, _: evidence.new_work()),
    ),
    holds_for=("run",),
    order=1,
    family="drill",
)
