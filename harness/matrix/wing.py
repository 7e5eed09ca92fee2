"""The sweep over the saves of a job, as a suite may ask for it."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

from harness.backends.contract import Backend
from harness.campaign.wings import Swept, Wing
from harness.plan.model import Plan
from harness.run.stop import StopRequest

BUDGET_S = 900.0


def _resumes(
    plan: Plan, reports: pathlib.Path, backend: Backend, stop: StopRequest, tell: Callable[[str], None]
) -> Swept:
    from harness.matrix import resume_command  # which the list of runs does without
    from harness.matrix.resume_matrix import Setting, run_sweep

    return resume_command.kept(run_sweep(plan, Setting(reports, backend, stop, tell, BUDGET_S)), reports)


WING = Wing(sweeps={"resume": _resumes})
