"""Turns breaches and broken assumptions into findings: the only place that decides verdicts of guarantees.

| how the breach is known | its ground | verdict |
|---|---|---|
| seen | sound | fail; invalid, if it shows that a fault did not act as planned |
| seen | spoilt by a broken assumption | inconclusive, in the words of the assumption |
| told against another word, or missing | | inconclusive |
| an assumption of the whole run is broken | | inconclusive |
| in whatever way, in a run that was made after this one | | inconclusive |

A guarantee is told by its strongest example, the first of equals. Within a family, findings weaker than the strongest
are left out, and so are breaches with a cause that is as bad. A cause of another family is told first.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from harness.judge.assumption import assumptions, spoilt
from harness.judge.bounds import OFF
from harness.judge.facts.after_the_run import Made
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.evidence import Evidence
from harness.judge.facts.repeated_steps import Compared
from harness.judge.facts.reported import ITEMS, blindness, stood_in_for, told
from harness.judge.guarantee import FAMILY, Breach, Guarantee, family, guarantees
from harness.judge.verdict import PRIORITY, Finding, Ground, Kind, Verdict
from harness.timeline import window
from harness.timeline.lookups import grouped

State = Literal["held", "broken", "open", "not judged"]  # open: the evidence does not tell
BROKEN: Mapping[Verdict, State] = {Verdict.FAIL: "broken", Verdict.INVALID: "broken", Verdict.INCONCLUSIVE: "open"}


@dataclass(frozen=True)
class Judged:
    """The state of a guarantee in a run, as in report.json. `why`: what broke it, or why it is not judged."""

    name: str
    statement: str
    state: State
    why: str = ""


def judged(evidence: Analysis, holds_for: str) -> tuple[list[Judged], list[Finding]]:
    """Checks all guarantees and assumptions that hold for this kind of run; return states and findings."""
    wanted = {name: each for name, each in guarantees().items() if holds_for in each.holds_for}
    silent = {name: why for name, each in wanted.items() if (why := _not_asked(each, evidence))}
    found = {name: _examples(name, each, evidence) for name, each in wanted.items() if name not in silent}
    states = [_judged(name, each, silent.get(name, ""), found.get(name, ()), evidence) for name, each in wanted.items()]
    broken = list(_told(found, wanted))
    return states, [*broken, *_broken_assumptions(evidence, holds_for, broken)]


def judged_within(evidence: Analysis, kind: str, made: Made) -> Iterator[Finding]:
    """Yields findings in a run that the harness made after this one, as inconclusive: only its own log shows them. It
    is compared with the same steps of the fault-free run. An older harness wrote no plan, so nothing is judged."""
    log, usual = made.done, evidence.fault_free
    if log is not None and log.plan:
        beside = None if usual is None else window.fault_free_part(usual, log)
        own = Analysis.of(Evidence(replace(log, plan=log.plan | {"expect": {}}), beside))
        short = made.folder.partition("-")[0]
        for each in judged(own, kind)[1]:
            yield Finding(Verdict.INCONCLUSIVE, f"{kind}: {each.text}", f"{short}.{each.code}", each.doubt)


def answer(told: Compared) -> Verdict:
    """Returns the verdict on steps that were done again, which no guarantee is about."""
    if not told.by.sure:
        return Verdict.INCONCLUSIVE
    return Verdict.PASS if told.same else Verdict.FAIL


def _not_asked(guarantee: Guarantee, evidence: Analysis) -> str:
    if (evidence.run.plan.get("expect") or {}).get(guarantee.switch) == OFF:
        return "the scenario switches it off"
    return blindness(evidence.run, evidence.fault_free) if guarantee.needs_steps else ""


def _examples(name: str, guarantee: Guarantee, evidence: Analysis) -> Sequence[Finding]:
    """Returns the worst breach, the first of equals, for each fault or other culprit."""
    worst: dict[str, Finding] = {}
    try:
        for breach in guarantee.breaches(evidence):
            finding = _weighed(name, guarantee, breach, evidence)
            if breach.idle and finding.doubt == "tail-whole":
                continue
            if _badness(finding) > _badness(worst.get(breach.of)):
                worst[breach.of] = finding
    except Exception as error:
        worst["the judge"] = _crashed(name, error)
    return list(worst.values())


def _crashed(name: str, error: Exception) -> Finding:
    """Makes the finding of a crashed judge: inconclusive, never a pass."""
    return Finding(Verdict.INCONCLUSIVE, f"{name}: the judge crashed: {type(error).__name__}: {error}", name, "crashed")


def _badness(finding: Finding | None) -> int:
    return -1 if finding is None else PRIORITY.index(finding.verdict)


def _weighed(name: str, guarantee: Guarantee, breach: Breach, evidence: Analysis) -> Finding:
    if not breach.by.sure:
        return Finding(Verdict.INCONCLUSIVE, breach.words, name, f"known.{breach.by.name.lower()}")
    also = (Ground(Kind.STEPS),) if guarantee.until_the_end else ()
    if found := spoilt((*breach.grounds, *also), evidence):
        return Finding(Verdict.INCONCLUSIVE, found.after(breach.words), name, found.assumption, found.settles)
    return Finding(Verdict.INVALID if guarantee.of_a_fault else Verdict.FAIL, breach.words, name)


def _told(found: Mapping[str, Sequence[Finding]], guarantees: Mapping[str, Guarantee]) -> Iterator[Finding]:
    """Yields findings without those weaker than their family's worst, or with an equally bad cause in the family."""
    bad = {name: max(map(_badness, mine), default=-1) for name, mine in found.items()}
    of_family = grouped((family(name), most) for name, most in bad.items())
    for name, mine in found.items():
        causes = (cause for cause in guarantees[name].explained_by if family(cause) == family(name))
        explained = max((bad.get(cause, -1) for cause in causes), default=-1)
        yield from (each for each in mine if explained < _badness(each) >= max(of_family[family(name)]))


def _broken_assumptions(evidence: Analysis, holds_for: str, told: Sequence[Finding]) -> Iterator[Finding]:
    sure = {family(finding.code) for finding in told if finding.verdict is not Verdict.INCONCLUSIVE}
    for name, each in assumptions().items():
        asked = holds_for in each.holds_for and each.family not in sure
        try:
            why = next(each.broken(evidence), "") if asked else ""
        except Exception as error:
            yield _crashed(name, error)
            continue
        if why:
            yield Finding(Verdict.INCONCLUSIVE, why, name, name, each.settles)


def _judged(name: str, guarantee: Guarantee, why: str, found: Sequence[Finding], evidence: Analysis) -> Judged:
    """Returns the state of one guarantee. `why`: the reason if it was not checked."""
    worst = max(found, key=_badness, default=None)
    if worst is not None:
        return Judged(name, FAMILY.sentence(name), BROKEN[worst.verdict], worst.text)
    why = why or _says_nothing(guarantee, evidence)
    return Judged(name, FAMILY.sentence(name), "not judged" if why else "held", why)


def _says_nothing(guarantee: Guarantee, evidence: Analysis) -> str:
    """Explains why an unbroken guarantee is not judged: evidence is missing, or nothing could have broken it."""
    untold = [ITEMS[kind] for kind in guarantee.rests_on if kind not in stood_in_for(told(evidence.run))]
    return f"the log does not report {', '.join(untold)}" if untold else guarantee.nothing(evidence)
