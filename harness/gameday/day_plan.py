"""Defines the plan of a game day: every rehearsal, with its faults, targets and start.

The file `gameday.json` stores the plan of a game day, with the results of all random choices. The step in a fault's
trigger is relative to the job's step at the start of the rehearsal."""

from __future__ import annotations

import math
import pathlib
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from harness import units
from harness.campaign.checked_files import load_scenario
from harness.errors import ScenarioError, UsageError
from harness.gameday.day_file import (
    Alert,
    Budget,
    DayEntry,
    People,
    Probe,
    Rehearse,
    Replay,
    Steady,
    WhenDone,
    load_gameday,
)
from harness.plan.making import make_plan
from harness.plan.run_plan import Plan, PlannedFault, When
from harness.run.rehearsal import named
from harness.spec.document import Path
from harness.spec.scenario import Scenario, find_beside
from harness.spec.scenario import When as Trigger
from harness.units import Duration

NAME_MAX = 40  # most characters of a rehearsal's name, which prefixes the ids of its faults
ACTS_MAX = 2000
SETTLED_STEPS = 10
AT_ONCE = Trigger(after=Duration("0s"))


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Act(_Model):
    """One planned rehearsal of a game day. The rehearsal starts `after_ns` ns after the job is steady and all probes
    (the user's checks) have answered."""

    name: str
    plan: Plan
    after_ns: int = Field(0, ge=0)
    runbook: str | None = None
    alerts: tuple[Alert, ...] = ()
    people: People = People()

    @property
    def expects_same_losses(self) -> bool:
        bounds = self.plan.expect.get("loss_continuity")
        return isinstance(bounds, Mapping) and bounds.get("mode", "exact") == "exact"

    @property
    def lasts_s(self) -> float:
        """Returns the least duration of the rehearsal in seconds, from the waits and durations of its faults."""
        return max((_lasts_s(fault) for fault in self.plan.faults), default=0.0)

    @property
    def waits_steps(self) -> int:
        return max((fault.when.more_steps or 0 for fault in self.plan.faults), default=0) + SETTLED_STEPS


class Scene(_Model):
    kind: Literal["scenario", "parallel", "pause", "random", "replay", "rest"]
    what: str
    acts: tuple[Act, ...] = ()
    rest_ns: int = 0


class DayPlan(_Model):
    version: Literal[1] = 1
    name: str
    title: str
    seed: int
    job: Plan
    fault_free: bool = True
    steady: Steady
    scenes: tuple[Scene, ...] = Field(min_length=1)
    budget: Budget = Budget()
    probes: tuple[Probe, ...] = ()
    when_done: WhenDone = "wait"

    @property
    def acts(self) -> list[Act]:
        return [act for scene in self.scenes for act in scene.acts]

    def alone(self, name: str, begun: int = 0) -> Plan:
        """Returns the plan of one rehearsal as if it were a separate run. `begun` is the last step before the
        rehearsal, or 0 if this step is unknown."""
        plan = next(act.plan for act in self.acts if act.name == name)
        faults = []
        for fault in plan.faults:
            more = fault.when.more_steps
            at = {} if more is None else {"step": (begun or self.steady.steps) + more, "more_steps": None}
            faults.append(fault.model_copy(update={"when": fault.when.model_copy(update=at)}))
        return plan.model_copy(update={"faults": tuple(faults)})

    def losses_unproven(self) -> tuple[str, list[str]]:
        """Returns the name of the first rehearsal that may change the job's losses, and the names of the rehearsals
        whose losses can therefore not be judged."""
        for number, scene in enumerate(self.scenes):
            if first := next((act.name for act in scene.acts if not act.expects_same_losses), None):
                later = [act for other in self.scenes[number:] for act in other.acts if act.expects_same_losses]
                return first, [act.name for act in later]
        return "", []

    def labelled(self, labels: Mapping[str, str]) -> DayPlan:
        every = {**self.job.scenario.labels, **labels}
        scenes = []
        for scene in self.scenes:
            acts = tuple(act.model_copy(update={"plan": act.plan.labelled(every)}) for act in scene.acts)
            scenes.append(scene.model_copy(update={"acts": acts}))
        return self.model_copy(update={"job": self.job.labelled(labels), "scenes": tuple(scenes)})

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True)


