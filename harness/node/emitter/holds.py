"""Injects a fault into a trainer when the trainer logs a certain event: pauses, ends or disturbs the process, or gives
it a wrong rank.

The emitter imports this module only if `CHAOS_HOLDS` names a file with planned faults. Before a fault, the trainer
creates a request file in the node's folder `CHAOS_ANSWERS`, and waits until the harness has logged the fault and
granted the request. Nodes cannot write the files by which the harness enables a fault or ends a pause.
"""

from __future__ import annotations

import json
import os
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import Any

ANSWERS_ENV = "CHAOS_ANSWERS"
HOLD_S_MAX = 10.0  # a harness that died while holding a trainer must not hang it
LOOK_S = 0.001

Append = Callable[[dict[str, Any]], int]


def load(path: str, rank: int | None, append: Append) -> Holds | None:
    try:
        holds = json.loads(pathlib.Path(path).read_text())
    except (OSError, ValueError):
        return None
    return Holds(holds, rank, append) if holds else None


def granted(token: str, node: str) -> str:
    """Returns the name to which the harness renames the file `token`, in order to allow a process on `node` to carry
    out a fault."""
    return f"{token}.{node}"


class Holds:
    def __init__(self, holds: list[dict[str, Any]], rank: int | None, append: Append):
        self._holds = [hold for hold in holds if hold.get("rank") in (None, rank)]
        self._names = {hold["match"].get("name") for hold in holds}
        self._append, self._rank = append, rank

    def wants(self, failpoint: str) -> bool:
        return failpoint in self._names

    def reached(self, record: Mapping[str, Any]) -> None:
        """Carries out the fault that is planned for the event `record`, or pauses the process until the harness ends
        the pause."""
        for hold in self._holds:
            matches = all(record.get(key) == value for key, value in hold["match"].items())
            if matches and os.path.exists(hold["armed"]):
                if "tokens" in hold:
                    self._be_struck(hold, record.get("step"))
                else:
                    _wait(hold.get("limit_s", HOLD_S_MAX), lambda: os.path.exists(hold["released"]))  # noqa: B023

    def _be_struck(self, hold: Mapping[str, Any], step: int | None) -> None:
        if not any(_take(token) for token in hold["tokens"]):
            return
        if hold.get("does"):
            from harness.node.emitter import strikes

            def over() -> bool:
                return os.path.exists(hold["released"])

            seed = int(pathlib.Path(hold["armed"]).read_text() or 0)
            strikes.strike(hold["does"], hold["argument"], self._append, self._rank, step, over, seed)
        elif variable := hold["mislead"]:
            # Another place in the job than the one this process was started for: a neighbour's, or in a larger world.
            rank, world_size = (int(os.environ.get(name, "0")) for name in ("RANK", "WORLD_SIZE"))
            wrong = str((rank + 1) % max(1, world_size) if variable == "RANK" else world_size + 1)
            os.environ[variable] = wrong
            self._append({"event": "failpoint", "name": "misled", "variable": variable, "value": wrong})
        else:
            os._exit(hold["code"])


def _take(token: str) -> bool:
    answers = os.environ.get(ANSWERS_ENV)
    if not answers or not os.path.exists(token):
        return False
    try:
        claim = os.path.join(answers, os.path.basename(token))
        os.close(os.open(claim, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
    except OSError:  # claimed by another process of this node
        return False
    _wait(HOLD_S_MAX, lambda: not os.path.exists(token))
    return os.path.exists(granted(token, os.path.basename(answers)))


def _wait(limit_s: float, until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + limit_s
    while not until() and time.monotonic() < deadline:
        time.sleep(LOOK_S)
