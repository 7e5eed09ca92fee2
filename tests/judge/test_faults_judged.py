"""A fault in the scorers' hands: when anybody in the job noticed it, whom it struck, and whether it was undone."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from judging import EXPECT, Bend, acted_as, bending, fault_free_of, together, verdict
from scorecards import assert_verdict
from simulator import Job, Logs, Outage, clocks, put, remove, simulate

from harness.evidence.by_time import Places
from harness.evidence.faults import Effect, stopped
from harness.evidence.work import Work
from harness.judge.guarantees import (
    fault_as_planned,
    fault_for_its_time,
    fault_in_time,
    fault_kept_down,
    fault_on_target,
    fault_struck,
    job_left_with_notice,
)
from harness.judge.questions.metrics import _detection, _episode_ends
from harness.judge.score import Scorecard
from harness.judge.verdict import Verdict
from harness.log.consequences import May
from harness.timeline.timeline import Beside, FaultRecord, Slot
from harness.units import Duration, format_duration

JOB = Job(nodes=2, steps=80, every=10)
FAULT_FREE = fault_free_of(JOB)
SECOND = 10**9
EIGHT_SECONDS = Duration("8s")


def told(event: str, **fields: Any) -> Bend:
    return lambda logs: logs.told(event).update(fields)


def planned(**fields: Any) -> Bend:
    return lambda logs: logs.plan["faults"][0].update(fields)


@bending
def moved(logs: Logs, event: str, seconds: float) -> None:
    """To so long after the fault's begin."""
    logs.told(event).update(clocks(logs.told("fault.injected"), round(seconds * 10**9)))
    logs.put()


def earlier(logs: Logs) -> None:
    """In the middle of the steps of rank 1."""
    for line in (logs.told("fault.injected"), logs.told("fault.effect")):
        line |= clocks(line, -7 * 10**8)
    logs.put()


FROZEN_BEFORE = together(
    planned(fault="hang", parameters={"how": "freeze_rank", "duration": "1s"}),
    told("fault.injected", kind="hang", may=["stop"], lasts="1s", freezes=True),
    earlier,
)


def effect(measured: object, expected: object, unit: str) -> Bend:
    return told("fault.effect", measured=measured, expected=expected, unit=unit, ok=True)


def record(**told: Any) -> FaultRecord:
    silent = {"id": "f", "kind": "", "targets": (), "effects": (), "recovered": None, "healed": None, "error": None}
    return FaultRecord(**silent | told)


def flaws(guarantee: Any, fault: FaultRecord, places: Any = None, work: Any = None, **run: Any) -> list[str]:
    """What breaks it in a run with this fault alone."""
    told = {"faults": [fault], "beside": Beside(), "steps": (), "uncertainty_ns": 0, "outcome": "completed"}
    told |= {"lost": 0, "nodes": (), "slots": [None], "stretches": (), "steps_before": 0, "first_complete": lambda _: 0}
    known: Any = SimpleNamespace(**told | run)
    places = places or SimpleNamespace(given={}, ended={}, kept=(), had=lambda *_: True, alive=lambda *_: [])
    planned = run.get("planned_faults", {})
    evidence = SimpleNamespace(
        run=known, places=places, work=work or Work(known), planned_faults=planned, last_notices={}
    )
    return [each.words.removeprefix("fault f ") for each in guarantee.GUARANTEE.breaches(evidence)]


def judged(bend: Bend, kind: str = "rank") -> Scorecard:
    return verdict(simulate(JOB, [Outage(17, kind, victim=1)], seed=5), bend, EXPECT, FAULT_FREE)


@pytest.mark.parametrize(
    ("bend", "reason"),
    [
        (effect(0, 1, "processes gone"), "measured 0 processes gone"),
        (planned(when={"step": 40}), "struck after step 17, and was planned for step 40"),
        (moved("fault.healed", -2), "was undone 2.00 s before it acted"),
        (planned(fault="nic_loss"), "was a `rank_kill`, and a `nic_loss` was planned"),
        (FROZEN_BEFORE, "froze rank 1, but the rank did"),
    ],
)
def test_what_the_log_shows_outweighs_that_it_acted(bend: Bend, reason: str) -> None:
    assert_verdict(judged(bend), Verdict.INVALID, reason)


