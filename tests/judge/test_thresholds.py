"""Every number of the judge that decides is in one table."""

import ast
import pathlib
from collections.abc import Iterator

import pytest

import harness
from harness.judge import thresholds
from harness.judge.thresholds import SOURCES

HARNESS = pathlib.Path(harness.__file__).parent
JUDGING = sorted(path for room in ("evidence", "judge") for path in (HARNESS / room).rglob("*.py"))
DECIDE_NOTHING = {  # units, sizes of what is printed or read, and places in an order
    *("S", "_RANK_BITS", "_DIGITS_MAX", "DIGITS_MAX", "ENDLESS", "ELSEWHERE", "RUNS_MAX", "_FACTORS", "QUANTILES"),
    *("NAMED_RUNS", "NAMED_SIZES", "NAMED_STEPS", "NAMED_DEATHS", "NAMED_MAX", "NAME_CHARS_MAX", "ERROR_CHARS"),
    *("SHOWN_MAX", "LISTED_MAX", "LINKS_SHOWN", "HANGS_SHOWN", "_ROWS_AT_ONCE", "MISSING_MAX", "EXPANDED_MAX"),
}


def numbers(source: str) -> Iterator[str]:
    """Names that a module gives to numbers, also to several at once."""
    for node in ast.parse(source).body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        for target in targets:
            value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
            both = [each.elts for each in (target, value) if isinstance(each, ast.Tuple)]
            for name, each in zip(*both, strict=True) if len(both) == 2 else [(target, value)]:
                if isinstance(name, ast.Name) and _is_number(each):
                    yield name.id


def _is_number(value: ast.expr | None) -> bool:
    parts = [part for part in ast.walk(value) if isinstance(part, ast.expr)] if value else []
    known = all(
        isinstance(part, ast.BinOp | ast.UnaryOp | ast.Constant | ast.Name | ast.Attribute | ast.Tuple)
        for part in parts
    )
    constants = [type(part.value) in (int, float) for part in parts if isinstance(part, ast.Constant)]
    return known and bool(constants) and all(constants)


@pytest.mark.parametrize("path", JUDGING, ids=lambda path: str(path.relative_to(HARNESS)))
def test_no_number_that_decides_is_elsewhere(path: pathlib.Path) -> None:
    left = sorted(set(numbers(path.read_text())) - DECIDE_NOTHING)
    assert not left, f"{path}: move {', '.join(left)} to harness/judge/thresholds.py"


def test_such_numbers_are_found() -> None:
    found = "A = 3 * S\nB, C = 2.0, 1 / 4\nD: int = -(2**3)\nE = 'x'\nF = thing(3)\nG = 4 * other.H\nI = True\nJ = None, 9\n"
    assert list(numbers(found)) == ["A", "B", "C", "D", "G"]


def test_each_says_what_it_parts_and_where_it_comes_from() -> None:
    for name, row in thresholds.table().items():
        assert row.value == getattr(thresholds, name) and row.value > 0, name
        assert row.source.startswith(SOURCES) and row.source not in SOURCES, name
        assert (row.sign is None) == (row.kind == "method"), name
        assert row.parts.count(" | ") == (row.kind != "method"), name
