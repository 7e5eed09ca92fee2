"""The page docs/fault-api.md: what a fault's author may use, from signatures, comments and docstrings."""

import ast
import inspect
import re
from collections.abc import Callable
from typing import Any

from pages.reference_pages import MADE, _text

from harness import units
from harness.api import testing
from harness.backends import contract as backends
from harness.faults import contract
from harness.faults.shared import programs
from harness.log import consequences, truth, untrusted_files
from harness.node import types

CLASSES: tuple[type, ...] = (
    *(contract.Fault, contract.Context, backends.Node, backends.Disturbance, backends.Traffic),
    *(types.Impairment, types.StorageRule, types.ProcessState, types.CpuUse, types.MemoryUse, types.Arrivals),
    *(types.Connections, types.Connection, types.StorageAnswers),
    *(contract.Target, contract.CheckpointPlace, contract.Figures, contract.Hold, contract.TakesNodes),
    *(truth.Truth, truth.Kind, truth.Place, truth.Decision),
    *(consequences.May, backends.Verb, testing.FaultContext, testing.FakeNode),
)
FUNCTIONS: tuple[Callable[..., Any], ...] = (
    *(contract.name_nodes, contract.name_ranks, contract.ranks_of, contract.build_fault, programs.started),
    *(untrusted_files.make_folder, untrusted_files.open_file, untrusted_files.replace, untrusted_files.read),
    *(untrusted_files.status_of, untrusted_files.files_below, untrusted_files.move_inside),
    *(untrusted_files.remove, untrusted_files.remove_tree),
)
OTHERS = """\
| `RunPath` | `harness.faults.contract` | A text: a path relative to the run's folder that does not leave it. |
| `Folder` | `harness.faults.contract` | The same for a parameter: at most 200 characters. |
| `FaultError` | `harness.errors` | Raise it with a sentence if the fault cannot act: the run is `invalid`. |
| `NodeGone` | `harness.errors` | Raised by a verb: the node is no longer there. |
| `Cancelled` | `harness.faults.contract` | Raised by `Context.wait` when the run ends: let it pass. |""".splitlines()


def page() -> str:
    lines = ["# What a fault can use", "", MADE, "[adding-a-fault.md](adding-a-fault.md) says how one is written.", ""]
    lines += ["## How to run something on a node", "", inspect.getdoc(programs) or "", ""]
    for each in CLASSES:
        text = inspect.getsource(each)
        (tree,) = ast.parse(text).body
        assert isinstance(tree, ast.ClassDef)
        lines += [f"## {each.__name__}", "", f"`from {each.__module__} import {each.__name__}`", ""]
        lines += [_text(ast.get_docstring(tree)), ""]
        fields = [node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)]
        names = [_text(re.sub(r"ClassVar\[(.*)\](?= =)", r"\1", ast.unparse(it))) for it in fields]
        values = list(zip(names, [_comment(it, text) for it in fields], strict=True))
        if any(what for _, what in values):
            lines += ["| attribute | what it is |", "|---|---|", *(f"| `{it}` | {what} |" for it, what in values), ""]
        elif values:
            lines += [f"Fields: {', '.join(f'`{it}`' for it, _ in values)}.", ""]
        methods = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name[0] != "_"]
        lines += ["| method | what it does |", "|---|---|"] if methods else []
        for node in methods:
            verbs = [f"`Verb.{it}`" for it in re.findall(r"Verb\.(\w+)", ast.unparse(node.body[-1]))]
            verb = f"{' or '.join(verbs)}. " if verbs and each is backends.Node else ""
            lines.append(f"| `{_call(node)}` | {verb}{_text(ast.get_docstring(node))} |")
        lines += [""] if methods else []
    lines += ["## Functions", "", "| function | from | what it does |", "|---|---|---|"]
    for function in FUNCTIONS:
        (made,) = ast.parse(inspect.getsource(function)).body
        assert isinstance(made, ast.FunctionDef)
        lines.append(f"| `{_call(made)}` | `{function.__module__}` | {_text(ast.get_docstring(made))} |")
    lines += ["", "## Types of parameters, and errors", "", "| name | from | what it is |", "|---|---|---|"]
    for quantity in (units.Duration, units.Size, units.Rate):
        lines.append(f"| `{quantity.__name__}` | `harness.units` | {_text(inspect.getdoc(quantity))} |")
    return "\n".join([*lines, *OTHERS]) + "\n"


def _comment(node: ast.stmt, text: str) -> str:
    return _text(text.splitlines()[(node.end_lineno or 0) - 1].partition("  # ")[2])


def _call(node: ast.FunctionDef) -> str:
    node.args.args = [each for each in node.args.args if each.arg not in ("self", "cls")]
    of_value = any(ast.unparse(each) == "property" for each in node.decorator_list)
    arguments = "" if of_value else f"({ast.unparse(node.args)})"
    back = ast.unparse(node.returns) if node.returns else "None"
    of_class = any(ast.unparse(each) == "classmethod" for each in node.decorator_list)
    shape = "@classmethod " if of_class else "@property " if of_value else ""
    text = f"{shape}{node.name}{arguments}" + (f" -> {back}" if back != "None" else "")
    return _text(text.replace("=493", "=0o755").replace("=420", "=0o644"))
