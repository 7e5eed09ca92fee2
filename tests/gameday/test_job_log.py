"""What an attached job wrote while it was struck, seen through a window on its newest lines."""

import pathlib
import tempfile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.campaign.own_log import reader_as
from harness.gameday.attach.attached_verdict import LOSSES, judge_attached, not_judged
from harness.gameday.attach.job_log import JobLog, done_again
from harness.judge.verdict import Verdict

READER = reader_as({"lines": {"regex": r"step (?P<step>\d+) loss (?P<loss>\S+)"}})
SEEN: list[dict[str, Any]] = [
    {"what": "after", "entry": 0, "codes": {}, "seen": {}, "highest": 1, "now": 2},
    {"what": "finished", "outcome": "completed"},
]


def written(*lives: range, odd: int | None = None) -> list[str]:
    """A line a step; the last time, step `odd` has another loss."""
    return [
        f"step {step} loss {0.5 if step == odd and life is lives[-1] else 1 / step:.6f}"
        for life in lives
        for step in life
    ]


@given(st.integers(2, 9), st.lists(st.integers(1, 5), min_size=1), st.integers(0, 40))
def test_each_line_is_kept_once_in_order(window: int, moves: list[int], count: int) -> None:
    lines, at = [f"line {number}" for number in range(count)], 0
    with tempfile.TemporaryDirectory() as folder:
        log = JobLog(pathlib.Path(folder))
        for move in moves:
            at = min(count, at + min(move, window - 1))
            log.add({"node 0/1": lines[max(0, at - window) : at]})
        log.add({"node 0/1": lines[max(0, at - window) : at]}, last=True)
        kept = [path.read_text().splitlines() for path in pathlib.Path(folder).iterdir()]
    assert kept == ([lines[:at]] if at else [])


@pytest.mark.parametrize(
    ("lines", "same", "verdict"),
    [
        (written(range(1, 20), range(10, 25)), [True], Verdict.PASS),
        (written(range(1, 20), range(10, 25), range(18, 30)), [True, True], Verdict.PASS),
        (written(range(1, 20), range(10, 25), range(18, 30), odd=19), [True, False], Verdict.FAIL),
        (written(range(1, 20), range(18, 25), odd=18), [None], Verdict.PASS),
        (written(range(1, 20)), [], Verdict.PASS),
    ],
)
def test_steps_done_again_must_be_like_the_first_time(
    lines: list[str], same: list[bool | None], verdict: Verdict, tmp_path: pathlib.Path
) -> None:
    JobLog(tmp_path).add({"": lines}, last=True)
    found = list(done_again(tmp_path, READER))
    assert [each["same"] for each in found] == same
    records = [*SEEN[:1], *found, *SEEN[1:]]
    assert judge_attached(records, 1).verdict is verdict
    assert (LOSSES in not_judged(records)) is (not same or None in same)


def test_a_log_that_leaves_open_what_was_done_is_not_judged(tmp_path: pathlib.Path) -> None:
    """Two writers in one log: the second one's figures are held against nothing."""
    lines = [line for line in written(range(1, 20), range(10, 25)) for line in (line, line + "9")]
    JobLog(tmp_path).add({"": lines}, last=True)
    found = list(done_again(tmp_path, READER))
    assert [each["same"] for each in found] == [True, None] and "more than once" in found[1]["text"]
    assert LOSSES in not_judged(found)
