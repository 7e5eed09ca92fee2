"""Groups the events of a log by subject: the plan, nodes with their GPUs, faults, workers, and process exits."""

import bisect
import functools
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.log import older_faults, reading
from harness.log.consequences import Consequences
from harness.log.line_numbers import LineGap
from harness.log.planned_size import PlannedSize
from harness.timeline import clock_problems, lineage, save_events
from harness.timeline.lineage import CLEAN_CODES as CLEAN_CODES
from harness.timeline.lineage import NEVER, Key, Life
from harness.timeline.lookups import grouped, last_by

OUTCOMES = ("completed", "failed", "aborted", "interrupted")  # a node was given back with one of these: the run is over
KILLED = (-9, -15, 137, 143)  # exit codes of a worker that SIGKILL or SIGTERM ended
_LISTS = ("effects", "ends", "traffic", "damaged")  # fields of a fault record that collect events
_MOMENTS = ("armed", "injecting", "recovered", "healed", "cancelled")  # fields that hold the times of events
_AFTER = ("drill.", "second_restart.")  # prefixes of events on restarts after the run
_COMMON = ("event", "wall_ns", "mono_ns", "at", "dropped")


@dataclass(frozen=True)
class Slot:
    """One GPU of a node (or of the node's replacement), which the job had from time `allocated` to time `released`."""

    node: str  # name of the node
    incarnation: int  # of the node
    local_rank: int  # index of the GPU on its node
    allocated: int  # begin
    released: int  # end
    reason: str = OUTCOMES[0]  # why it was taken or given back

    @property
    def key(self) -> Key:
        return self.node, self.incarnation

    @property
    def kept(self) -> bool:
        """Returns True if the job kept this GPU until the run was over."""
        return self.reason in OUTCOMES


@dataclass(frozen=True)
class Launcher:
    """The log of one launcher, such as torchrun's agent. `met` holds the ends of its rendezvous with other launchers,
    `code` its logged exit code, and `gaps` its missing lines. `left` is True if the launcher logged its exit."""

    key: Key
    began: int
    met: tuple[dict[str, Any], ...]
    code: int | None = None
    left: bool = False
    gaps: tuple[LineGap, ...] = ()


@dataclass(frozen=True)
class FaultRecord(Consequences):
    id: str  # as in the scenario
    kind: str  # name of the fault, such as rank_kill
    targets: tuple[dict[str, Any], ...]  # each {node, incarnation, rank, …}
    injected: int | None  # when it acted
    effects: tuple[dict[str, Any], ...]  # each {measured, expected, unit, ok, detail, at}
    recovered: int | None  # when the harness saw that every rank had passed the furthest step before it
    healed: int | None  # when it was undone; of one that kills: when it had killed, and brought the replacement
    error: str | None  # why it could not act
    strikes: tuple[int, ...] = ()  # when targets were killed; a notice may have been given before, at `injected`
    damaged: tuple[dict[str, Any], ...] = ()  # damaged files of checkpoints: `fault.damaged`, with `at`
    traffic: tuple[dict[str, Any], ...] = ()  # traffic of the training through a network fault: `fault.traffic`
    ends: tuple[dict[str, Any], ...] = ()  # measurements after the healing: {measured, expected, unit, ok, at}
    held_back: str = ""  # why it could not act when it was due
    injecting: int | None = None  # begin of its injection; it acts at `injected` at the latest
    cancelled: int | None = None  # time of an order to end early: somebody stopped it, or the run ended
    armed: int | None = None  # since then it waits for nothing but its phase
    again: bool = False  # the same fault had acted before
    recovered_step: int | None = None  # the last complete step, as the harness saw it at `recovered`


def acted_at(fault: FaultRecord) -> int:
    assert fault.injected is not None
    return fault.injected


def first_strike(faults: Iterable[FaultRecord]) -> int:
    return min((fault.injected for fault in faults if fault.injected is not None), default=NEVER)


