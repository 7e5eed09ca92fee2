"""A second restart saves what the run saved, to the same tensors."""

from harness.judge.facts.after_the_run import tensors
from harness.judge.facts.done_again import done_again, not_done
from harness.judge.guarantee import Analysis, Breaches, of_second, second_guarantee


def breaches(evidence: Analysis) -> Breaches:
    """Yields a second restart without a save as late as the run's last one, or with other tensors in a save. Tensors
    are compared as the harness saw them."""
    again = done_again(evidence)
    if again is None:
        return
    last = max((event.get("step") or 0 for event in evidence.run.published), default=0)
    saved = again.made.told.get("saved_step")
    if last > again.made.step and isinstance(saved, int) and saved < last:
        yield of_second(f"it saved nothing after step {saved}, and the run saved step {last}")
    mine, other = tensors(evidence.run), tensors(again.log)
    differ = [step for step in mine.keys() & other.keys() if step > again.made.step and mine[step] != other[step]]
    if differ and again.repeats:
        yield of_second(f"the tensors in its save of step {max(differ)} differ from those in the run's")


GUARANTEE = second_guarantee(breaches, not_done)
