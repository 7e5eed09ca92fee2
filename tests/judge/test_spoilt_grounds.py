"""What each doubt spoils, and nothing else. A step that was rolled back: lost with its process it is nothing."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mutants.bent import BROKEN

from harness.evidence.usual import Degraded, Pace
from harness.judge import assumption, score, weighing
from harness.judge.assumption import assumptions
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.excursions import Excursion
from harness.judge.facts.known import By
from harness.judge.guarantee import Breach, Guarantee
from harness.judge.score import Expectation
from harness.judge.verdict import Figure, Finding, Ground, Kind, Verdict
from harness.log.line_numbers import LineGap
from harness.timeline.timeline import Episode

S = 10**9
DEFECT = "something is wrong with it"
FAULT = SimpleNamespace(injected=15, kills=True, strikes=())
SLOT = SimpleNamespace(node="node1", key=("node1", 1), reason="requeued", at=15, code=-9)
EPISODE = Episode(0, S, None, 3, ("kill",), ())
SLOW = {"steps": 40, "taken": 16 * S, "usual": 4 * S, "median": 4.0, "at_least": 4.0, "best": 4.0, "slowest": 4.0} | {
    "last": 4.0,
    "before": 1.0,
    "worst": 1.0,
}
PACE = Pace(**SLOW, known=True)  # type: ignore[arg-type]


def grounds(**other: Ground) -> Mapping[str, Ground]:
    """One of each sort, beyond any doubt."""
    return {
        "a line of a process": Ground(Kind.ABSENCE, (0,), lines=1),
        "its lines since": Ground(Kind.ABSENCE, (0,), since=20),
        "a step of everybody": Ground(Kind.ABSENCE, steps=(10,)),
        "steps": Ground(Kind.STEPS),
        "faults": Ground(Kind.FAULTS),
        "how far": Ground(Kind.REACHED),
        "nodes": Ground(Kind.NODES),
        "due": Ground(Kind.DUE),
        "listed": Ground(Kind.LISTED, since=14),
        "losses": Ground(Kind.LOSSES),
        "curves": Ground(Kind.CURVES),
        "bits": Ground(Kind.BITS),
        "band": Ground(Kind.BAND),
        "gap": Ground(Kind.GAP, bound=1.0),
        "order": Ground(Kind.ORDER),
        "outage": Ground(Kind.DURATION, of=EPISODE),
        "slow for a while": Ground(Kind.DURATION, of=Degraded("net", 0, S, True, 3.0)),
        "pace": Ground(Kind.DURATION, of=PACE, bound=1.5),
        "figure": Ground(Kind.DURATION, of=Figure(9 * S), bound=5 * S),
        "figure not over": Ground(Kind.DURATION, of=Figure(9 * S, is_over=False), bound=5 * S),
    } | other


def run_of(**other: Any) -> Any:
    """A run in which a fault struck and nothing is doubtful."""
    whole = {
        "steps": [1],
        "apart": False,
        "processes": [SimpleNamespace(dropped=0, gaps=None)],
        "dropped": 0,
        "epochs": [SimpleNamespace(first=1, kept=40, size=2)],
        "uncertainty_ns": 0,
        "rows_by_process": ((), ()),
        "stretches": (),
        "beside": SimpleNamespace(other_losses="", cut_short=""),
        "outcome": "completed",
        "finished": True,
        "planned_steps": 40,
        "faults": [FAULT],
        "host_load": [{"at": 20, "others": 0.5}],
        "slots": [SLOT],
        "launchers": ["torchrun's"],
        "begin": 0,
        "end": 40,
    }
    return SimpleNamespace(**whole | other)


def evidence_of(run: Any = None, **other: Any) -> Any:
    comparison = SimpleNamespace(final_gap_percent=5.0, final_scatter_percent=0.1, near_zero=False)
    whole: dict[str, Any] = {"fault_free": None, "taken": [-1], "never_the_same": "", "consumed": None}
    whole |= {"saves": SimpleNamespace(outages=[(5, 10)])}
    whole |= {"envelope": BAND, "resumed_elsewhere": "", "left_band_early": "", "other_layout": ""}
    whole |= {
        "new_work": str,
        "incomparable": "",
        "resume_alone": ("", ""),
        "deaths_unexplained": [],
        "comparison": comparison,
    }
    run = run or run_of()
    whole["seams"] = {epoch.first - 1 for epoch in run.epochs}
    return SimpleNamespace(run=run, **whole | other)


BAND = SimpleNamespace(runs=3, sizes={2})
DROPPED = run_of(dropped=3, processes=[SimpleNamespace(dropped=3, gaps=None)])
SCATTERED = SimpleNamespace(final_gap_percent=1.5, final_scatter_percent=0.7, near_zero=False)
NEAR_ZERO = SimpleNamespace(final_gap_percent=1.5, final_scatter_percent=0.0, near_zero=True)
UNSURE = Ground(Kind.DURATION, of=Figure(5.1 * S, margin=0.2 * S), bound=5 * S)
TABLE = [("step", int), ("survives", bool), ("end", int)]
ONE_STEP = np.array([(1, True, 5)], dtype=TABLE).view(np.recarray)
CASES: Mapping[str, tuple[str, Any, Mapping[str, Ground], set[str]]] = {
    "blind": ("job-seen", evidence_of(run_of(apart=True)), {}, {"steps"}),
    "another layout": ("sizes-known", evidence_of(other_layout="tp 2"), {}, {"band", "bits"}),
    "torn tail": (
        "tail-whole",
        evidence_of(run_of(epochs=[SimpleNamespace(first=11, kept=40, size=2)]), taken=[30]),
        {},
        {"its lines since", "a step of everybody"},
    ),
    "lines dropped": (
        "log-whole",
        evidence_of(DROPPED),
        {},
        {"a line of a process", "its lines since", "a step of everybody"},
    ),
    "fault free restarted": (
        "steps-planned",
        evidence_of(fault_free=SimpleNamespace(epochs=[0, 1], reached_step=40)),
        {},
        {"how far"},
    ),
    "other rehearsal": (
        "rehearsal-whole",
        evidence_of(run_of(beside=SimpleNamespace(other_losses="lr", cut_short=""))),
        {},
        {"losses"},
    ),
    "nothing struck": ("struck-before-the-end", evidence_of(run_of(outcome="aborted", faults=[])), {}, {"outage"}),
    "slow before": (
        "pace-known",
        evidence_of(),
        {"slow for a while": Ground(Kind.DURATION, of=Degraded("net", 0, S, True, 3.0, 2.0))},
        {"slow for a while"},
    ),
    "host taken": (
        "host-idle",
        evidence_of(run_of(host_load=[{"at": 20, "others": 0.4}, {"at": 30, "others": 0.7}])),
        {},
        {"outage", "slow for a while", "pace", "figure", "figure not over"},
    ),
    "rehearsal stopped": (
        "rehearsal-whole",
        evidence_of(run_of(beside=SimpleNamespace(other_losses="", cut_short="stopped"))),
        {},
        {"steps", "faults"},
    ),
    "run cut short": (
        "end-known",
        evidence_of(run_of(outcome="interrupted")),
        {"figure not over": Ground(Kind.DURATION, of=Figure(3 * S, is_over=False), bound=5 * S)},
        {"figure not over"},
    ),
    "clocks": ("clocks-known", evidence_of(), {"figure": UNSURE}, {"figure"}),
    "never the same": ("same-each-time", evidence_of(never_the_same=DEFECT), {}, {"bits"}),
    "left the band early": ("same-each-time", evidence_of(left_band_early=DEFECT), {}, {"band"}),
    "not as asked": ("comparison-as-asked", evidence_of(resumed_elsewhere=DEFECT), {}, {"band"}),
    "other work": ("comparison-as-asked", evidence_of(new_work=lambda: DEFECT), {}, {"due"}),
    "few repeats": ("enough-repeats", evidence_of(envelope=SimpleNamespace(runs=2, sizes={2})), {}, {"band"}),
    "no band": ("enough-repeats", evidence_of(envelope=DEFECT), {}, {"band"}),
    "other sizes": ("sizes-known", evidence_of(envelope=SimpleNamespace(runs=3, sizes={3})), {}, {"band"}),
    "size changes": ("sizes-known", evidence_of(resume_alone=("", DEFECT)), {}, {"band"}),
    "scatter": ("loss-scatter-small", evidence_of(comparison=SCATTERED), {}, {"gap"}),
    "near zero": ("loss-scatter-small", evidence_of(comparison=NEAR_ZERO), {}, {"gap"}),
    "incomparable": ("comparison-as-asked", evidence_of(incomparable=DEFECT), {}, {"curves"}),
    "struck soon after a save": ("saves-listed", evidence_of(run_of(launchers=[])), {}, {"listed"}),
    "store disturbed": (
        "saves-listed",
        evidence_of(),
        {"looked then": Ground(Kind.LISTED, of=(8, 20)), "later": Ground(Kind.LISTED, of=(11, 20))},
        {"looked then"},
    ),
    "requeued": ("nodes-kept", evidence_of(deaths_unexplained=[SLOT]), {}, {"nodes"}),
    "by chance": (
        "course-undisturbed",
        evidence_of(
            run_of(faults=[], steps=ONE_STEP),
            comparison=None,
            fault_free=SimpleNamespace(largest_world=2, epochs=[0], reached_step=40),
            continuity=None,
            work=None,
        ),
        {"course": Ground(Kind.COURSE, of=Excursion("", 20, 29, 10, 19, ""))},
        {"course"},
    ),
    "order unproven": ("one-data-set", evidence_of(consumed=SimpleNamespace(unproven=True)), {}, {"order"}),
}


def spoilt(evidence: Any, all_grounds: Mapping[str, Ground], good: bool = False) -> dict[str, str]:
    found = {name: assumption.spoilt((ground,), evidence, good) for name, ground in all_grounds.items()}
    return {name: each.assumption for name, each in found.items() if each is not None}


def test_each_assumption_of_a_ground_has_a_history_of_its_own() -> None:
    assert spoilt(evidence_of(), grounds()) == {}
    assert {name for name, each in assumptions().items() if each.spoils} == {name for name, *_ in CASES.values()}


EITHER_WAY = {"clocks", "not as asked", "incomparable", "no band", "size changes", "near zero"}
ALONE = {"blind", "nothing struck", "slow before", "run cut short", "never the same", *EITHER_WAY}


@pytest.mark.parametrize("case", CASES)
def test_a_broken_assumption_spoils_its_ground_and_no_other(case: str) -> None:
    name, evidence, other, names = CASES[case]
    assert spoilt(evidence, grounds(**other)) == dict.fromkeys(names, name)
    either_way = case in EITHER_WAY
    assert spoilt(evidence, grounds(**other), good=True) == (dict.fromkeys(names, name) if either_way else {})


@pytest.mark.parametrize("case", CASES)
def test_a_breach_on_spoilt_ground_is_not_known_and_says_why(case: str) -> None:
    name, evidence, other, names = CASES[case]
    for ground in names:
        broken = Breach("it was", By.SEEN, (grounds(**other)[ground],))
        found = weighing._weighed("steps.all", Guarantee(lambda _: iter(())), broken, evidence)
        assert (found.verdict, found.doubt) == (Verdict.INCONCLUSIVE, name)
        assert found.text.startswith("it was; ") is (case not in ALONE)


LOAD = [{"at": at, "others": 0.9 if 60 <= at <= 70 else 0.02} for at in range(10, 100, 10)]


@pytest.mark.parametrize(
    ("window", "load", "usual", "busy"),
    [
        ((52, 68), LOAD, 0.02, True),
        ((54, 56), LOAD, 0.02, True),  # no event is in it: the next one tells of it
        ((71, 79), LOAD, 0.02, False),  # it was busy at another time
        ((52, 68), [each | {"others": 0.02 + 0.2 * (each["at"] > 50)} for each in LOAD], 0.02, True),  # more than usual
        ((52, 68), [each | {"others": 0.22} for each in LOAD], 0.02, False),  # as before the first fault
        ((52, 68), [each | {"others": 0.02 + 0.2 * (each["at"] > 50)} for each in LOAD], 0.1, False),
        ((96, 99), LOAD, 0.02, False),
    ],
)
def test_a_busy_host_excuses_a_duration_in_a_window(
    window: tuple[int, int], load: list[dict[str, float]], usual: float, busy: bool
) -> None:
    free = SimpleNamespace(host_load=[{"at": 5, "others": usual}], begin=0, end=10)
    evidence = evidence_of(run_of(host_load=load, end=100), disturbed=[(40, 50)], fault_free_runs=[free])
    found = assumption.spoilt([Ground(Kind.DURATION, of=window)], evidence)
    assert (found is not None and found.assumption == "host-idle") is busy
    evidence = evidence_of(run_of(host_load=[each | {"others": 0.9} for each in load]))
    assert assumption.spoilt([Ground(Kind.DURATION)], evidence) is not None, "without a window, the whole run counts"


SPOILS: Mapping[Kind, set[str]] = {  # of what is said of the broken histories; all but a job's own words rest on steps
    Kind.ABSENCE: {
        "checkpoint_rhythm.max_missed",
        "checkpoint_rhythm.min_percent",
        "drill.last_step",
        "job.finished",
        "steps.all",
        "steps.together",
    },
    Kind.REACHED: {"job.finished", "recovery_time.max"},
    Kind.NODES: {"job.finished", "recovery_time.max"},
    Kind.DUE: {"checkpoint_rhythm.max_missed", "checkpoint_rhythm.min_percent"},
    Kind.LISTED: {"restart.newest"},
    Kind.DURATION: {"exit_time.max", "job.finished", "pace.max_slowdown", "recovery_time.max"},
    Kind.LOSSES: {"loss_continuity.mode", "result.ranks_agree", "result.samples_in_order"},
    Kind.BITS: {"loss_continuity.mode"},
    Kind.FAULTS: {
        "fault.as_planned",
        "fault.effect_over",
        "fault.for_its_time",
        "fault.kept_down",
        "fault.on_target",
        "fault.struck",
    },
    Kind.ORDER: {
        "loss_continuity.max_samples_repeated",
        "loss_continuity.max_samples_skipped",
        "result.samples_in_order",
    },
}


def test_a_doubt_spoils_these_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A breach or an expectation is spoilt by the doubts of the kinds that it rests on."""
    found: dict[Kind, set[str]] = {}
    weigh_line, weigh_breach = score._weighed_line, weighing._weighed

    def weighed_line(line: Expectation, rests_on: Sequence[Ground], evidence: Analysis) -> Expectation:
        for ground in rests_on if line.verdict is Verdict.FAIL else ():
            found.setdefault(ground.kind, set()).add(line.code or line.name)
        return weigh_line(line, rests_on, evidence)

    def weighed_breach(name: str, guarantee: Guarantee, breach: Breach, evidence: Analysis) -> Finding:
        for ground in breach.grounds if breach.by is By.SEEN else ():
            found.setdefault(ground.kind, set()).add(name)
        return weigh_breach(name, guarantee, breach, evidence)

    monkeypatch.setattr(score, "_weighed_line", weighed_line)
    monkeypatch.setattr(weighing, "_weighed", weighed_breach)
    for mutant in BROKEN:
        mutant.judge()
    by_steps = found.pop(Kind.STEPS)
    assert found == SPOILS, "is the doubt meant to spoil that as well?"
    assert not [code for code in by_steps if code.startswith(("job.", "end.", "fault.", "world.", "step."))]