class Story:
    def __init__(self, log: reading.Log):
        self.log = log
        self.harness = log.harness.events if log.harness else []
        self.plan: dict[str, Any] = self._job_plan()
        self.finish = self._last("run.finished")
        self.abort = self._first("abort")
        self.begin, self.end = _span(log)
        self.agents = [writer for writer in log.writers if writer.role == "agent"]
        self._launches = _launches(self.agents)
        asked = (self.plan.get("workload") or {}).get("ranks_per_node") or NEVER
        self.slots, self.slot_problems = _slots(self.harness, self.begin, self.end, asked)
        self.faults = _faults(self.harness, {str(each.get("id")): each for each in self.plan.get("faults") or ()})
        self.lives = lineage.find_lives(log, PlannedSize.of(self.plan).assumed_world_size)
        self.exits = self._exits()
        lineage.match_exits(self.lives, self.exits)
        lineage.find_gone(self.lives, self.node_gone(), self._killed_ranks())
        lineage.find_cut(self.lives, {exit_["key"]: exit_["code"] for exit_ in self.exits if exit_["rank"] is None})
        self.worlds = lineage.form_worlds(self.lives)
        skewed = any(fault.clocks for fault in self.faults)
        self.clock_problems = list(clock_problems.problems(log, self.lives, skewed))

    def _job_plan(self) -> dict[str, Any]:
        """Returns the job's newest plan. The harness logs the plan again once it knows the nodes' failure domains."""
        plans = [event for event in self.harness if event["event"] == "plan"]
        told = [event for event in plans if not event.get("rehearsal")] or plans[:1]
        found: dict[str, Any] = told[-1].get("plan", {}) if told else {}
        return found

    def _first(self, name: str) -> dict[str, Any]:
        return next((e for e in self.harness if e["event"] == name), {})

    def _last(self, name: str) -> dict[str, Any]:
        return next((e for e in reversed(self.harness) if e["event"] == name), {})

    def environment(self) -> dict[str, Any]:
        event = self._first("environment")
        inner = event.get("environment")
        return inner if isinstance(inner, dict) else {k: v for k, v in event.items() if k not in _COMMON}

    def told_events(self) -> dict[str, int]:
        """Returns, for each kind of event except steps, when a worker or launcher last logged an event of this kind."""
        writers = (writer for writer in self.log.writers if writer.role != "harness")
        events = sorted((event["at"], str(event.get("event", ""))) for writer in writers for event in writer.events)
        return {name: at for at, name in events}

    def drill(self, name: str) -> dict[str, Any] | None:
        """Returns the last event of the restart test `name`, with the test's first event as `begun`, or `None` if no
        test began."""
        begun = self._last(f"{name}.started")
        told = self._last(f"{name}.finished") or begun
        return {**told, "begun": begun} if told else None

    def told(self, name: str) -> list[dict[str, Any]]:
        """Returns the events with this name that the harness logged."""
        return [event for event in self.harness if event["event"] == name]

    def of_trainers(self, *names: str) -> list[dict[str, Any]]:
        """Returns the events with these names of all workers in order of time, each with its rank, node and process."""
        found = [
            {"rank": life.rank, "node": life.key[0], "incarnation": life.key[1], "process": life.index} | event
            for life in self.lives
            for event in life.writer.events
            if event.get("event") in names
        ]
        return sorted(found, key=lambda event: event["at"])

    def places_of(self, events: Sequence[Mapping[str, Any]]) -> list[save_events.SaveWorld]:
        """Returns the process group of each event: the group of its worker or, if the worker never joined one, the
        newest group."""
        formed = sorted((world.joined, number) for number, world in enumerate(self.worlds))
        planned, found = PlannedSize.of(self.plan).assumed_world_size, []
        for event in events:
            number: int | None = self.lives[event["process"]].world_at(event["at"])
            number = last_by(formed, event["at"]) if number == -1 else number
            size = planned if number is None else self.worlds[number].size
            found.append(save_events.SaveWorld(-1 if number is None else number, size))
        return found

    def _exits(self) -> list[dict[str, Any]]:
        """Returns the worker exits that launchers logged, and the exits of each node's command (with rank `None`)."""
        found = []
        for key, event in ((key_of(agent.header), event) for agent in self.agents for event in agent.events):
            if event["event"] == "worker.exit":
                found.append({"node": key[0], "incarnation": key[1], "key": key, "rank": -1, "code": 0} | event)
        for event in self.told("process.exit"):
            key = key_of(event)
            found.append({"code": 0} | event | {"key": key, "node": key[0], "incarnation": key[1], "rank": None})
        return sorted(found, key=lambda each: each["at"])

    def launchers(self) -> list[Launcher]:
        found = []
        for agent in self.agents:
            met = tuple(event for event in agent.events if _met(event))
            exits = [event.get("code") for event in agent.events if event["event"] == "agent.exiting"]
            code = exits[0] if exits else None
            found.append(Launcher(key_of(agent.header), agent.header["at"], met, code, bool(exits), agent.gaps))
        return found

    def launched(self, life: Life) -> int:
        """Returns when the launcher could start this worker: at the end of the last rendezvous or, if another worker
        exited after it, at the worker's own start."""
        told = self._launches.get(life.key, [])
        place = bisect.bisect_right(told, (life.started, True)) - 1
        return told[place][0] if place >= 0 and told[place][1] else life.started

    def node_gone(self) -> dict[Key, int]:
        """Returns when each node was lost: at the end of its command or at its release, whichever came first."""
        gone: dict[Key, int] = {}
        for event in self.harness:
            if event["event"] in ("process.exit", "node.released"):
                gone[key_of(event)] = min(event["at"], gone.get(key_of(event), NEVER))
        return gone

    @functools.cached_property
    def _ends(self) -> dict[tuple[Key, Any], list[tuple[int, bool]]]:
        """Maps (node, rank) to the ends of its processes, as (time, True if the process was not killed). Rank `None` is
        the node's command."""
        ends = [((each["key"], each["rank"]), (each["at"], each["code"] not in KILLED)) for each in self.exits]
        ends += [((slot.key, None), (slot.released, slot.kept)) for slot in self.slots]
        hit = ((target, fault) for fault in self.faults if fault.kills for target in fault.targets)
        ends += [((key_of(each), each.get("rank")), (at, False)) for each, fault in hit for at in fault.strikes]
        return grouped(sorted(ends, key=operator.itemgetter(1)))

    def killed(self, key: Key, rank: int | None, since: int) -> int:
        """Returns when the process that ran at time `since` was killed, or `NEVER` if the process ended by itself."""
        told = (self._ends.get((key, each), []) for each in {rank, None})
        firsts = (ends[place] for ends in told if (place := bisect.bisect_left(ends, (since, False))) < len(ends))
        at, by_itself = min(firsts, default=(NEVER, True))
        return NEVER if by_itself else at

    def _killed_ranks(self) -> dict[tuple[Key, int], list[int]]:
        killers = (fault for fault in self.faults if fault.kills and fault.injected is not None)
        hit = ((target, acted_at(fault)) for fault in killers for target in fault.targets)
        return grouped(((key_of(each), int(each["rank"])), at) for each, at in hit if each.get("rank") is not None)


