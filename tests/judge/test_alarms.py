"""A trainer's alarm is false where no fault is at work and its own steps show nothing of what it says."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from judging import Bend, bent, struck, verdict
from simulator import Job, Logs, Outage, change, clocks, simulate, steps

from harness.judge.facts.alarms import Said, contradicted
from harness.judge.verdict import Verdict
from harness.report import figures as figures_of

QUIET = Job(nodes=2, ranks_per_node=2, steps=60, every=8)
NONE_FALSE = {"metrics": {"max_false_alarms": 0}}
SLOW = 1


def alarm(logs: Logs, rank: int, step: int, **told: Any) -> None:
    lines = logs.trainers(rank=rank)[0]
    (done,) = steps(lines, step, step)
    lines.insert(lines.index(done) + 1, {"event": "anomaly", "detail": "slow"} | told | clocks(done))


def shape(logs: Logs, factor: float, **told: Any) -> None:
    """The peers of one rank wait, so that they work `1 / factor` of each step; that rank sounds the alarm."""
    for lines in logs.trainers():
        for step in steps(lines):
            length = step["mono_ns"] - step["begin_ns"]
            waits = 0 if lines[0]["rank"] == SLOW else round(length * (1 - 1 / factor))
            step |= {"sync_ns": waits, "data_ns": 0, "checkpoint_ns": 0}
    alarm(logs, SLOW, 30, **told)


def false_alarms(bend: Bend, job: Job = QUIET) -> int:
    """Of the only alarm, which a run must not have."""
    card = verdict(simulate(job, [], 3), bend, expect=NONE_FALSE)
    assert figures_of.metrics(card)["anomalies"] == 1
    false = int(card.metrics["false_alarms"])
    assert card.verdict is (Verdict.FAIL if false else Verdict.PASS), card.reasons
    return false


@pytest.mark.parametrize(
    ("factor", "told", "false"),
    [
        (2, {"slowdown": 2.0}, 0),
        (1.6, {"slowdown": 2.0}, 0),
        (1.2, {"slowdown": 2.0}, 1),
        (1, {"slowdown": 2.0}, 1),
        (1.2, {"slowdown": 2.0, "excess_ns": 1_000_000}, 0),
        (1.05, {"slowdown": 2.0, "excess_ns": 1}, 1),
        (2, {"slowdown": 2.0, "excess_ns": 10**12}, 1),
        (1.05, {"slowdown": 1.001}, 1),
        (2, {"slowdown": 1.0}, 1),
        (2, {}, 1),
        (2, {"slowdown": "much"}, 1),
        (2, {"kind": "hang", "slowdown": 2.0}, 1),
    ],
)
def test_an_alarm_is_false_unless_the_steps_bear_it_out(factor: float, told: dict[str, Any], false: int) -> None:
    assert false_alarms(lambda logs: shape(logs, factor, **{"kind": "straggler"} | told)) == false


def test_of_two_ranks_the_faster_one_is_the_yardstick() -> None:
    told = {"kind": "straggler", "slowdown": 2.0}
    assert false_alarms(lambda logs: shape(logs, 2, **told), replace(QUIET, ranks_per_node=1)) == 0


def test_a_trainer_that_does_not_tell_its_waits_bears_nothing_out() -> None:
    def silent(logs: Logs) -> None:
        shape(logs, 2, kind="straggler", slowdown=2.0)
        change(logs.steps(), "sync_ns")

    assert false_alarms(silent) == 1


@pytest.mark.parametrize(("suspect", "false"), [(SLOW, 0), (None, 1), (2, 1), (99, 1)])
def test_a_peer_may_tell_of_another_rank(suspect: int | None, false: int) -> None:
    def told_by_rank_0(logs: Logs) -> None:
        shape(logs, 2, kind="straggler", slowdown=2.0, suspect=suspect)
        (told,) = logs.all("anomaly")
        logs.trainers(rank=SLOW)[0].remove(told)
        logs.trainers(rank=0)[0].append(told)

    assert false_alarms(told_by_rank_0) == false


@pytest.mark.parametrize(("late", "false"), [(0, 0), (3, 0), (5, 1)])
def test_a_fault_may_be_told_some_steps_after_it_was_healed(late: int, false: int) -> None:
    def told(logs: Logs) -> None:
        done = steps(logs.trainers(rank=0)[0])
        target = [{"node": "node1", "incarnation": 1, "rank": None}]
        struck(logs, "slow", done[25]["mono_ns"], healed=done[30]["mono_ns"], targets=target)
        alarm(logs, 0, 31 + late, kind="hang")

    assert verdict(simulate(QUIET, [], 3), told, expect=NONE_FALSE).metrics["false_alarms"] == false


@pytest.mark.parametrize("benign", [True, False])
@pytest.mark.parametrize("beside", [True, False])
def test_a_benign_pause_explains_no_alarm(benign: bool, beside: bool) -> None:
    def told(logs: Logs) -> None:
        done, target = steps(logs.trainers(rank=0)[0]), [{"node": "node1", "incarnation": 1, "rank": None}]
        struck(logs, "pause", done[25]["mono_ns"], healed=done[30]["mono_ns"], targets=target, may=[], benign=benign)
        if beside:
            struck(logs, "slow", done[26]["mono_ns"], healed=done[27]["mono_ns"], targets=target)
        alarm(logs, 0, 28, kind="hang")

    card = verdict(simulate(QUIET, [], 3), told, expect=NONE_FALSE)
    assert card.metrics["false_alarms"] == (benign and not beside)
    assert ("metrics.max_false_alarms: 1 is more than 0" in card.reasons) == (benign and not beside)


@pytest.mark.parametrize(
    ("bound", "alarmed", "benign", "others", "found"),
    [
        ("1us", False, False, 0.0, Verdict.FAIL),
        ("1us", False, False, 0.9, Verdict.INCONCLUSIVE),  # the alarm itself may wait for a CPU, however long
        ("1h", False, False, 0.0, Verdict.INCONCLUSIVE),
        ("1h", True, False, 0.0, Verdict.PASS),
        ("1us", False, True, 0.0, Verdict.INCONCLUSIVE),
    ],
)
def test_a_job_that_stands_still_and_notices_nothing_fails_the_bound_on_detection(
    bound: str, alarmed: bool, benign: bool, others: float, found: Verdict
) -> None:
    """A step takes longer than a microsecond, and less than an hour."""

    def told(logs: Logs) -> None:
        done, target = steps(logs.trainers(rank=0)[0]), [{"node": "node1", "incarnation": 1, "rank": None}]
        struck(logs, "stuck", done[25]["mono_ns"], healed=done[30]["mono_ns"], targets=target, may=[], benign=benign)
        struck(logs, "harmless", done[20]["mono_ns"], healed=done[21]["mono_ns"], targets=target, may=[], benign=True)
        load = {"event": "host.load", "others": others, "wall_ns": logs.harness[-1]["wall_ns"]}
        logs.put(*(load | {"mono_ns": each["mono_ns"] + 2} for each in done))
        if alarmed:
            alarm(logs, 0, 28, kind="hang")

    card = verdict(simulate(QUIET, [], 3), told, expect={"metrics": {"detection_max": bound}})
    (line,) = [each for each in card.expectations if each.name == "metrics.detection_max"]
    assert line.verdict is found, line
    if found is Verdict.FAIL:
        assert line.reason.startswith("nobody in the job noticed `stuck` within ") and line.observed == "never"


@pytest.mark.parametrize(("outages", "restarts"), [([], 0), ([Outage(20, "rank"), Outage(9, "rank")], 2)])
def test_restarts_are_counted_whatever_their_cause(outages: list[Outage], restarts: int) -> None:
    card = verdict(simulate(QUIET, outages, 3), expect={"metrics": {"max_restarts": 1}})
    assert card.metrics["restarts"] == restarts
    assert ("metrics.max_restarts: 2 is more than 1" in card.reasons) == (restarts > 1)


@pytest.mark.parametrize(
    ("told_at", "told", "norm", "false"),
    [
        (42, {"kind": "gradient", "at_step": None}, 50.0, 1),
        (42, {"kind": "gradient", "at_step": 40}, 50.0, 0),
        (42, {"kind": "gradient", "at_step": 39}, 50.0, 1),
        (40, {"kind": "gradient"}, 50.0, 0),
        (40, {"kind": "gradient"}, 2.0, 1),
        (40, {"kind": "slow"}, 50.0, 1),
        (50, {"kind": "data_wait"}, 50.0, 0),  # lasting states are asked about at each 50th step
        (49, {"kind": "data_wait"}, 50.0, 1),
    ],
)
def test_an_alarm_is_held_against_its_own_rule(told_at: int, told: dict[str, Any], norm: float, false: int) -> None:
    """The trainer and the judge read the same steps by one module. The spike is at step 40."""

    def spike(logs: Logs) -> None:
        change(logs.steps(), grad_norm=lambda step: norm if step["step"] == 40 else 1.0)
        change(logs.steps(), data_ns=lambda step: (step["mono_ns"] - step["begin_ns"]) // 5)
        alarm(logs, 0, told_at, **told)

    assert false_alarms(spike) == false


@pytest.mark.parametrize(("rank", "at", "false"), [(0, 260, 0), (0, 261, 1), (1, 260, 0)])
def test_an_alarm_late_in_a_long_life_is_about_its_own_process(rank: int, at: int, false: int) -> None:
    def spike(logs: Logs) -> None:
        change(logs.steps(rank=rank), grad_norm=lambda step: 50.0 if step["step"] == 260 else 1.0)
        alarm(logs, rank, at, kind="gradient")

    assert false_alarms(spike, Job(nodes=2, steps=270, every=90)) == false


def test_what_was_never_said_answers_nothing_however_early_it_was() -> None:
    run: Any = SimpleNamespace(anomalies=[], uncertainty_ns=100)
    assert not Said(run, "divergence").of(0, (1, 3)) and not Said(run, "replica").of(0, None)
    run.anomalies = [{"kind": "divergence", "at": 5, "at_step": 9}]
    said = Said(run, "divergence")
    assert said.of(105, None) and not said.of(106, None)
    assert said.of(0, (7, 9)) and not said.of(0, (7, 8)) and not said.of(106, (7, 9))
    run.anomalies.append({"kind": "divergence", "at": 50})
    said = Said(run, "divergence")
    assert said.of(150, (7, 8)) and said.of(150, None) and not said.of(151, (7, 8)), "of any step"


@pytest.mark.parametrize(
    ("told", "loss", "wrong"),
    [
        ({"kind": "nonfinite", "at_step": 30}, 1.0, True),
        ({"kind": "nonfinite", "at_step": 30}, "nan", False),
        ({"kind": "nonfinite", "at_step": 31}, 1.0, False),  # of a step that is not told
        ({"kind": "divergence", "at_step": 30}, 1.0, True),
        ({"kind": "hang"}, 1.0, False),  # no step shows it
    ],
)
def test_steps_contradict_an_alarm_only_where_they_would_show_it(told: dict[str, Any], loss: Any, wrong: bool) -> None:
    def bend(logs: Logs) -> None:
        alarm(logs, 0, 30, **told)
        change(logs.steps(30, 30, rank=0), loss=loss)
        for lines in logs.trainers(rank=0):
            lines[:] = [line for line in lines if line.get("event") != "step" or line["step"] != 31]

    assert bool(contradicted(bent(QUIET, bend), [])) == wrong
