"""Finds the events that can change the phase of the job, such as the injection of a fault."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.timeline.lineage import NEVER, Life, World
from harness.timeline.lookups import first_from, grouped
from harness.timeline.phases import Event, Mark
from harness.timeline.sorted_events import CLEAN_CODES, OUTCOMES, Story, key_of


def of(story: Story) -> Iterator[Event]:
    yield from _fault_marks(story)
    yield from _node_marks(story)
    yield from _agent_marks(story)
    yield from _world_marks(story.lives, story.worlds)
    evidence = sorted(_evidence(story), key=lambda event: event.at)
    yield from evidence
    yield from _restarts(story.lives)
    yield from _life_marks(story.lives, [event.at for event in evidence])


def noticed(story: Story) -> list[int]:
    return sorted(event.at for event in (*_evidence(story), *_restarts(story.lives)))


def begins(event: Mapping[str, Any], phase: str) -> bool:
    return (event.get("event"), event.get("name"), event.get("edge")) == ("phase", phase, "begin")


def _fault_marks(story: Story) -> Iterator[Event]:
    for fault in story.faults:
        if fault.injected is not None:
            yield Event(fault.injected, Mark.KILL_STRIKE if fault.kills else Mark.STRIKE)
    if story.abort:
        yield Event(story.abort["at"], Mark.ABORT)


def _node_marks(story: Story) -> Iterator[Event]:
    """Yields an event when a node is allocated or lost. A node that a fault kills counts as lost when the fault acts,
    which may be before its release is logged."""
    kills = [fault for fault in reversed(story.faults) if fault.kills and fault.injected is not None]
    struck = {key_of(node): kill.injected for kill in kills for node in kill.targets if node.get("rank") is None}
    allocated = {(slot.node, slot.incarnation): slot.allocated for slot in story.slots}
    yield from (Event(at, Mark.NODE) for at in allocated.values())
    for event in story.harness:
        key = key_of(event)
        if event["event"] == "node.released" and event.get("reason") not in OUTCOMES and key in allocated:
            lost = min(event["at"], struck.get(key, NEVER))
            yield Event(max(lost, allocated[key]), Mark.NODE_LOST)


def _agent_marks(story: Story) -> Iterator[Event]:
    gone = story.node_gone()
    for agent in story.agents:
        waiting = False
        for event in agent.events:
            if event["event"] == "agent.rendezvous" and event.get("edge") == "begin" and not waiting:
                waiting = True
                yield Event(event["at"], Mark.AGENT)
            elif event["event"] in ("worker.exit", "agent.exiting") and waiting:
                waiting = False
                yield Event(event["at"], Mark.AGENT_BUSY)
        if waiting and key_of(agent.header) in gone:
            yield Event(gone[key_of(agent.header)], Mark.AGENT_BUSY)


def _world_marks(lives: Sequence[Life], worlds: Sequence[World]) -> Iterator[Event]:
    silent = not any(life.restores for life in lives)  # this trainer never tells a restore
    # When each life restored in each world that it was in, by the numbers of both.
    told = ((life, event["at"]) for life in lives for event in life.restores)
    restored = grouped(((life.index, life.world_at(at)), at) for life, at in told)
    for number, world in enumerate(worlds):
        if not world.whole:
            continue
        yield Event(world.joined, Mark.JOIN, number)
        members = world.members.values()
        yield from (Event(life.gone, Mark.BROKEN, number) for life in members if life.worlds[-1] == number)
        restores = [restored.get((life.index, number), []) for life in members]
        new = [life.worlds[0] == number for life in members]
        last: dict[int, int] = {}  # by restore (first, second, …): when its last member was done
        for turn, at in itertools.chain.from_iterable(map(enumerate, restores)):
            last[turn] = max(at, last.get(turn, world.joined))
        for turn, at in last.items():
            if turn or all(times for times, fresh in zip(restores, new, strict=True) if fresh):
                # At a start every newcomer restores, and survivors need not. Later only processes that went back do.
                yield Event(at, Mark.RESTORED, number)
        if silent:
            yield Event(world.joined, Mark.RESTORED, number)


def _evidence(story: Story) -> Iterator[Event]:
    struck = {key_of(target): f.injected for f in story.faults if f.injected is not None for target in f.targets}
    for life in story.lives:
        for event in life.writer.events:
            yield from _worker_evidence(event)
    for agent in story.agents:
        begins = 0
        for event in agent.events:
            if event["event"] == "agent.rendezvous" and event.get("edge") == "begin":
                begins += 1
                if begins > 1:
                    yield Event(event["at"], Mark.EVIDENCE)
    for event in story.exits:
        clean = event["code"] in CLEAN_CODES
        own_node = event["rank"] is None and struck.get(event["key"], NEVER) <= event["at"]
        if not own_node and event["node"] != "control":
            yield Event(event["at"], Mark.EVIDENCE if clean else Mark.UNCLEAN)


def _restarts(lives: Sequence[Life]) -> Iterator[Event]:
    """Yields an event for each restart of a rank, as a sign that a failure was noticed."""
    seen_ranks: set[int] = set()
    for life in lives:
        if life.rank in seen_ranks:
            yield Event(life.started, Mark.EVIDENCE)
        seen_ranks.add(life.rank)


def _worker_evidence(event: dict[str, Any]) -> Iterator[Event]:
    match event.get("event"):
        case "notice":
            yield Event(event["at"], Mark.NOTICE)
        case "anomaly":
            yield Event(event["at"], Mark.EVIDENCE)
        case "exiting":
            yield Event(event["at"], Mark.EVIDENCE if event.get("code", 0) in CLEAN_CODES else Mark.UNCLEAN)
        case "phase" if begins(event, "drain"):
            yield Event(event["at"], Mark.EVIDENCE)


def _life_marks(lives: Sequence[Life], evidence: Sequence[int]) -> Iterator[Event]:
    # When each began to join its first process group; `None`: it never said so.
    joined = [next((e["at"] for e in each.writer.events if begins(e, "rendezvous")), None) for each in lives]
    telling = any(begin is not None for begin in joined)
    for life, begin in zip(lives, joined, strict=True):
        yield Event(life.started, Mark.STAY)
        if telling:
            yield Event(life.started, Mark.START)
            yield Event(max(life.started, life.leaving if begin is None else begin), Mark.STARTED)
        yield Event(life.leaving, Mark.LEAVE)
        old = first_from(evidence, life.last_useful)
        yield Event(min(old, life.leaving), Mark.SPENT)
        if old < life.gone:
            yield Event(old, Mark.OLD)
            yield Event(life.gone, Mark.OLD_GONE)
