"""The example of docs/adding-a-fault.md is the fault that it says it is."""

from __future__ import annotations

import ast
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_the_example_is_the_whole_file() -> None:
    page = (ROOT / "docs" / "adding-a-fault.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert ast.unparse(ast.parse(example)) == ast.unparse(ast.parse((ROOT / "harness/faults/rank_kill.py").read_text()))