@pytest.mark.parametrize(
    ("seconds", "other"), [(0, False), (1e-9, True), (4.499, True), (4.5, False), (15.555, False), (15.556, True)]
)
def test_a_notice_does_not_last_much_longer_either(seconds: float, other: bool) -> None:
    at = round(seconds * 10**9)
    evict = record(injected=0, notice_ns=5 * 10**9, may={May.KILL}, strikes=(at,), lasts=None)
    found = flaws(fault_as_planned, evict, work=SimpleNamespace(over=10**12, has_steps=True))
    assert found == [f"took the node {format_duration(at)} after its notice; 5.00 s were planned"] * other


@pytest.mark.parametrize(("back", "told"), [(None, False), (False, True), (True, False)])
def test_where_no_replacement_was_planned_none_comes(back: bool | None, told: bool) -> None:
    evict = record(replaced=back, targets=({"node": "a", "incarnation": 1, "rank": None},), injected=30)
    there = SimpleNamespace(given={("a", 1): 20, ("a", 2): 40})
    assert flaws(fault_as_planned, evict, there) == ["was to bring no replacement, and a came back"] * told


@pytest.mark.parametrize(("ended", "alive", "told"), [(2, 0, True), (2, 1, False), (9.9, 0, False), (11, 0, False)])
def test_a_node_that_had_ended_was_not_struck(ended: float, alive: int, told: bool) -> None:
    at = {("a", 1): round(ended * 10**9)}
    there = SimpleNamespace(ended=at, alive=lambda *_: [1] * alive, had=lambda *_: True)
    evict = record(injected=10**10, targets=({"node": "a", "rank": None}, {"node": "a", "rank": 1}))
    workers = [SimpleNamespace(coordinates={})] * 2
    found = flaws(fault_on_target, evict, there, processes=workers, plan={})
    assert found == ["struck a, whose command had ended 8.00 s before"] * told


@pytest.mark.parametrize(
    ("again", "struck", "told"),
    [(True, "b", ""), (False, "b", "struck b, not a and b"), (True, "c", "struck c, not a and b")],
)
def test_a_fault_that_acts_again_may_strike_one_of_its_targets(again: bool, struck: str, told: str) -> None:
    aims = {"f": {"targets": [{"node_index": 0}, {"node_index": 1}]}}
    lemon = record(injected=10, targets=({"node": struck, "rank": None},), again=again)
    found = flaws(fault_on_target, lemon, nodes=("a", "b", "c"), plan={}, planned_faults=aims)
    assert found == [told] * bool(told)


@pytest.mark.parametrize(
    ("measured", "expected", "unit", "acted"),
    [
        (1, 2, "processes stopped", False),
        (2, 0, "processes left", False),
        (0.0, 7.5, "% of packets", False),
        (0, 0, "processes gone", False),
        (float("inf"), 1, "processes gone", False),
        ("nan", 1, "processes gone", False),
        (None, None, "processes gone", False),
        (2, 1, "processes killed for memory", True),
        (6.9, 7.5, "% of packets lost", True),  # a rate may be nearly what was planned
        (900, 1000, "bytes available", True),
        (0, 0, "processes left", True),
    ],
)
def test_the_numbers_outweigh_what_a_fault_says(measured: object, expected: object, unit: str, acted: bool) -> None:
    assert Effect.of({"measured": measured, "expected": expected, "unit": unit, "ok": True}).acted is acted
    late, left = ({"measured": 1, "expected": 0, "unit": unit, "ok": True} for unit in ("ms", "processes stopped"))
    assert Effect.of(late).is_over and not Effect.of(left).is_over


@pytest.mark.parametrize(
    ("digest", "told", "same"),
    [("before", {}, 1), ("after", {}, 0), ("before", {"sampled": True}, 0), ("before", {"at": 6}, 0)],
)
def test_damage_changes_what_the_harness_sees(digest: str, told: dict[str, Any], same: int) -> None:
    """But for a large checkpoint, of which it digests samples. It may see the damage before the fault tells it."""
    seen = {"path": "c/step-10", "sha256": "before", "at": 5} | told
    damage = {"checkpoint": "c/step-10", "sha256": digest, "at": 7}
    found = flaws(fault_as_planned, record(injected=7, damaged=(damage,), injecting=6), published=[seen])
    assert found == ["left c/step-10 as it was: the harness saw the same content before"] * same


class _Sized:
    """As much of a table of steps as is asked for here."""

    def __init__(self, end: Any):
        self.end = self.begin = end
        self.process = np.zeros(0, np.int64)

    def __len__(self) -> int:
        return len(self.end)


def places(**known: Any) -> Places:
    nothing = {"slots": [], "processes": [], "exits": [], "steps": _Sized(np.zeros(0, np.int64))}
    run: Any = SimpleNamespace(**nothing | known)
    run.steps.begin = run.steps.begin[: len(run.steps.process)]
    return Places(run)


