"""How the code stands: rooms, places that decide a verdict, small helpers, names. `make house ARGS='CHECKOUT …'`

What is counted, by the syntax tree alone:
places that decide   each mention of `Verdict.FAIL`, `.INCONCLUSIVE` or `.INVALID`, also by another name or
                     as a string; and each call that makes a finding, a claim or a doubt and names no verdict itself
small helpers        private functions and methods of a body of five lines or less that are called in one place, and
                     mentioned nowhere else
renamed imports      `from a import b as c` and `import a as b` of our own modules
file names           those that stand twice, unless each is a plug-in, or families, engines or wings share the name
"""

from __future__ import annotations

import ast
import pathlib
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parents[1]
DECIDING = {"FAIL", "INCONCLUSIVE", "INVALID"}
PLUGINS = {"faults", "trainers", "checkpoints", "readers", "checks", "questions", "signals"}  # folders
SHARED = {"__init__", "contract", "wing", "attached", "backend", "capability", "engine", "stream"}  # file names
MAKERS = {"Finding", "Claim", "Doubt", "Row", "failed", "unknown", "not_as_planned", "finding", "claim", "doubt"}
SMALL = 5
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class File:
    path: pathlib.Path
    room: str
    module: str
    lines: int
    tree: ast.Module

    @property
    def functions(self) -> list[Function]:
        return [node for node in ast.walk(self.tree) if isinstance(node, Function)]


def read(checkout: pathlib.Path) -> list[File]:
    """The product: what is installed, without tests and benches."""
    found = []
    for path in sorted((checkout / "harness").rglob("*.py")):
        parts, text = path.relative_to(checkout).with_suffix("").parts, path.read_text()
        room = parts[1] if len(parts) > 2 else "(top)"
        module = ".".join(parts).removesuffix(".__init__")
        found.append(File(path, room, module, text.count("\n"), ast.parse(text)))
    return found


