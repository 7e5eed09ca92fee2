"""Defines the common format of diagnosers' answers. An answer holds a time, a kind of failure, suspects, and a decision
(such as a restart).

A diagnoser is a program that says what broke in a training job, and which rank or node is to blame. `at` is the time at
which the answer was given: ISO 8601 with a zone, or integer nanoseconds since 1970. A diagnoser that counts steps
writes `step` instead of `at`. Files of answers are untrusted: sizes, numbers and types are checked. A file
`diagnosis.jsonl` holds one answer per line, such as:

    {"at": "2026-11-30T06:51:40Z", "kind": "hang", "who": [{"rank": 1, "node": "node1"}], "sure": 0.9,
     "decision": "restart-in-place", "why": "rank 1 said nothing while rank 0 waited"}
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import msgspec

from harness.errors import UsageError
from harness.log import vocabulary
from harness.log.truth import Decision as Decision
from harness.log.truth import Kind as Kind

LINE_BYTES_MAX = 64 * 2**10
SUSPECTS_MAX = vocabulary.SUSPECTS_MAX  # of one answer
RANK_MAX = vocabulary.RANKS_MAX - 1
GPU_MAX = vocabulary.GPUS_PER_NODE_MAX
STEP_MAX = vocabulary.STEP_MAX
NAME_MAX = vocabulary.NAME_CHARS_MAX
WORDS_MAX = 2000  # characters of `why`
SHOWN_MAX = 200  # characters of a bad value, as shown
WALL_NS_MAX = vocabulary.WALL_NS_MAX
BROKEN = tuple(kind for kind in Kind if kind not in (Kind.NONE, Kind.UNKNOWN))
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_MAX)]
_Rank = Annotated[int, msgspec.Meta(ge=0, le=RANK_MAX)]
_Gpu = Annotated[int, msgspec.Meta(ge=0, le=GPU_MAX)]
_Step = Annotated[int, msgspec.Meta(ge=0, le=STEP_MAX)]
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class Suspect(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A part of the cluster that a diagnoser's answer blames. `gpu` is a GPU's number on the node `node`."""

    rank: _Rank | None = None
    node: _Name | None = None
    gpu: _Gpu | None = None
    link: _Name | None = None
    file: _Name | None = None

    def __str__(self) -> str:
        told = {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}
        return ", ".join(f"{name} {value}" for name, value in told.items())


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A diagnoser's answer about a training job. `who` holds the suspects. `at` is a wall-clock time in ns since 1970.
    `sure` is the certainty, from 0 to 1."""

    kind: Kind
    who: Annotated[tuple[Suspect, ...], msgspec.Meta(max_length=SUSPECTS_MAX)] = ()
    decision: Decision | None = None
    why: Annotated[str, msgspec.Meta(max_length=WORDS_MAX)] = ""
    at: int | None = None
    step: _Step | None = None
    sure: _Share | None = None


def answer_told(event: Mapping[str, Any], at: int | None) -> Answer:
    """Converts a checked log event `diagnosis` to an answer. `at` becomes the time of the answer, in ns."""
    names, decision = Suspect.__struct_fields__, event.get("decision")
    told = [{name: each[name] for name in names if each.get(name) not in (None, "")} for each in event.get("who", ())]
    why = str(event.get("why", ""))[:WORDS_MAX]
    who = tuple(Suspect(**each) for each in told)
    return Answer(Kind(event["kind"]), who, decision and Decision(decision), why, at, None, event.get("sure"))


class _Line(Answer, frozen=True, forbid_unknown_fields=True):
    at: int | str | None = None  # type: ignore[assignment]  # as it is written


class AnswersError(UsageError):
    """Raised for an invalid file of diagnosers' answers. The message names the file, the line and the wrong value."""

    def __init__(self, file: str, line: int | None, problem: str):
        super().__init__(f"{file}{'' if line is None else f':{line}'}: {problem}")


_decoder = msgspec.json.Decoder(_Line)


def read_lines(content: bytes, file: str) -> Iterator[Answer]:
    """Yields the answers in the content of a `diagnosis.jsonl`. Raises `AnswersError` at the first invalid line."""
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip():
            continue
        if len(line) > LINE_BYTES_MAX:
            raise AnswersError(file, number, f"{len(line)} bytes; allowed are {LINE_BYTES_MAX}")
        try:
            told = _decoder.decode(line)
            at = None if told.at is None else wall_ns(told.at)
            yield Answer(told.kind, told.who, told.decision, told.why, at, told.step, told.sure)
        except (ValueError, RecursionError) as error:
            allowed = f"kind is one of {', '.join(Kind)}; decision one of {', '.join(Decision)}"
            shown = line[:SHOWN_MAX].decode(errors="replace")
            raise AnswersError(file, number, f"{error}; {allowed}: {shown}") from None


def wall_ns(told: object, utc_offset_h: float | None = None) -> int:
    """Converts a time to ns since 1970. The time `told` is an integer in ns, or a text in ISO 8601. `utc_offset_h` is
    the time zone (in hours) of a text without a zone; with `None`, a text without a zone is refused. Raises
    `ValueError` for an invalid time."""
    shown = str(told)[:SHOWN_MAX]
    if not isinstance(told, int) or isinstance(told, bool):
        try:
            moment = datetime.datetime.fromisoformat(shown)
        except ValueError:
            raise ValueError(f"at: {shown!r} is no time; write ISO 8601, like 2026-11-30T06:51:40Z") from None
        if moment.tzinfo is None:
            if utc_offset_h is None:
                raise ValueError(f"at: {shown!r} has no zone; end it with Z or +00:00")
            moment = moment.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=utc_offset_h)))
        told = (moment - _EPOCH) // datetime.timedelta(microseconds=1) * 1000
    if not 0 <= told <= WALL_NS_MAX:
        raise ValueError(f"at: {shown} is out of range; allowed are 1970 to 2116")
    return told
