"""Spans of a run, as a collector gets them; and the Markdown that a CI job shows."""

import contextlib
import gzip
import pathlib
from collections.abc import Iterator

import pytest
from docs.test_metrics_doc import S, example
from http_servers import Asked, serving
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from harness.cli.exports import Telling
from harness.cli.summary import SUMMARY_BYTES_MAX, append_summary, summary_to
from harness.errors import ChaosError, UsageError
from harness.evidence.logs import load_evidence
from harness.judge.score import judge
from harness.monitoring import opentelemetry_spans, otlp
from harness.report import write_reports

ROOT = pathlib.Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def collector(status: int = 200) -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """A collector of OTLP/HTTP in this process: its address, and what it was sent."""
    got: list[ExportTraceServiceRequest] = []

    def take(asked: Asked) -> tuple[int, str]:
        body = gzip.decompress(asked.body) if asked.headers.get("Content-Encoding") == "gzip" else asked.body
        if asked.path == "/v1/traces":
            got.append(ExportTraceServiceRequest.FromString(body))
        return status, ""

    with serving(take) as address:
        yield address, got


@pytest.fixture(autouse=True)
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def run_dir(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "example-1"
    folder.mkdir()
    example(folder / "events")
    return folder


def sent(run_dir: pathlib.Path) -> list[Span]:
    with collector() as (url, got):
        told = opentelemetry_spans.send(run_dir, url)
    spans = [span for each in got for resource in each.resource_spans for scope in resource.scope_spans for span in scope.spans]  # fmt: skip
    assert {span.trace_id.hex() for span in spans} == {told}
    (service,) = {a.value.string_value for e in got for r in e.resource_spans for a in r.resource.attributes if a.key == "service.name"}  # fmt: skip
    assert service == "chaos-harness"
    return spans


def kind(span: Span) -> str:
    return next(each.value.string_value for each in span.attributes if each.key == "chaos.span_kind")


def test_run_fault_and_recovery_with_its_phases(run_dir: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spans = sent(run_dir)
    (run,) = [span for span in spans if not span.parent_span_id]
    (recovery,) = [span for span in spans if kind(span) == "recovery"]
    (fault,) = [span for span in spans if kind(span) == "fault"]
    phases = [span for span in spans if span.parent_span_id == recovery.span_id]
    assert run.name == "run example" and run.end_time_unix_nano - run.start_time_unix_nano == 40 * S
    assert recovery.parent_span_id == fault.parent_span_id == run.span_id
    assert fault.name == "rank_kill kill" and fault.start_time_unix_nano == 10**18 + 23 * S, "wall time"
    assert {kind(each) for each in phases} == {"recovery phase"} and "detect" in {each.name for each in phases}
    length = sum(each.end_time_unix_nano - each.start_time_unix_nano for each in phases)
    assert length == recovery.end_time_unix_nano - recovery.start_time_unix_nano == 14 * S
    assert run.status.code == Status.STATUS_CODE_OK
    monkeypatch.setattr(opentelemetry_spans, "SPANS_AT_ONCE", 3)
    names = [(each.span_id, each.name) for each in spans]
    assert [(each.span_id, each.name) for each in sent(run_dir)] == names, "twice and in parts it is the same trace"
    assert len({each for each, _ in names}) == len(names)


def test_a_collector_that_refuses_or_is_not_there_is_an_error(
    run_dir: pathlib.Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with collector(400) as (url, _), pytest.raises(ChaosError, match="did not take the spans"):
        opentelemetry_spans.send(run_dir, url)
    assert capfd.readouterr().err == "", "one message is enough"
    monkeypatch.setattr(opentelemetry_spans, "ANSWERED_WITHIN_S", 0.5)
    with pytest.raises(ChaosError, match="is an OTLP/HTTP collector there"):
        opentelemetry_spans.send(run_dir, "http://127.0.0.1:9")


def test_the_path_of_the_collector() -> None:
    for given in ("http://h:4318", "http://h:4318/"):
        assert opentelemetry_spans.endpoint(given) == "http://h:4318/v1/traces"
    assert opentelemetry_spans.endpoint("https://h/otlp/v1/traces") == "https://h/otlp/v1/traces"
    for given in ("h:4318", "grpc://h", "http://", "file:///etc/passwd"):
        with pytest.raises(UsageError, match="--otlp"):
            opentelemetry_spans.endpoint(given)


def test_a_judged_run_is_told_to_both_and_a_verdict_is_never_lost_over_it(
    run_dir: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    card, summary = judge(load_evidence(run_dir), run_dir.name), tmp_path / "summary.md"
    files = write_reports(card, run_dir)
    summary.write_text("what was there before\n")
    with collector() as (url, got):
        Telling({"otlp": (otlp.EXPORT, url)}, *summary_to(summary)).judged(card, files)
    text = summary.read_text()
    assert got and text.startswith("what was there before\n# ") and "## Where the GPU time went" in text
    assert "The verdict stands" not in capsys.readouterr().out
    with collector(400) as (url, _):
        Telling({"otlp": (otlp.EXPORT, url)}).judged(card, files)
    Telling({}, *summary_to(tmp_path)).judged(card, files)
    assert capsys.readouterr().out.count("The verdict stands, but") == 2
    append_summary(tmp_path / "long.md", "äöü line\n" * 300_000)
    text = (tmp_path / "long.md").read_text()
    assert len(text.encode()) < SUMMARY_BYTES_MAX + 200
    assert text.endswith("(cut: the whole report is in its folder)\n\n")
