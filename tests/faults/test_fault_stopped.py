"""A fault that is stopped while its job goes on gives back at once what it took; at the end of the job it does not."""

import pathlib
from typing import Any

import pytest

from harness.api.testing import FaultContext
from harness.faults.contract import Cancelled, Target, build_fault


class Context(FaultContext):
    """Is cancelled in the n-th wait, and in all that follow."""

    def __init__(self, run_dir: pathlib.Path, cancelled_at: int, job_goes_on: bool):
        super().__init__(run_dir)
        self.waits_left, self.goes_on, self.replaced = cancelled_at, job_goes_on, 0
        self.taken = self.cluster.nodes[0]

    def wait(self, seconds: float, until: object = None, meanwhile: object = None) -> bool:
        self.waits_left -= 1
        if self.waits_left <= 0:
            self.job_goes_on = self.goes_on
            raise Cancelled
        return True

    def replace(self, node: object) -> None:
        self.replaced += 1

    def __getattr__(self, name: str) -> Any:
        return lambda *given, **more: None


PREEMPTION = {"notice": "5s", "replacement": {"after": "60s"}}


@pytest.mark.parametrize(
    ("kind", "parameters", "cancelled_at"),
    [("preemption", PREEMPTION, 1), ("preemption", PREEMPTION, 2), ("node_loss", {"replacement": {"after": "60s"}}, 1)],
)
def test_a_node_that_was_taken_is_replaced_at_once(
    kind: str, parameters: dict[str, Any], cancelled_at: int, tmp_path: pathlib.Path
) -> None:
    context: Any = Context(tmp_path, cancelled_at, job_goes_on=True)
    build_fault(kind, parameters).inject([Target(0)], context)
    assert (context.taken.alive, context.replaced) == (False, 1)


def test_when_the_job_ends_nothing_more_is_taken_or_replaced(tmp_path: pathlib.Path) -> None:
    for cancelled_at, alive in ((1, True), (2, False)):
        context: Any = Context(tmp_path, cancelled_at, job_goes_on=False)
        with pytest.raises(Cancelled):
            build_fault("preemption", PREEMPTION).inject([Target(0)], context)
        assert (context.taken.alive, context.replaced) == (alive, 0)
