"""A backend's native request as text, for people and for `kubectl apply -f -`."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    """Without anchors: engines and people read every part where it stands."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def native_text(request: Any, output: str) -> str:
    """`yaml` or `json`; a list of objects becomes a stream of YAML documents."""
    plain = json.loads(json.dumps(request, default=_plain))
    if output == "json":
        return json.dumps(plain, indent=2) + "\n"
    documents = plain if isinstance(plain, list) else [plain]
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise TypeError(f"a native request holds a {type(value).__name__}")
