"""What is told decides what is judged: the untold is named, the promised and missing is inconclusive."""

from typing import Any

import pytest
from judging import EXPECT, Bend, bending, bent, by_a_command, fault_free_of, together, verdict
from simulator import Job, Logs, Outage, change, remove, simulate, steps

from harness.cli.scenarios import untold
from harness.errors import EventLogError
from harness.evidence import reported
from harness.judge.bounds import expects_something
from harness.judge.score import Scorecard
from harness.judge.verdict import Verdict
from harness.node.emitter import TELLS
from harness.report import figures as figures_of
from harness.trainers.contract import build_trainer

JOB = Job(nodes=2, steps=60, every=10)
KILL = [Outage(17, "rank", victim=1)]
SIMULATED = tuple(kind for kind in TELLS if kind != "weights")  # kinds that the simulated trainer tells


def both(bend: Bend, expect: dict[str, Any] | None = None, fault_free: bool = True) -> Scorecard:
    """The same trainer tells, or does not tell, in the run and in its fault-free run."""
    usual = bent(JOB, *([bend] if fault_free else []))
    return verdict(simulate(JOB, KILL, seed=5), bend, expect, usual)


@bending
def without(logs: Logs, *fields: str) -> None:
    for line in logs.steps():
        for field in fields:
            line.pop(field, None)


@bending
def without_events(logs: Logs, *names: str) -> None:
    for name, lines in logs.items():
        remove(lines, lambda line: name != "harness" and line.get("event") in names)  # noqa: B023


