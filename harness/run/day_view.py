"""A game day as it is now, for a live page: plain data, made in the job's loop, so that no lock is needed.

Words of a trainer are in it (phases, names): whoever shows it escapes them.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from harness.run.director import Cue, Director, News
from harness.run.injection import LiveJob
from harness.run.trigger import Firing, LiveProgress

RANKS_LISTED_MAX = 64
EXTREMES = 8
FEED_MAX = 60


@dataclass(frozen=True)
class RankView:
    rank: int
    node: str
    step: int
    step_ms: float | None


@dataclass(frozen=True)
class RanksView:
    """Up to 64 are all `listed`; of more, the slowest ones, beside what holds for all."""

    count: int
    listed: Sequence[RankView]
    whole: bool
    step: Sequence[float] = ()  # lowest, median, highest
    step_ms: Sequence[float] = ()


@dataclass(frozen=True)
class FaultView:
    id: str
    what: str
    moment: str  # waiting · acting · injected · effect · recovered · healed
    at_work: bool


@dataclass(frozen=True)
class ActView:
    name: str
    state: str  # next · now · over
    outcome: str
    runbook: str
    faults: Sequence[FaultView] = ()


@dataclass(frozen=True)
class SceneView:
    kind: str
    what: str
    state: str  # next · now · over
    acts: Sequence[ActView] = ()


@dataclass(frozen=True)
class NewsView:
    at_s: float
    kind: str
    text: str


@dataclass(frozen=True)
class DayView:
    run_id: str
    title: str
    role: str
    elapsed_s: float
    state: str
    saying: str  # the state in a sentence
    blocked: bool
    outcome: str
    phase: str
    step: int
    steps: int | None
    loss: float | None
    committed_step: int
    idle_s: float  # since the last step
    ranks: RanksView
    scenes: Sequence[SceneView]
    at_work: int  # faults
    outage: Sequence[tuple[str, float]]  # phase, seconds
    outage_open: bool
    wasted_gpu_s: float
    wasted_percent: float
    wasted_dollars: float | None
    feed: Sequence[NewsView]
    nodes: Sequence[str]


def view_of(director: Director, job: LiveJob, begin_ns: int, now_ns: int) -> DayView:
    """All of it, as the game master sees it."""
    progress, plan, waste = job.progress, director.day.job, director.waste
    gpu_s = waste.gpu_seconds(progress, now_ns) if waste else 0.0
    price = plan.scenario.price_per_gpu_hour
    scenes = [_scene(director, number) for number in range(len(director.day.scenes))]
    return DayView(
        run_id=plan.run_id,
        title=director.day.title,
        role="master",
        elapsed_s=(now_ns - begin_ns) / 1e9,
        state=director.state,
        saying=_saying(director),
        blocked=director.blocked,
        outcome=director.outcome,
        phase=progress.phase,
        step=progress.complete_step,
        steps=plan.workload.steps,
        loss=progress.loss,
        committed_step=progress.committed_step,
        idle_s=(now_ns - progress.last_step_ns) / 1e9 if progress.last_step_ns else 0.0,
        ranks=ranks_view(progress),
        scenes=scenes,
        at_work=sum(fault.at_work for scene in scenes for act in scene.acts for fault in act.faults),
        outage=[(span.phase, (span.end_ns - span.begin_ns) / 1e9) for span in director.course.outage],
        outage_open=director.course.outage_open,
        wasted_gpu_s=gpu_s,
        wasted_percent=waste.percent(progress, now_ns) if waste else 0.0,
        wasted_dollars=None if price is None else gpu_s / 3600 * price,
        feed=[NewsView((each.at_ns - begin_ns) / 1e9, each.kind, each.text) for each in _newest(director.feed)],
        nodes=[node.name for node in job.cluster.nodes],
    )


def for_role(view: DayView, role: str, feed: Sequence[NewsView]) -> DayView:
    """What a role may see. Participants must find out by themselves what is wrong: they see neither what comes next nor
    what acts now, only what is over. `feed`: the lines that they may see."""
    if role != "participant":
        return replace(view, role=role)
    over = [scene for scene in view.scenes if scene.state == "over"]
    state = view.state if view.state in ("paused", "over") else "going"
    sayings = {"paused": view.saying, "over": "The schedule is over; the job goes on to its end."}
    return replace(
        view,
        role=role,
        state=state,
        saying=sayings.get(state, "The job is watched. Say when you see that something is wrong."),
        scenes=over,
        at_work=0,
        outage=(),
        outage_open=False,
        feed=feed,
    )


def feed_for_participants(feed: Iterable[News], begin_ns: int) -> list[NewsView]:
    """Their own lines and alerts; what the game master did would tell them."""
    shown = [each for each in feed if each.kind == "alert" or (each.kind == "person" and each.role != "master")]
    return [NewsView((each.at_ns - begin_ns) / 1e9, each.kind, each.text) for each in _newest(shown)]


def _newest(feed: Iterable[News]) -> list[News]:
    return list(feed)[-FEED_MAX:][::-1]


def _saying(director: Director) -> str:
    if director.blocked:
        return "Stopped by a person: nothing is injected until it is lifted. The job goes on."
    scene = director.current
    words = {
        "steadying": f"Waiting until the job is steady: {director.lacks or 'it is'}.",
        "asking": "Asking the probes that must hold before.",
        "acting": f"Rehearsing: {scene.what if scene else ''}.",
        "closing": "Asking the probes that must hold after.",
        "paused": scene.what if scene else "",
        "resting": f"Resting until the job is steady again: {director.lacks or 'it is'}.",
        "over": "The schedule is over; the job goes on to its end.",
    }
    return words[director.state]


def _scene(director: Director, number: int) -> SceneView:
    scene = director.day.scenes[number]
    cues = [cue for cue in director.cues if cue.scene == number]
    over = director.state == "over" or number < director.scene
    state = "over" if over else "now" if number == director.scene else "next"
    books = {act.name: act.runbook or "" for act in scene.acts}
    return SceneView(scene.kind, scene.what, state, [_act(cue, books[cue.rehearsal.name]) for cue in cues])


def _act(cue: Cue, runbook: str) -> ActView:
    rehearsal = cue.rehearsal
    state = "over" if rehearsal.over else "now" if rehearsal.going else "next"
    faults = [_fault(firing) for firing in rehearsal.firings.values()]
    return ActView(rehearsal.name, state, rehearsal.outcome, runbook, faults)


def _fault(firing: Firing) -> FaultView:
    moment = firing.newest_moment if firing.fired else "waiting"
    at_work = "injected" in firing.moments_ns and firing.over_ns() is None
    return FaultView(firing.planned.id, firing.planned.in_words(), moment, at_work)


def ranks_view(progress: LiveProgress) -> RanksView:
    ranks = [_rank(progress, rank) for rank in sorted(progress.workers)]
    whole = len(ranks) <= RANKS_LISTED_MAX
    times = [each.step_ms for each in ranks if each.step_ms is not None]
    listed = ranks if whole else sorted(ranks, key=lambda each: (each.step, -(each.step_ms or 0)))[:EXTREMES]
    return RanksView(
        count=len(ranks),
        listed=listed,
        whole=whole,
        step=_extremes([each.step for each in ranks]),
        step_ms=_extremes(times),
    )


def _rank(progress: LiveProgress, rank: int) -> RankView:
    worker, times = progress.workers[rank], progress.step_times.get(rank)
    return RankView(rank, worker.node, worker.last_step, times[-1][1] / 1e6 if times else None)


def _extremes(values: Sequence[float]) -> list[float]:
    return [min(values), statistics.median_low(values), max(values)] if values else []
