"""Reads from a failure trace the failure rate, the times between failures, and how many nodes fail at once."""

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


def table_of(trace: Trace) -> RateTable | None:
    """Returns the failures per node-day in a trace, or `None` if the trace does not show which nodes exist."""
    if trace.node_days is None:
        return None
    moments = len({each.at_s for each in trace.happenings})
    source = f"{counted(moments, 'moment')} in {trace.node_days:,.3g} node-days"
    cause = CauseRate(name="Nodes lost as in the trace", count=moments, node=True, faults=FAULTS)
    return RateTable(source=source, node_days=trace.node_days, causes=[cause])


def with_trace(job: Job, trace: Trace) -> Job:
    """Returns the job with the times between failures from a trace, the share of failures that take several nodes, and
    the average number of nodes in such failures. Raises `UsageError` for a trace with too few failures."""
    went = Counter(each.at_s for each in trace.happenings)
    if len(went) < MOMENTS_MIN:
        raise UsageError(f"{trace.name}: nodes go at {counted(len(went), 'moment')}; at least {MOMENTS_MIN} are needed")
    moments = sorted(went)
    mean = (moments[-1] - moments[0]) / (len(moments) - 1)
    gaps = tuple((after - before) / mean for before, after in itertools.pairwise(moments))
    several = [nodes for nodes in went.values() if nodes > 1]
    together = round(sum(several) / len(several)) if several else 1
    name = short(printable(trace.name))
    given = {"together": len(several) / len(went), "together_nodes": float(together)}
    values = {key: Value((value,), Origin.GIVEN, name) for key, value in given.items()}
    return replace(job, settings={**job.settings, **values}, gaps=Gaps(1.0, gaps, f"as in {name}"))