@pytest.mark.parametrize(("taken", "dropped", "verdict"), [(30, 3, None), (-1, 3, Verdict.INCONCLUSIVE)])
def test_only_what_was_lost_with_its_process_is_not_told(taken: int, dropped: int, verdict: Verdict | None) -> None:
    run = run_of(processes=[SimpleNamespace(dropped=dropped, gaps=None)], dropped=dropped, epochs=[])
    lost = Breach("…", By.SEEN, (Ground(Kind.ABSENCE, (0,), since=20), Ground(Kind.ABSENCE)), idle=True)
    found = weighing._examples("steps.together", Guarantee(lambda _: iter([lost])), evidence_of(run, taken=[taken]))
    assert [each.verdict for each in found] == [verdict] * (verdict is not None)


@pytest.mark.parametrize(
    ("finished", "told", "saved", "left", "gaps", "doubt"),
    [
        (False, 40, 40, 7, None, "log-whole"),
        (False, 40, 40, 7, (), ""),
        (False, 40, 40, 7, (LineGap(1, 5, 6, 39, None, False),), "log-whole"),
        (False, 40, 39, 7, None, ""),
        (False, 40, None, 7, None, ""),
        (False, 39, 40, 7, None, ""),
        (False, 39, 40, None, None, "log-whole"),
        (False, 39, 40, None, (), "log-whole"),
        (True, 40, 40, 7, None, ""),
    ],
)
def test_logs_that_end_before_the_last_save_lost_lines(
    finished: bool, told: int, saved: int | None, left: int | None, gaps: tuple[LineGap, ...] | None, doubt: str
) -> None:
    """If some rank tells that step, and its lines have no numbers or lack some; or if one has no last word. Else the
    job may have ended before it."""
    saves = SimpleNamespace(store=SimpleNamespace(seen=[SimpleNamespace(step=saved)] if saved else []))
    steps, epochs = np.rec.array([(told,)], [("step", int)]), [SimpleNamespace(first=1, kept=40, size=2, processes=[0])]
    process = SimpleNamespace(left=left, dropped=0, gaps=gaps)
    evidence = evidence_of(run_of(finished=finished, steps=steps, epochs=epochs, processes=[process]), saves=saves)
    of_reached = {name: each for name, each in grounds().items() if each.kind is Kind.REACHED}
    assert spoilt(evidence, of_reached) == ({"how far": doubt} if doubt else {})
