"""The core install: every dependency is bounded, and locked with the digests of its files."""

from __future__ import annotations

import pathlib
import re
import tomllib

from packaging.requirements import Requirement

ROOT = pathlib.Path(__file__).resolve().parent.parent
CORE = [Requirement(text) for text in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]]
LOCKED = (ROOT / "requirements.txt").read_text()


def test_every_core_dependency_has_an_upper_bound() -> None:
    for requirement in CORE:
        assert any(each.operator in ("<", "<=", "==", "~=") for each in requirement.specifier), str(requirement)


def test_the_locked_versions_are_within_the_bounds_and_have_digests() -> None:
    locked = re.findall(
        r"^([a-z0-9-]+)==(\S+)(?: ;[^\\]*)? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", LOCKED, re.M
    )
    versions = {name: version for name, version, _ in locked}
    for requirement in CORE:
        assert requirement.specifier.contains(versions[requirement.name]), str(requirement)
    entries = [line for line in LOCKED.splitlines() if line and not line.startswith(("#", " "))]
    assert len(entries) == len(locked), "every entry has digests"


def test_nothing_of_a_registry_is_in_the_lock() -> None:
    assert "://" not in LOCKED