def episode(end: int, *faults: str) -> Any:
    return SimpleNamespace(end=end, faults=faults)


@pytest.mark.parametrize(
    ("evidence", "episodes", "healed", "found"),
    [
        ([40], [episode(50, "kill")], None, 30),
        ([50], [episode(50, "kill")], None, 40),
        ([51], [episode(50, "kill")], None, None),
        ([9, 10, 12], [episode(50, "kill")], None, 0),
        ([9], [episode(50, "kill")], None, None),
        ([], [], None, None),
        ([60], [episode(70, "other")], None, 50),
        ([60], [episode(9, "kill")], 61, 50),
        ([60], [], 60, 50),
        ([61], [], 60, None),
        ([100], [], None, 90),
        ([101], [], None, None),
        ([55], [episode(50, "kill"), episode(80, "kill")], None, None),
        ([10], [episode(10, "kill")], 5, 0),
    ],
)
def test_a_sign_counts_in_time(evidence: list[int], episodes: list[Any], healed: int | None, found: int | None) -> None:
    run: Any = SimpleNamespace(evidence=np.array(evidence, np.int64), episodes=episodes, end=100)
    fault: Any = SimpleNamespace(id="kill", injected=10, healed=healed)
    assert _detection(run, fault, _episode_ends(run)) == found
    fault.injected = None
    assert _detection(run, fault, _episode_ends(run)) is None, "it never struck"


@pytest.mark.parametrize(
    ("target", "at", "had"),
    [
        ({"node": "a", "rank": None}, 10, True),
        ({"node": "a", "rank": None}, 0, True),
        ({"node": "a", "incarnation": 2, "rank": None}, 29, False),
        ({"node": "a", "incarnation": 2, "rank": None}, 30, True),
        ({"node": "a", "incarnation": 1, "rank": None}, 20, True),
        ({"node": "a", "incarnation": 1, "rank": None}, 21, False),
        ({"node": "a", "incarnation": 2, "rank": None}, 10, False),
        ({"node": "a", "incarnation": 2, "rank": None}, 31, True),
        ({"node": "b", "rank": None}, 10, False),
    ],
)
def test_the_job_had_what_was_struck(target: dict[str, Any], at: int, had: bool) -> None:
    """A target without an incarnation is the node's first."""
    slots = [Slot("a", n, 0, allocated=30 * n - 30, released=30 * n - 10) for n in (1, 2)]
    found = flaws(fault_on_target, record(injected=at, targets=(target,)), places(slots=slots))
    assert found == [f"struck {target['node']}, which was not part of the job at that time"] * (not had)


@pytest.mark.parametrize(
    ("outcome", "error", "told"),
    [("completed", None, True), ("completed", "no such device", False), (None, None, False), (None, "x", False)],
)
def test_a_fault_that_was_to_end_and_did_not_is_no_proof(outcome: str | None, error: str | None, told: bool) -> None:
    """What broke off says so itself; a log without an end may have lost the line."""
    full = record(injected=10, error=error, lasts=EIGHT_SECONDS)
    never = ["was never undone; its planned duration is 8s"] * told
    assert flaws(fault_for_its_time, full, outcome=outcome) == never
    assert flaws(fault_for_its_time, replace(full, lasts=None), outcome=outcome) == []


@pytest.mark.parametrize(
    ("lasted", "node", "rank", "at", "last_step", "too_short"),
    [
        (8 * SECOND, "b", 1, 0, 99, False),
        (8 * SECOND - 1, "b", 1, 0, 99, True),
        (5 * SECOND, "b", 1, 3 * SECOND, 99, True),  # somebody else ended
        (5 * SECOND, "a", 1, 0, 99, False),  # its victim did, from its first instant ...
        (5 * SECOND, "a", 1, 6 * SECOND, 99, False),  # ... to a second after, when its launcher has seen it
        (5 * SECOND, "a", 1, 6 * SECOND + 1, 99, True),
        (5 * SECOND, "a", 2, 5 * SECOND, 99, False),
        (5 * SECOND, "a", 2, 5 * SECOND + 1, 99, True),  # of another rank nothing is late
        (5 * SECOND, "a", 1, -1, 99, True),  # before it struck
        (5 * SECOND, "b", 1, 0, 5, False),  # the job was over
        (5 * SECOND, "b", 1, 0, 6, True),
        (5 * SECOND, "b", 1, 0, None, False),
    ],
)
def test_its_time_is_kept(lasted: int, node: str, rank: int, at: int, last_step: int | None, too_short: bool) -> None:
    """It struck rank 1 on node a, at 10 s. Times of exits count from then; the last step ends at so many seconds."""
    struck = 10 * SECOND
    ended = {"node": node, "incarnation": 1, "rank": rank, "at": struck + at}
    end = np.array([] if last_step is None else [(10 + last_step) * SECOND], np.int64)
    target = {"node": "a", "incarnation": 1, "rank": 1}
    slow = record(injected=struck, healed=struck + lasted, targets=(target,), lasts=EIGHT_SECONDS)
    found = flaws(fault_for_its_time, slow, places(exits=[ended]), steps=_Sized(end))
    assert found == [f"was undone after {format_duration(lasted)}; its planned duration is 8s"] * too_short


