"""docs/backends.md: which backend has which verb, as they declare it, and how the conformance suite measures each."""

import inspect
from collections.abc import Mapping

from conformance.checks import CHECKS
from conformance.places import PLACES

from harness.backends.contract import Verb, load_backend

IN_THE_LIFE_OF_A_RUN = {
    Verb.KILL: "processes left of the node, and steps in its name, after the kill: none",
    Verb.REPLACE: "a new incarnation of the place, which steps",
}
UNPROVEN = {"kubernetes": {Verb.NET_RATE, Verb.NET_DELAY, Verb.NET_LOSS, Verb.NET_PARTITION}}


def declared() -> dict[str, Mapping[Verb, str]]:
    """Column → verbs that are never there, with the reason."""
    columns = list(dict.fromkeys(place.name for place in PLACES))
    found: dict[str, Mapping[Verb, str]] = {}
    for name in dict.fromkeys(place.backend_name for place in PLACES):
        found |= load_backend(name).lacks()
    return {column: found[column] for column in columns if column in found}


def table_with_notes() -> str:
    table = declared()
    reasons = list(dict.fromkeys(reason for lacks in table.values() for reason in lacks.values()))
    lines = ["| verb | " + " | ".join(table) + " | what is measured |", "|---|" + ":-:|" * len(table) + "---|"]
    for verb in Verb:
        cells = [_cell(verb, column, lacks, reasons) for column, lacks in table.items()]
        lines.append(f"| {verb.value} | {' | '.join(cells)} | {measured(verb)} |")
    notes = [f"{number}. {reason[0].upper()}{reason[1:]}." for number, reason in enumerate(reasons, 1)]
    return "\n".join([*lines, "", *notes])


def _cell(verb: Verb, column: str, lacks: Mapping[Verb, str], reasons: list[str]) -> str:
    if verb in lacks:
        return str(reasons.index(lacks[verb]) + 1)
    return "○" if verb in UNPROVEN.get(column, ()) else "✓"


def measured(verb: Verb) -> str:
    return IN_THE_LIFE_OF_A_RUN.get(verb) or inspect.getdoc(CHECKS[verb]) or ""
