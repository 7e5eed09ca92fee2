"""What a test calls, and what it will be skipped for want of, as far as that can be told before it runs."""

import functools
import inspect
import pathlib
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import machine
import pytest
from _pytest.skipping import evaluate_skip_marks

from harness import programs

HERE = str(pathlib.Path(__file__).parent)


def lacks(items: Iterable[pytest.Item]) -> list[str]:
    """A reason for each test that will be skipped."""
    return [reason for item in items if (reason := lack(item))]


def lack(item: pytest.Item) -> str:
    """Why the test will be skipped; "" where nothing is known to be missing."""
    if skip := evaluate_skip_marks(item):
        return skip.reason or "a mark"
    place = item.callspec.params.get("place") if hasattr(item, "callspec") else None
    if place is not None and hasattr(place, "lack"):  # of a conformance test
        return str(place.lack())
    reasons = (_lack_of(each) for each in called(item))
    return next((reason for reason in reasons if reason), "")


def called(item: pytest.Item) -> frozenset[Any]:
    """The functions and classes of tests that the test, its fixtures and helpers name."""
    if not isinstance(item, pytest.Function):
        return frozenset()
    fixtures = [each.func for found in item._fixtureinfo.name2fixturedefs.values() for each in found]
    return frozenset().union(*map(_reached, [item.function, *fixtures]))


@functools.cache
def _lack_of(function: Any) -> str:
    """`machine.need` is asked of the programs that its caller names."""
    if function in machine.ENGINES:
        return machine.ENGINES[function]()
    if not inspect.isfunction(function) or "need" not in _names(function.__code__):
        return ""
    named = [each for each in function.__code__.co_consts if isinstance(each, str) and each in programs.PROGRAMS]
    return "; ".join(map(str, programs.missing(named)))


@functools.cache
def _reached(function: Callable[..., Any]) -> frozenset[Any]:
    seen, left = set[Any](), [inspect.unwrap(function)]
    while left:
        one = left.pop()
        if one not in seen and getattr(one, "__module__", None) in sys.modules:
            seen.add(one)
            left += _named(one)
    return frozenset(seen)


@functools.cache
def _named(one: Any) -> tuple[Any, ...]:
    """What a function or class of the tests names: functions and classes of the tests."""
    return tuple(_each_named(one))


def _each_named(one: Any) -> Iterator[Any]:
    file = getattr(sys.modules[one.__module__], "__file__", None) or ""
    if not file.startswith(HERE):
        return
    if isinstance(one, type):
        yield from (inspect.unwrap(each) for each in vars(one).values() if inspect.isfunction(each))
    elif inspect.isfunction(one):
        names = set(_names(one.__code__))
        for name in names & one.__globals__.keys():
            value = one.__globals__[name]
            values = [vars(value).get(each) for each in names] if inspect.ismodule(value) else [value]
            yield from (inspect.unwrap(each) for each in values if inspect.isfunction(each) or inspect.isclass(each))


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names(inner)
