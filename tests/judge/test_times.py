"""Times that cannot be, each beside a healthy way of telling them that passes."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
from judging import EXPECT, Bend, acted_as, bending, bent, fault_free_of, verdict
from simulator import Job, Line, Logs, Outage, change, clocks, simulate, steps

from harness.judge.assumptions import times_possible
from harness.judge.facts import times
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.known import Odd
from harness.judge.score import Scorecard
from harness.judge.thresholds import APART_NS
from harness.judge.verdict import Verdict
from harness.timeline.timeline import Timeline

S = 10**9
JOB = Job(nodes=2, steps=80, every=10)
KILL = [Outage(17, "rank", victim=1)]
LOST = [Outage(17, "node", victim=1)]
STAMPS = ("mono_ns", "begin_ns", "wall_ns")


def judged(bend: Bend, outages: list[Outage] = KILL, fault_free: Timeline | None = None) -> Scorecard:
    return verdict(simulate(JOB, outages, seed=5), bend, EXPECT, fault_free or fault_free_of(JOB))


@bending
def first_begins_earlier(logs: Logs, seconds: float) -> None:
    for lines in logs.last_lives():
        steps(lines)[0]["begin_ns"] -= round(seconds * S)


def begins_earlier(logs: Logs) -> None:
    for lines in logs.trainers():
        change(steps(lines)[1:], begin_ns=lambda line: line["begin_ns"] - 60 * 10**6)


def all_begin_at(moment: int) -> Bend:
    return lambda logs: [line.update(begin_ns=moment) for lines in logs.last_lives() for line in steps(lines)]


def waits(seconds: float, part: str = "data_ns") -> Bend:
    told = {part: round(seconds * S)}
    return lambda logs: [line.update(told) for lines in logs.trainers() for line in steps(lines)[2:]]


def rank_1_at_the_end(logs: Logs) -> None:
    """All steps of one rank are told in a moment after the fact."""
    lines = logs.last_lives()[1]
    end = steps(lines)[-1]["mono_ns"]
    for number, line in enumerate(steps(lines)):
        line |= {"begin_ns": end - 10**6 + number, "mono_ns": end - 10**6 + number + 1}


def moved(lines: Iterable[Line], seconds: float) -> None:
    for line in lines:
        line |= {key: line[key] + round(seconds * S) for key in STAMPS if key in line}


def rank_1_lags(seconds: float) -> Bend:
    return lambda logs: moved(logs.steps(rank=1), seconds)


def back_earlier(seconds: float) -> Bend:
    """All that the new workers tell is moved, their launchers' words are not."""
    return lambda logs: [moved(lines, -seconds) for lines in logs.last_lives()]


@bending
def seen(logs: Logs, lag_s: float, at_last_s: float) -> None:
    """The harness sees each save on the store so long after it was committed; after the recovery it takes longer."""
    restarted = len(logs.trainers(rank=0)) > 1
    begun = min(lines[0]["mono_ns"] for lines in logs.last_lives()) if restarted else 2**60
    for line in logs.all("checkpoint.committed"):
        lag = round((at_last_s if line["mono_ns"] > begun else lag_s) * S)
        logs.put({"event": "checkpoint.published", "path": "x", "step": line["step"]} | clocks(line, lag))


