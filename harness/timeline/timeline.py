"""Builds the timeline of a run from its event log: processes, steps, faults, GPUs and the phases of the whole job.

The code uses no clock, no network and no random numbers. Times are integer nanoseconds on the harness's monotonic
clock. Columns of steps are numpy arrays, so that ten million steps fit into memory.
"""

import bisect
import itertools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.log import event_log, reading
from harness.log.files import EventFile, visible
from harness.log.line_numbers import LineGap
from harness.log.planned_size import PlannedSize
from harness.log.sample_indices import Samples
from harness.timeline import lineage, phase_marks, save_events
from harness.timeline.lineage import NEVER, Epoch, Key, Life, Progress, Stretch
from harness.timeline.lookups import grouped
from harness.timeline.phase_names import PHASES
from harness.timeline.phases import Episode, Event, Gap, Mark, Segment, clipped, merged, progress_segments, walk
from harness.timeline.sorted_events import FaultRecord, Launcher, Slot, Story, acted_at, diagnoses, first_strike, key_of
from harness.units import Duration

__all__ = ["PHASES", "Episode", "Epoch", "FaultRecord", "Progress", "Segment", "Slot", "Stretch", "Timeline"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
_ENDED_FROM_OUTSIDE = ("aborted", "interrupted")  # outcomes of a run that somebody ended
_USUAL = 0.99  # quantile of the times between two steps that counts as usual
_USUAL_STEPS = 3  # factor by which a busy host may lengthen a usual step
_PATIENCE_NS = 10**9  # least patience, in ns, however short the steps are


@dataclass(frozen=True)
class Steps:
    """The executed steps, one row per rank and step, sorted by `end`. `step` counts optimizer steps from 1."""

    process: Ints  # row in Timeline.processes
    rank: Ints  # its rank
    step: Ints  # the number of the step
    begin: Ints  # when the step began; untold: when this process's step before ended, and so before an outage
    end: Ints  # when the step ended
    loss: Floats  # NaN: not told
    grad_norm: Floats  # NaN: not told
    lr: Floats  # learning rate; NaN: not told
    digest: Ints  # fingerprint of the digest's text, the same in every run; 0: no digest
    first: Ints  # first sample position of the global batch in the shuffled order; -1 unknown
    count: Ints  # samples in the global batch; -1 unknown
    data_ns: Ints  # part of the step that waited for data; 0: none, or not told
    checkpoint_ns: Ints  # part that waited for a checkpoint; 0: none, or not told
    sync_ns: Ints  # part spent on the all-reduce of gradients, the wait for the slowest rank included; 0: not told
    survives: Bools  # not rolled back by a later restore
    epoch: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # row in Timeline.epochs
    complete: Bools = field(default_factory=lambda: np.zeros(0, np.bool_))  # every rank of the world did this step
    data_pass: Ints = field(default_factory=lambda: np.zeros(0, np.int32))  # over the data set; -1 unknown
    applied: Ints = field(default_factory=lambda: np.ones(0, np.int8))  # 0: its update was skipped; 1: not, or untold
    samples: Ints = field(default_factory=lambda: np.zeros(0, np.int32))  # key in Timeline.samples; -1 unknown
    weights: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # fingerprint of the weights' digest; 0: none
    rank_samples: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # its different samples; -1 unknown
    weights_ns: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # for the digest of the weights; 0: untold

    def __len__(self) -> int:
        return len(self.step)

    @cached_property
    def kinds(self) -> frozenset[str]:
        """Returns the kinds of evidence, such as losses, that at least one step has."""
        return frozenset(kind for kind, test in KINDS_OF_STEPS.items() if test(self).any())


KINDS_OF_STEPS: Mapping[str, Callable[[Steps], Bools]] = {
    "loss": lambda steps: np.isfinite(steps.loss),
    "positions": lambda steps: (steps.first >= 0) & (steps.count >= 0),
    "samples": lambda steps: steps.samples >= 0,
    "digests": lambda steps: steps.digest != 0,
    "weights": lambda steps: steps.weights != 0,
}


@dataclass(frozen=True)
class Process:
    """One worker process, from its start to its end. A time, such as `exited`, is `None` if it was not logged."""

    rank: int  # global rank
    local_rank: int  # rank within its node
    node: str  # name of its node
    incarnation: int  # 1 for the first node of this name, 2 for its replacement
    pid: int  # as the process itself tells it
    world_size: int  # ranks of its world when it started
    launched: int  # when its launcher could start it; `started` if no launcher tells
    started: int  # time of its first event
    rendezvous: int | None  # when it had met the other ranks
    restored: int | None  # when it had restored a checkpoint
    restored_step: int | None  # step of that checkpoint
    source: str | None  # path of that checkpoint
    fallback: tuple[dict[str, Any], ...]  # checkpoints that it refused before
    last_seen: int  # time of its last event
    exited: int | None  # when it ended
    exit_code: int | None  # from the launcher, or from the worker's own `exiting`
    exit_reason: str | None  # as the process itself tells it
    first_step: int | None = None  # the number of the first step it did
    left: int | None = None  # time of its own `exiting`
    torn: bool = False  # its log ends in the middle of a line
    tells: frozenset[str] | None = None  # the kinds of evidence that its header declares; `None`: it declares nothing
    dropped: int = 0  # events of its own that it lost to a full disk
    gaps: tuple[LineGap, ...] | None = None  # lines that its log lacks; `None`: they are not numbered
    cut: bool = False  # its log lost its end, though nothing killed it
    own_code: int | None = None  # exit code that it told itself
    exit_error: str | None = None  # first error that it told itself
    took: Mapping[str, Any] | None = None  # its first `restored` event, whole
    idle: tuple[Mapping[str, Any], ...] = ()  # its `restored` events after which it did no step
    coordinates: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # by axis: its index, the axis's size

    @property
    def key(self) -> Key:
        return self.node, self.incarnation

    @property
    def lost(self) -> int:
        """Returns how many lines are missing from the log of this process, as far as is known."""
        return self.dropped if self.gaps is None else sum(gap.lines for gap in self.gaps)


@dataclass(frozen=True)
class Beside:
    """Facts about a whole job that are needed to judge one rehearsal (one scenario whose faults act on the job)."""

    faults: frozenset[str] = frozenset()  # ids of their faults, which are judged in their own windows
    earlier: Sequence[FaultRecord] = field(default=())  # faults that struck before the window
    job_goes_on: bool = False  # the job goes on after the window
    cut_short: str = ""  # outcome of a rehearsal that people or the schedule ended: stopped, skipped
    other_losses: str = ""  # name of an earlier rehearsal that does not expect the fault-free run's losses
    job: "Timeline | None" = field(default=None, repr=False)  # the whole job, which shows the time before any fault


@dataclass(frozen=True)
class Timeline:
    plan: dict[str, Any]  # as embedded in the first event
    environment: dict[str, Any]  # versions, hardware and commit
    begin: int  # first event of the run
    end: int  # last event of the run
    outcome: str | None  # completed · failed · aborted · interrupted · None: the harness itself died
    outcome_reason: str  # empty if the run completed
    steps: Steps  # all executed steps, in columns
    processes: Sequence[Process]  # all workers that left a log
    slots: Sequence[Slot]  # the GPUs that the job had
    faults: Sequence[FaultRecord]  # the faults of the plan
    segments: Sequence[Segment]  # the phases of the whole job, gapless from `begin` to `end`
    episodes: Sequence[Episode]  # the outages, in order of time
    checkpoints: Sequence[dict[str, Any]]  # `checkpoint.*` of workers; `checkpoint.part`: one before the last rank's
    notices: Sequence[dict[str, Any]]  # notices that a node will be taken, with `at`, `node`
    anomalies: Sequence[dict[str, Any]]  # alarms that the trainer raised, with `at`, `rank`, `step`
    exits: Sequence[dict[str, Any]]  # node commands and workers: {at, node, incarnation, rank|None, code}
    torn: Sequence[str]  # writers whose last line was cut
    dropped: int  # events lost to a full disk
    problems: Sequence[str] = field(default=())  # contradictions found while reading the log
    left_out: Sequence[dict[str, Any]] = field(default=())  # `samples.left_out` events before the end
    published: Sequence[dict[str, Any]] = field(default=())  # `checkpoint.published` events of the harness
    removed: Sequence[dict[str, Any]] = field(default=())  # `checkpoint.removed` events of the harness
    writes: Sequence[dict[str, Any]] = field(default=())  # begins of the phase `checkpoint.write`
    phases: Sequence[dict[str, Any]] = field(default=())  # begins of all phases, and failpoints
    left: Mapping[str, Any] | None = None  # `checkpoint.left`: the store after all nodes had ended
    files_left: Mapping[str, Any] | None = None  # `files.left`: files beside the checkpoints at that time
    not_undone: Sequence[str] = field(default=())  # what the harness could not undo at the end of the run, and why
    unseen: Sequence[str] = field(default=())  # reasons for which the harness did not see all of the store
    epochs: Sequence[Epoch] = field(default=())  # the periods between two restarts or rollbacks
    progress: Progress = field(default_factory=lineage.no_progress)  # the complete steps
    stretches: Sequence[Stretch] = field(default=())  # part of each process in each epoch
    aborted: int | None = None  # when the harness gave up
    evidence: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # when somebody in the job noticed it
    launchers: Sequence[Launcher] = field(default=())  # launchers that write into the log
    uncertainty_ns: int = 0  # uncertainty of other hosts' clocks against the harness's
    clock: str = ""  # clock of all times: the harness's, or that of the log's first writer
    drills: bool = False  # the harness made the following two restarts
    drill: Mapping[str, Any] | None = None  # the harness's last event of the restore drill, with its begin
    # as `begun`; `None`: none was begun
    second_restart: Mapping[str, Any] | None = None  # the same for the second restart
    told_events: Mapping[str, int] = field(default_factory=dict)  # last time of each event of workers and launchers
    apart: bool = False  # some process has steps that cannot be joined with those before its restart
    samples: Samples = field(default_factory=Samples)  # samples that the steps consumed, if told
    data_sizes: Sequence[int] = ()  # told numbers of samples in one pass over the data, each once
    usage: Sequence[dict[str, Any]] = field(default=())  # counters of links and GPUs, by node
    host_load: Sequence[dict[str, Any]] = field(default=())  # `host.load`, about one a second: `at`, `others`
    diagnoses: Sequence[dict[str, Any]] = field(default=())  # `diagnosis` events of workers and launchers
    collectives: Sequence[dict[str, Any]] = field(default=())  # `flight_recorder` events of ranks that hung
    committers: Mapping[int, int] = field(default_factory=dict)  # size of a world → how many commit its checkpoints
    nodes: Sequence[str] = field(default=())  # node names in order of their allocation, also before a window
    steps_before: int = 0  # the last complete step before a window
    beside: Beside = field(default_factory=Beside)  # the rest of the job, if one rehearsal is judged

    @property
    def data_samples(self) -> int | None:
        """Returns the number of samples in one pass over the data set. If workers logged several numbers, the largest
        counts."""
        return max(self.data_sizes, default=None)

    @property
    def lost(self) -> int:
        """Returns how many lines are missing from the job's logs, as far as is known."""
        gaps = [*(each.gaps or () for each in self.processes), *(each.gaps for each in self.launchers)]
        return self.dropped + sum(gap.lines for gap in itertools.chain.from_iterable(gaps) if not gap.full_disk)

    @property
    def planned_steps(self) -> int | None:
        """Returns how many steps the plan asks for, or `None` if the plan sets no number."""
        steps = (self.plan.get("workload") or {}).get("steps")
        return steps if isinstance(steps, int) else None

    @cached_property
    def planned_size(self) -> PlannedSize:
        return PlannedSize.of(self.plan)

    @property
    def largest_world(self) -> int:
        """Returns the size, in ranks, of the largest process group that did a step, or 0 if no step was done."""
        return max((epoch.size for epoch in self.epochs), default=0)

    @property
    def saves_every(self) -> int | None:
        """Returns the planned number of steps between two checkpoints, or `None` if the plan sets no such number."""
        steps = ((self.plan.get("workload") or {}).get("checkpoint") or {}).get("every_steps")
        return steps if isinstance(steps, int) else None

    @property
    def saves_every_s(self) -> float | None:
        """Returns the planned seconds between two checkpoints, or `None` if the plan sets no such time."""
        every = ((self.plan.get("workload") or {}).get("checkpoint") or {}).get("every")
        try:
            return Duration(every).s if isinstance(every, str) else None
        except ValueError:
            return None

    @cached_property
    def changed_after(self) -> int:
        """Returns the last step before a fault changed the job's command on purpose, or `NEVER` if no fault did."""
        return self.step_before(first_strike(fault for fault in self.faults if fault.changes))

    @cached_property
    def work_changed_at(self) -> int:
        """Returns when (ns) a fault changed more of the command than settings of the optimizer, or else `NEVER`."""
        return first_strike(fault for fault in self.faults if fault.changes and not fault.updates_only)

    def step_before(self, change: int) -> int:
        """Returns the last step before the first restart after the time `change`. Without a restart, returns the job's
        furthest step. For the time `NEVER`, returns `NEVER`."""
        later = (epoch.first - 1 for epoch in self.epochs if epoch.begin > change)
        return NEVER if change == NEVER else min(later, default=self.reached_step)

    @property
    def reached_step(self) -> int:
        """Returns the furthest complete step, or 0 if no step was completed."""
        return int(self.progress.step.max()) if len(self.progress) else 0

    @cached_property
    def stride(self) -> int:
        """Returns the smallest difference between two consecutive step numbers that any process logged."""
        return min((each.stride for each in self.stretches if each.stride), default=1)

    def first_complete(self, step: int | None) -> int:
        """Returns the time (ns) at which this step or a later step was first complete, or 0 if this time is unknown."""
        row = NEVER if step is None else int(np.searchsorted(self._furthest_complete, step))
        return int(self.progress.end[row]) if row < len(self.progress) else 0

    @cached_property
    def _furthest_complete(self) -> Ints:
        return np.maximum.accumulate(self.progress.step)

    @cached_property
    def rows_by_process(self) -> tuple[Ints, Ints]:
        """Returns the row numbers of `steps`, sorted by process, then by time, and where each process's rows begin."""
        few = len(self.processes) < 2**15
        owner = self.steps.process.astype(np.int16 if few else np.int64)  # numpy sorts short integers in linear time
        order = np.argsort(owner, kind="stable")
        return order, np.searchsorted(owner[order], np.arange(len(self.processes) + 1))

    @property
    def last_told_step(self) -> int | None:
        """Returns the last planned step that the trainer logs. A trainer may log only every n-th step."""
        return None if self.planned_steps is None else self.planned_steps // self.stride * self.stride

    @property
    def finished(self) -> bool:
        """Returns True if the job did all planned steps."""
        if self.last_told_step is None:
            return self.outcome == "completed"
        return self.reached_step >= self.last_told_step


def load(run_dir: pathlib.Path) -> Timeline:
    """Reads the event log of a run and builds its timeline. Raises `EventLogError` if the log is unreadable."""
    return build(reading.read(run_dir / "events"))


def build(log: reading.Log) -> Timeline:
    story = Story(log)
    told = story.of_trainers(save_events.STARTED, save_events.COMMITTED, save_events.FAILED)
    places = story.places_of(told)
    committers = save_events.committers(told, places)
    checkpoints = save_events.labelled(told, places, committers)
    whole = (event for event in checkpoints if event["event"] == save_events.COMMITTED)
    committed = grouped((int(event.get("step", -1)), event["at"]) for event in whole)
    steps, epochs, progress, stretches = lineage.gather(log.steps, story.lives, story.worlds, committed)
    timeline = Timeline(
        plan=story.plan,
        environment=story.environment(),
        begin=story.begin,
        end=story.end,
        outcome=story.finish.get("outcome"),
        outcome_reason=str(story.finish.get("reason") or story.abort.get("reason") or ""),
        steps=Steps(**steps),
        processes=[_process(life, story.launched(life)) for life in story.lives],
        slots=story.slots,
        nodes=list(dict.fromkeys(slot.node for slot in sorted(story.slots, key=lambda slot: slot.allocated))),
        faults=story.faults,
        segments=(),
        episodes=(),
        checkpoints=checkpoints,
        committers=committers,
        published=story.told(save_events.PUBLISHED),
        removed=story.told(save_events.REMOVED),
        writes=[event for event in story.of_trainers("phase") if phase_marks.begins(event, "checkpoint.write")],
        phases=[event for event in story.of_trainers("phase", "failpoint") if event.get("edge", "begin") == "begin"],
        left=next(iter(story.told(save_events.LEFT)), None),
        files_left=next(iter(story.told("files.left")), None),
        not_undone=[str(event.get("error") or "no reason given") for event in story.told("cleanup.failed")],
        unseen=[str(event.get("why")) for event in story.told(save_events.UNSEEN)],
        notices=story.of_trainers("notice"),
        anomalies=story.of_trainers("anomaly"),
        diagnoses=diagnoses(log),
        collectives=story.of_trainers("flight_recorder"),
        usage=story.of_trainers("usage"),
        host_load=story.told("host.load"),
        left_out=story.of_trainers("samples.left_out"),
        exits=story.exits,
        torn=[writer.name for writer in log.writers if writer.torn],
        dropped=sum(writer.dropped for writer in log.writers),
        problems=_problems(log, story, progress),
        launchers=story.launchers(),
        epochs=epochs,
        progress=progress,
        stretches=stretches,
        aborted=story.abort.get("at"),
        uncertainty_ns=log.uncertainty_ns,
        clock=str((log.harness or log.writers[0]).header.get("clock") or ""),
        drills=bool(story.finish.get("drills")),
        drill=story.drill("drill"),
        second_restart=story.drill("second_restart"),
        told_events=story.told_events(),
        data_sizes=sorted({e["data_samples"] for e in story.of_trainers("rendezvous") if e.get("data_samples")}),
        samples=log.samples,
        apart=any(life.apart for life in story.lives),
        evidence=np.array(phase_marks.noticed(story), np.int64),
    )
    segments, episodes = _chart(story, timeline)
    return replace(timeline, segments=segments, episodes=episodes)


def _problems(log: reading.Log, story: Story, progress: Progress) -> list[str]:
    found = [*log.problems, *story.clock_problems, *story.slot_problems]
    wordless = (source for source in log.wordless if not _killed_at_start(source, story, progress))
    found += [f"{visible(source.file)} holds no complete line" for source in wordless]
    for event in story.told("reader.failed"):
        found.append(f"{event['path']} is no longer read: {event.get('error') or 'no reason given'}")
    epochs = [int(progress.epoch[lo]) for lo, _ in lineage.pairwise_epochs(progress)]
    if len(epochs) > len(set(epochs)):
        found.append("two worlds completed steps at the same time: one of them went on after the other had taken over")
    found += [*lineage.groups_of_two_names(story.lives), *lineage.groups_of_two_sizes(story.lives)]
    found += lineage.impossible_places(story.lives)
    ends = dict.fromkeys(str(event.get("outcome")) for event in story.told("run.finished"))
    return found + ([f"the harness's log has several ends: {', '.join(ends)}"] if len(ends) > 1 else [])


def _killed_at_start(log: EventFile, story: Story, progress: Progress) -> bool:
    """Returns True if an event file may be empty because its process was killed before the job completed another
    step."""
    (key, rank, started), writers = event_log.named(log) or (None, None, 0), story.log.writers
    one_clock = len({each.header.get("clock") for each in writers}) == 1
    beside = next((each.header for each in writers if one_clock or key_of(each.header) == key), None)
    if key is None or beside is None:
        return False
    started += beside["at"] - beside["mono_ns"]
    ended = story.killed(key, rank, started - story.log.uncertainty_ns)
    first, last = np.searchsorted(progress.end, [started, ended])
    return ended < NEVER and bool(first == last)


def saving_like(run: Timeline, fault_free: Timeline | None) -> Timeline:
    """Decides again which commits complete a checkpoint, if more ranks commit each checkpoint in the fault-free run. A
    run that ended during its only checkpoint does not show how many ranks commit a checkpoint."""
    known = save_events.together(run.committers, fault_free.committers if fault_free else {})
    if all(known[ranks] == most for ranks, most in run.committers.items()):
        return run
    return replace(run, checkpoints=save_events.labelled(run.checkpoints, _places(run), known), committers=known)


def _places(run: Timeline) -> list[save_events.SaveWorld]:
    all_epochs = sorted(run.epochs, key=lambda epoch: epoch.begin)
    epochs = grouped((row, epoch) for epoch in all_epochs for row in epoch.processes)
    found = []
    for event in run.checkpoints:
        mine = epochs.get(event["process"], all_epochs)
        last = max(bisect.bisect_right(mine, event["at"], key=lambda epoch: epoch.begin) - 1, 0)
        found.append(save_events.SaveWorld(mine[last].world, mine[last].size) if mine else save_events.SaveWorld(-1, 1))
    return found


def _process(life: Life, launched: int) -> Process:
    restored = life.restored or {}
    told, tells = life.exiting or {}, life.writer.header.get("tells")
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
        restored_step=lineage.step_of(restored),
        source=restored.get("source"),
        fallback=tuple(restored.get("fallback") or ()),
        last_seen=life.last_seen,
        exited=(life.exit_event or told).get("at"),
        exit_code=None if code is None else int(code),
        exit_reason=told.get("reason"),
        own_code=told.get("code"),
        exit_error=told.get("error"),
        first_step=life.first_step,
        left=told.get("at"),
        torn=life.writer.torn,
        tells=None if tells is None else frozenset(tells),
        dropped=life.writer.dropped,
        gaps=life.writer.gaps if life.writer.numbered else None,
        cut=life.cut,
        took=life.restored,
        idle=tuple(event for event in life.restores if event["at"] > life.last_step_end),
        coordinates=_coordinates(life),
    )


