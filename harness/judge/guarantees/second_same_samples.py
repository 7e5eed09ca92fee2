"""A second restart consumes the same samples in the steps that it does once more."""

from harness.judge.facts import losses
from harness.judge.facts.done_again import done_again, not_done
from harness.judge.guarantee import Analysis, Breaches, of_second, second_guarantee

SAMPLES = {"first": "position", "count": "number of samples", "digest": "digest"}  # in words


def breaches(evidence: Analysis) -> Breaches:
    """Yields the first step that consumed other samples than the run did, if both tell them; for each rank by indices,
    which each log numbers in its own way."""
    run, again = evidence.run, done_again(evidence)
    if again is None or not again.bounds_samples:
        return
    for name, words in SAMPLES.items():
        untold = 0 if name == "digest" else -1
        mine, other = getattr(again.compared.run, name), getattr(again.compared.fault_free, name)
        for step in again.compared.step[(mine != untold) & (other != untold) & (mine != other)][:1]:
            yield of_second(f"at step {step} it consumed other data than the run: another {words}")
    if again.repeats:
        steps = again.log.steps
        rows, others = losses.paired(steps, run.steps)
        mine, other = steps.samples[rows], run.steps.samples[others]
        differ = ~again.log.samples.equal(mine, run.samples, other) & (mine >= 0) & (other >= 0)
        for row in rows[differ][:1]:
            yield of_second(f"at step {steps.step[row]} rank {steps.rank[row]} consumed other samples than then")
        yield from map(of_second, again.of_ranks(SAMPLES))


GUARANTEE = second_guarantee(breaches, not_done)
