"""What a trace says of failures: how they follow each other, how many nodes go at once, and how often, where the trace
tells who was there."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

from harness.errors import UsageError
from harness.forecast.failure_rates import CauseRate, RateTable
from harness.forecast.job_model import Gaps, Job, Origin, Value
from harness.spec.document import printable, short
from harness.spec.traces import Trace
from harness.units import counted

MOMENTS_MIN = 10
FAULTS = ["preemption", "node_loss"]  # what stands for it in a run


def gaps_of(trace: Trace) -> Gaps:
    """Raises `UsageError` for a trace that says too little."""
    moments = sorted({each.at_s for each in trace.happenings})
    if len(moments) < MOMENTS_MIN:
        raise UsageError(
            f"{trace.name}: nodes go at {counted(len(moments), 'moment')}; at least {MOMENTS_MIN} are needed"
        )
    mean = (moments[-1] - moments[0]) / (len(moments) - 1)
    gaps = tuple((after - before) / mean for before, after in itertools.pairwise(moments))
    return Gaps(1.0, gaps, f"as in {_name(trace)}")


def table_of(trace: Trace) -> RateTable | None:
    """Moments at which nodes went, over its node-days; `None` where it tells only who went."""
    if trace.node_days is None:
        return None
    moments = len({each.at_s for each in trace.happenings})
    source = f"{counted(moments, 'moment')} in {trace.node_days:,.3g} node-days"
    cause = CauseRate(name="Nodes lost as in the trace", count=moments, node=True, faults=FAULTS)
    return RateTable(source=source, node_days=trace.node_days, causes=[cause])


def with_batches(job: Job, trace: Trace) -> Job:
    """As many nodes at once as in the trace: its share of moments with several, and how many these take on average."""
    sizes = list(Counter(each.at_s for each in trace.happenings).values())
    several = [size for size in sizes if size > 1]
    mean = round(sum(several) / len(several)) if several else 1
    given = {"together": len(several) / len(sizes), "together_nodes": float(mean)}
    values = {name: Value((value,), Origin.GIVEN, _name(trace)) for name, value in given.items()}
    return replace(job, settings={**job.settings, **values})


def _name(trace: Trace) -> str:
    return short(printable(trace.name))