def rounded_down(logs: Logs) -> None:
    for lines in logs.values():
        for line in lines:
            line |= {key: line[key] - line[key] % (S // 10) for key in ("mono_ns", "begin_ns") if key in line}


@bending
def saves_took(logs: Logs, seconds: float) -> None:
    """By what a save tells of itself it took so much longer than from its begin to its end."""
    for begun, done in zip(logs.all("checkpoint.started"), logs.all("checkpoint.committed"), strict=True):
        done["duration_ns"] = done["mono_ns"] - begun["mono_ns"] + round(seconds * S)


@bending
def speaks_after_it_was_seen_to_end(logs: Logs, seconds: float) -> None:
    """The killed worker's last words come so much later than its launcher saw it end."""
    seen = next(line for lines in logs.values() for line in lines if line.get("code") == -9)
    at = seen["mono_ns"] + round(seconds * S)
    logs.trainers(rank=1, life=0)[0].append({"event": "notice", "source": "peer", "mono_ns": at, "wall_ns": at})


def no_begin(logs: Logs) -> None:
    change(logs.steps(), "begin_ns")


def one_is_slow_at_first(logs: Logs) -> None:
    """No step says when it began. The first one after the restart ends 0.5 s later on rank 1, whose process was not
    scheduled between the collective and the step's end; the next one waits for it."""
    no_begin(logs)
    early, late = (steps(lines)[0] for lines in logs.last_lives())
    since = min(early["mono_ns"], late["mono_ns"])
    for line in (line for lines in logs.values() for line in lines if line is not early):
        if line["mono_ns"] >= since:
            line |= clocks(line, S // 2)


def compiles_first(logs: Logs) -> None:
    for lines in logs.trainers():
        steps(lines)[0]["begin_ns"] = lines[0]["mono_ns"]


@pytest.mark.parametrize(
    ("bend", "outages", "expected", "reason"),
    [
        (first_begins_earlier(1), KILL, Verdict.INCONCLUSIVE, "before its process"),
        (begins_earlier, KILL, Verdict.INCONCLUSIVE, "before the one before it was over"),
        (all_begin_at(0), LOST, Verdict.FAIL, "before the job had its node"),
        (first_begins_earlier(9), LOST, Verdict.FAIL, "before the job had its node"),
        (waits(1000), KILL, Verdict.FAIL, "waits for data for 16 min 40 s, but the job had its node for"),
        (waits(1), KILL, Verdict.INCONCLUSIVE, "waits for data"),
        (waits(1, "sync_ns"), KILL, Verdict.INCONCLUSIVE, "waits for the other ranks"),
        (waits(1, "checkpoint_ns"), KILL, Verdict.INCONCLUSIVE, "waits for a checkpoint"),
        (rank_1_at_the_end, KILL, Verdict.INCONCLUSIVE, "ended on one rank"),
        (rank_1_lags(1), KILL, Verdict.INVALID, "ended on one rank"),
        (back_earlier(1.8), KILL, Verdict.INVALID, "before its predecessor ended"),
        (back_earlier(8), LOST, Verdict.FAIL, "before the job had its node"),
        (seen(0.2, 3.0), KILL, Verdict.INCONCLUSIVE, "saves in a row are told up to 3.00 s before the harness saw"),
        (saves_took(0.2), KILL, Verdict.INCONCLUSIVE, "longer than from its begin to its end"),
        (speaks_after_it_was_seen_to_end(1.2), KILL, Verdict.INCONCLUSIVE, "after it had ended"),
        (saves_took(0.05), KILL, Verdict.PASS, ""),
        (speaks_after_it_was_seen_to_end(0.6), KILL, Verdict.PASS, ""),
        (rounded_down, KILL, Verdict.PASS, ""),
        (no_begin, KILL, Verdict.PASS, ""),
        (one_is_slow_at_first, KILL, Verdict.PASS, ""),
        (compiles_first, KILL, Verdict.PASS, ""),
        (compiles_first, LOST, Verdict.PASS, ""),
        (seen(0.2, 0.39), KILL, Verdict.PASS, ""),
        (seen(5, 6), LOST, Verdict.PASS, ""),
    ],
)
def test_told_times_are_possible(bend: Bend, outages: list[Outage], expected: Verdict, reason: str) -> None:
    card = judged(bend, outages)
    assert card.verdict is expected, card.reasons
    told = [*card.reasons, *(each.words for each in card.evidence.impossible_times)]
    assert expected is Verdict.PASS or reason in " · ".join(told)


@pytest.mark.parametrize("bend", [begins_earlier, waits(1), rank_1_lags(1), seen(2.0, 2.0)])
def test_what_a_trainer_tells_without_a_fault_too_is_its_way(bend: Bend) -> None:
    found = judged(bend, fault_free=bent(JOB, bend)).reasons
    assert not [reason for reason in found if "are not true" in reason]


@pytest.mark.parametrize("outage", [Outage(17, "shrink", victim=1), Outage(17, "rollback", victim=1), *LOST])
@pytest.mark.parametrize("agents", [True, False])
def test_worlds_that_change_tell_no_impossible_times(outage: Outage, agents: bool) -> None:
    job = replace(JOB, agents=agents, noise=0.2)
    card = verdict(simulate(job, [outage], seed=7), fault_free=fault_free_of(JOB))
    assert not [reason for reason in card.reasons if "are not true" in reason]


def said_of(run: Timeline) -> str:
    return " · ".join(each.words for each in (*times.outside_node(run), *times.impossible(run, (), ())))


@bending
def node_came_late(logs: Logs, beyond_ns: int) -> None:
    given = max(line["mono_ns"] for line in logs.harness if line.get("event") == "node.allocated")
    next(logs.steps(rank=1, life=-1))["begin_ns"] = given - APART_NS - beyond_ns


@pytest.mark.parametrize(
    ("bend", "outages", "words"),
    [
        (node_came_late, LOST, "before the job had its node"),  # an eighth of a second is allowed,
        (lambda beyond_ns: speaks_after_it_was_seen_to_end(1 + beyond_ns / S), KILL, "told something"),  # and a second
    ],
)
@pytest.mark.parametrize(("beyond_ns", "uncertain_ns", "told"), [(0, 0, 0), (1, 0, 1), (1, 1, 0), (9, 8, 1)])
def test_times_may_be_a_little_off(
    bend: Callable[[int], Bend], outages: list[Outage], words: str, beyond_ns: int, uncertain_ns: int, told: int
) -> None:
    run = replace(bent(JOB, bend(beyond_ns), outages=outages, seed=5), uncertainty_ns=uncertain_ns)
    assert said_of(run).count(words) == told


def test_steps_that_took_no_time_by_their_clock_are_no_copy() -> None:
    def at_once(logs: Logs) -> None:
        no_begin(logs)
        change(logs.steps(), mono_ns=logs.harness[-1]["mono_ns"] - S)

    assert "copy" not in said_of(bent(JOB, at_once, seed=5))


UNIT = 2 * 10**8  # ns
STRUCK, OVER = 1000 * UNIT, 1500 * UNIT
Lags = tuple[tuple[int, ...], ...]


def lagging(*saves: tuple[int, ...]) -> Timeline:
    """Saves that were told at a time and seen so much later, both in units."""
    committed = [{"event": "checkpoint.committed", "step": n, "at": at * UNIT} for n, (at, *_) in enumerate(saves)]
    published = [{"step": n, "at": (at + lag) * UNIT} for n, (at, lag, *_) in enumerate(saves)]
    for (at, *lags), event in zip(saves, published, strict=True):
        event |= {"looked_ns": (at + lags[1]) * UNIT} if lags[1:] else {}
    return cast(
        Timeline, SimpleNamespace(checkpoints=committed, published=published, uncertainty_ns=0, end=10_000 * UNIT)
    )


LATER = tuple((at, 21) for at in (2000, 2100, 2200))


@pytest.mark.parametrize(
    ("saves", "usual", "found"),
    [
        (((100, 10), *LATER), (), "3 saves in a row are told up to 4.20 s before the harness saw them"),
        (((100, 10), (979, 20), *LATER), (), ""),  # that one was seen before the fault as well
        (((100, 10), (980, 20), *LATER), (), "3 saves in a row"),  # seen when it struck
        (((100, 10), *LATER), ((5, 11),), ""),
        (((100, 10), *LATER[1:]), (), ""),
        (LATER, (), ""),
        (((100, 2), *((at, 9) for at in (2000, 2100, 2200))), (), ""),  # less than 2 s
        (((100, 10), *((at, 90) for at in (1100, 1200, 1300))), (), ""),  # while the fault was at work
        (((100, 10, -1), *((at, lag, -1) for at, lag in LATER)), (), ""),  # it did not look before that
        (((100, 10, -1), *((at, lag, 20) for at, lag in LATER)), (), "3 saves in a row"),
    ],
)
def test_saves_are_seen_as_soon_as_before_the_fault(saves: Lags, usual: Lags, found: str) -> None:
    told = times._saves_seen_late(lagging(*saves), [lagging(*usual)], [(STRUCK, OVER)])
    words = [each.words for each in told]
    assert len(words) == bool(found) and all(each.startswith(found) for each in words), words


@bending
def recovery_seen(logs: Logs, late_s: float, hung_s: float = 0) -> None:
    """The harness saw the first new step so long after it was told. The job recovered from a hang of so many seconds."""
    if hung_s:
        acted_as(logs, "hang", kills=False, may=["stop"])
        change([logs.told("fault.healed")], **clocks(logs.told("fault.injected"), round(hung_s * S)))
    at = max(line["mono_ns"] for line in logs.steps(18, 18)) + round(late_s * S)
    seen = {"event": "fault.recovered", "fault": "fault1", "step": 18}
    logs.put(seen | {"mono_ns": at, "wall_ns": at})


@pytest.mark.parametrize(
    ("late_s", "hung_s", "expected", "reason"),
    [
        (-0.13, 0, Verdict.INCONCLUSIVE, "the harness saw step 18 130 ms before the ranks ended it"),
        (-0.12, 0, Verdict.PASS, ""),
        (0.1, 0, Verdict.PASS, ""),
        (4, 0, Verdict.PASS, ""),
        (6, 0, Verdict.INCONCLUSIVE, "before the harness saw a step that was new"),
        (6, 1, Verdict.INCONCLUSIVE, "before the harness saw a step that was new"),
        (6, 8, Verdict.PASS, ""),  # a fault that may keep the log from the harness, too, was over by then
        (60, 0, Verdict.FAIL, "recovery_time.max: 62.24 s is more than 60.00 s"),
    ],
)
def test_the_harness_sees_when_a_job_recovers(late_s: float, hung_s: float, expected: Verdict, reason: str) -> None:
    card = judged(recovery_seen(late_s, hung_s))
    assert card.verdict is expected and reason in " · ".join(["", *card.reasons]), card.reasons


@bending
def told_at(logs: Logs, share: float) -> None:
    """The steps after the recovery are told to take this share of their time; the job ends when it did."""
    begin = max(steps(lines, 12, 12)[0]["mono_ns"] for lines in logs.last_lives())
    for line in (line for lines in logs.last_lives() for line in lines):
        for key in ("mono_ns", "begin_ns"):
            if line.get(key, 0) > begin:
                line[key] = begin + round(share * (line[key] - begin))


@pytest.mark.parametrize(
    ("share", "expected"), [(0.1, Verdict.INCONCLUSIVE), (0.5, Verdict.INCONCLUSIVE), (0.9, Verdict.PASS)]
)
def test_time_that_is_saved_is_not_found_after_the_last_step(share: float, expected: Verdict) -> None:
    card = judged(told_at(share))
    assert card.verdict is expected, card.reasons
    assert expected is Verdict.PASS or "later than usual after the last" in " · ".join(card.reasons)


def test_a_fault_free_run_beside_other_programs_may_have_been_slow() -> None:
    usual = fault_free_of(JOB)
    taken = replace(usual, host_load=[{"others": 0.7, "at": usual.begin}])
    assert judged(told_at(0.1), fault_free=taken).verdict is Verdict.PASS


@pytest.mark.parametrize(("others", "said"), [(0.9, True), (0.5, False)])
def test_on_a_busy_host_it_may_be_the_harness_that_saw_late(others: float, said: bool) -> None:
    run = SimpleNamespace(begin=0, end=2, host_load=[{"others": others, "at": 1}])
    late = SimpleNamespace(run=run, impossible_times=[Odd("4 saves are late")])
    (reason,) = times_possible.ASSUMPTION.broken(cast(Analysis, late))
    assert ("the harness was held up: other programs took 90% of the host's CPUs" in reason) is said
