"""Logs whose lines are numbered: a step that was not told is none, a line of a killed process may be lost, and one that
a living process wrote is there."""

import copy
from collections.abc import Sequence
from dataclasses import replace

import pytest
from judging import Bend, bending, bent, fault_free_of, together, verdict
from simulator import MS, Job, Line, Logs, Outage, change, find, remove, simulate, steps

from harness.evidence.lost_lines import lost_lines
from harness.judge.score import Evidence
from harness.judge.verdict import Verdict

JOB = Job(nodes=2, steps=40)
KILLED, SURVIVOR, LAST = (1, 0), (0, 0), (1, -1)  # rank and life
FAIL, OPEN = Verdict.FAIL, Verdict.INCONCLUSIVE
LOST = ("job.log_kept", FAIL, "")
Found = tuple[str, Verdict, str]


def of(logs: Logs, whose: tuple[int, int]) -> list[Line]:
    return logs.trainers(*whose)[0]


@bending
def lose(logs: Logs, whose: tuple[int, int], *absent: int) -> None:
    remove(of(logs, whose), lambda line: line.get("event") == "step" and line["step"] in absent)


def lose_event(whose: tuple[int, int], event: str) -> Bend:
    return lambda logs: of(logs, whose).remove(find(of(logs, whose), event))


def full_disk(whose: tuple[int, int], step: int, dropped: int) -> Bend:
    return lambda logs: steps(of(logs, whose), step, step)[0].update(dropped=dropped)


def number(logs: Logs) -> None:
    logs.number()


def telling(logs: Logs) -> None:
    """Weights, by which a log without numbers shows that a step was done all the same."""
    for line in logs.steps():
        line |= {"weights": f"w{line['step']}", "weights_ns": 1} if line["step"] % 5 == 1 else {}


def telling_none(logs: Logs) -> None:
    change(logs.steps(), "weights", "weights_ns")


def no_time(logs: Logs) -> None:
    """The step after the absent one began as soon as the one before it was over."""
    done = steps(of(logs, LAST), 29, 31)
    done[2]["begin_ns"] = done[0]["mono_ns"]
    lose(LAST, 30)(logs)


def other_weights(logs: Logs) -> None:
    lose(LAST, 30)(logs)
    steps(of(logs, LAST), 31, 31)[0]["weights"] = "other"


def findings(*bends: Bend, outages: Sequence[Outage] = (Outage(17, "rank", victim=1),)) -> list[Found]:
    card = verdict(simulate(JOB, list(outages), seed=5), together(telling, *bends), {}, fault_free_of(JOB))
    assert (card.verdict is Verdict.PASS) == (not card.findings)
    return sorted((each.code, each.verdict, each.doubt) for each in card.findings)


def left_out(verdict: Verdict, doubt: str = "") -> Found:
    return "steps.all", verdict, doubt


@pytest.mark.parametrize(
    ("bends", "found"),
    [
        ([number], []),
        # Lines that are missing.
        ([number, lose(KILLED, 5)], [left_out(OPEN, "log-whole")]),
        ([number, lose(KILLED, 5, 6)], [left_out(OPEN, "log-whole")]),
        ([number, lose_event(KILLED, "rendezvous")], []),
        ([number, lose(SURVIVOR, 5)], [LOST, left_out(OPEN, "log-whole")]),
        ([number, lose(LAST, 30)], [LOST, left_out(OPEN, "log-whole")]),
        ([number, lose_event(LAST, "rendezvous")], [LOST]),
        ([number, lose(KILLED, 17)], []),  # its last one: a kill takes the end
        # Steps that were not told.
        ([lose(KILLED, 5), number], [left_out(FAIL)]),
        ([lose(KILLED, 5), number, lose(KILLED, 7)], [left_out(FAIL)]),
        ([lose(KILLED, 5), number, lose_event(KILLED, "rendezvous")], [left_out(FAIL)]),
        ([lose(KILLED, 6), number, lose(KILLED, 5)], [left_out(FAIL)]),  # two steps, and one line is missing
        ([lose(LAST, 30), number], [left_out(FAIL)]),
        # Without numbers.
        ([lose(KILLED, 5)], [left_out(OPEN, "log-whole")]),
        ([lose(LAST, 30)], [left_out(OPEN, "log-whole")]),
        ([lose(LAST, 30, 31)], [left_out(FAIL)]),
        ([lose(LAST, 25, 35)], [left_out(FAIL)]),
        ([lose(LAST, 38)], [left_out(FAIL)]),  # no weights are told after it
        ([no_time], [left_out(FAIL)]),
        ([other_weights], [("result.replicas_together", FAIL, ""), left_out(FAIL)]),
        ([telling_none, lose(LAST, 30)], [left_out(FAIL)]),
        # A full disk.
        ([number, lose(LAST, 30), full_disk(LAST, 31, 1)], [left_out(OPEN, "log-whole")]),
        ([lose(LAST, 30), number, full_disk(LAST, 31, 1)], [left_out(FAIL)]),  # it dropped nothing
        ([number, lose(LAST, 30, 32), full_disk(LAST, 31, 1)], [LOST, left_out(OPEN, "log-whole")]),
        # A step that nobody told was lost if each lacks it.
        ([number, lose(KILLED, 5), lose(SURVIVOR, 5)], [LOST, left_out(OPEN, "log-whole")]),
        ([lose(KILLED, 5), number, lose(SURVIVOR, 5)], [LOST, left_out(FAIL)]),
        ([lose(LAST, 30), number, lose(KILLED, 5), lose(SURVIVOR, 5)], [LOST, left_out(FAIL)]),
        ([lose(KILLED, 5), lose(SURVIVOR, 5), number], [left_out(FAIL)]),
        ([lose(KILLED, 5), lose(SURVIVOR, 5), number, lose(KILLED, 7)], [left_out(FAIL)]),
    ],
)
def test_numbers_tell_a_lost_line_from_a_step_that_was_not_done(bends: list[Bend], found: list[Found]) -> None:
    assert findings(*bends) == found


