"""The samples of each rank: together the ranks computed with every sample of a step's batch, each once.

A rank with fewer samples, or with some twice, raises no error, and the places of the global batch in the shuffled order
stay right. How many different samples each rank computed with (`rank_samples` of a step) shows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from harness.judge.codes import Code
from harness.judge.score import Bounds, Evidence, Finding, Score, ScoreResult, Verdict
from harness.timeline.lineage import cells
from harness.timeline.timeline import Bools, Ints, Steps, Timeline

ITEM = "samples of each rank"


class RankSamplesBounds(Bounds):
    """Nothing to set; `rank_samples: off` where ranks are meant to leave samples out."""


class RankSamples(Score):
    name = "rank_samples"
    section = "metrics"
    order = 27  # before the losses: other samples are the cause of other losses
    Bounds = RankSamplesBounds
    by_default = ITEM

    def score(self, evidence: Evidence, bounds: RankSamplesBounds | None) -> ScoreResult:
        run, fault_free = evidence.run, evidence.fault_free
        rows = _counted(run.steps)
        untold = list(_untold(run, fault_free))[:1]
        if not len(rows):
            return ScoreResult({}, reasons=untold if bounds else ())
        short = _short(run.steps, rows)
        totals = np.bincount(run.steps.rank[rows], weights=run.steps.rank_samples[rows])
        totals = totals[np.unique(run.steps.rank[rows])]
        values = {"rank_samples_min": int(totals.min()), "rank_samples_max": int(totals.max())}
        values |= {"batches_short": len(short)}
        if bounds is None:
            return ScoreResult(values)
        if fault_free is not None and _short(fault_free.steps, _counted(fault_free.steps)):
            return ScoreResult(values, not_judged=[(ITEM, "the ranks of the fault-free run leave samples out, too")])
        return ScoreResult(values, reasons=[*_findings(run, short), *untold][:1])


@dataclass(frozen=True)
class Short:
    """A surviving step whose ranks did not compute with as many different samples as its batch has."""

    step: int
    rank: int  # the one with the fewest; the lowest of several
    had: int
    got: int  # by all ranks together
    asked: int  # samples of the batch

    def __str__(self) -> str:
        who = f"at step {self.step} rank {self.rank} computed with {self.had} different samples"
        return f"{who}, and all ranks together with {self.got} of the batch's {self.asked}"


def _counted(steps: Steps) -> Ints:
    """Rows of surviving steps that all ranks did, and of which all ranks tell their samples and those of the batch."""
    rows = np.flatnonzero(steps.survives & steps.complete)
    told = _tells(steps)[rows]
    cell, count = cells(steps.epoch[rows], steps.step[rows])
    untold = np.bincount(cell[~told], minlength=count) > 0
    return rows[~untold[cell]]


def _short(steps: Steps, rows: Ints) -> list[Short]:
    """In the order of steps."""
    cell, count = cells(steps.epoch[rows], steps.step[rows])
    asked, got = np.zeros(count, np.int64), np.zeros(count, np.int64)
    np.maximum.at(asked, cell, steps.count[rows])
    np.add.at(got, cell, steps.rank_samples[rows])
    wrong = rows[(asked != got)[cell]]
    order = wrong[np.lexsort((steps.rank[wrong], steps.rank_samples[wrong], steps.step[wrong]))]
    _, first = np.unique(steps.step[order], return_index=True)  # of each step the rank with the fewest
    number = dict(zip(rows.tolist(), cell.tolist(), strict=True))
    return [
        Short(
            int(steps.step[row]),
            int(steps.rank[row]),
            int(steps.rank_samples[row]),
            int(got[number[row]]),
            int(asked[number[row]]),
        )
        for row in order[first].tolist()
    ]


def _untold(run: Timeline, fault_free: Timeline | None) -> Iterator[Finding]:
    """A trainer that tells its samples in some steps tells them in all: what it leaves out may be what went wrong."""
    usual = None if fault_free is None else fault_free.steps
    if not _tells(run.steps).any():
        if usual is not None and _tells(usual).any():
            text = "the ranks did not report their samples, but those of the fault-free run did"
            yield Finding(Verdict.INCONCLUSIVE, f"rank_samples: {text}", Code.RANK_SAMPLES_MISSING)
        return
    silent = np.flatnonzero(run.steps.survives & run.steps.complete & ~_tells(run.steps))
    if usual is not None and _tells(usual).any():  # who is silent there is silent by rule
        silent = silent[np.isin(run.steps.rank[silent], usual.rank[_tells(usual)])]
    if len(silent):
        first = silent[np.lexsort((run.steps.rank[silent], run.steps.step[silent]))[0]]
        who = f"at step {run.steps.step[first]} rank {run.steps.rank[first]}"
        yield Finding(
            Verdict.INCONCLUSIVE,
            f"rank_samples: {who} did not report its samples, but others were reported",
            Code.RANK_SAMPLES_UNTOLD,
        )


def _tells(steps: Steps) -> Bools:
    return np.asarray((steps.rank_samples >= 0) & (steps.count >= 0), np.bool_)


def _findings(run: Timeline, short: list[Short]) -> Iterator[Finding]:
    for each in short:
        said = [a for a in run.anomalies if a.get("kind") == "data_skew" and a.get("at_step") == each.step]
        word = "the trainer said so, and went on" if said else "the trainer did not say so"
        yield Finding(Verdict.FAIL, f"rank_samples: {each}; {word}", Code.RANK_SAMPLES_SHORT)


SCORES = (RankSamples(),)
