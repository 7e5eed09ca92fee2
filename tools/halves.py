"""Were all tests run? Reads the outcomes of CI's two halves, prints the counts, and fails by the rules of CI.

    python -m halves FIRST SECOND      both as `--outcomes` wrote them (tools/outcomes.py)

    python -m halves --left OUTCOMES…      the files of tests that were skipped in the end; the later ones count

    python -m halves --busy OUTCOMES COMMIT      what failed beside two busy loops, as a table

`tests/ci.yaml` holds what CI knows of its tests: which of them neither half can run, and which failed once and passed
when they ran again.
"""

from __future__ import annotations

import pathlib
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import outcomes
import yaml
from outcomes import Outcome

TESTS = pathlib.Path(__file__).resolve().parents[1] / "tests"
KNOWN = TESTS / "ci.yaml"
FLAKY_MAX = 2


@dataclass(frozen=True)
class Ends:
    """How the tests ended, by name."""

    passed: Sequence[str]
    failed: Sequence[str]
    flaky: Sequence[str]  # failed, and passed when they ran again; among the passed ones, too
    skipped: Mapping[str, str]  # in both halves, with the reason
    files: frozenset[str] = frozenset()  # of which a test was collected, or which were skipped as a whole

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
        return cls(**found, skipped=skipped, files=frozenset(test.partition("::")[0] for test in named))


def _last_words(half: Sequence[Outcome]) -> dict[str, tuple[str, str]]:
    """By test: how it ended in this half, and the reason where it was skipped. `flaky`: failed, and then passed."""
    found: dict[str, tuple[str, str]] = {}
    for each in half:
        outcome = each["outcome"]
        if found.get(each["test"], ("", ""))[0] in ("failed", "flaky"):
            outcome = "flaky" if outcome == "passed" else "failed"
        found[each["test"]] = outcome, each["reason"]
    return found


def test_files(tests: pathlib.Path = TESTS) -> list[str]:
    """The test files of the checkout, as pytest names them."""
    return sorted(path.relative_to(tests.parent).as_posix() for path in tests.rglob("test_*.py"))


def problems(ends: Ends, known: Mapping[str, Any], expected: Sequence[str] | None = None) -> Iterator[str]:
    """What fails CI. `expected`: the files that must have tests, where all tests were asked for."""
    yield from (f"failed: {test}" for test in ends.failed)
    rows = known["not_run"]
    unlisted = [test for test in ends.skipped if not any(_names(row, test, ends.skipped[test]) for row in rows)]
    yield from (f"skipped in both halves, and not listed: {test}: {ends.skipped[test]}" for test in unlisted)
    before = {row["test"]: row["date"] for row in known["flaky"]}
    yield from (f"flaky again, first on {before[test]}: {test}" for test in ends.flaky if test in before)
    if len(ends.flaky) > FLAKY_MAX:
        yield f"{len(ends.flaky)} tests are flaky; {FLAKY_MAX} at most may be"
    if expected is not None:
        unused = [row for row in rows if not any(_names(row, test, why) for test, why in ends.skipped.items())]
        yield from (f"not_run lists {row['tests']}, but no test there was skipped: remove the row" for row in unused)
        yield from (f"no test of this file was collected: {file}" for file in expected if file not in ends.files)


def _names(row: Mapping[str, str], test: str, reason: str) -> bool:
    return test.startswith(row["tests"]) and re.search(row["reason"], reason) is not None


def main(first: str, second: str, scope: str = "") -> int:
    """`scope`: what was asked for, where that was not all tests."""
    ends = Ends.of(outcomes.read(pathlib.Path(first)), outcomes.read(pathlib.Path(second)))
    known = yaml.safe_load(KNOWN.read_text())
    found = list(problems(ends, known, None if scope else test_files()))
    in_first = len({each["test"] for each in outcomes.read(pathlib.Path(first)) if each["outcome"] != "skipped"})
    print(f"tests run without engines: {in_first}; with engines: {len(ends.passed) + len(ends.failed) - in_first}")
    print(f"skipped in both halves: {len(ends.skipped)}; flaky: {len(ends.flaky)}; test files: {len(ends.files)}")
    for row in known["not_run"]:
        count = sum(_names(row, test, reason) for test, reason in ends.skipped.items())
        print(f"  {count} of {row['tests']}: {row['reason']}; run them by: {row['command']}")
    for test in ends.flaky:
        print(f"  flaky (add it to tests/ci.yaml with today's date): {test}")
    for problem in found:
        print(f"PROBLEM {problem}")
    print(f"{len(ends.passed)} passed, {len(ends.failed)} failed, {len(ends.skipped)} skipped")
    return 1 if found else 0


def left(told: Sequence[Outcome]) -> list[str]:
    """The files of the tests that were skipped in the end."""
    return sorted({test.partition("::")[0] for test in outcomes.skipped([*told])})


def busy_table(told: Sequence[Outcome], commit: str, date: str) -> list[str]:
    """What failed beside two busy loops, in Markdown."""
    ends = Counter(each["outcome"] for each in told)
    failed = [each for each in told if each["outcome"] == "failed"]
    rows = [f"| {date} | {commit[:12]} | {each['test']} | {each['reason'].replace('|', '/')} |" for each in failed]
    head = f"beside two busy loops: {ends['passed']} passed, {len(failed)} failed, {ends['skipped']} skipped"
    return [head, *(["| date | commit | failed | reason |", "|---|---|---|---|", *rows] if rows else [])]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--left"]:
        print(*left([each for name in sys.argv[2:] for each in outcomes.read(pathlib.Path(name))]), sep="\n")
    elif sys.argv[1:2] == ["--busy"]:
        today = datetime.now(UTC).date().isoformat()
        print(*busy_table(outcomes.read(pathlib.Path(sys.argv[2])), sys.argv[3], today), sep="\n")
    else:
        sys.exit(main(*sys.argv[1:]))
