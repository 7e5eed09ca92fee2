"""Judges a game day (rehearsals, alerts, people, probes) from its event log alone.

The job, alerts and people are judged separately; the day's verdict is the worst of the three. A rehearsal that did not
run, or that a person stopped, is inconclusive."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from harness.gameday.codes import Code
from harness.judge.score import Scorecard
from harness.judge.verdict import Doubt, Finding, Verdict, merge
from harness.units import format_duration

Event = Mapping[str, Any]
REACTIONS = {  # reaction → actions that show it; to acknowledge is to have detected
    "detect": ("detected", "acknowledged", "mitigated"),
    "acknowledge": ("acknowledged", "mitigated"),
    "mitigate": ("mitigated",),
}

TELLING = ("detected", "acknowledged", "mitigated")  # actions that tell of a problem
MASTER = "master"
SETTLED = "settled"  # only outcome of a rehearsal that can pass
COMPLETED = "completed"  # only outcome of a day that can pass
FIRING_MAX = 1000  # most firing alerts told apart by fingerprint; more are taken by name
SKIPPED = "skipped"  # outcome of an entry that a person skipped
failed, unknown = partial(Finding, Verdict.FAIL), partial(Finding, Verdict.INCONCLUSIVE)


@dataclass(frozen=True)
class Expected:
    """A planned rehearsal, with a time limit in ns for each of its alerts (by name) and each reaction of people."""

    name: str
    scene: int
    alerts: Sequence[tuple[str, int]] = ()
    people: Mapping[str, int] = field(default_factory=dict)
    runbook: str = ""


@dataclass(frozen=True)
class TimedCheck:
    """The check of one expected alert or reaction. `within_ns` and `took_ns` are in ns since the fault's injection."""

    what: str
    within_ns: int
    took_ns: int | None
    verdict: Verdict
    reason: str = ""


@dataclass(frozen=True)
class ActResult:
    """The result of one rehearsal. `begun`, `injected` and `over` are in ns since the log began, and `reactions` in ns
    since the first fault. A time is `None` if its event did not happen."""

    expected: Expected
    outcome: str  # outcome of the rehearsal; not_run: it never began
    why: str
    begun: int | None
    injected: int | None
    over: int | None
    card: Scorecard | None
    reactions: Mapping[str, int | None]
    watches: Sequence[TimedCheck]

    @property
    def ended_by_person(self) -> bool:
        """Returns True if a person or the schedule ended the rehearsal early."""
        return self.outcome in ("stopped", "skipped")

    @property
    def without_an_end(self) -> bool:
        """Returns True if the log lacks the rehearsal's end, because the harness died during the rehearsal."""
        return not self.outcome

    @property
    def machine(self) -> Verdict:
        if self.card is None or self.ended_by_person:
            return Verdict.INCONCLUSIVE
        if self.without_an_end and self.card.verdict is Verdict.INVALID:
            return Verdict.INCONCLUSIVE  # its fault may have acted; the log ends too early to tell
        return self.card.verdict if self.outcome == SETTLED else merge([self.card.verdict, Verdict.INCONCLUSIVE])

    @property
    def reasons(self) -> Sequence[str]:
        why = f": {self.why}" if self.why else ""
        if self.card is None:
            return [f"it was not run{why}"]
        if self.ended_by_person:
            return [f"it was {self.outcome}{why}"]
        if self.outcome != SETTLED and self.card.verdict is Verdict.PASS:
            return [f"it did not settle: {'its end is not in the log' if self.without_an_end else self.outcome}{why}"]
        return self.card.reasons

    @property
    def verdict(self) -> Verdict:
        return merge([self.machine, *(watch.verdict for watch in self.watches)])

    @property
    def worst_first(self) -> Sequence[str]:
        of_machine = self.machine is self.verdict
        said = [each.reason for each in self.watches if each.verdict is self.verdict and not of_machine]
        return [*(text.removeprefix(f"{self.expected.name}: ") for text in said if text), *self.reasons]

    @property
    def wasted_gpu_s(self) -> float:
        scores = self.card.scores.get("wasted_gpu_hours", {}) if self.card else {}
        return float(scores.get("gpu_seconds_wasted_by_faults") or 0.0)

    @property
    def recovery_s(self) -> float | None:
        found = self.card.scores.get("recovery_time", {}).get("seconds") if self.card else None
        return None if found is None else float(found)


