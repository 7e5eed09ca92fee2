"""Writes JSON that every parser accepts and that cannot control a terminal."""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

_ODD = re.compile("[\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]")


def strict(value: Any) -> Any:
    """Returns the value in plain JSON types: numpy scalars become Python numbers, NaN and infinities become null."""
    if isinstance(value, Mapping):
        return {strict(str(key)): strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(item) for item in value]
    if isinstance(value, str):
        return value.encode(errors="replace").decode()  # lone surrogates, of undecodable names, become `?`
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def json_text(values: Any) -> str:
    """Returns strict JSON as a text for a file or a terminal, with control characters escaped."""
    text = json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False)
    return _ODD.sub(lambda found: json.dumps(found[0])[1:-1], text) + "\n"
