"""Commands on this machine: `chaos doctor` and `chaos heal`."""

from __future__ import annotations

import dataclasses

import typer

from harness.backends.contract import Capability, Verb
from harness.campaign import fault_free
from harness.cli import doctor as examination
from harness.cli.options import REPORTS, JsonOption, ReportsOption
from harness.cli.output import mark, out, print_json, safe, say
from harness.errors import ChaosError
from harness.run import undo


def doctor(json: JsonOption = False) -> None:
    """Say which backends and faults work on this machine, and what is missing for the rest.

    Exits with 4 when no scenario can run here.
    """
    findings, capabilities = examination.examine()
    faults = examination.fault_table(capabilities)
    if json:
        print_json(
            {
                "findings": [dataclasses.asdict(finding) for finding in findings],
                "backends": {name: _values(capability) for name, capability in capabilities.items()},
                "faults": [{"name": name, "backends": can} for name, _, can in faults],
            }
        )
    else:
        for finding in findings:
            out.print(f"{mark(finding.ok)} {safe(finding.what)}: {safe(finding.detail)}", soft_wrap=True)
        _print_backends(capabilities)
        _print_faults(faults, capabilities)
    fit = all(finding.ok for finding in findings if finding.needed)
    if not fit or not any(capability.available for capability in capabilities.values()):
        raise typer.Exit(4)


def _print_backends(capabilities: dict[str, Capability]) -> None:
    for name, capability in capabilities.items():
        summary = safe(capability.summary)
        out.print(f"{mark(capability.available)} [bold]backend {name}[/]: {summary}", soft_wrap=True)
        for verb, reason in _missing(capability).items():
            out.print(f"    {mark(False)} {verb}: {safe(reason)}", soft_wrap=True)


def _print_faults(faults: list[tuple[str, str, dict[str, str]]], capabilities: dict[str, Capability]) -> None:
    for name, _, can in faults:
        words = "; ".join(f"{backend}: {can[backend]}" for backend in can if capabilities[backend].available)
        out.print(
            f"{mark('yes' in can.values())} fault {name} — {safe(words or 'no backend runs here')}", soft_wrap=True
        )


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


def heal(reports: ReportsOption = REPORTS) -> None:
    """Undo what killed runs left behind. Touches only what this harness made."""
    healed, failed = map(list.__add__, undo.heal(reports), undo.heal_strays())
    swept, left = fault_free.sweep(reports)
    failed += left
    if swept:
        healed.append(f"what {len(swept)} unfinished run{'s' if len(swept) > 1 else ''} left among the kept ones")
    say(f"healed {', '.join(healed)}" if healed else "nothing to heal")
    if failed:
        raise ChaosError("\n".join(failed))
