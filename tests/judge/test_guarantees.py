"""What holds for every guarantee and every assumption."""

from __future__ import annotations

import ast
import inspect
import pathlib

import pytest

from harness.judge import assumption, guarantee
from harness.judge.facts import reported
from harness.judge.guarantee import DRILL, ORDER, RUN, SECOND_RESTART, family, guarantees

MAY_BE_NAMED = {"Ground", "Kind", "Figure", "UNTRUE"}  # of verdict.py: where evidence lies, and no weight of it
WEIGHS = {"harness.judge.facts.known", "harness.judge.score", "harness.judge.weighing", "harness.judge.assumption"}
GUARANTEES = pathlib.Path(inspect.getfile(guarantee)).parent / "guarantees"


@pytest.mark.parametrize("file", sorted(path.name for path in GUARANTEES.glob("[a-z]*.py")))
def test_no_guarantee_weighs(file: str) -> None:
    """How a breach is known comes with its facts; what makes of it a verdict is `weighing.py`."""
    tree = ast.parse((GUARANTEES / file).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert not {node.module for node in imports} & WEIGHS
    named = {alias.name for node in imports if node.module == "harness.judge.verdict" for alias in node.names}
    assert named <= MAY_BE_NAMED


def test_each_has_a_sentence_and_names_what_there_is() -> None:
    for name, each in guarantees().items():
        assert guarantee.statement(name).endswith("."), name
        assert family(name) in ORDER and set(each.explained_by) <= guarantees().keys(), name
        assert set(each.rests_on) <= reported.ITEMS.keys() and each.holds_for, name
        assert set(each.holds_for) <= {RUN, DRILL, SECOND_RESTART}, name
    for name in assumption.assumptions():
        assert assumption.statement(name).endswith("."), name
