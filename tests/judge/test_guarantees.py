"""What holds for every guarantee and every assumption."""

from __future__ import annotations

import ast
import inspect
import pathlib

import pytest

from harness.judge import assumption, guarantee
from harness.judge.facts import reported, tellers
from harness.judge.guarantee import DRILL, ORDER, RUN, SECOND_RESTART, family, guarantees

MAY_BE_NAMED = {"Ground", "Kind", "Figure", "UNTRUE"}  # of verdict.py: where evidence lies, and no weight of it
WEIGHS = {"harness.judge.facts.known", "harness.judge.score", "harness.judge.weighing", "harness.judge.assumption"}
GUARANTEES = pathlib.Path(inspect.getfile(guarantee)).parent / "guarantees"
FACTS = pathlib.Path(inspect.getfile(tellers)).parent
TABLE = {"known.py", "tellers.py"}
WEIGHED = sorted(path for folder in (FACTS, GUARANTEES) for path in folder.glob("[a-z]*.py") if path.name not in TABLE)


@pytest.mark.parametrize("file", sorted(path.name for path in GUARANTEES.glob("[a-z]*.py")))
def test_no_guarantee_weighs(file: str) -> None:
    """How a breach is known comes with its facts; what makes of it a verdict is `weighing.py`."""
    tree = ast.parse((GUARANTEES / file).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert not {node.module for node in imports} & WEIGHS
    named = {alias.name for node in imports if node.module == "harness.judge.verdict" for alias in node.names}
    assert named <= MAY_BE_NAMED


@pytest.mark.parametrize("file", WEIGHED, ids=lambda path: path.name)
def test_only_the_table_of_tellers_chooses_how_a_fact_is_known(file: pathlib.Path) -> None:
    """Elsewhere a fact names its teller: a row of the table, or one of a pair by a condition."""
    nodes = [*ast.walk(ast.parse(file.read_text()))]
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module == tellers.__name__]
    names = {"By", "tellers", *(alias.name for node in imports for alias in node.names)}

    def strength(node: ast.AST | None) -> bool:
        return any(isinstance(each, ast.Name) and each.id in names for each in ast.walk(node or ast.Pass()))

    for node in nodes:
        where = f"{file.name}:{getattr(node, 'lineno', 0)}: choose in facts/tellers.py"
        assert not (isinstance(node, ast.Attribute) and ast.unparse(node.value) == "By"), where
        if isinstance(node, ast.IfExp):
            assert not strength(node.body) and not strength(node.orelse), where
        if isinstance(node, ast.BoolOp):
            assert not any(map(strength, node.values)), where
        if isinstance(node, ast.FunctionDef):
            kept = [each for each in ast.walk(node) if isinstance(each, ast.Assign | ast.AnnAssign | ast.AugAssign)]
            assert not any(strength(each.value) for each in kept), where


def test_each_has_a_sentence_and_names_what_there_is() -> None:
    for name, each in guarantees().items():
        assert guarantee.statement(name).endswith("."), name
        assert family(name) in ORDER and set(each.explained_by) <= guarantees().keys(), name
        assert set(each.rests_on) <= reported.ITEMS.keys() and each.holds_for, name
        assert set(each.holds_for) <= {RUN, DRILL, SECOND_RESTART}, name
    for name in assumption.assumptions():
        assert assumption.statement(name).endswith("."), name
