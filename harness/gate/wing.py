"""Suites among the files that people write."""

from __future__ import annotations

import pathlib

from harness.campaign.checked_files import check_plan, load_scenario
from harness.campaign.wings import FileKind, Wing
from harness.gate.suite_file import find_blindness_check, load_suite
from harness.gate.suite_run import load_entries
from harness.units import counted


def _check(path: pathlib.Path, scenarios: pathlib.Path) -> str:
    """With all of its scenarios as it changes them, and the one that must fail."""
    suite = load_suite(path)
    entries = load_entries(path, suite, scenarios)
    check_plan(load_scenario(find_blindness_check(suite, path, scenarios)), None)
    for entry, spec in entries:
        check_plan(spec, entry.profile)
    return f"ok, a suite of {counted(len(entries), 'scenario')}"


WING = Wing(files=[FileKind("suite", key="scenarios", folder="suites", check=_check)])
