"""Finds files other than saves, such as an export, that the fault-free run left and this run did not.

The harness itself lists the files of both runs after all nodes have ended. File names that differ only in a number
count as one name, because the number may be a step, a time or a process. The contents of files are not compared.
Missing files are judged only if the scenario limits their number.
"""

from collections.abc import Sequence
from typing import Any

from harness.evidence.files_left import listings
from harness.judge.bounds import FilesBounds
from harness.judge.facts.analysis import Analysis
from harness.judge.score import Score, ScoreResult, left_open, line
from harness.judge.verdict import Doubt
from harness.log.numbered_names import absent

NAME = "files_beside_saves.max_missing"
NAMED_MAX, NAME_CHARS_MAX = 5, 100  # most names in a sentence, and characters of each
LISTED_MAX = 100  # most names in report.json


def files_beside_saves(evidence: Analysis, bounds: FilesBounds | None) -> ScoreResult:
    found, allowed = listings(evidence), f"≤ {bounds.max_missing} missing" if bounds else ""
    if not isinstance(found, str) and not found[0]:
        found = "the harness saw no file beside the saves of the fault-free run"
    if isinstance(found, str):
        why = f"not judged: {found}"
        open_ = [left_open(NAME, allowed, why, Doubt.NOT_COMPARABLE)] if bounds else []
        return ScoreResult({"not_compared": found} if bounds else {}, open_)
    due, missing = len(found[0]), absent(*found)
    words = _not_written(missing)
    values: dict[str, Any] = {"files": due, "missing": len(missing), "names": missing[:LISTED_MAX], "words": words}
    if bounds is None:
        return ScoreResult(values)
    why = words if len(missing) > bounds.max_missing else ""
    return ScoreResult(values, [line(NAME, allowed, f"{len(missing)} of {due}", why)])


def _not_written(missing: Sequence[str]) -> str:
    if not missing:
        return ""
    named = ", ".join(f"{'…' * (len(name) > NAME_CHARS_MAX)}{name[-NAME_CHARS_MAX:]}" for name in missing[:NAMED_MAX])
    more = f" and {len(missing) - NAMED_MAX} more" if len(missing) > NAMED_MAX else ""
    return f"{named}{more} {'was' if len(missing) == 1 else 'were'} not written"


SCORES = (Score("files_beside_saves", 44, files_beside_saves, by_steps=False),)
