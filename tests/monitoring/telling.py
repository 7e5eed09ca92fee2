"""Logs of made-up jobs, as an observer hears them; and what is then served."""

from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from harness.monitoring.monitor import Monitor
from harness.run.observers import Status

S = 10**9
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def trainer(rank: int = 0, pid: int = 1, **more: Any) -> dict[str, Any]:
    return {"role": "trainer", "node": f"node{rank}", "incarnation": 1, "rank": rank, "pid": pid} | more


def step(number: int, at_s: float, **more: Any) -> dict[str, Any]:
    return {"event": "step", "step": number, "mono_ns": round(at_s * S)} | more


def save(what: str, number: int, at_s: float, **more: Any) -> dict[str, Any]:
    return {"event": f"checkpoint.{what}", "step": number, "mono_ns": round(at_s * S)} | more


def harness(event: str, **more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    return {"role": "harness"}, {"event": event, "mono_ns": 1} | more


def plan(**more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    return harness("plan", plan={"run_id": "r-1", "backend": "local", "scenario": {"name": "s"}} | more)


def status(number: int = 0, phase: str = "training", run_id: str = "r-1", steps: int | None = 100) -> Status:
    return Status(run_id, 5.0, phase, number, steps, None, [], [])


def page(monitor: Monitor) -> str:
    registry = CollectorRegistry()
    registry.register(monitor)
    return generate_latest(registry).decode()


def served(monitor: Monitor) -> Samples:
    """Every sample, by its name and labels, as a scraper reads it."""
    found: Samples = {}
    for family in text_string_to_metric_families(page(monitor)):
        for sample in family.samples:
            found[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    return found
