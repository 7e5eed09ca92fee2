"""Events → Timeline: attempts, steps, faults, GPU slots and the phases of the whole job, on one clock.

Pure: no clock, no network, no randomness. Times are integer nanoseconds on the harness's monotonic clock.
Columns are numpy arrays, so that ten million step events fit and score in seconds.

    files ─► reading: one clock, columns ─► lineage: lives, worlds, what survived ─► phases: segments, episodes
"""

from __future__ import annotations

import bisect
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from harness import lineage, reading
from harness.events import EXIT_LEFT
from harness.lineage import NEVER, Epoch, Key, Life, Progress, World
from harness.phases import (
    PHASES,
    Episode,
    Event,
    Gap,
    Mark,
    Segment,
    clipped,
    merged,
    progress_segments,
    walk,
)

__all__ = [
    "PHASES",
    "Episode",
    "Epoch",
    "FaultRecord",
    "Process",
    "Progress",
    "Segment",
    "Slot",
    "Steps",
    "Timeline",
]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

OUTCOMES = ("completed", "failed", "aborted", "interrupted")  # a node given back with one of these: the run is over
CLEAN_CODES = (0, EXIT_LEFT)


@dataclass(frozen=True)
class Steps:
    """One row per rank and executed step, sorted by `end`. `step` is 1-based: completed optimizer steps."""

    process: Ints  # row in Timeline.processes
    rank: Ints
    step: Ints
    begin: Ints
    end: Ints
    loss: Floats
    grad_norm: Floats
    lr: Floats
    digest: Ints  # fingerprint of the digest's text, the same in every run; 0: none was given
    first: Ints  # first sample position of the global batch in the shuffled order; -1 unknown
    count: Ints  # samples in the global batch; -1 unknown
    data_ns: Ints
    checkpoint_ns: Ints
    sync_ns: Ints
    survives: Bools  # not rolled back by a later restore
    epoch: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # row in Timeline.epochs
    complete: Bools = field(default_factory=lambda: np.zeros(0, np.bool_))  # every rank of the world did this step

    def __len__(self) -> int:
        return len(self.step)


@dataclass(frozen=True)
class Process:
    """One life of one worker. Times are `None` when the event never came."""

    rank: int
    local_rank: int
    node: str
    incarnation: int
    pid: int
    world_size: int
    launched: int  # when its launcher had all it takes to start it; `started` where none tells
    started: int  # its first word
    rendezvous: int | None
    restored: int | None
    restored_step: int | None
    source: str | None
    fallback: tuple[dict[str, Any], ...]
    last_seen: int
    exited: int | None
    exit_code: int | None  # from the launcher, or from the worker's own `exiting`
    exit_reason: str | None
    first_step: int | None = None  # the number of the first step it did
    torn: bool = False  # its log ends in the middle of a line


@dataclass(frozen=True)
class Slot:
    """One GPU of one node incarnation, allocated to the job in [allocated, released)."""

    node: str
    incarnation: int
    local_rank: int
    allocated: int
    released: int
    kept: bool = True  # the job had it until the run was over


@dataclass(frozen=True)
class FaultRecord:
    id: str
    kind: str
    kills: bool
    targets: tuple[dict[str, Any], ...]
    injected: int | None
    effects: tuple[dict[str, Any], ...]  # each {measured, expected, unit, ok, detail, at}
    recovered: int | None
    healed: int | None
    error: str | None
    stops: bool = False  # a healthy job may have to stop over it
    spoils: bool = False  # it may damage checkpoints; taken for granted where a fault does not say
    strikes: tuple[int, ...] = ()  # when targets were killed; a notice may have been given before, at `injected`


