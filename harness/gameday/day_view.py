"""Makes the data for the live page of a game day. Functions that take a `Director` run in the thread of the job, and
need no locks. The data contain texts that the trainer wrote, so every display must escape HTML markup."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from harness.faults.contract import TakesNodes
from harness.gameday.outage_phases import phase_now, phases_of
from harness.gameday.starts_and_stops import Director, News
from harness.gameday.steady import step_times_ns
from harness.report.words import gpu_seconds
from harness.run.injection import LiveJob
from harness.run.live_progress import LiveProgress
from harness.run.observers import Status

RANKS_LISTED_MAX = 64
EXTREMES = 8
FEED_MAX = 60
PACE_STEPS = 20
STANDING_TIMES = 5  # usual steps without a step from which a job stands still
STANDING_NS_MIN = 2 * 10**9
OVER = ("over", "stopped", "skipped")
_PREPARING = {"training": "running", "starting": "startup"}
_STOP_OR_LIFT = re.compile(r"([^:]*): (stop|lift)(:|$)")


@dataclass(frozen=True)
class RankView:
    rank: int
    node: str
    step: int
    step_ms: float | None  # length of its newest step; none while it stands still
    idle_s: float | None = None  # time since its newest step; none before the first of this process
    standing: bool = False


@dataclass(frozen=True)
class RanksView:
    """The state of the job's ranks on the live page. `listed` holds all ranks or, if the job has more than 64 ranks,
    the eight slowest ones."""

    count: int
    listed: Sequence[RankView]
    whole: bool
    step: Sequence[float] = ()  # lowest, median and highest step
    step_ms: Sequence[float] = ()


@dataclass(frozen=True)
class FaultView:
    id: str
    what: str
    moment: str  # waiting, or waiting: why · acting · injected · effect · recovered · healed
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
    state: str  # next · now · over · stopped · skipped
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
    saying: str  # sentence on the state
    phase: str  # phase in the report's words, if it has one
    step: int
    furthest_step: int
    steps: int | None
    loss: float | None
    steps_go: bool  # the job does steps
    scenes: Sequence[SceneView]
    blocked: bool = False
    outcome: str = ""
    committed_step: int = 0
    idle_s: float = 0.0  # time since the last step
    standing: bool = False  # the job stands still
    ranks: RanksView = RanksView(0, [], True)
    at_work: int = 0  # number of faults at work
    outage: Sequence[tuple[str, float]] = ()  # (phase, seconds) of the current outage
    outage_open: bool = False
    wasted: str = ""  # waste by faults so far; for participants all waste; empty: not known yet
    wasted_words: str = ""  # the sort of waste, and its total
    wasted_in_all: str = ""  # with the waste of the job's own start
    counted_s: float | None = None  # age of the ledger; none: it is the report's
    budget: Sequence[tuple[str, float]] = ()  # (limit in words, spent share)
    steps_per_s: float | None = None
    feed: Sequence[NewsView] = ()
    nodes: Sequence[str] = ()
    fault_free: bool = False  # a fault-free run shows the losses
    job_over: bool = False
    verdict: str = ""  # verdict of the day; empty: not judged yet
    report: str = ""  # path of the report


def view_of(director: Director, job: LiveJob, begin_ns: int, now_ns: int) -> DayView:
    progress, plan = job.progress, director.day.job
    idle_ns = now_ns - progress.last_step_ns if progress.last_step_ns else 0
    standing = idle_ns > standing_ns(progress)
    took = step_times_ns(progress)[-PACE_STEPS:]
    scenes = [_scene(director, number) for number in range(len(director.day.scenes))]
    view = DayView(
        run_id=plan.run_id,
        title=director.day.title,
        role="master",
        elapsed_s=(now_ns - begin_ns) / 1e9,
        state=director.state,
        saying=_saying(director, begin_ns),
        blocked=director.blocked,
        outcome=director.outcome,
        phase=phase_now(progress, standing),
        step=progress.complete_step,
        furthest_step=progress.furthest_step,
        steps=plan.workload.steps,
        loss=progress.loss,
        committed_step=progress.committed_step,
        idle_s=idle_ns / 1e9,
        standing=standing,
        steps_go=progress.phase == "training" and not standing,
        ranks=ranks_view(progress, now_ns),
        scenes=scenes,
        at_work=sum(fault.at_work for scene in scenes for act in scene.acts for fault in act.faults),
        outage=_outage(director, job),
        outage_open=director.course.outage_open,
        steps_per_s=None if standing or not took else 1e9 / max(statistics.median(took), 1),
        feed=_newest(director.feed, begin_ns),
        nodes=[node.name for node in job.cluster.nodes],
        fault_free=director.day.fault_free,
    )
    return _with_books(view, director, now_ns)


def _with_books(view: DayView, director: Director, now_ns: int) -> DayView:
    booked, asked_ns = director.books.newest, director.books.asked_ns
    if booked is None:
        return view
    price = "" if booked.dollars is None else f" · ${booked.dollars:,.2f}"
    spent = booked.spent(director.day.budget, director.day.job.workload.world_size)
    counted_s = (now_ns - asked_ns) / 1e9 if asked_ns else None
    view = replace(view, wasted=booked.caused, wasted_words=f"by faults; in all {booked.words}{price}")
    return replace(view, wasted_in_all=gpu_seconds(booked.wasted), counted_s=counted_s, budget=spent)


def before(director: Director, status: Status, elapsed_s: float) -> DayView:
    day = director.day
    steps = f" of {status.steps:,}" if status.steps is not None else ""
    scenes = [replace(_scene(director, number), state="next") for number in range(len(day.scenes))]
    return DayView(
        run_id=day.job.run_id,
        title=day.title,
        role="master",
        elapsed_s=elapsed_s,
        state="preparing",
        saying=f"First the same job runs without a fault: step {status.step:,}{steps}. The day begins after it.",
        phase=_PREPARING.get(status.phase, status.phase),
        step=status.step,
        furthest_step=status.step,
        steps=status.steps,
        loss=status.loss,
        steps_go=status.phase == "training",
        scenes=scenes,
    )


def ended(view: DayView, verdict: str = "", why: str = "", report: str = "") -> DayView:
    saying = f"The day is over: {verdict}. {why}" if verdict else "The job is over. The day is being judged."
    return replace(view, state="over", saying=saying.strip(), job_over=True, verdict=verdict, report=report)


def standing_ns(progress: LiveProgress) -> float:
    """Returns after how many nanoseconds without a step the job, or a rank, counts as standing still."""
    took = step_times_ns(progress)[-50:]
    return max(STANDING_TIMES * statistics.median(took) if took else 0, STANDING_NS_MIN)


def _outage(director: Director, job: LiveJob) -> list[tuple[str, float]]:
    spans = director.course.outage
    if not spans:
        return []
    acted = [each for each in job.firings.values() if each.moments_ns.get("injected", 0) >= spans[0].begin_ns - 10**9]
    recovered = [each.moments_ns["recovered"] for each in acted if "recovered" in each.moments_ns]
    taken = any(isinstance(each.planned.action, TakesNodes) for each in acted)
    return phases_of(spans, max(recovered) if recovered and len(recovered) == len(acted) else None, taken)


def for_role(view: DayView, role: str, feed: Sequence[NewsView]) -> DayView:
    """Returns the live page's data that a role may see. `feed` holds the news lines for participants. Participants see
    only past entries of the plan, and not the plan's title, because they must find the problem by themselves."""
    if role != "participant":
        return replace(view, role=role)
    over = [scene for scene in view.scenes if scene.state in OVER]
    state = view.state if view.state in ("preparing", "paused", "over") else "going"
    watched = state == "going" and not view.blocked
    return replace(
        view,
        role=role,
        title=view.title if view.job_over else "Game day",
        state=state,
        saying="The job is watched. Say when you see that something is wrong." if watched else view.saying,
        scenes=over,
        at_work=0,
        outage=(),
        outage_open=False,
        wasted=view.wasted if view.job_over else view.wasted_in_all,
        wasted_words="in all by the ledger so far" if view.wasted and not view.job_over else view.wasted_words,
        feed=feed,
    )


