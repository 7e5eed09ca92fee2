"""A fault in the scorers' hands: when anybody in the job noticed it, whom it struck, and whether it was undone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from judging import EXPECT, Bend, bending, fault_free_of, together, verdict
from scorecards import assert_verdict
from simulator import Job, Logs, Outage, clocks, remove, simulate

from harness.judge.facts.by_time import Places
from harness.judge.facts.job_end import LeftWithoutNotice, left_without_notice
from harness.judge.questions.faults import (
    _already_ended,
    _effect,
    _for_its_time,
    _no_damage,
    _not_frozen,
    _otherwise,
    _outlived,
    _replaced,
    _stopped,
    _too_late,
    _Work,
    _wrong_target,
)
from harness.judge.questions.figures import _detection, _episode_ends
from harness.judge.score import Scorecard
from harness.judge.verdict import Code, Verdict
from harness.units import Duration

JOB = Job(nodes=2, steps=80, every=10)
FAULT_FREE = fault_free_of(JOB)


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


def judged(bend: Bend, kind: str = "rank") -> Scorecard:
    return verdict(simulate(JOB, [Outage(17, kind, victim=1)], seed=5), bend, EXPECT, FAULT_FREE)


@pytest.mark.parametrize(
    ("bend", "reason"),
    [
        (effect(0, 1, "processes gone"), "measured 0 processes gone"),
        (effect(1, 2, "processes stopped"), "measured 1 processes"),
        (effect(2, 0, "processes left"), "measured 2 processes left"),
        (effect(0.0, 7.5, "% of packets"), "measured 0.0 % of packets"),
        (effect(0, 0, "processes gone"), "measured 0 processes gone"),
        (effect(float("inf"), 1, "processes gone"), "measured inf"),
        (effect("nan", 1, "processes gone"), "measured nan"),
        (effect(None, None, "processes gone"), "measured None"),
        (planned(when={"step": 40}), "struck after step 17, and was planned for step 40"),
        (moved("fault.healed", -2), "was undone 2.00 s before it acted"),
        (planned(fault="nic_loss"), "was a `rank_kill`, and a `nic_loss` was planned"),
        (FROZEN_BEFORE, "froze rank 1, but the rank did"),
    ],
)
def test_what_the_log_shows_outweighs_that_it_acted(bend: Bend, reason: str) -> None:
    assert_verdict(judged(bend), Verdict.INVALID, reason)


@pytest.mark.parametrize(("seconds", "expected"), [(0.3, Verdict.PASS), (1.0, Verdict.INVALID)])
def test_a_notice_lasts_as_long_as_it_promises(seconds: float, expected: Verdict) -> None:
    def promised(logs: Logs) -> None:
        del logs.told("fault.injected")["kills"]
        logs.told("fault.injected").update(may=["kill"], notice_ns=int(seconds * 1e9))

    card = judged(promised, "notice")
    assert card.verdict is expected, card.reasons
    assert expected is Verdict.PASS or "after its notice; 1.00 s were planned" in card.reasons[0]


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, ""), (1e-9, "0 µs"), (4.499, "4.50 s"), (4.5, ""), (15.555, ""), (15.556, "15.56 s")]
)
def test_a_notice_does_not_last_much_longer_either(seconds: float, shown: str) -> None:
    evidence: Any = SimpleNamespace(run=SimpleNamespace(outcome="completed", steps=[1]), places=None)
    strikes = {"injected": 0, "notice_ns": 5 * 10**9, "kills": True, "targets": (), "id": "evict"}
    fault: Any = SimpleNamespace(**strikes, strikes=(round(seconds * 10**9),))
    work: Any = SimpleNamespace(over=10**12)
    expected = [f"took the node {shown} after its notice; 5.00 s were planned"] if shown else []
    assert [text for _, text in _otherwise(evidence, work, fault)] == expected


@pytest.mark.parametrize(("back", "flaws"), [(None, 0), (False, 1), (True, 0)])
def test_where_no_replacement_was_planned_none_comes(back: bool | None, flaws: int) -> None:
    target = {"node": "a", "incarnation": 1, "rank": None}
    fault: Any = SimpleNamespace(replaced=back, targets=(target,), injected=30)
    there: Any = SimpleNamespace(given={("a", 1): 20, ("a", 2): 40})
    assert len([*_replaced(there, fault)]) == flaws


@pytest.mark.parametrize(("ended", "alive", "flaws"), [(2, False, 1), (2, True, 0), (9.9, False, 0), (11, False, 0)])
def test_a_node_that_had_ended_was_not_struck(ended: float, alive: bool, flaws: int) -> None:
    there: Any = SimpleNamespace(
        ended={("a", 1): round(ended * 10**9)}, alive=lambda target, moment: iter([1] if alive else [])
    )
    fault: Any = SimpleNamespace(injected=10**10, targets=({"node": "a", "rank": None}, {"node": "a", "rank": 1}))
    run: Any = SimpleNamespace(uncertainty_ns=0)
    assert [code for code, _ in _already_ended(there, run, fault)] == [Code.FAULT_NOT_OF_JOB] * flaws


@pytest.mark.parametrize(
    "bend",
    [
        effect(2, 1, "processes killed for memory"),
        effect(6.9, 7.5, "% of packets lost"),
        effect(900, 1000, "bytes available"),
    ],
)
def test_a_rate_may_be_nearly_what_was_planned(bend: Bend) -> None:
    assert_verdict(judged(bend), Verdict.PASS)


@pytest.mark.parametrize(
    ("digest", "told", "flaws"),
    [("before", {}, 1), ("after", {}, 0), ("before", {"sampled": True}, 0), ("before", {"at": 6}, 0)],
)
def test_damage_changes_what_the_harness_sees(digest: str, told: dict[str, Any], flaws: int) -> None:
    """But for a large checkpoint, of which it digests samples. It may see the damage before the fault tells it."""
    seen = {"path": "c/step-10", "sha256": "before", "at": 5} | told
    work: Any = _Work(SimpleNamespace(published=[seen]))  # type: ignore[arg-type]
    fault: Any = SimpleNamespace(damaged=({"checkpoint": "c/step-10", "sha256": digest, "at": 7},), injecting=6)
    assert len(list(_no_damage(work, fault))) == flaws


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
def test_the_first_sign_counts_if_it_comes_in_time(
    evidence: list[int], episodes: list[Any], healed: int | None, found: int | None
) -> None:
    run: Any = SimpleNamespace(evidence=np.array(evidence, np.int64), episodes=episodes, end=100)
    fault: Any = SimpleNamespace(id="kill", injected=10, healed=healed)
    assert _detection(run, fault, _episode_ends(run)) == found


def test_a_fault_that_never_struck_was_not_noticed() -> None:
    run: Any = SimpleNamespace(evidence=np.array([20]), episodes=[], end=100)
    fault: Any = SimpleNamespace(id="kill", injected=None, healed=None)
    assert _detection(run, fault, _episode_ends(run)) is None


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
    ends = {"kept": True, "local_rank": 0}
    slots = [
        SimpleNamespace(node="a", incarnation=n, allocated=30 * n - 30, released=30 * n - 10, **ends) for n in (1, 2)
    ]
    run: Any = SimpleNamespace(slots=slots)
    fault: Any = SimpleNamespace(id="kill", injected=at, targets=[target])
    found = list(_wrong_target(places(slots=slots), run, fault, {"targets": [{"rank": None}]}))
    text = f"struck {target['node']}, which was not part of the job at that time"
    assert found == ([] if had else [(Code.FAULT_NOT_OF_JOB, text)])


@pytest.mark.parametrize(
    ("outcome", "error", "told"),
    [("completed", None, True), ("completed", "no such device", False), (None, None, False), (None, "x", False)],
)
def test_a_fault_that_was_to_end_and_did_not_is_no_proof(outcome: str | None, error: str | None, told: bool) -> None:
    """What broke off says so itself; a log without an end may have lost the line."""
    run: Any = SimpleNamespace(outcome=outcome)
    fault: Any = SimpleNamespace(id="full", injected=10, healed=None, error=error, targets=[], lasts=Duration("8s"))
    found = list(_for_its_time(places(), _Work(run), run, fault))
    flaw = (Code.FAULT_NEVER_UNDONE, "was never undone; its planned duration is 8s")
    assert found == ([flaw] if told else [])
    fault.lasts = None
    assert list(_for_its_time(places(), _Work(run), run, fault)) == []


SECOND = 10**9
EIGHT_SECONDS = Duration("8s")


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
def test_a_fault_acts_as_long_as_it_was_to(
    lasted: int, node: str, rank: int, at: int, last_step: int | None, too_short: bool
) -> None:
    """It struck rank 1 on node a, at 10 s. Times of exits count from then; the last step ends at so many seconds."""
    struck = 10 * SECOND
    ended = {"node": node, "incarnation": 1, "rank": rank, "at": struck + at}
    end = np.array([] if last_step is None else [(10 + last_step) * SECOND], np.int64)
    run: Any = SimpleNamespace(outcome="completed", exits=[ended], steps=_Sized(end))
    target = {"node": "a", "incarnation": 1, "rank": 1}
    fault: Any = SimpleNamespace(id="slow", injected=struck, healed=struck + lasted, error=None, targets=[target])
    fault.lasts, fault.cancelled, fault.effects = EIGHT_SECONDS, None, [{"at": struck}]
    found = list(_for_its_time(places(exits=[ended]), _Work(run), run, fault))
    assert [code for code, _ in found] == [Code.FAULT_UNDONE_EARLY] * too_short
    assert all(text.startswith("was undone after ") for _, text in found)
    assert all(text.endswith("; its planned duration is 8s") for _, text in found)


@pytest.mark.parametrize(
    ("injected", "finished", "steps", "too_late"),
    [(100, True, 1, False), (101, True, 1, True), (101, False, 1, False), (101, True, 0, False)],
)
@pytest.mark.parametrize("last", ["step", "checkpoint", "start"])
@pytest.mark.parametrize("uncertain", [0, 7])
def test_a_fault_that_came_when_all_was_done(
    injected: int, finished: bool, steps: int, too_late: bool, last: str, uncertain: int
) -> None:
    """The last thing the job did was at 100, by clocks that are known to so many nanoseconds."""
    at = {name: 100 if name == last else 90 for name in ("step", "checkpoint", "start")}
    run: Any = SimpleNamespace(
        finished=finished,
        steps=_Sized(np.array([at["step"]] * steps, np.int64)),
        checkpoints=[{"at": at["checkpoint"]}],
        processes=[SimpleNamespace(started=at["start"])],
        uncertainty_ns=uncertain,
    )
    fault: Any = SimpleNamespace(id="late", injected=injected + uncertain, strikes=(), kills=True)
    told = [(Code.FAULT_STRUCK_AFTER_END, "struck after the job had done all its work")]
    assert list(_too_late(_Work(run), run, fault)) == (told if too_late else [])


@pytest.mark.parametrize(
    ("last_begin", "struck", "may", "left"),
    [
        (80, 100, {}, None),  # half a step is left
        (80, 101, {}, "19.00 s"),
        (80, 120, {}, "0 µs"),
        (80, 101, {"kills": True}, None),
        (80, 101, {"stops": True}, None),
        (80, 101, {"spoils": True}, None),
        (110, 110, {}, None),  # the last step is a short one, and it all is left
        (110, 111, {}, "9.00 s"),
    ],
)
@pytest.mark.parametrize("uncertain", [0, 7])
def test_what_only_slows_a_job_needs_half_a_step(
    last_begin: int, struck: int, may: dict[str, bool], left: str | None, uncertain: int
) -> None:
    """Steps take 40 s, and the last one ends at 120 s. Clocks are known to so many nanoseconds."""
    steps = _Sized(SECOND * np.array([40, 80, 120]))
    steps.begin = SECOND * np.array([0, 40, last_begin])
    run: Any = SimpleNamespace(finished=True, steps=steps, checkpoints=[], processes=[], uncertainty_ns=uncertain)
    at = struck * SECOND + uncertain
    fault: Any = SimpleNamespace(injected=at, strikes=(), **{"kills": False, "stops": False, "spoils": False} | may)
    text = f"struck {left} before the end of the last step: too late to have an effect"
    assert list(_too_late(_Work(run), run, fault)) == ([(Code.FAULT_NO_TIME_LEFT, text)] if left else [])


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
def test_who_is_frozen_says_nothing(
    ends: list[int], exited: int | None, code: int | None, last_seen: int, what: str | None
) -> None:
    """It was struck at 10, and seen to stand still at 20; its time was over at 60."""
    worker = SimpleNamespace(rank=1, exited=exited, exit_code=code, last_seen=last_seen)
    run: Any = SimpleNamespace(processes=[worker], uncertainty_ns=0, steps=_Sized(np.array(ends, np.int64)))
    run.rows_by_process = np.arange(len(ends)), [0, len(ends)]
    fault: Any = SimpleNamespace(injected=10, freezes=True, effects=[{"at": 20}], targets=[{}])
    fault.lasts, fault.cancelled = SimpleNamespace(ns=50), None
    there: Any = SimpleNamespace(alive=lambda target, moment: [0])
    told = [(Code.FAULT_VICTIM_WENT_ON, f"froze rank 1, but the rank {what} meanwhile")]
    for fault.healed in (None, 60, 90):
        assert list(_not_frozen(there, run, fault)) == (told if what else [])
    fault.cancelled = 21  # it was told to end, and let go a moment later: what the rank does then is no flaw
    assert list(_not_frozen(there, run, fault)) == []


@pytest.mark.parametrize(
    ("cancelled", "effects", "last_step", "said"),
    [
        (5, True, 99, "was stopped after 5.00 s; its planned duration is 8s"),
        (5, False, 99, "was stopped after 5.00 s; its planned duration is 8s"),
        (9, True, 99, ""),
        (None, True, 99, ""),
        (5, True, 5, ""),  # the job was over
    ],
)
def test_a_fault_that_people_stopped_is_called_stopped(
    cancelled: int | None, effects: bool, last_step: int, said: str
) -> None:
    """It struck at 10 s. Times count from then."""
    at = 10 * SECOND
    steps = _Sized(np.array([at + last_step * SECOND]))
    run: Any = SimpleNamespace(outcome="completed", steps=steps, uncertainty_ns=0)
    fault: Any = SimpleNamespace(injected=at, healed=at + 5 * SECOND, error=None, targets=[], lasts=EIGHT_SECONDS)
    fault.cancelled = None if cancelled is None else at + cancelled * SECOND
    fault.effects = [{"at": at + 1, "measured": 1, "expected": 1, "ok": True}] if effects else []
    assert _stopped(_Work(run), fault) == said
    if said:
        assert list(_for_its_time(places(), _Work(run), run, fault)) == list(_effect(_Work(run), run, fault)) == []


@pytest.mark.parametrize(
    ("outcome", "struck", "told"),
    [("aborted", True, True), ("aborted", False, False), ("completed", False, True), ("failed", False, True)],
)
def test_one_that_never_struck_is_told_unless_the_job_gave_up_before_any_did(
    outcome: str, struck: bool, told: bool
) -> None:
    def bend(logs: Logs) -> None:
        begun = logs.told("fault.injected")
        logs.plan["faults"].append(logs.plan["faults"][0] | {"id": "second"})
        logs.harness[-1] |= {"outcome": outcome, "reason": "why"}
        if not struck:
            remove(logs.harness, lambda line: "fault" in line and line is not begun)
            begun |= {"event": "fault.postponed", "reason": "not yet"}

    reasons = judged(bend).reasons
    assert ("fault second never struck: its trigger never came" in reasons) is told, reasons
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
def test_who_begins_a_step_after_its_death_was_not_killed(
    started: int, last_seen: int, rank: int, begin: int, outlived: bool
) -> None:
    """Rank 1 on node a was killed at 20, and seen to be gone at 25."""
    ended = {"exited": None}
    worker = SimpleNamespace(node="a", incarnation=1, rank=rank, started=started, last_seen=last_seen, **ended)
    other = SimpleNamespace(node="b", incarnation=1, rank=0, started=0, last_seen=99, **ended)
    steps = SimpleNamespace(process=np.array([0, 1, 0]), begin=np.array([6, 90, begin]))
    known = {"processes": [worker, other], "steps": steps}
    target = {"node": "a", "incarnation": 1, "rank": 1}
    fault: Any = SimpleNamespace(id="kill", injected=20, targets=[target], kills=True, effects=[{"at": 25}])
    found = list(_outlived(places(**known), SimpleNamespace(**known), fault))  # type: ignore[arg-type]
    assert [code for code, _ in found] == [Code.FAULT_VICTIM_WENT_ON] * outlived


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
    code: int, at: int, rank: int | None, notice: str | None, kept: bool, told: bool
) -> None:
    place = {"node": "a", "incarnation": 1}
    slots = [SimpleNamespace(**place, kept=kept, allocated=0, released=99)]
    run: Any = SimpleNamespace(
        begin=0,
        progress=_Sized(np.array([30, 61])),
        uncertainty_ns=10,
        notices=[place | {"source": notice}] if notice else [],
        exits=[place | {"code": code, "at": at, "rank": rank}],
    )
    run.progress.begin = np.array([20, 60])
    found = list(left_without_notice(run, places(slots=slots)))
    assert found == [LeftWithoutNotice("a", code, at)] * (not told)