def body_lines(function: Function) -> int:
    """Without the head, the decorators and the docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def deciding(tree: ast.Module) -> list[int]:
    """The lines of the places that decide. A maker that names its verdict is one place, by that."""
    verdicts, members = _names(tree)
    found: list[int] = []
    whole = {"fail", "inconclusive", "invalid"}
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == "Verdict"]
    enum = {line for node in classes for line in range(node.lineno, (node.end_lineno or 0) + 1)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found += [node.lineno] * (node.value.id in verdicts and node.attr in DECIDING)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in members:
            found.append(node.lineno)
        elif isinstance(node, ast.Constant):
            found += [node.lineno] * (isinstance(node.value, str) and node.value in whole and node.lineno not in enum)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in MAKERS:
            inner = (each for argument in node.args for each in ast.walk(argument))
            named = any(isinstance(each, ast.Name) and each.id in verdicts | members for each in inner)
            found += [node.lineno] * (not named)
    return sorted(found)


def _names(tree: ast.Module) -> tuple[set[str], set[str]]:
    """What `Verdict` is called here, and the other names of its members."""
    verdicts, members = {"Verdict"}, set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            verdicts |= {each.asname for each in node.names if each.name == "Verdict" and each.asname}
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id in verdicts:
            verdicts |= {each.id for each in node.targets if isinstance(each, ast.Name)}
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute) and node.value.attr in DECIDING:
            members |= {each.id for each in node.targets if isinstance(each, ast.Name)}
    return verdicts, members


def helpers(files: list[File]) -> Iterator[tuple[File, Function]]:
    """Private functions and methods that are mentioned once, in a call: of their file; of all files, for methods."""
    here = {file.module: Counter(_mentions(file.tree)) for file in files}
    everywhere = sum(here.values(), Counter[str]())
    calls = {_name(node.func) for file in files for node in ast.walk(file.tree) if isinstance(node, ast.Call)}
    for file in files:
        defined = Counter(function.name for function in file.functions)
        methods = {id(each) for node in ast.walk(file.tree) if isinstance(node, ast.ClassDef) for each in node.body}
        for function in file.functions:
            name = function.name
            private = name.startswith("_") and not name.startswith("__") and defined[name] == 1 and name in calls
            if private and (everywhere if id(function) in methods else here[file.module])[name] == 1:
                yield file, function


def _mentions(tree: ast.AST) -> Iterator[str]:
    return filter(None, map(_name, ast.walk(tree)))


def _name(node: ast.AST) -> str:
    """Of what is read or called there; empty where it has none."""
    if isinstance(node, ast.Name):
        return node.id if isinstance(node.ctx, ast.Load) else ""
    return node.attr if isinstance(node, ast.Attribute) else ""


def renamed(file: File) -> int:
    imports = [node for node in ast.walk(file.tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    ours = [(getattr(node, "module", None) or each.name, each) for node in imports for each in node.names]
    return sum(module.startswith("harness") and each.asname not in (None, each.name) for module, each in ours)


def circles(files: list[File]) -> list[list[str]]:
    """Modules that import each other, also for types and inside functions."""
    known = {file.module for file in files}
    arrows: dict[str, set[str]] = {file.module: set() for file in files}
    for file in files:
        for node in ast.walk(file.tree):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                inner = [f"{node.module}.{each.name}" for each in node.names]
                names = [each if each in known else node.module for each in inner]
            arrows[file.module] |= {name for name in names if name in known} - {file.module}
    reached = {module: _reached(module, arrows) for module in arrows}
    found = {frozenset(o for o in reached[m] if m in reached[o]) for m in arrows if m in reached[m]}
    return sorted(sorted(each) for each in found)


def _reached(module: str, arrows: dict[str, set[str]]) -> set[str]:
    found, ahead = set[str](), [*arrows[module]]
    while ahead:
        if (one := ahead.pop()) not in found:
            found.add(one)
            ahead += arrows[one]
    return found


def depth(node: ast.AST) -> int:
    """Blocks inside each other; an `elif` is none of its own."""
    deepest = 0
    for child in ast.iter_child_nodes(node):
        chained = isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]
        block = isinstance(child, ast.If | ast.For | ast.While | ast.With | ast.Try | ast.Match) and not chained
        deepest = max(deepest, depth(child) + block if not isinstance(child, Function | ast.ClassDef) else 0)
    return deepest


def show(checkout: pathlib.Path) -> None:
    files = read(checkout)
    print(f"{checkout}\n\n{'room':<12}{'files':>6}{'lines':>8}{'functions':>11}{'fn median/max':>15}{'deciding':>10}")
    rooms: dict[str, list[File]] = defaultdict(list)
    for file in files:
        rooms[file.room].append(file)
    for room, mine in [*sorted(rooms.items(), key=lambda item: -sum(f.lines for f in item[1])), ("all", files)]:
        sizes = [body_lines(function) for file in mine for function in file.functions] or [0]
        size = f"{statistics.median(sizes):g}/{max(sizes)}"
        lines, functions = sum(f.lines for f in mine), sum(len(f.functions) for f in mine)
        decided = sum(len(deciding(f.tree)) for f in mine)
        print(f"{room:<12}{len(mine):>6}{lines:>8}{functions:>11}{size:>15}{decided:>10}")
    alone = list(helpers(files))
    small = sum(body_lines(function) <= SMALL for _, function in alone)
    judging = sum(file.room == "judge" for file, _ in alone)
    folders: dict[str, list[str]] = defaultdict(list)
    for file in files:
        folders[file.path.stem].append(file.path.parent.name)
    twice = [n for n, found in folders.items() if len(found) > 1 and n not in SHARED and not PLUGINS.issuperset(found)]
    deepest = max(((depth(f), file, f) for file in files for f in file.functions), key=lambda item: item[0])
    judge = rooms["judge"]
    print(f"\njudge: {len(judge)} files, {sum(f.lines for f in judge)} lines,", end=" ")
    print(f"{sum(len(deciding(f.tree)) for f in judge)} places that decide")
    print(
        f"helpers with one call site: {small} of {SMALL} lines or less, {len(alone)} of any length ({judging} in judge)"
    )
    print(f"imports under another name: {sum(map(renamed, files))}")
    print(f"file names that stand twice, but for plug-ins and shared ones: {', '.join(sorted(twice)) or 'none'}")
    print(f"import circles: {'; '.join(' <-> '.join(each) for each in circles(files)) or 'none'}")
    place = f"{deepest[1].path.relative_to(checkout)}:{deepest[2].lineno}"
    print(f"deepest nesting: {deepest[0]}, {place} {deepest[2].name}\n")


if __name__ == "__main__":
    for place in [pathlib.Path(part).resolve() for part in sys.argv[1:]] or [ROOT]:
        show(place)
