"""Puts hooks around functions of other modules, without any change for their callers."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

FRAMES_UP = "_frames_up"


def nothing(*_: Any) -> None:
    return None


def around(
    owner: Any,
    name: str,
    before: Callable[..., Any],
    after: Callable[[Any, Any], Any] = nothing,
    failed: Callable[[Any, BaseException], Any] = nothing,
    also_in: tuple[str, ...] = (),
) -> None:
    """Wraps the function `owner.name`, and its imported copies of the same name in the modules `also_in`.

    Before each call, `before` gets the call's arguments. After the call, `after` gets the result of `before` and the
    result of the call. If the call raises an error, `failed` gets the result of `before` and the error instead. If
    `before` returns `None`, neither `after` nor `failed` is called. The hooks must not raise errors.
    """
    original = getattr(owner, name)
    try:
        looks_up = FRAMES_UP in inspect.signature(original).parameters
    except (TypeError, ValueError):
        looks_up = False

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        token = before(*args, **kwargs)
        if looks_up:
            kwargs[FRAMES_UP] = kwargs.get(FRAMES_UP, 0) + 1
        if token is None:
            return original(*args, **kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            failed(token, error)
            raise
        after(token, result)
        return result

    for place in (owner, *(sys.modules[each] for each in also_in if each in sys.modules)):
        if getattr(place, name, None) is original:
            setattr(place, name, wrapped)
