"""After a restart, too, each checkpoint holds the state of its own step, all of it."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.saves_beside_usual import OtherTensors, other_amount, other_tensors, same_size
from harness.judge.guarantee import Breach, Guarantee, breach


def breaches(evidence: Analysis) -> Iterator[Breach]:
    for each in other_tensors(evidence):
        why = "though all losses are the same: some state may not have been restored"
        text = f"{_where(each)} than in the fault-free run, {why} (averaged weights, running statistics)"
        yield breach(text, each)
    for same in same_size(evidence):
        (least, most), (low, high) = same.sizes, same.usual
        text = f"the checkpoints after step {same.after} have {least:,} to {most:,} bytes"
        yield breach(f"{text}, in the fault-free run {low:,} to {high:,}: they may hold one state", same)
    for other in other_amount(evidence):
        text = f"the checkpoint of step {other.step} has {other.has} {other.what}, and {other.usually} without a fault"
        yield breach(f"{text}, on whatever number of ranks", other)


def _where(each: OtherTensors) -> str:
    if each.path:
        return f"at the end {each.path} holds other tensors"
    if each.rank is None:
        return f"the checkpoint of step {each.step} holds other tensors"
    return f"rank {each.rank} saved other tensors at step {each.step}"


def nothing(evidence: Analysis) -> str:
    if len(evidence.run.epochs) < 2:
        return "the job did not restart"
    return "" if evidence.fault_free is not None else "there is no fault-free run to compare with"


GUARANTEE = Guarantee(
    breaches, ("checkpoints",), explained_by=("saves.whole", "saves.written_when_told"), nothing=nothing
)
