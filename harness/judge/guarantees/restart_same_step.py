"""All ranks of a restart restore the same step, and each rank continues with the next step."""

from harness.evidence.reported import usual_strides
from harness.judge.guarantee import Analysis, Breaches, Guarantee, breach
from harness.judge.verdict import Ground, Kind


def breaches(evidence: Analysis) -> Breaches:
    strides = usual_strides(evidence.run, evidence.fault_free)
    for member in (member for restart in evidence.restarts for member in restart.members):
        stride = strides.get(member.rank, 0)
        for each in member.restores if stride and not member.lost else ():
            if each.step is not None and not each.step < each.went_on <= each.step + stride:
                absent = Ground(Kind.ABSENCE, (each.process,), (each.step + 1,))
                grounds = [absent] if each.went_on == each.step + 2 * stride else []  # a line may be lost
                yield breach(f"{each.said}, but went on with step {each.went_on}", each, grounds=grounds)
    for restart in evidence.restarts:
        if len(steps := sorted({step for _, step in restart.states})) > 1:
            text = f"ranks of one world restored different steps: {', '.join(map(str, steps))}"
            yield breach(text, *restart.restores)


GUARANTEE = Guarantee(breaches, rests_on=("restores",))
