"""Each step consumes the samples that it consumes without a fault, but for what may be repeated or left out."""

from harness.judge.facts.agreement import others_consumed, unbound
from harness.judge.guarantee import Analysis, Breaches, Guarantee, in_words
from harness.judge.verdict import Ground, Kind


def breaches(evidence: Analysis) -> Breaches:
    return in_words(others_consumed(evidence), Ground(Kind.LOSSES), Ground(Kind.ORDER))


GUARANTEE = Guarantee(breaches, rests_on=("positions",), nothing=unbound)
