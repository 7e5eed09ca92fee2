"""A second restart goes on from the save before the last one, and does the same steps once more, to the end.

The run fails if the command of the second restart fails, starts from scratch, or ends before the run's last step. The
second restart is inconclusive if its command, seed, data or code differs from the run's, or if ranks restore anything
but the planned save. The second restart is inconclusive if its steps take over 5 times as long as in the run.
"""

from harness.judge.facts import tellers
from harness.judge.facts.after_the_run import second_restart
from harness.judge.facts.done_again import done_again
from harness.judge.guarantee import Analysis, Breaches, after, of_second, second_guarantee


def breaches(evidence: Analysis) -> Breaches:
    last, made, again = evidence.run.reached_step, second_restart(evidence), done_again(evidence)
    if made.failed:
        yield of_second(f"a restart from the save of step {made.step} {made.failed}", grounds=after(made.waited))
    if again and any(each.restored_step == 0 for each in again.log.processes):
        yield of_second(f"it started from scratch, though the save of step {made.step} was there")
    if again and again.reached < last:
        yield of_second(f"it ended after step {again.reached}, and the run after step {last}")
    if again and again.went_on:
        text = f"it went on to step {again.reached}; the run ended after step {last}"
        yield of_second(text, tellers.went_on(again.ends_there))


GUARANTEE = second_guarantee(breaches, lambda evidence: second_restart(evidence).silent)