@dataclass(frozen=True)
class Moment:
    """A line of a game day's timeline. `kind` is `fault`, `alert`, `person`, `probe`, or `day` (any other event)."""

    at_ns: int
    kind: str
    what: str


@dataclass(frozen=True)
class DayResult:
    verdict: Verdict
    reasons: Sequence[str]
    sides: Mapping[str, Verdict | None]  # machine · alerts · people; `None`: nothing was expected
    acts: Sequence[ActResult]
    moments: Sequence[Moment]
    outcome: str
    job: Scorecard | None
    booked: Mapping[str, Any] | None = None  # ledger of the job, in the form of `harness.campaign.ledger_so_far`

    @property
    def to_fix(self) -> list[ActResult]:
        """Returns the rehearsals that did not pass, then the passed ones that wasted GPU time, the most wasteful first
        in both groups."""
        found = [act for act in self.acts if act.card and (act.wasted_gpu_s > 0 or act.verdict is not Verdict.PASS)]
        return sorted(found, key=lambda act: (act.verdict is Verdict.PASS, -act.wasted_gpu_s))


def judge_day(
    events: Sequence[Event],
    expected: Sequence[Expected],
    cards: Mapping[str, Scorecard],
    job: Scorecard | None,
    probes: Sequence[tuple[str, str]] = (),
) -> DayResult:
    """Judges a game day by the harness's events, in their order in time, and by the scorecards of its rehearsals.
    `probes` holds the name of each probe (a user's check) and when the probe runs: `before`, `during` or `after` a
    fault."""
    begin = int(events[0]["at"]) if events else 0
    acts = _acts(events, expected, cards, begin)
    watches = [watch for act in acts for watch in act.watches]
    alerts = [watch for watch in watches if watch.what.startswith("alert ")] + _false_alarms(events, acts, begin)
    people = [watch for watch in watches if not watch.what.startswith("alert ")] + _guesses(events, acts, begin)
    machine = [*_of_the_schedule(events)]
    for act in acts:
        if act.machine is not Verdict.PASS:
            machine.append(Finding(act.machine, f"{act.expected.name}: {act.reasons[0]}", Code.DAY_REHEARSAL))
    machine += [*_cut_entries(events, acts), *_of_the_job(job, acts), *_unanswered(events, acts, probes)]
    if not acts:
        machine.append(unknown("no rehearsal was planned: nothing is proven", Code.DAY_EMPTY))
    findings = [*machine, *(Finding(watch.verdict, watch.reason, Code.DAY_WATCH) for watch in (*alerts, *people))]
    last = next((e for e in reversed(events) if e["event"] == "gameday.finished"), {})
    sides = {
        "machine": merge([Verdict.PASS, *(finding.verdict for finding in machine)]),
        "alerts": merge(watch.verdict for watch in alerts) if alerts else None,
        "people": merge(watch.verdict for watch in people) if people else None,
    }
    verdict = merge([side for side in sides.values() if side is not None])
    reasons = [each.text for each in findings if each.verdict is verdict and verdict is not Verdict.PASS]
    reasons += [each.text for each in findings if each.verdict not in (verdict, Verdict.PASS)]
    told = [(event, *_kind_and_words(event)) for event in events]
    moments = [Moment(int(event["at"]) - begin, kind, what) for event, kind, what in told if what]
    moments.sort(key=lambda moment: moment.at_ns)
    headline = [] if reasons else [_headline(acts, sides, job)]
    return DayResult(verdict, headline + reasons, sides, acts, moments, str(last.get("outcome", "")), job)


def _headline(acts: Sequence[ActResult], sides: Mapping[str, Verdict | None], job: Scorecard | None) -> str:
    all_of_them = f"all {len(acts)} rehearsals" if len(acts) > 1 else "the one rehearsal"
    said = f"{all_of_them} passed on one job that kept running"
    if job is not None and not any(line.name.startswith("loss_continuity.") for line in job.expectations):
        said += "; its losses were judged in the rehearsals only, not between and after them"
    untold = [name for name in ("alerts", "people") if sides[name] is None]
    return said + (f"; not judged: {' and '.join(untold)} (the plan expects nothing of them)" if untold else "")


