"""The page docs/evidence.md: what a guarantee can read, from the comments and docstrings of the classes."""

import ast
import inspect
import re
import sys
from collections.abc import Iterator, Mapping

from pages.reference_pages import MADE

from harness import api
from harness.evidence import logs, usual
from harness.evidence.reported import EVENTS, ITEMS
from harness.judge import assumption, guarantee
from harness.judge.facts import analysis, known, restarts, saves, store
from harness.judge.verdict import Figure, Ground, Kind
from harness.log.consequences import Consequences
from harness.timeline import lineage, phases, sorted_events, timeline

READ: Mapping[str, tuple[type, ...]] = {
    "evidence": (logs.Evidence, analysis.Analysis),
    "evidence.run": (timeline.Timeline,),
    "evidence.run.steps": (timeline.Steps,),
    "Each of evidence.run.processes": (timeline.Process,),
    "Each of evidence.run.epochs": (lineage.Epoch,),
    "Each of evidence.run.stretches": (lineage.Stretch,),
    "Each of evidence.run.faults": (sorted_events.FaultRecord,),
    "The same faults: what comes of each": (Consequences,),
    "Each of evidence.run.episodes": (phases.Episode,),
    "Each of evidence.run.slots": (sorted_events.Slot,),
    "Each of evidence.restarts": (restarts.Restart,),
    "Each member of a restart": (restarts.Member,),
    "Each restore of a member": (restarts.Restore,),
    "evidence.saves": (saves.Saves,),
    "Each of evidence.saves.all": (store.Save,),
    "Guarantee": (guarantee.Guarantee,),
    "Ground": (Ground,),
    "Figure": (Figure,),
    "Pace": (usual.Pace,),
    "Degraded": (usual.Degraded,),
}
INTRODUCTION = """\
[adding-a-guarantee.md](adding-a-guarantee.md) says how one is written. Times are in ns. A `Window` is a tuple (begin,
end). `Ints`, `Floats` and `Bools` are numpy arrays. A `dict` is an event of [events.md](events.md), with its name
`event` and its time `at`; a worker's has `rank`, `node`, `incarnation` and `process` (row in `evidence.run.processes`),
too. What has `by` can be a fact of a breach: `breach(words, save)` is as certain as the save. `SEEN` fails the run;
`TOLD` (one word against another) and `MISSING` (it follows from something untold) make it inconclusive."""
CERTAIN = "how certain it is"
BUILT = {  # by whoever writes a guarantee: its defaults are shown, and what is imported with it
    "Guarantee": "DRILL, RUN, SECOND_RESTART, Analysis, Breaches, Guarantee, breach",
    "Ground": "Ground, Kind",
    "Figure": "Figure",
}


def page() -> str:
    lines = ["# What a guarantee can read", "", MADE, ""]
    lines += [INTRODUCTION, ""]
    for title, classes in READ.items():
        about = " ".join((ast.get_docstring(_tree(classes[-1])) or "").split())
        found = f"`from {classes[-1].__module__} import {BUILT[title]}`" if title in BUILT else ""
        lines += [f"## {title}", "", *(text for each in (about, found) if each for text in (each, ""))]
        lines += ["| name | type | what it is |", "|---|---|---|"]
        rows = (row for each in classes for row in _rows(each, defaults=title in BUILT))
        lines += [f"| `{name}` | {kind and f'`{kind}`'} | {what} |" for name, kind, what in rows]
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
        "`rests_on` names these. A guarantee without a breach is *not judged* if the log holds none of one of them, or of",
        "another kind with the same name on reports. Other columns of `step`, such as `sync_ns`, have no name here: where",
        "all are untold, `nothing` says so.",
        "",
        "| name | what it is on a report | the log holds |",
        "|---|---|---|",
        *(f"| `{name}` | {item} | {_held(name)} |" for name, item in ITEMS.items()),
        "",
        "## bend and delay",
        "",
        "`from harness.api import bend, delay`",
    ]
    for call in (api.bend, api.delay):
        given = ", ".join(
            str(each.replace(annotation=inspect.Parameter.empty))
            for each in inspect.signature(call).parameters.values()
        )
        lines += ["", f"**`{call.__name__}({given})`** {_text(inspect.getdoc(call))}"]
    return "\n".join(lines) + "\n"


def _held(kind: str) -> str:
    """Returns the events, or the column of `step`, by which a log tells this kind of evidence."""
    if kind in EVENTS:
        return " or ".join(f"`{name}`" for name in EVENTS[kind])
    column = {"positions": "`first` and `count`", "digests": "`digest`"}.get(kind, f"`{kind}`")
    return (
        f"`step` with {column}"
        if kind in timeline.KINDS_OF_STEPS
        else {"steps": "`step`"}.get(kind, "`clock`, of each other host")
    )


def _rows(of: type, defaults: bool = False) -> Iterator[tuple[str, str, str]]:
    """Yields name, type and description of each public field, property and method without an argument."""
    text = inspect.getsource(of).splitlines()
    for node in _tree(of).body:
        if isinstance(node, ast.AnnAssign | ast.Assign):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            kind = ast.unparse(node.annotation) if isinstance(node, ast.AnnAssign) else ""
            kind += f" = {ast.unparse(node.value)}" if defaults and node.value else ""
            _, _, what = text[(node.end_lineno or 0) - 1].partition("  # ")
            if ast.unparse(target) == "by" and isinstance(by := getattr(of, "by", None), known.By):
                what = f"{CERTAIN}: `{by.name}`"
            what = what or (_made_by(node.value, of) if isinstance(node.value, ast.Call) else "")
            yield ast.unparse(target).strip("()"), _text(kind), _text(what)
        elif isinstance(node, ast.FunctionDef) and node.name[0] != "_" and len(node.args.args) == 1 and node.returns:
            call = "" if node.decorator_list else "()"
            yield node.name + call, _text(ast.unparse(node.returns)), _text(_described(node, of))


def _tree(of: type) -> ast.ClassDef:
    (tree,) = ast.parse(inspect.getsource(of)).body
    assert isinstance(tree, ast.ClassDef)
    return tree


def _described(node: ast.FunctionDef, of: type) -> str:
    """Returns the docstring; if there is none, that of the function which alone makes the value."""
    return ast.get_docstring(node) or _made_by(node.body[-1], of)


def _made_by(tree: ast.AST, of: type) -> str:
    calls = [each for each in ast.walk(tree) if isinstance(each, ast.Call)]
    names = [name for each in calls if (name := ast.unparse(each.func)) not in ("list", "fact", "field")]
    if names and not names[0].startswith("self"):
        made = eval(names[0], vars(sys.modules[of.__module__]))
        return (inspect.getdoc(made) or "") if made.__module__.startswith("harness") else ""
    return ""


def _text(value: str | None) -> str:
    return " ".join(re.sub(r"\n\n.*", "", value or "", flags=re.S).split()).replace("|", "\\|")
