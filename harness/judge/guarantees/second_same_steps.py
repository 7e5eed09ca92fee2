"""A second restart goes on from the save before the last one, and does the same steps once more, to the end.

The second restart fails if its command fails, starts from scratch, ends before the run's last step, or saves nothing at
a step that the run saved. The result is inconclusive if the command was another job, if ranks restored anything but the
copy, or if the command took longer than a drill and 5 times the run's time for such steps.
"""

from harness.judge.facts import tellers
from harness.judge.facts.after_the_run import second_restart
from harness.judge.facts.done_again import done_again
from harness.judge.guarantee import Analysis, Breaches, of_second, second_guarantee


def breaches(evidence: Analysis) -> Breaches:
    last, made, again = evidence.run.reached_step, second_restart(evidence), done_again(evidence)
    if made.failed:
        yield of_second(f"a restart from the save of step {made.step} {made.failed}")
    if again and any(each.restored_step == 0 for each in again.log.processes):
        yield of_second(f"it started from scratch, though the save of step {made.step} was there")
    if again and again.reached < last:
        yield of_second(f"it ended after step {again.reached}, and the run after step {last}")
    if again and again.went_on:
        text = f"it went on to step {again.reached}; the run ended after step {last}"
        yield of_second(text, tellers.went_on(again.ends_there))


GUARANTEE = second_guarantee(breaches, lambda evidence: second_restart(evidence).silent)