@dataclass(frozen=True)
class Timeline:
    plan: dict[str, Any]  # as embedded in the first event
    environment: dict[str, Any]
    begin: int
    end: int
    outcome: str | None  # completed · failed · aborted · interrupted · None: the harness itself died
    outcome_reason: str
    steps: Steps
    processes: Sequence[Process]
    slots: Sequence[Slot]
    faults: Sequence[FaultRecord]
    segments: Sequence[Segment]  # the phases of the whole job, gapless from `begin` to `end`
    episodes: Sequence[Episode]
    checkpoints: Sequence[dict[str, Any]]  # started/committed/failed events with `at`, `rank`, `node`
    notices: Sequence[dict[str, Any]]
    anomalies: Sequence[dict[str, Any]]
    exits: Sequence[dict[str, Any]]  # node commands and workers: {at, node, incarnation, rank|None, code}
    torn: Sequence[str]  # writers whose last line was cut
    dropped: int  # events lost to a full disk
    problems: Sequence[str] = field(default=())  # contradictions found while reading
    epochs: Sequence[Epoch] = field(default=())
    progress: Progress = field(default_factory=lineage.no_progress)  # the complete steps
    aborted: int | None = None  # when the harness gave up
    evidence: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # when somebody in the job noticed something
    uncertainty_ns: int = 0  # of the clocks of other hosts against the harness's

    @property
    def planned_steps(self) -> int | None:
        steps = self.plan.get("workload", {}).get("steps")
        return steps if isinstance(steps, int) else None

    @property
    def reached_step(self) -> int:
        return int(self.progress.step.max()) if len(self.progress) else 0

    @property
    def finished(self) -> bool:
        """Whether the job did all that was asked of it."""
        if self.planned_steps is None:
            return self.outcome == "completed"
        return self.reached_step >= self.planned_steps


def load(run_dir: pathlib.Path) -> Timeline:
    """Reads `run_dir/events`. Raises `EventLogError` when the log cannot be read at all."""
    return build(reading.read(run_dir / "events"))


def build(log: reading.Log) -> Timeline:
    """The timeline of a log that was read."""
    story = _Story(log)
    rows, epochs, progress = lineage.gather(log.steps, story.lives, story.worlds, story.committed())
    steps = Steps(
        process=rows.process,
        rank=rows.rank,
        survives=rows.survives,
        epoch=rows.epoch,
        complete=rows.complete,
        **rows.columns,
    )
    timeline = Timeline(
        plan=story.plan,
        environment=story.environment(),
        begin=story.begin,
        end=story.end,
        outcome=story.finish.get("outcome"),
        outcome_reason=str(story.finish.get("reason") or story.abort.get("reason") or ""),
        steps=steps,
        processes=[_process(life, story.launched(life)) for life in story.lives],
        slots=story.slots,
        faults=story.faults,
        segments=(),
        episodes=(),
        checkpoints=story.of_trainers("checkpoint.started", "checkpoint.committed", "checkpoint.failed"),
        notices=story.of_trainers("notice"),
        anomalies=story.of_trainers("anomaly"),
        exits=story.exits,
        torn=[writer.name for writer in log.writers if writer.torn],
        dropped=sum(writer.dropped for writer in log.writers),
        problems=[*log.problems, *_two_worlds_at_once(progress)],
        epochs=epochs,
        progress=progress,
        aborted=story.abort.get("at"),
        uncertainty_ns=log.uncertainty_ns,
        evidence=np.array(sorted(event.at for event in (*_evidence(story), *_restarts(story.lives))), np.int64),
    )
    segments, episodes = _chart(story, timeline)
    return replace(timeline, segments=segments, episodes=episodes)


