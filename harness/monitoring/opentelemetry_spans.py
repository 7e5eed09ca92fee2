"""Sends a run as OpenTelemetry spans to a collector over OTLP/HTTP: the run, its faults, recoveries and phases.

The spans are sent when the run is over, with the times of its event log. The ids of the spans are derived from the
run's id, so that a run that is sent twice makes only one trace.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
import pathlib
import urllib.parse
from collections.abc import Iterator, Sequence

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import Status, StatusCode

from harness.errors import ChaosError, EventLogError, UsageError
from harness.log import reading
from harness.log.files import EventFile
from harness.monitoring.spans import Span, spans_of
from harness.report.words import one_line
from harness.timeline import timeline

SPANS_AT_ONCE = 500
SPANS_MAX = 50_000  # of one run
ANSWERED_WITHIN_S = 10.0
TEXT_MAX = 1000


def endpoint(url: str) -> str:
    """Returns the collector's address for traces: `url`, with the path `/v1/traces` if `url` has no path. Raises
    `UsageError` if `url` is not an HTTP address."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"--otlp {url!r}: write the address of a collector, e.g. http://127.0.0.1:4318")
    return url if parts.path not in ("", "/") else f"{url.rstrip('/')}/v1/traces"


def send(run_dir: pathlib.Path, url: str) -> str:
    """Sends a stored run to an OpenTelemetry collector, as spans. Returns the id of the run's trace, in hexadecimal.

    Raises `EventLogError` for an unreadable log, and `ChaosError` if the collector does not accept the spans.
    """
    to = endpoint(url)
    run = timeline.load(run_dir)
    spans = spans_of(run)[:SPANS_MAX]
    log = reading.read_source(EventFile.of(run_dir / "events" / "harness.jsonl"))
    if log is None:
        raise EventLogError(f"{run_dir / 'events' / 'harness.jsonl'}: the harness's log is empty")
    # The harness's wall clock minus its monotonic one, when the log began.
    offset_ns = int(log.header["wall_ns"]) - int(log.header["mono_ns"])
    finished = _finished(spans, run_dir.resolve().name, offset_ns)
    exporter = OTLPSpanExporter(endpoint=to, timeout=ANSWERED_WITHIN_S)
    with _quiet():
        _send(exporter, finished, to)
    context = finished[0].context
    assert context is not None
    return f"{context.trace_id:032x}"


def _send(exporter: SpanExporter, spans: Sequence[ReadableSpan], to: str) -> None:
    try:
        for at in range(0, len(spans), SPANS_AT_ONCE):
            if exporter.export(spans[at : at + SPANS_AT_ONCE]) is not SpanExportResult.SUCCESS:
                raise ChaosError(f"{to} did not take the spans: is an OTLP/HTTP collector there?")
    finally:
        exporter.shutdown()


class _Ids(IdGenerator):
    """Derives the ids of traces and spans from the run's id, so that each export of a run has the same ids."""

    def __init__(self, run_id: str) -> None:
        self._run_id, self._number = run_id, itertools.count()

    def generate_trace_id(self) -> int:
        return self._digest("trace", 16)

    def generate_span_id(self) -> int:
        return self._digest(f"span {next(self._number)}", 8)

    def _digest(self, what: str, size: int) -> int:
        found = hashlib.sha256(f"{self._run_id}/{what}".encode(errors="replace")).digest()[:size]
        return int.from_bytes(found, "big") or 1


def _finished(spans: Sequence[Span], run_id: str, offset_ns: int) -> Sequence[ReadableSpan]:
    kept = InMemorySpanExporter()
    provider = TracerProvider(
        resource=Resource.create({"service.name": "chaos-harness", "service.instance.id": run_id}),
        id_generator=_Ids(run_id),
        shutdown_on_exit=False,
    )
    provider.add_span_processor(SimpleSpanProcessor(kept))
    tracer = provider.get_tracer("chaos-harness")
    contexts = list[trace.SpanContext]()
    for span in spans:
        above = None if span.parent < 0 else trace.set_span_in_context(trace.NonRecordingSpan(contexts[span.parent]))
        attributes = {f"chaos.{key}": _value(value) for key, value in span.attributes.items()}
        started = tracer.start_span(
            one_line(span.name)[:TEXT_MAX],
            above,
            attributes=attributes | {"chaos.span_kind": span.kind},
            start_time=span.begin + offset_ns,
        )
        started.set_status(Status(StatusCode.OK if span.ok else StatusCode.ERROR))
        contexts.append(started.get_span_context())
        started.end(span.end + offset_ns)
    return kept.get_finished_spans()


def _value(value: str | int | float | bool) -> str | int | float | bool:
    if isinstance(value, str):
        return one_line(value)[:TEXT_MAX]
    return value if not isinstance(value, int) or -(2**63) <= value < 2**63 else str(value)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences OpenTelemetry's own log, because `_send` reports a failed export."""
    logger = logging.getLogger("opentelemetry")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)
