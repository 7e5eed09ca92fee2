"""The track record holds only bugs that the released code showed, and that are gone in the fixed form."""

import json
import pathlib
import re
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from benches import bugs

KNOWN, STORED = bugs.bugs(), bugs.kept()
GONE = {"verdict": "pass", "broken": [], "reason": ""}


@pytest.mark.parametrize("name", KNOWN)
def test_a_bug_was_shown_on_the_files_that_are_there_and_is_gone_in_the_fixed_form(name: str) -> None:
    seen = STORED[name]
    assert bugs.true(KNOWN[name], seen) == ""
    assert seen["files"] == bugs.digest(name, KNOWN[name]), f"its files changed: make bug NAME={name}"
    assert seen["versions"] == bugs.versions(name, KNOWN[name])


def test_nothing_else_is_kept() -> None:
    assert set(STORED) == set(KNOWN)


@pytest.mark.parametrize("name", KNOWN)
def test_a_number_is_that_of_its_address(name: str) -> None:
    for source, address in KNOWN[name].sources.items():
        assert re.sub(r"^https://github\.com/(.+)/(issues|pull)/(\d+)$", r"\1#\3", address) == source


@pytest.mark.parametrize(
    ("released", "fixed"),
    [
        ({"verdict": "inconclusive"}, {}),
        ({"broken": ["job.finished"]}, {}),
        ({}, {"verdict": "inconclusive"}),
        ({}, {"verdict": "fail"}),
    ],
)
def test_a_half_shown_bug_is_no_row(
    released: dict[str, Any], fixed: dict[str, Any], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, bug = next(iter(KNOWN.items()))
    shown = {"verdict": "fail", "broken": [bug.breaks], "reason": "it went wrong"}
    about = {"date": "2026-12-01", "versions": {}, "files": ""}
    monkeypatch.setattr(bugs, "KEPT", tmp_path / "kept.json")
    bugs.KEPT.write_text(json.dumps({name: about | {"released": shown, "fixed": GONE}}))
    assert "it went wrong" in bugs.markdown()
    bugs.KEPT.write_text(json.dumps({name: about | {"released": shown | released, "fixed": GONE | fixed}}))
    assert "it went wrong" not in bugs.markdown()


def test_a_fixed_form_is_one_thing() -> None:
    text = next(bugs.FOLDER.glob("*/bug.yaml")).read_text()
    data = yaml.safe_load(text)
    data["fixed"] = {"pins": {"torch": "2.14.1"}, "packages": "fix.patch", "words": "both"}
    with pytest.raises(ValidationError, match="write one of pins, packages and script"):
        bugs.Bug(**data)


@pytest.mark.parametrize("name", KNOWN)
def test_a_fixed_release_is_another_one_of_a_locked_package(name: str) -> None:
    locked = dict(re.findall(r"^([\w-]+)==(\S+)$", bugs.requirements(name), re.M))
    assert all(locked[package] != version for package, version in KNOWN[name].fixed.pins.items())


def test_what_an_answer_calls_broken() -> None:
    resumed = {"tried": [{"right": True, "differs": ["computed"]}, {"right": False, "differs": ["samples"]}]}
    assert list(bugs.broken("matrix resume", resumed)) == ["samples"]
    run = {
        "guarantees": [{"name": "job.finished", "state": "broken"}, {"name": "end.explained", "state": "held"}],
        "expectations": [{"name": "recovery_time.max", "verdict": "fail"}],
    }
    assert list(bugs.broken("run", run)) == ["job.finished", "recovery_time.max"]
