"""The page docs/evidence.md: what a guarantee can read, from the comments and docstrings of the classes."""

import ast
import inspect
import re
import sys
from collections.abc import Iterator, Mapping

from pages.reference_pages import MADE

from harness.judge import assumption, guarantee
from harness.judge.facts import evidence, restarts
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.reported import ITEMS
from harness.judge.verdict import Ground, Kind
from harness.timeline import lineage, phases, sorted_events, timeline

READ: Mapping[str, tuple[type, ...]] = {
    "evidence": (evidence.Evidence, Analysis),
    "evidence.run": (timeline.Timeline,),
    "evidence.run.steps": (timeline.Steps,),
    "Each of evidence.run.processes": (timeline.Process,),
    "Each of evidence.run.epochs": (lineage.Epoch,),
    "Each of evidence.run.stretches": (lineage.Stretch,),
    "Each of evidence.run.faults": (sorted_events.FaultRecord,),
    "Each of evidence.run.episodes": (phases.Episode,),
    "Each of evidence.run.slots": (sorted_events.Slot,),
    "Each of evidence.restarts": (restarts.Restart,),
    "Each member of a restart": (restarts.Member,),
    "Guarantee": (guarantee.Guarantee,),
    "Ground": (Ground,),
}


def page() -> str:
    lines = ["# What a guarantee can read", "", MADE, ""]
    lines += ["[adding-a-guarantee.md](adding-a-guarantee.md) says how one is written. Times are in ns.", ""]
    for title, classes in READ.items():
        lines += [f"## {title}", "", " ".join((ast.get_docstring(_tree(classes[-1])) or "").split()), ""]
        lines += ["| name | type | what it is |", "|---|---|---|"]
        lines += [f"| `{name}` | `{kind}` | {what} |" for each in classes for name, kind, what in _rows(each)]
        lines.append("")
    lines += ["## Kinds of ground", "", "| kind | the evidence | what may spoil it |", "|---|---|---|"]
    comments = {name: what for name, _, what in _rows(Kind)}
    spoilt: dict[Kind, list[str]] = {kind: [] for kind in Kind}
    for name, each in assumption.assumptions().items():
        for kind in dict.fromkeys(spoils.kind for spoils in each.spoils):
            spoilt[kind].append(f"`{name}`")
    lines += [f"| `Kind.{kind.name}` | {comments[kind.name]} | {', '.join(spoilt[kind])} |" for kind in Kind]
    lines += [
        "",
        "## What a log may tell",
        "",
        "`rests_on` names these. The header of each process says which of them it tells.",
        "",
    ]
    lines += [
        "| name | what it is on a report |",
        "|---|---|",
        *(f"| `{name}` | {item} |" for name, item in ITEMS.items()),
    ]
    return "\n".join(lines) + "\n"


def _rows(of: type) -> Iterator[tuple[str, str, str]]:
    """Yields name, type and description of each public field, property and method without an argument."""
    text = inspect.getsource(of).splitlines()
    for node in _tree(of).body:
        if isinstance(node, ast.AnnAssign | ast.Assign):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            kind = ast.unparse(node.annotation) if isinstance(node, ast.AnnAssign) else ""
            _, _, what = text[(node.end_lineno or 0) - 1].partition("  # ")
            yield ast.unparse(target), _text(kind), _text(what)
        elif isinstance(node, ast.FunctionDef) and node.name[0] != "_" and len(node.args.args) == 1 and node.returns:
            call = "" if node.decorator_list else "()"
            yield node.name + call, _text(ast.unparse(node.returns)), _text(_described(node, of))


def _tree(of: type) -> ast.ClassDef:
    (tree,) = ast.parse(inspect.getsource(of)).body
    assert isinstance(tree, ast.ClassDef)
    return tree


def _described(node: ast.FunctionDef, of: type) -> str:
    """Returns the docstring; if there is none, that of the function which alone makes the value."""
    calls = [each for each in ast.walk(node.body[-1]) if isinstance(each, ast.Call)]
    names = [name for each in calls if (name := ast.unparse(each.func)) != "list"]
    if ast.get_docstring(node) is None and names and not names[0].startswith("self"):
        return inspect.getdoc(eval(names[0], vars(sys.modules[of.__module__]))) or ""
    return ast.get_docstring(node) or ""


def _text(value: str | None) -> str:
    return " ".join(re.sub(r"\n\n.*", "", value or "", flags=re.S).split()).replace("|", "\\|")
