"""Each step consumes the same samples as without a fault, except samples that the scenario allows to repeat or skip."""

from harness.judge.facts.agreement import others_consumed, unbound
from harness.judge.guarantee import Analysis, Breaches, Guarantee, in_words
from harness.judge.verdict import Ground, Kind


def breaches(evidence: Analysis) -> Breaches:
    return in_words(others_consumed(evidence), Ground(Kind.LOSSES), Ground(Kind.ORDER))


GUARANTEE = Guarantee(breaches, rests_on=("positions",), nothing=unbound)
