"""A second restart goes on from the save before the last one, and does the same steps once more, to the end."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.facts.after_the_run import second_restart
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.done_again import done_again
from harness.judge.guarantee import Breach, of_second, second_guarantee


def breaches(evidence: Analysis) -> Iterator[Breach]:
    run, made, again = evidence.run, second_restart(evidence), done_again(evidence)
    if made.failed:
        yield of_second(f"a restart from the save of step {made.step} {made.failed}", made)
    if again:
        if any(each.restored_step == 0 for each in again.log.processes):
            yield of_second(f"it started from scratch, though the save of step {made.step} was there", made)
        if again.reached < run.reached_step:
            yield of_second(f"it ended after step {again.reached}, and the run after step {run.reached_step}", made)
        if again.went_on:
            yield of_second(f"it went on to step {again.reached}; the run ended after step {run.reached_step}", again)


GUARANTEE = second_guarantee(breaches, lambda evidence: second_restart(evidence).silent)
