"""A second restart, which repeats the run's last steps, consumes the same samples in these steps as the run."""

from harness.evidence import losses
from harness.judge.facts.done_again import done_again, not_done
from harness.judge.guarantee import Analysis, Breaches, of_second, second_guarantee

SAMPLES = {"first": "position of the samples", "count": "number of samples", "digest": "digest of the samples"}


def breaches(evidence: Analysis) -> Breaches:
    run, again = evidence.run, done_again(evidence)
    if again is None or not again.bounds_samples:
        return
    steps = again.log.steps
    rows, others = losses.paired(steps, run.steps)
    mine, other = steps.samples[rows], run.steps.samples[others]
    differ = ~again.log.samples.equal(mine, run.samples, other) & (mine >= 0) & (other >= 0)
    for row in rows[differ][:1]:
        yield of_second(f"at step {steps.step[row]} rank {steps.rank[row]} consumed other samples than then")
    yield from map(of_second, again.of_ranks(SAMPLES))


GUARANTEE = second_guarantee(breaches, not_done)
