"""Each restart takes the whole state: the optimizer's as well as the model's.

With `mode: final`, a process that repeats a step with the same samples, after a rollback without a restart, must get
the same loss and gradient norm except for rounding, if its first loss equals the fault-free run's.
"""

from harness.judge.facts.agreement import otherwise_again
from harness.judge.facts.deaths import listed
from harness.judge.guarantee import Analysis, Breaches, Guarantee, breach, in_words
from harness.judge.verdict import Ground, Kind


def breaches(evidence: Analysis) -> Breaches:
    """Yields a breach if ranks restored only the model, unless all losses equal the fault-free run's bit for bit."""
    yield from in_words(otherwise_again(evidence), Ground(Kind.LOSSES))
    compared, restores = evidence.comparison, [each for restart in evidence.restarts[1:] for each in restart.restores]
    ranks = sorted({each.rank for each in restores if each.entered == ("model",)})
    if ranks and not (compared is not None and compared.identical):
        who, their = ("ranks", "their") if len(ranks) > 1 else ("rank", "its")
        text = f"{who} {listed([*map(str, ranks)])} restored {their} model, and nothing shows that {their}"
        yield breach(f"{text} optimizer's state was restored", *evidence.restarts)


def nothing(evidence: Analysis) -> str:
    told = any(each.entered for restart in evidence.restarts[1:] for each in restart.restores)
    return evidence.no_restart() or ("" if told else "no rank told whose state it restored")


GUARANTEE = Guarantee(breaches, rests_on=("restores",), nothing=nothing)
