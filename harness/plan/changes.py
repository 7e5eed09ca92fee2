"""A workload whose command is changed on purpose while the job runs."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from harness.errors import UsageError
from harness.faults.contract import Change
from harness.trainers.contract import Workload


def changed(workload: Workload, change: Change) -> Workload:
    """Returns the workload with the change. Raises `UsageError` if its trainer cannot be started so."""
    data = workload.model_dump(mode="json")
    own = data["trainer"] if isinstance(data["trainer"], dict) else data  # the reference trainer's are the workload's
    kept = {name: own[name] for name in ("env", "scenario_dir") if name in own}
    text = own if own is not data else {"args": data["args"]}
    for old, new in change.words.items():
        text, times = _replaced(text, old, new)
        if not times:
            raise UsageError(f"the trainer's command has no word {old!r} that {new!r} could take the place of")
    own |= text | kept | {"env": {**kept.get("env", {}), **change.env}}
    try:
        found = Workload.model_validate(data)
    except ValidationError as error:
        raise UsageError(f"the changed command: {error.errors()[0]['msg']}") from None
    return found.trainer.also_with(found, change.args)


def _replaced(value: Any, old: str, new: str) -> tuple[Any, int]:
    """Returns the value with each text `old` in it replaced, and how many there were."""
    if isinstance(value, dict):
        each = {key: _replaced(item, old, new) for key, item in value.items()}
        return {key: item for key, (item, _) in each.items()}, sum(times for _, times in each.values())
    if isinstance(value, list):
        found = [_replaced(item, old, new) for item in value]
        return [item for item, _ in found], sum(times for _, times in found)
    return (new, 1) if value == old else (value, 0)
