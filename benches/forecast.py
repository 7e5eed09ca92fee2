"""How long a forecast takes at scale: 100,000 GPUs × 90 days × 1,000 samples in 10 s at most on two cores.

python benches/forecast.py [--gpus 100000] [--days 90] [--samples 1000]
"""

from __future__ import annotations

import argparse
import resource
import time

from harness.forecast import answer
from harness.forecast.failure_rates import DEFAULT, load_rates
from harness.forecast.job_model import DAY_S, Gaps
from harness.forecast.measured_inputs import Measured, job_of
from harness.forecast.outcome import Question
from harness.forecast.simulator import simulate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=100_000)
    parser.add_argument("--days", type=float, default=90)
    parser.add_argument("--samples", type=int, default=1000)
    arguments = parser.parse_args()
    question, (name, table) = Question(arguments.gpus, arguments.days, samples=arguments.samples), load_rates(DEFAULT)
    job = job_of(question.nodes, question.days * DAY_S, table, Gaps(), Measured()).completed()
    for what, run in (
        ("histories", lambda: simulate([job], question.samples, 1)),
        ("whole answer", lambda: answer.forecast(question, job, (name, table.source), Measured())),
    ):
        begin, used = time.monotonic(), time.process_time()
        run()
        took, cpu = time.monotonic() - begin, time.process_time() - used
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"{what}: {took:.1f} s, {cpu:.1f} s of CPU, peak memory {peak:.2f} GiB")


if __name__ == "__main__":
    main()
