"""Lets `chaos validate` check suites of training jobs for `chaos diagnose`."""

from __future__ import annotations

import pathlib

from harness.campaign.wings import FileKind, Wing
from harness.units import counted


def _check(path: pathlib.Path, scenarios: pathlib.Path) -> str:
    from harness.diagnosis.suite import load_runs  # which the list of runs does without

    return f"ok, a suite of {counted(len(load_runs(path, 1, 'local')[1]), 'run')} for chaos diagnose"


WING = Wing(files=[FileKind("suite of diagnoses", key="jobs", folder="diagnosis", check=_check)])
