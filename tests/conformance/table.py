"""docs/backends.md: which backend has which verb, as they declare it, and how the conformance suite measures each.

python -m conformance.table        writes it (`make backends`)
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping

from conformance.checks import CHECKS
from conformance.places import PLACES, ROOT

from harness.backend import Verb, load_backend

PAGE = ROOT / "docs" / "backends.md"
IN_THE_LIFE_OF_A_RUN = {
    Verb.KILL: "processes left of the node, and steps in its name, after the kill: none",
    Verb.REPLACE: "a new incarnation of the place, which steps",
}
HEAD = """\
# Backends and what they can do to a node

Made by `make backends` from what the backends declare; a test fails when it is out of date. `chaos doctor` tells what
this very machine takes away besides (no `/dev/fuse`, no C compiler, a kernel without a module …), with the remedy.

✓: the conformance suite (`tests/conformance/`) makes it act on a real node there, measures that, undoes it, and
measures that it is undone. A number: it is refused before anything is launched, for the reason below.

"""


def declared() -> dict[str, Mapping[Verb, str]]:
    """Column → verbs that are never there, with the reason."""
    columns = list(dict.fromkeys(place.name for place in PLACES))
    found: dict[str, Mapping[Verb, str]] = {}
    for name in dict.fromkeys(place.backend_name for place in PLACES):
        found |= load_backend(name).lacks()
    return {column: found[column] for column in columns if column in found}


def page() -> str:
    table = declared()
    reasons = list(dict.fromkeys(reason for lacks in table.values() for reason in lacks.values()))
    lines = ["| verb | " + " | ".join(table) + " | what is measured |", "|---|" + ":-:|" * len(table) + "---|"]
    for verb in Verb:
        cells = ["✓" if verb not in lacks else str(reasons.index(lacks[verb]) + 1) for lacks in table.values()]
        lines.append(f"| {verb.value} | {' | '.join(cells)} | {measured(verb)} |")
    notes = [f"{number}. {reason[0].upper()}{reason[1:]}." for number, reason in enumerate(reasons, 1)]
    return HEAD + "\n".join([*lines, "", *notes]) + "\n"


def measured(verb: Verb) -> str:
    return IN_THE_LIFE_OF_A_RUN.get(verb) or inspect.getdoc(CHECKS[verb]) or ""


if __name__ == "__main__":
    PAGE.write_text(page())
