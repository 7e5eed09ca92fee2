"""Finds where each rank was when the training hung, by the records of PyTorch's flight recorder."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.timeline.lookups import grouped
from harness.timeline.timeline import Timeline

HANGS_SHOWN = 100
WORDS_MAX = 300  # characters of an answer's words
APART_NS = 120 * 1_000_000_000  # ranks tell of one hang within this time: their time-outs differ

Told = Mapping[str, Any]


def hangs(run: Timeline) -> list[str]:
    """Returns sentences about hangs: at most `HANGS_SHOWN` on process groups, and as many on diagnoses that the job
    logged."""
    groups = grouped((str(event["group"]), event) for event in run.collectives)
    found = sorted((hang for events in groups.values() for hang in _hangs(events)), key=lambda hang: int(hang[0]["at"]))
    sizes = {process: epoch.size for epoch in run.epochs for process in epoch.processes}  # of its last world
    shown = [_in_words(sizes.get(hang[0]["process"], 0), hang) for hang in found[:HANGS_SHOWN]]
    more = len(found) - len(shown)
    answers = [_answer(event) for event in run.diagnoses if event.get("kind") == "hang" and event.get("why")]
    return [*shown, *([f"{more} more hangs of process groups"] if more else []), *answers[:HANGS_SHOWN]]


def _answer(event: Told) -> str:
    ranks = sorted(each["rank"] for each in event.get("who") or () if each.get("rank") is not None)
    return f"the job named {_named(ranks) if ranks else 'no rank'}: {event['why'][:WORDS_MAX]}"


def _hangs(events: Sequence[Told]) -> Iterator[list[Told]]:
    """Yields each hang of one process group as a list of events. A process logs a hang once, and then ends."""
    hang, ranks = list[Told](), set[int]()
    for event in events:
        if hang and (event["at"] - hang[0]["at"] > APART_NS or event["rank"] in ranks):
            yield hang
            hang, ranks = [], set()
        hang.append(event)
        ranks.add(event["rank"])
    if hang:
        yield hang


def _in_words(size: int, hang: Sequence[Told]) -> str:
    newest = max(event["number"] for event in hang)
    waiting = [event for event in hang if event["number"] == newest]
    behind = [event for event in hang if event["number"] < newest]
    silent = sorted(set(range(size)) - {event["rank"] for event in hang})
    first = waiting[0]
    text = f"{_ranks(waiting)} waited in collective {newest} ({first['operation']}{_at_line(first)})"
    if behind:
        last = max(behind, key=lambda event: int(event["number"]))
        verb = "was" if len(behind) == 1 else "were"
        text += f"; {_ranks(behind)} {verb} still at {last['number']} ({last['operation']}{_at_line(last)})"
    if silent:
        text += f"; {_named(silent)} reported nothing"
    return text if behind or silent else f"{text}; no rank was missing from it"


def _at_line(event: Told) -> str:
    return f", {event['code']}" if event.get("code") else ""


def _ranks(events: Sequence[Told]) -> str:
    return _named(sorted(event["rank"] for event in events))


def _named(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