def _lasts_s(fault: PlannedFault) -> float:
    given, lasts_s = fault.action.model_dump(), (fault.when.after_ns or 0) / 1e9
    replacement = given.get("replacement")
    after = replacement.get("after") if isinstance(replacement, Mapping) else None
    for value in (given.get("duration"), given.get("notice"), after):
        if isinstance(value, Duration):
            lasts_s += value.s
        elif isinstance(value, str) and value[:1].isdigit():
            lasts_s += units.parse_duration_ns(value) / 1e9
    return lasts_s


def plan_day(path: pathlib.Path, seed: int, backend: str, run_id: str, scenarios: pathlib.Path) -> DayPlan:
    """Makes a game day's plan from its file. Raises `ScenarioError` with all mistakes in the file, and in the scenarios
    and traces that the file names."""
    return _Making(path, seed, backend, run_id, scenarios).make()


_SHARES = ("max_percent", "max_percent_by_faults")


class _Making:
    def __init__(self, path: pathlib.Path, seed: int, backend: str, run_id: str, scenarios: pathlib.Path):
        self.folder, self.scenarios = path.parent, scenarios
        self.seed, self.backend, self.run_id = seed, backend, run_id
        self.spec, self.document = load_gameday(path)
        self.names: dict[str, int] = {}
        self.traces: dict[str, str] = {}
        self.acts = 0

    def make(self) -> DayPlan:
        scenes = [scene for place, entry in enumerate(self.spec.entries) if (scene := self._scene(place, entry))]
        self.document.raise_problems()
        if not any(scene.acts for scene in scenes):
            raise ScenarioError([self.document.at(("entries",), "no entry injects anything: nothing is rehearsed")])
        spec = self.spec
        return DayPlan(
            name=spec.name,
            title=spec.title,
            seed=self.seed,
            job=self._job(),
            fault_free=spec.fault_free,
            steady=spec.steady,
            scenes=tuple(scenes),
            budget=spec.budget,
            probes=tuple(spec.probes),
            when_done=spec.when_done,
        )

    def _job(self) -> Plan:
        spec = self.spec
        empty = Scenario(
            version=1,
            name=spec.name,
            title=spec.title,
            workload=spec.workload,
            expect={},
            abort=spec.abort,
            limits=spec.limits,
            price_per_gpu_hour=spec.price_per_gpu_hour,
            labels=spec.labels,
        )
        job = make_plan(empty, self.seed, self.backend, self.run_id)
        return job.model_copy(update={"scenario": job.scenario.model_copy(update={"traces": self.traces})})

    def _scene(self, place: int, entry: DayEntry) -> Scene | None:
        at: Path = ("entries", place)
        try:
            acts = tuple(self._acts(place, entry))
        except UsageError as error:
            self.document.problem(at, str(error).replace("\n", "; "))
            return None
        what = {"pause": entry.pause, "rest": f"rest for {entry.rest} or longer"}.get(entry.kind)
        named = ", ".join(act.name for act in acts[:5]) + (f" and {len(acts) - 5} more" if len(acts) > 5 else "")
        rest_ns = entry.rest.ns if entry.rest else 0
        return Scene(kind=entry.kind, what=what or named, acts=acts, rest_ns=rest_ns)

    def _acts(self, place: int, entry: DayEntry) -> Iterator[Act]:
        for number, each in enumerate(entry.rehearses):
            yield self._act(each, self._load(each), f"{place}/{number}")
        if entry.random:
            dice = random.Random(f"{self.seed}/entry {place}")
            mean_ns, at_ns = 3600e9 / units.parse_per_hour(entry.random.rate), 0
            for number in range(entry.random.times):
                at_ns += round(-math.log(1.0 - dice.random()) * mean_ns)
                each = Rehearse(scenario=dice.choice(entry.random.scenarios), runbook=entry.runbook)
                yield self._act(each, _immediate(self._load(each)), f"{place}/{number}", at_ns)
        if entry.replay:
            yield from self._replayed(place, entry, entry.replay)

    def _replayed(self, place: int, entry: DayEntry, spec: Replay) -> Iterator[Act]:
        replay, nodes = spec.found(self.folder, self.scenarios), self.spec.workload.nodes
        struck = []
        for event in sorted({each.event for each in replay.happenings} & spec.events.keys()):
            alone = replace(replay, events={event})
            self.traces[f"entry {place + 1}, {event}"] = alone.words(nodes)
            struck += [(strike, event) for strike in alone.strikes(nodes, self.seed)]
        if not struck:
            raise ScenarioError([f"no event in the trace has a scenario; events with one: {', '.join(spec.events)}"])
        for number, (strike, event) in enumerate(sorted(struck, key=lambda each: each[0].at_ns)[: spec.first]):
            each = Rehearse(scenario=spec.events[event], runbook=entry.runbook)
            scenario = _immediate(self._load(each))
            faults = [fault.aimed(strike.nodes, self.spec.workload) for fault in scenario.faults]
            aimed = scenario.model_copy(update={"faults": faults})
            yield self._act(each, aimed, f"{place}/{number}", strike.at_ns)

    def _load(self, each: Rehearse) -> Scenario:
        path = find_beside(each.scenario, self.folder, self.scenarios)
        scenario = load_scenario(path, each.profile, each.overrides)
        if not scenario.faults:
            raise ScenarioError([f"scenario {scenario.name}: it has no fault, so there is nothing to rehearse"])
        if "fail_fast" in scenario.expect:
            raise ScenarioError([f"scenario {scenario.name}: it expects that the job fails; a game day's job goes on"])
        of_the_day = {
            "workload": self.spec.workload,
            "limits": self.spec.limits,
            "expect": self._expected(scenario, each),
        }
        return scenario.model_copy(update=of_the_day)

    def _expected(self, scenario: Scenario, each: Rehearse) -> dict[str, Any]:
        """Drops the scenario's limits on the wasted share of GPU time, because an outage may fill most of a short
        rehearsal."""
        expect = dict(scenario.expect)
        if isinstance(bounds := expect.pop("wasted_gpu_hours", None), dict):
            named = (each.overrides.get("expect") or {}).get("wasted_gpu_hours") or {}
            if kept := {name: bound for name, bound in bounds.items() if name not in _SHARES or name in named}:
                expect["wasted_gpu_hours"] = kept
        if not self.spec.fault_free and isinstance(bounds := expect.get("loss_continuity"), dict):
            expect["loss_continuity"] = {"against": "itself", **bounds}
        return expect

    def _act(self, each: Rehearse, scenario: Scenario, salt: str, after_ns: int = 0) -> Act:
        self.acts += 1
        if self.acts > ACTS_MAX:
            raise ScenarioError([f"more than {ACTS_MAX:,} rehearsals"])
        name = self._name(each.name or scenario.name)
        seed = random.Random(f"{self.seed}/{salt}").getrandbits(63)
        plan = make_plan(_without_steps(scenario), seed, self.backend, self.run_id)
        plan = named(_with_steps(plan, scenario), name)
        if long := next((fault.id for fault in plan.faults if len(fault.id) > 63), ""):
            raise ScenarioError([f"{long}: longer than the 63 characters of a fault's id; give it a shorter name:"])
        plan = plan.model_copy(update={"seed": self.seed, "workload": self.spec.workload})
        return Act(
            name=name,
            plan=Plan.from_json(plan.to_json()),
            after_ns=after_ns,
            runbook=each.runbook,
            alerts=tuple(each.expect.alerts),
            people=each.expect.people,
        )

    def _name(self, wanted: str) -> str:
        wanted = wanted[:NAME_MAX]
        self.names[wanted] = number = self.names.get(wanted, 0) + 1
        name = wanted if number == 1 else f"{wanted[: NAME_MAX - 5]}-{number}"
        return name if number == 1 or name not in self.names else self._name(name)


