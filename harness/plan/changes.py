"""Changes the command of a workload on purpose while the job runs."""

from __future__ import annotations

from typing import Any

from harness.errors import UsageError
from harness.faults.contract import Change
from harness.trainers.contract import Workload, build_trainer


def changed(workload: Workload, change: Change) -> Workload:
    """Returns the workload with a changed command. Raises `UsageError` if the command cannot be changed so."""
    written = workload.trainer.to_json()
    custom = isinstance(written, dict)  # the words and variables of the reference trainer are the workload's
    own: dict[str, Any] = written if isinstance(written, dict) else {"args": workload.args, "env": workload.env}
    kept: dict[str, Any] = {name: own[name] for name in ("env", "scenario_dir") if name in own}
    for old, new in change.words.items():
        own, times = _replaced(own, old, new)
        if not times:
            raise UsageError(f"the trainer's command has no word {old!r} that {new!r} could take the place of")
    own = {**own, **kept, "env": {**kept.get("env", {}), **change.env}}
    try:
        found = workload.model_copy(update={"trainer": build_trainer(own)} if custom else own)
    except ValueError as error:
        raise UsageError(f"the changed command is refused: {error}") from None
    return found.trainer.also_with(found, change.args)


def _replaced(value: Any, old: str, new: str) -> tuple[Any, int]:
    if isinstance(value, dict):
        each = {key: _replaced(item, old, new) for key, item in value.items()}
        return {key: item for key, (item, _) in each.items()}, sum(times for _, times in each.values())
    if isinstance(value, list):
        found = [_replaced(item, old, new) for item in value]
        return [item for item, _ in found], sum(times for _, times in found)
    return (new, 1) if value == old else (value, 0)
