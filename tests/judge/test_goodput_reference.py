"""Goodput beside ml-goodput-measurement's, which many know: the same where its definition holds.

It needs Google Cloud's libraries, so its answers stand here as vectors. They are those of ml-goodput-measurement 0.2.3,
`GoodputCalculator.get_job_goodput(include_badput_breakdown=True)`, for a logger that hands it one entry for each job
start and step start of `Told`, and for the job's end.
"""

import pathlib
from dataclasses import dataclass

import pytest
from docs.test_metrics_doc import Log, S

from harness.judge.score import Evidence, judge
from harness.report import figures as figures_of
from harness.timeline import timeline


@dataclass(frozen=True)
class Told:
    """A job of one GPU, in seconds. `starts`: of each life, and when its steps began (`{step: begin}`)."""

    starts: tuple[tuple[float, dict[int, float]], ...]
    end: float  # of the job and of its last step
    killed: float | None = None  # when the first life was; without a kill it left by itself, having saved
    goodput_percent: float = 0.0  # what ml-goodput-measurement says
    wasted_progress_percent: float = 0.0  # its WASTED_PROGRESS_FROM_DISRUPTION


def seconds(first: int, last: int, begin: float) -> dict[int, float]:
    return {number: begin + number - first for number in range(first, last + 1)}


UNDISTURBED = Told(((0, seconds(1, 10, 10)),), 20, None, 50.0, 0.0)
GOES_BACK = Told(((0, seconds(1, 8, 10)), (21, seconds(6, 10, 28))), 33, 17, 30.303030303, 6.060606061)
RESUMES_EXACTLY = Told(((0, seconds(1, 7, 10)), (21, seconds(8, 10, 28))), 31, None, 67.741935484, 0.0)


def goodput(told: Told, folder: pathlib.Path) -> tuple[float, float]:
    """Ours: percent of the GPU time that was productive, and that was executed and lost."""
    events = folder / "events"
    events.mkdir()
    harness = Log(events, "harness", 0, role="harness")
    last = max(number for _, steps in told.starts for number in steps)
    workload = {"nodes": 1, "min_nodes": 1, "ranks_per_node": 1, "steps": last}
    harness(0, "plan", plan={"workload": workload, "faults": [], "expect": {}})
    harness(0, "node.allocated", node="node0", incarnation=1, gpus=1)
    where = {"node": "node0", "incarnation": 1, "rank": 0, "local_rank": 0, "world_size": 1}
    for life, (start, steps) in enumerate(told.starts):
        log = Log(events, f"trainer-{life}", start, role="trainer", pid=life, **where)
        log(start + 1, "rendezvous", world_size=1)
        log(min(steps.values()), "restored", step=min(steps) - 1, source="checkpoint", fallback=[])
        ends = [*list(steps.values())[1:], None]
        for (number, begin), end in zip(steps.items(), ends, strict=True):
            if end is None and life + 1 < len(told.starts) and told.killed is not None:
                continue  # it was killed in this step
            values = {"loss": 1.0, "grad_norm": 1.0, "lr": 0.001}
            log(end or begin + 1, "step", step=number, begin_ns=round(begin * S), **values)
    if told.killed is not None:
        target = {"node": "node0", "incarnation": 1, "rank": 0}
        harness(told.killed, "fault.injected", fault="kill", kind="rank_kill", targets=[target], kills=True)
    harness(told.end, "node.released", node="node0", incarnation=1, reason="completed")
    harness(told.end, "run.finished", outcome="completed", reason="")
    waste = figures_of.scores(judge(Evidence(timeline.load(folder)), "told"))["wasted_gpu_hours"]
    return waste["goodput_percent"], 100 * waste["accounts"]["recompute"] / waste["gpu_seconds_allocated"]


@pytest.mark.parametrize("told", [UNDISTURBED, GOES_BACK])
def test_goodput_and_lost_steps_agree(told: Told, tmp_path: pathlib.Path) -> None:
    """(It books the step in which the job died as recovery of the infrastructure.)"""
    expected = told.goodput_percent, told.wasted_progress_percent
    assert goodput(told, tmp_path) == pytest.approx(expected)


def test_it_sees_no_outage_when_the_resume_is_exact(tmp_path: pathlib.Path) -> None:
    """No step number comes twice, so the time from the last step to the resumed one counts as one long step."""
    productive, _ = goodput(RESUMES_EXACTLY, tmp_path)
    assert productive == pytest.approx(100 * 10 / 31)
    outage = 28 - 17  # from the end of step 7 to the begin of step 8
    assert RESUMES_EXACTLY.goodput_percent == pytest.approx(100 * (10 + outage) / 31)
