"""An emitter that keeps what it is told, and orders to damage a trainer."""

import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from harness.diagnosis.answer import Answer, Decision, Kind, Suspect, answer_told
from harness.log import checked_lines
from harness.node.emitter import Emitter


class Told(Emitter):
    def __init__(self) -> None:
        super().__init__(None)
        self.events: list[dict[str, Any]] = []

    def __call__(self, event: str, **fields: Any) -> int:
        self.events.append({"event": event} | fields)
        return 0

    def kinds(self) -> list[tuple[int, str]]:
        return [(event["at_step"], event["kind"]) for event in self.events]

    def answers(self) -> list[Answer]:
        return answers(self.events)


def answers(events: Iterable[Mapping[str, Any]]) -> list[Answer]:
    """The answers to "who was it?" among these events, checked as a reader checks them, without words."""
    told = [dict(event) | {"mono_ns": 0, "why": ""} for event in events if event["event"] == "diagnosis"]
    return [answer_told(checked_lines.event(each, "trainer"), None) for each in told]


def answer(kind: Kind, decision: Decision, *ranks: int) -> Answer:
    return Answer(kind, tuple(map(Suspect, ranks)), decision)


def ordered(folder: pathlib.Path, **what: Any) -> tuple[pathlib.Path, pathlib.Path]:
    """The folders of orders and answers, with one order `a.json` to rank 1."""
    orders, answers = folder / "orders", folder / "answers"
    orders.mkdir()
    answers.mkdir()
    (orders / "a.json").write_text(json.dumps({"rank": 1} | what))
    return orders, answers
