"""Defines the command `chaos plugins`, which lists the plug-ins of other packages."""

from typing import NamedTuple

import typer

from harness.backends.contract import load_backend
from harness.cli.output import note, print_json, print_rows
from harness.cli.shared_options import JsonOption
from harness.errors import ChaosError, UsageError
from harness.faults.contract import load_fault
from harness.judge.guarantee import load_guarantee
from harness.plugins import CONTRACT, entry_points
from harness.trainers.checkpoints.contract import load_layout
from harness.trainers.contract import load_trainer
from harness.trainers.readers.contract import load_reader

LOADED = {
    "backends": load_backend,
    "checkpoints": load_layout,
    "faults": load_fault,
    "guarantees": load_guarantee,
    "readers": load_reader,
    "trainers": load_trainer,
}
OURS = "chaos-harness"


class Plugin(NamedTuple):
    kind: str
    name: str
    package: str
    version: str
    module: str
    wrong: str


def plugins(json: JsonOption = False) -> None:
    """List the plug-ins that other packages added, and why one cannot be used.

    Exits with 2 if any plug-in cannot be used.

    Example: chaos plugins
    """
    found = [*added()]
    if json:
        print_json({"contract": CONTRACT, "plugins": [each._asdict() for each in found]})
    elif found:
        head = ("Kind", "Name", "Package", "Version", "Module", "State")
        print_rows(head, ([*each[:5], each.wrong or "can be used"] for each in found))
    else:
        note(f"No plug-in is installed. `chaos new --help` says how to write one. The contract is version {CONTRACT}.")
    if any(each.wrong for each in found):
        raise typer.Exit(UsageError.exit_code)


def added() -> list[Plugin]:
    found = []
    for kind in sorted([*LOADED, "attach", "exports", "stores"]):
        try:
            points = entry_points(f"chaos_harness.{kind}")
        except UsageError as error:
            found.append(Plugin(kind, "", "", "", "", str(error)))
            continue
        for name, point in points.items():
            package, version = (point.dist.name, point.dist.version) if point.dist else ("", "")
            if package == OURS:
                continue
            wrong = ""
            try:
                if kind in LOADED:
                    LOADED[kind](name)
                else:
                    point.load()
            except Exception as error:  # it is another's code
                wrong = str(error) if isinstance(error, ChaosError) else f"{type(error).__name__}: {error}"
            found.append(Plugin(kind, name, package, version, point.value, wrong))
    return found