def _acts(
    events: Sequence[Event], expected: Sequence[Expected], cards: Mapping[str, Scorecard], begin: int
) -> list[ActResult]:
    spans = {each.name: _span(events, each.name, begin) for each in expected}
    struck = sorted(span[1] for span in spans.values() if span[1] is not None)
    ends = int(events[-1]["at"]) - begin if events else 0
    # The game master knows the schedule, so his presses prove nothing.
    told = [(at, action) for at, action, role in _presses(events, begin) if role != MASTER]
    found = []
    for each in expected:
        begun, injected, over = spans[each.name]
        outcome, why = ("not_run", "") if begun is None else _ended(events, each.name)
        following = next((at for at in struck if injected is not None and at > injected), None)
        reactions: dict[str, int | None] = dict.fromkeys(REACTIONS)
        if injected is not None:
            # reaction → ns from the fault to the first such press, before the next rehearsal's fault
            mine = [
                (at - injected, action)
                for at, action in told
                if at >= injected and (following is None or at < following)
            ]
            for name, shows in REACTIONS.items():
                reactions[name] = next((at for at, action in mine if action in shows), None)
        watches = _people(each, reactions, _not_known(injected, outcome, ends))
        found.append(ActResult(each, outcome, why, begun, injected, over, cards.get(each.name), reactions, watches))
    alerts = _alerts(_windows(found), _firings(events, begin), ends)
    return [replace(act, watches=[*alerts[act.expected.name], *act.watches]) for act in found]


def _ended(events: Sequence[Event], name: str) -> tuple[str, str]:
    begun = next(n for n, e in enumerate(events) if e["event"] == "rehearsal.started" and e["rehearsal"] == name)
    ends = [n for n, e in enumerate(events) if e["event"] == "rehearsal.finished" and e["rehearsal"] == name]
    if not ends:
        return "", ""
    worst = next((n for n in ends if events[n].get("outcome") != SETTLED), ends[0])
    if events[worst].get("outcome") != SETTLED:
        return str(events[worst].get("outcome")), str(events[worst].get("reason") or "")
    for event in events[begun : ends[0]]:
        if event["event"] == "gameday.blocked" or (event["event"] == "gameday.person" and event["action"] == "stop"):
            return "stopped", "a person pressed stop"
        if event["event"] == "gameday.person" and event["action"] == "skip":
            return SKIPPED, "a person skipped it"
        if event["event"] == "gameday.finished":
            return "stopped", "the schedule was over before it had ended"
    return SETTLED, ""


def _not_known(injected: int | None, outcome: str, ends: int) -> Callable[[int], str]:
    """Returns a function that takes a time limit in ns and returns the reason why a missing alert or reaction is
    inconclusive. If a missing alert or reaction is a failure, the function returns an empty text."""

    def why(within_ns: int) -> str:
        if injected is None:
            return "no fault acted"
        if outcome in ("stopped", "skipped"):
            return f"the rehearsal was {outcome}"
        return "the log ends before the allowed time was over" if ends < injected + within_ns else ""

    return why


def _span(events: Sequence[Event], name: str, begin: int) -> tuple[int | None, int | None, int | None]:
    """Returns three times of a rehearsal in ns since `begin`: its start, its first injected fault, and the recovery
    from all its faults."""
    begun = next((e["at"] for e in events if e["event"] == "rehearsal.started" and e["rehearsal"] == name), None)
    plan = next((e.get("plan") or {} for e in events if e["event"] == "plan" and e.get("rehearsal") == name), {})
    ids = {str(fault.get("id")) for fault in plan.get("faults") or ()}
    own = [e for e in events if e.get("fault") in ids]
    injected = min((e["at"] for e in own if e["event"] == "fault.injected"), default=None)
    closed = [e["at"] for e in own if e["event"] in ("fault.healed", "fault.recovered")]
    acted = {e["fault"] for e in own if e["event"] == "fault.injected"}
    recovered = {e["fault"] for e in own if e["event"] == "fault.recovered"}
    over = max(closed, default=None) if acted and acted <= recovered else None
    told = [None if at is None else int(at) - begin for at in (begun, injected, over)]
    return told[0], told[1], told[2]


