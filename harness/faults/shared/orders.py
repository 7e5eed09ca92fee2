"""Writes orders (files) for a trainer that injects faults into itself, as `reference_trainer/damage.py` does."""

from __future__ import annotations

import json
import math
import os
import pathlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.backends.contract import Verb
from harness.errors import FaultError
from harness.faults.contract import Context, Fault, Targets
from harness.log import untrusted_files
from harness.log.consequences import May

FOLDER = "damage"
ANSWERS = "answers"
ANSWER_BYTES_MAX = 64 * 2**10
STRUCK_S_MAX = 30.0
AHEAD_STEPS, AHEAD_S = 2, 0.2  # so far ahead of the trainer's newest step an order is given
MOVES_WITHIN_S = 0.1
RECENT_STEPS = 20


class OrderedFault(Fault):
    """A fault that the trainer itself carries out, on an order from the harness. Healing withdraws the order."""

    needs = frozenset({Verb.FILES})
    aims_at = "rank"
    may = frozenset({May.STOP})

    def environment(self, run_dir: pathlib.Path) -> Mapping[str, str]:
        return environment(run_dir)

    def heal(self, targets: Targets, context: Context) -> None:
        withdraw(context.run_dir, context.seed)

    def see_end(self, targets: Targets, context: Context) -> None:
        left = len(list(_orders(context.run_dir, context.seed)))
        context.ended(left, 0, "orders left", ok=not left)


def environment(run_dir: pathlib.Path) -> Mapping[str, str]:
    (run_dir / FOLDER).mkdir(exist_ok=True)
    return {"CHAOS_DAMAGE": str(run_dir / FOLDER)}


def order(context: Context, rank: int, **what: Any) -> dict[str, Any]:
    """Orders a rank's trainer to inject a fault into itself at its next step, and returns the trainer's answer. Raises
    `FaultError` if the trainer gives no valid answer."""
    file = _write(context, rank, what)
    context.injected()
    found = _wait_for_answer(context, rank)
    file.unlink(missing_ok=True)
    return found


def order_each(
    context: Context, ranks: Sequence[int], within_s: float, acts_at_once: bool = True, **what: Any
) -> dict[int, dict[str, Any]]:
    """Orders each rank's trainer to inject a fault into itself until the order is withdrawn. Returns the trainers'
    answers by rank. If `acts_at_once` is False, the fault counts as acting only once all ranks have answered."""
    for rank in ranks:
        _write(context, rank, what)
    context.injected() if acts_at_once else context.ready()
    found = {rank: _wait_for_answer(context, rank, within_s) for rank in ranks}
    if not acts_at_once:
        context.injected()
    return found


def step_ahead(context: Context, ranks: Sequence[int]) -> int:
    """Returns the number of a step that no rank will have begun when an order arrives. For a running trainer, the step
    is further ahead than for a trainer that the fault's trigger has stopped."""
    step_s, ahead, begun = usual_step_s(context, ranks[0]), AHEAD_STEPS, newest_step(context, ranks)
    moves = context.wait(MOVES_WITHIN_S + 3 * step_s, until=lambda: newest_step(context, ranks) != begun)
    if moves and step_s > 0:
        ahead += min(RECENT_STEPS, math.ceil(AHEAD_S / step_s))
    return newest_step(context, ranks) + ahead


def newest_step(context: Context, ranks: Sequence[int]) -> int:
    return max(figures[-1].step if (figures := context.figures(rank)) else 0 for rank in ranks)


def usual_step_s(context: Context, rank: int) -> float:
    times = context.step_times_ns(rank)[-RECENT_STEPS:]
    return statistics.median(times) / 1e9 if times else 0.0


def _write(context: Context, rank: int, what: Mapping[str, Any]) -> pathlib.Path:
    file = context.run_dir / FOLDER / f"{context.seed:016x}-{rank}.json"
    file.with_suffix(".new").write_text(json.dumps({"rank": rank, **what}))
    os.replace(file.with_suffix(".new"), file)
    return file


def _wait_for_answer(context: Context, rank: int, within_s: float = STRUCK_S_MAX) -> dict[str, Any]:
    done = f"{context.seed:016x}-{rank}.done"
    if not context.wait(within_s, until=lambda: _answered(context.run_dir, done) is not None):
        raise FaultError(f"rank {rank} took no order: the trainer has no hook for damage (CHAOS_DAMAGE)")
    return _answer(context.run_dir, str(_answered(context.run_dir, done)))


def _answered(run_dir: pathlib.Path, name: str) -> str | None:
    nodes = untrusted_files.names_in(run_dir, ANSWERS)
    paths = (f"{ANSWERS}/{node}/{name}" for node in nodes)
    return next((path for path in paths if untrusted_files.status_of(run_dir, path)), None)


def _answer(run_dir: pathlib.Path, path: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(untrusted_files.read(run_dir, path, ANSWER_BYTES_MAX))
        if isinstance(found["step"], int) and isinstance(found["changed"], int):
            return found
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise FaultError(f"{path}: a trainer's answer to an order has the integers `step` and `changed`; this one does not")


def withdraw(run_dir: pathlib.Path, seed: int) -> None:
    for file in _orders(run_dir, seed):
        file.unlink(missing_ok=True)


def _orders(run_dir: pathlib.Path, seed: int) -> Iterator[pathlib.Path]:
    return (run_dir / FOLDER).glob(f"{seed:016x}-*.json")
