"""`pytest` checks the fault's words in seconds. `pytest --chaos` runs the scenario on virtual nodes."""

import pathlib

from harness.faults.contract import Target, build_fault

SCENARIO = pathlib.Path(__file__).parents[1] / "scenarios" / "disk-nap.yaml"


def test_the_plan_says_what_it_does() -> None:
    fault = build_fault("disk_nap", {"duration": "2s"})
    assert fault.describe([Target(0, rank=1)]) == "rank 1 stands still for 2s"


def test_a_healthy_job_survives_it(chaos) -> None:
    result = chaos.run(SCENARIO)
    assert result.passed, result.reasons