@pytest.mark.parametrize(
    ("when", "fault", "text"),
    [
        ({"step": 5}, {"injecting": 15}, ""),
        ({"step": 5}, {"injecting": 16}, "struck 6.00 s after step 5"),
        ({"step": 5}, {"injecting": 16, "recovered": 31, "recovered_step": 11}, ""),  # the harness reads the log late
        ({"step": 5}, {"injecting": 16, "held_back": "another fault is at work"}, ""),
        ({"step": 5, "following": "other"}, {"injecting": 16}, ""),
        ({"step": "x"}, {"injecting": 10}, "has no planned step that can be read: 'x'"),
        ({"phase": "save"}, {"armed": 12, "injecting": 20}, ""),
        ({"phase": "save"}, {"armed": 22, "injecting": 23}, ""),  # the phase began before that, and was read then
        ({"phase": "save"}, {"armed": 12, "injecting": 19}, "struck before the phase save began"),
        ({"phase": "save"}, {"armed": 12, "injecting": 26}, "struck 6.00 s after the phase save"),
        ({"phase": "untold"}, {"armed": 12, "injecting": 26}, ""),
    ],
)
def test_a_fault_strikes_when_its_moment_has_come(when: dict[str, Any], fault: dict[str, Any], text: str) -> None:
    """Step 5 is done at 10 s, step 11 at 30 s, and a save begins at 20 s."""
    told = {name: value if name in ("recovered_step", "held_back") else value * SECOND for name, value in fault.items()}
    ends, save = {5: 10 * SECOND, 11: 30 * SECOND}, {"name": "save", "at": 20 * SECOND}
    run: Any = SimpleNamespace(uncertainty_ns=0, steps_before=0, stride=1, epochs=(), phases=[save])
    run.first_complete = lambda step: ends.get(step, 0)
    work = SimpleNamespace(furthest=lambda at: 11)
    evidence: Any = SimpleNamespace(run=run, planned_faults={"f": {"when": when}}, work=work)
    found = fault_as_planned._moment(evidence, record(**told, injected=told["injecting"]))
    assert list(found) == [text] * bool(text)


@pytest.mark.parametrize(("exit_told", "goes_on"), [(0, False), (1.2, False), (0, True)])
def test_a_victim_that_says_nothing_more_while_others_form_a_new_world_is_gone(exit_told: float, goes_on: bool) -> None:
    """Its launcher tells the end never, or later than it happened."""

    def bend(logs: Logs) -> None:
        acted_as(logs, "hang", kills=False, may=["stop"], lasts="60s")
        moved("fault.healed", 0.1)(logs)
        for lines in logs.values():
            for line in [line for line in lines if line.get("code") == -9]:
                line |= clocks(line, round(exit_told * 10**9))
                lines.remove(line) if not exit_told else put(lines)
        if goes_on:
            put(logs.trainers(1, 0)[0], {"event": "anomaly", "kind": "hang"} | clocks(logs.told("fault.healed"), 1000))

    told = "its planned duration is 60s"
    assert_verdict(judged(bend), *((Verdict.INVALID, told) if goes_on else (Verdict.PASS,)))