def _coordinates(life: Life) -> dict[str, tuple[int, int]]:
    told = [event for event in life.writer.events if event.get("event") == "coordinates"]
    axes = told[-1].get("axes") or () if told else ()
    places = {str(each["axis"]): (int(each["index"]), int(each["size"])) for each in axes}
    return {axis: place for axis, place in places.items() if place[0] < place[1]}


def _chart(story: Story, timeline: Timeline) -> tuple[list[Segment], list[Episode]]:
    segments, episodes = progress_segments(timeline.progress)
    changes = list(phase_marks.of(story))
    segments += walk(_gaps(story, timeline), changes)
    if timeline.finished and len(timeline.progress):
        segments.append(Segment("finish", int(timeline.progress.end[-1]), timeline.end))
        episodes = [e for e in episodes if e.t_regained is not None]
    elif len(timeline.progress) and not (episodes and episodes[-1].t_regained is None) and not _cut_off(timeline):
        last = timeline.progress
        episodes.append(Episode(int(last.end[-1]), None, None, int(last.step.max()), (), ()))
    segments = merged(segments)
    episodes = [*_struck_at_start(timeline, changes), *episodes]
    return segments, _named(timeline, segments, episodes, story.node_gone())


def _cut_off(timeline: Timeline) -> bool:
    """Returns True if the run was ended from outside while the job made progress: then the missing steps are no
    outage."""
    if timeline.outcome not in (*_ENDED_FROM_OUTSIDE, None):
        return False
    last = int(timeline.progress.end[-1])
    given_back = min((slot.released for slot in timeline.slots if slot.kept), default=timeline.end)
    until = given_back if timeline.aborted is None else timeline.aborted
    noticed = bool(((timeline.evidence > last) & (timeline.evidence <= until)).any())
    acted = [fault for fault in timeline.faults if fault.injected is not None and fault.injected <= until]
    at_work = any(fault.healed is None or fault.healed > last for fault in acted)
    return not noticed and not at_work and until - last <= _patience_ns(timeline)


