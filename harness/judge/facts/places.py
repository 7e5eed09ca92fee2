"""Who was where, and when: the nodes that the job had, and the workers on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from harness.judge.facts.by_time import Moments, Spans
from harness.timeline.timeline import Timeline

Node = tuple[Any, Any]  # its name and its incarnation
Target = Mapping[str, Any]  # of a fault: a node, or a rank on it


def node_of(target: Target) -> Node:
    return target.get("node"), target.get("incarnation", 1)


class Places:
    """Of one run."""

    def __init__(self, run: Timeline):
        self.kept: frozenset[Node] = frozenset((slot.node, slot.incarnation) for slot in run.slots if slot.kept)
        self.last_begin = np.zeros(len(run.processes), np.int64)  # of each worker's steps; 0: it did none
        self.last_begin[run.steps.process] = run.steps.begin  # rows are in order of time: the last one counts
        lives: dict[Node, dict[int, list[tuple[int, int, int]]]] = {}
        for row, worker in enumerate(run.processes):
            end = max(worker.last_seen, worker.exited or 0)
            lives.setdefault((worker.node, worker.incarnation), {}).setdefault(worker.rank, []).append(
                (worker.started, end, row)
            )
        self._lives = {node: {rank: Spans(each) for rank, each in ranks.items()} for node, ranks in lives.items()}
        had: dict[Node, list[tuple[int, int, None]]] = {}
        for slot in run.slots:
            had.setdefault((slot.node, slot.incarnation), []).append((slot.allocated, slot.released, None))
        self._had = {node: Spans(each) for node, each in had.items()}
        exits: dict[Node, list[tuple[int, Mapping[str, Any]]]] = {}
        for exit_ in run.exits:
            exits.setdefault((exit_["node"], exit_["incarnation"]), []).append((exit_["at"], exit_))
        self._exits = {node: Moments(each) for node, each in exits.items()}

    def had(self, node: Node, moment: int) -> bool:
        """Whether the job had this node then."""
        return node in self._had and any(True for _ in self._had[node].at(moment))

    def alive(self, target: Target, moment: int) -> Iterator[int]:
        """Rows in Timeline.processes: the workers that a target means, who were there then."""
        ranks = self._lives.get(node_of(target), {})
        for rank in ranks if target.get("rank") is None else ranks.keys() & {target["rank"]}:
            yield from ranks[rank].at(moment)

    def exits(self, target: Target, first: int, last: int) -> Iterator[Mapping[str, Any]]:
        """Of all that ran on the target's node."""
        node = target.get("node"), target.get("incarnation")
        return self._exits[node].within(first, last) if node in self._exits else iter(())
