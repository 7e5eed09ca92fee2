"""Defines `chaos doctor`, which says which backends and faults work on this machine, and `chaos heal`, which undoes
what killed runs left behind."""

import dataclasses
import importlib.util
import os
import pathlib
import platform
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from harness import programs
from harness.backends.contract import Capability, Verb, backend_names, load_backend
from harness.campaign import fault_free
from harness.campaign.checked_files import load_scenario
from harness.cli.output import mark, out, print_json, safe, say
from harness.cli.shared_options import REPORTS, SCENARIOS, JsonOption, ReportsOption, ScenariosOption
from harness.errors import ChaosError, UsageError
from harness.extras import how_to_install
from harness.faults.contract import fault_names, load_fault, missing_here
from harness.log.journal import JOURNAL
from harness.node.emitter import nvml
from harness.plan.capabilities import lacking
from harness.plan.making import make_plan
from harness.report.words import one_line, short
from harness.run import undo
from harness.spec.scenario import find_scenario
from harness.units import counted

NAMED_MAX = 20  # of what was healed
LINE_MAX = 200


@dataclass(frozen=True)
class Finding:
    what: str
    ok: bool
    detail: str
    needed: bool = True  # without it this machine runs nothing


def examine() -> tuple[list[Finding], dict[str, Capability]]:
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
        *gpus_found(),
        *programs_found(),
    ]
    return findings, {name: load_backend(name).probe() for name in backend_names()}


def scenarios_here(
    names: Sequence[str], scenarios: pathlib.Path, capabilities: Mapping[str, Capability]
) -> list[tuple[str, dict[str, str]]]:
    """Returns for each scenario (by default, all shipped ones) why the scenario cannot run on each backend of this
    machine. An empty reason means that the scenario can run. Raises `UsageError` for an unknown scenario."""
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
    """Returns name and description of each fault and, for each backend, `yes` or why the backend cannot inject the
    fault here."""
    rows = []
    for name in fault_names():
        try:
            fault = load_fault(name)
        except UsageError as error:
            rows.append((name, f"Cannot be used: {error}", dict.fromkeys(capabilities, str(error))))
            continue
        about = " ".join((fault.__doc__ or "").strip().split("\n\n")[0].split())
        can = {}
        for backend, capability in capabilities.items():
            if not capability.available:
                can[backend] = capability.summary
                continue
            verbs = sorted(fault.needs - capability.verbs)
            lacking = [capability.missing.get(verb, verb.value) for verb in verbs] + missing_here(fault)
            can[backend] = "; ".join(lacking) or "yes"
        rows.append((name, about, can))
    return rows


def gpus_found() -> list[Finding]:
    unwell = nvml.unwell()
    facts = {} if unwell else nvml.facts()
    words = "; ".join(unwell) or (f"{facts['gpus']} well" if facts else "")
    return [Finding("GPUs", not unwell, words, needed=False)] if words else []


def programs_found() -> list[Finding]:
    """Returns a finding for each group of external programs, which names the missing programs. A missing program is no
    failure, because most users need only a few groups."""
    findings = []
    for group, purpose in programs.GROUPS.items():
        if group in ("base", "setup"):
            continue  # this would not run without them
        lacking = [f"{program.name} ({program.package})" for program in programs.missing(programs.members(group))]
        detail = f"not found: {', '.join(lacking)}" if lacking else "all found"
        findings.append(Finding(f"programs for {purpose}", not lacking, detail, needed=False))
    return findings


