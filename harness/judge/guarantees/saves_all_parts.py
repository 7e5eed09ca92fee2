"""After the run, all files that belong to the newest checkpoint are there, as in the fault-free run.

A file belongs to the newest checkpoint if the file name contains the step of this checkpoint.
"""

import re

from harness.evidence.files_left import listings
from harness.judge.guarantee import Analysis, Breaches, Guarantee, breach


def breaches(evidence: Analysis) -> Breaches:
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


CAUSES = ("saves.whole", "saves.written_when_told")
GUARANTEE = Guarantee(breaches, (), CAUSES, nothing=lambda e: found if isinstance(found := listings(e), str) else "")
