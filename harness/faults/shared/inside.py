"""The common parts of faults that act inside trainer processes, for example right after a rank's next step."""

import time
from collections.abc import Mapping, Sequence
from functools import partial

from pydantic import PrivateAttr

from harness.backends.contract import Node, Verb
from harness.errors import FaultError, NodeGone
from harness.faults.contract import END_SEEN_WITHIN_S, Context, Fault, Hold, Targets, ranks_of
from harness.log.consequences import May

Victims = Mapping[int, tuple[Node, int]]
"""Maps each rank to the node and the id of the rank's process."""

COMES_WITHIN_S, ENDS_WITHIN_S = 60.0, 5.0
STUCK_WITHIN_S = 30.0
WATCHED_S = 0.5  # how long a stuck rank is looked at to see that it does no step


class InsideFault(Fault):
    needs = frozenset({Verb.SIGNAL})
    aims_at = "rank"
    may = frozenset({May.STOP})
    _victims: dict[int, tuple[Node, int]] = PrivateAttr(default_factory=dict)

    def find_victims(self, targets: Targets, context: Context) -> Victims:
        self._victims.update({rank: context.pid_of(rank) for rank in ranks_of(targets)})
        return self._victims

    def strike_all(self, targets: Targets, context: Context, failpoint: str, unit: str) -> None:
        """Makes the fault act on each targeted rank. Reports how many ranks logged `failpoint` (a named place in the
        trainer), and how many processes ended."""
        victims = self.find_victims(targets, context)
        struck = strike_each(targets, context, failpoint)
        ended = [rank for rank in struck if context.wait(ENDS_WITHIN_S, until=partial(is_gone, *victims[rank]))]
        lived = f"; rank {', '.join(str(r) for r in struck if r not in ended)} lives on" if struck != ended else ""
        detail = f"{len(ended)} ended{lived}"
        context.effect(len(struck), len(targets), unit, ok=len(struck) == len(targets), detail=detail)

    def heal(self, targets: Targets, context: Context) -> None:
        context.let_go()

    def see_end(self, targets: Targets, context: Context) -> None:
        see_over(self._victims, context)


def see_over(victims: Victims, context: Context) -> None:
    """Reports that each targeted process does steps again or is gone. Reports nothing if this takes longer than
    `END_SEEN_WITHIN_S` seconds, because a step can take longer."""
    since_ns = time.monotonic_ns()

    def over() -> bool:
        return all(is_gone(*where) or context.step_times_ns(rank, since_ns) for rank, where in victims.items())

    if victims and context.wait(END_SEEN_WITHIN_S, until=over):
        context.ended(0, 0, "ranks stuck or struck", ok=True, detail="each does steps again, or its process is gone")


def is_gone(node: Node, pid: int) -> bool:
    try:
        return pid not in node.pids()
    except NodeGone:
        return True


def at_the_next_step(targets: Targets, does: str, argument: str | float) -> list[Hold]:
    return [Hold({"event": "step"}, target.rank, strikes=1, does=does, argument=argument) for target in targets]


def strike_each(targets: Targets, context: Context, failpoint: str) -> list[int]:
    """Makes the fault act on each targeted rank at the rank's next step. Returns the ranks that logged `failpoint` (a
    named place in the trainer), in the order in which the fault acted on them."""
    waiting, struck, begin_ns = set(ranks_of(targets)), list[int](), time.monotonic_ns()
    context.hold()
    context.injected()
    while waiting:
        if not context.wait(COMES_WITHIN_S, until=lambda: context.caught() is not None):
            ranks = ", ".join(str(rank) for rank in sorted(waiting))
            late = f"rank {ranks} did not come to a step within {COMES_WITHIN_S:g} s"
            raise FaultError(f"{late}: the fault did not act there")
        rank = context.caught()
        if rank is None:  # another cause killed it just now
            continue
        context.strike()
        waiting.discard(rank)
        if context.wait(COMES_WITHIN_S, until=lambda: context.reached(rank, failpoint) >= begin_ns):  # noqa: B023
            struck.append(rank)
    return struck


def stuck_at(failpoint: str, targets: Targets, duration_s: float, within_s: float = STUCK_WITHIN_S) -> list[Hold]:
    """Returns orders to stop each targeted rank whenever it reaches this failpoint, a named place in the trainer."""
    match = {"event": "failpoint", "name": failpoint}
    return [Hold(match, target.rank, duration_s + within_s) for target in targets]


def see_stuck(failpoint: str, ranks: Sequence[int], context: Context, within_s: float = STUCK_WITHIN_S) -> None:
    """Stops ranks at a failpoint, a named place in the trainer, and checks that they do no step there. Raises
    `FaultError` if a rank does not reach the failpoint in time."""
    begin_ns = time.monotonic_ns()
    context.hold()
    context.ready()
    if not context.wait(within_s, until=lambda: all(context.reached(r, failpoint) >= begin_ns for r in ranks)):
        raise FaultError(f"rank {ranks} did not come to the failpoint {failpoint} within {within_s:g} s")
    context.injected()
    since_ns = time.monotonic_ns()
    context.wait(WATCHED_S)
    steps = sum(len(context.step_times_ns(rank, since_ns)) for rank in ranks)
    context.effect(steps, 0, f"steps in {WATCHED_S:g} s inside {failpoint}", ok=steps == 0)


def launcher_of(rank: int, node: Node, worker: int) -> int:
    """Returns the process id of a rank's launcher (such as torchrun's agent), the parent of the rank's worker. Raises
    `FaultError` if the worker's parent is no process of the job on this node."""
    there = {each.pid: each.parent for each in node.processes()}
    launcher = there.get(worker, 0)
    if launcher not in there:
        raise FaultError(f"rank {rank} has no launcher: its worker is what the node itself has started")
    return launcher