@pytest.mark.parametrize(
    ("injected", "finished", "steps", "late"),
    [(100, True, 1, False), (101, True, 1, True), (101, False, 1, False), (101, True, 0, False)],
)
@pytest.mark.parametrize("last", ["step", "checkpoint", "start"])
@pytest.mark.parametrize("uncertain", [0, 7])
def test_a_fault_is_too_late(injected: int, finished: bool, steps: int, late: bool, last: str, uncertain: int) -> None:
    """The last thing the job did was at 100, by clocks that are known to so many nanoseconds."""
    at = {name: 100 if name == last else 90 for name in ("step", "checkpoint", "start")}
    found = flaws(
        fault_in_time,
        record(injected=injected + uncertain, may={May.KILL}),
        finished=finished,
        steps=_Sized(np.array([at["step"]] * steps, np.int64)),
        checkpoints=[{"at": at["checkpoint"]}],
        processes=[SimpleNamespace(started=at["start"])],
        uncertainty_ns=uncertain,
    )
    assert found == ["struck after the job had done all its work"] * late


@pytest.mark.parametrize(
    ("last_begin", "struck", "may", "left"),
    [
        (80, 100, set(), None),  # half a step is left
        (80, 101, set(), "19.00 s"),
        (80, 120, set(), "0 µs"),
        *((80, 101, {may}, None) for may in (May.KILL, May.STOP, May.SPOIL)),
        (110, 110, set(), None),  # the last step is a short one, and it all is left
        (110, 111, set(), "9.00 s"),
    ],
)
@pytest.mark.parametrize("uncertain", [0, 7])
def test_slowing_needs_some_time(last_begin: int, struck: int, may: set[May], left: str | None, uncertain: int) -> None:
    """Steps take 40 s, and the last one ends at 120 s. Clocks are known to so many nanoseconds."""
    steps = _Sized(SECOND * np.array([40, 80, 120]))
    steps.begin = SECOND * np.array([0, 40, last_begin])
    run = {"finished": True, "steps": steps, "checkpoints": [], "processes": [], "uncertainty_ns": uncertain}
    found = flaws(fault_in_time, record(injected=struck * SECOND + uncertain, may=may), **run)
    told = f"struck {left} before the end of the last step: too late to have an effect"
    assert found == ([] if left is None else [told])


@pytest.mark.parametrize(
    ("ends", "exited", "code", "last_seen", "what"),
    [
        ([20, 60], None, None, 20, None),  # the step in which it was struck, and the first one after it
        ([21], None, None, 20, "did 1 step"),
        ([20, 21, 59], None, None, 59, "did 2 steps"),
        ([], 21, 1, 20, "exited"),
        ([], 59, 0, 20, "exited"),
        ([], 20, 1, 20, None),
        ([], 60, 1, 60, None),
        *(([], 30, code, 20, None) for code in (None, -9, 137, -15, 143)),  # who is killed can do nothing about it
        ([], None, None, 21, "said something"),
        ([], None, None, 59, "said something"),
    ],
)
def test_a_frozen_rank(ends: list[int], exited: int | None, code: int | None, last_seen: int, what: str | None) -> None:
    """It was struck at 10, and seen to stand still at 20; its time was over at 60."""
    worker = SimpleNamespace(rank=1, exited=exited, exit_code=code, last_seen=last_seen)
    lasts: Any = SimpleNamespace(ns=50)
    hang = record(injected=10, freezes=True, effects=({"at": 20},), targets=({},), lasts=lasts)
    rows = np.arange(len(ends)), [0, 0, len(ends)]  # another process told nothing

    def found(**fault: Any) -> list[str]:
        there = SimpleNamespace(alive=lambda target, moment: [1])
        run = {"processes": [None, worker], "steps": _Sized(np.array(ends, np.int64)), "rows_by_process": rows}
        return flaws(fault_kept_down, replace(hang, **fault), there, **run)

    told = [f"froze rank 1, but the rank {what} meanwhile"] if what else []
    assert [found(healed=at) for at in (None, 60, 90)] == [told] * 3
    assert found(cancelled=21) == [], "it was let go a moment after it was told to end"


@pytest.mark.parametrize(
    ("cancelled", "effects", "last_step", "told"),
    [
        (5, True, 99, True),
        (5, False, 99, True),
        (9, False, 99, True),  # before its effect was measured
        (9, True, 99, False),
        (None, True, 99, False),
        (5, True, 5, False),  # the job was over
    ],
)
def test_what_people_stopped_is_told_so(cancelled: int | None, effects: bool, last_step: int, told: bool) -> None:
    """It struck at 10 s. Times count from then."""
    at = 10 * SECOND
    steps = _Sized(np.array([at + last_step * SECOND]))
    slow = record(
        injected=at,
        healed=at + 5 * SECOND,
        lasts=EIGHT_SECONDS,
        cancelled=None if cancelled is None else at + cancelled * SECOND,
        effects=({"at": at + 1, "measured": 1, "expected": 1, "ok": True},) * effects,
    )
    run: Any = SimpleNamespace(steps=steps)
    assert stopped(Work(run), slow) == ((cancelled or 0) * SECOND if told else None)
    if told:
        assert flaws(fault_for_its_time, slow, places(), steps=steps) == []
        assert flaws(fault_struck, slow, places(), steps=steps) == []


