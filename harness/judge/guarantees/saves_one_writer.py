"""One rank alone writes each file of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.save_writing import two_writers
from harness.judge.guarantee import Breach, Guarantee, breach
from harness.units import counted


def breaches(evidence: Analysis) -> Iterator[Breach]:
    for each in two_writers(evidence):
        when = "at the same time" if each.at_once else "for one step, and not the same bytes"
        often = f"{counted(each.times, 'time')}, first in the save of step {each.save.step}"
        ranks = " and ".join(map(str, each.ranks))
        path = _within_run(each.save.begun_path, str(evidence.run.plan.get("run_id") or ""))
        yield breach(f"ranks {ranks} wrote {path} {when} ({often})", each)


def _within_run(path: str, run_id: str) -> str:
    """Relative to the folder of the run, if it lies in that."""
    _, found, rest = path.partition(f"/{run_id}/")
    return rest if run_id and found else path


GUARANTEE = Guarantee(breaches, rests_on=("checkpoints",))
