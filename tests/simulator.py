"""A discrete-event simulator of a training job. It writes event logs whose true figures it knows.

The simulator decides what happens when; the truth it returns (phases, episodes, surviving steps, ledger) is
booked from those decisions, not from the log, with plain loops. Scorers must find the same figures in the log.

    history = simulate(Job(nodes=2, steps=40), [Outage(after=12, kind="rank")], seed=1)
    history.write(tmp_path)
    assert timeline.load(tmp_path).episodes[0].t_stop == history.truth.episodes[0].t_stop
"""

import hashlib
import json
import math
import pathlib
import random
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from harness.mesh import Mesh
from harness.node.emitter import Axis

MS = 1_000_000
WALL = 1_700_000_000 * 10**9
PHASE_MS = {
    "interrupted_step": 30,
    "detect": 240,
    "drain": 180,
    "teardown": 90,
    "reschedule": 1900,
    "startup": 850,
    "rendezvous": 330,
    "restore": 140,
}
KINDS = ("rank", "node", "notice", "shrink", "crash", "rollback")
Interval = tuple[str, int, int]
Line = dict[str, Any]


@dataclass(frozen=True)
class Job:
    nodes: int = 2
    ranks_per_node: int = 1
    steps: int = 40
    every: int = 10  # a checkpoint every so many steps
    step_ms: int = 48
    batch: int = 16
    foreign_clocks: bool = False  # every node has its own wall and monotonic clock
    agents: bool = True
    min_nodes: int = 1
    mesh: tuple[tuple[Axis, int], ...] = ()  # as each rank tells its place in it
    noise: float = 0.0  # this share of the steps takes up to three times as long
    pauses: float = 0.0  # in this share of the steps a rank stands still for half a second
    disk_ms: int = 0  # so long the step after a checkpoint waits for the disk


@dataclass(frozen=True)
class Outage:
    """`after` more complete steps something happens, and the job starts again.

    `rank`: SIGKILL of a rank · `node`: a node is lost and replaced · `notice`: the node is reclaimed with a notice, the
    job saves and exits · `shrink`: a node is lost for good (`regrow_after` steps later it comes back) · `crash`:
    a worker dies by itself · `rollback`: all ranks go back to a checkpoint without restarting.
    `replica`, `departure`: recovery in process. The survivors keep their processes and their state and form a new
    world, with a newcomer in the place of a killed rank that takes the state from a peer, or without a node that is
    lost for good.
    `again`: a second node is lost in this phase of the recovery.
    """

    after: int
    kind: str
    victim: int = 0  # node
    again: str | None = None
    regrow_after: int | None = None
    torn: bool = False  # the killed worker's last line is cut


@dataclass(frozen=True)
class TrueEpisode:
    t_stop: int
    t_first: int
    t_regained: int
    phases: dict[str, int]
    faults: tuple[str, ...]


@dataclass(frozen=True)
class StepRow:
    """One executed step of one rank, and its fate."""

    slot: tuple[str, int, int]
    step: int
    begin: int
    end: int
    data_ns: int
    checkpoint_ns: int
    survives: bool
    world: int
    warm_up: bool  # the first step of its process


