"""Draws the loss of a running job beside the loss of its fault-free run, and the job's steps per second."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from harness.gameday.steady import Course
from harness.gameday.throughput_chart import throughput_chart
from harness.report.charts.loss_curves import Curves, Series, loss_chart


def drawing(course: Course, fault_free: Callable[[], Series | None]) -> Callable[[bool], str]:
    """Returns a function that draws a job's losses and steps per second as SVG. The returned function takes True for a
    narrow chart, and returns an empty text before the job's first step."""
    read = functools.cache(fault_free)

    def draw(narrow: bool) -> str:
        steps = {step: (loss, took) for step, loss, took in list(course.steps)}  # a step done again counts once
        told = sorted(steps)
        losses = np.array([np.nan if steps[step][0] is None else steps[step][0] for step in told], np.float64)
        took = np.array([steps[step][1] / 1e9 for step in told], np.float64)
        ours = Series(np.array(told, np.float64), losses, took)
        curves = Curves(ours, read() if told else None, None, told[-1] if told else 0)
        at_ns, reached = np.array(list(course.done) or np.zeros((0, 2)), np.int64).T
        at_s = (at_ns - course.begun_ns) / 1e9
        pace = throughput_chart(at_s, reached.astype(np.float64), float(at_s[-1]) if len(at_s) else 0.0, narrow)
        return "".join(str(drawn) for drawn in (loss_chart(curves, narrow), pace) if drawn is not None)

    return draw
