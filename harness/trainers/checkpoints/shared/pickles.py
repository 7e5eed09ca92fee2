"""Reads pickles as plain data. No object is imported, called or built, so that a malicious pickle has no effect.

A dictionary in a pickle becomes a list of pairs, because hashing a deeply nested key can crash Python.
"""

import pickletools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from harness.trainers.checkpoints.shared.archives import TooLarge

BYTES_MAX = 64 * 2**20
OPERATIONS_MAX = 4_000_000  # about ten seconds; the metadata of 100,000 tensors have 3 million
PATH_CHARS_MAX = 200
_EMPTY = {"EMPTY_LIST": "list", "EMPTY_DICT": "dict", "EMPTY_SET": "set"}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


@dataclass(eq=False, slots=True)
class Made:
    """An object in a pickle. `items` holds the elements or, in a dictionary, each key followed by its value."""

    name: str
    args: Any = ()
    state: Any = None
    items: list[Any] = field(default_factory=list)

    @property
    def pairs(self) -> Iterator[tuple[Any, Any]]:
        return zip(self.items[::2], self.items[1::2], strict=False)


class Stored(NamedTuple):
    """A tensor in a pickle: its path in the data, and the key, torch type and number of its stored values."""

    path: str
    key: str
    kind: str
    numbers: int


def fields(made: object) -> dict[str, Any]:
    if not isinstance(made, Made):
        return {}
    inner = made.state.pairs if isinstance(made.state, Made) else ()
    return {key: value for key, value in (*made.pairs, *inner) if type(key) is str}


def read(content: bytes, operations_max: int = OPERATIONS_MAX) -> Any:
    """Reads a pickle as plain data. Raises `ValueError` for an invalid pickle, `TooLarge` for a huge one."""
    if len(content) > BYTES_MAX:
        raise TooLarge(f"more than {BYTES_MAX:,} bytes of pickle")
    try:
        return _made(content, operations_max)
    except (LookupError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"not a pickle: {error}") from error


def _made(content: bytes, operations_max: int) -> Any:
    stack, below, memo = list[Any](), list[list[Any]](), dict[int, Any]()
    for number, (operation, argument, _) in enumerate(pickletools.genops(content)):
        if number >= operations_max:
            raise TooLarge(f"a pickle of more than {operations_max:,} operations")
        name = operation.name
        if argument is not None and name.startswith(("BINGET", "LONG_BINGET", "GET")):
            stack.append(memo[argument])
        elif name == "MEMOIZE" or name.endswith("PUT"):
            memo[len(memo) if argument is None else argument] = stack[-1]
        elif name == "MARK":
            below.append(stack)
            stack = []
        elif name in ("APPENDS", "SETITEMS", "ADDITEMS"):
            items, stack = stack, below.pop()
            stack[-1].items.extend(items)
        elif name in ("TUPLE", "LIST", "DICT", "FROZENSET", "POP_MARK"):
            items, stack = stack, below.pop()
            if name != "POP_MARK":
                stack.append(tuple(items) if name == "TUPLE" else Made(name.lower(), items=items))
        elif name == "STOP":
            return stack.pop()
        elif name not in ("PROTO", "FRAME"):
            _do(stack, name, argument)
    raise ValueError("a pickle without an end")


def _do(stack: list[Any], name: str, argument: Any) -> None:
    if name in _TUPLES:
        items = [stack.pop() for _ in range(_TUPLES[name])]
        stack.append(tuple(reversed(items)))
    elif name in _EMPTY:
        stack.append(Made(_EMPTY[name]))
    elif name in ("SETITEM", "APPEND"):
        items = [stack.pop() for _ in range(2 if name == "SETITEM" else 1)]
        stack[-1].items.extend(reversed(items))
    elif name == "GLOBAL":
        stack.append(Made(argument.replace(" ", ".")))
    elif name == "STACK_GLOBAL":
        last, first = stack.pop(), stack.pop()
        stack.append(Made(f"{first[:PATH_CHARS_MAX]}.{last[:PATH_CHARS_MAX]}"))
    elif name in ("NEWOBJ", "REDUCE", "NEWOBJ_EX"):
        args = [stack.pop() for _ in range(2 if name == "NEWOBJ_EX" else 1)][-1]
        stack.append(Made(getattr(stack.pop(), "name", ""), args))
    elif name == "BUILD":
        state = stack.pop()
        stack[-1].state = state
    elif name == "BINPERSID":
        stack.append(Made("persistent", stack.pop()))
    elif name in ("NONE", "NEWTRUE", "NEWFALSE"):
        stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[name])
    elif name == "POP":
        stack.pop()
    elif argument is not None:  # a number, a text, bytes
        stack.append(argument)
    else:
        raise ValueError(f"no pickle of torch: {name}")


def stored(tree: Any) -> Iterator[Stored]:
    """Yields each tensor in a pickle's data once."""
    waiting, seen = [("", tree)], set[int]()
    while waiting:
        path, each = waiting.pop()
        if not isinstance(each, (Made, tuple)) or id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, tuple):
            waiting.extend((path, inner) for inner in reversed(each))
        elif each.name == "persistent":
            if isinstance(each.args, tuple) and len(each.args) == 5:
                _, kind, key, _, count = each.args
                if isinstance(kind, Made) and type(key) is str and type(count) is int:
                    yield Stored(path, key, kind.name.rpartition(".")[2].removesuffix("Storage"), count)
        else:
            inner = [(path, item) for item in each.items]
            if each.name in ("dict", "collections.OrderedDict"):
                inner = [(_below(path, key), value) for key, value in each.pairs]
            waiting.extend(reversed([(path, each.args), *inner, (path, each.state)]))


def _below(path: str, key: object) -> str:
    small = isinstance(key, str) or (type(key) is int and key.bit_length() < 64)
    return f"{path}.{str(key)[:PATH_CHARS_MAX] if small else '?'}"[-PATH_CHARS_MAX:].lstrip(".")
