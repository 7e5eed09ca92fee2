"""Turns breaches of guarantees and broken assumptions into findings. Only this module decides verdicts on guarantees.

A breach fails the run if the harness observed it, or if the log of the responsible process shows it. If the breach
shows that a fault did not act as planned, the run is invalid. A breach is inconclusive if a broken assumption makes its
evidence doubtful, or if the breach follows only from contradictory reports or missing evidence. A breach in a restart
that the harness made after the run is inconclusive, too. For each family of guarantees, such as `restart`, only the
worst breaches are reported, and one for each subject, such as a fault. A breach is not reported if its cause is a
breach of the same family that is at least as bad. A breach and its cause in another family are both reported, the cause
first.
"""

import os
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from harness.errors import described
from harness.evidence.logs import Evidence
from harness.evidence.reported import ITEMS, blindness, stood_in_for, told
from harness.judge import guarantee as contract
from harness.judge.assumption import assumptions, spoilt
from harness.judge.bounds import OFF
from harness.judge.facts.after_the_run import Made
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.repeated_steps import Compared
from harness.judge.guarantee import FAMILY, Breach, Guarantee, breaches_of, family, guarantees, proves_nothing
from harness.judge.verdict import PRIORITY, Finding, Ground, Kind, Verdict
from harness.timeline import window
from harness.timeline.lookups import grouped

State = Literal["held", "broken", "open", "not judged"]  # open: the evidence does not show it
BROKEN: Mapping[Verdict, State] = {Verdict.FAIL: "broken", Verdict.INVALID: "broken", Verdict.INCONCLUSIVE: "open"}


@dataclass(frozen=True)
class Judged:
    """A guarantee's state in a run. `why` describes the breach, or says why the guarantee was not judged."""

    name: str
    statement: str
    state: State
    why: str = ""


def judged(evidence: Analysis, holds_for: str) -> tuple[list[Judged], list[Finding]]:
    """Checks all guarantees and assumptions that apply to the kind of run `holds_for`. Returns the state of each
    guarantee, and the findings on broken guarantees and assumptions."""
    wanted = {name: each for name, each in guarantees().items() if holds_for in each.holds_for}
    expect, blind = evidence.run.plan.get("expect") or {}, blindness(evidence.run, evidence.fault_free)
    silent = {name: blind for name, each in wanted.items() if blind and each.needs_steps}
    silent |= {name: "the scenario switches it off" for name, each in wanted.items() if expect.get(each.switch) == OFF}
    found = {name: _examples(name, each, evidence) for name, each in wanted.items() if name not in silent}
    states = [_judged(name, each, silent.get(name, ""), found.get(name, ()), evidence) for name, each in wanted.items()]
    broken = list(_told(found, wanted))
    return states, [*broken, *_broken_assumptions(evidence, holds_for, broken)]


def judged_within(evidence: Analysis, kind: str, made: Made) -> tuple[list[Judged], list[Finding]]:
    """Judges a restart that the harness made after the judged run, such as a restore drill. Returns the guarantees that
    the restart breaks or leaves open, with the state "open", and the findings. The findings are inconclusive, because
    only the restart's log shows them. The restart's steps are compared with the same steps of the fault-free run. A
    restart whose log has no plan is not judged."""
    log, usual = made.done, evidence.fault_free
    if log is None or not log.plan:
        return [], []
    beside = None if usual is None else window.fault_free_part(usual, log)
    off = {name: OFF for name, written in (evidence.run.plan.get("expect") or {}).items() if written == OFF}
    states, found = judged(Analysis.of(Evidence(replace(log, plan=log.plan | {"expect": off}), beside)), kind)
    short = made.folder.partition("-")[0]
    odd = [replace(each, state="open", why=f"{kind}: {each.why}") for each in states if each.state in BROKEN.values()]
    return odd, [
        Finding(Verdict.INCONCLUSIVE, f"{kind}: {each.text}", f"{short}.{each.code}", each.doubt) for each in found
    ]


def answer(told: Compared) -> Verdict:
    """Returns the verdict on steps that the job repeated after a restart: pass if they gave the same values again."""
    if not told.by.sure:
        return Verdict.INCONCLUSIVE
    return Verdict.PASS if told.same else Verdict.FAIL


def _examples(name: str, guarantee: Guarantee, evidence: Analysis) -> Sequence[Finding]:
    worst: dict[str, Finding] = {}
    try:
        for breach in breaches_of(guarantee, evidence):
            finding = _weighed(name, guarantee, breach, evidence)
            if breach.idle and finding.doubt == "tail-whole":
                continue
            if _badness(finding) > _badness(worst.get(breach.of)):
                worst[breach.of] = finding
        if not worst:
            _says_nothing(guarantee, evidence)  # its crash is found here
    except Exception as error:
        worst["the judge"] = _crashed(name, error)
    return list(worst.values())


def _crashed(name: str, error: Exception) -> Finding:
    ours = (__file__, contract.__file__)
    frames = [each for each in traceback.extract_tb(error.__traceback__) if each.filename not in ours]
    own = [f"{each.filename}:{each.lineno}" for each in frames if each.filename == frames[0].filename]
    where = f"its code crashed at {'/'.join(own[-1].split(os.sep)[-2:])}" if own else "its result cannot be used"
    settles = "Mend its code, then judge this run again: {score}"
    return Finding(Verdict.INCONCLUSIVE, f"{name}: {where}: {described(error)}", name, "crashed", settles)


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
    worst = max(found, key=_badness, default=None)
    if worst is not None:
        return Judged(name, FAMILY.sentence(name), BROKEN[worst.verdict], worst.text)
    why = why or _says_nothing(guarantee, evidence)
    return Judged(name, FAMILY.sentence(name), "not judged" if why else "held", why)


def _says_nothing(guarantee: Guarantee, evidence: Analysis) -> str:
    untold = [ITEMS[kind] for kind in guarantee.rests_on if kind not in stood_in_for(told(evidence.run))]
    return f"the log does not report {', '.join(untold)}" if untold else proves_nothing(guarantee, evidence)
