"""Each assumption makes a run inconclusive that is judged otherwise without it."""

import pathlib
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from judge import (
    test_consumed,
    test_contradictions,
    test_envelope,
    test_faults_judged,
    test_forged,
    test_observable,
    test_on_course,
    test_recovery_time,
    test_told_by_launchers,
    test_verdicts,
    test_whole,
)
from judging import ENVELOPE, EXACT, bent, verdict
from mutants.bent import BROKEN, a_rank_has_no_log
from scorecards import assert_verdict
from simulator import Job, Logs, Outage, change, clocks, simulate, steps
from whole import slower

from harness.evidence.logs import Evidence, load_evidence
from harness.evidence.made_as_asked import SAME
from harness.judge.assumption import assumptions
from harness.judge.score import Scorecard, judge
from harness.judge.verdict import Verdict
from harness.log.vocabulary import REQUEUED
from harness.timeline.timeline import Beside

JOB = Job(nodes=2, steps=40, every=10)
KILL = [Outage(17, "rank", victim=1)]
Judged = Callable[[], Scorecard]


def stored(case: str) -> Judged:
    def judged() -> Scorecard:
        with tempfile.TemporaryDirectory() as folder:
            return judge(load_evidence(test_forged.unpack(pathlib.Path(folder), case) / case), case)

    return judged


def broken(name: str) -> Judged:
    return next(each.judge for each in BROKEN if each.name == name)


def inexact() -> Scorecard:
    history = simulate(replace(JOB, foreign_clocks=True), KILL, seed=5)
    [episode] = history.truth.episodes
    return verdict(history, expect={"recovery_time": {"max": f"{episode.t_regained - episode.t_stop - 500}ns"}})


def stopped() -> Scorecard:
    known = test_faults_judged.judged(test_faults_judged.effect(0, 1, "processes gone")).evidence
    return judge(Evidence(replace(known.run, beside=Beside(cut_short="stopped")), test_faults_judged.FAULT_FREE), "x")


def differs() -> Scorecard:
    return test_observable.judged(lambda logs: change(logs.steps(), loss=lambda line: line["loss"] + 0.01))


def unordered() -> Scorecard:
    run = test_consumed.run_of(test_consumed.sampler(seed=1), outages=[Outage(0, "rank", victim=1)])
    return test_consumed.card(run, test_consumed.fault_free_of(test_consumed.sampler()))


def resized() -> Scorecard:
    times = test_envelope.times
    return test_envelope.judged(times(0.05), times(1e-3), {SAME: float, "resumed-1": times(0.05)})


def unheard() -> Scorecard:
    return verdict(simulate(JOB, KILL, seed=5), a_rank_has_no_log, EXACT)


def gave_up() -> Scorecard:
    def cut(logs: Logs) -> None:
        last = max(line["mono_ns"] for line in logs.steps(17, 17))
        test_recovery_time.ended(logs, last, 200 * 10**9, "aborted", planned=True)

    return verdict(simulate(JOB, seed=5), cut)


def requeued(code: int = -9) -> Scorecard:
    def taken(logs: Logs) -> None:
        last = max(line["mono_ns"] for line in logs.steps(17, 17))
        test_recovery_time.ended(logs, last, 200 * 10**9, "aborted")
        end, at = logs.harness[-1], last + 10**6
        told = {key: end[key] for key in ("role", "host", "clock") if key in end} | {"incarnation": 1}
        told |= {"wall_ns": end["wall_ns"] - end["mono_ns"] + at, "mono_ns": at}
        for node in ("node0", "node1"):
            logs.put(told | {"event": "process.exit", "node": node, "code": code})
            logs.put(told | {"event": "node.released", "node": node, "reason": REQUEUED})

    return verdict(simulate(JOB, seed=5), taken)


def flipped() -> Scorecard:
    bend = test_on_course.flips(test_on_course.times(2, 21, 60))
    return verdict(simulate(test_on_course.JOB, seed=5), bend, test_on_course.FINAL)


