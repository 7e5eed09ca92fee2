"""Finds which backends and faults work on this machine, and the reasons for the others."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import platform
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness import programs
from harness.backends.contract import Capability, backend_names, load_backend
from harness.campaign.checked_files import load_scenario
from harness.errors import UsageError
from harness.extras import how_to_install
from harness.faults.contract import fault_names, load_fault
from harness.plan.capabilities import lacking
from harness.plan.making import make_plan
from harness.spec.scenario import find_scenario


@dataclass(frozen=True)
class Finding:
    what: str
    ok: bool
    detail: str
    needed: bool = True  # without it this machine runs nothing


def examine() -> tuple[list[Finding], dict[str, Capability]]:
    """Facts about the machine, and each backend's probed capability."""
    supported = sys.version_info >= (3, 11)
    lacking_torch = f"not installed; the reference trainer needs it: {how_to_install('trainer')}"
    torch = importlib.util.find_spec("torch") is not None
    free = shutil.disk_usage(".").free
    findings = [
        Finding("Python", supported, f"{platform.python_version()} (3.11 or newer is needed)"),
        Finding("torch", torch, "installed" if torch else lacking_torch),
        Finding("CPUs", True, f"{len(os.sched_getaffinity(0))} usable"),
        Finding("disk", free > 2**30, f"{free / 2**30:.1f} GiB free here (1 GiB is needed)"),
        Finding("user", True, "root" if os.geteuid() == 0 else f"uid {os.geteuid()}, no root"),
        *programs_found(),
    ]
    return findings, {name: load_backend(name).probe() for name in backend_names()}


def scenarios_here(
    names: Sequence[str], scenarios: pathlib.Path, capabilities: Mapping[str, Capability]
) -> list[tuple[str, dict[str, str]]]:
    """Returns each scenario with an empty text per backend, or the reason why it cannot run there.

    Without names, all that are shipped. Raises `UsageError` for one that is wrong or unknown.
    """
    paths = [find_scenario(name, scenarios) for name in names] or sorted(scenarios.glob("*.yaml"))
    usable = {name: capability for name, capability in capabilities.items() if capability.available}
    found = []
    for path in paths:
        spec = load_scenario(path)
        why_not = {}
        for backend, capability in usable.items():
            try:
                plan = make_plan(spec, 1, backend, "doctor")
            except UsageError as error:
                why_not[backend] = str(error)
            else:
                why_not[backend] = "; ".join(dict.fromkeys(reason for _, reason in lacking(plan, capability)))
        found.append((spec.name, why_not))
    return found


def fault_table(capabilities: dict[str, Capability]) -> list[tuple[str, str, dict[str, str]]]:
    """Returns each fault: name, description, and per backend `yes` or the reason against it."""
    rows = []
    for name in fault_names():
        fault = load_fault(name)
        about = (fault.__doc__ or "").strip().split("\n\n")[0].replace("\n    ", " ")
        can = {}
        for backend, capability in capabilities.items():
            if not capability.available:
                can[backend] = capability.summary
                continue
            verbs = sorted(fault.needs - capability.verbs)
            lacking = [capability.missing.get(verb, verb.value) for verb in verbs] + fault.lacks()
            can[backend] = "; ".join(lacking) or "yes"
        rows.append((name, about, can))
    return rows


def programs_found() -> list[Finding]:
    """Lists missing programs by purpose. A user needs few of them, so none is a failure."""
    findings = []
    for group, purpose in programs.GROUPS.items():
        if group in ("base", "setup"):
            continue  # this would not run without them
        lacking = [f"{program.name} ({program.package})" for program in programs.missing(programs.members(group))]
        detail = f"not found: {', '.join(lacking)}" if lacking else "all found"
        findings.append(Finding(f"programs for {purpose}", not lacking, detail, needed=False))
    return findings
