"""Were all tests run? Reads the outcomes of CI's two halves, prints the counts, and fails by the rules of CI.

    python -m halves FIRST SECOND      both as `--outcomes` wrote them (tests/outcomes.py)

`tests/ci.yaml` holds what CI knows of its tests: how many there are, which of them neither half can run, and which
failed once and passed when they ran again.
"""

from __future__ import annotations

import pathlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import outcomes
import yaml
from outcomes import Outcome

KNOWN = pathlib.Path(__file__).with_name("ci.yaml")
FLAKY_MAX = 2


@dataclass(frozen=True)
class Ends:
    """How the tests ended, by name."""

    passed: Sequence[str]
    failed: Sequence[str]
    flaky: Sequence[str]  # failed, and passed when they ran again; among the passed ones, too
    skipped: Mapping[str, str]  # in both halves, with the reason
    collected: int = 0  # in the first half, which is the same on each machine

    @classmethod
    def of(cls, first: Sequence[Outcome], second: Sequence[Outcome]) -> Ends:
        """What failed in one half has failed, whatever the other one says; only a second run in the same half helps."""
        halves = [_last_words(first), _last_words(second)]
        named = list(dict.fromkeys(test for half in halves for test in half))
        files = {test.partition("::")[0] for test in named if "::" in test}
        found: dict[str, list[str]] = {"passed": [], "failed": [], "flaky": []}
        skipped = {}
        for test in named:
            ends = [half[test] for half in halves if test in half]
            outcomes_of = {outcome for outcome, _ in ends}
            if "failed" in outcomes_of:
                found["failed"].append(test)
            elif outcomes_of & {"passed", "flaky"}:
                found["passed"].append(test)
                found["flaky"] += [test] * ("flaky" in outcomes_of)
            elif test not in files:  # a file that was skipped as a whole, and then run test by test, is named by these
                skipped[test] = ends[-1][1]
        return cls(**found, skipped=skipped, collected=sum("::" in test for test in halves[0]))


def _last_words(half: Sequence[Outcome]) -> dict[str, tuple[str, str]]:
    """By test: how it ended in this half, and the reason where it was skipped. `flaky`: failed, and then passed."""
    found: dict[str, tuple[str, str]] = {}
    for each in half:
        outcome = each["outcome"]
        if found.get(each["test"], ("", ""))[0] in ("failed", "flaky"):
            outcome = "flaky" if outcome == "passed" else "failed"
        found[each["test"]] = outcome, each["reason"]
    return found


def problems(ends: Ends, known: Mapping[str, Any], whole: bool = True) -> Iterator[str]:
    """What fails CI. `whole`: all tests were asked for, so that a count and a list can be held against them."""
    yield from (f"failed: {test}" for test in ends.failed)
    rows = known["not_run"]
    unlisted = [test for test in ends.skipped if not any(_names(row, test, ends.skipped[test]) for row in rows)]
    yield from (f"skipped in both halves, and not listed: {test}: {ends.skipped[test]}" for test in unlisted)
    before = {row["test"]: row["date"] for row in known["flaky"]}
    yield from (f"flaky again, first on {before[test]}: {test}" for test in ends.flaky if test in before)
    if len(ends.flaky) > FLAKY_MAX:
        yield f"{len(ends.flaky)} tests are flaky; {FLAKY_MAX} at most may be"
    if whole:
        unused = [row for row in rows if not any(_names(row, test, why) for test, why in ends.skipped.items())]
        yield from (f"not_run lists {row['tests']}, but no test there was skipped: remove the row" for row in unused)
        if ends.collected != known["collected"]:
            yield (
                f"{ends.collected} tests were collected; ci.yaml says {known['collected']}. Write the new number there,"
                " and where it fell, say why in the commit"
            )


def _names(row: Mapping[str, str], test: str, reason: str) -> bool:
    return test.startswith(row["tests"]) and re.search(row["reason"], reason) is not None


def main(first: str, second: str, scope: str = "") -> int:
    """`scope`: what was asked for, where that was not all tests."""
    ends = Ends.of(outcomes.read(pathlib.Path(first)), outcomes.read(pathlib.Path(second)))
    known = yaml.safe_load(KNOWN.read_text())
    found = list(problems(ends, known, whole=not scope))
    in_first = len({each["test"] for each in outcomes.read(pathlib.Path(first)) if each["outcome"] != "skipped"})
    print(f"tests run without engines: {in_first}; with engines: {len(ends.passed) + len(ends.failed) - in_first}")
    print(f"skipped in both halves: {len(ends.skipped)}; flaky: {len(ends.flaky)}; collected: {ends.collected}")
    for row in known["not_run"]:
        count = sum(_names(row, test, reason) for test, reason in ends.skipped.items())
        print(f"  {count} of {row['tests']}: {row['reason']}; run them by: {row['command']}")
    for test in ends.flaky:
        print(f"  flaky (add it to tests/ci.yaml with today's date): {test}")
    for problem in found:
        print(f"PROBLEM {problem}")
    print(f"{len(ends.passed)} passed, {len(ends.failed)} failed, {len(ends.skipped)} skipped")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