# Alerts


def _firings(events: Sequence[Event], begin: int) -> list[tuple[int, str]]:
    firing: set[tuple[str, str]] = set()
    found = []
    for event in events:
        if event["event"] == "gameday.alert":
            name = str(event["name"])
            key = name, str(event.get("fingerprint") or "")
            key = key if key in firing or len(firing) < FIRING_MAX else (name, "")
            if event["status"] == "firing" and key not in firing:
                firing.add(key)
                found.append((int(event["at"]) - begin, name))
            elif event["status"] == "resolved":
                firing.discard(key)
    return found


@dataclass(frozen=True)
class _Window:
    """The time from `begin` (inclusive) to `end` (exclusive) in which an expected alert may fire.

    `end` is the end of the fault or of the time limit, whichever is later, but not after the next fault that must raise
    the same alert. `end` is `None` if the fault has no end, and no later fault must raise the same alert."""

    act: ActResult
    name: str
    within_ns: int
    begin: int | None
    end: int | None
    cut: bool = False

    def holds(self, at: int) -> bool:
        return self.begin is not None and self.begin <= at and (self.end is None or at < self.end)


def _windows(acts: Sequence[ActResult]) -> list[_Window]:
    wanted = [(act, name, within) for act in acts for name, within in act.expected.alerts]
    found = []
    for act, name, within_ns in wanted:
        begin = act.injected
        if begin is None:
            found.append(_Window(act, name, within_ns, None, None))
            continue
        end = None if act.over is None else max(act.over, begin + within_ns) + 1
        later = [each.injected for each, other, _ in wanted if other == name and each.injected is not None]
        following = min((at for at in later if at > begin), default=None)
        cut = following is not None and (end is None or following < end)
        found.append(_Window(act, name, within_ns, begin, following if cut else end, cut))
    return sorted(found, key=lambda window: (window.begin or 0, window.within_ns))


def _alerts(windows: Sequence[_Window], firings: Sequence[tuple[int, str]], ends: int) -> dict[str, list[TimedCheck]]:
    served: set[int] = set()
    found: dict[str, list[TimedCheck]] = defaultdict(list)
    for window in windows:
        mine = [number for number, (at, name) in enumerate(firings) if name == window.name and window.holds(at)]
        free = next((number for number in mine if number not in served), None)
        served |= set() if free is None else {free}
        at = None if free is None else firings[free][0]
        found[window.act.expected.name].append(_alert(window, at, ends))
    return found


def _alert(window: _Window, at: int | None, ends: int) -> TimedCheck:
    what, act, within_ns = f"alert {window.name}", window.act, window.within_ns
    took = None if at is None or window.begin is None else at - window.begin
    why = _not_known(window.begin, act.outcome, ends)(within_ns)
    if not why and window.cut and window.end is not None and window.end - (window.begin or 0) <= within_ns:
        why = "another fault that expects this alert struck before the allowed time was over"
    fired = "did not fire" if took is None else f"fired only after {format_duration(took)}"
    return _timed(act.expected.name, what, within_ns, took, why, f"{what} fires", f"{what} {fired}")


def _timed(
    rehearsal: str, what: str, within_ns: int, took: int | None, why: str, hoped: str, instead: str
) -> TimedCheck:
    if took is not None and took <= within_ns:
        return TimedCheck(what, within_ns, took, Verdict.PASS)
    if why:
        text = f"{rehearsal}: it is not known whether {hoped} in time: {why}"
        return TimedCheck(what, within_ns, took, Verdict.INCONCLUSIVE, text)
    text = f"{rehearsal}: {instead} (≤ {format_duration(within_ns)})"
    return TimedCheck(what, within_ns, took, Verdict.FAIL, text)