@pytest.mark.parametrize(
    ("outcome", "struck", "told"),
    [("aborted", True, True), ("aborted", False, False), ("completed", False, True), ("failed", False, True)],
)
def test_one_that_never_struck_is_told_unless_the_job_gave_up_before(outcome: str, struck: bool, told: bool) -> None:
    def bend(logs: Logs) -> None:
        begun = logs.told("fault.injected")
        logs.plan["faults"] += [logs.plan["faults"][0] | {"id": name} for name in ("second", "third")]
        logs.harness[-1] |= {"outcome": outcome, "reason": "why"}
        if not struck:
            remove(logs.harness, lambda line: "fault" in line and line is not begun)
            begun |= {"event": "fault.postponed", "reason": "not yet"}

    reasons = judged(bend).reasons
    for name in ("second", "third"):
        assert (f"fault {name} never struck: its trigger never came" in reasons) is told, reasons
    held_back = "fault fault1 never struck: it was due, but held back: not yet"
    assert (held_back in reasons) is (told and not struck), reasons


@pytest.mark.parametrize(
    ("started", "last_seen", "rank", "begin", "outlived"),
    [
        (5, 40, 1, 26, True),
        (5, 40, 1, 25, False),  # a step between the strike and the moment in which it was seen gone
        (20, 40, 1, 26, True),
        (21, 40, 1, 30, False),  # its successor
        (5, 20, 1, 19, False),
        (5, 40, 2, 26, False),  # another rank of the node
    ],
)
def test_who_steps_after_its_death_lives(started: int, last_seen: int, rank: int, begin: int, outlived: bool) -> None:
    """Rank 1 on node a was killed at 20, and seen to be gone at 25."""
    ended = {"exited": None}
    worker = SimpleNamespace(key=("a", 1), rank=rank, started=started, last_seen=last_seen, **ended)
    other = SimpleNamespace(key=("b", 1), rank=0, started=0, last_seen=99, **ended)
    steps = SimpleNamespace(process=np.array([0, 1, 0]), begin=np.array([6, 90, begin]))
    known = {"processes": [worker, other], "steps": steps}
    target = {"node": "a", "incarnation": 1, "rank": 1}
    kill = record(injected=20, targets=(target,), may={May.KILL}, effects=({"at": 25},))
    told = ["killed rank 1, but the rank did steps afterwards"] * outlived
    assert flaws(fault_kept_down, kill, places(**known), **known) == told


@pytest.mark.parametrize("lemon", [False, True])
@pytest.mark.parametrize(
    ("code", "at", "rank", "notice", "kept", "told"),
    [
        (75, 90, None, None, True, False),
        (75, 90, None, None, False, True),  # a fault took it
        (75, 90, None, "metadata", True, True),
        (75, 90, None, "peer", True, False),  # that another node is to go is no reason
        (0, 49, None, None, True, False),  # while the others went on: the last step began at 60, by clocks known to 10
        (0, 50, None, None, True, True),
        (0, 49, 1, None, True, True),  # a worker: its launcher starts it again
        (1, 49, None, None, True, True),  # that is a death, which is another thing
    ],
)
def test_a_node_leaves_for_a_reason(
    code: int, at: int, rank: int | None, notice: str | None, kept: bool, told: bool, lemon: bool
) -> None:
    """A node may leave, too, if a fault strikes each new life of it (`lemon`)."""
    place = {"node": "a", "incarnation": 1}
    slots = [SimpleNamespace(key=("a", 1), kept=kept, allocated=0, released=99)]
    run: Any = SimpleNamespace(
        begin=0,
        progress=_Sized(np.array([30, 61])),
        uncertainty_ns=10,
        notices=[place | {"source": notice}] if notice else [],
        faults=[record(injected=1, targets=({"node": name},), sticks=lemon or name == "b") for name in "ab"],
        exits=[place | {"code": code, "at": at, "rank": rank}],
    )
    run.progress.begin = np.array([20, 60])
    evidence: Any = SimpleNamespace(run=run, places=places(slots=slots))
    found = [each.words for each in job_left_with_notice.breaches(evidence)]
    told |= lemon
    assert found == [f"a left the job with exit code {code} at 0 µs, without a notice"] * (not told)
