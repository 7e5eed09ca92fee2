"""Directs a game day on one job: begins rehearsals, does what people ask, and can end the day early.

The job's loop calls `Director.tick`, which never waits, many times a second. All events of the game day are written to
the job's event log, because the verdict on the day uses only this log."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from harness.gameday.books import STEADY, Books
from harness.gameday.day_plan import DayPlan, Scene
from harness.gameday.probes import Asking
from harness.gameday.requests import AlertNews, Ask, Desk
from harness.gameday.steady import Course, lacking
from harness.run.injection import LiveJob
from harness.run.rehearsal import Rehearsal

SHOWN_NS = 250_000_000
FEED_KEPT = 200
REFUSED = "nothing to {} now"
COMPLETED = "completed"
CUT = ("stopped", "skipped", "aborted")  # outcomes of rehearsals that were cut short


@dataclass
class Word:
    """The game day director's permission for one rehearsal to begin. `over` is True once the permission is given."""

    over: bool = False


@dataclass
class Cue:
    rehearsal: Rehearsal
    word: Word
    after_ns: int
    scene: int


@dataclass(frozen=True)
class News:
    at_ns: int
    kind: str  # person · alert · probe · day
    text: str
    role: str = ""


@dataclass
class Director:
    """Directs a game day on one job. Only the job's thread may change the fields of this object."""

    day: DayPlan
    desk: Desk = field(default_factory=Desk)
    state: str = "steadying"  # · asking · acting · closing · paused · resting · over
    scene: int = 0
    blocked: bool = False
    lacks: str = ""  # condition that the job lacks to be steady
    outcome: str = ""
    why: str = ""  # reason of the outcome
    done: str = ""  # reason for which the job may end now
    course: Course = field(default_factory=Course)
    books: Books = field(default_factory=Books)
    feed: deque[News] = field(default_factory=lambda: deque(maxlen=FEED_KEPT))
    watcher: Callable[[Director, LiveJob, int], None] | None = None  # callback that shows the day a few times a second

    def __post_init__(self) -> None:
        self.cues: list[Cue] = []
        for number, scene in enumerate(self.day.scenes):
            for act in scene.acts:
                word = Word()
                self.cues.append(Cue(Rehearsal(act.plan, act.name, follows=word), word, act.after_ns, number))
        self._shown_ns = 0
        self._since_ns = 0  # begin of this state
        self._begun_ns = 0  # time at which the first word of this scene was due
        self._questions = Asking(self.day.probes)

    @property
    def rehearsals(self) -> list[Rehearsal]:
        return [cue.rehearsal for cue in self.cues]

    @property
    def current(self) -> Scene | None:
        return self.day.scenes[self.scene] if self.scene < len(self.day.scenes) and self.state != "over" else None

    def begin(self, job: LiveJob, now_ns: int) -> None:
        job.emit("gameday.started", name=self.day.name, title=self.day.title, entries=len(self.day.scenes))
        self._enter(job, now_ns)

    def tick(self, job: LiveJob, now_ns: int) -> None:
        self.course.note(job.progress, self.day.steady.steps, now_ns)
        # A fault acts, or the job has not recovered from one.
        at_work = any("injected" in each.moments_ns and each.over_ns() is None for each in job.firings.values())
        missing = at_work and not all(node.alive for node in job.cluster.nodes)
        self.course.note_outage(job.progress, at_work, now_ns, missing)
        self._hear(job, now_ns)
        self._note_answers(job)
        if self.watcher and now_ns - self._shown_ns >= SHOWN_NS:
            self._shown_ns = now_ns
            self.watcher(self, job, now_ns)
        if self.state != "over":
            self._spend(job)
        step: Callable[[LiveJob, int], None] = getattr(self, f"_{self.state}")
        step(job, now_ns)

    def end(self, job: LiveJob) -> None:
        self._note_answers(job)
        while (asked := self.desk.take()) is not None:
            if isinstance(asked, Ask):
                asked.reply.set_result("the job is over")
        if self.state != "over":
            self._finish(job, "job_ended", f"the job ended during entry {self.scene + 1} of {len(self.day.scenes)}")

    # The states. Each one ends in another.

    def _enter(self, job: LiveJob, now_ns: int) -> None:
        scene = self.current
        if scene is None:
            cut = [
                f"{cue.rehearsal.name} was {cue.rehearsal.outcome}" for cue in self.cues if cue.rehearsal.outcome in CUT
            ]
            self._finish(job, COMPLETED, ", ".join(cut))
            return
        job.emit("gameday.entry", entry=self.scene, kind=scene.kind, edge="begin")
        states = {"pause": "paused", "rest": "resting"}
        self._go(states.get(scene.kind, "steadying"), now_ns)

    def _leave(self, job: LiveJob, now_ns: int, reason: str = "") -> None:
        scene = self.day.scenes[self.scene]
        job.emit("gameday.entry", entry=self.scene, kind=scene.kind, edge="end", reason=reason)
        self.scene += 1
        self._enter(job, now_ns)

    def _go(self, state: str, now_ns: int) -> None:
        self.state, self._since_ns = state, now_ns

    def _steadying(self, job: LiveJob, now_ns: int) -> None:
        if not self._is_steady(job, now_ns) or self.blocked:
            return
        job.emit(STEADY, ok=True, reason=f"{self.day.steady.steps} steps within the band")
        self._questions.ask_all("before", self._names())
        self._go("asking", now_ns)

    def _is_steady(self, job: LiveJob, now_ns: int) -> bool:
        self.lacks = lacking(self.day.steady, job.progress, self.course, self._since_ns, now_ns)
        within = self.day.steady.within
        if self.lacks and now_ns - self._since_ns > within.ns and not self.blocked:
            job.emit(STEADY, ok=False, reason=self.lacks)
            self._finish(job, "not_steady", f"the job was not steady within {within}: {self.lacks}")
        return not self.lacks

    def _asking(self, job: LiveJob, now_ns: int) -> None:
        if not self._questions.is_open("before") and not self.blocked:
            self._begun_ns = now_ns
            self._go("acting", now_ns)

    def _acting(self, job: LiveJob, now_ns: int) -> None:
        cues = self._cues()
        for cue in cues:
            if not self.blocked and now_ns - self._begun_ns >= cue.after_ns:
                cue.word.over = True
        self._questions.ask_due(self._names())
        if all(cue.rehearsal.over for cue in cues):
            self._questions.ask_all("after", self._names())
            self._go("closing", now_ns)

    def _closing(self, job: LiveJob, now_ns: int) -> None:
        if not self._questions.is_open("after") and not self._questions.is_open("during"):
            outcomes = sorted({cue.rehearsal.outcome for cue in self._cues()})
            self._leave(job, now_ns, ", ".join(outcomes))

    def _paused(self, job: LiveJob, now_ns: int) -> None:
        return None

    def _resting(self, job: LiveJob, now_ns: int) -> None:
        rested = now_ns - self._since_ns >= self.day.scenes[self.scene].rest_ns
        if self._is_steady(job, now_ns) and rested and self.state == "resting":
            self._leave(job, now_ns)

    def _over(self, job: LiveJob, now_ns: int) -> None:
        if self.day.when_done == "wait" or self.outcome == "job_ended" or self.done:
            return
        if any(cue.rehearsal.going for cue in self.cues):
            return
        self.lacks = lacking(self.day.steady, job.progress, self.course, self._since_ns, now_ns)
        late = now_ns - self._since_ns > self.day.steady.within.ns
        if not self.lacks or late:
            self.done = "the schedule is over" + (
                f", and the job was not steady again: {self.lacks}" if self.lacks else ""
            )
            job.emit("gameday.over", reason=self.done)

    def _cues(self) -> list[Cue]:
        return [cue for cue in self.cues if cue.scene == self.scene]

    # Ending early

    def _spend(self, job: LiveJob) -> None:
        booked, gpus = self.books.newest, self.day.job.workload.world_size
        for told, share in booked.spent(self.day.budget, gpus) if booked else ():
            if share > 1:
                self._finish(job, "budget", f"wasted since the job was steady: {told}")
                return

    def _finish(self, job: LiveJob, outcome: str, reason: str) -> None:
        self.outcome, self.why = outcome, reason
        self._go("over", time.monotonic_ns())
        if outcome != "job_ended":
            for cue in self.cues:
                cue.rehearsal.give_up("stopped" if cue.rehearsal.going else "skipped", reason)
        job.emit("gameday.finished", outcome=outcome, reason=reason)
        said = f"{outcome}; {reason}" if outcome == COMPLETED and reason else reason or outcome
        self.feed.append(News(time.monotonic_ns(), "day", f"the schedule is over: {said}"))

    # Probes

    def _names(self) -> str:
        return ", ".join(cue.rehearsal.name for cue in self._cues())

    def _note_answers(self, job: LiveJob) -> None:
        for answer in self._questions.answers():
            job.emit("gameday.probe", **answer.told, rehearsal=answer.rehearsal)
            if not answer.ok and self.state != "over":
                self._finish(job, "probe", f"probe {answer.probe} failed ({answer.moment}): {answer.detail}")

    # People

    def _hear(self, job: LiveJob, now_ns: int) -> None:
        while (asked := self.desk.take()) is not None:
            if isinstance(asked, AlertNews):
                about = {"status": asked.status, "summary": asked.summary, "fingerprint": asked.fingerprint}
                job.emit("gameday.alert", name=asked.name, **about)
                self.feed.append(News(now_ns, "alert", f"{asked.name} {asked.status}: {asked.summary}"))
                continue
            refused = self._do(asked, job, now_ns)
            if not refused:
                about = {"action": asked.action, "role": asked.role, "text": asked.text}
                job.emit("gameday.person", **about, **({"who": asked.who} if asked.who else {}))
                said = f": {asked.text}" if asked.text else ""
                self.feed.append(News(now_ns, "person", f"{asked.who or asked.role}: {asked.action}{said}", asked.role))
            asked.reply.set_result(refused)

    def _do(self, asked: Ask, job: LiveJob, now_ns: int) -> str:
        deeds: dict[str, Callable[[LiveJob, int], str]] = {
            "stop": self._stop,
            "lift": self._lift,
            "skip": self._skip,
            "continue": self._continue,
            "inject": self._inject,
        }
        deed = deeds.get(asked.action)
        return deed(job, now_ns) if deed else ""

    def _stop(self, job: LiveJob, now_ns: int) -> str:
        if not self.blocked:
            self.blocked = True
            job.emit("gameday.blocked", reason="a person pressed stop")
        for cue in self._cues() if self.state in ("acting", "closing") else ():
            cue.rehearsal.give_up("stopped", "a person pressed stop")
        return ""

    def _lift(self, job: LiveJob, now_ns: int) -> str:
        if not self.blocked:
            return "nothing is blocked"
        self.blocked = False
        job.emit("gameday.lifted", reason="a person lifted the block")
        self._since_ns = now_ns  # the time limits of the state begin anew
        return ""

    def _skip(self, job: LiveJob, now_ns: int) -> str:
        if self.state == "over":
            return REFUSED.format("skip")
        for cue in self._cues():
            cue.rehearsal.give_up("skipped", "a person skipped it")
        if self.state not in ("acting", "closing"):
            self._leave(job, now_ns, "skipped")
        return ""

    def _continue(self, job: LiveJob, now_ns: int) -> str:
        if self.state != "paused":
            return REFUSED.format("continue")
        self._leave(job, now_ns)
        return ""

    def _inject(self, job: LiveJob, now_ns: int) -> str:
        if self.blocked:
            return "injections are blocked; lift the block first"
        cues = self._cues() if self.state == "acting" else []
        waiting = [cue for cue in cues if cue.rehearsal.waiting and not cue.rehearsal.over]
        if not waiting:
            return f"{REFUSED.format('inject')}" + (f": {self.lacks}" if self.state == "steadying" else "")
        held_back = [cue.rehearsal.fire_at_once(job, now_ns) for cue in waiting]
        for cue, reason in zip(waiting, held_back, strict=True):
            cue.word.over = cue.word.over or not reason
        return f"it is held back: {held_back[0]}" if all(held_back) else ""