def diagnoses(log: reading.Log) -> list[dict[str, Any]]:
    writers = (writer for writer in log.writers if writer.role in ("trainer", "agent"))
    found = (event for writer in writers for event in writer.events if event["event"] == "diagnosis")
    return sorted(found, key=lambda event: event["at"])


def key_of(event: Mapping[str, Any]) -> Key:
    incarnation = event.get("incarnation")  # it may be null in a target
    return str(event.get("node", event.get("host"))), 1 if incarnation is None else int(incarnation)


def _span(log: reading.Log) -> tuple[int, int]:
    """Returns the times of the run's first and last event, without events of restart tests after the run."""
    firsts = [writer.header["at"] for writer in log.writers]
    events = (event for writer in log.writers for event in writer.events)
    lasts = [event["at"] for event in events if not str(event["event"]).startswith(_AFTER)]
    lasts += [int(log.steps["end"].max())] if len(log.steps["end"]) else []
    return min(firsts), max([*firsts, *lasts])


def _slots(harness: Sequence[dict[str, Any]], begin: int, end: int, asked: int) -> tuple[list[Slot], list[str]]:
    """Returns the job's GPUs, and a message for each contradiction about GPUs in the log. At most `asked` GPUs of each
    node count. A node whose name cannot be a file name counts as a node without GPUs."""
    allocated: dict[Key, dict[str, Any]] = {}
    released: dict[Key, int] = {}
    reasons: dict[Key, str] = {}
    for event in harness:
        if event["event"] == "node.allocated":
            allocated.setdefault(key_of(event), event)
        elif event["event"] == "node.released":
            released.setdefault(key_of(event), event["at"])
            if (why := str(event.get("reason"))) not in OUTCOMES:
                reasons[key_of(event)] = why
    untold = [key for key in allocated if key not in released and (key[0], key[1] + 1) in allocated]
    for node, incarnation in untold:  # a successor took its place
        released[node, incarnation] = allocated[node, incarnation + 1]["at"]
        reasons[node, incarnation] = "not told"
    slots, problems = [], list[str]()
    for key, event in allocated.items():
        since = max(event["at"], begin)
        until = max(released.get(key, end), since)
        reason = reasons.get(key, OUTCOMES[0])
        possible = key[0] not in ("", ".", "..") and "/" not in key[0]
        gpus, most = int(event.get("gpus", 1)), asked if possible else 0
        slots += [Slot(*key, gpu, since, until, reason) for gpu in range(min(gpus, most))]
        if gpus > most:
            problems.append(f"the plan asks for no node {key[0]!r} with {gpus} GPUs: the ledger leaves the GPUs out")
    early = sorted(key for key, event in allocated.items() if released.get(key, end) < event["at"])
    problems += [f"{node} was given back before it was allocated: the ledger leaves it out" for node, _ in early]
    return slots, [*problems, *(f"{node} came anew, but no event tells that it was given back" for node, _ in untold)]


