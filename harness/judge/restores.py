"""Is each restore a true one? Every one of them is checked, of every process, in every run.

All ranks of a world go on from the same state, and with the step that follows it. The state is of a checkpoint that
was committed, or at least begun and not failed, or of a peer that has it. It is the newest one, unless this restart
told why not, a fault may have spoilt the checkpoints before, or the job went back by its own decision.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.judge import damaged_loads
from harness.judge.codes import Code
from harness.judge.facts.analysis import Analysis
from harness.judge.score import Finding, Verdict
from harness.judge.steps_done import usual_strides
from harness.timeline import saves
from harness.timeline.lineage import NEVER, step_of
from harness.timeline.timeline import Epoch, Ints, Stretch, Timeline

SCRATCH = "scratch"  # the source of a state that nothing was restored for
IN_FLIGHT = 2  # a checkpoint that is still being written when its job is killed costs one interval more


def findings(evidence: Analysis) -> Iterator[Finding]:
    run, strides = evidence.run, usual_strides(evidence.run, evidence.fault_free)
    starts = _starts(run)
    checks = [_of_other_steps(run, starts, strides), _unlike(starts), _never_saved(run, starts)]
    checks += [damaged_loads.findings(run, starts), _not_the_newest(run, starts), _from_scratch(run, starts)]
    found = [finding for check in checks for finding in first(check)]
    checks = [_contradicted(run, starts), _untold(run, starts), _without_an_end(run, evidence.fault_free, starts)]
    checks += [_other_content(run, starts), _optimizer_not_seen(evidence, starts), _not_the_published(run, starts)]
    yield from found or [finding for check in checks for finding in first(check)]


def first(found: Iterator[Finding]) -> Iterator[Finding]:
    """One example of each kind is enough."""
    yield from (finding for finding in [next(found, None)] if finding)


@dataclass(frozen=True)
class _Start:
    """What the members of one epoch began it with."""

    number: int
    epoch: Epoch
    members: Sequence[Stretch]
    own_decision: bool  # the world went back without forming anew
    moment: int  # when the first of them may have chosen a checkpoint
    fallback: Sequence[Mapping[str, Any]]  # checkpoints that they passed over, or those that tried before them
    restored: Mapping[int, int] = field(default_factory=dict)  # by row in Timeline.processes

    @property
    def newcomers(self) -> list[Stretch]:
        return [each for each in self.members if each.before is None]


def _starts(run: Timeline) -> list[_Start]:
    found: list[_Start] = []
    members: dict[int, list[Stretch]] = {}
    for each in run.stretches:
        members.setdefault(each.epoch, []).append(each)
    until = run.begin
    for number, epoch in enumerate(run.epochs):
        mine = members.get(number, [])
        told = [each.restored for each in mine if each.restored is not None]
        moments = [run.processes[each.process].started for each in mine if each.before is None]
        moments += [event["at"] for each, event in ((e, e.restored) for e in mine) if each.before is not None and event]
        tried = [p.fallback for p in run.processes if p.fallback and until <= p.started <= epoch.begin]
        passed_over = [
            *(item for event in told for item in event.get("fallback") or ()),
            *(i for f in tried for i in f),
        ]
        found.append(
            _Start(
                number=number,
                epoch=epoch,
                members=mine,
                own_decision=number > 0 and run.epochs[number - 1].world == epoch.world,
                moment=min(moments, default=epoch.begin),
                fallback=[item for item in passed_over if isinstance(item, Mapping)],
                restored={e.process: step for e in mine if e.restored and (step := step_of(e.restored)) is not None},
            )
        )
        until = max([until, *(each.end for each in mine)])
    return found


def _of_other_steps(run: Timeline, starts: Sequence[_Start], strides: Mapping[int, int]) -> Iterator[Finding]:
    """A process must go on with the step after the one that it said it restored."""
    for start in starts:
        for each in start.members:
            process = run.processes[each.process]
            stride = strides.get(process.rank)
            told = [*([(each.restored, each.first)] if each.restored else ()), *each.later]
            for event, went_on in told if stride and not process.dropped else ():
                step = step_of(event)
                if step is not None and not step < went_on <= step + (stride or 1):
                    text = f"rank {process.rank} said it restored step {step}, but went on with step {went_on}"
                    yield Finding(Verdict.FAIL, text, Code.RESTART_OTHER_STEP)


def _unlike(starts: Sequence[_Start]) -> Iterator[Finding]:
    for start in starts:
        states = sorted(set(start.restored.values()))
        if len(states) > 1:
            shown = ", ".join(str(step) for step in states)
            yield Finding(Verdict.FAIL, f"ranks of one world restored different steps: {shown}", Code.RESTART_UNLIKE)


def _contradicted(run: Timeline, starts: Sequence[_Start]) -> Iterator[Finding]:
    """Restores whose source is that of another state, or of a checkpoint that they say they passed over."""
    saved: dict[str, list[tuple[int, int]]] = {SCRATCH: [(0, 0)]}  # when and which step; a path may be used again
    for event in run.checkpoints:
        if event.get("path") and "step" in event:
            saved.setdefault(str(event["path"]), []).append((event["at"], int(event["step"])))
    for start in starts:
        for each in start.members:
            step, restored = start.restored.get(each.process), each.restored or {}
            source = str(restored.get("source") or "")
            latest = restored.get("at", run.begin) + run.uncertainty_ns
            held = [number for at, number in saved.get(source, ()) if at <= latest]
            if step is not None and held and step not in held:
                text = f"rank {run.processes[each.process].rank} said it restored step {step}"
                yield Finding(
                    Verdict.INCONCLUSIVE,
                    f"{text}, but from {source}, which is of step {held[-1]}",
                    Code.RESTART_OTHER_SOURCE,
                )
            passed_over = {str(item.get("source")) for item in restored.get("fallback") or ()}
            if source and source in passed_over:
                rank = run.processes[each.process].rank
                yield Finding(
                    Verdict.INCONCLUSIVE,
                    f"rank {rank} said it passed {source} over, and that it restored it",
                    Code.RESTART_TOOK_PASSED_OVER,
                )


def _untold(run: Timeline, starts: Sequence[_Start]) -> Iterator[Finding]:
    """Ranks that tell in one life what they restored and not in another; worlds that go back without a word."""
    tellers = {run.processes[row].rank for start in starts for row in start.restored}
    for start in starts[1:]:
        alive = any(each.before is not None and each.before >= start.epoch.first - 1 for each in start.members)
        for each in () if alive and not start.own_decision else start.members:
            process = run.processes[each.process]
            silent = each.process not in start.restored and (each.before is None or start.own_decision)
            if silent and process.rank in tellers and not process.dropped:
                text = f"rank {process.rank} began again with step {each.first} and did not report what it restored"
                yield Finding(Verdict.INCONCLUSIVE, f"{text}, though it reports it elsewhere", Code.RESTART_UNTOLD)


def _never_saved(run: Timeline, starts: Sequence[_Start]) -> Iterator[Finding]:
    """A state must come from somewhere: a checkpoint, a peer, or what was there before the run."""
    if not run.checkpoints:
        return
    for start in starts[1:]:
        alive = [each.before for each in start.members if each.before is not None]
        begun = _begun(run, start.epoch.begin) if start.restored else set()
        for row, step in start.restored.items():
            if 0 < step < start.epoch.first and step not in begun and not any(before >= step for before in alive):
                text = f"rank {run.processes[row].rank} said it restored step {step}"
                yield Finding(
                    Verdict.INCONCLUSIVE,
                    f"{text}, but no checkpoint of that step was ever started: its state is not known",
                    Code.RESTART_NEVER_SAVED,
                )


def _without_an_end(run: Timeline, fault_free: Timeline | None, starts: Sequence[_Start]) -> Iterator[Finding]:
    """Saves that a restart took or passed by, and of which nobody told whether they ended well, though their process
    went on with its steps. Held against those only who end each save before their next step without a fault."""
    if fault_free is None or run.dropped:
        return
    punctual = _punctual(fault_free)
    open_saves = [save for save in _open_saves(run) if run.processes[save["process"]].rank in punctual]
    for start in starts[1:]:
        steps = start.restored.values()
        for save in open_saves if steps and min(steps) > 0 else ():
            passed_over = any(_same(save, bad) for bad in start.fallback)
            if save["at"] < start.moment and int(save["step"]) >= min(steps) and not passed_over:
                rank = run.processes[save["process"]].rank
                text = f"rank {rank} never reported whether its checkpoint of step {save['step']} was committed"
                yield Finding(
                    Verdict.INCONCLUSIVE,
                    f"{text}, and the job restarted from step {min(steps)} after it",
                    Code.SAVE_WITHOUT_END,
                )


def _other_content(run: Timeline, starts: Sequence[_Start]) -> Iterator[Finding]:
    """What was restored is not what was committed there: damage, or a save that nobody saw."""
    for start in starts[1:]:
        for each in start.members:
            restored = each.restored or {}
            content, saved = restored.get("content"), restored.get("saved")
            if content and saved and content != saved:
                text = f"rank {run.processes[each.process].rank} restored {restored.get('source') or 'a state'}"
                yield Finding(
                    Verdict.INCONCLUSIVE,
                    f"{text}, which no longer holds what was committed there",
                    Code.RESTART_OTHER_CONTENT,
                )


def _optimizer_not_seen(evidence: Analysis, starts: Sequence[_Start]) -> Iterator[Finding]:
    """A model's state without its optimizer's is half a state, unless the losses show that nothing was missing."""
    compared = evidence.comparison
    for start in () if compared is not None and compared.identical else starts[1:]:
        for each in start.members:
            restored = each.restored or {}
            if restored.get("entered") == ["model"]:
                text = f"rank {evidence.run.processes[each.process].rank} restored its model"
                yield Finding(
                    Verdict.INCONCLUSIVE,
                    f"{text}, and nothing shows that its optimizer's state was restored",
                    Code.RESTART_NO_OPTIMIZER,
                )


def _punctual(run: Timeline) -> set[int]:
    """The ranks that commit what they begin to save, each time before their next step."""
    began = {run.processes[e["process"]].rank for e in run.checkpoints if e["event"] == "checkpoint.started"}
    late = {run.processes[save["process"]].rank for save in _open_saves(run, by_next_step=True)}
    return began - late


def _open_saves(run: Timeline, by_next_step: bool = False) -> Iterator[Mapping[str, Any]]:
    """Saves that a process began before a step of its own, and whose end it never told, or only after that step."""
    ends: dict[tuple[int, Any], list[int]] = {}
    own: dict[int, Ints] = {}  # when each process began its steps
    for event in run.checkpoints:
        if event["event"] != "checkpoint.started":
            ends.setdefault((event["process"], event.get("step")), []).append(event["at"])
    for event in run.checkpoints:
        if event["event"] == "checkpoint.started" and "step" in event and event["process"] >= 0:
            if event["process"] not in own:
                own[event["process"]] = run.steps.begin[run.steps.process == event["process"]]
            begins = own[event["process"]]
            following = begins[begins > event["at"]].min(initial=NEVER)
            until = following if by_next_step else NEVER
            told = any(event["at"] <= at < until for at in ends.get((event["process"], event["step"]), ()))
            if following < NEVER and not told:
                yield event


def _begun(run: Timeline, until: int) -> set[int]:
    """Steps of which a checkpoint was committed, or at least begun and not failed."""
    told = [event for event in run.checkpoints if event["at"] <= until + run.uncertainty_ns and "step" in event]
    last = {int(event["step"]): event["event"] for event in told}  # in order of time
    return {step for step, event in last.items() if event != "checkpoint.failed"}


def _not_the_newest(run: Timeline, starts: Sequence[_Start]) -> Iterator[Finding]:
    commits = [event for event in run.checkpoints if event["event"] == saves.COMMITTED and "step" in event]
    odd = _not_for_a_restart(run, commits)
    left_behind: list[tuple[int, int]] = []  # when the job went back by its own decision, and to which step
    known_bad: list[Mapping[str, Any]] = []
    for start in starts:
        known_bad += start.fallback
        steps = start.restored.values()
        if start.own_decision:
            left_behind += [(start.moment, min(steps))] if steps else []
            continue
        there: Sequence[Mapping[str, Any]] = [e for e in commits if e["at"] < start.moment - run.uncertainty_ns]
        there = [e for e in there if not any(e["at"] <= at and int(e["step"]) > to for at, to in left_behind)]
        there = _to_be_resumed(_unspoilt(run, start, there), odd)
        saved = max((int(event["step"]) for event in there), default=0)
        good = (event for event in there if not any(_same(event, bad) for bad in known_bad))
        newest = max((int(event["step"]) for event in good), default=0)
        yield from _older(run, start, newest, saved)


def _not_for_a_restart(run: Timeline, commits: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Exported weights, and what a worker dumps when it ends by an error, under a name that no other checkpoint has and
    that nothing was restored from."""
    dumps = _dumps(run, commits)
    odd = [event for event in commits if event.get("holds") == ["model"] or event in dumps]
    names = {saves.family(event.get("path")) for event in commits if event not in odd}
    names |= {saves.family(each.restored.get("source")) for each in run.stretches if each.restored}
    return [event for event in odd if saves.family(event.get("path")) not in names]


