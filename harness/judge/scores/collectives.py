"""Collectives: where each rank was when the training hung, as PyTorch's flight recorder says. It decides no verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.judge.score import Bounds, Evidence, Score, ScoreResult
from harness.timeline.timeline import Timeline

APART_NS = 120 * 10**9  # ranks tell of one hang within this time: their time-outs differ

Told = Mapping[str, Any]


class CollectivesBounds(Bounds):
    """Nothing to set."""


class Collectives(Score):
    name = "collectives"
    order = 60
    Bounds = CollectivesBounds

    def score(self, evidence: Evidence, bounds: CollectivesBounds | None) -> ScoreResult:
        return ScoreResult({"hangs": hangs(evidence.run)})


def hangs(run: Timeline) -> list[str]:
    """One sentence for each hang of a process group, in order of time."""
    groups = {str(event["group"]) for event in run.collectives}
    found = [(hang[0]["at"], hang) for group in groups for hang in _hangs(run, group)]
    return [_in_words(run, hang) for _, hang in sorted(found, key=lambda each: each[0])]


def _hangs(run: Timeline, group: str) -> Iterator[list[Told]]:
    """A process tells of one hang once, and then it ends."""
    hang: list[Told] = []
    for event in (event for event in run.collectives if event["group"] == group):
        if hang and (event["at"] - hang[0]["at"] > APART_NS or event["rank"] in {each["rank"] for each in hang}):
            yield hang
            hang = []
        hang.append(event)
    if hang:
        yield hang


def _in_words(run: Timeline, hang: Sequence[Told]) -> str:
    newest = max(event["number"] for event in hang)
    waiting = [event for event in hang if event["number"] == newest]
    behind = [event for event in hang if event["number"] < newest]
    silent = sorted(_world(run, hang[0]) - {event["rank"] for event in hang})
    first = waiting[0]
    text = f"{_ranks(waiting)} waited in collective {newest} ({first['operation']}{_at_line(first)})"
    if behind:
        last = max(behind, key=lambda event: int(event["number"]))
        verb = "was" if len(behind) == 1 else "were"
        text += f"; {_ranks(behind)} {verb} still at {last['number']} ({last['operation']}{_at_line(last)})"
    if silent:
        text += f"; {_named(silent)} reported nothing"
    return text if behind or silent else f"{text}; no rank was missing from it"


def _world(run: Timeline, event: Told) -> set[int]:
    """The ranks of the last world in which this process did a step; none where it did none."""
    sizes = [epoch.size for epoch in run.epochs if event["process"] in epoch.processes]
    return set(range(sizes[-1])) if sizes else set()


def _at_line(event: Told) -> str:
    return f", {event['code']}" if event.get("code") else ""


def _ranks(events: Sequence[Told]) -> str:
    return _named(sorted(event["rank"] for event in events))


def _named(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"


SCORE = Collectives()
