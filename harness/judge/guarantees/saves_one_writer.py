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
        yield breach(f"ranks {ranks} wrote {each.save.begun_path} {when} ({often})", each)


GUARANTEE = Guarantee(breaches, rests_on=("checkpoints",))