@dataclass
class Truth:
    begin: int
    end: int = 0
    phases: list[Interval] = field(default_factory=list)
    episodes: list[TrueEpisode] = field(default_factory=list)
    rows: list[StepRow] = field(default_factory=list)
    slots: dict[tuple[str, int, int], list[int]] = field(default_factory=dict)  # allocated, released
    working: list[tuple[int, int, frozenset[tuple[str, int, int]]]] = field(default_factory=list)

    def ledger(self, bands: dict[int, tuple[int, int]]) -> dict[str, int]:
        """Books every slot with plain loops. `bands`: per world size the upper end, and that of first steps."""
        accounts: dict[str, int] = {}

        def book(account: str, amount: int) -> None:
            accounts[account] = accounts.get(account, 0) + amount

        for slot, (allocated, released) in self.slots.items():
            at = allocated
            for row in sorted((r for r in self.rows if r.slot == slot), key=lambda r: r.end):
                self._book_rest(slot, at, max(at, row.begin), book)
                left = row.end - max(at, row.begin)
                at = row.end
                if not row.survives:
                    book("recompute", left)
                    continue
                upper, first = bands.get(row.world, (2**62, 2**62))
                work = left - row.data_ns - row.checkpoint_ns
                drag = max(0, work - (first if row.warm_up else upper))
                book("data_wait", row.data_ns)
                book("checkpoint_stall", row.checkpoint_ns)
                book("straggler_drag", drag)
                book("productive", work - drag)
            self._book_rest(slot, at, released, book)
        return {account: amount for account, amount in accounts.items() if amount}

    def _book_rest(self, slot: tuple[str, int, int], begin: int, end: int, book: Callable[[str, int], None]) -> None:
        names = {"interrupted_step": "recompute", "first_step": "startup", "finish": "teardown"}
        for phase, lo, hi in self.phases:
            amount = min(end, hi) - max(begin, lo)
            if amount <= 0:
                continue
            stepping = phase in ("running", "recompute", "first_step", "interrupted_step")
            if stepping and not self._works(slot, lo, phase):
                book("idle", amount)
            else:
                book("unattributed" if phase in ("running", "recompute") else names.get(phase, phase), amount)

    def _works(self, slot: tuple[str, int, int], at: int, phase: str) -> bool:
        """Whether the slot has a worker in the world that steps (or stepped last) at this time."""
        if phase == "first_step":
            return next(slot in slots for begin, end, slots in self.working if begin > at)
        if phase == "interrupted_step":
            return [slot in slots for begin, end, slots in self.working if end <= at][-1]
        return any(slot in slots for begin, end, slots in self.working if begin <= at < end)


@dataclass
class Writer:
    """One event file. `wall` and `mono` are what this host's clocks are ahead of the harness's."""

    name: str
    header: dict[str, Any]
    wall: int = 0
    mono: int = 0
    records: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    torn: bool = False

    def log(self, at: int, event: str, **fields: Any) -> None:
        self.records.append((at, {"event": event} | fields))

    def lines(self) -> list[dict[str, Any]]:
        stamped = []
        for at, record in [(self.header["at"], self.header), *sorted(self.records, key=lambda r: r[0])]:
            clocks = {"wall_ns": WALL + at + self.wall, "mono_ns": at + self.mono}
            body = {key: value for key, value in record.items() if key != "at"}
            if "begin_ns" in body:
                body["begin_ns"] += self.mono
            stamped.append(body | clocks)
        return stamped


class Logs(dict[str, list[Line]]):
    """File name → lines, to be bent by tests of broken trainers."""

    @property
    def harness(self) -> list[Line]:
        return self["harness"]

    @harness.setter
    def harness(self, lines: list[Line]) -> None:
        self["harness"] = lines

    @property
    def plan(self) -> dict[str, Any]:
        return self.told("plan")["plan"]

    def told(self, event: str) -> Line:
        """The first line of this event that the harness told."""
        return find(self.harness, event)

    def put(self, *lines: Line) -> None:
        """The harness tells these, too. Without any: its lines are put in the order of their times again."""
        put(self.harness, *lines)

    def trainers(self, rank: int | None = None, life: int | None = None) -> list[list[Line]]:
        """The logs of workers: of one rank, of its n-th life (negative from the end), or all."""
        by_time = sorted(self.items(), key=lambda item: item[1][0]["mono_ns"])
        found = [lines for name, lines in by_time if name.startswith("trainer")]
        found = [lines for lines in found if rank is None or lines[0]["rank"] == rank]
        return found if life is None else [found[life]]

    def last_lives(self) -> list[list[Line]]:
        """The log of each rank's last worker, in the order of the ranks."""
        ranks = sorted({lines[0]["rank"] for lines in self.trainers()})
        return [self.trainers(rank, -1)[0] for rank in ranks]

    def all(self, *events: str, **whose: int | None) -> Iterator[Line]:
        """All lines of these events of the workers that `trainers` finds."""
        return (line for lines in self.trainers(**whose) for line in lines if line.get("event") in events)

    def steps(self, first: int = 1, last: int = 10**9, **whose: int | None) -> Iterator[Line]:
        return (line for lines in self.trainers(**whose) for line in steps(lines, first, last))

    def number(self) -> None:
        """Everybody numbers the lines there are, as an emitter does."""
        for lines in self.values():
            for number, line in enumerate(lines):
                line["line"] = number

    def lose(self, *events: str, step: Container[int] | None = None, **whose: int | None) -> None:
        """The workers that `trainers` finds do not tell these events; with `step` only those of such steps."""
        for lines in self.trainers(**whose):
            remove(lines, lambda line: line.get("event") in events and (step is None or line["step"] in step))


