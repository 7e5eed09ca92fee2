"""A second restart, which repeats the run's last steps, makes the same saves with the same tensors."""

from harness.judge.facts.after_the_run import tensors
from harness.judge.facts.done_again import done_again, not_done
from harness.judge.guarantee import Analysis, Breaches, of_second, second_guarantee


def breaches(evidence: Analysis) -> Breaches:
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


GUARANTEE = second_guarantee(breaches, lambda e: not_done(e) or getattr(done_again(e), "saves_not_compared", ""))