def _patience_ns(timeline: Timeline) -> int:
    """Returns the time, in ns, without a complete step after which the job counts as stalled."""
    progress = timeline.progress
    usual = np.diff(progress.end)[np.diff(progress.epoch) == 0]
    longest = int(np.quantile(usual, _USUAL, method="higher")) if len(usual) else 0
    given = (timeline.plan.get("abort") or {}).get("if_no_step_for_ns")
    return min(max(_USUAL_STEPS * longest, _PATIENCE_NS), NEVER if given is None else given)


def _struck_at_start(timeline: Timeline, changes: Sequence[Event]) -> list[Episode]:
    first = int(timeline.progress.end[0]) if len(timeline.progress) else None
    strikes = [m.at for m in changes if m.mark is Mark.KILL_STRIKE and (first is None or m.at < first)]
    return [Episode(min(strikes), first, first, 0, (), ())] if strikes else []


def _gaps(story: Story, timeline: Timeline) -> list[Gap]:
    progress = timeline.progress
    planned = timeline.planned_size
    least = (planned.min_nodes or 1, planned.min_world_size or planned.ranks_per_node)
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
    result: list[Episode] = []
    first_start: dict[Key, int] = {}
    for process in timeline.processes:
        first_start.setdefault((process.node, process.incarnation), process.started)
    waiting = [fault for fault in timeline.faults if fault.injected is not None]
    for episode in episodes:
        end = timeline.end if episode.t_regained is None else episode.t_regained
        named = {id(fault) for fault in waiting if _belongs(fault, episode.t_stop, end, gone)}
        waiting = [fault for fault in waiting if id(fault) not in named]
        named |= {id(fault) for fault in _brought_back(timeline, episode, end, gone, first_start)}
        ids = tuple(dict.fromkeys(fault.id for fault in timeline.faults if id(fault) in named))
        result.append(replace(episode, faults=ids, segments=tuple(clipped(segments, episode.t_stop, end))))
    return result