def feed_for_participants(feed: Iterable[News], begin_ns: int) -> list[NewsView]:
    """Returns alerts and people's actions, but not the game master's actions, which would reveal the faults."""
    shown = [each for each in feed if each.kind == "alert" or (each.kind == "person" and each.role != "master")]
    return _newest(shown, begin_ns)


def _newest(feed: Iterable[News], begin_ns: int) -> list[NewsView]:
    newest = list(feed)[-FEED_MAX:][::-1]
    return [NewsView((each.at_ns - begin_ns) / 1e9, each.kind, each.text) for each in newest]


def _saying(director: Director, begin_ns: int) -> str:
    if director.blocked and director.state != "over":
        stopped = _who_stopped(director.feed, begin_ns)
        return f"Stopped by {stopped}: nothing is injected until the game master lifts it. The job goes on."
    scene = director.current
    words = {
        "steadying": f"Waiting until the job is steady: {director.lacks or 'it is'}.",
        "asking": "Asking the probes that must hold before.",
        "acting": f"Rehearsing: {scene.what if scene else ''}.",
        "closing": "Asking the probes that must hold after.",
        "paused": scene.what if scene else "",
        "resting": f"Resting until the job is steady again: {director.lacks or 'it is'}.",
        "over": _over(director),
    }
    return words[director.state]


