"""What a fault takes or freezes does nothing more, and does not leave by itself."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.fault_victims import frozen_went_on, killed_went_on, left_by_themselves, not_taken
from harness.judge.guarantee import RUN, Breach, Guarantee, of_fault
from harness.units import counted


def breaches(evidence: Analysis) -> Iterator[Breach]:
    for killed in killed_went_on(evidence):
        yield of_fault(f"killed rank {killed.rank}, but the rank did steps afterwards", killed)
    for frozen in frozen_went_on(evidence):
        what = "exited" if frozen.exited else "said something"
        what = f"did {counted(frozen.steps, 'step')}" if frozen.steps > 0 else what
        yield of_fault(f"froze rank {frozen.rank}, but the rank {what} meanwhile", frozen)
    for node in not_taken(evidence):
        yield of_fault(f"gave {node.node} a notice, but never took the node", node)
    for left in left_by_themselves(evidence):
        yield of_fault(f"should have killed rank {left.rank}, but the rank exited by itself", left)


GUARANTEE = Guarantee(breaches, holds_for=(RUN,), needs_steps=False, of_a_fault=True)
