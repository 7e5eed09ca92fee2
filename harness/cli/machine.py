"""Commands on this machine: `chaos doctor` and `chaos heal`."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Annotated

import typer

from harness.backends.contract import Capability, Verb, load_backend
from harness.campaign import fault_free
from harness.cli import doctor as examination
from harness.cli.output import mark, out, print_json, safe, say
from harness.cli.shared_options import REPORTS, SCENARIOS, JsonOption, ReportsOption, ScenariosOption
from harness.errors import ChaosError
from harness.log.journal import JOURNAL
from harness.report.words import one_line, short
from harness.run import undo
from harness.units import counted

NAMED_MAX = 20  # of what was healed
LINE_MAX = 200


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
    """Say which backends, faults and scenarios work on this machine, and what is missing for the rest.

    What is missing comes first, of each kind, then what killed runs left. The last line says whether this machine is
    ready.

    Exits with 4 when no scenario can run here, or one that is named can run on no backend here.

    Example: chaos doctor spot-evict
    """
    findings, capabilities = examination.examine()
    faults = examination.fault_table(capabilities)
    found = examination.scenarios_here(names or (), scenarios, capabilities)
    stuck = [name for name, why in found if all(why.values())]
    left, _ = _undone(reports, dry_run=True)
    if json:
        print_json(
            {
                "findings": [dataclasses.asdict(finding) for finding in findings],
                "backends": {name: _values(capability) for name, capability in capabilities.items()},
                "faults": [{"name": name, "backends": can} for name, _, can in faults],
                "scenarios": [{"name": name, "runs": name not in stuck, "why_not": why} for name, why in found],
                "left_by_killed_runs": left,
            }
        )
    else:
        _print_scenarios(found, stuck)
        for finding in sorted(findings, key=lambda finding: (finding.ok, not finding.needed)):
            if every or finding.needed:
                out.print(f"{mark(finding.ok)} {safe(finding.what)}: {safe(finding.detail)}", soft_wrap=True)
        _print_backends(capabilities)
        stopped = [fault for fault in faults if "yes" not in fault[2].values()]
        _print_faults(faults if every else stopped, capabilities)
        if left:
            things = f"{counted(len(left), 'thing')} of killed runs"
            out.print(f"{mark(False)} {things}: chaos heal --dry-run names, chaos heal undoes", soft_wrap=True)
    fit = all(finding.ok for finding in findings if finding.needed)
    if not json and fit and not stuck:
        out.print(f"Ready: chaos run {safe(names[0] if names else 'spot-evict')}")
    elif not json and fit:
        out.print(f"Ready for {len(found) - len(stuck)} of {len(found)} scenarios.")
    elif not json:
        out.print(f"Not ready: {safe(', '.join(each.what for each in findings if each.needed and not each.ok))}")
    if not fit or (stuck and (names or len(stuck) == len(found))):
        raise typer.Exit(4)


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
        out.print(
            f"{mark('yes' in can.values())} fault {name} — {safe(words or 'no backend runs here')}", soft_wrap=True
        )


def _print_scenarios(found: list[tuple[str, dict[str, str]]], stuck: list[str]) -> None:
    ready = len(found) - len(stuck)
    out.print(f"{mark(not stuck)} {ready} of {len(found)} scenarios can run here on one backend or more")
    for name, why in found:
        if name in stuck:
            words = "; ".join(f"{backend}: {reason}" for backend, reason in why.items()) or "no backend runs here"
            out.print(f"{mark(False)} scenario {safe(name)} cannot run here — {safe(words)}", soft_wrap=True)


def _missing(capability: Capability) -> dict[str, str]:
    """Verbs that a backend that runs here lacks, and why."""
    lacking = [verb for verb in Verb if capability.available and verb not in capability.verbs]
    return {verb.value: capability.missing.get(verb, "not there") for verb in lacking}


def _values(capability: Capability) -> dict[str, object]:
    verbs = sorted(verb.value for verb in capability.verbs)
    return {
        "available": capability.available,
        "summary": capability.summary,
        "verbs": verbs,
        "missing": _missing(capability),
    }


def heal(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Name all that would be undone; change nothing.")] = False,
    reports: ReportsOption = REPORTS,
) -> None:
    """Undo what killed runs left behind on this machine, and name it.

    Runs in --reports are undone as their journals say. Wherever reports are, it finds processes and control groups of
    local runs, and folders, containers and Slurm jobs of probes. Touches only what this harness made, and whose harness
    is gone. Exits with 3 if something could not be undone, and says how to get rid of it.

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
    """Returns remains of killed runs in words, and the reason for each that could not be undone."""
    runs, failed = undo.heal(reports, dry_run)
    strays, problems = undo.heal_strays(dry_run)
    unfinished, left = fault_free.sweep(reports, dry_run)
    found = [f"run {run}: what its {JOURNAL} says" for run in runs]
    found += [*strays, *(f"folder of a run that never ended: {name}" for name in unfinished)]
    return found, [*failed, *problems, *left]
