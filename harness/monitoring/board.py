"""Holds the current values of all metrics that a job's monitoring serves. A metric that was never measured is absent.
Each metric has at most `SERIES_MAX` time series, one for each combination of label values."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.utils import floatToGoString

from harness.monitoring.metrics import BY_NAME, METRICS, Metric

SERIES_MAX = 200  # of one metric
LABEL_CHARS_MAX = 200
REFUSED = "chaos_exporter_series_refused_total"

Labels = tuple[str, ...]
T = TypeVar("T")


@dataclass
class Distribution:
    """A histogram: the number of values in each bucket (the last bucket has no upper limit), and the sum of all
    values."""

    counts: list[int]
    total: float = 0.0


@dataclass
class Board:
    """The current values of all metrics. A `Board` is not thread-safe: threads that use the same `Board` must share a
    lock."""

    values: dict[str, dict[Labels, float]] = field(default_factory=dict)
    distributions: dict[str, dict[Labels, Distribution]] = field(default_factory=dict)

    def set(self, name: str, value: float, *labels: str) -> None:
        """Sets the value of a gauge, or of a counter that is counted elsewhere. `labels` holds the values of the
        metric's labels, in the order in which the metric declares them."""
        series = self._series(name, labels, self.values)
        if series is not None:
            series[_short(labels)] = value

    def add(self, name: str, amount: float = 1, *labels: str) -> None:
        """Adds to a metric's value. Amounts that are not finite, and negative amounts for a counter, are ignored."""
        series = self._series(name, labels, self.values)
        if series is not None and math.isfinite(amount) and (amount >= 0 or BY_NAME[name].kind == "gauge"):
            series[_short(labels)] = series.get(_short(labels), 0) + amount

    def observe(self, name: str, value: float, *labels: str) -> None:
        series = self._series(name, labels, self.distributions)
        if series is None or not math.isfinite(value):
            return
        buckets = BY_NAME[name].buckets
        found = series.setdefault(_short(labels), Distribution([0] * (len(buckets) + 1)))
        found.counts[bisect.bisect_left(buckets, value)] += 1
        found.total += value

    def value(self, name: str, *labels: str) -> float | None:
        return self.values.get(name, {}).get(labels)

    def _series(self, name: str, labels: Labels, kept: dict[str, dict[Labels, T]]) -> dict[Labels, T] | None:
        assert len(labels) == len(BY_NAME[name].labels), f"{name} has the labels {BY_NAME[name].label_names}"
        series = kept.setdefault(name, {})
        if len(series) < SERIES_MAX or _short(labels) in series:
            return series
        self.add(REFUSED, 1, name)
        return None

    def families(self) -> Iterator[Family]:
        for metric in METRICS:
            if metric.kind == "histogram":
                if series := self.distributions.get(metric.name):
                    yield _histogram(metric, series)
            elif values := self.values.get(metric.name):
                make = GaugeMetricFamily if metric.kind == "gauge" else CounterMetricFamily
                family = make(metric.name, metric.meaning, labels=metric.label_names)
                for labels, value in values.items():
                    family.add_metric(labels, value)
                yield family


def _histogram(metric: Metric, series: dict[Labels, Distribution]) -> Family:
    family = HistogramMetricFamily(metric.name, metric.meaning, labels=metric.label_names)
    edges = [*map(floatToGoString, metric.buckets), "+Inf"]
    for labels, found in series.items():
        sums = [sum(found.counts[: place + 1]) for place in range(len(edges))]
        family.add_metric(labels, list(zip(edges, sums, strict=True)), found.total)
    return family


def _short(labels: Labels) -> Labels:
    return tuple(label[:LABEL_CHARS_MAX] for label in labels)