@pytest.mark.parametrize(("absent", "found"), [((1,), (OPEN, "log-whole")), ((1, 2), (FAIL, ""))])
def test_the_first_line_of_a_run_may_be_lost_too(absent: tuple[int, ...], found: tuple[Verdict, str]) -> None:
    card = verdict(simulate(JOB), together(telling, lose(KILLED, *absent)), {}, fault_free_of(JOB))
    told = [(each.code, each.verdict, each.doubt) for each in card.findings]
    assert sorted(told) == [("restart.same_step", *found), ("steps.all", *found)]


def test_of_a_rank_that_tells_each_fifth_step_one_line_is_one_step() -> None:
    def fifth(logs: Logs) -> None:
        logs.lose("step", step=[step for step in range(41) if step % 5], rank=1)

    outages, bends = [Outage(17, "rank", victim=1)], (fifth, number, lose(KILLED, 10))
    card = verdict(simulate(JOB, outages, seed=5), together(*bends), {}, bent(JOB, fifth))
    assert [(each.code, each.verdict, each.doubt) for each in card.findings] == [left_out(OPEN, "log-whole")]


@pytest.mark.parametrize(
    ("event", "outages", "found"),
    [("worker.exit", [Outage(17, "rank", victim=1)], [LOST]), ("agent.rendezvous", [Outage(17, "node", victim=1)], [])],
)
def test_a_launcher_that_lived_wrote_all_of_its_lines(event: str, outages: list[Outage], found: list[Found]) -> None:
    def bend(logs: Logs) -> None:
        agents = [lines for name, lines in logs.items() if name.startswith("agent-node1.1")]
        for lines in agents:
            lines.insert(1, lines[-1] | {"event": "agent.started", "mono_ns": lines[0]["mono_ns"] + 1})
        logs.number()
        for lines in agents:
            del lines[1]

    assert findings(bend, outages=outages) == found


def shipped_twice(logs: Logs) -> None:
    for lines in logs.values():
        lines += copy.deepcopy(lines)


@pytest.mark.parametrize("first", [[number], []])
def test_a_log_that_was_shipped_twice_counts_once(first: list[Bend]) -> None:
    assert findings(*first, shipped_twice) == []
    assert findings(lose(KILLED, 5, 6), *first, shipped_twice) == [left_out(FAIL)]


@bending
def empty(logs: Logs, rank: int, later_ms: int) -> None:
    """Leaves an empty log of another process of this rank, which began so long after the last word of the rank's first."""
    last = logs.trainers(rank, 0)[0][-1]["mono_ns"]
    logs[f"trainer-node{rank}.1-{rank}-{last + later_ms * MS:x}"] = []


@pytest.mark.parametrize("foreign_clocks", [False, True])
@pytest.mark.parametrize(
    ("rank", "later_ms", "kind", "harmless"),
    [
        (1, 10, "rank", True),
        (1, 10, "node", True),
        (1, -300, "rank", False),  # the job did steps in that time
        (1, 900, "rank", False),  # nothing killed it any more
        (0, 10, "rank", False),
    ],
)
def test_an_empty_log_lacks_nothing_if_its_process_was_killed_at_once(
    rank: int, later_ms: int, kind: str, harmless: bool, foreign_clocks: bool
) -> None:
    history = simulate(replace(JOB, foreign_clocks=foreign_clocks), [Outage(17, kind, victim=1)], seed=5)
    card = verdict(history, together(telling, empty(rank, later_ms)), {}, fault_free_of(JOB))
    assert [each.text.endswith("holds no complete line") for each in card.findings] == [True] * (not harmless)


def test_what_is_missing_is_said_in_words_and_proves_nothing_in_a_fault_free_run() -> None:
    def told(*bends: Bend) -> list[str]:
        run = bent(JOB, number, *bends)
        return [each.words for each in lost_lines(run, [-1] * len(run.processes), ())]

    assert told(lose(LAST, 30, 31)) == ["the log of rank 1 on node1 lacks 2 lines between steps 29 and 32"]
    assert told(lose(LAST, 1)) == ["the log of rank 1 on node1 lacks 1 line before step 2"]
    two = "the log of rank 1 on node1 lacks 3 lines in 2 places, the first between steps 9 and 11"
    assert told(lose(LAST, 10, 20, 21)) == [two]
    run = bent(JOB, number, seed=5)
    assert Evidence(run).flaw(bent(JOB, number)) == ""
    assert Evidence(run).flaw(bent(JOB, number, lose(LAST, 30))) == "its log lacks lines"
