"""With `mode: final`, no loss or gradient norm is far off the fault-free run's for long, unless a fault moves it.

Each median of ten steps is compared with the fault-free run's median of the same steps. A loss may exceed the
fault-free run's by 30 %, or by `max_final_gap`. A gradient norm may be twice or half the fault-free run's, and may
differ more if the number of ranks changed. A difference of up to 1 % of the fault-free run's range of values is always
allowed. For less than 100 steps, a difference may also be up to five times the fault-free run's scatter within ten
steps. Loss and gradient norm may be ahead of the fault-free run's, or lag behind, by 20 steps. If each rank logs its
own loss, the mean loss of all ranks is compared. A deviating loss of a single rank can make the run inconclusive.

A fault that changes samples, gradients or weights may move the loss or gradient norm while it acts, and until 30 steps
after its end. The run is inconclusive if the loss or gradient norm stays off for longer, or if anything else may be the
cause: a trainer that is not deterministic, another number of ranks, other samples, or chance. Without `mode: final`,
`loss_continuity` compares each step's loss.
"""

from harness.judge.facts.excursions import excursions
from harness.judge.guarantee import RUN, Analysis, Breaches, Guarantee, breach
from harness.judge.verdict import Ground, Kind


def breaches(evidence: Analysis) -> Breaches:
    for each in excursions(evidence):
        if not each.fault:
            course = Ground(Kind.COURSE, steps=(each.first, each.last), of=each)
            yield breach(each.words, each, grounds=[Ground(Kind.LOSSES), course])


def nothing(evidence: Analysis) -> str:
    if evidence.continuity is None or evidence.continuity.mode != "final":
        return "the scenario sets no `mode: final`"
    return next((f"{each.words}: fault {each.fault} moved it" for each in excursions(evidence)), evidence.changed())


GUARANTEE = Guarantee(
    breaches,
    rests_on=("loss",),
    explained_by=("restart.whole_state", "saves.one_writer", "result.samples_in_order"),
    holds_for=(RUN,),
    nothing=nothing,
)
