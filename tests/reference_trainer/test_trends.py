"""What the trainer says when training goes on, but not as it should."""

from __future__ import annotations

from typing import Any

import pytest

from harness.node.emitter import abnormal
from reference_trainer import rhythm as rhythms
from reference_trainer.rhythm import Rhythm
from reference_trainer.trends import Trends

SECOND = 10**9


class Told:
    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def __call__(self, event: str, **fields: Any) -> int:
        self.events.append({"event": event} | fields)
        return 0

    def kinds(self) -> list[tuple[int, str]]:
        return [(event["at_step"], event["kind"]) for event in self.events]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("reference_trainer.trends.time.monotonic_ns", lambda: int(now[0] * SECOND))
    monkeypatch.setattr(rhythms.time, "monotonic", lambda: now[0])
    return now


def train(trends: Trends, clock: list[float], steps: range, committed: int = -1, **odd: float) -> None:
    for step in steps:
        clock[0] += 1
        loss, norm = odd.get("loss", 5.0 * 0.99**step), odd.get("grad_norm", 1.0)
        trends.step_done(step, loss, norm, SECOND, int(odd.get("waited", 0) * SECOND), committed)


def test_a_healthy_training_is_silent(clock: list[float]) -> None:
    told = Told()
    trends = Trends(told, 0, Rhythm(20, 0))  # type: ignore[arg-type]
    for begin in range(0, 400, 20):
        train(trends, clock, range(begin + 1, begin + 21), committed=begin)
    assert told.events == []


def test_a_late_checkpoint_is_told_once_until_there_is_one(clock: list[float]) -> None:
    told = Told()
    trends = Trends(told, 0, Rhythm(20, 0))  # type: ignore[arg-type]
    train(trends, clock, range(11, 90))  # none was there at the start
    assert told.kinds() == [(51, abnormal.CHECKPOINT_LATE)]
    train(trends, clock, range(90, 140), committed=90)
    assert told.kinds()[1:] == [(131, abnormal.CHECKPOINT_LATE)]


def test_where_time_counts_steps_do_not(clock: list[float]) -> None:
    told = Told()
    trends = Trends(told, 0, Rhythm(1, 30))  # type: ignore[arg-type]
    train(trends, clock, range(1, 62))
    assert told.events == []
    train(trends, clock, range(62, 64))
    assert told.kinds() == [(62, abnormal.CHECKPOINT_LATE)]


def test_each_rule_speaks_in_words(clock: list[float]) -> None:
    told = Told()
    trends = Trends(told, 0, Rhythm(1000, 0))  # type: ignore[arg-type]
    train(trends, clock, range(1, 150), loss=5.0)
    train(trends, clock, range(150, 151), loss=5.0, grad_norm=11.0)
    train(trends, clock, range(151, 201), waited=0.5)
    assert told.kinds() == [(150, "gradient"), (150, "stagnation"), (200, "data_wait")]
    assert all(f"at step {event['at_step']}" in event["detail"] for event in told.events)


@pytest.mark.parametrize(("every_steps", "every_s", "due"), [(3, 0, [3, 6, 9]), (3, 4, [4, 8])])
def test_when_a_checkpoint_is_due(every_steps: int, every_s: float, due: list[int], clock: list[float]) -> None:
    rhythm, found = Rhythm(every_steps, every_s), []
    for step in range(1, 10):
        clock[0] += 1
        if rhythm.due(step, rhythm.time_is_up()):
            rhythm.saved()
            found.append(step)
    assert found == due