class _Story:
    """The events of a log sorted by what they are about."""

    def __init__(self, log: reading.Log):
        self.log = log
        self.harness = log.harness.events if log.harness else []
        self.plan: dict[str, Any] = self._first("plan").get("plan", {})
        self.finish = self._last("run.finished")
        self.abort = self._first("abort")
        self.begin, self.end = _span(log)
        self.agents = [writer for writer in log.writers if writer.role == "agent"]
        self._launches = _launches(self.agents)
        self.slots = _slots(self.harness, self.end)
        self.faults = _faults(self.harness)
        self.lives = lineage.find_lives(log, self._planned_ranks())
        self.exits = sorted([*self._worker_exits(), *self._node_exits()], key=lambda e: e["at"])
        lineage.match_exits(self.lives, self.exits)
        lineage.find_gone(self.lives, self.node_gone(), self._killed_ranks())
        self.worlds = lineage.form_worlds(self.lives)

    def _first(self, name: str) -> dict[str, Any]:
        return next((e for e in self.harness if e["event"] == name), {})

    def _last(self, name: str) -> dict[str, Any]:
        return next((e for e in reversed(self.harness) if e["event"] == name), {})

    def environment(self) -> dict[str, Any]:
        event = self._first("environment")
        inner = event.get("environment")
        return inner if isinstance(inner, dict) else {k: v for k, v in event.items() if k not in _COMMON}

    def _planned_ranks(self) -> int:
        workload = self.plan.get("workload", {})
        return int(workload.get("nodes", 1)) * int(workload.get("ranks_per_node", 1))

    def of_trainers(self, *names: str) -> list[dict[str, Any]]:
        """These events of all workers in order of time, each with who wrote it."""
        found = [
            {"rank": life.rank, "node": life.key[0], "incarnation": life.key[1], "process": life.index} | event
            for life in self.lives
            for event in life.writer.events
            if event.get("event") in names
        ]
        return sorted(found, key=lambda event: event["at"])

    def committed(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for event in self.of_trainers("checkpoint.committed"):
            found.setdefault(int(event.get("step", -1)), []).append(event["at"])
        return found

    def _worker_exits(self) -> Iterator[dict[str, Any]]:
        for writer in self.agents:
            key = _key(writer.header)
            for event in writer.events:
                if event["event"] == "worker.exit":
                    yield {"node": key[0], "incarnation": key[1], "key": key, "rank": -1, "code": 0} | event

    def _node_exits(self) -> Iterator[dict[str, Any]]:
        for event in self.harness:
            if event["event"] == "process.exit":
                yield {"code": 0} | event | {"key": _key(event), "rank": None}

    def launched(self, life: Life) -> int:
        """When the launcher's last rendezvous before it ended, if no worker has ended there since."""
        told = self._launches.get(life.key, [])
        place = bisect.bisect_right(told, (life.started, True)) - 1
        return told[place][0] if place >= 0 and told[place][1] else life.started

    def node_gone(self) -> dict[Key, int]:
        """When each node incarnation was certainly over: its command ended or it was released."""
        gone: dict[Key, int] = {}
        for event in self.harness:
            if event["event"] in ("process.exit", "node.released"):
                gone[_key(event)] = min(event["at"], gone.get(_key(event), NEVER))
        return gone

    def _killed_ranks(self) -> dict[Key, dict[int, list[int]]]:
        killed: dict[Key, dict[int, list[int]]] = {}
        for fault in self.faults:
            for target in fault.targets if fault.kills else ():
                if target.get("rank") is not None and fault.injected is not None:
                    killed.setdefault(_key(target), {}).setdefault(int(target["rank"]), []).append(fault.injected)
        return killed


_COMMON = ("event", "wall_ns", "mono_ns", "at", "dropped")


def _key(event: Mapping[str, Any]) -> Key:
    return str(event.get("node", event.get("host"))), int(event.get("incarnation", 1))


def _span(log: reading.Log) -> tuple[int, int]:
    """From the first event to the last one, and never shorter than what the harness saw."""
    firsts = [writer.header["at"] for writer in log.writers]
    lasts = [writer.events[-1]["at"] for writer in log.writers if writer.events]
    lasts += [int(log.steps["end"].max())] if len(log.steps["end"]) else []
    return min(firsts), max([*firsts, *lasts])


def _slots(harness: Sequence[dict[str, Any]], end: int) -> list[Slot]:
    allocated: dict[Key, dict[str, Any]] = {}
    released: dict[Key, int] = {}
    taken: set[Key] = set()
    for event in harness:
        if event["event"] == "node.allocated":
            allocated.setdefault(_key(event), event)
        elif event["event"] == "node.released":
            released.setdefault(_key(event), event["at"])
            if event.get("reason") not in OUTCOMES:
                taken.add(_key(event))
    return [
        Slot(key[0], key[1], gpu, event["at"], released.get(key, end), key not in taken)
        for key, event in allocated.items()
        for gpu in range(int(event.get("gpus", 1)))
    ]


def _faults(harness: Sequence[dict[str, Any]]) -> list[FaultRecord]:
    """One record per injection; an id that is armed or injected again after it acted begins a new one."""
    records: list[dict[str, Any]] = []
    current: dict[str, dict[str, Any]] = {}
    for event in harness:
        name, _, what = event["event"].partition(".")
        if name != "fault" or "fault" not in event:
            continue
        record = current.get(str(event["fault"]))
        if record is None or (what in ("armed", "injecting") and record["injected"] is not None):
            record = {"id": str(event["fault"]), "kind": "", "kills": False, "stops": False, "spoils": False}
            record |= {"targets": (), "injected": None, "told": [], "taken": [], "effects": []}
            record |= {"recovered": None, "healed": None, "error": None}
            current[record["id"]] = record
            records.append(record)
        _note(record, what, event)
    return [_record(record) for record in records]


def _record(record: dict[str, Any]) -> FaultRecord:
    strikes = record.pop("taken") or record["told"]
    del record["told"]
    return FaultRecord(**record | {"effects": tuple(record["effects"]), "strikes": tuple(strikes)})


def _note(record: dict[str, Any], what: str, event: dict[str, Any]) -> None:
    record["kind"] = str(event.get("kind", record["kind"]))
    match what:
        case "injected":
            record["injected"] = event["at"] if record["injected"] is None else record["injected"]
            record["told"].append(event["at"])
            record["kills"] = bool(event.get("kills", False))
            record["stops"] = bool(event.get("stops", False))
            record["spoils"] = bool(event.get("spoils", not record["kills"]))
            record["targets"] = tuple(event.get("targets") or ())
        case "taking":
            record["taken"].append(event["at"])
        case "effect":
            record["effects"].append({k: v for k, v in event.items() if k == "at" or k not in _COMMON})
        case "recovered" | "healed":
            record[what] = event["at"]
        case "failed":
            record["error"] = str(event.get("error") or event.get("reason") or event.get("detail") or "it failed")


def _launches(agents: Sequence[reading.Writer]) -> dict[Key, list[tuple[int, bool]]]:
    """On each node: when workers could be started (True), and when one had ended (False)."""
    found: dict[Key, list[tuple[int, bool]]] = {}
    for agent in agents:
        told = found.setdefault(_key(agent.header), [])
        for event in agent.events:
            formed = event["event"] == "agent.rendezvous" and event.get("edge") == "end"
            if formed or event["event"] == "worker.exit":
                told.append((event["at"], formed))
        told.sort()
    return found


def _process(life: Life, launched: int) -> Process:
    restored = life.restored or {}
    told = life.exiting or {}
    code = (life.exit_event or told).get("code")
    return Process(
        rank=life.rank,
        local_rank=life.local_rank,
        node=life.key[0],
        incarnation=life.key[1],
        pid=life.pid,
        world_size=life.world_size,
        launched=launched,
        started=life.started,
        rendezvous=next((e["at"] for e in life.writer.events if e.get("event") == "rendezvous"), None),
        restored=restored.get("at"),
        restored_step=restored.get("step"),
        source=restored.get("source"),
        fallback=tuple(restored.get("fallback") or ()),
        last_seen=life.last_seen,
        exited=(life.exit_event or told).get("at"),
        exit_code=None if code is None else int(code),
        exit_reason=told.get("reason"),
        first_step=life.first_step,
        torn=life.writer.torn,
    )


def _two_worlds_at_once(progress: Progress) -> list[str]:
    epochs = [int(progress.epoch[lo]) for lo, _ in lineage.pairwise_epochs(progress)]
    if len(epochs) == len(set(epochs)):
        return []
    return ["two worlds completed steps at the same time: one of them went on after the other had taken over"]


def _chart(story: _Story, timeline: Timeline) -> tuple[list[Segment], list[Episode]]:
    """Segments of the whole run, and its episodes with theirs."""
    segments, episodes = progress_segments(timeline.progress)
    marks = list(_marks(story))
    segments += walk(_gaps(story, timeline), marks)
    if timeline.finished and len(timeline.progress):
        segments.append(Segment("finish", int(timeline.progress.end[-1]), timeline.end))
        episodes = [e for e in episodes if e.t_regained is not None]
    elif len(timeline.progress) and not (episodes and episodes[-1].t_regained is None):
        last = timeline.progress
        episodes.append(Episode(int(last.end[-1]), None, None, int(last.step.max()), (), ()))
    segments = merged(segments)
    episodes = [*_struck_at_start(timeline, marks), *episodes]
    return segments, _named(timeline, segments, episodes, story.node_gone())


def _struck_at_start(timeline: Timeline, marks: Sequence[Event]) -> list[Episode]:
    """A fault that took something before the first step: progress "stopped" when it struck."""
    first = int(timeline.progress.end[0]) if len(timeline.progress) else None
    strikes = [m.at for m in marks if m.mark is Mark.KILL_STRIKE and (first is None or m.at < first)]
    return [Episode(min(strikes), first, first, 0, (), ())] if strikes else []


def _gaps(story: _Story, timeline: Timeline) -> list[Gap]:
    progress = timeline.progress
    workload = timeline.plan.get("workload", {})
    nodes = int(workload.get("min_nodes") or workload.get("nodes") or 1)
    least = (nodes, nodes * int(workload.get("ranks_per_node", 1)))
    gaps: list[Gap] = []
    ranges = lineage.pairwise_epochs(progress)
    for lo, _ in ranges:
        epoch = int(progress.epoch[lo])
        world = story.worlds[timeline.epochs[epoch].world]
        before = int(progress.epoch[lo - 1]) if lo else -1
        begin = int(progress.end[lo - 1]) if lo else timeline.begin
        same = lo > 0 and timeline.epochs[before].world == timeline.epochs[epoch].world
        end, needs = int(progress.end[lo]), (len(world.nodes), world.size)
        gaps.append(Gap(begin, end, before, epoch, *needs, same_world=same, first=not lo))
    if not ranges:
        return [Gap(timeline.begin, timeline.end, -1, -1, *least, same_world=False, first=True)]
    if not timeline.finished:
        last = int(progress.epoch[-1])
        gaps.append(Gap(int(progress.end[-1]), timeline.end, last, -1, *least, same_world=False))
    return gaps


def _named(
    timeline: Timeline, segments: Sequence[Segment], episodes: Sequence[Episode], gone: Mapping[Key, int]
) -> list[Episode]:
    """Episodes with their segments and the ids of the faults that caused or met them."""
    result: list[Episode] = []
    waiting = [fault for fault in timeline.faults if fault.injected is not None]
    for episode in episodes:
        end = timeline.end if episode.t_regained is None else episode.t_regained
        faults = [fault for fault in waiting if _belongs(fault, episode.t_stop, end, gone)]
        waiting = [fault for fault in waiting if fault not in faults]
        back = _brought_back(timeline, episode, end)
        ids = tuple(dict.fromkeys(fault.id for fault in timeline.faults if fault in faults or fault in back))
        result.append(replace(episode, faults=ids, segments=tuple(clipped(segments, episode.t_stop, end))))
    return result


def _belongs(fault: FaultRecord, t_stop: int, end: int, gone: Mapping[Key, int]) -> bool:
    """Whether a fault that no earlier episode has named is at work in this one.

    A node that is reclaimed with a notice may do steps until it is taken: then it counts when it is taken.
    """
    assert fault.injected is not None
    if fault.injected < t_stop:
        return fault.kills or fault.healed is None or fault.healed >= t_stop
    nodes = [_key(target) for target in fault.targets if fault.kills and target.get("rank") is None]
    taken = min((gone[key] for key in nodes if gone.get(key, 0) >= fault.injected), default=fault.injected)
    return fault.injected <= end and taken <= end


def _brought_back(timeline: Timeline, episode: Episode, end: int) -> list[FaultRecord]:
    """Faults whose lost node comes back into the job in this episode: growing again is their doing, too."""
    first_start: dict[Key, int] = {}
    for process in timeline.processes:
        first_start.setdefault((process.node, process.incarnation), process.started)
    back = {(node, number - 1) for (node, number), at in first_start.items() if episode.t_stop <= at <= end}
    return [
        fault
        for fault in timeline.faults
        if fault.injected is not None
        and any(_key(target) in back and target.get("rank") is None for target in fault.targets)
    ]


def _marks(story: _Story) -> Iterator[Event]:
    """All that can change the phase of the job."""
    yield from _fault_marks(story)
    yield from _node_marks(story)
    yield from _agent_marks(story)
    yield from _world_marks(story.lives, story.worlds)
    evidence = sorted(_evidence(story), key=lambda event: event.at)
    yield from evidence
    yield from _restarts(story.lives)
    yield from _life_marks(story.lives, [event.at for event in evidence])


def _fault_marks(story: _Story) -> Iterator[Event]:
    for fault in story.faults:
        if fault.injected is not None:
            yield Event(fault.injected, Mark.KILL_STRIKE if fault.kills else Mark.STRIKE)
    if story.abort:
        yield Event(story.abort["at"], Mark.ABORT)


def _node_marks(story: _Story) -> Iterator[Event]:
    """A node that a fault will take away is of no use from the injection on, also while its notice runs."""
    struck = {
        _key(target): fault.injected
        for fault in reversed(story.faults)
        if fault.kills and fault.injected is not None
        for target in fault.targets
        if target.get("rank") is None
    }
    allocated = {(slot.node, slot.incarnation): slot.allocated for slot in story.slots}
    yield from (Event(at, Mark.NODE) for at in allocated.values())
    for event in story.harness:
        key = _key(event)
        if event["event"] == "node.released" and event.get("reason") not in OUTCOMES and key in allocated:
            lost = min(event["at"], struck.get(key, NEVER))
            yield Event(max(lost, allocated[key]), Mark.NODE_LOST)


def _agent_marks(story: _Story) -> Iterator[Event]:
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
        if waiting and _key(agent.header) in gone:
            yield Event(gone[_key(agent.header)], Mark.AGENT_BUSY)


def _world_marks(lives: Sequence[Life], worlds: Sequence[World]) -> Iterator[Event]:
    silent = not any(life.restores for life in lives)  # a trainer that never tells what it restored
    for number, world in enumerate(worlds):
        if not world.whole:
            continue
        yield Event(world.joined, Mark.JOIN, number)
        members = world.members.values()
        yield from (Event(life.gone, Mark.BROKEN, number) for life in members if life.worlds[-1] == number)
        restores = [[at for at, _ in life.restores if _world_at(life, at) == number] for life in members]
        for turn in range(max(len(times) for times in restores)):
            told = [times[turn] for times in restores if len(times) > turn]
            if turn or all(restores):  # at a start everybody restores; later on those who went back
                yield Event(max(*told, world.joined), Mark.RESTORED, number)
        if silent:
            yield Event(world.joined, Mark.RESTORED, number)


def _world_at(life: Life, at: int) -> int:
    """The world a life was in at this time; before its first join, the first one."""
    return life.worlds[max(bisect.bisect_right(life.joins, at) - 1, 0)] if life.worlds else -1


def _evidence(story: _Story) -> Iterator[Event]:
    """What shows that somebody in the job knows. The harness's own knowledge is no evidence."""
    struck = {_key(target): f.injected for f in story.faults if f.injected is not None for target in f.targets}
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
    """Somebody who starts a rank again has noticed; it makes nobody old who was started beside it."""
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
        case "phase" if event.get("name") == "drain" and event.get("edge") == "begin":
            yield Event(event["at"], Mark.EVIDENCE)


def _life_marks(lives: Sequence[Life], evidence: Sequence[int]) -> Iterator[Event]:
    """A worker is old from the first evidence after the last useful thing it did, until it is gone."""
    for life in lives:
        yield Event(life.started, Mark.STAY)
        yield Event(life.leaving, Mark.LEAVE)
        noticed = bisect.bisect_left(evidence, life.last_useful)
        old = evidence[noticed] if noticed < len(evidence) else NEVER
        yield Event(min(old, life.leaving), Mark.SPENT)
        if old < life.gone:
            yield Event(old, Mark.OLD)
            yield Event(life.gone, Mark.OLD_GONE)