def _false_alarms(events: Sequence[Event], acts: Sequence[ActResult], begin: int) -> list[TimedCheck]:
    """Returns the alerts of the plan that fired without a fault. After the end of a fault, an alert is not false within
    the plan's longest limit for this alert, because alert rules use data of several minutes."""
    windows = _windows(acts)
    may_follow = {window.name: max(w.within_ns for w in windows if w.name == window.name) for window in windows}
    spans = [(act.injected, act.over) for act in acts if act.injected is not None]
    found = []
    for at, name in _firings(events, begin):
        awaited = any(window.name == name and window.holds(at) for window in windows)
        late = may_follow.get(name, 0)
        at_work = any(low <= at and (high is None or at <= high + late) for low, high in spans)
        if name in may_follow and not awaited and not at_work:
            text = f"alert {name} fired at {format_duration(at)}, when no fault was active"
            found.append(TimedCheck(f"alert {name}", 0, None, Verdict.FAIL, text))
    return found


# People


def _presses(events: Sequence[Event], begin: int) -> list[tuple[int, str, str]]:
    told = [e for e in events if e["event"] == "gameday.person"]
    return [(int(e["at"]) - begin, str(e["action"]), str(e.get("role"))) for e in told]


def _guesses(events: Sequence[Event], acts: Sequence[ActResult], begin: int) -> list[TimedCheck]:
    """Returns an inconclusive check if people seem to guess: they reported problems without a fault at least as often
    as during faults. A person's report counts as right until the fault and people's longest time limit are both
    over."""
    longest = max((within for act in acts for within in act.expected.people.values()), default=0)
    spans = [(act.injected, act.over) for act in acts if act.injected is not None]
    told = [(at, action) for at, action, role in _presses(events, begin) if action in TELLING and role != MASTER]
    # First "mitigated" of each fault: it may come long after the fault is over, and only once.
    mitigated = [at for at, action in told if action == "mitigated"]
    firsts = (min((at for at in mitigated if at >= low), default=None) for low, _ in spans)
    late = {at for at in firsts if at is not None}
    wrong = [
        at
        for at, action in told
        if not any(low <= at and (high is None or at <= max(high, low + longest)) for low, high in spans)
        and not (action == "mitigated" and at in late)
    ]
    right = sum(act.reactions["detect"] is not None for act in acts)
    if not any(act.expected.people for act in acts) or not wrong or len(wrong) < right:
        return []
    text = f"people told of a problem where there was none ({len(wrong)} of {len(told)} times): they may have guessed"
    return [TimedCheck("detect", 0, None, Verdict.INCONCLUSIVE, text)]


def _people(
    expected: Expected, reactions: Mapping[str, int | None], not_known: Callable[[int], str]
) -> list[TimedCheck]:
    found = []
    for name, within_ns in expected.people.items():
        took, why = reactions[name], not_known(within_ns)
        said = "nobody did" if took is None else f"it took {format_duration(took)}"
        hoped, instead = f"people {name} it", f"people {name}: {said}"
        found.append(_timed(expected.name, name, within_ns, took, why, hoped, instead))
    return found


# The machine


def _of_the_job(job: Scorecard | None, acts: Sequence[ActResult]) -> list[Finding]:
    if job is None:
        return [unknown("the job as a whole could not be judged", Code.DAY_JOB_UNKNOWN)]
    cut = job.verdict is Verdict.INVALID and any(act.ended_by_person or act.without_an_end for act in acts)
    verdict = Verdict.INCONCLUSIVE if cut else job.verdict
    return [] if verdict is Verdict.PASS else [Finding(verdict, f"the job as a whole: {job.reasons[0]}", Code.DAY_JOB)]


