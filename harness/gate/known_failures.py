"""Judges a scenario that the suite lists as a known failure, which is expected for now."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from harness.campaign.repeats import RepeatVerdict
from harness.gate.suite_file import KnownFailure
from harness.judge.score import Scorecard
from harness.judge.verdict import Verdict


def settle(
    known: KnownFailure, result: RepeatVerdict, cards: Sequence[Scorecard], today: datetime.date
) -> RepeatVerdict:
    """Returns the verdict on a scenario that the suite lists as a known failure. A known failure gets the verdict pass
    if all runs fail for the listed reason, and fail if a run fails for another reason. A known failure also gets the
    verdict fail if a run passes and no run is inconclusive or invalid, because the suite is then out of date. After its
    last day (`until`), a known failure always gets the verdict fail."""
    named = f"known failure {known.ticket}, until {known.until}"
    if today > known.until:
        return _failed(f"{named}, has expired; fix it or renew it: {result.reasons[0]}", result)
    if result.verdict is Verdict.PASS:
        return _failed(f"it passes, but it is listed as a {named}: remove known_failure from the suite", result)
    if result.verdict is not Verdict.FAIL:
        return result
    if unclear := [card for card in cards if card.verdict not in (Verdict.PASS, Verdict.FAIL)]:
        are = "is" if len(unclear) == 1 else "are"
        reason = f"{len(unclear)} of {len(cards)} runs {are} {unclear[0].verdict}: {unclear[0].reasons[0]}"
        return RepeatVerdict(Verdict.INCONCLUSIVE, (reason, *result.reasons))
    if passed := sum(card.verdict is Verdict.PASS for card in cards):
        told = f"{passed} of {len(cards)} runs {'passes' if passed == 1 else 'pass'}"
        return _failed(f"{told}, but it is listed as a {named}: remove known_failure from the suite, or fix it", result)
    failed = [card for card in cards if card.verdict is Verdict.FAIL]
    # A run without a reason is an unknown failure.
    reasons = [reason for card in failed for reason in card.reasons or [f"run {card.run_id} gives no reason"]]
    reasons = reasons if cards else list(result.reasons)
    if other := next((reason for reason in reasons if not any(text in reason for text in known.texts)), ""):
        return _failed(f"it fails for another reason than its {named}: {other}", result)
    return RepeatVerdict(Verdict.PASS, (f"{named}: it fails as expected", *result.reasons), result.assessments)


def _failed(reason: str, result: RepeatVerdict) -> RepeatVerdict:
    return RepeatVerdict(Verdict.FAIL, (reason, *result.reasons), result.assessments)
