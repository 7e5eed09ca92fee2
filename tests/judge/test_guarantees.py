"""What holds for every guarantee and every assumption."""

import ast
import inspect
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
from judging import fault_free_of
from simulator import Job

from harness.evidence.logs import Evidence
from harness.judge import assumption, guarantee, weighing
from harness.judge.facts import tellers
from harness.judge.facts.analysis import Analysis
from harness.judge.guarantee import ORDER, RUN, Guarantee, breach, family, guarantees
from harness.judge.verdict import Ground, Kind, Verdict

MAY_BE_NAMED = {"Ground", "Kind", "Figure", "UNTRUE"}  # of verdict.py: where evidence lies, and no weight of it
WEIGHS = {"harness.judge.facts.known", "harness.judge.score", "harness.judge.weighing", "harness.judge.assumption"}
GUARANTEES = pathlib.Path(inspect.getfile(guarantee)).parent / "guarantees"
JUDGE = pathlib.Path(inspect.getfile(tellers)).parents[1]
MAY_WEIGH = {"facts/known.py", "facts/tellers.py", "weighing.py", "verdict.py"}  # beside the assumptions
NAMES_FACTS = sorted(
    path
    for path in JUDGE.rglob("[a-z]*.py")
    if path.parent.name != "assumptions" and str(path.relative_to(JUDGE)) not in MAY_WEIGH
)
CHOICES = ast.Compare | ast.BoolOp | ast.UnaryOp | ast.IfExp


@pytest.mark.parametrize("file", sorted(path.name for path in GUARANTEES.glob("[a-z]*.py")))
def test_no_guarantee_weighs(file: str) -> None:
    """How a breach is known comes with its facts; what makes of it a verdict is `weighing.py`."""
    tree = ast.parse((GUARANTEES / file).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert not {node.module for node in imports} & WEIGHS
    named = {alias.name for node in imports if node.module == "harness.judge.verdict" for alias in node.names}
    assert named <= MAY_BE_NAMED


@pytest.mark.parametrize("file", NAMES_FACTS, ids=lambda path: path.name)
def test_only_assumptions_and_the_merge_weigh_how_a_fact_is_known(file: pathlib.Path) -> None:
    """Elsewhere a fact names its teller, a row of the table, and nobody asks how strong a fact is."""
    assert weighs(file.read_text()) == []


@pytest.mark.parametrize(
    "line",
    [
        "found = [each for each in told if each.by.sure]",
        "known = By.TOLD",
        "yield Odd(text, max(self.by, other))",
        "yield Odd(text, tellers.USUAL[usual is not None])",
        "yield Odd(text, tellers.usual(first or other))",
        "yield Odd(text, tellers.UNTOLD if usual is None else tellers.SEEN)",
        "def rule(told):\n    strength = tellers.UNTOLD",
    ],
)
def test_a_place_that_weighs_is_found(line: str) -> None:
    assert weighs(line)
    assert weighs("yield Odd(text, tellers.usual(fault_free))\nasked = Asked.by(run)\nby: By = tellers.SEEN") == []


def weighs(source: str) -> list[str]:
    """The lines of this source that choose a strength, or look at one."""
    nodes = [*ast.walk(ast.parse(source))]
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module == tellers.__name__]
    names = {"By", "tellers", *(alias.name for node in imports for alias in node.names)}
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}

    def strength(node: ast.AST | None) -> bool:
        return any(isinstance(each, ast.Name) and each.id in names for each in ast.walk(node or ast.Pass()))

    def chooses(node: ast.AST) -> bool:
        match node:
            case ast.Attribute(attr="sure") | ast.Attribute(value=ast.Name(id="By")):
                return True
            case ast.Attribute(attr="by", ctx=ast.Load()):
                return id(node) not in called
            case ast.Call(func=func) if strength(func):
                return any(isinstance(each, CHOICES) for part in node.args for each in ast.walk(part))
            case ast.Subscript() | ast.Compare():
                return strength(node)
            case ast.IfExp():
                return strength(node.body) or strength(node.orelse)
            case ast.BoolOp():
                return any(map(strength, node.values))
            case ast.FunctionDef():
                kept = [each for each in ast.walk(node) if isinstance(each, ast.Assign | ast.AnnAssign | ast.AugAssign)]
                return any(strength(each.value) for each in kept)
        return False

    return [f"{getattr(node, 'lineno', 0)}: {ast.unparse(node)}" for node in nodes if chooses(node)]


def test_each_has_a_sentence_and_names_what_there_is() -> None:
    for name in guarantees():
        assert guarantee.FAMILY.sentence(name).endswith("."), name
        assert family(name) in ORDER, name
    for name in assumption.assumptions():
        assert assumption.FAMILY.sentence(name).endswith("."), name


SECONDS = Ground(Kind.DURATION, of=(3, 4))
makes: Any = breach  # of what it does not take
kinds: Any = Kind


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (lambda: [makes("a gap", {"at": 3})], "{'at': 3} is no fact; take one that has `by`: a save of"),
        (lambda: [makes(None)], "words is None; write a sentence that says what is wrong"),
        (lambda: [makes("a gap", grounds=[Kind.DURATION])], "holds more than Ground(Kind.…)"),
        (lambda: [breach("a gap", grounds=[Ground(kinds.TIME)])], "; choose one of: ABSENCE, DURATI"),
        (lambda: [breach("a gap", grounds=[SECONDS])], "the window (3, 4) of a Ground is outside of the run, ("),
        (lambda: ["a gap"], "its result cannot be used: TypeError: `breaches` yields 'a gap'; yield breach(words)"),
        (lambda: None, "its result cannot be used: TypeError: 'NoneType' object is not iterable"),
        (lambda: [], "its result cannot be used: TypeError: `nothing` returns None; return a text: why the run"),
    ],
)
def test_a_result_that_is_none_is_told_with_its_guarantee_and_is_no_pass(
    found: Callable[[], Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = Guarantee(lambda evidence: found(), nothing=lambda evidence: None)  # type: ignore[arg-type,return-value]
    monkeypatch.setattr(weighing, "guarantees", lambda: {"restart.newest": wrong})
    run = fault_free_of(Job(nodes=2, steps=20, every=10))
    [state], [finding] = weighing.judged(Analysis.of(Evidence(run)), RUN)
    assert state.state == "open" and state.why == finding.text and finding.verdict is Verdict.INCONCLUSIVE
    assert words in finding.text and finding.text.startswith("restart.newest: its ")
    assert "judge/test_guarantees.py:" in finding.text or "its result cannot" in finding.text
    assert finding.settles.endswith("judge this run again: {score}")
