"""What a run was judged to be, and why."""

from harness.campaign.repeats import RepeatVerdict
from harness.gameday.day_verdict import DayResult
from harness.judge.score import Scorecard
from harness.judge.verdict import Verdict


def assert_verdict(card: Scorecard | RepeatVerdict | DayResult, right: Verdict, *reasons: str, first: str = "") -> None:
    """The verdict, what is in some reason each, and what is in the first one."""
    assert card.verdict is right, card.reasons
    assert all(any(text in told for told in card.reasons) for text in reasons), card.reasons
    assert not first or first in card.reasons[0], card.reasons
