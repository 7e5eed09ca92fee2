"""Small changes to a module's source, each of which some test should notice. Pure."""

import ast
import copy
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_BINARY: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_METHODS = {"minimum": "maximum", "maximum": "minimum"}


@dataclass(frozen=True)
class Mutant:
    """One change in one file. `place` counts the changes that can be made to it."""

    path: pathlib.Path
    place: int
    line: int
    change: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.change} [{self.place}]"

    def tree(self) -> ast.Module:
        return _apply(_parsed(self.path), self.place)


def mutants(path: pathlib.Path) -> list[Mutant]:
    """All of a file. Left alone: annotations, docstrings, messages (f-strings), assertions of our own invariants."""
    return [Mutant(path, place, node.lineno, change) for place, (node, change, _) in enumerate(_changes(_parsed(path)))]


def _parsed(path: pathlib.Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def _apply(tree: ast.Module, place: int) -> ast.Module:
    changed = copy.deepcopy(tree)
    node, _, new = list(_changes(changed))[place]
    for parent in ast.walk(changed):
        for name, value in ast.iter_fields(parent):
            if value is node:
                setattr(parent, name, new)
            elif isinstance(value, list):
                value[:] = [new if item is node else item for item in value]
    return ast.fix_missing_locations(changed)


Change = tuple[ast.expr | ast.stmt, str, ast.AST]  # what is replaced, in words, by what


def _changes(tree: ast.Module) -> Iterator[Change]:
    for node in _code(tree):
        yield from _of_expression(node) if isinstance(node, ast.expr) else _of_statement(node)


def _code(node: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """Expressions and statements that do something at run time, in the order of the source."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases", "keywords") and not isinstance(node, ast.Call):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, (ast.JoinedStr, ast.Assert, ast.Import, ast.ImportFrom)) or _is_text(child):
                continue
            if isinstance(child, ast.AST):
                if isinstance(child, (ast.expr, ast.stmt)):
                    yield child
                yield from _code(child)


def _is_text(node: object) -> bool:
    """A docstring, or what only type checkers read."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    names = (
        [target.id for target in node.targets if isinstance(target, ast.Name)] if isinstance(node, ast.Assign) else []
    )
    aliases = (
        isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript) and names[:1] and names[0].istitle()
    )
    return names == ["__all__"] or bool(aliases)


def _of_expression(node: ast.expr) -> Iterator[Change]:  # noqa: C901  # a table: one kind of node a row
    match node:
        case ast.Compare(ops=[op, *rest]) if type(op) in _COMPARE:
            other = _COMPARE[type(op)]()
            new = ast.Compare(node.left, [other, *rest], node.comparators)
            yield node, f"{_name(op)} → {_name(other)}", ast.copy_location(new, node)
        case ast.BoolOp(op=op):
            other_op = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield node, f"{_name(op)} → {_name(other_op)}", ast.BoolOp(other_op, node.values)
        case ast.BinOp(op=op) if type(op) in _BINARY:
            binary = _BINARY[type(op)]()
            yield node, f"{_name(op)} → {_name(binary)}", ast.BinOp(node.left, binary, node.right)
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert()):
            yield node, f"{_name(node.op)} gone", node.operand
        case ast.Constant(value=bool(value)):
            yield node, f"{value} → {not value}", ast.Constant(not value)
        case ast.Constant(value=int(number) | float(number)):
            yield node, f"{number} → {number + 1}", ast.Constant(number + 1)
        case ast.Constant(value=str(text)):
            yield node, f"{text!r} → {text + 'X'!r}", ast.Constant(text + "X")
        case ast.Call(func=ast.Name(id=name)) if name in _CALLS:
            call = ast.Call(ast.Name(_CALLS[name], ast.Load()), node.args, node.keywords)
            yield node, f"{name} → {_CALLS[name]}", call
        case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in _METHODS:
            method = ast.Attribute(value, _METHODS[name], ast.Load())
            yield node, f"{name} → {_METHODS[name]}", ast.Call(method, node.args, node.keywords)
        case ast.IfExp():
            yield node, "branches swapped", ast.IfExp(node.test, node.orelse, node.body)
        case ast.ListComp(elt=element, generators=loops) | ast.GeneratorExp(elt=element, generators=loops):
            if any(loop.ifs for loop in loops):
                bare = [ast.comprehension(loop.target, loop.iter, [], loop.is_async) for loop in loops]
                yield node, "nothing left out", type(node)(element, bare)


def _of_statement(node: ast.stmt) -> Iterator[Change]:
    match node:
        case ast.If() | ast.While():
            yield node, "condition negated", type(node)(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
        case ast.Return(value=value) if value is not None and not _is_no(value):
            yield node, "returns None", ast.Return(ast.Constant(None))
        case ast.AugAssign(op=op) if type(op) in _BINARY:
            binary = _BINARY[type(op)]()
            yield node, f"{_name(op)}= → {_name(binary)}=", ast.AugAssign(node.target, binary, node.value)
        case ast.Expr(value=ast.Call() | ast.Yield() | ast.YieldFrom()):
            empty = ast.YieldFrom(ast.Tuple([], ast.Load()))  # a generator must stay one
            does_yield = not isinstance(node.value, ast.Call)
            yield node, "statement gone", ast.Expr(empty) if does_yield else ast.Pass()
        case ast.Continue():
            yield node, "continue → break", ast.Break()
        case ast.Break():
            yield node, "break → continue", ast.Continue()
        case ast.Raise():
            yield node, "raises nothing", ast.Pass()


def _is_no(node: ast.expr) -> bool:
    """`None`, or `False`, for which `None` is the same answer (that it becomes `True` is a change of its own)."""
    return isinstance(node, ast.Constant) and (node.value is None or node.value is False)


def _name(op: ast.AST) -> str:
    return type(op).__name__
