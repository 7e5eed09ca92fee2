"""The job ends well: it does its last step, and ends with the state of it."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.job_end import Failed, GivenUp, Unfinished, done, ended, reached
from harness.judge.guarantee import DRILL, RUN, Breach, Guarantee, breach
from harness.judge.verdict import Ground, Kind
from harness.timeline.timeline import Timeline


def breaches(evidence: Analysis) -> Iterator[Breach]:
    run = evidence.run
    for each in ended(evidence):
        if isinstance(each, Failed):
            yield breach(_failed(run, each), each)
        elif isinstance(each, GivenUp):
            text = f"{run.outcome_reason or 'the run was aborted'}; {reached(run)}"
            yield breach(text, each, grounds=[Ground(Kind.DURATION)])
        elif isinstance(each, Unfinished):
            text = f"the job ended without an error, but only reached {done(run)}"
            yield breach(text, each, grounds=[Ground(Kind.ABSENCE, since=each.since), Ground(Kind.REACHED)])
        else:
            text = f"the job reached {done(run)}, but went back afterwards"
            yield breach(f"{text}: it ended with the state of step {each.kept}", each)


def _failed(run: Timeline, each: Failed) -> str:
    at = f" at {done(run)}" if each.seen else ""
    after = f"; it restored nothing after `{each.spoiler}` had damaged a checkpoint" if each.spoiler else ""
    return f"the job failed{at}: {run.outcome_reason}{after}"


GUARANTEE = Guarantee(breaches, explained_by=("saves.one_writer",), holds_for=(RUN, DRILL), needs_steps=False)