def find(lines: list[Line], event: str) -> Line:
    return next(line for line in lines if line.get("event") == event)


def steps(lines: list[Line], first: int = 1, last: int = 10**9) -> list[Line]:
    return [line for line in lines if line.get("event") == "step" and first <= line["step"] <= last]


def remove(lines: list[Line], unwanted: Callable[[Line], bool]) -> None:
    lines[:] = [line for line in lines if not unwanted(line)]


def change(lines: Iterable[Line], *gone: str, **fields: Any) -> None:
    """Each of these lines tells `fields` otherwise: a value, or what a function makes of the line; nothing of `gone`."""
    for line in list(lines):
        line |= {name: value(line) if callable(value) else value for name, value in fields.items()}
        for name in gone:
            line.pop(name, None)


def put(lines: list[Line], *more: Line) -> None:
    """All in the order of their times, behind the header."""
    lines[1:] = sorted([*lines[1:], *more], key=lambda line: int(line["mono_ns"]))


def clocks(line: Line, later_ns: int = 0) -> dict[str, int]:
    """When a line was told, or so much later, by both clocks."""
    return {key: line[key] + later_ns for key in ("mono_ns", "wall_ns")}


@dataclass
class History:
    job: Job
    writers: list[Writer]
    truth: Truth

    def logs(self) -> Logs:
        return Logs({writer.name: writer.lines() for writer in self.writers})

    def write(
        self, run_dir: pathlib.Path, logs: Logs | None = None, rename: Callable[[str], str] = str
    ) -> pathlib.Path:
        events = run_dir / "events"
        events.mkdir(parents=True, exist_ok=True)
        torn = {writer.name for writer in self.writers if writer.torn}
        for name, lines in (logs or self.logs()).items():
            text = "".join(json.dumps(line) + "\n" for line in lines)
            tail = '{"event":"step","step":9' if name in torn else ""
            (events / f"{rename(name)}.jsonl").write_text(text + tail)
        return run_dir


@dataclass
class _Worker:
    rank: int
    slot: tuple[str, int, int]
    writer: Writer
    at: int = 0  # end of the last thing it did
    stepped: bool = False


