"""The neutral form of an answer: what is read, and what is refused with its line."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.diagnosis.answer import LINE_BYTES_MAX, Answer, AnswersError, Decision, Kind, Suspect, read_lines, wall_ns
from harness.errors import UsageError

NS = 10**9


def read(*lines: Any) -> list[Answer]:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    return list(read_lines("\n".join(texts).encode(), "d.jsonl"))


def test_whole_answers_and_the_least_ones_are_read() -> None:
    line = {"at": "2026-11-30T06:51:40.5+01:00", "kind": "bad-data", "sure": 0.5, "decision": "roll-back", "why": "nan"}
    suspect = {"rank": 3, "node": "n1", "gpu": 2, "link": "eth0", "file": "/a"}
    (answer,) = read(line | {"who": [suspect], "step": 7})
    who = (Suspect(rank=3, node="n1", gpu=2, link="eth0", file="/a"),)
    at = wall_ns("2026-11-30T05:51:40.500Z")
    assert answer == Answer(Kind.BAD_DATA, who, Decision.ROLL_BACK, "nan", at, 7, 0.5)
    assert str(who[0]) == "rank 3, node n1, gpu 2, link eth0, file /a"
    assert read({"kind": "none"}, "", {"kind": "hang", "at": 5}) == [Answer(Kind.NONE), Answer(Kind.HANG, at=5)]
    assert wall_ns("1970-01-01T02:00:01", 2) == NS
    assert wall_ns("1970-01-01T00:00:01Z", 2) == NS


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "Input data was truncated"),
        ([], "Expected `object`, got `array`"),
        ({}, "missing required field `kind`"),
        ({"kind": "fire"}, "Invalid enum value 'fire'"),
        ({"kind": "hang", "rank": 1}, "unknown field `rank`"),
        ({"kind": "hang", "who": [{"rank": -1}]}, "Expected `int` >= 0"),
        ({"kind": "hang", "who": [{"rank": True}]}, "Expected `int | null`, got `bool`"),
        ({"kind": "hang", "who": [{"node": ""}]}, "length >= 1"),
        ({"kind": "hang", "who": [{}] * 2000}, "length <= 1024"),
        ({"kind": "hang", "sure": 1.5}, "<= 1"),
        ({"kind": "hang", "sure": "yes"}, "Expected `float | null`, got `str`"),
        ({"kind": "hang", "decision": "pray"}, "Invalid enum value 'pray'"),
        ({"kind": "hang", "step": -1}, ">= 0"),
        ({"kind": "hang", "why": "x" * 3000}, "length <= 2000"),
        ({"kind": "hang", "at": "yesterday"}, "is no time"),
        ({"kind": "hang", "at": "2026-11-30T06:51:40"}, "has no zone"),
        ({"kind": "hang", "at": -5}, "out of range"),
        ({"kind": "hang", "at": 2**63}, "out of range"),
        ({"kind": "hang", "why": "x" * LINE_BYTES_MAX}, f"allowed are {LINE_BYTES_MAX}"),
        ("[" * 10_000, "d.jsonl:2"),
    ],
)
def test_a_bad_line_is_refused_with_its_number(line: Any, said: str) -> None:
    with pytest.raises(AnswersError) as caught:
        read({"kind": "none"}, line)
    assert str(caught.value).startswith("d.jsonl:2: ") and said in str(caught.value)
    assert len(str(caught.value)) < 1500 and isinstance(caught.value, UsageError)


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(content: bytes) -> None:
    try:
        list(read_lines(content, "d.jsonl"))
    except AnswersError as error:
        assert str(error).startswith("d.jsonl:")