def _to_be_resumed(there: Sequence[Mapping[str, Any]], odd: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those that a restart is meant for; all of them, where none but odd ones are there."""
    return [event for event in there if event not in odd] or list(there)


def _dumps(run: Timeline, commits: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Commits of processes that did no step after them, and ended over an error or the loss of a peer."""
    last: dict[int, int] = {}
    for number in {int(event["process"]) for event in commits}:
        if number >= 0 and run.processes[number].exit_reason in ("error", "peer lost"):
            last[number] = int(run.steps.end[run.steps.process == number].max(initial=0))
    return [event for event in commits if event["at"] >= last.get(int(event["process"]), NEVER)]


def _not_the_published(run: Timeline, starts: Sequence[_Start]) -> Iterator[Finding]:
    """The same of a trainer that commits no checkpoint: the harness saw some in their folder, or it began some and went
    on. Names in the folder tell the step, unless one tells more than was ever done by then."""
    if any(event["event"] == saves.COMMITTED for event in run.checkpoints):
        return
    told: list[Mapping[str, Any]] = [event for event in run.published if isinstance(event.get("step"), int)]
    done = [int(run.steps.step[run.steps.end <= event["at"]].max(initial=0)) for event in told]
    if any(int(event["step"]) > most for event, most in zip(told, done, strict=True)):
        told = []
    told += _open_saves(run)
    for start in starts[1:]:
        there = [event for event in told if event["at"] < start.moment - run.uncertainty_ns]
        newest = max((int(event["step"]) for event in _unspoilt(run, start, there)), default=0)
        for row, step in start.restored.items() if not start.own_decision else ():
            if step < newest and not start.fallback:
                text = f"rank {run.processes[row].rank} resumed from step {step} and gave no reason"
                yield Finding(
                    Verdict.INCONCLUSIVE,
                    f"{text}, though it had saved step {newest}, as far as is known",
                    Code.RESTART_NOT_PUBLISHED,
                )


def _older(run: Timeline, start: _Start, newest: int, saved: int) -> Iterator[Finding]:
    """`newest`: of the checkpoints that were not passed over. `saved`: of all but those that the job left behind by its
    own decision."""
    for row, step in start.restored.items():
        lost_all = not step and saved > 0
        if (step < newest and not start.fallback) or lost_all:
            why = "and skipped all saved checkpoints" if start.fallback else "and gave no reason"
            text = f"rank {run.processes[row].rank} resumed from step {step} {why}"
            yield Finding(
                Verdict.FAIL,
                f"{text}, though a checkpoint of step {max(newest, saved if lost_all else 0)} had been committed",
                Code.RESTART_NOT_NEWEST,
            )
    told = any(each.restored for each in start.members)  # perhaps without its step
    if start.number and start.newcomers and not told and start.epoch.first <= newest:
        alive = any(each.before is not None and each.before >= start.epoch.first - 1 for each in start.members)
        rank = run.processes[start.newcomers[0].process].rank
        if not alive:
            text = f"rank {rank} began with step {start.epoch.first} and did not report what it restored"
            yield Finding(
                Verdict.FAIL,
                f"{text}, though a checkpoint of step {newest} had been committed",
                Code.RESTART_BEGAN_UNTOLD,
            )


def _same(event: Mapping[str, Any], passed_over: Mapping[str, Any]) -> bool:
    """Whether this is the checkpoint that a restart passed over."""
    path = passed_over.get("path")
    return bool((path is not None and event.get("path") == path) or passed_over.get("step") == event["step"])


def _may_be_spoilt(run: Timeline, start: _Start) -> bool:
    return any(
        fault.injected is not None and fault.injected <= start.epoch.begin for fault in run.faults if fault.spoils
    )


def _unspoilt(run: Timeline, start: _Start, commits: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those that were begun when every fault which may damage checkpoints was over; of a fault whose damage is known,
    all but what it damaged."""
    struck = [f for f in run.faults if f.spoils and f.injected is not None and f.injected <= start.epoch.begin]
    known = {fault.id: damaged_loads.steps_damaged(run, fault) for fault in struck}
    damaged = set[int]().union(*(steps for steps in known.values() if steps))
    commits = [event for event in commits if int(event["step"]) not in damaged]
    struck = [fault for fault in struck if not known[fault.id]]
    if not struck:
        return list(commits)
    if any(fault.healed is None for fault in struck):
        return []
    since = max(fault.healed for fault in struck if fault.healed is not None) + run.uncertainty_ns
    begun = {int(event["step"]) for event in run.checkpoints if "step" in event and event["at"] <= since}
    return [event for event in commits if event["at"] > since and int(event["step"]) not in begun]


def _from_scratch(run: Timeline, starts: Sequence[_Start]) -> Iterator[Finding]:
    """A trainer that tells neither checkpoints nor restores, and goes back further than its checkpoints are apart."""
    every = ((run.plan.get("workload") or {}).get("checkpoint") or {}).get("every_steps")
    if run.checkpoints or not isinstance(every, int) or any(start.restored for start in starts):
        return
    furthest = 0
    for start in starts:
        lost, again = furthest - (start.epoch.first - 1), start.epoch.first - 1
        furthest = max(furthest, start.epoch.last)
        allowed = every if again < run.stride else IN_FLIGHT * every
        if start.number and start.newcomers and lost > allowed and not _may_be_spoilt(run, start):
            text = f"the job restarted at step {start.epoch.first} and lost {lost} steps, though it should save"
            yield Finding(
                Verdict.INCONCLUSIVE,
                f"{text} every {every} steps; it reported no saves and no restores",
                Code.RESTART_FROM_SCRATCH,
            )