class _Simulation:
    def __init__(self, job: Job, outages: list[Outage], seed: int):
        self.job, self.outages = job, outages
        self.random = random.Random(seed)
        self.weather = random.Random(f"weather {seed}")  # apart, so that it changes nothing else
        self.now = 5_000 * MS + self.random.randrange(MS)
        self.truth = Truth(self.now)
        self.writers: list[Writer] = []
        self.incarnation = dict.fromkeys(range(job.nodes), 1)
        self.alive = set(range(job.nodes))
        self.agents: dict[int, Writer] = {}
        self.workers: list[_Worker] = []
        self.saved = 0  # the step of the newest checkpoint
        self.step = 0  # of the state that the job is in
        self.furthest = 0
        self.ready = False  # restored, and no step done since
        self.faults = 0
        self.pid = 1000
        self.pending: list[StepRow] = []  # executed and not yet known to survive
        self.open: dict[str, Any] | None = None  # the episode that is going on
        self.lost_node: tuple[int, str] | None = None
        self.lost_by: dict[int, str] = {}
        self.harness = self._writer("harness", "harness", None, {"role": "harness", "host": "control"})

    # Writers and small helpers

    def _writer(self, name: str, role: str, node: int | None, identity: dict[str, Any]) -> Writer:
        foreign = self.job.foreign_clocks and node is not None
        wall, mono = self._skew(node) if foreign else (0, 0)
        clock = f"boot-{self._host(node)}" if foreign else "boot"
        header = {"schema": 1, "writer": name, "role": role, "clock": clock, "pid": 1}
        writer = Writer(name, header | identity | {"at": self.now}, wall, mono)
        self.writers.append(writer)
        return writer

    def _skew(self, node: int | None) -> tuple[int, int]:
        host = random.Random(f"{node}.{self.incarnation[node or 0]}")
        return host.randrange(-(10**12), 10**12), host.randrange(10**14)

    def _host(self, node: int | None) -> str:
        assert node is not None, "the harness has no clock of its own"
        return f"node{node}.{self.incarnation[node]}"

    def _slots(self, node: int) -> list[tuple[str, int, int]]:
        return [(f"node{node}", self.incarnation[node], local) for local in range(self.job.ranks_per_node)]

    def _key(self, node: int) -> dict[str, Any]:
        return {"node": f"node{node}", "incarnation": self.incarnation[node]}

    def _some(self, milliseconds: float) -> int:
        """About so long, in odd nanoseconds, never zero."""
        return 1 + int(milliseconds * MS * self.random.uniform(0.4, 1.6))

    def _spread(self, begin: int, end: int, n: int) -> list[int]:
        """n times in (begin, end], the last of them exactly at the end."""
        times = [self.random.randint(begin + 1, end) for _ in range(n - 1)] + [end]
        self.random.shuffle(times)
        return times

    def _phase(self, name: str, end: int) -> None:
        if end > self.now:
            self.truth.phases.append((name, self.now, end))
            self.now = end

    # The story

    def run(self) -> History:
        self._log_plan()
        for node in range(self.job.nodes):
            self._allocate(node, self.now)
        self._come_up("startup")
        for outage in self.outages:
            self._train(outage.after)
            if self.step >= self.job.steps - 1:
                break
            self._strike(outage)
            if outage.kind == "shrink" and outage.regrow_after is not None:
                self._train(outage.regrow_after)
                self._grow_back()
            elif outage.kind == "shrink":
                self.lost_node = None
        self._train(self.job.steps)
        self._finish()
        return History(self.job, self.writers, self.truth)

    def _log_plan(self) -> None:
        job = self.job
        workload = {"trainer": "reference", "nodes": job.nodes, "min_nodes": job.min_nodes, "steps": job.steps}
        workload |= {"ranks_per_node": job.ranks_per_node, "checkpoint": {"every_steps": job.every}}
        self.plan: dict[str, Any] = {"version": 1, "run_id": "sim", "seed": 7, "backend": "local", "profile": None}
        self.plan |= {"scenario": {"name": "simulated", "title": "A simulated job"}, "workload": workload}
        self.plan |= {"faults": [], "expect": {}, "abort": {}}
        self.harness.log(self.now, "plan", plan=self.plan)
        self.harness.log(self.now, "environment", python="3.11")

    def _allocate(self, node: int, at: int) -> None:
        self.harness.log(at, "node.allocated", **self._key(node), gpus=self.job.ranks_per_node)
        if self.job.foreign_clocks:
            wall, _ = self._skew(node)
            self.harness.log(at, "clock", host=self._host(node), offset_ns=wall, uncertainty_ns=1000)
        for slot in self._slots(node):
            self.truth.slots[slot] = [at, 0]
        self.alive.add(node)

    def _release(self, node: int, at: int, reason: str) -> None:
        self.harness.log(at, "node.released", **self._key(node), reason=reason)
        for slot in self._slots(node):
            self.truth.slots[slot][1] = at

    def _come_up(self, first: str, again: str | None = None) -> None:
        """Startup, rendezvous and restore, until the job can step. `again`: where another node is lost."""
        if self._phase_or_strike(first, again, self._launch_agents):
            return
        if self._phase_or_strike("rendezvous", again, self._join):
            return
        self._phase_or_strike("restore", again, self._restore)

    def _phase_or_strike(self, name: str, again: str | None, act: Callable[[int], None]) -> bool:
        """One phase; whether it was cut short by another loss (the recovery is then complete already)."""
        end = self.now + self._some(PHASE_MS[name])
        if again != name:
            act(end)
            self._phase(name, end)
            return False
        if name == "rendezvous":
            self._start_workers(self.now + 1, end - 1)
            self._phase(name, end)
        else:  # of a restore: the workers are there, and are lost before they have restored anything
            self._phase(name, self.now + (end - self.now) // 2)
        self._lose_node_again()
        return True

    def _launch_agents(self, end: int) -> None:
        nodes = sorted(self.alive)
        for node, at in zip(nodes, self._spread(self.now, end, len(nodes)), strict=True):
            if not self.job.agents:
                continue
            if node not in self.agents:
                name = f"agent-{self._host(node)}-{self.pid}"
                self.agents[node] = self._writer(name, "agent", node, self._key(node) | {"host": self._host(node)})
                self.agents[node].log(self.now, "agent.started")
            self.agents[node].log(at, "agent.rendezvous", edge="begin")
        if not self.job.agents:
            self._start_workers(self.now, end)

    def _start_workers(self, begin: int, end: int) -> None:
        slots = [slot for node in sorted(self.alive) for slot in self._slots(node)]
        for rank, (slot, at) in enumerate(zip(slots, self._spread(begin, end, len(slots)), strict=True)):
            self.workers.append(self._worker(rank, slot, at, len(slots)))

    def _worker(self, rank: int, slot: tuple[str, int, int], at: int, size: int) -> _Worker:
        """A process that starts now, and says so."""
        self.pid += 1
        node = int(slot[0][4:])
        identity = {"node": slot[0], "incarnation": slot[1], "host": self._host(node), "rank": rank}
        identity |= {"local_rank": slot[2], "world_size": size, "pid": self.pid}
        writer = self._writer(f"trainer-{slot[0]}.{slot[1]}-{rank}-{self.pid}", "trainer", node, identity)
        writer.header["at"] = at
        writer.log(at, "started")
        return _Worker(rank, slot, writer, at)

    def _join(self, end: int) -> None:
        if self.job.agents:
            middle = self.now + (end - self.now) // 2
            self._start_workers(self.now, middle)
        begin = max(worker.at for worker in self.workers)
        for worker, at in zip(self.workers, self._spread(begin, end, len(self.workers)), strict=True):
            worker.writer.log(at, "rendezvous", world_size=len(self.workers))
            if self.job.mesh:
                worker.writer.log(at, "coordinates", axes=coordinates(Mesh(dict(self.job.mesh)), worker.rank))
            worker.at = at

    def _restore(self, end: int) -> None:
        source = f"checkpoints/step-{self.step}" if self.step else "scratch"
        for worker, at in zip(self.workers, self._spread(self.now, end, len(self.workers)), strict=True):
            worker.writer.log(at, "restored", step=self.step, source=source, fallback=[])
            worker.at = at
        self.ready = True

    def _train(self, steps: int) -> None:
        """So many complete steps, at most to the end of the job."""
        begin = None
        for _ in range(min(steps, self.job.steps - self.step)):
            ready = self.ready
            end = self._one_step()
            if begin is None:
                if ready:
                    self._phase("first_step", end)
                begin = self.now
                self._note_first(end)
            regained = self.open is not None and self.step > self.furthest
            self._phase("recompute" if self.open else "running", end)
            self.now = end
            if regained:
                self._close(end)
            self.furthest = max(self.furthest, self.step)
        if begin is not None:
            self.truth.working.append((begin, self.now, frozenset(w.slot for w in self.workers)))

    def _one_step(self) -> int:
        self.step += 1
        self.ready = False
        stall = self.job.disk_ms * MS if self.step > 1 and self.step - 1 == self.saved else 0
        end = self.now + self._some(self.job.step_ms * self._weather()) + stall
        ends = self._spread(end - (end - self.now) // 8, end, len(self.workers))
        for worker, at in zip(self.workers, ends, strict=True):
            begin = worker.at + self.random.randrange(0, 3) * self.random.randrange(1, MS // 8)
            room = at - begin
            data_ns, checkpoint_ns = (self.random.randrange(room // 20) for _ in range(2))
            checkpoint_ns = min(checkpoint_ns + stall, room - data_ns)
            digest = hashlib.sha256(f"batch {self.step}".encode()).hexdigest()[:16]
            worker.writer.log(
                at,
                "step",
                step=self.step,
                begin_ns=begin,
                loss=loss_at(self.step),
                grad_norm=1 / self.step,
                lr=1e-3 * min(1.0, self.step / 10),
                digest=digest,
                first=(self.step - 1) * self.job.batch,
                count=self.job.batch,
                data_ns=data_ns,
                checkpoint_ns=checkpoint_ns,
                sync_ns=room // 10,
            )
            warm_up, worker.stepped = not worker.stepped, True
            world = len(self.workers)
            row = StepRow(worker.slot, self.step, begin, at, data_ns, checkpoint_ns, True, world, warm_up)
            self.pending.append(row)
            worker.at = at
        if self.step % self.job.every == 0:
            self._checkpoint(end, "periodic")
        return end

    def _weather(self) -> float:
        """How many times the usual this step takes."""
        if self.job.pauses and self.weather.random() < self.job.pauses:
            return 1 + 500 / self.job.step_ms
        return self.weather.uniform(1, 3) if self.job.noise and self.weather.random() < self.job.noise else 1.0

    def _checkpoint(self, at: int, kind: str) -> None:
        self.saved = self.step
        writer = self.workers[0].writer
        writer.log(at, "checkpoint.started", step=self.step, kind=kind)
        path = f"checkpoints/step-{self.step}"
        writer.log(at + 1, "checkpoint.committed", step=self.step, kind=kind, path=path, bytes=1, duration_ns=1)

    def _note_first(self, end: int) -> None:
        if self.open is not None and self.open["t_first"] is None:
            self.open["t_first"] = end

    def _close(self, end: int) -> None:
        assert self.open is not None
        phases: dict[str, int] = {}
        for name, lo, hi in self.truth.phases:
            amount = min(hi, end) - max(lo, self.open["t_stop"])
            if amount > 0:
                phases[name] = phases.get(name, 0) + amount
        faults = tuple(dict.fromkeys(self.open["faults"]))
        self.truth.episodes.append(TrueEpisode(self.open["t_stop"], self.open["t_first"], end, phases, faults))
        self.open = None

    # What goes wrong

    def _open(self, fault: str | None) -> None:
        if self.open is None:
            self.open = {"t_stop": self.now, "t_first": None, "faults": []}
        if fault:
            self.open["faults"].append(fault)

    def _inject(self, at: int, kind: str, targets: list[dict[str, Any]]) -> str:
        self.faults += 1
        name = f"fault{self.faults}"
        self.plan["faults"].append({"id": name, "fault": kind, "kills": True, "targets": []})
        self.harness.log(at, "fault.injected", fault=name, kind=kind, targets=targets, kills=True)
        self.harness.log(at + 1, "fault.effect", fault=name, measured=1, expected=1, unit="deaths", ok=True, detail="")
        return name

    def _roll_back(self, to: int) -> None:
        """State goes back to step `to`: what was executed beyond it is lost."""
        for row in self.pending:
            kept = row.step <= to
            self.truth.rows.append(row if kept else StepRow(**{**row.__dict__, "survives": False}))
        self.pending = [row for row in self.truth.rows if row.survives]
        self.truth.rows = [row for row in self.truth.rows if not row.survives]
        self.step = to

    def _strike(self, outage: Outage) -> None:
        """From the last complete step to the moment when the job is ready to step again."""
        if outage.kind == "rollback":
            self._back_without_restart()
            return
        victim = sorted(self.alive)[outage.victim % len(self.alive)]
        if outage.kind in ("shrink", "departure") and len(self.alive) == 1:
            return
        if outage.kind in ("replica", "departure"):
            self._in_process(victim, departs=outage.kind == "departure")
            return
        match outage.kind:
            case "notice":
                self._notice(victim)
            case "rank":
                self._kill_rank(victim, outage.torn)
            case "crash":
                self._crash(victim)
            case _:
                self._kill_node(victim, replaced=outage.kind == "node")
        self._roll_back(self.saved)
        self._come_back(outage.again)

    def _come_back(self, again: str | None) -> None:
        if set(range(self.job.nodes)) - self.alive and (self.lost_node is None or not self.alive):
            at = self.now + self._some(PHASE_MS["reschedule"])
            node = min(set(range(self.job.nodes)) - self.alive)
            self._phase("reschedule", at)
            self.incarnation[node] += 1
            self._allocate(node, at)
            assert self.open is not None
            self.open["faults"].append(self.lost_by[node])
            if self.lost_node is not None and self.lost_node[0] == node:
                missing = set(range(self.job.nodes)) - self.alive
                self.lost_node = (min(missing), self.lost_by[min(missing)]) if missing else None
        self._come_up("startup", again)

    def _exits(self, workers: Iterable[_Worker], begin: int, end: int, code: int) -> None:
        """These workers say so and are gone: one of them exactly at `begin`, the last one's exit seen at `end`."""
        workers = list(workers)
        said = self._spread(begin - 1, begin + (end - begin) // 2, len(workers))
        said[0] = begin
        seen = self._spread(begin + (end - begin) // 2, end, len(workers))
        for worker, at, gone in zip(workers, said, seen, strict=True):
            worker.writer.log(at, "exiting", code=code, reason="peer lost" if code else "drained", step=self.step)
            self._seen(worker, gone, code)
        if not self.job.agents and workers:  # nobody sees exits: they are gone when they say so
            workers[-1].writer.records[-1] = (end, workers[-1].writer.records[-1][1])

    def _seen(self, worker: _Worker, at: int, code: int) -> None:
        """The launcher of its node, if there is one, sees the worker end."""
        agent = self.agents.get(int(worker.slot[0][4:]))
        if agent is not None:
            pid = worker.writer.header["pid"]
            agent.log(at, "worker.exit", local_rank=worker.slot[2], rank=worker.rank, pid=pid, code=code)

    def _tear_down(self, workers: list[_Worker], code: int) -> None:
        end = self.now + self._some(PHASE_MS["teardown"])
        self._exits(workers, self.now, end, code)
        self._phase("teardown", end)
        self.workers = []

    def _kill_rank(self, node: int, torn: bool) -> None:
        t_stop = self.now
        struck = t_stop + self._some(PHASE_MS["interrupted_step"])
        victim = next(w for w in self.workers if w.slot[0] == f"node{node}")
        place = {"node": victim.slot[0], "incarnation": victim.slot[1], "rank": victim.rank}
        victim.writer.torn = torn
        self._open(self._inject(struck, "rank_kill", [place]))
        self._phase("interrupted_step", struck)
        noticed = struck + self._some(PHASE_MS["detect"])
        self._seen(victim, noticed, -9)
        peers = [w for w in self.workers if w is not victim]
        if peers or self.job.agents:
            self._phase("detect", noticed)
        if peers:
            self._tear_down(peers, 1)
        self.workers = []

    def _crash(self, node: int) -> None:
        struck = self.now + self._some(PHASE_MS["interrupted_step"])
        self._open(None)
        self._phase("interrupted_step", struck)
        self._tear_down(self.workers, 1)

    def _kill_node(self, node: int, replaced: bool) -> None:
        struck = self.now + self._some(PHASE_MS["interrupted_step"])
        fault = self._lose(node, struck)
        self._open(fault)
        self._phase("interrupted_step", struck)
        self._after_loss(node)
        if not replaced:
            self.lost_node = (node, fault)

    def _lose(self, node: int, at: int) -> str:
        fault = self.lost_by[node] = self._inject(at, "node_loss", [self._key(node) | {"rank": None}])
        self.harness.log(at, "process.exit", **self._key(node), code=-9)
        self._release(node, at, "lost")
        self.agents.pop(node, None)
        self.alive.discard(node)
        return fault

    def _after_loss(self, node: int) -> None:
        survivors = [w for w in self.workers if w.slot[0] != f"node{node}"]
        if survivors:
            self._phase("detect", self.now + self._some(PHASE_MS["detect"]))
            self._tear_down(survivors, 1)
        self.workers = []

    def _lose_node_again(self) -> None:
        """Another node goes while the job comes up. Only workers at work have to notice it."""
        node = sorted(self.alive)[-1]
        busy = [w for w in self.workers if w.slot[0] != f"node{node}"]
        assert self.open is not None
        self.open["faults"].append(self._lose(node, self.now))
        if busy:
            self._after_loss(node)
        elif self.workers:  # all the workers were on the lost node: there is nobody left to notice
            self.workers = []
        self._come_back(None)

    def _notice(self, node: int) -> None:
        """Steps go on after the notice was seen; then the job saves, exits, and the node is taken."""
        seen = self.now + 1
        fault = self.lost_by[node] = self._inject(self.now, "preemption", [self._key(node) | {"rank": None}])
        for worker in self.workers:
            worker.writer.log(seen, "notice", source="ec2" if worker.slot[0] == f"node{node}" else "peer")
        self._train(1)
        if self.open is not None:
            self.open["faults"].append(fault)
        self._open(fault)
        self._checkpoint(self.now, "emergency")
        drained = self.now + self._some(PHASE_MS["drain"])
        end = drained + self._some(PHASE_MS["teardown"])
        for worker, at in zip(self.workers, self._spread(self.now + 2, drained, len(self.workers)), strict=True):
            worker.writer.log(at, "exiting", code=75, reason="drained", step=self.step)
        for worker, at in zip(self.workers, self._spread(drained, end, len(self.workers)), strict=True):
            self._seen(worker, at, 75)
        self._phase("drain", drained)
        if self.job.agents:
            self._phase("teardown", end)
        taken = self.now + 5
        self.harness.log(taken, "fault.taking", fault=fault, node=f"node{node}")
        self.harness.log(taken, "process.exit", **self._key(node), code=-9)
        self._release(node, taken, "reclaimed")
        self.agents.pop(node, None)
        self.alive.discard(node)
        self.workers = []

    def _back_without_restart(self) -> None:
        self._open(None)
        noticed = self.now + self._some(PHASE_MS["interrupted_step"])
        self.workers[0].writer.log(noticed, "anomaly", kind="nonfinite", detail="loss is not a number")
        self._phase("interrupted_step", noticed)
        self._roll_back((self.step - 1) // self.job.every * self.job.every)  # a step is lost, or nothing happened
        self.saved = self.step
        end = self.now + self._some(PHASE_MS["restore"])
        self._restore(end)
        self._phase("restore", end)

    def _in_process(self, node: int, departs: bool) -> None:
        """Nothing is rolled back: the survivors hold the state of the last complete step."""
        struck = self.now + self._some(PHASE_MS["interrupted_step"])
        lost = [worker for worker in self.workers if worker.slot[0] == f"node{node}"]
        lost = lost if departs else lost[:1]
        place = {"node": lost[0].slot[0], "incarnation": lost[0].slot[1], "rank": lost[0].rank}
        self._open(self._lose(node, struck) if departs else self._inject(struck, "rank_kill", [place]))
        self._phase("interrupted_step", struck)
        noticed = struck + self._some(PHASE_MS["detect"])
        if not departs:
            self._seen(lost[0], noticed, -9)
        self._phase("detect", noticed)
        survivors = [worker for worker in self.workers if worker not in lost]
        self._phase("startup", self.now + self._some(PHASE_MS["startup"]))
        new = [] if departs else [self._worker(lost[0].rank, lost[0].slot, self.now, len(self.workers))]
        self.workers = sorted([*survivors, *new], key=lambda worker: worker.rank)
        end = self.now + self._some(PHASE_MS["rendezvous"])
        for worker, at in zip(self.workers, self._spread(self.now, end, len(self.workers)), strict=True):
            worker.writer.log(at, "rendezvous", world_size=len(self.workers))
            worker.at = end
        self._phase("rendezvous", end)
        end = self.now + self._some(PHASE_MS["restore"])
        for worker in new:
            worker.writer.log(end, "restored", step=self.step, source="peer", fallback=[])
        for worker in self.workers:
            worker.at = end
        self._phase("restore", end)
        self.ready = True

    def _grow_back(self) -> None:
        """The lost node is back: the job is stopped, from its newest checkpoint on it is whole again."""
        if self.lost_node is None or self.step >= self.job.steps - 1:
            return
        node, fault = self.lost_node
        self.lost_node = None
        self.incarnation[node] += 1
        self._allocate(node, self.now)
        self._open(fault)
        self._phase("interrupted_step", self.now + self._some(PHASE_MS["interrupted_step"]))
        self._tear_down(self.workers, -15)
        self._roll_back(self.saved)
        self._come_back(None)

    def _finish(self) -> None:
        end = self.now + self._some(100)
        for worker in self.workers:
            worker.writer.log(self.now + 1, "exiting", code=0, reason="completed", step=self.step)
        for node in sorted(self.alive):
            self.harness.log(end - 2, "process.exit", **self._key(node), code=0)
            self._release(node, end - 1, "completed")
        for number in range(self.faults):
            self.harness.log(end - 1, "fault.healed", fault=f"fault{number + 1}")
        self.harness.log(end, "run.finished", outcome="completed", reason="every node's command ended with 0")
        self._phase("finish", end)
        self.truth.rows += self.pending
        self.truth.end = end


def loss_at(step: int) -> float:
    return 2.1 + 3.4 * math.exp(-step / 60) + 0.05 * math.sin(step * 1.7)


def coordinates(mesh: Mesh, rank: int) -> list[dict[str, Any]]:
    return [{"axis": axis, "index": index, "size": mesh.sizes[axis]} for axis, index in mesh.of(rank).items()]


def simulate(job: Job, outages: Iterable[Outage] = (), seed: int = 0) -> History:
    return _Simulation(job, list(outages), seed).run()
