"""All ranks report the same figures for a step, or each rank reports the same figures as in the fault-free run."""

from harness.judge.facts.agreement import disagreements, far_off, unbound
from harness.judge.guarantee import Analysis, Breaches, Guarantee, in_words
from harness.judge.verdict import Ground, Kind


def breaches(evidence: Analysis) -> Breaches:
    yield from in_words(disagreements(evidence), Ground(Kind.LOSSES))
    yield from in_words(far_off(evidence))


GUARANTEE = Guarantee(breaches, explained_by=("restart.whole_state", "saves.one_writer"), nothing=unbound)
