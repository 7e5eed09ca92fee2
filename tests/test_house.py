"""What `make house` counts."""

from __future__ import annotations

import ast
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "benches"))

import house

SOURCE = """
from harness.judge.verdict import Finding, Verdict as V
BAD = V.FAIL

def _tell(run):
    return "inconclusive"

def _twice(run):
    if run:
        pass
    elif not run:
        for each in run:
            return each

def findings(run):
    yield V.INVALID, "named by an alias"
    yield BAD, "and a member's"
    yield Finding(V.INVALID, "is one place")
    yield Claim("restart.newest", good=None)
    yield V.PASS, _tell(run)
    _twice(run)

def again(run):
    _twice(run)
"""


def test_places_that_decide_are_found_behind_other_names() -> None:
    assert house.deciding(ast.parse(SOURCE)) == [3, 6, 16, 17, 18, 19]


def test_helpers_names_and_depth(tmp_path: pathlib.Path) -> None:
    for name, text in (("a", SOURCE), ("b", "from harness.room import c"), ("c", "import harness.room.b as b")):
        path = tmp_path / "harness" / "room" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    files = house.read(tmp_path)
    assert [function.name for _, function in house.helpers(files)] == ["_tell"]
    assert sum(map(house.renamed, files)) == 2
    assert house.circles(files) == [["harness.room.b", "harness.room.c"]]
    assert max(house.depth(function) for function in files[0].functions) == 2
