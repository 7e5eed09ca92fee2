"""The runner of `make mutation`: what it changes, and that a change which matters is noticed."""

import ast
import os
import pathlib
import subprocess
import sys

from mutation.__main__ import TARGETS, TESTS, Coverage, in_child
from mutation.operators import mutants

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCE = '''"""Text of the module."""
from a import b

__all__ = ["f"]
LIMIT: int = 3


def f(x: int) -> str:
    """Text of the function."""
    assert x > 0, "ours"
    if x < LIMIT and not b:
        raise ValueError(f"{x} is less than {LIMIT}")
    return "".join(str(y) for y in range(x) if y != 1)


def g() -> bool:
    return False
'''


def test_what_is_changed_and_what_is_left_alone(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(SOURCE)
    found = mutants(path)
    assert [(mutant.line, mutant.change) for mutant in found] == [
        (5, "3 → 4"),
        (11, "condition negated"),
        (11, "And → Or"),
        (11, "Lt → LtE"),
        (11, "Not gone"),
        (12, "raises nothing"),
        (13, "returns None"),
        (13, "'' → 'X'"),
        (13, "nothing left out"),
        (13, "NotEq → Eq"),
        (13, "1 → 2"),
        (17, "False → True"),
    ]
    sources = {ast.unparse(mutant.tree()) for mutant in found}
    assert len(sources) == len(found) and ast.unparse(ast.parse(SOURCE)) not in sources
    assert "if x <= LIMIT and (not b):" in ast.unparse(found[3].tree())


def test_every_file_named_is_there_and_every_change_of_the_judging_code_can_be_compiled() -> None:
    assert [name for name in (*TARGETS, *TESTS) if not (ROOT / name).is_file()] == []
    for target in TARGETS[:3]:
        for mutant in mutants(ROOT / target)[::40]:
            compile(mutant.tree(), str(mutant.path), "exec")


def test_the_answer_of_a_child() -> None:
    def crash() -> int:
        raise KeyError("x")

    assert in_child(lambda: 0)[0] == "survived"
    assert in_child(lambda: 1)[0] == "killed"
    assert in_child(crash)[0] == "killed"


TRIED = """
from mutation.__main__ import ROOT, mutants, sys, try_out
changed = next(each for each in mutants(ROOT / "harness/log/numbered_names.py") if each.change == "returns None")
sys.exit(try_out(changed, ["tests/log/test_numbered_names.py"]))
"""


def test_the_tests_import_the_changed_module() -> None:
    """In a process of its own, which has imported nothing of the harness yet."""
    environment = os.environ | {"PYTHONPATH": "tests:tools"}
    assert subprocess.run([sys.executable, "-c", TRIED], cwd=ROOT, env=environment).returncode == 1


def test_only_tests_that_execute_the_change_are_run(tmp_path: pathlib.Path) -> None:
    mutant = next(m for m in mutants(ROOT / "harness" / "units.py") if m.change == "returns None")
    coverage = Coverage(["harness/units.py"])
    coverage.lines = {"quick": {("harness/units.py", mutant.line)}, "slow": {("harness/units.py", mutant.line)}}
    coverage.lines["other"] = {("harness/units.py", 1)}
    coverage.seconds |= {"quick": 1.0, "slow": 2.0}
    assert coverage.tests_of(mutant) == ["quick", "slow"]


def test_what_a_parameter_defaults_to_concerns_all_tests_of_the_file() -> None:
    path = ROOT / "harness" / "judge" / "score.py"
    source = path.read_text().splitlines()
    default = next(m for m in mutants(path) if m.change == "'' → 'X'" and "why: str" in source[m.line - 1])
    coverage = Coverage(["harness/judge/score.py"])
    coverage.lines = {"any": {("harness/judge/score.py", 1)}}
    assert coverage.tests_of(default) == ["any"]