def unlisted() -> Scorecard:
    def saved_once_more(logs: Logs) -> None:
        for lives in (logs.trainers(rank=0), logs.trainers(rank=1)):
            last = max(logs.steps(1, 17, life=0), key=lambda line: line["mono_ns"])
            newest = {"event": "checkpoint.committed", "step": 15, "path": "checkpoints/step-15", "duration_ns": 1}
            lives[0].insert(lives[0].index(steps(lives[0])[-1]) + 1, newest | clocks(last))

    return verdict(simulate(replace(JOB, agents=False), KILL, seed=5), saved_once_more)


def ended_sooner() -> Scorecard:
    def unplanned(logs: Logs) -> None:
        logs.plan["workload"]["steps"] = 41

    longer = replace(JOB, steps=41)
    return verdict(simulate(JOB, KILL, seed=5), unplanned, {}, bent(longer, outages=[Outage(17, "crash")]))


def few() -> Scorecard:
    moved = test_verdicts.moved
    others = [bent(JOB, moved(1e-3, 25, 27), seed=1), bent(JOB, seed=3)]
    return verdict(simulate(JOB, KILL, seed=5), moved(3.1e-3, 25, 27), ENVELOPE, calibration=others)


PASS, FAIL, INVALID = Verdict.PASS, Verdict.FAIL, Verdict.INVALID
WITNESSES: Mapping[str, tuple[Judged, Verdict]] = {  # a run that is inconclusive, and what it is without the assumption
    "clocks-known": (inexact, FAIL),
    "comparison-as-asked": (stored("drill-worker-crashed-after-restore"), PASS),
    "course-undisturbed": (flipped, FAIL),
    "end-known": (broken("harness_killed"), PASS),
    "ends-told": (broken("launcher_tells_nothing"), PASS),
    "enough-repeats": (few, FAIL),
    "host-idle": (lambda: test_whole.judged(lambda logs: slower(logs, 3.0, 11, 55), EXACT), FAIL),
    "job-seen": (lambda: test_observable.judged(usual=test_observable.without_steps), FAIL),
    "launchers-agree": (lambda: test_told_by_launchers.judged(test_told_by_launchers.begins_late(0.2)), PASS),
    "ledger-complete": (broken("works_on_a_gpu_that_it_never_had"), PASS),
    "log-whole": (broken("full_disk"), FAIL),
    "loss-scatter-small": (stored("B-final-loss-about-zero"), FAIL),
    "nodes-kept": (requeued, FAIL),
    "one-data-set": (unordered, FAIL),
    "pace-known": (stored("A-shrunk-and-ten-times-slower"), FAIL),
    "promised-told": (stored("A-digest-missing-after-resume-final"), PASS),
    "ranks-heard": (unheard, PASS),
    "rehearsal-whole": (stopped, INVALID),
    "restores-possible": (lambda: test_contradictions.judged(test_contradictions.restored_is(source="peer")), PASS),
    "restores-told": (lambda: test_contradictions.judged(test_contradictions.without_restored(1)), PASS),
    "same-each-time": (differs, FAIL),
    "saves-listed": (unlisted, FAIL),
    "saves-told": (stored("saves-that-no-rank-told-of"), PASS),
    "sizes-known": (resized, PASS),
    "steps-planned": (ended_sooner, FAIL),
    "struck-before-the-end": (gave_up, FAIL),
    "tail-whole": (lambda: test_verdicts.judged(lambda logs: logs.lose("step", step=[10])), FAIL),
    "times-possible": (stored("steps-end-before-they-begin"), PASS),
}


@pytest.mark.parametrize("name", assumptions())
def test_without_it_a_run_is_judged_otherwise(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert name in WITNESSES, "find a run that is judged otherwise without it; if there is none, it is not needed"
    judged, without = WITNESSES[name]
    assert_verdict(judged(), Verdict.INCONCLUSIVE)
    monkeypatch.delitem(assumptions(), name)
    assert_verdict(judged(), without)


@pytest.mark.parametrize(("code", "verdict"), [(-9, Verdict.INCONCLUSIVE), (1, FAIL), (-11, FAIL)])
def test_a_job_that_failed_before_it_was_requeued_has_failed(code: int, verdict: Verdict) -> None:
    assert_verdict(requeued(code), verdict)