def _over(director: Director) -> str:
    told = f": {director.why}" if director.why else ""
    if director.day.when_done == "wait":
        return f"The schedule is over{told}. The job goes on to its end."
    lacks = f" ({director.lacks})" if director.lacks else ""
    return f"The schedule is over{told}. The job is ended as soon as it is steady again{lacks}."


def _who_stopped(feed: Iterable[News], begin_ns: int) -> str:
    told = "a person"
    for each in reversed(list(feed)):
        found = _STOP_OR_LIFT.match(each.text) if each.kind == "person" else None
        if found and found[2] == "lift":
            break
        if found:
            who = {"master": "the game master", "participant": "a participant"}.get(found[1], found[1])
            at_s = (each.at_ns - begin_ns) // 10**9
            told = f"{who} at {at_s // 60}:{at_s % 60:02d}"
    return told


def _scene(director: Director, number: int) -> SceneView:
    scene = director.day.scenes[number]
    books = {act.name: act.runbook or "" for act in scene.acts}
    acts = []
    for rehearsal in [cue.rehearsal for cue in director.cues if cue.scene == number]:
        state = "over" if rehearsal.over else "now" if rehearsal.going else "next"
        faults = []
        for firing in rehearsal.firings.values():
            waiting = f"waiting: {firing.held_back}" if firing.held_back else "waiting"
            moment = firing.newest_moment if firing.fired else waiting
            at_work = "injected" in firing.moments_ns and firing.over_ns() is None
            faults.append(FaultView(firing.planned.id, firing.planned.in_words(), moment, at_work))
        acts.append(ActView(rehearsal.name, state, rehearsal.outcome, books[rehearsal.name], faults))
    return SceneView(scene.kind, scene.what, _scene_state(director, number, acts), acts)


def _scene_state(director: Director, number: int, acts: Sequence[ActView]) -> str:
    day_over = director.state == "over"
    if number == director.scene:
        return "stopped" if day_over else "now"  # the schedule ended in the middle of it
    if number > director.scene:
        return "skipped" if day_over else "next"
    outcomes = {act.outcome for act in acts}
    return next((each for each in ("stopped", "skipped") if each in outcomes), "over")


def ranks_view(progress: LiveProgress, now_ns: int) -> RanksView:
    limit_ns = standing_ns(progress)
    ranks = [_rank(progress, rank, now_ns, limit_ns) for rank in sorted(progress.workers)]
    whole = len(ranks) <= RANKS_LISTED_MAX
    steps = _extremes([each.step for each in ranks])
    times = _extremes([each.step_ms for each in ranks if each.step_ms is not None])
    listed = ranks if whole else sorted(ranks, key=lambda each: (each.step, -(each.step_ms or 0)))[:EXTREMES]
    return RanksView(len(ranks), listed, whole, steps, times)


def _rank(progress: LiveProgress, rank: int, now_ns: int, limit_ns: float) -> RankView:
    worker, times = progress.workers[rank], progress.step_times.get(rank)
    idle_ns = now_ns - worker.seen_ns if worker.seen_ns else None
    standing = idle_ns is not None and idle_ns > limit_ns
    going = idle_ns is not None and not standing
    step_ms = times[-1][1] / 1e6 if times and going else None
    return RankView(rank, worker.node, worker.last_step, step_ms, None if idle_ns is None else idle_ns / 1e9, standing)


def _extremes(values: Sequence[float]) -> list[float]:
    return [min(values), statistics.median_low(values), max(values)] if values else []
