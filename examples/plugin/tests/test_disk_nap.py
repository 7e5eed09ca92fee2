"""`pytest` checks the fault's words in seconds. `pytest --chaos` runs the scenario on virtual nodes."""

import pathlib

from harness.api.testing import FaultContext
from harness.faults.contract import Target, build_fault

SCENARIO = pathlib.Path(__file__).parents[1] / "scenarios" / "disk-nap.yaml"


def test_the_plan_says_what_it_does() -> None:
    fault = build_fault("disk_nap", {"duration": "2s"})
    assert fault.describe([Target(0, rank=1)]) == "rank 1 stands still for 2s"


def test_it_acts_is_measured_and_ends(tmp_path) -> None:
    fault, context = build_fault("disk_nap", {"duration": "2s"}), FaultContext(tmp_path)
    fault.inject([Target(0, rank=0)], context)
    fault.see_end([Target(0, rank=0)], context)
    fault.heal([Target(0, rank=0)], context)
    fault.see_end([Target(0, rank=0)], context)
    assert [ok for *_, ok in context.effects] == [True]
    assert [ok for *_, ok in context.ends] == [False, True]


def test_a_healthy_job_survives_it(chaos) -> None:
    result = chaos.run(SCENARIO)
    assert result.passed, result.reasons