def _without_steps(scenario: Scenario) -> Scenario:
    faults = []
    for fault in scenario.faults:
        now = Trigger(phase=fault.when.phase) if fault.when.phase else AT_ONCE
        faults.append(fault if fault.when.step is None else fault.model_copy(update={"when": now}))
    return scenario.model_copy(update={"faults": faults})


def _with_steps(plan: Plan, scenario: Scenario) -> Plan:
    steps: dict[str, int] = {}
    for fault in scenario.faults:
        when = fault.when
        if when.after is not None and when.after.ns == 0 and when.following is None:
            # Zero steps later: the trainer is held at the step, so that the moment is exact.
            steps[fault.id] = 0
        elif when.step is not None:
            steps[fault.id] = when.step
    faults = []
    for planned in plan.faults:
        later = When(more_steps=steps.get(planned.id, 0), phase=planned.when.phase)
        faults.append(planned.model_copy(update={"when": later}) if planned.id in steps else planned)
    return plan.model_copy(update={"faults": tuple(faults)})


def _immediate(scenario: Scenario) -> Scenario:
    faults = [
        fault.model_copy(update={"when": AT_ONCE}) if fault.when.step is not None and not fault.when.phase else fault
        for fault in scenario.faults
    ]
    return scenario.model_copy(update={"faults": faults})


