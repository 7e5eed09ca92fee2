"""Defines the export `metrics`, which serves Prometheus metrics of a running job."""

from __future__ import annotations

from harness.cli.exports import Export, Live


def _live(where: str, budget: float | None) -> Live:
    from harness.monitoring.metrics_server import serving  # which needs the extra

    return serving(where, budget)


EXPORT = Export(
    "[ADDRESS]:PORT",
    "Serve Prometheus metrics there meanwhile, e.g. :9464 (for this host alone).",
    "metrics",
    live=_live,
)
