"""Do the checkpoints after a restart hold what the fault-free run's hold? They show a part of the state that was not
restored and that no loss depends on: averaged weights, running statistics.

Judged where all losses are the fault-free run's, bit for bit, and where the checkpoints before the first restart agree.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.codes import Code
from harness.judge.facts.analysis import Analysis
from harness.judge.score import Finding, Verdict
from harness.timeline.saves import COMMITTED, family
from harness.timeline.timeline import Timeline

Key = tuple[int, int, str]  # rank, step, name without its numbers


def findings(evidence: Analysis) -> Iterator[Finding]:
    """The first checkpoint that holds something else."""
    run, fault_free, compared = evidence.run, evidence.fault_free, evidence.comparison
    if fault_free is None or compared is None or not compared.identical or len(run.epochs) < 2:
        return
    restart = run.epochs[1].begin
    mine, theirs = _tensors(run), _tensors(fault_free)
    common = sorted((mine[key][0], key) for key in mine.keys() & theirs.keys())
    differ = [(at, key) for at, key in common if mine[key][1] != theirs[key][1]]
    if common and common[0][0] < restart and differ and differ[0][0] >= restart:
        rank, step, _ = differ[0][1]
        text = (
            f"rank {rank} saved other tensors at step {step} than in the fault-free run, though all losses are the same"
        )
        yield Finding(
            Verdict.INCONCLUSIVE,
            f"{text}: some state may not have been restored (averaged weights, running statistics)",
            Code.SAVE_OTHER_TENSORS,
        )


def _tensors(run: Timeline) -> dict[Key, tuple[int, str]]:
    """When each checkpoint was committed for the last time, and the digest of its tensors."""
    found = {}
    for event in run.checkpoints:
        if event["event"] == COMMITTED and event.get("tensors") and event["process"] >= 0:
            key = run.processes[event["process"]].rank, int(event["step"]), family(event.get("path"))
            found[key] = event["at"], str(event["tensors"])
    return found
