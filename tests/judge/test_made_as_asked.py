"""What the harness makes for comparison is checked before anything is held against it."""

from dataclasses import replace
from typing import Any

import pytest
from judging import SAVES, Bend, bending, bent, expecting, load, verdict
from scorecards import assert_verdict
from simulator import Job, Logs, Outage, change, simulate

from harness.evidence.logs import Evidence
from harness.evidence.made_as_asked import BEFORE, SAME, Asked
from harness.judge.score import judge
from harness.judge.verdict import Verdict
from harness.timeline.timeline import Timeline

JOB = Job(nodes=2, steps=60, every=10)
KILL = [Outage(17, "rank", victim=1)]
SAVED = 30  # the step from which the job went on with one node
ENVELOPE = {"loss_continuity": {"mode": "envelope"}}


def workload(**more: Any) -> Bend:
    return lambda logs: logs.plan["workload"].update(more)


def code(digest: str) -> Bend:
    return lambda logs: logs.told("environment").update(source_digest=digest)


@bending
def goes_on_from(logs: Logs, step: int) -> None:
    logs.lose("step", *SAVES, step=range(step + 1))
    change(logs.all("restored"), step=step)


def stops_at(step: int) -> Bend:
    return lambda logs: logs.lose("step", *SAVES, step=range(step + 1, 1000))


OTHERWISE: dict[str, tuple[Job, Bend]] = {
    "it has another seed": (JOB, lambda logs: logs.plan.update(seed=8)),
    "it has another backend": (JOB, lambda logs: logs.plan.update(backend="docker")),
    "it has another number of ranks": (replace(JOB, nodes=3), lambda logs: None),
    "its world had 1 ranks, not 2": (replace(JOB, nodes=1), workload(nodes=2, min_nodes=2)),
    "it has other arguments": (JOB, workload(args=["--layers", "3"])),
    "it has another command": (JOB, workload(trainer={"command": ["other.py"], "tells": ["loss"]})),
    "it was made by other code": (JOB, code("b")),
    "it went on from the save of step 20, not from no save": (JOB, goes_on_from(20)),
}


@pytest.mark.parametrize("why", OTHERWISE)
@pytest.mark.parametrize("place", ["fault-free", "calibration"])
def test_a_fault_free_run_that_is_another_job_accuses_nobody(why: str, place: str) -> None:
    job, bend = OTHERWISE[why]
    trainer = workload(trainer={"command": ["train.py"]}) if "command" in why else lambda logs: None
    mine = [code("a"), trainer]
    other = bent(job, *mine, bend, seed=3)
    if place == "calibration" and "number of ranks" in why:
        return  # calibration runs may have any size
    given: dict[str, Any] = {"fault_free": bent(JOB, *mine, seed=4), "calibration": [bent(JOB, *mine, seed=6)]}
    given |= {"fault_free": other} if place == "fault-free" else {"calibration": [other]}

    def run(logs: Logs) -> None:
        for each in mine:
            each(logs)
        change(logs.steps(20), loss=lambda line: line["loss"] * 1.5)

    card = verdict(simulate(JOB, KILL, seed=5), run, ENVELOPE, **given)
    assert_verdict(card, Verdict.INCONCLUSIVE, first=why)


def test_what_only_one_of_two_logs_tells_of_the_code_is_no_difference() -> None:
    told, untold = bent(JOB, code("a")), bent(JOB)
    assert not Asked.by(told).broken_by(untold) and not Asked.by(untold).broken_by(told)


SMALL = replace(JOB, nodes=1)


def small(logs: Logs) -> None:
    logs.plan["workload"].update(nodes=1, min_nodes=1)


def run() -> Timeline:
    """It shrinks after step 35, goes on from step 30, and its losses are off a little since then."""
    history = simulate(JOB, [Outage(35, "shrink", victim=1, regrow_after=20)], 5)

    def bend(logs: Logs) -> None:
        expecting(logs, ENVELOPE)
        change(logs.steps(SAVED + 1), loss=lambda line: line["loss"] * 1.01)

    logs = history.logs()
    bend(logs)
    return load(history, logs)


def made(**other: Timeline) -> dict[str, Timeline]:
    small_ones = {f"resumed-{n}": bent(SMALL, small, goes_on_from(SAVED), seed=n) for n in (1, 2, 3)}
    same = bent(JOB, goes_on_from(SAVED), seed=7)
    return {BEFORE: bent(JOB, stops_at(SAVED), seed=8), SAME: same} | small_ones | other


RESUMED_ELSEWHERE: dict[str, dict[str, Timeline]] = {
    "it was stopped at the save of step 40, not at the save of step 30": {BEFORE: bent(JOB, stops_at(40), seed=9)},
    "resumed-same: it went on from the save of step 40, not from the save of step 30": {
        SAME: bent(JOB, goes_on_from(40), seed=9)
    },
    "resumed-2: it went on from the save of step 20": {"resumed-2": bent(SMALL, small, goes_on_from(20), seed=9)},
    "resumed-1: it has another number of ranks": {"resumed-1": bent(JOB, goes_on_from(SAVED), seed=9)},
    "resumed-same: it has another seed": {
        SAME: bent(JOB, goes_on_from(SAVED), lambda logs: logs.plan.update(seed=8), seed=9)
    },
    "resumed-at-40: it went on from the save of step 30": {
        "resumed-at-40": bent(SMALL, small, goes_on_from(SAVED), seed=9)
    },
}


@pytest.mark.parametrize("why", RESUMED_ELSEWHERE)
def test_a_run_that_went_on_from_another_save_gives_no_band(why: str) -> None:
    fault_free, alone = bent(JOB, seed=2), [bent(SMALL, small, seed=4)]
    card = judge(Evidence(run(), fault_free, alone, resumed=made()), "run")
    assert_verdict(card, Verdict.FAIL)
    card = judge(Evidence(run(), fault_free, alone, resumed=made(**RESUMED_ELSEWHERE[why])), "run")
    assert_verdict(card, Verdict.INCONCLUSIVE, first=why)
