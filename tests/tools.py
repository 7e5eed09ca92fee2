"""What a test needs of the machine beyond Python: it is skipped in one line where that is missing, and fails in CI."""

from __future__ import annotations

import pytest

from harness import programs


def installed(group: str) -> bool:
    """Whether this machine has all programs of a group of the list, so that what they make up can be started."""
    return not programs.missing(programs.members(group))


def need(*names: str) -> None:
    """Skips the test if this machine lacks one of the programs; each must be in `harness/programs.py`."""
    if lacking := programs.missing(names):
        pytest.skip("; ".join(map(str, lacking)))
