"""Compares the file names of two runs, ignoring numbers that differ in each run, such as steps, times and process
ids."""

import re
from collections import Counter
from collections.abc import Set

_NUMBER = re.compile(
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"  # a UUID
    r"|[0-9a-f]{8,}"
    r"|(?<![0-9a-z])[a-z]*+\d+[a-z][0-9a-z]*"  # a letter after a digit: an id drawn by chance, like k3x9q2ab
    r"|\d+",
    re.IGNORECASE,
)


def pattern(name: str) -> str:
    return _NUMBER.sub("#", name)


def absent(due: Set[str], there: Set[str]) -> list[str]:
    """Returns the expected names (`due`) that are missing, sorted. A name in `there` that differs only in numbers from
    an expected name replaces that name."""
    others = Counter(map(pattern, there - due))
    found = []
    for name in sorted(due - there):
        if others[of := pattern(name)]:
            others[of] -= 1
        else:
            found.append(name)
    return found
