"""Defines the export `otlp`, which sends runs as OpenTelemetry spans."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

from harness.cli.exports import Export


def _stored(url: str) -> Callable[[pathlib.Path], str]:
    from harness.monitoring import opentelemetry_spans  # which needs the extra

    opentelemetry_spans.endpoint(url)
    return lambda run_dir: f"Trace {opentelemetry_spans.send(run_dir, url)} was sent."


EXPORT = Export(
    "URL",
    "Send runs as OpenTelemetry spans to this collector, e.g. http://127.0.0.1:4318.",
    "otel",
    stored=_stored,
    each=True,
)