def _of_the_schedule(events: Sequence[Event]) -> Iterable[Finding]:
    last = next((e for e in reversed(events) if e["event"] == "gameday.finished"), None)
    struck = any(e["event"] == "fault.injected" for e in events)
    if last is None:
        yield unknown("the schedule is incomplete: the harness ended before it was over", Code.DAY_NO_END)
    elif last["outcome"] == "budget":
        yield failed(f"the error budget is spent: {last.get('reason')}", Code.DAY_BUDGET)
    elif last["outcome"] == "not_steady":
        why, code = str(last.get("reason")), Code.DAY_NOT_STEADY
        yield failed(why, code) if struck else unknown(why, code, Doubt.NOTHING_STRUCK)
    elif last["outcome"] != COMPLETED:
        why = str(last.get("reason") or "no reason is given")
        ended = next((e for e in reversed(events) if e["event"] == "run.finished"), {})
        if last["outcome"] == "job_ended" and ended.get("outcome") != COMPLETED and ended.get("reason"):
            why += f": {ended['reason']}"
        yield unknown(f"the schedule was not completed: {last['outcome']}: {why}", Code.DAY_NOT_COMPLETED)
    unsteady = next((e for e in events if e["event"] == "gameday.steady" and not e["ok"]), None)
    if unsteady and last is not None and last["outcome"] != "not_steady":
        text = f"the job was not steady ({unsteady.get('reason')}), and yet the day went on"
        yield unknown(text, Code.DAY_WENT_ON_UNSTEADY)
    for event in events:
        if event["event"] == "gameday.probe" and not event["ok"]:
            early = event["moment"] == "before"
            text = f"probe {event['name']} failed ({event['moment']}): {event.get('detail')}"
            yield unknown(text, Code.PROBE_FAILED, Doubt.NOTHING_STRUCK) if early else failed(text, Code.PROBE_FAILED)


def _unanswered(
    events: Sequence[Event], acts: Sequence[ActResult], probes: Sequence[tuple[str, str]]
) -> Iterable[Finding]:
    answered = {(e["name"], e["moment"], e.get("rehearsal")) for e in events if e["event"] == "gameday.probe"}
    for scene in sorted({act.expected.scene for act in acts if act.begun is not None}):
        names = ", ".join(act.expected.name for act in acts if act.expected.scene == scene)
        for name, moment in probes:
            if (name, moment, names) not in answered:
                yield unknown(f"probe {name} never answered ({moment} {names})", Code.PROBE_UNANSWERED)


def _cut_entries(events: Sequence[Event], acts: Sequence[ActResult]) -> Iterable[Finding]:
    told = {act.expected.scene for act in acts if act.outcome != SETTLED}
    for event in events:
        if event["event"] == "gameday.entry" and event.get("edge") == "end" and event["entry"] not in told:
            cut = sorted(set(str(event.get("reason") or "").split(", ")) - {"", SETTLED})
            if cut:
                text = f"entry {int(event['entry']) + 1}: the {event['kind']} was {', '.join(cut)}"
                yield unknown(text, Code.DAY_ENTRY_CUT)


# The timeline

_FAULTS = {
    "fault.injected": "acts",
    "fault.effect": "its effect is measured",
    "fault.healed": "undone",
    "fault.recovered": "the job makes new progress",
    "fault.failed": "could not act or be undone",
    "fault.postponed": "has to wait",
}


def _kind_and_words(event: Event) -> tuple[str, str]:
    name = str(event["event"])
    if name in _FAULTS:
        return "fault", f"{event.get('fault')}: {_FAULTS[name]}" + _because(event.get("reason") or event.get("error"))
    if name in ("rehearsal.started", "rehearsal.finished"):
        ended = name.endswith("finished")
        return "day", f"{event['rehearsal']}: " + (f"over, {event.get('outcome')}" if ended else "begins")
    if name == "gameday.person":
        by = event.get("who") or event.get("role")
        return "person", f"{by}: {event['action']}" + _because(event.get("text"))
    if name == "gameday.alert":
        return "alert", f"{event['name']} {event['status']}" + _because(event.get("summary"))
    if name == "gameday.probe":
        return "probe", f"{event['name']} {'passed' if event['ok'] else 'failed'} ({event['moment']})"
    words = {
        "gameday.started": "the game day begins",
        "gameday.steady": "the job is steady" if event.get("ok") else "the job is not steady",
        "gameday.blocked": "injections are blocked",
        "gameday.lifted": "injections are allowed again",
        "gameday.finished": "the schedule is over",
        "run.finished": "the job is over",
        "node.released": f"node {event.get('node')} is gone",
        "abort": "the job was aborted",
    }
    return "day", words[name] + _because(event.get("reason")) if name in words else ""


def _because(text: object) -> str:
    return f" ({text})" if text else ""
