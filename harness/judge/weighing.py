"""Turns breaches and broken assumptions into findings. No other module decides verdicts of guarantees.

A breach that the harness itself saw fails the run. If this breach shows that a fault did not act as planned, the
verdict is invalid. A breach is inconclusive if a broken assumption makes its evidence doubtful. A breach is also
inconclusive if it only follows from contradictory reports or missing evidence. Breaches in a restart that the harness
made after the run are inconclusive, too. If a broken assumption concerns the whole run, the whole run is inconclusive.

A guarantee reports its worst breach for each fault or other subject. Guarantees with the same first word, such as
`restart`, are a family. Only the worst findings of a family are reported. A breach is left out if an equally bad or
worse breach of its family is its cause. A cause from another family comes first in the report.
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

State = Literal["held", "broken", "open", "not judged"]  # open: the evidence does not show it
BROKEN: Mapping[Verdict, State] = {Verdict.FAIL: "broken", Verdict.INVALID: "broken", Verdict.INCONCLUSIVE: "open"}


@dataclass(frozen=True)
class Judged:
    """A guarantee's state in a run, as in report.json. `why` is the breach, or why the guarantee was not judged."""

    name: str
    statement: str
    state: State
    why: str = ""


def judged(evidence: Analysis, holds_for: str) -> tuple[list[Judged], list[Finding]]:
    """Checks all guarantees and assumptions that apply to this kind of run. Returns states and findings."""
    wanted = {name: each for name, each in guarantees().items() if holds_for in each.holds_for}
    silent = {name: why for name, each in wanted.items() if (why := _not_asked(each, evidence))}
    found = {name: _examples(name, each, evidence) for name, each in wanted.items() if name not in silent}
    states = [_judged(name, each, silent.get(name, ""), found.get(name, ()), evidence) for name, each in wanted.items()]
    broken = list(_told(found, wanted))
    return states, [*broken, *_broken_assumptions(evidence, holds_for, broken)]


def judged_within(evidence: Analysis, kind: str, made: Made) -> Iterator[Finding]:
    """Yields findings about a restart that the harness made after the judged run, such as a restore drill. Such
    findings are inconclusive, because only the log of the restart shows them. The restart is compared with the same
    steps of the fault-free run. A log without a plan, as an older harness writes it, is not judged."""
    log, usual = made.done, evidence.fault_free
    if log is not None and log.plan:
        beside = None if usual is None else window.fault_free_part(usual, log)
        own = Analysis.of(Evidence(replace(log, plan=log.plan | {"expect": {}}), beside))
        short = made.folder.partition("-")[0]
        for each in judged(own, kind)[1]:
            yield Finding(Verdict.INCONCLUSIVE, f"{kind}: {each.text}", f"{short}.{each.code}", each.doubt)


def answer(told: Compared) -> Verdict:
    """Returns the verdict on steps that the job repeated after a restart. No guarantee judges these steps."""
    if not told.by.sure:
        return Verdict.INCONCLUSIVE
    return Verdict.PASS if told.same else Verdict.FAIL


def _not_asked(guarantee: Guarantee, evidence: Analysis) -> str:
    if (evidence.run.plan.get("expect") or {}).get(guarantee.switch) == OFF:
        return "the scenario switches it off"
    return blindness(evidence.run, evidence.fault_free) if guarantee.needs_steps else ""


def _examples(name: str, guarantee: Guarantee, evidence: Analysis) -> Sequence[Finding]:
    """Returns a guarantee's worst finding on each subject, as a fault. Of equally bad findings, the first counts."""
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
    """Returns the finding for a crash of the judge: inconclusive, never a pass."""
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
    """Yields the worst findings of each family of guarantees (such as `restart`). A finding is dropped if its cause is
    a finding of its family that is at least as bad."""
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
    """Returns the state of one guarantee. `why` is the reason why the guarantee was not checked, or empty."""
    worst = max(found, key=_badness, default=None)
    if worst is not None:
        return Judged(name, FAMILY.sentence(name), BROKEN[worst.verdict], worst.text)
    why = why or _says_nothing(guarantee, evidence)
    return Judged(name, FAMILY.sentence(name), "not judged" if why else "held", why)


def _says_nothing(guarantee: Guarantee, evidence: Analysis) -> str:
    """Returns why a guarantee without a breach is not judged, such as missing evidence, or an empty text if it held."""
    untold = [ITEMS[kind] for kind in guarantee.rests_on if kind not in stood_in_for(told(evidence.run))]
    return f"the log does not report {', '.join(untold)}" if untold else guarantee.nothing(evidence)
