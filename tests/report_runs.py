"""Runs made by hand, so that reports can be tested (and looked at) without launching anything.

`simulate` plays a little data-parallel job: equal steps, outages at given steps, a rollback to the last
checkpoint, and the same arithmetic for the ledger that a real run would give.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from harness.judge.facts.analysis import Analysis
from harness.judge.score import Expectation, Scorecard
from harness.judge.verdict import Verdict
from harness.log.consequences import May
from harness.timeline.timeline import Episode, FaultRecord, Process, Segment, Slot, Steps, Timeline

S = 10**9
MS = 10**6
OUTAGE_MS = {
    "interrupted_step": 31,
    "detect": 240,
    "drain": 180,
    "teardown": 90,
    "reschedule": 1900,
    "startup": 1250,
    "rendezvous": 330,
    "restore": 140,
    "first_step": 95,
}


@dataclass(frozen=True)
class Outage:
    """Progress stops after `step` steps, because of `fault`, and comes back from `restored_step`."""

    step: int
    restored_step: int
    fault: str = "evict"
    rank: int = 1
    phases_ms: dict[str, int] = field(default_factory=lambda: dict(OUTAGE_MS))
    forever: bool = False


@dataclass
class _Job:
    """What the simulation has gathered so far."""

    ranks: int
    now: int
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    episodes: list[Episode] = field(default_factory=list)
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    exits: list[dict[str, Any]] = field(default_factory=list)
    life: int = 0


def loss_at(step: int, seed: int = 7) -> float:
    wobble = math.sin(step * 1.7 + seed) * 0.05 + math.sin(step * 0.61) * 0.04
    return 2.1 + 3.4 * math.exp(-step / 60) + wobble


def simulate(
    *, ranks: int = 2, steps: int = 200, outages: Sequence[Outage] = (), step_ms: int = 48, every: int = 20
) -> Timeline:
    job = _Job(ranks, 5 * S)
    begin = job.now
    _phase(job, "startup", 1400)
    _phase(job, "rendezvous", 350)
    _phase(job, "restore", 20)
    _start(job, outage=None, begin=begin)
    at = 0
    finished = True
    for outage in outages:
        _run(job, at, outage.step, step_ms, every)
        at = _interrupt(job, outage, step_ms)
        finished = not outage.forever
    if finished:
        _run(job, at, steps, step_ms, every)
        _regain(job)
        _phase(job, "finish", 300)
    _end_processes(job, code=0 if finished else None)
    return _timeline(job, begin, outages, finished)


def _phase(job: _Job, name: str, milliseconds: int) -> None:
    segment = Segment(name, job.now, job.now + milliseconds * MS)
    job.now = segment.end
    last = job.segments[-1] if job.segments else None
    if last and last.phase == name:
        job.segments[-1] = Segment(name, last.begin, segment.end)
    else:
        job.segments.append(segment)


def _start(job: _Job, outage: Outage | None, begin: int) -> None:
    job.life += 1
    for rank in range(job.ranks):
        moved = outage is not None and rank == outage.rank
        node_life = job.life if moved else 1
        job.processes.append(
            Process(
                rank=rank,
                local_rank=0,
                node=f"node-{rank}",
                incarnation=node_life,
                pid=4000 + 10 * job.life + rank,
                world_size=job.ranks,
                launched=begin,
                started=begin + rank % 8 * 20 * MS,
                rendezvous=job.now - 40 * MS,
                restored=job.now,
                restored_step=outage.restored_step if outage else 0,
                source="checkpoints/step-000080" if outage else "scratch",
                fallback=(),
                last_seen=job.now,
                exited=None,
                exit_code=None,
                exit_reason=None,
            )
        )


def _end_processes(job: _Job, code: int | None) -> None:
    for index in range(len(job.processes)):
        process = job.processes[index]
        if process.exited is None:
            done = replace(process, last_seen=job.now, exited=job.now if code is not None else None)
            job.processes[index] = replace(done, exit_code=code, exit_reason="completed" if code == 0 else None)


def _run(job: _Job, first: int, last: int, step_ms: int, every: int) -> None:
    for step in range(first + 1, last + 1):
        lasts = int((step_ms + 6 * math.sin(step * 2.3)) * MS)
        begin, job.now = job.now, job.now + lasts
        for rank in range(job.ranks):
            process = len(job.processes) - job.ranks + rank
            job.rows.append((process, rank, step, begin, job.now - rank % 8 * MS // 4, loss_at(step)))
        if step % every == 0:
            saved = {
                "event": "checkpoint.committed",
                "at": job.now + 30 * MS,
                "rank": 0,
                "node": "node-0",
                "step": step,
            }
            saved |= {"kind": "periodic", "path": f"checkpoints/step-{step:06d}"}
            job.checkpoints.append(saved | {"bytes": 15_728_640, "duration_ns": 27 * MS})
        _extend_running(job, begin)
        _regain(job, step)


def _extend_running(job: _Job, begin: int) -> None:
    open_episode = job.episodes and job.episodes[-1].t_regained is None
    phase = "recompute" if open_episode else "running"
    last = job.segments[-1]
    if last.phase == phase:
        job.segments[-1] = Segment(phase, last.begin, job.now)
    else:
        job.segments.append(Segment(phase, begin, job.now))


def _regain(job: _Job, step: int | None = None) -> None:
    if not job.episodes or job.episodes[-1].t_regained is not None:
        return
    episode = job.episodes[-1]
    if step is not None and step <= episode.furthest_step:
        return
    inside = tuple(s for s in job.segments if s.begin >= episode.t_stop)
    job.episodes[-1] = replace(episode, t_regained=job.now, segments=inside)


def _interrupt(job: _Job, outage: Outage, step_ms: int) -> int:
    t_stop = job.now
    killed_at = t_stop + outage.phases_ms.get("interrupted_step", 0) * MS
    for index, process in enumerate(job.processes):
        if process.exited is None:
            victim = process.rank == outage.rank
            dies = killed_at + (0 if victim else 300 * MS)
            code, reason = (-9, None) if victim else (1, "error")
            job.processes[index] = replace(process, last_seen=dies, exited=dies, exit_code=code, exit_reason=reason)
            place = {"node": process.node, "incarnation": process.incarnation, "rank": process.rank}
            job.exits.append({"at": dies, "code": code} | place)
    for name, milliseconds in outage.phases_ms.items():
        if name == "startup":
            begin = job.now
        _phase(job, name, milliseconds)
    inside = tuple(s for s in job.segments if s.begin >= t_stop)
    t_first = None if outage.forever else job.now
    job.episodes.append(Episode(t_stop, t_first, None, outage.step, (outage.fault,), inside))
    if outage.forever:
        return outage.restored_step
    _start(job, outage, begin)
    return outage.restored_step


def _timeline(job: _Job, begin: int, outages: Sequence[Outage], finished: bool) -> Timeline:
    faults = [_fault(outage, episode) for outage, episode in zip(outages, job.episodes, strict=True)]
    return Timeline(
        plan={"scenario": {"name": "spot-evict"}, "seed": 7, "workload": {"nodes": job.ranks, "steps": 200}},
        environment={"host": "lab", "python": "3.11.2", "torch": "2.13.0", "cpu": {"model": "EPYC", "cores": 2}},
        begin=begin,
        end=job.now,
        outcome="completed" if finished else "aborted",
        outcome_reason="" if finished else "no step for 120 s",
        steps=_columns(job),
        processes=job.processes,
        slots=[Slot(p.node, p.incarnation, p.local_rank, p.started, p.exited or job.now) for p in job.processes],
        faults=faults,
        segments=job.segments,
        episodes=job.episodes,
        checkpoints=job.checkpoints,
        notices=[{"at": e.t_stop - 5 * S // 10, "rank": 1, "node": "node-1", "source": "ec2"} for e in job.episodes],
        anomalies=[],
        exits=job.exits,
        torn=[],
        dropped=0,
    )


def _fault(outage: Outage, episode: Episode) -> FaultRecord:
    injected = episode.t_stop + outage.phases_ms.get("interrupted_step", 0) * MS
    effect = {"measured": 1.0, "expected": 1.0, "unit": "nodes", "ok": True, "detail": "", "at": injected + 3 * MS}
    return FaultRecord(
        id=outage.fault,
        kind="preemption",
        may=frozenset({May.KILL}),
        targets=({"node": f"node-{outage.rank}", "incarnation": 1, "rank": None},),
        injected=injected,
        effects=(effect,),
        recovered=None if outage.forever else injected + 2 * S,
        healed=injected + 2 * S,
        error=None,
    )


def _columns(job: _Job) -> Steps:
    rows = sorted(job.rows, key=lambda row: row[4])
    table = np.array([row[:5] for row in rows], dtype=np.int64).reshape(-1, 5)
    losses = np.array([row[5] for row in rows], dtype=np.float64)
    process, rank, step, begin, end = (table[:, i] for i in range(5))
    told = table[:, :3].tolist()
    last_life = {(r, s): p for p, r, s in sorted(told)}
    survives = [last_life[r, s] == p for p, r, s in told]
    zeros, ones = np.zeros(len(rows), np.int64), np.ones(len(rows))
    return Steps(
        process=process,
        rank=rank,
        step=step,
        begin=begin,
        end=end,
        loss=losses,
        grad_norm=ones * 0.8,
        lr=ones * 3e-4,
        digest=step * 31,
        first=(step - 1) * 16,
        count=zeros + 16,
        data_ns=zeros + MS,
        checkpoint_ns=zeros,
        sync_ns=zeros + 5 * MS,
        applied=np.ones(len(rows), np.int8),
        survives=np.array(survives, dtype=np.bool_),
        epoch=zeros,
        complete=np.ones(len(rows), dtype=np.bool_),
    )


def with_losses(timeline: Timeline, change: Any) -> Timeline:
    """The same run with `change(step, loss)` as its losses."""
    losses = change(timeline.steps.step, timeline.steps.loss.copy())
    return replace(timeline, steps=replace(timeline.steps, loss=losses))


def ledger(timeline: Timeline, ranks: int) -> dict[str, float]:
    """GPU-seconds per account, from the phases of the whole job."""
    accounts: dict[str, float] = {}
    names = {"running": "productive", "finish": "idle", "interrupted_step": "recompute", "first_step": "productive"}
    for segment in timeline.segments:
        name = names.get(segment.phase, segment.phase)
        accounts[name] = accounts.get(name, 0.0) + ranks * (segment.end - segment.begin) / S
    return accounts


def bound(name: str, most: float, observed: float | None, shown: str, unit: str, kept: object) -> Expectation:
    verdict, shown = Verdict.PASS if kept else Verdict.FAIL, "never" if observed is None else shown
    return Expectation(
        name, f"{most} {unit}", shown, verdict, bound_value=float(most), observed_value=observed, unit=unit
    )


def scorecard(
    run: Timeline,
    fault_free: Timeline | None,
    *,
    verdict: Verdict = Verdict.PASS,
    reasons: Sequence[str] = (),
    ranks: int = 2,
    max_abs_diff: float | None = 0.0,
) -> Scorecard:
    episodes = [_episode_values(run, e) for e in run.episodes]
    longest = max(run.episodes, key=lambda e: e.end - e.t_stop, default=None)
    accounts = ledger(run, ranks)
    allocated = sum(accounts.values())
    wasted = allocated - accounts.get("productive", 0.0)
    by_faults = sum(ranks * (e.end - e.t_stop) / S for e in run.episodes)
    first = (longest.t_first - longest.t_stop) / S if longest and longest.t_first else None
    recovery = (longest.t_regained - longest.t_stop) / S if longest and longest.t_regained else None
    percent = 100 * by_faults / allocated if allocated else 0.0
    return Scorecard(
        run_id="2026-03-04-101112-spot-evict-7",
        scenario="spot-evict",
        title="A spot node is reclaimed with a short notice and a replacement arrives",
        backend="local",
        seed=7,
        verdict=verdict,
        reasons=reasons
        or [f"recovered in {recovery or 0:.2f} s, {percent:.1f} % wasted by faults, losses equal bit for bit"],
        faults=[_fault_values(f, run.begin) for f in run.faults],
        scores={
            "recovery_time": {
                "seconds": recovery,
                "first_step_seconds": first,
                "phases": episodes[0]["phases"] if episodes else {},
                "episodes": episodes,
            },
            "wasted_gpu_hours": {
                "gpu_seconds_allocated": allocated,
                "gpu_seconds_wasted": wasted,
                "percent": 100 * wasted / allocated if allocated else 0.0,
                "percent_by_faults": percent,
                "accounts": accounts,
            },
            "loss_continuity": {
                "mode": "exact",
                "max_abs_diff": max_abs_diff,
                "first_divergent_step": None if not max_abs_diff else 6481,
                "samples_repeated": 0,
                "samples_skipped": 0,
            },
        },
        metrics={"step_seconds_p50": 0.048, "step_seconds_p95": 0.054, "resume_success_percent": 100.0},
        expectations=[
            bound("recovery_time.max", 60, recovery, f"{recovery or 0:.2f} s", "s", recovery or not run.episodes),
            bound("wasted_gpu_hours.max_percent_by_faults", 25, percent, f"{percent:.1f} %", "%", percent <= 25),
            Expectation("loss_continuity.mode", "exact", "differs", Verdict.FAIL)
            if max_abs_diff
            else Expectation("loss_continuity.mode", "exact", "exact", Verdict.PASS),
        ],
        environment=run.environment,
        evidence=Analysis(run, fault_free),
    )


def _episode_values(run: Timeline, episode: Episode) -> dict[str, Any]:
    phases: dict[str, float] = {}
    for segment in episode.segments:
        phases[segment.phase] = phases.get(segment.phase, 0.0) + (segment.end - segment.begin) / S
    regained = episode.t_regained
    return {
        "t_stop": (episode.t_stop - run.begin) / S,
        "furthest_step": episode.furthest_step,
        "seconds": (regained - episode.t_stop) / S if regained else None,
        "first_step_seconds": (episode.t_first - episode.t_stop) / S if episode.t_first else None,
        "faults": list(episode.faults),
        "phases": phases,
    }


def _fault_values(fault: FaultRecord, begin: int) -> dict[str, Any]:
    effect = fault.effects[-1] if fault.effects else {}
    return {
        "id": fault.id,
        "kind": fault.kind,
        "target": [dict(target) for target in fault.targets],
        "t_injected": (fault.injected - begin) / S if fault.injected is not None else None,
        "effect": {key: effect.get(key) for key in ("measured", "expected", "unit")},
        "healed": fault.healed is not None,
    }


def spot_evict() -> Scorecard:
    run = simulate(outages=[Outage(step=90, restored_step=80)], steps=300)
    return scorecard(run, simulate(steps=300))


def double_evict() -> Scorecard:
    outages = [Outage(90, 80, "evict"), Outage(140, 120, "again", rank=0)]
    run = simulate(outages=outages, ranks=4, steps=900)
    return scorecard(run, simulate(ranks=4, steps=900), ranks=4)


def never_recovered() -> Scorecard:
    stuck = {name: OUTAGE_MS[name] for name in ("interrupted_step", "detect", "teardown", "reschedule")}
    stuck |= {"startup": 900, "rendezvous": 30_000}
    run = simulate(outages=[Outage(90, 80, phases_ms=stuck, forever=True)])
    reason = "recovery_time: never recovered, at the end in rendezvous for 30.0 s (allowed 60 s)"
    return scorecard(run, simulate(), verdict=Verdict.FAIL, reasons=[reason, "loss_continuity: 110 steps are missing"])


def thousand_ranks() -> Scorecard:
    """1,000 ranks, a straggler, and a node that is lost."""
    run = simulate(ranks=1000, steps=60, outages=[Outage(step=33, restored_step=20, rank=617)])
    return scorecard(run, None, ranks=1000)


def long_run() -> Scorecard:
    """10,000 steps, losses that differ after the first fault, and some that are not numbers."""
    outages = [Outage(3000, 2980, "first"), Outage(6500, 6480, "second", rank=0), Outage(6530, 6480, "third")]
    steps = simulate(steps=10_000, outages=outages)

    def change(step: Any, losses: Any) -> Any:
        losses[step > 6480] *= 1 + 1e-6 * (step[step > 6480] - 6480)
        losses[(step > 8000) & (step < 8040)] = math.nan
        return losses

    run = with_losses(steps, change)
    return scorecard(
        run, simulate(steps=10_000), verdict=Verdict.FAIL, reasons=["losses differ from step 6481"], max_abs_diff=0.0074
    )


def empty(verdict: Verdict = Verdict.INVALID) -> Scorecard:
    """The trainer never did a step."""
    run = replace(simulate(steps=0), outcome="failed", outcome_reason="trainer exited with code 1 at start")
    return scorecard(run, None, verdict=verdict, reasons=["fault evict never acted: the run ended before step 90"])


def no_outage() -> Scorecard:
    """A run without any fault, and nothing to compare it with."""
    card = scorecard(
        simulate(steps=40, ranks=1), None, verdict=Verdict.INCONCLUSIVE, reasons=["there is no fault-free run"], ranks=1
    )
    return replace(card, expectations=[])


def hostile() -> Scorecard:
    """Names and reasons that try to be markup."""
    evil = '<script>alert("x")</script>|`*_\x1b[31m\u202e\x9b2J[red]'
    card = spot_evict()
    run = card.evidence.run
    run = replace(
        run,
        plan={"scenario": {"name": evil}},
        processes=[replace(p, node=evil, source=evil, exit_reason=evil) for p in run.processes],
        faults=[replace(f, id=evil, kind=evil, error=evil) for f in run.faults],
        notices=[{"at": run.begin, "node": evil, "source": evil}],
        anomalies=[{"at": run.begin, "kind": evil, "detail": evil}],
        problems=[evil],
        torn=[evil],
    )
    return replace(
        card,
        run_id=evil,
        scenario=evil,
        title=evil,
        backend=evil,
        reasons=[evil, evil],
        environment={evil: evil},
        faults=[{"id": evil, "kind": evil, "target": [{"node": evil}], "effect": {"measured": evil, "unit": evil}}],
        metrics={evil: evil},
        expectations=[Expectation(evil, evil, evil, Verdict.FAIL, evil)],
        evidence=replace(card.evidence, run=run),
    )