def _faults(harness: Sequence[dict[str, Any]], planned: Mapping[str, Mapping[str, Any]]) -> list[FaultRecord]:
    """Returns one record for each injection of a fault, so that a fault that acts twice has two records."""
    records: list[dict[str, Any]] = []
    current: dict[str, dict[str, Any]] = {}
    for event in harness:
        name, _, what = event["event"].partition(".")
        if name != "fault" or "fault" not in event:
            continue
        record = current.get(str(event["fault"]))
        if record is None or (what in ("armed", "injecting") and record["injected"] is not None):
            record = {"id": str(event["fault"]), "kind": "", "consequences": Consequences(), "targets": ()}
            record |= {name: [] for name in ("told", "taken", *_LISTS)}
            record |= dict.fromkeys((*_MOMENTS, "injected", "recovered_step", "error")) | {"held_back": ""}
            record["again"] = str(event["fault"]) in current
            current[record["id"]] = record
            records.append(record)
        _note(record, what, event, planned.get(record["id"], {}))
    return [_record(record) for record in records]


def _record(record: dict[str, Any]) -> FaultRecord:
    strikes = record.pop("taken") or record["told"]
    del record["told"]
    lists = {name: tuple(record[name]) for name in _LISTS}
    return FaultRecord(**vars(record.pop("consequences")) | record | lists | {"strikes": tuple(strikes)})


def _note(record: dict[str, Any], what: str, event: dict[str, Any], planned: Mapping[str, Any]) -> None:
    record["kind"] = str(event.get("kind", record["kind"]))
    match what:
        case "postponed":
            record["held_back"] = str(event.get("reason") or "it had to wait")
        case "injected":
            record["injected"] = event["at"] if record["injected"] is None else record["injected"]
            record["told"].append(event["at"])
            record["consequences"] = older_faults.consequences(event, planned, record["kind"])
            record["targets"] = tuple(event.get("targets") or ())
        case "taking":
            record["taken"].append(event["at"])
        case "effect" | "ended":
            measured = {k: v for k, v in event.items() if k == "at" or k not in _COMMON}
            record["effects" if what == "effect" else "ends"].append(measured)
        case "damaged" | "traffic":
            record[what].append(event)
        case _ if what in _MOMENTS:
            record[what] = event["at"]
            record["recovered_step"] = event.get("step", record["recovered_step"])
        case "failed":
            record["error"] = str(event.get("error") or event.get("reason") or event.get("detail") or "it failed")


def _met(event: Mapping[str, Any]) -> bool:
    return event["event"] == "agent.rendezvous" and event.get("edge") == "end"


def _launches(agents: Sequence[reading.Writer]) -> dict[Key, list[tuple[int, bool]]]:
    found: dict[Key, list[tuple[int, bool]]] = {}
    for agent in agents:
        told = found.setdefault(key_of(agent.header), [])
        for event in agent.events:
            formed = _met(event)
            if formed or event["event"] == "worker.exit":
                told.append((event["at"], formed))
        told.sort()
    return found