def steps_needed(day: DayPlan, step_s: float) -> int:
    """Returns the least number of steps that the schedule of a game day needs. If the step time `step_s` is 0
    (unknown), durations of faults and rests are not counted."""
    if step_s:
        ends_s = day.steady.steps * step_s + sum(_lasts(scene, step_s) for scene in day.scenes)
        return math.ceil(ends_s / step_s)
    waits = [max((act.waits_steps for act in scene.acts), default=0) for scene in day.scenes]
    return day.steady.steps + sum(waits)


def _lasts(scene: Scene, step_s: float) -> float:
    ends = [act.after_ns / 1e9 + act.lasts_s + act.waits_steps * step_s for act in scene.acts]
    return max(ends, default=scene.rest_ns / 1e9)


def schedule(day: DayPlan, step_s: float | None = None) -> list[str]:
    """Returns a game day's schedule as text lines, with the earliest time of each entry. `step_s` is the duration of a
    step in seconds, if known."""
    steps = day.steady.steps
    lines = [f"{_clock(0)}  the job starts; it must be steady for {steps} steps before anything is injected"]
    at_s = steps * (step_s or 0)
    for number, scene in enumerate(day.scenes, 1):
        said = scene.what if scene.kind == "rest" else f"{scene.kind}: {scene.what}"
        lines.append(f"{_clock(at_s)}  {number}. {said}")
        traces = day.job.scenario.traces.items()
        lines += [f"            {words}" for name, words in traces if name.startswith(f"entry {number},")]
        for act in scene.acts:
            lines += [f"{_clock(at_s + act.after_ns / 1e9)}       {line}" for line in _act_lines(act)]
        at_s += _lasts(scene, step_s or 0)
    ends = "the job goes on to its end" if day.when_done == "wait" else "once the job is steady again, the day ends it"
    lines.append(f"{_clock(at_s)}  at the earliest the last entry is over; {ends}")
    return lines


def _act_lines(act: Act) -> list[str]:
    lines = [f"{act.name}: {_when(fault.when)}{fault.in_words()}" for fault in act.plan.faults]
    watched = [f"alert {alert.name} within {alert.within}" for alert in act.alerts]
    watched += [f"people {name} within {value}" for name, value in act.people if value is not None]
    return lines + ([f"{act.name}: expects {', '.join(watched)}"] if watched else [])


def _when(when: When) -> str:
    parts = []
    if when.more_steps:
        parts.append(f"{when.more_steps} steps later")
    if when.after_ns:
        parts.append(f"{when.after_ns / 1e9:g} s later")
    if when.following:
        parts.append(f"once {when.following} is {when.event}")
    if when.phase:
        parts.append(f"when a rank enters {when.phase}")
    return f"{', '.join(parts)}, " if parts else ""


def _clock(at_s: float) -> str:
    minutes, seconds = divmod(round(at_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02}"