KINDS = {
    "positions": without("first", "count"),
    "digests": without("digest"),
    "restores": without_events("restored"),
    "exits": without_events("exiting", "worker.exit"),
    "phases": without_events("rendezvous", "agent.rendezvous", "phase"),
    "checkpoints": without_events("checkpoint.started", "checkpoint.committed"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_told_no_more_is_judged_no_more_and_nothing_else_is(kind: str) -> None:
    before, after = both(lambda logs: None), both(KINDS[kind])
    assert before.verdict is after.verdict is Verdict.PASS, after.reasons
    assert set(after.not_judged) - set(before.not_judged) == {reported.ITEMS[kind]}
    assert set(before.not_judged) - {"checkpoints in their store"} <= set(after.not_judged)
    assert reported.ITEMS[kind] in after.reasons[0]
    assert kind in figures_of.metrics(before)["tells"] and kind not in figures_of.metrics(after)["tells"]


def test_what_was_never_told_cannot_be_compared() -> None:
    card = both(without("loss"))
    assert card.verdict is Verdict.INCONCLUSIVE and "loss" in card.not_judged
    assert "loss_continuity.mode: the trainer reports no loss" in card.reasons
    card = both(together(by_a_command, KINDS["checkpoints"], KINDS["restores"]), fault_free=False)
    assert card.verdict is Verdict.INCONCLUSIVE and "nothing shows that this run did" in card.reasons[0]


def declaring(names: object) -> Bend:
    return lambda logs: change((lines[0] for lines in logs.trainers()), tells=names)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_declared_and_is_not_there_is_missing(kind: str) -> None:
    card = both(together(declaring(SIMULATED), KINDS[kind]))
    assert card.verdict is Verdict.INCONCLUSIVE
    assert any(text.startswith(f"evidence is missing: {reported.ITEMS[kind]}") for text in card.reasons), card.reasons
    silent = tuple(name for name in SIMULATED if reported.ITEMS[name] != reported.ITEMS[kind])
    assert both(together(declaring(silent), KINDS[kind])).verdict is Verdict.PASS


@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_with_the_reference_trainer_promises_everything(kind: str) -> None:
    """Its headers need not say so. Where the fault-free run does not report it either, it is another trainer."""
    card = both(KINDS[kind], fault_free=False)
    assert card.verdict is Verdict.INCONCLUSIVE
    assert any(text.startswith(f"evidence is missing: {reported.ITEMS[kind]}") for text in card.reasons), card.reasons
    other = both(together(by_a_command, KINDS[kind]), fault_free=False)
    promised = [text for text in other.reasons if "its trainer declares" in text]
    assert promised == []


def test_what_is_told_at_the_first_step_and_then_at_common_ones_does_not_cease() -> None:
    """After the restart it is told at steps 61 and 63, and would be again at step 83."""

    def bend(logs: Logs) -> None:
        for lines in logs.trainers():
            for place, line in enumerate(steps(lines)):
                if place == 0 or line["step"] % 20 == 3:
                    line["weights"] = f"w{line['step']}"

    job = Job(nodes=2, steps=80, every=10)
    card = verdict(simulate(job, [Outage(67, "rank", victim=1)], 5), bend, EXPECT, fault_free_of(job))
    assert not [text for text in card.reasons if "stopped reporting" in text], card.reasons


@bending
def ceases(logs: Logs, *fields: str, rank: int, first: int, last: int = 10**9, every: int = 1) -> None:
    """One rank leaves these fields out of its steps from the first one on, in the same process."""
    for line in logs.steps(rank=rank):
        if first <= line["step"] <= last or line["step"] % every:
            for field in fields:
                line.pop(field, None)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("fields", "kind"), [(("loss",), "loss"), (("first", "count"), "positions")])
@pytest.mark.parametrize("every", [1, 5])
def test_what_a_process_stops_telling_is_missing(fields: tuple[str, ...], kind: str, rank: int, every: int) -> None:
    card = both(ceases(*fields, rank=rank, first=40, every=every), fault_free=False)
    assert card.verdict is not Verdict.PASS
    text = f"evidence is missing: {reported.ITEMS[kind]}: rank {rank} stopped reporting this "
    assert any(reason.startswith(text) for reason in card.reasons), card.reasons


@pytest.mark.parametrize("first", [38, 58])
def test_what_is_told_by_a_rule_is_not_missing_between(first: int) -> None:
    """A figure of every fifth step is not told in the last four; one that is left out twice by chance has not ceased."""
    for bend in (ceases("digest", rank=1, first=10**9, every=5), ceases("digest", rank=1, first=first, last=first + 1)):
        card = both(bend)
        assert not [text for text in card.reasons if "evidence is missing" in text], card.reasons


@pytest.mark.parametrize("odd", [None, 7, "steps", {"loss": 1}, [None, 3, ["x"]]])
def test_an_odd_declaration_is_refused(odd: object) -> None:
    with pytest.raises(EventLogError, match="tells"):
        both(declaring(odd))


@pytest.mark.parametrize(("code", "due"), [(0, True), (-9, False)])
def test_exits_are_due_where_a_node_ended_by_itself(code: int, due: bool) -> None:
    def aborted(logs: Logs) -> None:
        together(declaring(list(SIMULATED)), KINDS["exits"])(logs)
        change((line for line in logs.harness if line.get("event") == "process.exit"), code=code)
        logs.harness[-1].update(outcome="aborted", reason="no step")

    text = f"evidence is missing: {reported.ITEMS['exits']}: the trainer declares that it reports this"
    assert any(reason.startswith(text) for reason in both(aborted).reasons) is due


@pytest.mark.parametrize(
    ("phase", "kind"),
    [
        ("interrupted_step", "exits"),
        ("detect", "exits"),
        ("drain", "exits"),
        ("teardown", "exits"),
        ("startup", "phases"),
        ("rendezvous", "phases"),
        ("restore", "phases"),
        ("restore", "restores"),
        ("first_step", "restores"),
    ],
)
def test_a_phase_that_nobody_tells_is_not_zero_seconds(phase: str, kind: str) -> None:
    expect = {"recovery_time": {"phases": {phase: "60s"}}}
    assert both(lambda logs: None, expect).verdict is Verdict.PASS
    card = both(KINDS[kind], expect)
    assert card.verdict is Verdict.INCONCLUSIVE
    assert f"{phase} cannot be measured: the log does not report {reported.ITEMS[kind]}" in card.reasons[0]


def test_a_scenario_without_a_bound_says_so() -> None:
    assert not any(expects_something({name: {}}) for name in ("recovery_time", "wasted_gpu_hours", "metrics", "pace"))
    assert not expects_something({"pace": "off"})
    assert all(expects_something({name: {}}) for name in ("loss_continuity",))
    assert expects_something({"recovery_time": {"max": "3s"}}) and expects_something({"pace": {"max_slowdown": 3}})
    card = both(lambda logs: None, {"recovery_time": {}})
    assert "the scenario expects nothing else" in card.reasons[0]
    assert "not judged: checkpoints in their store, loss, sample order, sample contents" in card.reasons[0]


def test_what_will_not_be_judged_is_said_beforehand() -> None:
    some = build_trainer({"command": ["x"], "tells": ["steps", "loss"]}).declares()
    expect = {"loss_continuity": {"mode": "envelope"}, "recovery_time": {"phases": {"restore": "1s"}}, "pace": "off"}
    lines = untold(some, expect)
    assert lines[0].startswith("Not judged, because its trainer does not report it: sample order, sample contents, ch")
    assert [line.split()[0] for line in lines[1:]] == ["loss_continuity", "recovery_time.phases.restore"]
    assert untold(build_trainer("reference").declares(), expect) == ["Its trainer reports everything that is judged."]
    [open_] = untold(build_trainer({"command": ["x"]}).declares(), expect)
    assert "is seen when it runs" in open_ and "will not be judged" in open_ and "declare" not in open_


@pytest.mark.parametrize(
    ("bounds", "tells", "lacking"),
    [
        ({}, (), ["loss"]),
        ({"mode": "final"}, (), ["loss", "positions"]),
        ({"mode": "final"}, ("loss",), ["positions"]),
        ({"mode": "exact"}, ("loss",), []),
    ],
)
def test_a_bound_needs_what_it_compares(bounds: dict[str, Any], tells: tuple[str, ...], lacking: list[str]) -> None:
    items = ", ".join(reported.ITEMS[kind] for kind in lacking)
    text = f"  loss_continuity would be inconclusive: its trainer does not report {items}."
    lines = untold(frozenset({"steps", *tells}), {"loss_continuity": bounds})
    assert lines[1:] == [text] * bool(lacking)


@pytest.mark.parametrize("begun", [False, True], ids=["tells step 0 as restored", "begins a checkpoint besides"])
def test_a_job_that_begins_again_from_scratch_proves_nothing_by_saying_so(begun: bool) -> None:
    """Neither a restore of step 0 nor a checkpoint that was only begun shows that anything was kept."""
    never_saves = Job(nodes=2, steps=60, every=10**6)

    def bend(logs: Logs) -> None:
        by_a_command(logs)
        logs.plan["workload"] |= {"checkpoint": {"every_steps": 10}}
        for lines in logs.trainers():
            lines[0].pop("tells", None)
            for done in steps(lines)[:1] if begun else ():
                lines.insert(lines.index(done) + 1, done | {"event": "checkpoint.started", "step": 1})

    history = simulate(never_saves, [Outage(37, "rank", victim=1)], seed=5)
    card = verdict(history, bend, fault_free=bent(never_saves, bend))
    assert card.verdict is Verdict.INCONCLUSIVE, card.reasons
    assert any("started again" in reason or "from scratch" in reason for reason in card.reasons), card.reasons
