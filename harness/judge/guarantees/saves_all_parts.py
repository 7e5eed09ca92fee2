"""At the end, the newest checkpoint has all files beside it that belong to it without a fault.

A file with the number of the newest checkpoint in its name, such as the state of one rank, must be there. If an export
holds only tensors of the last save in the fault-free run, the export must do so in this run, too.
"""

import re

from harness.judge.facts.files_left import listings
from harness.judge.guarantee import Analysis, Breaches, Guarantee, breach


def breaches(evidence: Analysis) -> Breaches:
    """Yields missing files whose names carry the number of the newest checkpoint, such as a state of each rank."""
    saves, usual, found = evidence.saves, evidence.fault_free_saves, listings(evidence)
    if usual is None or isinstance(found, str):
        return
    newest = max(saves.store.left_steps(), default=None)
    if newest is None or newest != max(usual.store.left_steps(), default=None):
        return
    due, there = found
    names = [name for name in sorted(due - there) if newest in map(int, re.findall(r"\d{1,18}", name))]
    if names:
        text = f"beside the checkpoint of step {newest}, {names[0]} is missing, which is there without a fault"
        also = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
        yield breach(f"{text}{also}: a part of the state may no longer be saved", usual)


def nothing(evidence: Analysis) -> str:
    found = listings(evidence)
    return found if isinstance(found, str) else ""


GUARANTEE = Guarantee(breaches, explained_by=("saves.whole", "saves.written_when_told"), nothing=nothing)