def doctor(
    names: Annotated[
        list[str] | None, typer.Argument(help="Scenarios that must be able to run here.", metavar="[SCENARIO]…")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Also each fault, and the programs that only the harness's own tests need.")
    ] = False,
    json: JsonOption = False,
    reports: ReportsOption = REPORTS,
    scenarios: ScenariosOption = SCENARIOS,
) -> None:
    """Say which backends, faults and scenarios work here, and what the rest lacks.

    Each part of the output begins with what is missing. The output ends with a list of what killed runs left behind,
    and with a line that says whether this machine is ready.

    Exits with 4 if this machine lacks something essential, if no scenario can run here, or if a scenario that you name
    can run on no backend here.

    Example: chaos doctor spot-evict
    """
    findings, capabilities = examine()
    faults = fault_table(capabilities)
    found = scenarios_here(names or (), scenarios, capabilities)
    stuck = [name for name, why in found if all(why.values())]
    left, _ = _undone(reports, dry_run=True)
    unfit = [finding.what for finding in findings if finding.needed and not finding.ok]
    if json:
        print_json(
            {
                "findings": [dataclasses.asdict(finding) for finding in findings],
                "backends": {
                    name: {
                        "available": capability.available,
                        "summary": capability.summary,
                        "verbs": sorted(verb.value for verb in capability.verbs),
                        "missing": _missing(capability),
                    }
                    for name, capability in capabilities.items()
                },
                "faults": [{"name": name, "backends": can} for name, _, can in faults],
                "scenarios": [{"name": name, "runs": name not in stuck, "why_not": why} for name, why in found],
                "left_by_killed_runs": left,
            }
        )
    else:
        ready = len(found) - len(stuck)
        _print_marked(not stuck, f"{ready} of {len(found)} scenarios can run here on one backend or more")
        for name, why in found:
            if name in stuck:
                words = "; ".join(f"{backend}: {reason}" for backend, reason in why.items()) or "no backend runs here"
                _print_marked(False, f"scenario {name} cannot run here — {words}")
        for finding in sorted(findings, key=lambda finding: (finding.ok, not finding.needed)):
            if every or finding.needed or (finding.what == "GPUs" and not finding.ok):
                _print_marked(finding.ok, f"{finding.what}: {finding.detail}")
        _print_backends(capabilities)
        _print_faults([each for each in faults if every or "yes" not in each[2].values()], capabilities)
        if left:
            things = f"{counted(len(left), 'thing')} of killed runs"
            _print_marked(False, f"{things}: chaos heal --dry-run names, chaos heal undoes")
        if unfit:
            say(f"Not ready: {', '.join(unfit)}")
        elif stuck:
            say(f"Ready for {ready} of {len(found)} scenarios.")
        else:
            say(f"Ready: chaos run {names[0] if names else 'spot-evict'}")
    if unfit or (stuck and (names or len(stuck) == len(found))):
        raise typer.Exit(4)


def _print_marked(ok: bool, line: str) -> None:
    out.print(f"{mark(ok)} {safe(line)}", soft_wrap=True)


def _print_backends(capabilities: dict[str, Capability]) -> None:
    for name, capability in sorted(capabilities.items(), key=lambda each: each[1].available):
        summary = safe(capability.summary)
        out.print(f"{mark(capability.available)} [bold]backend {name}[/]: {summary}", soft_wrap=True)
        nowhere = [set(verbs.values()) for verbs in load_backend(name).lacks().values()]  # however it runs
        for verb, reason in _missing(capability).items():
            sign = "–" if nowhere and all(reason in each for each in nowhere) else mark(False)
            out.print(f"    {sign} {verb}: {safe(reason)}", soft_wrap=True)


def _print_faults(faults: list[tuple[str, str, dict[str, str]]], capabilities: dict[str, Capability]) -> None:
    for name, _, can in sorted(faults, key=lambda fault: "yes" in fault[2].values()):
        words = "; ".join(f"{backend}: {can[backend]}" for backend in can if capabilities[backend].available)
        _print_marked("yes" in can.values(), f"fault {name} — {words or 'no backend runs here'}")


def _missing(capability: Capability) -> dict[str, str]:
    lacking = [verb for verb in Verb if capability.available and verb not in capability.verbs]
    return {verb.value: capability.missing.get(verb, "not there") for verb in lacking}


def heal(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Name all that would be undone; change nothing.")] = False,
    reports: ReportsOption = REPORTS,
) -> None:
    """Undo what killed runs left behind on this machine, and name it.

    Undoes the faults of runs in --reports as recorded in the runs' journals. Independent of --reports, also removes
    processes and control groups of local runs, and folders, containers and Slurm jobs of probes. Touches only what was
    made by a harness process that no longer runs. Exits with 3 if something could not be undone, and says how to get
    rid of it.

    Example: chaos heal --dry-run
    """
    found, problems = _undone(reports, dry_run)
    if found or not problems:
        say(f"{'would heal' if dry_run else 'healed'} {counted(len(found), 'thing')}:" if found else "nothing to heal")
    shown = found if dry_run else found[:NAMED_MAX]
    for line in shown:
        say(f"  {short(one_line(line), LINE_MAX)}")
    if len(found) > len(shown):
        say(f"  and {len(found) - len(shown):,} more")
    if problems:
        raise ChaosError("\n".join(problems))


def _undone(reports: pathlib.Path, dry_run: bool) -> tuple[list[str], list[str]]:
    runs, failed = undo.heal(reports, dry_run)
    strays, problems = undo.heal_strays(dry_run)
    unfinished, left = fault_free.sweep(reports, dry_run)
    found = [f"run {run}: what its {JOURNAL} says" for run in runs]
    found += [*strays, *(f"folder of a run that never ended: {name}" for name in unfinished)]
    return found, [*failed, *problems, *left]