def _belongs(fault: FaultRecord, t_stop: int, end: int, gone: Mapping[Key, int]) -> bool:
    """Returns True if a fault belongs to the outage from `t_stop` to `end`. A fault that reclaims a node after a notice
    counts from the loss of the node. A fault that hits each replacement node counts from its injection."""
    struck = acted_at(fault)
    if struck < t_stop:
        return fault.kills or fault.healed is None or fault.healed >= t_stop
    takes = fault.kills and not fault.sticks
    nodes = [key_of(target) for target in fault.targets if takes and target.get("rank") is None]
    taken = min((at for key in nodes if (at := gone.get(key, -NEVER)) >= struck), default=struck)
    return struck <= end and taken <= end


def _brought_back(
    timeline: Timeline, episode: Episode, end: int, gone: Mapping[Key, int], first_start: Mapping[Key, int]
) -> list[FaultRecord]:
    back = {(node, number - 1) for (node, number), at in first_start.items() if episode.t_stop <= at <= end}
    found = []
    for fault in timeline.faults:
        until = NEVER if fault.kills or fault.healed is None else fault.healed
        nodes = back & {key_of(target) for target in fault.targets if target.get("rank") is None}
        if fault.injected is not None and any(until >= gone.get(key, timeline.end) for key in nodes):
            found.append(fault)
    return found
